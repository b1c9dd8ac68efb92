package device

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
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
	mem        region
	pd         *PD
	lkey, rkey uint32
	base, size uint64
	access     Access
	buf        []byte
	windows    int // memory windows bound to it; the key table's lock guards it
}

// anyRemote are the rights that a peer can have.
const anyRemote = RemoteRead | RemoteWrite | RemoteAtomic | FlushGlobal | FlushPersistent

func persists(m Memory) bool {
	_, ok := m.(transport.Persistent)
	return ok
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

// RegMemory registers n bytes of m from its address va on. The caller answers for it that m has them: no access
// goes beyond them.
func (pd *PD) RegMemory(m Memory, va, n uint64, access Access) (*MR, error) {
	const op = "reg_mr"
	switch {
	case access&(RemoteWrite|RemoteAtomic) != 0 && access&LocalWrite == 0:
		return nil, &OpError{op, "", because(EINVAL, "remote write or atomic access needs local write too")}
	case access&^(LocalWrite|anyRemote|MWBind) != 0:
		return nil, &OpError{op, "", because(EOPNOTSUPP, "access flags 0x%x are not supported", uint32(access))}
	case access&FlushPersistent != 0 && !persists(m):
		return nil, &OpError{op, "", because(EINVAL, "this memory does not outlive the power: persistent flush needs a file (MapFile)")}
	case m == nil:
		return nil, &OpError{op, "", because(EINVAL, "no memory")}
	case va+n < va:
		return nil, &OpError{op, "", because(EINVAL, "length %d from 0x%x on wraps", n, va)}
	}
	mr := &MR{pd: pd, base: va, size: n, access: access}
	mr.mem.open(m, nil)
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
	m.pd.ctx.dev.keys.remove(m)
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
