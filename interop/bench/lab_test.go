//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseHost(t *testing.T) {
	const stat = "cpu  100 20 30 4000 500 6 7 8 9 10"
	const emulator = "4321 (qemu system (x)) S 1 1 1 0 -1 4194560 1 2 3 4 250 150 7 8 20 0 5 0 1 2 3"
	l, err := parseHost("12.5\n" + stat + "\n" + emulator + "\n")
	if err != nil || l.own != 4*time.Second || l.all != 1710*time.Millisecond || l.at.UnixNano() != 12.5e9 {
		t.Errorf("%+v, %v", l, err)
	}
	for _, bad := range []string{"", "12.5\n" + stat, "x\n" + stat + "\n" + emulator, "12.5\ncpu 1\n" + emulator, "12.5\n" + stat + "\n4321 (qemu) S 1", "12.5\n" + stat + "\n" + strings.Replace(emulator, "250", "x", 1)} {
		if _, err := parseHost(bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
	g := &guest{host: filepath.Join(t.TempDir(), "host")}
	if _, err := g.hostLoad(); err == nil || !strings.Contains(err.Error(), "how busy the host is") {
		t.Error(err)
	}
	if err := os.WriteFile(g.host, []byte("1\n"+stat+"\n"+emulator+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := (&bench{lab: g}).loadNow(); err != nil || l.own != 4*time.Second {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestReadLab(t *testing.T) {
	const said = `interop: building the VM lab in /x (once; a few minutes)
{"machine":{"cpu":"QEMU","cpus":1},"wait":"block","rows":null,"probes":{}}
round 1  rxe             30 MB/s

{"machine":{"cpu":"QEMU","cpus":2},"wait":"block","rows":null,"probes":{"rxe":{"runs":[{"sample":{"bytes/s":3e7},"others":0.1,"guest":0.3}]}}}
interop: job directory kept: /tmp/x
`
	var told []string
	got, last, err := readLab(strings.NewReader(said), func(s string) { told = append(told, s) })
	if err != nil || got == nil || got.Machine.CPUs != 2 || got.Probes["rxe"].Runs[0].Sample[bytesPerSec] != 3e7 || len(told) != 3 || last != "round 1  rxe             30 MB/s" {
		t.Errorf("%+v, %q, %v; %q", got, last, err, told)
	}
	got, last, err = readLab(strings.NewReader("interop: the VM lab is not built yet and only root can build it\ninterop: job directory kept: /tmp/x"), func(string) {})
	if err != nil || got != nil || last != "the VM lab is not built yet and only root can build it" {
		t.Errorf("%+v, %q, %v", got, last, err)
	}
	if _, _, err = readLab(strings.NewReader(`{"machine":7}`), func(string) {}); err == nil {
		t.Error("a report that is none is read")
	}
}

// TestMerge judges rows of which the lab gave something, and why there is nothing.
func TestMerge(t *testing.T) {
	rs, err := selectRows("R1,R4,R5", false)
	if err != nil {
		t.Fatal(err)
	}
	lines := func(lab *report, err error) (l []string) {
		got := map[string]*series{}
		merge(got, lab, err, rs)
		for _, r := range rs {
			j := judge(r, got, 2)
			l = append(l, j.line())
		}
		return l
	}
	busy := runs(usec, 0.1, 120, 80)
	busy.Runs[1].Guest = 0.5
	lab := &report{Probes: map[string]*series{
		"rxe": runs(bytesPerSec, 0, 40e6, 60e6), "softnic": runs(bytesPerSec, 0, 45e6, 45e6), "rxe-lat": busy, "softnic-lat": runs(usec, 0.1, 42, 42),
		"softnic-to-rxe": {Runs: runs(bytesPerSec, 0, 25e6, 25e6).Runs, Failed: 2}, "rxe-to-softnic": {Err: "it is broken"},
	}}
	for i, want := range []string{
		"R1  write 64 KiB / rxe                             0.90  goal >=0.80  stretch >=1.20  MET     (softnic 45 MB/s [45-45], rxe 50 MB/s [40-60])",
		"R4  write latency, polling / rxe                   0.35  goal <=0.70  stretch <=0.40  STRETCH (softnic-lat 42 us [42-42], rxe-lat 120 us [120-120])  MACHINE BUSY: 1 quiet runs, others used up to 0.10 CPUs, and 0.50 in the guest",
		"R5  write 64 KiB, softnic exec to rxe / rxe        0.50  no goal, estimate 0.80          (softnic-to-rxe 25 MB/s [25-25], rxe 50 MB/s [40-60])  2 RUNS FAILED",
		"R5  write 64 KiB, rxe to softnic exec / rxe      UNKNOWN: rxe-to-softnic: it is broken",
	} {
		if got := lines(lab, nil)[i]; got != want {
			t.Errorf("\n%s\n%s", got, want)
		}
	}
	for _, l := range lines(nil, errors.New("missing: qemu-system-x86; install these\n")) {
		if !strings.HasSuffix(l, "left out: missing: qemu-system-x86; install these") || !strings.Contains(l, unknown) {
			t.Error(l)
		}
	}
	if l := lines(&report{}, nil)[0]; !strings.HasSuffix(l, "did not measure it") {
		t.Error(l)
	}
}

// TestNoLab asks for the lab where there is none.
func TestNoLab(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := inLab(t.Context(), options{repeat: 1, wait: "block"}, labRows(rows), func(string) {})
	if err == nil || !strings.Contains(err.Error(), labRun) {
		t.Error(err)
	}
	t.Setenv("SOFTNIC_GUEST", "")
	if _, err := newGuest(false); err == nil {
		t.Error("any machine is the lab's guest")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inLab(ctx, options{repeat: 1, wait: "block"}, labRows(rows), func(string) {}); err == nil {
		t.Error("it was not started, and has a result")
	}
}

// TestPassed has what went another way than over the wire, and losses of bursts.
func TestPassed(t *testing.T) {
	for _, c := range []struct {
		p     passed
		lossy bool
		want  string
	}{
		{passed{65536 * 100, 7, 0}, false, ""},
		{passed{65536*100 - 1, 1600, 0}, false, "went another way"},
		{passed{65536 * 100, 1590, 12}, true, ""},
		{passed{65536 * 100, 1580, 19}, true, "they were bursts"},
		{passed{65536 * 100, 1600, 3}, true, "instead of one in a hundred"},
	} {
		err := c.p.check(&wire{lossy: c.lossy}, 100, 65536, 4096)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.p, err, c.want)
		}
	}
}

func TestTransfer(t *testing.T) {
	for _, c := range []struct {
		got  []string
		want string
	}{
		{large.perftest(), "ib_write_bw -F -x 1 -p 18515 -s 65536 -m 4096 -n 1000"},
		{ping.perftest(), "ib_write_lat -F -x 1 -p 18515 -s 8 -m 4096 -n 3000"},
		{large.softnic("--block"), "bw write -t 16 --block -j -s 65536 -m 4096 -n 1000"},
		{small.softnic("--poll"), "bw write -t 16 --poll --peer-poll -j -s 65536 -m 1024 -n 400"},
		{lists.softnic("--block"), "bw write -t 128 -l 64 --block -j -s 64 -m 4096 -n 60000"},
		{ping.softnic("--block"), "lat write --poll -j -s 8 -m 4096 -n 3000"},
	} {
		if got := strings.Join(c.got, " "); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	if e := (end{1, softnic}); e.dev() != "v1" || e.addr() != "10.9.0.2" || !slices.Equal(e.in(), []string{"ip", "netns", "exec", "bench1"}) {
		t.Errorf("%+v: %s", e, e.in())
	}
	if e := (end{0, rxe}); e.in() != nil {
		t.Errorf("the kernel's NIC is in %s", e.in())
	}
}

// TestRunsMayFail has a probe of the lab that fails as often as it may, and one that fails once too often.
func TestRunsMayFail(t *testing.T) {
	fails := func(name string, times int) probe {
		return probe{name, func(context.Context, *bench) (sample, error) {
			if times--; times >= 0 {
				return nil, errors.New("it stands still")
			}
			return sample{usec: 1}, nil
		}}
	}
	g := &guest{short: true, host: filepath.Join(t.TempDir(), "host")}
	if err := os.WriteFile(g.host, []byte("1\ncpu  0 0 0 0 0 0 0 0 0 0\n1 (qemu) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := (&bench{lab: g}).interleaved(t.Context(), []probe{fails("twice", 2), fails("thrice", 3)}, 1, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if s := got["twice"]; s.Err != "" || s.Failed != 2 || len(s.Runs) != 1 {
		t.Errorf("%+v", s)
	}
	if s := got["thrice"]; s.Err != "it stands still" || s.Failed != 3 || len(s.Runs) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestLabSeconds(t *testing.T) {
	rs, err := selectRows("R1,R5", false)
	if err != nil {
		t.Fatal(err)
	}
	if s := labSeconds(options{repeat: 5, patience: time.Minute}, rs); s != 600+60+2*5*4*20 {
		t.Error(s)
	}
}
