package rules

import (
	"github.com/softnic/softnic/wire/bth"
)

// far is how far from what is due a PSN may be before it is taken for that of a new connection.
const far = 1 << 16

// request judges a request as what its sender did.
func (c *Checker) request(f *flow) {
	h, v := &f.req, c.p.View
	psn := v.BTH().PSN()
	if !h.started {
		c.begin(f, psn, whyStart)
	}
	if h.fuzzy {
		c.guess(f, psn)
	}
	if c.fresh(f, psn) {
		c.renew(f)
		c.begin(f, psn, whyReset)
	} else if c.reborn(f, psn) {
		c.suspect(f, psn)
		c.renew(f)
		c.begin(f, psn, whyReset)
	}
	if h.stepped && h.rnrOn {
		c.unknown(RNRWait, whyClock)
		h.rnrOn, h.reason, h.reasons = false, reasonRNR, 1
	}
	again := false // the first of a round
	switch d := psn.Sub(h.next); {
	case d > 0:
		c.ahead(f, psn)
	case d < 0 && f.key.service == bth.UC:
		c.backUC(f, psn)
	case d < 0:
		again = true
		c.round(f, psn)
		h.seek(psn)
	case psn == h.max:
		c.keep(PSNContiguous)
	default:
		c.keep(GBNSender)
	}
	if psn.Before(h.max) && f.key.service != bth.UC {
		c.again(h)
	}
	c.rnrWait(f, psn, again)
	old := h.find(psn)
	if r := h.findRead(psn); psn.Before(h.max) && r != nil && v.BTH().Opcode().Operation() == bth.ReadRequest && !r.atomic && !r.empty {
		c.resume(f, r, psn)
		return
	}
	if old != nil && psn.Before(h.max) {
		c.resent(f, old)
		return
	}
	if psn.Before(h.max) {
		c.unknown(RetransmissionSame, whyForgotten)
	}
	c.first(f, psn)
}

// begin starts with a request of which nothing is known before.
func (c *Checker) begin(f *flow, psn bth.PSN, w why) {
	h := &f.req
	h.started = true
	h.first, h.next, h.max = psn, psn, psn
	h.una = psn
	c.unknown(PSNContiguous, w)
	// What is open in front of it is known only if it begins a message.
	h.openOK = false
}

// renew forgets a connection: its queue pair serves another one now.
func (c *Checker) renew(f *flow) {
	if p := f.peer; p != nil {
		p.answers = answer{}
	}
	c.part(f)
	f.req.forget()
	f.blind = false
}

// fresh reports whether a PSN can only be that of a new connection.
func (c *Checker) fresh(f *flow, psn bth.PSN) bool {
	h := &f.req
	d := psn.Sub(h.next)
	if d > far {
		return true
	}
	if d >= 0 {
		return false
	}
	low := h.first
	if h.sure {
		low = h.una
	}
	if psn.Before(low.Add(-far)) {
		return true
	}
	if f.key.service == bth.UC {
		return d < -far
	}
	// A requester to which all was answered has nothing to send again, unless answers
	// were lost behind the place of the capture.
	if !h.sure || h.una != h.max || f.peer == nil || !psn.Before(h.una) {
		return false
	}
	s := h.find(psn)
	same := s != nil && s.body == f.body && psn != h.first
	if f.peer.hasRx && c.whole() && c.p.Time-h.progressAt > inFlight && !same {
		return true
	}
	if r := h.findRead(psn); r != nil && !r.atomic && !r.empty {
		e := c.p.View.Header(bth.HRETH)
		return e == nil || bth.RETH(e).VA()+uint64(bth.RETH(e).Length()) != r.va+uint64(r.length)
	}
	if s == nil {
		return psn.Before(h.una.Add(-maxRing)) // else it may be forgotten
	}
	return s.body != f.body
}

// guess takes the number of PSNs of the last READ from where the next request is, since
// the MTU is not known.
func (c *Checker) guess(f *flow, psn bth.PSN) {
	h := &f.req
	r := h.read(h.readAt - 1)
	k := psn.Sub(r.first)
	if k < packets(r.length, 4096) || k > packets(r.length, 256) {
		return // sent again, or something is missing
	}
	if k > 1 && (c.p.Dir != Tx || !c.whole()) {
		return // perhaps less, and other requests are missing
	}
	r.n, h.fuzzy = k, false
	h.next = psn
	if psn.After(h.max) {
		h.max = psn
	}
	mtu := 0
	for m := 256; m <= 4096; m *= 2 {
		if packets(r.length, m) == k {
			if mtu != 0 {
				return
			}
			mtu = m
		}
	}
	c.learnMTU(f, mtu)
}

// ahead judges a request behind the one that is due.
func (c *Checker) ahead(f *flow, psn bth.PSN) {
	h := &f.req
	rule, text := GBNSender, "in a round: PSN %v follows where %v is due and nothing has answered that"
	if psn.After(h.max) || h.next == h.max {
		rule, text = PSNContiguous, "PSN %v follows where %v is due"
	}
	switch {
	case f.key.service != bth.UC && f.peer != nil && h.sure && !psn.After(h.una):
		c.keep(rule) // what was answered meanwhile need not be sent again
	case f.blind:
		c.unknown(rule, whyExcused)
	case h.fuzzy:
		c.unknown(rule, whyMTU)
	case c.p.Dir != Tx:
		c.unknown(rule, whyLostBefore)
	case !c.whole():
		c.unknown(rule, whyIncomplete)
	case rule == GBNSender && f.peer == nil:
		c.unknown(rule, whyUnpaired)
	default:
		c.broken(rule, text, psn, h.next)
	}
	f.blind, h.fuzzy = false, false
	if psn.After(h.max) {
		h.epoch++
		h.ends = 0
		h.holes = true
		h.max = psn
	}
	h.next = psn
	h.seek(psn)
}

// seek finds out which message is open in front of a PSN.
func (h *half) seek(psn bth.PSN) {
	h.openOK = false
	if s := h.find(psn.Prev()); s != nil {
		h.openOK, h.open, h.left, h.leftOK = true, s.open, s.left, s.leftOK
	}
}

// backUC judges a UC packet that goes back: UC sends nothing again.
func (c *Checker) backUC(f *flow, psn bth.PSN) {
	h := &f.req
	switch {
	case c.p.Dir == Tx && c.whole():
		c.broken(PSNContiguous, "PSN %v follows where %v is due", psn, h.next)
	default:
		c.unknown(PSNContiguous, whyUnruly)
	}
	h.next, h.openOK = psn, false
}

// resume judges a READ that is asked for again, from its start or from its middle.
func (c *Checker) resume(f *flow, r *read, psn bth.PSN) {
	h, v := &f.req, c.p.View
	e := bth.RETH(v.Header(bth.HRETH))
	i := psn.Sub(r.first)
	skip := e.VA() - r.va // bytes
	ok := e.RKey() == r.rkey && skip+uint64(e.Length()) == uint64(r.length)
	switch mtu := f.mtu; {
	case i == 0:
		ok = ok && skip == 0
	case mtu != 0:
		ok = ok && skip == uint64(i)*uint64(mtu)
	default:
		m := skip / uint64(i)
		ok = ok && skip%uint64(i) == 0 && m >= 256 && m <= 4096 && m&(m-1) == 0
	}
	if ok {
		c.keep(ReadResume)
	} else {
		c.broken(ReadResume, "READ of PSN %v, address %x, %d bytes, key %x is asked for again from PSN %v with address %x, %d bytes, key %x",
			r.first, r.va, r.length, r.rkey, psn, e.VA(), e.Length(), e.RKey())
	}
	r.again(i)
	if s := h.find(r.first); s != nil {
		s.at = c.p.Time
		s.seen++
	}
	h.open, h.openOK, h.leftOK = closed, true, false
	if r.n == 0 {
		h.next, h.fuzzy = psn.Next(), h.read(h.readAt-1) == r
		return
	}
	h.next = r.end()
}

// resent judges a packet that was sent before.
func (c *Checker) resent(f *flow, s *sent) {
	h := &f.req
	op := c.p.View.BTH().Opcode()
	if op == s.op && (s.cut || c.p.Cut) {
		c.unknown(RetransmissionSame, whyCut)
	} else if s.body == f.body {
		c.keep(RetransmissionSame)
	} else if c.o.Unruly && c.p.Dir != Tx {
		c.unknown(RetransmissionSame, whyUnruly)
	} else if f.peer == nil && c.answeredBy(f) {
		c.unknown(RetransmissionSame, whyUnpaired) // a NAK may have ended the connection
	} else if op != s.op {
		c.broken(RetransmissionSame, "PSN %v was %v in packet %d and is %v now", s.psn, s.op, s.number, op)
	} else {
		c.broken(RetransmissionSame, "PSN %v, %v, differs from packet %d in headers or payload", s.psn, op, s.number)
	}
	s.at = c.p.Time
	s.seen++
	if r := h.findRead(s.psn); r != nil {
		r.again(0)
		h.next = r.end()
	} else {
		h.next = s.psn.Next()
	}
	h.open, h.openOK, h.left, h.leftOK = s.open, true, s.left, s.leftOK
}

// first judges a packet that is new, or that was not seen before, and remembers it.
func (c *Checker) first(f *flow, psn bth.PSN) {
	h, v := &f.req, c.p.View
	fill := psn.Before(h.max) // one that was lost before the place of the capture
	s := c.put(h, psn)
	s.op, s.body, s.number, s.at, s.seen, s.cut = v.BTH().Opcode(), f.body, c.p.Number, c.p.Time, 1, c.p.Cut
	c.message(f, s)
	n := 1
	if i := v.Info; ownAnswer(v.BTH().Opcode()) {
		r := read{first: psn, n: 1, asks: 1, atomic: i.Has(bth.Atomic), empty: !i.Has(bth.Read) && !i.Has(bth.Atomic)}
		if i.Has(bth.Read) {
			e := bth.RETH(v.Header(bth.HRETH))
			r.va, r.rkey, r.length, r.n = e.VA(), e.RKey(), e.Length(), 0
			switch {
			case f.mtu != 0:
				r.n = packets(r.length, f.mtu)
			case r.length <= 256:
				r.n = 1
			}
		}
		if fill {
			r.high = max(r.n, 1) // it may be forgotten that it was answered
		}
		if !fill && s.op.Operation() != bth.Flush {
			c.depth(f)
		}
		h.addRead(r, f.attr.Depth)
		n = max(r.n, 1)
		h.fuzzy = r.n == 0 && !fill
	}
	ended := v.Info.Has(bth.End)
	s.epoch, s.ends = h.epoch, h.ends
	if fill {
		s.epoch-- // of no epoch: messages behind it were counted already
	} else if ended {
		h.ends++
		s.ends++
	}
	h.next = psn.Add(n)
	if h.next.After(h.max) {
		h.max = h.next
	}
}

// message judges opcode sequence and lengths of a request packet.
func (c *Checker) message(f *flow, s *sent) {
	h, v := &f.req, c.p.View
	i, op, n := v.Info, v.BTH().Opcode(), len(v.Payload)
	kind := closed
	switch {
	case i.Has(bth.Send):
		kind = inSend
	case i.Has(bth.Write):
		kind = inWrite
	}
	start := i.Has(bth.Start)
	switch {
	case !h.openOK && start:
	case !h.openOK:
		c.unknown(OpcodeSequence, whyLostBefore)
	case start && h.open == closed, !start && h.open == kind:
		c.keep(OpcodeSequence)
	case h.open == closed:
		c.broken(OpcodeSequence, "%v PSN %v, and no message is open", op, s.psn)
	case start:
		c.broken(OpcodeSequence, "%v PSN %v inside a message", op, s.psn)
	default:
		c.broken(OpcodeSequence, "%v PSN %v inside a message of another kind", op, s.psn)
	}
	leftOK := h.openOK && h.leftOK && h.open == inWrite
	left := h.left
	h.open, h.openOK = closed, true
	if !i.Has(bth.End) {
		h.open = kind
	}
	h.leftOK = false

	ok := true
	switch {
	case i.Has(bth.FullMTU):
		if c.learnMTU(f, n); n != f.mtu {
			ok = false
			c.broken(MessageLength, "%v PSN %v has %d bytes, the path MTU is %d", op, s.psn, n, f.mtu)
		}
	case i.Has(bth.HasPayload) && (f.mtu != 0 && n > f.mtu || n > 4096):
		ok = false
		c.broken(MessageLength, "%v PSN %v has %d bytes, the path MTU is %d", op, s.psn, n, f.mtu)
	case i.Has(bth.HasPayload) && !start && n == 0:
		ok = false
		c.broken(MessageLength, "%v PSN %v is empty", op, s.psn)
	case !i.Has(bth.HasPayload) && n != 0:
		ok = false
		c.broken(MessageLength, "%v PSN %v has %d bytes of payload", op, s.psn, n)
	}
	if e := v.Header(bth.HRETH); e != nil {
		left, leftOK = bth.RETH(e).Length(), i.Has(bth.Write) || op.Operation() == bth.AtomicWrite
		if left > 1<<31 {
			ok, leftOK = false, false
			c.broken(MessageLength, "%v PSN %v: %d bytes in the RETH", op, s.psn, left)
		}
	}
	if ok && leftOK && (kind == inWrite || op.Operation() == bth.AtomicWrite) {
		end := i.Has(bth.End)
		if uint64(n) > uint64(left) || end != (uint32(n) == left) {
			ok = false
			c.broken(MessageLength, "%v PSN %v has %d bytes where %d of its message are left", op, s.psn, n, left)
		} else if !end {
			h.left, h.leftOK = left-uint32(n), true
		}
	}
	if ok {
		c.keep(MessageLength)
	}
	s.open, s.left, s.leftOK = h.open, h.left, h.leftOK
}

// depth judges whether one more READ or atomic may go out.
func (c *Checker) depth(f *flow) {
	h := &f.req
	if f.attr.Depth == 0 {
		c.unknown(Depth, whyDepth)
		return
	}
	if f.attr.Depth < 0 {
		c.broken(Depth, "%v, and none were agreed", c.p.View.BTH().Opcode())
		return
	}
	if h.doubt {
		c.unknown(Depth, whyExcused)
		return
	}
	if f.peer == nil || !h.sure && h.holes {
		c.unknown(Depth, whyUnpaired)
		return
	}
	open := 1
	for i := h.oldestRead(); i < h.readAt; i++ {
		if r := h.read(i); r.asks > 0 && r.got < max(r.n, 1) && r.end().After(h.una) && h.find(r.first) != nil && h.find(r.first).op.Operation() != bth.Flush {
			open++
		}
	}
	switch {
	case open <= f.attr.Depth:
		c.keep(Depth)
	case !c.wholeFlow(f.peer):
		c.unknown(Depth, whyIncomplete)
	default:
		c.broken(Depth, "%d READs and atomics unanswered, %d were agreed", open, f.attr.Depth)
	}
}

// ownAnswer reports whether a request has answers of its own, and not an ACK.
func ownAnswer(o bth.Opcode) bool {
	i, op := o.Info(), o.Operation()
	return i.Has(bth.Read) || i.Has(bth.Atomic) || op == bth.Flush || op == bth.AtomicWrite
}
