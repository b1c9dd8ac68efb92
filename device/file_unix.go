//go:build unix

package device

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/transport"
)

// FileMemory is a file in memory: what peers write there they can have kept, with a FLUSH of type
// FlushPersistent.
type FileMemory struct {
	*goMemory
}

var _ transport.Persistent = FileMemory{}

// MapFile maps the first n bytes of a file, 1 or more, which must be that long, for PD.RegMemory: FileMemory.Addr is its first
// address. The file may be closed afterwards. The error is that of the system, and no OpError.
func MapFile(f *os.File, n int) (FileMemory, error) {
	fi, err := f.Stat()
	if err != nil {
		return FileMemory{}, err
	}
	if n < 1 || fi.Size() < int64(n) {
		return FileMemory{}, fmt.Errorf("%s has %d bytes, %d are to be mapped: truncate it to that length first", f.Name(), fi.Size(), n)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return FileMemory{}, fmt.Errorf("%s: mmap: %w", f.Name(), err)
	}
	return FileMemory{&goMemory{b, addrOf(b)}}, nil
}

// Bytes returns the mapped bytes; they are not to be touched after Close.
func (m FileMemory) Bytes() []byte { return m.b }

// Addr returns the address of the first byte.
func (m FileMemory) Addr() uint64 { return m.base }

// Persist implements transport.Persistent: it returns when the n bytes at va are on the disk (msync). A FLUSH calls it.
func (m FileMemory) Persist(va, n uint64) error {
	if n == 0 {
		return nil
	}
	page := uint64(os.Getpagesize())
	from := (va - m.base) &^ (page - 1) // the mapping begins with a page
	to := min((va-m.base+n+page-1)&^(page-1), uint64(len(m.b)))
	return unix.Msync(m.b[from:to], unix.MS_SYNC)
}

// Close ends the mapping. No region may be on it any more: an access would end the program. It is called once.
func (m FileMemory) Close() error { return unix.Munmap(m.b) }
