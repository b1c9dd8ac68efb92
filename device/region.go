package device

import (
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// region is the memory that a key names, with the accesses to it. It lives until the key and all
// accesses are gone.
type region struct {
	transport.Memory
	of    *region       // a window's: the region that it is a part of
	state atomic.Uint64 // low 32 bits: references; then accesses that run; top bit: the key is invalid
	gone  chan struct{} // closed when there are no references left
	still chan struct{} // a token when no access runs and the key is invalid
}

const (
	oneRef  = 1
	oneRun  = 1 << 32
	invalid = 1 << 63
)

// open makes a region with one reference, which is the key's own.
func (r *region) open(m transport.Memory, of *region) {
	r.Memory, r.of = m, of
	r.gone, r.still = make(chan struct{}), make(chan struct{}, 1)
	r.state.Store(oneRef)
	if of != nil {
		of.state.Add(oneRef)
	}
}

// begin begins an access. The caller has found the key under the key table's lock.
func (r *region) begin() { r.state.Add(oneRef + oneRun) }

// again is begin for who has only remembered the region; false if it is gone. Such a region must not get another reference: with that the last
// one would go a second time.
func (r *region) again() bool {
	for {
		s := r.state.Load()
		if uint32(s) == 0 {
			return false
		}
		if r.state.CompareAndSwap(s, s+oneRef+oneRun) {
			return true
		}
	}
}

// Release implements transport.Region.
func (r *region) Release() { r.drop(oneRef + oneRun) }

// Discard implements transport.Region.
func (r *region) Discard() { r.drop(oneRef) }

func (r *region) drop(n uint64) {
	s := r.state.Add(-n)
	if s&invalid != 0 && s&^invalid < oneRun {
		select {
		case r.still <- struct{}{}:
		default:
		}
	}
	if uint32(s) == 0 {
		of := r.of
		r.Memory, r.of = nil, nil // queue pairs may remember the region for long (lastKey): that is not to keep a program's memory
		if of != nil {
			of.Discard()
		}
		close(r.gone)
	}
}

// Park implements transport.Region.
func (r *region) Park() { r.drop(oneRun) }

// Resume implements transport.Region.
func (r *region) Resume() bool {
	if r.state.Add(oneRun)&invalid == 0 {
		return true
	}
	r.Park()
	return false
}

// invalidate lets no access begin or go on. The key is in no table any more.
func (r *region) invalidate() { r.state.Or(invalid) }

// quiet waits until no access runs. Accesses that run wait for no lock, and for no other access.
func (r *region) quiet() {
	for r.state.Load()&^invalid >= oneRun {
		<-r.still
	}
}

// ended reports whether nothing holds the region.
func (r *region) ended() bool { return uint32(r.state.Load()) == 0 }
