package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/softnic/softnic/trace"
)

// textRows bounds the conversations that the text has; JSON has all.
const textRows = 50

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	p := &printer{w: w}
	r.head(p)
	for i := range r.Conversations {
		if i == textRows {
			p.line("")
			p.line("%d more conversations: --qp or --peer shows them, -j all", len(r.Conversations)-textRows)
			break
		}
		r.Conversations[i].text(p)
	}
	if r.chosen && len(r.Conversations) == 0 {
		p.line("")
		p.line("no conversation in here is of the queue pair and the address that were asked for")
	}
	if r.OutOfTable > 0 {
		p.line("")
		p.line("%d packets are of conversations for which the tables have no room", r.OutOfTable)
	}
	r.verdicts(p)
	return p.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", a...)
	}
}

func (r *Report) head(p *printer) {
	for _, f := range r.Files {
		s := ""
		for _, i := range f.Interfaces {
			if i.Packets > 0 || i.Lost > 0 {
				s += "; "
				if i.Name != "" {
					s += i.Name + ": "
				}
				s += fmt.Sprintf("%d %s", i.Packets, i.Link)
				if i.Lost > 0 {
					s += fmt.Sprintf(", %d lost", i.Lost)
				}
			}
		}
		p.line("%s: %s%s", f.Name, f.Format, s)
	}
	k := r.Packets
	s := fmt.Sprintf("%d packets, %d of them RoCEv2", k.Total, k.RoCE)
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{k.Bursts, "bursts that an offload made one packet of, taken apart"}, {k.TwiceSeen, "seen twice"}, {k.Cut, "truncated"}, {k.WrongICRC, "with a wrong ICRC"}, {k.Malformed, "malformed"},
		{k.Reserved, "with an opcode of a manufacturer or none"}, {k.BadIPSum, "with a wrong IP checksum"}, {k.BadUDPSum, "with a wrong UDP checksum"},
		{k.Sorted, "put into the order of time"},
	} {
		if x.n > 0 {
			s += fmt.Sprintf(" (%d %s)", x.n, x.text)
		}
	}
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{k.RoCEv1, "RoCEv1: not judged"}, {k.Fragments, "UDP fragments: not judged"}, {k.UnknownLink, "of a link type that cannot be read"},
	} {
		if x.n > 0 {
			s += fmt.Sprintf("; %d %s", x.n, x.text)
		}
	}
	p.line("%s", s)
	if k.Cut > 0 && !r.trustCut {
		p.line("of truncated packets nothing is judged: --trust-truncated judges them by their headers")
	}
	p.line("%s to %s, %s", r.Span.First.Format("2006-01-02 15:04:05.000000"), r.Span.Last.Format("15:04:05.000000 MST"), span(r.Span.Duration))
	what := "may lack packets"
	if r.Capture.Complete {
		what = "complete"
	}
	lost := ""
	if r.Capture.Lost > 0 {
		lost = fmt.Sprintf(", %d lost", r.Capture.Lost)
	}
	p.line("capture: %s%s: %s", what, lost, r.Capture.Why)
}

// span is a time of so many ns, as people read it.
func span(ns int64) string {
	d := time.Duration(ns)
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 1000).String()
		}
	}
	return d.String()
}

// short is a time in three digits: quantiles are not known better.
func short(ns int64) string {
	d, unit := time.Duration(ns), time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

func (c *Conversation) text(p *printer) {
	p.line("")
	s := fmt.Sprintf("%s  %v <> %v", c.Service, c.A, c.B)
	if c.MTU > 0 {
		s += fmt.Sprintf("  path MTU %d", c.MTU)
	}
	p.line("%s  %s", s, span(int64(c.Last.Sub(c.First))))
	for _, x := range []struct {
		d        *Direction
		from, to trace.End
	}{{c.AB, c.A, c.B}, {c.BA, c.B, c.A}} {
		if x.d != nil {
			p.line("  %v > %v", x.from.Addr, x.to.Addr)
			x.d.text(p)
		}
	}
}

func (d *Direction) text(p *printer) {
	s := fmt.Sprintf("%d packets, %d bytes of payload", d.Packets, d.Bytes)
	if d.Messages > 0 {
		s += fmt.Sprintf(", %d messages", d.Messages)
	}
	p.line("    %s", s)
	p.line("    %s", counts(d.Opcodes))
	if n := d.Retransmissions; n.Sum() > 0 {
		p.line("    %d sent again: %d after a NAK, %d after an implied NAK, %d after RNR, %d by timeout or for a reason not seen",
			n.Sum(), n.AfterNAK, n.Implied, n.AfterRNR, n.OnItsOwn)
	}
	var l []string
	if len(d.NAKs) > 0 {
		l = append(l, "NAKs: "+counts(d.NAKs))
	}
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{d.RNRNAKs, "RNR NAKs"}, {d.CNPs, "CNPs"}, {d.CEMarked, "CE-marked"}, {d.WrongICRC, "with a wrong ICRC"}, {d.Cut, "truncated"},
		{d.LostOnPurpose, "lost on purpose"}, {d.HeldOnPurpose, "held back on purpose"}, {d.ForgedOnPurpose, "changed or made on purpose"},
	} {
		if x.n > 0 {
			l = append(l, fmt.Sprintf("%d %s", x.n, x.text))
		}
	}
	if len(d.Dropped) > 0 {
		l = append(l, "dropped: "+counts(d.Dropped))
	}
	if len(l) > 0 {
		p.line("    %s", strings.Join(l, "; "))
	}
	if t := d.Latency; t != nil {
		p.line("    request to answer: min %s, median %s, p99 %s, max %s (%d)", short(t.Min), short(t.Median), short(t.P99), short(t.Max), t.Count)
	}
}

// counts is "a 3, b 1", the most first.
func counts(m map[string]uint64) string {
	names := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	l := make([]string, len(names))
	for i, n := range names {
		l[i] = fmt.Sprintf("%s %d", n, m[n])
	}
	return strings.Join(l, ", ")
}

// verdicts writes those on the rules: the broken ones with their places.
func (r *Report) verdicts(p *printer) {
	p.line("")
	var notMet []string
	for _, v := range r.Rules {
		if v.Verdict == "not-met" {
			notMet = append(notMet, v.Rule)
			continue
		}
		var l []string
		if v.Broken > 0 {
			l = append(l, fmt.Sprintf("BROKEN %d", v.Broken))
		}
		if v.Kept > 0 {
			l = append(l, fmt.Sprintf("kept %d", v.Kept))
		}
		if v.Unknown > 0 {
			l = append(l, fmt.Sprintf("unknown %d", v.Unknown))
		}
		p.line("%-23s %s", v.Rule, strings.Join(l, ", "))
		for _, w := range v.Why {
			p.line("    unknown %d: %s", w.Times, w.Text)
		}
		for _, x := range v.Violations {
			p.line("    packet %d: %v > %v QP 0x%x: %s", x.Packet, x.Src, x.Dst, x.QPN, x.Text)
		}
		if n := v.Broken - uint64(len(v.Violations)); n > 0 {
			p.line("    and %d more", n)
		}
	}
	if len(notMet) > 0 {
		p.line("not met: %s", strings.Join(notMet, ", "))
	}
	p.line("")
	if r.Broken == 0 {
		p.line("no rule is broken")
		return
	}
	p.line("rules are broken %d times", r.Broken)
}
