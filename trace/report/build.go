package report

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// nakNames are the names of the NAK codes, in their order.
var nakNames = [...]string{"sequence", "invalid-request", "remote-access", "remote-op", "invalid-rd"}

// report puts together what is known.
func (a *analysis) report() *Report {
	n := &a.in.Counts
	a.p.Total, a.p.RoCE, a.p.RoCEv1, a.p.Fragments, a.p.Other, a.p.UnknownLink, a.p.Bursts = n.Total, n.RoCE, n.RoCEv1, n.Fragments, n.Other, n.UnknownLink, n.Bursts
	r := &Report{Packets: a.p, OutOfTable: a.outside, Files: []File{}, Conversations: []Conversation{}, Rules: []Verdict{}, trustCut: a.o.Rules.TrustCut, chosen: a.o.QPN != nil || a.o.Peer.IsValid()}
	r.Span = Span{at(a.first), at(a.last), a.last - a.first}
	for _, f := range a.in.Files() {
		x := File{Name: f.Name, Format: f.Format(), Interfaces: []Interface{}}
		for _, i := range f.Interfaces() {
			x.Interfaces = append(x.Interfaces, Interface{i.Name, i.Description, i.Link.String(), i.Packets, i.Received, i.Dropped})
		}
		r.Files = append(r.Files, x)
	}
	r.Capture.Lost = a.in.Lost()
	judge := a.completeness(&r.Capture)
	for _, f := range judge.Findings() {
		v := Verdict{Rule: f.Rule.String(), Verdict: "kept", Kept: f.Kept, Broken: f.Broken, Unknown: f.Unknown, Why: []Reason{}, Violations: []Violation{}}
		switch {
		case f.Broken > 0:
			v.Verdict = "broken"
		case f.Kept == 0 && f.Unknown == 0:
			v.Verdict = "not-met"
		case f.Kept == 0:
			v.Verdict = "unknown"
		}
		for _, w := range f.Why {
			v.Why = append(v.Why, Reason(w))
		}
		slices.SortStableFunc(v.Why, func(a, b Reason) int { return cmp.Compare(b.Times, a.Times) })
		for _, x := range f.Violations {
			v.Violations = append(v.Violations, Violation{x.Packet, at(x.Time), x.Src, x.Dst, x.QPN, x.Text})
		}
		r.Rules = append(r.Rules, v)
		r.Broken += f.Broken
	}
	a.conversations(r)
	return r
}

func at(ns int64) time.Time { return time.Unix(0, ns).UTC() }

// completeness says whether the capture has all, and returns the checker whose verdicts hold.
func (a *analysis) completeness(c *Capture) *rules.Checker {
	switch a.o.Rules.Capture {
	case rules.Complete:
		c.Complete, c.Why = true, "as was said"
		return a.main
	case rules.Incomplete:
		c.Why = "as was said"
		return a.main
	}
	if a.careful == nil {
		c.Why = "it does not tell where packets were seen, and whether all are there"
		return a.main
	}
	for _, f := range a.in.Files() {
		for k, i := range f.Interfaces() {
			name := i.Name
			if len(a.in.Files()) > 1 {
				name = f.Name + ": " + name
			}
			ours := f.Interfaces()[k].Speaks()
			switch {
			case !i.Told:
				c.Why = fmt.Sprintf("interface %s does not say at its end whether all packets are there", name)
			case i.Dropped > 0:
				c.Why = fmt.Sprintf("interface %s lost %d packets", name, i.Dropped)
			case ours && i.Received != i.Packets:
				c.Why = fmt.Sprintf("interface %s had %d packets, and %d are there", name, i.Received, i.Packets)
			default:
				continue
			}
			return a.careful
		}
	}
	for _, f := range a.in.Files() {
		if len(f.Late) > 0 {
			c.Why = fmt.Sprintf("the first packets of %s were lost on purpose, before it was known that all of its packets are there", f.Late[0])
			return a.careful
		}
	}
	if c.Lost > 0 {
		c.Why = fmt.Sprintf("%d packets were lost", c.Lost)
		return a.careful
	}
	c.Complete, c.Why = true, "each interface says that all its packets are there"
	return a.main
}

// conversations joins the rows and fills the tables, the busiest first.
func (a *analysis) conversations(r *Report) {
	rows := make([]*row, 0, len(a.rows))
	for _, x := range a.rows {
		if x.key.service != bth.CNP {
			rows = append(rows, x)
		}
	}
	byTime := func(x, y *row) int {
		return cmp.Or(cmp.Compare(x.first, y.first), x.key.src.Compare(y.key.src), x.key.dst.Compare(y.key.dst), cmp.Compare(x.key.qpn, y.key.qpn), cmp.Compare(x.key.service, y.key.service))
	}
	for _, x := range a.rows {
		if x.key.service == bth.CNP && !a.notify(x) {
			rows = append(rows, x)
		}
	}
	slices.SortFunc(rows, byTime)
	type joined struct{ ab, ba *row }
	var all []joined
	done := map[*row]bool{}
	claims := map[key]*row{} // rows by the other direction, where that is known
	for _, x := range rows {
		if x.sourceOK {
			claims[key{x.key.dst, x.key.src, x.source, x.key.service}] = x
		}
	}
	for _, x := range rows {
		if done[x] {
			continue
		}
		j := joined{ab: x}
		y := claims[x.key]
		if x.sourceOK {
			y = a.rows[key{x.key.dst, x.key.src, x.source, x.key.service}]
		}
		if y != nil && y != x && !done[y] && (!y.sourceOK || y.source == x.key.qpn) {
			j.ba = y
			done[y] = true
		}
		done[x] = true
		all = append(all, j)
	}
	packets := func(j joined) uint64 {
		n := j.ab.packets
		if j.ba != nil {
			n += j.ba.packets
		}
		return n
	}
	slices.SortStableFunc(all, func(x, y joined) int { return cmp.Compare(packets(y), packets(x)) })
	for _, j := range all {
		c := conversation(j.ab, j.ba)
		if !a.wanted(&c) {
			continue
		}
		r.Conversations = append(r.Conversations, c)
		if r.picture == nil && a.o.Picture {
			r.picture = picture(r.Span.First, &c, j.ab, j.ba)
		}
	}
}

// notify counts the CNPs to a queue pair with what else goes to it, if anything does.
func (a *analysis) notify(x *row) bool {
	k := x.key
	for _, k.service = range []bth.Service{bth.RC, bth.UC, bth.XRC, bth.UD} {
		if r := a.rows[k]; r != nil {
			r.cnps += x.cnps
			r.packets += x.packets
			r.ops = append(r.ops, x.ops...)
			r.first, r.last = min(r.first, x.first), max(r.last, x.last)
			return true
		}
	}
	return false
}

// wanted reports whether a conversation is to be in the tables.
func (a *analysis) wanted(c *Conversation) bool {
	is := func(e trace.End) bool { return a.o.QPN == nil || e.QPN != nil && *e.QPN == *a.o.QPN }
	return (is(c.A) || is(c.B)) && (!a.o.Peer.IsValid() || c.A.Addr == a.o.Peer || c.B.Addr == a.o.Peer)
}

func conversation(ab, ba *row) Conversation {
	k := ab.key
	c := Conversation{A: trace.End{Addr: k.src}, B: trace.End{Addr: k.dst, QPN: &k.qpn}, Service: k.service.String(), MTU: ab.mtu, First: at(ab.first), Last: at(ab.last)}
	if ab.sourceOK {
		c.A.QPN = &ab.source
	}
	c.AB = direction(ab, nil)
	if ba != nil {
		c.A.QPN = &ba.key.qpn
		c.MTU = max(c.MTU, ba.mtu)
		c.First, c.Last = at(min(ab.first, ba.first)), at(max(ab.last, ba.last))
		c.AB = direction(ab, ba.took)
		c.BA = direction(ba, ab.took)
	}
	return c
}

// direction is a row of the tables; took is from the row of the answers.
func direction(r *row, took *latencies) *Direction {
	d := &Direction{
		Packets: r.packets, Bytes: r.bytes, Messages: r.messages, ACKs: r.acks, RNRNAKs: r.rnr, CNPs: r.cnps, CEMarked: r.marked,
		WrongICRC: r.wrong, Cut: r.cut, LostOnPurpose: r.lost, HeldOnPurpose: r.held, ForgedOnPurpose: r.forged,
		Opcodes: map[string]uint64{}, NAKs: map[string]uint64{}, Dropped: map[string]uint64{},
		Retransmissions: Retransmissions{r.again[rules.AfterNAK], r.again[rules.ImpliedNAK], r.again[rules.AfterRNR], r.again[rules.OnItsOwn]},
	}
	for _, x := range r.ops {
		d.Opcodes[x.op.String()] += x.n
	}
	for i, n := range r.naks {
		if n > 0 {
			d.NAKs[nakNames[i]] = n
		}
	}
	for f, n := range r.dropped {
		if n > 0 {
			d.Dropped[wire.Fault(f).String()] = uint64(n)
		}
	}
	if took != nil {
		d.Latency = &Latency{took.n, took.min, took.quantile(0.5), took.quantile(0.99), took.max}
	}
	return d
}
