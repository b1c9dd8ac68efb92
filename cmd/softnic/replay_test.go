package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softnic/softnic/trace/replay"
	"github.com/softnic/softnic/trace/scenario"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

const sendScenario = `create_qp q rc
reg_mr a data="hello"
post_send 1 SEND sge=a:5
> SEND_ONLY sq ar data="hello"
+2ms < ACKNOWLEDGE sq msn=1
wc 1 SUCCESS SEND
`

// write writes a file of a test.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// recorded writes a capture of two WRITEs with their answers; the second has the MSN given.
func recorded(t *testing.T, msn uint32) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.txt") // the name decides nothing
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(65535, layers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	a, b := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	for i := range uint32(3) {
		ask := wire.NewSpec(wire.Path{Src: a, Dst: b, SrcPort: 0xC000}, bth.Make(bth.RC, bth.WriteOnly), 0x11, bth.PSN(i))
		ask.BTH.AckReq, ask.Payload, ask.Ext = true, []byte("hello"), bth.Ext{VA: 0x1000, RKey: 0x42, Length: 5}
		answer := wire.NewSpec(wire.Path{Src: b, Dst: a, SrcPort: 0xC000}, bth.Make(bth.RC, bth.Acknowledge), 0x22, bth.PSN(i))
		if answer.Ext = (bth.Ext{Syndrome: bth.AckUnlimited, MSN: i + 1}); i == 1 {
			answer.Ext.MSN = msn
		}
		for k, s := range []wire.Spec{ask, answer} {
			p := wire.Build(&s)
			info := gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), int64(k)*1000), CaptureLength: len(p), Length: len(p)}
			if err := w.WritePacket(info, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	return path
}

func TestReplayScenario(t *testing.T) {
	good, bad := write(t, "good.roce", sendScenario), write(t, "bad.pcap", strings.Replace(sendScenario, "sq ar", "sq+1 ar", 1))
	code, out, errs := softnic("replay", good)
	if want := good + ": passed: 6 statements, 1 packets sent, 2ms\n"; code != 0 || out != want || errs != "" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	code, out, errs = softnic("replay", "-v", good)
	golden(t, "replay-scenario.txt", strings.ReplaceAll(out, good, "good.roce"))
	if code != 0 || errs != "" {
		t.Errorf("exit code %d, %q", code, errs)
	}
	code, out, errs = softnic("replay", good, bad)
	checkError(t, code, exitFailure, errs, "1 of 2 files")
	if want := bad + ":4: wanted > SEND_ONLY sq+1 ar data=\"hello\"; got > SEND_ONLY 0x000100 ar data=hex:68656c6c6f: the PSN is 0x000100, not 0x000101"; !strings.Contains(out, want) {
		t.Errorf("%q\nwant %q", out, want)
	}
	code, out, _ = softnic("replay", "-j", bad)
	var r scenario.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitFailure || r.Passed || r.Failure.Line != 4 || r.File != bad {
		t.Errorf("exit code %d, %v, %s", code, err, out)
	}
}

func TestReplayCapture(t *testing.T) {
	good, bad := recorded(t, 2), recorded(t, 9)
	code, out, errs := softnic("replay", good)
	golden(t, "replay-capture.txt", strings.ReplaceAll(out, good, "good.pcap"))
	if code != 0 || errs != "" {
		t.Errorf("exit code %d, %q", code, errs)
	}
	code, out, errs = softnic("replay", bad)
	golden(t, "replay-different.txt", strings.ReplaceAll(out, bad, "bad.pcap"))
	checkError(t, code, exitFailure, errs, "1 of 1 files")
	code, out, _ = softnic("replay", "-j", bad)
	var r replay.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitFailure || r.Different() != 1 || r.Conversations[0].Findings[0].Packet != 4 {
		t.Errorf("exit code %d, %v, %s", code, err, out)
	}
	for _, c := range []struct {
		args string
		code int
	}{
		{"--mr 0x42:0x1000:5", 0}, {"--mr 0x42:0x1000:4", 1}, {"--recv 1", 0}, {"--still --lossy --unruly", 0}, {"--path-mtu 256", 0}, {"--profile rxe", 1},
	} {
		if code, out, errs := softnic(append(append([]string{"replay"}, strings.Fields(c.args)...), good)...); code != c.code {
			t.Errorf("%s: exit code %d, %s%s", c.args, code, out, errs)
		}
	}
}

func TestReplayUsage(t *testing.T) {
	good := write(t, "good.roce", sendScenario)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "needs a FILE"},
		{[]string{good + ".none"}, "no such file"},
		{[]string{write(t, "x", "")}, "nothing in it"},
		{[]string{write(t, "x", "create_qp q xx")}, "x:1: service \"xx\": rc, uc or ud"},
		{[]string{write(t, "x", "\x0a\x0d\x0d\x0agarbage")}, "x: "},
		{[]string{write(t, "x", "\xd4\xc3\xb2\xa1")}, "x: "},
		{[]string{"--mr", "1:2", good}, "RKEY:VA:LENGTH"},
		{[]string{"--mr", "1:0xffffffffffffffff:2", good}, "RKEY:VA:LENGTH"},
		{[]string{"--recv", "-1", good}, "--recv -1"},
		{[]string{"--profile", "best", recorded(t, 2)}, "ibta"},
		{[]string{"--path-mtu", "1000", recorded(t, 2)}, "256, 512"},
	} {
		code, _, errs := softnic(append([]string{"replay"}, c.args...)...)
		checkError(t, code, exitUsage, errs, c.want)
	}
}
