package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// everyFrame is a frame of each known opcode and IP version, no field of it zero.
func everyFrame() []*Frame {
	var frames []*Frame
	for i := range 256 {
		op := Op(i)
		if !op.Known() {
			continue
		}
		for n := range 2 {
			f := NewFrame(op, 0x123456, 0xABCDEF)
			f.Src, f.Dst = v4a, v4b
			if n == 1 {
				f.Src, f.Dst, f.DF, f.FlowLabel = v6a, v6b, false, 0x54321
			} else {
				f.ID = 0xBEE5
			}
			f.TOS, f.SE, f.FECN, f.AckReq, f.PKey = 0x2B, true, true, true, 0x7FFF
			has := op.Headers()
			set := func(h Headers, apply func()) {
				if has.Has(h) {
					apply()
				}
			}
			set(HasRDETH, func() { f.RDETH = RDETH{EEC: 0x010203} })
			set(HasDETH, func() { f.DETH = DETH{QKey: 0x80010000, SrcQP: 0x0A0B0C} })
			set(HasXRCETH, func() { f.XRCETH = XRCETH{SRQN: 0x0D0E0F} })
			set(HasFETH, func() { f.FETH = FETH{Sel: 1, PLT: 3} })
			set(HasRETH, func() { f.RETH = RETH{VA: 0x1122334455667788, RKey: 0x99AABBCC, Len: 0xDDEEFF00} })
			set(HasAtomicETH, func() { f.Atomic = AtomicETH{VA: 1 << 63, RKey: 2, SwapAdd: 3 << 40, Compare: 4 << 50} })
			set(HasMaskedETH, func() { f.Masked = MaskedETH{VA: 8, RKey: 9, Swap: 10, Compare: 11, SwapMask: 12, CompareMask: 13} })
			set(HasAETH, func() { f.AETH = AETH{Syndrome: RNR(12), MSN: 0x445566} })
			set(HasAtomicAckETH, func() { f.Orig = 0x8877665544332211 })
			set(HasImmDt, func() { f.Imm = 0x89ABCDEF })
			set(HasIETH, func() { f.InvKey = 0x76543210 })
			if op.CarriesPayload() {
				f.Payload = []byte("odd length!")[:1+i%8]
			}
			frames = append(frames, f)
		}
	}
	return frames
}

func TestRoundTrip(t *testing.T) {
	for _, f := range everyFrame() {
		b := f.Marshal()
		got, err := Parse(b)
		if err != nil {
			t.Errorf("%v: %v", f, err)
			continue
		}
		if !reflect.DeepEqual(got, f) {
			t.Errorf("%v:\n got %+v\nwant %+v", f.Op, got, f)
		}
		if !CheckICRC(b) || got.Irregular() != nil {
			t.Errorf("%v: ICRC, or irregular", f)
		}
		if !reflect.DeepEqual(f.Clone(), f) {
			t.Errorf("%v: clone differs", f)
		}
		// UDP length = 8 + BTH … ICRC, IP length around it.
		udp := 20
		if f.IPv6() {
			udp = 40
		}
		if n := int(binary.BigEndian.Uint16(b[udp+4:])); n != len(b)-udp || n%4 != 0 {
			t.Errorf("%v: UDP length %d of a packet of %d", f, n, len(b))
		}
	}
}

// Every override must reach its place on the wire and come back from Parse.
func TestOverrides(t *testing.T) {
	base := func() *Frame {
		return between(v4a, v4b, SendOnly(0x11, 5, []byte("hello")), nil)
	}
	plain := base().Marshal()
	for _, c := range []struct {
		name      string
		change    func(f *Frame)
		at        int // the first byte that must differ, besides checksums and ICRC
		want      byte
		irregular string
		icrcOK    bool
	}{
		{"TOS", func(f *Frame) { f.TOS = 0xFF }, 1, 0xFF, "", true},
		{"IP length", func(f *Frame) { f.IPLength = new(uint16(9)) }, 3, 9, "IP length", true},
		{"ID", func(f *Frame) { f.ID = 0x77 }, 5, 0x77, "", true},
		{"no DF", func(f *Frame) { f.DF = false }, 6, 0, "", true},
		{"reserved flag", func(f *Frame) { f.EvilBit = true }, 6, 0xC0, "reserved IP flag", true},
		{"MF", func(f *Frame) { f.MF = true }, 6, 0x60, "fragment", true},
		{"TTL", func(f *Frame) { f.TTL = 1 }, 8, 1, "", true},
		{"IP checksum", func(f *Frame) { f.IPChecksum = new(uint16(0x1234)) }, 10, 0x12, "IP header checksum", true},
		{"source port", func(f *Frame) { f.SrcPort = 0xC1C2 }, 20, 0xC1, "", true},
		{"UDP checksum", func(f *Frame) { f.UDPChecksum = 0x55AA }, 26, 0x55, "", true},
		{"solicited", func(f *Frame) { f.SE = true }, 29, 0xF0, "", true},
		{"MigReq", func(f *Frame) { f.Migrated = false }, 29, 0x30, "", true},
		{"pad count", func(f *Frame) { f.PadCount = new(uint8(1)) }, 29, 0x50, "", true}, // reads as seven bytes and one of pad
		{"TVer", func(f *Frame) { f.TVer = 1 }, 29, 0x71, "TVer", true},
		{"P_Key", func(f *Frame) { f.PKey = 0x1234 }, 30, 0x12, "", true},
		{"FECN", func(f *Frame) { f.FECN = true }, 32, 0x80, "", true},
		{"BECN", func(f *Frame) { f.BECN = true }, 32, 0x40, "", true},
		{"reserved 6", func(f *Frame) { f.Resv6 = 0x3F }, 32, 0x3F, "byte 4", true},
		{"DestQP", func(f *Frame) { f.DestQP = 0xAB0011 }, 33, 0xAB, "", true},
		{"AckReq", func(f *Frame) { f.AckReq = false }, 36, 0, "", true},
		{"reserved 7", func(f *Frame) { f.Resv7 = 0x7F }, 36, 0xFF, "byte 8", true},
		{"PSN wraps", func(f *Frame) { f.PSN = 0x01FFFFFE }, 37, 0xFF, "", true},
		{"pad bytes", func(f *Frame) { f.PadBytes = []byte{1, 0, 0} }, 45, 1, "padding", true},
		{"ICRC", func(f *Frame) { f.ICRC = &[4]byte{9, 9, 9, 9} }, 48, 9, "ICRC", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := base().With(c.change)
			b := f.Marshal()
			for i := range plain {
				if i == 10 || i == 11 || i >= len(plain)-4 {
					continue // checksum and ICRC follow
				}
				if b[i] != plain[i] {
					if i != c.at || b[i] != c.want {
						t.Errorf("byte %d is %02x, want the change in byte %d to %02x", i, b[i], c.at, c.want)
					}
					break
				}
			}
			if b[c.at] != c.want {
				t.Errorf("byte %d is %02x, want %02x", c.at, b[c.at], c.want)
			}
			if CheckICRC(b) != c.icrcOK {
				t.Errorf("ICRC right: %v", !c.icrcOK)
			}
			if f.IPChecksum == nil && onesSum(0, b[:20]) != 0xFFFF {
				t.Error("header checksum does not follow")
			}
			got, err := Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Marshal(), b) {
				t.Errorf("parsed and built again:\n got %x\nwant %x", got.Marshal(), b)
			}
			bad := strings.Join(got.Irregular(), ", ")
			if (c.irregular == "") != (bad == "") || !strings.Contains(bad, c.irregular) {
				t.Errorf("irregular: %q, want %q", bad, c.irregular)
			}
		})
	}
}

// Frames that are no longer RoCE, or no longer whole, still carry an ICRC that is
// right for them: that the ICRC is not what is wrong with them is the point.
func TestMalformedOnPurpose(t *testing.T) {
	base := func() *Frame {
		return between(v4a, v4b, WriteOnly(0x11, 5, 0x1000, 7, []byte("hello")), nil)
	}
	for _, c := range []struct {
		name   string
		change func(f *Frame)
		size   int
		err    string
	}{
		{"version 5", func(f *Frame) { f.Version = new(uint8(5)) }, 68, "not a RoCEv2"},
		{"IHL 4", func(f *Frame) { f.IHL = new(uint8(4)) }, 68, "not a RoCEv2"},
		{"TCP", func(f *Frame) { f.Protocol = new(uint8(6)) }, 68, "not a RoCEv2"},
		{"fragment", func(f *Frame) { f.FragOffset = 8 }, 68, "not a RoCEv2"},
		{"port", func(f *Frame) { f.DstPort = 4792 }, 68, "not a RoCEv2"},
		{"UDP length too long", func(f *Frame) { f.UDPLength = new(uint16(49)) }, 68, "only 48"},
		{"UDP length too short", func(f *Frame) { f.UDPLength = new(uint16(23)) }, 68, "need 24"},
		{"pad count beyond the packet", func(f *Frame) { f.Op, f.Payload, f.PadCount = OpSendOnly, nil, new(uint8(3)) }, 44, "pad need 3"},
		{"no whole RETH", func(f *Frame) { f.BodyLimit = new(12 + 15) }, 20 + 8 + 27 + 4, "need 19"},
		{"no whole BTH", func(f *Frame) { f.BodyLimit = new(11) }, 20 + 8 + 11 + 4, "UDP length 23"},
		{"no ICRC", func(f *Frame) { f.BodyLimit, f.OmitICRC = new(11), true }, 20 + 8 + 11, "UDP length 19"},
		{"nothing", func(f *Frame) { f.BodyLimit, f.OmitICRC = new(0), true }, 20 + 8, "UDP length 8"},
		{"cut", func(f *Frame) { f.Cut = 30 }, 68 - 30, "only 18"},
		{"cut altogether", func(f *Frame) { f.Cut = 1000 }, 0, "not a RoCEv2"},
		{"RETH where none belongs", func(f *Frame) { f.Op, f.Headers = OpSendOnly, new(HasRETH) }, 68, ""},
		{"no RETH", func(f *Frame) { f.Headers = new(Headers(0)) }, 52, "need 19"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := base().With(c.change)
			b := f.Marshal()
			if len(b) != c.size {
				t.Errorf("%d bytes, want %d", len(b), c.size)
			}
			if !f.OmitICRC && f.Cut == 0 {
				covered, icrc := b[:len(b)-4], [4]byte(b[len(b)-4:])
				if icrcAt(covered, false, 20) != icrc {
					t.Error("ICRC is not that of the frame as built")
				}
			}
			switch _, err := Parse(b); {
			case c.err == "" && err != nil, c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("Parse: %v, want %q", err, c.err)
			case (c.err == "not a RoCEv2") != errors.Is(err, ErrNotRoCE):
				t.Errorf("ErrNotRoCE: %v", err)
			}
		})
	}
}

func TestOptionsAndTrailer(t *testing.T) {
	f := between(v4a, v4b, SendOnly(1, 2, []byte("x")), func(f *Frame) {
		f.IPOptions, f.Trailer = []byte{1, 1, 1, 0}, []byte{0, 0}
	})
	b := f.Marshal()
	if b[0] != 0x46 || len(b) != 24+8+12+4+4+2 || !CheckICRC(b) {
		t.Errorf("with options: %x", b)
	}
	got, err := Parse(b)
	if err != nil || !reflect.DeepEqual(got, f) {
		t.Errorf("parsed %+v, %v", got, err)
	}
	// Bytes inside the IP length and outside the UDP length.
	f.IPOptions, f.IPLength = nil, new(uint16(20+8+12+4+4+2))
	got, err = Parse(f.Marshal())
	if err != nil || !reflect.DeepEqual(got, f) || !CheckICRC(f.Marshal()) {
		t.Errorf("parsed %+v, %v", got, err)
	}
}

func TestEthernet(t *testing.T) {
	for _, src := range []*Frame{
		between(v4a, v4b, Ack(1, 2, 3), nil),
		between(v6a, v6b, Ack(1, 2, 3), func(f *Frame) { f.DF = false }),
	} {
		for _, tags := range [][]Tag{nil, {{0x8100, 0x6064}}, {{0x88A8, 5}, {0x8100, 6}}} {
			f := src.Clone()
			f.Link = &Link{Dst: [6]byte{2, 0, 0, 0, 0, 1}, Src: [6]byte{2, 0, 0, 0, 0, 2}, Tags: tags}
			b := f.MarshalEth()
			if want := 14 + 4*len(tags); !bytes.Equal(b[want:], f.Marshal()) {
				t.Errorf("IP packet is not at %d", want)
			}
			got, err := ParseEth(b)
			if err != nil || !reflect.DeepEqual(got, f) {
				t.Errorf("parsed %+v, %v; want %+v", got, err, f)
			}
			f.Link.EtherType = new(uint16(0x0806))
			if _, err := ParseEth(f.MarshalEth()); !errors.Is(err, ErrNotRoCE) {
				t.Errorf("ARP: %v", err)
			}
		}
	}
	f := between(v4a, v4b, Ack(1, 2, 3), func(f *Frame) { f.Link = &Link{Tags: []Tag{{TCI: 9}}} })
	if b := f.MarshalEth(); b[12] != 0x81 || b[13] != 0 {
		t.Errorf("TPID %x", b[12:14])
	}
	if got := between(v4a, v4b, Ack(1, 2, 3), nil).MarshalEth(); len(got) != 14+48 {
		t.Errorf("without a link: %d bytes", len(got))
	}
}

func TestUDPChecksum(t *testing.T) {
	for _, f := range []*Frame{
		between(v4a, v4b, SendOnly(1, 2, []byte("abc")), nil),
		between(v6a, v6b, SendOnly(1, 2, []byte("abc")), nil),
	} {
		icrc := f.Marshal()
		f.SetUDPChecksum()
		b := f.Marshal()
		if f.UDPChecksum == 0 || !f.UDPChecksumOK() {
			t.Error("no checksum")
		}
		// By its definition: pseudo header and datagram add up to ones.
		v6, udp, _ := ipLayout(b)
		addresses := b[12:20]
		if v6 {
			addresses = b[8:40]
		}
		pseudo := slices.Concat(addresses, []byte{0, 17, 0, byte(len(b) - udp)}, b[udp:])
		if onesSum(0, pseudo) != 0xFFFF {
			t.Errorf("%v: checksum %04x is wrong", f, f.UDPChecksum)
		}
		if !bytes.Equal(b[len(b)-4:], icrc[len(icrc)-4:]) {
			t.Error("the checksum changed the ICRC")
		}
		f.UDPChecksum ^= 1
		if f.UDPChecksumOK() {
			t.Error("a wrong checksum passes")
		}
		f.UDPChecksum = 0
		if !f.UDPChecksumOK() {
			t.Error("an absent checksum fails")
		}
	}
}

// Packets of these opcodes end with their headers.
func TestNoPayload(t *testing.T) {
	for _, f := range []*Frame{Ack(1, 2, 3), ReadRequest(1, 2, 3, 4, 5), AtomicAck(1, 2, 3, 4), CmpSwap(1, 2, 3, 4, 5, 6),
		FetchAdd(1, 2, 3, 4, 5), Flush(1, 2, 3, 4, 5, 1), CNP(1), MaskedCmpSwap(1, 2, MaskedETH{}),
		MaskedFetchAdd(1, 2, 3, 4, 5, 6), ReadRequest(1, 2, 3, 4, 5).AsXRC(6)} {
		if f.Op.CarriesPayload() || f.Irregular() != nil {
			t.Errorf("%v", f)
		}
		f.Payload = []byte{0, 0, 0, 0}
		if bad := f.Irregular(); len(bad) != 1 {
			t.Errorf("%v with a payload: %v", f.Op, bad)
		}
	}
	if !Op(0x15).CarriesPayload() || !OpUDSendOnly.CarriesPayload() || !OpAtomicWrite.CarriesPayload() {
		t.Error("payload denied")
	}
}

func TestSpoilICRC(t *testing.T) {
	f := between(v4a, v4b, SendOnly(1, 2, []byte("abc")), nil).SpoilICRC()
	if CheckICRC(f.Marshal()) {
		t.Error("ICRC is right")
	}
	if !strings.Contains(f.String(), "IRREGULAR: ICRC") {
		t.Error(f)
	}
}

func TestMarshalNeedsAddresses(t *testing.T) {
	for _, f := range []*Frame{Ack(1, 2, 3), between(v4a, v6b, Ack(1, 2, 3), nil)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v was built", f)
				}
			}()
			f.Marshal()
		}()
	}
}

func TestString(t *testing.T) {
	for want, f := range map[string]*Frame{
		"RC_ACKNOWLEDGE qp=0x000012 psn=0x001234 syndrome=0x1f (ACK) msn=1 len=0 192.0.2.1 > 192.0.2.2": between(v4a, v4b, Ack(0x12, 0x1234, 1), nil),
		"RC_WRITE_ONLY qp=0x000011 psn=0xffffff ackreq va=0x1000 rkey=0x00000007 dmalen=3 len=3":        WriteOnly(0x11, 0xFFFFFF, 0x1000, 7, []byte("abc")),
		"UC_SEND_ONLY qp=0x000011 psn=0x000001 solicited ce len=0":                                      SendOnly(0x11, 1, nil).AsUC().With(func(f *Frame) { f.SE, f.TOS = true, 3 }),
		"CNP qp=0x000022 psn=0x000000 becn len=0":                                                       CNP(0x22),
	} {
		if got := f.String(); got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	}
}

// The short constructors: opcode, and a field or two that only they set.
func TestConstructors(t *testing.T) {
	p := []byte("1234")
	for _, c := range []struct {
		op     uint8
		ackReq bool
		f      *Frame
		ok     func(f *Frame) bool
	}{
		{0x00, false, SendFirst(1, 2, p), nil},
		{0x01, false, SendMiddle(1, 2, p), nil},
		{0x02, true, SendLast(1, 2, p), nil},
		{0x03, true, SendLastImm(1, 2, 9, p), func(f *Frame) bool { return f.Imm == 9 }},
		{0x04, true, SendOnly(1, 2, p), nil},
		{0x05, true, SendOnlyImm(1, 2, 9, p), func(f *Frame) bool { return f.Imm == 9 }},
		{0x06, false, WriteFirst(1, 2, 3, 4, 5, p), func(f *Frame) bool { return f.RETH == RETH{3, 4, 5} }},
		{0x07, false, WriteMiddle(1, 2, p), nil},
		{0x08, true, WriteLast(1, 2, p), nil},
		{0x09, true, WriteLastImm(1, 2, 9, p), func(f *Frame) bool { return f.Imm == 9 }},
		{0x0A, true, WriteOnly(1, 2, 3, 4, p), func(f *Frame) bool { return f.RETH == RETH{3, 4, 4} }},
		{0x0B, true, WriteOnlyImm(1, 2, 3, 4, 9, p), func(f *Frame) bool { return f.RETH == RETH{3, 4, 4} && f.Imm == 9 }},
		{0x0C, true, ReadRequest(1, 2, 3, 4, 5), func(f *Frame) bool { return f.RETH == RETH{3, 4, 5} }},
		{0x0D, false, ReadRespFirst(1, 2, 7, p), func(f *Frame) bool { return f.AETH == AETH{0x1F, 7} }},
		{0x0E, false, ReadRespMiddle(1, 2, p), nil},
		{0x0F, false, ReadRespLast(1, 2, 7, p), func(f *Frame) bool { return f.AETH == AETH{0x1F, 7} }},
		{0x10, false, ReadRespOnly(1, 2, 7, p), func(f *Frame) bool { return f.AETH == AETH{0x1F, 7} }},
		{0x11, false, Ack(1, 2, 7), func(f *Frame) bool { return f.AETH == AETH{0x1F, 7} }},
		{0x11, false, Nak(1, 2, SynNakAccess, 7), func(f *Frame) bool { return f.AETH == AETH{0x62, 7} }},
		{0x11, false, RNRNak(1, 2, 12, 7), func(f *Frame) bool { return f.AETH == AETH{0x2C, 7} }},
		{0x12, false, AtomicAck(1, 2, 7, 8), func(f *Frame) bool { return f.AETH == AETH{0x1F, 7} && f.Orig == 8 }},
		{0x13, true, CmpSwap(1, 2, 3, 4, 5, 6), func(f *Frame) bool { return f.Atomic == AtomicETH{3, 4, 6, 5} }},
		{0x14, true, FetchAdd(1, 2, 3, 4, 5), func(f *Frame) bool { return f.Atomic == AtomicETH{3, 4, 5, 0} }},
		{0x16, true, SendLastInv(1, 2, 9, p), func(f *Frame) bool { return f.InvKey == 9 }},
		{0x17, true, SendOnlyInv(1, 2, 9, p), func(f *Frame) bool { return f.InvKey == 9 }},
		{0x1C, true, Flush(1, 2, 3, 4, 5, 1), func(f *Frame) bool { return f.FETH.PLT == 1 && f.RETH == RETH{3, 4, 5} }},
		{0x1D, true, AtomicWrite(1, 2, 3, 4, p), func(f *Frame) bool { return f.RETH == RETH{3, 4, 4} }},
		{0x2A, false, WriteOnly(1, 2, 3, 4, p).AsUC(), nil},
		{0xA4, true, SendOnly(1, 2, p).AsXRC(6), func(f *Frame) bool { return f.XRCETH.SRQN == 6 }},
		{0x64, false, UDSend(1, 2, 3, 4, p), func(f *Frame) bool { return f.DETH == DETH{QKey: 3, SrcQP: 4} }},
		{0x65, false, UDSendImm(1, 2, 3, 4, 9, p), func(f *Frame) bool { return f.DETH == DETH{QKey: 3, SrcQP: 4} && f.Imm == 9 }},
		{0x81, false, CNP(1).With(func(f *Frame) { f.PSN = 2 }), func(f *Frame) bool { return f.BECN && !f.Migrated }},
		{0xD3, true, MaskedCmpSwap(1, 2, MaskedETH{VA: 3}), func(f *Frame) bool { return f.Masked.VA == 3 }},
		{0xD4, true, MaskedFetchAdd(1, 2, 3, 4, 5, 6), func(f *Frame) bool { return f.Atomic == AtomicETH{3, 4, 5, 6} }},
	} {
		if uint8(c.f.Op) != c.op || c.f.AckReq != c.ackReq || c.f.DestQP != 1 || c.f.PSN != 2 {
			t.Errorf("opcode %02x: %v", c.op, c.f)
		}
		if c.ok != nil && !c.ok(c.f) {
			t.Errorf("%v: %+v", c.f, c.f)
		}
	}
}
