package rules

import "github.com/softnic/softnic/wire/bth"

// doubt is a request that is wrong in the connection that was, and right as the first of a new one: queue pairs are reset and connected
// again, and many programs begin with the same PSN each time. The next answer may tell: a new connection counts its messages from 0.
type doubt struct {
	on   bool
	rule ID // broken, if it is the connection that was
	at   Violation
	psn  bth.PSN
	ago  int    // PSNs from the oldest unanswered one to it: what a new connection may have begun with
	msn  uint32 // of the last answer before
}

// reborn reports whether a request may be that of a new connection with PSNs of the one before. That one may have ended, for what came
// last was a NAK: one that ends it, or an RNR NAK beyond which the requester did not try. If it has not, its requester goes back to
// what the NAK names and sends it as it was.
func (c *Checker) reborn(f *flow, psn bth.PSN) bool {
	h := &f.req
	if !h.failed || !psn.Before(h.max) {
		return false
	}
	if psn.Before(h.una) && !psn.After(h.first) {
		return true
	}
	s := h.find(psn)
	return s != nil && (s.op != c.p.View.BTH().Opcode() || s.body != f.body && !s.cut && !c.p.Cut)
}

// suspect leaves it open which of the two it is.
func (c *Checker) suspect(f *flow, psn bth.PSN) {
	h, op := &f.req, c.p.View.BTH().Opcode()
	d := doubt{rule: RetransmissionSame, at: c.here(), psn: psn, ago: max(0, psn.Sub(h.una))}
	switch s := h.find(psn); {
	case psn.Before(h.una):
		d.rule = GBNSender
	case s.op == op && op.Operation() == bth.ReadRequest:
		d.rule = ReadResume
	}
	if p := f.peer; p != nil && !psn.Before(h.first) && p.answers.msn.started {
		d.on, d.msn = true, p.answers.msn.last
	}
	c.unknown(d.rule, whyReset)
	f.doubt = d
}

// settle takes the MSN of the first answer since: q has the requests. One that goes on, and is more than a new connection can
// have counted, is of the connection that was.
func (c *Checker) settle(q *flow, msn uint32) {
	d := q.doubt
	if !d.on {
		return
	}
	q.doubt.on = false
	most := int32(q.req.ends) + int32(d.ago)
	since := int32((msn-d.msn)<<8) >> 8
	if since < 0 || since > most || int64(msn) <= int64(most) || c.o.Unruly && c.p.Dir != Tx || !c.wholeFlow(q) {
		return
	}
	c.tally[d.rule].unknown[whyReset]--
	c.blame(d.rule, d.at, "PSN %v is not what the requester owes after the NAK before, and no new connection: the MSN goes on from %d to %d", d.psn, d.msn, msn)
}

// answeredBy reports whether there are answers that may be to the requests of f, and it is not known whose they are.
func (c *Checker) answeredBy(f *flow) bool {
	back := c.pairs[pairKey{f.key.dst, f.key.src}]
	if back == nil {
		return false
	}
	for _, p := range back.flows[:min(len(back.flows), maxLook)] {
		if p != f && p.peer == nil && p.tries > 0 && p.key.service == f.key.service {
			return true
		}
	}
	return false
}
