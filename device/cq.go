package device

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/clock"
)

// CQInit says what a completion queue is to be. Of Channel, Handler and Notify at most one is needed: Notify goes before Handler, and
// that before Channel.
type CQInit struct {
	Entries int          // completions that it holds, 1 ... MaxCQE; also with Ring, which may hold other
	Channel *CompChannel // where its events go; nil: none
	Handler func(*CQ)    // called for an event instead (comp_handler); nil: none

	// Notify is called for an event instead of both, at once and under locks: it
	// must not block or call the device.
	Notify func()
	// Ring is where completions go instead of a list of the queue's own, of which Poll
	// and Wait then see nothing. nil: such a list.
	Ring CompletionRing
}

// CompletionRing is a completion queue in memory that a program shares and polls. It is
// called from one goroutine at a time, under the queue's lock.
type CompletionRing interface {
	// Push stores a completion, of which it keeps no pointer; false if there is no room, over which the queue pair enters ERR.
	Push(wc *WC) bool
	// Armed tells for which completions the program wants an event, as far as it says so in the memory that it shares; it may use
	// CQ.Arm as well. What it says before it sees a completion is known after Push.
	Armed() Armed
	// Disarm takes that back: an event is made.
	Disarm()
}

// Armed is for which completions a queue makes an event. The zero value is none.
type Armed int8

// What a queue is armed for, each more than the one before.
const (
	ArmedNone      Armed = iota
	ArmedSolicited       // those that are solicited, and errors
	ArmedAny
)

// CQ is a completion queue (ibv_cq): where the requests of one or more queue pairs leave what became of them, in the order in which
// they ended.
type CQ struct {
	ctx     *Context
	id      int
	channel *CompChannel
	handler func(*CQ)
	tell    func() // CQInit.Notify
	shared  CompletionRing
	uses    atomic.Int32 // queue pairs, one count for each of their two sides

	mu       sync.Mutex
	ring     []WC
	head, n  int
	armed    Armed // by Arm
	overflow bool
	dead     bool
	sent     int // events handed to the channel
	count    int // of Moderate
	period   time.Duration
	pending  int         // completions that have made no event yet, and are to
	timer    clock.Timer // runs while there are some; nil: never set
	wake     sleeper     // is woken when something was added
}

// CreateCQ makes a completion queue (ibv_create_cq), which holds as many completions as it was asked for. EINVAL: Entries out of
// range, a channel that is destroyed or of another context, more than MaxCQ on the device.
func (c *Context) CreateCQ(in CQInit) (*CQ, error) {
	const op = "create_cq"
	if in.Entries < 1 || in.Entries > MaxCQE {
		return nil, &OpError{op, "", because(EINVAL, "%d entries: 1 ... %d are possible", in.Entries, MaxCQE)}
	}
	q := &CQ{ctx: c, channel: in.Channel, handler: in.Handler, tell: in.Notify, shared: in.Ring, wake: newSleeper()}
	if in.Ring == nil {
		q.ring = make([]WC, in.Entries)
	}
	live := func() error {
		if in.Channel == nil {
			return nil
		}
		return alive(c.channels, in.Channel, "channel")
	}
	err := own(c, op, c.cqs, MaxCQ, q, live, func() {
		q.id = c.nextCQ
		c.nextCQ++
		if in.Channel != nil {
			in.Channel.uses++
		}
	})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// Cap returns how many completions the queue can hold; 0 for one with a Ring, which knows.
func (q *CQ) Cap() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ring)
}

func (q *CQ) name() string { return fmt.Sprintf("cq %d", q.id) }

// Poll takes up to len(wc) completions, oldest first, and returns how many: 0 if there are none
// (ibv_poll_cq). It does not fail, also not on a queue that is destroyed.
//
// Where it finds none it takes in what the link has brought, and looks again: who polls needs no other goroutine to
// get on.
func (q *CQ) Poll(wc []WC) int {
	n := q.take(wc)
	if n == 0 && len(wc) > 0 && q.ctx.dev.Progress() {
		n = q.take(wc)
	}
	return n
}

func (q *CQ) take(wc []WC) int {
	n, _, _ := q.takeSome(wc)
	return n
}

// takeSome is take, and tells whether completions are left, and whether the queue is destroyed.
func (q *CQ) takeSome(wc []WC) (n int, more, dead bool) {
	q.mu.Lock()
	n = min(len(wc), q.n)
	for i := range n {
		wc[i] = q.ring[q.head]
		if q.head++; q.head == len(q.ring) {
			q.head = 0
		}
	}
	q.n -= n
	more, dead = q.n > 0, q.dead
	q.mu.Unlock()
	return n, more, dead
}

// Wait is Poll that blocks until there is a completion or ctx ends. It does
// not use or disturb Arm and channels. Of several goroutines that wait each completion wakes one. It fails
// with the error of ctx, and with EIO when the queue is destroyed and what it held was taken. With no room in wc it returns 0 at once.
func (q *CQ) Wait(ctx context.Context, wc []WC) (int, error) {
	for {
		n, more, dead := q.takeSome(wc)
		if len(wc) == 0 {
			return 0, nil
		}
		if more || dead {
			q.wake.wake() // another who waits: there is one token for all that has come
		}
		switch {
		case n > 0:
			return n, nil
		case dead:
			return 0, &OpError{"poll_cq", q.name(), because(EIO, "it is destroyed")}
		case ctx.Err() != nil:
			return 0, &OpError{"poll_cq", q.name(), ctx.Err()}
		}
		q.wake.sleep(ctx, q.ctx.dev.rx) // who has the token takes what came with it, also at the end of ctx: others who wait have no other
	}
}

// Arm asks for one event at the next completion, or with solicitedOnly at the
// next one that is solicited or an error (ibv_req_notify_cq). Completions that are there
// already make no event: missed reports that there are some, poll again; of a queue with a Ring it is false. An event ends it: arm
// again. To arm for any completion is not taken back by arming for solicited ones.
func (q *CQ) Arm(solicitedOnly bool) (missed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	want := ArmedAny
	if solicitedOnly {
		want = ArmedSolicited
	}
	q.armed = max(q.armed, want)
	return q.n > 0
}

// push adds a completion; it reports whether there was room. It is called
// under the lock of a queue pair.
func (q *CQ) push(wc *WC, solicited bool) bool {
	q.mu.Lock()
	if q.dead { // an XRC target of another context was in the middle of a message
		q.mu.Unlock()
		return true
	}
	if !q.store(wc) {
		first := !q.overflow
		q.overflow = true
		q.mu.Unlock()
		if first {
			q.ctx.raise(AsyncEvent{Type: EventCQErr, CQ: q}, nil)
		}
		return false
	}
	armed := q.armedFor()
	fire := armed == ArmedAny || armed == ArmedSolicited && (solicited || wc.Status != StatusSuccess)
	fire = fire && q.due(wc)
	if fire {
		q.fired()
	}
	q.wake.wake()
	q.mu.Unlock()
	if fire {
		q.notify()
	}
	return true
}

// Moderate has one event stand for several completions (ibv_modify_cq): it comes with the count-th after Arm, or when period
// has passed since the first, or with an error at once. Both are 0, which is the default and means no delay, or neither: a
// count of 1 ... 65535, and a period above 0 and up to 65535 µs. EINVAL: other values, or the queue is destroyed. On a stepped
// device no period passes: there the count alone makes the event, or an error.
func (q *CQ) Moderate(count int, period time.Duration) error {
	const most = 65535 // struct ibv_moderate_cq
	if count < 0 || count > most || period < 0 || period > most*time.Microsecond || (count == 0) != (period == 0) {
		return &OpError{"modify_cq", q.name(), because(EINVAL, "count %d, period %v: both 0, or 1 ... %d and up to %v are possible", count, period, most, most*time.Microsecond)}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return &OpError{"modify_cq", q.name(), because(EINVAL, "it is destroyed")}
	}
	q.count, q.period = count, period
	return nil
}

// due reports whether a completion that is to make an event makes it now; else the timer will.
func (q *CQ) due(wc *WC) bool {
	q.pending++
	if q.pending >= q.count || wc.Status != StatusSuccess {
		return true
	}
	switch {
	case q.pending > 1: // it runs
	case q.timer == nil:
		q.timer = q.ctx.dev.clock.AfterFunc(q.period, q.late)
	default:
		q.timer.Reset(q.period)
	}
	return false
}

// late makes the event that was held back.
func (q *CQ) late() {
	q.mu.Lock()
	fire := !q.dead && q.pending > 0 && q.armedFor() != ArmedNone
	if fire {
		q.fired()
		q.notify() // under the lock: none comes after Destroy
	}
	q.mu.Unlock()
}

// armedFor returns for what the queue is armed, by whichever way.
func (q *CQ) armedFor() Armed {
	if q.shared == nil {
		return q.armed
	}
	return max(q.armed, q.shared.Armed())
}

// fired notes an event.
func (q *CQ) fired() {
	q.armed, q.pending = ArmedNone, 0
	if q.shared != nil {
		q.shared.Disarm()
	}
	if q.tell != nil || q.handler != nil || q.channel != nil {
		q.sent++
	}
	if q.timer != nil {
		q.timer.Stop()
	}
}

// store adds a completion to the list or ring; false if there is no room.
func (q *CQ) store(wc *WC) bool {
	if q.shared != nil {
		return q.shared.Push(wc)
	}
	if q.n == len(q.ring) {
		return false
	}
	i := q.head + q.n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.ring[i] = *wc
	q.n++
	return true
}

// Resize changes how many completions the queue holds: 1 ... MaxCQE, at least those that it does (ibv_resize_cq). EINVAL: other values,
// a queue with a Ring, or one that is destroyed.
func (q *CQ) Resize(entries int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	var err error
	switch {
	case q.dead:
		err = because(EINVAL, "it is destroyed")
	case q.shared != nil:
		err = because(EINVAL, "it is a ring of a program")
	case entries < 1 || entries > MaxCQE:
		err = because(EINVAL, "%d entries: 1 ... %d are possible", entries, MaxCQE)
	case entries < q.n:
		err = because(EINVAL, "%d entries, and %d completions are there: poll them first", entries, q.n)
	}
	if err != nil {
		return &OpError{"resize_cq", q.name(), err}
	}
	ring := make([]WC, entries)
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = ring, 0
	return nil
}

// ReplaceRing gives a queue with a Ring another one, that f makes of it. f moves the completions that are there; it is called
// under the queue's lock, so that none is added meanwhile. With its error all stays as it was, and the OpError wraps it. EINVAL: the
// queue has no Ring, or is destroyed.
func (q *CQ) ReplaceRing(f func(old CompletionRing) (CompletionRing, error)) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := error(nil)
	if q.dead || q.shared == nil {
		err = because(EINVAL, "it has no ring")
	} else if r, e := f(q.shared); e != nil {
		err = e
	} else {
		q.shared = r
	}
	if err != nil {
		return &OpError{"resize_cq", q.name(), err}
	}
	return nil
}

func (q *CQ) notify() {
	switch {
	case q.tell != nil:
		q.tell()
	case q.handler != nil:
		q.ctx.dev.dispatch.add(call{q, func() { q.handler(q) }})
	case q.channel != nil:
		q.channel.list.add(q)
	}
}

// purge removes the completions of a queue pair that is being destroyed. Those in a
// shared ring belong to the program that polls it.
func (q *CQ) purge(qpn uint32) {
	if q == nil { // an XRC queue pair has not both
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := 0
	for i := range q.n {
		w := q.ring[(q.head+i)%len(q.ring)]
		if w.QPN != qpn {
			q.ring[(q.head+kept)%len(q.ring)] = w
			kept++
		}
	}
	q.n = kept
}

// Destroy frees the queue (ibv_destroy_cq). EBUSY: a queue pair uses it, or a shared receive queue of an XRC domain. EINVAL: it is
// destroyed already. It returns how many of its events a consumer has taken (which ibv_ack_cq_events counts elsewhere), or its
// handler was called for. No event comes after it; a Handler that runs meanwhile ends later.
func (q *CQ) Destroy() (delivered int, err error) {
	c := q.ctx
	c.mu.Lock()
	if n := q.uses.Load(); n > 0 {
		c.mu.Unlock()
		return 0, &OpError{"destroy_cq", q.name(), because(EBUSY, "queue pairs still use it")}
	}
	if _, live := c.cqs[q]; !live {
		c.mu.Unlock()
		return 0, &OpError{"destroy_cq", q.name(), because(EINVAL, "it is destroyed already")}
	}
	delete(c.cqs, q)
	if q.channel != nil {
		q.channel.uses--
	}
	c.mu.Unlock()
	q.mu.Lock()
	q.dead = true
	if q.timer != nil {
		q.timer.Stop()
	}
	q.wake.wake()
	sent := q.sent
	q.mu.Unlock()
	withdrawn := c.dev.dispatch.withdraw(func(f call) bool { return f.of == q })
	if q.channel != nil {
		withdrawn += q.channel.list.withdraw(func(o *CQ) bool { return o == q })
	}
	c.async.withdraw(func(e AsyncEvent) bool { return e.CQ == q })
	return sent - withdrawn, nil
}
