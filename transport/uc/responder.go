package uc

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// responder is the receive half.
type responder struct {
	m    *Machine
	epsn bth.PSN // expected PSN
	est  bool    // communication established was raised

	in   transport.Message
	recv transport.RecvWR // receive in use
	held bool             // recv was taken and not completed
	got  uint64           // SEND: bytes stored

	va   uint64 // WRITE: where the next byte goes
	rkey uint32
	size uint64 // WRITE: length of the message
	left uint64 // WRITE: bytes to come
}

// receive handles a packet. Whatever is wrong with it, the message that it belongs to is dropped
// and nothing is answered; the next message that begins is taken, whatever its PSN.
func (r *responder) receive(now transport.Time, v *wire.View) wire.Fault {
	if r.m.Attr.State == transport.RTR && !r.est {
		r.est = true
		r.m.Host.Raise(transport.EventCommEst)
	}
	f := v.Info.Flags
	psn := v.BTH().PSN()
	start := f&bth.Start != 0
	if start || psn != r.epsn || !r.in.InSequence(f) {
		// A message that was cut is over. The receive that it held serves the next.
		r.in = transport.NoMessage
		if !start {
			return wire.OutOfSequence
		}
	}
	r.epsn = psn.Next()
	fault := r.execute(now, v)
	if fault != wire.OK {
		r.in = transport.NoMessage
	}
	return fault
}

func (r *responder) execute(now transport.Time, v *wire.View) wire.Fault {
	f := v.Info.Flags
	if !transport.GoodLength(v, r.m.Attr.PathMTU) {
		return wire.BadMessage
	}
	if f&(bth.Send|bth.Start) == bth.Send && r.got+uint64(len(v.Payload)) > transport.MaxMessage {
		return wire.BadMessage
	}
	if f&bth.Write != 0 && r.m.Attr.Access&transport.RemoteWrite == 0 {
		return wire.BadMessage
	}
	if f&bth.Recv != 0 && !r.held {
		if !r.m.Recv.Queue.Fetch(&r.recv) {
			r.m.Counters.Inc(stats.OutOfBuffer)
			return wire.NoReceive
		}
		r.held = true
	}
	if f&bth.Write != 0 {
		return r.write(now, v)
	}
	return r.send(now, v)
}

// send stores a SEND packet in the receive.
func (r *responder) send(now transport.Time, v *wire.View) wire.Fault {
	if v.Info.Has(bth.Start) {
		r.got = 0
	}
	switch transport.Scatter(r.m.Host, r.m.Recv, r.recv.SGE, r.got, v.Payload, &r.m.scr) {
	case transport.StatusSuccess:
	case transport.StatusLocalLength:
		return wire.TooLong // the receive stays for the next one
	case transport.Gone:
		return wire.LocalMemory
	default:
		r.m.Counters.Inc(stats.RespCqeError)
		r.finish(transport.WC{Status: transport.StatusLocalProtection}, false)
		r.fail(now)
		return wire.LocalMemory
	}
	r.got += uint64(len(v.Payload))
	r.in = transport.InSend
	if v.Info.Has(bth.End) {
		r.end(now, v, transport.WC{Op: transport.WCRecv, ByteLen: uint32(r.got)})
	}
	return wire.OK
}

// write stores an RDMA WRITE packet in the memory that its key names.
func (r *responder) write(now transport.Time, v *wire.View) wire.Fault {
	n := uint64(len(v.Payload))
	if v.Info.Has(bth.Start) {
		h := bth.RETH(v.Header(bth.HRETH))
		r.va, r.rkey, r.size = h.VA(), h.RKey(), uint64(h.Length())
		r.left = r.size
		if r.size > transport.MaxMessage {
			return wire.BadMessage
		}
		if r.size > 0 {
			mem, ok := r.m.Host.Remote(r.rkey, r.va, r.size, transport.RemoteWrite)
			if !ok {
				return wire.BadMessage
			}
			mem.Release()
		}
		r.m.Counters.Inc(stats.RxWriteRequests)
	}
	end := v.Info.Has(bth.End)
	if n > r.left || end != (n == r.left) {
		return wire.BadMessage
	}
	if n > 0 {
		mem, ok := r.m.Host.Remote(r.rkey, r.va, n, transport.RemoteWrite)
		if !ok {
			return wire.BadMessage
		}
		err := transport.CopyIn(mem, r.va, v.Payload, &r.m.scr)
		mem.Release()
		if err != nil {
			return wire.LocalMemory
		}
	}
	r.va += n
	r.left -= n
	r.in = transport.InWrite
	if end {
		r.end(now, v, transport.WC{Op: transport.WCRecvImm, ByteLen: uint32(r.size)})
	}
	return wire.OK
}

// end ends a message; one that took a receive completes it.
func (r *responder) end(now transport.Time, v *wire.View, wc transport.WC) {
	r.in = transport.NoMessage
	if !v.Info.Has(bth.Comp) {
		return
	}
	r.m.Counters.Inc(stats.RDMARecvs)
	wc.SrcQP = r.m.Attr.DestQPN
	transport.Immediate(&wc, v)
	if !r.finish(wc, v.BTH().Solicited()) {
		r.m.Host.Raise(transport.EventQPFatal)
		r.fail(now)
	}
}

// finish completes the receive that is held; false if the completion was lost.
func (r *responder) finish(c transport.WC, solicited bool) bool {
	wc := &r.m.wc
	*wc = c
	wc.ID, wc.QPN = r.recv.ID, r.m.Attr.QPN
	r.held = false
	r.m.Recv.Queue.Retire(1)
	return r.m.Recv.Done(wc, solicited)
}

func (r *responder) fail(now transport.Time) {
	r.m.Host.Failed(transport.Err)
	r.m.Flush(now)
}

// flush completes the receives with a flush error.
func (r *responder) flush() {
	if r.held {
		r.finish(transport.WC{Status: transport.StatusFlush}, false)
	}
	r.in = transport.NoMessage
	for !r.m.Recv.Shared && r.m.Recv.Queue.Fetch(&r.recv) {
		r.held = true
		r.finish(transport.WC{Status: transport.StatusFlush}, false)
	}
}

func (r *responder) reset() {
	if r.held {
		r.m.Recv.Queue.Retire(1)
	}
	*r = responder{m: r.m}
}
