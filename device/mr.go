package device

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// PD is a protection domain: what binds memory, queue pairs and address
// handles together.
type PD struct {
	ctx  *Context
	uses atomic.Int32
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() (*PD, error) {
	pd := &PD{ctx: c}
	if err := own(c, "alloc_pd", c.pds, MaxPD, pd, nil, nil); err != nil {
		return nil, err
	}
	return pd, nil
}

// live checks that the domain was not freed; the context's lock is held.
func (pd *PD) live() error { return alive(pd.ctx.pds, pd, "protection domain") }

// Dealloc frees the protection domain; EBUSY while anything belongs to it.
func (pd *PD) Dealloc() error {
	c := pd.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := pd.live(); err != nil {
		return &OpError{"dealloc_pd", "", err}
	}
	if n := pd.uses.Load(); n > 0 {
		return &OpError{"dealloc_pd", "", because(EBUSY, "%d objects still belong to it", n)}
	}
	delete(c.pds, pd)
	return nil
}

// MR is a memory region: bytes that local and remote work requests may name
// by key.
type MR struct {
	transport.Memory
	pd         *PD
	lkey, rkey uint32
	base, size uint64
	access     Access
	buf        []byte
	refs       atomic.Int32 // 1 for the registration itself
	free       chan struct{}
}

// RegMR registers b. Keys are random; the L_Key and the R_Key differ unless
// Options.SameKeys is set. RemoteWrite and RemoteAtomic need LocalWrite.
func (pd *PD) RegMR(b []byte, access Access) (*MR, error) {
	mr, err := pd.RegMemory(NewMemory(b), addrOf(b), uint64(len(b)), access)
	if err != nil {
		return nil, err
	}
	mr.buf = b
	return mr, nil
}

// RegMemory registers n bytes of m from its address va on.
func (pd *PD) RegMemory(m Memory, va, n uint64, access Access) (*MR, error) {
	const op = "reg_mr"
	switch {
	case access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0:
		return nil, &OpError{op, "", because(EINVAL, "remote write or atomic access needs local write too")}
	case access&^(LocalWrite|RemoteWrite|RemoteRead|RemoteAtomic) != 0:
		return nil, &OpError{op, "", because(EOPNOTSUPP, "access flags 0x%x are not supported", uint32(access))}
	case va+n < va:
		return nil, &OpError{op, "", because(EINVAL, "length %d from 0x%x on wraps", n, va)}
	}
	mr := &MR{Memory: m, pd: pd, base: va, size: n, access: access, free: make(chan struct{})}
	mr.refs.Store(1)
	c := pd.ctx
	err := own(c, op, c.mrs, MaxMR, mr, pd.live, func() {
		pd.uses.Add(1)
		c.dev.keys.add(c.dev, mr)
	})
	if err != nil {
		return nil, err
	}
	return mr, nil
}

// LKey returns the key for local work requests.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the key for the peer.
func (m *MR) RKey() uint32 { return m.rkey }

// Addr returns the first address of the region.
func (m *MR) Addr() uint64 { return m.base }

// Len returns the length of the region in bytes.
func (m *MR) Len() int { return int(m.size) }

// Bytes returns the slice that was registered; nil for RegMemory.
func (m *MR) Bytes() []byte { return m.buf }

// SGE returns the gather or scatter entry for n bytes at offset off.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.base + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// Dereg ends the registration and waits until no access is running. After it
// no byte is read or written through the region's keys.
func (m *MR) Dereg() error {
	c := m.pd.ctx
	c.mu.Lock()
	_, live := c.mrs[m]
	delete(c.mrs, m)
	c.mu.Unlock()
	if !live {
		return &OpError{"dereg_mr", m.object(), because(EINVAL, "it is not registered")}
	}
	m.drop()
	return nil
}

func (m *MR) object() string { return fmt.Sprintf("mr rkey 0x%08x", m.rkey) }

// drop removes the keys and waits for the references.
func (m *MR) drop() {
	m.pd.ctx.dev.keys.remove(m)
	m.Release()
	<-m.free
	m.pd.uses.Add(-1)
}

// Release implements transport.Region.
func (m *MR) Release() {
	if m.refs.Add(-1) == 0 {
		close(m.free)
	}
}

// holds reports whether [va, va+n) lies in the region.
func (m *MR) holds(va, n uint64) bool {
	return va >= m.base && n <= m.size && va-m.base <= m.size-n
}

// keys is the device's key table. Local and remote keys are looked up apart:
// a key is good for one side only.
type keys struct {
	mu            sync.RWMutex
	local, remote map[uint32]*MR
}

// add gives mr random keys and makes it known.
func (k *keys) add(d *Device, mr *MR) {
	k.mu.Lock()
	defer k.mu.Unlock()
	mr.lkey = d.freeKey(k.local, k.remote)
	mr.rkey = mr.lkey
	if !d.opts.SameKeys {
		mr.rkey = d.freeKey(k.local, k.remote)
	}
	k.local[mr.lkey] = mr
	if mr.access&(RemoteRead|RemoteWrite|RemoteAtomic) != 0 {
		k.remote[mr.rkey] = mr
	}
}

func (k *keys) remove(mr *MR) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.local, mr.lkey)
	delete(k.remote, mr.rkey)
}

// freeKey draws a key that is in neither table. 0 and all ones are left out:
// programs use them for "none".
func (d *Device) freeKey(a, b map[uint32]*MR) uint32 {
	for {
		v := d.random32()
		if v == 0 || v == ^uint32(0) || a[v] != nil || b[v] != nil {
			continue
		}
		return v
	}
}

// Local implements transport.Host.
func (h *host) Local(lkey uint32, va uint64, n int, a Access) (transport.Region, Status) {
	q := (*QP)(h)
	k := &q.dev.keys
	k.mu.RLock()
	defer k.mu.RUnlock()
	m := k.local[lkey]
	if m == nil || m.pd != q.pd || m.access&a != a || !m.holds(va, uint64(n)) {
		return nil, StatusLocalProtection
	}
	m.refs.Add(1)
	return m, StatusSuccess
}

// Remote implements transport.Host.
func (h *host) Remote(rkey uint32, va uint64, n uint64, a Access) (transport.Region, bool) {
	q := (*QP)(h)
	m, lkey := q.dev.keys.acquireRemote(q.pd, rkey, va, n, a)
	if lkey {
		q.dev.log.Warn("a peer used an L_Key as R_Key", "qp", q.num, "key", rkey)
	}
	return m, m != nil
}

// acquireRemote looks a remote key up and takes a reference; lkey tells that the key
// is unknown here but a good local one.
func (k *keys) acquireRemote(pd *PD, rkey uint32, va, n uint64, a Access) (mr *MR, lkey bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	m := k.remote[rkey]
	if m == nil || m.pd != pd || m.access&a != a || !m.holds(va, n) {
		return nil, m == nil && k.local[rkey] != nil
	}
	m.refs.Add(1)
	return m, false
}

// random32 draws from Options.Rand.
func (d *Device) random32() uint32 {
	var b [4]byte
	d.randMu.Lock()
	defer d.randMu.Unlock()
	if _, err := io.ReadFull(d.rand, b[:]); err != nil {
		// A recorded source may end; keys must stay unguessable all the same.
		_, _ = rand.Read(b[:])
	}
	return binary.BigEndian.Uint32(b[:])
}
