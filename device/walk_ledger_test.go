package device_test

import (
	"fmt"
	"sync"

	"github.com/softnic/softnic/device"
)

// ledger is what was posted to one queue and has not completed. The ID of a request is the number of the ledger
// and its own.
type ledger struct {
	mu      sync.Mutex
	id      uint32
	q       *wQP // nil: a shared queue, which completes in any order
	recv    bool
	next    uint32 // number of the next request, from 1 on
	last    uint32 // that has completed
	floor   uint32 // those below went with a RESET
	reset   int64  // tick when that was over
	failed  uint32 // RC: the first that failed since
	open    map[uint32]posted
	refused map[uint32]bool // lately
}

type posted struct {
	op   device.WROp
	must bool // it completes, whatever happens
}

func (w *walk) newLedger(q *wQP, recv bool) *ledger {
	l := &ledger{id: w.ids.Add(1), q: q, recv: recv, next: 1, floor: 1, open: map[uint32]posted{}, refused: map[uint32]bool{}}
	w.ledgers.Store(l.id, l)
	return l
}

// write notes a request that is about to be posted: it may complete before the verb returns.
func (l *ledger) write(op device.WROp, must bool) (id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.next
	l.next++
	l.open[n] = posted{op, must}
	return uint64(l.id)<<32 | uint64(n)
}

// unposted says that a request was refused.
func (l *ledger) unposted(w *walk, id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := uint32(id)
	if _, open := l.open[n]; !open {
		w.errorf("request %d of ledger %d was refused, and has completed", n, l.id)
	}
	delete(l.open, n)
	if len(l.refused) > 64 {
		clear(l.refused)
	}
	l.refused[n] = true
}

// maybe says that it is not known whether a request was posted.
func (l *ledger) maybe(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p, ok := l.open[uint32(id)]; ok {
		p.must = false
		l.open[uint32(id)] = p
	}
}

// cut says that nothing that was posted until now completes any more.
func (l *ledger) cut(w *walk) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.floor, l.reset = l.next, w.tick.Add(1)
}

// completed judges a completion that a poll has brought that began at a tick.
func (w *walk) completed(c *wCQ, wc *device.WC, began int64) {
	v, ok := w.ledgers.Load(uint32(wc.ID >> 32))
	if !ok {
		w.errorf("a completion of a request that was never posted: %+v", *wc)
		return
	}
	l, n := v.(*ledger), uint32(wc.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	p, open := l.open[n]
	bad := func(format string, a ...any) {
		w.errorf("%s: %+v; ledger %d, recv %v, next %d, last %d, floor %d, of %v", fmt.Sprintf(format, a...), *wc, l.id, l.recv, l.next, l.last, l.floor, l.q)
	}
	if !open {
		bad("a completion that comes twice, or of a request that was not posted (refused: %v)", l.refused[n])
		return
	}
	delete(l.open, n)
	if q := l.q; q != nil {
		of := q.scq
		if l.recv {
			of = q.rcq
		}
		if of != c || wc.QPN != q.Num() {
			bad("it is on the wrong queue, or of QPN %#x", q.Num())
		}
		if n <= l.last {
			bad("out of order")
		}
		if g := q.gone.Load(); g != 0 && g < began || n < l.floor && l.reset < began {
			bad("the queue pair was destroyed or reset before")
		}
		for i := max(l.last+1, l.floor); i < n; i++ {
			if p, open := l.open[i]; open {
				if p.must && !c.lossy.Load() {
					bad("request %d has not completed", i)
				}
				delete(l.open, i)
			}
		}
		if q.typ == device.RC && wc.Status == device.StatusSuccess && l.failed != 0 && l.failed >= l.floor && !p.op.IsLocal() { // what sends nothing may be done before
			bad("a success behind the failure of %d", l.failed)
		}
		if wc.Status != device.StatusSuccess && l.failed < l.floor {
			l.failed = n
		}
		l.last = n
	}
	switch {
	case wc.Status != device.StatusSuccess:
	case l.recv && wc.Op != device.WCRecv && wc.Op != device.WCRecvImm, !l.recv && wc.Op != p.op.Completed():
		bad("%v does not complete so", p.op)
	}
}

// event judges an asynchronous event that was taken at a tick; 0: by a handler.
func (w *walk) event(e device.AsyncEvent, began int64) {
	var of *base
	if v, ok := w.byQP.Load(e.QP); ok {
		q := v.(*wQP)
		of = &q.base
		switch e.Type {
		case device.EventLastWQE:
			if n := q.lastWQEs.Add(1); n > q.errs.Load() {
				w.errorf("%v: event %d, ERR was entered %d times", e.Type, n, q.errs.Load())
			}
		case device.EventSQDrained:
			if n := q.drained.Add(1); n > q.asked.Load() {
				w.errorf("%v: event %d, it was asked for %d times", e.Type, n, q.asked.Load())
			}
		}
	} else if v, ok := w.byCQ.Load(e.CQ); ok {
		of = &v.(*wCQ).base
	} else if v, ok := w.bySRQ.Load(e.SRQ); ok {
		of = &v.(*wSRQ).base
	}
	if of != nil && began != 0 && of.gone.Load() != 0 && of.gone.Load() < began {
		w.errorf("event %v of what was destroyed before", e.Type)
	}
}
