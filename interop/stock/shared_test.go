//go:build linux

package stock

import (
	"fmt"
	"syscall"
	"testing"
)

// enum ibv_event_type.
const (
	eventCQErr       = 0
	eventQPFatal     = 1
	eventQPReqErr    = 2
	eventQPAccessErr = 3
	eventCommEst     = 4
	eventSRQLimit    = 15
	eventLastWQE     = 16
)

// event waits for the next asynchronous event.
func (a *agent) event() int {
	a.t.Helper()
	eventually(a.t, "an asynchronous event", func() bool { return a.readable() > 0 })
	var event struct{ Type int }
	a.call(&event, "get_async_event", nil)
	return event.Type
}

// quiet holds that no event waits to be read, on any descriptor.
func (a *agent) quiet(what string) {
	a.t.Helper()
	if n := a.readable(); n != 0 {
		a.t.Errorf("%s: %d event descriptors can be read", what, n)
	}
}

// readable is how many event descriptors can be read.
func (a *agent) readable() (n int) {
	a.t.Helper()
	var answer struct{ FDs map[string]bool }
	a.call(&answer, "event_fds", nil)
	for _, readable := range answer.FDs {
		if readable {
			n++
		}
	}
	return n
}

type srqAttr struct{ Depth, SGE, Limit int }

func (a *agent) querySRQ(srq int) (v srqAttr) {
	a.t.Helper()
	a.call(&v, "query_srq", args{"srq": srq})
	return v
}

// What a modification of a shared receive queue is about (enum ibv_srq_attr_mask).
const modifyLimit = 2

// TestSharedReceives has a shared receive queue: three queue pairs take receives from it in its order, the limit raises one
// event and is gone then, and a queue pair that goes to ERR reports that it takes no more.
func TestSharedReceives(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(1<<16, everyAccess), b.regMR(1<<16, everyAccess)
		srq := b.create("create_srq", args{"depth": 8, "sge": 3})
		made := b.querySRQ(srq)
		if made.Depth < 8 || made.SGE < 3 || made.Limit != 0 {
			t.Errorf("made as %+v, asked for 8 with 3 entries", made)
		}
		rcq, scq := b.create("create_cq", args{"depth": 64}), b.create("create_cq", args{"depth": 64})
		var q, p [3]*queuePair
		for i := range q {
			q[i], p[i] = a.createQP("RC"), b.createQPWith("RC", scq, rcq, args{"srq": srq})
			connect(q[i], p[i], path{mtu: 1024, rnrRetry: 7})
		}
		post := func(id uint64, l ...sge) verbError {
			t.Helper()
			return b.try(nil, "post_srq_recv", args{"srq": srq, "wr_id": id, "sge": l})
		}
		limit := func(n int) verbError {
			t.Helper()
			return b.try(nil, "modify_srq", args{"srq": srq, "mask": modifyLimit, "limit": n})
		}

		// As many receives as it has room for, each scattered, in buffers of their own.
		const slot = 2048
		n := 0
		for ; n < 1000; n++ {
			f := post(uint64(n), scatter(far, n%16*slot, slot, 3)...)
			if f.Errno == int(syscall.ENOMEM) {
				break
			}
			if f.Error != "" {
				t.Fatalf("receive %d: %+v", n, f)
			}
		}
		if n != made.Depth {
			t.Errorf("%d receives were taken, it was made for %d", n, made.Depth)
		}
		take := func(i, id, size int) {
			t.Helper()
			pattern := seeded(uint64(10*i+id), size)
			near.write(0, pattern)
			q[i].send(sendWR{id: uint64(id), op: "SEND", sge: []sge{near.sge(0, size)}})
			statuses(t, "send", q[i].sent(1), [2]int{id, success})
			wc := b.poll(rcq, 1)[0]
			if wc.Status != success || wc.WrID != uint64(id) || wc.QPN != p[i].QPN || wc.ByteLen != size {
				t.Fatalf("receive: %+v, want number %d on queue pair %d", wc, id, p[i].QPN)
			}
			same(t, "message", far.read(id%16*slot, size), pattern)
		}
		take(0, 0, 100)
		take(1, 1, slot)
		take(2, 2, 1)
		take(1, 3, 0)

		// n-4 are there. The event comes when there are fewer than the limit, once.
		if f := limit(n - 5); f.Error != "" {
			t.Fatalf("limit: %+v", f)
		}
		if got := b.querySRQ(srq); got.Limit != n-5 || got.Depth != made.Depth {
			t.Errorf("queried %+v, want the limit %d", got, n-5)
		}
		take(0, 4, 10)
		b.quiet("as many as the limit")
		take(2, 5, 10)
		if e := b.event(); e != eventSRQLimit {
			t.Errorf("asynchronous event %d, want %d (SRQ_LIMIT_REACHED)", e, eventSRQLimit)
		}
		if got := b.querySRQ(srq); got.Limit != 0 {
			t.Errorf("after its event the limit is %d", got.Limit)
		}
		take(0, 6, 10)
		b.quiet("a limit that was reached")
		// Armed over fewer than that: it comes with the next message, or at once.
		if f := limit(made.Depth); f.Error != "" {
			t.Fatalf("limit: %+v", f)
		}
		if post(uint64(n), far.sge(n%16*slot, slot)).Error != "" {
			t.Error("no room after messages were received")
		}
		take(1, 7, 10)
		if e := b.event(); e != eventSRQLimit {
			t.Errorf("asynchronous event %d, want %d (SRQ_LIMIT_REACHED)", e, eventSRQLimit)
		}
		b.quiet("a limit that was reached")

		for name, v := range map[string]args{
			"limit above the depth":       {"mask": modifyLimit, "limit": made.Depth + 1},
			"something that nobody knows": {"mask": 1 << 5},
		} {
			v["srq"] = srq
			if f := b.try(nil, "modify_srq", v); f.Errno != int(syscall.EINVAL) {
				t.Errorf("modify: %s: %+v, want errno %d (EINVAL)", name, f, syscall.EINVAL)
			}
		}

		// One goes to ERR: it says so, and its peers go on.
		p[0].modify("ERR", args{})
		if e := b.event(); e != eventLastWQE {
			t.Errorf("asynchronous event %d, want %d (QP_LAST_WQE_REACHED)", e, eventLastWQE)
		}
		p[0].modify("ERR", args{})
		b.quiet("ERR twice")
		take(1, 8, 10)

		// A receive that is too short breaks its queue pair and is used up; the next one takes the next.
		for i := 9; i <= n; i++ {
			take(2, i, 10)
		}
		if f := post(70, far.sge(0, 4)); f.Error != "" {
			t.Fatal(f)
		}
		if f := post(71, far.sge(71%16*slot, slot)); f.Error != "" {
			t.Fatal(f)
		}
		q[2].send(sendWR{id: 5, op: "SEND", sge: []sge{near.sge(0, 5)}})
		statuses(t, "too short a receive", q[2].sent(1), [2]int{5, remoteInvalid})
		statuses(t, "too short a receive", b.poll(rcq, 1), [2]int{70, localLength})
		take(1, 71, 10)

		var busy struct{ Codes map[string]int }
		b.call(&busy, "busy", args{"qp": p[1].ID})
		if want := map[string]int{"pd": 16, "send cq": 16, "receive cq": 16, "srq": 16}; fmt.Sprint(busy.Codes) != fmt.Sprint(want) {
			t.Errorf("destroyed while a queue pair uses them: %v, want %v", busy.Codes, want)
		}
		for _, x := range p {
			b.call(nil, "destroy", args{"ids": []int{x.ID}})
		}
		b.call(nil, "destroy", args{"ids": []int{srq, rcq, scq}})
		for _, x := range q {
			x.destroy()
		}
		b.quiet("in the end")
	})
}

// TestSRQRefusals has what is no shared receive queue.
func TestSRQRefusals(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	a := startAgent(t, d, d.exec())
	for _, c := range []args{
		{"depth": 0, "sge": 1}, {"depth": 1<<20 + 1, "sge": 1}, {"depth": 8, "sge": 28}, {"depth": 8, "sge": 1, "limit": 9},
	} {
		if f := a.try(nil, "create_srq", c); f.Errno != int(syscall.EINVAL) {
			t.Errorf("create_srq %v: %+v, want errno %d (EINVAL)", c, f, syscall.EINVAL)
		}
	}
	// The receives of a queue pair with a shared queue are not its own.
	srq, cq := a.create("create_srq", args{"depth": 8, "sge": 1}), a.create("create_cq", args{"depth": 16})
	q := a.createQPWith("UD", cq, cq, args{"srq": srq})
	var made struct{ Caps []int }
	a.call(&made, "query", args{"qp": q.ID})
	if made.Caps[1] != 0 || made.Caps[3] != 0 { // as create_qp answered
		t.Errorf("capacities %v: there are receives of its own", made.Caps)
	}
	if f := a.try(nil, "post_recv", args{"qp": q.ID, "wr_id": 1, "sge": []sge{}}); f.Errno != int(syscall.EINVAL) {
		t.Errorf("post_recv to a queue pair with a shared queue: %+v, want errno %d (EINVAL)", f, syscall.EINVAL)
	}
	a.call(nil, "destroy", args{"ids": []int{q.ID, srq, cq}})
	a.quit()
	d.free()
}
