package device_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/softnic/softnic/device"
)

// TestCloseAmongEverything has goroutines post, poll, query, reset and reconnect on both
// ends of a connection while a queue pair is destroyed, a region is deregistered and the
// contexts are closed. Any order of calls is allowed: nothing may hang, race or be left.
func TestCloseAmongEverything(t *testing.T) {
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	for round := range 12 {
		end := func(h *host) (*host, *device.QP, *device.MR) {
			c := h.dev.NewContext()
			pd, err1 := c.AllocPD()
			cq, err2 := c.CreateCQ(device.CQInit{Entries: 64})
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			x := &host{t: t, dev: h.dev, ctx: c, pd: pd, cq: cq}
			return x, x.qp(device.RC, 32), x.mr(1 << 18)
		}
		ha, qa, ma := end(a)
		hb, qb, mb := end(b)
		o := device.ConnectOptions{Timeout: 6, RetryCnt: 3}
		connect(t, qa, qb, 1, o)
		o.SGIDIndex = 1
		var calls atomic.Int64
		half := make(chan struct{})
		var wg sync.WaitGroup
		work := func(seed uint64, h *host, q *device.QP, m, p *device.MR, peer device.Remote) {
			r := rand.New(rand.NewPCG(uint64(round), seed))
			var wc [8]device.WC
			for range 3000 {
				if calls.Add(1) == 6000 {
					close(half)
				}
				// Errors are expected here: full queues, and all that is closed.
				switch r.IntN(8) {
				case 0, 1, 2:
					n := r.IntN(1 << 14)
					if raceEnabled {
						n = 0 // the peer writes where we read
					}
					_ = q.PostSend(&device.SendWR{Op: []device.WROp{device.OpWrite, device.OpRead, device.OpSend}[r.IntN(3)], Flags: device.Signaled,
						SGE: []device.SGE{m.SGE(0, n)}, RemoteAddr: p.Addr(), RKey: p.RKey()})
				case 3:
					_ = q.PostRecv(&device.RecvWR{SGE: []device.SGE{m.SGE(0, 1<<17)}})
				case 4, 5, 6:
					h.cq.Poll(wc[:])
				case 7:
					if r.IntN(20) == 0 {
						_ = q.Modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
						_ = q.Connect(5, peer, o)
					}
					q.Query()
				}
			}
		}
		ra, rb := qa.Address(1, 5), qb.Address(1, 5)
		for k := range uint64(2) {
			wg.Go(func() { work(k, ha, qa, ma, mb, rb) })
			wg.Go(func() { work(k+2, hb, qb, mb, ma, ra) })
		}
		<-half
		switch round % 3 {
		case 0:
			wg.Go(func() { _ = qa.Destroy() })
		case 1:
			_ = ma.Dereg()
		}
		if err := errors.Join(ha.ctx.Close(), hb.ctx.Close()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if n := len(a.dev.QPs()) + len(b.dev.QPs()); n != 0 {
			t.Fatalf("round %d: %d queue pairs are left", round, n)
		}
	}
}

// TestCloseTwice closes a context from many goroutines at once: none returns before the memory is free.
func TestCloseTwice(t *testing.T) {
	for range 50 {
		a, b := twoHosts(t, 0, device.Options{}, device.Options{})
		qa, qb := a.qp(device.RC, 16), b.qp(device.RC, 16)
		connect(t, qa, qb, 1, device.ConnectOptions{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := a.ctx.Close(); err != nil {
					t.Error(err)
				}
				if o := a.ctx.Objects(); o != (device.Objects{}) {
					t.Errorf("left: %+v", o)
				}
			})
		}
		wg.Wait()
	}
}
