package rc

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// execute handles the request at the expected PSN.
func (r *responder) execute(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	i := v.Info
	if !i.Known() && r.m.Attr.Rules.DropReserved {
		return wire.ReservedOpcode
	}
	if !i.Known() || !r.in.InSequence(i.Flags) || !r.target(v) || !r.allowed(v) {
		return r.badRequest(now, psn)
	}
	if i.Has(bth.Recv) && !r.held {
		if !r.at.Queue.Fetch(&r.recv) {
			r.mute = true
			r.nak(bth.RNRNak|bth.Syndrome(r.m.Attr.MinRNRTimer&31), psn)
			r.m.Counters.Inc(stats.SendRNRErr)
			r.m.Counters.Inc(stats.OutOfBuffer)
			return wire.NotReady
		}
		r.held = true
	}
	switch {
	case i.Has(bth.Read):
		return r.read(now, psn, v)
	case i.Has(bth.Write):
		return r.write(now, psn, v)
	case i.Has(bth.Send):
		return r.send(now, psn, v)
	}
	return r.ask(now, psn, v)
}

// target takes the receive context that an XRC packet names: all packets of a message name
// the same.
func (r *responder) target(v *wire.View) bool {
	h := v.Header(bth.HXRCETH)
	if h == nil {
		return true
	}
	c := r.m.Select(bth.XRCETH(h).SRQN())
	if c == nil || r.in != transport.NoMessage && c != r.at {
		return false
	}
	r.at = c
	r.m.Enter(c)
	return true
}

// allowed checks the access rights of the queue pair, before any key.
func (r *responder) allowed(v *wire.View) bool {
	a, f := r.m.Attr, v.Info.Flags
	switch {
	case f&bth.Send != 0:
		return true
	case f&bth.Write != 0:
		return a.Access&transport.RemoteWrite != 0
	case a.MaxDestRdAtomic == 0:
		return false
	case f&bth.Read != 0:
		return a.Access&transport.RemoteRead != 0
	case f&bth.Atomic != 0:
		return a.Access&transport.RemoteAtomic != 0
	case v.BTH().Opcode().Operation() == bth.AtomicWrite:
		return a.Access&transport.RemoteWrite != 0
	}
	return a.Access&flushAccess(bth.FETH(v.Header(bth.HFETH))) == flushAccess(bth.FETH(v.Header(bth.HFETH)))
}

// flushAccess returns the rights that a FLUSH needs.
func flushAccess(h bth.FETH) (a transport.Access) {
	if h.Placement()&int(transport.FlushGlobal) != 0 {
		a |= transport.FlushGlobalAccess
	}
	if h.Placement()&int(transport.FlushPersistent) != 0 {
		a |= transport.FlushPersistentAccess
	}
	return a
}

// badRequest refuses a request that is against the rules.
func (r *responder) badRequest(now transport.Time, psn bth.PSN) wire.Fault {
	return r.refuse(now, psn, bth.NakInvalidRequest, transport.StatusRemoteInvalidReq, transport.EventQPReqErr)
}

// badLength refuses a packet whose lengths contradict each other.
func (r *responder) badLength(now transport.Time, psn bth.PSN) wire.Fault {
	return r.refuse(now, psn, bth.NakInvalidRequest, transport.StatusLocalLength, transport.EventQPReqErr)
}

// advance moves the expected PSN behind n executed PSNs and counts a message
// that has ended.
func (r *responder) advance(n int, ended bool) {
	r.epsn = r.epsn.Add(n)
	r.psns += uint64(n)
	if ended {
		r.msn = (r.msn + 1) & 0xFFFFFF
		r.in = transport.NoMessage
	}
}

// send stores a SEND packet in the receive.
func (r *responder) send(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	i := v.Info
	if i.Has(bth.Start) {
		r.got = 0
	}
	if !transport.GoodLength(v, r.m.Attr.PathMTU) || r.got+uint64(len(v.Payload)) > transport.MaxMessage {
		return r.badLength(now, psn)
	}
	switch transport.Scatter(r.m.Host, r.at, r.recv.SGE, r.got, v.Payload, &r.m.scr) {
	case transport.StatusSuccess:
	case transport.StatusLocalLength:
		return r.badLength(now, psn)
	case transport.Gone:
		return wire.LocalMemory
	default:
		return r.refuse(now, psn, bth.NakRemoteOp, transport.StatusLocalProtection, transport.EventQPFatal)
	}
	r.got += uint64(len(v.Payload))
	end := i.Has(bth.End)
	r.in = transport.InSend
	r.advance(1, end)
	if end {
		r.m.Counters.Inc(stats.RDMARecvs)
		wc := transport.WC{Op: transport.WCRecv, ByteLen: uint32(r.got), SrcQP: r.m.Attr.DestQPN}
		transport.Immediate(&wc, v)
		if h := v.Header(bth.HIETH); h != nil {
			wc.Imm, wc.Flags = bth.IETH(h).RKey(), wc.Flags|transport.WCWithInv
			if !r.m.Host.Invalidate(wc.Imm, true) {
				// The message has arrived and is acknowledged; the key is our program's affair.
				if r.m.Attr.Rules.BadInvMSN {
					r.msn = (r.msn - 1) & 0xFFFFFF
				}
				r.executed(psn, v)
				r.finish(transport.WC{Status: transport.StatusRemoteInvalidReq}, false)
				r.m.fail(now)
				return wire.OK
			}
		}
		if !r.finish(wc, v.BTH().Solicited()) {
			return r.overrun(now)
		}
	}
	return r.executed(psn, v)
}

// executed acknowledges a SEND or WRITE packet if it asks for it.
func (r *responder) executed(psn bth.PSN, v *wire.View) wire.Fault {
	if v.BTH().AckReq() {
		r.acknowledge(psn)
	}
	return wire.OK
}

// write stores an RDMA WRITE packet in the memory that its key names.
func (r *responder) write(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	i := v.Info
	n := uint64(len(v.Payload))
	va, rkey, size, left := r.va, r.rkey, r.size, r.left
	if i.Has(bth.Start) {
		h := bth.RETH(v.Header(bth.HRETH))
		va, rkey, size = h.VA(), h.RKey(), uint64(h.Length())
		left = size
		if size > transport.MaxMessage {
			return r.badRequest(now, psn)
		}
	}
	// The lengths of the packets must add up to the length in the RETH, with
	// nothing left exactly at the end.
	end := i.Has(bth.End)
	if !transport.GoodLength(v, r.m.Attr.PathMTU) || n > left || end != (n == left) {
		return r.badLength(now, psn)
	}
	reach := n
	if i.Has(bth.Start) {
		reach = size // all of it, at once
	}
	if reach > 0 {
		mem, ok := r.m.Host.Remote(rkey, va, reach, transport.RemoteWrite)
		if !ok {
			return r.noAccess(now, psn)
		}
		err := transport.CopyIn(mem, va, v.Payload, &r.m.scr)
		mem.Release()
		if err == transport.ErrGone {
			return wire.LocalMemory
		}
		if err != nil {
			return r.noAccess(now, psn)
		}
	}
	if i.Has(bth.Start) {
		r.m.Counters.Inc(stats.RxWriteRequests)
	}
	r.va, r.rkey, r.size, r.left = va+n, rkey, size, left-n
	r.in = transport.InWrite
	r.advance(1, end)
	if end && r.held {
		r.m.Counters.Inc(stats.RDMARecvs)
		wc := transport.WC{Op: transport.WCRecvImm, ByteLen: uint32(size), SrcQP: r.m.Attr.DestQPN}
		transport.Immediate(&wc, v)
		if !r.finish(wc, v.BTH().Solicited()) {
			return r.overrun(now)
		}
	}
	return r.executed(psn, v)
}

// reachable checks a whole range without keeping it.
func (r *responder) reachable(rkey uint32, va, n uint64, a transport.Access) bool {
	mem, ok := r.m.Host.Remote(rkey, va, n, a)
	if ok {
		mem.Release()
	}
	return ok
}

func (r *responder) noAccess(now transport.Time, psn bth.PSN) wire.Fault {
	return r.refuse(now, psn, bth.NakRemoteAccess, transport.StatusRemoteAccess, transport.EventQPAccessErr)
}

// read queues the responses of a READ and saves it for duplicates.
func (r *responder) read(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	h := bth.RETH(v.Header(bth.HRETH))
	n := r.responses(h.Length())
	switch {
	case len(v.Payload) != 0, v.BTH().Pad() != 0:
		return r.badLength(now, psn)
	case h.Length() > transport.MaxMessage, n > maxOutstanding, r.saved.busy():
		// One more than max_dest_rd_atomic can be told only while the oldest
		// still has responses to send (roce.md B.5).
		return r.badRequest(now, psn)
	case h.Length() > 0 && !r.reachable(h.RKey(), h.VA(), uint64(h.Length()), transport.RemoteRead):
		return r.noAccess(now, psn)
	}
	r.m.Counters.Inc(stats.RxReadRequests)
	res := resource{at: r.at, op: v.BTH().Opcode(), first: psn, place: r.psns, packets: n, va: h.VA(), rkey: h.RKey(), length: h.Length(), busy: true}
	r.advance(n, true)
	id := r.saved.add(res)
	r.out.push(reply{kind: replyRead, res: res, id: id, psn: psn, msn: r.msn, until: n})
	return wire.OK
}
