package rules

import "github.com/softnic/softnic/wire/bth"

// data judges the answer to a READ or atomic.
func (c *Checker) data(f *flow, r *read, psn bth.PSN, op bth.Operation) bool {
	v := c.p.View
	i, n := psn.Sub(r.first), len(v.Payload)
	if r.atomic {
		value := bth.AtomicAckETH(v.Header(bth.HAtomicAckETH)).Original()
		r.high = 1
		if r.hasValue && r.value != value {
			c.broken(DuplicateAnswer, "atomic PSN %v returned %x and returns %x now", psn, r.value, value)
			return false
		}
		if r.hasValue {
			c.keep(DuplicateAnswer)
		}
		r.value, r.hasValue = value, true
		return true
	}
	mtu := f.mtu
	want := 0
	switch {
	case r.empty:
	case r.n == 0 || mtu == 0 && r.n > 1:
		c.unknown(ReadResponseLength, whyMTU)
		c.unknown(ReadResponseSequence, whyMTU)
		r.next, r.high = i+1, max(r.high, i+1) // it is an answer all the same
		return true
	case r.n == 1:
		want = int(r.length)
	default:
		want = min(mtu, int(uint64(r.length)-uint64(i)*uint64(mtu)))
	}
	ok := n == want
	if ok {
		c.keep(ReadResponseLength)
	} else {
		c.broken(ReadResponseLength, "READ response %d of %d, PSN %v, has %d bytes, not %d", i+1, r.n, psn, n, want)
	}
	switch seq, sure := c.sequence(r, i, op); {
	case !seq && !sure && !c.wholeFlow(f.peer):
		c.unknown(ReadResponseSequence, whyIncomplete) // that it was asked for again may be missing
	case !seq:
		c.broken(ReadResponseSequence, "%v PSN %v is response %d of %d, and %d is due", v.BTH().Opcode(), psn, i+1, r.n, r.next+1)
		ok = false
	default:
		c.keep(ReadResponseSequence)
	}
	r.next = i + 1
	r.high = max(r.high, i+1)
	return ok
}

// sequence judges the opcode of response i, and that it is due. sure says that it would be wrong whatever was asked for.
func (c *Checker) sequence(r *read, i int, op bth.Operation) (ok, sure bool) {
	end := i == r.n-1
	begins := op == bth.ReadResponseOnly || op == bth.ReadResponseFirst
	ends := op == bth.ReadResponseOnly || op == bth.ReadResponseLast
	if ends != end {
		return false, true
	}
	if begins {
		return r.began(i), false
	}
	// MIDDLE and LAST go on with an answer that is under way.
	switch {
	case i == 0:
		return false, true
	case i == r.next:
		return true, true
	case c.p.Dir == Tx && c.whole():
		return false, true
	case i > r.next:
		return true, true // the others were lost before the place of the capture
	}
	return r.beganBefore(i) || c.o.Unruly, false
}

// late finds a READ response or atomic ACK that was passed by a later one: it was missing,
// and comes now although nobody has asked again. It reports whether it is one.
func (c *Checker) late(r *read, i int) bool {
	if r.passed == 0 {
		return false
	}
	late := true
	switch {
	case i < r.high || r.asks > 1: // it may be the answer to a later one, and the first was lost
		late = false
	case c.o.Unruly && c.p.Dir != Tx:
		c.unknown(AckOrder, whyUnruly)
	case !c.whole():
		c.unknown(AckOrder, whyIncomplete)
	default:
		c.broken(AckOrder, "answer %v to PSN %v was passed by packet %d", r.first.Add(i), r.first, r.passed)
	}
	r.passed = 0
	return late
}

// msnForward judges that the MSN does not go back.
func (c *Checker) msnForward(f *flow, m uint32) bool {
	a := &f.answers.msn
	back := a.started && int32((m-a.last)<<8) < 0
	switch {
	case back && c.o.Unruly && c.p.Dir != Tx:
		c.unknown(MSN, whyUnruly)
	case back && f.peer != nil && f.peer.req.failed && int(m) <= f.peer.req.max.Sub(f.peer.req.una): // see reborn.go
		c.unknown(MSN, whyReset)
		a.last, a.counting = m, false
		return false
	case back:
		c.broken(MSN, "MSN %d after %d", m, a.last)
		a.last, a.counting = m, false // the next goes by it: a fault is told once
		return false
	}
	a.started, a.last = true, m
	return true
}

// msnCount judges that the MSN counts the messages that are complete: those up to the PSN
// answered, and perhaps later ones that have arrived too.
func (c *Checker) msnCount(f *flow, psn bth.PSN, r *read, nak bool, m uint32) {
	a, h := &f.answers.msn, &f.peer.req
	s := h.record(psn)
	if s == nil || s.epoch != h.epoch {
		c.unknown(MSN, whyLostBefore)
		a.counting = false
		return
	}
	if c.o.Unruly && c.p.Dir != Tx {
		return
	}
	least, most := s.ends, h.ends
	if nak {
		// A message that is not executed is not counted; a READ that is asked for
		// again was, and what is behind it may be.
		if s.op.Info().Has(bth.End) {
			least--
		}
		if r == nil {
			most = least
		}
	}
	if !a.counting || a.epoch != h.epoch {
		a.counting, a.epoch, a.msn, a.ends = true, h.epoch, m, least
		a.low, a.high = -1<<30, 1<<30
	}
	dm := int32((m-a.msn)<<8) >> 8
	a.low = max(a.low, dm-int32(most-a.ends))
	a.high = min(a.high, dm-int32(least-a.ends))
	if a.low > a.high {
		a.counting, a.started = false, false // what follows is not held against this one
		if !c.wholeFlow(f.peer) {
			c.unknown(MSN, whyIncomplete) // it may count messages that are not in the capture
			return
		}
		c.broken(MSN, "PSN %v is answered with MSN %d: this does not count the messages since the answers before", psn, m)
		return
	}
	c.keep(MSN)
}
