package device

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire/bth"
)

// polledEnd is an end of a pipe that can be waited for as the UDP link can.
type polledEnd struct {
	link.Endpoint
	in      *link.Queue
	arrived chan struct{}
	woken   chan struct{}
	closed  chan struct{}
	once    sync.Once
	asleep  atomic.Int32 // in Await now
	awaits  atomic.Int32
	broken  atomic.Bool                   // Recv fails
	stalls  atomic.Pointer[chan struct{}] // Send returns when that is closed, long after the peer has what was sent
	endless atomic.Bool                   // there is always something to be received: noise

	mu   sync.Mutex
	sent [][]sentFrame // by calls of Send
}

type sentFrame struct {
	op      bth.Opcode
	segment int
}

func newPolledEnd(ep link.Endpoint) *polledEnd {
	e := &polledEnd{Endpoint: ep, in: link.NewQueue(4096, clock.Real), arrived: make(chan struct{}, 1), woken: make(chan struct{}, 1), closed: make(chan struct{})}
	go func() {
		b := link.NewBatch(16)
		for ep.Recv(b, true) == nil {
			for i := range b.Packets {
				e.in.Put(0, func(dst []byte) []byte { return append(dst, b.Packets[i].Frame...) })
			}
			select {
			case e.arrived <- struct{}{}:
			default:
			}
		}
		e.once.Do(func() { close(e.closed) })
	}()
	return e
}

func (e *polledEnd) Recv(b *link.Batch, wait bool) error {
	select {
	case <-e.closed:
		return net.ErrClosed
	default:
	}
	if e.broken.Load() {
		return errors.New("broken")
	}
	if e.endless.Load() {
		e.in.Put(0, func(dst []byte) []byte { return append(dst, 0x45) })
	}
	return e.in.Recv(b, false)
}

func (e *polledEnd) Send(frames []*link.Frame) error {
	var l []sentFrame
	for _, f := range frames {
		l = append(l, sentFrame{f.BTH().Opcode(), f.Segment})
	}
	e.mu.Lock()
	e.sent = append(e.sent, l)
	e.mu.Unlock()
	err := e.Endpoint.Send(frames)
	if c := e.stalls.Load(); c != nil {
		<-*c
	}
	return err
}

func (e *polledEnd) calls() [][]sentFrame {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([][]sentFrame(nil), e.sent...)
}

func (e *polledEnd) Await() error {
	e.awaits.Add(1)
	e.asleep.Add(1)
	defer e.asleep.Add(-1)
	select {
	case <-e.arrived:
		return nil
	case <-e.woken:
		return nil
	case <-e.closed:
		return net.ErrClosed
	}
}

func (e *polledEnd) Wake() {
	select {
	case e.woken <- struct{}{}:
	default:
	}
}

// polledHost is a device on such an end, with a queue pair.
type polledHost struct {
	end *polledEnd
	dev *Device
	ctx *Context
	pd  *PD
	cq  *CQ
	ch  *CompChannel
	qp  *QP
	mr  *MR
	mem []byte
}

// twoPolled returns two of them, connected.
func twoPolled(t *testing.T) (a, b *polledHost) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ea, eb := pipe.New(pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	a, b = newPolledHost(t, newPolledEnd(ea)), newPolledHost(t, newPolledEnd(eb))
	t.Cleanup(func() {
		a.dev.Close()
		b.dev.Close()
	})
	must(a.qp.Connect(100, b.qp.Address(1, 200), ConnectOptions{Access: RemoteWrite | RemoteRead, Timeout: 20}))
	must(b.qp.Connect(200, a.qp.Address(1, 100), ConnectOptions{Access: RemoteWrite | RemoteRead, Timeout: 20}))
	return a, b
}

// newPolledHost opens a device on ep, which the caller closes.
func newPolledHost(t *testing.T, ep link.Endpoint) *polledHost {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h := &polledHost{mem: make([]byte, 8192)}
	h.end, _ = ep.(*polledEnd)
	var err error
	h.dev, err = Open(ep, Options{})
	must(err)
	h.ctx = h.dev.NewContext()
	h.pd, _ = h.ctx.AllocPD()
	h.ch, _ = h.ctx.CreateCompChannel()
	h.cq, err = h.ctx.CreateCQ(CQInit{Entries: 512, Channel: h.ch})
	must(err)
	h.qp, err = h.pd.CreateQP(QPInit{Type: RC, SendCQ: h.cq, RecvCQ: h.cq, SigAll: true, Cap: Cap{SendWR: 256, RecvWR: 256, Inline: 64}})
	must(err)
	h.mr, err = h.pd.RegMR(h.mem, LocalWrite|RemoteWrite|RemoteRead)
	must(err)
	return h
}

func (h *polledHost) write(t *testing.T, to *polledHost, n int) {
	t.Helper()
	wr := SendWR{Op: OpWrite, Flags: Inline, InlineData: make([]byte, 8), RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
	for range n {
		if err := h.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
	}
}

// take waits for a completion in the way that is given.
func (h *polledHost) take(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wc [1]WC
	if _, err := h.cq.Wait(ctx, wc[:]); err != nil {
		t.Fatal(err)
	}
	if wc[0].Status != StatusSuccess {
		t.Fatal(wc[0].Err())
	}
}

// until looks at the link of h, as a program that polls does, until f is true.
func (h *polledHost) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); h.dev.Progress() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// leave has the receiver's goroutine of h stay away.
func (h *polledHost) leave(t *testing.T) {
	t.Helper()
	h.until(t, "the receiver's goroutine is away", func() bool {
		if h.end.asleep.Load() > 0 {
			h.end.Wake()
		}
		return h.dev.rx.away.Load()
	})
}

// driven has the test be he who looks: it holds drive, and the receiver's goroutine, which is away, changes nothing until it is released.
func (h *polledHost) driven(t *testing.T) {
	t.Helper()
	for {
		h.leave(t)
		h.dev.rx.drive.Lock()
		if h.dev.rx.away.Load() {
			return
		}
		h.dev.rx.drive.Unlock() // it came back meanwhile
	}
}

func pending(q *QP) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tx.Len()
}

// TestWaysToWait: programs wait in all ways at once, each for a queue of its own and some for one; nobody misses anything.
func TestWaysToWait(t *testing.T) {
	a, b := twoPolled(t)
	const rounds = 300
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	fail := func(err error) {
		t.Error(err)
		cancel()
	}
	for i, wait := range []func(*CQ, *CompChannel, []WC) (int, error){
		func(q *CQ, _ *CompChannel, wc []WC) (int, error) {
			runtime.Gosched() // both sides are here, and the link between them
			return q.Poll(wc), nil
		},
		func(q *CQ, _ *CompChannel, wc []WC) (int, error) { return q.Wait(ctx, wc) },
		func(q *CQ, ch *CompChannel, wc []WC) (int, error) {
			if !q.Arm(false) {
				if _, err := ch.Get(ctx); err != nil {
					return 0, err
				}
			}
			return q.Poll(wc), nil
		},
		func(q *CQ, _ *CompChannel, wc []WC) (int, error) {
			time.Sleep(time.Duration(200) * time.Microsecond)
			return q.Wait(ctx, wc)
		},
	} {
		var end [2]*QP
		for j, h := range []*polledHost{a, b} {
			ch, err := h.ctx.CreateCompChannel()
			if err != nil {
				t.Fatal(err)
			}
			cq, err := h.ctx.CreateCQ(CQInit{Entries: 64, Channel: ch})
			if err != nil {
				t.Fatal(err)
			}
			if end[j], err = h.pd.CreateQP(QPInit{Type: RC, SendCQ: cq, RecvCQ: cq, Cap: Cap{SendWR: 16, RecvWR: 16, Inline: 64}}); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				q := end[j]
				wc := make([]WC, 4)
				for got := 0; got < rounds; {
					n, err := wait(cq, ch, wc)
					if err != nil || ctx.Err() != nil {
						fail(errOr(err, ctx.Err()))
						return
					}
					for k := range n {
						if wc[k].Status != StatusSuccess {
							fail(wc[k].Err())
							return
						}
						if wc[k].Op != WCRecv {
							continue
						}
						got++
						if err := q.PostRecv(&RecvWR{}); err != nil {
							fail(err)
							return
						}
						if got < rounds || j == 1 {
							if err := q.PostSend(&SendWR{Op: OpSend, Flags: Signaled}); err != nil {
								fail(err)
								return
							}
						}
					}
				}
			})
		}
		for j := range end {
			if err := end[j].Connect(1, end[1-j].Address(1, 1), ConnectOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := end[j].PostRecv(&RecvWR{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := end[0].PostSend(&SendWR{Op: OpSend, Flags: Signaled}); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	wg.Wait()
}

func errOr(err, or error) error {
	if err != nil {
		return err
	}
	return or
}

// TestSleeperIsWoken: who sleeps at the link is woken by the end of his context, of his queue, and of the device.
func TestSleeperIsWoken(t *testing.T) {
	for name, end := range map[string]func(*polledHost, *CQ, context.CancelFunc){
		"context": func(_ *polledHost, _ *CQ, cancel context.CancelFunc) { cancel() },
		"queue":   func(_ *polledHost, q *CQ, _ context.CancelFunc) { q.Destroy() },
		"device":  func(h *polledHost, _ *CQ, _ context.CancelFunc) { h.dev.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := twoPolled(t)
			a.leave(t)
			q, err := a.ctx.CreateCQ(CQInit{Entries: 1})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a.dev.rx.left.Store(time.Now().Add(time.Hour).UnixNano()) // as if he came back at once
			ended := make(chan error)
			go func() {
				_, err := q.Wait(ctx, make([]WC, 1))
				ended <- err
			}()
			for limit := time.Now().Add(20 * time.Second); !a.dev.rx.sits.Load() || q.wake.at.Load() == nil; {
				if time.Now().After(limit) {
					t.Fatal("he does not sleep at the link")
				}
				time.Sleep(10 * time.Microsecond)
			}
			end(a, q, cancel)
			select {
			case err := <-ended:
				if err == nil {
					t.Error("no error")
				}
			case <-time.After(20 * time.Second):
				t.Fatal("he sleeps on")
			}
		})
	}
}

// TestAnswersAreNotHeld: for the response to a READ or atomic the peer's program waits.
func TestAnswersAreNotHeld(t *testing.T) {
	for _, op := range []WROp{OpRead, OpFetchAdd} {
		t.Run(op.String(), func(t *testing.T) {
			a, b := twoPolled(t)
			b.qp.mu.Lock()
			b.qp.attr.Access |= RemoteAtomic
			b.qp.mu.Unlock()
			mr, err := b.pd.RegMR(make([]byte, 64), LocalWrite|RemoteRead|RemoteAtomic)
			if err != nil {
				t.Fatal(err)
			}
			b.leave(t)
			wr := SendWR{Op: op, SGE: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: mr.Addr(), RKey: mr.RKey()}
			if err := a.qp.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
			b.until(t, "the answer is sent", func() bool {
				if n := pending(b.qp); n > 0 && !b.qp.isSending() {
					t.Fatalf("%d packets are held", n)
				}
				return len(b.end.calls()) > 0
			})
			a.take(t)
		})
	}
}

// TestSentBeforeTheCallEnds: a request completes when its answer comes, also where that is before the call that sent it has returned; so it does
// before what the peer sends next. What the peer sends then is taken as ever, and what is posted meanwhile leaves when the call has returned.
func TestSentBeforeTheCallEnds(t *testing.T) {
	a, b := twoPolled(t)
	stall := make(chan struct{})
	free := sync.OnceFunc(func() { a.end.stalls.Store(nil); close(stall) })
	defer free()
	for _, h := range []*polledHost{a, b} {
		if err := h.qp.PostRecv(&RecvWR{ID: 7, SGE: []SGE{h.mr.SGE(0, 64)}}); err != nil {
			t.Fatal(err)
		}
	}
	a.end.stalls.Store(&stall)
	posted := make(chan error, 1)
	go func() {
		posted <- a.qp.PostSend(&SendWR{ID: 1, Op: OpSend, Flags: Inline, InlineData: []byte("there")})
	}()
	var wc [2]WC
	n := 0
	b.until(t, "the message has come, and its ACK has left", func() bool {
		n += b.cq.Poll(wc[:1])
		return n == 1 && len(b.end.calls()) == 1
	})
	if err := b.qp.PostSend(&SendWR{ID: 2, Op: OpSend, Flags: Inline, InlineData: []byte("back")}); err != nil {
		t.Fatal(err)
	}
	n = 0
	a.until(t, "both completions, while the call goes on", func() bool {
		n += a.cq.Poll(wc[n:])
		return n == 2
	})
	if wc[0].ID != 1 || wc[1].ID != 7 || wc[0].Status != StatusSuccess || wc[1].Status != StatusSuccess {
		t.Fatalf("completions %+v, want that of the request first", wc)
	}
	if len(posted) != 0 || !a.qp.isSending() {
		t.Fatal("the call has returned: nothing was tested")
	}
	a.write(t, b, 1)
	free()
	if err := <-posted; err != nil {
		t.Fatal(err)
	}
	b.take(t) // of what was sent back
	a.take(t)
	a.write(t, b, 3)
	for range 3 {
		a.take(t)
	}
}

func (q *QP) isSending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sending
}

// TestNoSpinWhileAnotherReceives: who sits at the link, and knows that something is held, does not burn the processor while another
// receives for long.
func TestNoSpinWhileAnotherReceives(t *testing.T) {
	_, b := twoPolled(t)
	rx := b.dev.rx
	b.leave(t)
	q, err := b.ctx.CreateCQ(CQInit{Entries: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		rx.left.Store(time.Now().Add(time.Hour).UnixNano()) // as if he came back at once
		q.Wait(ctx, make([]WC, 1))
	}()
	for end := time.Now().Add(20 * time.Second); !rx.sits.Load() || q.wake.at.Load() == nil; {
		if time.Now().After(end) {
			t.Fatal("nobody sleeps at the link")
		}
		time.Sleep(10 * time.Microsecond)
	}
	rx.drive.Lock()
	b.qp.mu.Lock()
	rx.hold(b.qp)
	b.qp.mu.Unlock()
	before := rx.looks.Load()
	time.Sleep(20 * time.Millisecond)
	if n := rx.looks.Load() - before; n > 2000 {
		t.Errorf("%d looks in 20 ms", n)
	}
	rx.drive.Unlock()
	cancel()
	<-done
}

// TestSeveralWait: each of two completions that come at once wakes one of two who wait for the same queue.
func TestSeveralWait(t *testing.T) {
	_, b := twoPolled(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	q, err := b.ctx.CreateCQ(CQInit{Entries: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if _, err := q.Wait(ctx, make([]WC, 1)); err != nil {
					t.Errorf("round %d: %v", i, err)
				}
			})
		}
		if i%2 == 0 {
			time.Sleep(time.Duration(i) * 10 * time.Microsecond)
		}
		q.mu.Lock() // as if both came before anybody was woken
		q.store(&WC{})
		q.store(&WC{})
		q.wake.wake()
		q.mu.Unlock()
		if wg.Wait(); t.Failed() {
			return
		}
	}
}

// TestContextIsLetGo: a device that is closed has nothing left at the contexts of those who waited.
func TestContextIsLetGo(t *testing.T) {
	_, b := twoPolled(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.leave(t)
	b.dev.rx.seat <- struct{}{} // as one who sits
	b.dev.rx.watch(ctx)
	<-b.dev.rx.seat
	b.dev.Close()
	if b.dev.rx.done != nil || b.dev.rx.stop != nil {
		t.Error("the receiver waits for the end of a context")
	}
}

// TestTokenIsNotLost: of two who wait for one thing, one whose context ends when it comes does not take it from the other, nor the news that the
// queue or the channel is gone.
func TestTokenIsNotLost(t *testing.T) {
	_, b := twoPolled(t)
	for name, make1 := range map[string]func() (wait func(context.Context) error, come, destroy func()){
		"queue": func() (func(context.Context) error, func(), func()) {
			q, err := b.ctx.CreateCQ(CQInit{Entries: 4})
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context) error {
				_, err := q.Wait(ctx, make([]WC, 1))
				return err
			}, func() { q.push(&WC{}, false) }, func() { q.Destroy() }
		},
		"channel": func() (func(context.Context) error, func(), func()) {
			ch, err := b.ctx.CreateCompChannel()
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context) error {
				_, err := ch.Get(ctx)
				return err
			}, func() { ch.list.add(nil) }, func() { ch.Destroy() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 300 {
				wait, come, destroy := make1()
				first, end := context.WithCancel(t.Context())
				got := make(chan error, 2)
				go func() { got <- wait(first) }()
				go func() { got <- wait(t.Context()) }()
				time.Sleep(time.Duration(i) * time.Microsecond)
				go end()
				come()
				if i%2 == 0 {
					destroy()
				}
				for j := range 2 {
					select {
					case err := <-got:
						if err == nil && i%2 != 0 { // the other waits on, unless he is the one whose context ends
							come()
						}
					case <-time.After(20 * time.Second):
						t.Fatalf("round %d: %d have returned", i, j)
					}
				}
				end()
				destroy()
			}
		})
	}
}

// TestDestroyWakesAll: the end of a completion queue is told to everybody who waits for it.
func TestDestroyWakesAll(t *testing.T) {
	_, b := twoPolled(t)
	q, err := b.ctx.CreateCQ(CQInit{Entries: 4})
	if err != nil {
		t.Fatal(err)
	}
	const waiters = 5
	got := make(chan error, waiters)
	for range waiters {
		go func() {
			_, err := q.Wait(t.Context(), make([]WC, 1))
			got <- err
		}()
	}
	time.Sleep(20 * time.Millisecond) // most have begun to wait; one who has not finds the queue gone
	if _, err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	for i := range waiters {
		select {
		case err := <-got:
			if err == nil {
				t.Error("a completion")
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%d of %d have returned", i, waiters)
		}
	}
}

// TestPollerYields: where there is one processor, who polls without end leaves it to others.
func TestPollerYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	_, b := twoPolled(t)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for wc := make([]WC, 1); !stop.Load(); {
			b.cq.Poll(wc)
		}
	}()
	start := time.Now()
	for range 200 {
		runtime.Gosched()
	}
	if d := time.Since(start); d > time.Second { // 2 s, if each turn were 10 ms
		t.Errorf("200 turns took %v", d)
	}
	stop.Store(true)
	<-done
}

// TestFailureWhileTheyWait: the link fails while one sits at it, one waits for the seat, and one polls: none spins, all go on when their contexts
// end.
func TestFailureWhileTheyWait(t *testing.T) {
	_, b := twoPolled(t)
	b.leave(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var waits []*CQ
	b.dev.rx.left.Store(time.Now().Add(time.Hour).UnixNano()) // as if they came back at once
	for range 2 {
		q, err := b.ctx.CreateCQ(CQInit{Entries: 1})
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, q)
		wg.Go(func() { q.Wait(ctx, make([]WC, 1)) })
	}
	for end := time.Now().Add(20 * time.Second); waits[0].wake.at.Load() == nil && waits[1].wake.at.Load() == nil; {
		if time.Now().After(end) {
			t.Fatal("nobody sleeps at the link")
		}
		time.Sleep(10 * time.Microsecond)
	}
	b.end.broken.Store(true)
	b.end.Wake()
	for end := time.Now().Add(20 * time.Second); !b.dev.rx.failed.Load(); b.cq.Poll(make([]WC, 1)) {
		if time.Now().After(end) {
			t.Fatal("nobody hears of it")
		}
	}
	time.Sleep(5 * time.Millisecond)
	before, looks := b.end.awaits.Load(), b.dev.rx.looks.Load()
	time.Sleep(20 * time.Millisecond)
	if n, m := b.end.awaits.Load()-before, b.dev.rx.looks.Load()-looks; n > 4 || m > 100 {
		t.Errorf("%d waits and %d looks in 20 ms", n, m)
	}
	cancel()
	wg.Wait()
	if e, ok := b.ctx.TryAsyncEvent(); !ok || e.Type != EventDeviceFatal {
		t.Errorf("event %v", e)
	}
}

// TestLooking: a program that is in a look is polling, however long ago its last look ended; it is not helped then.
func TestLooking(t *testing.T) {
	r := new(receiver)
	if r.looking() {
		t.Error("nobody looks")
	}
	r.drive.Lock()
	if !r.looking() {
		t.Error("somebody looks")
	}
	if r.posts.Add(1); r.looking() {
		t.Error("who posts does not poll")
	}
	r.holds.Store(bunch)
	if r.afterPost(1); r.looking() { // a second, who finds it taken
		t.Error("two who post are taken for one who polls")
	}
	r.drive.Unlock()
	if r.looking() || !r.drive.TryLock() {
		t.Error("the question has left the drive taken")
	}
}

// TestMakesWay: the receiver's goroutine leaves it to a program that looks often, also while packets come without end.
func TestMakesWay(t *testing.T) {
	_, b := twoPolled(t)
	b.end.endless.Store(true)
	b.end.Wake()
	b.until(t, "the goroutine makes way", func() bool { return b.dev.rx.away.Load() })
	for range 3 { // nobody looks: it comes back, and goes on
		for end := time.Now().Add(20 * time.Second); b.dev.rx.away.Load(); runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatal("never: the goroutine is back")
			}
		}
		b.until(t, "the goroutine makes way again", func() bool { return b.dev.rx.away.Load() })
	}
	b.end.endless.Store(false)
}

// TestLeisure: programs that look without a break are looked after less and less often; from the beginning when one had the seat, and not any more when
// the link has failed.
func TestLeisure(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		do   func(r *receiver) // after 10.5 ms, when it is away until 11 ms
		want time.Duration
	}{
		{"nothing", func(*receiver) {}, 23 * ms},                                           // 1, 2, 4, 4, 4, 4, and 4 more
		{"failed", func(r *receiver) { r.failed.Store(true) }, 11 * ms},                    // 1, 2, 4, 4
		{"seat", func(r *receiver) { r.taken.Store(true); r.kick <- struct{}{} }, 26 * ms}, // 1, 2, 4, 4, then 1, 2, 4, 4, and 4 more
	} {
		synctest.Test(t, func(t *testing.T) {
			r, start := &receiver{kick: make(chan struct{}, 1)}, time.Now()
			ended := make(chan time.Duration, 1)
			go func() {
				r.stayAway()
				ended <- time.Since(start)
			}()
			for time.Since(start) < 20*ms {
				time.Sleep(lookEvery / 2)
				r.looks.Add(1)
				if time.Since(start) == 10500*time.Microsecond {
					c.do(r)
				}
				if time.Since(start) == 11500*time.Microsecond {
					r.taken.Store(false)
				}
			}
			if d := <-ended; d != c.want {
				t.Errorf("%s: it came back after %v, want %v", c.name, d, c.want)
			}
		})
	}
}

// TestEvery: how often programs have to look follows the pace of looking, within bounds.
func TestEvery(t *testing.T) {
	r := new(receiver)
	for _, c := range []struct{ pace, want time.Duration }{
		{0, lookEvery}, {300, lookEvery}, {10 * time.Microsecond, 160 * time.Microsecond}, {time.Millisecond, everyMost},
	} {
		r.rests.pace.Store(int64(c.pace))
		if got := r.every(); got != c.want {
			t.Errorf("a look takes %v: %v, want %v", c.pace, got, c.want)
		}
	}
	var p patience
	now := time.Now()
	s := spell{p: &p, last: now.Add(-lookGap / 2), looks: 3}
	s.over()
	first := p.pace.Load()
	s.over()
	if s.last = time.Now().Add(-time.Hour); first < int64(lookGap/2) || p.pace.Load() >= first || p.pace.Load() <= 0 {
		t.Errorf("the pace is %d, then %d", first, p.pace.Load())
	}
	short := p.pace.Load()
	s.over()
	if p.pace.Load() != short {
		t.Errorf("one long look makes the pace %d", p.pace.Load())
	}
}
