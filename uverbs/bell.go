//go:build linux

package uverbs

import (
	"sync/atomic"
	"unsafe"
)

// bell is the library's state byte for a queue pair: whether a doorbell is refused, needed, or not needed because the daemon
// looks at the ring by itself. Its fields change under the queue pair's lock.
type bell struct {
	word        *uint32 // of four such bytes, of which others may change at the same time; nil: there is none for the handle
	shift       uint
	open, quiet bool
}

// of is told where the byte is: that of a handle.
func (b *bell) of(states []byte, handle uint32) {
	if handle >= maxStates {
		return
	}
	b.word = (*uint32)(unsafe.Pointer(&states[handle&^3]))
	b.shift = uint(handle&3) * 8 // on the systems that softnic serves programs on, the lowest byte comes first
	b.tell()
}

// tell writes the byte. All that the library does before it reads what was there is seen by who looks at the ring afterwards: this
// is a barrier, and the library has one between the two.
func (b *bell) tell() {
	if b.word == nil {
		return
	}
	state := uint32(stateShut)
	switch {
	case b.open && b.quiet:
		state = stateQuiet
	case b.open:
		state = stateOpen
	}
	for {
		old := atomic.LoadUint32(b.word)
		if atomic.CompareAndSwapUint32(b.word, old, old&^(0xFF<<b.shift)|state<<b.shift) {
			return
		}
	}
}
