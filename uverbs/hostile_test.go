//go:build linux

package uverbs

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/softnic/softnic/device"
)

// Programs that write anything into their rings while the device works on them: what they do fails or not, others
// work on, and all of it can be destroyed.
func TestScribbledRings(t *testing.T) {
	rnd := seeded(t)
	d := newDaemon(t)
	x, y := pair(d, page)
	for round := range 6 {
		a, b := pair(d, page)
		seed := rnd.Uint64()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		end := sync.OnceFunc(func() {
			close(stop)
			wg.Wait()
		})
		t.Cleanup(end) // before the rings are unmapped
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, q := range []queue{a.q.sq, a.q.rq, a.c.q, b.q.rq, b.c.q} {
					scribble(r, q)
				}
			}
		})
		r := rand.New(rand.NewPCG(seed, 2))
		for range 500 {
			q := request_{id: 1, op: device.WROp(r.IntN(16)), flags: device.SendFlags(r.IntN(16)), remote: addressOf(b.buf), rkey: b.m.rkey,
				sge: sges(sge(a.buf[:r.IntN(page)], a.m))}
			q.fill(a.q.sq.slot(r.Uint32N(a.q.sq.mask() + 1)))
			a.record(kindDoorbell, 0, a.q.handle, nil)
			if r.IntN(50) == 0 {
				again(a.q, b.q)
			}
			if r.IntN(50) == 0 {
				a.c.arm(false)
				again(b.q, a.q)
			}
		}
		exchange(t, x, y)
		if round%2 == 0 { // destroyed while the rings change
			a.q.destroy()
			b.q.destroy()
			a.c.destroy()
			b.do(handleCommand(cmdDeregMR, b.m.handle))
		}
		end()
		a.close()
		b.close()
	}
	exchange(t, x, y)
}

// again connects a queue pair anew, as far as the peer lets it: what comes from there may be an error before RTS.
func again(q, peer *qp_) {
	q.p.tb.Helper()
	for _, s := range []structure{
		q.modifyStruct(device.StateReset, device.AttrState),
		q.modifyStruct(device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess).put("port_num", 1).
			put("qp_access_flags", uint64(device.RemoteWrite|device.RemoteRead)),
		q.rtrStruct(peer), q.rtsStruct(),
	} {
		if _, err := q.p.write(legacy(cmdModifyQP, s, 0)); err != nil {
			q.p.tb.Fatal(err)
		}
	}
}

// A shared receive queue of two connections, and the event at its limit.
func TestSharedReceives(t *testing.T) {
	d := newDaemon(t)
	peer := [2]*side{newSide(d.open(how{}), device.RC, page), newSide(d.open(how{}), device.RC, page)}
	p := d.open(how{})
	pd, c := p.pd(), p.cq(64, nil)
	s := p.srq(pd, 7, 2)
	var q [2]*qp_
	for i := range q {
		r := p.do(legacy(cmdCreateQP, qpCommand(pd, users.Add(16), qpInit{typ: device.RC, scq: c, rcq: c, send: 3, sigAll: true}).
			put("is_srq", 1).put("srq_handle", uint64(s.handle)), qpRoom))
		v := view("ib_uverbs_create_qp_resp", r.b)
		q[i] = &qp_{p: p, handle: uint32(v.get("qp_handle")), num: uint32(v.get("qpn"))}
		connect(q[i], peer[i].q)
	}
	buf := p.alloc(page)
	m := p.mr(pd, buf, allAccess)
	post := func(id uint64) {
		if !s.q.push(func(b []byte) {
			view("rxe_recv_wqe", b).put("wr_id", id).put("dma.num_sge", 1)
			putSGE(b[at("rxe_recv_wqe.dma.sge").off:], sges(sge(buf, m)))
		}) {
			t.Fatal("full")
		}
	}
	for round := range 100 {
		for i := range 4 {
			post(uint64(i))
		}
		for i := range 4 {
			x := peer[(i+round)%2]
			x.q.post(request_{id: 9, op: device.OpSend, inline: []byte{1, 2, 3}})
			x.c.expect(9, device.StatusSuccess)
			if w := c.expect(uint64(i), device.StatusSuccess); w.qpn != q[(i+round)%2].num || w.len != 3 {
				t.Fatalf("%+v", w)
			}
		}
		if n := s.q.count(); n != 0 {
			t.Fatal(n)
		}
	}
	for i := range 4 {
		post(uint64(i))
	}
	p.do(legacyBytes(at("IB_USER_VERBS_CMD_MODIFY_SRQ").num(), append(newStruct("ib_uverbs_modify_srq").put("srq_handle", uint64(s.handle)).
		put("attr_mask", 2).put("srq_limit", 3).b, make([]byte, 8)...), 0))
	for i := range 3 {
		peer[0].q.post(request_{id: 9, op: device.OpSend, inline: []byte{1}})
		c.expect(uint64(i), device.StatusSuccess)
	}
	if e, typ := p.asyncEvent(); e != s.user || typ != 15 { // IBV_EVENT_SRQ_LIMIT_REACHED
		t.Fatalf("0x%x %v", e, typ)
	}
	for i := range q {
		q[i].destroy()
	}
	if n := view("ib_uverbs_destroy_srq_resp", p.do(s.destroyCommand()).b).get("events_reported"); n != 1 {
		t.Fatal(n)
	}
}

// A receive with more entries than fit fails whoever takes it, and the shared queue says that it is not well, once. The good
// ones in it are as good as before.
func TestMalformedSharedReceive(t *testing.T) {
	d := newDaemon(t)
	peer := [3]*side{}
	p := d.open(how{})
	pd, c := p.pd(), p.cq(64, nil)
	s := p.srq(pd, 7, 2)
	for i := range peer {
		peer[i] = newSide(d.open(how{}), device.RC, page)
		r := p.do(legacy(cmdCreateQP, qpCommand(pd, users.Add(16), qpInit{typ: device.RC, scq: c, rcq: c, send: 3, sigAll: true}).
			put("is_srq", 1).put("srq_handle", uint64(s.handle)), qpRoom))
		v := view("ib_uverbs_create_qp_resp", r.b)
		connect(&qp_{p: p, handle: uint32(v.get("qp_handle")), num: uint32(v.get("qpn"))}, peer[i].q)
	}
	buf := p.alloc(page)
	m := p.mr(pd, buf, allAccess)
	for id, entries := range []uint64{4, 1, 1<<32 - 1} {
		if !s.q.push(func(b []byte) {
			view("rxe_recv_wqe", b).put("wr_id", uint64(id)).put("dma.num_sge", entries)
			putSGE(b[at("rxe_recv_wqe.dma.sge").off:], sges(sge(buf, m)))
		}) {
			t.Fatal("full")
		}
	}
	for i, want := range []struct {
		got, sent device.Status
		events    []device.EventType // 14 SRQ_ERR, 16 QP_LAST_WQE_REACHED
	}{
		{device.StatusLocalProtection, device.StatusRemoteOp, []device.EventType{14, 16}},
		{device.StatusSuccess, device.StatusSuccess, nil},
		{device.StatusLocalProtection, device.StatusRemoteOp, []device.EventType{16}},
	} {
		peer[i].q.post(request_{id: 9, op: device.OpSend, inline: []byte{1, 2, 3}})
		peer[i].c.expect(9, want.sent)
		c.expect(uint64(i), want.got)
		for _, e := range want.events {
			if of, typ := p.asyncEvent(); typ != e || typ == 14 && of != s.user {
				t.Errorf("receive %d: event %v of 0x%x, want %v", i, typ, of, e)
			}
		}
	}
	if !quiet(p.async) {
		t.Error("another event")
	}
}
