package device_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
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

	filesMu sync.Mutex
	dir     string
	files   []mapped

	ledgers sync.Map // uint32 → *ledger
	byQP    sync.Map // *device.QP → *wQP
	byCQ    sync.Map // *device.CQ → *wCQ
	bySRQ   sync.Map // *device.SRQ → *wSRQ
	walkers []*walker
}

func newWalk(t *testing.T, seed uint64, alone bool, beat *atomic.Int64) *walk {
	w := &walk{t: t, seed: seed, alone: alone, beat: beat}
	r := rand.New(rand.NewPCG(seed, 0))
	inFlight := []int{0, 64 << 10, 2 << 20}[r.IntN(3)]
	end := func(n int) pipe.Config {
		return pipe.Config{Name: string(rune('a' + n)), Ethernet: true, MTU: 4200, InFlight: inFlight, Addrs: []netip.Prefix{
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
	for _, m := range w.files { // whoever touches them from now on ends the process
		if err := m.Close(); err != nil {
			w.errorf("%v", err)
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

func (w *walk) errorf(format string, a ...any) {
	if !w.stop.Swap(true) {
		w.t.Errorf("seed %d: "+format, append([]any{w.seed}, a...)...)
	}
}
