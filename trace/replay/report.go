package replay

import (
	"fmt"
	"io"
	"strings"
)

// Text writes the result for people, as softnic trace does: the file, and of each conversation what came of it, what was assumed, and,
// with verbose, what was declared to differ beside what is different or unknown.
func (r *Result) Text(out io.Writer, verbose bool) error {
	w := &printer{w: out}
	for _, f := range r.Files {
		fmt.Fprintf(w, "%s: %s\n", f.Name, f.Format)
	}
	fmt.Fprintf(w, "%d packets, %d of them RoCEv2", max(r.Packets.Total, r.Packets.RoCE), r.Packets.RoCE)
	if r.Packets.Bad > 0 {
		fmt.Fprintf(w, " (%d left out: malformed, truncated or with a wrong ICRC)", r.Packets.Bad)
	}
	fmt.Fprintln(w)
	for _, c := range r.Conversations {
		fmt.Fprintln(w)
		c.print(w, verbose)
	}
	fmt.Fprintf(w, "\nnot compared: %s\n\n%v\n", strings.Join(r.Declared, "; "), r)
	return w.err
}

// printer remembers the first error.
type printer struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (p *printer) Write(b []byte) (int, error) {
	if p.err == nil {
		_, p.err = p.w.Write(b)
	}
	return len(b), p.err
}

func (c *Conversation) print(w io.Writer, verbose bool) {
	fmt.Fprintf(w, "%s  %v > %v  path MTU %d", c.Service, c.Requester, c.Responder, c.MTU)
	if c.Profile != "" {
		fmt.Fprintf(w, "  profile %s", c.Profile)
	}
	fmt.Fprintf(w, "\n    %d requests, %d fed, %d taken; %d answers: %s\n", c.Requests, c.Fed, c.Taken, c.Answers, c.counts())
	for _, n := range c.Notes {
		fmt.Fprintf(w, "    %s\n", n)
	}
	for _, f := range c.Findings {
		if verbose || f.Verdict != Declared {
			fmt.Fprintf(w, "    %v\n", f)
		}
	}
	if n := c.Declared + c.Different + c.Unknown - len(c.Findings); n > 0 && c.Findings != nil && len(c.Findings) == maxFindings {
		fmt.Fprintf(w, "    and %d more\n", n)
	}
}

// counts are those of the verdicts.
func (c *Conversation) counts() string {
	return fmt.Sprintf("%d same, %d declared, %d different, %d unknown", c.Same, c.Declared, c.Different, c.Unknown)
}

// String returns the finding in one line.
func (f Finding) String() string {
	s := fmt.Sprintf("packet %d: %s: PSN %06x", f.Packet, f.Verdict, f.PSN)
	if f.Field != "" {
		s += ", " + f.Field
	}
	s += fmt.Sprintf(": recorded %s, now %s", f.Recorded, f.Now)
	if f.Why != "" {
		s += ": " + f.Why
	}
	return s
}

// String returns the verdict in one line.
func (r *Result) String() string {
	var sum Conversation
	for _, c := range r.Conversations {
		sum.Same += c.Same
		sum.Declared += c.Declared
		sum.Different += c.Different
		sum.Unknown += c.Unknown
	}
	if sum.Different == 0 {
		return "nothing is different: " + sum.counts()
	}
	return "this NIC answers otherwise: " + sum.counts()
}
