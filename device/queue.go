package device

import (
	"github.com/softnic/softnic/transport"
)

// sendRing is the send queue of a Go caller. The queue pair's lock guards it.
//
// Slots run from tail (oldest not retired) over fetch (next for the engine) to
// head (next free).
type sendRing struct {
	slot              []SendWR
	tail, fetch, head int // counts; slot index is the count modulo the size
}

func (r *sendRing) full() bool { return r.head-r.tail == len(r.slot) }

// push adds a request. Only a datagram's address handle is kept: the others have
// counted no reference.
func (r *sendRing) push(wr *SendWR, datagram bool) {
	w := &r.slot[r.head%len(r.slot)]
	w.CopyFrom(wr)
	if !datagram {
		w.AH = nil
	}
	r.head++
}

// Fetch implements transport.SendQueue.
func (r *sendRing) Fetch(wr *SendWR) (Status, bool) {
	if r.fetch == r.head {
		return StatusSuccess, false
	}
	wr.CopyFrom(&r.slot[r.fetch%len(r.slot)])
	r.fetch++
	return StatusSuccess, true
}

// Retire implements transport.SendQueue.
func (r *sendRing) Retire(n int) {
	for range n {
		w := &r.slot[r.tail%len(r.slot)]
		if a, ok := w.AH.(*AH); ok && a != nil {
			a.uses.Add(-1)
			w.AH = nil
		}
		r.tail++
	}
}

// clear drops everything without completions, as RESET does.
func (r *sendRing) clear() {
	r.Retire(r.head - r.tail)
	r.fetch = r.head
}

// recvRing is the receive queue of a Go caller; see sendRing.
type recvRing struct {
	slot              []RecvWR
	tail, fetch, head int
}

func (r *recvRing) full() bool { return r.head-r.tail == len(r.slot) }

func (r *recvRing) push(wr *RecvWR) {
	r.slot[r.head%len(r.slot)].CopyFrom(wr)
	r.head++
}

// Fetch implements transport.RecvQueue.
func (r *recvRing) Fetch(wr *RecvWR) bool {
	if r.fetch == r.head {
		return false
	}
	wr.CopyFrom(&r.slot[r.fetch%len(r.slot)])
	r.fetch++
	return true
}

// Retire implements transport.RecvQueue.
func (r *recvRing) Retire(n int) { r.tail += n }

// Len implements transport.CountedQueue.
func (r *recvRing) Len() int { return r.head - r.fetch }

func (r *recvRing) clear() { r.tail, r.fetch = r.head, r.head }

// checkedRing is the SendRing of a queue pair as its engine sees it: checked.
type checkedRing QP

// Fetch implements transport.SendQueue.
func (r *checkedRing) Fetch(wr *SendWR) (Status, bool) {
	q := (*QP)(r)
	st, ok := q.sendRing.Fetch(wr)
	if ok && st == StatusSuccess {
		if err := q.validate(wr); err != nil {
			q.dev.log.Debug("bad work request", "qp", q.num, "err", err)
			st = StatusLocalQPOp
			if wr.Len() > MaxMessage {
				st = StatusLocalLength
			}
		}
	}
	return st, ok
}

// Retire implements transport.SendQueue.
func (r *checkedRing) Retire(n int) { r.sendRing.Retire(n) }

var (
	_ transport.SendQueue = (*checkedRing)(nil)
	_ transport.SendQueue = (*sendRing)(nil)
	_ transport.RecvQueue = (*recvRing)(nil)
)
