package device_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// lone returns a device at the end of a cable with nobody at the other.
func lone(t *testing.T, o device.Options) *host {
	t.Helper()
	ep, _ := pipe.New(pipe.Config{Name: "a", MTU: 4200, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
		pipe.Config{Name: "b", MTU: 4200})
	return newHost(t, ep, o)
}

// qpOn returns an RC queue pair in INIT that completes on the two queues.
func (h *host) qpOn(send, recv *device.CQ) *device.QP {
	h.t.Helper()
	q, err := h.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: send, RecvCQ: recv,
		Cap: device.Cap{SendWR: 8, RecvWR: 8, SendSGE: 1, RecvSGE: 1}})
	if err != nil {
		h.t.Fatal(err)
	}
	err = q.Modify(&device.QPAttr{State: device.StateInit, Port: 1}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess)
	if err != nil {
		h.t.Fatal(err)
	}
	return q
}

// newCQ returns another completion queue.
func (h *host) newCQ(in device.CQInit) *device.CQ {
	h.t.Helper()
	q, err := h.ctx.CreateCQ(in)
	if err != nil {
		h.t.Fatal(err)
	}
	return q
}

// flushed posts n receives to a queue pair and has them flushed.
func flushed(t *testing.T, q *device.QP, n int) {
	t.Helper()
	for range n {
		if err := q.PostRecv(&device.RecvWR{}); err != nil {
			t.Fatal(err)
		}
	}
	setState(t, q, device.StateErr)
}

func setState(t *testing.T, q *device.QP, s device.State) {
	t.Helper()
	if err := q.Modify(&device.QPAttr{State: s}, device.AttrState); err != nil {
		t.Fatal(err)
	}
}

// TestLateAckOfARetriedRequest deregisters the memory of a request before it is sent
// again, and has the first copy acknowledged then. The request had arrived: it succeeds,
// and an error that is completed always comes with the queue pair in ERR.
func TestLateAckOfARetriedRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ep, raw := pipe.NewRaw(pipe.Config{MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
		h := newHost(t, ep, device.Options{})
		q := h.qp(device.RC, 8)
		peer := netip.MustParseAddr("10.0.0.2")
		if err := q.Connect(100, device.Remote{GID: device.GIDOf(peer), QPN: 5}, device.ConnectOptions{Timeout: 14}); err != nil {
			t.Fatal(err)
		}
		regions := []*device.MR{h.mr(64), h.mr(64)}
		for i, m := range regions {
			if err := q.PostSend(&device.SendWR{ID: uint64(i), Op: device.OpSend, Flags: device.Signaled, SGE: []device.SGE{m.SGE(0, 8)}}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if err := regions[1].Dereg(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // one timeout of 67 ms
		spec := wire.NewSpec(wire.Path{Src: peer, Dst: netip.MustParseAddr("10.0.0.1"), SrcPort: 0xC000}, bth.Make(bth.RC, bth.Acknowledge), q.Num(), 101)
		spec.RawExt = []byte{byte(bth.AckUnlimited), 0, 0, 2}
		raw.Write(wire.Build(&spec))
		synctest.Wait()
		for i := range regions {
			if wc := h.ok(device.WCSend); wc.ID != uint64(i) {
				t.Errorf("completion %d is of request %d", i, wc.ID)
			}
		}
		if s := q.State(); s != device.StateRTS {
			t.Errorf("the queue pair is in %v", s)
		}
		h.dev.Close()
	})
}

// TestPathMTUOverIPv6 connects with the path MTU that the port calls active, on a link
// where only IPv4's shorter header leaves room for the longest packet, a WRITE with
// immediate. Over IPv6 the connection is refused; it must not break at the first WRITE.
func TestPathMTUOverIPv6(t *testing.T) {
	a, b := twoHosts(t, 1104, device.Options{}, device.Options{})
	for _, c := range []struct {
		gid, mtu int
		fits     bool
	}{{1, 1024, true}, {2, 1024, false}, {2, 512, true}} {
		qa, qb := a.qp(device.RC, 8), b.qp(device.RC, 8)
		o := device.ConnectOptions{PathMTU: c.mtu, SGIDIndex: c.gid, Timeout: 8}
		if !c.fits {
			if err := qa.Connect(1, qb.Address(c.gid, 2), o); !errors.Is(err, device.EINVAL) {
				t.Errorf("gid %d, path_mtu %d: %v, want EINVAL", c.gid, c.mtu, err)
			}
			continue
		}
		connect(t, qa, qb, c.gid, o)
		ma, mb := a.mr(1024), b.mr(1024)
		if err := qb.PostRecv(&device.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		if err := qa.PostSend(&device.SendWR{Op: device.OpWriteImm, Flags: device.Signaled, SGE: []device.SGE{ma.SGE(0, 1024)}, RemoteAddr: mb.Addr(), RKey: mb.RKey()}); err != nil {
			t.Fatal(err)
		}
		a.ok(device.WCWrite)
		b.ok(device.WCRecvImm)
	}
}

// TestReadPostedInErrIsFlushed posts to a queue pair that was never connected and is in
// ERR. What depends on the connection, like the READ depth, is not checked there: all
// requests are accepted and flushed.
func TestReadPostedInErrIsFlushed(t *testing.T) {
	h := lone(t, device.Options{})
	q := h.qpOn(h.cq, h.cq)
	setState(t, q, device.StateErr)
	m := h.mr(64)
	for _, op := range []device.WROp{device.OpWrite, device.OpRead} {
		if err := q.PostSend(&device.SendWR{Op: op, SGE: []device.SGE{m.SGE(0, 8)}}); err != nil {
			t.Fatalf("%v: %v", op, err)
		}
		if wc := h.wait(); wc.Status != device.StatusFlush {
			t.Errorf("%v: %v", op, wc.Status)
		}
	}
}

// TestRegisterFromManyGoroutines registers and deregisters without a lock of its own:
// what a context counts is guarded by its lock. It is the race detector that looks.
func TestRegisterFromManyGoroutines(t *testing.T) {
	h := lone(t, device.Options{})
	before := h.ctx.Objects()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				m, err := h.pd.RegMR(make([]byte, 8), device.LocalWrite)
				if err == nil {
					err = m.Dereg()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if o := h.ctx.Objects(); o != before {
		t.Errorf("left: %+v, there were %+v", o, before)
	}
}

// TestCreateAgainstClose creates queue pairs while the context is closed. Each is either
// refused or destroyed with the context; none may stay known to the device.
func TestCreateAgainstClose(t *testing.T) {
	h := lone(t, device.Options{})
	for i := range 800 {
		c := h.dev.NewContext()
		pd, err := c.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := c.CreateCQ(device.CQInit{Entries: 4})
		if err != nil {
			t.Fatal(err)
		}
		var made atomic.Int64
		enough := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 20 { // bounded: Close does not get the lock at once
					if _, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq}); err != nil {
						return
					}
					if made.Add(1) == int64(1+i%7) {
						close(enough)
					}
				}
			})
		}
		<-enough
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if n := len(h.dev.QPs()); n != 0 {
			t.Fatalf("round %d: %d queue pairs of a closed context are known to the device", i, n)
		}
	}
}

// TestRCWithAHCountsNothing posts an RC request that names an address handle, which is
// ignored there. It takes no reference, so that its end must not give one back: the
// handle's count would go below zero and the handle could not be destroyed.
func TestRCWithAHCountsNothing(t *testing.T) {
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	qa, qb := a.qp(device.RC, 8), b.qp(device.RC, 8)
	connect(t, qa, qb, 1, device.ConnectOptions{})
	ah, err := a.pd.CreateAH(device.AHAttr{DGID: qb.Address(1, 0).GID, SGIDIndex: 1})
	if err != nil {
		t.Fatal(err)
	}
	ma, mb := a.mr(64), b.mr(64)
	if err := qa.PostSend(&device.SendWR{Op: device.OpWrite, Flags: device.Signaled, SGE: []device.SGE{ma.SGE(0, 8)}, RemoteAddr: mb.Addr(), RKey: mb.RKey(), AH: ah}); err != nil {
		t.Fatal(err)
	}
	a.ok(device.WCWrite)
	if err := ah.Destroy(); err != nil {
		t.Error(err)
	}
}

// TestResetForgetsALostCompletion loses completions, which ends a connection, resets the
// queue pair before the device has acted on that, and connects it again. The loss is of
// the old connection and must not end the new one.
func TestResetForgetsALostCompletion(t *testing.T) {
	start := time.Unix(1000, 0)
	h := lone(t, device.Options{Stepped: true, Clock: clock.NewManual(start)})
	q := h.qpOn(h.newCQ(device.CQInit{Entries: 1}), h.cq)
	setState(t, q, device.StateReset)
	peer := device.Remote{GID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), QPN: 5}
	if err := q.Connect(1, peer, device.ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := q.PostSend(&device.SendWR{Op: device.OpWrite}); err != nil {
			t.Fatal(err)
		}
	}
	setState(t, q, device.StateErr) // three flushes, room for one
	setState(t, q, device.StateReset)
	if err := q.Connect(1, peer, device.ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	h.dev.Step(start.Add(time.Microsecond))
	if s := q.State(); s != device.StateRTS {
		t.Errorf("the new connection is in %v", s)
	}
}

// TestHandlersNotCalledAfterDestroy destroys a completion queue whose handler is due
// but waits for another handler to return. A program frees what the handler uses after
// Destroy, so that it must not be called any more, nor be counted as called.
func TestHandlersNotCalledAfterDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := lone(t, device.Options{})
		block := make(chan struct{})
		var entered, late atomic.Bool
		first := h.newCQ(device.CQInit{Entries: 4, Handler: func(*device.CQ) { entered.Store(true); <-block }})
		cq := h.newCQ(device.CQInit{Entries: 4, Handler: func(*device.CQ) { late.Store(true) }})
		first.Arm(false)
		flushed(t, h.qpOn(first, first), 1)
		synctest.Wait()
		if !entered.Load() {
			t.Fatal("the first handler was not called")
		}
		cq.Arm(false)
		q := h.qpOn(cq, cq)
		flushed(t, q, 1)
		if err := q.Destroy(); err != nil {
			t.Fatal(err)
		}
		if n, err := cq.Destroy(); err != nil || n != 0 {
			t.Errorf("destroy_cq: %d calls, %v", n, err)
		}
		close(block)
		synctest.Wait()
		if late.Load() {
			t.Error("the handler of a destroyed completion queue was called")
		}
		h.dev.Close()
	})
}

// TestDestroyedObjectsAreRefused uses objects after their end, and ends them twice. Both
// are errors of the program that it has to be told: nothing may be built on what is gone.
func TestDestroyedObjectsAreRefused(t *testing.T) {
	h := lone(t, device.Options{})
	pd, err := h.ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq := h.newCQ(device.CQInit{Entries: 4})
	ch, err := h.ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	_, err = cq.Destroy()
	if err := errors.Join(err, pd.Dealloc(), ch.Destroy()); err != nil {
		t.Fatal(err)
	}
	init := func(send, recv *device.CQ) device.QPInit {
		return device.QPInit{Type: device.RC, SendCQ: send, RecvCQ: recv}
	}
	for name, f := range map[string]func() error{
		"dealloc_pd twice":               pd.Dealloc,
		"destroy_comp_channel twice":     ch.Destroy,
		"destroy_cq twice":               func() error { _, err := cq.Destroy(); return err },
		"reg_mr on a freed pd":           func() error { _, err := pd.RegMR(make([]byte, 8), device.LocalWrite); return err },
		"create_qp on a freed pd":        func() error { _, err := pd.CreateQP(init(h.cq, h.cq)); return err },
		"create_qp, send cq destroyed":   func() error { _, err := h.pd.CreateQP(init(cq, h.cq)); return err },
		"create_qp, recv cq destroyed":   func() error { _, err := h.pd.CreateQP(init(h.cq, cq)); return err },
		"create_cq, channel destroyed":   func() error { _, err := h.ctx.CreateCQ(device.CQInit{Entries: 4, Channel: ch}); return err },
		"create_ah on a freed pd":        func() error { _, err := pd.CreateAH(ahAttr()); return err },
		"create_qp of another's context": func() error { _, err := h.pd.CreateQP(init(otherCQ(t, h), h.cq)); return err },
	} {
		if err := f(); !errors.Is(err, device.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", name, err)
		}
	}
}

func ahAttr() device.AHAttr {
	return device.AHAttr{DGID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), SGIDIndex: 1}
}

func otherCQ(t *testing.T, h *host) *device.CQ {
	t.Helper()
	q, err := h.dev.NewContext().CreateCQ(device.CQInit{Entries: 4})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestCQErrWithdrawn overflows a completion queue and destroys it before its event is
// fetched. An event names its object; one of a queue that is gone must not be delivered.
func TestCQErrWithdrawn(t *testing.T) {
	h := lone(t, device.Options{})
	cq := h.newCQ(device.CQInit{Entries: 1})
	q := h.qpOn(h.cq, cq)
	flushed(t, q, 2)
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	if _, err := cq.Destroy(); err != nil {
		t.Fatal(err)
	}
	if e, ok := h.ctx.TryAsyncEvent(); ok {
		t.Errorf("event %v of a destroyed object", e.Type)
	}
}

// TestWaitEndsWithClose closes a context while CQ.Wait blocks without a deadline: no
// completion will ever come, so that it fails with EIO.
func TestWaitEndsWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := lone(t, device.Options{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		got := make(chan error, 1)
		go func() {
			_, err := h.cq.Wait(ctx, make([]device.WC, 1))
			got <- err
		}()
		synctest.Wait()
		if err := h.ctx.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case err := <-got:
			if !errors.Is(err, device.EIO) {
				t.Errorf("%v, want EIO", err)
			}
		default:
			t.Error("CQ.Wait was not woken")
		}
		h.dev.Close()
	})
}
