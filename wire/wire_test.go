package wire

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/softnic/softnic/wire/bth"
)

// unhex decodes hexadecimal text, in which spaces may stand.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

var (
	a4, b4   = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	a6, b6   = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	mustAddr = netip.MustParseAddr
)

// golden are packets from the IP header to the ICRC and what is in them, for
// Build to make and for ParseIP to find. The first two were made by
// others: a ConnectX-4 Lx, and Scapy. V1 to V7 are the vectors of the cases.
var golden = []struct {
	name   string
	packet string
	spec   Spec
}{
	{"hardware CNP",
		"45c2003c718c400040119161 0a001101 0a001201 000012b700280000 8100ffff 40000118 00000000 00000000000000000000000000000000 82fd002a",
		Spec{Path: Path{Src: netip.MustParseAddr("10.0.17.1"), Dst: netip.MustParseAddr("10.0.18.1"), TClass: 0xC2, HopLimit: 64}, ID: 0x718C,
			BTH: bth.Fields{Opcode: 0x81, PKey: 0xFFFF, BECN: true, DestQP: 0x118}}},
	{"scapy UC SEND ONLY",
		"45010040047840004011b4d5 c0a80007 c0a80007 c00012b7002c0000 2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e50 0000 78f353f3",
		Spec{Path: Path{Src: netip.MustParseAddr("192.168.0.7"), Dst: netip.MustParseAddr("192.168.0.7"), SrcPort: 49152, TClass: 1, HopLimit: 64}, ID: 1144,
			BTH: bth.Fields{Opcode: 0x24, MigReq: true, PKey: 0xFFFF, DestQP: 211, PSN: 13571856}, Payload: unhex("4630818be28935d90e9a95505401be885e50")}},
	{"RC SEND ONLY abc",
		"45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 0d7b363d",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC123}, BTH: bth.Fields{Opcode: 4, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x1234}, Payload: []byte("abc")}},
	{"the same, ID 1",
		"45000030000140004011b6b8c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 a470bf73",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC123}, ID: 1, BTH: bth.Fields{Opcode: 4, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x1234}, Payload: []byte("abc")}},
	{"the same, TTL 3, TOS ff",
		"45ff003000004000 0311 f2ba c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 0d7b363d",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC123, TClass: 0xFF, HopLimit: 3}, BTH: bth.Fields{Opcode: 4, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x1234}, Payload: []byte("abc")}},
	{"the same, MigReq",
		"45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 0450ffff0000001180001234 61626300 7000cdf7",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC123}, BTH: bth.Fields{Opcode: 4, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x1234}, Payload: []byte("abc")}},
	{"RC ACK",
		"45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 1100ffff0000001200001234 1f000001 c67ef876",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC123}, BTH: bth.Fields{Opcode: 0x11, PKey: 0xFFFF, DestQP: 0x12, PSN: 0x1234}, Ext: bth.Ext{Syndrome: 0x1F, MSN: 1}}},
	{"IPv6 RC SEND ONLY abc",
		"60000000001c1140 20010db8000000000000000000000001 20010db8000000000000000000000002 c12312b7001c0000 0410ffff0000001180001234 61626300 f97401d0",
		Spec{Path: Path{Src: a6, Dst: b6, SrcPort: 0xC123}, BTH: bth.Fields{Opcode: 4, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x1234}, Payload: []byte("abc")}},
	{"V1", "4500002c123440004011a489c0000201c0000202c00012b7001800000440ffff000000118000000085871b75",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC000}, ID: 0x1234, BTH: bth.Fields{Opcode: 4, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true}}},
	{"V2", "45000030123440004011a485c0000201c0000202c00012b7001c00000470ffff0000001180ffffff5a000000ae553cca",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC000}, ID: 0x1234, BTH: bth.Fields{Opcode: 4, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0xFFFFFF}, Payload: []byte{0x5A}}},
	{"V3", "45000030123440004011a485c0000202c0000201c00012b7001c00001140ffff0000002200ffffff1f0000019c2b4a95",
		Spec{Path: Path{Src: b4, Dst: a4, SrcPort: 0xC000}, ID: 0x1234, BTH: bth.Fields{Opcode: 0x11, MigReq: true, PKey: 0xFFFF, DestQP: 0x22, PSN: 0xFFFFFF}, Ext: bth.Ext{Syndrome: 0x1F, MSN: 1}}},
	{"V4", "45c0003c123440004011a3b9c0000202c0000201c00012b7002800008100ffff400000220000000000000000000000000000000000000000a091a1f2",
		Spec{Path: Path{Src: b4, Dst: a4, SrcPort: 0xC000, TClass: 48 << 2}, ID: 0x1234, BTH: bth.Fields{Opcode: 0x81, PKey: 0xFFFF, BECN: true, DestQP: 0x22}}},
	{"V5", "45000038123440004011a47dc0000201c0000202c00012b7002400006440ffff0000003300000005111111110000004461626364293ae3b8",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC000}, ID: 0x1234, BTH: bth.Fields{Opcode: 0x64, MigReq: true, PKey: 0xFFFF, DestQP: 0x33, PSN: 5}, Ext: bth.Ext{QKey: 0x11111111, SrcQP: 0x44}, Payload: []byte("abcd")}},
	{"V6", "60012345001c114020010db800000000000000000000000120010db8000000000000000000000002c00012b7001c00000460ffff00000011807fffff686900008c17ca32",
		Spec{Path: Path{Src: a6, Dst: b6, SrcPort: 0xC000, FlowLabel: 0x12345}, BTH: bth.Fields{Opcode: 4, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x7FFFFF}, Payload: []byte("hi")}},
	{"V7", "4500003c123440004011a479c0000201c0000202c00012b7002800000c40ffff0000001180fffffd0000000000001000000203040000100165d180f7",
		Spec{Path: Path{Src: a4, Dst: b4, SrcPort: 0xC000}, ID: 0x1234, BTH: bth.Fields{Opcode: 0x0C, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0xFFFFFD}, Ext: bth.Ext{VA: 0x1000, RKey: 0x20304, Length: 4097}}},
}

// vector returns the bytes of a golden packet.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	for _, g := range golden {
		if g.name == name {
			return unhex(g.packet)
		}
	}
	t.Fatalf("no vector %q", name)
	return nil
}

func TestFaultNames(t *testing.T) {
	seen := map[string]bool{}
	for f := range Faults {
		if s := f.String(); s == "" || seen[s] || strings.ToLower(s) != s {
			t.Errorf("fault %d: name %q", f, s)
		}
		seen[f.String()] = true
	}
	if Faults.String() != "fault?" {
		t.Error(Faults.String())
	}
	for c := range causes {
		if c.String() == "" || c.Retry() != strings.HasPrefix(c.String(), "retry") {
			t.Errorf("cause %d: name %q", c, c)
		}
	}
	if causes.String() != "cause?" {
		t.Error(causes.String())
	}
}
