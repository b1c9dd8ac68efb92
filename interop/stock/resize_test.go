//go:build linux

package stock

import (
	"syscall"
	"testing"
)

// TestResize has completion queues and shared receive queues grow and shrink while they hold something: it stays, in order.
func TestResize(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		rcq, scq := b.create("create_cq", args{"depth": 3}), b.create("create_cq", args{"depth": 64})
		srq := b.create("create_srq", args{"depth": 3, "sge": 1})
		q, p := a.createQP("RC"), b.createQPWith("RC", scq, rcq, args{"srq": srq})
		connect(q, p, path{mtu: 1024, rnrRetry: 7})
		resizeCQ := func(n int) verbError {
			t.Helper()
			return b.try(nil, "resize_cq", args{"cq": rcq, "depth": n})
		}
		resizeSRQ := func(n int) verbError {
			t.Helper()
			return b.try(nil, "modify_srq", args{"srq": srq, "mask": 1, "depth": n})
		}
		fine := func(what string, f verbError) {
			t.Helper()
			if f.Error != "" {
				t.Fatalf("%s: %+v", what, f)
			}
		}
		refused := func(what string, f verbError) {
			t.Helper()
			if f.Errno != int(syscall.EINVAL) {
				t.Errorf("%s: %+v, want errno %d (EINVAL)", what, f, syscall.EINVAL)
			}
		}
		posted, sent, polled := uint64(0), uint64(0), uint64(0)
		post := func(n int) {
			t.Helper()
			for range n {
				posted++
				fine("post_srq_recv", b.try(nil, "post_srq_recv", args{"srq": srq, "wr_id": posted, "sge": []sge{far.sge(int(posted)*8, 8)}}))
			}
		}
		send := func(n int) {
			t.Helper()
			for range n {
				sent++
				near.write(0, seeded(sent, 8))
				q.send(sendWR{id: sent, op: "SEND", sge: []sge{near.sge(0, 8)}})
				statuses(t, "send", q.sent(1), [2]int{int(sent), success})
			}
		}
		poll := func(n int) {
			t.Helper()
			for range n {
				polled++
				statuses(t, "receive", b.poll(rcq, 1), [2]int{int(polled), success})
				same(t, "message", far.read(int(polled)*8, 8), seeded(polled, 8))
			}
		}
		post(3)
		send(2)
		poll(1)
		refused("a completion queue of 0", resizeCQ(0))
		refused("a completion queue beyond max_cqe", resizeCQ(1<<20))
		fine("resize_cq", resizeCQ(40))
		refused("a shared receive queue of 0", resizeSRQ(0))
		fine("modify_srq", resizeSRQ(30))
		if s := b.querySRQ(srq); s.Depth < 30 {
			t.Errorf("%+v, asked for 30", s)
		}
		post(20)
		send(12) // the queues are longer now
		poll(3)
		refused("a shared receive queue of fewer than it holds", resizeSRQ(5))
		refused("a completion queue of fewer than it holds", resizeCQ(9))
		fine("resize_cq", resizeCQ(10))
		fine("modify_srq", resizeSRQ(9))
		poll(10)
		send(9)
		poll(9)
		b.quiet("queues that were long enough")
		q.destroy()
		p.destroy()
		b.call(nil, "destroy", args{"ids": []int{srq, rcq, scq}})
	})
}
