package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/device"
)

// laneShift is where the number of the lane begins in the ID of a request; below it is how many had been
// posted on it.
const laneShift = 44

// flood is what the measuring side of a bandwidth test does: a stream of messages.
type flood struct {
	e    *end
	stop *atomic.Bool     // the user wants no more
	wrs  []device.SendWR  // of one list
	list []*device.SendWR // the same
	of   []device.SendWR  // what is posted on each lane
	each func(done int)   // hears how many messages have completed; nil: nobody does
}

func newFlood(e *end, stop *atomic.Bool) *flood {
	f := &flood{e: e, stop: stop, wrs: make([]device.SendWR, e.c.List)}
	for i := range f.wrs {
		f.list = append(f.list, &f.wrs[i])
	}
	for i := range e.lanes {
		f.of = append(f.of, e.request(i))
	}
	return f
}

// run moves n messages, 0 for any number, or until the time is over (zero: it is not), and returns how many it were.
func (f *flood) run(ctx context.Context, n int, until time.Time) (total int, err error) {
	c := &f.e.c
	for i, l := range f.e.lanes {
		l.posted, l.done, l.quota = 0, 0, n/c.QPs
		if i < n%c.QPs {
			l.quota++
		}
		if n == 0 {
			l.quota = 1<<laneShift - 1
		}
	}
	for ended := false; ; {
		if !ended && (f.stop.Load() || !until.IsZero() && !time.Now().Before(until)) {
			ended = true
			for _, l := range f.e.lanes { // behind what was posted without a completion comes one with
				l.quota = min(l.quota, (l.posted+c.CQMod-1)/c.CQMod*c.CQMod)
			}
		}
		busy := false
		for i, l := range f.e.lanes {
			for l.posted < l.quota && l.posted-l.done+c.List <= c.Depth {
				if err := f.post(i, min(c.List, l.quota-l.posted)); err != nil {
					return total, err
				}
			}
			busy = busy || l.done < l.quota
		}
		if !busy {
			return total, nil
		}
		wcs, err := f.e.next(ctx)
		if err != nil || wcs == nil {
			return total, err
		}
		for i := range wcs {
			l, done := f.e.lanes[wcs[i].ID>>laneShift], int(wcs[i].ID&(1<<laneShift-1))
			total += done - l.done
			l.done = done
		}
		if f.each != nil {
			f.each(total)
		}
	}
}

// shares returns how many messages of the last run the lane with the least has moved, and the one with the most, in parts of the mean;
// ok is false where nothing was moved.
func (f *flood) shares() (least, most float64, ok bool) {
	sum, low, high := 0, f.e.lanes[0].done, 0
	for _, l := range f.e.lanes {
		sum += l.done
		low, high = min(low, l.done), max(high, l.done)
	}
	mean := float64(sum) / float64(len(f.e.lanes))
	return float64(low) / mean, float64(high) / mean, sum > 0
}

// post posts a list of n on lane i. Every CQMod-th request makes a completion, and the last of all.
func (f *flood) post(i, n int) error {
	l := f.e.lanes[i]
	for j := range n {
		wr := &f.wrs[j]
		*wr = f.of[i]
		l.posted++
		wr.ID = uint64(i)<<laneShift | uint64(l.posted)
		if l.posted%f.e.c.CQMod == 0 || l.posted == l.quota {
			wr.Flags |= device.Signaled
		}
	}
	return l.qp.PostSendList(f.list[:n]...)
}

// peakWindow is the least time over which a peak is taken.
const peakWindow = 10 * time.Millisecond

// meter finds the highest rate.
type meter struct {
	last time.Time
	from int // done at last
	peak float64
}

// at is told how many messages have completed; it keeps the highest rate, in messages a second, of all windows.
func (m *meter) at(now time.Time, done int) {
	if d := now.Sub(m.last); d >= peakWindow {
		m.peak = max(m.peak, float64(done-m.from)/d.Seconds())
		m.last, m.from = now, done
	}
}

// part returns what the other side does in a test: it takes what comes, or, for latency, answers it. It is made before the
// measuring side begins.
func (e *end) part() func(context.Context) error {
	loop := e.drain
	switch {
	case !e.c.active() && !e.c.PeerPoll:
		return func(context.Context) error { return nil }
	case !e.c.active():
		return func(ctx context.Context) error { // nothing comes
			_, err := e.next(ctx)
			return err
		}
	case e.c.Latency:
		loop = newRally(e, 0).pong
	}
	return func(ctx context.Context) error {
		ctx, cancel := e.beat.watch(ctx)
		defer cancel()
		return loop(ctx)
	}
}

// drain takes receives until ctx ends.
func (e *end) drain(ctx context.Context) error {
	for {
		if n, err := e.takeReceives(ctx); err != nil || n == 0 {
			return err
		}
	}
}

// takeReceives waits for receives, posts them again, and returns how many it were; 0 when ctx has ended.
func (e *end) takeReceives(ctx context.Context) (int, error) {
	wcs, err := e.next(ctx)
	if err != nil {
		return 0, err
	}
	for i := range wcs {
		if err := e.byQPN[wcs[i].QPN].receive(&e.c); err != nil {
			return 0, err
		}
	}
	return len(wcs), nil
}
