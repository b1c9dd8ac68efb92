package device

import (
	"sync"
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// keys is the device's key table. Local and remote keys are looked up apart:
// a key is good for one side only.
//
// Keys are random. Of the keys of a window or a fast-registered region the program owns the low
// 8 bits, and the other 24 are its own: no other key begins with them.
type keys struct {
	mu       sync.RWMutex
	version  atomic.Uint64 // of all that follows; lock counts it up
	local    map[uint32]*MR
	remote   map[uint32]*grant
	windows  map[uint32]*MW     // by their 24 bits
	fast     map[uint32]*FastMR // by their 24 bits
	prefixes map[uint32]int     // how many keys begin with 24 bits
}

func newKeys() keys {
	return keys{
		local: map[uint32]*MR{}, remote: map[uint32]*grant{}, windows: map[uint32]*MW{}, fast: map[uint32]*FastMR{},
		prefixes: map[uint32]int{},
	}
}

// lock is for whoever changes the table.
func (k *keys) lock() {
	k.mu.Lock()
	k.version.Add(1)
}

// lastKey is what a queue pair last looked up and was given, to be given again without a lock as long as the table
// is the same; its lock is held. The zero value is nothing: no table has version 0 once a key is in it.
type lastKey struct {
	version    uint64
	key        uint32
	pd         *PD // local keys: of which domain
	mem        *region
	base, size uint64
	access     Access
}

// gives reports whether the look-up would come to the same.
func (l *lastKey) gives(k *keys, key uint32, pd *PD, va, n uint64, a Access) bool {
	return l.key == key && l.pd == pd && l.version == k.version.Load() && l.access&a == a && within(va, n, l.base, l.size)
}

// begin begins an access, if it is sure that the look-up would come to the same. Who takes the key away counts the version
// up first, and then waits for accesses: either it sees this one, or this one sees the version.
func (l *lastKey) begin(k *keys, key uint32, pd *PD, va, n uint64, a Access) bool {
	if !l.gives(k, key, pd, va, n, a) || !l.mem.again() {
		return false
	}
	if l.version == k.version.Load() {
		return true
	}
	l.mem.Release()
	return false
}

// grant is what a remote key gives.
type grant struct {
	pd         *PD
	mem        *region
	base, size uint64
	access     Access
	qp         *QP // the only queue pair that it is good for; nil: any of the domain
}

// add gives mr random keys and makes it known.
func (k *keys) add(d *Device, mr *MR) {
	k.lock()
	defer k.mu.Unlock()
	mr.lkey = k.draw(d)
	mr.rkey = mr.lkey
	if !d.profile.SameKeys {
		mr.rkey = k.draw(d)
	}
	k.publish(mr)
}

// publish makes the keys of mr valid; the lock is held.
func (k *keys) publish(mr *MR) {
	k.local[mr.lkey] = mr
	if mr.access&anyRemote != 0 {
		k.remote[mr.rkey] = &grant{pd: mr.pd, mem: mr.mem, base: mr.base, size: mr.size, access: mr.access}
	}
}

// remove makes the keys of mr invalid for good, unless windows are bound to it; it returns
// their number. No window is bound between the look and the end of the keys.
func (k *keys) remove(mr *MR) (windows int) {
	k.lock()
	defer k.mu.Unlock()
	if mr.windows > 0 {
		return mr.windows
	}
	k.unpublish(mr)
	k.forget(mr.lkey)
	if mr.rkey != mr.lkey {
		k.forget(mr.rkey)
	}
	return 0
}

// unpublish makes the keys of mr invalid; the lock is held.
func (k *keys) unpublish(mr *MR) {
	delete(k.local, mr.lkey)
	delete(k.remote, mr.rkey)
}

// draw draws a key that is in no table; the lock is held. 0 and all ones are left out: programs
// use them for "none".
func (k *keys) draw(d *Device) uint32 {
	for {
		v := d.random32()
		if v == 0 || v == ^uint32(0) || k.local[v] != nil || k.remote[v] != nil || k.windows[v>>8] != nil || k.fast[v>>8] != nil {
			continue
		}
		k.prefixes[v>>8]++
		return v
	}
}

// drawOwn draws a key whose 24 bits no other key has; the lock is held.
func (k *keys) drawOwn(d *Device) uint32 {
	for {
		v := k.draw(d)
		if k.prefixes[v>>8] == 1 && v>>8 != 0 && v>>8 != 0xFFFFFF {
			return v
		}
		k.forget(v)
	}
}

// forget gives a key back; the lock is held.
func (k *keys) forget(v uint32) {
	if k.prefixes[v>>8]--; k.prefixes[v>>8] <= 0 {
		delete(k.prefixes, v>>8)
	}
}

// Local implements transport.Host.
func (h *host) Local(c *transport.RecvContext, lkey uint32, va uint64, n int, a Access) (transport.Region, Status) {
	q := (*QP)(h)
	k := &q.dev.keys
	pd := q.pd
	if c != nil && c.Domain != nil {
		pd = c.Domain.(*PD)
	}
	if q.lastLocal.begin(k, lkey, pd, va, uint64(n), a) {
		return q.lastLocal.mem, StatusSuccess
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	m := k.local[lkey]
	if m == nil || m.pd != pd || m.access&a != a || !within(va, uint64(n), m.base, m.size) {
		return nil, StatusLocalProtection
	}
	m.mem.begin()
	q.lastLocal = lastKey{k.version.Load(), lkey, pd, m.mem, m.base, m.size, m.access}
	return m.mem, StatusSuccess
}

// Names implements transport.Host. The key may be taken away at once after that; then Region.Resume tells.
func (h *host) Names(lkey uint32, va uint64, n int, mem transport.Region) bool {
	q := (*QP)(h)
	return q.lastLocal.gives(&q.dev.keys, lkey, q.pd, va, uint64(n), 0) && mem == transport.Region(q.lastLocal.mem)
}

// Remote implements transport.Host.
func (h *host) Remote(rkey uint32, va uint64, n uint64, a Access) (transport.Region, bool) {
	q := (*QP)(h)
	m, lkey := q.dev.keys.acquireRemote(q, rkey, va, n, a)
	if lkey && !q.warned {
		q.warned = true
		q.dev.log.Warn("a peer used an L_Key as R_Key", "qp", q.num, "key", rkey)
	}
	return m, m != nil
}

// acquireRemote looks a remote key up and begins an access; lkey tells that the key
// is unknown here but a good local one.
func (k *keys) acquireRemote(q *QP, rkey uint32, va, n uint64, a Access) (mem *region, lkey bool) {
	if q.lastRemote.begin(k, rkey, q.pd, va, n, a) {
		return q.lastRemote.mem, false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	g := k.remote[rkey]
	if g == nil || !g.allows(q, a) || !within(va, n, g.base, g.size) {
		return nil, g == nil && k.local[rkey] != nil
	}
	g.mem.begin()
	q.lastRemote = lastKey{k.version.Load(), rkey, q.pd, g.mem, g.base, g.size, g.access}
	return g.mem, false
}

// allows checks everything but the range.
func (g *grant) allows(q *QP, a Access) bool {
	return g.pd == q.pd && (g.qp == nil || g.qp == q) && g.access&a == a
}

// within reports whether [va, va+n) lies in size bytes from base on.
func within(va, n, base, size uint64) bool {
	return va >= base && n <= size && va-base <= size-n
}

// FlushMemory implements transport.Host. What was written is visible: nothing is cached here.
func (h *host) FlushMemory(rkey uint32, va, n uint64, level transport.FlushLevel, t transport.FlushType) bool {
	q := (*QP)(h)
	k := &q.dev.keys
	var a Access
	if t&transport.FlushGlobal != 0 {
		a |= FlushGlobal
	}
	if t&transport.FlushPersistent != 0 {
		a |= FlushPersistent
	}
	k.mu.RLock()
	g := k.remote[rkey]
	if g == nil || !g.allows(q, a) {
		k.mu.RUnlock()
		return false
	}
	if level == transport.FlushMR {
		va, n = g.base, g.size
	} else if !within(va, n, g.base, g.size) {
		k.mu.RUnlock()
		return false
	}
	m := g.mem
	m.begin()
	k.mu.RUnlock()
	defer m.Release()
	if t&transport.FlushPersistent == 0 {
		return true
	}
	p, ok := m.Memory.(transport.Persistent)
	return ok && p.Persist(va, n) == nil
}
