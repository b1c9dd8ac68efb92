package rc

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// resource is a READ, atomic, FLUSH or ATOMIC WRITE that was executed, kept so that a duplicate
// can be answered.
type resource struct {
	at      *transport.RecvContext
	op      bth.Opcode
	value   uint64 // atomic: what was there
	first   bth.PSN
	place   uint64 // PSNs that were executed before it
	packets int    // PSNs of its responses
	va      uint64
	rkey    uint32
	length  uint32
	busy    bool // responses are still to be sent
}

// saved holds the last max_dest_rd_atomic resources, first in first out. The
// depth is a power of two (roce.md B.5).
type saved struct {
	r    []resource
	next uint32 // number of the next resource; slot next mod depth
	n    int
}

func (s *saved) busy() bool {
	return s.n == len(s.r) && s.n > 0 && s.r[s.next&uint32(len(s.r)-1)].busy
}

// add saves a resource in place of the oldest and returns its number.
func (s *saved) add(x resource) uint32 {
	id := s.next
	s.r[id&uint32(len(s.r)-1)] = x
	s.next++
	s.n = min(s.n+1, len(s.r))
	return id
}

// find returns the resource that covers a place, and its number. A PSN will not
// do: it comes round after 2^24 packets, and a READ may have been saved before.
func (s *saved) find(place uint64) (*resource, uint32) {
	for i := 1; i <= s.n; i++ {
		id := s.next - uint32(i)
		if x := &s.r[id&uint32(len(s.r)-1)]; place-x.place < uint64(x.packets) {
			return x, id
		}
	}
	return nil, 0
}

func (s *saved) clear() { s.n = 0 }

// answeredRead notes that all responses of a READ are out.
func (r *responder) answeredRead(id uint32) {
	s := &r.saved
	if s.next-id <= uint32(s.n) {
		s.r[id&uint32(len(s.r)-1)].busy = false
	}
}

// resize sets the depth, a power of two. The newest of what was saved stay.
func (r *responder) resize(depth int) {
	s := &r.saved
	big := saved{r: make([]resource, depth), next: s.next, n: min(s.n, depth)}
	for i := 1; i <= big.n; i++ {
		id := s.next - uint32(i)
		big.r[id&uint32(depth-1)] = s.r[id&uint32(len(s.r)-1)]
	}
	r.saved = big
}
