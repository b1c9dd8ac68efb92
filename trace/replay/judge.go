package replay

import (
	"bytes"
	"fmt"
	"slices"
	"sort"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// answer is what softnic's NIC has answered.
type answer struct {
	v    wire.View
	op   bth.Opcode
	psn  bth.PSN
	pos  int64
	to   *seen // the request
	used bool  // a recorded answer was compared with it
	rec  *seen // which; nil: none, or one of another kind
}

// moment is how far apart packets may have been captured that a NIC takes in together, in ns.
const moment = 1_000_000

// pair is a recorded answer with the one that it was compared with.
type pair struct {
	rec     *seen
	now     *answer // nil: the NIC acknowledged more with another
	expect  uint32  // MSN where now is nil
	changed string  // the field that is memory, and another than recorded
}

// find adds a finding.
func (t *talk) find(f Finding) {
	switch f.Verdict {
	case Declared:
		t.c.Declared++
	case Different:
		t.c.Different++
	case Unknown:
		t.c.Unknown++
	}
	if len(t.c.Findings) < maxFindings {
		t.c.Findings = append(t.c.Findings, f)
	}
}

// stop says that nothing can be told from a request on.
func (t *talk) stop(q *seen, format string, args ...any) {
	if t.lost == nil {
		t.lost = q
		t.note("from packet %d on nothing can be told: %s", q.number, fmt.Sprintf(format, args...))
	}
}

// alike reports whether one answer can stand for another with its PSN: it is of the same kind.
func alike(a *answer, r *seen) bool {
	if a.op.Service() != r.op.Service() {
		return false
	}
	x, y := a.op.Operation(), r.op.Operation()
	if x == bth.Acknowledge && y == bth.Acknowledge {
		s, u := bth.AETH(a.v.Header(bth.HAETH)).Syndrome(), bth.AETH(r.v.Header(bth.HAETH)).Syndrome()
		return s.IsAck() == u.IsAck()
	}
	return x == y || a.v.Info.Has(bth.Read) && r.has(bth.Read)
}

// best returns the answer that a recorded one is compared with: the first that can stand for it, but rather one with its opcode, its
// MSN, its length, and one to the last request before it.
func (t *talk) best(r *seen) (best *answer) {
	top := -1
	syn, _, _ := r.aeth()
	var last *seen
	if len(t.byPSN[r.pos]) > 1 {
		last = t.f.lastBefore(r)
	}
	for _, a := range t.byPSN[r.pos] {
		if !alike(a, r) {
			continue
		}
		score := 0
		if h := bth.AETH(a.v.Header(bth.HAETH)); h != nil && h.Syndrome() == syn {
			score += 16
		}
		if a.op == r.op {
			score += 8
		}
		if _, msn, ok := r.aeth(); ok && a.op == r.op && msn == (bth.AETH(a.v.Header(bth.HAETH)).MSN()+t.delta)&0xFFFFFF {
			score += 4
		}
		if len(a.v.Payload) == len(r.v.Payload) {
			score += 2
		}
		if a.to == last {
			score++
		}
		if score > top {
			best, top = a, score
		}
	}
	return best
}

// use takes an answer out of those that no recorded one was compared with.
func (t *talk) use(a *answer, r *seen) {
	a.used, a.rec = true, r
	l := t.byPSN[a.pos]
	i := slices.Index(l, a)
	t.byPSN[a.pos] = slices.Delete(l, i, i+1)
}

// answer compares a recorded answer with what softnic's NIC has answered until then.
func (t *talk) answer(s *scene, r *seen) {
	syn, _, hasAETH := r.aeth()
	positive := !hasAETH || syn.IsAck()
	rnr, was := t.rnr, t.hi
	t.rnr = -1
	if hasAETH && syn.IsRNR() {
		t.rnr = r.pos
	}
	if positive {
		t.hi = max(t.hi, r.pos)
	}
	found := Finding{Packet: r.number, PSN: uint32(r.psn), Recorded: describe(&r.v), Now: "nothing"}
	tell := func(v Verdict, why string) {
		found.Verdict, found.Why = v, why
		t.find(found)
	}
	a := t.best(r)
	plain := r.op.Operation() == bth.Acknowledge
	switch {
	case t.lost != nil && r.at > t.lost.at:
		tell(Unknown, "it is behind what can be told")
	case a != nil:
		t.use(a, r)
		t.synced = true
		t.compare(s, a, r)
	case r.pos < 0 && (!plain || positive), r.at < t.f.requests[t.start].at:
		tell(Unknown, "it answers what was sent before the capture")
	case plain && positive && r.pos < t.expect && t.asks(r):
		tell(Different, "an ACK does not answer a READ or atomic")
	case plain && positive && r.pos > was && r.pos < t.expect:
		// softnic has acknowledged more with another, or was not asked to.
		t.pairs = append(t.pairs, pair{rec: r, expect: t.msnAt(r.pos)})
	case syn == bth.NakSequence && rnr == r.pos && t.c.Profile == "rxe":
		tell(Declared, "rdma_rxe complains of the gap behind an RNR NAK, softnic is silent")
	case !t.synced && r.pos >= t.expect:
		tell(Unknown, "the capture begins in the middle")
	default:
		t.unanswered(r, syn, tell, &found)
	}
}

// unanswered judges a recorded answer that softnic's NIC does not give.
func (t *talk) unanswered(r *seen, syn bth.Syndrome, tell func(Verdict, string), found *Finding) {
	if q := t.f.lastBefore(r); q != nil && q.n > 1 && syn.IsNak() && r.pos > q.pos {
		tell(Unknown, "the READ stopped in the middle: its memory may have been taken away")
		t.stop(q, "the recorded NIC has stopped in the middle of a READ")
		return
	}
	if l := t.byPSN[r.pos]; len(l) > 0 {
		a := l[0]
		t.use(a, nil)
		found.Now, found.Field = describe(&a.v), "opcode"
		now := bth.AETH(a.v.Header(bth.HAETH))
		if r.op == a.op {
			found.Field = "syndrome"
		}
		refused := r.op.Operation() == bth.Acknowledge && syn.IsNak() && syn != bth.NakSequence
		if refused && a.to.refused == syn && (now == nil || now.Syndrome().IsAck()) {
			key, _, _, ok := names(a.to)
			if ok && !t.given(key) {
				tell(Unknown, "why it was refused is not in the capture: its key may have been taken away (--mr says what it is)")
				t.stop(a.to, "the recorded NIC has refused a request that softnic takes")
				return
			}
		}
		tell(t.differs(r.pos))
		return
	}
	switch {
	case r.pos >= t.expect && syn.IsAck() && t.hole(r.pos):
		tell(Unknown, "it acknowledges requests that are not in the capture")
		t.stop(t.cur, "requests are missing from the capture")
	default:
		v, why := t.differs(r.pos)
		if v == Different {
			why = "softnic has no such answer"
		}
		tell(v, why)
	}
}

// differs is the verdict on a difference that hangs on which requests arrived, how often, and in which order: unknown where the capture does not tell.
func (t *talk) differs(pos int64) (Verdict, string) {
	switch {
	case t.o.Unruly && !(t.f.atTarget && t.whole):
		return Unknown, "packets may have been doubled or moved on the way"
	case !t.f.atTarget && (t.f.impaired || t.twice <= pos && pos <= t.top):
		return Unknown, "what arrived how often is not in the capture"
	}
	return Different, ""
}

func find[T any](l []*T, f func(*T) bool) *T {
	if i := slices.IndexFunc(l, f); i >= 0 {
		return l[i]
	}
	return nil
}

func (t *talk) given(key uint32) bool {
	return slices.ContainsFunc(t.o.Regions, func(r Region) bool { return r.RKey == key })
}

// lastBefore returns the last request before an answer that has its PSN.
func (f *flow) lastBefore(r *seen) *seen {
	from := sort.Search(len(f.requests), func(i int) bool { return f.requests[i].at > r.at }) - 1
	for i := from; i >= max(0, from-far); i-- {
		if q := f.requests[i]; r.pos >= q.pos && r.pos < q.pos+int64(q.n) {
			return q
		}
	}
	return nil
}

// asks reports whether the PSN of an answer is that of a READ or atomic.
func (t *talk) asks(r *seen) bool {
	q := t.f.lastBefore(r)
	return q != nil && (q.has(bth.Read) || q.has(bth.Atomic))
}

// hole reports whether a request up to pos is not in the capture: what was sent ends before it, or leaves it out.
func (t *talk) hole(pos int64) bool {
	if t.cur == nil {
		return true
	}
	// If the next one is there, softnic did not take it.
	return t.cur.pos > t.expect && pos >= t.expect && !t.fed(t.expect, t.cur.at+1)
}

// msnAt returns the MSN after a PSN.
func (t *talk) msnAt(pos int64) uint32 {
	i := sort.Search(len(t.done), func(i int) bool { return t.done[i].pos >= pos })
	if i == len(t.done) {
		return t.msn
	}
	return t.done[i].msn
}

// compare compares what does not need to be known of the other answers.
func (t *talk) compare(s *scene, a *answer, r *seen) {
	x, y := wire.SpecOf(&r.v), wire.SpecOf(&a.v)
	p := pair{rec: r, now: a}
	switch {
	case r.has(bth.Read) && !bytes.Equal(x.Payload, y.Payload) && len(x.Payload) == len(y.Payload):
		p.changed = "payload"
	case x.Ext.Original != y.Ext.Original:
		p.changed = "original"
	}
	if p.changed != "" && !t.o.Still {
		s.takeOver(a.to, r, t.mtu)
	}
	if _, msn, ok := r.aeth(); ok && p.msnKnown() && !a.to.again {
		t.delta = (msn - p.msn()) & 0xFFFFFF
	}
	t.pairs = append(t.pairs, p)
}
