package device

import (
	"sync/atomic"
	"unsafe"

	"github.com/softnic/softnic/transport"
)

// shifted is Memory whose address by lies at 0, for windows that begin there.
type shifted struct {
	Memory
	by uint64
}

// Slices implements Memory.
func (m shifted) Slices(dst [][]byte, va uint64, n int) ([][]byte, bool) {
	return m.Memory.Slices(dst, va+m.by, n)
}

func (m shifted) shift(e []transport.Extent) []transport.Extent {
	for i := range e {
		e[i].VA += m.by
	}
	return e
}

// ReadV implements Memory.
func (m shifted) ReadV(e []transport.Extent) error { return m.Memory.ReadV(m.shift(e)) }

// WriteV implements Memory.
func (m shifted) WriteV(e []transport.Extent) error { return m.Memory.WriteV(m.shift(e)) }

// Atomic64 implements Memory.
func (m shifted) Atomic64(va uint64, a *transport.Atomic) (uint64, error) {
	return m.Memory.Atomic64(va+m.by, a)
}

// Store64 implements Memory.
func (m shifted) Store64(va, v uint64) error { return m.Memory.Store64(va+m.by, v) }

// Persist implements transport.Persistent; a window of memory that has it not cannot ask for it.
func (m shifted) Persist(va, n uint64) error {
	return m.Memory.(transport.Persistent).Persist(va+m.by, n)
}

// goMemory is a Go slice as Memory. Addresses are the real ones of its bytes:
// the slice keeps them from moving and from being collected.
type goMemory struct {
	b    []byte
	base uint64
}

// NewMemory returns b as Memory, for PD.RegMemory, MR.Rereg and transport.RegWR. Its first address is AddrOf(b). Atomics on it
// are atomic with sync/atomic on the same 8 aligned bytes.
func NewMemory(b []byte) Memory { return &goMemory{b, addrOf(b)} }

// AddrOf returns the address, in bytes, that b[0] has in NewMemory(b), and in a region over b that is not ZeroBased (MR.Addr);
// 0 for nil. It stays so while a region or Memory holds b: Go does not move what these hold.
func AddrOf(b []byte) uint64 { return addrOf(b) }

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func (m *goMemory) at(va uint64, n int) []byte {
	o := va - m.base
	return m.b[o : o+uint64(n) : o+uint64(n)]
}

// Slices implements Memory.
func (m *goMemory) Slices(dst [][]byte, va uint64, n int) ([][]byte, bool) {
	return append(dst, m.at(va, n)), true
}

// ReadV implements Memory.
func (m *goMemory) ReadV(e []transport.Extent) error {
	for i := range e {
		copy(e[i].Buf, m.at(e[i].VA, len(e[i].Buf)))
	}
	return nil
}

// WriteV implements Memory.
func (m *goMemory) WriteV(e []transport.Extent) error {
	for i := range e {
		copy(m.at(e[i].VA, len(e[i].Buf)), e[i].Buf)
	}
	return nil
}

func (m *goMemory) word(va uint64) (*uint64, error) {
	if va&7 != 0 {
		return nil, EINVAL
	}
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(m.at(va, 8)))), nil
}

// Atomic64 implements Memory.
func (m *goMemory) Atomic64(va uint64, a *transport.Atomic) (uint64, error) {
	p, err := m.word(va)
	if err != nil {
		return 0, err
	}
	for {
		old := atomic.LoadUint64(p)
		v, store := a.Apply(old)
		if !store || atomic.CompareAndSwapUint64(p, old, v) {
			return old, nil
		}
	}
}

// Store64 implements Memory.
func (m *goMemory) Store64(va, v uint64) error {
	p, err := m.word(va)
	if err != nil {
		return err
	}
	atomic.StoreUint64(p, v)
	return nil
}
