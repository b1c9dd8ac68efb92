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
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.softnic, "softnic", "bin/softnic", "the `PROGRAM` that is measured")
	fs.StringVar(&o.rows, "rows", "", "some `ROWS` alone, as P1,P6: "+strings.Join(rowIDs(), " "))
	fs.StringVar(&o.wait, "wait", strings.TrimPrefix(bandwidthWait, "--"), "how both sides wait in the rows about bandwidth: poll, block or events")
	fs.IntVar(&o.repeat, "repeat", 5, "`N` runs of each probe, in turn; one during which others used the CPU is made again, once")
	fs.DurationVar(&o.patience, "patience", 0, "wait for up to `TIME` in all until others leave the CPU alone, before a run")
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
	rs, err := selectRows(o.rows)
	if err != nil {
		return fail(2, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fail(1, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{softnic: o.softnic, self: self, wait: "--" + o.wait, patience: o.patience}
	got, err := b.interleaved(ctx, probesOf(rs), o.repeat, func(s string) { fmt.Fprintln(stderr, s) })
	if err != nil {
		return fail(1, err)
	}
	m := thisMachine(o.softnic)
	var js []judged
	code := 0
	for _, r := range rs {
		j := judge(r, got, o.repeat)
		if j.Verdict == unknown {
			code = 1
		}
		js = append(js, j)
	}
	if o.json {
		if err := json.NewEncoder(stdout).Encode(map[string]any{"machine": m, "wait": o.wait, "rows": js, "probes": got}); err != nil {
			return fail(1, err)
		}
		return code
	}
	printReport(stdout, m, js)
	return code
}

// interleaved runs the probes in turn, until each has so many runs on a quiet machine, but not more than twice as many in all. It ends
// early, with what there is, when ctx does.
func (b *bench) interleaved(ctx context.Context, names []string, repeat int, tell func(string)) (map[string]*series, error) {
	got := map[string]*series{}
	for _, n := range names {
		got[n] = &series{}
	}
	for round := range 2 * repeat {
		for _, p := range probes {
			s := got[p.name]
			if s == nil || s.Err != "" || s.quiet() >= repeat || ctx.Err() != nil {
				continue
			}
			before, err := b.quiet(ctx)
			if err != nil {
				return nil, err
			}
			within, cancel := context.WithTimeout(ctx, limit)
			sample, err := p.run(within, b)
			cancel()
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				s.Err = err.Error()
				tell(p.name + ": " + s.Err)
				continue
			}
			after, err := b.loadNow()
			if err != nil {
				return nil, err
			}
			m := measured{Sample: sample, Others: after.others(before)}
			s.Runs = append(s.Runs, m)
			note := ""
			if m.Others > tooBusy {
				note = fmt.Sprintf("  (others used %.2f CPUs)", m.Others)
			}
			tell(fmt.Sprintf("round %d  %-15s %s%s", round+1, p.name, m.Sample, note))
		}
	}
	return got, nil
}

// String lists what was measured, for people who wait.
func (s sample) String() string {
	var l []string
	for _, m := range []metric{bytesPerSec, msgsPerSec, usec, cpuPerGB, allocs} {
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
