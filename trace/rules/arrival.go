package rules

import (
	"time"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// arrived is what reached the responder, where the capture was made there: the PSN that it
// expects, by its own rules.
type arrived struct {
	known  bool
	synced bool // an answer has confirmed it
	epsn   bth.PSN
	gaps   [16]bth.PSN // first missing PSN of the last gaps
	ngaps  int
	ahead  bth.PSN // last one that came behind a missing one
	at     int64   // when
}

// arrival takes a request as the responder gets it.
func (c *Checker) arrival(f *flow) {
	h, v := &f.req, c.p.View
	psn := v.BTH().PSN()
	s := h.record(psn)
	if s == nil || !f.hasRx {
		return
	}
	s.got++
	n := 1
	if r := h.findRead(psn); r != nil {
		if r.n == 0 {
			h.arr.known = false
			return
		}
		n = r.end().Sub(psn)
	}
	a := &h.arr
	if !a.known {
		a.known, a.synced, a.epsn = true, false, psn
	}
	switch d := psn.Sub(a.epsn); {
	case d == 0:
		if !c.p.judged() || !refused(c.p.Fault) {
			a.epsn = psn.Add(n)
		}
	case d > 0:
		a.ahead, a.at = psn, c.p.Time
		if a.ngaps == 0 || a.gaps[(a.ngaps-1)%len(a.gaps)] != a.epsn {
			a.gaps[a.ngaps%len(a.gaps)] = a.epsn
			a.ngaps++
		}
	}
}

// gap reports whether something has arrived behind the missing PSN p.
func (a *arrived) gap(p bth.PSN) bool {
	for i := range min(a.ngaps, len(a.gaps)) {
		if a.gaps[i] == p {
			return true
		}
	}
	return false
}

// moment is how far apart packets are whose order in a capture may not be that in which the
// responder took them: a host may have several threads that receive.
const moment = 5 * int64(time.Microsecond)

// tied reports whether p is missing, and what came behind it came in the same moment as the one
// in front of it: the responder may have taken it for a gap.
func (a *arrived) tied(p bth.PSN, now int64) bool {
	return p == a.epsn && a.ngaps > 0 && a.ahead.After(p) && now-a.at <= moment
}

// notReady takes an RNR NAK: what it names was not executed, and so nothing behind it.
func (a *arrived) notReady(p bth.PSN) {
	if a.known && p.Before(a.epsn) {
		a.epsn = p
	}
}

// exact reports whether the expected PSN of the responder of f's requests is known.
func (c *Checker) exact(f *flow) bool {
	return f.hasRx && f.req.arr.known && f.req.arr.synced && c.o.Capture != Incomplete
}

// refused reports whether the responder's verdict on a packet is that it was not executed.
func refused(f wire.Fault) bool { return f == wire.NotReady || f == wire.BadRequest }
