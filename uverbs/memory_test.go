//go:build linux

package uverbs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

const page = 4096

func TestRegMR(t *testing.T) {
	p := newDaemon(t).open(how{})
	pd := p.pd()
	m := p.mmap(4*page, unix.PROT_READ|unix.PROT_WRITE)
	defer unix.Munmap(m)
	gone(t, m[2*page:3*page])
	base := addressOf(m)
	const lw, rw, rr, ra = 1, 2, 4, 8
	for _, c := range []struct {
		name          string
		start, length uint64
		iova          uint64
		access        uint32
		want          syscall.Errno
	}{
		{"one byte", base, 1, base, lw, 0},
		{"to the end of the mapping", base, 2 * page, base, lw | rw | rr, 0},
		{"not to the beginning of a page", base + 7, 2*page - 7, base + 7, lw, 0},
		{"read only", base, page, base, 0, 0},
		{"remote read only", base, page, base, rr, 0},
		{"atomics", base, page, base, lw | ra, 0},
		{"other address", base, page, 0x1000, lw, 0},
		{"address 0", base, page, 0, lw, 0},
		{"address at the top", base, page, ^uint64(0) - 2*page + 1, lw, 0},
		{"windows, huge pages, relaxed ordering", base, page, base, lw | 1<<4 | 1<<7 | 1<<20, 0},
		{"nothing", base, 0, base, lw, eINVAL},
		{"one more than there is", base, 2*page + 1, base, lw, eFAULT},
		{"begins in a hole", base + 2*page, page, base + 2*page, lw, eFAULT},
		{"2^63", base, 1 << 63, base, lw, eFAULT},
		{"2^64 - 1", base, ^uint64(0), base, lw, eINVAL},
		{"wraps", ^uint64(0) - page + 1, 2 * page, 0, lw, eINVAL},
		{"wraps to 0", ^uint64(0) - page + 1, page, 0, lw, eINVAL},
		{"the address wraps", base, page, ^uint64(0) - page + 2*1, lw, eINVAL},
		{"top of the address space", 1<<64 - 2*page, page, 0, lw, eFAULT},
		{"address 0 of the program", 0, page, 0, lw, eFAULT},
		{"other offset in the page", base, 16, base + 8, lw, eINVAL},
		{"remote write without local", base, page, base, rw, eINVAL},
		{"atomics without local write", base, page, base, ra | rr, eINVAL},
		{"on demand", base, page, base, lw | 1<<6, eNOTSUP},
		{"zero based", base, page, base, lw | 1<<5, eNOTSUP},
		{"a flag without a meaning", base, page, base, lw | 1<<12, eINVAL},
		{"another", base, page, base, lw | 1<<31, eINVAL},
	} {
		r, err := p.write(regCommand(pd, c.start, c.length, c.iova, c.access))
		if err != nil || r.errno != c.want {
			t.Errorf("%s: %v %v %s, want %v", c.name, r.errno, err, r.hint, c.want)
		}
		if r.errno == 0 {
			p.do(handleCommand(cmdDeregMR, le.Uint32(r.b)))
		}
	}
	p.do(handleCommand(cmdDeallocPD, pd))
}

// gone takes away what is mapped at b, for good: a file without content stands there, so that nobody else gets the
// place. What may not be touched would not do: /proc/self/mem reads it all the same.
func gone(tb testing.TB, b []byte) {
	tb.Helper()
	fd, err := unix.MemfdCreate("empty", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(fd)
	if _, _, e := unix.Syscall6(unix.SYS_MMAP, uintptr(addressOf(b)), uintptr(len(b)), unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED, uintptr(fd), 0); e != 0 {
		tb.Fatal(e)
	}
}

// A program that cannot be reached: the registration says so to its user.
func TestUnreachable(t *testing.T) {
	d := newDaemon(t)
	null, err := os.OpenFile("/dev/zero", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fake, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	// One of /proc, but no memory: a daemon would write it with its own rights.
	group, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	for name, h := range map[string]how{"another of /proc": {memFD: int(group.Fd())}, "no file": {noMem: true}, "another value": {wrong: true}, "/dev/zero": {memFD: int(null.Fd())}, "a file": {memFD: int(fake.Fd())}} {
		p := d.open(h)
		r, err := p.write(regCommand(p.pd(), addressOf(p.ram), 8, addressOf(p.ram), 1))
		if err != nil || r.errno != ePERM || len(r.hint) == 0 || r.hint[0] != '!' {
			t.Errorf("%s: %v %v %q", name, r.errno, err, r.hint)
		}
	}
	// A file of the program's own making is not even asked.
	p := d.open(how{memFD: int(fake.Fd())})
	d.open(how{memFD: int(group.Fd())}).pd()
	for _, c := range d.conns() {
		if c.mem.memFD >= 0 && !isMemory(c.mem.memFD) {
			t.Error("a file that is no memory was kept")
		}
	}
	p.pd()
}

// Registered memory goes away: the work that needs it fails with its own status, and the connection next to it
// works on.
func TestUnmapped(t *testing.T) {
	d := newDaemon(t)
	other, peer := pair(d, 1<<14)
	for _, c := range []struct {
		name   string
		gone   string // whose buffer
		op     device.WROp
		status device.Status // of the requester
		recv   device.Status // of the receiver; StatusGeneral: no completion
	}{
		{"SEND from it", "a", device.OpSend, device.StatusLocalProtection, device.StatusFlush},
		{"WRITE from it", "a", device.OpWrite, device.StatusLocalProtection, device.StatusFlush},
		{"READ into it", "a", device.OpRead, device.StatusLocalProtection, device.StatusFlush},
		{"READ of it", "b", device.OpRead, device.StatusRemoteAccess, device.StatusFlush},
		{"WRITE into it", "b", device.OpWrite, device.StatusRemoteAccess, device.StatusFlush},
		{"receive into it", "b", device.OpSend, device.StatusRemoteOp, device.StatusLocalProtection},
	} {
		for _, n := range []int{100, 3 * page} {
			a, b := pair(d, page)
			ma, mb := a.mmap(4*page, unix.PROT_READ|unix.PROT_WRITE), b.mmap(4*page, unix.PROT_READ|unix.PROT_WRITE)
			ra, rb := a.mr(a.dom, ma, allAccess), b.mr(b.dom, mb, allAccess)
			if c.gone == "a" {
				gone(t, ma)
			} else {
				gone(t, mb)
			}
			b.q.recv(7, sge(mb, rb))
			a.q.post(request_{id: 5, op: c.op, sge: sges(device.SGE{Addr: addressOf(ma), Length: uint32(n), LKey: ra.lkey}), remote: addressOf(mb), rkey: rb.rkey})
			if w := a.c.wait(); w.id != 5 || w.status != c.status {
				t.Errorf("%s, %d bytes: %v, want %v", c.name, n, w.status, c.status)
			}
			if c.recv != device.StatusFlush {
				if w := b.c.wait(); w.id != 7 || w.status != c.recv {
					t.Errorf("%s, %d bytes: receiver %v, want %v", c.name, n, w.status, c.recv)
				}
			}
			exchange(t, other, peer)
			// The registration can still be ended, once nothing uses it.
			a.q.destroy()
			b.q.destroy()
			a.do(handleCommand(cmdDeregMR, ra.handle))
			b.do(handleCommand(cmdDeregMR, rb.handle))
			unix.Munmap(ma)
			unix.Munmap(mb)
			a.close()
			b.close()
		}
	}
}

// A registration at another address than the program's, and work at its very ends.
func TestOtherAddress(t *testing.T) {
	d := newDaemon(t)
	a, b := pair(d, 2*page)
	m := b.mmap(2*page, unix.PROT_READ|unix.PROT_WRITE)
	defer unix.Munmap(m)
	for i := range a.buf {
		a.buf[i] = byte(i * 3)
	}
	for _, iova := range []uint64{0, 0x1000, 1 << 63, ^uint64(0) - 4*page + 1} {
		clear(m)
		r := b.mrAt(b.dom, addressOf(m), 2*page, iova, allAccess)
		a.q.post(request_{id: 1, op: device.OpWrite, sge: sges(sge(a.buf[:page], a.m)), remote: iova + page, rkey: r.rkey})
		a.c.expect(1, device.StatusSuccess)
		if !bytes.Equal(m[page:], a.buf[:page]) || !bytes.Equal(m[:page], make([]byte, page)) {
			t.Fatalf("0x%x: other bytes were written", iova)
		}
		a.q.post(request_{id: 2, op: device.OpRead, sge: sges(sge(a.buf[page:], a.m)), remote: iova + page, rkey: r.rkey})
		a.c.expect(2, device.StatusSuccess)
		if !bytes.Equal(a.buf[:page], a.buf[page:]) {
			t.Fatalf("0x%x: other bytes were read", iova)
		}
		b.do(handleCommand(cmdDeregMR, r.handle))
	}
	r := b.mrAt(b.dom, addressOf(m), 2*page, 1<<40, allAccess)
	a.q.post(request_{id: 3, op: device.OpWrite, sge: sges(sge(a.buf[:page], a.m)), remote: 1<<40 + page + 1, rkey: r.rkey}) // one byte too far
	a.c.expect(3, device.StatusRemoteAccess)
}

// Datagrams, with an address handle by its number.
func TestDatagrams(t *testing.T) {
	da, db := twoDaemons(t)
	a, b := newSide(da.open(how{}), device.UD, page), newSide(db.open(how{}), device.UD, page)
	a.q.activate(0x11)
	b.q.activate(0x22)
	gid, _ := db.dev.QueryGID(1, 1)
	h, num := a.ah(a.dom, gid)
	other, otherNum := a.ah(a.pd(), gid) // of another protection domain
	copy(a.buf, "a datagram")
	b.q.recv(1, sge(b.buf, b.m))
	a.q.post(request_{id: 2, op: device.OpSendImm, imm: 5, sge: sges(sge(a.buf[:10], a.m)), ud: &[3]uint32{b.q.num, 0x22, num}})
	a.c.expect(2, device.StatusSuccess)
	w := b.c.expect(1, device.StatusSuccess)
	if w.src != a.q.num || w.len != 50 || w.flags&uint32(device.WCGRH) == 0 || string(b.buf[40:50]) != "a datagram" {
		t.Fatalf("%+v %q", w, b.buf[40:50])
	}
	for _, ah := range []uint32{0, 99, otherNum, a.m.handle} {
		a.q.post(request_{id: 3, op: device.OpSend, sge: sges(sge(a.buf[:10], a.m)), ud: &[3]uint32{b.q.num, 0x22, ah}})
		a.c.expect(3, device.StatusLocalQPOp)
		a.q.modify(a.q.modifyStruct(device.StateRTS, device.AttrState)) // out of SQE
	}
	// Handles come and go under traffic.
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 200 {
			for b.q.rq.count() < 10 {
				b.q.recv(1, sge(b.buf, b.m))
			}
			for {
				if _, ok := b.c.q.pop(); !ok {
					break
				}
			}
		}
	})
	for range 200 {
		_, n := a.ah(a.dom, gid)
		a.q.post(request_{id: 4, op: device.OpSend, sge: sges(sge(a.buf[:10], a.m)), ud: &[3]uint32{b.q.num, 0x22, n}})
		a.do(handleCommand(cmdDestroyAH, n))
		a.c.wait()
		if a.page[stateOff+a.q.handle] != stateOpen {
			t.Fatal("shut")
		}
		a.q.modify(a.q.modifyStruct(device.StateRTS, device.AttrState))
	}
	wg.Wait()
	a.do(handleCommand(cmdDestroyAH, h))
	a.do(handleCommand(cmdDestroyAH, other))
}

// What is not in the memory: the extents of one call are all transferred, or it fails.
func TestProcess(t *testing.T) {
	mem, err := unix.Open("/proc/self/mem", unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mem)
	m, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	rnd := seeded(t)
	file := &process{memFD: mem}
	vm := &process{memFD: -1, pid: os.Getpid()}
	for name, f := range map[string]func(e []transport.Extent, write bool) error{"file": file.fileReadWrite, "vm": vm.vmReadWrite} {
		for _, n := range []int{0, 1, 2, 1023, 1024, 1025, 3000} {
			var e []transport.Extent
			at := addressOf(m)
			want := bytes.Clone(m)
			for i := range n {
				b := make([]byte, rnd.IntN(20))
				for k := range b {
					b[k] = byte(rnd.Uint32())
				}
				if i%3 == 0 {
					at += uint64(rnd.IntN(100))
				}
				e = append(e, transport.Extent{VA: at, Buf: b})
				copy(want[at-addressOf(m):], b)
				at += uint64(len(b))
			}
			if err := f(e, true); err != nil || !bytes.Equal(m, want) {
				t.Fatalf("%s: write of %d: %v", name, n, err)
			}
			got := make([]transport.Extent, n)
			for i := range e {
				got[i] = transport.Extent{VA: e[i].VA, Buf: make([]byte, len(e[i].Buf))}
			}
			if err := f(got, false); err != nil {
				t.Fatalf("%s: read of %d: %v", name, n, err)
			}
			for i := range e {
				if !bytes.Equal(e[i].Buf, got[i].Buf) {
					t.Fatalf("%s: extent %d of %d", name, i, n)
				}
			}
			e = append(e, transport.Extent{VA: 8, Buf: make([]byte, 8)})
			if f(e, true) == nil || f(e, false) == nil {
				t.Fatalf("%s: nothing is at 8", name)
			}
		}
		for _, va := range []uint64{1 << 63, ^uint64(0), ^uint64(0) - 7, 1<<63 - 4} {
			if f([]transport.Extent{{VA: va, Buf: make([]byte, 8)}}, false) == nil {
				t.Errorf("%s: read at 0x%x", name, va)
			}
		}
	}
	e := []transport.Extent{{VA: 1 << 63, Buf: make([]byte, 8)}}
	if err := (region{file, addressOf(m) - 1<<63}).WriteV(e); err != nil || e[0].VA != 1<<63 {
		t.Errorf("%v, the address is 0x%x", err, e[0].VA)
	}
	// Words are updated one at a time.
	add := func(n uint64) func(uint64) (uint64, bool) {
		return func(old uint64) (uint64, bool) { return old + n, true }
	}
	r := region{file, 0}
	va := addressOf(m)
	le.PutUint64(m, 100)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if _, err := r.update(va, add(1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if old, err := r.update(va, func(uint64) (uint64, bool) { return 1, false }); old != 2100 || err != nil || le.Uint64(m) != 2100 {
		t.Error(old, err)
	}
	if err := r.Store64(va, 7); err != nil || le.Uint64(m) != 7 {
		t.Error(err)
	}
	for _, bad := range []uint64{va + 1, va + 4, 8} {
		if _, err := r.update(bad, add(1)); err == nil {
			t.Errorf("atomic at 0x%x", bad)
		}
	}
}

// The program of a process of its own, for what needs another process: the record lock.
const childEnv = "SOFTNIC_UVERBS_CHILD"

// lock takes the record lock of hello, as the library does.
func (p *program) lock() {
	p.tb.Helper()
	if err := unix.FcntlFlock(uintptr(p.fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 1}); err != nil {
		p.tb.Fatal(err)
	}
}

// TestChild is no test: it is what the processes of other tests run.
func TestChild(t *testing.T) {
	what, path := os.Getenv(childEnv), os.Getenv(childEnv+"_SOCKET")
	if what == "" {
		t.Skip("run by other tests")
	}
	d := &daemon{tb: t, path: path}
	p := d.open(how{noMem: what != "mem"})
	if what != "no lock" {
		p.lock()
	}
	pd := p.pd()
	m := p.mmap(page, unix.PROT_READ|unix.PROT_WRITE)
	le.PutUint64(m, 0xFEED)
	r, err := p.write(regCommand(pd, addressOf(m), page, addressOf(m), allAccess))
	if err != nil {
		t.Fatal(err)
	}
	out := os.NewFile(3, "")
	out.Write([]byte{byte(r.errno)})
	b := make([]byte, 1)
	os.NewFile(4, "").Read(b) // until we are told to go on
	if what == "exec" || what == "mem" {
		// The descriptors stay open, and with them the lock: this is what a hostile program does.
		unix.FcntlInt(uintptr(p.fd), unix.F_SETFD, 0)
		raw, _ := p.sock.SyscallConn()
		raw.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETFD, 0) })
		unix.FcntlInt(3, unix.F_SETFD, 0)
		t.Fatal(syscall.Exec("/bin/sh", []string{"sh", "-c", "echo >&3; exec sleep 60"}, nil))
	}
}

// process runs TestChild; proceed lets it go on.
func child(t *testing.T, d *daemon, what string) (errno syscall.Errno, proceed func(), ready func()) {
	t.Helper()
	r1, w1, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(os.Environ(), childEnv+"="+what, childEnv+"_SOCKET="+d.path)
	cmd.ExtraFiles = []*os.File{w1, r2}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w1.Close()
	r2.Close()
	t.Cleanup(func() {
		w2.Close()
		r1.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	r1.SetReadDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, 1)
	if _, err := r1.Read(b); err != nil {
		t.Fatal("the child does not answer: ", err)
	}
	return syscall.Errno(b[0]), func() { w2.Write([]byte{1}) }, func() {
		if _, err := r1.Read(b); err != nil {
			t.Fatal("the child does not answer: ", err)
		}
	}
}

// reads reports whether the daemon reaches the child's memory.
func (c *conn) reads() bool {
	var b [8]byte
	return c.mem.access([]transport.Extent{{VA: c.helloAddr, Buf: b[:]}}, false) == nil && le.Uint64(b[:]) == c.helloValue
}

// process_vm_* is used while the process holds the lock, and by a daemon that may trace its own user's processes only.
func TestRecordLock(t *testing.T) {
	was := tracesAll
	defer func() { tracesAll = was }()
	for _, c := range []struct {
		what string
		all  bool
		want syscall.Errno
		vm   bool
	}{
		{"lock", false, 0, true},
		{"lock", true, ePERM, false},
		{"no lock", false, ePERM, false},
		{"mem", true, 0, false},
		{"mem", false, 0, true},
	} {
		tracesAll = func() bool { return c.all }
		d := newDaemon(t)
		e, _, _ := child(t, d, c.what)
		x := d.conns()[0]
		if e != c.want || x.mem.vm.Load() != c.vm || c.want == 0 && !x.reads() {
			t.Errorf("%s, traces all %v: %v, vm %v", c.what, c.all, e, x.mem.vm.Load())
		}
		d.close()
	}
}

// A program starts another one and keeps the lock: a daemon that may trace everybody must not reach what runs now,
// which may be set-uid.
func TestExecKeepsLock(t *testing.T) {
	was := tracesAll
	defer func() { tracesAll = was }()
	tracesAll = func() bool { return true }
	d := newDaemon(t)
	e, proceed, ready := child(t, d, "mem")
	x := d.conns()[0]
	if e != 0 || !x.reads() {
		t.Fatal(e)
	}
	proceed()
	ready()
	if len(d.conns()) != 1 || !x.mem.holdsLock() {
		t.Fatal("the lock has gone: there is nothing to test")
	}
	var b [8]byte
	if x.mem.access([]transport.Extent{{VA: x.helloAddr, Buf: b[:]}}, false) == nil {
		t.Error("the memory of another program was read")
	}
	var maps []byte
	for end := time.Now().Add(10 * time.Second); len(maps) == 0 && time.Now().Before(end); runtime.Gosched() {
		maps, _ = os.ReadFile(fmt.Sprintf("/proc/%d/maps", x.pid)) // empty while the exec is under way
	}
	var start uint64
	for i := 0; i < len(maps) && maps[i] != '-'; i++ {
		start = start<<4 | uint64(bytes.IndexByte([]byte("0123456789abcdef"), maps[i]))
	}
	if start == 0 || x.mem.access([]transport.Extent{{VA: start, Buf: b[:]}}, false) == nil {
		t.Errorf("0x%x of another program was read", start)
	}
}
