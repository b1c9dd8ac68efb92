package link

import (
	"time"

	"github.com/softnic/softnic/clock"
)

const (
	// reorderWait bounds how long a packet waits to be overtaken, so that the last packet
	// of an exchange is late and not lost.
	reorderWait = 10 * time.Millisecond
	// maxHeld bounds the packets held back per direction; more are lost.
	maxHeld = 16384
)

// later is a received packet on its way into the loop, receive impairment done.
type later struct {
	frame []byte
	note  string
}

// holder keeps what impairment holds back in one direction: packets to go at a
// time of their own, and packets to go when another one has passed. The caller
// has it locked.
type holder[T any] struct {
	delayed []heldItem[T] // heap by due time, then by order
	behind  []heldItem[T] // waiting to be overtaken, in order
	seq     uint64
	timer   clock.Timer
	armed   time.Time // when the timer fires; zero: it does not
}

type heldItem[T any] struct {
	due  time.Time
	seq  uint64
	what T
}

func (a *heldItem[T]) before(b *heldItem[T]) bool {
	if !a.due.Equal(b.due) {
		return a.due.Before(b.due)
	}
	return a.seq < b.seq
}

func (h *holder[T]) empty() bool { return len(h.delayed)+len(h.behind) == 0 }

func (h *holder[T]) full() bool { return len(h.delayed)+len(h.behind) >= maxHeld }

// delay holds w until due.
func (h *holder[T]) delay(w T, due time.Time) {
	h.seq++
	h.delayed = append(h.delayed, heldItem[T]{due, h.seq, w})
	for i := len(h.delayed) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.delayed[i].before(&h.delayed[up]) {
			break
		}
		h.delayed[i], h.delayed[up] = h.delayed[up], h.delayed[i]
		i = up
	}
}

// swap holds w until another packet has passed, or until due.
func (h *holder[T]) swap(w T, due time.Time) {
	h.behind = append(h.behind, heldItem[T]{due: due, what: w})
}

// pop takes the next packet whose time has come.
func (h *holder[T]) pop(now time.Time) (w T, ok bool) {
	if len(h.behind) > 0 && !h.behind[0].due.After(now) {
		return h.overtaken()
	}
	if len(h.delayed) == 0 || h.delayed[0].due.After(now) {
		return w, false
	}
	w = h.delayed[0].what
	n := len(h.delayed) - 1
	h.delayed[0], h.delayed[n] = h.delayed[n], heldItem[T]{}
	h.delayed = h.delayed[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && h.delayed[c+1].before(&h.delayed[c]) {
			c++
		}
		if !h.delayed[c].before(&h.delayed[i]) {
			break
		}
		h.delayed[i], h.delayed[c] = h.delayed[c], h.delayed[i]
		i = c
	}
	return w, true
}

// overtaken takes the next packet that waits to be overtaken.
func (h *holder[T]) overtaken() (w T, ok bool) {
	if len(h.behind) == 0 {
		return w, false
	}
	w = h.behind[0].what
	h.behind[0] = heldItem[T]{}
	h.behind = h.behind[1:]
	if len(h.behind) == 0 {
		h.behind = nil
	}
	return w, true
}

// next returns when the next packet is due.
func (h *holder[T]) next() (at time.Time, ok bool) {
	if len(h.behind) > 0 {
		at, ok = h.behind[0].due, true
	}
	if len(h.delayed) > 0 && (!ok || h.delayed[0].due.Before(at)) {
		at, ok = h.delayed[0].due, true
	}
	return at, ok
}

// arm has f called when the next packet is due.
func (h *holder[T]) arm(c clock.Clock, f func()) {
	at, ok := h.next()
	switch {
	case !ok || at.Equal(h.armed):
		return // a timer that finds nothing due does no harm
	case h.timer == nil:
		h.timer = c.AfterFunc(at.Sub(c.Now()), f)
	default:
		h.timer.Reset(at.Sub(c.Now()))
	}
	h.armed = at
}

// drop forgets everything.
func (h *holder[T]) drop() {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.delayed, h.behind = nil, nil
}
