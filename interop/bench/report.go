//go:build linux

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// measured is a run of a probe.
type measured struct {
	Sample sample  `json:"sample"`
	Others float64 `json:"others"`          // CPUs that other processes used meanwhile
	Guest  float64 `json:"guest,omitempty"` // of the lab's guest: CPUs in use there before, when nothing was to run
}

// quiet reports whether the machine, and the lab's guest, left the CPU to it.
func (m measured) quiet() bool { return m.Others <= tooBusy && m.Guest <= tooBusy }

// series is what the runs of a probe gave.
type series struct {
	Runs   []measured `json:"runs"`
	Failed int        `json:"failed,omitempty"` // so many failed
	Err    string     `json:"error,omitempty"`  // why there are no more
}

// quiet counts the runs that can be believed.
func (s *series) quiet() (n int) {
	for _, m := range s.Runs {
		if m.quiet() {
			n++
		}
	}
	return n
}

// spread is a median with the least and the greatest.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
}

// spread returns that of a metric, over all runs or over the quiet ones.
func (s *series) spread(m metric, times float64, all bool) (sp spread, ok bool) {
	var v []float64
	for _, r := range s.Runs {
		if x, has := r.Sample[m]; has && (all || r.quiet()) {
			v = append(v, x*times)
		}
	}
	if len(v) == 0 {
		return sp, false
	}
	slices.Sort(v)
	n := len(v)
	return spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], Runs: n}, true
}

// judged is a row with what was measured. JSON has it so.
type judged struct {
	ID      string  `json:"row"`
	What    string  `json:"what"`
	Ratio   float64 `json:"ratio"`
	AtMost  bool    `json:"at_most"` // less is better
	Goal    float64 `json:"goal"`
	Stretch float64 `json:"stretch"`
	Verdict string  `json:"verdict"`
	Busy    bool    `json:"busy"`            // too few runs on a quiet machine: not to be believed
	Quiet   int     `json:"quiet"`           // so many there were, of the probe that had fewest
	Others  float64 `json:"others"`          // CPUs that other processes used, at most
	Guest   float64 `json:"guest,omitempty"` // and what was in use in the lab's guest
	Value   *spread `json:"value,omitempty"`
	Anchor  *spread `json:"anchor,omitempty"` // nil: the value itself is judged
	Unit    metric  `json:"unit"`
	Failed  int     `json:"failed,omitempty"` // runs that failed, and were made again
	Why     string  `json:"why,omitempty"`    // there is no number

	row row
}

// judge judges a row by what the probes gave. want is how many quiet runs make it believable.
func judge(r row, got map[string]*series, want int) judged {
	j := judged{ID: r.id, What: r.what, AtMost: r.atMost, Goal: r.goal, Stretch: r.stretch, Verdict: unknown, Unit: r.value.metric, Quiet: math.MaxInt, row: r}
	// Where the value or its anchor has no quiet run, all runs of both count: a quiet one is not to be held against a disturbed one.
	all := false
	for _, p := range []string{r.value.probe, r.anchor.probe} {
		all = all || got[p] != nil && got[p].quiet() == 0
	}
	take := func(v value) (*spread, bool) {
		s := got[v.probe]
		if s == nil {
			j.Why = v.probe + " was not run"
			j.Quiet = 0
			return nil, false
		}
		sp, ok := s.spread(v.metric, v.factor(), all)
		for _, m := range s.Runs {
			j.Others, j.Guest = max(j.Others, m.Others), max(j.Guest, m.Guest)
		}
		j.Failed += s.Failed
		j.Busy = j.Busy || s.quiet() < want
		j.Quiet = min(j.Quiet, s.quiet())
		if !ok {
			j.Why = v.probe + ": no " + string(v.metric)
			if s.Err != "" {
				j.Why = v.probe + ": " + s.Err
			}
			return nil, false
		}
		return &sp, true
	}
	var ok bool
	if j.Value, ok = take(r.value); !ok {
		return j
	}
	j.Ratio = j.Value.Median
	if r.anchor.probe != "" {
		if j.Anchor, ok = take(r.anchor); !ok {
			return j
		}
		if j.Anchor.Median <= 0 {
			j.Why = r.anchor.probe + " measured nothing"
			return j
		}
		j.Ratio /= j.Anchor.Median
	}
	j.Verdict = r.verdict(j.Ratio)
	return j
}

// line is a row for people.
func (j *judged) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s", j.ID)
	if j.Why != "" {
		fmt.Fprintf(&b, "%-44s %s: %s", j.What, j.Verdict, j.Why)
		return b.String()
	}
	fmt.Fprintf(&b, "%-44s %6s", j.What, ratio(j.Ratio))
	if j.row.noGoal {
		fmt.Fprintf(&b, "  %-31s", j.row.without())
	} else {
		sign := ">="
		if j.AtMost {
			sign = "<="
		}
		fmt.Fprintf(&b, "  goal %s%-5s stretch %s%-5s %-7s", sign, ratio(j.Goal), sign, ratio(j.Stretch), j.Verdict)
	}
	fmt.Fprintf(&b, " (%s", describe(j.row.value, j.Value, j.Unit))
	if j.Anchor != nil {
		fmt.Fprintf(&b, ", %s", describe(j.row.anchor, j.Anchor, j.Unit))
	}
	b.WriteString(")")
	if j.Failed > 0 {
		fmt.Fprintf(&b, "  %d RUNS FAILED", j.Failed)
	}
	if j.Busy {
		fmt.Fprintf(&b, "  MACHINE BUSY: %d quiet runs, others used up to %.2f CPUs", j.Quiet, j.Others)
		if j.Guest > tooBusy {
			fmt.Fprintf(&b, ", and %.2f in the guest", j.Guest)
		}
	}
	return b.String()
}

func describe(v value, s *spread, m metric) string {
	unit, by := string(m), 1.0
	switch m {
	case bytesPerSec:
		unit, by = "MB/s", 1e6
	case msgsPerSec:
		unit, by = "k msg/s", 1e3
	}
	name := v.probe
	if f := v.factor(); f != 1 {
		name = number(f) + " x " + name
	}
	return fmt.Sprintf("%s %s %s [%s-%s]", name, number(s.Median/by), unit, number(s.Min/by), number(s.Max/by))
}

// number prints three digits that count, and thousands apart.
func number(x float64) string {
	digits := 0
	if a := math.Abs(x); a > 0 && a < 100 {
		digits = min(3, max(0, 2-int(math.Floor(math.Log10(a)))))
	}
	s := strconv.FormatFloat(x, 'f', digits, 64)
	whole, frac, point := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if point {
		frac = strings.TrimRight(frac, "0")
		if frac != "" {
			return whole + "." + frac
		}
	}
	return whole
}

func ratio(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

// printReport prints all rows, and what to think of them. The lab's machine, if there is one, goes before the first of its rows.
func printReport(w io.Writer, r report) {
	fmt.Fprintln(w, r.Machine)
	count := map[string]int{}
	lab := r.Lab
	for i := range r.Rows {
		j := &r.Rows[i]
		if lab != nil && j.row.lab {
			fmt.Fprintln(w, "in the lab's virtual machine:", lab)
			lab = nil
		}
		fmt.Fprintln(w, j.line())
		count[j.Verdict]++
		if j.Busy {
			count["busy"]++
		}
	}
	fmt.Fprintf(w, "bench: %d reach the stretch goal, %d the goal, %d miss it, %d unknown", count[stretched], count[met], count[missed], count[unknown])
	if n := count["busy"]; n > 0 {
		fmt.Fprintf(w, "; %d rows are of a machine too busy to believe them (others used more than %.2f CPUs)", n, tooBusy)
	}
	fmt.Fprintln(w)
}
