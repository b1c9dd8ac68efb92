package device_test

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
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
		{3, (*walker).resizeCQ}, {3, (*walker).resizeSRQ}, {4, (*walker).moderate}, {5, (*walker).rereg},
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
	q := &wCQ{base: base{c: c}}
	q.lossy.Store(in.Entries <= 64)
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
	s.mod.Lock()
	defer s.mod.Unlock()
	n := of(k, 0, 1, s.init.MaxWR, s.init.MaxWR+1, -1)
	before := s.SRQ.Query()
	ok = k.did("modify_srq", s.c, s.SetLimit(n), wants(s.c, s.alive() && n >= 0 && n <= s.init.MaxWR)...)
	k.srqIs(s, ok, before, s.init.MaxWR, n)
}

func (k *walker) resizeSRQ() {
	s, ok := k.srqs.pick(k, nil, nil)
	if !ok {
		return
	}
	s.mod.Lock()
	defer s.mod.Unlock()
	n := of(k, 256, 64, 16, 1, 1024, 0, -1, device.MaxSRQWR+1)
	before := s.SRQ.Query()
	want := wants(s.c, s.alive() && n > 0 && n <= device.MaxSRQWR)
	if n < before.MaxWR {
		want = append(want, device.EINVAL) // it may hold more receives, or have a higher limit
	}
	if ok = k.did(fmt.Sprintf("modify_srq to %d", n), s.c, s.Resize(n), want...); ok {
		s.init.MaxWR = n
	}
	k.srqIs(s, ok, before, n, before.Limit)
}

// srqIs compares a shared queue with what a modify has made of it, or left as it was. The caller holds mod.
func (k *walker) srqIs(s *wSRQ, modified bool, before device.SRQInit, wr, limit int) {
	want := before
	if modified {
		want.MaxWR, want.Limit = wr, limit
	}
	got := s.SRQ.Query()
	if got.Limit == 0 && !k.alone { // its event was sent meanwhile
		want.Limit = 0
	}
	if got != want {
		k.errorf("modified %v: a shared receive queue is %+v, want %+v", modified, got, want)
	}
}

func (k *walker) resizeCQ() {
	q, ok := k.cqs.pick(k, nil, nil)
	if !ok {
		return
	}
	q.mod.Lock()
	defer q.mod.Unlock()
	n := of(k, 4096, 8192, 5000, 4096, 64, 8, 1, 0, -1, device.MaxCQE+1)
	before := q.CQ.Cap()
	want := wants(q.c, q.alive() && n > 0 && n <= device.MaxCQE)
	if n < before {
		want = append(want, device.EINVAL) // it may hold more
	}
	if n <= 64 && n > 0 {
		q.lossy.Store(true)
	}
	if k.did(fmt.Sprintf("resize_cq %d", n), q.c, q.CQ.Resize(n), want...) {
		before = n
	}
	if got := q.CQ.Cap(); got != before {
		k.errorf("a completion queue holds %d, want %d", got, before)
	}
}

func (k *walker) moderate() {
	q, ok := k.cqs.pick(k, nil, nil)
	if !ok {
		return
	}
	count, period := of(k, 0, 0, 1, 2, 10, 65535, -1, 65536), of[time.Duration](k, 0, 0, 1, 50, 1000, 65535, -1, 65536)*time.Microsecond
	good := q.alive() && count >= 0 && count <= 65535 && period >= 0 && period <= 65535*time.Microsecond && (count == 0) == (period == 0)
	k.did(fmt.Sprintf("modify_cq %d %v", count, period), q.c, q.Moderate(count, period), wants(q.c, good)...)
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
		good = o.c.side == c.side && o.alive()
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
		s.mod.Lock()
		if in := s.SRQ.Query(); in.MaxWR != s.init.MaxWR || in.Limit < 0 || in.Limit > in.MaxWR {
			k.errorf("query_srq: %+v, made with or changed to %+v", in, s.init)
		}
		s.mod.Unlock()
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
