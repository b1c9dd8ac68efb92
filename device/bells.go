package device

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// QuietRing is a SendRing whose program need not ring a doorbell for each request.
type QuietRing interface {
	SendRing
	// Quiet says whether the device looks at the queue by itself from now on. A request that is posted after Quiet(false) has
	// returned comes with a doorbell; one before shows in Pending after it. It is called under the queue pair's lock.
	Quiet(on bool)
	// Pending reports whether there are requests that were not fetched. It is called under the queue pair's lock.
	Pending() bool
}

// bells are the send rings of programs that post so often that the receiver looks at them by itself, while it looks at the link.
type bells struct {
	mu    sync.Mutex   // the last to be taken
	quiet []*QP        // those
	many  atomic.Int32 // how many they are
	due   []*QP        // for look
}

// quietMost is how many queue pairs may be looked at: to look costs some 20 ns each.
const quietMost = 64

// ringsOften is what lies between two doorbells at most for the second to say that others follow: a round trip of small messages through two
// daemons that both slept takes some 400 µs where processors are slow and few, and a quarter of that or less when they look.
const ringsOften = 500 * time.Microsecond

// rung is told of a doorbell of q, which has been answered. If the one before was not long ago, none is needed until the receiver goes
// to sleep.
func (r *receiver) rung(q *QP) {
	ring, ok := q.sendRing.(QuietRing)
	if !ok || r.away.Load() {
		return
	}
	now := time.Now()
	q.mu.Lock()
	often := now.Sub(q.rungAt) < ringsOften
	q.rungAt = now
	if !often || q.quiet || q.dead || now.UnixNano() < r.rests.busy.Load() || !r.bells.add(q) {
		q.mu.Unlock()
		return
	}
	q.quiet = true
	ring.Quiet(true)
	q.mu.Unlock()
	if r.sits.Load() { // who sits down from now on rings it
		r.link.Wake()
	}
	if r.failed.Load() { // and who fails from now on
		r.drive.Lock()
		r.bells.ring()
		r.drive.Unlock()
	}
}

func (b *bells) add(q *QP) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.quiet) >= quietMost {
		return false
	}
	b.quiet = append(b.quiet, q)
	b.many.Add(1)
	return true
}

// remove is told of a queue pair that goes.
func (b *bells) remove(q *QP) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quiet = slices.DeleteFunc(b.quiet, func(o *QP) bool { return o == q })
	b.many.Store(int32(len(b.quiet)))
}

// look has the engines of quiet queue pairs look at their rings; it reports whether there was anything. The receiver's drive is held.
func (b *bells) look() bool {
	if b.empty() {
		return false
	}
	b.mu.Lock()
	b.due = append(b.due[:0], b.quiet...)
	b.mu.Unlock()
	any := false
	for i, q := range b.due {
		any = q.lookAtRing(false) || any
		b.due[i] = nil
	}
	return any
}

// ring has programs ring again; it reports whether there was something that they have not rung for. The receiver's drive is held.
func (b *bells) ring() bool {
	b.mu.Lock()
	b.due = append(b.due[:0], b.quiet...)
	clear(b.quiet)
	b.quiet = b.quiet[:0]
	b.many.Store(0)
	b.mu.Unlock()
	any := false
	for i, q := range b.due {
		any = q.lookAtRing(true) || any
		b.due[i] = nil
	}
	return any
}

// empty reports whether no program relies on the receiver's looks.
func (b *bells) empty() bool { return b.many.Load() == 0 }

// lookAtRing looks for requests in the ring, with loud from now on for the last time; it reports whether the engine has taken any. Those that
// it cannot take yet (a full window, an RNR wait, SQD) are no news: it takes them by itself when it can.
func (q *QP) lookAtRing(loud bool) bool {
	ring := q.sendRing.(QuietRing)
	q.mu.Lock()
	if loud {
		q.quiet = false
		if !q.dead {
			ring.Quiet(false)
		}
	}
	if q.dead || q.takesSends() != nil || q.attr.State == StateSQD || !ring.Pending() {
		q.mu.Unlock()
		return false
	}
	now, before := q.dev.now(), q.fetches
	q.eng.Doorbell(now)
	any := q.fetches != before
	q.leave(now, maxBursts, false)
	return any
}
