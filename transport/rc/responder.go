package rc

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
	psns uint64  // PSNs executed
	msn  uint32  // completed messages, 24 bits
	mute bool    // a sequence or RNR NAK is out: silent until epsn comes
	est  bool    // communication established was raised

	in   transport.Message
	at   *transport.RecvContext // what the message is received into; nil: nothing was yet (XRC)
	recv transport.RecvWR       // receive in use
	held bool                   // recv was taken and not completed
	got  uint64                 // SEND: bytes stored

	va   uint64 // WRITE: where the next byte goes
	rkey uint32
	size uint64 // WRITE: length of the message
	left uint64 // WRITE: bytes to come

	saved saved
	out   replies
}

func (r *responder) start(psn bth.PSN) { r.epsn = psn }

// receive handles a request. The order of the checks is that of roce.md B.4:
// PSN, opcode sequence, access rights of the queue pair, receive or READ resource, lengths, key.
func (r *responder) receive(now transport.Time, v *wire.View) wire.Fault {
	if r.m.Attr.State == transport.RTR && !r.est {
		r.est = true
		r.m.Host.Raise(transport.EventCommEst)
	}
	psn := v.BTH().PSN()
	switch d := psn.Sub(r.epsn); {
	case d > 0:
		if !r.mute {
			r.mute = true
			r.nak(bth.NakSequence, r.epsn)
			r.m.Counters.Inc(stats.OutOfSeqRequest)
		}
		return wire.OutOfSequence
	case d < 0:
		return r.duplicate(psn, v)
	}
	r.mute = false
	return r.execute(now, psn, v)
}

// duplicate answers a request that was executed already. Data is never
// touched again; a READ is read again, after its key was looked up again.
func (r *responder) duplicate(psn bth.PSN, v *wire.View) wire.Fault {
	r.m.Counters.Inc(stats.DuplicateRequest)
	f := v.Info.Flags
	if v.Info.Known() && f&(bth.Send|bth.Write|bth.Read) == 0 {
		return r.repeat(psn, v)
	}
	if f&bth.Read == 0 {
		if v.Info.Known() {
			p := r.acknowledgeable()
			if p.Before(psn) {
				return wire.DuplicateUnserved // a SEND or WRITE with the PSN of a READ
			}
			r.acknowledge(p)
		}
		return wire.Duplicate
	}
	res, id := r.saved.find(r.place(psn))
	if res == nil || res.op != v.BTH().Opcode() {
		return wire.DuplicateUnserved
	}
	h := bth.RETH(v.Header(bth.HRETH))
	skip := psn.Sub(res.first)
	off := uint64(skip) * uint64(r.m.Attr.PathMTU)
	// A READ may be resumed behind what has arrived, never be another one.
	if h.RKey() != res.rkey || len(v.Payload) != 0 ||
		h.VA() != res.va+off || off > uint64(res.length) || uint64(h.Length()) > uint64(res.length)-off {
		return wire.DuplicateUnserved
	}
	n := r.responses(h.Length())
	for i := range r.out.n {
		e := r.out.at(i)
		if e.kind != replyRead || e.id != id {
			continue
		}
		// What is still on its way comes anyhow; the answer begins again for what is not, and ends where the longer one does.
		e.until, e.res.length = max(e.until, skip+n), max(e.res.length, uint32(off)+h.Length())
		if skip < e.sent {
			e.sent, e.start, e.psn, e.again = skip, skip, psn, true
		}
		return wire.Duplicate
	}
	again := *res
	again.length = uint32(off) + h.Length()
	r.out.insert(reply{kind: replyRead, res: again, id: id, psn: psn, msn: r.msn, sent: skip, start: skip, until: skip + n, again: true})
	return wire.Duplicate
}

// place returns how many PSNs were executed before psn, which is before the
// expected one.
func (r *responder) place(psn bth.PSN) uint64 { return r.psns - uint64(-psn.Sub(r.epsn)) }

// acknowledgeable returns the highest PSN that a plain ACK may name: the last
// one executed, but never one of a READ, because rxe takes that for the READ's
// answer (rxe-lab.md C1).
func (r *responder) acknowledgeable() bth.PSN {
	p := r.epsn.Prev()
	for {
		res, _ := r.saved.find(r.place(p))
		if res == nil {
			return p
		}
		p = res.first.Prev()
	}
}

func (r *responder) responses(length uint32) int {
	return transport.Packets(uint64(length), r.m.Attr.PathMTU)
}

// refuse ends the connection over a request: NAK, then ERR. A receive that the
// message holds completes with st; without one the event tells.
func (r *responder) refuse(now transport.Time, psn bth.PSN, s bth.Syndrome, st transport.Status, e transport.Event) wire.Fault {
	r.nak(s, psn)
	if r.held {
		r.finish(transport.WC{Status: st}, false)
	} else {
		r.m.Host.Raise(e)
	}
	r.m.fail(now)
	return wire.BadRequest
}

// finish completes the receive that is held; false if the completion was lost.
func (r *responder) finish(c transport.WC, solicited bool) bool {
	wc := &r.m.wc
	*wc = c
	wc.ID, wc.QPN = r.recv.ID, r.m.Attr.QPN
	if wc.Status != transport.StatusSuccess && wc.Status != transport.StatusFlush {
		r.m.Counters.Inc(stats.RespCqeError)
	}
	r.held = false
	r.at.Queue.Retire(1)
	return r.at.Done(wc, solicited)
}

// overrun ends the connection because a completion found its queue full. The
// packet was executed and is not answered (design.md 8).
func (r *responder) overrun(now transport.Time) wire.Fault {
	r.m.Host.Raise(transport.EventQPFatal)
	r.m.fail(now)
	return wire.OK
}

// flush completes the receives with a flush error. Answers that were queued
// before the error still go out.
func (r *responder) flush() {
	if r.held {
		r.finish(transport.WC{Status: transport.StatusFlush}, false)
	}
	r.in = transport.NoMessage
	for r.at != nil && !r.at.Shared && r.at.Queue.Fetch(&r.recv) {
		r.held = true
		r.finish(transport.WC{Status: transport.StatusFlush}, false)
	}
}

func (r *responder) reset() {
	if r.held {
		r.at.Queue.Retire(1)
	}
	*r = responder{m: r.m, at: r.m.Recv, saved: r.saved, out: replies{q: r.out.q}}
	r.saved.clear()
}
