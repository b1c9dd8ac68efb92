package replay

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// finish judges what can be judged only at the end: the MSN, which may have begun elsewhere, and what is missing from the capture.
func (t *talk) finish() {
	delta := t.msnBegins()
	for _, p := range t.pairs {
		t.judge(p, delta)
	}
	last := int64(0) // when the last thing before an answer was seen
	for _, a := range t.ours {
		if last = max(last, a.to.time); a.rec != nil {
			last = max(last, a.rec.time)
		}
		if !a.used {
			t.missing(a, last)
		}
	}
	slices.SortStableFunc(t.c.Findings, func(a, b Finding) int { return a.Packet - b.Packet })
}

// msnBegins returns how much more the recorded NIC had counted when the capture began: what most answers say.
func (t *talk) msnBegins() uint32 {
	votes := map[uint32]int{}
	var most uint32
	for _, p := range t.pairs {
		if _, msn, ok := p.rec.aeth(); ok && p.msnKnown() {
			d := (msn - p.msn()) & 0xFFFFFF
			votes[d]++
			if votes[d] > votes[most] || votes[d] == votes[most] && d == 0 {
				most = d
			}
		}
	}
	if most != 0 {
		t.note("the MSN began at %d: the capture does not show the first messages", most)
	}
	return most
}

func (p *pair) msn() uint32 {
	if p.now == nil {
		return p.expect
	}
	return bth.AETH(p.now.v.Header(bth.HAETH)).MSN()
}

// judge gives the verdict on a recorded answer.
func (t *talk) judge(p pair, delta uint32) {
	f := Finding{Packet: p.rec.number, PSN: uint32(p.rec.psn), Verdict: Different}
	_, msn, hasAETH := p.rec.aeth()
	if hasAETH && p.msnKnown() && msn != (p.msn()+delta)&0xFFFFFF && !t.counted(p, msn-delta) {
		f.Verdict, f.Why = t.differs(p.rec.pos)
		f.Field, f.Recorded, f.Now = "MSN", fmt.Sprint(msn), fmt.Sprint((p.msn()+delta)&0xFFFFFF)
		t.find(f)
		return
	}
	if p.now == nil {
		f.Verdict, f.Recorded, f.Now = Declared, describe(&p.rec.v), "an ACK of a later PSN, or none"
		f.Why = "acknowledgements may stand for several, and come unasked"
		t.find(f)
		return
	}
	x, y := wire.SpecOf(&p.rec.v), wire.SpecOf(&p.now.v)
	for _, c := range []struct {
		name     string
		rec, now string
	}{
		{"opcode", x.BTH.Opcode.String(), y.BTH.Opcode.String()},
		{"destination", fmt.Sprintf("0x%x", x.BTH.DestQP), fmt.Sprintf("0x%x", y.BTH.DestQP)},
		{"P_Key", fmt.Sprintf("0x%x", x.BTH.PKey|0x8000), fmt.Sprintf("0x%x", y.BTH.PKey|0x8000)},
		{"MigReq", fmt.Sprint(x.BTH.MigReq), fmt.Sprint(y.BTH.MigReq)},
		{"solicited", fmt.Sprint(x.BTH.Solicited), fmt.Sprint(y.BTH.Solicited)},
		{"AckReq", fmt.Sprint(x.BTH.AckReq), fmt.Sprint(y.BTH.AckReq)},
		{"syndrome", x.Ext.Syndrome.String(), y.Ext.Syndrome.String()},
		{"length", fmt.Sprint(len(x.Payload)), fmt.Sprint(len(y.Payload))},
	} {
		if c.rec == c.now {
			continue
		}
		f.Field, f.Recorded, f.Now = c.name, c.rec, c.now
		if c.name == "opcode" || c.name == "length" || c.name == "syndrome" {
			f.Verdict, f.Why = t.differs(p.rec.pos)
		}
		if c.name == "syndrome" && x.Ext.Syndrome.IsAck() && y.Ext.Syndrome.IsAck() {
			f.Verdict, f.Why = Declared, "credits follow from the receives that are posted"
		}
		if c.name == "syndrome" && t.c.Profile == "rxe" && x.Ext.Syndrome == bth.NakRemoteOp && y.Ext.Syndrome == bth.NakInvalidRequest {
			f.Verdict, f.Why = Declared, "rdma_rxe says so of a receive that is too short"
		}
		t.find(f)
		return
	}
	if p.changed == "" {
		t.c.Same++
		return
	}
	f.Field = p.changed
	f.Recorded, f.Now = memory(&x, &y, p.changed)
	if !t.o.Still {
		f.Verdict, f.Why = Unknown, "the program at the recorded NIC may have written there (--still: it has not)"
	}
	t.find(f)
}

// counted reports whether an answer to a duplicate may have this MSN: one between that after its PSN and the count when the duplicate was seen,
// because what else came at that time may have been counted before or behind.
func (t *talk) counted(p pair, msn uint32) bool {
	if p.now == nil || !p.now.to.again {
		return false
	}
	least, most := t.msnAt(p.now.pos), p.msn()
	l := t.f.requests[t.start:]
	for i := sort.Search(len(l), func(i int) bool { return l[i].at > p.now.to.at }); i < len(l) && l[i].time-p.now.to.time < moment; i++ {
		if l[i].has(bth.End) {
			most++
		}
	}
	return (msn-least)&0xFFFFFF <= (most-least)&0xFFFFFF
}

func (p *pair) msnKnown() bool { return p.now == nil || p.now.v.Header(bth.HAETH) != nil }

// memory shows where two contents of memory differ.
func memory(x, y *wire.Spec, field string) (rec, now string) {
	if field == "original" {
		return fmt.Sprintf("0x%x", x.Ext.Original), fmt.Sprintf("0x%x", y.Ext.Original)
	}
	for i := range x.Payload {
		if x.Payload[i] != y.Payload[i] {
			return fmt.Sprintf("byte %d is 0x%02x", i, x.Payload[i]), fmt.Sprintf("0x%02x", y.Payload[i])
		}
	}
	return "", ""
}

// missing judges an answer of softnic's NIC that the capture does not have.
func (t *talk) missing(a *answer, last int64) {
	f := Finding{Packet: a.to.number, PSN: uint32(a.psn), Recorded: "nothing", Now: describe(&a.v)}
	h := bth.AETH(a.v.Header(bth.HAETH))
	nak := h != nil && !h.Syndrome().IsAck()
	plain := a.op.Operation() == bth.Acknowledge
	next := t.nextPositive(a)
	switch {
	case len(t.answers) == 0:
		return // nothing is compared
	case t.lost != nil && a.to.at >= t.lost.at:
		f.Verdict, f.Why = Unknown, "it is behind what can be told"
	case nak && h.Syndrome() == bth.NakSequence && !t.fed(a.pos, a.to.at):
		f.Verdict, f.Why = Unknown, "a request before it is not in the capture"
	case plain && !nak && next != nil:
		f.Verdict, f.Why = Declared, fmt.Sprintf("packet %d acknowledges it too", next.number)
	case t.lost != nil && slices.ContainsFunc(t.answers, func(r *seen) bool { return r.at > t.lost.at && r.pos == a.pos }):
		f.Verdict, f.Why = Unknown, "what may be it is behind what can be told"
	case t.forgotten(a.to):
		f.Verdict, f.Why = Unknown, "its receiver says that it remembers none so old, and how many it remembers is not in the capture"
	case last >= t.last:
		f.Verdict, f.Why = Unknown, "the capture ends before it"
	case t.o.lossy:
		f.Verdict, f.Why = Unknown, "the capture may have lost it"
	case !t.whole && t.resent(a):
		f.Verdict, f.Why = Unknown, "it may have been lost: the request came again"
	case t.together(a):
		f.Verdict, f.Why = Declared, "a request and its duplicate that arrive together may be answered once"
	default:
		f.Verdict, f.Why = t.differs(a.pos)
	}
	t.find(f)
}

// forgotten reports whether a softnic says that it does not remember a READ or atomic that came again, and it was not the last.
func (t *talk) forgotten(q *seen) bool {
	return q.dir == trace.Rx && q.fault == wire.DuplicateUnserved && slices.ContainsFunc(t.f.requests[t.start:], func(x *seen) bool {
		return x.at < q.at && x.pos > q.pos && x.taken() && x.v.Info.Flags&(bth.Send|bth.Write) == 0
	})
}

// nextPositive returns the first recorded answer behind the request of a that acknowledges as much.
func (t *talk) nextPositive(a *answer) *seen {
	l := t.answers[sort.Search(len(t.answers), func(i int) bool { return t.answers[i].at > a.to.at }):]
	return find(l, func(r *seen) bool {
		s, _, ok := r.aeth()
		return r.pos >= a.pos && (!ok || s.IsAck() || r.pos > a.pos)
	})
}

// fed reports whether a request was given to the NIC before.
func (t *talk) fed(pos int64, at int) bool {
	return slices.ContainsFunc(t.sent[pos], func(q *seen) bool { return q.at < at && !q.lost })
}

// resent reports whether the PSN of an answer was asked for again.
func (t *talk) resent(a *answer) bool {
	l := t.f.requests[t.start:]
	return t.behind[sort.Search(len(l), func(i int) bool { return l[i].at > a.to.at })] <= a.pos
}

// together reports whether the request of an answer came twice at about the same time, so that one answer may be for both.
func (t *talk) together(a *answer) bool {
	return slices.ContainsFunc(t.f.requests[t.start:], func(q *seen) bool {
		d := q.time - a.to.time
		return q != a.to && -moment < d && d < moment && a.pos >= q.pos && a.pos < q.pos+int64(q.n)
	})
}

// describe writes an answer in few words.
func describe(v *wire.View) string {
	s := strings.TrimPrefix(strings.TrimPrefix(v.BTH().Opcode().String(), "X"), "RC_") + " " + v.BTH().PSN().String()
	if h := bth.AETH(v.Header(bth.HAETH)); h != nil {
		s += fmt.Sprintf(" %v MSN %d", h.Syndrome(), h.MSN())
	}
	if n := len(v.Payload); n > 0 {
		s += fmt.Sprintf(", %d bytes", n)
	}
	return s
}
