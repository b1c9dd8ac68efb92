package device

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// FastMR is a memory region whose memory is given and taken away by work requests (OpRegMR;
// OpLocalInv, or the peer's SEND with invalidate), as ib_alloc_mr makes them. L_Key and R_Key
// are one. transport.RegWR says
// what to give.
type FastMR struct {
	pd  *PD
	max uint64
	key atomic.Uint32

	// The key table's lock guards the rest.
	cur  *MR   // nil: invalid
	gone []*MR // what it was before, while accesses run
}

// AllocMR makes a region that is invalid, for memory of at most max bytes, 1 or more (kernel, core/verbs.c:ib_alloc_mr).
// An OpRegMR that is not possible, because the region is valid, the memory longer, or the rights do not fit together,
// completes with StatusMWBind. EINVAL: max is 0, more than MaxMR regions of either kind on the device.
func (pd *PD) AllocMR(max uint64) (*FastMR, error) {
	const op = "alloc_mr"
	if max == 0 {
		return nil, &OpError{op, "", because(EINVAL, "no bytes")}
	}
	f := &FastMR{pd: pd, max: max}
	c := pd.ctx
	err := own(c, op, c.fasts, MaxMR, f, pd.live, func() {
		pd.uses.Add(1)
		k := &c.dev.keys
		k.lock()
		defer k.mu.Unlock()
		f.key.Store(k.drawOwn(c.dev))
		k.fast[f.key.Load()>>8] = f
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// LKey returns the key for local work requests as it is now: NewKey of the last OpRegMR that was executed, before it a
// random one.
func (f *FastMR) LKey() uint32 { return f.key.Load() }

// RKey returns the key for the peer as it is now, which is LKey.
func (f *FastMR) RKey() uint32 { return f.key.Load() }

// Dereg frees the region (ibv_dereg_mr), valid or not, and waits until no access is running. EINVAL: it is freed already.
func (f *FastMR) Dereg() error {
	c := f.pd.ctx
	c.mu.Lock()
	_, live := c.fasts[f]
	delete(c.fasts, f)
	c.mu.Unlock()
	if !live {
		return &OpError{"dereg_mr", fmt.Sprintf("mr rkey 0x%08x", f.RKey()), because(EINVAL, "it is freed already")}
	}
	f.drop()
	return nil
}

func (f *FastMR) drop() {
	k := &f.pd.ctx.dev.keys
	k.lock()
	if f.cur != nil {
		k.invalidate(f)
	}
	gone := f.gone
	delete(k.fast, f.RKey()>>8)
	k.forget(f.RKey())
	k.mu.Unlock()
	for _, m := range gone {
		<-m.mem.gone
	}
	f.pd.uses.Add(-1)
}

// invalidate takes the region's memory away and returns it: accesses may still run. The lock is held.
func (k *keys) invalidate(f *FastMR) (was *region) {
	k.unpublish(f.cur)
	was = f.cur.mem
	was.invalidate()
	was.Discard()
	f.gone = append(slices.DeleteFunc(f.gone, func(m *MR) bool { return m.mem.ended() }), f.cur)
	f.cur = nil
	return was
}

// Register implements transport.Host.
func (h *host) Register(r *transport.RegWR) bool {
	q := (*QP)(h)
	k := &q.dev.keys
	k.lock()
	defer k.mu.Unlock()
	f := k.fast[r.LKey>>8]
	switch {
	case f == nil, f.LKey() != r.LKey, r.NewKey>>8 != r.LKey>>8, f.pd != q.pd, f.cur != nil, r.Memory == nil,
		r.Length == 0 || r.Length > f.max, r.Addr+r.Length < r.Addr, r.Access&^(LocalWrite|anyRemote) != 0,
		r.Access&(RemoteWrite|RemoteAtomic) != 0 && r.Access&LocalWrite == 0, r.Access&FlushPersistent != 0 && !persists(r.Memory), !holds(r.Memory, r.Addr, r.Length):
		return false
	}
	m := &MR{mem: new(region), pd: f.pd, base: r.Addr, size: r.Length, access: r.Access, lkey: r.NewKey, rkey: r.NewKey}
	m.mem.open(r.Memory, nil)
	f.cur = m
	f.key.Store(r.NewKey)
	k.publish(m)
	return true
}
