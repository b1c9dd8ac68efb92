package judge

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softnic/softnic/interop/peer"
)

var (
	v4a = netip.MustParseAddr("10.8.0.1")
	v4b = netip.MustParseAddr("10.8.0.2")
	v6a = netip.MustParseAddr("fe80::1")
	v6b = netip.MustParseAddr("fe80::2")
)

// addressed fills in IPv4 addresses where there are none.
func addressed(f *peer.Frame) *peer.Frame {
	if !f.Src.IsValid() {
		f.Src, f.Dst = v4a, v4b
	}
	return f
}

// back turns a frame round, so that it comes from v4b.
func back(f *peer.Frame) *peer.Frame {
	f.Src, f.Dst = v4b, v4a
	return f
}

// arp is other traffic.
var arp = append(bytes.Repeat([]byte{0xFF}, 12), 8, 6, 0, 1)

// eth gives the frames with an Ethernet header.
func eth(frames ...*peer.Frame) [][]byte {
	var out [][]byte
	for _, f := range frames {
		out = append(out, addressed(f).MarshalEth())
	}
	return out
}

// raw gives the frames from the IP header on.
func raw(frames ...*peer.Frame) [][]byte {
	var out [][]byte
	for _, f := range frames {
		out = append(out, addressed(f).Marshal())
	}
	return out
}

func info(i int, packet []byte) gopacket.CaptureInfo {
	return gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: len(packet), Length: len(packet)}
}

// pcap writes a capture of one link type.
func pcap(t *testing.T, name string, link layers.LinkType, packets ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	check(t, w.WriteFileHeader(1<<16, link))
	for i, p := range packets {
		check(t, w.WritePacket(info(i, p), p))
	}
	check(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// pcapng writes a capture of two interfaces, Ethernet and raw IP.
func pcapng(t *testing.T, name string, ethernet, ip [][]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	check(t, err)
	second, err := w.AddInterface(pcapgo.NgInterface{Name: "raw", LinkType: layers.LinkTypeRaw, SnapLength: 1 << 16})
	check(t, err)
	for i, p := range ethernet {
		check(t, w.WritePacket(info(i, p), p))
	}
	for i, p := range ip {
		ci := info(len(ethernet)+i, p)
		ci.InterfaceIndex = second
		check(t, w.WritePacket(ci, p))
	}
	check(t, w.Flush())
	check(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// said fails the test unless the findings are those wanted: "7:text" for a frame
// number and part of the text.
func said(t *testing.T, findings []Finding, want ...string) {
	t.Helper()
	var lines []string
	for _, f := range findings {
		lines = append(lines, f.String())
	}
	if len(findings) != len(want) {
		t.Errorf("%d findings, want %d:\n%s", len(findings), len(want), strings.Join(lines, "\n"))
		return
	}
	for i, w := range want {
		if !strings.Contains(lines[i], w) {
			t.Errorf("finding %q does not say %q", lines[i], w)
		}
	}
}

// needTshark skips a test that cannot do without, unless a lab run is judged.
func needTshark(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		if os.Getenv(jobVariable) != "" {
			t.Fatal(ErrNoTshark)
		}
		t.Skip(ErrNoTshark)
	}
}

func TestFile(t *testing.T) {
	bad := func() *peer.Frame { return addressed(peer.Ack(1, 2, 3)).SpoilICRC() }
	good := func() *peer.Frame { return peer.SendOnly(1, 2, []byte("abc")) }
	packets := append([][]byte{arp}, eth(good(), bad(), good().With(func(f *peer.Frame) { f.TVer = 1 }),
		peer.WriteOnly(1, 2, 3, 4, nil).With(func(f *peer.Frame) { f.BodyLimit = new(20) }),
		peer.SendOnly(1, 2, make([]byte, 9000)).With(func(f *peer.Frame) { f.ICRC = new([4]byte) }))...)
	flush := addressed(peer.Flush(1, 2, 3, 4, 5, 1))
	whole := flush.Marshal()
	flush.ICRC = new(peer.RxeFlushICRC(whole[:len(whole)-4]))

	for _, c := range []struct {
		path string
		want []string
	}{
		{pcap(t, "x.pcap", layers.LinkTypeEthernet, packets...), []string{
			"x.pcap: frame 3: irregular (ICRC)", "frame 4: irregular (TVer)", "frame 5: peer: malformed", "frame 6: irregular (ICRC)"}},
		{pcap(t, "x-injected.pcap", layers.LinkTypeEthernet, packets...), nil},
		{pcap(t, "raw.pcap", layers.LinkTypeRaw, raw(good(), bad())...), []string{"raw.pcap: frame 2: irregular (ICRC)"}},
		{pcapng(t, "ng.pcapng", eth(good(), bad()), raw(good(), bad())), []string{"frame 2: irregular (ICRC)", "frame 4: irregular (ICRC)"}},
		{pcap(t, "flush.pcap", layers.LinkTypeEthernet, eth(flush)...), []string{"frame 1: irregular (ICRC): RC_FLUSH"}},
		{pcap(t, "flushquirk.pcap", layers.LinkTypeEthernet, eth(flush, bad())...), []string{"frame 2: irregular (ICRC): RC_ACK"}},
		{pcap(t, "sll.pcap", layers.LinkTypeLinuxSLL, arp), []string{"frame 1: link type 113"}},
	} {
		findings, err := File(c.path)
		check(t, err)
		said(t, findings, c.want...)
	}
}

func TestLongFrameIsExplained(t *testing.T) {
	long := addressed(peer.SendOnly(1, 2, make([]byte, 9000))).SpoilICRC()
	findings, err := File(pcap(t, "x.pcap", layers.LinkTypeEthernet, eth(long)...))
	check(t, err)
	said(t, findings, "segmentation offload")
}

func TestShortSnap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcap")
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	check(t, w.WriteFileHeader(60, layers.LinkTypeEthernet))
	p := eth(peer.SendOnly(1, 2, make([]byte, 100)))[0]
	ci := info(0, p)
	ci.CaptureLength = 60
	check(t, w.WritePacket(ci, p[:60]))
	check(t, os.WriteFile(path, b.Bytes(), 0o600))
	findings, err := File(path)
	check(t, err)
	said(t, findings, "only 60 of 158 bytes")
}

func TestUnreadable(t *testing.T) {
	whole, err := os.ReadFile(pcap(t, "x.pcap", layers.LinkTypeEthernet, eth(peer.Ack(1, 2, 3), peer.Ack(1, 3, 4))...))
	check(t, err)
	cut := filepath.Join(t.TempDir(), "cut.pcap")
	check(t, os.WriteFile(cut, whole[:len(whole)-10], 0o600))
	empty := filepath.Join(t.TempDir(), "empty.pcap")
	check(t, os.WriteFile(empty, nil, 0o600))
	text := filepath.Join(t.TempDir(), "text.pcap")
	check(t, os.WriteFile(text, []byte("not a capture, only so called"), 0o600))
	for path, want := range map[string]string{
		cut: "after packet 1", empty: "not a capture", text: "not a capture", "/no/such.pcap": "no such file",
	} {
		if _, err := File(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if _, err := AgainstLog(path, pcap(t, "no.log", layers.LinkTypeRaw)); err == nil {
			t.Errorf("%s: AgainstLog finds nothing wrong", path)
		}
	}
}

// shared are the captures beside the checkout, which may not be part of it.
func shared(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "shared", "pcaps", "*.pcap"))
	check(t, err)
	if len(files) == 0 {
		t.Skip("no shared/pcaps folder beside the checkout: its captures may not be copied into the project")
	}
	return files
}

// The kernel driver's own captures: nothing is wrong with them, and tshark agrees.
func TestSharedCaptures(t *testing.T) {
	needTshark(t)
	for _, file := range shared(t) {
		findings, frames, err := All(file)
		check(t, err)
		said(t, findings)
		if frames < 10 {
			t.Errorf("%s: %d RoCE frames", file, frames)
		}
	}
}

func TestAgainstTshark(t *testing.T) {
	needTshark(t)
	var frames, six []*peer.Frame
	for i := range 256 {
		f := peer.NewFrame(peer.Op(i), 0x123456, 0xABCD00+uint32(i))
		f.SE, f.AckReq, f.Migrated, f.PKey = i%2 == 0, i%3 == 0, i%5 == 0, 0x7FFF
		f.RETH = peer.RETH{VA: 0x1122334455667788, RKey: 0x99AABBCC, Len: 0xDDEEFF00}
		f.AETH = peer.AETH{Syndrome: peer.RNR(12), MSN: 0x445566}
		f.Imm, f.InvKey, f.DETH = 0x89ABCDEF, 0x10203040, peer.DETH{QKey: 0x80010000, SrcQP: 0xA0B0C0}
		f.Atomic = peer.AtomicETH{VA: 8, RKey: 9, SwapAdd: 1 << 63, Compare: 1<<64 - 1}
		f.Orig, f.XRCETH.SRQN = 0xFEDCBA9876543210, 0x0D0E0F
		if f.Op.CarriesPayload() {
			f.Payload = []byte("payload")[:i%8]
		}
		frames = append(frames, f)
		g := f.Clone()
		g.Src, g.Dst, g.DF = v6a, v6b, false
		six = append(six, g)
	}
	// An ICMP error that quotes a RoCE packet is not a RoCE packet.
	quoted := raw(peer.Ack(1, 2, 3))[0]
	icmp := append(bytes.Clone(quoted[:20]), 3, 3, 0, 0, 0, 0, 0, 0)
	icmp[9], icmp[3] = 1, byte(28+len(quoted))
	packets := slices.Concat(raw(frames...), [][]byte{append(icmp, quoted...)}, raw(six...))
	path := pcap(t, "every.pcap", layers.LinkTypeRaw, packets...)
	rows, err := Tshark(path)
	check(t, err)
	good, err := roceFrames(path, func(int, string) {})
	check(t, err)
	said(t, compareRows(path, good, rows))
	if len(good) != 512 {
		t.Errorf("%d frames", len(good))
	}
	said(t, compareRows(path, good[:1], rows[1:]), "tshark does not take it for RoCE")

	// Of the opcodes that tshark knows, it must have read something in every field.
	seen := map[string]bool{}
	for _, row := range rows {
		for name := range row.Values {
			seen[name] = true
		}
	}
	for _, field := range tsharkFields {
		if !seen[field.name] {
			t.Errorf("tshark never printed %s", field.name)
		}
	}
	if _, err := Tshark("/no/such.pcap"); err == nil {
		t.Error("a capture that is not there")
	}
}

// Every field that tshark prints is really compared.
func TestTsharkDiffers(t *testing.T) {
	needTshark(t)
	frames := []*peer.Frame{
		peer.WriteOnlyImm(9, 2, 3, 4, 5, []byte("abc")),
		peer.AtomicAck(9, 2, 3, 4),
		peer.CmpSwap(9, 2, 3, 4, 5, 6),
		peer.UDSend(9, 2, 3, 4, nil),
		peer.SendOnlyInv(9, 2, 3, nil),
	}
	path := pcap(t, "x.pcap", layers.LinkTypeEthernet, eth(frames...)...)
	rows, err := Tshark(path)
	check(t, err)
	compared := map[string]bool{}
	for i, row := range rows {
		if bad := compareRow(frames[i], row); bad != nil {
			t.Errorf("unchanged: %v", bad)
		}
		for name, text := range row.Values {
			compared[name] = true
			row.Values[name] = "0x7777"
			if bad := compareRow(frames[i], row); len(bad) != 1 || !strings.Contains(bad[0], name) {
				t.Errorf("%s changed: %v", name, bad)
			}
			delete(row.Values, name)
			if bad := compareRow(frames[i], row); len(bad) != 1 || !strings.Contains(bad[0], "reads no "+name) {
				t.Errorf("%s missing: %v", name, bad)
			}
			row.Values[name] = text
		}
		row.Malformed = "[Malformed Packet: IB]"
		if bad := compareRow(frames[i], row); len(bad) != 1 || !strings.Contains(bad[0], "Malformed") {
			t.Errorf("malformed: %v", bad)
		}
	}
	if len(compared) != len(tsharkFields) {
		t.Errorf("%d fields compared, want %d", len(compared), len(tsharkFields))
	}
	// Behind a MAD tshark prints no ICRC, and need not.
	mad := pcap(t, "mad.pcap", layers.LinkTypeEthernet, eth(peer.UDSend(1, 2, 3, 1, make([]byte, 100)))...)
	findings, err := AgainstTshark(mad)
	check(t, err)
	said(t, findings)

	rows[0].Values["infiniband.aeth.msn"] = "1"
	if bad := compareRow(frames[0], rows[0]); len(bad) != 1 || !strings.Contains(bad[0], "where there is none") {
		t.Errorf("AETH in a WRITE: %v", bad)
	}
}

func TestTsharkRows(t *testing.T) {
	empty := strings.Repeat("\t", len(tsharkFields)-3)
	rows, err := tsharkRows("7\teth:ip:udp:infiniband\t\t17\t0x000012\tTrue" + empty + "\n8\teth:ip:icmp:ip:udp:infiniband\t\t17\t0x12\tFalse" + empty + "\n")
	check(t, err)
	if len(rows) != 1 || rows[0].Frame != 7 {
		t.Fatalf("%+v", rows)
	}
	for name, want := range map[string]uint64{"infiniband.bth.opcode": 17, "infiniband.bth.destqp": 0x12, "infiniband.bth.psn": 1} {
		if v, ok := rows[0].Uint(name); !ok || v != want {
			t.Errorf("%s: %d, %v", name, v, ok)
		}
	}
	if _, ok := rows[0].Uint("infiniband.immdt"); ok {
		t.Error("a number where nothing was printed")
	}
	if v, ok := (Row{Values: map[string]string{"x": "False"}}).Uint("x"); v != 0 || !ok {
		t.Error("False")
	}
	for _, out := range []string{"7\tx\n", "x\ty\tz\t1\t2\t3" + empty + "\n"} {
		if _, err := tsharkRows(out); err == nil {
			t.Errorf("%q is taken", out)
		}
	}
}

func TestNoTshark(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	path := pcap(t, "x.pcap", layers.LinkTypeEthernet)
	if _, err := AgainstTshark(path); !errors.Is(err, ErrNoTshark) {
		t.Errorf("%v", err)
	}
	if _, _, err := All(path); err == nil || !strings.Contains(err.Error(), "apt-get install tshark") {
		t.Errorf("%v", err)
	}
}

func TestAgainstLog(t *testing.T) {
	path := pcap(t, "x.pcap", layers.LinkTypeEthernet, eth(
		peer.SendOnly(17, 5, nil),
		back(peer.Ack(18, 5, 1)),
		back(peer.ReadRespOnly(18, 6, 2, []byte("abc"))),
		peer.SendOnly(17, 7, nil).AsUC(),
		back(peer.UDSendImm(19, 8, 1, 2, 3, nil)),
	)...)
	const head = `{"addr":["10.8.0.2","fe80::2"]}` + "\n"
	lines := []string{
		`{"dir":"rx","op":"SEND_ONLY","qpn":17,"psn":5}`,
		`{"dir":"tx","op":"ACK","qpn":18,"psn":5,"syndrome":31,"cause":"first"}`,
		`{"dir":"tx","op":"RC_RDMA_READ_RESPONSE_ONLY","qpn":18,"psn":6,"cause":"first","more":{}}`,
		`{"dir":"rx","op":"0x24","qpn":17,"psn":7}`,
		`{"dir":"tx","op":"UD_SEND_ONLY_WITH_IMMEDIATE","qpn":19,"psn":8}`,
	}
	change := func(i int, line string) string {
		l := slices.Clone(lines)
		l[i] = line
		return head + strings.Join(l, "\n")
	}
	for _, c := range []struct {
		name, log string
		want      []string
	}{
		{"same", change(0, lines[0]), nil},
		{"other order between the directions", head + strings.Join([]string{lines[1], lines[0], lines[3], lines[2], lines[4]}, "\n"), nil},
		{"psn", change(0, `{"dir":"rx","op":"SEND_ONLY","qpn":17,"psn":6}`), []string{"frame 1: rx: RC_SEND_ONLY qp=0x000011 psn=0x000005"}},
		{"qpn", change(3, `{"dir":"rx","op":"SEND_ONLY","qpn":18,"psn":7}`), []string{"frame 4: rx: UC_SEND_ONLY"}},
		{"op", change(2, `{"dir":"tx","op":"READ_RESPONSE_LAST","qpn":18,"psn":6}`), []string{"frame 3: tx: RC_READ"}},
		{"service", change(3, `{"dir":"rx","op":"RC_SEND_ONLY","qpn":17,"psn":7}`), []string{"frame 4: rx: UC_SEND_ONLY"}},
		{"syndrome", change(1, `{"dir":"tx","op":"ACK","qpn":18,"psn":5,"syndrome":96,"cause":"nak"}`),
			[]string{"frame 2: tx: RC_ACK", "line 3 of the log says tx ACK qp=0x000012 psn=0x000005 syndrome=0x60 (NAK, PSN sequence) (nak)"}[:1]},
		{"no syndrome in an ACK", change(1, `{"dir":"tx","op":"ACK","qpn":18,"psn":5}`), []string{"frame 2: tx"}},
		{"syndrome without an AETH", change(0, `{"dir":"rx","op":"SEND_ONLY","qpn":17,"psn":5,"syndrome":31}`), []string{"frame 1: rx"}},
		{"direction", change(1, `{"dir":"rx","op":"ACK","qpn":18,"psn":5,"syndrome":31}`),
			[]string{"tx: RC_ACKNOWLEDGE", "frame 4: rx: UC_SEND_ONLY"}},
		{"lines of what was not sent", change(2, `{"dir":"impaired","op":"SEND_ONLY","qpn":18,"psn":9}`+"\n"+`{"dir":"dropped"}`+"\n"+lines[2]), nil},
		{"frame missing in the log", head + strings.Join(lines[:4], "\n"),
			[]string{"frame 5: tx: not in the log: UD_SEND_ONLY_IMM"}},
		{"frame missing in the capture", change(4, lines[4]+"\n"+lines[4]),
			[]string{"x.pcap: tx: not in the capture: line 7 of the log, tx UD_SEND_ONLY_WITH_IMMEDIATE"}},
		{"empty", head, []string{"frame 2: tx: not in the log", "frame 1: rx: not in the log"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, os.WriteFile(LogOf(path), []byte(c.log), 0o600))
			findings, err := AgainstLog(path, LogOf(path))
			check(t, err)
			said(t, findings, c.want...)
		})
	}
	for want, log := range map[string]string{
		"no addresses":       lines[0],
		"empty":              "",
		"line 2 is no frame": head + `{"dir":"up","op":"X"}`,
		"line 3":             head + lines[0] + "\n{",
	} {
		check(t, os.WriteFile(LogOf(path), []byte(log), 0o600))
		if _, err := AgainstLog(path, LogOf(path)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := AgainstLog(path, "/no/such.log"); err == nil {
		t.Error("a log that is not there")
	}
}

// All asks every question, and of the log only where there is one.
func TestAll(t *testing.T) {
	needTshark(t)
	path := pcap(t, "x.pcap", layers.LinkTypeEthernet, eth(peer.SendOnly(17, 5, nil), addressed(peer.Ack(1, 2, 3)).SpoilICRC())...)
	findings, frames, err := All(path)
	check(t, err)
	said(t, findings, "frame 2: irregular (ICRC)")
	if frames != 2 {
		t.Errorf("%d frames", frames)
	}
	check(t, os.WriteFile(LogOf(path), []byte(`{"addr":["10.8.0.2"]}`+"\n"+`{"dir":"rx","op":"SEND_ONLY","qpn":17,"psn":5}`), 0o600))
	findings, _, err = All(path)
	check(t, err)
	said(t, findings, "frame 2: irregular (ICRC)", "frame 2: rx: not in the log: RC_ACK")
	check(t, os.WriteFile(LogOf(path), nil, 0o600))
	if _, _, err = All(path); err == nil {
		t.Error("an empty log passes")
	}
}

func TestLogOf(t *testing.T) {
	for capture, want := range map[string]string{"a/x.pcap": "a/x.log.jsonl", "a/x.pcapng": "a/x.log.jsonl", "x": "x.log.jsonl"} {
		if got := LogOf(capture); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The names of operations that logs may use.
func TestSameOp(t *testing.T) {
	for name, op := range map[string]peer.Op{
		"SEND_LAST_WITH_IMMEDIATE": peer.OpSendLastImm, "RC_SEND_LAST_WITH_IMM": peer.OpSendLastImm, "SEND_LAST_IMMEDIATE": peer.OpSendLastImm,
		"rc_send_only": peer.OpSendOnly, "UD_SEND_ONLY": peer.OpUDSendOnly, "SEND_ONLY_WITH_INVALIDATE": peer.OpSendOnlyInv,
		"RDMA_WRITE_ONLY_WITH_IMMEDIATE": peer.OpWriteOnlyImm, "READ_RESP_FIRST": peer.OpReadRespFirst,
		"ACKNOWLEDGE": peer.OpAck, "ATOMIC_ACK": peer.OpAtomicAck, "XRC_ACK": peer.XRC | peer.OpAck, "CMP_SWAP": peer.OpCmpSwap, "FETCH_AND_ADD": peer.OpFetchAdd,
		"17": peer.OpAck, "0x81": peer.OpCNP, "CNP": peer.OpCNP, "OP_0x15": 0x15, "MASKED_CMP_SWAP": peer.OpMaskedCmpSwap,
	} {
		if !sameOp(op, name) {
			t.Errorf("%s is not %v", name, op)
		}
		if sameOp(op^1, name) {
			t.Errorf("%s is %v too", name, op^1)
		}
	}
}
