package clock

import "time"

// Clock tells the time and calls back later.
type Clock interface {
	// Now returns the current time; differences are monotonic.
	Now() time.Time
	// AfterFunc calls f once, on a goroutine of its own or on the goroutine that
	// advances the clock, when d has passed.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is a pending call. It is *time.Timer's method set.
type Timer interface {
	// Reset makes the call due d from now; it reports whether it was pending.
	Reset(d time.Duration) bool
	// Stop withdraws the call; it reports whether it was pending.
	Stop() bool
}

// Real is the machine's clock (inside a testing/synctest bubble, the bubble's).
var Real Clock = realClock{}

type realClock struct{}

func (realClock) Now() time.Time                            { return time.Now() }
func (realClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Since is c.Now().Sub(start). Of the machine's clock that is half of what Now costs.
func Since(c Clock, start time.Time) time.Duration {
	if c == Real {
		return time.Since(start)
	}
	return c.Now().Sub(start)
}

// Or returns c, or Real when c is nil.
func Or(c Clock) Clock {
	if c == nil {
		return Real
	}
	return c
}
