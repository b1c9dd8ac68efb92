package bth

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBTHFields(t *testing.T) {
	for _, c := range []struct {
		hex string
		f   Fields
	}{
		{"000000000000000000000000", Fields{}},
		{"0470ffff0000001180ffffff", Fields{Opcode: 4, MigReq: true, Pad: 3, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0xFFFFFF}},
		{"8100ffff4000002200000000", Fields{Opcode: 0x81, PKey: 0xFFFF, BECN: true, DestQP: 0x22}},
		{"0a801234800000017f000002", Fields{Opcode: 0x0A, Solicited: true, PKey: 0x1234, FECN: true, DestQP: 1, Resv7: 0x7F, PSN: 2}},
		{"110f7fff3fabcdef00123456", Fields{Opcode: 0x11, TVer: 15, PKey: 0x7FFF, Resv6: 0x3F, DestQP: 0xABCDEF, PSN: 0x123456}},
	} {
		b := BTH(unhex(t, c.hex))
		if d := cmp.Diff(c.f, b.Fields()); d != "" {
			t.Errorf("%s read (-want +got):\n%s", c.hex, d)
		}
		got := BTH(bytes.Repeat([]byte{0xA5}, Len))
		got.Encode(&c.f)
		if !bytes.Equal(got, b) {
			t.Errorf("encoded % x, want %s", got, c.hex)
		}
	}
}

// TestBTHRoundTrip: any twelve bytes are a BTH, and reading loses none of them.
func TestBTHRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		b, got := make(BTH, Len), make(BTH, Len)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f := b.Fields()
		got.Encode(&f)
		if !bytes.Equal(b, got) {
			t.Fatalf("% x became % x", b, got)
		}
	}
}

// TestEncodeMasks: values that are too wide do not spill into their neighbours.
func TestEncodeMasks(t *testing.T) {
	b := make(BTH, Len)
	b.Encode(&Fields{Pad: 7, TVer: 0x1F, DestQP: 0xFF000001, PSN: 0xFF000002, Resv6: 0xFF, Resv7: 0xFF})
	if want := unhex(t, "003f00003f0000017f000002"); !bytes.Equal(b, want) {
		t.Errorf("% x, want % x", b, want)
	}
}

func TestExtendedHeaders(t *testing.T) {
	e := Ext{
		EECN: 0xFF0A0B0C, QKey: 0x80010000, SrcQP: 0xFF000044, SRQN: 0xFF0D0E0F, VA: 0x0102030405060708, RKey: 0x11223344,
		Length: 0x80000000, SwapAdd: 0x1111111122222222, Compare: 0x3333333344444444, Original: 0x5555555566666666,
		Syndrome: 0x62, MSN: 0xFFABCDEF, Imm: 0x89ABCDEF, InvKey: 0xCAFEF00D, Selectivity: 1, Placement: 3,
	}
	const reth = "0102030405060708" + "11223344" + "80000000"
	for _, c := range []struct {
		op   Opcode
		want string // after the BTH
	}{
		{Make(RC, SendOnly), ""},
		{Make(RC, SendOnlyImm), "89abcdef"},
		{Make(RC, WriteOnlyImm), reth + "89abcdef"},
		{Make(XRC, WriteOnlyImm), "000d0e0f" + reth + "89abcdef"},
		{Make(RD, WriteOnlyImm), "000a0b0c" + "8001000000000044" + reth + "89abcdef"},
		{Make(RC, CompareSwap), "0102030405060708" + "11223344" + "1111111122222222" + "3333333344444444"},
		{Make(RC, AtomicAcknowledge), "62abcdef" + "5555555566666666"},
		{Make(RC, ReadResponseMiddle), ""},
		{Make(XRC, ReadResponseFirst), "62abcdef"},
		{Make(RC, SendLastInv), "cafef00d"},
		{Make(RC, Flush), "00000013" + reth},
		{Make(XRC, Flush), "000d0e0f" + "00000013" + reth},
		{UDSendOnlyImm, "8001000000000044" + "89abcdef"},
		{CNPNotify, "00000000000000000000000000000000"},
	} {
		i := c.op.Info()
		b := bytes.Repeat([]byte{0xA5}, i.Len)
		e.Put(b, i)
		if got := hex.EncodeToString(b[Len:]); got != c.want {
			t.Errorf("%v: %s, want %s", c.op, got, c.want)
		}
		if !bytes.Equal(b[:Len], bytes.Repeat([]byte{0xA5}, Len)) {
			t.Errorf("%v: Put touched the BTH", c.op)
		}
		got := ReadExt(b, i)
		again := bytes.Repeat([]byte{0xA5}, i.Len)
		got.Put(again, i)
		if !bytes.Equal(b, again) {
			t.Errorf("%v: % x became % x", c.op, b, again)
		}
	}
}

func TestReadExt(t *testing.T) {
	b := unhex(t, "0a00000000000000000000000102030405060708112233448000000089abcdef")
	if d := cmp.Diff(Ext{VA: 0x0102030405060708, RKey: 0x11223344, Length: 0x80000000}, ReadExt(b, Opcode(0x0A).Info())); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(Ext{}, ReadExt(b, Opcode(0xFF).Info())); d != "" {
		t.Error("a reserved opcode has headers:", d)
	}
}

func TestReservedBitsIgnored(t *testing.T) {
	ff := bytes.Repeat([]byte{0xFF}, 28)
	if DETH(ff).SrcQP() != 0xFFFFFF || XRCETH(ff).SRQN() != 0xFFFFFF || RDETH(ff).EECN() != 0xFFFFFF ||
		AETH(ff).MSN() != 0xFFFFFF || FETH(ff).Selectivity() != 3 || FETH(ff).Placement() != 15 {
		t.Error("reserved bits leak into a field")
	}
}

func TestNoAllocation(t *testing.T) {
	b := make(BTH, MaxHeader)
	f, e := Fields{Opcode: Make(RC, WriteOnlyImm), PSN: 1}, Ext{VA: 1}
	if n := testing.AllocsPerRun(100, func() {
		b.Encode(&f)
		e.Put(b, f.Opcode.Info())
		f = b.Fields()
		e = ReadExt(b, f.Opcode.Info())
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
