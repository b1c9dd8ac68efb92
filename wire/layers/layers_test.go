package layers

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/internal/pcaptest"
)

// ext is content for every extended header, each field different.
var ext = bth.Ext{
	EECN: 0x0A0B0C, QKey: 0x80010000, SrcQP: 0x44, SRQN: 0x0D0E0F, VA: 0x0102030405060708, RKey: 0x11223344,
	Length: 4097, SwapAdd: 0x1111111122222222, Compare: 0x3333333344444444, Original: 0x5555555566666666,
	Syndrome: 0x62, MSN: 0xABCDEF, Imm: 0x89ABCDEF, InvKey: 0xCAFEF00D, Selectivity: 1, Placement: 3,
}

// frame builds an Ethernet frame with the given opcode and payload length.
func frame(op bth.Opcode, v6 bool, size int) []byte {
	path := wire.Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xC000}
	if v6 {
		path.Src, path.Dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	}
	s := wire.NewSpec(path, op, 0x11, 0xFFFFFD)
	s.Eth = make([]byte, wire.EthLen)
	wire.PutEthernet(s.Eth, [6]byte{2, 1}, [6]byte{2, 2}, path.EtherType())
	s.BTH.AckReq, s.Ext = true, ext
	s.Payload = bytes.Repeat([]byte("payload."), 9)[:size]
	return wire.Build(&s)
}

// roce returns the names of the layers from the BTH on.
func roce(p gopacket.Packet) string {
	var names []string
	for _, l := range p.Layers() {
		if t := l.LayerType(); t >= LayerTypeBTH && t <= LayerTypeICRC {
			names = append(names, t.String())
		}
	}
	return strings.Join(names, " ")
}

// want returns what layers a frame of this opcode has.
func want(op bth.Opcode, size int) string {
	names := "BTH "
	for _, h := range op.Info().Headers {
		if h != bth.HNone {
			names += h.String() + " "
		}
	}
	if size > 0 {
		names += "RoCEPayload "
	}
	return names + "ICRC"
}

// content collects what the layers of a packet say, to compare with ext.
func content(list []gopacket.Layer) bth.Ext {
	var e bth.Ext
	for _, l := range list {
		switch l := l.(type) {
		case *RDETH:
			e.EECN = l.EECN
		case *DETH:
			e.QKey, e.SrcQP = l.QKey, l.SrcQP
		case *XRCETH:
			e.SRQN = l.SRQN
		case *RETH:
			e.VA, e.RKey, e.Length = l.VA, l.RKey, l.Length
		case *AtomicETH:
			e.VA, e.RKey, e.SwapAdd, e.Compare = l.VA, l.RKey, l.SwapAdd, l.Compare
		case *MaskedAtomicETH:
			e.VA, e.RKey, e.SwapAdd, e.Compare, e.SwapMask, e.CompareMask = l.VA, l.RKey, l.Swap, l.Compare, l.SwapMask, l.CompareMask
		case *AETH:
			e.Syndrome, e.MSN = l.Syndrome, l.MSN
		case *AtomicAckETH:
			e.Original = l.Original
		case *ImmDt:
			e.Imm = l.Data
		case *IETH:
			e.InvKey = l.RKey
		case *FETH:
			e.Selectivity, e.Placement = l.Selectivity, l.Placement
		}
	}
	return e
}

// TestEveryOpcode decodes a frame of every opcode in each of gopacket's ways
// and serializes it again.
func TestEveryOpcode(t *testing.T) {
	var (
		eth   layers.Ethernet
		ip4   layers.IPv4
		ip6   layers.IPv6
		udp   layers.UDP
		stack Stack
	)
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &ip6, &udp)
	for _, l := range stack.Layers() {
		parser.AddDecodingLayer(l)
	}
	for n := range 256 {
		op := bth.Opcode(n)
		if !op.Info().Known() {
			continue
		}
		for size := range 6 {
			data := frame(op, n%2 == 1, size)
			name := fmt.Sprintf("%v with %d bytes", op, size)
			var v wire.View
			if f := wire.ParseEthernet(data, &v); f != wire.OK {
				t.Fatalf("%s: %v", name, f)
			}

			p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
			if e := p.ErrorLayer(); e != nil {
				t.Fatalf("%s: %v", name, e.Error())
			}
			if got, want := roce(p), want(op, size); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			if got, want := content(p.Layers()), bth.ReadExt(v.IB, v.Info); got != want {
				t.Errorf("%s: %+v, want %+v", name, got, want)
			}
			if got := p.Layer(LayerTypeBTH).(*BTH).Fields; got != v.BTH().Fields() {
				t.Errorf("%s: %+v", name, got)
			}
			if a := p.ApplicationLayer(); (a != nil) != (size > 0) || a != nil && !bytes.Equal(a.Payload(), v.Payload) {
				t.Errorf("%s: application layer %v", name, a)
			}
			if !CheckICRC(p) {
				t.Errorf("%s: wrong ICRC", name)
			}
			serialize(t, name, p, data)

			lazy := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Lazy)
			if l := lazy.Layer(LayerTypeICRC); l == nil || !bytes.Equal(l.LayerContents(), v.ICRC()) || roce(lazy) != want(op, size) {
				t.Errorf("%s, lazy: %q", name, roce(lazy))
			}

			var types []gopacket.LayerType
			if err := parser.DecodeLayers(data, &types); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			got := ""
			for _, l := range types[3:] {
				got += l.String() + " "
			}
			if strings.TrimSpace(got) != want(op, size) || stack.BTH.Fields != v.BTH().Fields() {
				t.Errorf("%s: parser found %q", name, got)
			}
			if size > 0 && !bytes.Equal(stack.Payload.Data, v.Payload) {
				t.Errorf("%s: parser found payload % x", name, stack.Payload.Data)
			}
		}
	}
}

// serialize makes a decoded packet again; ICRC and pad are computed anew.
func serialize(t *testing.T, name string, p gopacket.Packet, want []byte) {
	t.Helper()
	var list []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *ICRC:
			l.Sum = 0
		case *Payload:
			l.Pad = nil
		case *layers.IPv4:
			l.Checksum = 0
		}
		list = append(list, l.(gopacket.SerializableLayer))
	}
	buf := gopacket.NewSerializeBuffer()
	if err := Serialize(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	// gopacket pads Ethernet frames to 60 bytes.
	got := buf.Bytes()
	if len(got) > len(want) && len(got) == 60 {
		got = got[:len(want)]
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s serialized:\n%x, want\n%x", name, got, want)
	}
}

func TestCaptures(t *testing.T) {
	pcaptest.Each(t, func(t *testing.T, file string, frames [][]byte) {
		roce := 0
		for n, data := range frames {
			p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
			if p.Layer(LayerTypeBTH) == nil {
				continue
			}
			roce++
			name := fmt.Sprintf("frame %d", n+1)
			if e := p.ErrorLayer(); e != nil || !CheckICRC(p) {
				t.Errorf("%s: %v, ICRC right: %v", name, e, CheckICRC(p))
			}
			serialize(t, name, p, data)
		}
		if want, ok := pcaptest.RoCEFrames[file]; ok && roce != want {
			t.Errorf("%d RoCE frames, want %d", roce, want)
		}
	})
}

// TestDamaged cuts and changes frames: an error layer or another decoding,
// never a panic.
func TestDamaged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 256 {
		op := bth.Opcode(n)
		whole := frame(op, false, 5)
		first := wire.EthLen + wire.NetLen4
		for cut := first; cut <= len(whole); cut++ {
			p := gopacket.NewPacket(whole[first:cut], LayerTypeBTH, gopacket.Default)
			complete := p.Layer(LayerTypeICRC) != nil && p.ErrorLayer() == nil
			// gopacket decodes nothing of nothing. A cut packet takes other bytes
			// for its ICRC, so it is complete as soon as headers and pad fit.
			least := max(op.Info().Len, bth.Len) + wire.ICRCLen
			if op.Info().Known() {
				least += 3
			}
			if cut > first && complete != (cut-first >= least) {
				t.Errorf("%v cut to %d bytes: %v, %v", op, cut-first, roce(p), p.ErrorLayer())
			}
			if cut > first && !complete && p.ErrorLayer() == nil {
				t.Errorf("%v cut to %d bytes: no error", op, cut-first)
			}
			if CheckICRC(p) {
				t.Errorf("%v: ICRC right without IP", op)
			}
		}
		for range 50 {
			data := bytes.Clone(whole)
			data[r.IntN(len(data))] ^= byte(1 + r.IntN(255))
			p := gopacket.NewPacket(data, layers.LayerTypeEthernet, gopacket.Default)
			CheckICRC(p)
		}
	}
	whole := frame(bth.Make(bth.RC, bth.SendOnly), false, 5)
	whole[len(whole)-1] ^= 1
	if CheckICRC(gopacket.NewPacket(whole, layers.LayerTypeEthernet, gopacket.Default)) {
		t.Error("wrong ICRC accepted")
	}
}

// TestAlone decodes single headers out of context: what follows is bytes.
func TestAlone(t *testing.T) {
	for h, lt := range typeOf {
		if lt == 0 {
			continue
		}
		p := gopacket.NewPacket(make([]byte, bth.Header(h).Len()+3), lt, gopacket.Default)
		if l := p.Layers(); len(l) != 2 || l[0].LayerType() != lt || l[1].LayerType() != gopacket.LayerTypePayload {
			t.Errorf("%v: %v", lt, l)
		}
		p = gopacket.NewPacket(make([]byte, bth.Header(h).Len()-1), lt, gopacket.Default)
		if p.ErrorLayer() == nil || !p.Metadata().Truncated {
			t.Errorf("%v cut off: %v", lt, p)
		}
	}
	p := gopacket.NewPacket([]byte("payload"), LayerTypePayload, gopacket.Default)
	if l, ok := p.Layer(LayerTypePayload).(*Payload); !ok || string(l.Data) != "pay" {
		t.Errorf("payload alone: %v", p)
	}
	p = gopacket.NewPacket([]byte("abc"), LayerTypeICRC, gopacket.Default)
	if p.ErrorLayer() == nil {
		t.Errorf("ICRC of three bytes: %v", p)
	}
}

func TestSerializeErrors(t *testing.T) {
	buf := gopacket.NewSerializeBuffer()
	all := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	ip := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: layers.IPProtocolUDP}
	udp := &layers.UDP{SrcPort: 0xC000, DstPort: wire.Port}
	if err := Serialize(buf, all, ip, udp, &BTH{}); err == nil {
		t.Error("no ICRC, no error")
	}
	if err := Serialize(buf, gopacket.SerializeOptions{ComputeChecksums: true}, ip, udp, &BTH{}, &ICRC{}); err == nil {
		t.Error("no lengths, no error")
	}
	if err := Serialize(buf, all, &BTH{}, &ICRC{}); err == nil {
		t.Error("no IP, no error")
	}
	sum := &ICRC{Sum: 0x01020304}
	if err := Serialize(buf, gopacket.SerializeOptions{}, sum); err != nil || !bytes.Equal(buf.Bytes(), []byte{4, 3, 2, 1}) {
		t.Errorf("%v, % x", err, buf.Bytes())
	}
}

func TestParserDoesNotAllocate(t *testing.T) {
	var (
		eth   layers.Ethernet
		ip4   layers.IPv4
		udp   layers.UDP
		stack Stack
	)
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &udp)
	for _, l := range stack.Layers() {
		parser.AddDecodingLayer(l)
	}
	data := frame(bth.Make(bth.RC, bth.WriteOnlyImm), false, 50)
	types := make([]gopacket.LayerType, 0, 16)
	if n := testing.AllocsPerRun(100, func() {
		if err := parser.DecodeLayers(data, &types); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
