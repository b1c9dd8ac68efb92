package rc

import (
	"encoding/binary"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// receive handles a response.
func (r *requester) receive(now transport.Time, v *wire.View) wire.Fault {
	psn := v.BTH().PSN()
	if psn.Sub(r.max) >= 0 {
		return wire.GhostResponse
	}
	if psn.Before(r.una) {
		r.m.Counters.Inc(stats.LateAck)
		return wire.StaleResponse
	}
	switch v.BTH().Opcode().Operation() {
	case bth.Acknowledge:
		a := bth.AETH(v.Header(bth.HAETH))
		return r.acknowledge(now, psn, a.Syndrome(), a.MSN())
	case bth.ReadResponseFirst, bth.ReadResponseMiddle, bth.ReadResponseLast, bth.ReadResponseOnly, bth.AtomicAcknowledge:
		return r.response(now, psn, v)
	}
	return r.badResponse(now)
}

func (r *requester) badResponse(now transport.Time) wire.Fault {
	r.abort(now, transport.StatusBadResponse)
	return wire.BadResponse
}

// answered marks everything up to psn as answered. It stops at a READ without
// all its responses: nothing but its own responses completes it.
func (r *requester) answered(now transport.Time, psn bth.PSN) {
	moved := false
	for i := r.oldest(); i < r.n; i++ {
		w := r.at(i)
		if w.done {
			continue // a local request between others
		}
		if w.packets == 0 || w.asks() || psn.Before(w.first) {
			break
		}
		if psn.Before(w.last()) {
			if !psn.Before(r.una) {
				r.una, moved = psn.Next(), true
			}
			break
		}
		// Also where sending it again has just failed: it had arrived.
		w.status, w.done, moved = transport.StatusSuccess, true, true
		r.una = w.last().Next()
	}
	if moved {
		r.progress(now)
	}
}

// acknowledge handles an ACK, NAK or RNR NAK.
func (r *requester) acknowledge(now transport.Time, psn bth.PSN, s bth.Syndrome, msn uint32) wire.Fault {
	defer r.complete()
	switch {
	case s.IsAck():
		r.credits(s, msn)
		r.answered(now, psn)
		if r.una != psn.Next() {
			return r.impliedNak(now)
		}
		return wire.OK
	case !s.IsRNR() && !s.IsNak():
		return r.badResponse(now)
	}
	// A NAK acknowledges what is before its PSN and speaks of that PSN only.
	if psn != r.una {
		r.answered(now, psn.Prev())
	}
	if r.una != psn {
		return r.impliedNak(now)
	}
	if r.rnrUntil != 0 && (s.IsRNR() || s == bth.NakSequence) {
		// rxe sends a sequence NAK for what was behind the packet that it was
		// not ready for (rxe-lab.md 3); the wait covers that too. Another RNR NAK, perhaps the answer to what was sent again a
		// moment ago, makes it longer, and costs nothing: it may as well be the first one twice.
		if s.IsRNR() {
			r.rnrUntil = max(r.rnrUntil, now+transport.Time(bth.RNRTime(s.Value())))
		}
		return wire.StaleResponse
	}
	switch s {
	case bth.NakSequence:
		r.m.Counters.Inc(stats.PacketSeqErr)
		r.m.Counters.Inc(stats.RcvdSeqErr)
		r.retry(now, psn, wire.RetrySequence)
	case bth.NakInvalidRequest:
		r.abort(now, transport.StatusRemoteInvalidReq)
	case bth.NakRemoteAccess:
		r.abort(now, transport.StatusRemoteAccess)
	case bth.NakRemoteOp:
		r.abort(now, transport.StatusRemoteOp)
	default:
		if s.IsRNR() {
			r.rnr(now, s)
			return wire.OK
		}
		return r.badResponse(now)
	}
	return wire.OK
}

// impliedNak acts on an answer behind an unfinished READ: what is missing is
// asked for again at once, and only once until something moves.
func (r *requester) impliedNak(now transport.Time) wire.Fault {
	if !r.implied && r.rnrUntil == 0 {
		r.implied = true
		r.m.Counters.Inc(stats.ImpliedNakSeqErr)
		r.retry(now, r.una, wire.RetryImplied)
	}
	return wire.EarlyResponse
}

// credits takes the credit count of an ACK: message MSN + credits is the last
// that finds a receive at the peer (roce.md A.4).
func (r *requester) credits(s bth.Syndrome, msn uint32) {
	c, limited := s.Credits()
	if r.limited = limited; !limited {
		return
	}
	// msn has 24 bits; ssn counts the same messages without end.
	done := r.ssn - (r.ssn-msn)&0xFFFFFF
	if l := done + uint32(c); int32(l-r.limit) > 0 {
		r.limit = l
	}
}

// response takes a response packet of the READ, atomic, FLUSH or ATOMIC WRITE that is due.
func (r *requester) response(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	defer r.complete()
	if psn != r.una {
		r.answered(now, psn.Prev())
		if r.una != psn {
			return r.impliedNak(now)
		}
	}
	i := r.oldest()
	if i == r.n || !r.at(i).asks() || !r.at(i).sent {
		return r.badResponse(now)
	}
	w := r.at(i)
	if a := bth.AETH(v.Header(bth.HAETH)); a != nil {
		if !a.Syndrome().IsAck() {
			return r.badResponse(now)
		}
		r.credits(a.Syndrome(), a.MSN())
	}
	st, ok := r.take(w, v)
	if !ok {
		return r.badResponse(now)
	}
	if st != transport.StatusSuccess {
		r.abort(now, st)
		return wire.LocalMemory
	}
	w.got++
	r.una = psn.Next()
	if w.got == w.packets {
		r.reading--
		if w.wr.Op == transport.OpReadInv && !r.m.Host.Invalidate(w.wr.SGE[0].LKey, false) {
			r.abort(now, transport.StatusMWBind)
			return wire.OK
		}
		// Also where sending it again has just failed: it had arrived.
		w.status, w.done = transport.StatusSuccess, true
	}
	r.progress(now)
	return wire.OK
}

// take stores what a response brings; ok is false when it cannot be one of w.
func (r *requester) take(w *wqe, v *wire.View) (st transport.Status, ok bool) {
	op := v.BTH().Opcode().Operation()
	switch {
	case w.wr.Op.IsAtomic():
		if op != bth.AtomicAcknowledge {
			return 0, false
		}
		binary.NativeEndian.PutUint64(r.m.word[:], bth.AtomicAckETH(v.Header(bth.HAtomicAckETH)).Original())
		return r.m.scatter(w.wr.SGE, 0, r.m.word[:]), true
	case op == bth.AtomicAcknowledge:
		return 0, false
	case !w.isRead(): // FLUSH and ATOMIC WRITE
		return transport.StatusSuccess, op == bth.ReadResponseOnly && len(v.Payload) == 0
	}
	mtu := uint64(r.m.Attr.PathMTU)
	at := uint64(w.got) * mtu
	if !fits(op, w, w.packets-w.got) || uint64(len(v.Payload)) != min(mtu, w.length-at) {
		return 0, false
	}
	return r.m.scatter(w.wr.SGE, at, v.Payload), true
}

// fits reports whether a response opcode may stand where left responses of w
// are missing. After a READ was asked again its answer may begin in either
// way: adapters with FIRST or ONLY, rxe with MIDDLE or LAST (rxe-lab.md C4).
func fits(op bth.Operation, w *wqe, left int) bool {
	begin := w.got == 0
	switch op {
	case bth.ReadResponseFirst:
		return left > 1 && (begin || w.again)
	case bth.ReadResponseMiddle:
		return left > 1 && (!begin || w.again)
	case bth.ReadResponseLast:
		return left == 1 && (!begin || w.again)
	}
	return left == 1 && (begin || w.again)
}

// scatter stores b at offset from of a scatter list.
func (m *Machine) scatter(l []transport.SGE, from uint64, b []byte) transport.Status {
	if transport.Scatter(m.Host, nil, l, from, b, &m.scr) != transport.StatusSuccess {
		return transport.StatusLocalProtection
	}
	return transport.StatusSuccess
}
