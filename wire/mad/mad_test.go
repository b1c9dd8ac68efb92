package mad

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unhex reads hexadecimal with spaces, filled up with zeros to n bytes.
func unhex(t testing.TB, n int, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Map(func(r rune) rune {
		if strings.ContainsRune(" \n\t", r) {
			return -1
		}
		return r
	}, s))
	if err != nil || len(b) > n {
		t.Fatalf("%v, %d bytes", err, len(b))
	}
	return append(b, make([]byte, n-len(b))...)
}

// The vectors were written by hand from rdma/ib_mad.h, ib_smi.h and ib_pma.h of Linux; tshark 4.0 reads them the same.
const (
	// What perfquery sends for port 1: Get(PortCounters).
	getCounters = "01 04 01 01 0000 0000 0000 0abc 1234 5678 0012 0000 00000000 00000000000000000000 00000000000000000000" +
		"00000000000000000000 00000000000000000000 00 01 ffff"
	// A connection request has the class, version and method of roce.md F.2.
	cmREQ = "01 07 02 03 0000 0000 00000001 9abcdef0 0010 0000 00000000"
	// A directed route on its way back, hop 1 of 2, with a status.
	dr = "01 81 01 81 801c 01 02 0011223344556677 0015 0000 00000001 8877665544332211 ffff 1234"
)

func TestHeader(t *testing.T) {
	for _, c := range []struct {
		hex string
		f   HeaderFields
	}{
		{getCounters, HeaderFields{Class: PerfMgmt, ClassVersion: 1, Method: Get, TID: 0x0abc12345678, Attr: PortCounters}},
		{cmREQ, HeaderFields{Class: CommMgmt, ClassVersion: 2, Method: Send, TID: 0x19abcdef0, Attr: 0x10}},
		{dr, HeaderFields{Class: SubnDirected, ClassVersion: 1, Method: GetResp, Status: 0x1C, ClassSpecific: 0x0102, TID: 0x0011223344556677, Attr: PortInfo, Modifier: 1}},
		{"01 01 01 01 8000 0000", HeaderFields{Class: SubnLIDRouted, ClassVersion: 1, Method: Get, Status: 0x8000}}, // no direction here
	} {
		b := unhex(t, Len, c.hex)
		if d := cmp.Diff(c.f, Header(b).Fields()); d != "" || !Valid(b) {
			t.Errorf("%s read (-want +got):\n%s", c.hex, d)
		}
		if SMP(b).Returning() {
			b[4] &^= 0x80
			c.f.Status &^= 0x8000
		}
		got := bytes.Repeat([]byte{0xA5}, HeaderLen)
		Header(got).Encode(&c.f)
		if !bytes.Equal(got, b[:HeaderLen]) {
			t.Errorf("encoded % x, want % x", got, b[:HeaderLen])
		}
	}
	for _, b := range [][]byte{nil, make([]byte, Len), unhex(t, Len-1, "01"), unhex(t, Len+1, "01"), unhex(t, Len, "02")} {
		if Valid(b) {
			t.Errorf("%d bytes, version %v: valid", len(b), b)
		}
	}
}

func TestRespond(t *testing.T) {
	for _, c := range []struct {
		hex  string
		st   Status
		want string
	}{
		{"01 04 01 01 0000 0000 1122334455667788 0012", StatusOK, "01 04 01 81 0000 0000 1122334455667788 0012"},
		{"01 04 01 02 ffff 0000 1122334455667788 0099 0000 00000007", StatusBadAttr, "01 04 01 81 000c 0000 1122334455667788 0099 0000 00000007"},
		{"01 81 01 01 0000 0000 00000000000000ff 0011", StatusOK, "01 81 01 81 8000 0000 00000000000000ff 0011"},
		{"01 81 01 01 0000 0100 00000000000000ff 0011", StatusBadVersion, "01 81 01 81 8004 0100 00000000000000ff 0011"},
		{"01 01 01 01 0000 0000 00000000000000ff 0011", StatusBadArgument, "01 01 01 81 001c 0000 00000000000000ff 0011"},
	} {
		b := unhex(t, Len, c.hex)
		Header(b).Respond(c.st)
		if w := unhex(t, Len, c.want); !bytes.Equal(b, w) {
			t.Errorf("%s: % x", c.hex, b[:HeaderLen])
		}
	}
}

func TestSMP(t *testing.T) {
	p := SMP(unhex(t, Len, dr))
	p.Data()[0], p.Data()[63] = 1, 2
	if !p.Returning() || p.HopPointer() != 1 || p.HopCount() != 2 || p.MKey() != 0x8877665544332211 || p.DrSLID() != 0xFFFF || p.DrDLID() != 0x1234 ||
		p[64] != 1 || p[127] != 2 || p.Header().Attr() != PortInfo {
		t.Fatalf("% x", []byte(p))
	}
	p.SetHops(3, 4)
	p.SetDrLIDs(5, PermissiveLID)
	if !bytes.Equal(p[6:8], []byte{3, 4}) || !bytes.Equal(p[32:36], []byte{0, 5, 0xFF, 0xFF}) {
		t.Fatalf("% x", []byte(p[:40]))
	}
}

// An attribute by hand, what it says, and both ways between them.
func TestAttributes(t *testing.T) {
	check := func(name, h string, n int, want any, fields func(b []byte) any, encode func(b []byte)) {
		t.Helper()
		b := unhex(t, n, h)
		if d := cmp.Diff(want, fields(b)); d != "" {
			t.Errorf("%s read (-want +got):\n%s", name, d)
		}
		got := bytes.Repeat([]byte{0xA5}, n)
		if encode(got); !bytes.Equal(got, b) {
			t.Errorf("%s encoded\n % x, want\n % x", name, got, b)
		}
	}
	ni := NodeInfoFields{
		BaseVersion: 1, SubnMgrVersion: 1, NodeType: 1, Ports: 2, SystemGUID: 0x0102030405060708, NodeGUID: 0x1112131415161718, PortGUID: 0x2122232425262728,
		PKeys: 0x3132, DeviceID: 0x4142, Revision: 0x51525354, LocalPort: 0x61, VendorID: 0x717273,
	}
	check("NodeInfo", "01 01 01 02 0102030405060708 1112131415161718 2122232425262728 3132 4142 51525354 61 717273", NodeInfoLen, ni,
		func(b []byte) any { return NodeInfoView(b).Fields() }, func(b []byte) { NodeInfoView(b).Encode(&ni) })
	pi := PortInfoFields{
		GIDPrefix: 0xfe80000000000000, LID: 0x1234, Capabilities: 0x00010000, LocalPort: 1, Width: 2, Speed: 4, Speeds: 5, State: 4, PhysState: 5,
		ActiveMTU: 3, MaxMTU: 5, VLCap: 1, ActiveV: 1, PKeyViolations: 0x0102, QKeyViolations: 0x0304, GUIDs: 16, RespTime: 18,
	}
	check("PortInfo", `0000000000000000 fe80000000000000 1234 0000 00010000 0000 0000 01 02 02 02 54 50 00 45
		30 10 00 00 00 05 00 10 0000 0102 0304 10 00 12`, PortInfoLen, pi,
		func(b []byte) any { return PortInfoView(b).Fields() }, func(b []byte) { PortInfoView(b).Encode(&pi) })
	ci := ClassPortInfoFields{ClassVersion: 1, Capabilities: 0x0500, Capabilities2: 1, RespTime: 18}
	check("ClassPortInfo", "01 01 0500 00000032", ClassPortInfoLen, ci,
		func(b []byte) any { return ClassPortInfoView(b).Fields() }, func(b []byte) { ClassPortInfoView(b).Encode(&ci) })
	pc := PortCountersFields{
		Port: 1, Select: 0xFFFF, SymbolErrors: 0x0102, LinkRecovery: 3, LinkDowned: 4, RcvErrors: 0x0506, RcvRemotePhysErrors: 0x0708, SwitchRelayErrors: 0x090A,
		XmitDiscards: 0x0B0C, XmitConstraint: 0x0D, RcvConstraint: 0x0E, LinkIntegrity: 2, Overruns: 3, VL15Dropped: 0x1011,
		XmitData: 0x12131415, RcvData: 0x16171819, XmitPackets: 0x1A1B1C1D, RcvPackets: 0x1E1F2021, XmitWaited: 0x22232425,
	}
	check("PortCounters", "00 01 ffff 0102 03 04 0506 0708 090a 0b0c 0d 0e 00 23 0000 1011 12131415 16171819 1a1b1c1d 1e1f2021 22232425", PortCountersLen, pc,
		func(b []byte) any { return PortCountersView(b).Fields() }, func(b []byte) { PortCountersView(b).Encode(&pc) })
	px := ExtendedFields{1, 0x000F, 1, 0x0200000000000000, 3, 4, 5, 6, 7, 8}
	check("PortCountersExtended", `00 01 000f 00000000 0000000000000001 0200000000000000 0000000000000003 0000000000000004
		0000000000000005 0000000000000006 0000000000000007 0000000000000008`, ExtendedLen, px,
		func(b []byte) any { return ExtendedView(b).Fields() }, func(b []byte) { ExtendedView(b).Encode(&px) })
}

// Counters stand still at the highest value that their room has.
func TestCountersStandStill(t *testing.T) {
	const big = 1 << 40
	b := make([]byte, PortCountersLen)
	PortCountersView(b).Encode(&PortCountersFields{
		SymbolErrors: big, LinkRecovery: big, LinkDowned: 256, RcvErrors: 65536, RcvRemotePhysErrors: 65535, SwitchRelayErrors: big, XmitDiscards: big,
		XmitConstraint: big, RcvConstraint: 255, LinkIntegrity: 16, Overruns: 15, VL15Dropped: big,
		XmitData: 1 << 32, RcvData: 1<<32 - 1, XmitPackets: 1<<32 + 7, RcvPackets: ^uint64(0), XmitWaited: big,
	})
	want := unhex(t, PortCountersLen, "0000 0000 ffff ff ff ffff ffff ffff ffff ff ff 00 ff 0000 ffff ffffffff ffffffff ffffffff ffffffff ffffffff")
	if !bytes.Equal(b, want) {
		t.Errorf("% x", b)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		PerfMgmt.String(): "Perf", Class(0x33).String(): "class 0x33", GetResp.String(): "GetResp", Method(0x77).String(): "method 0x77",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if !SubnDirected.Subnet() || !SubnLIDRouted.Subnet() || PerfMgmt.Subnet() || CommMgmt.Subnet() {
		t.Error("classes of subnet management")
	}
}

// FuzzViews: no view of any datagram panics, and what is read and written again reads the same.
func FuzzViews(f *testing.F) {
	for _, h := range []string{getCounters, cmREQ, dr} {
		f.Add(unhex(f, Len, h))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !Valid(b) {
			return
		}
		whole := bytes.Clone(b)
		h, p := Header(b), SMP(b)
		_, _, _, _, _, _ = p.Returning(), p.HopPointer(), p.HopCount(), p.MKey(), p.DrSLID(), p.DrDLID()
		c := make([]byte, Len)
		hf := h.Fields()
		if Header(c).Encode(&hf); Header(c).Fields() != hf {
			t.Errorf("header %+v", hf)
		}
		ni := NodeInfoView(p.Data()).Fields()
		NodeInfoView(c).Encode(&ni)
		ni.BaseVersion, ni.SubnMgrVersion = 1, 1
		if NodeInfoView(c).Fields() != ni {
			t.Errorf("%+v", ni)
		}
		pi := PortInfoView(p.Data()).Fields()
		if PortInfoView(c).Encode(&pi); PortInfoView(c).Fields() != pi {
			t.Errorf("%+v", pi)
		}
		d := PerfData(b)
		ci := ClassPortInfoView(d).Fields()
		if ClassPortInfoView(c).Encode(&ci); ClassPortInfoView(c).Fields() != ci {
			t.Errorf("%+v", ci)
		}
		pc := PortCountersView(d).Fields()
		if PortCountersView(c).Encode(&pc); PortCountersView(c).Fields() != pc {
			t.Errorf("%+v", pc)
		}
		px := ExtendedView(d).Fields()
		if ExtendedView(c).Encode(&px); ExtendedView(c).Fields() != px {
			t.Errorf("%+v", px)
		}
		if !bytes.Equal(b, whole) {
			t.Error("reading changed the datagram")
		}
		h.Respond(StatusOK)
	})
}
