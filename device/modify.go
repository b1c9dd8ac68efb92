package device

import (
	"math/bits"

	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// QPAttr are the attributes of a queue pair (ibv_qp_attr). QP.Modify looks at those that its mask names alone; which can be
// named when is in the manual page ibv_modify_qp(3) and in the kernel's core/verbs.c:qp_state_table.
type QPAttr struct {
	State           State  // AttrState: where to go
	CurState        State  // AttrCurState: where the caller believes it to be; another is EINVAL
	PathMTU         int    // bytes: 256, 512, 1024, 2048, 4096, not above PortAttr.ActiveMTU; of datagrams it is that, of raw packets the link's MTU
	QKey            uint32 // UD: of the datagrams that it receives
	RQPSN, SQPSN    uint32 // first PSN that is expected, and that is sent; of what is longer the low 24 bits count
	DestQPN         uint32 // the peer's, 24 bits
	Access          Access // what peers may ask for: RemoteWrite, RemoteRead, RemoteAtomic, FlushGlobal, FlushPersistent; LocalWrite and MWBind say nothing
	AH              AHAttr // AttrAV: the peer's address
	PKeyIndex       int    // entry of the port's P_Key table, below PortAttr.PKeys
	Port            int    // 1
	MaxRdAtomic     int    // READs, atomics, ATOMIC WRITEs and FLUSHes in flight as initiator, 0 ... MaxRdAtomic; 0: none can be posted
	MaxDestRdAtomic int    // and as responder, 0 ... MaxRdAtomic; rounded up to a power of two. 0: they are refused
	MinRNRTimer     int    // how long a peer is to wait that found no receive; code of the AETH, 0 ... 31: 0 is 655.36 ms, 1 is 0.01 ms, 31 is 491.52 ms
	Timeout         int    // how long to wait for an answer; code, 0 ... 31: 4.096 µs · 2^code, 0: for ever
	RetryCnt        int    // how often a request without an answer is sent again, 0 ... 7; 7 is seven times (profile rxe: for ever)
	RNRRetry        int    // and one that found no receive, 0 ... 7; 7: no limit
	SQDNotify       bool   // with State StateSQD: an event EventSQDrained says when all that was begun is complete (en_sqd_async_notify)
	SQDraining      bool   // Query alone: in SQD, and it is not yet (sq_draining)
}

// Modify changes the attributes that mask names, and with AttrState the state (ibv_modify_qp). Everything is checked before
// anything changes. EINVAL, the only errno that there is: a change of state that does not exist, an attribute that it needs and
// mask does not name, or that it does not take, a value out of its range, an address vector that PD.CreateAH would refuse,
// leaving SQD while it drains, nil, a queue pair that is destroyed.
//
// To RESET it waits for packets that are being sent; requests are dropped without completions, completions that nobody has
// polled are removed, and attributes are forgotten. To ERR all requests are flushed before it returns, or soon after where
// there are many.
func (q *QP) Modify(a *QPAttr, mask AttrMask) error {
	q.mu.Lock()
	q.farewell()
	err := q.modify(a, mask)
	if err != nil {
		q.mu.Unlock()
		return &OpError{"modify_qp", qpName(q.num), err}
	}
	q.leave(q.dev.now(), maxBursts, true)
	return nil
}

func (q *QP) modify(a *QPAttr, mask AttrMask) error {
	if a == nil {
		return because(EINVAL, "there are no attributes")
	}
	if mask&AttrState != 0 && a.State == StateReset {
		for q.sending { // first: what is checked must hold when it is done
			q.idle.Wait()
		}
	}
	if q.dead {
		return because(EINVAL, "it is destroyed")
	}
	from, to := q.attr.State, q.attr.State
	if mask&AttrState != 0 {
		to = a.State
		if to > StateErr {
			return because(EINVAL, "state %d does not exist", to)
		}
	}
	if mask&AttrCurState != 0 && a.CurState != from {
		return because(EINVAL, "cur_qp_state is %s, the state is %s", a.CurState, from)
	}
	if err := checkMove(q.typ, from, to, mask); err != nil {
		return err
	}
	if from == StateSQD && q.draining && to != StateErr && to != StateReset {
		return because(EINVAL, "the send queue is draining: wait until query says otherwise, or for %s", EventSQDrained)
	}
	path, err := q.checkAttrs(a, mask)
	if err != nil {
		return err
	}
	q.commit(a, mask, path, from, to)
	return nil
}

// checkAttrs checks the values that mask names; it returns the path of a new
// address vector.
func (q *QP) checkAttrs(a *QPAttr, mask AttrMask) (*wire.Path, error) {
	for _, v := range []struct {
		bit           AttrMask
		name          string
		val, min, max int
	}{
		{AttrPKeyIndex, "pkey_index", a.PKeyIndex, 0, len(q.dev.pkeys) - 1},
		{AttrPort, "port_num", a.Port, 1, 1},
		{AttrTimeout, "timeout", a.Timeout, 0, 31},
		{AttrRetryCnt, "retry_cnt", a.RetryCnt, 0, 7},
		{AttrRNRRetry, "rnr_retry", a.RNRRetry, 0, 7},
		{AttrMinRNRTimer, "min_rnr_timer", a.MinRNRTimer, 0, 31},
		{AttrMaxRdAtomic, "max_rd_atomic", a.MaxRdAtomic, 0, MaxRdAtomic},
		{AttrMaxDestRdAtomic, "max_dest_rd_atomic", a.MaxDestRdAtomic, 0, MaxRdAtomic},
		{AttrDestQPN, "dest_qp_num", int(a.DestQPN), 0, 0xFFFFFF},
	} {
		if mask&v.bit != 0 && (v.val < v.min || v.val > v.max) {
			return nil, because(EINVAL, "%s %d: %d ... %d are possible", v.name, v.val, v.min, v.max)
		}
	}
	if mask&AttrAltPath != 0 {
		return nil, because(EINVAL, "RoCE has no alternate path")
	}
	if mask&AttrAccess != 0 && a.Access&^(LocalWrite|anyRemote|MWBind) != 0 {
		return nil, because(EINVAL, "qp_access_flags 0x%x: only local write, remote write, read and atomic, window bind and flush are possible", uint32(a.Access))
	}
	if mask&AttrPathMTU != 0 {
		if !validMTU(a.PathMTU) {
			return nil, because(EINVAL, "path_mtu %d: 256, 512, 1024, 2048 or 4096", a.PathMTU)
		}
		if m := int(q.dev.mtu.Load()); a.PathMTU > m {
			return nil, because(EINVAL, "path_mtu %d is above the port's active MTU %d", a.PathMTU, m)
		}
	}
	p := q.attr.Path
	if mask&AttrAV != 0 {
		var err error
		if p, err = q.dev.path(&a.AH); err != nil {
			return nil, err
		}
		if a.AH.DGID.IsMulticast() && q.typ != UD {
			return nil, because(EINVAL, "%s is a group: a connection has one peer", a.AH.DGID)
		}
	}
	if err := q.fits(p, a, mask); err != nil {
		return nil, err
	}
	if mask&AttrAV == 0 {
		return nil, nil
	}
	dest := q.attr.DestQPN
	if mask&AttrDestQPN != 0 {
		dest = a.DestQPN
	}
	p.SrcPort = sourcePort(a.AH.FlowLabel, q.num, dest)
	if q.dev.profile.RandomPort {
		p.SrcPort = 0xC000 | uint16(q.dev.random32()&0x3FFF)
	}
	return p, nil
}

// longestHead is the most that stands before and behind the payload of a packet of
// a connection over IPv6: IPv6, UDP, BTH, RETH, ImmDt, ICRC. The active MTU is
// reckoned with 80 bytes, as rxe does, which is enough for IPv4 alone.
const longestHead = 40 + 8 + 12 + 16 + 4 + 4

// fits checks that the longest packet of a path fits the link.
func (q *QP) fits(p *wire.Path, a *QPAttr, mask AttrMask) error {
	mtu := q.attr.PathMTU
	if mask&AttrPathMTU != 0 {
		mtu = a.PathMTU
	}
	link, head := q.dev.port.Info().MTU, longestHead
	if q.typ == XRCIni || q.typ == XRCTgt {
		head += bth.HXRCETH.Len()
	}
	if p == nil || q.typ.datagrams() || !p.Dst.Is6() || mtu+head <= link {
		return nil
	}
	return because(EINVAL, "path_mtu %d over IPv6 needs packets of %d bytes, the link takes %d", mtu, mtu+head, link)
}

// commit applies a modify that was checked.
func (q *QP) commit(a *QPAttr, mask AttrMask, path *wire.Path, from, to State) {
	now := q.dev.now()
	t, u := &q.attr, &q.user
	if to == StateReset {
		q.toReset()
		return
	}
	var ch transport.Changed
	for _, f := range []struct {
		bit AttrMask
		set func()
	}{
		{AttrAccess, func() { u.Access, t.Access = a.Access, a.Access }},
		{AttrPKeyIndex, func() { u.PKeyIndex, t.PKey = a.PKeyIndex, q.dev.pkeys[a.PKeyIndex] }},
		{AttrPort, func() { u.Port = a.Port }},
		{AttrQKey, func() { u.QKey, t.QKey = a.QKey, a.QKey }},
		{AttrAV, func() { u.AH, t.Path = a.AH, path }},
		{AttrPathMTU, func() { u.PathMTU, t.PathMTU = a.PathMTU, a.PathMTU }},
		{AttrDestQPN, func() { u.DestQPN, t.DestQPN = a.DestQPN, a.DestQPN }},
		{AttrTimeout, func() { u.Timeout, t.Timeout = a.Timeout, uint8(a.Timeout) }},
		{AttrRetryCnt, func() { u.RetryCnt, t.RetryCnt = a.RetryCnt, uint8(a.RetryCnt) }},
		{AttrRNRRetry, func() { u.RNRRetry, t.RNRRetry = a.RNRRetry, uint8(a.RNRRetry) }},
		{AttrMinRNRTimer, func() { u.MinRNRTimer, t.MinRNRTimer = a.MinRNRTimer, uint8(a.MinRNRTimer) }},
		{AttrMaxRdAtomic, func() { u.MaxRdAtomic, t.MaxRdAtomic = a.MaxRdAtomic, a.MaxRdAtomic }},
		{AttrMaxDestRdAtomic, func() {
			n := a.MaxDestRdAtomic
			if n > 0 {
				n = 1 << bits.Len(uint(n-1))
			}
			u.MaxDestRdAtomic, t.MaxDestRdAtomic = n, n
			ch |= transport.ChangedDepth
		}},
		{AttrRQPSN, func() {
			u.RQPSN = a.RQPSN & bth.PSNMask
			t.RQPSN = bth.PSN(u.RQPSN)
			ch |= transport.ChangedRQPSN
		}},
		{AttrSQPSN, func() {
			u.SQPSN = a.SQPSN & bth.PSNMask
			t.SQPSN = bth.PSN(u.SQPSN)
			ch |= transport.ChangedSQPSN
		}},
	} {
		if mask&f.bit != 0 {
			f.set()
		}
	}
	if to == StateSQD && from != StateSQD {
		q.draining, q.tellDrained = true, mask&AttrSQDNotify != 0 && a.SQDNotify
	}
	q.enterState(to)
	q.eng.Modified(now, ch)
	if to == StateErr {
		q.eng.Flush(now)
	}
}

// toReset empties the queue pair: nothing of the old connection is left. Nothing is being sent.
func (q *QP) toReset() {
	q.tx.Release()
	q.cnpWaits = false
	mtu := q.attr.PathMTU
	q.attr = transport.Attr{QPN: q.num, SigAll: q.attr.SigAll, MigReq: q.attr.MigReq, Rules: q.attr.Rules, PKey: q.dev.pkeys[0]}
	if q.dev.longest(q.typ) != 0 {
		q.attr.PathMTU = mtu
	}
	q.user = QPAttr{}
	q.enterState(StateReset)
	q.eng.Reset()
	q.todo.Store(0)
	q.lookAt = 0
	q.clearQueues()
	q.scq.purge(q.num)
	q.rcq.purge(q.num)
}

// Query returns the attributes that are in force, and what the queue pair was made of (ibv_query_qp): Cap as it came out,
// without rings, BlockSelfMulticast, StateChanged and XRCD. It does not fail: of a queue pair that is destroyed the state is
// RESET.
func (q *QP) Query() (QPAttr, QPInit) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.user
	a.State, a.CurState = q.attr.State, q.attr.State
	a.SQDraining = a.State == StateSQD && q.draining
	return a, QPInit{Type: q.typ, SendCQ: q.scq, RecvCQ: q.rcq, Cap: q.cap, SRQ: q.srq, SigAll: q.attr.SigAll, Steer: q.steered, Handler: q.handler}
}
