package device

import (
	"context"
	"sync/atomic"
	"time"
)

// sleeper is what somebody waits for: completions, or events.
type sleeper struct {
	token chan struct{}            // holds one when something has come since the last look
	at    atomic.Pointer[receiver] // where he who waits sits; nil: nowhere
}

func newSleeper() sleeper { return sleeper{token: make(chan struct{}, 1)} }

// wake wakes who waits.
func (s *sleeper) wake() {
	select {
	case s.token <- struct{}{}:
	default:
	}
	if r := s.at.Load(); r != nil {
		r.link.Wake()
	}
}

// woken takes the token.
func (s *sleeper) woken() bool {
	select {
	case <-s.token:
		return true
	default:
		return false
	}
}

// sleep waits until wake is called, perhaps before, or ctx ends; r is where packets come from, nil if nobody can look there.
func (s *sleeper) sleep(ctx context.Context, r *receiver) {
	if r == nil {
		s.block(ctx)
		return
	}
	start := time.Now()
	r.wait(ctx, s, start)
	r.waits.learn(time.Since(start))
}

func (s *sleeper) block(ctx context.Context) {
	select {
	case <-s.token:
	case <-ctx.Done():
	}
}

func (r *receiver) wait(ctx context.Context, s *sleeper, start time.Time) {
	for sp := r.waits.spell(start, waitYield); ; {
		r.look()
		if s.woken() {
			return
		}
		if sp.over() {
			break
		}
	}
	if !r.sit(ctx, s, start) {
		return
	}
	defer r.rise()
	r.watch(ctx)
	for ctx.Err() == nil {
		for r.look() {
			if s.woken() {
				return
			}
		}
		s.at.Store(r)
		if s.woken() { // not len: that has no barrier, and who wakes may not have seen where we sit
			s.at.Store(nil)
			return
		}
		var err error
		if ctx.Err() == nil {
			err = r.await()
		}
		s.at.Store(nil)
		if err != nil || r.failed.Load() {
			r.watch(context.Background())
			s.block(ctx) // the device is being closed, and its objects destroyed
			return
		}
		if s.woken() {
			return
		}
	}
}

// sit takes the seat; false if it is not needed any more.
func (r *receiver) sit(ctx context.Context, s *sleeper, now time.Time) bool {
	select {
	case r.seat <- struct{}{}:
		r.taken.Store(true)
		return true
	default:
	}
	if now.UnixNano()-r.left.Load() < int64(soon) {
		r.wanted.Add(1)
		defer r.wanted.Add(-1)
		if !r.away.Load() {
			r.link.Wake()
		}
	}
	select {
	case r.seat <- struct{}{}:
		r.taken.Store(true)
		return true
	case <-s.token:
	case <-ctx.Done():
	}
	r.left.Store(time.Now().UnixNano())
	return false
}

// rise gives the seat back.
func (r *receiver) rise() {
	r.left.Store(time.Now().UnixNano())
	r.taken.Store(false)
	<-r.seat
	if r.parked.Load() {
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
}

// watch has the end of ctx wake who sits.
func (r *receiver) watch(ctx context.Context) {
	d := ctx.Done()
	if d == r.done {
		return
	}
	if r.stop != nil {
		r.stop()
	}
	r.done, r.stop = d, nil
	if d != nil {
		r.stop = context.AfterFunc(ctx, r.link.Wake)
	}
}
