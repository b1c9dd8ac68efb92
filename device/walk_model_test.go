package device_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/softnic/softnic/device"
)

// base is what the model knows of every object.
type base struct {
	c    *wCtx
	uses atomic.Int32 // what stands on it; exact for one walker
	gone atomic.Int64 // tick at which its end was over; 0: it lives
}

func (b *base) of() *wCtx { return b.c }

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
		mod         sync.Mutex // who changes its length
		buf         [256]device.WC
		lossy       atomic.Bool // it may have overflowed
		heard       bool        // it has a channel or a handler
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
		asked, drained atomic.Int64 // entries to SQD that asked for an event, events

		mod    sync.Mutex // who changes its state; before post
		post   sync.Mutex // who posts, so that requests are numbered in order
		peer   atomic.Pointer[wQP]
		groups map[device.GID]bool
	}
	wSRQ struct {
		*device.SRQ
		base
		mod    sync.Mutex // who changes its length or its limit
		init   device.SRQInit
		pd     *wPD
		xrcd   *wXRCD
		cq     *wCQ
		ledger *ledger
	}
	wMR struct {
		*device.MR
		base
		dom      atomic.Pointer[wPD]
		bindable atomic.Bool // it has MWBind
		mu       sync.Mutex  // who ends it or registers it anew, and the rest
		access   device.Access
		mem      *guarded // nil: plain
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
