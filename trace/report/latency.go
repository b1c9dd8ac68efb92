package report

import "math/bits"

// latencies are times in ns in 32 steps per power of two: what it says of a quantile is right to about 3 %.
type latencies struct {
	n        uint64
	min, max int64
	counts   [40 * steps]uint32
}

const (
	stepBits = 5
	steps    = 1 << stepBits
)

func (l *latencies) add(ns int64) {
	if l.n == 0 || ns < l.min {
		l.min = ns
	}
	l.max = max(l.max, ns)
	l.n++
	if c := &l.counts[slot(ns)]; *c < 1<<32-1 {
		*c++
	}
}

// slot is the place of a time: those below 2*steps have one each.
func slot(ns int64) int {
	v := uint64(ns)
	if v < 2*steps {
		return int(v)
	}
	shift := bits.Len64(v) - stepBits - 1
	return min(shift*steps+int(v>>shift), 40*steps-1)
}

// value is the middle of a slot.
func value(i int) int64 {
	if i < 2*steps {
		return int64(i)
	}
	shift := i/steps - 1
	return int64(i%steps+steps)<<shift + int64(1)<<shift/2
}

// quantile returns the time that the share q of all does not exceed.
func (l *latencies) quantile(q float64) int64 {
	want, sum := uint64(q*float64(l.n)), uint64(0)
	for i, c := range l.counts {
		sum += uint64(c)
		if sum > want {
			return min(max(value(i), l.min), l.max)
		}
	}
	return l.max
}
