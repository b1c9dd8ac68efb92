package device_test

import (
	"context"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/link/udp"
)

// benchPair is two devices on a link, connected.
type benchPair struct {
	a, b   *device.Device
	qa     *device.QP
	cq     *device.CQ
	ma, mb *device.MR
}

func newBenchPair(tb testing.TB, ea, eb link.Endpoint, mtu, size int) *benchPair {
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	p := &benchPair{}
	var err error
	p.a, err = device.Open(ea, device.Options{})
	must(err)
	p.b, err = device.Open(eb, device.Options{})
	must(err)
	tb.Cleanup(func() { p.a.Close(); p.b.Close() })
	side := func(d *device.Device) (*device.QP, *device.CQ, *device.MR) {
		c := d.NewContext()
		pd, err := c.AllocPD()
		must(err)
		cq, err := c.CreateCQ(device.CQInit{Entries: 256})
		must(err)
		qp, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 64, RecvWR: 64}})
		must(err)
		mr, err := pd.RegMR(make([]byte, size), device.LocalWrite|device.RemoteWrite|device.RemoteRead|device.RemoteAtomic)
		must(err)
		return qp, cq, mr
	}
	var qb *device.QP
	p.qa, p.cq, p.ma = side(p.a)
	qb, _, p.mb = side(p.b)
	ra, rb := p.qa.Address(1, 1), qb.Address(1, 2)
	must(p.qa.Connect(ra.PSN, rb, device.ConnectOptions{PathMTU: mtu, Timeout: 16, Depth: 16, Access: device.RemoteWrite | device.RemoteRead | device.RemoteAtomic}))
	must(qb.Connect(rb.PSN, ra, device.ConnectOptions{PathMTU: mtu, Timeout: 16, Depth: 16, Access: device.RemoteWrite | device.RemoteRead | device.RemoteAtomic}))
	return p
}

// run keeps depth WRITEs of size bytes outstanding until n are complete.
func (p *benchPair) run(tb testing.TB, op device.WROp, n, depth, size int) {
	wr := device.SendWR{Op: op, Flags: device.Signaled, SGE: []device.SGE{p.ma.SGE(0, size)}, RemoteAddr: p.mb.Addr(), RKey: p.mb.RKey()}
	var wc [16]device.WC
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done < depth {
			if err := p.qa.PostSend(&wr); err != nil {
				tb.Fatal(err)
			}
			posted++
		}
		k, err := p.cq.Wait(ctx, wc[:])
		if err != nil {
			tb.Fatal(err)
		}
		for _, w := range wc[:k] {
			if w.Status != device.StatusSuccess {
				tb.Fatal(w.Status)
			}
		}
		done += k
	}
}

func udpPair(tb testing.TB) (link.Endpoint, link.Endpoint) {
	open := func(a string) link.Endpoint {
		ep, err := udp.Open(netip.MustParseAddrPort(a), udp.Options{})
		if err != nil {
			tb.Skip("no UDP link here: ", err)
		}
		return ep
	}
	return open("127.0.0.8:4791"), open("127.0.0.9:4791")
}

func pipePair() (link.Endpoint, link.Endpoint) {
	a, b := pipe.New(pipe.Config{Name: "a", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
		pipe.Config{Name: "b", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	return a, b
}

func BenchmarkWrite64K(b *testing.B) {
	for _, l := range []string{"pipe", "udp"} {
		b.Run(l, func(b *testing.B) {
			ea, eb := pipePair()
			if l == "udp" {
				ea, eb = udpPair(b)
			}
			p := newBenchPair(b, ea, eb, 4096, 64<<10)
			b.SetBytes(64 << 10)
			b.ReportAllocs()
			b.ResetTimer()
			p.run(b, device.OpWrite, b.N, 16, 64<<10)
		})
	}
}

// TestSteadyStateAllocations holds that a packet costs no allocation, of whatever operation and size, over a UDP socket: a GiB of RC
// WRITEs less than 1,000, and 4096 requests of any kind less than 250.
func TestSteadyStateAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates on its own; runs without it")
	}
	ea, eb := udpPair(t)
	p := newBenchPair(t, ea, eb, 4096, 64<<10)
	for _, c := range []struct {
		name string
		op   device.WROp
		size int
	}{
		{"WRITE 64 KiB", device.OpWrite, 64 << 10}, {"READ 64 KiB", device.OpRead, 64 << 10}, {"WRITE 64 B", device.OpWrite, 64},
		{"READ 8 B", device.OpRead, 8}, {"FETCH_ADD", device.OpFetchAdd, 8}, {"CMP_SWAP", device.OpCompareSwap, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.run(t, c.op, 2048, 16, c.size) // buffers and rings grow to their size
			const messages = 4096
			// Three tries: on a busy machine packets are lost, and a list may have to grow
			// once more. Steady state is the best of them.
			best := ^uint64(0)
			for range 3 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				p.run(t, c.op, messages, 16, c.size)
				took := time.Since(start)
				runtime.ReadMemStats(&after)
				n := after.Mallocs - before.Mallocs
				t.Logf("%d allocations for %d requests in %v (%.0f MB/s)", n, messages, took, float64(messages*c.size)/took.Seconds()/1e6)
				if best = min(best, n); best < 250 {
					return
				}
			}
			t.Errorf("%d allocations for %d requests; less than 250 are promised", best, messages)
		})
	}
}

// The two benchmarks below are the figures in ARCHITECTURE.md for why a queue
// pair's goroutine is not woken per packet.

func BenchmarkInlineUnderLock(b *testing.B) {
	var mu sync.Mutex
	n := 0
	for range b.N {
		mu.Lock()
		n++
		mu.Unlock()
	}
	_ = n
}

func BenchmarkWakeGoroutine(b *testing.B) {
	wake, done := make(chan struct{}, 1), make(chan struct{}, 1)
	go func() {
		for range wake {
			done <- struct{}{}
		}
	}()
	for range b.N {
		wake <- struct{}{}
		<-done
	}
	close(wake)
}
