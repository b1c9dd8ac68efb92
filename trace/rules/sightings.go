package rules

import (
	"hash/maphash"
	"time"
)

// sightings remembers the packets without a direction that were seen lately, of all flows. A place is found by the packet's fingerprint; of
// the few that share a row, the oldest gives way. The zero value is empty.
type sightings struct {
	rows [][8]sighted // nil before the first
	seed maphash.Seed
}

type sighted struct {
	print uint64 // 0: none
	time  int64
	iface int
}

const (
	// maxApart bounds the time between two sightings of one packet on two interfaces.
	maxApart = 100 * int64(time.Millisecond)
	// sightingRows times 8 packets are remembered: more than what hosts have under way between them in maxApart.
	sightingRows = 1 << 12
)

// again reports whether the packet at hand was seen before: on another interface, or twice at once.
func (s *sightings) again(f *flow, p *Packet) bool {
	if s.rows == nil {
		s.rows, s.seed = make([][8]sighted, sightingRows), maphash.MakeSeed()
	}
	print := f.print ^ maphash.Comparable(s.seed, f.key)
	row := &s.rows[print%sightingRows]
	oldest := &row[0]
	for i := range row {
		r := &row[i]
		if r.print == print && p.Time-r.time < maxApart && (r.iface != p.Iface || r.time == p.Time) {
			*r = sighted{}
			return true
		}
		if r.time < oldest.time {
			oldest = r
		}
	}
	*oldest = sighted{print, p.Time, p.Iface}
	return false
}
