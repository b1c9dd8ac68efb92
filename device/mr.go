package device

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// PD is a protection domain (ibv_pd): what binds memory, queue pairs and address
// handles together. A key is good for the queue pairs of its domain alone.
type PD struct {
	ctx  *Context
	uses atomic.Int32
}

// AllocPD makes a protection domain (ibv_alloc_pd). EINVAL: more than MaxPD on the device.
func (c *Context) AllocPD() (*PD, error) {
	pd := &PD{ctx: c}
	if err := own(c, "alloc_pd", c.pds, MaxPD, pd, nil, nil); err != nil {
		return nil, err
	}
	return pd, nil
}

// live checks that the domain was not freed; the context's lock is held.
func (pd *PD) live() error { return alive(pd.ctx.pds, pd, "protection domain") }

// Dealloc frees the protection domain (ibv_dealloc_pd). EBUSY: something belongs to it. EINVAL: it is freed already.
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
	ctx        *Context
	lkey, rkey uint32

	// The key table's lock guards the rest; what Rereg changes, the context's lock too.
	mem        *region
	pd         *PD
	base, size uint64
	access     Access
	buf        []byte
	windows    int // memory windows bound to it
}

// anyRemote are the rights that a peer can have.
const anyRemote = RemoteRead | RemoteWrite | RemoteAtomic | FlushGlobal | FlushPersistent

func persists(m Memory) bool {
	_, ok := m.(transport.Persistent)
	return ok
}

// RegMR registers b (ibv_reg_mr), which may be empty. Keys are random; the L_Key and the R_Key differ unless
// Options.SameKeys is set or the profile is rxe. RemoteWrite and RemoteAtomic need LocalWrite. With ZeroBased the first byte
// has address 0 in all work requests, else AddrOf(b). The region holds b until Dereg. EINVAL: rights that do not go together,
// FlushPersistent, more than MaxMR on the device. EOPNOTSUPP: other rights than those above.
func (pd *PD) RegMR(b []byte, access Access) (*MR, error) {
	mem := &goMemory{b, addrOf(b)}
	if access&ZeroBased != 0 {
		mem.base = 0
	}
	return pd.RegMemory(mem, mem.base, uint64(len(b)), access)
}

// RegMemory registers n bytes of m from its address va on. The caller answers for it that m has them, unless m is of NewMemory:
// no access goes beyond them. With ZeroBased va must be 0, which is then an address of m. It fails as RegMR does, and with
// EINVAL: no memory, more bytes than m is known to have, FlushPersistent for memory that is not transport.Persistent.
func (pd *PD) RegMemory(m Memory, va, n uint64, access Access) (*MR, error) {
	const op = "reg_mr"
	if err := checkMR(m, va, n, access); err != nil {
		return nil, &OpError{op, "", err}
	}
	mr := &MR{ctx: pd.ctx, mem: new(region), pd: pd, base: va, size: n, access: access &^ ZeroBased}
	mr.mem.open(m, nil)
	if g, ok := m.(*goMemory); ok {
		mr.buf = g.b
	}
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

// checkMR checks what is to be registered.
func checkMR(m Memory, va, n uint64, access Access) error {
	switch {
	case access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0:
		return because(EINVAL, "remote write or atomic access needs local write too")
	case access&^(LocalWrite|anyRemote|MWBind|ZeroBased) != 0:
		return because(EOPNOTSUPP, "access flags 0x%x are not supported", uint32(access))
	case m == nil:
		return because(EINVAL, "no memory")
	case access&FlushPersistent != 0 && !persists(m):
		return because(EINVAL, "this memory does not outlive the power: persistent flush needs a file (MapFile)")
	case va+n < va:
		return because(EINVAL, "length %d from 0x%x on wraps", n, va)
	case !holds(m, va, n):
		return because(EINVAL, "this memory has not %d bytes from 0x%x on", n, va)
	case access&ZeroBased != 0 && va != 0:
		return because(EINVAL, "zero-based memory begins at address 0, not at 0x%x", va)
	}
	return nil
}

// holds reports whether memory has these bytes, where that is known.
func holds(m Memory, va, n uint64) bool {
	g, ok := m.(*goMemory)
	return !ok || within(va, n, g.base, uint64(len(g.b)))
}

// ReregFlags says what Rereg changes; values as enum ibv_rereg_mr_flags. 0 is refused.
type ReregFlags int

// What can be changed.
const (
	ReregTranslation ReregFlags = 1 << 0 // memory, address, length
	ReregPD          ReregFlags = 1 << 1 // protection domain
	ReregAccess      ReregFlags = 1 << 2 // rights
)

// Rereg changes a registration in place (ibv_rereg_mr): the keys stay. What flags does not name is not looked at. Accesses
// under the old registration have ended when it returns, and those that are waiting to be sent fail. On an error nothing has
// changed: what RegMemory fails with, and EINVAL: no flag or an unknown one, a protection domain of another context, memory
// windows that are bound to the region, a region that is not registered any more.
func (m *MR) Rereg(flags ReregFlags, pd *PD, mem Memory, va, n uint64, access Access) error {
	c := m.ctx
	c.mu.Lock()
	was, err := m.rereg(flags, pd, mem, va, n, access)
	c.mu.Unlock()
	if err != nil {
		return &OpError{"rereg_mr", m.object(), err}
	}
	was.quiet()
	return nil
}

// rereg is Rereg but for the wait; the context's lock is held.
func (m *MR) rereg(flags ReregFlags, pd *PD, mem Memory, va, n uint64, access Access) (was *region, err error) {
	if _, live := m.ctx.mrs[m]; !live {
		return nil, because(EINVAL, "it is not registered")
	}
	if flags == 0 || flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 {
		return nil, because(EINVAL, "flags 0x%x: translation 1, protection domain 2, access 4 are possible", int(flags))
	}
	if flags&ReregTranslation == 0 {
		mem, va, n = m.mem.Memory, m.base, m.size
	}
	if flags&ReregAccess == 0 {
		access = m.access
	}
	if flags&ReregPD == 0 {
		pd = m.pd
	} else if pd == nil || pd.ctx != m.ctx {
		return nil, because(EINVAL, "the protection domain is of another context")
	}
	if err := cmp.Or(pd.live(), checkMR(mem, va, n, access)); err != nil {
		return nil, err
	}
	k := m.keys()
	k.lock()
	defer k.mu.Unlock()
	if m.windows > 0 {
		return nil, because(EINVAL, "%d memory windows are bound to it", m.windows)
	}
	k.unpublish(m)
	was = m.mem
	was.invalidate()
	was.Discard()
	pd.uses.Add(1)
	m.pd.uses.Add(-1)
	m.mem, m.pd, m.base, m.size, m.access = new(region), pd, va, n, access&^ZeroBased
	m.mem.open(mem, nil)
	m.buf = nil
	if g, ok := mem.(*goMemory); ok {
		m.buf = g.b
	}
	k.publish(m)
	return was, nil
}

// LKey returns the key for local work requests (SGE.LKey), good until Dereg.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the key for the peer (SendWR.RKey there), good until Dereg; for nothing in a region without remote rights.
func (m *MR) RKey() uint32 { return m.rkey }

func (m *MR) keys() *keys { return &m.ctx.dev.keys }

// Addr returns the first address of the region, for SGEs and for peers: AddrOf what was registered, 0 with ZeroBased, or va of
// RegMemory.
func (m *MR) Addr() uint64 {
	k := m.keys()
	k.mu.RLock()
	defer k.mu.RUnlock()
	return m.base
}

// Len returns the length of the region in bytes.
func (m *MR) Len() int {
	k := m.keys()
	k.mu.RLock()
	defer k.mu.RUnlock()
	return int(m.size)
}

// Bytes returns the slice that was registered, also with NewMemory; nil for Memory of the caller's own.
func (m *MR) Bytes() []byte {
	k := m.keys()
	k.mu.RLock()
	defer k.mu.RUnlock()
	return m.buf
}

// SGE returns the gather or scatter entry for n bytes at offset off. Whether the region has them is looked at when the request
// is executed: StatusLocalProtection.
func (m *MR) SGE(off, n int) SGE {
	return SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// Dereg ends the registration (ibv_dereg_mr) and waits until no access is running. After it no byte is read or written through
// the region's keys. Requests that name it and have not ended fail. EINVAL: memory windows are bound to it, or it is not
// registered any more.
func (m *MR) Dereg() error {
	c := m.ctx
	c.mu.Lock()
	_, live := c.mrs[m]
	if !live {
		c.mu.Unlock()
		return &OpError{"dereg_mr", m.object(), because(EINVAL, "it is not registered")}
	}
	if n := c.dev.keys.remove(m); n > 0 {
		c.mu.Unlock()
		return &OpError{"dereg_mr", m.object(), because(EINVAL, "%d memory windows are bound to it", n)}
	}
	delete(c.mrs, m)
	c.mu.Unlock()
	m.end()
	return nil
}

func (m *MR) object() string { return fmt.Sprintf("mr rkey 0x%08x", m.rkey) }

// drop removes the keys and waits for the references.
func (m *MR) drop() {
	m.keys().remove(m)
	m.end()
}

// end waits for the references; the keys are gone.
func (m *MR) end() {
	m.mem.Discard()
	<-m.mem.gone
	m.pd.uses.Add(-1)
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
