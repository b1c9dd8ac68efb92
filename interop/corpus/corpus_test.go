package corpus_test

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/interop/corpus"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/replay"
	"github.com/softnic/softnic/trace/replay/replaytest"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
)

// dir is the corpus.
var dir = filepath.Join("..", "..", "testdata")

// file is one of the corpus, as package peer reads it.
type file struct {
	corpus.Entry
	path   string
	bytes  int64
	frames []frame
}

type frame struct {
	*peer.Frame
	number int    // from 1
	ip     []byte // from the IP header on, without what is behind the ICRC
	rxe    bool   // the kernel's device has sent it
}

// files reads the corpus. Every frame in it is RoCE.
func files(t *testing.T) (l []file) {
	t.Helper()
	index, err := corpus.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range index {
		f := file{Entry: e, path: filepath.Join(dir, e.File)}
		b, err := os.ReadFile(f.path)
		if err != nil {
			t.Fatal(err)
		}
		f.bytes = int64(len(b))
		r, err := trace.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(e.File, err)
		}
		for {
			p, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(e.File, err)
			}
			x := frame{number: int(p.Number), ip: bytes.Clone(p.Data)}
			parse := peer.Parse
			if p.Link == trace.LinkEthernet {
				parse = peer.ParseEth
			}
			if x.Frame, err = parse(p.Data); err != nil {
				t.Fatalf("%s: frame %d: %v", e.File, x.number, err)
			}
			if p.Link == trace.LinkEthernet {
				x.ip = x.ip[14+4*len(x.Link.Tags):]
			}
			x.ip = x.ip[:len(x.ip)-len(x.Trailer)]
			x.rxe = x.Src == e.Rxe
			f.frames = append(f.frames, x)
		}
		l = append(l, f)
	}
	return l
}

// The index, the table and the folder are of one making, and small.
func TestIndex(t *testing.T) {
	const most, mostOfAll = 30 << 10, 1 << 20
	total, table := int64(0), corpus.Head
	listed := map[string]bool{corpus.Index: true, corpus.Readme: true}
	deviations, err := os.ReadFile(filepath.Join("..", "deviations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files(t) {
		for _, b := range f.Breaks {
			if !strings.Contains(string(deviations), "\n| "+b.Row+" | ") {
				t.Errorf("%s: deviations.md has no row %q", f.File, b.Row)
			}
		}
		if listed[f.File] {
			t.Errorf("%s is listed twice", f.File)
		}
		listed[f.File] = true
		for what, s := range map[string]string{"shows": f.Shows, "by": f.By, "how": f.How, "at": f.At} {
			if s == "" || strings.ContainsAny(s, "|\n") {
				t.Errorf("%s: %s is %q", f.File, what, s)
			}
		}
		if f.bytes > most {
			t.Errorf("%s has %d bytes, want at most %d", f.File, f.bytes, most)
		}
		total += f.bytes
		table += f.Row(f.bytes, len(f.frames))
	}
	if total > mostOfAll {
		t.Errorf("%d bytes in all, want at most %d", total, mostOfAll)
	}
	readme, err := os.ReadFile(filepath.Join(dir, corpus.Readme))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(readme), table) {
		t.Errorf("%s does not end with the table of the index: make corpus", corpus.Readme)
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range there {
		if !listed[x.Name()] {
			t.Errorf("%s is not in the index", x.Name())
		}
	}
}

// Every frame is regular, and its ICRC right by three implementations, but for those that the index names.
func TestFrames(t *testing.T) {
	for _, f := range files(t) {
		for _, x := range f.frames {
			bad := slices.Contains(f.BadICRC, x.number)
			want, got := linktest.ICRC(x.ip)
			var v wire.View
			if fault := wire.ParseIP(x.ip, &v); fault != wire.OK {
				t.Fatalf("%s: frame %d: package wire says %v", f.File, x.number, fault)
			}
			for who, right := range map[string]bool{"linktest": want == got, "peer": x.ICRC == nil, "wire": wire.CheckICRC(&v)} {
				if right == bad {
					t.Errorf("%s: frame %d, %v: the ICRC is right: %v, says %s", f.File, x.number, x.Op, right, who)
				}
			}
			irregular := x.Irregular()
			if x.ICRC != nil {
				irregular = slices.DeleteFunc(irregular, func(s string) bool { return s == "ICRC" })
			}
			if len(irregular) > 0 {
				t.Errorf("%s: frame %d: %v: %v", f.File, x.number, irregular, x.Frame)
			}
			if !bytes.Equal(x.Frame.Marshal(), x.ip) && x.Trailer == nil {
				t.Errorf("%s: frame %d: package peer would have made another", f.File, x.number)
			}
		}
	}
}

// slack is how early or late a timer in the lab may be: the kernel counts in jiffies of 4 ms, and may be one early.
const slack = 8 * time.Millisecond

// What softnic trace says is broken is what the index says: with all that is known of the capture exactly, with less of it never more.
func TestTrace(t *testing.T) {
	for _, f := range files(t) {
		b, err := os.ReadFile(f.path)
		if err != nil {
			t.Fatal(err)
		}
		var hosts []netip.Addr
		if f.At == "rxe" {
			hosts = []netip.Addr{f.Rxe}
		}
		attr := rules.Attr{Depth: f.Depth, Timeout: f.Timeout, RetryCnt: f.Retry % 7}
		for name, o := range map[string]report.Options{
			"nothing known":    {},
			"hosts known":      {Hosts: hosts},
			"all known":        {Hosts: hosts, Rules: rules.Options{Capture: rules.Complete, Default: attr, Slack: slack}},
			"attributes known": {Rules: rules.Options{Default: attr}},
			"ICRCs believed":   {Hosts: hosts, Rules: rules.Options{Capture: rules.Complete, Default: attr, Slack: slack, NoICRC: true}},
		} {
			// Who takes a FLUSH with the wrong ICRC breaks rules only for those that do not: without them nothing is broken.
			believed := name == "ICRCs believed"
			if believed && !slices.ContainsFunc(f.Breaks, func(b corpus.Break) bool { return b.Row == "flush-icrc" }) {
				continue
			}
			r, err := report.Analyze([]trace.Input{{Name: f.File, R: bytes.NewReader(b)}}, o)
			if err != nil {
				t.Fatal(f.File, err)
			}
			want := map[string][]int{}
			// softnic's own captures tell who has spoiled it: a rule of its own, and nobody is blamed.
			if f.BadICRC != nil && !believed && !strings.HasSuffix(f.File, ".pcapng") {
				want[rules.ICRC.String()] = f.BadICRC
			}
			for _, b := range f.Breaks {
				if !believed {
					want[b.Rule] = b.Packets
				}
			}
			for _, v := range r.Rules {
				var got []int
				for _, x := range v.Violations {
					got = append(got, int(x.Packet))
				}
				expected := want[v.Rule]
				exact := name == "all known" || believed
				if exact && !slices.Equal(got, expected) || int(v.Broken) != len(got) || slices.ContainsFunc(got, func(n int) bool { return !slices.Contains(expected, n) }) {
					t.Errorf("%s, %s: %s is broken at %v, want %v: %+v", f.File, name, v.Rule, got, expected, v.Violations)
				}
			}
			if !believed && int(r.Packets.WrongICRC) != len(f.BadICRC) || int(r.Packets.RoCE) != len(f.frames) {
				t.Errorf("%s: %d packets, %d with a wrong ICRC; want %d, %d", f.File, r.Packets.RoCE, r.Packets.WrongICRC, len(f.frames), len(f.BadICRC))
			}
		}
	}
}

// softnic in the place of each responder answers as it did. Where nothing was lost there is no doubt about an answer.
func TestReplay(t *testing.T) {
	for _, f := range files(t) {
		if f.NoReplay != "" {
			notReplayed(t, f)
			continue
		}
		r := replaytest.Capture(t, f.path, replay.Options{})
		t.Logf("%s: %v", f.File, r)
		if p := r.Packets; int(p.RoCE) != len(f.frames) || int(p.Bad) != bad(f) {
			t.Errorf("%s: %d frames, %d of them bad, want %d and %d", f.File, p.RoCE, p.Bad, len(f.frames), bad(f))
		}
		for _, c := range r.Conversations {
			if c.Service != "RC" && c.Service != "CNP" && c.Taken != c.Requests && !f.Lost {
				t.Errorf("%s: %d of %d packets of %s to %v were taken", f.File, c.Taken, c.Requests, c.Service, c.Responder)
			}
			if c.Unknown > 0 && !f.Lost {
				t.Errorf("%s: %d answers are unknown: %v", f.File, c.Unknown, c.Findings)
			}
		}
	}
}

// bad is how many frames a replay leaves out. The kernel's ICRC of a FLUSH is one that rdma_rxe takes.
func bad(f file) (n int) {
	for _, x := range f.frames {
		if x.ICRC != nil && !peer.CheckRxeFlushICRC(x.ip) {
			n++
		}
	}
	return n
}

// notReplayed holds that a replay says why it cannot tell.
func notReplayed(t *testing.T, f file) {
	t.Helper()
	r, err := replay.File(f.path, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := r.Text(&b, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), f.NoReplay) {
		t.Errorf("%s is not replayed because of %q, which is not in\n%s", f.File, f.NoReplay, &b)
	}
	sure := 0
	for _, c := range r.Conversations {
		sure += c.Same + c.Declared
	}
	if sure > 0 && f.BadICRC == nil {
		t.Errorf("%s is said not to be replayed, and %d answers were:\n%s", f.File, sure, &b)
	}
}
