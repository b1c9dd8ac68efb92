package device_test

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/softnic/softnic/device"
)

// gid is an address of the other device, or of this one, by the index of the GID to send from.
func (k *walker) gid(c *wCtx, index int) device.GID {
	side := 1 - c.side
	if k.one(6) {
		side = c.side
	}
	g, _ := k.dev[side].QueryGID(1, index)
	return g
}

func (k *walker) ah() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.ahs.count(c) >= 6 {
		return
	}
	c = pd.c
	a := device.AHAttr{SGIDIndex: of(k, 1, 2), TrafficClass: of(k, uint8(0), 3), Port: k.r.IntN(2)}
	a.DGID = k.gid(c, a.SGIDIndex)
	if k.one(3) {
		a.DGID = groups[a.SGIDIndex-1].gid
	}
	good := pd.alive()
	if k.one(4) {
		good = false
		switch k.r.IntN(5) {
		case 0:
			a.SGIDIndex = of(k, -1, device.GIDTableLen, 9)
		case 1:
			a.DGID = device.GID{}
		case 2:
			a.Port = of(k, -1, 2)
		case 3:
			a.FlowLabel = 1 << 20
		case 4:
			a.SGIDIndex = 3 - a.SGIDIndex
		}
	}
	ah, err := pd.CreateAH(a)
	if k.did(fmt.Sprintf("create_ah %+v", a), c, err, wants(c, good)...) {
		pd.use(1)
		k.ahs.add(&wAH{AH: ah, base: base{c: c}, pd: pd})
		if ah.Attr() != a {
			k.errorf("query_ah: %+v, made of %+v", ah.Attr(), a)
		}
	}
}

func (k *walker) endAH() {
	a, ok := k.ahs.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&a.base)
	if a.alive() {
		want = append(want, device.EBUSY) // a send that does not complete names it
	}
	if k.did("destroy_ah", a.c, a.Destroy(), want...) {
		k.ended(&a.base)
		a.pd.use(-1)
	}
}

func (k *walker) qp() {
	c := k.in()
	if k.qps.count(c) >= 12 {
		return
	}
	q := &wQP{base: base{c: c}, groups: map[device.GID]bool{}}
	entered := func(s device.State) {
		if s == device.StateErr {
			q.errs.Add(1)
		}
	}
	var handler func(device.AsyncEvent)
	if k.one(3) {
		handler = func(e device.AsyncEvent) { k.walk.event(e, 0) }
	}
	if x, ok := k.xrcds.pick(k, c, nil); ok && k.one(6) {
		qp, err := x.CreateXRCTarget(handler)
		if !k.did("create_qp XRC_TGT", x.c, err, wants(x.c, x.alive())...) {
			return
		}
		q.QP, q.typ, q.xrcd, q.c = qp, device.XRCTgt, x, x.c
		q.errs.Store(1 << 40) // nobody counts
		x.use(1)
		k.byQP.Store(qp, q)
		k.qps.add(q)
		return
	}
	pd, ok := k.pds.pick(k, c, nil)
	if !ok {
		return
	}
	c = pd.c
	q.c, q.pd = c, pd
	q.typ = of(k, device.RC, device.RC, device.RC, device.RC, device.UC, device.UC, device.UD, device.UD, device.XRCIni, device.RawPacket, device.GSI, device.SMI)
	in := device.QPInit{Type: q.typ, SigAll: k.one(4), Handler: handler, StateChanged: entered, BlockSelfMulticast: k.one(2),
		Cap: device.Cap{SendWR: of(k, 1, 4, 16, 64, 64), RecvWR: of(k, 1, 4, 16, 64, 64), SendSGE: of(k, 0, 1, 4), RecvSGE: of(k, 0, 1, 4), Inline: of(k, 0, 64, 512)}}
	var cqs [2]*wCQ
	for i := range cqs {
		if cqs[i], ok = k.cqs.pick(k, c, nil); !ok {
			return
		}
	}
	q.scq, q.rcq = cqs[0], cqs[1]
	in.SendCQ, in.RecvCQ = q.scq.CQ, q.rcq.CQ
	good := pd.alive() && q.scq.c == c && q.scq.alive()
	if q.typ == device.XRCIni && !k.one(10) {
		in.RecvCQ, q.rcq = nil, nil
	} else {
		good = good && q.rcq.c == c && q.rcq.alive() && q.typ != device.XRCIni
	}
	if s, ok := k.srqs.pick(k, c, func(s *wSRQ) bool { return s.xrcd == nil }); ok && s.xrcd == nil && k.one(4) {
		q.srq, in.SRQ = s, s.SRQ
		good = good && s.c == c && s.alive() && q.typ != device.XRCIni && q.typ != device.GSI && q.typ != device.SMI
	}
	if k.one(6) {
		good = false
		switch k.r.IntN(7) {
		case 0:
			in.Type = of(k, device.XRCTgt, 5, 9999, -1)
		case 1:
			in.Cap.SendWR = of(k, -1, device.MaxQPWR+1)
		case 2:
			in.Cap.SendSGE = of(k, -1, device.MaxSGE+1)
		case 3:
			in.Cap.Inline = of(k, -1, device.MaxInline+1)
		case 4:
			in.SendCQ = nil
		case 5:
			in.Type, in.Steer = device.RawPacket, device.Steering{MACs: []net.HardwareAddr{{1, 2, 3}}}
		case 6:
			in.Type, in.Steer = device.RawPacket, device.Steering{Sniffer: true, MACs: []net.HardwareAddr{{1, 2, 3, 4, 5, 6}}}
		}
	} else if q.typ == device.RawPacket {
		in.Steer = device.Steering{Sniffer: k.one(2)}
	}
	want := wants(c, good, device.EOPNOTSUPP)
	if q.typ == device.GSI || q.typ == device.SMI {
		want = append(want, device.EINVAL) // there is one already
	}
	qp, err := pd.CreateQP(in)
	if !k.did(fmt.Sprintf("create_qp %v %+v", in.Type, in.Cap), c, err, want...) {
		return
	}
	q.QP = qp
	_, got := qp.Query()
	q.cap = got.Cap
	if q.cap.SendWR < in.Cap.SendWR || q.cap.SendSGE < in.Cap.SendSGE || q.cap.Inline < in.Cap.Inline {
		k.errorf("asked for %+v, got %+v", in.Cap, q.cap)
	}
	q.send = k.newLedger(q, false)
	if q.srq == nil && q.rcq != nil {
		q.recv = k.newLedger(q, true)
	}
	q.count(1)
	k.byQP.Store(qp, q)
	k.qps.add(q)
}

// count counts a queue pair at what it stands on.
func (q *wQP) count(n int32) {
	switch {
	case q.xrcd != nil:
		q.xrcd.use(n)
		return
	case q.srq != nil:
		q.srq.use(n)
	}
	if q.rcq != nil {
		q.rcq.use(n)
	}
	q.pd.use(n)
	q.scq.use(n)
}

func (k *walker) endQP() {
	q, ok := k.qps.pick(k, nil, nil)
	if !ok {
		return
	}
	q.mod.Lock() // attach and detach, which the model counts
	defer q.mod.Unlock()
	want := ends(&q.base)
	if len(q.groups) > 0 && q.alive() {
		want = []device.Errno{device.EBUSY}
	}
	if k.did(fmt.Sprintf("destroy_qp %v", q.typ), q.c, q.QP.Destroy(), want...) {
		k.ended(&q.base)
		q.count(-1)
	}
}

func (k *walker) attach() {
	q, ok := k.qps.pick(k, nil, func(q *wQP) bool { return q.typ == device.UD })
	if !ok {
		return
	}
	g := of(k, groups[0].gid, groups[1].gid, device.GIDOf(netip.MustParseAddr("239.9.9.9")), device.GIDOf(netip.MustParseAddr("10.0.0.1")), device.GID{})
	q.mod.Lock()
	defer q.mod.Unlock()
	if k.one(3) {
		if k.did("detach_mcast", q.c, q.Detach(g), wants(q.c, q.alive() && q.groups[g])...) {
			delete(q.groups, g)
		}
		return
	}
	if k.did("attach_mcast", q.c, q.Attach(g), wants(q.c, q.alive() && q.typ == device.UD && g.IsMulticast(), device.ENOMEM)...) {
		q.groups[g] = true
	}
}

// become is a modify, of which a refusal changes nothing. The caller holds mod.
func (k *walker) become(q *wQP, verb string, a *device.QPAttr, mask device.AttrMask) bool {
	before, init := q.Query()
	if mask&device.AttrState != 0 && a.State == device.StateSQD && mask&device.AttrSQDNotify != 0 && a.SQDNotify {
		q.asked.Add(1) // or refused
	}
	err := q.Modify(a, mask)
	if err == nil && mask&device.AttrState != 0 && a.State == device.StateReset {
		q.post.Lock() // nothing is posted that is not counted yet
		q.send.cut(k.walk)
		q.recv.cut(k.walk)
		q.post.Unlock()
	}
	if k.did(verb, q.c, err) {
		return true
	}
	after, init2 := q.Query()
	// What goes on by itself changes the state, and so does who destroys it meanwhile: to RESET.
	if !k.alone || !q.alive() {
		if s := after.State; s != before.State && s != device.StateErr && s != device.StateSQE && s != device.StateReset && q.alive() {
			k.errorf("%s: %v, and the state went from %v to %v", verb, err, before.State, s)
		}
		before.State, before.CurState, before.SQDraining = after.State, after.CurState, after.SQDraining
	}
	if before != after || init.Cap != init2.Cap || init.Type != init2.Type {
		k.errorf("%s: %v, and it has changed\nfrom %+v\nto   %+v", verb, err, before, after)
	}
	return false
}

var toReset = &device.QPAttr{State: device.StateReset}

// connect connects two queue pairs, mostly with each other, or makes one ready that needs no peer.
func (k *walker) connect() {
	a, ok := k.qps.pick(k, nil, nil)
	if !ok {
		return
	}
	reset := func(q *wQP) bool {
		return q.State() == device.StateReset || k.become(q, "modify_qp to RESET", toReset, device.AttrState)
	}
	switch a.typ {
	case device.UD, device.GSI, device.SMI, device.RawPacket:
		a.mod.Lock()
		defer a.mod.Unlock()
		if reset(a) {
			err := a.Activate(walkKey, k.r.Uint32())
			k.did("activate", a.c, err)
		}
		return
	}
	want := map[device.QPType]device.QPType{device.RC: device.RC, device.UC: device.UC, device.XRCIni: device.XRCTgt, device.XRCTgt: device.XRCIni}[a.typ]
	b, ok := k.qps.pick(k, nil, func(q *wQP) bool { return q != a && q.typ == want && (q.c.side != a.c.side || k.one(4)) })
	if !ok || a == b {
		return
	}
	gid := 1 + k.r.IntN(2)
	o := device.ConnectOptions{SGIDIndex: gid, PathMTU: of(k, 256, 1024, 4096), Timeout: of(k, 8, 14, -1), RetryCnt: of(k, -1, 1, 7), RNRRetry: of(k, -1, 1, 7), Depth: of(k, -1, 1, 16),
		Access: of(k, 0, device.RemoteRead, device.RemoteWrite|device.RemoteRead|device.RemoteAtomic|device.FlushGlobal|device.FlushPersistent)}
	ra, rb := a.Address(gid, k.r.Uint32()&0xFFFFFF), b.Address(gid, k.r.Uint32()&0xFFFFFF)
	for _, x := range []struct {
		q, p *wQP
		l, r device.Remote
	}{{a, b, ra, rb}, {b, a, rb, ra}} {
		x.q.mod.Lock()
		if reset(x.q) {
			k.did(fmt.Sprintf("connect %v", x.q.typ), x.q.c, x.q.Connect(x.l.PSN, x.r, o))
			x.q.peer.Store(x.p)
		}
		x.q.mod.Unlock()
	}
}

// step1 takes a queue pair to another state, as the table has it or not.
func (k *walker) step1() {
	q, ok := k.qps.pick(k, nil, nil)
	if !ok {
		return
	}
	to := of(k, device.StateReset, device.StateErr, device.StateErr, device.StateSQD, device.StateSQD, device.StateSQD, device.StateRTS, device.StateRTS, device.StateRTS, device.StateInit, device.StateRTR)
	a, mask := &device.QPAttr{State: to, SQDNotify: k.one(2)}, device.AttrState
	if to == device.StateSQD && k.one(2) {
		mask |= device.AttrSQDNotify
	}
	q.mod.Lock()
	defer q.mod.Unlock()
	k.become(q, fmt.Sprintf("modify_qp %v to %v", q.typ, to), a, mask)
}

// modify tries any attributes.
func (k *walker) modify() {
	q, ok := k.qps.pick(k, nil, nil)
	if !ok {
		return
	}
	gid := k.r.IntN(4)
	a := &device.QPAttr{
		State: device.State(k.r.IntN(9)), CurState: device.State(k.r.IntN(8)), PathMTU: of(k, 256, 1024, 4096, 0, 1000, 8192), QKey: walkKey,
		RQPSN: k.r.Uint32(), SQPSN: k.r.Uint32(), DestQPN: k.r.Uint32() >> of(k, 8, 8, 0), Access: device.Access(k.r.IntN(1 << of(k, 4, 5, 12))),
		AH: device.AHAttr{SGIDIndex: gid, DGID: k.gid(q.c, gid)}, PKeyIndex: of(k, 0, 0, 0, 1, 2, -1), Port: of(k, 1, 1, 1, 0, 2),
		MaxRdAtomic: of(k, 0, 1, 16, 129, -1), MaxDestRdAtomic: of(k, 0, 1, 16, 129, -1), MinRNRTimer: of(k, 0, 1, 31, 32), Timeout: of(k, 0, 8, 31, 32, -1),
		RetryCnt: of(k, 0, 7, 8, -1), RNRRetry: of(k, 0, 7, 8), SQDNotify: true,
	}
	var mask device.AttrMask
	switch k.r.IntN(3) {
	case 0:
		mask = device.AttrMask(k.r.Uint32()) & (1<<26 - 1)
	case 1:
		mask = of(k, device.AttrState, 0) | 1<<k.r.IntN(22)
	case 2: // the next row of the table, with one value that may be wrong
		bad := *a
		*a = device.QPAttr{PathMTU: 1024, DestQPN: 77, Access: device.RemoteRead, AH: device.AHAttr{SGIDIndex: 1, DGID: k.gid(q.c, 1)}, Port: 1, Timeout: k.r.IntN(20), RetryCnt: 1 + k.r.IntN(7)}
		switch q.State() {
		case device.StateReset:
			a.State, mask = device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess
		case device.StateInit:
			a.State, mask = device.StateRTR, device.AttrState|device.AttrAV|device.AttrPathMTU|device.AttrDestQPN|device.AttrRQPSN|device.AttrMaxDestRdAtomic|device.AttrMinRNRTimer
		default:
			a.State, mask = device.StateRTS, device.AttrState|device.AttrTimeout|device.AttrRetryCnt|device.AttrRNRRetry|device.AttrSQPSN|device.AttrMaxRdAtomic
		}
		switch k.r.IntN(8) {
		case 0:
			a.MaxRdAtomic, a.MaxDestRdAtomic = bad.MaxRdAtomic, bad.MaxDestRdAtomic
		case 1:
			a.RNRRetry, a.MinRNRTimer = bad.RNRRetry, bad.MinRNRTimer
		case 2:
			a.PathMTU, a.DestQPN = bad.PathMTU, bad.DestQPN
		case 3:
			a.AH, a.Port, a.PKeyIndex = bad.AH, bad.Port, bad.PKeyIndex
		}
	}
	q.mod.Lock()
	defer q.mod.Unlock()
	k.become(q, fmt.Sprintf("modify_qp %v to %v %v", q.typ, a.State, mask), a, mask)
}
