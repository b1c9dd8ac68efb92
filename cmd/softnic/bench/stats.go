package bench

import (
	"math"
	"slices"
	"time"
)

// Latency describes samples, in µs.
type Latency struct {
	Min     float64 `json:"t_min_us"`
	Max     float64 `json:"t_max_us"`
	Typical float64 `json:"t_typical_us"` // the median
	Average float64 `json:"t_avg_us"`
	Stdev   float64 `json:"t_stdev_us"` // of the population
	P99     float64 `json:"p99_us"`
	P999    float64 `json:"p999_us"`
}

// summarize describes the samples, which it sorts, each divided by parts: 2 where a sample is there and back.
func summarize(s []time.Duration, parts int) Latency {
	if len(s) == 0 {
		return Latency{}
	}
	slices.Sort(s)
	us := func(i int) float64 { return float64(s[i]) / 1e3 / float64(parts) }
	l := Latency{Min: us(0), Max: us(len(s) - 1), P99: us(rank(len(s), 0.99)), P999: us(rank(len(s), 0.999))}
	l.Typical = (us((len(s)-1)/2) + us(len(s)/2)) / 2
	for i := range s {
		l.Average += us(i)
	}
	l.Average /= float64(len(s))
	for i := range s {
		d := us(i) - l.Average
		l.Stdev += d * d
	}
	l.Stdev = math.Sqrt(l.Stdev / float64(len(s)))
	return l
}

// rank returns the index of the sample that a part p of n are not above (nearest rank).
func rank(n int, p float64) int {
	return min(max(int(math.Ceil(p*float64(n)))-1, 0), n-1)
}
