package clock

import (
	"sync"
	"time"
)

// Manual is a clock that stands still until it is advanced. The zero value is
// not usable; see NewManual.
type Manual struct {
	mu     sync.Mutex
	now    time.Time
	timers []*manualTimer // pending, unordered: a device has few
}

type manualTimer struct {
	c  *Manual
	at time.Time
	f  func()
	on bool
}

// NewManual returns a manual clock that shows start.
func NewManual(start time.Time) *Manual { return &Manual{now: start} }

// Now returns the time last advanced to.
func (c *Manual) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc registers f; Advance and Set call it.
func (c *Manual) AfterFunc(d time.Duration, f func()) Timer {
	t := &manualTimer{c: c, f: f}
	t.Reset(d)
	return t
}

// Advance moves the clock by d, calling on the way what falls due, in order of
// time, each at its own time.
func (c *Manual) Advance(d time.Duration) { c.Set(c.Now().Add(d)) }

// Set is Advance to a point in time; one that has passed changes nothing.
func (c *Manual) Set(to time.Time) {
	for {
		c.mu.Lock()
		var next *manualTimer
		for _, t := range c.timers {
			if !t.at.After(to) && (next == nil || t.at.Before(next.at)) {
				next = t
			}
		}
		if next == nil {
			if to.After(c.now) {
				c.now = to
			}
			c.mu.Unlock()
			return
		}
		if next.at.After(c.now) {
			c.now = next.at
		}
		next.remove()
		c.mu.Unlock()
		next.f()
	}
}

// Next returns when the earliest pending call is due.
func (c *Manual) Next() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var at time.Time
	for _, t := range c.timers {
		if at.IsZero() || t.at.Before(at) {
			at = t.at
		}
	}
	return at, len(c.timers) > 0
}

func (t *manualTimer) Reset(d time.Duration) bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := t.on
	t.at = t.c.now.Add(d)
	if !was {
		t.on = true
		t.c.timers = append(t.c.timers, t)
	}
	return was
}

func (t *manualTimer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	was := t.on
	t.remove()
	return was
}

// remove takes t off the list; the clock's lock is held.
func (t *manualTimer) remove() {
	if !t.on {
		return
	}
	t.on = false
	l := t.c.timers
	for i := range l {
		if l[i] == t {
			l[i] = l[len(l)-1]
			t.c.timers = l[:len(l)-1]
			return
		}
	}
}
