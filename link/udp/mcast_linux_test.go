package udp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

const group4 = "239.77.1.3"

func datagram(from, to string, psn int, payload []byte) []*wire.Packet {
	return []*wire.Packet{linktest.Packet(linktest.Path(from, to), bth.UDSendOnly, 0xFFFFFF, bth.PSN(psn), payload)}
}

func join(tb testing.TB, p *link.Port, group string) netip.Addr {
	tb.Helper()
	g := netip.MustParseAddr(group)
	if err := p.Join(g); err != nil {
		tb.Fatal(err)
	}
	return g
}

// groupPackets returns what comes to a port from groups: n packets, and what stands behind them.
func groupPackets(tb testing.TB, p *link.Port, n int) (psns []bth.PSN) {
	tb.Helper()
	b := link.NewBatch(32)
	take := func() {
		if err := p.Sources()[1].Recv(b, false); err != nil {
			tb.Fatal(err)
		}
		p.Parse(b)
		for i := range b.Packets {
			v := &b.Packets[i].View
			if b.Packets[i].Fault != wire.OK || !v.Dst().IsMulticast() || !v.IDKnown {
				tb.Fatalf("%v, to %v", b.Packets[i].Fault, v.Dst())
			}
			psns = append(psns, v.BTH().PSN())
		}
		p.Done(b)
	}
	for end := time.Now().Add(5 * time.Second); len(psns) < n && time.Now().Before(end); time.Sleep(time.Millisecond) {
		take()
	}
	time.Sleep(20 * time.Millisecond) // nothing may come behind
	take()
	return psns
}

func wantPSNs(tb testing.TB, p *link.Port, want ...bth.PSN) {
	tb.Helper()
	if got := groupPackets(tb, p, len(want)); !slices.Equal(got, want) {
		tb.Fatalf("PSNs %v, want %v", got, want)
	}
}

// Two NICs of one host hear each other and each itself once; one that has not joined hears nothing, and all can be
// opened beside the sockets of the group.
func TestGroup(t *testing.T) {
	ea, eb := open(t, addrA), open(t, addrB)
	a, b := linktest.Port(t, ea, link.PortOptions{}), linktest.Port(t, eb, link.PortOptions{})
	g := join(t, a, group4)
	c := linktest.Port(t, open(t, addrC), link.PortOptions{})
	join(t, b, group4)

	big := bytes.Repeat([]byte{7}, 4096)
	if err := a.Send(datagram(addrA, group4, 1, big)); err != nil {
		t.Fatal(err)
	}
	wantPSNs(t, a, 1)
	wantPSNs(t, b, 1)
	if err := c.Send(datagram(addrC, group4, 2, nil)); err != nil { // need not be a member
		t.Fatal(err)
	}
	wantPSNs(t, a, 2)
	wantPSNs(t, b, 2)
	wantPSNs(t, c)
	if err := b.Send(datagram(addrB, "239.77.1.4", 3, nil)); err != nil { // another group
		t.Fatal(err)
	}
	wantPSNs(t, a)

	// Nothing came by the sockets of the NICs themselves.
	for _, p := range []*link.Port{a, b, c} {
		batch := link.NewBatch(4)
		if err := p.Sources()[0].Recv(batch, false); err != nil || len(batch.Packets) != 0 {
			t.Fatal(err, len(batch.Packets))
		}
	}

	if err := b.Leave(g); err != nil {
		t.Fatal(err)
	}
	if err := b.Leave(g); err == nil {
		t.Error("left twice")
	}
	if err := a.Send(datagram(addrA, group4, 4, nil)); err != nil {
		t.Fatal(err)
	}
	wantPSNs(t, a, 4)
	wantPSNs(t, b)
	join(t, b, group4) // again
	join(t, b, group4) // no harm
	if err := a.Send(datagram(addrA, group4, 5, nil)); err != nil {
		t.Fatal(err)
	}
	wantPSNs(t, b, 5)

	if err := b.Join(netip.MustParseAddr("10.0.0.1")); err == nil {
		t.Error("joined a unicast address")
	}
	if err := b.Join(netip.MustParseAddr("ff0e::1")); err == nil || !strings.Contains(err.Error(), "127.77.0.2 has no IPv6, which the group ff0e::1 needs") {
		t.Error(err)
	}
	b.Close()
	if err := b.Join(netip.MustParseAddr("239.77.1.9")); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// The headers that the receiver rebuilds are those that were sent: TOS, TTL, ID 0, addresses, so that the ICRC is right
// on the wire too.
func TestGroupHeader(t *testing.T) {
	a, b := linktest.Port(t, open(t, addrA), link.PortOptions{}), linktest.Port(t, open(t, addrB), link.PortOptions{})
	join(t, b, group4)
	for i, hops := range []uint8{0, 1, 5, 64, 255} {
		pk := datagram(addrA, group4, i, []byte("x"))
		pk[0].Path.HopLimit, pk[0].Path.TClass = hops, uint8(i<<2)
		if err := a.Send(pk); err != nil {
			t.Fatal(err)
		}
		if hops == 0 {
			hops = 64
		}
		batch := link.NewBatch(1)
		if err := b.Sources()[1].Recv(batch, true); err != nil {
			t.Fatal(err)
		}
		b.Parse(batch)
		p := &batch.Packets[0]
		if v := &p.View; p.Fault != wire.OK || v.HopLimit() != hops || v.TClass() != uint8(i<<2) || v.ID() != 0 || v.Dst() != pk[0].Path.Dst || v.Src() != pk[0].Path.Src {
			t.Errorf("%v, header %x", p.Fault, p.View.Net)
		}
		b.Done(batch)
	}
	if p := open(t, addrC); p.Info().IDRule == "verified" {
		p.Close()
		fd := sniff(t)
		pk := datagram(addrA, group4, 9, []byte("on the wire"))
		if err := a.Send(pk); err != nil {
			t.Fatal(err)
		}
		ip := sniffed(t, fd, pk[0].Path.Dst)
		if w, g := linktest.ICRC(ip); w != g {
			t.Errorf("ICRC %08x, want %08x, in %x", g, w, ip)
		}
	}
}

// A group costs nothing per packet either.
func TestGroupNoAllocations(t *testing.T) {
	a, b := linktest.Port(t, open(t, addrA), link.PortOptions{}), linktest.Port(t, open(t, addrB), link.PortOptions{})
	join(t, b, group4)
	pkts, batch, src := datagram(addrA, group4, 1, make([]byte, 1024)), link.NewBatch(1), b.Sources()[1]
	round := func() {
		if err := a.Send(pkts); err != nil {
			t.Fatal(err)
		}
		if err := src.Recv(batch, true); err != nil {
			t.Fatal(err)
		}
		b.Parse(batch)
		b.Done(batch)
	}
	round()
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations for a packet", n)
	}
}

// sniffed returns the next IP packet to dst that a packet socket sees arrive.
func sniffed(tb testing.TB, fd int, dst netip.Addr) []byte {
	tb.Helper()
	buf := make([]byte, 65536)
	for {
		k, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			tb.Fatal(err)
		}
		l, ok := from.(*unix.SockaddrLinklayer)
		if ok && l.Pkttype != unix.PACKET_OUTGOING && k >= 28 && buf[0] == 0x45 && netip.AddrFrom4([4]byte(buf[16:])) == dst {
			return buf[:k]
		}
	}
}

// Over IPv6 a group needs an interface with a multicast route, which loopback is not: the test has one of the host's,
// and a group that no packet leaves the host for.
func TestGroup6(t *testing.T) {
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ifi := range ifs {
		addrs, _ := ifi.Addrs()
		for _, x := range addrs {
			a, ok := toPrefix(x)
			if !ok || !a.Addr().Is6() || a.Addr().IsLinkLocalUnicast() || ifi.Flags&(net.FlagMulticast|net.FlagUp) != net.FlagMulticast|net.FlagUp {
				continue
			}
			own, group := a.Addr().String(), "ff01::77:1:3"
			p := linktest.Port(t, open(t, own), link.PortOptions{})
			join(t, p, group)
			other, err := Open(netip.AddrPortFrom(a.Addr(), 0), Options{SkipVerify: true}) // another NIC, on another port
			if err != nil {
				t.Fatal(err)
			}
			q := linktest.Port(t, other, link.PortOptions{})
			for i, from := range []*link.Port{p, q} {
				if err := from.Send(datagram(own, group, i, []byte("six"))); err != nil {
					t.Fatal(err)
				}
				wantPSNs(t, p, bth.PSN(i))
			}
			wantPSNs(t, q)
			return
		}
	}
	t.Skip("this test needs an interface with an IPv6 address and multicast")
}
