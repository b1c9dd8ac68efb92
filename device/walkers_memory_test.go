package device_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// guarded is memory that tells when it is touched after its registration has ended. It has a lock because two
// requests to one place are the program's fault, and not what is looked for.
type guarded struct {
	w     *walk
	mu    sync.Mutex
	b     []byte
	va    uint64
	freed atomic.Bool
	file  mapped // nil: it does not outlive the power
}

// mapped is a file in memory (device.FileMemory, which is not everywhere).
type mapped interface {
	transport.Persistent
	Bytes() []byte
	Addr() uint64
	Close() error
}

// mapWalkFile maps n bytes of a file; nil where a device has no such memory.
var mapWalkFile func(path string, n int) (mapped, error)

// mapFile is a mapping that goes at the end of the walk.
func (w *walk) mapFile(n int) (mapped, error) {
	w.filesMu.Lock()
	defer w.filesMu.Unlock()
	if w.dir == "" {
		w.dir = w.t.TempDir()
	}
	m, err := mapWalkFile(filepath.Join(w.dir, "file"), n)
	if err == nil {
		w.files = append(w.files, m)
	}
	return m, err
}

// kept is guarded memory that can be kept.
type kept struct{ *guarded }

// Persist implements transport.Persistent.
func (k kept) Persist(va, n uint64) error {
	k.touch()
	defer k.touch()
	return k.file.Persist(va, n)
}

// memory is what is registered.
func (g *guarded) memory() device.Memory {
	if g.file != nil {
		return kept{g}
	}
	return g
}

func (g *guarded) touch() {
	if g.freed.Load() {
		g.w.errorf("memory was touched after its registration had ended")
	}
}

func (g *guarded) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (g *guarded) ReadV(e []transport.Extent) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.touch()
	for _, x := range e {
		copy(x.Buf, g.b[x.VA-g.va:][:len(x.Buf)])
	}
	runtime.Gosched() // so that others come in between
	g.touch()
	return nil
}

func (g *guarded) WriteV(e []transport.Extent) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.touch()
	for _, x := range e {
		copy(g.b[x.VA-g.va:][:len(x.Buf)], x.Buf)
	}
	runtime.Gosched()
	g.touch()
	return nil
}

func (g *guarded) Atomic64(va uint64, _ *transport.Atomic) (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.touch()
	g.b[va-g.va]++
	return 0, nil
}

func (g *guarded) Store64(va, _ uint64) error {
	_, err := g.Atomic64(va, nil)
	return err
}

const walkLen = 16384

func (k *walker) mr() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.mrs.count(c) >= 8 {
		return
	}
	c = pd.c
	m := &wMR{base: base{c: c}}
	var err error
	if k.one(4) { // plain memory is read only, so that nobody races for it but who uses it after its end
		m.access = of(k, 0, device.RemoteRead, device.RemoteRead|device.FlushGlobal, device.RemoteWrite, 1<<15)
		m.MR, err = pd.RegMR(make([]byte, walkLen), m.access)
		if !k.did(fmt.Sprintf("reg_mr %#x", m.access), c, err, wants(c, pd.alive() && m.access&^(device.RemoteRead|device.FlushGlobal) == 0, device.EOPNOTSUPP)...) {
			return
		}
	} else {
		m.mem = k.newGuarded()
		va := m.mem.va
		m.access = device.LocalWrite | device.RemoteRead | device.RemoteWrite | device.RemoteAtomic
		if k.one(3) {
			m.access = device.Access(k.r.IntN(64)) &^ transport.ZeroBased
		}
		m.access |= of(k, 0, device.MWBind, device.MWBind|device.FlushGlobal, 0, 0, device.FlushPersistent)
		good := pd.alive() && registers(m.mem, m.access)
		m.MR, err = pd.RegMemory(m.mem.memory(), va, walkLen, m.access)
		want := wants(c, good)
		if va+walkLen == 0 { // the last byte that there is: either answer will do
			want = append(want, 0, device.EINVAL)
		}
		if !k.did(fmt.Sprintf("reg_mr %#x at %#x", m.access, va), c, err, want...) {
			return
		}
	}
	pd.use(1)
	m.dom.Store(pd)
	m.bindable.Store(m.access&device.MWBind != 0)
	k.mrs.add(m)
}

// newGuarded is memory at some address, some of it in a file.
func (k *walker) newGuarded() *guarded {
	if mapWalkFile != nil && k.one(6) {
		if f, err := k.mapFile(walkLen); err != nil {
			k.errorf("mapping a file: %v", err)
		} else {
			return &guarded{w: k.walk, b: f.Bytes(), va: f.Addr(), file: f}
		}
	}
	return &guarded{w: k.walk, b: make([]byte, walkLen), va: of[uint64](k, 0, 4096, 1<<40, ^uint64(0)-walkLen+1, ^uint64(0)-100)}
}

// registers reports whether memory can be registered with these rights.
func registers(g *guarded, a device.Access) bool {
	return g.va+walkLen >= g.va && (a&device.LocalWrite != 0 || a&(device.RemoteWrite|device.RemoteAtomic) == 0) && (a&device.FlushPersistent == 0 || g.file != nil)
}

// rereg changes a registration: its memory, its domain, its rights, or what cannot be.
func (k *walker) rereg() {
	m, ok := k.mrs.pick(k, nil, nil)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	flags := device.ReregFlags(k.r.IntN(8))
	if k.one(20) {
		flags = of[device.ReregFlags](k, 8, -1, 15)
	}
	was, pd := m.mem, m.dom.Load()
	bytes := m.Bytes()
	good := m.alive() && flags > 0 && flags < 8
	to, other := pd, (*device.PD)(nil)
	if p, ok := k.pds.pick(k, m.c, nil); ok && flags&device.ReregPD != 0 {
		to, other = p, p.PD
		good = good && p.alive() && p.c == m.c
	} else {
		good = good && flags&device.ReregPD == 0
	}
	a := m.access
	if flags&device.ReregAccess != 0 {
		a = of(k, 0, device.RemoteRead, device.LocalWrite|device.RemoteRead|device.RemoteWrite|device.RemoteAtomic, device.LocalWrite|device.MWBind, device.RemoteWrite, device.FlushPersistent)
	}
	mem, now := device.Memory(nil), was
	var va uint64
	if flags&device.ReregTranslation != 0 {
		now = k.newGuarded()
		mem, va = now.memory(), now.va
	}
	switch {
	case now != nil:
		good = good && registers(now, a)
	case a&^(device.RemoteRead|device.FlushGlobal) != 0: // plain memory stays read only
		return
	}
	want := wants(m.c, good)
	if m.bindable.Load() || now != nil && now.va+walkLen == 0 {
		want = append(want, 0, device.EINVAL) // a window may be bound; the last byte that there is
	}
	before := m.Addr()
	if !k.did(fmt.Sprintf("rereg_mr flags %d, access %#x", int(flags), a), m.c, m.Rereg(flags, other, mem, va, walkLen, a), want...) {
		if m.Addr() != before || m.Len() != walkLen {
			k.errorf("a refused rereg_mr has changed %#x to %#x, %d bytes", before, m.Addr(), m.Len())
		}
		return
	}
	if to != pd {
		to.use(1)
		pd.use(-1)
	}
	m.dom.Store(to)
	m.mem, m.access = now, a
	m.bindable.Store(a&device.MWBind != 0)
	if flags&device.ReregTranslation != 0 {
		if was != nil {
			was.freed.Store(true)
		} else {
			clear(bytes) // the race detector sees who still reads
		}
	}
}

func (k *walker) endMR() {
	m, ok := k.mrs.pick(k, nil, nil)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	want := ends(&m.base)
	if m.bindable.Load() {
		want = append(want, device.EINVAL) // a window may be bound
	}
	if !k.did("dereg_mr", m.c, m.Dereg(), want...) {
		return
	}
	if m.mem != nil {
		m.mem.freed.Store(true)
	} else {
		clear(m.Bytes()) // the race detector sees who still reads
	}
	k.ended(&m.base)
	m.dom.Load().use(-1)
}

func (k *walker) fast() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.fasts.count(c) >= 4 {
		return
	}
	c = pd.c
	n := of[uint64](k, walkLen, walkLen, 100, 0)
	m, err := pd.AllocMR(n)
	if !k.did(fmt.Sprintf("alloc_mr %d", n), c, err, wants(c, pd.alive() && n > 0)...) {
		return
	}
	pd.use(1)
	k.fasts.add(&wFast{FastMR: m, base: base{c: c}, pd: pd, mem: &guarded{w: k.walk, b: make([]byte, walkLen), va: 1 << 20}})
}

func (k *walker) endFast() {
	m, ok := k.fasts.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&m.base)
	if !k.did("dereg_mr fast", m.c, m.Dereg(), want...) {
		return
	}
	m.mem.freed.Store(true)
	k.ended(&m.base)
	m.pd.use(-1)
}

func (k *walker) mw() {
	c := k.in()
	pd, ok := k.pds.pick(k, c, nil)
	if !ok || k.mws.count(c) >= 6 {
		return
	}
	c = pd.c
	typ := of(k, device.MW1, device.MW2A, device.MW2B, device.MWType(0), device.MWType(4))
	m, err := pd.AllocMW(typ)
	if !k.did(fmt.Sprintf("alloc_mw %d", typ), c, err, wants(c, pd.alive() && typ >= device.MW1 && typ <= device.MW2A)...) {
		return
	}
	pd.use(1)
	k.mws.add(&wMW{MW: m, base: base{c: c}, pd: pd})
}

func (k *walker) endMW() {
	m, ok := k.mws.pick(k, nil, nil)
	if !ok {
		return
	}
	want := ends(&m.base)
	if k.did("dealloc_mw", m.c, m.Dealloc(), want...) {
		k.ended(&m.base)
		m.pd.use(-1)
	}
}
