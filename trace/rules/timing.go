package rules

import "github.com/softnic/softnic/wire/bth"

// reason is why a requester may go back.
type reason uint8

const (
	noReason    reason = iota
	reasonNak          // a sequence NAK
	reasonNakIn        // an answer behind a missing READ response
	reasonRNR          // an RNR NAK, waited for
)

// round judges a request that goes back: where to, and whether there was a reason.
func (c *Checker) round(f *flow, psn bth.PSN) {
	h := &f.req
	if psn.Before(h.first) {
		h.first, h.una, h.sure = psn, psn, false // what came before the capture is sent again
		c.unknown(GBNSender, whyStart)
		c.takeReason(h)
		return
	}
	if c.o.Unruly && c.p.Dir != Tx {
		c.unknown(GBNSender, whyUnruly)
		c.unknown(AckTimeout, whyUnruly)
		c.takeReason(h)
		return
	}
	if f.peer == nil || !h.sure {
		c.unknown(GBNSender, whyUnpaired)
		c.unknown(AckTimeout, whyUnpaired)
		h.cause = noReason
		return
	}
	// The requester's own host sees each answer that it gets.
	exact := c.p.Dir == Tx && f.peer.hasRx && c.whole()
	recent := c.p.Time-h.progressAt <= inFlight
	switch {
	case h.excuse:
		c.unknown(GBNSender, whyExcused)
		h.set(psn)
		h.una = psn
	case psn == h.una:
		c.keep(GBNSender)
	case psn.After(h.una) && c.p.Dir != Tx:
		c.unknown(GBNSender, whyLostBefore) // the round may have begun with others
	case psn.After(h.una) && !c.wholeFlow(f.peer):
		c.unknown(GBNSender, whyIncomplete)
	case psn.After(h.una):
		c.broken(GBNSender, "goes back to PSN %v, but %v is unanswered", psn, h.una)
	case exact && !recent:
		c.broken(GBNSender, "goes back to PSN %v, but all before %v is answered", psn, h.una)
	case exact:
		c.unknown(GBNSender, whyInFlight)
	default:
		c.unknown(GBNSender, whyLostBehind)
	}
	w := c.takeReason(h)
	if w != reasonRNR {
		c.retries(f, psn, exact)
	}
	c.timeout(f, psn, w, exact)
}

// takeReason returns the reason for a round, and uses it up.
func (c *Checker) takeReason(h *half) reason {
	w := h.reason
	if h.rnrOn {
		w = reasonRNR
	}
	h.cause = w
	if h.reasons--; h.reasons <= 0 {
		h.reason, h.reasons = noReason, 0
	}
	return w
}

// retries judges how often the requester has tried without progress.
func (c *Checker) retries(f *flow, psn bth.PSN, exact bool) {
	h := &f.req
	if !exact && psn.After(h.roundAt) {
		h.tries = 0 // it has heard answers that the capture has had long since
	}
	h.roundAt = psn
	h.tries++
	switch n := max(f.attr.RetryCnt, 0); {
	case f.attr.RetryCnt == 0:
		c.unknown(RetryCount, whyRetries)
	case h.tries <= n:
		c.keep(RetryCount)
	case !exact && !c.wholeFlow(f.peer):
		c.unknown(RetryCount, whyIncomplete)
	default:
		c.broken(RetryCount, "PSN %v is sent again %d times without progress, retry_cnt is %d", h.una, h.tries, n)
		h.tries = 0
	}
}

// timeout judges when a round begins that nothing has asked for.
func (c *Checker) timeout(f *flow, psn bth.PSN, w reason, exact bool) {
	h := &f.req
	excused, stepped, tied, crossed := h.excuse, h.stepped, h.tied, h.crossed
	h.excuse, h.stepped, h.tied, h.crossed = false, false, false, false
	s := h.record(psn)
	T := int64(4096) << (f.attr.Timeout & 31)
	slack := int64(c.o.Slack)
	atOnce := c.p.Time-h.nakAt <= min(inFlight, T/4)
	if w != noReason {
		// Perhaps the timer had run out, and what seems to be the reason is that of the next round.
		h.tied = w != reasonRNR && f.attr.Timeout > 0 && atOnce && s != nil && c.p.Time-s.at >= T-slack
		return
	}
	// What is lost behind the place of the capture may have been an answer, or have
	// made a gap in READ responses.
	from := psn
	if c.p.Dir != Tx {
		from = psn.Add(-maxRing) // the round may have begun with packets that were lost
	}
	blind := !exact && h.reading(from)
	switch {
	case excused:
		c.unknown(AckTimeout, whyExcused)
		return
	case s == nil:
		c.unknown(AckTimeout, whyForgotten)
		return
	case f.attr.Timeout == 0:
		c.unknown(AckTimeout, whyTimeout)
		return
	case stepped:
		c.unknown(AckTimeout, whyClock)
		return
	case tied && atOnce:
		c.unknown(AckTimeout, whyTie)
		return
	case crossed:
		c.unknown(AckTimeout, whyOrder)
		return
	case blind:
		c.unknown(AckTimeout, whyLostBehind)
		return
	case !c.wholeFlow(f.peer):
		c.unknown(AckTimeout, whyIncomplete)
		return
	case f.attr.Timeout < 0:
		c.broken(AckTimeout, "PSN %v is sent again without a NAK, and there is no timeout", psn)
		return
	}
	since := s.at
	if exact && psn == h.una {
		since = max(since, h.progressAt)
	}
	late := slack + inFlight
	if !exact {
		late += wayBehind
		if c.p.Dir != Tx {
			slack += wayBehind // the way may have taken longer for the first
		}
	}
	took := c.p.Time - since
	switch {
	case took < T-slack:
		c.broken(AckTimeout, "PSN %v is sent again without a NAK after %v, T is %v", psn, ns(took), ns(T))
	case c.p.Time-max(s.at, h.progressAt) > 4*T+late:
		c.broken(AckTimeout, "PSN %v is sent again only after %v, 4T is %v", psn, ns(took), ns(4*T))
	default:
		c.keep(AckTimeout)
	}
}

// reading reports whether from psn on an answer may be missing that is not a mere ACK.
func (h *half) reading(psn bth.PSN) bool {
	if h.readAt == 0 || len(h.reads) == 0 {
		return false
	}
	r := h.read(h.readAt - 1)
	return r.end().After(psn)
}

// rnrWait judges a request while the requester has to wait. again says that it begins a round.
func (c *Checker) rnrWait(f *flow, psn bth.PSN, again bool) {
	h := &f.req
	if !h.rnrOn {
		return
	}
	if c.o.Unruly && c.p.Dir != Tx {
		c.unknown(RNRWait, whyUnruly)
		h.rnrOn = false
		return
	}
	now := c.p.Time
	left := h.rnrUntil - int64(c.o.Slack) - now
	exact := c.p.Dir == Tx && f.peer != nil && f.peer.hasRx && c.whole()
	since := now - h.rnrAt
	if left <= 0 {
		if again || psn == h.rnrPSN {
			if h.excuse {
				c.unknown(RNRWait, whyExcused)
			} else {
				c.keep(RNRWait)
			}
			h.rnrOn, h.reason, h.reasons = false, noReason, 0
		}
		return
	}
	bound := inFlight
	if !exact {
		bound = wayBehind
	}
	bound += int64(c.o.Slack)
	if !again {
		// New packets, or the rest of a round.
		if since > bound && (exact || c.whole()) && f.peer != nil {
			c.broken(RNRWait, "PSN %v is sent %v after the RNR NAK for %v, which names %v", psn, ns(since), h.rnrPSN, ns(h.rnrUntil-h.rnrAt))
			h.rnrOn = false
		}
		return
	}
	s := h.record(psn)
	quick := s != nil && now-s.at < inFlight
	if s != nil && f.attr.Timeout > 0 {
		quick = now-s.at < int64(4096)<<(f.attr.Timeout&31)
	}
	switch {
	case exact && since > bound, c.whole() && quick && !h.nakBefore && (exact || psn == h.rnrPSN):
		c.broken(RNRWait, "PSN %v is sent again %v after the RNR NAK for %v, which names %v", psn, ns(since), h.rnrPSN, ns(h.rnrUntil-h.rnrAt))
		h.rnrOn = false
	default:
		c.unknown(RNRWait, whyInFlight) // and the wait goes on
	}
}
