package cases

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// write makes a capture file of what the ports of hosts captured, as softnic writes it. A packet of the
// tape comes back as it was: a tape has no Ethernet headers.
func (t *tape) write(hosts ...int) []byte {
	var b bytes.Buffer
	w := must(capture.NewWriter(&b, link.Info{Name: "a", Addrs: []netip.Prefix{netip.PrefixFrom(peer4, 24)}}, capture.Options{}))
	sinks := []link.Sink{w, must(w.Add("b", link.Info{Name: "b", Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}}))}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.all {
		if !slices.Contains(hosts, x.host) {
			continue
		}
		r := link.Record{When: x.when, Fault: x.fault, Note: x.note, Net: x.bytes, Cause: x.cause, Round: x.round}
		if x.dir == rules.Rx {
			r.Dir = link.Rx
		}
		sinks[x.host].Capture(&r)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// pcap makes a plain file of the packets on their way, which tells of no direction.
func (t *tape) pcap() []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, 0xA1B23C4D)
	b = append(b, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 228)
	for _, x := range t.sorted(0, 1) {
		if x.dir != rules.Tx || x.fault != wire.OK {
			continue
		}
		b = be.AppendUint32(b, uint32(x.when.Unix()))
		b = be.AppendUint32(b, uint32(x.when.Nanosecond()))
		b = be.AppendUint32(b, uint32(len(x.bytes)))
		b = be.AppendUint32(b, uint32(len(x.bytes)))
		b = append(b, x.bytes...)
	}
	return b
}

// thin takes packets out of a pcapng file, of which keep is told the number from 0, and the interface.
func thin(file []byte, keep func(n int, iface uint32) bool) []byte {
	var out []byte
	n := 0
	for len(file) > 0 {
		size := binary.LittleEndian.Uint32(file[4:])
		block := file[:size]
		file = file[size:]
		if binary.LittleEndian.Uint32(block) == 6 {
			n++
			if !keep(n-1, binary.LittleEndian.Uint32(block[8:])) {
				continue
			}
		}
		out = append(out, block...)
	}
	return out
}

// thinPcap is thin for a file of pcap.
func thinPcap(file []byte, keep func(n int, packet []byte) bool) []byte {
	out := slices.Clone(file[:24])
	file = file[24:]
	for n := 0; len(file) > 0; n++ {
		size := 16 + binary.BigEndian.Uint32(file[8:])
		if keep(n, file[16:size]) {
			out = append(out, file[:size]...)
		}
		file = file[size:]
	}
	return out
}

func analyze(t *testing.T, file []byte, o rules.Options) *report.Report {
	t.Helper()
	r, err := report.Analyze([]trace.Input{{Name: "x", R: bytes.NewReader(file)}}, report.Options{Rules: o})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func broken(r *report.Report) string {
	var b strings.Builder
	for _, v := range r.Rules {
		for _, x := range v.Violations {
			fmt.Fprintf(&b, "%s: packet %d: %v > %v QP %x: %s\n", v.Rule, x.Packet, x.Src, x.Dst, x.QPN, x.Text)
		}
	}
	return b.String()
}

func rule(r *report.Report, id rules.ID) report.Verdict { return r.Rules[id] }

// What two softnics say to each other over a bad network breaks no rule in any file that can be made of it: with
// directions, without, at one host, at both, cut at the front, with one direction, with packets missing. And
// the tables count what was on the tape.
func TestTraceOfLossyNetwork(t *testing.T) {
	seeds(t, func(t *testing.T, r *rand.Rand) {
		rule4 := func() []string {
			return []string{fmt.Sprintf("rx drop=3%% seed=%d", 1+r.IntN(1000)), fmt.Sprintf("tx drop=1%% seed=%d", 1+r.IntN(1000))}
		}
		tp, o := lossy(t, r, 100, rule4(), rule4())
		unknown := rules.Options{}
		check := func(what string, file []byte, o rules.Options) *report.Report {
			t.Helper()
			x := analyze(t, file, o)
			if x.Broken > 0 {
				t.Errorf("%s:\n%s", what, broken(x))
			}
			return x
		}
		both := tp.write(0, 1)
		x := check("both hosts", both, o)
		if !x.Capture.Complete && !strings.Contains(x.Capture.Why, "lost on purpose, before it was known") {
			t.Errorf("not complete: %s", x.Capture.Why)
		}
		for _, id := range []rules.ID{rules.PSNContiguous, rules.MSN, rules.ReadResponseSequence, rules.ResponseRange, rules.Depth, rules.GBNSender, rules.RetransmissionSame} {
			if rule(x, id).Kept == 0 {
				t.Errorf("%v was never judged", id)
			}
		}
		counts(t, tp, x)
		check("both hosts, nothing known", both, unknown)
		for h := range 2 {
			x := check("one host", tp.write(h), o)
			if !x.Capture.Complete && !strings.Contains(x.Capture.Why, "lost on purpose, before it was known") {
				t.Errorf("host %d is not complete: %s", h, x.Capture.Why)
			}
		}
		// Packets are missing, and the counts at the end of the file tell.
		n := 2 + r.IntN(20)
		total := int(x.Packets.Total)
		from := 1 + r.IntN(total-1)
		for h, file := range [][]byte{both, tp.write(0), tp.write(1)} {
			for _, o := range []rules.Options{o, unknown} {
				check(fmt.Sprint("every ", n, "th is missing ", h), thin(file, func(i int, _ uint32) bool { return i%n != 0 }), o)
				check(fmt.Sprint("from ", from, " on ", h), thin(file, func(i int, _ uint32) bool { return i >= min(from, total/3) }), o)
				for dir := range uint32(2) {
					check(fmt.Sprint("direction ", dir, " is missing ", h), thin(file, func(i int, iface uint32) bool { return iface&3 != dir }), o)
				}
			}
		}
		plain := tp.pcap()
		n = 2 + r.IntN(20)
		packets := 0
		thinPcap(plain, func(int, []byte) bool { packets++; return true })
		from = r.IntN(packets - 1)
		one := peer4.As4()
		for _, o := range []rules.Options{o, unknown} {
			check("plain", plain, o)
			check(fmt.Sprint("plain, every ", n, "th is missing"), thinPcap(plain, func(i int, _ []byte) bool { return i%n != 0 }), o)
			check(fmt.Sprint("plain, from ", from, " on"), thinPcap(plain, func(i int, _ []byte) bool { return i >= from }), o)
			for _, is := range []bool{true, false} {
				check("plain, one direction", thinPcap(plain, func(_ int, p []byte) bool { return bytes.Equal(p[12:16], one[:]) == is }), o)
			}
		}
	})
}

// counts compares the tables with the tape: each packet once, retransmissions by the cause that the engine had.
func counts(t *testing.T, tp *tape, x *report.Report) {
	t.Helper()
	want := map[netip.Addr]*report.Direction{peer4: {}, nic4: {}}
	for h := range 2 {
		// If the first packet of a NIC is lost on purpose, the report cannot know yet that the others are captured there too.
		if l := tp.sorted(h); l[0].fate == rules.Lost {
			t.Logf("the first packet at host %d is lost: no comparison", h)
			return
		}
	}
	highest := map[netip.Addr]bth.PSN{}
	for _, p := range tp.sorted(0, 1) {
		var v wire.View
		if wire.ParseIP(p.bytes, &v) != wire.OK {
			continue
		}
		d := want[v.Src()]
		if p.fate == rules.Lost {
			d.LostOnPurpose++
		}
		if p.dir != rules.Tx {
			continue
		}
		d.Packets++
		d.Bytes += uint64(len(v.Payload))
		if v.Info.Has(bth.Response) {
			continue
		}
		psn := v.BTH().PSN()
		end := psn.Next()
		if e := v.Header(bth.HRETH); e != nil && v.BTH().Opcode().Operation() == bth.ReadRequest {
			end = psn.Add(max(1, transport.Packets(uint64(bth.RETH(e).Length()), 256)))
		}
		last, seen := highest[v.Src()]
		if !seen || end.After(last) {
			highest[v.Src()] = end
		}
		if !seen || !psn.Before(last) {
			continue // perhaps meant to be sent again, but it was never sent before
		}
		switch p.cause {
		case wire.RetryTimeout:
			d.Retransmissions.OnItsOwn++
		case wire.RetrySequence:
			d.Retransmissions.AfterNAK++
		case wire.RetryImplied:
			d.Retransmissions.Implied++
		case wire.RetryRNR:
			d.Retransmissions.AfterRNR++
		}
	}
	if len(x.Conversations) != 1 || x.Conversations[0].BA == nil {
		t.Fatalf("%d conversations", len(x.Conversations))
	}
	c := x.Conversations[0]
	for _, e := range []struct {
		end trace.End
		got *report.Direction
	}{{c.A, c.AB}, {c.B, c.BA}} {
		w := want[e.end.Addr]
		g := report.Direction{Packets: e.got.Packets, Bytes: e.got.Bytes, Retransmissions: e.got.Retransmissions, LostOnPurpose: e.got.LostOnPurpose}
		if g.Packets != w.Packets || g.Bytes != w.Bytes || g.Retransmissions != w.Retransmissions || g.LostOnPurpose != w.LostOnPurpose {
			t.Errorf("%v: got %+v, want %+v", e.end, g, *w)
		}
		if l := e.got.Latency; l == nil || l.Count == 0 || l.Min <= 0 || l.Max > int64(time.Second) {
			t.Errorf("%v: latency %+v", e.end, l)
		}
	}
}
