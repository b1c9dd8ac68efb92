package wire

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/softnic/softnic/wire/bth"
)

// packetOf makes the Packet of a Spec, its payload cut into pieces of the
// given length.
func packetOf(s *Spec, piece int) *Packet {
	p := &Packet{Path: &s.Path, Size: len(s.Payload), Pad: -len(s.Payload) & 3}
	i := s.BTH.Opcode.Info()
	p.Len = i.Len
	f := s.BTH
	f.Pad = p.Pad
	p.BTH().Encode(&f)
	s.Ext.Put(p.Head[:], i)
	for d := s.Payload; len(d) > 0; {
		n := min(piece, len(d))
		p.Data = append(p.Data, d[:n], nil)
		d = d[n:]
	}
	return p
}

func TestSealVectors(t *testing.T) {
	for _, g := range golden {
		want := unhex(g.packet)
		for _, piece := range []int{1, 3, 1 << 20} {
			p := packetOf(&g.spec, piece)
			net, ib := bytes.Repeat([]byte{0xA5}, 60), bytes.Repeat([]byte{0xA5}, p.IBLen()+1)
			n := p.Seal(net, g.spec.ID, ib)
			got := append(net[:p.Path.NetLen():p.Path.NetLen()], ib[:n]...)
			if !bytes.Equal(got, want) {
				t.Errorf("%s, pieces of %d:\ngot  %x\nwant %x", g.name, piece, got, want)
			}
			if net[p.Path.NetLen()] != 0xA5 || ib[n] != 0xA5 {
				t.Errorf("%s: Seal wrote beyond its buffers", g.name)
			}
			if len(want) != p.Path.NetLen()+p.IBLen() {
				t.Errorf("%s: IBLen %d", g.name, p.IBLen())
			}
			if got := p.Append([]byte("x"), g.spec.ID); !bytes.Equal(got[1:], want) || got[0] != 'x' {
				t.Errorf("%s: Append made %x", g.name, got)
			}
		}
	}
}

// TestSealAgain: a burst that is cut differently gives the packet another ID.
func TestSealAgain(t *testing.T) {
	first, second := vector(t, "RC SEND ONLY abc"), vector(t, "the same, ID 1")
	p := packetOf(&golden[2].spec, 2)
	for range 2 {
		if got := p.Append(nil, 0); !bytes.Equal(got, first) {
			t.Errorf("ID 0: %x", got)
		}
		if got := p.Append(nil, 1); !bytes.Equal(got, second) {
			t.Errorf("ID 1: %x", got)
		}
	}
}

func TestPutNet(t *testing.T) {
	for _, c := range []struct {
		path Path
		id   uint16
		n    int
		want string
	}{
		{Path{Src: a4, Dst: b4, SrcPort: 0xC123}, 0, 20, "45000030000040004011b6b9c0000201c0000202c12312b7001c0000"},
		{Path{Src: a4, Dst: b4, SrcPort: 1, DstPort: 2, TClass: 0xFF, HopLimit: 3}, 0xFFFF, 0, "45ff001cffff40000311f2cec0000201c0000202000100020008 0000"},
		{Path{Src: a6, Dst: b6, SrcPort: 0xC000, FlowLabel: 0xFFF12345, TClass: 0xAB, HopLimit: 1}, 9, 4096,
			"6ab1234510081101 20010db8000000000000000000000001 20010db8000000000000000000000002 c00012b710080000"},
		{Path{Src: netip.MustParseAddr("::ffff:192.0.2.1"), Dst: netip.MustParseAddr("::ffff:192.0.2.2")}, 9, 0,
			"6000000000081140 00000000000000000000ffffc0000201 00000000000000000000ffffc0000202 000012b700080000"},
	} {
		want := unhex(c.want)
		if c.path.NetLen() != len(want) {
			t.Errorf("%v: NetLen %d, want %d", c.path, c.path.NetLen(), len(want))
			continue
		}
		got := bytes.Repeat([]byte{0xA5}, len(want))
		c.path.PutNet(got, c.id, c.n)
		if !bytes.Equal(got, want) {
			t.Errorf("%v:\ngot  %x\nwant %x", c.path, got, want)
		}
	}
}

func TestPutEthernet(t *testing.T) {
	to, from := [6]byte{1, 2, 3, 4, 5, 6}, [6]byte{7, 8, 9, 10, 11, 12}
	var b [20]byte
	n := PutEthernet(b[:], to, from, EtherTypeIPv6)
	if want := unhex("010203040506 0708090a0b0c 86dd"); !bytes.Equal(b[:n], want) {
		t.Errorf("% x", b[:n])
	}
	n = PutEthernetVLAN(b[:], to, from, 0x6064, EtherTypeIPv4)
	if want := unhex("010203040506 0708090a0b0c 8100 6064 0800"); !bytes.Equal(b[:n], want) {
		t.Errorf("% x", b[:n])
	}
	var v View
	if f := ParseEthernet(append(b[:n:n], vector(t, "V5")...), &v); f != OK {
		t.Fatal(f)
	}
	if tci, ok := v.VLAN(); v.DstMAC() != to || v.SrcMAC() != from || !ok || tci != 0x6064 {
		t.Errorf("%x %x %x %v", v.DstMAC(), v.SrcMAC(), tci, ok)
	}
	if e := (&Path{Src: a4, Dst: b4}).EtherType(); e != EtherTypeIPv4 {
		t.Errorf("%x", e)
	}
	if e := (&Path{Src: a6, Dst: b6}).EtherType(); e != EtherTypeIPv6 {
		t.Errorf("%x", e)
	}
}

func TestBuildAndParseVectors(t *testing.T) {
	for _, g := range golden {
		t.Run(g.name, func(t *testing.T) {
			want := unhex(g.packet)
			if got := Build(&g.spec); !bytes.Equal(got, want) {
				t.Fatalf("built\n%x, want\n%x", got, want)
			}
			var v View
			if f := ParseIP(want, &v); f != OK {
				t.Fatalf("parsed: %v", f)
			}
			if !CheckICRC(&v) || !v.IDKnown {
				t.Error("ICRC refused")
			}
			// What was parsed is what was asked for, defaults filled in.
			s := g.spec
			s.Path.DstPort = Port
			if s.Path.HopLimit == 0 {
				s.Path.HopLimit = 64
			}
			if s.Path.Src.Is6() {
				s.ID = 0
			}
			s.Pad, s.BTH.Pad = make([]byte, -len(s.Payload)&3), -len(s.Payload)&3
			s.Payload = append([]byte{}, s.Payload...)
			if d := cmp.Diff(s, SpecOf(&v), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Errorf("parsed (-want +got):\n%s", d)
			}
			s = SpecOf(&v)
			if got := Build(&s); !bytes.Equal(got, want) {
				t.Errorf("built again\n%x, want\n%x", got, want)
			}
			if !bytes.Equal(v.ICRC(), want[len(want)-4:]) || v.Info != g.spec.BTH.Opcode.Info() || v.SrcPort() != g.spec.Path.SrcPort || v.DstPort() != Port {
				t.Errorf("ICRC % x, info %v, ports %d %d", v.ICRC(), v.Info, v.SrcPort(), v.DstPort())
			}
		})
	}
}

func TestHeaderAccess(t *testing.T) {
	var v View
	if f := ParseIP(vector(t, "V7"), &v); f != OK {
		t.Fatal(f)
	}
	h := bth.RETH(v.Header(bth.HRETH))
	if h.VA() != 0x1000 || h.RKey() != 0x20304 || h.Length() != 4097 || v.Header(bth.HAETH) != nil {
		t.Errorf("% x, % x", h, v.Header(bth.HAETH))
	}
	if v.Src() != a4 || v.Dst() != b4 || len(v.IP()) != 20 || v.ID() != 0x1234 || v.HopLimit() != 64 || v.FlowLabel() != 0 {
		t.Error(v.Src(), v.Dst(), v.IP(), v.ID(), v.HopLimit(), v.FlowLabel())
	}
	if f := ParseIP(vector(t, "V6"), &v); f != OK {
		t.Fatal(f)
	}
	if v.Src() != a6 || v.Dst() != b6 || len(v.IP()) != 40 || v.ID() != 0 || v.HopLimit() != 64 || v.FlowLabel() != 0x12345 || v.TClass() != 0 {
		t.Error(v.Src(), v.Dst(), v.IP(), v.ID(), v.HopLimit(), v.FlowLabel(), v.TClass())
	}
	if _, ok := v.VLAN(); ok {
		t.Error("a VLAN tag without an Ethernet header")
	}
}

func TestNoAllocation(t *testing.T) {
	payload := make([]byte, 1024)
	for _, path := range []Path{{Src: a4, Dst: b4}, {Src: a6, Dst: b6}} {
		s := NewSpec(path, bth.Make(bth.RC, bth.WriteOnly), 17, 5)
		s.Payload = payload
		packet := Build(&s)
		net, ib := packet[:path.NetLen()], packet[path.NetLen():]
		p := packetOf(&s, 500)
		sealed := make([]byte, p.IBLen())
		var v View
		if n := testing.AllocsPerRun(200, func() {
			if ParseIP(packet, &v) != OK || !CheckICRC(&v) {
				t.Error("refused")
			}
			if ParseSplit(net, ib, false, &v) != OK || !CheckICRC(&v) {
				t.Error("refused without ID")
			}
			_, _, _ = v.Src(), v.Dst(), v.Path()
			p.Seal(net, 0, sealed)
		}); n != 0 {
			t.Errorf("%v: %v allocations", path, n)
		}
	}
}

func BenchmarkParseIP(b *testing.B) {
	for _, name := range []string{"V3", "V6", "V7"} {
		packet := vector(b, name)
		b.Run(name, func(b *testing.B) {
			var v View
			b.ReportAllocs()
			for b.Loop() {
				ParseIP(packet, &v)
			}
		})
	}
}

func benchSizes(b *testing.B, f func(b *testing.B, s *Spec)) {
	for _, size := range []int{8, 64, 1024, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := NewSpec(Path{Src: a4, Dst: b4, SrcPort: 0xC000}, bth.Make(bth.RC, bth.WriteOnly), 17, 5)
			s.Payload = make([]byte, size)
			s.ID = 77
			b.ReportAllocs()
			f(b, &s)
		})
	}
}

func BenchmarkParseCheck(b *testing.B) {
	benchSizes(b, func(b *testing.B, s *Spec) {
		packet := Build(s)
		var v View
		for b.Loop() {
			if ParseIP(packet, &v) != OK || !CheckICRC(&v) {
				b.Fatal("refused")
			}
		}
	})
}

func BenchmarkParseSolve(b *testing.B) {
	benchSizes(b, func(b *testing.B, s *Spec) {
		packet := Build(s)
		var v View
		for b.Loop() {
			packet[4] = 0x5A // another ID than the one that is solved for
			if ParseSplit(packet[:28], packet[28:], false, &v) != OK || !CheckICRC(&v) {
				b.Fatal("refused")
			}
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	benchSizes(b, func(b *testing.B, s *Spec) {
		p := packetOf(s, 1<<20)
		var net [MaxNetLen]byte
		ib := make([]byte, p.IBLen())
		for b.Loop() {
			p.Seal(net[:], 3, ib)
		}
	})
}

func BenchmarkUDPChecksum(b *testing.B) {
	benchSizes(b, func(b *testing.B, s *Spec) {
		packet := Build(s)
		for b.Loop() {
			PutUDPChecksum(packet[:28], packet[28:])
		}
	})
}
