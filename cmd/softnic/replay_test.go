package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/softnic/softnic/trace/replay"
	"github.com/softnic/softnic/trace/scenario"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/icrc"
)

const sendScenario = `create_qp q rc
reg_mr a data="hello"
post_send 1 SEND sge=a:5
> SEND_ONLY sq ar data="hello"
+2ms < ACKNOWLEDGE sq msn=1
wc 1 SUCCESS SEND
`

// recorded is a capture of three WRITEs with their answers; the second has the MSN given.
func recorded(msn uint32) []byte {
	a, b := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	var frames [][]byte
	for i := range uint32(3) {
		ask := wire.NewSpec(wire.Path{Src: a, Dst: b, SrcPort: 0xC000}, bth.Make(bth.RC, bth.WriteOnly), 0x11, bth.PSN(i))
		ask.BTH.AckReq, ask.Payload, ask.Ext = true, []byte("hello"), bth.Ext{VA: 0x1000, RKey: 0x42, Length: 5}
		answer := wire.NewSpec(wire.Path{Src: b, Dst: a, SrcPort: 0xC000}, bth.Make(bth.RC, bth.Acknowledge), 0x22, bth.PSN(i))
		if answer.Ext = (bth.Ext{Syndrome: bth.AckUnlimited, MSN: i + 1}); i == 1 {
			answer.Ext.MSN = msn
		}
		for _, s := range []wire.Spec{ask, answer} {
			frames = append(frames, append([]byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x02\x08\x00"), wire.Build(&s)...))
		}
	}
	return pcapOf(frames, 1000)
}

// What people see: of scenarios, of captures, and of the film that trace judges, which is a good one.
func TestReplayGolden(t *testing.T) {
	film := newFilm()
	both, _ := film.pcapng(t, "AB")
	plain, _ := film.pcap()
	goldens(t, map[string][]byte{
		"good.roce": []byte(sendScenario), "bad.roce": []byte(strings.Replace(sendScenario, "sq ar", "sq+1 ar", 1)),
		"good.pcap": recorded(2), "bad.txt": recorded(9), "both.pcapng": both, "plain.pcap": plain, // a name decides nothing
	}, []goldenRun{
		{"replay-scenario.txt", "replay -v good.roce", 0, ""},
		{"replay-capture.txt", "replay good.pcap", 0, ""},
		{"replay-different.txt", "replay bad.txt good.roce bad.roce", 1, "softnic: bad.txt: 1 answers are different; bad.roce: the scenario fails in line 4\n"},
		{"replay-different.json", "replay -j bad.txt", 1, "softnic: bad.txt: 1 answers are different\n"},
		{"replay-both.txt", "replay -v both.pcapng plain.pcap", 0, ""},
	})
}

func TestReplayScenario(t *testing.T) {
	inDir(t, map[string][]byte{"good.roce": []byte(sendScenario), "bad.pcap": []byte(strings.Replace(sendScenario, "sq ar", "sq+1 ar", 1))})
	code, out, errs := softnic("replay", "good.roce")
	if want := "good.roce: passed: 6 statements, 1 packets sent, 2ms\n"; code != 0 || out != want || errs != "" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	code, out, errs = softnic("replay", "good.roce", "bad.pcap")
	checkError(t, code, exitFailure, errs, "bad.pcap: the scenario fails in line 4")
	if want := "bad.pcap:4: wanted > SEND_ONLY sq+1 ar data=\"hello\"; got > SEND_ONLY 0x000100 ar data=hex:68656c6c6f: the PSN is 0x000100, not 0x000101"; !strings.Contains(out, want) {
		t.Errorf("%q\nwant %q", out, want)
	}
	code, out, _ = softnic("replay", "-j", "bad.pcap")
	var r scenario.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitFailure || r.Passed || r.Failure.Line != 4 || r.File != "bad.pcap" {
		t.Errorf("exit code %d, %v, %s", code, err, out)
	}
	if code, out, _ = stdin(strings.NewReader(sendScenario), "replay", "-"); code != 0 || !strings.HasPrefix(out, "stdin: passed") {
		t.Errorf("exit code %d, %q", code, out)
	}
}

// Stdin, gzip, another port, and the flags that tell what a capture cannot.
func TestReplayInputs(t *testing.T) {
	good := recorded(2)
	elsewhere := bytes.ReplaceAll(good, []byte{0xC0, 0, 0x12, 0xB7}, []byte{0xC0, 0, 0x0F, 0xA0}) // the ICRC covers the port
	inDir(t, map[string][]byte{"good.pcap": good, "good.pcap.gz": zipped(good), "port.pcap": fixed(t, elsewhere), "bad.pcap": recorded(9), "cut.pcap": good[:len(good)-10]})
	code, out, errs := stdin(bytes.NewReader(good), "replay", "-")
	if code != 0 || errs != "" || !strings.HasPrefix(out, "stdin: pcap, ns, little-endian\n6 packets, 6 of them RoCEv2\n") {
		t.Errorf("%d %q %s", code, errs, out)
	}
	code, out, errs = softnic("replay", "-j", "good.pcap.gz", "bad.pcap", "cut.pcap")
	if code != exitUsage || strings.Count(out, "\n") != 3 || !strings.Contains(out, `"format":"pcap, ns, little-endian, gzip"`) ||
		!strings.HasPrefix(errs, "softnic: bad.pcap: 1 answers are different; cut.pcap: at byte ") {
		t.Errorf("%d %q %s", code, errs, out)
	}
	var r replay.Result
	if err := json.Unmarshal([]byte(strings.Split(out, "\n")[1]), &r); err != nil || r.Different != 1 || r.Conversations[0].Findings[0].Packet != 4 {
		t.Errorf("%v, %+v", err, r)
	}
	for _, c := range []struct {
		args string
		code int
	}{
		{"--mr 0x42:0x1000:5 good.pcap", 0}, {"--mr 0x42:0x1000:4 good.pcap", 1}, {"--recv 1 good.pcap", 0}, {"--still --capture incomplete --unruly good.pcap", 0},
		{"--path-mtu 256 good.pcap", 0}, {"--profile rxe good.pcap", 1}, {"--port 4000 port.pcap", 0}, {"port.pcap", 2},
	} {
		if code, out, errs := softnic(append([]string{"replay"}, strings.Fields(c.args)...)...); code != c.code {
			t.Errorf("%s: exit code %d, %s%s", c.args, code, out, errs)
		}
	}
}

// fixed makes the ICRCs of a capture of recorded right.
func fixed(t *testing.T, file []byte) []byte {
	t.Helper()
	b := file[:24:24]
	for at := 24; at < len(file); {
		n := int(file[at+8])
		p := bytes.Clone(file[at+16+14 : at+16+n])
		s := icrc.Start(p[:28], p[28:40])
		s.Update(p[40 : len(p)-4])
		s.Put(p[len(p)-4:])
		b = append(append(b, file[at:at+16+14]...), p...)
		at += 16 + n
	}
	return b
}

func TestReplayUsage(t *testing.T) {
	inDir(t, map[string][]byte{"good.pcap": recorded(2), "x": []byte("create_qp q xx"), "blank": []byte("# no more\n")})
	for _, c := range []struct{ args, want string }{
		{"", "replay needs a capture or scenario: `softnic replay FILE`, or - for stdin"},
		{"--bogus", "see `softnic replay --help`"},
		{"x", "softnic: x:1: service \"xx\": rc, uc"},
		{"blank", "softnic: blank:1: there is nothing in it"},
		{"--mr 1:2 good.pcap", "--mr 1:2: RKEY:VA:LENGTH"},
		{"--mr 1:0xffffffffffffffff:2 good.pcap", "RKEY:VA:LENGTH"},
		{"--recv -1 good.pcap", "--recv -1"},
		{"--profile best good.pcap", "ibta"},
		{"--path-mtu 1000 good.pcap", "256, 512"},
		{"--capture some good.pcap", "--capture some: complete or incomplete"},
		{"--port 0 good.pcap", "--port 0: 1 to 65535"},
	} {
		code, out, errs := softnic(append([]string{"replay"}, strings.Fields(c.args)...)...)
		checkError(t, code, exitUsage, errs, c.want)
		if out != "" {
			t.Errorf("%s: on stdout: %q", c.args, out)
		}
	}
}
