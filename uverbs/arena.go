//go:build linux

package uverbs

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// arena is the memory that a program shares with the daemon: the memfd that the program
// sees as its command fd. It is sparse and sealed: nobody can change its size, so that a
// page of it is always there to be touched.
type arena struct {
	fd     int
	states []byte // one byte per queue pair, see protocol.go

	mu   sync.Mutex
	end  uint64              // where nothing was given out yet
	used uint64              // bytes given out
	free map[uint64][]uint64 // offsets by size
}

const (
	arenaSize = 1 << 40
	// arenaLimit bounds the rings of one context, of which only the pages that are used
	// take memory: as many of the longest queues as a program can have use for.
	arenaLimit = 16 << 30
)

func newArena() (*arena, error) {
	fd, err := unix.MemfdCreate("softnic-uverbs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	a := &arena{fd: fd, end: arenaOff, free: map[uint64][]uint64{}}
	if err = unix.Ftruncate(fd, arenaSize); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		a.states, err = unix.Mmap(fd, stateOff, maxStates, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return a, nil
}

// span is a piece of the arena.
type span struct {
	off uint64
	buf []byte
}

// get maps a piece of at least n bytes, all zero.
func (a *arena) get(n uint64) (span, error) {
	n = (n + 4095) &^ 4095
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > arenaLimit || a.used > arenaLimit-n {
		return span{}, device.ENOMEM
	}
	l := a.free[n]
	off := a.end
	if len(l) > 0 {
		off = l[len(l)-1]
	} else if off > arenaSize-n {
		return span{}, device.ENOMEM
	}
	buf, err := unix.Mmap(a.fd, int64(off), int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return span{}, device.ENOMEM
	}
	if len(l) > 0 {
		a.free[n] = l[:len(l)-1]
	} else {
		a.end += n
	}
	a.used += n
	return span{off, buf}, nil
}

// put gives a piece back, and its memory to the system. Nobody uses it any more,
// but for the program, which sees zeros from now on.
func (a *arena) put(s span) {
	if s.buf == nil {
		return
	}
	n := uint64(len(s.buf))
	_ = unix.Munmap(s.buf)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used -= n
	if unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(s.off), int64(n)) != nil {
		return // what cannot be emptied is not given out again
	}
	a.free[n] = append(a.free[n], s.off)
}

func (a *arena) close() {
	_ = unix.Munmap(a.states)
	unix.Close(a.fd)
}

// info is struct mminfo: where the program finds a ring.
func (s *span) info(b []byte) []byte {
	b = le.AppendUint64(b, s.off)
	b = le.AppendUint32(b, uint32(len(s.buf)))
	return le.AppendUint32(b, 0)
}
