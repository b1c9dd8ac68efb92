package rules

import "github.com/softnic/softnic/wire/bth"

// sent is a request packet that was seen.
type sent struct {
	psn    bth.PSN
	valid  bool
	op     bth.Opcode
	open   uint8 // message that is open behind it
	leftOK bool  // left is known
	left   uint32
	body   uint64 // fingerprint of what must not change
	number uint64 // packet number of the first time
	at     int64  // time of the last time
	ends   uint32 // messages that have ended in its epoch, its own included
	epoch  uint32
	seen   uint16 // times it was sent
	got    uint16 // times it arrived
	rnr    uint16 // RNR NAKs for it
	timed  bool   // it was answered
	cut    bool   // its payload is not known
}

// What message is open behind a packet.
const (
	closed uint8 = iota
	inSend
	inWrite
)

// read is a request that has responses of its own: a READ, an atomic, a FLUSH or an
// ATOMIC WRITE.
type read struct {
	first    bth.PSN
	n        int // PSNs it takes; 0: not known, the MTU is not
	atomic   bool
	empty    bool // answered by an empty READ response
	va       uint64
	rkey     uint32
	length   uint32
	next     int // responder: response after the last one, from first
	high     int // responder: responses sent at least once, in order
	got      int // requester: responses it has in order
	starts   [4]int
	asks     int    // times it was sent; starts holds the last of the later ones
	passed   uint64 // packet that passed it while responses were missing; 0: none
	value    uint64
	hasValue bool
}

func (r *read) covers(p bth.PSN) bool { return r.asks > 0 && p.In(r.first, max(r.n, 1)) }

// end is the PSN behind the read.
func (r *read) end() bth.PSN { return r.first.Add(max(r.n, 1)) }

// began reports whether the read was asked for (again) from response i on.
func (r *read) began(i int) bool {
	if i == 0 {
		return true
	}
	for k := range min(r.asks-1, len(r.starts)) {
		if r.starts[k] == i {
			return true
		}
	}
	return false
}

// beganBefore reports whether it was asked for again from a response before i on.
func (r *read) beganBefore(i int) bool {
	for k := range min(r.asks-1, len(r.starts)) {
		if r.starts[k] < i {
			return true
		}
	}
	return false
}

func (r *read) again(i int) {
	r.starts[(r.asks-1)%len(r.starts)] = i
	r.asks++
}

// half is one direction of requests: what was sent, what arrived, what was answered.
type half struct {
	// What the requester sent.
	started bool
	first   bth.PSN // first one seen
	next    bth.PSN // due next
	max     bth.PSN // one past the highest one seen
	fuzzy   bool    // the last request is a READ and it is not known how many PSNs it takes
	openOK  bool    // open is known
	open    uint8   // message that is open at next
	left    uint32  // WRITE: bytes to come in it
	leftOK  bool
	holes   bool   // PSNs below max were not seen
	epoch   uint32 // counts holes: across one, messages cannot be counted
	ends    uint32 // messages that have ended in this epoch
	ring    []sent // by PSN, capacity a power of two
	reads   []read // ring
	readAt  uint32 // number of the next; the last len(reads) at most are there
	hit     uint32 // number of the read that was found last

	// What reached the responder (arrival.go).
	arr arrived

	// What the requester knows (knowledge.go).
	knows
}

const (
	firstRing = 64
	maxRing   = 4096 // as many as 1 MiB in packets of 256 bytes
	firstRead = 8
	maxReads  = 256
)

func (h *half) find(p bth.PSN) *sent {
	if len(h.ring) == 0 {
		return nil
	}
	if s := &h.ring[int(p)&(len(h.ring)-1)]; s.valid && s.psn == p {
		return s
	}
	return nil
}

// put makes room for a packet.
func (c *Checker) put(h *half, p bth.PSN) *sent {
	n := len(h.ring)
	switch {
	case n == 0 && c.records >= firstRing:
		h.ring = make([]sent, firstRing)
		c.records -= firstRing
	case n == 0:
		h.ring = make([]sent, 1) // poor, but it forgets only
		c.records--
	case n < maxRing && c.records >= n && n >= firstRing:
		// Grow where a packet is in the way that may still be spoken of.
		if s := &h.ring[int(p)&(n-1)]; s.valid && s.psn != p && (!h.sure || !s.psn.Before(h.una)) {
			big := make([]sent, 2*n)
			for _, s := range h.ring {
				if s.valid {
					big[int(s.psn)&(2*n-1)] = s
				}
			}
			h.ring = big
			c.records -= n
		}
	}
	s := &h.ring[int(p)&(len(h.ring)-1)]
	*s = sent{psn: p, valid: true}
	return s
}

func (h *half) read(i uint32) *read { return &h.reads[i&uint32(len(h.reads)-1)] }

// oldestRead is the number of the oldest read that is remembered.
func (h *half) oldestRead() uint32 {
	if h.readAt < uint32(len(h.reads)) {
		return 0
	}
	return h.readAt - uint32(len(h.reads))
}

// findRead returns the read that covers a PSN.
func (h *half) findRead(p bth.PSN) *read {
	if len(h.reads) == 0 {
		return nil
	}
	low := h.oldestRead()
	if h.hit >= low && h.hit < h.readAt && h.read(h.hit).covers(p) {
		return h.read(h.hit)
	}
	for i := h.readAt; i > low; i-- {
		r := h.read(i - 1)
		if r.covers(p) {
			h.hit = i - 1
			return r
		}
		if r.asks > 0 && p.After(r.first) {
			return nil // they are in order
		}
	}
	return nil
}

// addRead remembers a read. Those that are answered are forgotten for new ones, but for the last
// depth: the ACK of a duplicate names what is before them.
func (h *half) addRead(r read, depth int) {
	n := len(h.reads)
	switch {
	case n == 0:
		h.reads = make([]read, firstRead)
	case n < maxReads && h.readAt >= uint32(n) && (n <= depth || h.read(h.readAt).got < max(h.read(h.readAt).n, 1)):
		big := make([]read, 2*n)
		for i := h.oldestRead(); i < h.readAt; i++ {
			big[i&uint32(2*n-1)] = *h.read(i)
		}
		// Numbers below the first stay empty: they cover nothing that is asked for.
		h.reads = big
	}
	*h.read(h.readAt) = r
	h.readAt++
	// One that was lost before the place of the capture comes late.
	for i := h.readAt - 1; i > h.oldestRead() && h.read(i-1).asks > 0 && h.read(i).first.Before(h.read(i-1).first); i-- {
		a, b := h.read(i), h.read(i-1)
		*a, *b = *b, *a
	}
}

// resolve gives READs their number of PSNs, now that the MTU is known.
func (h *half) resolve(mtu int) {
	for i := h.oldestRead(); i < h.readAt; i++ {
		r := h.read(i)
		if r.n == 0 && r.asks > 0 {
			r.n = packets(r.length, mtu)
			if h.fuzzy && i == h.readAt-1 {
				h.fuzzy = false
				h.next = r.end()
				if h.next.After(h.max) {
					h.max = h.next
				}
			}
		}
	}
}

// packets is how many packets a message has; more than PSNs can tell apart are not counted.
func packets(n uint32, mtu int) int {
	return min(max(1, int((uint64(n)+uint64(mtu)-1)/uint64(mtu))), 1<<23-1)
}

// record returns the packet that a PSN belongs to: of a READ's responses, the READ.
func (h *half) record(p bth.PSN) *sent {
	if s := h.find(p); s != nil {
		return s
	}
	if r := h.findRead(p); r != nil {
		return h.find(r.first)
	}
	return nil
}

// forget makes a half begin anew; the ring stays.
func (h *half) forget() {
	clear(h.ring)
	clear(h.reads)
	*h = half{ring: h.ring, reads: h.reads, epoch: h.epoch + 1}
}
