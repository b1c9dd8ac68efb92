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
	wr.Share(&r.slot[r.fetch%len(r.slot)]) // which is free for another only after Retire
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

// fetchBudget bounds the work requests that an engine takes from one queue while the queue pair's lock is
// held: a program may have posted a million, or go on posting while they are flushed. It
// is more than a batch of packets can need receives for.
const fetchBudget = 256

// spend takes one from a budget. When none is left the queue looks empty, and the queue pair's
// goroutine goes on.
func (q *QP) spend(budget *int) bool {
	if *budget == 0 {
		q.todo.Or(todoMore)
		return false
	}
	*budget--
	return true
}

// refill gives the budgets back; the lock has been, or is about to be, released.
func (q *QP) refill() { q.sendBudget, q.recvBudget = fetchBudget, fetchBudget }

// sendSide is the send queue of a queue pair as its engine sees it: of the caller or of a program, whose requests
// are checked here.
type sendSide QP

// Fetch implements transport.SendQueue.
func (s *sendSide) Fetch(wr *SendWR) (Status, bool) {
	q := (*QP)(s)
	if !q.spend(&q.sendBudget) {
		return StatusSuccess, false
	}
	if q.sendRing == nil {
		return q.sq.Fetch(wr)
	}
	st, ok := q.sendRing.Fetch(wr)
	if ok {
		q.fetches++
	}
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
func (s *sendSide) Retire(n int) {
	if s.sendRing == nil {
		s.sq.Retire(n)
		return
	}
	s.sendRing.Retire(n)
}

// recvSide is the receive queue of a queue pair as its engine sees it.
type recvSide QP

// Fetch implements transport.RecvQueue.
func (r *recvSide) Fetch(wr *RecvWR) bool {
	q := (*QP)(r)
	if !q.spend(&q.recvBudget) {
		return false
	}
	if q.recvRing == nil {
		return q.rq.Fetch(wr)
	}
	return q.recvRing.Fetch(wr)
}

// Retire implements transport.RecvQueue.
func (r *recvSide) Retire(n int) {
	if r.recvRing == nil {
		r.rq.Retire(n)
		return
	}
	r.recvRing.Retire(n)
}

// Len implements transport.CountedQueue. It is 0 for a ring that does not count.
func (r *recvSide) Len() int {
	if r.recvRing == nil {
		return r.rq.Len()
	}
	if c, ok := r.recvRing.(transport.CountedQueue); ok {
		return c.Len()
	}
	return 0
}

var (
	_ transport.SendQueue    = (*sendSide)(nil)
	_ transport.CountedQueue = (*recvSide)(nil)
	_ transport.SendQueue    = (*sendRing)(nil)
	_ transport.RecvQueue    = (*recvRing)(nil)
)
