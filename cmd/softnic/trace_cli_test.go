package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"image"
	_ "image/png"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// inDir runs the rest of the test in a new folder with files, so that what is printed names them as they are.
func inDir(t *testing.T, files map[string][]byte) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, b := range files {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// What people see, of a film with faults and without.
func TestTraceGolden(t *testing.T) {
	clean := newFilm()
	bad := newFilm()
	msn(1)(&bad[bad.find("ack")].spec)
	bad[bad.find("lost")].fate = "bad"
	both, _ := clean.pcapng(t, "AB")
	plain, _ := bad.pcap()
	goldens(t, map[string][]byte{"both.pcapng": both, "plain.pcap": plain}, []goldenRun{
		{"trace-both.txt", "trace both.pcapng", 0, ""},
		{"trace-plain.txt", "trace --timeout 10 --depth 4 --retry-cnt 7 plain.pcap", 1, "softnic: plain.pcap: rules are broken 2 times: icrc, msn\n"},
		{"trace-both.json", "trace -j both.pcapng", 0, ""},
		{"trace-rules.txt", "trace --rules", 0, ""},
	})
}

// goldenRun is a command line, and where what it prints is kept.
type goldenRun struct {
	golden string
	args   string
	code   int
	stderr string
}

// goldens runs command lines in a folder with files.
func goldens(t *testing.T, files map[string][]byte, runs []goldenRun) {
	t.Helper()
	back, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	inDir(t, files)
	for _, c := range runs {
		code, out, errs := softnic(strings.Fields(c.args)...)
		if code != c.code || errs != c.stderr {
			t.Errorf("%s: exit code %d, %q", c.args, code, errs)
		}
		if strings.HasSuffix(c.golden, ".json") {
			var b bytes.Buffer
			if err := json.Indent(&b, []byte(out), "", "  "); err != nil {
				t.Fatal(err)
			}
			out = b.String()
		}
		dir, _ := os.Getwd()
		if err := os.Chdir(back); err != nil {
			t.Fatal(err)
		}
		golden(t, c.golden, out)
		if err := os.Chdir(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// stdin runs a command line with a file on stdin.
func stdin(in io.Reader, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetIn(in)
	code = runRoot(root, args, &out, &errs)
	return code, out.String(), errs.String()
}

// zipped is a file through gzip.
func zipped(file []byte) []byte {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(file)
	w.Close()
	return z.Bytes()
}

// Stdin, gzip, several files, and files that are one capture.
func TestTraceInputs(t *testing.T) {
	f := newFilm()
	a, _ := f.pcapng(t, "A")
	b, _ := f.pcapng(t, "B")
	plain, _ := f.pcap()
	inDir(t, map[string][]byte{"a.pcapng": a, "b.pcapng": b, "plain.pcap.gz": zipped(plain)})
	code, out, errs := stdin(bytes.NewReader(plain), "trace", "-")
	if code != 0 || errs != "" || !strings.HasPrefix(out, "stdin: pcap, ns, little-endian; 43 Ethernet\n43 packets, 43 of them RoCEv2\n") {
		t.Errorf("%d %q %s", code, errs, out)
	}
	code, out, errs = softnic("trace", "-j", "plain.pcap.gz", "a.pcapng")
	if code != 0 || errs != "" || strings.Count(out, "\n") != 2 || !strings.Contains(out, `"format":"pcap, ns, little-endian, gzip"`) {
		t.Errorf("%d %q %s", code, errs, out)
	}
	code, out, errs = softnic("trace", "-j", "--merge", "a.pcapng", "b.pcapng")
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || errs != "" {
		t.Fatal(err, code, errs)
	}
	// Lost on their way to B are two, and one on its way to A.
	if len(r.Files) != 2 || r.Packets.Total != 83 || r.Packets.TwiceSeen != 40 || len(r.Conversations) != 1 || r.Conversations[0].AB.Packets != 22 || !r.Capture.Complete {
		t.Errorf("%+v %+v", r.Packets, r.Capture)
	}
}

// Truncated frames, RoCEv1, fragments and other packets are counted as what they are.
func TestTraceOddPackets(t *testing.T) {
	f := newFilm()
	whole, _ := f.packets()
	eth := func(etherType string, b []byte) []byte {
		return append([]byte("\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x02"+etherType), b...)
	}
	frag := bytes.Clone(whole[0])
	frag[6] = 0x20
	packets := [][]byte{eth("\x08\x00", whole[0]), eth("\x89\x15", make([]byte, 60)), eth("\x08\x00", frag), eth("\x08\x06", make([]byte, 40)), eth("\x08\x00", whole[1])}
	file := pcapOf(packets, 80)
	inDir(t, map[string][]byte{"odd.pcap": file})
	code, out, errs := softnic("trace", "-j", "odd.pcap")
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatal(err, code, errs)
	}
	want := report.Packets{Total: 5, RoCE: 2, RoCEv1: 1, Fragments: 1, Other: 1, Cut: 1}
	if r.Packets != want {
		t.Errorf("%+v", r.Packets)
	}
	// Of the truncated one the tables know what it is; the rules do not judge it.
	if c := r.Conversations[0]; c.AB.Cut != 1 || c.AB.Opcodes["RC_SEND_ONLY"] != 1 || c.AB.Bytes != 100 {
		t.Errorf("%+v", c.AB)
	}
	_, text, _ := softnic("trace", "odd.pcap")
	for _, s := range []string{"(1 truncated); 1 RoCEv1: not judged; 1 UDP fragments: not judged", "unknown 1: the capture has only the beginning of the packet"} {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in\n%s", s, text)
		}
	}
}

// pcapOf is a file of frames, cut to snaplen bytes.
func pcapOf(frames [][]byte, snaplen int) []byte {
	f := film{}
	b, _ := f.pcap()
	for i, p := range frames {
		n := min(len(p), snaplen)
		b = append(b, byte(i), 0, 0, 0, 0, 0, 0, 0, byte(n), 0, 0, 0, byte(len(p)), 0, 0, 0)
		b = append(b, p[:n]...)
	}
	return b
}

// What cannot be read or judged is one line that says which file, where, why, and what to do.
func TestTraceErrors(t *testing.T) {
	f := newFilm()
	plain, _ := f.pcap()
	ng, _ := f.pcapng(t, "A")
	s := wire.NewSpec(f[0].spec.Path, bth.Make(bth.RC, bth.SendOnly), 1, 1)
	s.Path.DstPort = 4000
	other := append(make([]byte, 12), "\x08\x00"...)
	other = append(other, wire.Build(&s)...)
	usb := bytes.Clone(plain)
	usb[20] = 220
	inDir(t, map[string][]byte{
		"cut.pcap": plain[:len(plain)-30], "cut.pcapng": ng[:len(ng)-30], "empty": nil, "header.pcap": plain[:24], "text.txt": []byte("some text\n"),
		"cut.gz": zipped(plain[:1000])[:400], "binary": {1, 2, 3, 4}, "x.zst": []byte("\x28\xB5\x2F\xFD...."), "four": plain[:4],
		"other.pcap": pcapOf([][]byte{other, other}, 1000), "usb.pcap": usb, "plain.pcap": plain,
		"v1.pcap": pcapOf([][]byte{append(make([]byte, 12), "\x89\x15................"...)}, 1000),
	})
	if err := os.Mkdir("folder", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		want string
		some bool // what came before is judged, and printed
	}{
		{"cut.pcap", fmt.Sprintf("softnic: cut.pcap: at byte %d, after packet 42: the file ends inside a packet: 32 of 62 bytes are there", len(plain)-16-62), true},
		{"cut.pcapng", "softnic: cut.pcapng: at byte ", true},
		{"cut.gz", "softnic: cut.gz: at byte ", true},
		{"binary", "softnic: binary: at byte 0: no capture: it begins with 01 02 03 04", false},
		{"x.zst", "softnic: x.zst: at byte 0: compressed with zstd: `zstd -d FILE` unpacks it", false},
		{"four", "softnic: four: at byte 0: the header of a pcap file has 24 bytes, and 4 are there", false},
		{"empty", "softnic: empty: at byte 0: the file is empty", false},
		{"header.pcap", "softnic: header.pcap: no RoCE packets: no packets at all; ", false},
		{"text.txt", "softnic: text.txt: at byte 0: text, and no capture: pcap and pcapng files can be read, `tcpdump -w FILE` writes them", false},
		{"folder", "softnic: folder: at byte 0: it is a directory", false},
		{"none", "softnic: none: no such file or directory", false},
		{"other.pcap", "softnic: other.pcap: no RoCE packets: 2 packets; RoCE goes to UDP port 4791 (--port for others)", false},
		{"usb.pcap", "softnic: usb.pcap: no RoCE packets: 43 packets, 43 of a link type that cannot be read (link type 220); capture on an Ethernet or IP interface", false},
		{"v1.pcap", "softnic: v1.pcap: no RoCE packets: 1 packets, 1 of RoCEv1, which is not read; only RoCEv2 is read", false},
		{"--picture x.svg --qp 5 plain.pcap", "softnic: x.svg: no picture: no conversation with PSNs in order (RC, UC, XRC) is in the tables; see --qp, --peer and --picture-time", true},
		{"--picture x.svg --picture-time 5s- plain.pcap", "softnic: x.svg: no picture: ", true},
		{"--picture nowhere/x.svg plain.pcap", "softnic: nowhere/x.svg: the picture cannot be written: no such file or directory: give --picture another place", true},
		{"--picture-time 5s- plain.pcap", "--picture-time 5s- goes with --picture FILE", false},
	} {
		code, out, errs := softnic(append([]string{"trace"}, strings.Fields(c.args)...)...)
		checkError(t, code, exitUsage, errs, c.want)
		if (out != "") != c.some {
			t.Errorf("%s: on stdout: %q", c.args, out)
		}
		// replay says the same; text is a scenario to it.
		if strings.Contains(c.args, "--") || c.args == "text.txt" {
			continue
		}
		code, out, same := softnic("replay", c.args)
		if code != exitUsage || same != errs || (out != "") != c.some {
			t.Errorf("replay %s: exit code %d, %q, trace says %q; on stdout %q", c.args, code, same, errs, out)
		}
	}
	// Of several files the others are judged all the same.
	code, out, errs := softnic("trace", "empty", "plain.pcap", "none")
	if code != exitUsage || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "empty: at byte 0: the file is empty; none: no such file") || !strings.Contains(out, "plain.pcap: pcap") {
		t.Errorf("%d %q %q", code, errs, out)
	}
	if code, _, errs := softnic("trace", "--port", "4000", "other.pcap"); code != 0 {
		t.Errorf("another port: %d %s", code, errs)
	}
	for _, c := range []struct{ args, want string }{
		{"", "trace needs a capture: `softnic trace FILE`, or - for stdin"},
		{"--bogus", "see `softnic trace --help`"},
		{"--capture some x", "--capture some: complete or incomplete"},
		{"--depth 300 x", "--depth 300: 1 to 255, or -1 for none"},
		{"--timeout 32 x", "--timeout 32: a code of 1 to 31, or -1 for no timer"},
		{"--retry-cnt 8 x", "--retry-cnt 8: 1 to 7, or -1 for none"},
		{"--slack -1s x", "--slack -1s: not below 0"},
		{"--examples 0 x", "--examples 0: 1 to 1000000"},
		{"--port 0 x", "--port 0: 1 to 65535"},
		{"--qp many x", "--qp many: not a queue pair number, as 17 or 0x11, of 24 bits"},
		{"--qp 0x1000000 x", "of 24 bits"},
		{"--peer host x", "--peer host: not an IP address"},
		{"--host x y", "--host x: not an IP address"},
		{"--connect a x", "--connect a: not ADDR/QPN=ADDR/QPN"},
		{"--connect 10.0.0.1/5=10.0.0.2 x", "not ADDR/QPN=ADDR/QPN"},
		{"--connect 10.0.0.1/z=10.0.0.2/3 x", "z: not a queue pair number"},
		{"--connect 10.0.0/1=10.0.0.2/3 x", "10.0.0: not an IP address"},
		{"--cnp pair x", "--cnp pair: not port:TIME, dest:TIME, pair:TIME or qp:TIME, as pair:50us"},
		{"--cnp all:5us x", "--cnp all:5us: not port:TIME"},
		{"--picture x.svg --picture-time 5 y", "--picture-time 5: not FROM-TO, as 980ms-1.2s or 5s-"},
		{"--picture x.svg --picture-time 5s-4s y", "not FROM-TO"},
		{"--picture x.svg --picture-time 5s-x y", "not FROM-TO"},
		{"--picture x.gif y", "--picture x.gif: the name must end in .svg or .png"},
		{"--picture x.svg y z", "--picture is of one capture: give one file, or --merge"},
	} {
		code, out, errs := softnic(append([]string{"trace"}, strings.Fields(c.args)...)...)
		checkError(t, code, exitUsage, errs, c.want)
		if out != "" {
			t.Errorf("%s: on stdout: %q", c.args, out)
		}
	}
}

// The flags that tell what a capture cannot reach the checker.
func TestTraceFlags(t *testing.T) {
	f := newFilm()
	plain, _ := f.pcap()
	a, _ := f.pcapng(t, "A")
	inDir(t, map[string][]byte{"plain.pcap": plain, "a.pcapng": a})
	get := func(args ...string) report.Report {
		t.Helper()
		_, out, errs := softnic(append([]string{"trace", "-j"}, args...)...)
		var r report.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err, errs)
		}
		return r
	}
	rule := func(r report.Report, name string) report.Verdict {
		for _, v := range r.Rules {
			if v.Rule == name {
				return v
			}
		}
		t.Fatalf("no rule %s", name)
		return report.Verdict{}
	}
	if v := rule(get("plain.pcap"), "depth"); v.Verdict != "unknown" || v.Kept != 0 {
		t.Errorf("nothing known: %+v", v)
	}
	if v := rule(get("--depth", "4", "plain.pcap"), "depth"); v.Verdict != "kept" || v.Unknown != 0 {
		t.Errorf("--depth: %+v", v)
	}
	if r := get("--capture", "complete", "--depth", "1", "plain.pcap"); rule(r, "depth").Verdict != "broken" || !r.Capture.Complete {
		t.Errorf("--capture complete: %+v", rule(r, "depth"))
	}
	if r := get("--capture", "incomplete", "--depth", "1", "a.pcapng"); rule(r, "depth").Verdict == "broken" || r.Capture.Complete {
		t.Errorf("--capture incomplete: %+v", rule(r, "depth"))
	}
	if v := rule(get("--timeout", "31", "--capture", "complete", "a.pcapng"), "ack-timeout"); v.Broken == 0 {
		t.Errorf("--timeout: %+v", v)
	}
	if v := rule(get("--timeout", "31", "--slack", "10000s", "--capture", "complete", "a.pcapng"), "ack-timeout"); v.Broken != 0 {
		t.Errorf("--slack: %+v", v)
	}
	if v := rule(get("--retry-cnt", "-1", "--capture", "complete", "a.pcapng"), "retry-count"); v.Broken == 0 || len(v.Violations) == 0 {
		t.Errorf("--retry-cnt: %+v", v)
	}
	if v := rule(get("--unruly", "--capture", "complete", "plain.pcap"), "gbn-sender"); v.Unknown == 0 || v.Why[0].Text != "the network may reorder or double packets" {
		t.Errorf("--unruly: %+v", v)
	}
	// Where it was captured, without that the file tells.
	if v := rule(get("--host", "10.0.0.1", "--capture", "complete", "plain.pcap"), "gbn-sender"); v.Kept == 0 {
		t.Errorf("--host: %+v", v)
	}
	if r := get("--host", "10.0.0.1", "plain.pcap"); r.Capture.Complete {
		t.Errorf("--host: a plain file is complete: %s", r.Capture.Why)
	}
	if r := get("--connect", "10.0.0.1/26=10.0.0.2/99", "plain.pcap"); len(r.Conversations) != 2 {
		t.Errorf("--connect with another queue pair: %d conversations", len(r.Conversations))
	}
	for _, args := range [][]string{{"--qp", "26"}, {"--qp", "0x1b"}, {"--peer", "10.0.0.2"}, {"--qp", "27", "--peer", "10.0.0.1"}} {
		if r := get(append(args, "plain.pcap")...); len(r.Conversations) != 1 {
			t.Errorf("%v: %d conversations", args, len(r.Conversations))
		}
	}
	if _, out, _ := softnic("trace", "--qp", "12", "plain.pcap"); !strings.Contains(out, "no conversation in here is of the queue pair") {
		t.Error(out)
	}
	for _, args := range [][]string{{"--qp", "12"}, {"--peer", "10.0.0.3"}} {
		if r := get(append(args, "plain.pcap")...); len(r.Conversations) != 0 || rule(r, "msn").Kept == 0 {
			t.Errorf("%v: %d conversations", args, len(r.Conversations))
		}
	}
	if r := get("--examples", "1", "--capture", "complete", "--retry-cnt", "-1", "a.pcapng"); rule(r, "retry-count").Broken < 2 || len(rule(r, "retry-count").Violations) != 1 {
		t.Errorf("--examples: %+v", rule(r, "retry-count"))
	}
}

// Pictures are files of their kind, and what is in them has its line in the legend.
func TestTracePicture(t *testing.T) {
	f := newFilm()
	a, _ := f.pcapng(t, "A")
	inDir(t, map[string][]byte{"a.pcapng": a})
	for _, name := range []string{"x.png", "x.svg"} {
		if code, _, errs := softnic("trace", "--picture", name, "a.pcapng"); code != 0 {
			t.Fatal(errs)
		}
	}
	file, err := os.Open("x.png")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if img, kind, err := image.Decode(file); err != nil || kind != "png" || img.Bounds().Dx() < 800 {
		t.Error(err, kind)
	}
	svg, err := os.ReadFile("x.svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"request, first time", "READ response", ">ACK<", "request, sent again", "RNR NAK", ">NAK<", "lost on purpose", "time since the first packet of the capture (ms)", "PSN, relative to the first shown (0x000064)", "10.0.0.1 QP 0x1a"} {
		if !strings.Contains(string(svg), s) {
			t.Errorf("no %q in the picture", s)
		}
	}
}

// The manual has every rule, every flag and every name in the JSON.
func TestTraceManual(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "trace.md"))
	if err != nil {
		t.Fatal(err)
	}
	has := func(s string) {
		t.Helper()
		if !bytes.Contains(b, []byte(s)) {
			t.Errorf("docs/trace.md does not have %s", s)
		}
	}
	for _, r := range rules.Table {
		has("| `" + r.Name + "` | ")
	}
	for l := range strings.Lines(newTrace().Flags().FlagUsages()) {
		has("`" + strings.Fields(l)[0])
	}
	var names func(x reflect.Type)
	names = func(x reflect.Type) {
		switch x.Kind() {
		case reflect.Pointer, reflect.Slice:
			names(x.Elem())
		case reflect.Struct:
			for f := range x.Fields() {
				if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" {
					if !regexp.MustCompile("`" + tag + "[`{\\[]").Match(b) {
						t.Errorf("docs/trace.md does not have the field %s", tag)
					}
					names(f.Type)
				}
			}
		}
	}
	names(reflect.TypeFor[report.Report]())
}
