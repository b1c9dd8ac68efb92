package impair

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/softnic/softnic/wire/bth"
)

// rule is one rule and what it has seen.
type rule struct {
	id   int
	text string
	dir  Direction
	act  *action

	qp, qpNth uint32     // absolute number, or place in the order of first sight
	hasQP     bool       // qp counts
	ops       *[256]bool // nil: any
	psn       uint32     // absolute, or distance from the first
	psnKind   psnKind
	round     int     // 0: any
	nth       uint64  // 0: each
	p         float64 // 0 ... 1
	seed      uint64
	count     uint64 // 0: no limit
	delay     time.Duration

	matched, hits uint64
	rng           *rand.Rand
	seen          tracker
}

type psnKind uint8

const (
	psnAny psnKind = iota
	psnAbsolute
	psnRelative
)

// action is a row of the action table.
type action struct {
	name  string
	stage stage
	value string // what stands after the =, for people; "" if only a probability may
	do    func(r *rule, e Effect) Effect
}

// stage is where in a port an action works.
type stage uint8

const (
	// packets are dropped, held and doubled before they are framed.
	packetStage stage = iota
	// A byteStage (corrupt, mark CE, rewrite) is to follow: it changes framed packets.
)

var actions = []action{
	{"drop", packetStage, "", func(_ *rule, e Effect) Effect { e.Drop = true; return e }},
	{"duplicate", packetStage, "", func(_ *rule, e Effect) Effect { e.Duplicate++; return e }},
	{"delay", packetStage, "TIME", func(r *rule, e Effect) Effect { e.Delay += r.delay; return e }},
	{"reorder", packetStage, "", func(_ *rule, e Effect) Effect { e.Reorder = true; return e }},
}

// relative reports whether the rule needs to remember what it has seen.
func (r *rule) relative() bool { return r.qpNth != 0 || r.psnKind == psnRelative || r.round != 0 }

// observe remembers a packet, whether or not another rule has dropped it already:
// "the second time that it is sent" must not depend on what became of the first.
func (r *rule) observe(peer netip.Addr, h bth.BTH) (f *flow, round int) {
	if r.relative() {
		if f = r.seen.flow(peer, h); f != nil && r.round != 0 {
			round = f.rounds.sent(h.PSN())
		}
	}
	return f, round
}

// hit counts a packet and reports whether it is to be impaired.
func (r *rule) hit(h bth.BTH, f *flow, round int) bool {
	if !r.match(h, f, round) {
		return false
	}
	r.matched++
	switch {
	case r.nth != 0 && r.matched%r.nth != 0:
		return false
	case r.p < 1 && r.rng.Float64() >= r.p:
		return false
	case r.count != 0 && r.hits == r.count:
		return false
	}
	r.hits++
	return true
}

func (r *rule) match(h bth.BTH, f *flow, round int) bool {
	switch {
	case r.relative() && f == nil,
		r.hasQP && h.DestQP() != r.qp,
		r.qpNth != 0 && f.conn != r.qpNth,
		r.ops != nil && !r.ops[h.Opcode()],
		r.round != round: // both 0 where the rule does not ask
		return false
	}
	switch r.psnKind {
	case psnAbsolute:
		return uint32(h.PSN()) == r.psn
	case psnRelative:
		return h.PSN() == f.first.Add(int(r.psn))
	}
	return true
}
