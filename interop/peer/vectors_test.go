package peer

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var (
	v4a = netip.MustParseAddr("192.0.2.1")
	v4b = netip.MustParseAddr("192.0.2.2")
	v6a = netip.MustParseAddr("2001:db8::1")
	v6b = netip.MustParseAddr("2001:db8::2")
)

// unhex reads hexadecimal with spaces in it.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// between gives a frame the addresses and changes of a vector.
func between(src, dst netip.Addr, f *Frame, change func(f *Frame)) *Frame {
	f.Src, f.Dst = src, dst
	if change != nil {
		change(f)
	}
	return f
}

// vector is a published frame, from the IP header on, with the fields that make it.
type vector struct {
	name  string
	bytes string
	frame *Frame
}

// worked are the fields that the worked examples of roce.md A.8 have in common.
func worked(f *Frame) { f.SrcPort, f.Migrated = 0xC123, false }

// golden are those that V1 to V7 of cases.md have in common.
func golden(f *Frame) { f.ID = 0x1234 }

// vectors are the frames of roce.md A.8 and rxe-lab.md S1 and of cases.md V1 to V7.
func vectors() []vector {
	return []vector{
		{"hardware CNP, ConnectX-4 Lx",
			"45c2003c718c4000 40119161 0a001101 0a001201 000012b700280000 8100ffff 40000118 00000000" +
				strings.Repeat("00", 16) + "82fd002a",
			between(netip.MustParseAddr("10.0.17.1"), netip.MustParseAddr("10.0.18.1"), CNP(0x118),
				func(f *Frame) { f.TOS, f.ID, f.SrcPort = 0xC2, 0x718C, 0 })},
		{"worked RC SEND Only",
			"45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 0d7b363d",
			between(v4a, v4b, SendOnly(0x11, 0x1234, []byte("abc")), worked)},
		{"worked ACK",
			"45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 1100ffff0000001200001234 1f000001 c67ef876",
			between(v4a, v4b, Ack(0x12, 0x1234, 1), worked)},
		{"worked IPv6 SEND Only",
			"60000000001c1140 20010db8000000000000000000000001 20010db8000000000000000000000002 " +
				"c12312b7001cbeef 0410ffff0000001180001234 61626300 f97401d0",
			between(v6a, v6b, SendOnly(0x11, 0x1234, []byte("abc")), func(f *Frame) {
				worked(f)
				f.DF, f.UDPChecksum = false, 0xBEEF
			})},
		{"V1", "4500002c123440004011a489c0000201c0000202c00012b7001800000440ffff000000118000000085871b75",
			between(v4a, v4b, SendOnly(0x11, 0, nil), golden)},
		{"V2", "45000030123440004011a485c0000201c0000202c00012b7001c00000470ffff0000001180ffffff5a000000ae553cca",
			between(v4a, v4b, SendOnly(0x11, 0xFFFFFF, []byte{0x5A}), golden)},
		{"V3", "45000030123440004011a485c0000202c0000201c00012b7001c00001140ffff0000002200ffffff1f0000019c2b4a95",
			between(v4b, v4a, Ack(0x22, 0xFFFFFF, 1), golden)},
		{"V4", "45c0003c123440004011a3b9c0000202c0000201c00012b7002800008100ffff4000002200000000" +
			"00000000000000000000000000000000a091a1f2",
			between(v4b, v4a, CNP(0x22), golden)},
		{"V5", "45000038123440004011a47dc0000201c0000202c00012b7002400006440ffff00000033000000051111111100000044" +
			"61626364293ae3b8",
			between(v4a, v4b, UDSend(0x33, 5, 0x11111111, 0x44, []byte("abcd")), golden)},
		{"V6", "60012345001c114020010db800000000000000000000000120010db8000000000000000000000002" +
			"c00012b7001c00000460ffff00000011807fffff686900008c17ca32",
			between(v6a, v6b, SendOnly(0x11, 0x7FFFFF, []byte("hi")), func(f *Frame) { f.DF, f.FlowLabel = false, 0x12345 })},
		{"V7", "4500003c123440004011a479c0000201c0000202c00012b7002800000c40ffff0000001180fffffd" +
			"0000000000001000000203040000100165d180f7",
			between(v4a, v4b, ReadRequest(0x11, 0xFFFFFD, 0x1000, 0x00020304, 4097), golden)},
	}
}

func TestVectors(t *testing.T) {
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			want := unhex(t, v.bytes)
			if got := v.frame.Marshal(); !bytes.Equal(got, want) {
				t.Errorf("built from its fields:\n got %x\nwant %x", got, want)
			}
			covered, icrc := want[:len(want)-4], [4]byte(want[len(want)-4:])
			if got := ICRC(covered); got != icrc {
				t.Errorf("ICRC: got % x, want % x", got, icrc)
			}
			if !CheckICRC(want) {
				t.Error("CheckICRC says no")
			}
			got, err := Parse(want)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, v.frame) {
				t.Errorf("parsed:\n got %+v\nwant %+v", got, v.frame)
			}
			if bad := got.Irregular(); bad != nil {
				t.Errorf("irregular: %v", bad)
			}
		})
	}
}

// The variants that roce.md A.8 gives of its worked example.
func TestWorkedVariants(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *Frame)
		icrc   string
	}{
		{"ID 1", func(f *Frame) { f.ID = 1 }, "a470bf73"},
		{"TTL 3, TOS ff", func(f *Frame) { f.TTL, f.TOS = 3, 0xFF }, "0d7b363d"},
		{"MigReq", func(f *Frame) { f.Migrated = true }, "7000cdf7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := between(v4a, v4b, SendOnly(0x11, 0x1234, []byte("abc")), worked).With(c.change)
			b := f.Marshal()
			if got := hex.EncodeToString(b[len(b)-4:]); got != c.icrc {
				t.Errorf("ICRC %s, want %s", got, c.icrc)
			}
		})
	}
}

// The UC frame of the scapy tests (roce.md A.8), of which the fields and the ICRC
// are known.
func TestScapyUC(t *testing.T) {
	host := netip.MustParseAddr("192.168.0.7")
	f := between(host, host, SendOnly(211, 13571856, unhex(t, "4630818be28935d90e9a95505401be885e50")).AsUC(),
		func(f *Frame) { f.TOS, f.ID = 1, 1144 })
	b := f.Marshal()
	if f.Op != 0x24 || b[29]>>4&3 != 2 {
		t.Errorf("opcode %02x, pad %d, want 24 and 2", uint8(f.Op), b[29]>>4&3)
	}
	if got := hex.EncodeToString(b[len(b)-4:]); got != "78f353f3" {
		t.Errorf("ICRC %s, want 78f353f3", got)
	}
}

// rxe's own FLUSH (rxe-lab.md S1) is wrong by the standard and right by its quirk.
func TestRxeFlush(t *testing.T) {
	b := unhex(t, "45000040a4824000401182160a0900010a090002 d53912b7002c0000 1c00ffff0000077780000065"+
		"00000001 0000000000010008 00000077 00000123 6a1c7848")
	f, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if f.Op != OpFlush || f.FETH != (FETH{PLT: 1}) || f.RETH != (RETH{VA: 0x10008, RKey: 0x77, Len: 0x123}) {
		t.Errorf("parsed %v", f)
	}
	if CheckICRC(b) {
		t.Error("the quirk passes for the standard")
	}
	if !CheckRxeFlushICRC(b) {
		t.Error("the quirk is not recognised")
	}
	if !bytes.Equal(f.Marshal(), b) {
		t.Error("the wrong ICRC does not survive")
	}
	if got := RxeFlushICRC(b[:len(b)-4]); !slices.Equal(got[:], b[len(b)-4:]) {
		t.Errorf("quirk ICRC % x", got)
	}
}
