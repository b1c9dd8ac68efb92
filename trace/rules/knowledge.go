package rules

import (
	"time"

	"github.com/softnic/softnic/wire/bth"
)

// knows is what a requester knows of its requests, by the answers that reached it.
type knows struct {
	sure       bool    // una is known
	una        bth.PSN // oldest PSN without an answer
	progressAt int64   // when it last moved
	tries      int     // rounds since
	roundAt    bth.PSN // where the last of them began
	reason     reason  // why it may go back
	reasons    int     // how often
	cause      reason  // why it has gone back
	nakAt      int64   // when the last of these came
	tied       bool    // the ACK timer may have run out just then
	stepped    bool    // the clock was set back
	implied    bool    // an answer behind a missing one has come since progress
	excuse     bool    // a wrong answer has come: the next round is not judged
	doubt      bool    // and it is not known whether the requester has taken it
	rnrOn      bool    // it has to wait
	rnrPSN     bth.PSN
	rnrAt      int64
	rnrUntil   int64
	skipped    bool // answers came before it was known whose they are
	nakBefore  bool // it had another reason to go back when the RNR NAK came
	crossed    bool // a NAK came in the moment of an answer that makes it stale: it may have been taken first
	failed     bool // una has got a NAK that may have ended the connection (reborn.go)
}

// learn takes an answer as the requester gets it; f carries the answer.
func (c *Checker) learn(f *flow) {
	q := f.peer
	h, v := &q.req, c.p.View
	psn := v.BTH().PSN()
	if !h.started || psn.Before(h.first) || psn.Sub(h.max) >= 0 {
		return
	}
	if !h.sure {
		// All before it is answered, or does not matter: it was not seen.
		h.sure = true
	}
	if h.skipped {
		h.skipped = false
		h.set(psn)
		if psn.After(h.una) {
			c.progress(h, psn)
		}
	}
	if h.doubt && !psn.Before(h.una) {
		h.set(psn)
		c.progress(h, psn)
	}
	op := v.BTH().Opcode().Operation()
	switch op {
	case bth.Acknowledge:
		c.learnAck(h, psn, bth.AETH(v.Header(bth.HAETH)).Syndrome())
		return
	case bth.AtomicAcknowledge, bth.ReadResponseFirst, bth.ReadResponseMiddle, bth.ReadResponseLast, bth.ReadResponseOnly:
	default:
		return
	}
	r := h.findRead(psn)
	if r == nil {
		c.answered(h, psn.Next())
		return
	}
	i := psn.Sub(r.first)
	if psn != h.una {
		c.answered(h, psn)
	}
	switch {
	case psn.Before(h.una): // stale
	case psn != h.una:
		h.behind(c.p.Time)
	default:
		r.got = i + 1
		c.progress(h, psn.Next())
	}
}

// set believes that exactly what is before a PSN is answered: after a wrong answer the next
// good one tells, or the requester by going back.
func (h *half) set(to bth.PSN) {
	for i := h.oldestRead(); i < h.readAt; i++ {
		if r := h.read(i); r.asks > 0 {
			r.got = min(max(to.Sub(r.first), 0), max(r.n, 1))
		}
	}
	h.doubt = false
}

// learnAck takes an ACK or NAK.
func (c *Checker) learnAck(h *half, psn bth.PSN, s bth.Syndrome) {
	if s.IsAck() {
		if c.answered(h, psn.Next()); h.una.Before(psn.Next()) {
			h.behind(c.p.Time)
		}
		return
	}
	stale := psn.Before(h.una)
	c.answered(h, psn)
	switch {
	case stale:
		h.crossed = h.crossed || c.p.Time-h.progressAt <= moment
	case h.una != psn:
		h.behind(c.p.Time)
	case s.IsRNR():
		h.failed = true
		if h.rnrOn {
			return // the wait that is on covers it
		}
		h.nakBefore = h.reason != noReason
		h.rnrOn, h.rnrPSN, h.rnrAt = true, psn, c.p.Time
		h.rnrUntil = c.p.Time + int64(bth.RNRTime(s.Value()))
		if c.p.Fate == Forged {
			h.rnrUntil -= int64(time.Microsecond) // softnic writes what it makes up nanoseconds late, which keeps the order in a file
		}
	case s == bth.NakSequence:
		if !h.rnrOn {
			h.reason, h.reasons, h.nakAt = reasonNak, min(h.reasons+1, 8), c.p.Time // a NAK may come twice
		}
	default:
		h.failed = true
	}
}

// behind takes an answer behind one that is missing: an implied NAK. Some requesters act on
// each, some on the first until there is progress.
func (h *half) behind(now int64) {
	h.reason, h.nakAt = reasonNakIn, now
	if !h.implied || h.reasons == 0 {
		h.reasons = min(h.reasons+1, 8)
	}
	h.implied = true
}

// answered notes that all requests before a PSN are answered. It stops at a READ or atomic
// without all its responses: nothing but these answers it.
func (c *Checker) answered(h *half, to bth.PSN) {
	if !to.After(h.una) {
		return
	}
	if n := h.readAt; n > 0 && len(h.reads) > 0 && h.read(n-1).end().After(h.una) {
		for i := h.oldestRead(); i < n; i++ {
			r := h.read(i)
			if r.asks == 0 || !r.end().After(h.una) {
				continue
			}
			if at := r.first.Add(r.got); r.got < max(r.n, 1) && at.Before(to) {
				to = at
				break
			}
		}
	}
	if to.After(h.una) {
		c.progress(h, to)
	}
}

// progress notes that the oldest unanswered PSN has moved.
func (c *Checker) progress(h *half, una bth.PSN) {
	h.una, h.progressAt, h.tries, h.implied, h.failed = una, c.p.Time, 0, false, false
	if h.rnrOn && una.After(h.rnrPSN) {
		h.rnrOn = false // it was answered after all
		h.reason, h.reasons = reasonRNR, max(h.reasons, 1)
	}
}
