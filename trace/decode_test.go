package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

var path4 = wire.Path{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 0xC000}
var path6 = wire.Path{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), SrcPort: 0xC000}

func roce(p wire.Path, edit func(s *wire.Spec)) []byte {
	s := wire.NewSpec(p, bth.Make(bth.RC, bth.SendOnly), 0x11, 7)
	s.Payload = []byte("payload")
	if edit != nil {
		edit(&s)
	}
	return wire.Build(&s)
}

func join(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch x := p.(type) {
		case int:
			b = binary.BigEndian.AppendUint16(b, uint16(x))
		case []byte:
			b = append(b, x...)
		}
	}
	return b
}

// Each link type, and what a frame of it is.
func TestDecode(t *testing.T) {
	v4, v6 := roce(path4, nil), roce(path6, nil)
	macs := make([]byte, 12)
	long := append(bytes.Clone(v4), "padding of Ethernet"...)
	port := roce(path4, func(s *wire.Spec) { s.Path.DstPort = 4792 })
	frag := func(b []byte, field int) []byte {
		b = bytes.Clone(b)
		binary.BigEndian.PutUint16(b[6:], uint16(field))
		return b
	}
	frag6 := func(offset int) []byte {
		b := bytes.Clone(v6)
		b[6] = protoFragment
		b = slices.Insert(b, ipLen6, []byte{protoUDP, 0, byte(offset >> 8), byte(offset), 0, 0, 0, 1}...)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-ipLen6))
		return b
	}
	sll2 := make([]byte, 20)
	binary.BigEndian.PutUint16(sll2, 0x86DD)
	for _, c := range []struct {
		name string
		link LinkType
		data []byte
		kind Kind
		ip   []byte
	}{
		{"Ethernet", LinkEthernet, join(macs, 0x0800, v4), RoCE, v4},
		{"Ethernet, IPv6", LinkEthernet, join(macs, 0x86DD, v6), RoCE, v6},
		{"padding", LinkEthernet, join(macs, 0x0800, long), RoCE, v4},
		{"VLAN", LinkEthernet, join(macs, 0x8100, 5, 0x0800, v4), RoCE, v4},
		{"QinQ", LinkEthernet, join(macs, 0x88A8, 5, 0x8100, 7, 0x86DD, v6), RoCE, v6},
		{"QinQ of old", LinkEthernet, join(macs, 0x9100, 5, 0x8100, 7, 0x0800, v4), RoCE, v4},
		{"raw", LinkRaw, v4, RoCE, v4},
		{"raw, IPv6", LinkRaw, v6, RoCE, v6},
		{"raw 12", LinkRaw12, v4, RoCE, v4},
		{"raw 14", LinkRaw14, v6, RoCE, v6},
		{"IPv4", LinkIPv4, v4, RoCE, v4},
		{"IPv6", LinkIPv6, v6, RoCE, v6},
		{"cooked", LinkSLL, join(make([]byte, 14), 0x0800, v4), RoCE, v4},
		{"cooked, VLAN", LinkSLL, join(make([]byte, 14), 0x8100, 5, 0x0800, v4), RoCE, v4},
		{"cooked 2", LinkSLL2, join(sll2, v6), RoCE, v6},
		{"null, little-endian", LinkNull, join([]byte{2, 0, 0, 0}, v4), RoCE, v4},
		{"null, IPv6 of BSD", LinkNull, join([]byte{0, 0, 0, 28}, v6), RoCE, v6},
		{"loopback", LinkLoop, join([]byte{0, 0, 0, 24}, v6), RoCE, v6},
		{"RoCEv1", LinkEthernet, join(macs, 0x8915, make([]byte, 60)), RoCEv1, nil},
		{"RoCEv1, VLAN", LinkEthernet, join(macs, 0x8100, 5, 0x8915, make([]byte, 60)), RoCEv1, nil},
		{"ARP", LinkEthernet, join(macs, 0x0806, make([]byte, 46)), Other, nil},
		{"other port", LinkRaw, port, Other, nil},
		{"first fragment", LinkRaw, frag(v4, 0x2000), Fragment, nil},
		{"later fragment", LinkRaw, frag(v4, 100), Fragment, nil},
		{"fragment to another port", LinkRaw, frag(port, 0x2000), Other, nil},
		{"first fragment of IPv6", LinkRaw, frag6(1), Fragment, nil},
		{"later fragment of IPv6", LinkRaw, frag6(80), Fragment, nil},
		{"link type", 147, v4, Other, nil},
		{"Ethernet cut", LinkEthernet, macs, Other, nil},
		{"VLAN cut", LinkEthernet, join(macs, 0x8100, 5), Other, nil},
		{"cooked cut", LinkSLL, make([]byte, 15), Other, nil},
		{"cooked 2 cut", LinkSLL2, make([]byte, 19), Other, nil},
		{"null cut", LinkNull, []byte{2, 0, 0}, Other, nil},
		{"nothing", LinkRaw, nil, Other, nil},
		{"IP cut", LinkRaw, v4[:19], Other, nil},
		{"version of IP", LinkRaw, append([]byte{0x55}, v4[1:]...), Other, nil},
	} {
		var f Frame
		new(Decoder).Decode(c.link, c.data, len(c.data), &f)
		if f.Kind != c.kind || !bytes.Equal(f.IP, c.ip) || f.Cut {
			t.Errorf("%s: kind %d, cut %v, %x", c.name, f.Kind, f.Cut, f.IP)
			continue
		}
		var v wire.View
		if f.Kind != RoCE {
			continue
		}
		if fault := f.View(&v); fault != wire.OK || string(v.Payload) != "payload" || !wire.CheckICRC(&v) || f.BadIP || f.BadUDP {
			t.Errorf("%s: %v %q", c.name, fault, v.Payload)
		}
		// Cut anywhere it is no fault, and shows what is there.
		for n := len(c.data); n >= 0; n-- {
			d := c.data[:n]
			new(Decoder).Decode(c.link, d, len(c.data), &f)
			if f.Kind != RoCE {
				continue
			}
			if whole := len(f.IP) == len(c.ip); f.Cut == whole {
				t.Fatalf("%s: %d of %d bytes: cut %v", c.name, n, len(c.data), f.Cut)
			}
			if fault := f.View(&v); f.Cut && fault == wire.OK && len(v.IB) >= bth.Len && v.BTH().PSN() != 7 {
				t.Errorf("%s: %d bytes: PSN %v", c.name, n, v.BTH().PSN())
			}
		}
	}
	var f Frame
	(&Decoder{Ports: []uint16{4792}}).Decode(LinkRaw, port, len(port), &f)
	var v wire.View
	if f.Kind != RoCE || f.View(&v) != wire.OK || !wire.CheckICRC(&v) {
		t.Error("port 4792 is not taken")
	}
}

// Wrong checksums are told, and are no fault; the ICRC does not cover them.
func TestChecksums(t *testing.T) {
	for _, c := range []struct {
		packet  []byte
		at      int
		ip, udp bool
	}{
		{roce(path4, nil), 10, true, false},
		{roce(path4, nil), 26, false, true},
		{roce(path4, func(s *wire.Spec) { s.UDPSum = true }), 0, false, false},
		{roce(path6, func(s *wire.Spec) { s.UDPSum = true }), 46, false, true},
		{roce(path6, func(s *wire.Spec) { s.UDPSum = true }), 0, false, false},
	} {
		if c.at > 0 {
			c.packet[c.at] ^= 0x55
		}
		var f Frame
		var v wire.View
		new(Decoder).Decode(LinkRaw, c.packet, len(c.packet), &f)
		if fault := f.View(&v); fault != wire.OK || f.BadIP != c.ip || f.BadUDP != c.udp || !wire.CheckICRC(&v) {
			t.Errorf("%v: %v, IP %v, UDP %v", c, fault, f.BadIP, f.BadUDP)
		}
	}
}

// The window sorts what is out of order by little, received packets first, and moves nothing across a step of the clock.
func TestWindow(t *testing.T) {
	const us = 1000
	for _, c := range []struct {
		name string
		in   string // times in µs, with t for one that was sent, x for one without a time
		want string
	}{
		{"in order", "1 2 3", "1 2 3"},
		{"by little", "1 3 2 5 4", "1 2 3 4 5"},
		{"received first", "1 2t 2 2 2t", "1 2 2 2t 2t"},
		{"a step back", "1000000 1000001 5 7 6", "1000000 1000001 5 6 7"},
		{"a step forward", "5 6 1000000 1000001", "5 6 1000000 1000001"},
		{"without time", "5 x 6 x 4", "4 5 x 6 x"},
	} {
		w := newWindow(0)
		var got []string
		texts := map[uint64]string{}
		take := func() {
			h := w.next()
			if string(h.IP) != texts[h.Number] {
				t.Errorf("%s: packet %d is %q", c.name, h.Number, h.IP)
			}
			got = append(got, texts[h.Number])
		}
		for i, s := range strings.Fields(c.in) {
			p := Packet{Number: uint64(i), NoTime: s == "x"}
			for _, d := range strings.TrimSuffix(s, "t") {
				if d != 'x' {
					p.Time = p.Time*10 + int64(d-'0')
				}
			}
			p.Time *= us
			texts[p.Number] = s
			f := Frame{IP: []byte(s)}
			for w.full(&p) {
				take()
			}
			var word Word
			if strings.HasSuffix(s, "t") {
				word.Dir = Tx
			}
			w.put(&p, &f, word)
			f.IP[0] = '?' // it is a copy that is held
		}
		for w.n > 0 {
			take()
		}
		if w.next() != nil {
			t.Error("there is one more")
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", c.name, s, c.want)
		}
	}
	// It is bounded, in packets and in bytes.
	for _, size := range []int{1, 1 << 20} {
		w := newWindow(time.Hour)
		n := 0
		for p := (Packet{}); !w.full(&p) && n < 1e6; n++ {
			p.Time++
			w.put(&p, &Frame{IP: make([]byte, size)}, Word{})
		}
		if n != min(windowSize, windowBytes/size) {
			t.Errorf("%d packets of %d bytes", n, size)
		}
	}
}

// shared reads the captures that lie beside a checkout and are not part of it (kernel rxe between two VMs, CC BY-SA, see
// ../shared/pcaps/README.md). Without them the test is skipped.
func shared(t *testing.T, f func(t *testing.T, name string, packets []Packet)) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "shared", "pcaps", "*.pcap"))
	if len(files) == 0 {
		t.Skip("no captures in ../shared/pcaps beside the checkout")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, packets, err := all(b)
			if err != nil {
				t.Fatal(err)
			}
			f(t, filepath.Base(file), packets)
		})
	}
}

// The TCP exchange of the tools in the public captures: the first line is in conventions.md.
func TestExchange(t *testing.T) {
	shared(t, func(t *testing.T, name string, packets []Packet) {
		var x Exchanges
		var pairs []Pair
		qps := map[uint32]bool{}
		for range 2 { // seen on two interfaces
			for _, p := range packets {
				var f Frame
				new(Decoder).Decode(p.Link, p.Data, p.Length, &f)
				switch f.Kind {
				case Exchange:
					x.Add(&f.TCP, func(p Pair) { pairs = append(pairs, p) })
				case RoCE:
					var v wire.View
					f.View(&v)
					qps[v.BTH().DestQP()] = true
				}
			}
		}
		if len(pairs) != 1 {
			t.Fatalf("%d connections: %v", len(pairs), pairs)
		}
		p := pairs[0]
		// What goes over the wire goes to these queue pairs.
		for q := range qps {
			if q != p.A.QPN && q != p.B.QPN {
				t.Errorf("packets go to QP %x, the exchange has %v", q, p)
			}
		}
		if a, b := p.A.Addr.String(), p.B.Addr.String(); a == b || !strings.HasPrefix(a, "10.1.16.6") || !strings.HasPrefix(b, "10.1.16.6") {
			t.Errorf("%v", p)
		}
		if name == "rxe-pingpong-rc.pcap" && p.A != (Told{netip.MustParseAddr("10.1.16.62"), 0x21, 0x59DFD7}) {
			t.Errorf("%v", p)
		}
	})
}

// TestExchangeAgain: what the two ends of a pingpong tell each other, twice over, is one connection, and another after it another.
func TestExchangeAgain(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:18515")
	say := func(from, to netip.AddrPort, qpn, psn int) *Segment {
		ip := from.Addr().As4()
		return &Segment{From: from, To: to, Payload: fmt.Appendf(nil, "0000:%06x:%06x:00000000000000000000ffff%02x%02x%02x%02x\x00", qpn, psn, ip[0], ip[1], ip[2], ip[3])}
	}
	var x Exchanges
	var pairs []Pair
	add := func(s *Segment) { x.Add(s, func(p Pair) { pairs = append(pairs, p) }) }
	for range 2 {
		add(say(a, b, 0x11, 0x123456))
		add(say(b, a, 0x22, 0x654321))
	}
	add(say(a, b, 0x12, 1))
	add(say(b, a, 0x23, 2))
	want := []Pair{
		{Told{a.Addr(), 0x11, 0x123456}, Told{b.Addr(), 0x22, 0x654321}},
		{Told{a.Addr(), 0x12, 1}, Told{b.Addr(), 0x23, 2}},
	}
	if !slices.Equal(pairs, want) {
		t.Errorf("%v, want %v", pairs, want)
	}
}

// FuzzDecode decodes anything: what it finds lies inside the frame.
func FuzzDecode(f *testing.F) {
	f.Add(uint16(1), join(make([]byte, 12), 0x8100, 5, 0x0800, roce(path4, nil)), 0)
	f.Add(uint16(276), join([]byte{0x86, 0xDD}, make([]byte, 18), roce(path6, nil)), 10)
	f.Add(uint16(101), roce(path4, func(s *wire.Spec) { s.UDPSum = true }), 3)
	f.Fuzz(func(t *testing.T, link uint16, b []byte, more int) {
		var fr Frame
		var v wire.View
		before := bytes.Clone(b)
		new(Decoder).Decode(LinkType(link), b, len(b)+max(more, 0)%70000, &fr)
		if len(fr.IP) > len(b) || (fr.Kind == RoCE) != (fr.IP != nil) {
			t.Fatal(fr)
		}
		if fr.Kind == RoCE {
			if fault := fr.View(&v); fault == wire.OK && !fr.Cut && len(v.IB) < bth.Len+wire.ICRCLen {
				t.Fatal(fault)
			}
		}
		if fr.Kind == Exchange {
			new(Exchanges).Add(&fr.TCP, func(Pair) {})
		}
		if !bytes.Equal(b, before) {
			t.Fatal("the frame was changed")
		}
	})
}
