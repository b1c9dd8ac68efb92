package nic

import (
	"io"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A NIC on a TAP has bursts where the kernel has them for a socket too, unless they are not wanted.
func TestPlainTAP(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TUN here: %v", err)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("needs root (a network namespace): %v", err)
	}
	for _, plain := range []bool{false, true} {
		f := Flags{TAP: "snplain0", Addrs: []string{"10.8.0.2/24"}, Plain: plain}
		n, err := f.Open(io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if i := n.Device.Port().Info(); plain != (i.MaxSegs == 1) {
			if plain {
				t.Errorf("%d packets a burst", i.MaxSegs)
			} else {
				t.Log("no bursts: needs Linux 6.2")
			}
		}
		if warning, err := n.Close(); warning != "" || err != nil {
			t.Error(warning, err)
		}
	}
}
