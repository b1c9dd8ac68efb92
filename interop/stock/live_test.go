//go:build linux

package stock

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLive captures and impairs NICs while unmodified programs use them, and has softnic trace and softnic replay look at what was captured.
func TestLive(t *testing.T) {
	needStock(t)
	a, b := startDaemon(t, daemonOptions{}), startDaemon(t, daemonOptions{})
	file, picture := jobFile(t, "live-injected.pcapng"), filepath.Join(t.TempDir(), "live.svg")
	on := func(d *daemon, args ...string) string {
		t.Helper()
		r := tool(t, options{}, append([]string{softnic}, append(args, "--socket", d.socket)...)...)
		if r.Code != 0 {
			t.Fatal(r)
		}
		return r.Stdout
	}
	for _, rule := range []string{
		"tx opcode=SEND_MIDDLE nth=40 round=1 drop", "tx opcode=SEND_MIDDLE nth=70 round=1 corrupt",
		"rx opcode=SEND_FIRST count=1 answer=rnr:12", "rx opcode=SEND_LAST nth=30 ecn=ce",
	} {
		on(a, append([]string{"impair", "add"}, strings.Fields(rule)...)...)
	}
	c := start(t, options{}, softnic, "capture", "-w", file, "--socket", a.socket)
	c.await(patience, "the capture to begin", func() bool { return strings.Contains(c.stderr.String(), "SIGINT ends it") })
	pipe := start(t, options{}, "sh", "-c", fmt.Sprintf("%s capture -w - -c 50 --opcode 'SEND*' --socket %s | %s trace -j --examples 1 -", softnic, b.socket, softnic))
	shark := start(t, options{}, "sh", "-c", fmt.Sprintf("%s capture -w - -c 50 --socket %s | tshark -l -r - -T fields -e infiniband.bth.opcode", softnic, b.socket))
	for _, p := range []*proc{pipe, shark} {
		p.await(patience, "the capture to begin", func() bool { return strings.Contains(p.stderr.String(), "SIGINT ends it") })
	}
	pingpong("rc", 4096, 300).run(t, a, b)
	if r := c.signal(syscall.SIGINT); r.Code != 0 || strings.Contains(r.Stderr, "missing") {
		t.Error(r)
	}

	var rules []struct {
		Rule          string
		Matched, Hits uint64
	}
	if err := json.Unmarshal([]byte(on(a, "impair", "show", "-j")), &rules); err != nil || len(rules) != 4 {
		t.Fatal(rules, err)
	}
	for _, r := range rules {
		if r.Hits == 0 {
			t.Errorf("%s has hit nothing", r.Rule)
		}
	}
	n := a.counters()
	if n["forged"] != 1 || n["tx_changed"] == 0 || n["rx_changed"] == 0 || n["np_cnp_sent"] == 0 || n["packet_seq_err"] == 0 {
		t.Errorf("counters %v", n)
	}

	// Nobody is blamed for what was done on purpose.
	type verdict struct {
		Rule   string
		Broken uint64
	}
	var report struct {
		Packets struct {
			Total, RoCE uint64
			WrongICRC   uint64 `json:"wrong_icrc"`
		}
		Capture       struct{ Complete bool }
		Conversations []struct{ Service string }
		Rules         []verdict
	}
	r := tool(t, options{}, softnic, "trace", "-j", "--picture", picture, file)
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil || r.Code != 0 {
		t.Fatalf("%v: %v", err, r)
	}
	if p := report.Packets; p.Total < 2400 || p.RoCE != p.Total || p.WrongICRC == 0 || p.WrongICRC > uint64(n["tx_changed"]) || !report.Capture.Complete {
		t.Errorf("%+v, tx_changed %d", report.Packets, n["tx_changed"])
	}
	for _, v := range report.Rules {
		if v.Broken > 0 {
			t.Errorf("%s is broken %d times", v.Rule, v.Broken)
		}
	}
	if b, err := os.ReadFile(picture); err != nil || !strings.Contains(string(b), "<svg") {
		t.Errorf("the picture: %v", err)
	}
	// The recorded peer against a NIC that nobody impairs gets the same answers.
	if r := tool(t, options{}, softnic, "replay", file); r.Code != 0 {
		t.Error(r)
	}
	if err := json.Unmarshal([]byte(pipe.wait(patience).Stdout), &report); err != nil || report.Packets.Total != 50 {
		t.Errorf("%v: %v", err, pipe.result())
	}
	if r := shark.wait(patience); r.Code != 0 || strings.Count(r.Stdout, "\n") != 50 {
		t.Error(r)
	}
	on(a, "impair", "del", "all")
	if s := on(a, "impair"); s != "" {
		t.Error(s)
	}
}
