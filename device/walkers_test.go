package device_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/transport"
)

// walkKey is the Q_Key of all datagram queue pairs that walk.
const walkKey = 0x1234

// pace is how often which verb is called.
var pace = func() (l []func(*walker)) {
	for _, v := range []struct {
		n int
		f func(*walker)
	}{
		{1, (*walker).context}, {1, (*walker).closeContext}, {3, (*walker).pd}, {2, (*walker).channel}, {4, (*walker).cq}, {4, (*walker).srq},
		{6, (*walker).mr}, {3, (*walker).fast}, {3, (*walker).mw}, {3, (*walker).ah}, {2, (*walker).xrcd}, {10, (*walker).qp},
		{3, (*walker).endPD}, {2, (*walker).endChannel}, {2, (*walker).endCQ}, {2, (*walker).endSRQ}, {4, (*walker).endMR}, {2, (*walker).endFast},
		{2, (*walker).endMW}, {2, (*walker).endAH}, {2, (*walker).endXRCD}, {3, (*walker).endQP},
		{8, (*walker).connect}, {6, (*walker).modify}, {4, (*walker).step1}, {4, (*walker).attach},
		{40, (*walker).postSend}, {5, (*walker).postList}, {30, (*walker).postRecv}, {12, (*walker).postSRQ}, {3, (*walker).limit},
		{30, (*walker).poll}, {6, (*walker).waitCQ}, {8, (*walker).arm}, {8, (*walker).takeCQ}, {6, (*walker).takeAsync},
		{4, (*walker).query}, {2, (*walker).pass}, {1, (*walker).cable},
	} {
		for range v.n {
			l = append(l, v.f)
		}
	}
	return l
}()

// step calls a verb.
func (k *walker) step() {
	k.beat.Add(1)
	k.steps.Add(1)
	if k.alone {
		k.seen = k.census()
	}
	pace[k.r.IntN(len(pace))](k)
}

// in returns a context to work in.
func (k *walker) in() *wCtx {
	for side, d := range k.dev {
		n := 0
		for _, c := range k.ctxs.all() {
			if c.side == side && c.alive() {
				n++
			}
		}
		if n == 0 {
			k.newContext(side, d)
		}
	}
	c, _ := k.ctxs.pick(k, nil, nil)
	return c
}

func (k *walker) newContext(side int, d *device.Device) {
	c := &wCtx{Context: d.NewContext(), side: side}
	c.c = c
	if k.one(3) {
		c.OnAsyncEvent(func(e device.AsyncEvent) { k.walk.event(e, 0) })
	}
	k.ctxs.add(c)
	k.seen = k.census()
}

func (k *walker) context() {
	if side := k.r.IntN(2); len(k.ctxs.all()) < 40 {
		k.newContext(side, k.dev[side])
	}
}

func (k *walker) closeContext() {
	if n := len(k.ctxs.all()); n < 4 || !k.one(4) {
		return
	}
	k.close(k.in())
	k.seen = k.census()
}

func (w *walk) close(c *wCtx) {
	c.closing.Store(true)
	if err := c.Close(); err != nil {
		w.errorf("close: %v", err)
	}
	if o := c.Objects(); o != (device.Objects{}) {
		w.errorf("left of a closed context: %+v", o)
	}
}

func (k *walker) pd() {
	c := k.in()
	if k.pds.count(c) >= 3 {
		return
	}
	if pd, err := c.AllocPD(); k.did("alloc_pd", c, err, wants(c, true)...) {
		k.pds.add(&wPD{PD: pd, base: base{c: c}})
	}
}

func (k *walker) endPD() {
	if pd, ok := k.pds.pick(k, nil, nil); ok && k.one(3) && k.did("dealloc_pd", pd.c, pd.Dealloc(), ends(&pd.base)...) {
		k.ended(&pd.base)
	}
}

func (k *walker) channel() {
	c := k.in()
	if k.chans.count(c) >= 3 {
		return
	}
	if ch, err := c.CreateCompChannel(); k.did("create_comp_channel", c, err, wants(c, true)...) {
		k.chans.add(&wChan{CompChannel: ch, base: base{c: c}})
	}
}

func (k *walker) endChannel() {
	if ch, ok := k.chans.pick(k, nil, nil); ok && k.did("destroy_comp_channel", ch.c, ch.Destroy(), ends(&ch.base)...) {
		k.ended(&ch.base)
	}
}

func (k *walker) cq() {
	c := k.in()
	if k.cqs.count(c) >= 6 {
		return
	}
	in := device.CQInit{Entries: of(k, 4096, 4096, 4096, 64, 8, 1, 0, -1, device.MaxCQE+1)}
	good := in.Entries > 0 && in.Entries <= device.MaxCQE
	q := &wCQ{base: base{c: c}, lossy: in.Entries <= 64}
	if ch, ok := k.chans.pick(k, c, nil); ok && k.one(2) {
		in.Channel, q.ch = ch.CompChannel, ch
		good = good && ch.c == c && ch.alive()
	} else if k.one(3) {
		in.Handler = func(*device.CQ) { q.taken.Add(1) }
	}
	q.heard = in.Channel != nil || in.Handler != nil
	cq, err := c.CreateCQ(in)
	if !k.did(fmt.Sprintf("create_cq %d", in.Entries), c, err, wants(c, good)...) {
		return
	}
	if cq.Cap() < in.Entries {
		k.errorf("a completion queue of %d entries has %d", in.Entries, cq.Cap())
	}
	q.CQ = cq
	if q.ch != nil {
		q.ch.use(1)
	}
	k.byCQ.Store(cq, q)
	k.cqs.add(q)
}

func (k *walker) endCQ() {
	q, ok := k.cqs.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&q.base)
	if n, err := q.CQ.Destroy(); k.did("destroy_cq", q.c, err, want...) {
		q.delivered = n
		k.ended(&q.base)
		if q.ch != nil {
			q.ch.use(-1)
		}
	}
}

func (k *walker) srq() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.srqs.count(c) >= 4 {
		return
	}
	in := device.SRQInit{MaxWR: of(k, 64, 16, 1, 256, 0, -1, device.MaxSRQWR+1), MaxSGE: of(k, 0, 1, 4, device.MaxSRQSGE+1), Limit: of(k, 0, 0, 0, 1, -1)}
	c = pd.c
	good := pd.alive() && in.MaxWR > 0 && in.MaxWR <= device.MaxSRQWR && in.MaxSGE <= device.MaxSRQSGE && in.Limit >= 0
	s := &wSRQ{base: base{c: c}, pd: pd}
	if x, ok := k.xrcds.pick(k, c, nil); ok && k.one(2) {
		s.xrcd, in.XRCD = x, x.XRCD
		good = good && x.c == c && x.alive()
	}
	if q, ok := k.cqs.pick(k, c, nil); ok && (s.xrcd != nil || k.one(20)) {
		s.cq, in.CQ = q, q.CQ
		good = good && q.c == c && q.alive()
	}
	srq, err := pd.CreateSRQ(in)
	if !k.did("create_srq", c, err, wants(c, good && (s.cq == nil) == (s.xrcd == nil))...) {
		return
	}
	s.SRQ, s.init, s.ledger = srq, in, k.newLedger(nil, true)
	pd.use(1)
	if s.xrcd != nil {
		s.xrcd.use(1)
		s.cq.use(1)
	}
	k.bySRQ.Store(srq, s)
	k.srqs.add(s)
}

func (k *walker) endSRQ() {
	s, ok := k.srqs.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&s.base)
	if s.xrcd != nil {
		want = append(want, device.EBUSY) // in the middle of a message
	}
	if !k.did("destroy_srq", s.c, s.Destroy(), want...) {
		return
	}
	k.ended(&s.base)
	s.pd.use(-1)
	if s.xrcd != nil {
		s.xrcd.use(-1)
		s.cq.use(-1)
	}
}

func (k *walker) limit() {
	s, ok := k.srqs.pick(k, nil, nil)
	if !ok {
		return
	}
	n := of(k, 0, 1, s.init.MaxWR, s.init.MaxWR+1, -1)
	before := s.SRQ.Query()
	if k.did("modify_srq", s.c, s.SetLimit(n)); k.alone {
		if after := s.SRQ.Query(); n > s.init.MaxWR && after != before {
			k.errorf("a refused modify_srq has changed %+v to %+v", before, after)
		}
	}
}

const walkLen = 16384

func (k *walker) mr() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.mrs.count(c) >= 8 {
		return
	}
	c = pd.c
	m := &wMR{base: base{c: c}, pd: pd}
	var err error
	if k.one(4) { // plain memory is read only, so that nobody races for it but who uses it after its end
		m.access = of(k, 0, device.RemoteRead, device.RemoteRead|device.FlushGlobal, device.RemoteWrite, 1<<15)
		m.MR, err = pd.RegMR(make([]byte, walkLen), m.access)
		if !k.did(fmt.Sprintf("reg_mr %#x", m.access), c, err, wants(c, pd.alive() && m.access&^(device.RemoteRead|device.FlushGlobal) == 0, device.EOPNOTSUPP)...) {
			return
		}
	} else {
		va := of[uint64](k, 0, 4096, 1<<40, ^uint64(0)-walkLen+1, ^uint64(0)-100)
		m.mem = &guarded{w: k.walk, b: make([]byte, walkLen), va: va}
		m.access = device.LocalWrite | device.RemoteRead | device.RemoteWrite | device.RemoteAtomic
		if k.one(3) {
			m.access = device.Access(k.r.IntN(64)) &^ transport.ZeroBased
		}
		m.access |= of(k, 0, device.MWBind, device.MWBind|device.FlushGlobal, 0, 0, device.FlushPersistent)
		a := m.access
		good := pd.alive() && va+walkLen >= va && (a&device.LocalWrite != 0 || a&(device.RemoteWrite|device.RemoteAtomic) == 0) && a&device.FlushPersistent == 0
		m.MR, err = pd.RegMemory(m.mem, va, walkLen, m.access)
		want := wants(c, good)
		if va+walkLen == 0 { // the last byte that there is: either answer will do
			want = append(want, 0, device.EINVAL)
		}
		if !k.did(fmt.Sprintf("reg_mr %#x at %#x", m.access, va), c, err, want...) {
			return
		}
	}
	pd.use(1)
	k.mrs.add(m)
}

func (k *walker) endMR() {
	m, ok := k.mrs.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&m.base)
	if m.access&device.MWBind != 0 {
		want = append(want, device.EINVAL) // a window may be bound
	}
	if !k.did("dereg_mr", m.c, m.Dereg(), want...) {
		return
	}
	if m.mem != nil {
		m.mem.freed.Store(true)
	} else {
		clear(m.Bytes()) // the race detector sees who still reads
	}
	k.ended(&m.base)
	m.pd.use(-1)
}

func (k *walker) fast() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.fasts.count(c) >= 4 {
		return
	}
	c = pd.c
	n := of[uint64](k, walkLen, walkLen, 100, 0)
	m, err := pd.AllocMR(n)
	if !k.did(fmt.Sprintf("alloc_mr %d", n), c, err, wants(c, pd.alive() && n > 0)...) {
		return
	}
	pd.use(1)
	k.fasts.add(&wFast{FastMR: m, base: base{c: c}, pd: pd, mem: &guarded{w: k.walk, b: make([]byte, walkLen), va: 1 << 20}})
}

func (k *walker) endFast() {
	m, ok := k.fasts.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&m.base)
	if !k.did("dereg_mr fast", m.c, m.Dereg(), want...) {
		return
	}
	m.mem.freed.Store(true)
	k.ended(&m.base)
	m.pd.use(-1)
}

func (k *walker) mw() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.mws.count(c) >= 6 {
		return
	}
	c = pd.c
	typ := of(k, device.MW1, device.MW2A, device.MW2B, device.MWType(0), device.MWType(4))
	m, err := pd.AllocMW(typ)
	if !k.did(fmt.Sprintf("alloc_mw %d", typ), c, err, wants(c, pd.alive() && typ >= device.MW1 && typ <= device.MW2A)...) {
		return
	}
	pd.use(1)
	k.mws.add(&wMW{MW: m, base: base{c: c}, pd: pd})
}

func (k *walker) endMW() {
	m, ok := k.mws.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&m.base)
	if k.did("dealloc_mw", m.c, m.Dealloc(), want...) {
		k.ended(&m.base)
		m.pd.use(-1)
	}
}

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

func (k *walker) xrcd() {
	c := k.in()
	if k.xrcds.count(c) >= 3 {
		return
	}
	var x *device.XRCD
	var err error
	good := true
	if o, ok := k.xrcds.pick(k, nil, nil); ok && k.one(2) {
		if k.one(20) {
			o = &wXRCD{base: base{c: &wCtx{side: -1}}}
		}
		x, err = c.OpenXRCD(o.XRCD)
		good = o.c.side == c.side
		if !o.alive() {
			good = err == nil // of a closed one: either answer
		}
	} else {
		x, err = c.AllocXRCD()
	}
	if k.did("open_xrcd", c, err, wants(c, good)...) {
		k.xrcds.add(&wXRCD{XRCD: x, base: base{c: c}})
	}
}

func (k *walker) endXRCD() {
	x, ok := k.xrcds.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&x.base)
	if k.did("close_xrcd", x.c, x.XRCD.Close(), want...) {
		k.ended(&x.base)
	}
}

func (k *walker) qp() {
	c := k.in()
	if k.qps.count(c) >= 12 {
		return
	}
	q := &wQP{base: base{c: c}, groups: map[device.GID]bool{}}
	entered := func(s device.State) {
		switch s {
		case device.StateErr:
			q.errs.Add(1)
		case device.StateSQD:
			q.sqds.Add(1)
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
		q.sqds.Store(1 << 40)
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
		Access: of(k, 0, device.RemoteRead, device.RemoteWrite|device.RemoteRead|device.RemoteAtomic|device.FlushGlobal)}
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

// sges are entries that name memory of a domain, or nonsense.
func (k *walker) sges(pd *wPD, c *wCtx, most int) (l []device.SGE) {
	n := k.r.IntN(most + 1)
	if k.one(30) {
		n = most + 1
	}
	for range n {
		e := device.SGE{Length: uint32(of(k, 0, 1, 8, 100, 1024, 4000))}
		if m, ok := k.mrs.pick(k, c, func(m *wMR) bool { return m.pd == pd }); ok {
			e.LKey, e.Addr = m.LKey(), m.Addr()+uint64(k.r.IntN(walkLen-4000))
		}
		if f, ok := k.fasts.pick(k, c, func(m *wFast) bool { return m.pd == pd }); ok && k.one(8) {
			e.LKey, e.Addr = f.LKey(), f.mem.va
		}
		if k.one(60) {
			e.LKey, e.Addr = k.r.Uint32(), k.r.Uint64()
		}
		l = append(l, e)
	}
	return l
}

var walkOps = map[device.QPType][]device.WROp{
	device.UC:        {device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpBindMW, device.OpLocalInv, device.OpRegMR},
	device.UD:        {device.OpSend, device.OpSendImm},
	device.GSI:       {device.OpSend, device.OpSendImm},
	device.SMI:       {device.OpSend, device.OpSendImm},
	device.RawPacket: {device.OpSend},
}

var allOps = []device.WROp{
	device.OpSend, device.OpSend, device.OpSendImm, device.OpWrite, device.OpWrite, device.OpWriteImm, device.OpRead, device.OpRead, device.OpCompareSwap,
	device.OpFetchAdd, device.OpMaskedCompareSwap, device.OpMaskedFetchAdd, device.OpAtomicWrite, device.OpFlush, device.OpSendInv, device.OpReadInv,
	device.OpLocalInv, device.OpBindMW, device.OpRegMR,
}

// request is a random one for a queue pair.
func (k *walker) request(q *wQP) *device.SendWR {
	ops := walkOps[q.typ]
	if ops == nil || k.one(40) {
		ops = allOps
	}
	wr := &device.SendWR{Op: ops[k.r.IntN(len(ops))], Flags: device.SendFlags(k.r.IntN(8)), Imm: k.r.Uint32(), CompareAdd: k.r.Uint64(), Swap: k.r.Uint64()}
	if k.one(50) {
		wr.Op = device.WROp(k.r.IntN(256))
	}
	if wr.SGE = k.sges(q.pd, q.c, max(q.cap.SendSGE, 1)); k.one(4) {
		wr.Flags |= device.Inline
		wr.InlineData = make([]byte, k.r.IntN(max(q.cap.Inline, 1))+k.r.IntN(2))
		wr.SGE = nil
	}
	if wr.Op.IsAtomic() || wr.Op == device.OpAtomicWrite {
		if len(wr.SGE) > 0 && !k.one(20) {
			wr.SGE = wr.SGE[:1]
			wr.SGE[0].Length = 8
		}
	}
	if a, ok := k.ahs.pick(k, q.c, func(a *wAH) bool { return a.pd == q.pd }); ok && !k.one(20) {
		wr.AH = a.AH
	}
	wr.RemoteQPN, wr.RemoteQKey = of[uint32](k, 1, device.MulticastQPN, k.r.Uint32()), walkKey
	if p, ok := k.qps.pick(k, nil, func(o *wQP) bool { return o.typ == q.typ }); ok && k.one(2) {
		wr.RemoteQPN = p.Num()
	}
	if q.typ == device.RawPacket && wr.Flags&device.Inline != 0 && len(wr.InlineData) >= 14 {
		copy(wr.InlineData, k.dev[1-q.c.side].Port().Info().MAC)
		wr.InlineData[12], wr.InlineData[13] = 0x88, 0xB5
	}
	p := q.peer.Load()
	if p == nil {
		p = q
	}
	pd := p.pd
	if s, ok := k.srqs.pick(k, p.c, func(s *wSRQ) bool { return s.xrcd != nil && p.xrcd != nil }); ok && s.xrcd != nil {
		wr.SRQN = s.Num()
		if q.typ == device.XRCIni {
			pd = s.pd
		}
	}
	if m, ok := k.mrs.pick(k, p.c, func(m *wMR) bool { return m.pd == pd }); ok {
		wr.RKey, wr.RemoteAddr, wr.FlushLen = m.RKey(), m.Addr()+8*uint64(k.r.IntN(walkLen/16)), uint32(k.r.IntN(100))
	}
	if m, ok := k.mws.pick(k, p.c, func(m *wMW) bool { return m.pd == pd }); ok && k.one(6) {
		wr.RKey = m.RKey()
	}
	if m, ok := k.fasts.pick(k, p.c, func(m *wFast) bool { return m.pd == pd }); ok && k.one(6) {
		wr.RKey, wr.RemoteAddr = m.RKey(), m.mem.va
	}
	if k.one(60) {
		wr.RKey = k.r.Uint32()
	}
	wr.FlushType = transport.FlushType(of(k, 1, 1, 1, 2, 4))
	k.local(q, wr)
	return wr
}

// local fills in what requests say that give and take keys.
func (k *walker) local(q *wQP, wr *device.SendWR) {
	switch wr.Op {
	case device.OpSendInv, device.OpLocalInv:
		c := q.c
		if p := q.peer.Load(); p != nil && wr.Op == device.OpSendInv {
			c = p.c
		}
		if f, ok := k.fasts.pick(k, c, nil); ok {
			wr.Imm = f.RKey()
		}
		if m, ok := k.mws.pick(k, c, nil); ok && k.one(2) {
			wr.Imm = m.RKey()
		}
	case device.OpBindMW:
		if m, ok := k.mws.pick(k, q.c, func(m *wMW) bool { return m.pd == q.pd }); ok {
			wr.Bind.Window, wr.Bind.NewKey = m.RKey(), device.IncRKey(m.RKey())
		}
		if m, ok := k.mrs.pick(k, q.c, func(m *wMR) bool { return m.pd == q.pd && m.access&device.MWBind != 0 }); ok {
			wr.Bind.MRKey, wr.Bind.Addr, wr.Bind.Length = m.LKey(), m.Addr()+100, of[uint64](k, 0, 8000, 8000, walkLen)
			wr.Bind.Access = of(k, device.RemoteRead, device.RemoteWrite|device.RemoteRead, 0)
		}
	case device.OpRegMR:
		if f, ok := k.fasts.pick(k, q.c, func(m *wFast) bool { return m.pd == q.pd }); ok {
			wr.Reg = transport.RegWR{LKey: f.LKey(), NewKey: device.IncRKey(f.LKey()), Memory: f.mem, Addr: f.mem.va, Length: of[uint64](k, 100, walkLen, 0),
				Access: device.LocalWrite | device.RemoteRead | device.RemoteWrite}
		}
	}
}

// pickSender returns a queue pair that can mostly send.
func (k *walker) pickSender() (*wQP, bool) {
	return k.qps.pick(k, nil, func(q *wQP) bool { s := q.State(); return s == device.StateRTS || s >= device.StateSQD && k.one(4) })
}

func (k *walker) postSend() {
	q, ok := k.pickSender()
	if !ok {
		return
	}
	wr := k.request(q)
	q.post.Lock()
	defer q.post.Unlock()
	if q.send != nil {
		wr.ID = q.send.write(wr.Op, wr.Flags&device.Signaled != 0)
	}
	if err := q.PostSend(wr); !k.did(fmt.Sprintf("post_send %v %v", q.typ, wr.Op), q.c, err) && q.send != nil {
		q.send.unposted(k.walk, wr.ID)
	}
}

func (k *walker) postList() {
	q, ok := k.pickSender()
	if !ok || q.send == nil {
		return
	}
	var l []*device.SendWR
	q.post.Lock()
	defer q.post.Unlock()
	for range k.r.IntN(10) {
		wr := k.request(q)
		wr.ID = q.send.write(wr.Op, wr.Flags&device.Signaled != 0)
		l = append(l, wr)
	}
	if err := q.PostSendList(l...); !k.did("post_send list", q.c, err) {
		for _, wr := range l {
			q.send.maybe(wr.ID)
		}
	}
}

func (k *walker) postRecv() {
	q, ok := k.qps.pick(k, nil, func(q *wQP) bool { return q.recv != nil || k.one(10) })
	if !ok {
		return
	}
	wr := &device.RecvWR{SGE: k.sges(q.pd, q.c, max(q.cap.RecvSGE, 1))}
	q.post.Lock()
	defer q.post.Unlock()
	if q.recv != nil {
		wr.ID = q.recv.write(0, true)
	}
	if err := q.PostRecv(wr); !k.did(fmt.Sprintf("post_recv %v", q.typ), q.c, err) && q.recv != nil {
		q.recv.unposted(k.walk, wr.ID)
	}
}

func (k *walker) postSRQ() {
	s, ok := k.srqs.pick(k, nil, nil)
	if !ok {
		return
	}
	wr := &device.RecvWR{SGE: k.sges(s.pd, s.c, max(s.init.MaxSGE, 1))}
	wr.ID = s.ledger.write(0, true)
	if err := s.PostRecv(wr); !k.did("post_srq_recv", s.c, err) {
		s.ledger.unposted(k.walk, wr.ID)
	}
}

// poll takes all that there is.
func (k *walker) poll() {
	q, ok := k.cqs.pick(k, nil, nil)
	if !ok || !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	began := k.tick.Add(1)
	var l []device.WC
	for {
		n := q.Poll(q.buf[:])
		if l = append(l, q.buf[:n]...); n < len(q.buf) {
			break
		}
	}
	q.lossy = q.lossy || len(l) > q.Cap()/2
	for i := range l {
		k.completed(q, &l[i], began)
	}
	k.verbs.Add(1)
}

func (k *walker) waitCQ() {
	q, ok := k.cqs.pick(k, nil, nil)
	if !ok || !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	began := k.tick.Add(1)
	n, err := q.Wait(ctx, q.buf[:16])
	k.did("wait for a completion", q.c, err)
	for i := range n {
		k.completed(q, &q.buf[i], began)
	}
}

func (k *walker) arm() {
	if q, ok := k.cqs.pick(k, nil, nil); ok {
		q.arms.Add(1)
		q.Arm(k.one(3))
		k.verbs.Add(1)
	}
}

func (k *walker) takeCQ() {
	ch, ok := k.chans.pick(k, nil, nil)
	if !ok {
		return
	}
	began := k.tick.Add(1)
	q, ok := ch.TryGet()
	if !ok && k.one(4) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		var err error
		q, err = ch.Get(ctx)
		ok = k.did("wait for a channel", ch.c, err)
	}
	if !ok {
		return
	}
	k.verbs.Add(1)
	v, known := k.byCQ.Load(q)
	if !known {
		return // it was made just now
	}
	c := v.(*wCQ)
	c.taken.Add(1)
	if g := c.gone.Load(); c.ch != ch || g != 0 && g < began {
		k.errorf("an event of a completion queue that is destroyed, or of another channel")
	}
}

func (k *walker) takeAsync() {
	c := k.in()
	began := k.tick.Add(1)
	e, ok := c.TryAsyncEvent()
	if !ok && k.one(4) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		var err error
		e, err = c.AsyncEvent(ctx)
		ok = k.did("wait for an event", c, err)
	}
	if k.verbs.Add(1); ok {
		k.event(e, began)
	}
}

// query asks for all that can be asked for.
func (k *walker) query() {
	d := k.dev[k.r.IntN(2)]
	port, index := of(k, 1, 1, 0, 2, -1), of(k, 0, 1, 2, 15, 16, -1)
	a := d.Query()
	p, e1 := d.QueryPort(port)
	_, e2 := d.QueryGID(port, index)
	_, e3 := d.QueryPKey(port, index)
	c, lives := k.in(), &wCtx{}
	k.did("query_port", c, e1, wants(lives, port == 1)...)
	k.did("query_gid", c, e2, wants(lives, port == 1 && index >= 0 && index < device.GIDTableLen)...)
	k.did("query_pkey", c, e3, wants(lives, port == 1 && index >= 0 && index < p.PKeys)...)
	if _ = d.Statistics(); len(d.QPs()) > a.MaxQP {
		k.errorf("more queue pairs than the device can have")
	}
	if q, ok := k.qps.pick(k, nil, nil); ok && q.alive() {
		n := q.Num()
		if l := d.QPs(); k.alone && slices.ContainsFunc(l, func(i device.QPInfo) bool { return i.QPN == n }) != (d == k.dev[q.c.side]) && n > 1 {
			k.errorf("QPN %#x on %v: listed are %+v", n, d, l)
		}
	}
	if s, ok := k.srqs.pick(k, nil, nil); ok {
		if in := s.SRQ.Query(); in.MaxWR < s.init.MaxWR || in.Limit < 0 {
			k.errorf("query_srq: %+v, made with %+v", in, s.init)
		}
	}
}

// cable changes the link of a device: it goes down or up, gets another MTU, or an address more or less.
func (k *walker) cable() {
	end, up, mtu := k.link[k.r.IntN(2)], !k.one(4), of(k, 4200, 4200, 1500, 1104)
	third := netip.MustParsePrefix("10.0.0.77/24")
	more := k.one(2)
	end.Change(func(i *link.Info) {
		i.Up, i.MTU = up, mtu
		i.Addrs = slices.DeleteFunc(slices.Clone(i.Addrs), func(a netip.Prefix) bool { return a == third })
		if more {
			i.Addrs = append(i.Addrs, third)
		}
	})
}

// pass lets time pass, so that timers fire.
func (k *walker) pass() {
	if k.alone {
		time.Sleep(time.Duration(k.r.IntN(300)) * time.Millisecond)
	}
}
