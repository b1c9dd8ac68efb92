package device

import (
	"sync/atomic"
	"time"
)

// patience is how long to look before going to sleep, learnt from how long there was nothing: a wake-up costs both sides more
// than a short look, and a long look is wasted. Where others want the processor, who looks keeps it from those that he waits for.
// The zero value has none, and learns.
type patience struct {
	usual atomic.Int64 // how long there was nothing, a mean that forgets, ns; 0: never told
	busy  atomic.Int64 // until then others want the processor, UnixNano
	pace  atomic.Int64 // the shortest time from one look to the next, ns; 0: not known
}

const (
	lookLeast = 50 * time.Microsecond  // how long to look, if at all
	lookMost  = 200 * time.Microsecond // the longest look, and what is usual where one pays
	lookGap   = 500 * time.Microsecond // between two looks that follow each other: somebody else had the processor
	yieldFor  = 10 * time.Millisecond  // how long nobody looks for after that
)

// spell is a time of looking.
type spell struct {
	p     *patience
	last  time.Time // look
	end   time.Time
	each  int // after so many looks others may run; 0: never
	looks int // left: an end also where time stands still
}

// spell begins to look; after so many looks each time, other threads may run. The kernel likes to put who is woken on the processor of who woke him, also
// where another is free, and there he would wait until the look is over, perhaps for what he is to do. It costs who looks less than a look.
func (p *patience) spell(now time.Time, each int) spell {
	s := spell{p: p, last: now, each: each, looks: 1}
	if u := time.Duration(p.usual.Load()); u > 0 && u < lookMost && now.UnixNano() > p.busy.Load() {
		s.end = now.Add(min(max(2*u, lookLeast), lookMost))
		s.looks = 4096
	}
	return s
}

// over is asked after each look that found nothing.
func (s *spell) over() bool {
	now := time.Now()
	gap := now.Sub(s.last)
	if p := s.p.pace.Load(); p == 0 || int64(gap) < p {
		s.p.pace.Store(max(int64(gap), 1))
	}
	if s.looks--; s.looks <= 0 {
		return true
	}
	if gap > lookGap {
		s.p.busy.Store(now.Add(yieldFor).UnixNano())
		return true
	}
	s.last = now
	if s.each > 0 && s.looks%s.each == 0 {
		letOthersRun()
	}
	return now.After(s.end)
}

// learn is told how long there was nothing. One long time is not held against many short ones.
func (p *patience) learn(d time.Duration) {
	d = min(max(d, 1), time.Millisecond)
	if u := time.Duration(p.usual.Load()); u > 0 {
		d = u + (d-u)/4
	}
	p.usual.Store(int64(max(d, 1)))
}
