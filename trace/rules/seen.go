package rules

import "github.com/softnic/softnic/wire/bth"

// Cause says why a request is sent again.
type Cause uint8

// The causes.
const (
	NotAgain   Cause = iota // it is sent for the first time
	AfterNAK                // a sequence NAK
	ImpliedNAK              // an answer behind one that is missing
	AfterRNR                // an RNR NAK, waited for
	OnItsOwn                // the ACK timer, as far as the capture tells: nothing in it asked for it
)

// Seen is what the checker took a packet for: tables and pictures go by it, so that they count as the verdicts do.
type Seen struct {
	Read      bool // its headers were read: the following is set
	WrongICRC bool // and nothing behind it: such a packet may be anybody's
	Sent      bool // this is the first sighting of it: its sender sent it now
	Arrived   bool // this is the sighting that counts as its arrival
	Cause     Cause
	Peer      uint32 // queue pair of the one that sent it; valid if Paired
	Paired    bool
	MTU       int   // path MTU that is known of the requests that go this way or of those it answers; 0: unknown
	Latency   int64 // ns since the request that it is the first answer to, which was sent once; -1 otherwise
}

// look notes what is known of the flow at hand for the one who asks.
func (c *Checker) look(f *flow) {
	c.seen.MTU = f.mtu
	if p := f.peer; p != nil {
		c.seen.Paired, c.seen.Peer = true, p.key.qpn
	}
}

// again notes that a request was sent before, and why it is sent now.
func (c *Checker) again(h *half) {
	switch h.cause {
	case reasonNak:
		c.seen.Cause = AfterNAK
	case reasonNakIn:
		c.seen.Cause = ImpliedNAK
	case reasonRNR:
		c.seen.Cause = AfterRNR
	default:
		c.seen.Cause = OnItsOwn
	}
}

// latency notes how long the request took that is answered at its sender by the packet at hand, for the first time.
func (c *Checker) latency(h *half, psn bth.PSN) {
	if !h.started || psn.Before(h.first) || !psn.Before(h.max) || h.sure && psn.Before(h.una) {
		return
	}
	s := h.record(psn)
	if s == nil || s.seen != 1 || ownAnswer(s.op) && s.psn != psn || s.timed {
		return
	}
	s.timed = true
	if took := c.p.Time - s.at; took >= 0 {
		c.seen.Latency = took
	}
}
