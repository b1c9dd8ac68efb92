package device_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/transport"
)

// TestWalk calls random verbs with right and wrong arguments on two devices on one cable, for SOFTNIC_WALK
// seconds: half of them one walker in a bubble, where a small model knows how each verb has to end, half of
// them several that get in each other's way. What a walk begins with SOFTNIC_SEED repeats.
func TestWalk(t *testing.T) {
	secs, seed := 20, rand.Uint64()
	if testing.Short() {
		secs = 2
	}
	if v := os.Getenv("SOFTNIC_WALK"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal("SOFTNIC_WALK: ", err)
		}
		secs = n
	}
	if v := os.Getenv("SOFTNIC_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 0, 64)
		if err != nil {
			t.Fatal("SOFTNIC_SEED: ", err)
		}
		seed = n
	}
	for _, m := range []struct {
		name    string
		walkers int
	}{{"alone", 1}, {"together", 4}} {
		t.Run(m.name, func(t *testing.T) {
			t.Logf("seed %d", seed)
			began, steps, n := time.Now(), 0, uint64(0)
			var beat atomic.Int64
			done := make(chan struct{})
			defer close(done)
			go watch(&beat, seed, done)
			for end := began.Add(time.Duration(secs) * time.Second / 2); n == 0 || time.Now().Before(end); n++ {
				if m.walkers == 1 {
					synctest.Test(t, func(t *testing.T) { steps += newWalk(t, seed+n, true, &beat).life(1, 2500) })
				} else {
					steps += newWalk(t, seed+n, false, &beat).life(m.walkers, 2500)
				}
				if t.Failed() {
					t.Fatalf("repeat with SOFTNIC_SEED=%d go test -run 'TestWalk/%s' ./device", seed+n, m.name)
				}
			}
			t.Logf("%d lives, %d verbs in %v", n, steps, time.Since(began).Round(time.Second))
		})
	}
}

// walk is one life of two devices and what walks on them.
type walk struct {
	t     *testing.T
	seed  uint64
	alone bool // one walker, in a bubble: the model knows how a verb has to end
	dev   [2]*device.Device
	link  [2]*pipe.End
	tick  atomic.Int64 // order of what the walkers see
	stop  atomic.Bool
	over  atomic.Bool // the devices are being closed
	ids   atomic.Uint32
	beat  *atomic.Int64 // steps, for who watches

	ctxs  pool[*wCtx]
	pds   pool[*wPD]
	cqs   pool[*wCQ]
	chans pool[*wChan]
	qps   pool[*wQP]
	srqs  pool[*wSRQ]
	mrs   pool[*wMR]
	fasts pool[*wFast]
	mws   pool[*wMW]
	ahs   pool[*wAH]
	xrcds pool[*wXRCD]

	ledgers sync.Map // uint32 → *ledger
	byQP    sync.Map // *device.QP → *wQP
	byCQ    sync.Map // *device.CQ → *wCQ
	bySRQ   sync.Map // *device.SRQ → *wSRQ
	walkers []*walker
}

// base is what the model knows of every object.
type base struct {
	c    *wCtx
	uses atomic.Int32 // what stands on it; exact for one walker
	gone atomic.Int64 // tick at which its end was over; 0: it lives
}

func (b *base) of() *wCtx   { return b.c }
func (b *base) alive() bool { return b.gone.Load() == 0 && !b.c.closing.Load() }
func (b *base) use(n int32) { b.uses.Add(n) }
func (b *base) inUse() bool { return b.uses.Load() > 0 }
func (b *base) String() string {
	return fmt.Sprintf("alive %v, uses %d", b.alive(), b.uses.Load())
}

type object interface {
	comparable
	of() *wCtx
	alive() bool
}

type (
	wCtx struct {
		*device.Context
		base
		side    int
		closing atomic.Bool
	}
	wPD struct {
		*device.PD
		base
	}
	wChan struct {
		*device.CompChannel
		base
	}
	wCQ struct {
		*device.CQ
		base
		ch          *wChan
		mu          sync.Mutex // who polls
		buf         [256]device.WC
		lossy       bool // it may have overflowed
		heard       bool // it has a channel or a handler
		arms, taken atomic.Int64
		delivered   int
	}
	wQP struct {
		*device.QP
		base
		typ            device.QPType
		cap            device.Cap
		pd             *wPD
		scq, rcq       *wCQ
		srq            *wSRQ
		xrcd           *wXRCD
		send, recv     *ledger
		errs, lastWQEs atomic.Int64 // entries to ERR, events
		sqds, draineds atomic.Int64

		mod    sync.Mutex // who changes its state; before post
		post   sync.Mutex // who posts, so that requests are numbered in order
		peer   atomic.Pointer[wQP]
		groups map[device.GID]bool
	}
	wSRQ struct {
		*device.SRQ
		base
		init   device.SRQInit
		pd     *wPD
		xrcd   *wXRCD
		cq     *wCQ
		ledger *ledger
	}
	wMR struct {
		*device.MR
		base
		pd     *wPD
		access device.Access
		mem    *guarded // nil: plain
	}
	wFast struct {
		*device.FastMR
		base
		pd  *wPD
		mem *guarded
	}
	wMW struct {
		*device.MW
		base
		pd *wPD
	}
	wAH struct {
		*device.AH
		base
		pd *wPD
	}
	wXRCD struct {
		*device.XRCD
		base
	}
)

// pool is the objects of one kind, of both devices, dead ones among them.
type pool[T object] struct {
	mu sync.Mutex
	l  []T
}

func (p *pool[T]) add(x T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dead := 0
	for i := len(p.l) - 1; i >= 0; i-- { // a few dead ones stay
		if p.l[i].alive() {
			continue
		}
		if dead++; dead > 8 {
			p.l = slices.Delete(p.l, i, i+1)
		}
	}
	p.l = append(p.l, x)
}

func (p *pool[T]) all() []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.l)
}

// count returns how many a context has.
func (p *pool[T]) count(c *wCtx) (n int) {
	for _, x := range p.all() {
		if x.of() == c && x.alive() {
			n++
		}
	}
	return n
}

// pick returns one that is mostly alive, of the context and as wanted.
func (p *pool[T]) pick(k *walker, c *wCtx, want func(T) bool) (x T, ok bool) {
	all := p.all()
	if len(all) == 0 {
		return x, false
	}
	if !k.one(40) {
		if l := slices.DeleteFunc(slices.Clone(all), func(x T) bool { return c != nil && x.of() != c || !x.alive() || want != nil && !want(x) }); len(l) > 0 {
			all = l
		} else if !k.one(10) {
			return x, false
		}
	}
	return all[k.r.IntN(len(all))], true
}

// guarded is memory that tells when it is touched after its registration has ended. It has a lock because two
// requests to one place are the program's fault, and not what is looked for.
type guarded struct {
	w     *walk
	mu    sync.Mutex
	b     []byte
	va    uint64
	freed atomic.Bool
}

func (g *guarded) touch() {
	if g.freed.Load() {
		g.w.errorf("memory was touched after its registration had ended")
	}
}

func (g *guarded) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (g *guarded) ReadV(e []transport.Extent) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.touch()
	for _, x := range e {
		copy(x.Buf, g.b[x.VA-g.va:][:len(x.Buf)])
	}
	runtime.Gosched() // so that others come in between
	g.touch()
	return nil
}

func (g *guarded) WriteV(e []transport.Extent) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.touch()
	for _, x := range e {
		copy(g.b[x.VA-g.va:][:len(x.Buf)], x.Buf)
	}
	runtime.Gosched()
	g.touch()
	return nil
}

func (g *guarded) Atomic64(va uint64, _ *transport.Atomic) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.touch()
	g.b[va-g.va]++
	return 0, nil
}

func (g *guarded) Store64(va, _ uint64) error {
	_, err := g.Atomic64(va, nil)
	return err
}

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
				if p.must && !c.lossy {
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
			if n := q.draineds.Add(1); n > q.sqds.Load() {
				w.errorf("%v: event %d, SQD was entered %d times", e.Type, n, q.sqds.Load())
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

func (w *walk) errorf(format string, a ...any) {
	if !w.stop.Swap(true) {
		w.t.Errorf("seed %d: "+format, append([]any{w.seed}, a...)...)
	}
}

func newWalk(t *testing.T, seed uint64, alone bool, beat *atomic.Int64) *walk {
	w := &walk{t: t, seed: seed, alone: alone, beat: beat}
	r := rand.New(rand.NewPCG(seed, 0))
	end := func(n int) pipe.Config {
		return pipe.Config{Name: string(rune('a' + n)), Ethernet: true, MTU: 4200, Addrs: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/24", n+1)), netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", n+1))}}
	}
	ea, eb := pipe.New(end(0), end(1))
	w.link = [2]*pipe.End{ea, eb}
	for i, ep := range w.link {
		var seed [32]byte
		fill(r, seed[:])
		o := device.Options{Rand: rand.NewChaCha8(seed), Profile: device.ProfileNames()[r.IntN(3)], SameKeys: r.IntN(4) == 0}
		if r.IntN(3) == 0 {
			o.PKeys = []uint16{device.DefaultPKey, 0x8001, 0x0002}
		}
		if r.IntN(2) == 0 {
			o.Link.Impair = rules(t, fmt.Sprintf("tx drop=1%% seed=%d", r.IntN(1000)), fmt.Sprintf("rx reorder=1%% seed=%d", r.IntN(1000)))
		}
		d, err := device.Open(ep, o)
		if err != nil {
			t.Fatal(err)
		}
		w.dev[i] = d
	}
	return w
}

// life lets walkers walk some steps each, ends all that they have made, and looks for what is left.
func (w *walk) life(walkers, steps int) (verbs int) {
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for i := range walkers {
		k := &walker{walk: w, r: rand.New(rand.NewPCG(w.seed, uint64(i)+1))}
		w.walkers = append(w.walkers, k)
	}
	how := w.walkers[0].r.IntN(3)
	for i, k := range w.walkers {
		wg.Go(func() {
			n := steps
			if how == 2 && !w.alone && i > 0 {
				n *= 2 // the devices close while these are walking
			}
			for range n {
				if w.stop.Load() {
					return
				}
				k.step()
				if w.alone {
					synctest.Wait()
				}
			}
		})
		if how == 2 && i == 0 && !w.alone {
			wg.Go(func() {
				for k.steps.Load() < int64(steps)*3/4 && !w.stop.Load() {
					time.Sleep(time.Millisecond)
				}
				w.over.Store(true)
				for _, d := range w.dev {
					if err := d.Close(); err != nil {
						w.errorf("%v", err)
					}
				}
			})
		}
	}
	wg.Wait()
	switch how {
	case 0:
		w.tearDown()
	case 1:
		for _, c := range w.ctxs.all() {
			wg.Go(func() { w.close(c) })
		}
		wg.Wait()
	}
	for _, c := range w.ctxs.all() {
		if o := c.Objects(); o != (device.Objects{}) && how != 2 {
			w.errorf("teardown %d: left of a context: %+v", how, o)
		}
	}
	for _, d := range w.dev {
		if l := d.QPs(); len(l) > 0 && how != 2 {
			w.errorf("teardown %d: left on a device: %+v", how, l)
		}
		if err := d.Close(); err != nil {
			w.errorf("%v", err)
		}
	}
	for _, c := range w.ctxs.all() {
		if o := c.Objects(); o != (device.Objects{}) {
			w.errorf("left of a context when its device is closed: %+v", o)
		}
	}
	for _, c := range w.cqs.all() {
		// What was never destroyed has delivered to nobody who asks.
		if t, a := c.taken.Load(), c.arms.Load(); t > a || c.heard && c.delivered >= 0 && c.gone.Load() != 0 && int64(c.delivered) != t {
			w.errorf("a completion queue was armed %d times, %d events were taken, and destroy says %d", a, t, c.delivered)
		}
	}
	for late := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before && !w.alone; {
		if time.Now().After(late) {
			var b strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
			w.errorf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, b.String())
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, k := range w.walkers {
		verbs += int(k.verbs.Load())
		if w.t.Failed() {
			w.t.Logf("the last of %d verbs of a walker:\n%s", k.verbs.Load(), strings.Join(k.log[max(0, len(k.log)-40):], "\n"))
		}
	}
	return verbs
}

// tearDown destroys all objects in any order, again and again where others still use them.
func (w *walk) tearDown() {
	var ends []func() error
	for _, x := range w.qps.all() {
		ends = append(ends, func() error {
			for g := range x.groups {
				_ = x.Detach(g)
			}
			return x.Destroy()
		})
	}
	for _, x := range w.pds.all() {
		ends = append(ends, x.Dealloc)
	}
	for _, x := range w.cqs.all() {
		ends = append(ends, func() error {
			_, err := x.Destroy()
			x.delivered = -1 // not kept
			return err
		})
	}
	for _, x := range w.chans.all() {
		ends = append(ends, x.Destroy)
	}
	for _, x := range w.srqs.all() {
		ends = append(ends, x.Destroy)
	}
	for _, x := range w.mrs.all() {
		ends = append(ends, x.Dereg)
	}
	for _, x := range w.fasts.all() {
		ends = append(ends, x.Dereg)
	}
	for _, x := range w.mws.all() {
		ends = append(ends, x.Dealloc)
	}
	for _, x := range w.ahs.all() {
		ends = append(ends, x.Destroy)
	}
	for _, x := range w.xrcds.all() {
		ends = append(ends, x.Close)
	}
	k := w.walkers[0]
	// What stands on others goes first: five layers at most.
	for range 8 {
		k.r.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
		left := ends[:0]
		for _, f := range ends {
			if err := f(); errors.Is(err, device.EBUSY) || err != nil && strings.Contains(err.Error(), "windows") {
				left = append(left, f)
			} else if err != nil && !errors.Is(err, device.EINVAL) {
				w.errorf("teardown: %v", err)
			}
		}
		ends = left
	}
	if len(ends) > 0 {
		w.errorf("teardown: %d objects cannot be destroyed, the first says %v", len(ends), ends[0]())
	}
}

// watch dumps all goroutines when nothing goes on any more. It is outside of the bubble.
func watch(beat *atomic.Int64, seed uint64, done chan struct{}) {
	last, since := int64(-1), time.Now()
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Second):
		}
		if n := beat.Load(); n != last {
			last, since = n, time.Now()
		} else if time.Since(since) > time.Minute {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
			panic(fmt.Sprintf("a verb does not return; the walk began with seed %d", seed))
		}
	}
}

// walker calls verbs.
type walker struct {
	*walk
	r     *rand.Rand
	steps atomic.Int64
	verbs atomic.Int64
	log   []string
	seen  string // what there was before the verb
}

func (k *walker) one(in int) bool { return k.r.IntN(in) == 0 }

func of[T any](k *walker, l ...T) T { return l[k.r.IntN(len(l))] }

// census is what must not change where a verb fails.
func (k *walker) census() string {
	var b strings.Builder
	for _, c := range k.ctxs.all() {
		fmt.Fprint(&b, c.Objects())
	}
	for _, d := range k.dev {
		fmt.Fprint(&b, len(d.QPs()))
	}
	return b.String()
}

// did judges how a verb ended. want is how it may end as the model has it, 0 for success; none: it does not know.
func (k *walker) did(verb string, c *wCtx, err error, want ...device.Errno) bool {
	k.verbs.Add(1)
	k.log = append(k.log, fmt.Sprintf("%s: %v", verb, err))
	if len(k.log) > 200 {
		k.log = slices.Clone(k.log[100:])
	}
	var e device.Errno
	if err != nil {
		var op *device.OpError
		if !errors.As(err, &op) || op.Op == "" || strings.Contains(err.Error(), "\n") {
			k.errorf("%s: %#v is no OpError", verb, err)
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return false
		}
		if !errors.As(err, &e) {
			k.errorf("%s: %v wraps no Errno", verb, err)
		}
		switch e {
		case device.EIO:
			if !c.closing.Load() && !k.over.Load() && !strings.HasPrefix(verb, "wait") {
				k.errorf("%s: %v, and the context is open", verb, err)
			}
		case device.ENOMEM, device.EBUSY, device.EINVAL, device.ENOSPC, device.EOPNOTSUPP:
		default:
			k.errorf("%s: errno %d", verb, int(e))
		}
	}
	if !k.alone {
		return err == nil
	}
	if len(want) > 0 && !slices.Contains(want, e) {
		k.errorf("%s: %v, want one of %v", verb, err, want)
	}
	if now := k.census(); err != nil && now != k.seen {
		k.errorf("%s: %v; there was %s, and now is %s", verb, err, k.seen, now)
	} else {
		k.seen = now
	}
	return err == nil
}

// wants is how a verb ends with arguments that are good or not.
func wants(c *wCtx, good bool, bad ...device.Errno) []device.Errno {
	switch {
	case c.closing.Load():
		return append(bad, device.EIO, device.EINVAL)
	case good:
		return []device.Errno{0}
	}
	return append(bad, device.EINVAL)
}

// ends is how destroying an object ends.
func ends(b *base) []device.Errno {
	switch {
	case !b.alive():
		return []device.Errno{device.EINVAL}
	case b.inUse():
		return []device.Errno{device.EBUSY}
	}
	return []device.Errno{0}
}

// ended records that an object is gone, which happens once.
func (k *walker) ended(b *base) {
	if !b.gone.CompareAndSwap(0, k.tick.Add(1)) {
		k.errorf("an object was destroyed twice: %v", b)
	}
}
