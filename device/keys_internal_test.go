package device

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// TestNames: a key still names a region as long as nobody has changed the table.
func TestNames(t *testing.T) {
	q := &QP{dev: &Device{keys: newKeys()}, pd: new(PD)}
	k := &q.dev.keys
	var mrs [2]*MR
	for i := range mrs {
		n := uint32(7 + i)
		mrs[i] = &MR{mem: new(region), pd: q.pd, base: 0x1000, size: 64, lkey: n, rkey: n}
		mrs[i].mem.open(&goMemory{base: 0x1000, b: make([]byte, 64)}, nil)
		k.lock()
		k.publish(mrs[i])
		k.mu.Unlock()
	}
	h := (*host)(q)
	mem, _ := h.Local(nil, 7, 0x1000, 64, 0)
	if !h.Names(7, 0x1010, 48, mem) || h.Names(8, 0x1010, 48, mem) || h.Names(7, 0x1010, 49, mem) || h.Names(7, 0xFFF, 1, mem) || h.Names(7, 0x1010, 1, mrs[1].mem) {
		t.Error("what was looked up is not what is known")
	}
	k.remove(mrs[1])
	if h.Names(7, 0x1010, 1, mem) {
		t.Error("the table has changed")
	}
	if state := mrs[0].mem.state.Load(); state != oneRef+oneRef+oneRun {
		t.Errorf("accesses: %#x", state)
	}
}

// TestLastKeyGone: a region that goes between the look at the version and the access is not begun: its last reference cannot go twice, of
// a window not that to the region below either. And who remembers it does not keep its memory.
func TestLastKeyGone(t *testing.T) {
	k := newKeys()
	k.lock()
	k.mu.Unlock()
	below, mem := new(region), new(region)
	below.open(NewMemory(make([]byte, 4096)), nil)
	mem.open(NewMemory(make([]byte, 4096)), below)
	pd := new(PD)
	l := lastKey{k.version.Load(), 7, pd, mem, 0x1000, 4096, RemoteRead}
	mem.Discard() // the version that is counted up is not seen: l.begin is past that look
	if l.begin(&k, 7, pd, 0x1000, 1, RemoteRead) {
		t.Error("an access began")
		l.mem.Release()
	}
	if mem.state.Load() != 0 || below.state.Load() != oneRef {
		t.Errorf("references: %#x, of the region below %#x", mem.state.Load(), below.state.Load())
	}
	if mem.Memory != nil || mem.of != nil {
		t.Error("the memory is kept")
	}
}

// TestLastKeyRace: regions come and go while queue pairs use them.
func TestLastKeyRace(t *testing.T) {
	k := newKeys()
	pd := new(PD)
	var now atomic.Pointer[MR]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			q := &QP{dev: &Device{}, pd: pd}
			for {
				select {
				case <-stop:
					return
				default:
				}
				m := now.Load()
				if m == nil {
					continue
				}
				for range 20 {
					if mem, _ := k.acquireRemote(q, m.rkey, m.base, 8, RemoteRead); mem != nil {
						if _, ok := mem.Slices(nil, m.base, 8); !ok {
							t.Error("no memory")
						}
						mem.Release()
					}
				}
			}
		})
	}
	for i, end := uint32(0), time.Now().Add(200*time.Millisecond); time.Now().Before(end); i++ {
		m := &MR{mem: new(region), pd: pd, base: 0x1000, size: 64, access: RemoteRead, lkey: i + 1, rkey: i + 1}
		m.mem.open(&goMemory{base: 0x1000, b: make([]byte, 64)}, nil)
		k.lock()
		k.publish(m)
		k.mu.Unlock()
		now.Store(m)
		runtime.Gosched()
		k.remove(m)
		m.mem.Discard()
		<-m.mem.gone
	}
	close(stop)
	wg.Wait()
}
