package device

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// poke wakes the queue pair's goroutine.
func (q *QP) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// loop is the queue pair's goroutine: timers, backlog, and what others ask for.
func (q *QP) loop() {
	defer close(q.done)
	for range q.wake {
		q.mu.Lock()
		if q.dead {
			q.mu.Unlock()
			return
		}
		q.turn(q.dev.now())
	}
}

// turn does what is due; it unlocks.
func (q *QP) turn(now transport.Time) {
	todo := q.todo.Swap(0)
	if todo&todoCQError != 0 && q.attr.State != StateErr && q.attr.State != StateReset {
		q.enterState(StateErr)
		q.eng.Modified(now, 0)
		q.eng.Flush(now)
		(*host)(q).Raise(transport.EventQPFatal)
	}
	if q.timerAt != 0 && now >= q.timerAt {
		q.timerAt = 0
	}
	if d := q.eng.Deadline(); d != 0 && now >= d {
		q.eng.Timer(now)
	}
	if q.lookAt != 0 && now >= q.lookAt {
		q.lookAt = 0
		todo |= todoMore
	}
	if todo&todoMore != 0 && q.attr.State >= StateRTS {
		q.eng.Doorbell(now)
	}
	q.eng.Pump(now)
	q.leave(now, maxBursts, true)
}

// maxBursts bounds how many transmit lists one caller sends before the queue
// pair's goroutine takes over, so that a poster or the receive loop is not held.
const maxBursts = 4

// leave ends every call of the engine: it sets the timer, sends what was
// emitted, and unlocks. Only one goroutine at a time sends for a queue pair, with
// no lock held; the others leave their packets to it.
//
// patient waits for room in the loop to the device itself; the receive loop must not.
func (q *QP) leave(now transport.Time, bursts int, patient bool) {
	q.arrived()
	q.setTimer(now)
	q.refill()
	if q.sending || q.tx.Len() == 0 {
		more := q.todo.Load()&todoMore != 0
		q.mu.Unlock()
		if more {
			q.poke()
		}
		return
	}
	q.sending = true
	for ; q.tx.Len() > 0 && (bursts > 0 || q.dev.opts.Stepped); bursts-- {
		loops := q.loops()
		if loops && !patient && q.dev.port.Crowded() {
			break // the queue pair's goroutine can wait
		}
		cnp := q.take()
		q.mu.Unlock()
		if loops && patient { // before accesses run: who takes a key away waits for those
			q.dev.port.Await()
		}
		q.resolve()
		q.transmit()
		q.lookBack()
		q.mu.Lock()
		if q.dead {
			q.out.Release()
			q.tx.Release()
			break
		}
		q.sent(cnp)
	}
	q.sending = false
	q.idle.Broadcast()
	more := q.tx.Len() > 0 || q.todo.Load()&todoMore != 0
	q.mu.Unlock()
	if more {
		q.poke()
	}
}

// take takes the transmit list for the flusher; cnp tells that a congestion notification may be on it.
func (q *QP) take() (cnp bool) {
	q.tx.Swap(&q.out)
	q.told = false
	q.copied.Store(false)
	if q.dev.rx.answers() {
		// They have waited for company. Elsewhere an acknowledgement leaves before what a program answers, as from
		// hardware: some programs count on completions in that order (perftest with -e).
		q.out.AcksLast()
	}
	return q.cnpWaits
}

// resolve makes packets of what was taken; from then on accesses run, and no lock is taken until lookBack.
func (q *QP) resolve() {
	q.pkts = q.out.Resolve(q.pkts[:0], &q.scr)
	for _, p := range q.pkts {
		p.QPN = q.num
	}
}

// lookBack ends the accesses: before the lock, because who holds it may wait for these (region.quiet).
func (q *QP) lookBack() {
	clear(q.pkts)
	q.out.Finish()
}

// sentEarly tells the engine that packets were sent, if they were, before it learns of their answers: the flusher, who may be in the call that sent them
// still, would tell it too late. The completion of a request comes before that of what the peer sends next, as from hardware; some
// programs count on that (perftest with -e).
func (q *QP) sentEarly(now transport.Time) {
	if q.sending && !q.told && !q.dead && q.copied.Load() {
		q.told = true
		q.eng.Sent(now, &q.out)
	}
}

// sent goes on after packets were sent; the queue pair is alive, its lock held.
func (q *QP) sent(cnp bool) {
	q.cnpWaits = q.cnpWaits && !cnp
	now := q.dev.now()
	if !q.told {
		q.eng.Sent(now, &q.out)
	}
	q.out.Release()
	if len(q.answers) > 0 {
		q.deliver(now)
	}
	q.eng.Pump(now)
	q.arrived()
	q.setTimer(now)
	q.refill()
}

// leaveHeld is leave for packets that wait for the receiver's next look.
func (q *QP) leaveHeld(now transport.Time) {
	q.arrived()
	q.setTimer(now)
	q.refill()
	more := q.todo.Load()&todoMore != 0
	q.mu.Unlock()
	if more {
		q.poke()
	}
}

// What is held of a program that posts one small request after the other, or one on each of many queue pairs.
const (
	smallest = 256 // bytes of a message that is small
	deep     = 8   // requests on their way, or queue pairs that have some, at least: who waits for the answer to one or two is not kept waiting
	few      = 4   // packets of one queue pair that wait for those of others
	bunch    = 32  // packets that go at once
)

// coalesces reports whether what was posted may wait for company.
func (q *QP) coalesces() bool {
	n := q.tx.Len()
	if n == 0 || n >= bunch || q.sending || !q.dev.rx.mayHold() {
		return false
	}
	last := q.tx.Packets()[n-1]
	switch {
	case last.Token == 0:
		return false
	case n <= few && q.dev.share.Users() > deep:
		return true
	}
	return last.Size <= smallest && q.eng.Outstanding() >= deep+n
}

// farewell sends the acknowledgements that are held: a program that has got what it waited for may end its queue pair at once, and
// the peer has a right to know. It keeps the lock, but not all the time.
func (q *QP) farewell() {
	if !q.dead && !q.sending && q.tx.Acks() {
		q.leave(q.dev.now(), 1, false)
		q.mu.Lock()
	}
}

// loops reports whether a packet on the transmit list goes to the device itself.
func (q *QP) loops() bool {
	var last *wire.Path
	for _, t := range q.tx.Packets() {
		if t.Path != last && q.dev.port.Loops(t.Path) {
			return true
		}
		last = t.Path
	}
	return false
}

// arrived raises the events of having come to the end of something. In ERR no more receives are taken from a shared queue, once per
// entry. In SQD all that was begun is complete: from then on attributes may change.
func (q *QP) arrived() {
	if q.srq != nil && q.attr.State == StateErr && !q.lastWQE {
		q.lastWQE = true
		q.ctx.raise(AsyncEvent{Type: EventLastWQE, QP: q}, q.handler)
	}
	if !q.draining || q.attr.State != StateSQD || !q.eng.Drained() {
		return
	}
	q.draining = false
	if q.tellDrained {
		(*host)(q).Raise(transport.EventSQDrained)
	}
}

// transmit sends q.pkts; the flusher calls it, with no lock held.
func (q *QP) transmit() {
	switch q.typ {
	case RawPacket:
		q.sendRaw()
	case SMI:
		q.local(q.pkts)
	default:
		q.dev.send(q.pkts, q.counters, &q.copied)
	}
}

// ringLook is how often the queues of a queue pair in ERR are looked at when they are in
// rings: a receive that is posted rings no doorbell, and has to be flushed all the same.
const ringLook = transport.Time(5e6)

// setTimer has the goroutine woken at the engine's deadline. A timer that
// runs is moved only if it is late: most deadlines move on before they come.
func (q *QP) setTimer(now transport.Time) {
	d := q.eng.Deadline()
	if q.sendRing != nil && q.attr.State == StateErr {
		if q.lookAt == 0 {
			q.lookAt = now + ringLook
		}
		if d == 0 || q.lookAt < d {
			d = q.lookAt
		}
	}
	if d == 0 || q.dev.opts.Stepped || q.timerAt != 0 && q.timerAt <= d {
		return
	}
	q.timerAt = d
	wait := max(d-now, 0)
	if q.timer == nil {
		q.timer = q.dev.clock.AfterFunc(duration(wait), q.poke)
	} else {
		q.timer.Reset(duration(wait))
	}
}
