package rules

import (
	"net/netip"

	"github.com/softnic/softnic/wire/bth"
)

type endKey struct {
	addr netip.Addr
	qpn  uint32
}

// known is what Options or a CM exchange say of the connection of a queue pair.
type known struct {
	peer endKey
	attr Attr // of its requests
	mtu  int
}

// maxKnown bounds what is remembered of connections beside their flows.
const maxKnown = 1 << 16

func (c *Checker) learnConnection(n *Connection) {
	if len(c.known) >= maxKnown {
		clear(c.known)
	}
	a, b := endKey{n.A.Addr, n.A.QPN}, endKey{n.B.Addr, n.B.QPN}
	c.known[a] = known{b, n.A.Attr, n.MTU}
	c.known[b] = known{a, n.B.Attr, n.MTU}
}

// introduce gives a new flow what is known of its connection. f goes to the queue pair
// of one end, so its requests are those of the other end.
func (c *Checker) introduce(f *flow) {
	k, ok := c.known[endKey{f.key.dst, f.key.qpn}]
	if !ok || k.peer.addr != f.key.src {
		return
	}
	f.mtu = k.mtu
	set := func(to *int, from int) {
		if from != 0 {
			*to = from
		}
	}
	o := c.known[k.peer].attr
	set(&f.attr.Depth, o.Depth)
	set(&f.attr.Timeout, o.Timeout)
	set(&f.attr.RetryCnt, o.RetryCnt)
	if p := c.flows[flowKey{f.key.dst, f.key.src, k.peer.qpn, f.key.service}]; p != nil && p != f && p.peer == nil {
		c.join(f, p)
	}
}

// join makes two flows the directions of one connection.
func (c *Checker) join(f, p *flow) {
	f.peer, p.peer = p, f
	f.candidate, p.candidate = nil, nil
	f.late(p)
	p.late(f)
	switch {
	case f.mtu == 0 && p.mtu != 0:
		f.mtu = p.mtu
		f.req.resolve(f.mtu)
	case p.mtu == 0 && f.mtu != 0:
		p.mtu = f.mtu
		p.req.resolve(p.mtu)
	}
}

// late notes that answers of f went by before it was known that they are to p's requests.
func (f *flow) late(p *flow) {
	if f.tries > 1 {
		f.answers.skipped, p.req.skipped = true, true
	}
}

// part makes a flow single again, and forgets what was judged with its peer.
func (c *Checker) part(f *flow) {
	p := f.peer
	if p == nil {
		return
	}
	f.peer, p.peer = nil, nil
	f.answers, p.answers = answer{}, answer{}
	f.score, p.score, f.tries, p.tries = 0, 0, 0, 0
	f.candidate, p.candidate = nil, nil
}

const (
	enough   = 3   // answers that must fit where a host has several connections to another
	maxTries = 256 // answers after which a flow is looked at rarely
	maxLook  = 512 // flows that are looked at for one answer
)

// meet looks for the requests that the answers of f are to: those of the only flow the other
// way that has the PSN unanswered.
func (c *Checker) meet(f *flow) {
	if f.tries++; f.tries > maxTries && f.tries%maxTries != 0 {
		return
	}
	// Known ones have no need to look.
	if k, ok := c.known[endKey{f.key.dst, f.key.qpn}]; ok && k.peer.addr == f.key.src {
		if p := c.flows[flowKey{f.key.dst, f.key.src, k.peer.qpn, f.key.service}]; p != nil && p != f && p.peer == nil {
			c.join(f, p)
		}
		return
	}
	back := c.pairs[pairKey{f.key.dst, f.key.src}]
	if back == nil {
		return
	}
	psn := c.p.View.BTH().PSN()
	var fit *flow
	for i, p := range back.flows {
		if i >= maxLook {
			return
		}
		if p == f || p.peer != nil || p.key.service != f.key.service || !p.req.started || !c.fits(p, psn) {
			continue
		}
		if fit != nil {
			return // more than one: wait for an answer that tells
		}
		fit = p
	}
	switch {
	case fit == nil:
	case fit != f.candidate:
		f.candidate, f.score = fit, 1
	default:
		f.score++
	}
	if fit == nil {
		return
	}
	alone := len(back.flows) == 1 && len(f.in.flows) == 1
	if f.key.src == f.key.dst {
		alone = len(back.flows) == 2
	}
	if alone || f.score >= enough {
		c.join(f, fit)
	}
}

// fits reports whether the answer at hand can be one to a request of p.
func (c *Checker) fits(p *flow, psn bth.PSN) bool {
	h := &p.req
	if psn.Before(h.first) || !psn.Before(h.max) {
		return false
	}
	op := c.p.View.BTH().Opcode().Operation()
	r, s := h.findRead(psn), h.find(psn)
	switch {
	case r != nil:
		return op == bth.Acknowledge && !bth.AETH(c.p.View.Header(bth.HAETH)).Syndrome().IsAck() || (op == bth.AtomicAcknowledge) == r.atomic && op != bth.Acknowledge
	case s == nil:
		return false
	}
	return op == bth.Acknowledge
}
