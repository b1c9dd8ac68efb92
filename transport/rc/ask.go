package rc

import (
	"encoding/binary"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// ask executes an atomic, a FLUSH or an ATOMIC WRITE: requests of one packet that have
// a response of their own, and are saved as READs are.
func (r *responder) ask(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	if r.saved.busy() {
		return r.badRequest(now, psn)
	}
	res := resource{at: r.at, op: v.BTH().Opcode(), first: psn, place: r.psns, packets: 1, busy: true}
	var fault wire.Fault
	switch {
	case v.Info.Has(bth.Atomic):
		res.value, fault = r.atomic(now, psn, v)
	case res.op.Operation() == bth.Flush:
		fault = r.flushMemory(now, psn, v)
	default:
		fault = r.atomicWrite(now, psn, v)
	}
	if fault != wire.OK {
		return fault
	}
	r.advance(1, true)
	id := r.saved.add(res)
	r.out.push(r.answerTo(&res, id, psn))
	return wire.OK
}

// answerTo makes the response to a request that was executed by ask, now or earlier.
func (r *responder) answerTo(res *resource, id uint32, psn bth.PSN) reply {
	e := reply{kind: replyRead, res: *res, id: id, psn: psn, msn: r.msn, until: 1}
	if res.op.Info().Has(bth.Atomic) {
		e.kind = replyAtomic
	}
	return e
}

// atomic executes an atomic operation; it returns what was there. A misaligned address is
// looked at after the key (rxe-lab.md 4).
func (r *responder) atomic(now transport.Time, psn bth.PSN, v *wire.View) (uint64, wire.Fault) {
	a := &r.m.atomic // a local one would be allocated
	var va uint64
	var rkey uint32
	if h := bth.MaskedETH(v.Header(bth.HMaskedETH)); h != nil {
		va, rkey = h.VA(), h.RKey()
		*a = transport.Atomic{Op: transport.OpMaskedCompareSwap, CompareAdd: h.Compare(), Swap: h.Swap(), CompareAddMask: h.CompareMask(), SwapMask: h.SwapMask()}
	} else {
		h := bth.AtomicETH(v.Header(bth.HAtomicETH))
		va, rkey = h.VA(), h.RKey()
		switch o := v.BTH().Opcode(); {
		case o == bth.MaskedFetchAdd:
			*a = transport.Atomic{Op: transport.OpMaskedFetchAdd, CompareAdd: h.SwapAdd(), CompareAddMask: h.Compare()}
		case o.Operation() == bth.FetchAdd:
			*a = transport.Atomic{Op: transport.OpFetchAdd, CompareAdd: h.SwapAdd()}
		default:
			*a = transport.Atomic{Op: transport.OpCompareSwap, CompareAdd: h.Compare(), Swap: h.SwapAdd()}
		}
	}
	if len(v.Payload) != 0 || v.BTH().Pad() != 0 {
		return 0, r.badLength(now, psn)
	}
	mem, ok := r.m.Host.Remote(rkey, va, 8, transport.RemoteAtomic)
	if !ok {
		return 0, r.noAccess(now, psn)
	}
	defer mem.Release()
	if va&7 != 0 {
		return 0, r.badRequest(now, psn)
	}
	old, err := mem.Atomic64(va, a)
	if err == transport.ErrGone {
		return 0, wire.LocalMemory
	}
	if err != nil {
		return 0, r.noAccess(now, psn)
	}
	r.m.Counters.Inc(stats.RxAtomicRequests)
	return old, wire.OK
}

// atomicWrite stores 8 aligned bytes at once.
func (r *responder) atomicWrite(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	h := bth.RETH(v.Header(bth.HRETH))
	if len(v.Payload) != 8 || h.Length() != 8 || v.BTH().Pad() != 0 {
		return r.badLength(now, psn)
	}
	mem, ok := r.m.Host.Remote(h.RKey(), h.VA(), 8, transport.RemoteWrite)
	if !ok {
		return r.noAccess(now, psn)
	}
	defer mem.Release()
	if h.VA()&7 != 0 {
		return r.badRequest(now, psn)
	}
	switch mem.Store64(h.VA(), binary.NativeEndian.Uint64(v.Payload)) {
	case nil:
		return wire.OK
	case transport.ErrGone:
		return wire.LocalMemory
	}
	return r.noAccess(now, psn)
}

// flushMemory executes a FLUSH. All that was written before it is in memory already.
func (r *responder) flushMemory(now transport.Time, psn bth.PSN, v *wire.View) wire.Fault {
	f, h := bth.FETH(v.Header(bth.HFETH)), bth.RETH(v.Header(bth.HRETH))
	if len(v.Payload) != 0 || v.BTH().Pad() != 0 {
		return r.badLength(now, psn)
	}
	if transport.FlushLevel(f.Selectivity()) == transport.FlushRange && h.Length() > transport.MaxMessage {
		return r.badRequest(now, psn)
	}
	if transport.FlushLevel(f.Selectivity()) == transport.FlushRange && h.Length() == 0 {
		return wire.OK // as for a WRITE of nothing, the key is not looked at (C9-88; rxe-lab.md 3)
	}
	if !r.m.Host.FlushMemory(h.RKey(), h.VA(), uint64(h.Length()), transport.FlushLevel(f.Selectivity()), transport.FlushType(f.Placement())) {
		return r.noAccess(now, psn)
	}
	return wire.OK
}

// repeat answers a duplicate of a request that was executed by ask, which is not executed again.
func (r *responder) repeat(psn bth.PSN, v *wire.View) wire.Fault {
	res, id := r.saved.find(r.place(psn))
	if res == nil || res.op != v.BTH().Opcode() {
		return wire.DuplicateUnserved
	}
	for i := range r.out.n {
		if e := r.out.at(i); e.kind != replyAck && e.id == id {
			return wire.Duplicate // still on its way
		}
	}
	e := r.answerTo(res, id, psn)
	e.again = true
	r.out.insert(e)
	return wire.Duplicate
}
