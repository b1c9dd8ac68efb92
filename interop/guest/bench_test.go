//go:build linux

package guest

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// TestBench has everything that `make bench` does in this machine done once, with few messages: the kernel's device and softnic in turn on a
// veth pair, each measured by its own programs. The numbers say nothing; that there are some, for every row, is what is asked.
func TestBench(t *testing.T) {
	needGuest(t)
	begin := time.Now()
	r := tool(t, options{Limit: 4 * time.Minute}, "softnic-bench", "-guest", "-short", "-softnic", "softnic", "-repeat", "1", "-j")
	t.Logf("after %v: %s", time.Since(begin).Round(time.Second), r.Stderr)
	if r.Code != 0 {
		t.Fatal(r)
	}
	var report struct {
		Rows []struct {
			Row, What, Verdict, Why string
			Ratio                   float64
			Value, Anchor           *struct{ Median float64 }
		}
	}
	for d := json.NewDecoder(strings.NewReader(r.Stdout)); d.More(); { // one after each round, and the last
		if err := d.Decode(&report); err != nil {
			t.Fatalf("%v: %v", err, r)
		}
	}
	seen := map[string]bool{}
	for _, row := range report.Rows {
		seen[row.Row] = true
		if row.Verdict == "UNKNOWN" || row.Ratio <= 0 || row.Value == nil || row.Anchor == nil {
			t.Errorf("%+v", row)
		}
	}
	for id := range strings.FieldsSeq("R1 R2 R3 R4 R5 R6") {
		if !seen[id] {
			t.Errorf("no row %s", id)
		}
	}
	// As it was before.
	if out := run(t, "ip", "rule"); strings.Contains(out, "iif v0") || !strings.HasPrefix(out, "0:") {
		t.Errorf("rules are left: %s", out)
	}
	for _, path := range []string{"/sys/class/net/v0", "/sys/class/infiniband/rxe0", "/run/netns/bench0", "/run/netns/bench1"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}
