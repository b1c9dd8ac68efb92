package device

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire/bth"
)

// TestAckHeld: of a program that polls, the acknowledgement waits for what it posts, and leaves with it, behind it, in one burst; or at
// the next look.
func TestAckHeld(t *testing.T) {
	a, b := twoPolled(t)
	b.holdAck(t, a)
	before := len(b.end.calls())
	b.write(t, a, 1)
	want := []sentFrame{{bth.Make(bth.RC, bth.WriteOnly), 0}, {bth.Make(bth.RC, bth.Acknowledge), 0}}
	if b.dev.port.Info().MaxSegs > 1 {
		want[1].segment = 1
	}
	if got := b.end.calls()[before:]; len(got) != 1 || len(got[0]) != 2 || got[0][0] != want[0] || got[0][1] != want[1] {
		t.Errorf("with the program's own request left %v, want %v", got, want)
	}
	b.dev.rx.drive.Unlock()
	a.take(t)

	b.until(t, "the write has completed", func() bool { return b.cq.Poll(make([]WC, 1)) > 0 })
	b.holdAck(t, a)
	before = len(b.end.calls())
	b.dev.rx.round()
	if n := len(b.end.calls()); n != before+1 {
		t.Errorf("the next look makes %d sends", n-before)
	}
	b.dev.rx.drive.Unlock()
	a.take(t)
}

// holdAck has a write something to h, of which h holds the acknowledgement; the test is he who looks, as driven has it.
func (h *polledHost) holdAck(t *testing.T, a *polledHost) {
	t.Helper()
	h.driven(t)
	defer func() {
		if t.Failed() {
			h.dev.rx.drive.Unlock() // or Close would wait for it
		}
	}()
	a.write(t, h, 1)
	a.until(t, "the packet is there", func() bool { return h.end.in.Len() == 1 })
	h.dev.rx.round()
	if n := pending(h.qp); n != 1 {
		t.Fatalf("%d packets are held, want an acknowledgement", n)
	}
}

// TestAckCompany: while many packets come at a time, an acknowledgement waits for those that come next, and is the only one; but not for
// ever, nor when nothing more comes, nor where few have come, nor when nothing comes ever again.
func TestAckCompany(t *testing.T) {
	a, b := twoPolled(t)
	rx := b.dev.rx
	b.driven(t)
	defer rx.drive.Unlock()
	rx.away.Store(false)
	for i, c := range []struct {
		packets int
		leaves  bool
		fails   bool
	}{
		{company, false, false}, {company + 3, false, false}, {company, true, false},
		{company, false, false}, {0, true, false},
		{company, false, false}, {1, true, false},
		{company - 1, true, false}, {0, false, false},
		{company, false, false}, {0, true, true},
	} {
		a.write(t, b, c.packets)
		a.until(t, "the packets are there", func() bool { return b.end.in.Len() == c.packets })
		before := len(b.end.calls())
		b.end.broken.Store(c.fails)
		rx.round()
		calls := b.end.calls()[before:]
		if !c.leaves {
			if len(calls) > 0 {
				t.Fatalf("%d, %d packets: %v left", i, c.packets, calls)
			}
			continue
		}
		if len(calls) != 1 || len(calls[0]) != 1 || calls[0][0].op != bth.Make(bth.RC, bth.Acknowledge) {
			t.Fatalf("%d, %d packets: %v left, want an acknowledgement", i, c.packets, calls)
		}
	}
}

// TestAckCompanyOfMany: what many queue pairs hold leaves at the next look, also where an acknowledgement waits for company.
func TestAckCompanyOfMany(t *testing.T) {
	a, b := twoPolled(t)
	rx := b.dev.rx
	b.driven(t)
	defer rx.drive.Unlock()
	rx.away.Store(false)
	arrive := func(n int) {
		t.Helper()
		a.write(t, b, n)
		a.until(t, "the packets are there", func() bool { return b.end.in.Len() == n })
	}
	arrive(company)
	rx.round()
	for range few {
		q, err := b.pd.CreateQP(QPInit{Type: RC, SendCQ: b.cq, RecvCQ: b.cq})
		if err != nil {
			t.Fatal(err)
		}
		q.mu.Lock()
		rx.hold(q)
		q.mu.Unlock()
	}
	arrive(company)
	before := len(b.end.calls())
	rx.round()
	if calls := b.end.calls()[before:]; len(calls) != 1 || len(calls[0]) != 1 || calls[0][0].op != bth.Make(bth.RC, bth.Acknowledge) {
		t.Errorf("%v left, want the acknowledgement that was held", calls)
	}
	if n := pending(b.qp); n != 1 {
		t.Errorf("%d packets are held, want the acknowledgement of what has come since", n)
	}
}

// TestHoldWhileLooked: small requests behind others wait for company also while who receives looks, not while he sleeps; and who posts
// sends what very many hold.
func TestHoldWhileLooked(t *testing.T) {
	a, b := twoPolled(t)
	rx := a.dev.rx
	a.driven(t)
	locked := true
	defer func() {
		if locked {
			rx.drive.Unlock()
		}
	}()
	rx.away.Store(false)
	a.write(t, b, deep+4)
	if n := pending(a.qp); n == 0 {
		t.Error("while somebody looks, nothing is held")
	}
	rx.sits.Store(true)
	a.write(t, b, 1)
	if n := pending(a.qp); n != 0 {
		t.Errorf("while he who receives sleeps, %d packets are held", n)
	}
	rx.sits.Store(false)
	for range bunch {
		q, err := a.pd.CreateQP(QPInit{Type: RC, SendCQ: a.cq, RecvCQ: a.cq})
		if err != nil {
			t.Fatal(err)
		}
		q.mu.Lock()
		rx.hold(q)
		q.mu.Unlock()
	}
	rx.posted.Store(int64(a.dev.now()) + int64(time.Hour)) // not because it is time
	rx.drive.Unlock()
	locked = false
	a.write(t, b, 1)
	if n := rx.holds.Load(); n >= bunch {
		t.Errorf("%d hold something", n)
	}
}

// TestAckNotForgotten: who polls, and suddenly does not any more, keeps the peer waiting for milliseconds, not until a timer runs out.
func TestAckNotForgotten(t *testing.T) {
	for name, after := range map[string]func(t *testing.T, h *polledHost){
		"nothing": func(*testing.T, *polledHost) {},
		"reset": func(t *testing.T, h *polledHost) {
			if err := h.qp.Modify(&QPAttr{State: StateReset}, AttrState); err != nil {
				t.Fatal(err)
			}
		},
		"destroy": func(t *testing.T, h *polledHost) {
			if err := h.qp.Destroy(); err != nil {
				t.Fatal(err)
			}
		},
		"close": func(t *testing.T, h *polledHost) { h.dev.Close() },
		"sleep of another": func(t *testing.T, h *polledHost) {
			other, err := h.ctx.CreateCQ(CQInit{Entries: 1})
			if err != nil {
				t.Fatal(err)
			}
			go other.Wait(t.Context(), make([]WC, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := twoPolled(t)
			b.holdAck(t, a)
			b.dev.rx.drive.Unlock()
			after(t, b)
			a.take(t)
			if n := a.dev.counters.Load(stats.LocalAckTimeoutErr); n != 0 {
				t.Errorf("%d ACK timers ran out", n)
			}
		})
	}
}

// TestHeldWhileAnotherSleeps: somebody sleeps at the link when another goroutine has something to hold.
func TestHeldWhileAnotherSleeps(t *testing.T) {
	_, b := twoPolled(t)
	rx := b.dev.rx
	b.leave(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other, err := b.ctx.CreateCQ(CQInit{Entries: 1})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		other.Wait(ctx, make([]WC, 1))
	}()
	for end := time.Now().Add(20 * time.Second); !rx.sits.Load(); {
		if time.Now().After(end) {
			t.Fatal("nobody sleeps at the link")
		}
		time.Sleep(10 * time.Microsecond)
	}
	b.qp.mu.Lock() // as a look at the same moment would
	rx.hold(b.qp)
	b.qp.mu.Unlock()
	for end := time.Now().Add(20 * time.Second); rx.holds.Load() > 0; {
		if time.Now().After(end) {
			t.Fatal("what was held stays")
		}
		time.Sleep(10 * time.Microsecond)
	}
	cancel()
	<-done
}

// TestSmallRequestsGather: small requests behind many that are on their way leave together, without waiting for an answer.
func TestSmallRequestsGather(t *testing.T) {
	a, b := twoPolled(t)
	rx := a.dev.rx
	rx.drive.Lock() // nobody looks meanwhile, and answers do not arrive
	rx.away.Store(true)
	a.write(t, b, deep)
	if n := len(a.end.calls()); n != deep {
		t.Fatalf("the first %d left in %d sends: who waits for an answer is kept waiting", deep, n)
	}
	a.write(t, b, bunch-1)
	if n := len(a.end.calls()); n != deep {
		t.Errorf("%d more left in %d sends, before there was a bunch", bunch-1, n-deep)
	}
	a.write(t, b, 1)
	if n := len(a.end.calls()); n != deep+1 {
		t.Errorf("a bunch left in %d sends", n-deep)
	}
	a.write(t, b, 1)
	rx.drive.Unlock() // the next look sends it
	for range deep + bunch + 1 {
		a.take(t)
	}
}

// TestPosterDoesNotLook: a program that posts and hears of completions in other ways does not send the receiver's goroutine away.
func TestPosterDoesNotLook(t *testing.T) {
	a, b := twoPolled(t)
	before := a.dev.rx.looks.Load()
	wc := make([]WC, 16)
	for done, end := 0, time.Now().Add(20*time.Second); done < 500; {
		a.write(t, b, 1)
		for n := 0; n == 0; done += n {
			if n = a.cq.take(wc); n == 0 { // as a handler does
				runtime.Gosched()
			}
			if time.Now().After(end) {
				t.Fatalf("%d completions", done)
			}
		}
		if a.dev.rx.away.Load() {
			t.Fatal("the receiver's goroutine is away")
		}
	}
	if n := a.dev.rx.looks.Load() - before; n != 0 {
		t.Errorf("%d posts were taken for looks", n)
	}
}

// TestFarewellOfAll: a device that is closed while somebody else receives sends what he holds all the same.
func TestFarewellOfAll(t *testing.T) {
	a, b := twoPolled(t)
	b.holdAck(t, a)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		b.dev.Close()
	}()
	a.take(t)
	b.dev.rx.drive.Unlock()
	<-closed
	if n := a.dev.counters.Load(stats.LocalAckTimeoutErr); n != 0 {
		t.Errorf("%d ACK timers ran out", n)
	}
}

// TestFarewellWithRequest: an acknowledgement that is held leaves also where a request is held behind it.
func TestFarewellWithRequest(t *testing.T) {
	for name, end := range map[string]func(*polledHost) error{
		"destroy": func(h *polledHost) error { return h.qp.Destroy() },
		"reset":   func(h *polledHost) error { return h.qp.Modify(&QPAttr{State: StateReset}, AttrState) },
		"error":   func(h *polledHost) error { return h.qp.Modify(&QPAttr{State: StateErr}, AttrState) },
		"drain":   func(h *polledHost) error { return h.qp.Modify(&QPAttr{State: StateSQD}, AttrState) },
		"close":   func(h *polledHost) error { return h.dev.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := twoPolled(t)
			a.driven(t) // it does not answer
			defer a.dev.rx.drive.Unlock()
			b.driven(t)
			b.write(t, a, deep+2)
			b.dev.rx.round()
			a.write(t, b, 1)
			a.until(t, "the packet is there", func() bool { return b.end.in.Len() == 1 })
			b.dev.rx.round()
			b.write(t, a, 1)
			n, before := pending(b.qp), len(b.end.calls())
			b.dev.rx.drive.Unlock()
			if n != 2 {
				t.Fatalf("%d packets are held, want an acknowledgement and a request", n)
			}
			if err := end(b); err != nil {
				t.Fatal(err)
			}
			for _, c := range b.end.calls()[before:] {
				for _, f := range c {
					if f.op == bth.Make(bth.RC, bth.Acknowledge) {
						return
					}
				}
			}
			t.Errorf("%v left, no acknowledgement", b.end.calls()[before:])
		})
	}
}

// TestHoldOnFailedLink: what is held by somebody who had asked before the link failed is sent all the same.
func TestHoldOnFailedLink(t *testing.T) {
	a, b := twoPolled(t)
	rx := a.dev.rx
	a.end.broken.Store(true)
	a.until(t, "the link has failed", rx.failed.Load)
	a.end.Wake()
	rx.seat <- struct{}{} // the receiver's goroutine looks no more, which would send it, too
	defer func() { <-rx.seat }()
	a.qp.mu.Lock()
	wr := SendWR{Op: OpWrite, SGE: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	a.qp.sq.push(&wr, false)
	a.qp.eng.Doorbell(a.dev.now())
	before := len(a.end.calls())
	rx.hold(a.qp)
	a.qp.mu.Unlock()
	for end := time.Now().Add(20 * time.Second); len(a.end.calls()) == before; time.Sleep(10 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("it is held for ever")
		}
	}
}
