package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/link"
)

func put(q *link.Queue, s string) bool {
	return q.Put(0, func(dst []byte) []byte { return append(dst, s...) })
}

// One batch may go from queue to queue: each has its buffers back, and packets stay until then.
func TestQueueSharedBatch(t *testing.T) {
	a, b := link.NewQueue(8, nil), link.NewQueue(8, nil)
	batch := link.NewBatch(4)
	step := func() {
		for _, q := range []*link.Queue{a, b} {
			for i := range 4 {
				if !put(q, "packet") {
					t.Fatal("full", i)
				}
			}
		}
		for _, q := range []*link.Queue{a, b, a} {
			if err := q.Recv(batch, false); err != nil {
				t.Fatal(err)
			}
		}
		if len(batch.Packets) != 0 {
			t.Fatal("packets received twice")
		}
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestQueueOrderAndBounds(t *testing.T) {
	q := link.NewQueue(5, nil)
	batch := link.NewBatch(2)
	next := 0
	for round := range 20 {
		for i := range 3 {
			put(q, fmt.Sprint(3*round+i))
		}
		for range 2 {
			if err := q.Recv(batch, false); err != nil {
				t.Fatal(err)
			}
			for _, p := range batch.Packets {
				if string(p.Frame) != fmt.Sprint(next) || p.When.IsZero() {
					t.Fatalf("packet %q, want %d", p.Frame, next)
				}
				next++
			}
		}
	}
	for range 7 {
		put(q, "x")
	}
	if q.Lost() != 2 {
		t.Errorf("%d lost", q.Lost())
	}
	q.Put(3, func(dst []byte) []byte { return append(dst, "netib"...) })
	q.Close()
	if put(q, "late") || !q.Closed() || q.Lost() != 3 {
		t.Error("Put after Close")
	}
	if err := q.Recv(batch, true); !errors.Is(err, net.ErrClosed) || len(batch.Packets) != 0 {
		t.Error(err)
	}
}

func TestQueueWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := link.NewQueue(5, nil)
		q.Latency = time.Second
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		batch := link.NewBatch(2)
		if err := q.RecvContext(ctx, batch); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		go put(q, "one")
		time.AfterFunc(300*time.Millisecond, func() { put(q, "two") })
		for _, w := range []time.Duration{1500 * time.Millisecond, 1800 * time.Millisecond} {
			if err := q.RecvContext(t.Context(), batch); err != nil || len(batch.Packets) != 1 || time.Since(start) != w {
				t.Fatal(err, len(batch.Packets), time.Since(start))
			}
		}
	})
}

// TestRelieve: who waits for room goes on when there is, and when the queue is closed.
func TestRelieve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := link.NewQueue(8, nil)
		fill := func(dst []byte) []byte { return append(dst, 1) }
		for range 5 {
			q.Put(0, fill)
		}
		q.Relieve(5)
		var done atomic.Bool
		go func() {
			q.Relieve(2)
			done.Store(true)
		}()
		b := link.NewBatch(2)
		for i, want := range []bool{false, true} {
			if err := q.Recv(b, false); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if done.Load() != want {
				t.Errorf("after batch %d: gone on %v, want %v", i, done.Load(), want)
			}
		}
		for range 5 {
			q.Put(0, fill)
		}
		go q.Close()
		q.Relieve(0)
	})
}
