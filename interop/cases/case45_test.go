package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 45: a completion queue of two queue pairs is full. What is in it stays, in order; there is one event for it; the
// queue pairs whose completions are lost end, each with an event, and nobody waits.
func TestCase45_CQFull(t *testing.T) {
	for _, n := range []int{1, 2, 7} {
		bubble(t, fmt.Sprint(n), func(t *testing.T) {
			l := newLab(t, labConfig{})
			cq := must(l.ctx.CreateCQ(device.CQInit{Entries: n}))
			a := l.rc(func(o *rcOptions) { o.recvCQ = cq })
			b := l.rc(func(o *rcOptions) { o.recvCQ, o.QPN = cq, 0x15 })
			if cq.Cap() < n {
				t.Fatalf("holds %d", cq.Cap())
			}
			var wants []string
			for i := range cq.Cap() + 3 {
				c, id := []*conn{a, b}[i%2], uint64(i)
				c.recv(id, nil, 0)
				f := peer.SendOnly(c.o.QPN, 0x200+uint32(i/2), nil)
				c.gets(f)
				if i < cq.Cap() {
					wants = append(wants, fmt.Sprintf("%d SUCCESS RECV 0", id))
				}
			}
			l.settle()
			// The packet whose completion was lost is not answered (design.md 8).
			want(t, "answers", len(l.take()), cq.Cap())
			a.state(device.StateErr)
			b.state(device.StateErr)
			var cqErr, fatal int
			for e, ok := l.ctx.TryAsyncEvent(); ok; e, ok = l.ctx.TryAsyncEvent() {
				switch {
				case e.Type == device.EventCQErr && e.CQ == cq:
					cqErr++
				case e.Type == device.EventQPFatal && e.QP != nil:
					fatal++
				default:
					t.Errorf("event %+v", e)
				}
			}
			want(t, "events of the queue", cqErr, 1)
			want(t, "events of the queue pairs", fatal, 2)
			sameList(t, "completions", briefWC(drain(cq)), wants)
		})
	}
}

// Case 45: the send side. Requests whose completions are lost end their queue pair, and no other.
func TestCase45_SendCQFull(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		other := l.rc(func(o *rcOptions) { o.QPN = 0x15 })
		c := l.rc(func(o *rcOptions) { o.SendCQ = 2 })
		mr := l.mr(8, all)
		c.recv(70, nil, 0)
		for range 4 {
			c.send(mr, 1)
		}
		l.take()
		c.gets(ack(0x101, 2))
		l.events()
		c.state(device.StateRTS)
		c.gets(ack(0x103, 4))
		l.events("CQ_ERR", "QP_FATAL")
		c.state(device.StateErr)
		other.state(device.StateRTS)
		c.sent("1 SUCCESS SEND 1", "2 SUCCESS SEND 1")
		c.received("70 WR_FLUSH_ERR")
	})
}

// Case 45: resize_cq. Below the number of entries it is refused, and nothing is lost; a longer queue has what was there, in order,
// and takes more, so that the queue pairs live.
func TestCase45_Resize(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 4}))
		a := l.rc(func(o *rcOptions) { o.recvCQ = cq })
		b := l.rc(func(o *rcOptions) { o.recvCQ, o.QPN = cq, 0x15 })
		n := 0
		messages := func(k int) {
			t.Helper()
			for range k {
				c := []*conn{a, b}[n%2]
				c.recv(uint64(n), nil, 0)
				c.gets(peer.SendOnly(c.o.QPN, 0x200+uint32(n/2), nil))
				n++
			}
			want(t, "answers", len(l.take()), k)
		}
		next := 0
		polled := func(k int) {
			t.Helper()
			wc := make([]device.WC, k)
			var wants []string
			for range k {
				wants = append(wants, fmt.Sprintf("%d SUCCESS RECV 0", next))
				next++
			}
			sameList(t, "completions", briefWC(wc[:cq.Poll(wc)]), wants)
		}
		messages(3)
		polled(3)
		messages(4) // full, and wrapped
		for _, n := range []int{-1, 0, 1, 3, device.MaxCQE + 1} {
			errno(t, cq.Resize(n), device.EINVAL)
		}
		want(t, "it holds", cq.Cap(), 4)
		want(t, "resize_cq to what is there", cq.Resize(4), nil)
		want(t, "resize_cq", cq.Resize(7), nil)
		messages(3) // in the middle of traffic
		polled(2)
		errno(t, cq.Resize(4), device.EINVAL)
		want(t, "resize_cq", cq.Resize(5), nil)
		polled(5)
		polled(0)
		l.events()
		a.state(device.StateRTS)
		b.state(device.StateRTS)
		messages(5)
		polled(5)
	})
}
