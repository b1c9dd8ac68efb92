//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// What the stock programs print: Debian 12's.
const (
	ucxPrints = `+--------------+--------------+------------------------------+---------------------+-----------------------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                        8000      4.203  1436.983  1106.590       43.49      56.48         696         904
`
	writeBWPrints = ` local address: LID 0000 QPN 0x0011 PSN 0x4dbb2
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             1017.23            1000.50		   0.016008
---------------------------------------------------------------------------------------
`
	sendLatPrints = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          11.36          119.02       12.55    	       13.05       	3.14   		23.57   		119.02
---------------------------------------------------------------------------------------
`
)

func TestReaders(t *testing.T) {
	for _, c := range []struct {
		name string
		got  func() (sample, error)
		want sample
		err  string
	}{
		{"iperf3", func() (sample, error) {
			return readIperf3([]byte(`{"end": {"sum_received": {"bits_per_second": 8e9}}}`))
		}, sample{bytesPerSec: 1e9}, ""},
		{"iperf3 refuses", func() (sample, error) {
			return readIperf3([]byte(`{"end": {}, "error": "unable to connect to server"}`))
		}, nil, "unable to connect"},
		{"iperf3 measures nothing", func() (sample, error) { return readIperf3([]byte(`{"end": {}}`)) }, nil, "no bandwidth"},
		{"ucx", func() (sample, error) { return readUCX([]byte(ucxPrints), 1000) }, sample{usec: 4.203, msgsPerSec: 904, bytesPerSec: 904000}, ""},
		{"ucx says why not", func() (sample, error) { return readUCX([]byte("[1.2] ERROR no device\n"), 8) }, nil, "ERROR no device"},
		{"ib_write_bw", func() (sample, error) { return readPerftest([]byte(writeBWPrints)) }, sample{bytesPerSec: 1000.5 * 1048576, msgsPerSec: 16008}, ""},
		{"ib_send_lat", func() (sample, error) { return readPerftest([]byte(sendLatPrints)) }, sample{usec: 12.55}, ""},
		{"perftest stops", func() (sample, error) { return readPerftest([]byte("Couldn't connect\n")) }, nil, "Couldn't connect"},
		{"softnic", func() (sample, error) {
			return readSoftnic([]byte(`{"bytes_per_s":5,"messages_per_s":4,"cpu_s_per_gb":3,"allocs_per_packet":2,"verified":true,"times":{"t_typical_us":1}}`))
		}, sample{bytesPerSec: 5, msgsPerSec: 4, cpuPerGB: 3, allocs: 2, usec: 1}, ""},
		{"softnic without CPU time", func() (sample, error) {
			return readSoftnic([]byte(`{"bytes_per_s":5,"messages_per_s":4,"cpu_s_per_gb":null,"verified":true}`))
		}, sample{bytesPerSec: 5, msgsPerSec: 4, allocs: 0}, ""},
		{"softnic with several queue pairs", func() (sample, error) {
			return readSoftnic([]byte(`{"bytes_per_s":5,"messages_per_s":4,"cpu_s_per_gb":3,"least_share":0.97,"verified":true}`))
		}, sample{bytesPerSec: 5, msgsPerSec: 4, cpuPerGB: 3, allocs: 0, leastShare: 0.97}, ""},
		{"softnic did not compare", func() (sample, error) { return readSoftnic([]byte(`{"verified":false}`)) }, nil, "not verified"},
	} {
		s, err := c.got()
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.name, err, c.err)
			}
			continue
		}
		if err != nil || len(s) != len(c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, s, err, c.want)
			continue
		}
		for m, v := range c.want {
			if d := s[m] - v; d > 1e-6 || d < -1e-6 {
				t.Errorf("%s: %s is %v, want %v", c.name, m, s[m], v)
			}
		}
	}
}

func TestVerdict(t *testing.T) {
	more := row{goal: 0.8, stretch: 1}
	less := row{goal: 2.2, stretch: 1.5, atMost: true}
	none := row{atMost: true, slack: 0.005}
	for _, c := range []struct {
		row   row
		ratio float64
		want  string
	}{
		{more, 0.79, missed}, {more, 0.8, met}, {more, 0.99, met}, {more, 1, stretched}, {more, 7, stretched},
		{less, 2.21, missed}, {less, 2.2, met}, {less, 1.51, met}, {less, 1.5, stretched},
		{none, 0, stretched}, {none, 0.005, stretched}, {none, 0.006, missed},
		{row{noGoal: true}, 3, unjudged},
	} {
		if got := c.row.verdict(c.ratio); got != c.want {
			t.Errorf("%+v: %v is %s, want %s", c.row, c.ratio, got, c.want)
		}
	}
}

func runs(m metric, others float64, v ...float64) *series {
	s := &series{}
	for _, x := range v {
		s.Runs = append(s.Runs, measured{Sample: sample{m: x}, Others: others})
	}
	return s
}

func TestJudge(t *testing.T) {
	r := row{id: "P1", what: "write / iperf3", value: value{probe: "w", metric: bytesPerSec}, anchor: value{probe: "i", metric: bytesPerSec}, goal: 0.8, stretch: 1}
	got := map[string]*series{"w": runs(bytesPerSec, 0.1, 440e6, 420e6, 430e6), "i": runs(bytesPerSec, 0, 1.8e9, 1.7e9, 1.6e9)}
	// A run on a busy machine does not count as long as there are enough others.
	got["w"].Runs = append(got["w"].Runs, measured{Sample: sample{bytesPerSec: 1}, Others: 0.26})
	j := judge(r, got, 3)
	want := "P1  write / iperf3                                 0.25  goal >=0.80  stretch >=1.00  MISSED  (w 430 MB/s [420-440], i 1,700 MB/s [1,600-1,800])"
	if j.line() != want || j.Busy || j.Value.Runs != 3 {
		t.Errorf("%+v\n%s\n%s", j, j.line(), want)
	}
	j = judge(r, got, 4)
	if !j.Busy || j.Value.Runs != 3 || !strings.HasSuffix(j.line(), "MACHINE BUSY: 3 quiet runs, others used up to 0.26 CPUs") {
		t.Errorf("%+v\n%s", j, j.line())
	}
	// Where none is quiet, all count.
	noisy := map[string]*series{"w": runs(bytesPerSec, 0.3, 4e8, 2e8), "i": runs(bytesPerSec, 0.1, 1e9)}
	if j = judge(r, noisy, 1); !j.Busy || j.Quiet != 0 || j.Value.Runs != 2 || j.Ratio != 0.3 {
		t.Errorf("%+v\n%s", j, j.line())
	}

	// Also where it is the other one that has no quiet run.
	if j = judge(r, map[string]*series{"w": noisy["w"], "i": {Runs: append(runs(bytesPerSec, 0.1, 8e9).Runs, runs(bytesPerSec, 0.9, 1e9, 1e9).Runs...)}}, 1); !j.Busy || j.Anchor.Runs != 3 || j.Ratio != 0.3 {
		t.Errorf("%+v\n%s", j, j.line())
	}

	r.anchor = value{probe: "i", metric: bytesPerSec, times: 2}
	if j := judge(r, got, 3); j.Ratio != 430e6/3.4e9 || !strings.Contains(j.line(), "2 x i 3,400 MB/s") {
		t.Errorf("%+v\n%s", j, j.line())
	}
	got["i"].Err, got["i"].Runs = "iperf3 is not there", nil
	if j := judge(r, got, 3); j.Verdict != unknown || !strings.HasSuffix(j.line(), "UNKNOWN: i: iperf3 is not there") {
		t.Errorf("%+v\n%s", j, j.line())
	}
	got["i"] = runs(bytesPerSec, 0, 0, 0, 0)
	if j := judge(r, got, 3); j.Verdict != unknown || !strings.Contains(j.line(), "measured nothing") {
		t.Errorf("%+v\n%s", j, j.line())
	}
	alone := row{id: "P17", what: "CPU", value: value{probe: "w", metric: cpuPerGB}, atMost: true, goal: 0.9, stretch: 0.6}
	if j := judge(alone, map[string]*series{"w": runs(cpuPerGB, 0, 0.75, 0.25, 1, 0.5)}, 4); j.Ratio != 0.625 || j.Verdict != met || j.Anchor != nil {
		t.Errorf("%+v\n%s", j, j.line())
	}
}

func TestSelect(t *testing.T) {
	names := func(ps []probe) string {
		var l []string
		for _, p := range ps {
			l = append(l, p.name)
		}
		return strings.Join(l, " ")
	}
	rs, err := selectRows("p6, P4,R4", false)
	if err != nil || strings.Join(idsOf(rs), " ") != "P6 P4 R4" || len(rs) != 4 || len(labRows(rs)) != 1 {
		t.Errorf("%v, %v", rs, err)
	}
	if p := names(needed(probes, rs)); p != "write-64k udp-gso ucx-tag-64k ucx-put-64k" {
		t.Error(p)
	}
	if p := names(needed(labProbes, rs)); p != "rxe-lat softnic-lat" {
		t.Error(p)
	}
	if _, err := selectRows("P1,P99", false); err == nil || !strings.Contains(err.Error(), `there is no row "P99"`) {
		t.Error(err)
	}
	if rs, err := selectRows("", true); err != nil || len(rs) != len(rows) {
		t.Error(len(rs), err)
	}
	if rs, err := selectRows("", false); err != nil || len(rs) != len(rows)-len(labRows(rows)) || len(labRows(rs)) != 0 {
		t.Error(len(rs), err)
	}
}

// TestRowsHaveProbes finds a row whose probe nobody has written, or that runs elsewhere, and a probe that no row needs.
func TestRowsHaveProbes(t *testing.T) {
	inLab := map[string]bool{}
	for _, p := range probes {
		inLab[p.name] = false
	}
	for _, p := range labProbes {
		inLab[p.name] = true
	}
	if len(inLab) != len(probes)+len(labProbes) {
		t.Error("two probes have one name")
	}
	for _, r := range rows {
		for _, p := range []string{r.value.probe, r.anchor.probe} {
			if lab, known := inLab[p]; p != "" && (!known || lab != r.lab) {
				t.Errorf("%s (%s): no such probe", r.id, r.what)
			}
		}
		if better := r.stretch <= r.goal == r.atMost || r.stretch == r.goal; !better {
			t.Errorf("%s (%s): the stretch goal is less than the goal", r.id, r.what)
		}
	}
	if n, m := len(needed(probes, rows)), len(needed(labProbes, rows)); n != len(probes) || m != len(labProbes) {
		t.Errorf("the rows need %d of %d probes, and %d of %d in the lab", n, len(probes), m, len(labProbes))
	}
}

func TestParseStat(t *testing.T) {
	d, err := parseStat("cpu  100 20 30 4000 500 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
	if err != nil || d != 1710*time.Millisecond { // 100+20+30+6+7+8 ticks
		t.Error(d, err)
	}
	for _, bad := range []string{"", "intr 5", "cpu 1 2 3", "cpu  a 20 30 4000 500 6 7 8 9 10"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	at := time.Unix(5, 0)
	before := load{at, 10 * time.Second, 3 * time.Second}
	after := load{at.Add(2 * time.Second), 13 * time.Second, 5 * time.Second}
	if o := after.others(before); o != 0.5 {
		t.Error(o)
	}
	if o := (load{at.Add(time.Second), 10 * time.Second, 4 * time.Second}).others(before); o != 0 {
		t.Errorf("%v CPUs by others, whose clock ticks later", o)
	}
}

// TestQuiet waits no longer than there is patience for, nor when the user wants no more.
func TestQuiet(t *testing.T) {
	b := &bench{}
	if _, err := b.quiet(t.Context()); err != nil {
		t.Error(err)
	}
	b.patience = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.quiet(ctx); err != nil {
		t.Error(err)
	}
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.00123: "0.001", 0.66: "0.66", 5.4321: "5.43", 43.21: "43.2", 999.9: "1,000", 1700: "1,700", 5301234: "5,301,234", 123: "123"} {
		if got := number(x); got != want {
			t.Errorf("%v is %s, want %s", x, got, want)
		}
	}
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"-rows P0":      "there is no row \"P0\"",
		"-wait idly":    "-wait idly: want poll, block or events",
		"-repeat 0":     "-repeat 0: want 1 or more",
		"-bogus":        "-bogus",
		"P1":            `unknown argument "P1"`,
		"-repeat often": "invalid value",
	} {
		var out, errs bytes.Buffer
		code := run(strings.Fields(args), &out, &errs)
		if code != 2 || out.Len() != 0 || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %q, want %q", args, code, errs.String(), want)
		}
	}
}

// TestInterleaved has probes that cost nothing: the order, the end of one that fails, and the end when the user wants it.
func TestInterleaved(t *testing.T) {
	var order []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ok := func(name string) probe {
		return probe{name, func(context.Context, *bench) (sample, error) {
			order = append(order, name)
			if len(order) == 7 {
				cancel()
			}
			return sample{usec: 1}, nil
		}}
	}
	got, err := (&bench{}).interleaved(ctx, []probe{ok("a"), {"bad", func(context.Context, *bench) (sample, error) {
		order = append(order, "bad")
		return nil, errors.New("it is broken")
	}}, ok("b")}, 100, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if o := strings.Join(order, " "); o != "a bad b a b a b" {
		t.Error(o)
	}
	if got["bad"].Err != "it is broken" || len(got["a"].Runs) != 3 {
		t.Errorf("%+v", got)
	}
}
