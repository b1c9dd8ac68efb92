package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
)

const mcastKey = 0x11111111

// groups are an IPv4 and an IPv6 one, with the GID index to send from.
var groups = []struct {
	name string
	gid  device.GID
	from int
}{
	{"IPv4", device.GIDOf(netip.MustParseAddr("239.1.2.3")), 1},
	{"IPv6", device.GIDOf(netip.MustParseAddr("ff0e::ffff:ef01:203")), 2},
}

// listener returns a datagram queue pair with a completion queue of its own, attached to the groups.
func (h *host) listener(key uint32, gids ...device.GID) *listener {
	h.t.Helper()
	l := &listener{h: h, cq: h.newCQ(device.CQInit{Entries: 256}), mr: h.mr(1 << 14)}
	q, err := h.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: h.cq, RecvCQ: l.cq,
		Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 2, RecvSGE: 1, Inline: 64}})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := q.Activate(key, 0); err != nil {
		h.t.Fatal(err)
	}
	l.QP = q
	for _, g := range gids {
		if err := q.Attach(g); err != nil {
			h.t.Fatal(err)
		}
	}
	return l
}

type listener struct {
	*device.QP
	h  *host
	cq *device.CQ
	mr *device.MR
}

// recv posts n receives of 256 bytes.
func (l *listener) recv(n int) {
	l.h.t.Helper()
	for i := range n {
		if err := l.PostRecv(&device.RecvWR{ID: uint64(i), SGE: []device.SGE{l.mr.SGE(256*i, 256)}}); err != nil {
			l.h.t.Fatal(err)
		}
	}
}

// heard returns the completions until now: the test is in a bubble.
func (l *listener) heard() (wcs []device.WC) {
	synctest.Wait()
	var wc [8]device.WC
	for {
		n := l.cq.Poll(wc[:])
		if n == 0 {
			return wcs
		}
		wcs = append(wcs, wc[:n]...)
	}
}

func (l *listener) hears(n int) {
	l.h.t.Helper()
	if got := l.heard(); len(got) != n {
		l.h.t.Fatalf("%d datagrams, want %d", len(got), n)
	}
}

// ah returns a handle to a group.
func (h *host) ah(gid device.GID, from int) *device.AH {
	h.t.Helper()
	a, err := h.pd.CreateAH(device.AHAttr{DGID: gid, SGIDIndex: from, TrafficClass: 0x2C, HopLimit: 7})
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

// send sends a datagram to a group, or to another QPN.
func (l *listener) send(a *device.AH, qpn uint32, text string) {
	l.h.t.Helper()
	err := l.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte(text), AH: a, RemoteQPN: qpn, RemoteQKey: mcastKey})
	if err != nil {
		l.h.t.Fatal(err)
	}
}

// drop returns a drop counter.
func (h *host) drop(name string) uint64 {
	for _, v := range h.dev.Statistics() {
		if v.Name == "drop_"+name {
			return v.Value
		}
	}
	h.t.Fatal("no counter ", name)
	return 0
}

func bubble(t *testing.T, f func(t *testing.T, a, b *host)) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
		f(t, a, b)
		a.dev.Close()
		b.dev.Close()
	})
}

// One datagram reaches every queue pair of the group on both devices, the sender's too; each judges it for itself.
func TestMulticastFanOut(t *testing.T) {
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, a, b *host) {
				tx := a.listener(mcastKey, g.gid)
				tx.recv(8)
				rx := []*listener{b.listener(mcastKey, g.gid), b.listener(mcastKey, g.gid), b.listener(mcastKey, g.gid)}
				other, none := b.listener(mcastKey+1, g.gid), b.listener(mcastKey)
				for _, l := range append(rx, other, none) {
					l.recv(8)
				}
				ah := a.ah(g.gid, g.from)
				tx.send(ah, device.MulticastQPN, "to all of you")
				for i, l := range append(rx, tx) {
					wcs := l.heard()
					if len(wcs) != 1 {
						t.Fatalf("listener %d: %d datagrams", i, len(wcs))
					}
					if wc := wcs[0]; wc.Status != device.StatusSuccess || wc.ByteLen != 53 || wc.SrcQP != tx.Num() || wc.Flags != device.WCGRH || wc.QPN != l.Num() {
						t.Errorf("listener %d: %+v", i, wc)
					}
					if got := string(l.mr.Bytes()[40:53]); got != "to all of you" {
						t.Errorf("listener %d got %q", i, got)
					}
					checkArea(t, l.mr.Bytes()[:40], a, g.gid, g.from)
				}
				other.hears(0)
				none.hears(0)
				// One verdict per packet: it was taken.
				if n := b.dev.Counters().Load(stats.RcvdPkts); n != 1 {
					t.Errorf("%d packets received", n)
				}
				if n := b.drop("qkey"); n != 0 {
					t.Errorf("%d packets dropped", n)
				}

				// To the wrong number, and to a group that nobody there listens to.
				tx.send(ah, rx[0].Num(), "unicast number")
				rx[0].hears(0)
				if n := b.drop("no-qp"); n != 1 {
					t.Errorf("no-qp: %d", n)
				}
				far := g.gid
				far[15]++
				tx.send(a.ah(far, g.from), device.MulticastQPN, "elsewhere")
				rx[0].hears(0)
				if n := b.drop("no-address"); n != 1 {
					t.Errorf("no-address: %d", n)
				}
				// Not to the group's number at an address of the device either.
				tx.send(a.ah(rx[0].Address(g.from, 0).GID, g.from), device.MulticastQPN, "unicast address")
				rx[0].hears(0)
				if n := b.drop("no-qp"); n != 2 {
					t.Errorf("no-qp: %d", n)
				}
			})
		})
	}
}

// checkArea checks the 40 bytes before the payload.
func checkArea(t *testing.T, area []byte, from *host, group device.GID, index int) {
	t.Helper()
	src, err := from.dev.QueryGID(1, index)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	if dst := group.Addr(); dst.Is4() {
		s, d := src.Addr().As4(), dst.As4()
		want = append(make([]byte, 20), 0x45, 0x2C, 0, 20+8+12+8+16+4, 0, 0, 0x40, 0, 7, 17, 0, 0)
		want = append(append(want, s[:]...), d[:]...)
		wire.PutIPChecksum(want[20:])
	} else {
		want = append([]byte{0x62, 0xC0, 0, 0, 0, 8 + 12 + 8 + 16 + 4, 17, 7}, src[:]...)
		want = append(want, group[:]...)
	}
	if !bytes.Equal(area, want) {
		t.Errorf("GRH area\n%x, want\n%x", area, want)
	}
}

// The verdict of a packet that nobody takes is the one of the queue pair where it came furthest.
func TestMulticastVerdict(t *testing.T) {
	g := groups[0]
	bubble(t, func(t *testing.T, a, b *host) {
		tx := a.listener(mcastKey)
		ah := a.ah(g.gid, g.from)
		for i, step := range []struct {
			what string
			do   func()
			drop string
		}{
			{"in RESET", func() {
				if err := b.qp(device.UD, 4).Attach(g.gid); err != nil {
					t.Fatal(err)
				}
			}, "qp-state"},
			{"wrong Q_Key", func() { b.listener(1, g.gid).recv(1) }, "qkey"},
			{"no receive", func() { b.listener(mcastKey, g.gid) }, "no-receive"},
			{"receive too short", func() {
				l := b.listener(mcastKey, g.gid)
				if err := l.PostRecv(&device.RecvWR{SGE: []device.SGE{l.mr.SGE(0, 40)}}); err != nil {
					t.Fatal(err)
				}
			}, "too-long"},
			{"taken", func() { b.listener(mcastKey, g.gid).recv(1) }, ""},
		} {
			step.do()
			before := map[string]uint64{}
			for _, v := range b.dev.Statistics() {
				before[v.Name] = v.Value
			}
			tx.send(ah, device.MulticastQPN, "x")
			synctest.Wait()
			for _, v := range b.dev.Statistics() {
				if len(v.Name) < 5 || v.Name[:5] != "drop_" {
					continue
				}
				want := before[v.Name]
				if v.Name == "drop_"+step.drop {
					want++
				}
				if v.Value != want {
					t.Errorf("%d, %s: %s is %d, want %d", i, step.what, v.Name, v.Value, want)
				}
			}
		}
	})
}

// Who asked for it does not hear himself; others on the device do.
func TestMulticastOwnCopy(t *testing.T) {
	g := groups[1]
	bubble(t, func(t *testing.T, a, b *host) {
		sink := new(linktest.Sink)
		a.dev.Port().SetCapture(sink)
		near, far := a.listener(mcastKey, g.gid), b.listener(mcastKey, g.gid)
		cq := a.newCQ(device.CQInit{Entries: 8})
		q, err := a.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: a.cq, RecvCQ: cq, BlockSelfMulticast: true,
			Cap: device.Cap{SendWR: 4, RecvWR: 4, Inline: 8}})
		if err != nil {
			t.Fatal(err)
		}
		self := &listener{q, a, cq, a.mr(1 << 12)}
		if err := errors.Join(q.Activate(mcastKey, 0), q.Attach(g.gid)); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*listener{near, far, self} {
			l.recv(4)
		}
		self.send(a.ah(g.gid, g.from), device.MulticastQPN, "self")
		self.hears(0)
		near.hears(1)
		far.hears(1)
		far.send(b.ah(g.gid, g.from), device.MulticastQPN, "other")
		self.hears(1)
		// The capture shows what was sent once, and what came back by the loop.
		tx, rx := 0, 0
		for _, r := range sink.Take() {
			if r.Dir == link.Tx {
				tx++
			} else {
				rx++
			}
		}
		if tx != 1 || rx != 2 {
			t.Errorf("captured %d sent and %d received, want 1 and 2", tx, rx)
		}
		// Alone in the group.
		if err := errors.Join(near.Detach(g.gid), far.Detach(g.gid)); err != nil {
			t.Fatal(err)
		}
		self.send(a.ah(g.gid, g.from), device.MulticastQPN, "alone")
		self.hears(0)
		if n := a.drop("ignored"); n != 1 {
			t.Errorf("ignored: %d", n)
		}
	})
}

// The copy to oneself is impaired like any packet that arrives, and what is dropped on its way out has none.
func TestMulticastImpaired(t *testing.T) {
	for rule, want := range map[string][2]int{"rx drop=100%": {0, 1}, "tx drop=100%": {0, 0}, "rx duplicate=100%": {2, 1}} {
		t.Run(rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := twoHosts(t, 1500, device.Options{Link: link.PortOptions{Impair: rules(t, rule)}}, device.Options{})
				g := groups[0]
				la, lb := a.listener(mcastKey, g.gid), b.listener(mcastKey, g.gid)
				la.recv(4)
				lb.recv(4)
				la.send(a.ah(g.gid, g.from), device.MulticastQPN, "x")
				la.hears(want[0])
				lb.hears(want[1])
				a.dev.Close()
				b.dev.Close()
			})
		})
	}
}

func errno(t *testing.T, what string, err error, want device.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestMulticastAttach(t *testing.T) {
	g := groups[0]
	bubble(t, func(t *testing.T, a, b *host) {
		rx := b.listener(mcastKey)
		rx.recv(8)
		tx, ah := a.listener(mcastKey), a.ah(g.gid, g.from)
		errno(t, "detach before attach", rx.Detach(g.gid), device.EINVAL)
		for range 2 { // the second does nothing
			if err := rx.Attach(g.gid); err != nil {
				t.Fatal(err)
			}
		}
		tx.send(ah, device.MulticastQPN, "once")
		rx.hears(1)
		errno(t, "destroy while attached", rx.Destroy(), device.EBUSY)
		tx.send(ah, device.MulticastQPN, "still there")
		rx.hears(1)
		if err := rx.Detach(g.gid); err != nil {
			t.Fatal(err)
		}
		errno(t, "detach twice", rx.Detach(g.gid), device.EINVAL)
		tx.send(ah, device.MulticastQPN, "gone")
		rx.hears(0)
		if err := rx.Destroy(); err != nil {
			t.Fatal(err)
		}
		errno(t, "attach after destroy", rx.Attach(g.gid), device.EINVAL)

		for _, s := range []string{"10.0.0.1", "2001:db8::1", "fe80::1", "::", "255.255.255.255", "223.255.255.255"} {
			errno(t, "attach to "+s, tx.Attach(device.GIDOf(netip.MustParseAddr(s))), device.EINVAL)
		}
		errno(t, "attach an RC queue pair", b.qp(device.RC, 1).Attach(g.gid), device.EINVAL)
		errno(t, "detach an RC queue pair", b.qp(device.RC, 1).Detach(g.gid), device.EINVAL)

		// An address handle sends with the hop limit that it names, 1 if none.
		raw, err := a.pd.CreateAH(device.AHAttr{DGID: g.gid, SGIDIndex: g.from})
		if err != nil {
			t.Fatal(err)
		}
		last := b.listener(mcastKey, g.gid)
		last.recv(1)
		tx.send(raw, device.MulticastQPN, "hops")
		if last.hears(1); last.mr.Bytes()[28] != 1 {
			t.Errorf("TTL %d", last.mr.Bytes()[28])
		}
		// A context that ends takes its attachments along; others stay.
		ctx := b.dev.NewContext()
		pd, err := ctx.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := ctx.CreateCQ(device.CQInit{Entries: 1})
		if err != nil {
			t.Fatal(err)
		}
		q, err := pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: cq, RecvCQ: cq})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(q.Attach(g.gid), q.Attach(groups[1].gid), ctx.Close()); err != nil {
			t.Fatal(err)
		}
		tx.send(ah, device.MulticastQPN, "x")
		synctest.Wait()
		if n := b.drop("no-receive"); n != 1 {
			t.Errorf("no-receive: %d", n)
		}
		tx.send(a.ah(groups[1].gid, 2), device.MulticastQPN, "x")
		synctest.Wait()
		if n := b.drop("no-address"); n != 2 {
			t.Errorf("no-address: %d", n)
		}
	})
}

// counting counts what the link is told of groups.
type countingEnd struct {
	*pipe.End
	joined map[netip.Addr]int
	err    error
}

func (e *countingEnd) Join(group netip.Addr, _ *link.Queue) error {
	if e.err == nil {
		e.joined[group]++
	}
	return e.err
}

func (e *countingEnd) Leave(group netip.Addr) error {
	e.joined[group]--
	return nil
}

func TestMulticastLimits(t *testing.T) {
	end, _ := pipe.New(pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{})
	ep := &countingEnd{End: end, joined: map[netip.Addr]int{}}
	h := newHost(t, ep, device.Options{Stepped: true})
	group := func(i int) device.GID {
		return device.GIDOf(netip.AddrFrom4([4]byte{239, 0, byte(i >> 8), byte(i)}))
	}
	var qps []*device.QP
	for i := range device.MaxMcastQP + 1 {
		q := h.qp(device.UD, 1)
		err := q.Attach(group(0))
		if i < device.MaxMcastQP {
			if err != nil {
				t.Fatal(err)
			}
			qps = append(qps, q)
			continue
		}
		errno(t, "one queue pair too many", err, device.ENOMEM)
		if err := q.Attach(group(1)); err != nil { // another group
			t.Fatal(err)
		}
		if err := q.Detach(group(1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i < device.MaxMcastGrp; i++ {
		if err := qps[i%len(qps)].Attach(group(i)); err != nil {
			t.Fatal(err)
		}
	}
	errno(t, "one group too many", qps[0].Attach(group(device.MaxMcastGrp)), device.ENOMEM)
	if err := qps[0].Attach(group(1)); err != nil { // one that there is
		t.Fatal(err)
	}
	if err := qps[1].Detach(group(1)); err != nil {
		t.Fatal(err)
	}
	errno(t, "one group too many", qps[0].Attach(group(device.MaxMcastGrp)), device.ENOMEM)
	if len(ep.joined) != device.MaxMcastGrp {
		t.Errorf("the link was told of %d groups", len(ep.joined))
	}
	for a, n := range ep.joined {
		if n != 1 {
			t.Errorf("%v was joined %d times", a, n)
		}
	}
	if err := h.ctx.Close(); err != nil {
		t.Fatal(err)
	}
	for a, n := range ep.joined {
		if n != 0 {
			t.Fatalf("%v is joined %d times after the end", a, n)
		}
	}

	ctx := h.dev.NewContext()
	h2 := &host{t: t, dev: h.dev, ctx: ctx}
	var err error
	if h2.pd, err = ctx.AllocPD(); err != nil {
		t.Fatal(err)
	}
	h2.cq = h2.newCQ(device.CQInit{Entries: 1})
	q := h2.qp(device.UD, 1)
	ep.err = fmt.Errorf("this link: %w", errors.ErrUnsupported)
	errno(t, "a link that cannot", q.Attach(group(1)), device.EOPNOTSUPP)
	ep.err = errors.New("no room")
	errno(t, "a link that refuses", q.Attach(group(1)), device.EIO)
	if err := q.Destroy(); err != nil { // it is attached to nothing
		t.Fatal(err)
	}
}

// Queue pairs come and go while datagrams arrive, for the race detector. One that stays hears all of them that it has
// receives for, one that is detached nothing.
func TestMulticastRace(t *testing.T) {
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	g := groups[0]
	stays := b.listener(mcastKey, g.gid)
	stays.recv(32)
	tx, ah := a.listener(mcastKey, g.gid), a.ah(g.gid, g.from)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			err := tx.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("x"), AH: ah, RemoteQPN: device.MulticastQPN, RemoteQKey: mcastKey})
			if err != nil && !errors.Is(err, device.ENOMEM) {
				t.Error(err)
				return
			}
			runtime.Gosched()
		}
	})
	for i := range 3 {
		h := []*host{a, b, b}[i]
		wg.Go(func() {
			for range 100 {
				l := h.listener(mcastKey, g.gid, groups[1].gid)
				l.recv(4)
				if err := errors.Join(l.Detach(g.gid), l.Detach(groups[1].gid)); err != nil {
					t.Error(err)
				}
				var wc [8]device.WC
				for l.cq.Poll(wc[:]) > 0 {
				}
				runtime.Gosched()
				if n := l.cq.Poll(wc[:]); n != 0 {
					t.Errorf("%d datagrams after Detach", n)
				}
				if err := l.Destroy(); err != nil {
					t.Error(err)
				}
				_, _ = l.cq.Destroy()
				_ = l.mr.Dereg()
			}
		})
	}
	heard := 0
	for end := time.Now().Add(10 * time.Second); heard < 200 && time.Now().Before(end); runtime.Gosched() {
		var wc [32]device.WC
		n := stays.cq.Poll(wc[:])
		stays.recv(n)
		heard += n
	}
	stop.Store(true)
	wg.Wait()
	if heard < 200 {
		t.Errorf("%d datagrams heard", heard)
	}
}

func TestMulticastNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	ea, eb := pipe.New(
		pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("2001:db8::2/64")}})
	a, b := newHost(t, ea, device.Options{Stepped: true}), newHost(t, eb, device.Options{Stepped: true})
	for _, g := range groups {
		tx := a.listener(mcastKey, g.gid)
		rx := []*listener{tx, b.listener(mcastKey, g.gid), b.listener(mcastKey, g.gid), b.listener(1, g.gid)}
		wr := &device.SendWR{Op: device.OpSend, SGE: []device.SGE{tx.mr.SGE(0, 100)}, AH: a.ah(g.gid, g.from), RemoteQPN: device.MulticastQPN, RemoteQKey: mcastKey}
		recvs := make([]device.RecvWR, len(rx))
		for i, l := range rx {
			recvs[i].SGE = []device.SGE{l.mr.SGE(0, 256)}
		}
		rx[3].recv(8)
		now := time.Now()
		round := func() {
			for i, l := range rx[:3] {
				if err := l.PostRecv(&recvs[i]); err != nil {
					t.Fatal(err)
				}
			}
			if err := tx.PostSend(wr); err != nil {
				t.Fatal(err)
			}
			a.dev.Step(now)
			b.dev.Step(now)
			var wc [2]device.WC
			for _, l := range rx[:3] {
				if n := l.cq.Poll(wc[:]); n != 1 {
					t.Fatalf("%d completions", n)
				}
			}
		}
		for range 100 {
			round()
		}
		// Step itself allocates: what the same costs without a packet.
		idle := testing.AllocsPerRun(100, func() { a.dev.Step(now); a.dev.Step(now); b.dev.Step(now); b.dev.Step(now) })
		if n := testing.AllocsPerRun(100, round); n > idle {
			t.Errorf("%s: %v allocations, %v without a packet", g.name, n, idle)
		}
	}
}
