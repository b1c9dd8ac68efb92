package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/softnic/softnic/wire/bth"
)

// edit returns a copy of packet with bytes from position at on replaced, and
// the IP checksum right again.
func edit(packet []byte, at int, with ...byte) []byte {
	p := bytes.Clone(packet)
	copy(p[at:], with)
	if len(p) >= ipLen4 {
		PutIPChecksum(p)
	}
	return p
}

// faultCases are packets and what ParseIP says of them; they seed the fuzzing too.
func faultCases(t testing.TB) []faultCase {
	v4, v6 := vector(t, "V2"), vector(t, "V6")
	other := edit(v4, 22, 0x12, 0xB8) // UDP port 4792
	badSum := bytes.Clone(v4)
	badSum[10]++
	withOptions := append(append(bytes.Clone(v4[:20]), 1, 1, 1, 0), v4[20:]...)
	withOptions[0] = 0x46
	binary.BigEndian.PutUint16(withOptions[2:], uint16(len(withOptions)))
	otherOptions := edit(withOptions, 26, 0x12, 0xB8)
	udpBad := edit(v4, 26, 0x12, 0x34)
	udpGood4, udpGood6 := bytes.Clone(v4), bytes.Clone(v6)
	PutUDPChecksum(udpGood4[:28], udpGood4[28:])
	PutUDPChecksum(udpGood6[:48], udpGood6[48:])
	udpBad6 := bytes.Clone(udpGood6)
	udpBad6[60]++

	return []faultCase{
		{"good IPv4", v4, OK},
		{"good IPv6", v6, OK},
		{"bytes after the IP length", append(bytes.Clone(v4), 1, 2, 3), OK},
		{"bytes after the IPv6 length", append(bytes.Clone(v6), 1, 2, 3), OK},
		{"bytes after the UDP length", edit(append(bytes.Clone(v4), 1, 2, 3), 3, 0x33), OK},
		{"DF clear", edit(v4, 6, 0), OK},
		{"reserved IPv4 flag", edit(v4, 6, 0xC0), OK},
		{"right UDP checksum", udpGood4, OK},
		{"right UDP checksum, IPv6", udpGood6, OK},

		{"nothing", nil, Malformed},
		{"version 5", edit(v4, 0, 0x55), NotRoCE},
		{"version 0", make([]byte, 60), NotRoCE},
		{"TCP", edit(v4, 9, 6), NotRoCE},
		{"TCP, cut off", v4[:9:9], Malformed},
		{"TCP, cut off after the protocol", edit(v4, 9, 6)[:10], NotRoCE},
		{"UDP, cut off after the protocol", v4[:10], Malformed},
		{"IPv6 TCP", edit(v6, 6, 6), NotRoCE},
		{"IPv6 TCP, cut off after the next header", edit(v6, 6, 6)[:7], NotRoCE},
		{"IPv6 hop-by-hop header", edit(v6, 6, 0), NotRoCE},
		{"IPv6 fragment header", edit(v6, 6, 44), NotRoCE},
		{"other port", other, NotRoCE},
		{"other port, IPv6", edit(v6, 42, 0x12, 0xB8), NotRoCE},
		{"other port, wrong IP checksum", func() []byte { p := bytes.Clone(other); p[10]++; return p }(), NotRoCE},
		{"other port, cut off", other[:24], NotRoCE},
		{"other port, fragment", edit(other, 6, 0x20), NotRoCE},
		{"other port, options", otherOptions, NotRoCE},
		{"source port 4791 only", edit(v4, 20, 0x12, 0xB7, 0x12, 0xB8), NotRoCE},

		{"options", edit(withOptions, 1, 0), Malformed},
		{"options that look like a UDP header", edit(withOptions, 20, 1, 1, 0x12, 0xB7, 0, 0x20), Malformed},
		{"IHL 4", edit(v4, 0, 0x44), Malformed},
		{"IHL 0", edit(v4, 0, 0x40), Malformed},
		{"IHL beyond the packet", edit(v4[:40], 0, 0x4F), Malformed},
		{"IP length beyond the packet", edit(v4, 2, 0, 0x31), Malformed},
		{"IP length below the headers", edit(v4, 2, 0, 27), Malformed},
		{"IP length 0", edit(v4, 2, 0, 0), Malformed},
		{"IPv6 length beyond the packet", edit(v6, 4, 0, 0x1D), Malformed},
		{"IPv6 length below UDP", edit(v6, 4, 0, 7), Malformed},
		{"IPv6 length 0", edit(v6, 4, 0, 0), Malformed},
		{"UDP length beyond the IP length", edit(v4, 24, 0, 0x1D), Malformed},
		{"UDP length beyond the IP length, inside the packet", edit(append(bytes.Clone(v4), 0), 24, 0, 0x1D), Malformed},
		{"UDP length below UDP", edit(v4, 24, 0, 7), Malformed},
		{"UDP length 0", edit(v4, 24, 0, 0), Malformed},
		{"UDP length without an ICRC", edit(v4, 24, 0, 23), Malformed},
		{"UDP length without the pad", edit(v4, 24, 0, 26), Malformed},
		{"IPv6 UDP length beyond the IP length", edit(v6, 44, 0, 0x1D), Malformed},
		{"IPv6 UDP length without an ICRC", edit(v6, 44, 0, 23), Malformed},

		{"first fragment", edit(v4, 6, 0x20), Fragment},
		{"first fragment, DF as well", edit(v4, 6, 0x60), Fragment},
		{"first fragment, UDP length beyond it", edit(edit(v4, 6, 0x20), 24, 8, 0), Fragment},
		{"middle fragment", edit(v4, 6, 0x20, 8), Fragment},
		{"last fragment", edit(v4, 6, 0, 8), Fragment},
		{"last fragment, far", edit(v4, 6, 0x10, 0), Fragment},
		{"last fragment, other bytes for a port", edit(other, 6, 0, 8), Fragment},
		{"short last fragment", edit(edit(v4, 6, 0, 8), 2, 0, 24)[:24], Fragment},
		{"last fragment, cut off", edit(v4, 6, 0, 8)[:30], Malformed},
		{"last fragment, IP length below its header", edit(edit(v4, 6, 0, 8), 2, 0, 19), Malformed},

		{"wrong IP checksum", badSum, IPChecksum},
		{"IP checksum 0", func() []byte { p := bytes.Clone(v4); p[10], p[11] = 0, 0; return p }(), IPChecksum},
		{"wrong UDP checksum", udpBad, UDPChecksum},
		{"wrong UDP checksum, IPv6", udpBad6, UDPChecksum},

		{"reserved opcode", edit(v4, 28, 0x15), ReservedOpcode},
		{"CNP as 80", edit(v4, 28, 0x80), ReservedOpcode},
		{"manufacturer opcode", edit(v4, 28, 0xC5), ReservedOpcode},
		{"TVer 1", edit(v4, 29, 0x71), TransportVersion},
		{"TVer 15", edit(v4, 29, 0x7F), TransportVersion},
		{"reserved opcode and TVer", edit(v4, 28, 0x15, 0x71), ReservedOpcode},
		{"headers cut off and TVer", edit(v4, 28, 0x0C, 0x71), Malformed},
		{"READ request without RETH", edit(v4, 28, 0x0C), Malformed},
		{"wrong UDP checksum and reserved opcode", edit(udpBad, 28, 0x15), UDPChecksum},
	}
}

type faultCase struct {
	name   string
	packet []byte
	want   Fault
}

func TestParseIPFaults(t *testing.T) {
	for _, c := range faultCases(t) {
		t.Run(c.name, func(t *testing.T) {
			v := View{Payload: []byte("left over")}
			got := ParseIP(c.packet, &v)
			if got != c.want {
				t.Fatalf("%v, want %v", got, c.want)
			}
			checkView(t, got, &v)
			// Behind an Ethernet header the verdict is the same, except that there
			// the EtherType says what version the packet has.
			if len(c.packet) == 0 || c.packet[0]>>4 != 4 && c.packet[0]>>4 != 6 {
				return
			}
			e := uint16(EtherTypeIPv4)
			if c.packet[0]>>4 == 6 {
				e = EtherTypeIPv6
			}
			frame := make([]byte, EthVLANLen, 100)
			PutEthernet(frame[4:], [6]byte{1}, [6]byte{2}, e)
			frame = append(frame, c.packet...)
			if got := ParseEthernet(frame[4:], &v); got != c.want {
				t.Errorf("with Ethernet header: %v", got)
			}
			checkView(t, got, &v)
			PutEthernetVLAN(frame, [6]byte{1}, [6]byte{2}, 5, e)
			if got := ParseEthernet(frame, &v); got != c.want {
				t.Errorf("with 802.1Q tag: %v", got)
			}
			checkView(t, got, &v)
		})
	}
}

// checkView checks what holds for every parsed view, whatever the verdict.
func checkView(t testing.TB, f Fault, v *View) {
	t.Helper()
	if v.Info == nil {
		t.Fatal("Info is nil")
	}
	if n := len(v.Net); n != 0 && n != NetLen4 && n != NetLen6 {
		t.Fatalf("%d bytes of Net", n)
	}
	if len(v.IB) == 0 {
		if f == OK || f >= ReservedOpcode || v.Payload != nil || CheckICRC(v) || v.Header(bth.HRETH) != nil {
			t.Fatalf("%v without an IB: %+v", f, v)
		}
		return
	}
	if len(v.IB) < bth.Len+ICRCLen || len(v.Net) == 0 {
		t.Fatalf("%d bytes of IB, %d of Net", len(v.IB), len(v.Net))
	}
	op := v.BTH().Opcode()
	for h := bth.HNone; h <= bth.HCNP; h++ {
		v.Header(h)
	}
	CheckICRC(v)
	switch f {
	case OK, TransportVersion:
		if v.Info != op.Info() || !v.Info.Known() {
			t.Fatalf("%v: Info %+v for %v", f, v.Info, op)
		}
		if n := v.Info.Len + len(v.Payload) + v.BTH().Pad() + ICRCLen; n != len(v.IB) || len(v.Pad()) != v.BTH().Pad() {
			t.Fatalf("%v: the parts have %d bytes, the whole %d", f, n, len(v.IB))
		}
	case ReservedOpcode:
		if v.Info != op.Info() || v.Info.Known() {
			t.Fatalf("%v: Info %+v for %v", f, v.Info, op)
		}
		if len(v.Payload) != len(v.IB)-bth.Len-ICRCLen || len(v.Pad()) != 0 {
			t.Fatalf("%v: payload of %d bytes in %d", f, len(v.Payload), len(v.IB))
		}
	default:
		if v.Info.Known() || v.Payload != nil {
			t.Fatalf("%v: Info %v, payload % x", f, v.Info, v.Payload)
		}
	}
}

func TestParseEthernetFaults(t *testing.T) {
	v4 := vector(t, "V2")
	frame := func(etherType string, packet []byte) []byte {
		return append(unhex("020000000001 020000000002"+etherType), packet...)
	}
	for _, c := range []struct {
		name  string
		frame []byte
		want  Fault
	}{
		{"good", frame("0800", v4), OK},
		{"tagged", frame("8100 0064 0800", v4), OK},
		{"priority tag", frame("8100 e000 0800", v4), OK},
		{"nothing", nil, Malformed},
		{"no EtherType", frame("0800", v4)[:13], Malformed},
		{"no packet", frame("0800", nil), Malformed},
		{"no packet, IPv6", frame("86dd", nil), Malformed},
		{"tag cut off", frame("8100 0064", nil), Malformed},
		{"tag cut off in the EtherType", frame("8100 0064 08", nil), Malformed},
		{"no packet after the tag", frame("8100 0064 0800", nil), Malformed},
		{"ARP", frame("0806", v4), NotRoCE},
		{"RoCEv1", frame("8915", v4), NotRoCE},
		{"two tags", frame("8100 0064 8100 0065 0800", v4), NotRoCE},
		{"provider tag", frame("88a8 0064 0800", v4), NotRoCE},
		{"IEEE 802.3 length", frame("0030", v4), NotRoCE},
		{"IPv6 as IPv4", frame("0800", vector(t, "V6")), Malformed},
		{"IPv4 as IPv6", frame("86dd", v4), Malformed},
	} {
		var v View
		if got := ParseEthernet(c.frame, &v); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		} else {
			checkView(t, got, &v)
		}
	}
}

// TestCutOff cuts every golden packet at every length: at none does it parse,
// or panic.
func TestCutOff(t *testing.T) {
	for _, g := range golden {
		p := unhex(g.packet)
		e := append(unhex("020000000001 020000000002 0000"), p...)
		binary.BigEndian.PutUint16(e[12:], g.spec.Path.EtherType())
		for n := range len(p) {
			var v View
			if f := ParseIP(p[:n:n], &v); f != Malformed {
				t.Errorf("%s, %d bytes: %v", g.name, n, f)
			} else {
				checkView(t, f, &v)
			}
			if f := ParseEthernet(e[:14+n:14+n], &v); f != Malformed {
				t.Errorf("%s, %d bytes and an Ethernet header: %v", g.name, n, f)
			}
		}
	}
}

func TestParseEthernetNoSum(t *testing.T) {
	frame := append(unhex("020000000001 020000000002 0800"), edit(vector(t, "V2"), 26, 0x12, 0x34)...)
	var v View
	if f := ParseEthernet(frame, &v); f != UDPChecksum {
		t.Errorf("with the checksum: %v", f)
	}
	if f := ParseEthernetNoSum(frame, &v); f != OK || !CheckICRC(&v) {
		t.Errorf("without: %v", f)
	}
}

// TestViewAfterUDPChecksum: captures show what the packet would have been.
func TestViewAfterUDPChecksum(t *testing.T) {
	p := edit(vector(t, "V1"), 26, 0x12, 0x34)
	var v View
	if f := ParseIP(p, &v); f != UDPChecksum || len(v.IB) != 16 || v.BTH().DestQP() != 0x11 {
		t.Errorf("%v, %+v", f, v)
	}
}

func TestParseSplit(t *testing.T) {
	for _, g := range golden {
		p := unhex(g.packet)
		n := g.spec.Path.NetLen()
		for _, known := range []bool{true, false} {
			net, ib := bytes.Clone(p[:n]), bytes.Clone(p[n:])
			if !known && n == NetLen4 {
				// What a link over a UDP socket has: an invented ID, no checksum.
				copy(net[4:], []byte{0xAA, 0x55})
				copy(net[10:], []byte{0, 0})
			}
			var v View
			if f := ParseSplit(net, ib, known, &v); f != OK {
				t.Fatalf("%s: %v", g.name, f)
			}
			checkICRCIsComplete := v.IDKnown == (known || n == NetLen6)
			if !checkICRCIsComplete || !CheckICRC(&v) || !v.IDKnown {
				t.Errorf("%s, ID known %v: refused, or IDKnown wrong", g.name, known)
			}
			if !bytes.Equal(v.Net, p[:n]) {
				t.Errorf("%s, ID known %v: header\n%x, want\n%x", g.name, known, v.Net, p[:n])
			}
			ib[len(ib)-1] ^= 1
			v.IDKnown = known
			if CheckICRC(&v) || v.IDKnown != known {
				t.Errorf("%s, ID known %v: wrong ICRC accepted", g.name, known)
			}
		}
	}
}

func TestParseSplitFaults(t *testing.T) {
	v4, v6 := vector(t, "V2"), vector(t, "V6")
	for _, c := range []struct {
		name    string
		net, ib []byte
		want    Fault
	}{
		{"no headers", nil, v4[28:], Malformed},
		{"IPv4 without UDP", v4[:20], v4[28:], Malformed},
		{"IPv6 header, IPv4 length", v6[:28], v4[28:], Malformed},
		{"IPv4 header, IPv6 length", v4[:48], v4[28:], Malformed},
		{"no payload", v4[:28], nil, Malformed},
		{"15 bytes", v4[:28], v4[28:43], Malformed},
		{"16 bytes, pad 3", v4[:28], v4[28:44], Malformed},
		{"reserved opcode", v4[:28], edit(v4, 28, 0xFF)[28:], ReservedOpcode},
		{"TVer", v6[:48], func() []byte { p := bytes.Clone(v6[48:]); p[1] |= 2; return p }(), TransportVersion},
		// The headers are trusted: a private port, whatever lengths.
		{"other port", edit(v4, 22, 0, 1)[:28], v4[28:], OK},
	} {
		var v View
		if got := ParseSplit(c.net, c.ib, false, &v); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		} else {
			checkView(t, got, &v)
		}
	}
}
