package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// known are the flags that tell what was agreed in the film.
var known = []string{"--timeout", "10", "--retry-cnt", "7", "--depth", "4", "--slack", "0"}

// judgeFile runs trace -j on the bytes of a file and checks that the exit code is what it prints.
func judgeFile(t *testing.T, file []byte, flags ...string) *report.Report {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.cap")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := softnic(append([]string{"trace", "-j", path}, flags...)...)
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s %s", err, out, errs)
	}
	want := exitOK
	if r.Broken > 0 {
		want = exitFailure
	}
	if code != want || (errs != "") != (r.Broken > 0) {
		t.Errorf("exit code %d, %q; broken %d", code, errs, r.Broken)
	}
	return &r
}

// violations lists what is broken, "rule:packet".
func violations(r *report.Report) (l []string) {
	for _, v := range r.Rules {
		for _, x := range v.Violations {
			l = append(l, fmt.Sprintf("%s:%d", v.Rule, x.Packet))
		}
	}
	return l
}

func details(r *report.Report) string {
	var b strings.Builder
	_ = r.Text(&b)
	return b.String()
}

func verdict(r *report.Report, id rules.ID) report.Verdict { return r.Rules[id] }

// A film without a fault breaks nothing, wherever it was captured, and the rules that it is about were judged.
func TestTraceCleanFilm(t *testing.T) {
	kept := map[string][]rules.ID{
		"A": {rules.PSNContiguous, rules.GBNSender, rules.RetransmissionSame, rules.ReadResume, rules.Depth, rules.AckTimeout, rules.RetryCount, rules.RNRWait, rules.MSN, rules.AckMonotonic, rules.ReadResponseLength, rules.ReadResponseSequence},
		"B": {rules.NakFirstMissing, rules.NakOncePerGap, rules.RNRSilence, rules.AckMonotonic, rules.AckOrder, rules.MSN, rules.ResponseRange, rules.ResponseKind},
		// The lost packets are there.
		"plain": {rules.GBNSender, rules.RetransmissionSame, rules.ReadResume, rules.MSN, rules.ReadResponseLength},
	}
	for name, f := range newFilm().files(t) {
		r := judgeFile(t, f.file, known...)
		if r.Broken > 0 {
			t.Errorf("%s:\n%s", name, details(r))
		}
		if r.Capture.Complete != (name != "plain") {
			t.Errorf("%s: complete %v: %s", name, r.Capture.Complete, r.Capture.Why)
		}
		for _, id := range kept[name] {
			if verdict(r, id).Kept == 0 {
				t.Errorf("%s: %v was never kept:\n%s", name, id, details(r))
			}
		}
	}
}

// One fault in a film, with the ICRC made right again: it is found at its packet, under its rule, and nothing else is
// broken. Where it cannot be seen nothing is.
func TestTracePlantedFaults(t *testing.T) {
	edit := func(name string, e func(s *wire.Spec)) func(f *film) {
		return func(f *film) { e(&(*f)[f.find(name)].spec) }
	}
	for _, c := range []struct {
		name  string
		plant func(f *film)
		at    string // the shot where it is found
		rule  rules.ID
		seen  string // where it can be seen, of A B AB plain; with - it is another fault there: two that cannot be told apart
		flags []string
	}{
		{"a PSN is left out", func(f *film) {
			at(121)(&(*f)[f.find("last")].spec)
			*f = (*f)[:len(*f)-1]
		}, "last", rules.PSNContiguous, "A AB", nil},
		{"an ACK goes back", edit("last ack", at(112)), "last ack", rules.AckMonotonic, "A B AB plain", nil},
		{"an ACK is repeated behind READs, which no ACK can name: no fault", edit("last ack", at(117)), "last ack", rules.AckMonotonic, "", nil},
		{"a NAK for what was acknowledged", edit("nak", at(110)), "nak", rules.NakFirstMissing, "A B AB plain", nil},
		{"a NAK for what arrived", edit("nak", at(112)), "nak", rules.NakFirstMissing, "A B AB", nil},
		{"a READ goes on at another address", edit("resume", va(0x10000)), "resume", rules.ReadResume, "A B AB", nil},
		{"a READ goes on with another length", edit("resume", length(600)), "resume", rules.ReadResume, "A B AB -plain", nil},
		{"a READ is answered too short", edit("middle", payload(252)), "middle", rules.ReadResponseLength, "A B AB plain", nil},
		{"a READ of one packet is answered too short", edit("only", payload(96)), "only", rules.ReadResponseLength, "A B AB plain", nil},
		{"a READ is answered by the wrong opcode", edit("middle", as(bth.ReadResponseLast)), "middle", rules.ReadResponseSequence, "A B AB plain", nil},
		{"a retransmission has another payload", edit("again", func(s *wire.Spec) { s.Payload = bytes.Repeat([]byte{9}, 100) }), "again", rules.RetransmissionSame, "A AB plain", nil},
		{"a retransmission is shorter", edit("timeout", payload(50)), "timeout", rules.RetransmissionSame, "A AB plain", nil},
		{"a retransmission is another operation", edit("again", as(bth.SendOnlyImm)), "again", rules.RetransmissionSame, "A AB plain", nil},
		{"after an RNR NAK it has another payload", edit("after rnr", func(s *wire.Spec) { s.Payload = bytes.Repeat([]byte{9}, len(s.Payload)) }), "after rnr", rules.RetransmissionSame, "A B AB", nil},
		{"more READs than agreed", func(*film) {}, "second read", rules.Depth, "A B AB", []string{"--depth", "1"}},
		{"RNR is not waited for", func(f *film) { (*f)[f.find("after rnr")].after = 600 * time.Microsecond }, "after rnr", rules.RNRWait, "A B AB", nil},
		{"a timeout comes early", func(f *film) { (*f)[f.find("timeout")].after = 2 * time.Millisecond }, "timeout", rules.AckTimeout, "A AB", nil},
		{"the MSN goes back", edit("ack", msn(1)), "ack", rules.MSN, "A B AB plain", nil},
		{"the MSN runs ahead", edit("ack", msn(9)), "ack", rules.MSN, "A B AB", nil},
		{"a message ends as another kind", edit("send last", as(bth.WriteLast)), "send last", rules.OpcodeSequence, "A B AB plain", nil},
		{"a FIRST in a message", edit("send last", func(s *wire.Spec) {
			as(bth.SendOnly)(s)
		}), "send last", rules.OpcodeSequence, "A B AB plain", nil},
		{"a wrong ICRC", func(f *film) { (*f)[f.find("lost")].fate = "bad" }, "lost", rules.ICRC, "A B AB plain", nil},
		{"an ACK for what was never sent", edit("last ack", at(130)), "last ack", rules.ResponseRange, "A B AB", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFilm()
			place := f.find(c.at)
			c.plant(&f)
			for name, x := range f.files(t) {
				r := judgeFile(t, x.file, slices.Concat(known, c.flags)...)
				got := violations(r)
				if strings.Contains(c.seen, "-"+name) {
					continue // of a new connection, of which the answer is wrong
				}
				sees := slices.Contains(strings.Fields(c.seen), name)
				ok := len(got) == 0
				if sees {
					ok = len(got) > 0
				}
				for _, g := range got {
					found := slices.ContainsFunc(x.places[place], func(n uint64) bool { return g == fmt.Sprintf("%v:%d", c.rule, n) })
					ok = ok && found
				}
				if !ok {
					t.Errorf("%s: got %v, want %v at one of %v: %v\n%s", name, got, c.rule, x.places[place], sees, details(r))
				}
			}
		})
	}
}

// A capture of headers only is judged on demand, and then of a retransmission's payload and of the ICRC nothing is known.
func TestTraceOfHeaders(t *testing.T) {
	cut := func(f film) []byte {
		file, _ := f.pcap()
		out := slices.Clone(file[:24])
		for file = file[24:]; len(file) > 0; {
			n := binary.LittleEndian.Uint32(file[8:])
			keep := min(n, 14+20+8+12+28) // the longest headers are those of an atomic
			h := slices.Clone(file[:16])
			binary.LittleEndian.PutUint32(h[8:], keep)
			out = append(append(out, h...), file[16:16+keep]...)
			file = file[16+n:]
		}
		return out
	}
	r := judgeFile(t, cut(newFilm()), known...)
	if r.Broken > 0 || r.Packets.Cut == 0 || verdict(r, rules.Format).Unknown != r.Packets.Cut || verdict(r, rules.MSN).Kept > 0 {
		t.Errorf("not asked for:\n%s", details(r))
	}
	flags := append([]string{"--trust-truncated", "--capture", "complete"}, known...)
	r = judgeFile(t, cut(newFilm()), flags...)
	c := r.Conversations[0]
	if r.Broken > 0 || c.AB.Bytes != 1968 || c.BA.Bytes != 1844 || c.AB.Retransmissions.Sum() != 5 || c.AB.Cut == 0 || r.Packets.Cut != c.AB.Cut+c.BA.Cut {
		t.Errorf("%s", details(r))
	}
	if v := verdict(r, rules.RetransmissionSame); v.Kept != 0 || v.Unknown != 4 {
		t.Errorf("%+v", v)
	}
	for _, x := range []struct {
		shot string
		edit func(s *wire.Spec)
		rule rules.ID
	}{
		{"ack", msn(1), rules.MSN}, {"middle", payload(252), rules.ReadResponseLength}, {"again", as(bth.SendOnlyImm), rules.RetransmissionSame},
		{"send last", as(bth.WriteLast), rules.OpcodeSequence}, {"last ack", at(112), rules.AckMonotonic},
	} {
		f := newFilm()
		i := f.find(x.shot)
		x.edit(&f[i].spec)
		if got, want := violations(judgeFile(t, cut(f), flags...)), fmt.Sprintf("%v:%d", x.rule, i+1); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %s", x.shot, got, want)
		}
	}
}

// Whatever is missing from a film, nothing in it is broken: cut at the front, without a direction, with every nth packet
// missing. The files of softnic tell by the counts at their end that they lack packets.
func TestTraceOfPartOfAFilm(t *testing.T) {
	f := newFilm()
	check := func(what string, file []byte) {
		t.Helper()
		if r := judgeFile(t, file, known...); r.Broken > 0 || r.Capture.Complete {
			t.Errorf("%s: complete %v\n%s", what, r.Capture.Complete, details(r))
		}
	}
	for name, x := range f.files(t) {
		thin := thinPcapng
		if name == "plain" {
			thin = thinPcap
		}
		if name != "plain" {
			check(name+", which does not say at its end how many there were", without(x.file, 5))
		}
		n := 0
		thin(x.file, func(int, *wire.View) bool { n++; return true })
		for from := 1; from < n; from++ {
			check(fmt.Sprintf("%s from packet %d on", name, from+1), thin(x.file, func(i int, _ *wire.View) bool { return i >= from }))
		}
		for _, host := range filmAddr {
			check(fmt.Sprintf("%s without %v", name, host), thin(x.file, func(_ int, v *wire.View) bool { return v.Src() != host }))
		}
		for nth := 2; nth < 12; nth++ {
			for k := range nth {
				check(fmt.Sprintf("%s, every %dth missing from %d on", name, nth, k), thin(x.file, func(i int, _ *wire.View) bool { return i%nth != k }))
			}
		}
	}
}

// thinPcapng takes packets out of a file of raw IP.
func thinPcapng(file []byte, keep func(n int, v *wire.View) bool) (out []byte) {
	for n := 0; len(file) > 0; {
		size := binary.LittleEndian.Uint32(file[4:])
		b := file[:size]
		file = file[size:]
		if binary.LittleEndian.Uint32(b) == 6 {
			var v wire.View
			wire.ParseIP(b[28:28+binary.LittleEndian.Uint32(b[20:])], &v)
			n++
			if !keep(n-1, &v) {
				continue
			}
		}
		out = append(out, b...)
	}
	return out
}

// without takes the blocks of a type out of a file of pcapng: 5 are the statistics of the interfaces.
func without(file []byte, typ uint32) (out []byte) {
	for len(file) > 0 {
		size := binary.LittleEndian.Uint32(file[4:])
		if binary.LittleEndian.Uint32(file) != typ {
			out = append(out, file[:size]...)
		}
		file = file[size:]
	}
	return out
}

// thinPcap takes packets out of a file of Ethernet frames.
func thinPcap(file []byte, keep func(n int, v *wire.View) bool) []byte {
	out := slices.Clone(file[:24])
	file = file[24:]
	for n := 0; len(file) > 0; n++ {
		size := 16 + binary.LittleEndian.Uint32(file[8:])
		var v wire.View
		wire.ParseEthernet(file[16:size], &v)
		if keep(n, &v) {
			out = append(out, file[:size]...)
		}
		file = file[size:]
	}
	return out
}
