package device

import (
	"fmt"
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// MWType is the type of a memory window; values 1 and 2 as enum ibv_mw_type.
type MWType int

// The types. A window of type 1 is good for every queue pair of its domain; one of type 2 for
// the queue pair that bound it alone, and of these the domain of 2A is not compared with that of
// the queue pair. One of type 1 is bound anew, also to nothing; one of type 2 has to be invalidated before it is bound again.
const (
	MW1  MWType = 1
	MW2B MWType = 2
	MW2A MWType = 3 // verbs count it as 2
)

// MW is a memory window (ibv_mw): a key for a part of a region, given and taken away by work requests
// (OpBindMW, OpLocalInv). A bind needs a region with MWBind, of the queue pair's domain, and a range in it; a window that can
// be written to needs one with LocalWrite. What is not possible completes with StatusMWBind (roce.md B.14). transport.BindWR says
// what to give. Peers alone use a window: it has no L_Key.
type MW struct {
	pd   *PD
	typ  MWType
	rkey atomic.Uint32

	// The key table's lock guards the rest.
	mem *region // nil: not bound
	mr  *MR     // of what
	qp  *QP     // type 2: who bound it
}

// AllocMW makes a memory window that is not bound (ibv_alloc_mw). EINVAL: another type, more than MaxMW on the device.
func (pd *PD) AllocMW(t MWType) (*MW, error) {
	const op = "alloc_mw"
	if t < MW1 || t > MW2A {
		return nil, &OpError{op, "", because(EINVAL, "type %d does not exist", int(t))}
	}
	w := &MW{pd: pd, typ: t}
	c := pd.ctx
	err := own(c, op, c.mws, MaxMW, w, pd.live, func() {
		pd.uses.Add(1)
		k := &c.dev.keys
		k.lock()
		defer k.mu.Unlock()
		w.rkey.Store(k.drawOwn(c.dev))
		k.windows[w.rkey.Load()>>8] = w
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// RKey returns the window's key as it is now; a bind that has completed has changed it to transport.BindWR.NewKey. It is good
// while the window is bound.
func (w *MW) RKey() uint32 { return w.rkey.Load() }

// Type returns the window's type.
func (w *MW) Type() MWType { return w.typ }

// IncRKey returns the next key of a window or a fast-registered region (ibv_inc_rkey): only
// the low 8 bits, which are the program's, change.
func IncRKey(k uint32) uint32 { return k&^0xFF | (k+1)&0xFF }

// Dealloc frees the window (ibv_dealloc_mw), bound or not, and waits until no access is running. EINVAL: it is freed already.
func (w *MW) Dealloc() error {
	c := w.pd.ctx
	c.mu.Lock()
	_, live := c.mws[w]
	delete(c.mws, w)
	c.mu.Unlock()
	if !live {
		return &OpError{"dealloc_mw", w.name(), because(EINVAL, "it is freed already")}
	}
	w.drop()
	return nil
}

func (w *MW) name() string { return fmt.Sprintf("mw rkey 0x%08x", w.RKey()) }

func (w *MW) drop() {
	k := &w.pd.ctx.dev.keys
	k.lock()
	was := k.unbind(w)
	delete(k.windows, w.RKey()>>8)
	k.forget(w.RKey())
	k.mu.Unlock()
	if was != nil {
		<-was.gone
	}
	w.pd.uses.Add(-1)
}

// unbind takes the window's memory away and returns it, if there was any: accesses may still
// run. The lock is held.
func (k *keys) unbind(w *MW) (was *region) {
	if w.mem == nil {
		return nil
	}
	was = w.mem
	was.invalidate()
	was.Discard()
	delete(k.remote, w.RKey())
	w.mr.windows--
	if w.qp != nil {
		w.qp.windows--
	}
	w.mem, w.mr, w.qp = nil, nil, nil
	return was
}

// unbindAll takes the memory of the windows away that a queue pair has bound.
func (k *keys) unbindAll(q *QP) {
	k.lock()
	defer k.mu.Unlock()
	if q.windows == 0 {
		return
	}
	for _, w := range k.windows {
		if w.qp == q {
			k.unbind(w)
		}
	}
}

// Bind implements transport.Host (roce.md B.14). Where it takes memory away, no access to that runs when it returns.
func (h *host) Bind(b *transport.BindWR) bool {
	q := (*QP)(h)
	was, ok := q.dev.keys.bind(q, b)
	if was != nil {
		was.quiet()
	}
	return ok
}

func (k *keys) bind(q *QP, b *transport.BindWR) (was *region, ok bool) {
	k.lock()
	defer k.mu.Unlock()
	w := k.windows[b.Window>>8]
	if w == nil || w.RKey() != b.Window || b.NewKey>>8 != b.Window>>8 || w.pd.ctx != q.ctx || w.typ != MW2A && w.pd != q.pd {
		return nil, false
	}
	if w.typ == MW1 && b.Length == 0 {
		was = k.unbind(w)
		w.rkey.Store(b.NewKey)
		return was, true
	}
	mr := k.local[b.MRKey]
	access := b.Access &^ LocalWrite // that of its region counts; rxe takes it, and programs give it
	switch {
	case b.Length == 0, w.typ != MW1 && w.mem != nil,
		mr == nil, mr.pd != q.pd, mr.access&MWBind == 0, !within(b.Addr, b.Length, mr.base, mr.size),
		access&^(anyRemote|ZeroBased) != 0, access&(RemoteWrite|RemoteAtomic) != 0 && mr.access&LocalWrite == 0,
		access&FlushPersistent != 0 && !persists(mr.mem.Memory):
		return nil, false
	}
	was = k.unbind(w)
	w.rkey.Store(b.NewKey)
	w.mem, w.mr = new(region), mr
	mem, base := mr.mem.Memory, b.Addr
	if access&ZeroBased != 0 {
		mem, base = shifted{mem, b.Addr}, 0
	}
	w.mem.open(mem, mr.mem)
	mr.windows++
	g := &grant{pd: q.pd, mem: w.mem, base: base, size: b.Length, access: access &^ ZeroBased}
	if w.typ != MW1 {
		w.qp, g.qp = q, q
		q.windows++
	}
	k.remote[b.NewKey] = g
	return was, true
}

// Invalidate implements transport.Host. No access runs when it returns.
func (h *host) Invalidate(key uint32, remote bool) bool {
	q := (*QP)(h)
	was := q.dev.keys.takeAway(q, key, remote)
	if was != nil {
		was.quiet()
	}
	return was != nil
}

// takeAway makes a key of a window or a fast-registered region invalid; nil if that is not possible.
func (k *keys) takeAway(q *QP, key uint32, remote bool) (was *region) {
	k.lock()
	defer k.mu.Unlock()
	if w := k.windows[key>>8]; w != nil {
		if w.typ == MW1 || w.mem == nil || w.RKey() != key || w.qp != q {
			return nil
		}
		return k.unbind(w)
	}
	f := k.fast[key>>8]
	if f == nil || f.cur == nil || f.pd != q.pd || f.RKey() != key || remote && f.cur.access&anyRemote == 0 {
		return nil
	}
	return k.invalidate(f)
}
