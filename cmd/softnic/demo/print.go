package demo

import (
	"cmp"
	"fmt"
	"text/tabwriter"
	"time"
)

func (d *demo) printf(format string, a ...any) { fmt.Fprintf(d.opts.Out, format, a...) }

// The columns of the list of retransmissions.
const (
	listHead = "    %-12s  %-4s  %-8s  %-33s  %-34s  %-17s  %s\n"
	listLine = "    %9.3f ms  %-4s  0x%06x  %-33s  %-34s  %-17s  %d%s\n"
)

// list prints retransmissions: a line for each, or for each run of PSNs that were sent again
// together.
func (d *demo) list(l []Retransmission) {
	for len(l) > 0 {
		n := 1
		for !d.opts.Verbose && n < len(l) && follows(&l[n-1], &l[n]) {
			n++
		}
		first, last := &l[0], &l[n-1]
		op, psn := first.Opcode, fmt.Sprintf("0x%06x", first.PSN)
		if n > 1 {
			psn += fmt.Sprintf(" ... 0x%06x (%d packets)", last.PSN, n)
			if last.Opcode != op {
				op += " ... " + last.Opcode
			}
		}
		note := ""
		if first.Lost {
			note = ", lost again"
		}
		d.printf(listLine, float64(first.Time)/float64(time.Millisecond), first.NIC, first.DestQP, op, psn, first.Cause, first.Round, note)
		l = l[n:]
	}
}

// inOrder compares retransmissions by time, and those of one moment by PSN.
func inOrder(a, b Retransmission) int {
	if c := cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.Round, b.Round)); c != 0 {
		return c
	}
	return int(int32((a.PSN-b.PSN)<<8)) >> 8 // 24 bits that wrap
}

// follows reports whether b is the packet after a in one go.
func follows(a, b *Retransmission) bool {
	return a.NIC == b.NIC && a.DestQP == b.DestQP && a.Cause == b.Cause && a.Round == b.Round && a.Lost == b.Lost && b.PSN == (a.PSN+1)&0xFFFFFF
}

// table prints what was moved.
func (d *demo) table() {
	d.printf("\nWhat arrived, compared byte by byte:\n\n")
	w := tabwriter.NewWriter(d.opts.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  operation\tsizes\tmessages\t%8s\tretransmitted\tverified\n", "bytes")
	var sum Row
	for _, r := range d.report.Operations {
		verified := "yes"
		if !r.Verified {
			verified = "NO"
		}
		fmt.Fprintf(w, "  %s\t%s\t%8d\t%8d\t%13d\t%s\n", r.Operation, sizesText(r.Sizes), r.Messages, r.Bytes, r.Retransmitted, verified)
		sum.Messages += r.Messages
		sum.Bytes += r.Bytes
		sum.Retransmitted += r.Retransmitted
	}
	fmt.Fprintf(w, "  total\t\t%8d\t%8d\t%13d\n", sum.Messages, sum.Bytes, sum.Retransmitted)
	w.Flush()
}
