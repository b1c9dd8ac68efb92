package rules

import "github.com/softnic/softnic/wire/bth"

// answer is what a responder has answered.
type answer struct {
	started bool
	skipped bool    // some went by before it was known what they answer
	hi      bth.PSN // highest PSN that is answered; a NAK answers what is before it
	acked   bool
	lastAck bth.PSN // of the last plain ACK
	nakOn   bool    // a sequence NAK is out
	nakPSN  bth.PSN
	nakSeen uint16 // how often nakPSN had been sent then
	rnrOn   bool   // an RNR NAK is out
	rnrPSN  bth.PSN
	msn     msn
}

// msn is what is known of the count of completed messages: msn of an answer less the
// messages that had ended before it lies between low and high.
type msn struct {
	started   bool
	last      uint32
	counting  bool
	epoch     uint32
	msn, ends uint32 // where counting began
	low, high int32
}

// response judges an answer. f carries it, and its peer the requests.
func (c *Checker) response(f *flow, sent, arrived bool) {
	v := c.p.View
	if v.Info.Has(bth.FullMTU) && sent {
		c.learnMTU(f, len(v.Payload))
	}
	if f.peer == nil {
		c.meet(f)
	}
	if f.peer == nil {
		if sent {
			c.unpaired(f)
		}
		return
	}
	good := true
	if sent {
		if good = c.answer(f); !good {
			f.markBad()
		}
	} else {
		good = !f.wasBad()
	}
	if !arrived {
		return
	}
	if good {
		c.latency(&f.peer.req, v.BTH().PSN())
		c.learn(f)
	} else {
		f.peer.req.excuse, f.peer.req.doubt = true, true
	}
}

// unpaired judges an answer to requests that cannot be found.
func (c *Checker) unpaired(f *flow) {
	c.unknown(ResponseRange, whyUnpaired)
	if a := c.p.View.Header(bth.HAETH); a != nil {
		c.msnForward(f, bth.AETH(a).MSN())
	}
}

// answer judges an answer as what the responder did; false if it says nothing else.
func (c *Checker) answer(f *flow) bool {
	q, a, v := f.peer, &f.answers, c.p.View
	h := &q.req
	psn, op := v.BTH().PSN(), v.BTH().Opcode().Operation()
	if q.loose {
		c.unknown(ResponseRange, whyPurpose)
		return true
	}
	if !h.started || psn.Before(h.first) {
		c.unknown(ResponseRange, whyStart)
		return true
	}
	if psn.Sub(h.max) >= 0 {
		switch {
		case h.fuzzy:
			c.unknown(ResponseRange, whyMTU)
		case !h.sure:
			c.unknown(ResponseRange, whyStart) // on its way when the capture began
		case !c.wholeFlow(q):
			c.unknown(ResponseRange, whyIncomplete)
		default:
			c.broken(ResponseRange, "%v PSN %v: the highest PSN that was sent is %v", v.BTH().Opcode(), psn, h.max.Prev())
			return false
		}
		return true
	}
	r, s := h.findRead(psn), h.find(psn)
	var syn bth.Syndrome
	aeth := v.Header(bth.HAETH)
	if aeth != nil {
		syn = bth.AETH(aeth).Syndrome()
	}
	if reserved(syn) {
		return false // see wellFormed
	}
	nak := op == bth.Acknowledge && !syn.IsAck()
	if r == nil && s == nil && !nak {
		c.unknown(ResponseRange, whyForgotten)
		return true
	}
	if a.skipped {
		a.skipped = false
		h.assume(psn)
	}
	ok := c.kind(r, s, psn, op, syn) && c.inTime(q, psn, nak, r) && c.silence(f, psn) && c.forward(f, r, psn, op, syn)
	passed := false
	if ok {
		passed = !c.order(f, r, psn)
		if r != nil && op != bth.Acknowledge {
			passed = c.late(r, psn.Sub(r.first)) || passed
			ok = c.data(f, r, psn, op)
		}
	}
	if !ok {
		return false
	}
	if aeth != nil && !passed {
		c.settle(q, bth.AETH(aeth).MSN())
	}
	// A requester hardly looks at the MSN: a wrong one does not undo the answer.
	if m := bth.AETH(aeth); aeth != nil && !passed && c.msnForward(f, m.MSN()) {
		c.msnCount(f, psn, r, nak, m.MSN())
	}
	top := psn
	if nak {
		top = psn.Prev()
	}
	if !a.started || top.After(a.hi) {
		a.hi = top
	}
	a.started = true
	if a.nakOn && !a.hi.Before(a.nakPSN) {
		a.nakOn = false
	}
	switch {
	case nak && syn.IsRNR():
		a.rnrOn, a.rnrPSN = true, psn
		if s := h.record(psn); s != nil {
			s.rnr++
		}
		h.arr.notReady(psn)
	case nak && syn == bth.NakSequence:
		a.nakOn, a.nakPSN, a.nakSeen = true, psn, 0
		if s := h.record(psn); s != nil {
			a.nakSeen = s.seen
		}
	case op == bth.Acknowledge && !nak:
		a.lastAck, a.acked = psn, true
	}
	return true
}

// assume believes that the responder has answered all before a PSN.
func (h *half) assume(psn bth.PSN) {
	for i := h.oldestRead(); i < h.readAt; i++ {
		if r := h.read(i); r.asks > 0 && r.first.Before(psn) {
			n := min(psn.Sub(r.first), max(r.n, 1))
			r.high, r.next, r.passed = max(r.high, n), n, 0
		}
	}
}

// kind judges whether a request is answered as its kind is.
func (c *Checker) kind(r *read, s *sent, psn bth.PSN, op bth.Operation, syn bth.Syndrome) bool {
	name := c.p.View.BTH().Opcode()
	ok := true
	if r == nil && s == nil {
		return true // a NAK for what was not seen
	}
	if r == nil && ownAnswer(s.op) {
		c.unknown(ResponseKind, whyForgotten)
		return true
	}
	switch op {
	case bth.Acknowledge:
		ok = !syn.IsAck() || r == nil
		if r != nil && !ok {
			// The ACK of a duplicate names the last request that was executed, and may
			// name a READ that was answered in full.
			switch {
			case psn.Sub(r.first) < r.high:
				ok = true
			case c.p.Dir != Tx || !c.whole():
				c.unknown(ResponseKind, whyLostBefore)
				return true
			}
		}
	case bth.AtomicAcknowledge:
		ok = syn.IsAck() && r != nil && r.atomic
	case bth.ReadResponseOnly:
		ok = syn.IsAck() && r != nil && !r.atomic
	default:
		ok = syn.IsAck() && r != nil && !r.atomic && !r.empty
	}
	if !ok {
		what := "READ"
		if s != nil {
			what = s.op.String()
		}
		c.broken(ResponseKind, "PSN %v, %s, is answered by %v %v", psn, what, name, syn)
		return false
	}
	c.keep(ResponseKind)
	return true
}

// inTime judges whether what is answered has arrived. q has the requests.
func (c *Checker) inTime(q *flow, psn bth.PSN, nak bool, r *read) bool {
	a := &q.req.arr
	if !q.hasRx || !a.known {
		c.keep(ResponseRange)
		return true
	}
	if nak {
		c.keep(ResponseRange) // see forward
		return true
	}
	if psn.Before(a.epsn) {
		if psn == a.epsn.Prev() {
			a.synced = true
		}
		c.keep(ResponseRange)
		return true
	}
	if !c.exact(q) {
		// The capture began in a gap, or with a duplicate.
		a.epsn = psn.Next()
		if r != nil {
			a.epsn = r.end()
		}
		c.unknown(ResponseRange, whyStart)
		return true
	}
	c.broken(ResponseRange, "%v PSN %v, but %v has not arrived", c.p.View.BTH().Opcode(), psn, a.epsn)
	return false
}

// silence judges answers after an RNR NAK.
func (c *Checker) silence(f *flow, psn bth.PSN) bool {
	a, h := &f.answers, &f.peer.req
	if !a.rnrOn || psn.Before(a.rnrPSN) {
		return true
	}
	s := h.record(a.rnrPSN)
	switch {
	case s == nil:
		c.unknown(RNRSilence, whyForgotten)
		a.rnrOn = false
	case f.peer.hasRx && s.got > s.rnr, !f.peer.hasRx && s.seen > s.rnr:
		c.keep(RNRSilence)
		a.rnrOn = false
	case !c.wholeFlow(f.peer):
		c.unknown(RNRSilence, whyIncomplete)
		a.rnrOn = false
	case !f.peer.hasRx && c.o.Unruly:
		c.unknown(RNRSilence, whyUnruly)
		a.rnrOn = false
	default:
		c.broken(RNRSilence, "%v PSN %v after the RNR NAK for %v, which has not come again", c.p.View.BTH().Opcode(), psn, a.rnrPSN)
		return false
	}
	return true
}

// forward judges that acknowledgements do not go back, and what NAKs name.
func (c *Checker) forward(f *flow, r *read, psn bth.PSN, op bth.Operation, syn bth.Syndrome) bool {
	a, q := &f.answers, f.peer
	if op != bth.Acknowledge {
		return true
	}
	if c.o.Unruly && c.p.Dir != Tx {
		c.unknown(AckMonotonic, whyUnruly)
		return true
	}
	switch {
	case syn.IsAck():
		return c.ackForward(f, psn)
	case syn == bth.NakSequence:
		return c.sequenceNak(f, psn)
	case !a.started || psn.After(a.hi):
		c.keep(AckMonotonic)
	case r != nil:
		// A READ that is asked for again may meet memory that is gone.
	case !c.wholeFlow(q):
		c.unknown(AckMonotonic, whyIncomplete)
	default:
		c.broken(AckMonotonic, "%v PSN %v, but %v was acknowledged", syn, psn, a.hi)
		return false
	}
	return true
}

func (c *Checker) ackForward(f *flow, psn bth.PSN) bool {
	a, h := &f.answers, &f.peer.req
	if a.acked && psn.Before(a.lastAck) {
		c.broken(AckMonotonic, "ACK %v after ACK %v", psn, a.lastAck)
		return false
	}
	// Behind it there may be READs and atomics, which an ACK cannot name.
	x := psn.Next()
	for range maxReads {
		if !a.started || x.After(a.hi) {
			break
		}
		r := h.findRead(x)
		if r == nil {
			if s := h.find(x); s == nil || ownAnswer(s.op) {
				c.unknown(AckMonotonic, whyForgotten)
				return true
			}
			c.broken(AckMonotonic, "ACK %v, but all up to %v was acknowledged", psn, a.hi)
			return false
		}
		x = r.end()
	}
	c.keep(AckMonotonic)
	return true
}

func (c *Checker) sequenceNak(f *flow, psn bth.PSN) bool {
	a, q := &f.answers, f.peer
	h := &q.req
	if a.nakOn && psn == a.nakPSN {
		s := h.record(psn)
		switch {
		case !c.wholeFlow(q):
			c.unknown(NakOncePerGap, whyIncomplete)
			return true
		case s == nil && a.nakSeen > 0:
			c.unknown(NakOncePerGap, whyForgotten)
			return true
		case s != nil && s.seen > a.nakSeen && !c.exact(q):
			c.unknown(NakOncePerGap, whyLostBehind)
			return true
		}
		c.broken(NakOncePerGap, "sequence NAK %v once more for the same gap", psn)
		return false
	}
	if a.started && !psn.After(a.hi) {
		c.broken(NakFirstMissing, "sequence NAK %v, but all up to %v was acknowledged", psn, a.hi)
		return false
	}
	switch exact := c.exact(q); {
	case exact && h.arr.gap(psn):
	case exact && h.arr.tied(psn, c.p.Time):
		c.unknown(NakFirstMissing, whyOrder)
		c.keep(NakOncePerGap)
		return true
	case exact:
		c.broken(NakFirstMissing, "sequence NAK %v, but the first missing PSN is %v", psn, h.arr.epsn)
		return false
	case h.max.Sub(psn) <= 1 && c.wholeFlow(q) && h.sure:
		c.broken(NakFirstMissing, "sequence NAK %v, but nothing behind it was sent", psn)
		return false
	case !q.hasTx:
		// Plausible; what was lost behind the place of the capture does not show.
		c.unknown(NakFirstMissing, whyLostBehind)
		c.keep(NakOncePerGap)
		return true
	}
	c.keep(NakFirstMissing)
	c.keep(NakOncePerGap)
	return true
}

// order judges that nothing passes an earlier READ response or atomic ACK. r is what is
// answered, nil for a plain request; false if it does.
func (c *Checker) order(f *flow, r *read, psn bth.PSN) bool {
	h := &f.peer.req
	for i := h.readAt; i > h.oldestRead(); i-- {
		x := h.read(i - 1)
		if x.asks == 0 || x == r || x.end().After(psn) {
			continue
		}
		if x.high >= max(x.n, 1) {
			break // those before it were looked at then
		}
		if x.passed != 0 {
			continue
		}
		if c.p.Dir == Tx && c.whole() && h.find(x.first) != nil {
			c.broken(AckOrder, "%v PSN %v passes the answer to PSN %v", c.p.View.BTH().Opcode(), psn, x.first.Add(x.high))
			x.high = max(x.n, 1)
			return false
		}
		// It may have been lost before the place of the capture; if it comes
		// without having been asked for again, it was passed.
		x.passed = c.p.Number
	}
	c.keep(AckOrder)
	return true
}
