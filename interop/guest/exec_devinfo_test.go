//go:build linux

package guest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestExecDevinfo has ibv_devinfo -v and ibv_devices print the same about softnic as about the kernel's device at the
// other end of its TAP, apart from what is listed here.
func TestExecDevinfo(t *testing.T) {
	needGuest(t)
	differs := regexp.MustCompile(`^\s*(` + strings.Join([]string{
		"hca_id", "node_guid", "sys_image_guid", `GID\[[ 0-9]+\]`, // identities
		"gid_tbl_len", // a file per entry: 16 instead of 1024
	}, "|") + `):\s`)
	l := execTap(t, 4200, "")
	ours := runIn(t, l.ours, "ibv_devinfo", "-v")
	theirs := runIn(t, options{}, "ibv_devinfo", "-v")
	a, b := devinfoLines(ours), devinfoLines(theirs)
	if len(a) != len(b) {
		t.Errorf("%d lines about softnic, %d about rxe", len(a), len(b))
	}
	for i := range min(len(a), len(b)) {
		x, y := differs.FindStringSubmatch(a[i]), differs.FindStringSubmatch(b[i])
		if a[i] != b[i] && (x == nil || y == nil || x[1] != y[1]) {
			t.Errorf("line %d: softnic %q, rxe %q", i+1, a[i], b[i])
		}
	}
	for _, line := range []string{"hca_id:\trxe_softnic0", "\t\t\tactive_mtu:\t\t4096 (5)", "\t\t\tgid_tbl_len:\t\t16", "\t\t\tGID[  1]:\t\t::ffff:10.8.0.2, RoCE v2"} {
		if !slices.Contains(a, line) {
			t.Errorf("softnic has no line %q", line)
		}
	}
	if t.Failed() {
		t.Logf("softnic:\n%s\nrxe:\n%s", ours, theirs)
	}

	// The kernel's devices are not seen through softnic exec, nor softnic's without.
	if out := runIn(t, l.ours, "ibv_devices"); !strings.Contains(out, "rxe_softnic0") || strings.Contains(out, l.dev.Name+" ") {
		t.Errorf("softnic exec -- ibv_devices: %s", out)
	}
	if out := runIn(t, options{}, "ibv_devices"); strings.Contains(out, "softnic") || !strings.Contains(out, l.dev.Name) {
		t.Errorf("ibv_devices: %s", out)
	}

	l.stop(t)
}

func devinfoLines(s string) []string {
	return strings.Split(strings.TrimRight(s, "\n"), "\n")
}
