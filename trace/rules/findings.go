package rules

import (
	"fmt"
	"net/netip"
	"strings"
)

// Finding is the verdict on one rule.
type Finding struct {
	Rule    ID
	Kept    uint64 // times that it was kept
	Broken  uint64 // times that it was broken
	Unknown uint64 // times that it could not be judged

	Violations []Violation // the first Options.Examples of Broken
	Why        []Reason    // why Unknown
}

// Violation is one place where a rule was broken.
type Violation struct {
	Packet   uint64 // number of the packet
	Time     int64  // ns, as the packet had it
	Src, Dst netip.Addr
	QPN      uint32 // destination queue pair
	Text     string
}

// Reason says how often a rule could not be judged for it.
type Reason struct {
	Text  string
	Times uint64
}

// String is the violation in one line.
func (v Violation) String() string {
	return fmt.Sprintf("packet %d: %v > %v QP 0x%x: %s", v.Packet, v.Src, v.Dst, v.QPN, v.Text)
}

// String is the finding in a line, and a line for each violation that is told.
func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-22s kept %d, broken %d, unknown %d", f.Rule, f.Kept, f.Broken, f.Unknown)
	for _, w := range f.Why {
		fmt.Fprintf(&b, " (%d: %s)", w.Times, w.Text)
	}
	for _, v := range f.Violations {
		b.WriteString("\n  ")
		b.WriteString(v.String())
	}
	return b.String()
}

// why is a reason for "unknown".
type why uint8

const (
	whyUnpaired why = iota
	whyStart
	whyForgotten
	whyLostBefore
	whyLostBehind
	whyPurpose
	whyIncomplete
	whyUnruly
	whyMTU
	whyTimeout
	whyDepth
	whyRetries
	whyInFlight
	whyExcused
	whyCut
	whyID
	whyNoICRC
	whyInterval
	whyCE
	whyReset
	whyVendor
	whyTie
	whyOrder
	whyJitter
	whyClock
	whys
)

var whyText = [whys]string{
	whyUnpaired:   "the other direction of the connection is not in the capture, or cannot be told from others",
	whyStart:      "begun before the capture",
	whyForgotten:  "too long ago, not remembered any more",
	whyLostBefore: "packets are missing that may have been lost before the place of the capture",
	whyPurpose:    "requests were held back, doubled or changed on purpose",
	whyLostBehind: "answers may have been lost behind the place of the capture",
	whyIncomplete: "the capture itself may have lost packets",
	whyUnruly:     "the network may reorder or double packets",
	whyMTU:        "the path MTU is not known",
	whyTimeout:    "the local ACK timeout is not known",
	whyDepth:      "the depth that was agreed is not known",
	whyRetries:    "retry_cnt is not known",
	whyInFlight:   "may have been on its way already",
	whyExcused:    "what it follows was wrong itself",
	whyCut:        "the capture has only the beginning of the packet",
	whyID:         "the IP header was not seen",
	whyNoICRC:     "not asked for",
	whyInterval:   "the CNP interval is not known",
	whyCE:         "CE marks may have been set behind the place of the capture",
	whyReset:      "taken for the first packet of a new connection on the same queue pair",
	whyVendor:     "opcode of a manufacturer, or not assigned",
	whyTie:        "the timer and an answer came in the same moment, and which was first is not known",
	whyOrder:      "in which order packets of one moment were taken is not known",
	whyJitter:     "by less than what may lie between a packet and its time",
	whyClock:      "the clock of the capture was set back",
}

// tally counts the verdicts on one rule.
type tally struct {
	kept, broken uint64
	unknown      [whys]uint64
	violations   []Violation
}

// Findings returns the verdicts on all rules until now, in order of the table.
func (c *Checker) Findings() []Finding {
	out := make([]Finding, Count)
	for i := range c.tally {
		t := &c.tally[i]
		f := Finding{Rule: ID(i), Kept: t.kept, Broken: t.broken, Violations: t.violations[:len(t.violations):len(t.violations)]}
		for w, n := range t.unknown {
			if n > 0 {
				f.Unknown += n
				f.Why = append(f.Why, Reason{whyText[w], n})
			}
		}
		out[i] = f
	}
	return out
}

// Broken returns how often any rule was broken.
func (c *Checker) Broken() (n uint64) {
	for i := range c.tally {
		n += c.tally[i].broken
	}
	return n
}

func (c *Checker) keep(r ID) { c.tally[r].kept++ }

func (c *Checker) unknown(r ID, w why) { c.tally[r].unknown[w]++ }

// broken counts a violation at the packet under judgement.
func (c *Checker) broken(r ID, format string, args ...any) {
	c.blame(r, c.here(), format, args...)
}

// blame counts a violation at a place that here has returned.
func (c *Checker) blame(r ID, at Violation, format string, args ...any) {
	t := &c.tally[r]
	t.broken++
	if len(t.violations) >= c.o.Examples {
		return
	}
	at.Text = fmt.Sprintf(format, args...)
	t.violations = append(t.violations, at)
}

// here is the place of the packet under judgement.
func (c *Checker) here() Violation {
	v := Violation{Packet: c.p.Number, Time: c.p.Time}
	if w := c.p.View; w != nil && len(w.Net) > 0 {
		v.Src, v.Dst = w.Src(), w.Dst()
		if len(w.IB) > 0 {
			v.QPN = w.BTH().DestQP()
		}
	}
	return v
}
