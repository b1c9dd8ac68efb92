package icrc

import (
	"testing"

	"golang.org/x/sys/unix"
)

// edges returns memory before which, and memory behind which, nothing may be touched.
func edges(t *testing.T) (low, high []byte) {
	t.Helper()
	page := unix.Getpagesize()
	m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	if err := unix.Mprotect(m[page:2*page], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	return m[page : 2*page], m[page : 2*page]
}
