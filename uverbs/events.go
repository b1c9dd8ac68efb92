//go:build linux

package uverbs

import (
	"bytes"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// eventPipe is an event fd of a program: one end of a SEQPACKET pair, which gives one
// record per read as the kernel's does, with poll and O_NONBLOCK as they are. The daemon
// keeps a copy of the program's end too, so that it can take back what was not read.
type eventPipe struct {
	mu     sync.Mutex
	tx     int      // the daemon's end
	rx     int      // a copy of the program's end; -1 when it was closed or handed over
	later  [][]byte // what did not fit
	waits  bool     // a goroutine waits for room
	closed bool
}

// maxLater bounds the events that wait for a program to read.
const maxLater = 1 << 16

// newEventPipe returns a pipe and the program's end of it.
func newEventPipe() (p *eventPipe, end int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	rx, err := unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, -1, err
	}
	return &eventPipe{tx: fds[0], rx: rx}, fds[1], nil
}

// send adds an event. It never blocks. It reports whether the program will find it.
func (p *eventPipe) send(rec []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sendLocked(rec)
}

func (p *eventPipe) sendLocked(rec []byte) bool {
	if p.closed {
		return false
	}
	if len(p.later) == 0 {
		errno := p.put(rec)
		if errno != unix.EAGAIN {
			return errno == 0 // or nobody is there to read it
		}
	}
	if len(p.later) == maxLater {
		return false // a program that arms again and again, and never reads
	}
	p.later = append(p.later, bytes.Clone(rec))
	if !p.waits {
		p.waits = true
		go p.drain()
	}
	return true
}

// put gives an event to the kernel. The call does not wait: see link/udp, trySend.
func (p *eventPipe) put(rec []byte) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(p.tx), uintptr(unsafe.Pointer(&rec[0])), uintptr(len(rec)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return errno
}

// drain sends what did not fit when there is room.
func (p *eventPipe) drain() {
	for {
		p.mu.Lock()
		for len(p.later) > 0 && !p.closed {
			if p.put(p.later[0]) == unix.EAGAIN {
				break
			}
			p.later = p.later[1:]
		}
		if len(p.later) == 0 || p.closed {
			p.waits = false
			p.mu.Unlock()
			return
		}
		// A copy: the descriptor may be closed, and its number be another's, meanwhile.
		fd, err := unix.FcntlInt(uintptr(p.tx), unix.F_DUPFD_CLOEXEC, 0)
		p.mu.Unlock()
		if err != nil {
			_, _ = unix.Poll(nil, 10)
			continue
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 100)
		unix.Close(fd)
	}
}

// withdraw takes back the events for which mine is true, as far as they were not read, and
// returns how many there were.
func (p *eventPipe) withdraw(mine func(rec []byte) bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0
	}
	var kept [][]byte
	n := 0
	take := func(rec []byte) {
		if mine(rec) {
			n++
		} else {
			kept = append(kept, bytes.Clone(rec))
		}
	}
	p.unread(take)
	for _, rec := range kept {
		p.sendLocked(rec)
	}
	return n
}

// unread takes everything back.
func (p *eventPipe) unread(take func(rec []byte)) {
	if p.rx >= 0 {
		var b [64]byte
		for {
			k, _, err := unix.Recvfrom(p.rx, b[:], unix.MSG_DONTWAIT)
			if err == unix.EINTR {
				continue
			}
			if err != nil || k <= 0 {
				break
			}
			take(b[:k])
		}
	}
	for _, rec := range p.later {
		take(rec)
	}
	p.later = nil
}

// hangUp drops the copy of the program's end: the program has closed its own. It returns the
// events that nobody can read any more; none if another process has the end too.
func (p *eventPipe) hangUp() (lost [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rx < 0 {
		return nil
	}
	p.unread(func(rec []byte) { lost = append(lost, bytes.Clone(rec)) })
	unix.Close(p.rx)
	p.rx = -1
	poll := []unix.PollFd{{Fd: int32(p.tx)}}
	if n, err := unix.Poll(poll, 0); err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0 {
		return lost
	}
	for _, rec := range lost {
		p.sendLocked(rec)
	}
	return nil
}

func (p *eventPipe) close() {
	p.hangUp()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		unix.Close(p.tx)
	}
}

// inode identifies the program's end, whatever its number is there.
func (p *eventPipe) inode() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return inodeOf(p.rx)
}

func inodeOf(fd int) uint64 {
	var st unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}
