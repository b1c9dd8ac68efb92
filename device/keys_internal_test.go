package device

import (
	"testing"

	"github.com/softnic/softnic/transport"
)

// TestLastKey: what was looked up once is given again for the same key, domain, range and rights, and as long as nobody has changed the
// table.
func TestLastKey(t *testing.T) {
	k := newKeys()
	k.lock()
	k.mu.Unlock()
	mem := new(region)
	mem.open(NewMemory(make([]byte, 4096)), nil)
	pd, other := new(PD), new(PD)
	l := lastKey{k.version.Load(), 7, pd, mem, 0x1000, 4096, RemoteRead | RemoteWrite}
	for _, c := range []struct {
		name  string
		key   uint32
		pd    *PD
		va, n uint64
		a     Access
		want  bool
	}{
		{"the same", 7, pd, 0x1000, 4096, RemoteRead, true},
		{"part", 7, pd, 0x1FFF, 1, RemoteWrite, true},
		{"another key", 8, pd, 0x1000, 1, RemoteRead, false},
		{"another domain", 7, other, 0x1000, 1, RemoteRead, false},
		{"before", 7, pd, 0xFFF, 1, RemoteRead, false},
		{"behind", 7, pd, 0x1000, 4097, RemoteRead, false},
		{"more rights", 7, pd, 0x1000, 1, transport.RemoteAtomic, false},
	} {
		if got := l.begin(&k, c.key, c.pd, c.va, c.n, c.a); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		} else if got {
			mem.Release()
		}
	}
	k.lock()
	k.mu.Unlock()
	if l.begin(&k, 7, pd, 0x1000, 1, RemoteRead) {
		t.Error("the table has changed")
	}
	if uint32(mem.state.Load()) != oneRef {
		t.Errorf("accesses are left: %#x", mem.state.Load())
	}
	var none lastKey
	if none.begin(&k, 0, nil, 0, 0, 0) {
		t.Error("nothing was looked up")
	}
}
