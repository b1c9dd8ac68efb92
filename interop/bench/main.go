//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags.
type options struct {
	softnic, rows, wait string
	repeat              int
	patience            time.Duration
	json                bool
	lab, guest, short   bool
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.softnic, "softnic", "bin/softnic", "the `PROGRAM` that is measured")
	fs.StringVar(&o.rows, "rows", "", "some `ROWS` alone, as P1,P6: "+strings.Join(idsOf(rows), " "))
	fs.StringVar(&o.wait, "wait", strings.TrimPrefix(bandwidthWait, "--"), "how both sides wait in the rows about bandwidth: poll, block or events")
	fs.IntVar(&o.repeat, "repeat", 5, "`N` runs of each probe, in turn; one during which others used the CPU is made again, once")
	fs.DurationVar(&o.patience, "patience", 0, "wait for up to `TIME` in all until others leave the CPU alone, before a run")
	fs.BoolVar(&o.lab, "lab", false, "without -rows: also the rows that are measured in the lab's virtual machine ("+strings.Join(idsOf(labRows(rows)), " ")+"), which it boots")
	fs.BoolVar(&o.guest, "guest", false, "this is that machine (for "+labRun+")")
	fs.BoolVar(&o.short, "short", false, "with -guest: few messages, to see whether it works")
	fs.BoolVar(&o.json, "j", false, "print JSON, with every run")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(stderr)
			fs.PrintDefaults()
		}
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q: see -help", fs.Arg(0))
	case o.repeat < 1:
		return o, fmt.Errorf("-repeat %d: want 1 or more", o.repeat)
	case o.wait != "poll" && o.wait != "block" && o.wait != "events":
		return o, fmt.Errorf("-wait %s: want poll, block or events", o.wait)
	}
	return o, nil
}

// run runs the command line: 0 when everything could be measured, whatever the verdicts; 1 when something could not; 2 for a mistake
// in the command line.
func run(args []string, stdout, stderr io.Writer) int {
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "bench: %s\n", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
		return code
	}
	if len(args) == 2 && args[0] == "anchor" {
		if err := runAnchor(args[1]); err != nil {
			return fail(1, err)
		}
		return 0
	}
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return fail(2, err)
	}
	rs, err := selectRows(o.rows, o.lab || o.guest)
	if err != nil {
		return fail(2, err)
	}
	here := probes
	if o.guest {
		here, rs = labProbes, labRows(rs)
	}
	self, err := os.Executable()
	if err != nil {
		return fail(1, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	tell := func(s string) { fmt.Fprintln(stderr, s) }
	b := &bench{softnic: o.softnic, self: self, wait: "--" + o.wait, patience: o.patience}
	if o.guest {
		if b.lab, err = newGuest(o.short); err != nil {
			return fail(1, err)
		}
		// The host has what there is also when this machine does not come to its end.
		b.each = func(got map[string]*series) {
			if o.json {
				_ = json.NewEncoder(stdout).Encode(report{Machine: thisMachine(o.softnic), Wait: o.wait, Probes: got})
			}
		}
	}
	got, err := b.interleaved(ctx, needed(here, rs), o.repeat, tell)
	if b.lab != nil {
		err = errors.Join(err, b.lab.close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return fail(1, err)
	}
	rep := report{Machine: thisMachine(o.softnic), Wait: o.wait, Probes: got}
	if lr := labRows(rs); len(lr) > 0 && !o.guest {
		lab, err := inLab(ctx, o, lr, tell)
		merge(got, lab, err, lr)
		if lab != nil {
			rep.Lab = &lab.Machine
		}
	}
	code := 0
	for _, r := range rs {
		j := judge(r, got, o.repeat)
		if j.Verdict == unknown {
			code = 1
		}
		rep.Rows = append(rep.Rows, j)
	}
	if o.json {
		if err := json.NewEncoder(stdout).Encode(rep); err != nil {
			return fail(1, err)
		}
		return code
	}
	printReport(stdout, rep)
	if o.rows == "" && !o.lab && !o.guest {
		fmt.Fprintf(stdout, "bench: %s are left out, because they boot a virtual machine: ask for them with -lab, or by their names\n", strings.Join(idsOf(labRows(rows)), ", "))
	}
	return code
}

// interleaved runs the probes in turn, until each has so many runs on a quiet machine, but not more than twice as many in all. It ends
// early, with what there is, when ctx does.
func (b *bench) interleaved(ctx context.Context, probes []probe, repeat int, tell func(string)) (map[string]*series, error) {
	got := map[string]*series{}
	for _, p := range probes {
		got[p.name] = &series{}
	}
	for round := range 2*repeat + b.mayFail() {
		for _, p := range probes {
			s := got[p.name]
			if s.Err != "" || b.enough(s, repeat) || ctx.Err() != nil {
				continue
			}
			m, err := b.measure(ctx, p)
			if ctx.Err() != nil {
				break
			}
			var failed *probeError
			if errors.As(err, &failed) {
				s.Failed++
				if s.Failed > b.mayFail() {
					s.Err = failed.Error()
				}
				tell(p.name + ": " + failed.Error())
				continue
			}
			if err != nil {
				return nil, err
			}
			s.Runs = append(s.Runs, m)
			tell(fmt.Sprintf("round %d  %-15s %s%s", round+1, p.name, m.Sample, m.note()))
		}
		if b.each != nil {
			b.each(got)
		}
	}
	return got, nil
}

// enough reports whether a probe needs no further run.
func (b *bench) enough(s *series, repeat int) bool {
	if b.lab != nil && b.lab.short {
		return len(s.Runs) >= repeat
	}
	return s.quiet() >= repeat || len(s.Runs) >= 2*repeat
}

// mayFail is how many runs of a probe may fail before it is given up: a processor of an emulated machine sometimes stands still for so long that a run
// exceeds its time.
func (b *bench) mayFail() int {
	if b.lab != nil {
		return 2
	}
	return 0
}

// limit is how long a run may take.
func (b *bench) limit() time.Duration {
	if b.lab != nil {
		return 30 * time.Second
	}
	return time.Minute
}

// probeError is a probe's own, which ends no other.
type probeError struct{ error }

// measure runs a probe once, and looks at who else uses the CPU.
func (b *bench) measure(ctx context.Context, p probe) (m measured, err error) {
	if b.lab != nil {
		if m.Guest, err = b.lab.settle(ctx); err != nil {
			return m, err
		}
	}
	before, err := b.quiet(ctx)
	if err != nil {
		return m, err
	}
	within, cancel := context.WithTimeout(ctx, b.limit())
	defer cancel()
	if m.Sample, err = p.run(within, b); err != nil {
		return m, &probeError{err}
	}
	after, err := b.loadNow()
	if err != nil {
		return m, err
	}
	m.Others = after.others(before)
	return m, nil
}

// note says what is to be thought of a run, for people who wait.
func (m measured) note() string {
	s := ""
	if m.Others > tooBusy {
		s += fmt.Sprintf("  (others used %.2f CPUs)", m.Others)
	}
	if m.Guest > tooBusy {
		s += fmt.Sprintf("  (%.2f CPUs were in use in the guest before)", m.Guest)
	}
	return s
}

// String lists what was measured, for people who wait.
func (s sample) String() string {
	var l []string
	for _, m := range []metric{bytesPerSec, msgsPerSec, usec, cpuPerGB, allocs, leastShare} {
		if x, ok := s[m]; ok && x != 0 {
			unit, by := string(m), 1.0
			if m == bytesPerSec {
				unit, by = "MB/s", 1e6
			}
			l = append(l, number(x/by)+" "+unit)
		}
	}
	return strings.Join(l, ", ")
}
