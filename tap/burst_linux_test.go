package tap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/udp"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// plainEnv has all tests open TAPs without bursts.
const plainEnv = "SOFTNIC_TAP_PLAIN"

func plain() bool { return os.Getenv(plainEnv) != "" }

// What holds for a TAP holds for one without bursts: all tests once more.
func TestPlain(t *testing.T) {
	if plain() {
		return
	}
	private(t)
	if i := open(t, Config{Name: "sn8", Plain: true}).Info(); i.MaxSegs != 1 {
		t.Errorf("%d packets a burst", i.MaxSegs)
	}
	if testing.Short() {
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^Test", "-test.count", "1")
	cmd.Env = append(os.Environ(), plainEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// bursts skips the test where the kernel has no bursts for a TAP.
func bursts(t testing.TB, tap *Tap) {
	t.Helper()
	if plain() || tap.Info().MaxSegs == 1 {
		t.Skip("no bursts: needs Linux 6.2")
	}
}

// bridged opens two TAPs on one bridge, with 10.8.0.1 and 10.8.0.2, and waits until it forwards.
func bridged(t testing.TB, plain ...bool) (a, b *Tap) {
	t.Helper()
	off := false
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}, MulticastSnooping: &off}
	if err := netlink.LinkAdd(br); err != nil {
		t.Skipf("kernel without bridge: %v", err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		t.Fatal(err)
	}
	var taps []*Tap
	for i, name := range []string{"sn0", "sn1"} {
		tap := open(t, Config{Name: name, MTU: 4200, Plain: plain[i], Addrs: prefixes(fmt.Sprintf("10.8.0.%d/24", i+1), fmt.Sprintf("fd00:8::%d/64", i+1))})
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
		if err != nil {
			t.Fatal(err)
		}
		taps = append(taps, tap)
	}
	return taps[0], taps[1]
}

// shaped returns packets as a doorbell has them: runs of one length that end with a shorter one, to several parties.
func shaped(r *rand.Rand, from int, paths ...*wire.Path) (l []*wire.Packet) {
	for range 3 {
		path := paths[r.IntN(len(paths))]
		n := 16 * r.IntN(257)
		for range 1 + r.IntN(80) {
			l = append(l, linktest.Send(path, 17, bth.PSN(from+len(l)), bytes.Repeat([]byte{byte(len(l)), 0xff}, n/2)))
		}
		l = append(l, linktest.Send(path, 17, bth.PSN(from+len(l)), bytes.Repeat([]byte{0xEE}, r.IntN(n+1)/4*4)))
	}
	return l
}

// exchange sends packets from a to b, and compares each that arrives with the one that was sent: every byte but the checksum of UDP,
// which is right if there is one.
func exchange(t *testing.T, a, b *link.Port, sent *linktest.Sink, pkts []*wire.Packet) {
	t.Helper()
	sent.Take()
	if err := a.Send(pkts); err != nil {
		t.Fatal(err)
	}
	want := sent.Take()
	batch := link.NewBatch(32)
	for i := 0; i < len(want); {
		if err := b.Sources()[0].Recv(batch, true); err != nil {
			t.Fatal(err)
		}
		b.Parse(batch)
		for j := range batch.Packets {
			pk, w := &batch.Packets[j], &want[i]
			got := slices.Concat(pk.View.Net, pk.View.IB)
			ip := w.Bytes[len(w.Bytes)-len(got):]
			if pk.Fault != wire.OK {
				t.Fatalf("packet %d of %d: %v\n% x", i, len(want), pk.Fault, got[:min(60, len(got))])
			}
			if crc, found := linktest.ICRC(got); crc != found {
				t.Fatalf("packet %d: ICRC", i)
			}
			n := len(pk.View.Net)
			if copy(got[n-2:n], []byte{0, 0}); !bytes.Equal(got, ip) {
				t.Fatalf("packet %d of %d:\n% x, want\n% x", i, len(want), got[:60], ip[:60])
			}
			i++
		}
		b.Done(batch)
	}
}

// Two NICs on a bridge: what leaves in bursts arrives as the packets that it was made of, in order, whole up to the other NIC or taken
// apart by the kernel, which computes the UDP checksums then.
func TestBridgeBursts(t *testing.T) {
	for _, p := range [][]bool{{false, false}, {false, true}, {true, false}} {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			private(t)
			const seed = 1
			a, b := bridged(t, p...)
			if !p[0] {
				bursts(t, a)
			}
			sent, seen := new(linktest.Sink), new(linktest.Sink)
			pa, pb := linktest.Port(t, a, link.PortOptions{Capture: sent}), linktest.Port(t, b, link.PortOptions{Capture: seen})
			if p[0] != (pa.Info().MaxSegs == 1) {
				t.Fatal(pa.Info().MaxSegs)
			}
			await(t, pa, pb)
			r := rand.New(rand.NewPCG(seed, 0))
			psn := 0
			for _, paths := range [][]*wire.Path{
				{linktest.Path("10.8.0.1", "10.8.0.2"), linktest.Path("10.8.0.1", "10.8.0.2")},
				{linktest.Path("fd00:8::1", "fd00:8::2"), linktest.Path("fd00:8::1", "fd00:8::2")},
			} {
				paths[1].TClass, paths[1].HopLimit, paths[1].SrcPort = 2, 9, 0xd000
				for range 20 {
					pkts := shaped(r, psn, paths...)
					psn += len(pkts)
					seen.Take()
					exchange(t, pa, pb, sent, pkts)
					// The capture has each packet, with its Ethernet header.
					for i, e := range seen.Take() {
						if e.HeadAt != ethLen+paths[0].NetLen() || !bytes.Equal(e.Bytes[:6], b.mac) || len(e.Bytes) != e.HeadAt+pkts[i].IBLen() {
							t.Fatalf("captured: % x", e.Bytes[:min(80, len(e.Bytes))])
						}
					}
				}
			}
		})
	}
}

// await sends from a to b until the bridge forwards.
func await(t testing.TB, a, b *link.Port) {
	t.Helper()
	batch := link.NewBatch(32)
	var pkts []*wire.Packet
	for _, p := range []*wire.Path{linktest.Path("10.8.0.1", "10.8.0.2"), linktest.Path("fd00:8::1", "fd00:8::2")} {
		pkts = append(pkts, linktest.Send(p, 17, 0, nil))
	}
	seen := map[bool]bool{}
	drain := func(p *link.Port) (n int) {
		if err := p.Sources()[0].Recv(batch, false); err != nil {
			t.Fatal(err)
		}
		p.Parse(batch)
		for i := range batch.Packets {
			seen[batch.Packets[i].View.V6] = true
		}
		return len(batch.Packets)
	}
	eventually(t, "the bridge forwarding", func() bool {
		if err := a.Send(pkts); err != nil {
			t.Fatal(err)
		}
		drain(b)
		drain(a) // answers from b's node
		return len(seen) == 2
	})
	time.Sleep(20 * time.Millisecond)
	for drain(b) > 0 {
	}
	drain(a)
}

// A burst in a batch that has no room for all of it comes in several.
func TestBurstInPieces(t *testing.T) {
	private(t)
	a, b := bridged(t, false, false)
	bursts(t, a)
	pa, pb := linktest.Port(t, a, link.PortOptions{}), linktest.Port(t, b, link.PortOptions{})
	await(t, pa, pb)
	path := linktest.Path("10.8.0.1", "10.8.0.2")
	var pkts []*wire.Packet
	for i := range 50 {
		pkts = append(pkts, linktest.Send(path, 17, bth.PSN(i), bytes.Repeat([]byte{byte(i)}, 100)))
	}
	if err := pa.Send(pkts); err != nil {
		t.Fatal(err)
	}
	batch := link.NewBatch(7)
	for i := 0; i < len(pkts); {
		if err := pb.Sources()[0].Recv(batch, i == 0); err != nil || len(batch.Packets) != min(7, len(pkts)-i) {
			t.Fatalf("packet %d: %d in the batch, %v", i, len(batch.Packets), err)
		}
		// The kernel's own frames (neighbour and multicast discovery) may have been read with it.
		n, r := 0, batch.Scratch(nil).(*buffers)
		for _, f := range r.reads[:r.n] {
			if b.node.classify(f[vnetLen:]).verdict == deliver {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%d frames with RoCE packets were read: it was not one burst", n)
		}
		pb.Parse(batch)
		for j := range batch.Packets {
			if p := &batch.Packets[j]; p.Fault != wire.OK || p.View.BTH().PSN() != bth.PSN(i) || int(be.Uint16(p.View.Net[4:])) != i {
				t.Fatalf("packet %d: %v, PSN %d, ID %x", i, p.Fault, p.View.BTH().PSN(), p.View.Net[4:6])
			}
			i++
		}
	}
}

// With a NIC on a socket of the host: bursts of either are the other's packets.
func TestHostBursts(t *testing.T) {
	for _, o := range []udp.Options{{SkipVerify: true}, {SkipVerify: true, Plain: true}} {
		t.Run(fmt.Sprint(o.Plain), func(t *testing.T) {
			private(t)
			const seed = 2
			tap := open(t, config())
			bursts(t, tap)
			for _, addrs := range [][2]string{{"10.8.0.1", "10.8.0.2"}, {"fd00:8::1", "fd00:8::2"}} {
				host, err := udp.Open(netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), wire.Port), o)
				if err != nil {
					t.Fatal(err)
				}
				fromTap, fromHost := new(linktest.Sink), new(linktest.Sink)
				pt := linktest.Port(t, still{tap}, link.PortOptions{Capture: fromTap})
				ph := linktest.Port(t, host, link.PortOptions{Capture: fromHost})
				tap.know(t, netip.MustParseAddr(addrs[0]))
				// The host asks for us before it sends.
				if err := ph.Send([]*wire.Packet{linktest.Send(linktest.Path(addrs[0], addrs[1]), 17, 0, nil)}); err != nil {
					t.Fatal(err)
				}
				if err := tap.Recv(link.NewBatch(1), true); err != nil {
					t.Fatal(err)
				}
				r := rand.New(rand.NewPCG(seed, 0))
				for i := range 20 {
					exchange(t, pt, ph, fromTap, shaped(r, 300*i, linktest.Path(addrs[1], addrs[0])))
					exchange(t, ph, pt, fromHost, shaped(r, 300*i, linktest.Path(addrs[0], addrs[1])))
				}
			}
		})
	}
}

// still is an endpoint that its port does not close.
type still struct{ *Tap }

func (still) Close() error { return nil }

// A burst to a socket that does not ask for whole ones arrives as packets.
func TestBurstToSocket(t *testing.T) {
	private(t)
	tap := open(t, config())
	p := linktest.Port(t, tap, link.PortOptions{})
	receive(t, tap) // the host asks for us
	buf := make([]byte, 65536)
	for _, a := range [][2]string{{"10.8.0.2", "10.8.0.1"}, {"fd00:8::2", "fd00:8::1"}} {
		host := listenUDP(t, a[1])
		if a[1] == "fd00:8::1" && plain() {
			continue // such a socket takes none without a UDP checksum, which single ones lack
		}
		// One packet first, which waits for the neighbour.
		if err := tap.Send([]*link.Frame{frame(a[0], a[1], []byte("first"))}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := host.ReadFromUDPAddrPort(buf); err != nil {
			t.Fatal(err)
		}
		var pkts []*wire.Packet
		for i := range 10 {
			pkts = append(pkts, linktest.Send(linktest.Path(a[0], a[1]), 17, bth.PSN(i), bytes.Repeat([]byte{byte(i)}, 1000)))
		}
		if err := p.Send(pkts); err != nil {
			t.Fatal(err)
		}
		for i := range pkts {
			n, from, err := host.ReadFromUDPAddrPort(buf)
			if err != nil || n != pkts[i].IBLen() || bth.BTH(buf).PSN() != bth.PSN(i) || from.Port() != 0xc123 {
				t.Fatalf("packet %d: %v, %d bytes from %v", i, err, n, from)
			}
		}
	}
}

// Who diverts frames gets packets, whole and with checksums that are right, whatever the host would have left to a network card.
func TestDivertBursts(t *testing.T) {
	private(t)
	tap := open(t, config())
	type in struct {
		frame []byte
		other bool
	}
	got := make(chan in, 1024)
	tap.Divert(func(f []byte) bool {
		return be.Uint16(f[12:]) == typeIPv4 && f[23] != protoIGMP && f[30] != 224 && f[30] != 239
	})
	go func() {
		b := link.NewBatch(5)
		for tap.Recv(b, true) == nil {
			for _, p := range b.Packets {
				got <- in{bytes.Clone(p.Frame), p.Other}
			}
		}
	}()
	next := func(other bool) []byte {
		t.Helper()
		select {
		case f := <-got:
			if f.other != other || len(f.frame) < 42 {
				t.Fatalf("Other is %v: % x", f.other, f.frame)
			}
			return f.frame
		case <-time.After(20 * time.Second):
			t.Fatal("nothing in 20 s")
			return nil
		}
	}
	payload := make([]byte, 12*1001)
	rand.NewChaCha8([32]byte{3}).Read(payload)
	for _, port := range []uint16{9, wire.Port} {
		for _, segment := range []int{0, 1001} {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("10.8.0.2"), port)))
			if err != nil {
				t.Fatal(err)
			}
			raw, err := conn.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, segment) })
			}
			data, size := payload, segment
			if segment == 0 {
				data, size = payload[:1001], 1001
			}
			if err == nil {
				_, err = conn.Write(data)
			}
			conn.Close()
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(data); i += size {
				f := next(port != wire.Port)
				if len(f) != 42+size || !bytes.Equal(f[42:], data[i:i+size]) {
					t.Fatalf("port %d, byte %d: %d bytes", port, i, len(f))
				}
				if ip, sum := wire.ChecksumsOK(f[14:42], f[42:]); !ip || !sum || port == 9 && be.Uint16(f[40:]) == 0 {
					t.Errorf("port %d, byte %d: checksums %v %v", port, i, ip, sum)
				}
			}
		}
	}
	// TCP: the host asks for a connection that nobody takes.
	conn, err := (&net.Dialer{Timeout: time.Millisecond}).Dial("tcp4", "10.8.0.2:80")
	if err == nil {
		conn.Close()
		t.Fatal("somebody is there")
	}
	f := next(true)
	var pseudo []byte
	pseudo = append(append(pseudo, f[26:34]...), 0, f[23])
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(f)-34))
	if f[23] != unix.IPPROTO_TCP || ones(append(pseudo, f[34:]...)) != 0xffff {
		t.Errorf("% x", f)
	}
}

// Bursts cost no memory either, once there is what they need.
func TestBurstsNoAllocation(t *testing.T) {
	private(t)
	a, b := bridged(t, false, false)
	bursts(t, a)
	pa, pb := linktest.Port(t, a, link.PortOptions{}), linktest.Port(t, b, link.PortOptions{})
	await(t, pa, pb)
	path := linktest.Path("10.8.0.1", "10.8.0.2")
	var pkts []*wire.Packet
	for i := range 40 {
		pkts = append(pkts, linktest.Send(path, 17, bth.PSN(i), make([]byte, 4096)))
	}
	batch := link.NewBatch(64)
	source := pb.Sources()[0]
	eventually(t, "bursts without allocation", func() bool {
		return testing.AllocsPerRun(50, func() {
			if err := pa.Send(pkts); err != nil {
				t.Fatal(err)
			}
			for n := 0; n < len(pkts); n += len(batch.Packets) {
				if err := source.Recv(batch, true); err != nil {
					t.Fatal(err)
				}
				pb.Parse(batch)
				pb.Done(batch)
			}
		}) == 0
	})
}

// What becomes of one frame.
func TestTake(t *testing.T) {
	none := header(0, gsoNone, 0, 0, 0, 0)
	whole := unhex(t, ping4)[:49] // without padding
	copy(whole, []byte{2, 0, 0, 0, 0, 1})
	ping := bytes.Clone(whole)
	be.PutUint16(ping[36:], 0) // as the host leaves it, which sums up no pseudo-header for ICMP
	burst := inOne(packets(ethPlain, "10.8.0.1", "10.8.0.2", 3, 8, 4, false), ethLen, ip4Len)
	of := header(needsSum, gsoUDP, 42, 24, 34, 6)
	other := inOne(packets(ethPlain, "10.8.0.1", "10.8.0.9", 3, 8, 4, false), ethLen, ip4Len)
	foreigner := append([]byte{2, 0, 0, 0, 0, 7}, burst[6:]...)
	long := append(bytes.Clone(burst[:42]), make([]byte, MaxMTU)...)
	be.PutUint16(long[16:], uint16(len(long)-14))
	be.PutUint16(long[38:], uint16(len(long)-34))
	sumIP4(long[14:34])
	for name, c := range map[string]struct {
		h        vnet
		frame    []byte
		diverted bool
		counter  string
		packets  int
	}{
		"less than a header":            {none[:9], nil, true, "tap_rx_malformed", 0},
		"a header":                      {none, nil, true, "tap_rx_malformed", 0},
		"an echo request":               {none, whole, false, "tap_echo_replies", 0},
		"an unfinished echo request":    {header(needsSum, gsoNone, 0, 0, 34, 2), ping, false, "tap_echo_replies", 0},
		"its checksum is elsewhere":     {header(needsSum, gsoNone, 0, 0, 34, 999), ping, false, "tap_rx_malformed", 0},
		"a long packet":                 {none, append(bytes.Clone(ping), make([]byte, MaxMTU)...), true, "tap_rx_oversize", 0},
		"a burst":                       {of, burst, false, "", 3},
		"a burst, diverted":             {of, burst, true, "", 3},
		"a burst to somebody":           {of, other, false, "tap_rx_ignored", 0},
		"a burst to somebody, diverted": {of, other, true, "", 3},
		"another station's":             {of, foreigner, false, "tap_rx_foreign", 0},
		"another station's, diverted":   {of, foreigner, true, "", 3},
		"no burst":                      {of, burst[:50], false, "tap_rx_malformed", 0},
		"TCP in pieces, diverted":       {header(needsSum, 1, 54, 1000, 34, 16), burst, true, "tap_rx_malformed", 0},
		"a burst of packets too long":   {header(needsSum, gsoUDP, 42, 65535, 34, 6), long, false, "tap_rx_oversize", 0},
		"a burst of echo requests":      {of, whole, false, "tap_rx_malformed", 0},
	} {
		tap := newTaker(c.diverted)
		r, b := newBuffers(4, true), link.NewBatch(4)
		r.reads[0], r.n = append(bytes.Clone(c.h), c.frame...), 1
		tap.sort(b, r)
		if len(b.Packets) != c.packets {
			t.Errorf("%s: %d packets, want %d", name, len(b.Packets), c.packets)
		}
		for _, v := range tap.Counters() {
			if want := uint64(map[bool]int{true: 1}[v.Name == c.counter]); v.Value != want {
				t.Errorf("%s: %s is %d", name, v.Name, v.Value)
			}
		}
	}
}

// newTaker returns a Tap without an interface, which takes what it is told to have read.
func newTaker(diverted bool) *Tap {
	n := newNode(hw{2, 0, 0, 0, 0, 1}, prefixes("10.8.0.2/24", "fd00:8::2/64"), slog.New(slog.DiscardHandler), func([]byte) {})
	tap := &Tap{vnet: true, node: n}
	if diverted {
		tap.Divert(func(f []byte) bool { return true })
	}
	return tap
}

// Whatever stands before a frame and in it: nothing breaks, and no more comes out than may be in it.
func FuzzTake(f *testing.F) {
	l := packets(ethPlain, "10.8.0.1", "10.8.0.2", 3, 8, 4, false)
	for _, other := range []bool{false, true} {
		f.Add([]byte(header(needsSum, gsoUDP, 42, 24, 34, 6)), inOne(l, ethLen, ip4Len), other)
		f.Add([]byte(header(needsSum, gsoNone, 0, 0, 34, 6)), l[0], other)
		f.Add([]byte(header(needsSum, gsoNone, 0, 0, 34, 16)), unhex(f, ping4), other)
		f.Add([]byte(header(0, gsoNone, 0, 0, 0, 0)), unhex(f, arpAsk), other)
	}
	f.Fuzz(func(t *testing.T, h, frame []byte, diverted bool) {
		tap := newTaker(diverted)
		b := link.NewBatch(4)
		r := newBuffers(4, true)
		r.reads[0] = append(bytes.Clone(h), frame...)
		r.n = 1
		packets, most := 0, 1+len(frame)
		for {
			if b.Packets = b.Packets[:0]; r.at == r.n && len(r.burst.rest) == 0 {
				break
			}
			tap.sort(b, r)
			for i := range b.Packets {
				p := &b.Packets[i]
				if n := len(p.Frame) + len(p.Eth) + len(p.Net) + len(p.IB); n > bufLen || p.Other && !diverted {
					t.Fatalf("%d bytes, Other %v", n, p.Other)
				}
				if packets++; packets > most {
					t.Fatalf("%d packets of %d bytes", packets, len(frame))
				}
			}
		}
	})
}
