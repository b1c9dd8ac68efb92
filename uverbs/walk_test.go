//go:build linux

package uverbs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// TestWalk has programs send random commands, right and wrong ones, and write anything into their rings, for
// SOFTNIC_WALK seconds (5): every command is answered once, two programs that are honest are not disturbed, and when the others
// have ended, at any moment, all that was theirs is free. What a walk begins with SOFTNIC_SEED repeats, as far as its programs do
// not race.
func TestWalk(t *testing.T) {
	secs, seed := 5, rand.Uint64()
	if testing.Short() {
		secs = 1
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
	t.Logf("seed %d", seed)
	began, commands, lives := time.Now(), int64(0), uint64(0)
	for end := began.Add(time.Duration(secs) * time.Second); lives == 0 || time.Now().Before(end); lives++ {
		before := inUse(t)
		ok := t.Run("", func(t *testing.T) { commands += (&walk{t: t, seed: seed + lives, conns: map[*conn]bool{}}).life() })
		if !ok {
			t.Fatalf("repeat with SOFTNIC_SEED=%d go test -run TestWalk ./uverbs", seed+lives)
		}
		back(t, before)
	}
	t.Logf("%d lives, %d commands in %v", lives, commands, time.Since(began).Round(time.Second))
}

// walk is one life of two daemons and their programs.
type walk struct {
	t        *testing.T
	seed     uint64
	d        [2]*daemon
	commands atomic.Int64
	stop     atomic.Bool // something is wrong

	mu    sync.Mutex
	conns map[*conn]bool // all that there were
	peers []*qp_         // queue pairs to connect to
	goals []goal
}

// walkRAM is what a walker registers memory of. It stays mapped until the daemons are closed: what is written there late must
// not be somebody else's.
const walkRAM = 1 << 18

func (w *walk) life() int64 {
	a, b := twoDaemons(w.t)
	w.d = [2]*daemon{a, b}
	x, y := newSide(a.open(how{}), device.RC, page), newSide(b.open(how{}), device.RC, page)
	connect(x.q, y.q)
	exchange(w.t, x, y)
	honest := w.holds()

	const walkers = 4
	var wg sync.WaitGroup
	var rams [walkers][]byte
	for i := range walkers {
		rams[i] = x.mmap(walkRAM, unix.PROT_READ|unix.PROT_WRITE)
	}
	var working atomic.Int32
	for i := range walkers {
		working.Add(1)
		wg.Go(func() {
			defer working.Add(-1)
			k := &walker{walk: w, r: rand.New(rand.NewPCG(w.seed, uint64(i))), ram: rams[i]}
			for range 6 {
				if !w.stop.Load() {
					k.program()
				}
			}
		})
	}
	for working.Load() > 0 && !w.t.Failed() {
		exchange(w.t, x, y)
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	if w.t.Failed() {
		return 0
	}
	exchange(w.t, x, y)
	eventually(w.t, "what the honest programs had before is not what is left", func() bool { return w.holds() == honest })
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.d {
		for _, c := range d.conns() {
			delete(w.conns, c)
		}
	}
	for c := range w.conns { // ended: nobody changes them any more
		if c.ctx == nil {
			continue
		}
		if o := c.ctx.Objects(); o != (device.Objects{}) {
			w.errorf("left of a context when its program has ended: %+v", o)
		}
	}
	a.close()
	b.close()
	for _, ram := range rams {
		if err := unix.Munmap(ram); err != nil {
			w.errorf("%v", err)
		}
	}
	x.close()
	y.close()
	unmapQueues()
	return w.commands.Load()
}

// goal is memory that requests may name.
type goal struct {
	addr, n    uint64
	lkey, rkey uint32
}

// holds tells what the daemons have for all programs.
func (w *walk) holds() (s string) {
	for _, d := range w.d {
		n := len(d.conns())
		d.s.mu.Lock()
		s += fmt.Sprintf("%d connections, descriptors %v, %d queue pairs; ", n, d.s.perUser, len(d.dev.QPs()))
		d.s.mu.Unlock()
	}
	return s
}

func (w *walk) errorf(format string, a ...any) {
	if !w.stop.Swap(true) {
		w.t.Errorf("seed %d: "+format, append([]any{w.seed}, a...)...)
	}
}

// saw notes the connections that there are.
func (w *walk) saw(d *daemon) {
	l := d.conns()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range l {
		w.conns[c] = true
	}
}

// peer returns a queue pair of any program, or nil.
func (w *walk) peer(r *rand.Rand) *qp_ { q, _ := oneOf(w, r, &w.peers); return q }

// goal returns memory of any program.
func (w *walk) goal(r *rand.Rand) goal { g, _ := oneOf(w, r, &w.goals); return g }

func oneOf[T any](w *walk, r *rand.Rand, l *[]T) (x T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(*l) == 0 {
		return x, false
	}
	return (*l)[r.IntN(len(*l))], true
}

// offer adds to what others may name, and forgets what is old.
func offer[T any](w *walk, l *[]T, x T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if *l = append(*l, x); len(*l) > 40 {
		*l = (*l)[20:]
	}
}
