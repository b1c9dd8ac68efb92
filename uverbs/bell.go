//go:build linux

package uverbs

import (
	"sync/atomic"
	"unsafe"
)

// stateByte is the library's byte for a handle.
type stateByte struct {
	word  *uint32 // of four such bytes, of which others may change at the same time; nil: there is none for the handle
	shift uint
}

func stateOf(states []byte, handle uint32) stateByte {
	if handle >= maxStates {
		return stateByte{}
	}
	// On the systems that softnic serves programs on, the lowest byte comes first.
	return stateByte{(*uint32)(unsafe.Pointer(&states[handle&^3])), uint(handle&3) * 8}
}

// set writes the byte. All that the library does before it reads what was there is seen by who looks at a ring afterwards: this
// is a barrier, and the library has one between the two.
func (s stateByte) set(state uint32) {
	if s.word == nil {
		return
	}
	for {
		old := atomic.LoadUint32(s.word)
		if atomic.CompareAndSwapUint32(s.word, old, old&^(0xFF<<s.shift)|state<<s.shift) {
			return
		}
	}
}

// armOf returns the word by which the library arms the completion queue with a handle; nil: there is none.
func armOf(arms []byte, handle uint32) *uint32 {
	if handle >= maxStates {
		return nil
	}
	return (*uint32)(unsafe.Pointer(&arms[4*handle]))
}

// bell is the byte of a queue pair: whether a doorbell is refused, needed, or not needed because the daemon
// looks at the ring by itself. Its fields change under the queue pair's lock.
type bell struct {
	stateByte
	open, quiet bool
}

// of is told where the byte is: that of a handle.
func (b *bell) of(states []byte, handle uint32) {
	b.stateByte = stateOf(states, handle)
	b.tell()
}

// tell writes the byte.
func (b *bell) tell() {
	switch {
	case b.open && b.quiet:
		b.set(stateQuiet)
	case b.open:
		b.set(stateOpen)
	default:
		b.set(stateShut)
	}
}
