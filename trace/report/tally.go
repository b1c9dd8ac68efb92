package report

import (
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// maxRows bounds the tables.
const maxRows = 16384

// tally counts a packet in the tables.
func (a *analysis) tally(h *trace.Sighting, p *rules.Packet, s *rules.Seen, cause rules.Cause) {
	v := p.View
	if h.BadIP {
		a.p.BadIPSum++
	}
	if h.BadUDP {
		a.p.BadUDPSum++
	}
	switch {
	case h.Cut && s.Read:
		a.p.Cut++
	case h.Cut:
		a.p.Cut++
		if len(v.IB) < bth.Len {
			return
		}
	case s.WrongICRC:
		a.p.WrongICRC++
	case p.Fault == wire.ReservedOpcode:
		a.p.Reserved++
		return
	case !s.Read:
		a.p.Malformed++
		return
	}
	b := v.BTH()
	k := key{v.Src(), v.Dst(), b.DestQP(), serviceOf(b.Opcode())}
	r := a.row(k, h.Time, s.WrongICRC)
	if r == nil {
		return
	}
	r.last = max(r.last, h.Time)
	switch {
	case s.WrongICRC && p.Fate == rules.Forged:
		r.forged++
		a.dot(r, p, MarkLost)
		return
	case s.WrongICRC:
		if r.firstSight(p, a.seed, v.IB) {
			r.wrong++
		} else {
			a.p.WrongICRC--
			a.p.TwiceSeen++
		}
		a.dot(r, p, MarkLost)
		return
	case h.Cut && !s.Read:
		if r.firstSight(p, a.seed, v.IB) {
			r.addCut(v)
		} else {
			a.p.TwiceSeen++
		}
		return
	}
	sent, arrived := s.Sent, s.Arrived
	if k.service == bth.UD || k.service == bth.CNP {
		sent = r.firstSight(p, a.seed, v.IB)
		arrived = p.Dir == rules.Rx || p.Dir == rules.Unknown && sent
	}
	if !sent && p.Fate != rules.Forged {
		a.p.TwiceSeen++
	}
	if s.Cause != rules.NotAgain && cause != rules.NotAgain {
		s.Cause = cause // its sender knows
	}
	r.add(p, s, s.Cause, sent, arrived)
	if a.changed { // what it was changed to comes next
		r.lost--
	}
	if h.Cut && sent {
		r.cut++
	}
	if gone := p.Fate == rules.Lost || p.Fate == rules.Dropped; sent || gone {
		a.dot(r, p, markOf(v, s.Cause, p.Fate))
	}
}

// serviceOf is the service that a packet is counted with: masked atomics are of RC.
func serviceOf(o bth.Opcode) bth.Service {
	if o.Service() == bth.Vendor {
		return bth.RC
	}
	return o.Service()
}

// row returns the row of a key; nil if there is none, and none is made for known only or for want of room.
func (a *analysis) row(k key, now int64, known bool) *row {
	if a.latest != nil && a.latest.key == k {
		return a.latest
	}
	r := a.rows[k]
	if r == nil {
		switch {
		case known:
			return nil
		case len(a.rows) >= maxRows:
			a.outside++
			return nil
		}
		r = &row{key: k, first: now}
		a.rows[k] = r
	}
	a.latest = r
	return r
}

// aside counts a packet that was lost on purpose where nothing else is captured.
func (a *analysis) aside(p *rules.Packet, cause rules.Cause) {
	v := p.View
	if p.Fault != wire.Impaired || len(v.IB) < bth.Len {
		return
	}
	r := a.row(key{v.Src(), v.Dst(), v.BTH().DestQP(), serviceOf(v.BTH().Opcode())}, p.Time, false)
	if r == nil {
		return
	}
	sent := p.Dir == rules.Tx && p.Fate == rules.Lost // the others are seen elsewhere, or later
	if !sent {
		a.p.TwiceSeen++
	}
	r.add(p, &rules.Seen{Latency: -1}, cause, sent, false)
	if p.Fate == rules.Lost {
		a.dot(r, p, MarkLost)
	}
}
