package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// The tests have the RoCE port on addresses of their own in the loopback network.
const (
	addrA = "127.77.0.1"
	addrB = "127.77.0.2"
	addrC = "127.77.0.3"
)

func open(tb testing.TB, addr string) *Endpoint {
	tb.Helper()
	return openWith(tb, addr, Options{})
}

func openWith(tb testing.TB, addr string, o Options) *Endpoint {
	tb.Helper()
	a, err := ParseAddr(addr)
	if err != nil {
		tb.Fatal(err)
	}
	e, err := Open(a, o)
	if err != nil {
		if strings.Contains(err.Error(), "taken by") {
			tb.Skip("this test needs the RoCE port on a loopback address: ", err)
		}
		tb.Fatal(err)
	}
	tb.Cleanup(func() { e.Close() })
	return e
}

// plain opens a socket without any options, as a peer that knows nothing of RoCE, except
// the one that IPv6 without UDP checksums needs.
func plain(tb testing.TB, addr string) *net.UDPConn {
	tb.Helper()
	a := netip.MustParseAddrPort(addr)
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	if a.Addr().Is6() {
		raw, err := c.SyscallConn()
		if err != nil {
			tb.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, udpNoCheck6Rx, 1); err != nil {
				tb.Fatal(err)
			}
		})
	}
	return c
}

func read(tb testing.TB, c *net.UDPConn) ([]byte, netip.AddrPort) {
	tb.Helper()
	c.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 65536)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil {
		tb.Fatal(err)
	}
	return buf[:n], from
}

// recv receives and parses at least n packets and calls f with each.
func recv(tb testing.TB, p *link.Port, n int, f func(pk *link.Packet)) {
	tb.Helper()
	b := link.NewBatch(32)
	for n > 0 {
		if err := p.Sources()[0].Recv(b, true); err != nil {
			tb.Fatal(err)
		}
		p.Parse(b)
		for i := range b.Packets {
			f(&b.Packets[i])
			n--
		}
		p.Done(b)
	}
}

func TestPair(t *testing.T) {
	a, b := linktest.Port(t, open(t, addrA), link.PortOptions{}), linktest.Port(t, open(t, addrB), link.PortOptions{})
	path := linktest.Path(addrA, addrB)
	path.TClass, path.HopLimit = 0x6A, 17 // with ECN bits
	const n = 200
	for i := range n {
		pk := linktest.Send(path, 17, bth.PSN(i), bytes.Repeat([]byte{byte(i)}, 20*i+1))
		pk.Data = [][]byte{pk.Data[0][:i], nil, pk.Data[0][i:]} // gather
		if err := a.Send([]*wire.Packet{pk}); err != nil {
			t.Fatal(err)
		}
	}
	i := 0
	recv(t, b, n, func(pk *link.Packet) {
		v := &pk.View
		if pk.Fault != wire.OK || v.BTH().PSN() != bth.PSN(i) || len(v.Payload) != 20*i+1 || v.Payload[20*i] != byte(i) {
			t.Fatalf("packet %d: %v %v, %d bytes", i, pk.Fault, v.BTH().PSN(), len(v.Payload))
		}
		if v.TClass() != 0x6A || v.Net[8] != 17 {
			t.Fatalf("TOS %x, TTL %d", v.TClass(), v.Net[8])
		}
		if v.Src() != path.Src || v.Dst() != path.Dst || v.SrcPort() != wire.Port || !v.IDKnown || v.Net[4] != 0 || v.Net[5] != 0 {
			t.Fatalf("header %x", v.Net)
		}
		i++
	})
}

func TestPlainSocketAndBack(t *testing.T) {
	for name, c := range map[string]struct{ own, peer string }{
		"IPv4": {addrA, addrC},
		"IPv6": {"::1", "::1"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "IPv6" {
				if c, err := net.Listen("tcp6", "[::1]:0"); err != nil {
					t.Skip("this host has no IPv6: ", err)
				} else {
					c.Close()
				}
			}
			p := linktest.Port(t, open(t, c.own), link.PortOptions{})
			peer := plain(t, netip.AddrPortFrom(netip.MustParseAddr(c.peer), 0).String())
			path := linktest.Path(c.own, c.peer)
			if name == "IPv6" {
				// Both ends have the only address, so keep the port from looping the packet.
				path.Dst = path.Dst.WithZone("lo")
			}
			path.DstPort = peer.LocalAddr().(*net.UDPAddr).AddrPort().Port()
			if err := p.Send([]*wire.Packet{linktest.Send(path, 17, 5, []byte("hello"))}); err != nil {
				t.Fatal(err)
			}
			// The peer computes the ICRC from what it knows of the header.
			ib, from := read(t, peer)
			if from.Addr().WithZone("") != path.Src || from.Port() != wire.Port {
				t.Fatalf("from %v", from)
			}
			hdr := *path
			hdr.SrcPort, hdr.Dst = wire.Port, path.Dst.WithZone("")
			ip := make([]byte, hdr.NetLen())
			hdr.PutNet(ip, 0, len(ib))
			if w, g := linktest.ICRC(append(ip, ib...)); w != g {
				t.Fatalf("ICRC %08x, want %08x", g, w)
			}
			// And sends two back: one as a sender that counts its IDs, one spoilt.
			back := wire.Path{Src: hdr.Dst, Dst: hdr.Src, SrcPort: hdr.DstPort}
			pk := linktest.Send(&back, 18, 6, []byte("hello yourself"))
			whole := pk.Append(nil, 777)
			net, ib := whole[:back.NetLen()], whole[back.NetLen():]
			for range 2 {
				if _, err := peer.WriteToUDPAddrPort(ib, from); err != nil {
					t.Fatal(err)
				}
				ib[20] ^= 1
			}
			i := 0
			recv(t, p, 2, func(pk *link.Packet) {
				if i++; i == 2 {
					if pk.Fault != wire.ICRC {
						t.Fatalf("spoilt packet: %v", pk.Fault)
					}
					return
				}
				if name == "IPv6" {
					copy(net[1:4], pk.View.Net[1:4]) // the peer's kernel chose a flow label
				}
				if pk.Fault != wire.OK || !bytes.Equal(pk.View.Net, net) {
					t.Fatalf("%v, header\n%x, want\n%x", pk.Fault, pk.View.Net, net)
				}
			})
		})
	}
}

// What the host refuses for one destination does not keep the others back.
func TestSomeDestinationsFail(t *testing.T) {
	e := open(t, addrA)
	p := linktest.Port(t, e, link.PortOptions{})
	peer := plain(t, addrC+":4791")
	good := linktest.Path(addrA, addrC)
	var pkts []*wire.Packet
	for i, path := range []*wire.Path{
		good,
		linktest.Path(addrA, "203.0.113.9"), // not reachable from a loopback address
		good,
		linktest.Path(addrB, addrC), // not our source
		{Src: netip.IPv6Loopback(), Dst: netip.IPv6LinkLocalAllNodes()},
		linktest.Path(addrA, "127.77.0.99"), // nobody there: the host may say so later, or not
		good,
	} {
		pkts = append(pkts, linktest.Send(path, 17, bth.PSN(i), nil))
	}
	for range 3 {
		if err := p.Send(pkts); err != nil {
			t.Fatal(err)
		}
		for _, w := range []bth.PSN{0, 2, 6} {
			if ib, _ := read(t, peer); bth.BTH(ib).PSN() != w {
				t.Fatalf("PSN %v, want %v", bth.BTH(ib).PSN(), w)
			}
		}
	}
	if c := &e.count; c.wrongSource.Load() != 3 || c.unreachable.Load() != 6 {
		t.Fatal(e.Counters())
	}
	// The kernel takes 1024 pieces (UIO_MAXIOV); a packet of more arrives all the same.
	many := linktest.Send(good, 17, 7, make([]byte, 2000))
	many.Data = nil
	for i := range 2000 {
		many.Data = append(many.Data, []byte{byte(i)})
	}
	if err := p.Send([]*wire.Packet{many, pkts[0]}); err != nil {
		t.Fatal(err)
	}
	ib, _ := read(t, peer)
	if len(ib) != many.IBLen() || bth.BTH(ib).PSN() != 7 || ib[many.Len+1999] != 1999&255 || e.count.tooLong.Load() != 0 {
		t.Fatal(len(ib), e.Counters())
	}
	if ib, _ := read(t, peer); bth.BTH(ib).PSN() != 0 {
		t.Fatal(e.Counters())
	}
	if err := p.Send(pkts[:1]); err != nil {
		t.Fatal(err)
	}
	b := link.NewBatch(1)
	if err := p.Sources()[0].Recv(b, false); err != nil || len(b.Packets) != 0 {
		t.Fatal(err, len(b.Packets))
	}
}

func TestTruncated(t *testing.T) {
	e := open(t, addrA)
	peer := plain(t, addrC+":0")
	for _, n := range []int{9000, 16} {
		if _, err := peer.WriteToUDPAddrPort(make([]byte, n), e.addr); err != nil {
			t.Fatal(err)
		}
	}
	b := link.NewBatch(4)
	if err := e.Recv(b, true); err != nil {
		t.Fatal(err)
	}
	if len(b.Packets) == 0 { // the second comes alone
		if err := e.Recv(b, true); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.Packets) != 1 || len(b.Packets[0].IB) != 16 || counter(e, "link_rx_truncated") != 1 {
		t.Fatal(len(b.Packets), e.Counters())
	}
}

// Who has found nothing takes what comes then one by one and then together: in order, an empty datagram and one that is cut off among them. What is sent
// alone fails as it does among others.
func TestAfterNothing(t *testing.T) {
	e := open(t, addrA)
	peer := plain(t, addrC+":0")
	b, at := link.NewBatch(8), 0
	for _, first := range []int{0, 9000, 16} {
		if err := e.Recv(b, false); err != nil || len(b.Packets) != 0 {
			t.Fatal(len(b.Packets), err)
		}
		lengths := []int{first, 20, 0, 9000, 24}
		for _, n := range lengths {
			if _, err := peer.WriteToUDPAddrPort(make([]byte, n), e.addr); err != nil {
				t.Fatal(err)
			}
		}
		for _, want := range lengths {
			if want > rxLongest {
				continue
			}
			if at >= len(b.Packets) {
				if err := e.Recv(b, true); err != nil {
					t.Fatal(err)
				}
				at = 0
			}
			if n := len(b.Packets[at].IB); n != want {
				t.Fatalf("%d bytes, want %d of %v", n, want, lengths)
			}
			at++
		}
	}
	if n := counter(e, "link_rx_truncated"); n != 4 {
		t.Errorf("%d were cut off, want 4", n)
	}
	p := linktest.Port(t, e, link.PortOptions{})
	if err := p.Send([]*wire.Packet{linktest.Send(linktest.Path(addrA, "203.0.113.9"), 17, 1, nil)}); err != nil || e.count.unreachable.Load() != 1 {
		t.Error(err, e.Counters())
	}
}

func TestClose(t *testing.T) {
	e := open(t, addrA)
	errs := make(chan error)
	go func() { errs <- e.Recv(link.NewBatch(1), true) }()
	time.Sleep(10 * time.Millisecond) // mostly it waits then; right either way
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.Recv(link.NewBatch(1), false); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if err := e.Send(nil); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

func TestInfo(t *testing.T) {
	e := open(t, "127.77.0.4")
	i := e.Info()
	if i.Name != "udp 127.77.0.4:4791" || i.MTU < 1500 || i.MTU > 65535 || !i.Up || i.SeesIP || i.Ethernet ||
		i.SrcPort != 4791 || i.MaxSegs != maxSegs || i.MAC.String() != "02:00:7f:4d:00:04" ||
		!slices.Equal(i.Addrs, []netip.Prefix{netip.MustParsePrefix("127.77.0.4/8")}) {
		t.Fatalf("%+v", i)
	}
	called := false
	e.Watch(func() { called = true })
	e.poll()
	if called {
		t.Fatal("nothing changed")
	}
	e.mu.Lock()
	e.info.MTU = 1400
	e.mu.Unlock()
	e.poll()
	if !called || e.Info().MTU != i.MTU {
		t.Fatal("the change was not seen")
	}
	own := e.addr
	for _, up := range []bool{false, true} { // the interface loses the address, and gets it again
		if e.addr = own; !up {
			e.addr = netip.MustParseAddrPort("203.0.113.77:4791")
		}
		e.poll()
		if i := e.Info(); i.Up != up || i.Downs != 1 {
			t.Fatalf("%+v", i)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	for a, w := range map[string]string{
		"203.0.113.77":  "udp: 203.0.113.77 is not an address of this host; have: ",
		"0.0.0.0":       "udp: 0.0.0.0 is no address to send from: name one address of this host; have: ",
		"224.0.0.1":     "is no address to send from",
		"::":            "is no address to send from",
		"[2001:db8::9]": "2001:db8::9 is not an address of this host; have: ",
	} {
		addr, err := ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		e, err := Open(addr, Options{})
		if err == nil {
			e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", a, err)
		}
	}
	if err := openError(netip.MustParseAddrPort("[::1]:4791"), syscall.EAFNOSUPPORT); !strings.Contains(err.Error(), "no IPv6") {
		t.Error(err)
	}
	if err := openError(netip.MustParseAddrPort("127.0.0.1:4791"), syscall.EPERM); !strings.Contains(err.Error(), "may not use port 4791 on 127.0.0.1") {
		t.Error(err)
	}
	for mtu, w := range map[int]string{296: "udp: the MTU of eth7 is 296, and the smallest IB MTU with its headers needs 336: raise it (ip link set eth7 mtu 1500)", 336: ""} {
		if err := checkMTU(&link.Info{Netdev: "eth7", MTU: mtu}); (err == nil) != (w == "") || err != nil && err.Error() != w {
			t.Error(err)
		}
	}
}

func TestParseAddr(t *testing.T) {
	for s, w := range map[string]string{
		"127.0.0.1":        "127.0.0.1:4791",
		"127.0.0.1:5000":   "127.0.0.1:5000",
		"::1":              "[::1]:4791",
		"[::1]":            "[::1]:4791",
		"[::1]:5000":       "[::1]:5000",
		"fe80::1%eth0":     "[fe80::1%eth0]:4791",
		"::ffff:127.0.0.1": "127.0.0.1:4791",
		"localhost":        "",
		"127.0.0.1:0":      "",
		"127.0.0.1:x":      "",
		"":                 "",
	} {
		a, err := ParseAddr(s)
		if (err == nil) != (w != "") || err == nil && a.String() != w {
			t.Errorf("%q: %v, %v", s, a, err)
		}
	}
}

// counter finds a counter.
func counter(e *Endpoint, name string) uint64 {
	for _, v := range e.Counters() {
		if v.Name == name {
			return v.Value
		}
	}
	panic(name)
}

// TestAwait: somebody waits for the socket while another receives. He is woken by what arrives, also before he waits, by
// Wake, also before, and by Close; and not by what has been received.
func TestAwait(t *testing.T) {
	own := fmt.Sprintf("127.78.%d.%d", os.Getpid()>>8&0xFF, os.Getpid()&0xFF) // two of this test may run at a time
	b := open(t, own)
	a := plain(t, addrA+":0")
	await := func() chan error {
		c := make(chan error, 1)
		go func() { c <- b.Await() }()
		return c
	}
	woken := func(c chan error, by string) {
		t.Helper()
		select {
		case err := <-c:
			if err != nil {
				t.Fatalf("woken by %s: %v", by, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("not woken by %s", by)
		}
		_ = b.out.raw.Control(func(fd uintptr) {
			set, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
			if err != nil || bytes.Contains(set, []byte("tfd:")) {
				t.Errorf("woken by %s, the socket is in the set, though nobody waits: %v\n%s", by, err, set)
			}
		})
	}
	asleep := func(c chan error, why string) {
		t.Helper()
		select {
		case err := <-c:
			t.Fatalf("woken (%v): %s", err, why)
		case <-time.After(20 * time.Millisecond): // not a proof; what is broken shows in most runs
		}
	}
	batch := link.NewBatch(8)
	take := func() int {
		t.Helper()
		if err := b.Recv(batch, false); err != nil {
			t.Fatal(err)
		}
		return len(batch.Packets)
	}
	send := func() {
		t.Helper()
		if _, err := a.WriteToUDPAddrPort(make([]byte, 64), netip.MustParseAddrPort(own+":4791")); err != nil {
			t.Fatal(err)
		}
	}

	send()
	woken(await(), "a datagram that was there")
	if n := take(); n != 1 {
		t.Fatalf("%d packets", n)
	}
	c := await()
	asleep(c, "all was received")
	send()
	woken(c, "a datagram")
	c = await()
	woken(c, "a datagram that is still there")
	take()
	c = await()
	b.Wake()
	woken(c, "Wake")
	b.Wake()
	woken(await(), "Wake before")
	c = await()
	asleep(c, "one Wake wakes once")
	b.Close()
	select {
	case err := <-c:
		if err != net.ErrClosed {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("not woken by Close")
	}
	if err := b.Await(); err != net.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}
