//go:build linux

package uverbs

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
)

// use is what the process has: descriptors, mappings of memfds, goroutines.
type use struct{ files, maps, goroutines int }

func inUse(tb testing.TB) use {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		tb.Fatal(err)
	}
	return use{openFiles(tb), bytes.Count(b, []byte("softnic-uverbs")), runtime.NumGoroutine()}
}

// back waits until nothing more is in use than before.
func back(tb testing.TB, before use) {
	tb.Helper()
	var now use
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		now = inUse(tb)
		if now.files <= before.files && now.maps <= before.maps && now.goroutines <= before.goroutines {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%+v are in use, there were %+v", now, before)
		}
	}
}

// Programs end at any moment, with traffic both ways and commands on the way: all that they had is freed, and
// nothing else notices.
func TestEndAnyMoment(t *testing.T) {
	rnd := seeded(t)
	d := newDaemon(t)
	keepA, keepB := pair(d, page)
	before := inUse(t)
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	for i := range rounds {
		a, b := pair(d, 1<<15)
		ch := a.channel()
		c := a.cq(4, &ch)
		c.arm(false)
		seed := rnd.Uint64()
		var wg sync.WaitGroup
		for i, x := range [][2]*side{{a, b}, {b, a}} {
			wg.Go(func() { traffic(rand.New(rand.NewPCG(seed, uint64(i))), x[0], x[1]) })
		}
		if i%2 == 0 { // a command that is not waited for
			for range 3 {
				_ = a.record(kindCommand, 1, 0, legacy(cmdCreateCQ, newStruct("ib_uverbs_create_cq").put("cqe", 100).put("comp_channel", 0xFFFFFFFF), 24))
			}
		}
		for range rnd.IntN(200) {
			runtime.Gosched()
		}
		first, second := a, b
		if rnd.IntN(2) == 0 {
			first, second = b, a
		}
		first.sock.Close()
		for range rnd.IntN(50) {
			runtime.Gosched()
		}
		second.sock.Close()
		wg.Wait()
		unix.Close(ch.fd)
		a.close()
		b.close()
		if i%50 == 0 {
			exchange(t, keepA, keepB)
		}
	}
	exchange(t, keepA, keepB)
	eventually(t, "connections stay", func() bool { return len(d.conns()) == 2 })
	if n := len(d.dev.QPs()); n != 2 {
		t.Errorf("%d queue pairs", n)
	}
	unmapQueues()
	back(t, before)
}

// traffic posts until the program has ended.
func traffic(r *rand.Rand, a, b *side) {
	for i := range 1000 {
		n := r.IntN(len(a.buf))
		op := [...]device.WROp{device.OpSend, device.OpWrite, device.OpRead}[r.IntN(3)]
		a.q.rq.push(func(s []byte) {
			view("rxe_recv_wqe", s).put("wr_id", 1).put("dma.num_sge", 1)
			putSGE(s[at("rxe_recv_wqe.dma.sge").off:], sges(sge(a.buf, a.m)))
		})
		q := request_{id: uint64(i), op: op, sge: sges(device.SGE{Addr: addressOf(a.buf), Length: uint32(n), LKey: a.m.lkey}), remote: addressOf(b.buf), rkey: b.m.rkey}
		if a.q.sq.push(q.fill) {
			if a.record(kindDoorbell, 0, a.q.handle, nil) != nil {
				return
			}
		}
		for {
			if _, ok := a.c.q.pop(); !ok {
				break
			}
		}
	}
}

// A program that does not read its answers holds up nobody, and the server can be closed.
func TestAnswersNotRead(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p.record(kindCommand, 1, 0, legacy(cmdQueryDevice, newStruct("ib_uverbs_query_device"), queryDeviceLen)) == nil {
		}
	}()
	a, b := pair(d, page)
	exchange(t, a, b)
	d.close()
	<-done
	if _, err := os.Stat(d.path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// Close with programs at work disconnects all of them; nothing is left.
func TestCloseServer(t *testing.T) {
	before := inUse(t)
	d := newDaemon(t)
	var wg sync.WaitGroup
	var all []*side
	for i := range 4 {
		a, b := pair(d, 1<<15)
		all = append(all, a, b)
		wg.Go(func() { traffic(rand.New(rand.NewPCG(uint64(i), 1)), a, b) })
		wg.Go(func() { traffic(rand.New(rand.NewPCG(uint64(i), 2)), b, a) })
	}
	d.close()
	wg.Wait()
	for _, s := range all {
		if _, err := s.write(legacy(cmdAllocPD, newStruct("ib_uverbs_alloc_pd"), 4)); err == nil {
			t.Error("a program is still connected")
		}
		s.close()
	}
	if err := d.s.Close(); err != nil {
		t.Error(err)
	}
	unmapQueues()
	back(t, before)
}

// Idle counts from the last program on.
func TestIdle(t *testing.T) {
	d := newDaemon(t)
	f, err := Present(d.path)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "no connection", func() bool { return len(d.conns()) == 1 })
	idle := d.s.Idle(time.Microsecond)
	p := d.open(how{})
	f.Close()
	p.pd()
	select {
	case <-idle:
		t.Fatal("idle with a program")
	default:
	}
	p.close()
	select {
	case <-idle:
	case <-time.After(20 * time.Second):
		t.Fatal("not idle")
	}
	never := d.s.Idle(time.Hour)
	d.close()
	select {
	case <-never:
	case <-time.After(20 * time.Second):
		t.Fatal("not closed")
	}
}

// One user takes no more file descriptors of the daemon than its share, whatever it makes of them, and gets them back.
func TestDescriptorLimit(t *testing.T) {
	d := newDaemon(t)
	d.s.mu.Lock()
	d.s.maxUser = 3*connFDs + 10*channelFDs
	d.s.mu.Unlock()
	p := d.open(how{})
	p.pd()
	make1 := legacy(cmdCreateCompChannel, newStruct("ib_uverbs_create_comp_channel"), 4)
	made := 0
	for range 40 {
		r, err := p.write(make1)
		if err != nil {
			t.Fatal(err)
		}
		if r.errno != 0 {
			if r.errno != syscall.EMFILE {
				t.Fatalf("errno %v", r.errno)
			}
			break
		}
		made++
	}
	if want := (2*connFDs + 10*channelFDs) / channelFDs; made != want {
		t.Errorf("%d channels, want %d", made, want)
	}
	if _, err := d.dial().hello(how{}); err == nil {
		t.Error("a connection beyond the share")
	}
	p.close()
	for end := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		d.s.mu.Lock()
		n := d.s.perUser[os.Getuid()]
		d.s.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are still counted", n)
		}
	}
	d.open(how{}).pd()
}

// A program that makes all the queues it can must not use up what a process can map: the Go runtime dies of that.
func TestManyQueues(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	before := inUse(t)
	cmd := legacy(cmdCreateCQ, newStruct("ib_uverbs_create_cq").put("cqe", 1).put("comp_channel", 0xFFFFFFFF), 24)
	for range 3000 {
		p.do(cmd)
	}
	if now := inUse(t); now.maps > before.maps+8 {
		t.Fatalf("3000 queues take %d mappings", now.maps-before.maps)
	}
}

func TestArena(t *testing.T) {
	a, err := newArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	// The program can change neither size nor seals.
	if err := unix.Ftruncate(a.fd, page); err != unix.EPERM {
		t.Error("truncated:", err)
	}
	if err := unix.Ftruncate(a.fd, arenaSize+page); err != unix.EPERM {
		t.Error("grown:", err)
	}
	if _, err := unix.FcntlInt(uintptr(a.fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("another seal")
	}
	var st unix.Stat_t
	if err := unix.Fstat(a.fd, &st); err != nil || st.Size != arenaSize {
		t.Error(st.Size, err)
	}
	rnd := seeded(t)
	type piece struct {
		span
		n uint64
	}
	var l []piece
	used := map[uint64]uint64{} // by page
	for range 2000 {
		if len(l) > 0 && rnd.IntN(2) == 0 {
			i := rnd.IntN(len(l))
			p := l[i]
			p.buf[0], p.buf[len(p.buf)-1] = 1, 2
			for o := p.off; o < p.off+uint64(len(p.buf)); o += page {
				delete(used, o)
			}
			a.put(p.span)
			l = append(l[:i], l[i+1:]...)
			continue
		}
		n := uint64(1 + rnd.IntN(1<<rnd.IntN(18)))
		s, err := a.get(n)
		if err != nil {
			t.Fatal(err)
		}
		if uint64(len(s.buf)) < n || len(s.buf)%page != 0 || s.off%page != 0 || s.off < arenaOff || cap(s.buf) != len(s.buf) {
			t.Fatalf("%d bytes: %d at %d", n, len(s.buf), s.off)
		}
		if s.buf[0] != 0 || s.buf[len(s.buf)-1] != 0 {
			t.Fatal("what somebody else wrote is there")
		}
		for o := s.off; o < s.off+uint64(len(s.buf)); o += page {
			if _, taken := used[o]; taken {
				t.Fatalf("page %d was given out twice", o)
			}
			used[o] = n
		}
		b := make([]byte, 1)
		s.buf[len(s.buf)-1] = 9
		if _, err := unix.Pread(a.fd, b, int64(s.off)+int64(len(s.buf))-1); err != nil || b[0] != 9 {
			t.Fatal("the memory is not where the program is told: ", err)
		}
		l = append(l, piece{s, n})
	}
	// Limits.
	for _, n := range []uint64{arenaLimit + 1, 1 << 45, 1 << 63} {
		if _, err := a.get(n); device.ErrnoOf(err) != device.ENOMEM {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	got := 0
	var big []span
	for ; ; got++ {
		s, err := a.get(1 << 30)
		if err != nil {
			break
		}
		big = append(big, s)
	}
	if got < 8 || got > arenaLimit>>30 {
		t.Errorf("%d pieces of 1 GiB", got)
	}
	if len(a.pieces) > 6 {
		t.Errorf("%d mappings", len(a.pieces))
	}
	for _, s := range big {
		a.put(s)
	}
	for range big {
		if _, err := a.get(1 << 30); err != nil {
			t.Fatal(err)
		}
	}
}

// A program that empties, fills and truncates its memfd.
func TestPunchedArena(t *testing.T) {
	d := newDaemon(t)
	a, b := pair(d, page)
	if err := unix.Ftruncate(a.fd, 0); err == nil {
		t.Fatal("truncated")
	}
	if err := unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, arenaOff+1<<20); err != nil {
		t.Fatal(err)
	}
	x, y := pair(d, page)
	exchange(t, x, y)
	if _, err := unix.Pwrite(a.fd, bytes.Repeat([]byte{0xFF}, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		a.record(kindDoorbell, 0, a.q.handle, nil)
		a.record(kindDoorbell, 0, 0xFFFFFF, nil)
	}
	a.pd()
	a.q.destroy()
	a.c.destroy()
	b.q.destroy()
	exchange(t, x, y)
}

// The tree that stands for /sys has every file that libibverbs and its users read.
func TestTree(t *testing.T) {
	d := newDaemon(t)
	root := SysfsPath(d.path)
	name := d.dev.Name()
	read := func(n string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(root, n))
		if err != nil {
			t.Error(err)
			return ""
		}
		if len(b) > 0 && (b[len(b)-1] != '\n' || bytes.Count(b, []byte("\n")) != 1) {
			t.Errorf("%s: %q", n, b)
		}
		return strings.TrimSuffix(string(b), "\n")
	}
	ib := "class/infiniband/" + name + "/"
	for n, want := range map[string]string{
		"class/infiniband_verbs/abi_version":         "6",
		"class/infiniband_verbs/uverbs0/ibdev":       name,
		"class/infiniband_verbs/uverbs0/dev":         "231:192",
		"class/infiniband_verbs/uverbs0/abi_version": "2",
		ib + "node_type":                             "1: CA",
		ib + "fw_ver":                                "1.2.3",
		ib + "ports/1/state":                         "4: ACTIVE",
		ib + "ports/1/phys_state":                    "5: LinkUp",
		ib + "ports/1/link_layer":                    "Ethernet",
		ib + "ports/1/pkeys/0":                       "0xffff",
		ib + "ports/1/gids/1":                        "0000:0000:0000:0000:0000:ffff:0a00:0001",
		ib + "ports/1/gids/9":                        "0000:0000:0000:0000:0000:0000:0000:0000",
	} {
		if got := read(n); got != want {
			t.Errorf("%s: %q, want %q", n, got, want)
		}
	}
	if g := read(ib + "node_guid"); g != read(ib+"sys_image_guid") || len(g) != 19 || strings.Count(g, ":") != 3 {
		t.Errorf("GUID %q", g)
	}
	for i := range device.GIDTableLen {
		n := ib + "ports/1/gid_attrs/"
		g, _ := d.dev.QueryGID(1, i)
		if typ := read(n + "types/" + strconv.Itoa(i)); typ != "RoCE v2" {
			t.Errorf("type of %d: %q", i, typ)
		}
		p, _ := d.dev.QueryPort(1)
		want := p.Netdev
		if g.IsZero() {
			want = ""
		}
		if dev := read(n + "ndevs/" + strconv.Itoa(i)); dev != want {
			t.Errorf("device of %d: %q", i, dev)
		}
		if got := read(ib + "ports/1/gids/" + strconv.Itoa(i)); got != gidText(g) {
			t.Errorf("GID %d: %q", i, got)
		}
	}
	// An address more: the files follow, and the folder by which libibverbs knows the device is not touched.
	old, err := os.Stat(filepath.Join(root, ib))
	if err != nil {
		t.Fatal(err)
	}
	d.end.Change(func(i *link.Info) {
		i.Addrs = append(i.Addrs, netip.MustParsePrefix("10.7.0.1/24"))
		i.Up = false
	})
	want := "0000:0000:0000:0000:0000:ffff:0a07:0001"
	eventually(t, "the new GID is not there", func() bool {
		for i := range device.GIDTableLen {
			if read(ib+"ports/1/gids/"+strconv.Itoa(i)) == want {
				return read(ib+"ports/1/state") == "1: DOWN" && read(ib+"ports/1/phys_state") == "3: Disabled"
			}
		}
		return false
	})
	now, err := os.Stat(filepath.Join(root, ib))
	if err != nil || !now.ModTime().Equal(old.ModTime()) {
		t.Errorf("the device's folder was changed: %v", err)
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "~") {
			t.Error("left over: ", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Modes are what was asked for, whatever the umask.
func TestModes(t *testing.T) {
	for _, mask := range []int{0, 0o077, 0o777} {
		old := unix.Umask(mask)
		d := newDaemon(t)
		for n, want := range map[string]fs.FileMode{
			d.path: fs.ModeSocket | 0o600, folder(d.path): fs.ModeDir | 0o755, SysfsPath(d.path): fs.ModeDir | 0o755,
			SysfsPath(d.path) + "/class/infiniband_verbs/abi_version": 0o644, SysfsPath(d.path) + "/class/infiniband/" + d.dev.Name() + "/ports/1/gids": fs.ModeDir | 0o755,
		} {
			if fi, err := os.Stat(n); err != nil || fi.Mode() != want {
				t.Errorf("umask %o: %s: %v %v, want %v", mask, n, fi, err, want)
			}
		}
		if fi, err := os.Stat(LibraryPath(d.path)); err == nil && fi.Mode() != 0o755 {
			t.Errorf("umask %o: library %v", mask, fi.Mode())
		}
		d.close()
		unix.Umask(old)
		if _, err := os.Lstat(folder(d.path)); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	dir := t.TempDir()
	l, err := Listen(filepath.Join(dir, "x"), ListenOptions{Mode: 0o666, Group: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(l.tmp); err != nil || fi.Mode().Perm() != 0o666 {
		t.Error(fi, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// What a daemon that was killed has left goes; what is not ours stays.
func TestLeftOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	write := func(name string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("x"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	again := func(want string) {
		t.Helper()
		l, err := Listen(path, ListenOptions{})
		if err == nil {
			err = l.ready()
			if want == "" { // as if killed
				l.UnixListener.Close()
				return
			}
			l.Close()
		}
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Fatalf("%v, want %q", err, want)
		}
	}
	again("")
	again("") // the socket and its folder are left
	write(SysfsPath(path) + "/class/infiniband/old/state")
	write(LibraryPath(path))
	write(LibraryPath(path) + "~") // killed while it was written
	write(folder(path) + "/s")
	again("")
	write(folder(path) + "/foreign")
	again(folder(path))
	if _, err := os.Stat(folder(path) + "/foreign"); err != nil {
		t.Fatal("somebody's file was removed:", err)
	}
	os.RemoveAll(folder(path))
	write(folder(path))
	again(folder(path))
	os.Remove(folder(path))
	os.Remove(path)
	write(path)
	again("is not a socket")
	os.Remove(path)
	// A folder of somebody else, by a link.
	write(dir + "/else/sys/file")
	if err := os.Symlink(dir+"/else", folder(path)); err != nil {
		t.Fatal(err)
	}
	again(folder(path))
	if _, err := os.Stat(dir + "/else/sys/file"); err != nil {
		t.Fatal("somebody's file was removed:", err)
	}
	os.Remove(folder(path))
	again("")
}
