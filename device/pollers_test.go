package device_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
)

// TestCase47_TwoPollers: two goroutines poll one completion queue while it fills, and a third changes its length all the
// time (case 45): every completion is seen once, and each goroutine sees its own in order.
func TestCase47_TwoPollers(t *testing.T) {
	const messages, depth = 1000, 16
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	cq, err := a.ctx.CreateCQ(device.CQInit{Entries: depth})
	if err != nil {
		t.Fatal(err)
	}
	q, err := a.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, SigAll: true, Cap: device.Cap{SendWR: depth, Inline: 8}})
	if err != nil {
		t.Fatal(err)
	}
	connect(t, q, b.qp(device.RC, 1), 1, device.ConnectOptions{Access: device.RemoteWrite})
	dst := b.mr(8)
	var polled atomic.Int64
	var seen [2][]uint64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range seen {
		wg.Go(func() {
			wc := make([]device.WC, 1+2*i)
			for polled.Load() < messages && ctx.Err() == nil {
				n := cq.Poll(wc)
				for _, w := range wc[:n] {
					if w.Status != device.StatusSuccess || w.QPN != q.Num() {
						t.Errorf("%+v", w)
						cancel()
					}
					seen[i] = append(seen[i], w.ID)
				}
				polled.Add(int64(n))
			}
		})
	}
	wg.Go(func() {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 0))
		for polled.Load() < messages && ctx.Err() == nil {
			n := depth + r.IntN(100)
			if err := cq.Resize(n); err != nil || cq.Cap() != n {
				t.Errorf("resize_cq to %d: %v, it holds %d", n, err, cq.Cap())
			}
		}
	})
	for id := range uint64(messages) {
		for int64(id)-polled.Load() >= depth && ctx.Err() == nil {
			time.Sleep(time.Microsecond)
		}
		wr := &device.SendWR{ID: id, Op: device.OpWrite, Flags: device.Inline, InlineData: make([]byte, 8), RemoteAddr: dst.Addr(), RKey: dst.RKey()}
		for {
			err := q.PostSend(wr)
			if err == nil {
				break
			}
			if device.ErrnoOf(err) != device.ENOMEM || ctx.Err() != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Microsecond)
		}
	}
	wg.Wait()
	if ctx.Err() != nil {
		t.Errorf("%d of %d completions", polled.Load(), messages)
	}
	for i, l := range seen {
		if !slices.IsSorted(l) {
			t.Errorf("poller %d: out of order", i)
		}
	}
	all := slices.Concat(seen[0], seen[1])
	slices.Sort(all)
	for i, id := range all {
		if id != uint64(i) {
			t.Fatalf("completion %d is lost or was seen twice", i)
		}
	}
	if e, ok := a.ctx.TryAsyncEvent(); ok {
		t.Errorf("event %v", e.Type)
	}
}
