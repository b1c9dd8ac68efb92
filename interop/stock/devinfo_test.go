//go:build linux

package stock

import (
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

func TestDevices(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	r := tool(t, d.exec(), "ibv_devices")
	if want := regexp.MustCompile(`(?m)^    rxe_softnic0    \t[0-9a-f]{16}$`); r.Code != 0 || !want.MatchString(r.Stdout) || r.Stderr != "" {
		t.Errorf("no device: %v", r)
	}
	if n := strings.Count(r.Stdout, "\n"); n != 3 { // two of them are the heading
		t.Errorf("%d devices: %v", n-2, r)
	}
}

// declared are the lines in which ibv_devinfo -v may differ from rxe's: identities, and what depends on the machine
// or on the MTU of the link. What they have to say instead is in the pattern.
var declared = map[string]string{
	"hca_id:":           `^hca_id:\trxe_softnic0$`,
	"node_guid:":        `^([0-9a-f]{4}:){3}[0-9a-f]{4}$`,
	"sys_image_guid:":   `^([0-9a-f]{4}:){3}[0-9a-f]{4}$`,
	"num_comp_vectors:": `^[0-9]+$`,
	"active_mtu:":       `^4096 \(5\)$`, // loopback
	"gid_tbl_len:":      `^16$`,
}

func TestDevinfo(t *testing.T) {
	needStock(t)
	text, err := os.ReadFile("testdata/devinfo-rxe.txt")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if !strings.HasPrefix(line, "#") {
			want = append(want, line)
		}
	}
	d := startDaemon(t, daemonOptions{})
	r := tool(t, d.exec(), "ibv_devinfo", "-v")
	if r.Code != 0 || r.Stderr != "" {
		t.Fatal(r)
	}
	got := strings.Split(strings.TrimRight(r.Stdout, "\n"), "\n")
	if len(got) != len(want)+2 {
		t.Fatalf("%d lines, want the %d of rxe and two GIDs: %v", len(got), len(want), r)
	}
	seen := 0
	for i, line := range want {
		pattern := ""
		for name, p := range declared {
			if strings.HasPrefix(strings.TrimSpace(line), name) {
				pattern = p
			}
		}
		switch name, value, _ := strings.Cut(strings.TrimSpace(got[i]), ":"); {
		case pattern == "":
			if got[i] != line {
				t.Errorf("line %d is %q, rxe has %q", i+1, got[i], line)
			}
		case i == 0:
			if !regexp.MustCompile(pattern).MatchString(got[i]) {
				t.Errorf("line %d is %q, want %s", i+1, got[i], pattern)
			}
			seen++
		default:
			if !strings.HasPrefix(strings.TrimSpace(line), name+":") || !regexp.MustCompile(pattern).MatchString(strings.TrimSpace(value)) {
				t.Errorf("line %d is %q, want %s instead of rxe's %q", i+1, got[i], pattern, line)
			}
			seen++
		}
	}
	if seen != len(declared) {
		t.Errorf("%d lines are declared to differ, and %d were there", len(declared), seen)
	}
	for i, p := range []string{`^\t\t\tGID\[  0\]:\t\tfe80:.*, RoCE v2$`, `^\t\t\tGID\[  1\]:\t\t::ffff:` + regexp.QuoteMeta(d.addr) + `, RoCE v2$`} {
		if line := got[len(want)+i]; !regexp.MustCompile(p).MatchString(line) {
			t.Errorf("GID %d is %q, want %s", i, line, p)
		}
	}
	vectors := regexp.MustCompile(`num_comp_vectors:\s+(\d+)`).FindStringSubmatch(r.Stdout)
	if n := len(vectors); n == 2 && vectors[1] == "0" {
		t.Errorf("%s completion vectors on %d processors", vectors[1], runtime.NumCPU())
	}
}
