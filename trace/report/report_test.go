package report

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Quantiles are right to one step of 32 per power of two.
func TestLatencies(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var l latencies
		var all []int64
		for range 1 + r.IntN(3000) {
			v := int64(r.Uint64() >> (20 + r.IntN(44)))
			l.add(v)
			all = append(all, v)
		}
		slices.Sort(all)
		if l.min != all[0] || l.max != all[len(all)-1] || l.n != uint64(len(all)) {
			t.Fatal(l.min, l.max, l.n)
		}
		for _, q := range []float64{0, 0.5, 0.99, 1} {
			want := all[min(int(q*float64(len(all))), len(all)-1)]
			if got := l.quantile(q); max(got-want, want-got) > want/31 {
				t.Errorf("%v of %d: %d, want %d", q, len(all), got, want)
			}
		}
	}
	for i := range 39 * steps {
		if slot(value(i)) != i {
			t.Errorf("slot %d: its middle %d is of slot %d", i, value(i), slot(value(i)))
		}
	}
}

// rawFile is a file of raw IP, a microsecond between two packets.
func rawFile(packets ...[]byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xA1B2C3D4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0)
	for i, p := range packets {
		b = le.AppendUint32(le.AppendUint32(b, uint32(i/1e6)), uint32(i%1e6))
		b = le.AppendUint32(le.AppendUint32(b, uint32(len(p))), uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

var from, to = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

func packet(src, dst netip.Addr, op bth.Opcode, qp uint32, psn int, edit ...func(s *wire.Spec)) []byte {
	s := wire.NewSpec(wire.Path{Src: src, Dst: dst}, op, qp, bth.PSN(psn))
	s.Ext.Syndrome = bth.AckUnlimited
	for _, e := range edit {
		e(&s)
	}
	return wire.Build(&s)
}

func analyze(t *testing.T, o Options, packets ...[]byte) *Report {
	t.Helper()
	r, err := Analyze([]trace.Input{{Name: "x", R: bytes.NewReader(rawFile(packets...))}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// UD, CNPs and marks have their places in the tables.
func TestDatagramsAndCongestion(t *testing.T) {
	send, ack := bth.Make(bth.RC, bth.SendOnly), bth.Make(bth.RC, bth.Acknowledge)
	src := func(n uint32) func(s *wire.Spec) { return func(s *wire.Spec) { s.Ext.SrcQP = n } }
	ce := func(s *wire.Spec) { s.Path.TClass = 3 }
	notify := func(s *wire.Spec) { s.BTH.BECN, s.BTH.MigReq = true, false }
	r := analyze(t, Options{},
		packet(from, to, bth.UDSendOnly, 7, 0, src(5)),
		packet(from, to, bth.UDSendOnlyImm, 7, 0, src(5)),
		packet(to, from, bth.UDSendOnly, 5, 0, src(7)),
		packet(from, to, bth.UDSendOnly, 9, 0, src(5)),
		packet(from, to, bth.UDSendOnly, 9, 0, src(6)),
		packet(from, to, send, 0x22, 1, ce),
		packet(to, from, bth.CNPNotify, 0x11, 0, notify),
		packet(to, from, ack, 0x11, 1),
		packet(from, to, bth.CNPNotify, 0x99, 0, notify),
	)
	var got []string
	for _, c := range r.Conversations {
		s := c.Service + " " + c.A.String() + " " + c.B.String()
		for _, d := range []*Direction{c.AB, c.BA} {
			if d != nil {
				b, _ := json.Marshal([]any{d.Packets, d.Messages, d.CNPs, d.CEMarked})
				s += " " + string(b)
			}
		}
		got = append(got, s)
	}
	slices.Sort(got)
	want := []string{
		"CNP 10.0.0.1 QP ? 10.0.0.2 QP 0x99 [1,0,1,0]",
		"RC 10.0.0.1 QP 0x11 10.0.0.2 QP 0x22 [1,1,0,1] [2,0,1,0]",
		"UD 10.0.0.1 QP 0x5 10.0.0.2 QP 0x7 [2,2,0,0] [1,1,0,0]",
		"UD 10.0.0.1 QP ? 10.0.0.2 QP 0x9 [2,2,0,0]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Packets are sorted before they are judged, and the rule on time still sees how they stood.
func TestSorted(t *testing.T) {
	send := bth.Make(bth.RC, bth.SendOnly)
	var l [][]byte
	for i := range 6 {
		l = append(l, packet(from, to, send, 7, 100+i))
	}
	file := rawFile(l...)
	size := (len(file) - 24) / 6
	at := func(i int) []byte { return file[24+i*size : 24+(i+1)*size] }
	swapped := slices.Concat(file[:24], at(0), at(2), at(1), at(3), at(5), at(4))
	r, err := Analyze([]trace.Input{{Name: "x", R: bytes.NewReader(swapped)}}, Options{Rules: rules.Options{Capture: rules.Complete}})
	if err != nil {
		t.Fatal(err)
	}
	v := r.Rules[rules.PSNContiguous]
	if r.Packets.Sorted != 2 || r.Broken != 0 || v.Kept < 5 || v.Unknown != 1 || r.Rules[rules.Timestamps].Unknown == 0 {
		t.Errorf("%+v %+v %+v", r.Packets, v, r.Rules[rules.Timestamps])
	}
}

// tcpdump -i any on a host between two has each packet twice, in one interface of the file.
func TestTwiceOnAny(t *testing.T) {
	send := bth.Make(bth.RC, bth.SendOnly)
	for name, link := range map[string]struct {
		typ  byte
		head [2][]byte // as it comes in, as it goes out
	}{
		"v1": {113, [2][]byte{append(make([]byte, 14), 8, 0), append([]byte{0, 4}, append(make([]byte, 12), 8, 0)...)}},
		"v2": {20, [2][]byte{
			{8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
			{8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0}}},
	} {
		var l [][]byte
		for i := range 10 {
			for _, h := range link.head {
				l = append(l, slices.Concat(h, packet(from, to, send, 7, 100+i)))
			}
		}
		file := rawFile(l...)
		file[20] = link.typ
		if name == "v2" {
			file[21] = 1 // 276
		}
		r, err := Analyze([]trace.Input{{Name: "x", R: bytes.NewReader(file)}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if c := r.Conversations[0].AB; r.Packets.TwiceSeen != 10 || c.Packets != 10 || c.Messages != 10 || c.Retransmissions.Sum() != 0 {
			t.Errorf("%s: %+v %+v", name, r.Packets, c)
		}
	}
}

// Tables and pictures are bounded.
func TestBounds(t *testing.T) {
	send, nak := bth.Make(bth.RC, bth.SendOnly), bth.Make(bth.RC, bth.Acknowledge)
	var l [][]byte
	for i := range maxRows + 10 {
		l = append(l, packet(from, to, send, uint32(i+2), 1))
	}
	r := analyze(t, Options{}, l...)
	if len(r.Conversations) != maxRows || r.OutOfTable != 10 {
		t.Errorf("%d conversations, %d packets without", len(r.Conversations), r.OutOfTable)
	}
	var b bytes.Buffer
	if err := r.Text(&b); err != nil || !strings.Contains(b.String(), "16334 more conversations") || !strings.Contains(b.String(), "10 packets are of conversations for which") {
		t.Errorf("%v %.500s", err, b.String())
	}
	// Common packets are thinned out, NAKs are not.
	l = nil
	for i := range 3 * maxDots {
		l = append(l, packet(from, to, send, 7, 0xFFF000+i))
		if i%1000 == 0 {
			l = append(l, packet(to, from, nak, 9, 0xFFF000+i, func(s *wire.Spec) { s.Ext.Syndrome = bth.NakSequence }))
		}
	}
	p := analyze(t, Options{Picture: true, Rules: rules.Options{Connections: []rules.Connection{{A: rules.End{Addr: from, QPN: 9}, B: rules.End{Addr: to, QPN: 7}}}}}, l...).Picture()
	if p == nil || len(p.Panels) != 1 || !p.Thinned || p.ThinnedRare {
		t.Fatalf("%+v", p)
	}
	n := map[Mark]int{}
	for _, d := range p.Panels[0].Dots {
		n[d.Mark]++
		if d.PSN < 0 || d.PSN >= 3*maxDots {
			t.Fatalf("PSN %d", d.PSN)
		}
	}
	if n[MarkFirst] < maxDots/2 || n[MarkFirst] > maxDots || n[MarkNak] != 50 {
		t.Errorf("%v", n)
	}
}

// FuzzAnalyze judges anything, in memory that is bounded: the report can be printed, counts add up, and an error is one line.
func FuzzAnalyze(f *testing.F) {
	send, ack := bth.Make(bth.RC, bth.SendOnly), bth.Make(bth.RC, bth.Acknowledge)
	f.Add(rawFile(packet(from, to, send, 7, 1), packet(to, from, ack, 9, 1), packet(from, to, bth.UDSendOnly, 1, 0)), false)
	f.Add(rawFile(packet(from, to, bth.Make(bth.RC, bth.ReadRequest), 7, 1)[:40]), true)
	f.Add(rawFile([]byte("x"), packet(from, to, bth.CNPNotify, 1, 0)), true)
	f.Fuzz(func(t *testing.T, file []byte, host bool) {
		o := Options{Picture: true, Rules: rules.Options{Default: rules.Attr{Depth: 1, Timeout: 8, RetryCnt: 1}}}
		if host {
			o.Hosts = []netip.Addr{from}
		}
		r, err := Analyze([]trace.Input{{Name: "x", R: bytes.NewReader(file)}}, o)
		var e *trace.FileError
		if err != nil && (!errors.As(err, &e) || strings.Contains(err.Error(), "\n")) {
			t.Fatal(err)
		}
		if r == nil {
			return
		}
		if k := r.Packets; k.RoCE+k.RoCEv1+k.Fragments+k.Other+k.UnknownLink != k.Total || k.RoCE == 0 {
			t.Fatalf("%+v", k)
		}
		var b bytes.Buffer
		if err := r.Text(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}
