package udp

import (
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lookout waits for the socket to have something. The socket is not known to the runtime's poller: that would be
// woken for every datagram, also while a program polls and nobody waits, which costs more than the datagram. It is in
// an epoll set of its own while somebody waits, and the set is known to the runtime's poller. A socket that is in a set at all, armed or not,
// costs a look at it for every datagram that comes, and another for every one that it has sent.
type lookout struct {
	file  *os.File // the epoll set
	raw   syscall.RawConn
	sock  int // the socket's descriptor, for as long as that is open
	event [1]unix.EpollEvent
	armed unix.EpollEvent
	deaf  error // why the socket could not be armed

	arm, check func(fd uintptr) bool // as values made once
	disarm     func(fd uintptr)
}

func newLookout(sock int) (*lookout, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime takes it
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	l := &lookout{file: os.NewFile(uintptr(fd), "epoll"), sock: sock}
	l.arm, l.check, l.disarm = l.armSocket, l.takeEvent, l.takeOut
	if l.raw, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, err
	}
	return l, nil
}

func (l *lookout) armSocket(fd uintptr) bool {
	l.armed = unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}
	l.deaf = unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, l.sock, &l.armed)
	return true
}

func (l *lookout) takeOut(fd uintptr) { _ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, l.sock, nil) }

// takeEvent takes an event, after which the socket makes none until it is armed again.
func (l *lookout) takeEvent(fd uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd, uintptr(unsafe.Pointer(&l.event[0])), 1, 0, 0, 0)
	return n > 0 && errno == 0 || errno != 0 && errno != unix.EINTR
}

// Await implements link.Poller.
func (e *Endpoint) Await() error {
	l := e.out
	if l.raw.Write(l.arm) == nil && l.deaf != nil { // the kernel has no memory for it
		time.Sleep(time.Millisecond)
		return nil
	}
	err := l.raw.Read(l.check)
	_ = l.raw.Control(l.disarm)
	switch {
	case err == nil:
		return nil
	case os.IsTimeout(err): // Wake
		_ = l.file.SetReadDeadline(time.Time{})
		return nil
	}
	return net.ErrClosed
}

// Wake implements link.Poller.
func (e *Endpoint) Wake() { _ = e.out.file.SetReadDeadline(time.Unix(1, 0)) }
