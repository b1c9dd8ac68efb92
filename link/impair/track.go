package impair

import (
	"net/netip"

	"github.com/softnic/softnic/wire/bth"
)

// Bounds of what a rule remembers: 64 MiB at the very worst.
const (
	maxFlows  = 1024
	minRounds = 256
	maxRounds = 8192
)

// tracker is what a rule has seen. The zero value has seen nothing.
type tracker struct {
	flows map[flowKey]*flow
	conns map[connKey]uint32
}

// connKey names a connection as far as one direction shows it: the destination QPN and,
// because two peers may have QPs of the same number, the peer.
type connKey struct {
	peer netip.Addr
	qpn  uint32
}

// flowKey names a sequence of PSNs. Requests and responses of one connection have
// each their own, and a CNP has none that means anything.
type flowKey struct {
	connKey
	kind bth.Flags
}

type flow struct {
	conn   uint32  // place of the connection in the order of first sight, from 1; 0: does not count
	first  bth.PSN // first PSN seen
	rounds rounds
}

// flow returns the flow of a packet, a new one at first sight, nil if there are too many.
func (t *tracker) flow(peer netip.Addr, h bth.BTH) *flow {
	k := flowKey{connKey{peer, h.DestQP()}, h.Opcode().Info().Flags & (bth.Request | bth.Response)}
	if f := t.flows[k]; f != nil {
		return f
	}
	if len(t.flows) >= maxFlows {
		return nil
	}
	if t.flows == nil {
		t.flows, t.conns = make(map[flowKey]*flow), make(map[connKey]uint32)
	}
	f := &flow{first: h.PSN()}
	if k.qpn > 1 && k.qpn != bth.PSNMask { // not GSI, not multicast
		if t.conns[k.connKey] == 0 {
			t.conns[k.connKey] = uint32(len(t.conns)) + 1
		}
		f.conn = t.conns[k.connKey]
	}
	t.flows[k] = f
	return f
}

// rounds counts how often each of the last PSNs was seen. The zero value has seen none.
type rounds struct {
	table []entry // a power of two long, indexed by the low bits of the PSN
}

type entry struct {
	psn bth.PSN
	n   int32 // 0: empty
}

// sent counts a PSN and returns how often it was seen, this time included.
func (r *rounds) sent(p bth.PSN) int {
	if r.table == nil {
		r.table = make([]entry, minRounds)
	}
	e := r.at(p)
	for e.n != 0 && e.psn != p && len(r.table) < maxRounds {
		r.grow()
		e = r.at(p)
	}
	if e.n == 0 || e.psn != p {
		*e = entry{psn: p}
	}
	e.n++
	return int(e.n)
}

func (r *rounds) at(p bth.PSN) *entry { return &r.table[int(p)&(len(r.table)-1)] }

func (r *rounds) grow() {
	old := r.table
	r.table = make([]entry, 2*len(old))
	for _, e := range old {
		if e.n != 0 {
			*r.at(e.psn) = e
		}
	}
}

// asked remembers of each connection the request that was lost and answered, until it passes: whoever would have answered is silent
// to what is behind it, and a NAK to that would acknowledge it. The zero value remembers none.
type asked struct {
	missing map[connKey]bth.PSN
}

// behind reports whether a request is behind one that is missing.
func (a *asked) behind(peer netip.Addr, h bth.BTH) bool {
	psn, ok := a.missing[connKey{peer, h.DestQP()}]
	return ok && h.PSN().After(psn)
}

// seen takes what becomes of a request.
func (a *asked) seen(peer netip.Addr, h bth.BTH, e *Effect) {
	k := connKey{peer, h.DestQP()}
	switch psn, ok := a.missing[k]; {
	case e.Answered:
		if a.missing == nil {
			a.missing = make(map[connKey]bth.PSN)
		}
		if len(a.missing) < maxFlows || ok {
			a.missing[k] = h.PSN()
		}
	case ok && !e.Drop && !h.PSN().After(psn):
		delete(a.missing, k)
	}
}
