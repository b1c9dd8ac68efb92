package device_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
)

// openFiles returns how many files the process has open; 0 where it cannot be told.
func openFiles() int {
	l, _ := os.ReadDir("/proc/self/fd")
	return len(l)
}

// TestTenThousandQueuePairs has two devices of one process create, connect, use and destroy 10,000 RC queue pairs each, and
// do it again: what a round leaves behind is what the one before left.
func TestTenThousandQueuePairs(t *testing.T) {
	pairs, rounds := 10_000, 2
	if raceEnabled || testing.Short() { // 8128 goroutines are as many as the race detector takes
		pairs = 1000
	}
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	sends, recvs := a.newCQ(device.CQInit{Entries: 1024}), b.newCQ(device.CQInit{Entries: 1024})
	src, dst, slots := a.mr(4096), b.mr(64*64), 64
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7)
	}
	var x, y []*device.QP
	make1 := func(h *host, cq *device.CQ) *device.QP {
		q, err := h.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 2, RecvWR: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	// use has a window of queue pairs send and write, each into its slot.
	use := func(from, n int) {
		for i := range n {
			p, q := x[from+i], y[from+i]
			clear(dst.Bytes()[i*64:][:64])
			err := q.PostRecv(&device.RecvWR{ID: uint64(from + i), SGE: []device.SGE{dst.SGE(i*64, 32)}})
			if err == nil {
				err = p.PostSendList(&device.SendWR{Op: device.OpWrite, SGE: []device.SGE{src.SGE(from%1000+i+32, 32)}, RemoteAddr: dst.Addr() + uint64(i*64) + 32, RKey: dst.RKey()},
					&device.SendWR{ID: uint64(from + i), Op: device.OpSend, Flags: device.Signaled, SGE: []device.SGE{src.SGE(from%1000+i, 32)}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			for _, h := range []*host{{t: t, cq: sends}, {t: t, cq: recvs}} {
				if wc := h.wait(); wc.Status != device.StatusSuccess {
					t.Fatalf("%+v", wc)
				}
			}
			_ = i
		}
		for i := range n {
			if string(dst.Bytes()[i*64:][:64]) != string(src.Bytes()[from%1000+i:][:64]) {
				t.Fatalf("pair %d: what arrived is wrong", from+i)
			}
		}
	}
	round := func(n int) {
		for range n {
			p, q := make1(a, sends), make1(b, recvs)
			x, y = append(x, p), append(y, q)
			connect(t, p, q, 1, device.ConnectOptions{Timeout: 18})
		}
		for i := 0; i < n; i += slots {
			use(i, min(slots, n-i))
		}
		for i := range x {
			if err := errors.Join(x[i].Destroy(), y[i].Destroy()); err != nil {
				t.Fatal(err)
			}
		}
		x, y = nil, nil
	}
	held := [2]device.Objects{a.ctx.Objects(), b.ctx.Objects()}
	round(pairs) // what grows once, maps above all, stays
	goroutines, mem, files := runtime.NumGoroutine(), heap(), openFiles()
	for i := range rounds {
		began := time.Now()
		round(pairs)
		for late := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(late); {
			runtime.Gosched() // a queue pair's goroutine has said that it is done a moment before it is gone
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			t.Errorf("round %d: %d goroutines, %d before", i, n, goroutines)
		}
		m := heap()
		if m > mem+1<<20 { // 50 bytes of each queue pair
			t.Errorf("round %d: the heap grew from %d to %d bytes", i, mem, m)
		}
		if n := openFiles(); n > files {
			t.Errorf("round %d: %d open files, %d before", i, n, files)
		}
		t.Logf("round %d: %d pairs in %v, heap %d KiB, before %d KiB", i, pairs, time.Since(began).Round(time.Millisecond), m>>10, mem>>10)
	}
	for i, h := range []*host{a, b} {
		if o, l := h.ctx.Objects(), h.dev.QPs(); o != held[i] || len(l) != 0 {
			t.Errorf("left: %+v, there were %+v; %d listed", o, held[i], len(l))
		}
	}
}

// traffic is two hosts, and queue pairs between them that are never idle: WRITEs and READs of more than a burst, SENDs.
type traffic struct {
	a, b   *host
	qa, qb []*device.QP
	ma, mb *device.MR
	wg     sync.WaitGroup
	stop   chan struct{}
}

func newTraffic(t *testing.T) *traffic {
	t.Helper()
	f := &traffic{stop: make(chan struct{})}
	f.a, f.b = twoHosts(t, 1500, device.Options{}, device.Options{})
	f.ma, f.mb = f.a.mr(256<<10), f.b.mr(256<<10)
	for i := range 3 {
		x, y := f.a.qp(device.RC, 8), f.b.qp(device.RC, 8)
		connect(t, x, y, 1, device.ConnectOptions{Timeout: 18})
		f.qa, f.qb = append(f.qa, x), append(f.qb, y)
		f.wg.Go(func() {
			for {
				select {
				case <-f.stop:
					return
				default:
				}
				// Each to a place of its own, and what is read is not written.
				op, n, from, to := device.OpWrite, 32<<10, 0, 64<<10
				switch i {
				case 1:
					op, from, to = device.OpRead, 128<<10, 0
				case 2:
					op, n = device.OpSend, 2000
					_ = y.PostRecv(&device.RecvWR{SGE: []device.SGE{f.mb.SGE(192<<10, n)}})
				}
				err := x.PostSend(&device.SendWR{Op: op, SGE: []device.SGE{f.ma.SGE(from, n)}, RemoteAddr: f.mb.Addr() + uint64(to), RKey: f.mb.RKey()})
				switch device.ErrnoOf(err) {
				case device.EINVAL:
					return // it is gone
				default:
					runtime.Gosched()
				}
			}
		})
	}
	t.Cleanup(func() {
		close(f.stop)
		f.wg.Wait()
	})
	return f
}

// soon fails where f does not return.
func soon(t *testing.T, what string, f func() error) (err error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err = <-done:
	case <-time.After(time.Minute):
		buf := make([]byte, 1<<20)
		t.Fatalf("%s hangs\n%s", what, buf[:runtime.Stack(buf, true)])
	}
	return err
}

// TestDestroyUnderTraffic destroys what is in use: it is refused, or it is done; it does not hang.
func TestDestroyUnderTraffic(t *testing.T) {
	cqs := func(h *host) func() error {
		return func() error { _, err := h.cq.Destroy(); return err }
	}
	for _, c := range []struct {
		name string
		f    func(f *traffic) func() error
		want device.Errno
	}{
		{"region that is written and read", func(f *traffic) func() error { return f.mb.Dereg }, 0},
		{"region that requests name", func(f *traffic) func() error { return f.ma.Dereg }, 0},
		{"queue of completions of queue pairs", func(f *traffic) func() error { return cqs(f.a) }, device.EBUSY},
		{"domain with objects", func(f *traffic) func() error { return f.b.pd.Dealloc }, device.EBUSY},
		{"queue pair that writes", func(f *traffic) func() error { return f.qa[0].Destroy }, 0},
		{"queue pair that reads", func(f *traffic) func() error { return f.qa[1].Destroy }, 0},
		{"queue pair that is written to", func(f *traffic) func() error { return f.qb[0].Destroy }, 0},
		{"queue pair that is read from", func(f *traffic) func() error { return f.qb[1].Destroy }, 0},
		{"queue pair that receives", func(f *traffic) func() error { return f.qb[2].Destroy }, 0},
		{"context of the requester", func(f *traffic) func() error { return f.a.ctx.Close }, 0},
		{"context of the responder", func(f *traffic) func() error { return f.b.ctx.Close }, 0},
		{"device of the requester", func(f *traffic) func() error { return f.a.dev.Close }, 0},
		{"device of the responder", func(f *traffic) func() error { return f.b.dev.Close }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			t.Run("", func(t *testing.T) {
				f := newTraffic(t)
				for f.b.dev.Counters().Load(stats.RcvdPkts) < 1000 {
					runtime.Gosched()
				}
				err := soon(t, "destroying it", c.f(f))
				if c.want == 0 && err != nil || c.want != 0 && device.ErrnoOf(err) != c.want {
					t.Errorf("%v, want errno %d", err, int(c.want))
				}
				// The rest goes all the same.
				for _, h := range []*host{f.b, f.a} {
					if err := soon(t, "closing the device", h.dev.Close); err != nil {
						t.Error(err)
					}
					if o := h.ctx.Objects(); o != (device.Objects{}) {
						t.Errorf("left: %+v", o)
					}
				}
			})
			for late := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(late); {
				runtime.Gosched()
			}
			if n := runtime.NumGoroutine(); n > before {
				t.Errorf("%d goroutines, %d before", n, before)
			}
		})
	}
}

// TestDestroyInAnyOrder destroys everything at once from many goroutines, again where it is in use.
func TestDestroyInAnyOrder(t *testing.T) {
	f := newTraffic(t)
	var ends []func() error
	for _, h := range []*host{f.a, f.b} {
		ends = append(ends, h.pd.Dealloc, func() error { _, err := h.cq.Destroy(); return err })
	}
	for i := range f.qa {
		ends = append(ends, f.qa[i].Destroy, f.qb[i].Destroy)
	}
	ends = append(ends, f.ma.Dereg, f.mb.Dereg)
	err := soon(t, "destroying all", func() error {
		var wg sync.WaitGroup
		for _, end := range ends {
			wg.Go(func() {
				for {
					err := end()
					if err == nil {
						return
					}
					if !errors.Is(err, device.EBUSY) {
						t.Error(err)
						return
					}
					runtime.Gosched()
				}
			})
		}
		wg.Wait()
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, h := range []*host{f.a, f.b} {
		if o := h.ctx.Objects(); o != (device.Objects{}) {
			t.Errorf("left: %+v", o)
		}
	}
}

// BenchmarkQP measures what a queue pair costs: the time to create, connect and destroy one, and the memory that one
// holds that is connected and has nothing to do, with queues of 16 and of 1.
func BenchmarkQP(b *testing.B) {
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, depth := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("depth%d", depth), func(b *testing.B) {
			ea, eb := pipePair()
			var pds [2]*device.PD
			var cqs [2]*device.CQ
			for i, ep := range []link.Endpoint{ea, eb} {
				dev, err := device.Open(ep, device.Options{})
				must(err)
				b.Cleanup(func() { dev.Close() })
				ctx := dev.NewContext()
				pds[i], err = ctx.AllocPD()
				must(err)
				cqs[i], err = ctx.CreateCQ(device.CQInit{Entries: 64})
				must(err)
			}
			qps := make([]*device.QP, 2*b.N)
			stacks := func() uint64 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.StackInuse
			}
			mem, stack := heap(), stacks()
			b.ReportAllocs()
			b.ResetTimer()
			began := time.Now()
			lap := func(what string, n int) {
				b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(n), "ns/"+what)
				began = time.Now()
			}
			for i := range qps {
				var err error
				qps[i], err = pds[i%2].CreateQP(device.QPInit{Type: device.RC, SendCQ: cqs[i%2], RecvCQ: cqs[i%2], Cap: device.Cap{SendWR: depth, RecvWR: depth}})
				must(err)
			}
			lap("create", len(qps))
			for i := 0; i < len(qps); i += 2 {
				x, y := qps[i], qps[i+1]
				must(x.Connect(1, y.Address(1, 2), device.ConnectOptions{}))
				must(y.Connect(2, x.Address(1, 1), device.ConnectOptions{}))
			}
			lap("connect", len(qps))
			b.StopTimer()
			b.ReportMetric(float64(heap()-mem)/float64(len(qps)), "heapB/QP")
			b.ReportMetric(float64(stacks()-stack)/float64(len(qps)), "stackB/QP")
			b.StartTimer()
			began = time.Now()
			for _, q := range qps {
				must(q.Destroy())
			}
			lap("destroy", len(qps))
		})
	}
}
