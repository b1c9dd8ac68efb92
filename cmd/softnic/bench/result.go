package bench

import (
	"fmt"
	"io"
	"strings"
)

// Result is what was measured.
type Result struct {
	Config
	Title       string  `json:"title"`
	Link        string  `json:"link"`         // of the measuring side
	Processes   int     `json:"processes"`    // 1 or 2
	Iterations  int     `json:"iterations"`   // messages in the timed part
	Seconds     float64 `json:"seconds"`      // of that
	Interrupted bool    `json:"interrupted"`  // the user ended it before it was over
	BytesPerSec float64 `json:"bytes_per_s"`  // bandwidth: payload; 10^6 of them are a MB/s
	PeakPerSec  float64 `json:"peak_bytes_s"` // the same in the best 10 ms or more
	MsgPerSec   float64 `json:"messages_per_s"`

	// What the queue pair with the least messages has moved, and the one with the most, in parts of the mean of all: 1 is fair. Only
	// where there are several, and they compete: with a Duration.
	LeastShare *float64 `json:"least_share,omitempty"`
	MostShare  *float64 `json:"most_share,omitempty"`

	Times *Latency `json:"times,omitempty"` // latency: one way for WRITE and SEND, the whole operation for READ and atomics

	// Both sides, over the timed part and its warm-up.
	Packets         uint64   `json:"packets"` // sent, by both
	CPUSeconds      *float64 `json:"cpu_s"`   // null where the system does not tell
	CPUPerGB        *float64 `json:"cpu_s_per_gb"`
	AllocsPerPacket float64  `json:"allocs_per_packet"`
	Verified        bool     `json:"verified"` // every byte of a message on each queue pair; the sum of all atomics
}

// mib is what perftest calls MB.
const mib = 1 << 20

// Print prints the result as perftest does, and beneath what perftest does not know.
func (r *Result) Print(w io.Writer) {
	const line = "---------------------------------------------------------------------------------------"
	fmt.Fprintf(w, "%s\n%*s\n", line, (len(line)+len(r.Title))/2, r.Title)
	fmt.Fprintf(w, " %s, RC, path MTU %d[B], %s, %s\n", r.Link, r.PathMTU, plural(r.Processes, "process", "es"), r.how())
	fmt.Fprintln(w, line)
	if l := r.Times; l != nil {
		fmt.Fprintln(w, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]")
		fmt.Fprintf(w, " %-7d %-10d     %-12.2f   %-12.2f %-14.2f     %-10.2f     %-10.2f      %-14.2f         %.2f\n", r.Size, r.Iterations, l.Min, l.Max, l.Typical, l.Average, l.Stdev, l.P99, l.P999)
	} else {
		fmt.Fprintln(w, " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]")
		fmt.Fprintf(w, " %-10d %-14d %-18.2f %-20.2f %.6f\n", r.Size, r.Iterations, r.PeakPerSec/mib, r.BytesPerSec/mib, r.MsgPerSec/1e6)
	}
	fmt.Fprintln(w, line)
	cpu := "CPU time unknown here"
	if r.CPUSeconds != nil {
		cpu = fmt.Sprintf("%.2f s of CPU", *r.CPUSeconds)
		if r.Times == nil {
			cpu += fmt.Sprintf(", %.2f s per GB", *r.CPUPerGB)
		}
	}
	fmt.Fprintf(w, " both sides, warm-up too: %s, %d packets sent, %.3f allocations per packet; data verified\n", cpu, r.Packets, r.AllocsPerPacket)
	if r.LeastShare != nil {
		fmt.Fprintf(w, " of the messages each queue pair moved %.2f to %.2f times the mean\n", *r.LeastShare, *r.MostShare)
	}
	if r.Interrupted {
		fmt.Fprintf(w, " interrupted after %.2f s: this is what was measured until then\n", r.Seconds)
	}
}

func (r *Result) how() string {
	l := []string{"waits by " + string(r.Wait)}
	if !r.Latency {
		l = append(l, plural(r.QPs, "queue pair", "s"), fmt.Sprintf("tx depth %d, lists of %d", r.Depth, r.List))
	}
	return strings.Join(l, ", ")
}

func plural(n int, word, s string) string {
	if n != 1 {
		word += s
	}
	return fmt.Sprintf("%d %s", n, word)
}
