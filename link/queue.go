package link

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/stats"
)

// bufSize is the least capacity of a queue's buffers: the largest RoCE packet
// (MTU 4096, every header, Ethernet) fits, so that a buffer is made once.
const bufSize = 4352

// Queue is a bounded stream of received packets in memory, filled by any number of
// goroutines. Package pipe and the loop of a port are made of it. It never
// blocks the filler: what finds it full is lost and counted, as on a wire.
//
// Buffers are passed to the batch that receives them and come back with its next
// Recv, so that nothing is copied twice and nothing allocated in steady state.
type Queue struct {
	// Latency is the time that each packet stays in the queue; 0 for none. Not
	// to be changed after first use.
	Latency time.Duration

	clk    clock.Clock
	mu     sync.Mutex
	cond   sync.Cond // for the receiver
	room   sync.Cond // for Relieve
	ring   []item    // fixed size
	head   int
	n      int
	free   [][]byte // buffers not in use, last used on top
	closed bool
	timer  clock.Timer
	armed  bool
	lost   stats.Counter
}

type item struct {
	buf    []byte
	split  int       // length of Packet.Net in buf; 0: buf is Packet.Frame
	at     time.Time // when it comes; zero: now, and Queue.Latency later
	passed bool      // receive impairment has been applied
	note   string
}

// NewQueue returns a queue for up to n packets, 1 or more. A nil clock means clock.Real.
func NewQueue(n int, c clock.Clock) *Queue {
	q := &Queue{clk: clock.Or(c), ring: make([]item, n)}
	q.cond.L, q.room.L = &q.mu, &q.mu
	return q
}

// Put adds a packet: fill appends its bytes to dst. With split the first split bytes are
// the Net of the packet and the rest its IB, else all are its Frame. It reports
// whether there was room: false also when the queue is closed.
func (q *Queue) Put(split int, fill func(dst []byte) []byte) bool {
	return q.put(item{split: split}, fill)
}

func (q *Queue) put(it item, fill func(dst []byte) []byte) bool {
	if it.at.IsZero() {
		it.at = q.clk.Now().Add(q.Latency)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if q.n == len(q.ring) {
		q.lost.Inc()
		return false
	}
	if k := len(q.free); k > 0 {
		it.buf = q.free[k-1]
		q.free = q.free[:k-1]
	} else {
		it.buf = make([]byte, 0, bufSize)
	}
	it.buf = fill(it.buf[:0])
	i := q.head + q.n
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	q.ring[i] = it
	q.n++
	if q.n == 1 {
		q.cond.Broadcast()
	}
	return true
}

// Relieve waits until no more than n packets are queued, or the queue is closed.
func (q *Queue) Relieve(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.n > n && !q.closed {
		q.room.Wait()
	}
}

// Len returns how many packets are queued, due or not.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

// Recv is Endpoint.Recv. One batch may serve several queues in turn.
func (q *Queue) Recv(b *Batch, wait bool) error { return q.recv(context.Background(), b, wait) }

// RecvContext is Recv with wait, until ctx is done: it fails with the error of that then.
func (q *Queue) RecvContext(ctx context.Context, b *Batch) error {
	stop := context.AfterFunc(ctx, q.wake)
	defer stop()
	return q.recv(ctx, b, true)
}

func (q *Queue) recv(ctx context.Context, b *Batch, wait bool) error {
	if o := b.owner; o != nil && o != q {
		o.mu.Lock()
		o.reclaim(b)
		o.mu.Unlock()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reclaim(b)
	for {
		if q.closed {
			return net.ErrClosed
		}
		if q.take(b) || !wait {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		q.arm()
		q.cond.Wait()
	}
}

// reclaim takes back the buffers that the batch got with its last Recv, which was from this
// queue.
func (q *Queue) reclaim(b *Batch) {
	b.Packets = b.Packets[:0]
	if !q.closed {
		q.free = append(q.free, b.bufs...)
	}
	clear(b.bufs)
	b.bufs, b.owner = b.bufs[:0], nil
}

// take moves what is due into b and reports whether there was anything.
func (q *Queue) take(b *Batch) bool {
	var now time.Time
	if q.n > 0 && q.Latency > 0 {
		now = q.clk.Now()
	}
	for q.n > 0 && len(b.Packets) < cap(b.Packets) {
		it := &q.ring[q.head]
		if q.Latency > 0 && it.at.After(now) {
			break
		}
		p := b.Add()
		p.When, p.passed, p.note = it.at, it.passed, it.note
		if it.split > 0 {
			p.Net, p.IB = it.buf[:it.split:it.split], it.buf[it.split:]
		} else {
			p.Frame = it.buf
		}
		b.bufs, b.owner = append(b.bufs, it.buf), q
		*it = item{}
		q.n--
		if q.head++; q.head == len(q.ring) {
			q.head = 0
		}
	}
	if len(b.Packets) == 0 {
		return false
	}
	q.room.Broadcast()
	return true
}

// arm has the receiver woken when the first packet is due.
func (q *Queue) arm() {
	if q.n == 0 || q.armed {
		return
	}
	q.armed = true
	d := q.ring[q.head].at.Sub(q.clk.Now())
	if q.timer == nil {
		q.timer = q.clk.AfterFunc(d, q.wake)
	} else {
		q.timer.Reset(d)
	}
}

// wake makes a waiting receiver look again.
func (q *Queue) wake() {
	q.mu.Lock()
	q.armed = false
	q.cond.Broadcast()
	q.mu.Unlock()
}

// Next returns when the first packet is due, for a receiver that steps; false: none is queued.
func (q *Queue) Next() (time.Time, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		return time.Time{}, false
	}
	return q.ring[q.head].at, true
}

// Closed reports whether the queue has been closed.
func (q *Queue) Closed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// Lost returns how many packets found the queue full since it was made.
func (q *Queue) Lost() uint64 { return q.lost.Load() }

// Close drops what is queued and ends Recv with net.ErrClosed.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.timer != nil {
		q.timer.Stop()
	}
	q.ring, q.free, q.n = q.ring[:0], nil, 0
	q.cond.Broadcast()
	q.room.Broadcast()
}
