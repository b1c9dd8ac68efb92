package rules

import "time"

// stamp is the last packet of an interface: where it stood in the capture, and when it was.
type stamp struct {
	seen   bool
	iface  int
	number uint64
	time   int64
	steps  uint64 // how often time had gone back then
}

const (
	// maxIfaces bounds the interfaces whose time is looked at.
	maxIfaces = 64
	// jitter is how long a packet may wait between the moment when its time is taken and that
	// when it is written: another one may be first.
	jitter = int64(time.Millisecond)
)

// stamp judges that time goes forward on an interface. A reader may have sorted the packets: what
// counts is the place that they had in the capture.
func (c *Checker) stamp(p *Packet) {
	s := &c.stamps[uint(p.Iface)%maxIfaces]
	last := *s
	*s = stamp{true, p.Iface, p.Number, p.Time, c.steps}
	if !last.seen || last.iface != p.Iface || last.steps != c.steps {
		return // nothing to compare with, or told on another interface
	}
	back := last.time - p.Time
	if p.Number < last.number {
		back = -back
	}
	switch {
	case back <= 0:
		c.keep(Timestamps)
		return
	case back <= jitter:
		c.unknown(Timestamps, whyJitter)
		return
	}
	c.steps++
	s.steps = c.steps
	if p.Number < last.number {
		c.broken(Timestamps, "packet %d stands behind it, and was %v before it", last.number, ns(back))
		return
	}
	c.broken(Timestamps, "%v before packet %d, which stands before it", ns(back), last.number)
}
