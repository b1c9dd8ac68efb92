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
	peer      netip.Prefix // not valid: any
	sets      []set
	at        int // corrupt: which byte
	hasAt     bool
	xor       byte         // corrupt: 0 by chance
	ecn       uint8        // ecn=: the two bits
	answer    bth.Syndrome // answer=
	icrc      icrcKind

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

// icrcKind says what the ICRC of a changed packet is to be.
type icrcKind uint8

const (
	icrcDefault icrcKind = iota
	icrcGood
	icrcBad
)

// action is a row of the action table.
type action struct {
	name  string
	value string                        // what stands after the =, for people; "" if only a probability may
	parse func(r *rule, v string) error // reads that
	do    func(r *rule, e Effect) Effect

	changes bool // bytes
	answers bool // in place of the receiver
}

var actions = []action{
	{"drop", "", nil, func(_ *rule, e Effect) Effect { e.Drop = true; return e }, false, false},
	{"duplicate", "", nil, func(_ *rule, e Effect) Effect { e.Duplicate++; return e }, false, false},
	{"delay", "TIME", (*rule).parseDelay, func(r *rule, e Effect) Effect { e.Delay += r.delay; return e }, false, false},
	{"reorder", "", nil, func(_ *rule, e Effect) Effect { e.Reorder = true; return e }, false, false},
	{"corrupt", "", nil, (*rule).corrupt, true, false},
	{"ecn", "ce", (*rule).parseECN, func(r *rule, e Effect) Effect { e.Mark, e.ECN = true, r.ecn; return e }, true, false},
	{"set", "FIELD:VALUE", (*rule).parseSets, func(r *rule, e Effect) Effect {
		e.Change = e.Change.then(&Change{BadICRC: r.icrc == icrcBad, sets: r.sets})
		return e
	}, true, false},
	{"answer", "nak-sequence", (*rule).parseAnswer, func(r *rule, e Effect) Effect {
		e.Drop, e.Answered, e.Answer = true, true, r.answer
		return e
	}, false, true},
}

// corrupt is the action of that name. What is left to chance is drawn now, so that the same seed spoils the same bytes.
func (r *rule) corrupt(e Effect) Effect {
	c := &Change{BadICRC: r.icrc != icrcGood, at: r.at, xor: r.xor}
	if !r.hasAt {
		c.place = r.rng.Uint64() | 1<<63
	}
	if c.xor == 0 {
		c.xor = byte(1 + r.rng.IntN(255))
	}
	e.Change = e.Change.then(c)
	return e
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
func (r *rule) hit(peer netip.Addr, h bth.BTH, f *flow, round int) bool {
	if !r.match(peer, h, f, round) {
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

func (r *rule) match(peer netip.Addr, h bth.BTH, f *flow, round int) bool {
	switch {
	case r.peer.IsValid() && !r.peer.Contains(peer),
		len(r.sets) > 0 && !r.has(h.Opcode().Info()),
		r.act.answers && !answerable(h):
		return false
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

// answerable reports whether a packet is a request that a responder answers.
func answerable(h bth.BTH) bool {
	i, s := h.Opcode().Info(), h.Opcode().Service()
	return i.Has(bth.Request) && (s == bth.RC || s == bth.XRC)
}
