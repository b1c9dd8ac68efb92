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
//
// The daemon maps it in few pieces, each much longer than the one before, and unmaps them at
// the end only: the number of mappings of a process is limited, and the Go runtime cannot live
// without new ones.
type arena struct {
	fd     int
	states []byte // one byte per object, see protocol.go
	arms   []byte // four bytes per object, likewise

	mu     sync.Mutex
	pieces [][]byte          // the memfd from 0 on
	mapped uint64            // where the last piece ends
	end    uint64            // where nothing was given out yet
	free   map[uint64][]span // by size
}

const (
	arenaSize = 1 << 40
	// arenaLimit bounds the rings of one context, of which only the pages that are used
	// take memory: as many of the longest queues as a program can have use for.
	arenaLimit  = 16 << 30
	firstPiece  = 1 << 20
	pieceGrowth = 16
)

func newArena() (*arena, error) {
	fd, err := unix.MemfdCreate("softnic-uverbs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	a := &arena{fd: fd, end: arenaOff, free: map[uint64][]span{}}
	if err = unix.Ftruncate(fd, arenaSize); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		err = a.extend(firstPiece)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memfd: %w", err)
	}
	a.states, a.arms = a.pieces[0][stateOff:armOff], a.pieces[0][armOff:arenaOff]
	return a, nil
}

// extend maps the next n bytes.
func (a *arena) extend(n uint64) error {
	b, err := unix.Mmap(a.fd, int64(a.mapped), int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	a.pieces = append(a.pieces, b)
	a.mapped += n
	return nil
}

// span is a part of the arena.
type span struct {
	off uint64
	buf []byte
}

// get gives out at least n bytes, all zero.
func (a *arena) get(n uint64) (span, error) {
	n = (n + 4095) &^ 4095
	a.mu.Lock()
	defer a.mu.Unlock()
	if l := a.free[n]; len(l) > 0 {
		a.free[n] = l[:len(l)-1]
		return l[len(l)-1], nil
	}
	if n > a.mapped-a.end {
		// The rest of the last piece stays unused: a span is in one mapping.
		last := a.pieces[len(a.pieces)-1]
		size := min(max(n, pieceGrowth*uint64(len(last))), arenaLimit-a.mapped)
		start := a.mapped
		if n > size || a.extend(size) != nil {
			return span{}, device.ENOMEM
		}
		a.end = start
	}
	last := a.pieces[len(a.pieces)-1]
	at := a.end - (a.mapped - uint64(len(last)))
	s := span{a.end, last[at : at+n : at+n]}
	a.end += n
	return s, nil
}

// put gives a span back, and its memory to the system. Nobody uses it any more,
// but for the program, which sees zeros from now on.
func (a *arena) put(s span) {
	if s.buf == nil {
		return
	}
	n := uint64(len(s.buf))
	a.mu.Lock()
	defer a.mu.Unlock()
	if unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(s.off), int64(n)) != nil {
		return // what cannot be emptied is not given out again
	}
	a.free[n] = append(a.free[n], s)
}

func (a *arena) close() {
	for _, b := range a.pieces {
		_ = unix.Munmap(b)
	}
	unix.Close(a.fd)
}

// info is struct mminfo: where the program finds a ring.
func (s *span) info(b []byte) []byte {
	b = le.AppendUint64(b, s.off)
	b = le.AppendUint32(b, uint32(len(s.buf)))
	return le.AppendUint32(b, 0)
}
