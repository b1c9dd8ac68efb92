package tap

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// private gives the test a network namespace of its own, or skips it. What the
// test starts (programs, sockets, a Tap) is in it; the rest of the machine is not touched.
// It holds for this goroutine, so not for subtests.
func private(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(tunPath); err != nil {
		t.Skipf("no TUN here: %v", err)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("needs root (a network namespace): %v", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// config is the example of the documentation, both families.
func config() Config {
	return Config{
		Name: "sn0", Addrs: prefixes("10.8.0.2/24", "fd00:8::2/64"), HostAddrs: prefixes("10.8.0.1/24", "fd00:8::1/64"), MTU: 4200,
		Plain: plain(),
	}
}

// open opens a Tap that is closed with the test.
func open(t testing.TB, c Config) *Tap {
	t.Helper()
	c.Plain = c.Plain || plain()
	tap, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
	})
	return tap
}

// receive runs a receive loop, as a device does, and gives copies of the packets.
func receive(t testing.TB, tap *Tap) <-chan []byte {
	c := make(chan []byte, 256)
	go func() {
		defer close(c)
		b := link.NewBatch(64)
		for {
			if err := tap.Recv(b, true); err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
			for _, p := range b.Packets {
				c <- slices.Concat(p.Frame, p.Eth, p.Net, p.IB)
			}
		}
	}()
	return c
}

// eventually waits for a condition that the kernel brings about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("not in 20 s: %s", what)
		case <-tick.C:
		}
	}
}

func exists(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

func counter(tap *Tap, name string) uint64 {
	i := slices.IndexFunc(tap.Counters(), func(v stats.Value) bool { return v.Name == name })
	return tap.Counters()[i].Value
}

// frame builds what a port gives Send, IP and UDP header by hand.
func frame(src, dst string, payload []byte) *link.Frame {
	p := &wire.Packet{Path: &wire.Path{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: 0xc123}}
	f := &link.Frame{Packet: p, Eth: make([]byte, 14), IB: slices.Concat([]byte("base-header-"), payload, []byte("icrc"))}
	ib := len(f.IB)
	udp := make([]byte, 8)
	be.PutUint16(udp, p.Path.SrcPort)
	be.PutUint16(udp[2:], wire.Port)
	be.PutUint16(udp[4:], uint16(8+ib))
	if p.Path.Dst.Is4() {
		ip := make([]byte, 20)
		copy(ip, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17})
		be.PutUint16(ip[2:], uint16(28+ib))
		copy(ip[12:], p.Path.Src.AsSlice())
		copy(ip[16:], p.Path.Dst.AsSlice())
		be.PutUint16(ip[10:], fold(sum(ip, 0)))
		f.Net = append(ip, udp...)
		return f
	}
	ip := make([]byte, 40)
	copy(ip, []byte{0x60, 0, 0, 0, byte((8 + ib) >> 8), byte(8 + ib), 17, 64})
	copy(ip[8:], p.Path.Src.AsSlice())
	copy(ip[24:], p.Path.Dst.AsSlice())
	// A Linux socket takes no IPv6 datagram without checksum unless told to.
	body := slices.Concat(udp, f.IB)
	be.PutUint16(udp[6:], fold(sum(body, sum(ip[8:40], uint64(8+ib)+protoUDP))))
	f.Net = append(ip, udp...)
	return f
}

// listenUDP opens a host socket on the RoCE port.
func listenUDP(t testing.TB, addr string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), wire.Port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOpenClose(t *testing.T) {
	private(t)
	tap := open(t, config())
	i := tap.Info()
	if i.Name != "tap sn0" || i.Netdev != "sn0" || i.MTU != 4200 || !i.Up || !i.SeesIP || !i.Ethernet ||
		i.SrcPort != 0 || i.IDRule != "written" || !slices.Equal(i.Addrs, config().Addrs) {
		t.Errorf("%+v", i)
	}
	l, err := netlink.LinkByName("sn0")
	if err != nil {
		t.Fatal(err)
	}
	a := l.Attrs()
	if a.MTU != 4200 || a.Alias != "softnic" || bytes.Equal(a.HardwareAddr, i.MAC) || a.TxQLen != queueLen {
		t.Errorf("%+v", a)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range config().HostAddrs {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IPNet.String() == want.String() }) {
			t.Errorf("the host has no %s: %v", want, addrs)
		}
	}

	b := link.NewBatch(4)
	if err := tap.Recv(b, false); err != nil || len(b.Packets) != 0 {
		t.Errorf("%v, %d packets", err, len(b.Packets))
	}
	if err := tap.Recv(&link.Batch{}, true); err != nil {
		t.Errorf("without room: %v", err)
	}
	done := make(chan error)
	go func() { done <- tap.Recv(link.NewBatch(4), true) }()
	if err := tap.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv: %v", err)
	}
	if exists("sn0") {
		t.Error("the interface is still there")
	}
	if err := tap.Recv(b, false); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv: %v", err)
	}
	if err := tap.Send(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	if warning, err := tap.Release(); warning != "" || err != nil {
		t.Errorf("%q, %v", warning, err)
	}
}

func TestPing(t *testing.T) {
	private(t)
	ping, err := exec.LookPath("ping")
	if err != nil {
		t.Skip("no ping program: apt-get install iputils-ping")
	}
	c := config()
	c.MTU = MaxMTU
	tap := open(t, c)
	receive(t, tap)
	linkLocal := tap.node.linkLocal.String() + "%sn0"
	for _, args := range []string{
		"10.8.0.2", "-s 8972 -M do 10.8.0.2", "-s 1 10.8.0.2",
		"fd00:8::2", "-s 8952 -M do fd00:8::2", linkLocal, "ff02::1%sn0",
	} {
		// One at a time: after a first answer ping waits only two round trips for others. A link-local
		// address of the host is tentative for a second or two.
		var out []byte
		eventually(t, "ping "+args, func() bool {
			out, err = exec.Command(ping, append([]string{"-c1", "-W5"}, strings.Fields(args)...)...).CombinedOutput()
			return err == nil || !strings.HasPrefix(args, "f")
		})
		if err != nil || !bytes.Contains(out, []byte("1 received")) {
			t.Errorf("ping %s: %v\n%s", args, err, out)
		}
	}
	// The host answers for all nodes, too: what ping saw does not tell whether we did.
	eventually(t, "all pings counted", func() bool { return counter(tap, "tap_echo_replies") >= 7 })
	// The kernel's opinion of us.
	list, err := netlink.NeighList(tap.dev.index, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10.8.0.2", "fd00:8::2", tap.node.linkLocal.String()} {
		if !slices.ContainsFunc(list, func(n netlink.Neigh) bool {
			return n.IP.String() == want && bytes.Equal(n.HardwareAddr, tap.mac)
		}) {
			t.Errorf("the kernel has no neighbour %s: %v", want, list)
		}
	}
}

func TestRecv(t *testing.T) {
	private(t)
	c := config()
	c.MTU = MaxMTU
	tap := open(t, c)
	got := receive(t, tap)
	payload := make([]byte, MaxMTU-48)
	rand.NewChaCha8([32]byte{1}).Read(payload)
	for _, c := range []struct {
		local, to string
		off, n    int
	}{
		{"10.8.0.1", "10.8.0.2", 42, 1},
		{"10.8.0.1", "10.8.0.2", 42, 4120},
		{"10.8.0.1", "10.8.0.2", 42, MaxMTU - 28},
		{"fd00:8::1", "fd00:8::2", 62, MaxMTU - 48},
		{"10.8.0.1", "239.1.2.3", 42, 100},
	} {
		payload := payload[:min(c.n, len(payload))]
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.local), 0)))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := conn.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { // there is no route to a group here
				_ = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(tap.dev.index)})
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range []uint16{wire.Port + 1, wire.Port} { // the first is not for us
			if _, err := conn.WriteToUDPAddrPort(payload, netip.AddrPortFrom(netip.MustParseAddr(c.to), port)); err != nil {
				t.Errorf("%s: %v", c.to, err)
			}
		}
		conn.Close()
		f := <-got
		if len(f) != c.off+len(payload) || !bytes.Equal(f[c.off:], payload) {
			t.Errorf("%s: %d bytes, want %d", c.to, len(f), c.off+len(payload))
		}
	}
}

// The host may set a larger MTU than ours; frames that use it are lost whole.
func TestOversize(t *testing.T) {
	private(t)
	tap := open(t, config())
	got := receive(t, tap)
	l, err := netlink.LinkByName("sn0")
	if err == nil {
		err = netlink.LinkSetMTU(l, MaxMTU+500)
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the largest MTU", func() bool { return tap.Info().MTU == MaxMTU })
	conn, err := net.Dial("udp", "10.8.0.2:4791")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, n := range []int{MaxMTU - 28 + 100, 10} {
		if _, err := conn.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	if f := <-got; len(f) != 42+10 {
		t.Errorf("%d bytes", len(f))
	}
	if n := counter(tap, "tap_rx_oversize"); n != 1 {
		t.Errorf("%d counted", n)
	}
}

func TestSend(t *testing.T) {
	private(t)
	tap := open(t, config())
	receive(t, tap)
	for _, c := range []struct{ src, dst string }{{"10.8.0.2", "10.8.0.1"}, {"fd00:8::2", "fd00:8::1"}} {
		host := listenUDP(t, c.dst)
		buf := make([]byte, 9000)
		// The first burst waits for the neighbour, the second does not; both arrive in order.
		for burst := range 2 {
			var frames []*link.Frame
			for i := range 16 { // what the receiver's socket has room for
				frames = append(frames, frame(c.src, c.dst, append([]byte{byte(burst), byte(i)}, bytes.Repeat([]byte{'x'}, 4096)...)))
			}
			if err := tap.Send(frames); err != nil {
				t.Fatal(err)
			}
			for i := range frames {
				n, from, err := host.ReadFromUDPAddrPort(buf)
				if err != nil {
					t.Fatalf("burst %d, frame %d: %v", burst, i, err)
				}
				want := fmt.Sprintf("base-header-%c%c%sicrc", burst, i, strings.Repeat("x", 4096))
				if string(buf[:n]) != want || from != netip.AddrPortFrom(netip.MustParseAddr(c.src), 0xc123) {
					t.Fatalf("burst %d, frame %d: %d bytes from %s", burst, i, n, from)
				}
			}
		}
	}
	if tap.out.n > 0 || tap.out.list[0].Base != nil {
		t.Error("Send keeps a frame's memory")
	}
}

// A destination that nobody has, under a clock of our own.
func TestSendToNobody(t *testing.T) {
	private(t)
	c := config()
	m := clock.NewManual(time.Unix(1000, 0))
	c.Clock = m
	tap := open(t, c)
	if err := tap.Send([]*link.Frame{frame("10.8.0.2", "10.8.0.99", []byte("x")), frame("10.8.0.2", "10.8.0.99", []byte("y"))}); err != nil {
		t.Fatal(err)
	}
	m.Advance(3*time.Second - 1)
	if n := counter(tap, "tap_tx_no_neighbour"); n != 0 {
		t.Errorf("%d lost too early", n)
	}
	m.Advance(1)
	if n := counter(tap, "tap_tx_no_neighbour"); n != 2 {
		t.Errorf("%d lost, want 2", n)
	}
	if n := counter(tap, "tap_neighbours_unanswered"); n != 1 {
		t.Errorf("%d given up, want 1", n)
	}
}

// What no port gives must not do harm.
func TestSendRefused(t *testing.T) {
	private(t)
	tap := open(t, config())
	short := frame("10.8.0.2", "10.8.0.1", nil)
	short.Eth = short.Eth[:13]
	none := frame("10.8.0.2", "10.8.0.1", nil)
	none.Path = &wire.Path{}
	nobody := frame("10.8.0.2", "10.8.0.1", nil)
	nobody.Packet = nil
	pathless := frame("10.8.0.2", "10.8.0.1", nil)
	pathless.Path = nil
	if err := tap.Send([]*link.Frame{short, none, nobody, pathless}); err != nil {
		t.Error(err)
	}
	if n := counter(tap, "tap_tx_refused") + counter(tap, "tap_tx_no_neighbour"); n != 4 {
		t.Errorf("%d counted, want 4", n)
	}
}

func TestWatch(t *testing.T) {
	private(t)
	tap := open(t, config())
	news := make(chan link.Info, 64)
	tap.Watch(func() { news <- tap.Info() })
	l, err := netlink.LinkByName("sn0")
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, cond func(link.Info) bool) {
		t.Helper()
		timeout := time.After(20 * time.Second)
		for !cond(tap.Info()) {
			select {
			case <-news:
			case <-timeout:
				t.Fatal("not heard of: " + what)
			}
		}
	}
	if err := netlink.LinkSetMTU(l, 2000); err != nil {
		t.Fatal(err)
	}
	await("MTU", func(i link.Info) bool { return i.MTU == 2000 })
	if err := netlink.LinkSetDown(l); err != nil {
		t.Fatal(err)
	}
	await("down", func(i link.Info) bool { return !i.Up && i.Downs == 1 })
	// The kernel does not take a frame now.
	tap.know(t, host4)
	if err := tap.Send([]*link.Frame{frame("10.8.0.2", "10.8.0.1", nil)}); err != nil {
		t.Error(err)
	}
	if n := counter(tap, "tap_tx_refused"); n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	await("up", func(i link.Info) bool { return i.Up && i.Downs == 1 })

	// The host's addresses make the gateway.
	gateway := func() netip.Addr {
		tap.mu.Lock()
		defer tap.mu.Unlock()
		return tap.node.gateway4
	}
	if g := gateway(); g != host4 {
		t.Errorf("gateway %s", g)
	}
	for _, change := range []struct {
		do   func(netlink.Link, *netlink.Addr) error
		addr string
		want string
	}{
		{netlink.AddrAdd, "10.8.7.1/24", "10.8.0.1"},
		{netlink.AddrDel, "10.8.0.1/24", "10.8.7.1"},
	} {
		a, err := netlink.ParseAddr(change.addr)
		if err == nil {
			err = change.do(l, a)
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "gateway "+change.want, func() bool { return gateway().String() == change.want })
	}

	// Close from within the call must not wait for itself.
	closed := make(chan struct{})
	tap.Watch(func() {
		tap.Close()
		close(closed)
	})
	if err := netlink.LinkSetMTU(l, 3000); err != nil {
		t.Fatal(err)
	}
	<-closed
	tap.Watch(nil)
}

// Somebody removes the interface below us.
func TestInterfaceRemoved(t *testing.T) {
	private(t)
	tap := open(t, config())
	done := make(chan error)
	go func() { done <- tap.Recv(link.NewBatch(4), true) }()
	l, err := netlink.LinkByName("sn0")
	if err == nil {
		err = netlink.LinkDel(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "somebody removed the interface") {
		t.Errorf("Recv: %v", err)
	}
	eventually(t, "down", func() bool { return !tap.Info().Up })
	if err := tap.Send([]*link.Frame{frame("10.8.0.2", "239.0.0.1", nil)}); err != nil {
		t.Errorf("Send: %v", err)
	}
	if warning, err := tap.Release(); warning != "" || err != nil {
		t.Errorf("%q, %v", warning, err)
	}
}

func TestTwo(t *testing.T) {
	private(t)
	a, b := config(), config()
	b.Name, b.Addrs, b.HostAddrs = "sn1", prefixes("10.9.0.2/24"), prefixes("10.9.0.1/24")
	one, two := open(t, a), open(t, b)
	if bytes.Equal(one.Info().MAC, two.Info().MAC) {
		t.Error("both have one MAC")
	}
	gotOne, gotTwo := receive(t, one), receive(t, two)
	for _, c := range []struct {
		to  string
		got <-chan []byte
	}{{"10.8.0.2:4791", gotOne}, {"10.9.0.2:4791", gotTwo}} {
		conn, err := net.Dial("udp", c.to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(c.to)); err != nil {
			t.Error(err)
		}
		conn.Close()
		if f := <-c.got; string(f[42:]) != c.to {
			t.Errorf("%q arrived, want %q", f[42:], c.to)
		}
	}
}

// Two NICs on one bridge: between them the neighbour code is on both sides.
func TestBridge(t *testing.T) {
	private(t)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	off := false
	br.MulticastSnooping = &off
	if err := netlink.LinkAdd(br); err != nil {
		t.Skipf("kernel without bridge: %v", err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		t.Fatal(err)
	}
	var taps []*Tap
	for i, name := range []string{"sn0", "sn1"} {
		tap := open(t, Config{Name: name, MTU: 4200, Addrs: prefixes(fmt.Sprintf("10.8.0.%d/24", i+1), fmt.Sprintf("fd00:8::%d/64", i+1))})
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
		if err != nil {
			t.Fatal(err)
		}
		taps = append(taps, tap)
	}
	receive(t, taps[0])
	got := receive(t, taps[1])
	for _, c := range []struct {
		src, dst string
		off      int
	}{{"10.8.0.1", "10.8.0.2", 42}, {"fd00:8::1", "fd00:8::2", 62}, {"10.8.0.1", "239.1.2.3", 42}, {"fd00:8::1", "ff0e::7", 62}} {
		// The bridge's port needs a moment to forward.
		var f []byte
		eventually(t, "a packet to "+c.dst, func() bool {
			if err := taps[0].Send([]*link.Frame{frame(c.src, c.dst, []byte(c.dst))}); err != nil {
				t.Fatal(err)
			}
			select {
			case f = <-got:
				return bytes.Contains(f, []byte(c.dst))
			default:
				return false
			}
		})
		if string(f[c.off:]) != "base-header-"+c.dst+"icrc" {
			t.Errorf("%q", f[c.off:])
		}
	}
}

func TestNameTaken(t *testing.T) {
	private(t)
	open(t, config())
	if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "dummy9"}}); err != nil {
		t.Logf("kernel without dummy interfaces: %v", err)
	}
	theirs, err := attach("tap9", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(theirs)
	me := fmt.Sprintf("%s (pid %d)", comm(t), os.Getpid())
	for name, want := range map[string]string{
		"sn0":    "in use by " + me,
		"lo":     "is not a TAP that softnic left: choose another name",
		"dummy9": "the interface exists (dummy) and is not a TAP",
		"tap9":   "belongs to " + me,
	} {
		if !exists(name) {
			continue
		}
		c := config()
		c.Name = name
		_, err := Open(c)
		if err == nil || !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s:\n got %v\nwant %s", name, err, want)
		}
		if !exists(name) {
			t.Errorf("%s was removed", name)
		}
	}
	if err := setPersist(theirs, true); err != nil {
		t.Fatal(err)
	}
	unix.Close(theirs)
	c := config()
	c.Name = "tap9"
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "softnic did not make it") {
		t.Error(err)
	}
}

func comm(t testing.TB) string {
	b, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// What an earlier process left is taken over, whatever state it is in.
func TestTakeOver(t *testing.T) {
	private(t)
	first, err := Open(config())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.persist(true); err != nil {
		t.Fatal(err)
	}
	// As if the process had been killed.
	first.ended.Store(true)
	first.stopWatch()
	first.file.Close()
	l, err := netlink.LinkByName("sn0")
	if err != nil {
		t.Fatal("it did not stay")
	}
	if err := netlink.LinkSetDown(l); err != nil {
		t.Fatal(err)
	}
	c := config()
	c.MTU, c.HostAddrs = 2000, prefixes("10.8.0.9/24")
	tap := open(t, c)
	i := tap.Info()
	if !i.Up || i.MTU != 2000 {
		t.Errorf("%+v", i)
	}
	l, err = netlink.LinkByName("sn0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != "10.8.0.9/24" {
		t.Errorf("%v, %v", addrs, err)
	}
	if tt := l.(*netlink.Tuntap); !tt.NonPersist {
		t.Error("it would outlive us")
	}
	tap.Close()
	if exists("sn0") {
		t.Error("still there")
	}
}

// A process that is killed leaves nothing.
func TestKilled(t *testing.T) {
	private(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other process's interface", func() bool { return exists("sn0") })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	_, err = Open(config())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", cmd.Process.Pid)) {
		t.Errorf("while it runs: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if exists("sn0") {
		t.Error("the interface is still there")
	}
	open(t, config())
}

// holdEnv makes this program the process that TestKilled kills.
const holdEnv = "SOFTNIC_TAP_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdEnv) == "" {
		os.Exit(m.Run())
	}
	if _, err := Open(config()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {} // the Tap's goroutines run
}

func TestNotPermitted(t *testing.T) {
	private(t)
	// Capabilities belong to the thread, which is this test's own.
	head := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(head, &caps[0]); err != nil {
		t.Fatal(err)
	}
	caps[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(head, &caps[0]); err != nil {
		t.Fatal(err)
	}
	_, err := Open(config())
	if err == nil || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "needs CAP_NET_ADMIN") {
		t.Error(err)
	}
	t.Log(err)
}

func TestExplain(t *testing.T) {
	for in, want := range map[string]string{
		"/usr/bin/softnic": "/usr/bin/softnic", "/a b/x": "'/a b/x'", "/it's": `'/it'\''s'`, "": "''", "/a;b": "'/a;b'", "/ä": "/ä",
	} {
		if got := shellQuote(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
	if err := explain("x", unix.EINVAL); err.Error() != "x: invalid argument" {
		t.Error(err)
	}
}

// Steady state costs no memory.
func TestNoAllocation(t *testing.T) {
	private(t)
	tap := open(t, config())
	frames := []*link.Frame{frame("10.8.0.2", "10.8.0.1", make([]byte, 1024)), frame("fd00:8::2", "fd00:8::1", make([]byte, 4096))}
	b := link.NewBatch(64)
	tap.know(t, host4)
	tap.know(t, host6)
	// What the interface's news cost is counted too, but has an end.
	none := func(what string, f func()) {
		t.Helper()
		eventually(t, what+" without allocation", func() bool { return testing.AllocsPerRun(100, f) == 0 })
	}
	none("Send", func() {
		if err := tap.Send(frames); err != nil {
			t.Fatal(err)
		}
	})

	conn, err := net.Dial("udp", "10.8.0.2:4791")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	payload := make([]byte, 1024)
	none("Recv", func() {
		if _, err := conn.Write(payload); err != nil {
			t.Fatal(err)
		}
		if err := tap.Recv(b, true); err != nil || len(b.Packets) != 1 {
			t.Fatalf("%v, %d packets", err, len(b.Packets))
		}
	})
	none("idle Recv", func() {
		if err := tap.Recv(b, false); err != nil || len(b.Packets) != 0 {
			t.Fatal(err, len(b.Packets))
		}
	})
}

// know puts the host into the neighbour table.
func (t *Tap) know(tb testing.TB, ip netip.Addr) {
	l, err := netlink.LinkByIndex(t.dev.index)
	if err != nil {
		tb.Fatal(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.node.learn(ip, hw(l.Attrs().HardwareAddr), true, time.Now())
}

// All at once, for the race detector: both directions, timers, news of the
// interface, and Close in the middle.
func TestConcurrent(t *testing.T) {
	private(t)
	c := config()
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	tap := open(t, c)
	host := listenUDP(t, "10.8.0.1")
	l, err := netlink.LinkByName("sn0")
	if err != nil {
		t.Fatal(err)
	}
	var received, wg sync.WaitGroup
	packets := receive(t, tap)
	received.Go(func() {
		for range packets {
		}
	})
	wg.Go(func() {
		for i := range 2000 {
			if err := tap.Send([]*link.Frame{frame("10.8.0.2", "10.8.0.1", []byte("x")), frame("10.8.0.2", fmt.Sprintf("10.8.0.%d", 10+i%50), []byte("y"))}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() {
		for range 2000 {
			host.WriteToUDPAddrPort([]byte("z"), netip.MustParseAddrPort("10.8.0.2:4791"))
		}
	})
	for i := range 50 {
		if err := netlink.LinkSetMTU(l, 2000+i); err != nil {
			t.Fatal(err)
		}
		tap.Watch(func() { tap.Info() })
		tap.Counters()
	}
	wg.Wait()
	tap.Close()
	received.Wait()
}

// A kernel RDMA link on the TAP. Needs the rdma_rxe driver, so it runs in a VM.
func TestRDMALink(t *testing.T) {
	private(t)
	tap := open(t, config())
	receive(t, tap)
	addRXE(t)
	if links, err := rdmaLinksOn(tap.dev.index, "sn0"); err != nil || !slices.Equal(links, []string{"sntest0"}) {
		t.Fatalf("%v, %v", links, err)
	}
	if who := rdmaUser("sntest0"); who != "" {
		t.Errorf("used by %s", who)
	}
	start := time.Now()
	warning, err := tap.Release()
	if warning != "" || err != nil {
		t.Errorf("%q, %v", warning, err)
	}
	if exists("sn0") || rdmaExists(t) {
		t.Error("something is left")
	}
	t.Logf("in %v", time.Since(start).Round(time.Millisecond))
}

// The same while a program has the RDMA device open.
func TestRDMALinkInUse(t *testing.T) {
	private(t)
	tap := open(t, config())
	receive(t, tap)
	addRXE(t)
	var dev *os.File
	verbs, _ := filepath.Glob("/sys/class/infiniband_verbs/*/ibdev")
	for _, v := range verbs {
		if b, _ := os.ReadFile(v); strings.TrimSpace(string(b)) == "sntest0" {
			var err error
			if dev, err = os.OpenFile("/dev/infiniband/"+filepath.Base(filepath.Dir(v)), os.O_RDWR, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if dev == nil {
		t.Skip("no verbs device: kernel without ib_uverbs")
	}
	defer dev.Close()
	warning, err := tap.Release()
	me := fmt.Sprintf("%s (pid %d)", comm(t), os.Getpid())
	want := "tap sn0: the interface stays, because " + me + " has sntest0 open: end it, then `rdma link delete sntest0; ip link delete sn0`"
	if warning != want || err != nil {
		t.Errorf("%v\n got %s\nwant %s", err, warning, want)
	}
	if !exists("sn0") || !rdmaExists(t) {
		t.Fatal("something is gone")
	}
	// The next start meets it still in use, then not.
	if _, err := Open(config()); err == nil || !strings.Contains(err.Error(), me+" has sntest0 open") {
		t.Error(err)
	} else {
		t.Log(err)
	}
	dev.Close()
	again := open(t, config())
	if rdmaExists(t) {
		t.Error("the link is still there")
	}
	again.Close()
	if exists("sn0") {
		t.Error("the interface is still there")
	}
}

func addRXE(t *testing.T) {
	t.Helper()
	if err := netlink.RdmaLinkAdd("sntest0", "rxe", "sn0"); err != nil {
		t.Skipf("no rxe in this kernel: %v", err)
	}
	t.Cleanup(func() { netlink.RdmaLinkDel("sntest0") })
}

func rdmaExists(t *testing.T) bool {
	all, err := netlink.RdmaLinkList()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(l *netlink.RdmaLink) bool { return l.Attrs.Name == "sntest0" })
}

// BenchmarkSend includes the kernel's way to a UDP socket.
func BenchmarkSend(b *testing.B) {
	private(b)
	tap := open(b, config())
	listenUDP(b, "10.8.0.1")
	tap.know(b, host4)
	for _, n := range []int{1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var frames []*link.Frame
			for range 32 {
				frames = append(frames, frame("10.8.0.2", "10.8.0.1", make([]byte, n)))
			}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for i := 0; i < b.N; i += len(frames) {
				if err := tap.Send(frames[:min(len(frames), b.N-i)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRecv includes sending from a UDP socket.
func BenchmarkRecv(b *testing.B) {
	private(b)
	tap := open(b, config())
	conn, err := net.Dial("udp", "10.8.0.2:4791")
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	batch := link.NewBatch(64)
	recv := func(want int) {
		for got := 0; got < want; got += len(batch.Packets) {
			if err := tap.Recv(batch, true); err != nil {
				b.Fatal(err)
			}
		}
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		b.Fatal(err)
	}
	recv(1)
	for _, n := range []int{1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			payload := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for i := 0; i < b.N; i += 32 {
				k := min(32, b.N-i)
				for range k {
					if _, err := conn.Write(payload); err != nil {
						b.Fatal(err)
					}
				}
				recv(k)
			}
		})
	}
}
