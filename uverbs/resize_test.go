//go:build linux

package uverbs

import (
	"testing"

	"github.com/softnic/softnic/device"
)

// resize is ibv_resize_cq as librxe has it: a new ring, in which what was not polled stands.
func (c *cq_) resize(entries int) {
	c.p.tb.Helper()
	r := c.p.do(c.resizeCommand(entries))
	v := view("ib_uverbs_resize_cq_resp", r.b)
	if int(v.get("cqe")) < entries {
		c.p.tb.Errorf("cqe %d, want at least %d", v.get("cqe"), entries)
	}
	c.q = c.p.mapQueue(r.b[8:])
}

func (c *cq_) resizeCommand(entries int) []byte {
	return legacy(cmdResizeCQ, newStruct("ib_uverbs_resize_cq").put("cq_handle", uint64(c.handle)).put("cqe", uint64(entries)), 8+at("rxe_resize_cq_resp").off)
}

func TestResizeCQ(t *testing.T) {
	p := newDaemon(t).open(how{})
	pd, c := p.pd(), p.cq(3, nil)
	q := p.qp(pd, qpInit{typ: device.UD, scq: c, recv: 64})
	q.activate(1)
	q.modify(q.modifyStruct(device.StateErr, device.AttrState))
	next, id := uint64(0), uint64(0)
	flush := func(n int) {
		for range n {
			id++
			q.recv(id)
		}
		eventually(t, "completions", func() bool { return c.q.count() == int(id-next) })
	}
	poll := func(n int) {
		t.Helper()
		for range n {
			next++
			c.expect(next, device.StatusFlush)
		}
		if n := c.q.count(); n != int(id-next) {
			t.Errorf("%d completions are left, want %d", n, id-next)
		}
	}
	flush(2)
	poll(2)
	flush(3) // they wrap
	for _, n := range []int{0, 1, 2, device.MaxCQE + 1, 1<<32 - 1} {
		p.fails(eINVAL, c.resizeCommand(n))
	}
	poll(1)
	c.resize(40)
	flush(20)
	poll(5)
	c.resize(20)
	poll(17)
	flush(10)
	poll(10)
	p.fails(eINVAL, (&cq_{handle: 77}).resizeCommand(5))
	q.destroy()
	c.destroy()
	p.fails(eINVAL, c.resizeCommand(5))
}

// A ring whose indices the program has made nonsense of costs the program its own completions.
func TestResizeHostileCQ(t *testing.T) {
	p := newDaemon(t).open(how{})
	c := p.cq(3, nil)
	for _, i := range []uint32{0, 1, 3, 4, 1 << 31, ^uint32(0)} {
		*c.q.word("consumer_index") = i
		*c.q.word("producer_index") = i * 7
		if r, err := p.write(c.resizeCommand(3)); err != nil {
			t.Fatal(err)
		} else if r.errno == 0 {
			c.q = p.mapQueue(r.b[8:])
		}
	}
}

func TestResizeSRQ(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	pd, c := p.pd(), p.cq(40, nil)
	s := p.srq(pd, 5, 2)
	mi := p.alloc(16)
	modify := func(mask, wr, limit uint64, info []byte) []byte {
		return legacyBytes(cmdModifySRQ, le.AppendUint64(newStruct("ib_uverbs_modify_srq").put("srq_handle", uint64(s.handle)).put("attr_mask", mask).
			put("max_wr", wr).put("srq_limit", limit).b, addressOf(info)), 0)
	}
	post := func(id uint64) {
		t.Helper()
		if !s.q.push(func(b []byte) { view("rxe_recv_wqe", b).put("wr_id", id) }) {
			t.Fatal("full")
		}
	}
	for i := range uint64(5) {
		post(i + 1)
	}
	for _, c := range []struct{ mask, wr, limit uint64 }{{1, 0, 0}, {1, device.MaxSRQWR + 1, 0}, {1, 4, 0}, {3, 10, 11}, {5, 10, 0}} {
		p.fails(eINVAL, modify(c.mask, c.wr, c.limit, mi))
	}
	core := newStruct("ib_uverbs_modify_srq").put("srq_handle", uint64(s.handle)).put("attr_mask", 1).put("max_wr", 10).b
	p.fails(eINVAL, legacyBytes(cmdModifySRQ, core, 0)) // no place for the answer
	p.fails(eFAULT, legacyBytes(cmdModifySRQ, le.AppendUint64(core[:len(core):len(core)], 16), 0))
	p.do(modify(3, 20, 2, mi))
	s.q = p.mapQueue(mi)
	v := view("ib_uverbs_query_srq_resp", p.do(legacy(cmdQuerySRQ, newStruct("ib_uverbs_query_srq").put("srq_handle", uint64(s.handle)), 16)).b)
	if v.get("max_wr") < 20 || v.get("srq_limit") != 2 || s.q.count() != 5 {
		t.Fatalf("max_wr %d, srq_limit %d, %d receives", v.get("max_wr"), v.get("srq_limit"), s.q.count())
	}
	p.fails(eINVAL, modify(1, 1, 0, mi)) // below the limit
	for i := range uint64(10) {
		post(i + 6)
	}
	// All are taken, in order.
	r := p.do(legacy(cmdCreateQP, qpCommand(pd, users.Add(16), qpInit{typ: device.RC, scq: c, rcq: c, send: 3}).put("is_srq", 1).put("srq_handle", uint64(s.handle)), qpRoom))
	qv := view("ib_uverbs_create_qp_resp", r.b)
	q := &qp_{p: p, handle: uint32(qv.get("qp_handle")), num: uint32(qv.get("qpn"))}
	far := newSide(d.open(how{}), device.RC, page)
	connect(q, far.q)
	for i := range uint64(15) {
		far.q.post(request_{id: 9, op: device.OpSend})
		far.c.expect(9, device.StatusSuccess)
		c.expect(i+1, device.StatusSuccess)
		if i == 9 { // in the middle, and shorter
			p.do(modify(1, 6, 0, mi))
			s.q = p.mapQueue(mi)
		}
	}
	if s.q.count() != 0 {
		t.Errorf("%d receives are left", s.q.count())
	}
}
