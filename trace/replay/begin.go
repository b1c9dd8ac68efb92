package replay

import (
	"slices"

	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// typical returns the first request of the partition that most have, and that a softnic did not drop.
func (t *talk) typical() (best *seen) {
	votes := map[uint16]int{}
	first := map[uint16]*seen{}
	for _, q := range t.f.requests[t.start:] {
		k := q.v.BTH().PKey()
		if first[k] == nil {
			first[k] = q
		}
		if !q.idle() {
			votes[k]++
		}
		if best == nil || votes[k] > votes[best.v.BTH().PKey()] {
			best = first[k]
		}
	}
	return best
}

// begin finds the first request that is fed, from old on, and what the responder expects then. start is the first that begins a message.
func (t *talk) begin(old int) {
	begin := t.start
	t.start = old
	t.count()
	nak, first := t.said(), t.earlier()
	if begin > old && nak == nil && (first == nil || !first.has(bth.Start)) {
		// What stands before the first message is not a part of it that came too early.
		t.start = begin
		t.count()
		nak, first = t.said(), t.earlier()
		t.note("%d requests of a message that began before the capture are left out", begin-old)
	}
	t.plan()
	requests := t.f.requests[t.start:]
	t.first = requests[0].psn
	stop := requests[0]
	switch {
	case nak != nil:
		t.first, t.expect, first = nak.psn, nak.pos, nil
		if l := t.sent[nak.pos]; len(l) > 0 { // else it never comes
			first, stop = l[0], l[0]
		}
	case first != nil:
		t.first, t.expect = first.psn, first.pos
	}
	if first != nil && !first.has(bth.Start) {
		t.stop(stop, "the message that is in hand began before the capture")
	}
}

// said returns the sequence NAK with which the responder itself says what it expected first: all requests that had come until then are behind that.
func (t *talk) said() *seen {
	if len(t.answers) == 0 {
		return nil
	}
	a := t.answers[0]
	s, _, ok := a.aeth()
	if !ok || s != bth.NakSequence || a.pos >= 0 {
		return nil
	}
	if slices.ContainsFunc(t.f.requests[t.start:], func(q *seen) bool { return q.at < a.at && q.pos < a.pos && !q.known() }) {
		return nil
	}
	return a
}

// earlier returns the request that the responder expected first, if it is not the first in the capture: that was lost, and comes later. What had
// arrived before the capture begins is not meant: then the responder takes the first one at once.
func (t *talk) earlier() (least *seen) {
	for _, q := range t.f.requests[t.start:] {
		if q.pos < 0 && !q.known() && !q.idle() && (least == nil || q.pos < least.pos) {
			least = q
		}
	}
	if least == nil || slices.ContainsFunc(t.answers, func(a *seen) bool {
		s, _, ok := a.aeth()
		return a.at < least.at && a.pos >= 0 && (!ok || s.IsAck())
	}) {
		return nil
	}
	return least
}

// count counts PSNs on, and gives each READ the PSNs of its responses.
func (t *talk) count() {
	last, pos := t.f.requests[t.start].psn, int64(0)
	i, j := t.start, 0
	for i < len(t.f.requests) || j < len(t.answers) {
		var s *seen
		if j == len(t.answers) || i < len(t.f.requests) && t.f.requests[i].at < t.answers[j].at {
			s = t.f.requests[i]
			i++
		} else {
			s = t.answers[j]
			j++
		}
		s.pos = pos + int64(s.psn.Sub(last))
		if !s.idle() && !s.known() { // else it may be anywhere
			last, pos = s.psn, s.pos
		}
		if h := s.v.Header(bth.HRETH); h != nil && s.has(bth.Read) {
			s.n = transport.Packets(uint64(bth.RETH(h).Length()), t.mtu)
		}
	}
}
