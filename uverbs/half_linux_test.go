package uverbs

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// TestHalfATransfer reads and writes across the end of what is there, of which the kernel does the first half: that is a
// failure.
func TestHalfATransfer(t *testing.T) {
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	const size = 4096
	fd, err := unix.MemfdCreate("half", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(fd, 0, 2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) // the second page is beyond the file
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	p := &process{memFD: int(f.Fd())}
	va := uint64(uintptr(unsafe.Pointer(&m[size-8])))
	for _, write := range []bool{false, true} {
		if err := p.fileReadWrite([]transport.Extent{{VA: va, Buf: make([]byte, 8)}}, write); err != nil {
			t.Fatalf("write=%v: %v", write, err)
		}
		for _, e := range [][]transport.Extent{
			{{VA: va, Buf: make([]byte, 16)}},
			{{VA: va, Buf: make([]byte, 8)}, {VA: va + 8, Buf: make([]byte, 8)}},
		} {
			if err := p.fileReadWrite(e, write); err != device.EFAULT {
				t.Errorf("write=%v, %d extents: %v", write, len(e), err)
			}
		}
	}
}
