//go:build linux

package exec

import (
	"strings"
	"testing"
)

func TestEnviron(t *testing.T) {
	for _, c := range []struct{ old, want, daemon string }{
		{"A=1", "A=1 LD_PRELOAD=/d/libsoftnic.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock", "A=1"},
		{"LD_PRELOAD=/x.so,B=2", "B=2 LD_PRELOAD=/d/libsoftnic.so:/x.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock", "B=2 LD_PRELOAD=/x.so"},
		{"LD_PRELOAD=/x.so /y.so::z.so", "LD_PRELOAD=/d/libsoftnic.so:/x.so:/y.so:z.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock", "LD_PRELOAD=/x.so:/y.so:z.so"},
		// Within another softnic exec, also one whose library is a copy.
		{"LD_PRELOAD=/e/libsoftnic.so:/x.so,SYSFS_PATH=/e/sys,SOFTNIC_SOCKET=/e.sock,SOFTNIC_VERBOSE=1",
			"LD_PRELOAD=/d/libsoftnic.so:/x.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock", "LD_PRELOAD=/x.so"},
		{"LD_PRELOAD=/tmp/softnic-0/libsoftnic-0123456789abcdef.so", "LD_PRELOAD=/d/libsoftnic.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock", ""},
		{"LD_PRELOAD=", "LD_PRELOAD=/d/libsoftnic.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock", ""},
		{"SOFTNIC_SOCKETS=1,NOEQUALS", "SOFTNIC_SOCKETS=1 NOEQUALS LD_PRELOAD=/d/libsoftnic.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock", "SOFTNIC_SOCKETS=1 NOEQUALS"},
	} {
		old := strings.Split(c.old, ",")
		if got := strings.Join(Environ(old, nil, "/d/libsoftnic.so", "/d/sys", "/d.sock", false), " "); got != c.want {
			t.Errorf("%q:\n%s, want\n%s", c.old, got, c.want)
		}
		if got := strings.Join(Environ(old, nil, "/d/libsoftnic.so", "/d/sys", "/d.sock", true), " "); got != c.want+" SOFTNIC_VERBOSE=1" {
			t.Errorf("%q with -v: %s", c.old, got)
		}
		if got := strings.Join(daemonEnviron(old), " "); got != c.daemon {
			t.Errorf("%q for a daemon: %s, want %s", c.old, got, c.daemon)
		}
	}
}

// A library that has to be first is.
func TestEnvironFirst(t *testing.T) {
	got := strings.Join(Environ([]string{"LD_PRELOAD=libx.so"}, []string{"libasan.so.8"}, "/d/libsoftnic.so", "/d/sys", "/d.sock", false), " ")
	if want := "LD_PRELOAD=libasan.so.8:/d/libsoftnic.so:libx.so SYSFS_PATH=/d/sys SOFTNIC_SOCKET=/d.sock"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
