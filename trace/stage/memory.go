package stage

import (
	"encoding/binary"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// Memory is what stands behind a key: bytes at any addresses, 0 until they are written. Only pages that were
// written take room, so that a region may be as large as a recording says.
type Memory struct {
	pages map[uint64]*[pageLen]byte
}

const pageLen = 4096

var (
	_ device.Memory        = (*Memory)(nil)
	_ transport.Persistent = (*Memory)(nil)
)

// NewMemory returns memory that is 0 everywhere.
func NewMemory() *Memory { return &Memory{map[uint64]*[pageLen]byte{}} }

// Read fills b with what is at va.
func (m *Memory) Read(va uint64, b []byte) {
	for len(b) > 0 {
		k := min(len(b), pageLen-int(va%pageLen))
		if p := m.pages[va/pageLen]; p != nil {
			copy(b[:k], p[va%pageLen:])
		} else {
			clear(b[:k])
		}
		b, va = b[k:], va+uint64(k)
	}
}

// Write stores b at va.
func (m *Memory) Write(va uint64, b []byte) {
	for len(b) > 0 {
		p := m.pages[va/pageLen]
		if p == nil {
			p = new([pageLen]byte)
			m.pages[va/pageLen] = p
		}
		k := copy(p[va%pageLen:], b)
		b, va = b[k:], va+uint64(k)
	}
}

// Slices implements device.Memory: nothing can be touched directly.
func (m *Memory) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

// ReadV implements device.Memory.
func (m *Memory) ReadV(e []transport.Extent) error {
	for i := range e {
		m.Read(e[i].VA, e[i].Buf)
	}
	return nil
}

// WriteV implements device.Memory.
func (m *Memory) WriteV(e []transport.Extent) error {
	for i := range e {
		m.Write(e[i].VA, e[i].Buf)
	}
	return nil
}

// Atomic64 implements device.Memory.
func (m *Memory) Atomic64(va uint64, a *transport.Atomic) (uint64, error) {
	if va&7 != 0 {
		return 0, device.EINVAL
	}
	var b [8]byte
	m.Read(va, b[:])
	old := binary.NativeEndian.Uint64(b[:])
	if v, store := a.Apply(old); store {
		_ = m.Store64(va, v)
	}
	return old, nil
}

// Store64 implements device.Memory.
func (m *Memory) Store64(va, v uint64) error {
	if va&7 != 0 {
		return device.EINVAL
	}
	m.Write(va, binary.NativeEndian.AppendUint64(nil, v))
	return nil
}

// Persist implements transport.Persistent: what is here outlives a power that cannot fail.
func (m *Memory) Persist(_, _ uint64) error { return nil }
