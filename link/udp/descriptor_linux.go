package udp

import (
	"net"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// descriptor is a socket that stays open while a call on it runs, as an os.File does; what that takes besides, to wait and to have deadlines, is
// paid for each look at the socket, and a look that finds nothing is not much more than a system call. It is a syscall.RawConn whose calls do
// not wait: Read and Write call f once.
type descriptor struct {
	fd   int
	used atomic.Int64 // calls that run; with shutBit no more begin
}

const (
	shutBit   = 1 << 62
	closedBit = 1 << 61 // beside it, when the socket has been closed
)

// Control calls f.
func (d *descriptor) Control(f func(fd uintptr)) error {
	return d.Read(func(fd uintptr) bool { f(fd); return true })
}

// Read calls f.
func (d *descriptor) Read(f func(fd uintptr) bool) error {
	if d.used.Add(1)&shutBit != 0 {
		d.leave()
		return net.ErrClosed
	}
	f(uintptr(d.fd))
	d.leave()
	return nil
}

// Write calls f.
func (d *descriptor) Write(f func(fd uintptr) bool) error { return d.Read(f) }

// leave ends a call; the last of a closed descriptor closes it.
func (d *descriptor) leave() {
	if d.used.Add(-1) == shutBit && d.used.CompareAndSwap(shutBit, shutBit|closedBit) {
		unix.Close(d.fd)
	}
}

// Close closes the socket, once the calls that run have ended, for which it does not wait.
func (d *descriptor) Close() error {
	d.used.Add(1) // counts as a call: the last to end finds the bit
	d.used.Or(shutBit)
	d.leave()
	return nil
}
