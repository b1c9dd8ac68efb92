package replay

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes the result for people: a table of conversations, what was assumed, and, with verbose, what was declared to differ
// beside what is different or unknown.
func (r *Result) Print(w io.Writer, verbose bool) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tREQUESTER\tRESPONDER\tQP\tPROFILE\tMTU\tREQUESTS\tFED\tTAKEN\tANSWERS\tSAME\tDECLARED\tDIFFERENT\tUNKNOWN")
	for _, c := range r.Conversations {
		profile := c.Profile
		if profile == "" {
			profile = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t0x%x\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", c.Service, c.Requester, c.Responder, c.QPN, profile, c.MTU,
			c.Requests, c.Fed, c.Taken, c.Answers, c.Same, c.Declared, c.Different, c.Unknown)
	}
	_ = t.Flush()
	for _, c := range r.Conversations {
		name := fmt.Sprintf("%s to QP 0x%x of %s", c.Service, c.QPN, c.Responder)
		for _, n := range c.Notes {
			fmt.Fprintf(w, "%s: %s\n", name, n)
		}
		for _, f := range c.Findings {
			if verbose || f.Verdict != Declared {
				fmt.Fprintf(w, "%s: %v\n", name, f)
			}
		}
		if n := c.Declared + c.Different + c.Unknown; n > maxFindings {
			fmt.Fprintf(w, "%s: %d findings more\n", name, n-maxFindings)
		}
	}
	if r.Bad > 0 {
		fmt.Fprintf(w, "%d packets that no NIC would take (malformed, cut, wrong ICRC) were left out\n", r.Bad)
	}
	fmt.Fprintf(w, "not compared: %s\n", strings.Join(r.Declared, "; "))
}

// String returns the finding in one line.
func (f Finding) String() string {
	s := fmt.Sprintf("%s: packet %d, PSN %06x", f.Verdict, f.Packet, f.PSN)
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
	var same, declared, unknown, fed int
	for _, c := range r.Conversations {
		same, declared, unknown, fed = same+c.Same, declared+c.Declared, unknown+c.Unknown, fed+c.Fed
	}
	return fmt.Sprintf("%d packets fed, answers: %d same, %d other as declared, %d different, %d unknown", fed, same, declared, r.Different(), unknown)
}
