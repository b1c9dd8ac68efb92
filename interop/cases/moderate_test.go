package cases

import (
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// One event for several completions: after so many, or so long after the first, or with an error.
func TestModeration(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		ch := must(l.ctx.CreateCompChannel())
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 64, Channel: ch}))
		c := l.rc(func(o *rcOptions) { o.recvCQ = cq })
		for i := range uint64(21) { // one is left at the end
			c.recv(i, nil, 0)
		}
		psn := uint32(0x200)
		comes := func(n int, solicited bool) {
			for range n {
				c.gets(peer.SendOnly(nicQP, psn, nil).With(func(f *peer.Frame) { f.SE = solicited }))
				psn++
			}
			l.settle()
		}
		events := 0
		woken := func(what string, want bool) {
			t.Helper()
			l.settle()
			_, ok := ch.TryGet()
			if ok != want {
				t.Errorf("%s: event %v, want %v", what, ok, want)
			}
			if ok {
				events++
			}
			drain(cq)
		}
		for _, v := range []struct {
			count  int
			period time.Duration
		}{{-1, time.Millisecond}, {0, time.Millisecond}, {4, 0}, {4, -1}, {65536, time.Millisecond}, {4, 65536 * time.Microsecond}} {
			errno(t, cq.Moderate(v.count, v.period), device.EINVAL)
		}
		if err := cq.Moderate(4, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		cq.Arm(false)
		comes(3, false)
		woken("three", false)
		comes(1, false)
		woken("four", true)
		comes(4, false)
		time.Sleep(10 * time.Millisecond)
		woken("not armed", false)
		cq.Arm(false)
		comes(1, false)
		time.Sleep(999 * time.Microsecond)
		woken("before the time", false)
		comes(1, false)
		time.Sleep(time.Microsecond)
		woken("after the time", true)
		cq.Arm(false)
		comes(1, false)
		time.Sleep(998 * time.Microsecond)
		woken("the time begins anew", false)
		time.Sleep(2 * time.Microsecond)
		woken("and ends", true)
		// Of those that are asked for alone.
		cq.Arm(true)
		comes(5, false)
		time.Sleep(10 * time.Millisecond)
		woken("unsolicited", false)
		comes(3, true)
		woken("three solicited", false)
		comes(1, true)
		woken("four solicited", true)
		cq.Arm(false)
		c.to(device.StateErr)
		woken("an error", true)
		// Off again.
		if err := cq.Moderate(0, 0); err != nil {
			t.Fatal(err)
		}
		cq.Arm(false)
		c.recv(50, nil, 0)
		woken("off", true)
		// What is held back when the queue goes makes no event.
		if err := cq.Moderate(2, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if err := c.qp.Destroy(); err != nil {
			t.Fatal(err)
		}
		if got, err := cq.Destroy(); err != nil || got != events {
			t.Errorf("%d events, want %d: %v", got, events, err)
		}
		time.Sleep(10 * time.Millisecond)
		if _, ok := ch.TryGet(); ok {
			t.Error("an event of a queue that is gone")
		}
		errno(t, cq.Moderate(0, 0), device.EINVAL)
	})
	bubble(t, "gone while one is held back", func(t *testing.T) {
		l := newLab(t, labConfig{})
		ch := must(l.ctx.CreateCompChannel())
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 64, Channel: ch}))
		c := l.rc(func(o *rcOptions) { o.recvCQ = cq })
		c.recv(1, nil, 0)
		if err := cq.Moderate(2, time.Millisecond); err != nil {
			t.Fatal(err)
		}
		cq.Arm(false)
		c.gets(peer.SendOnly(nicQP, 0x200, nil))
		l.settle()
		if err := c.qp.Destroy(); err != nil {
			t.Fatal(err)
		}
		if got, err := cq.Destroy(); err != nil || got != 0 {
			t.Errorf("%d events, %v", got, err)
		}
		time.Sleep(10 * time.Millisecond)
		if _, ok := ch.TryGet(); ok {
			t.Error("an event of a queue that is gone")
		}
	})
}
