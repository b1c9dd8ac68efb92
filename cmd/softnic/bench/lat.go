package bench

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/device"
)

// rally is a latency test as one side plays it: one message there, one back, or an operation and its completion.
//
// With WRITE, a side that polls sees the last byte of the message in its memory, which counts messages; one that sleeps gets
// the completion of a receive, for which it is a WRITE with immediate. With SEND it is that completion in any case.
type rally struct {
	e    *end
	l    *lane
	wr   device.SendWR
	byte *byte // the last one of what comes
	seen byte  // its value so far
	sent byte  // of what was sent last
	open int   // requests without a completion
	came int   // receives that have completed and were not asked for yet
}

// newRally makes a side of the test, of which the other has last got a message that ends with the byte sent. That side may not have
// begun to play.
func newRally(e *end, sent byte) *rally {
	l := e.lanes[0]
	r := &rally{e: e, l: l, wr: e.request(0), byte: &l.in[e.c.Size-1], sent: sent}
	r.wr.Flags |= device.Signaled
	r.seen = peek(r.byte)
	return r
}

// post sends the next message. What was sent before has left: its memory may change.
func (r *rally) post(ctx context.Context) error {
	for r.open > 0 {
		if err := r.take(ctx); err != nil {
			return err
		}
	}
	if r.e.c.Op == Write && !r.e.c.withImm() {
		r.sent++
		r.l.out[r.e.c.Size-1] = r.sent
	}
	r.open++
	return r.l.qp.PostSend(&r.wr)
}

// take waits for completions.
func (r *rally) take(ctx context.Context) error {
	wcs, err := r.e.next(ctx)
	if err != nil {
		return err
	}
	if wcs == nil {
		return context.Canceled
	}
	return r.count(wcs)
}

func (r *rally) count(wcs []device.WC) error {
	for i := range wcs {
		if wcs[i].Op != device.WCRecv && wcs[i].Op != device.WCRecvImm {
			r.open--
			continue
		}
		r.came++
		if err := r.l.receive(&r.e.c); err != nil {
			return err
		}
	}
	return nil
}

// await waits for the peer's next message, or for the completion of an operation that the peer answers by itself.
func (r *rally) await(ctx context.Context) error {
	switch {
	case !r.e.c.active():
		for r.open > 0 {
			if err := r.take(ctx); err != nil {
				return err
			}
		}
		return nil
	case r.e.c.receives():
		for r.came == 0 {
			if err := r.take(ctx); err != nil {
				return err
			}
		}
		r.came--
		return nil
	}
	for spins := 1; peek(r.byte) == r.seen; spins++ {
		if n := r.e.cq.Poll(r.e.wc); n > 0 {
			wcs := r.e.wc[:n]
			for i := range wcs {
				if wcs[i].Status != device.StatusSuccess {
					return failed(&wcs[i])
				}
			}
			if err := r.count(wcs); err != nil {
				return err
			}
			continue
		}
		if spins%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if r.e.yield {
			runtime.Gosched()
		}
	}
	r.seen = peek(r.byte)
	r.e.beat.beats.Add(1)
	return nil
}

// ping plays n messages there and back, 0 for any number, or until the time is over (zero: it is not), and keeps how long each took.
func (r *rally) ping(ctx context.Context, n int, until time.Time, stop *atomic.Bool, keep []time.Duration) ([]time.Duration, error) {
	last := time.Now()
	for i := 0; n == 0 && i < maxSamples || i < n; i++ {
		if stop.Load() || !until.IsZero() && !last.Before(until) {
			break
		}
		if err := r.post(ctx); err != nil {
			return keep, err
		}
		if err := r.await(ctx); err != nil {
			return keep, err
		}
		now := time.Now()
		keep = append(keep, now.Sub(last))
		last = now
	}
	for r.open > 0 {
		if err := r.take(ctx); err != nil {
			return keep, err
		}
	}
	return keep, nil
}

// pong returns what comes until ctx ends.
func (r *rally) pong(ctx context.Context) error {
	for {
		if err := r.await(ctx); err != nil {
			return ended(ctx, err)
		}
		if err := r.post(ctx); err != nil {
			return ended(ctx, err)
		}
	}
}

// ended makes no error of the end that was asked for.
func ended(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return nil
	}
	return err
}
