package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/wire"
)

// TestICRC compares with the scripted peer's routine, which shares no code with this one or with the product's, and with
// frames of hardware and of the kernel (facts: roce.md A.8).
func TestICRC(t *testing.T) {
	for name, h := range map[string]string{
		"CNP of a ConnectX-4": "45c2003c718c400040119161 0a001101 0a001201 000012b700280000 8100ffff4000011800000000 0000000000000000 0000000000000000 82fd002a",
		"SEND abc":            "45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 0d7b363d",
		"ACK":                 "45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 1100ffff0000001200001234 1f000001 c67ef876",
		"IPv6":                "60000000001c1140 20010db8000000000000000000000001 20010db8000000000000000000000002 c12312b7001cbeef 0410ffff0000001180001234 61626300 f97401d0",
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(h, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if err := checkICRC(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		b := make([]byte, 60+r.IntN(200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		b[0] = 0x45
		if r.IntN(2) == 0 {
			b = append(b, make([]byte, 20)...)
			b[0] = 0x60 | b[0]&15
		}
		want := peer.ICRC(b)
		got, err := icrc(b)
		if err != nil || got != binary.LittleEndian.Uint32(want[:]) {
			t.Fatalf("%x: %08x %v, want %x", b, got, err, want)
		}
		whole := append(b, want[:]...)
		if err := checkICRC(whole); err != nil {
			t.Fatal(err)
		}
		whole[len(whole)-1-r.IntN(4)] ^= 1 << r.IntN(8)
		if checkICRC(whole) == nil {
			t.Fatal("a wrong ICRC was taken")
		}
	}
	for _, b := range []string{"", "\x45", "\x46\x00\x00\x00\x00\x00\x00", "\x60", "\x20", strings.Repeat("\x45", 43), strings.Repeat("\x60", 63)} {
		if checkICRC([]byte(b)) == nil {
			t.Errorf("%q was taken", b)
		}
	}
}

// demonstrate runs a demo in an empty folder and returns what it printed.
func demonstrate(t *testing.T, o Options) (*Report, string) {
	t.Helper()
	var out bytes.Buffer
	o.File, o.Out = filepath.Join(t.TempDir(), "demo.pcapng"), &out
	start := time.Now()
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
	check(t, r, out.String())
	return r, out.String()
}

// check checks a report, what was printed, and the file.
func check(t *testing.T, r *Report, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := regexp.MustCompile(`^all data verified, \d+ frames, every ICRC right but the one that was spoiled: .*demo\.pcapng \(open it with wireshark\)$`)
	if !last.MatchString(lines[len(lines)-1]) {
		t.Errorf("last line %q", lines[len(lines)-1])
	}
	for _, l := range lines {
		if strings.TrimRight(l, " ") != l {
			t.Errorf("spaces at the end of %q", l)
		}
	}

	want := []string{"RC SEND", "RC SEND with immediate", "RC WRITE", "RC WRITE with immediate", "RC READ", "RC FETCH_ADD", "RC CMP_SWAP", "RC masked CMP_SWAP and FETCH_ADD",
		"RC bind window, WRITE, SEND with invalidate", "UC SEND", "UC WRITE with immediate", "UD SEND", "UD SEND with immediate"}
	for _, f := range faults(1) {
		want = append(want, f.title)
	}
	want = append(want, "UD SEND, 2nd of 3 lost")
	var got []string
	again, rows := 0, map[string]Row{}
	for _, row := range r.Operations {
		got = append(got, row.Operation)
		rows[row.Operation] = row
		again += row.Retransmitted
		if !row.Verified {
			t.Errorf("not verified: %+v", row)
		}
		if !regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(row.Operation) + ` +.* yes$`).MatchString(out) {
			t.Errorf("%s is not in the table", row.Operation)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("operations %q, want %q", got, want)
	}
	for _, o := range rcOperations {
		if row := rows[o.name]; !slices.Equal(row.Sizes, []int{0, 1, 1023, 1024, 1025, 65536, 1048576}) || row.Messages != 7 || row.Bytes != 1117185 {
			t.Errorf("%+v", row)
		}
	}
	if again != len(r.Retransmissions) {
		t.Errorf("%d retransmissions in the table, %d in the list", again, len(r.Retransmissions))
	}
	causes := map[string]bool{}
	for _, x := range r.Retransmissions {
		causes[x.Cause] = true
		if x.Round < 1 || x.NIC != "a" {
			t.Errorf("%+v", x)
		}
	}
	for _, c := range []wire.Cause{wire.RetrySequence, wire.RetryTimeout, wire.RetryImplied, wire.RetryRNR} {
		if !causes[c.String()] {
			t.Errorf("nothing was sent again for %v", c)
		}
	}
	if row := rows["UD SEND, 2nd of 3 lost"]; row.Messages != 2 || row.Retransmitted != 0 {
		t.Errorf("%+v", row)
	}
	if !r.Verified {
		t.Error("the report says that it is not verified")
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}

	// The file once more, with another routine for the ICRC.
	f, err := os.Open(r.Capture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	file, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	n, wrong, names := 0, 0, map[string]int{}
	for ; ; n++ {
		data, ci, err := file.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !peer.CheckICRC(data) {
			wrong++
		}
		i, err := file.Interface(ci.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		names[i.Name]++
	}
	if wrong != 1 || r.Spoiled != 1 || r.Trace == nil || len(r.Trace.Broken) != 0 || r.Trace.Kept < 20 {
		t.Errorf("%d wrong ICRCs; %d, %+v", wrong, r.Spoiled, r.Trace)
	}
	if n != r.Frames || names["tx"] == 0 || names["rx"] == 0 || names["dropped"] == 0 || names["impaired"] == 0 || names["b/impaired"] == 0 ||
		names["b/tx"]+names["b/rx"]+names["b/dropped"] != 0 {
		t.Errorf("%d frames: %v, the report says %d", n, names, r.Frames)
	}
}

func TestDemo(t *testing.T) {
	r, out := demonstrate(t, Options{})
	t.Log(out)
	if r.Fallback != "" {
		t.Logf("not over UDP: %s", r.Fallback)
	} else if r.Link != "UDP port 4791" {
		t.Errorf("over %s", r.Link)
	}
}

func TestDemoInMemory(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2} {
		r, out := demonstrate(t, Options{Seed: seed, Verbose: true, memory: true})
		if r.Link != "a link in memory" || !strings.Contains(out, "uses a link in memory instead") {
			t.Errorf("over %s", r.Link)
		}
		if n := strings.Count(out, "  retry-"); n != len(r.Retransmissions) {
			t.Errorf("%d lines for %d retransmissions", n, len(r.Retransmissions))
		}
	}
}

// TestFallback has somebody else on the RoCE port.
func TestFallback(t *testing.T) {
	c, err := net.ListenPacket("udp4", "127.0.0.2:4791")
	if err != nil {
		t.Logf("somebody is there already: %v", err)
	} else {
		defer c.Close()
	}
	a, b, why := openLinks(false)
	a.Close()
	b.Close()
	if why == "" || strings.Contains(why, "\n") {
		t.Errorf("no fallback: %q", why)
	}
}

// A demo that does not hold fails.
func TestFails(t *testing.T) {
	t.Parallel()
	if _, err := Run(context.Background(), Options{File: filepath.Join(t.TempDir(), "no", "folder"), memory: true}); err == nil || !strings.Contains(err.Error(), "choose another with -o") {
		t.Errorf("a file that cannot be made: %v", err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	if _, err := Run(ctx, Options{File: filepath.Join(t.TempDir(), "x"), memory: true}); !errors.Is(err, why) {
		t.Errorf("interrupted: %v", err)
	}

	r, _ := demonstrate(t, Options{memory: true})
	b, err := os.ReadFile(r.Capture)
	if err != nil {
		t.Fatal(err)
	}
	for i := 600; i < len(b); i += len(b) / 5 {
		bad := slices.Clone(b)
		bad[i] ^= 0x10
		if n, s, err := checkFrames(bytes.NewReader(bad)); err == nil && n == r.Frames && s == r.Spoiled && !harmless(b, bad) {
			t.Errorf("byte %d was changed, and all is well", i)
		}
	}
	if n, _, err := checkFrames(bytes.NewReader(b[:len(b)/2])); err == nil && n == r.Frames {
		t.Errorf("half a file, %d frames, and all is well", n)
	}
}

// harmless reports whether two files hold the same frames as far as the ICRC goes: the
// change hit a time, a comment, or what the ICRC leaves out.
func harmless(a, b []byte) bool {
	read := func(file []byte) (l [][]byte) {
		r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{WantMixedLinkType: true})
		if err != nil {
			return nil
		}
		for {
			d, _, err := r.ReadPacketData()
			if err != nil {
				return l
			}
			l = append(l, d)
		}
	}
	return slices.EqualFunc(read(a), read(b), func(x, y []byte) bool { return bytes.Equal(x, y) || peer.CheckICRC(y) })
}

// What a fault is there for must happen, and every byte counts.
func TestChecks(t *testing.T) {
	t.Parallel()
	d := &demo{opts: Options{Seed: 1, memory: true, Out: io.Discard}}
	ea, eb, _ := openLinks(true)
	var err error
	if d.a, err = newNIC("a", "rxe_softnic0", ea, d.watch("a", nil, nil)); err != nil {
		t.Fatal(err)
	}
	defer d.a.dev.Close()
	if d.b, err = newNIC("b", "rxe_softnic1", eb, d.watch("b", nil, nil)); err != nil {
		t.Fatal(err)
	}
	defer d.b.dev.Close()
	if err := errors.Join(d.a.connect(d.b), d.b.connect(d.a)); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for want, f := range map[string]fault{
		`the rule "tx opcode=READ_REQUEST drop" hit nothing`: {op: opSend, size: short, a: []string{"tx opcode=READ_REQUEST drop"}, cause: wire.RetryTimeout},
		"nothing was sent again for retry-timeout":           {op: opSend, size: short, a: []string{"tx opcode=SEND_MIDDLE psn=+3 round=1 drop"}, cause: wire.RetryTimeout},
		"2 packets were lost and nothing was sent again":     {op: opWrite, size: short, a: []string{"tx opcode=WRITE_MIDDLE nth=3 duplicate"}, any: true},
		"want tx or rx first":                                {op: opRead, size: short, a: []string{"up drop"}},
	} {
		if _, err := f.play(ctx, d.a, d.b, d.next(f.size)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	d.opts.File = "x.pcapng"
	err = d.broken([]report.Verdict{{Rule: "ack-timeout", Violations: []report.Violation{{Packet: 7, Text: "too soon"}}}, {Rule: "msn"}})
	all := fmt.Sprintf("softnic trace --connect 127.0.0.1/%#x=127.0.0.2/%#x --depth 16 --timeout 16 --retry-cnt 7 x.pcapng", d.a.rc.Num(), d.b.rc.Num())
	if want := "rules of the transports are broken (2): ack-timeout by packet 7, too soon; all: " + all; err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	p := d.next(3)
	b, err := d.a.register(p.n, &p)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.verify(0, p); err != nil {
		t.Error(err)
	}
	for i := range b.all {
		b.all[i] ^= 1
		in := i >= guard && i < guard+p.n
		if err := b.verify(0, p); err == nil || strings.Contains(err.Error(), "behind the message") == in {
			t.Errorf("byte %d changed: %v", i, err)
		}
		b.all[i] ^= 1
	}
}
