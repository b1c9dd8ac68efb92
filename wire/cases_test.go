package wire

import (
	"bytes"
	"testing"

	"github.com/softnic/softnic/wire/bth"
)

// TestCase01 sweeps packets that are too short for their opcode, pad and
// ICRC, each with a right ICRC: they are malformed, one byte more is not.
func TestCase01(t *testing.T) {
	path := Path{Src: a4, Dst: b4, SrcPort: 0xC000}
	for n := range 16 {
		s := Spec{Path: path, IB: make([]byte, n)}
		if n > 0 {
			s.IB[0] = byte(bth.SendOnly)
		}
		var v View
		if f := ParseIP(Build(&s), &v); f != Malformed || len(v.IB) != 0 {
			t.Errorf("UDP payload of %d bytes: %v", n, f)
		}
	}
	for op := range 256 {
		i := bth.Opcode(op).Info()
		if !i.Known() {
			continue
		}
		for n := range i.Len - bth.Len + 4 {
			for pad := range 4 {
				s := NewSpec(path, bth.Opcode(op), 17, 5)
				s.RawExt, s.Pad = make([]byte, n), []byte{}
				s.Edit = func(p []byte) { p[NetLen4+1] |= byte(pad << 4) }
				packet := Build(&s)
				want := Malformed
				if n >= i.Len-bth.Len+pad {
					want = OK
				}
				var v View
				if f := ParseIP(packet, &v); f != want {
					t.Errorf("%v, %d bytes after the BTH, pad %d: %v, want %v", bth.Opcode(op), n, pad, f, want)
				} else if f == OK && (!CheckICRC(&v) || len(v.Payload) != n-pad-(i.Len-bth.Len)) {
					t.Errorf("%v, %d bytes after the BTH, pad %d: payload of %d bytes", bth.Opcode(op), n, pad, len(v.Payload))
				}
			}
		}
	}
}

// verdict parses a packet and checks its ICRC, as a link and a device do.
func verdict(packet []byte) Fault {
	var v View
	f := ParseIP(packet, &v)
	if f == OK && !CheckICRC(&v) {
		f = ICRC
	}
	return f
}

// TestCase03 changes what the ICRC of an IPv4 packet masks and what it covers.
func TestCase03(t *testing.T) {
	v1 := vector(t, "V1")
	cleared := Spec{Path: golden[8].spec.Path, ID: 0x1234, BTH: golden[8].spec.BTH}
	cleared.BTH.MigReq = false
	if f := verdict(Build(&cleared)); f != OK {
		t.Errorf("V1 with MigReq cleared: %v", f)
	}
	udpSum := bytes.Clone(v1)
	PutUDPChecksum(udpSum[:28], udpSum[28:])
	for _, c := range []struct {
		name   string
		packet []byte
		want   Fault
	}{
		{"TOS", edit(v1, 1, 0xFF), OK},
		{"TTL", edit(v1, 8, 1), OK},
		{"UDP checksum", udpSum, OK},
		{"FECN", edit(v1, 32, 0x80), OK},
		{"BECN", edit(v1, 32, 0x40), OK},
		{"resv6", edit(v1, 32, 0x3F), OK},

		{"IP ID", edit(v1, 5, 0x35), ICRC},
		{"DF", edit(v1, 6, 0), ICRC},
		{"source address", edit(v1, 15, 9), ICRC},
		{"UDP source port", edit(v1, 21, 1), ICRC},
		{"total length", edit(append(bytes.Clone(v1), 0), 3, 0x2D), ICRC},
		{"both lengths", edit(append(bytes.Clone(v1), 0), 3, 0x2D, 0x12, 0x34, 0x40, 0, 0x40, 0x11, 0, 0, 0xC0, 0, 2, 1, 0xC0, 0, 2, 2, 0xC0, 0, 0x12, 0xB7, 0, 0x19), ICRC},
		{"opcode", edit(v1, 28, 0x00), ICRC},
		{"SE", edit(v1, 29, 0xC0), ICRC},
		{"MigReq", edit(v1, 29, 0x00), ICRC},
		{"pad", edit(append(bytes.Clone(v1), 0, 0, 0, 0), 2, 0, 0x30, 0x12, 0x34, 0x40, 0, 0x40, 0x11, 0, 0, 0xC0, 0, 2, 1, 0xC0, 0, 2, 2, 0xC0, 0, 0x12, 0xB7, 0, 0x1C, 0, 0, 4, 0x50), ICRC},
		{"pad without room", edit(v1, 29, 0x50), Malformed},
		{"P_Key", edit(v1, 30, 0x7F), ICRC},
		{"DestQP", edit(v1, 35, 0x12), ICRC},
		{"A bit", edit(v1, 36, 0), ICRC},
		{"resv7", edit(v1, 36, 0x81), ICRC},
		{"PSN", edit(v1, 39, 1), ICRC},
		{"ICRC", edit(v1, 43, 0), ICRC},
	} {
		if got := verdict(c.packet); got != c.want {
			t.Errorf("%s changed: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestCase05 is the same for IPv6.
func TestCase05(t *testing.T) {
	v6 := vector(t, "V6")
	udpSum := bytes.Clone(v6)
	PutUDPChecksum(udpSum[:48], udpSum[48:])
	for _, c := range []struct {
		name   string
		packet []byte
		want   Fault
	}{
		{"traffic class and flow label", edit(v6, 0, 0x6F, 0xFF, 0xFF, 0xFF), OK},
		{"hop limit", edit(v6, 7, 1), OK},
		{"UDP checksum", udpSum, OK},
		{"BTH byte 4", edit(v6, 52, 0xFF), OK},

		{"payload length", edit(append(bytes.Clone(v6), 0), 5, 0x1D), ICRC},
		{"next header", edit(v6, 6, 0), NotRoCE},
		{"source address", edit(v6, 23, 9), ICRC},
		{"destination address", edit(v6, 39, 9), ICRC},
		{"UDP source port", edit(v6, 41, 9), ICRC},
	} {
		if got := verdict(c.packet); got != c.want {
			t.Errorf("%s changed: %v, want %v", c.name, got, c.want)
		}
	}
	link := Path{Src: mustAddr("fe80::1"), Dst: mustAddr("fe80::2")}
	for _, sum := range []bool{false, true} {
		s := NewSpec(link, bth.UDSendOnly, 1, 0)
		s.Payload, s.UDPSum = []byte("link-local"), sum
		if f := verdict(Build(&s)); f != OK {
			t.Errorf("link-local, UDP checksum %v: %v", sum, f)
		}
	}
}

// TestEditedSpecs builds wrong packets the way tests elsewhere do.
func TestEditedSpecs(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		path := Path{Src: a4, Dst: b4}
		if v6 {
			path = Path{Src: a6, Dst: b6}
		}
		net := path.NetLen()
		for _, c := range []struct {
			name string
			want Fault
			s    func(s *Spec)
			p    func(p []byte)
		}{
			{"as it is", OK, func(s *Spec) {}, nil},
			{"forged pad count", OK, func(s *Spec) { s.Edit = func(p []byte) { p[net+1] |= 0x30 } }, nil},
			{"another header field", OK, func(s *Spec) { s.Edit = func(p []byte) { p[1] ^= 5 } }, nil},
			{"odd payload without pad", OK, func(s *Spec) { s.Payload, s.Pad = []byte("12345"), []byte{} }, nil},
			{"pad that is not zero", OK, func(s *Spec) { s.Payload, s.Pad = []byte("123"), []byte{9} }, nil},
			{"TVer", TransportVersion, func(s *Spec) { s.BTH.TVer = 3 }, nil},
			{"reserved opcode", ReservedOpcode, func(s *Spec) { s.BTH.Opcode = 0x18 }, nil},
			{"UDP length", Malformed, func(s *Spec) { s.Edit = func(p []byte) { p[net-4] = 0xFF } }, nil},
			{"wrong UDP checksum", UDPChecksum, func(s *Spec) { s.UDPSum = true }, func(p []byte) { p[net-1] ^= 1 }},
			{"right UDP checksum", OK, func(s *Spec) { s.UDPSum = true }, nil},
			{"damaged payload", ICRC, func(s *Spec) {}, func(p []byte) { p[net+20] ^= 1 }},
			{"trailer", OK, func(s *Spec) { s.Trailer = make([]byte, 20) }, nil},
			{"other port", NotRoCE, func(s *Spec) { s.Path.DstPort = 4792 }, nil},
		} {
			s := NewSpec(path, bth.Make(bth.RC, bth.SendOnly), 17, 5)
			s.Payload = []byte("12345678901234567890")
			c.s(&s)
			p := Build(&s)
			if c.p != nil {
				c.p(p)
			}
			if got := verdict(p); got != c.want {
				t.Errorf("IPv6 %v, %s: %v, want %v", v6, c.name, got, c.want)
			}
		}
	}
}
