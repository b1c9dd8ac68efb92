package device

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// A receiver takes in what the link brings. Whoever waits for completions does it himself, because to wake another
// goroutine for it costs more than all the rest: who polls looks, once for every empty Poll; who waits looks for a while,
// and then sits down at the link. When nobody does, the receiver's own goroutine does, which takes no
// notice of packets while programs look often enough.
//
//	drive   who receives and runs engines; whoever finds it taken leaves it at that
//	seat    who waits for the link; those who wait and do not have it are woken by their completion, or get it
//	away    the receiver's goroutine looks after things only every millisecond, less often the longer programs look without a break, and where a look takes long
//
// Something may be held until the next look, and for a batch or two more where many packets come at a time. While the goroutine is away, an acknowledgement leaves with what the program posts in answer to
// the message, not before the program has seen that; small requests behind many that are on their way leave together, and those of many
// queue pairs.
type receiver struct {
	dev   *Device
	src   link.Source
	link  link.Poller
	drive sync.Mutex
	seat  chan struct{} // holds a token while somebody sits
	kick  chan struct{} // wakes the receiver's goroutine

	alone  bool          // there is one processor. With more, yielding would move pollers from one to another, which costs more than it brings
	looks  atomic.Uint32 // by programs
	wanted atomic.Int32  // who wants the seat of the receiver's goroutine
	away   atomic.Bool
	parked atomic.Bool  // away, until the seat is free
	taken  atomic.Bool  // a program has the seat; the channel's length would be read without a barrier
	sits   atomic.Bool  // he who has the seat sleeps
	left   atomic.Int64 // when a program last left the seat
	waits  patience     // of programs

	heldMu sync.Mutex   // the last to be taken
	held   []*QP        // that have packets on their lists, held
	holds  atomic.Int32 // how many they are
	posted atomic.Int64 // when a poster last looked
	posts  atomic.Int32 // so many look now
	more   atomic.Bool  // the last look may have left something

	bells bells

	// With drive held.
	batch *link.Batch
	due   []*QP   // whose turn it is, of spare
	spare []*QP   // the other half of held
	going []going // see sendTogether
	pkts  []*wire.Packet
	rests patience // of the receiver's goroutine
	late  int      // batches that what is held has waited for company

	failed atomic.Bool // the link does not receive any more

	// With the seat.
	done <-chan struct{} // of the context that is watched
	stop func() bool
}

const (
	lookEvery = 50 * time.Microsecond // programs that look so often need no help, see also receiver.every
	everyMost = 400 * time.Microsecond
	lookPace  = 16                     // looks that would have been possible, between two that a program takes
	glances   = 20                     // so many times as long goes by before the receiver's goroutine looks whether they do: 1 ms, Go's timers are no finer where all is idle
	leisure   = 4                      // and where they did, so many times as long the next time
	soon      = 200 * time.Microsecond // who waits again so soon is worth a seat

	company  = 8 // packets of a batch that make it likely that more come
	lateMost = 2 // batches that an acknowledgement waits then

	waitYield  = 16 // looks of who waits for completions, fewer than the receiver's own goroutine has: small messages (P8, P9) were the faster for it
	yieldEvery = 64 // looks that found nothing: some 30 µs

	farewellMost = 100 * time.Millisecond // how long the end of a device may take for it
)

func newReceiver(d *Device, src link.Source, p link.Poller) *receiver {
	return &receiver{
		dev: d, src: src, link: p, batch: link.NewBatch(rxBatch), seat: make(chan struct{}, 1), kick: make(chan struct{}, 1), alone: runtime.GOMAXPROCS(0) == 1,
	}
}

// look receives what is there, for a program that looks for it; it reports whether there was anything.
func (r *receiver) look() bool {
	n := r.looks.Add(1)
	any := r.turn()
	if !any && n%yieldEvery == 0 { // who polls without end would keep others from it for milliseconds at a time, perhaps those that he waits for
		if r.alone {
			runtime.Gosched()
		}
		letOthersRun()
	}
	return any
}

// turn receives what is there, if nobody is at it.
func (r *receiver) turn() bool {
	if !r.drive.TryLock() {
		return false
	}
	any := r.round()
	r.drive.Unlock()
	if r.more.Load() && r.sits.Load() { // who sits down from now on sees it
		r.link.Wake()
	}
	return any
}

// round receives a batch; drive is held.
func (r *receiver) round() bool {
	if r.late == 0 || r.holds.Load() > few {
		r.settle()
	}
	if r.failed.Load() {
		return false
	}
	if err := r.src.Recv(r.batch, false); err != nil {
		r.failed.Store(true)
		r.settle()
		r.bells.ring() // nobody looks any more
		r.dev.deaf(err)
		return false
	}
	r.more.Store(len(r.batch.Packets) == cap(r.batch.Packets))
	if len(r.batch.Packets) == 0 {
		if r.late > 0 {
			r.settle()
		}
		return r.bells.look()
	}
	r.dev.receive(r.batch, r)
	r.bells.look()
	return true
}

// handled ends a batch of so many packets. Where they are many, more are likely to come at once: what is held waits for those, so that one
// acknowledgement says it all.
func (r *receiver) handled(packets int) {
	if n := r.holds.Load(); packets >= company && r.late < lateMost && n > 0 && n <= few {
		r.late++
		return
	}
	r.late = 0
	if !r.away.Load() {
		r.settle() // programs that look have more time
	}
}

// await waits for the link; the caller has the seat.
func (r *receiver) await() error {
	r.sits.Store(true)
	defer r.sits.Store(false)
	if r.holds.Load() > 0 || r.more.Load() {
		if !r.drive.TryLock() { // whoever has it sees to that, but perhaps not at once
			time.Sleep(lookEvery)
			return nil
		}
		r.drive.Unlock()
		return nil
	}
	if !r.bells.empty() { // nobody looks any more: programs have to ring
		r.drive.Lock()
		r.bells.ring()
		r.drive.Unlock()
		return nil
	}
	return r.link.Await()
}

// hold has a queue pair's packets sent at the next look; its lock is held.
func (r *receiver) hold(q *QP) {
	if q.held {
		return
	}
	q.held = true
	r.heldMu.Lock()
	r.held = append(r.held, q)
	r.heldMu.Unlock()
	r.holds.Add(1)
	if r.sits.Load() { // who sits down from now on sees it
		r.link.Wake()
	}
	if r.failed.Load() { // who fails from now on sends it
		q.poke()
	}
}

// settle sends what is held; drive is held.
func (r *receiver) settle() {
	r.late = 0
	if r.holds.Load() == 0 {
		return
	}
	r.heldMu.Lock()
	r.held, r.spare = r.spare[:0], r.held
	r.heldMu.Unlock()
	r.due = r.spare
	r.holds.Add(-int32(len(r.due)))
	for len(r.due) > 0 {
		n := min(len(r.due), bunch)
		r.sendTogether(r.due[:n])
		clear(r.due[:n])
		r.due = r.due[n:]
	}
}

// close sends the acknowledgements that are held, before the link closes: also those that somebody who receives at the moment is about to hold.
func (r *receiver) close() {
	if r == nil {
		return
	}
	said := make(chan struct{})
	go func() {
		defer close(said)
		for _, q := range r.dev.allQPs() {
			q.mu.Lock()
			q.farewell()
			q.mu.Unlock()
		}
	}()
	select {
	case <-said:
	case <-time.After(farewellMost): // a send waits, perhaps for ever: the link's end lets go of it
	}
}

// mayHold reports whether something may be held: there is somebody who will look, a program or, unless he sleeps, who receives.
func (r *receiver) mayHold() bool {
	return r != nil && (r.away.Load() || !r.sits.Load()) && !r.failed.Load()
}

// answers reports whether a program will look, whose answers leave with what is held.
func (r *receiver) answers() bool { return r != nil && r.away.Load() && !r.failed.Load() }

// afterPost receives, now and then, and when much is held, for a program that posts: it may do that for long. It is not taken for a sign that the program looks for
// completions, for which it may as well wait in other ways.
func (r *receiver) afterPost(now transport.Time) {
	if r.holds.Load() >= bunch || int64(now)-r.posted.Load() >= int64(lookEvery) && r.away.Load() {
		r.posted.Store(int64(now))
		r.posts.Add(1)
		r.turn()
		r.posts.Add(-1)
	}
}

// loop is the receiver's goroutine.
func (r *receiver) loop() {
	defer r.dev.wg.Done()
	for {
		select {
		case r.seat <- struct{}{}:
		default: // a program waits
			r.park()
			r.stayAway()
			continue
		}
		err := r.serve()
		<-r.seat
		if err != nil {
			return
		}
		r.stayAway()
	}
}

// serve receives until programs do. It has the seat.
func (r *receiver) serve() error {
	for empty := time.Now(); ; {
		r.drive.Lock()
		r.away.Store(false)
		begun, others := r.census(), false
		for sp := r.rests.spell(empty, 1); !others; {
			if r.round() {
				r.rests.learn(time.Since(empty))
				// Of two who look one is too many, and he keeps the processor from whom they look for.
				for others = begun.often(); !others && r.round(); others = begun.often() {
				}
				empty = time.Now()
				sp = r.rests.spell(empty, 1)
			} else if sp.over() {
				break
			}
		}
		r.drive.Unlock()
		if r.failed.Load() {
			r.watch(context.Background())
			return net.ErrClosed
		}
		if others {
			return nil
		}
		c := r.census()
		if r.wanted.Load() > 0 {
			return nil
		}
		if err := r.await(); err != nil {
			r.failed.Store(true)
			r.watch(context.Background())
			return err
		}
		if c.often() || r.looking() {
			return nil
		}
	}
}

// stayAway returns when programs do not look often enough any more.
func (r *receiver) stayAway() {
	r.away.Store(true)
	for n := time.Duration(1); ; n = min(max(2*n, 1), leisure) {
		c := r.census()
		time.Sleep(n * glances * r.every())
		if r.taken.Load() {
			r.park()
			n = 0 // as at first
			continue
		}
		if !c.often() && !r.looking() || r.failed.Load() {
			return
		}
	}
}

// park waits until the program that has the seat leaves it.
func (r *receiver) park() {
	r.away.Store(true)
	r.parked.Store(true)
	if r.taken.Load() {
		<-r.kick
	}
	r.parked.Store(false)
}

// census counts the looks of programs from a point in time on.
type census struct {
	r     *receiver
	looks uint32
	since time.Time
}

func (r *receiver) census() census { return census{r, r.looks.Load(), time.Now()} }

// every returns how often programs have to look to need no help: lookEvery, and less often where a look takes long. There the programs take long for
// all that they do, and who helped them would be one more who wants the processor.
func (r *receiver) every() time.Duration {
	return min(max(lookEvery, lookPace*time.Duration(r.rests.pace.Load())), everyMost)
}

// looking reports whether somebody is at it: who polls and has lost the processor for a while has most likely lost it within a look.
func (r *receiver) looking() bool {
	posts := r.posts.Load() // which the end of a look between the next two lines must not hide
	if !r.drive.TryLock() {
		return posts == 0 && r.posts.Load() == 0
	}
	r.drive.Unlock()
	return false
}

// often reports whether programs have looked often enough since.
func (c census) often() bool {
	n := c.r.looks.Load() - c.looks
	return n >= 4 && time.Duration(n)*c.r.every() >= time.Since(c.since)
}
