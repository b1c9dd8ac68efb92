package impair

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/wire/bth"
)

var (
	peer  = netip.MustParseAddr("10.0.0.2")
	peer2 = netip.MustParseAddr("10.0.0.3")
)

func rc(o bth.Operation) bth.Opcode { return bth.Make(bth.RC, o) }

func packet(o bth.Opcode, qpn uint32, psn bth.PSN) bth.BTH {
	h := make(bth.BTH, bth.Len)
	h.Encode(&bth.Fields{Opcode: o, DestQP: qpn, PSN: psn})
	return h
}

// run applies rules to packets "opcode qpn psn", tx to peer, and returns the numbers of those hit.
func run(tb testing.TB, rules []string, pkts ...bth.BTH) (hit []int) {
	tb.Helper()
	r, err := New(rules...)
	if err != nil {
		tb.Fatal(err)
	}
	for i, h := range pkts {
		if e := r.Apply(Tx, peer, h); e.Rule != "" {
			hit = append(hit, i)
		}
	}
	return hit
}

func TestMatch(t *testing.T) {
	send, write, middle, ack := rc(bth.SendOnly), rc(bth.WriteOnly), rc(bth.WriteMiddle), rc(bth.Acknowledge)
	for _, c := range []struct {
		rules string // separated by ;
		pkts  []bth.BTH
		want  []int
	}{
		{"tx drop", []bth.BTH{packet(send, 17, 1)}, []int{0}},
		{"rx drop", []bth.BTH{packet(send, 17, 1)}, nil},
		{"tx qp=17 drop", []bth.BTH{packet(send, 16, 1), packet(send, 17, 1)}, []int{1}},
		{"tx qp=0x11 drop", []bth.BTH{packet(send, 16, 1), packet(send, 17, 1)}, []int{1}},
		{"tx qp=0x1 drop", []bth.BTH{packet(send, 16, 1), packet(send, 1, 1)}, []int{1}},
		{"tx qp=1 drop", []bth.BTH{packet(bth.UDSendOnly, 1, 1), packet(send, 16, 1), packet(send, 17, 1), packet(send, 16, 1)}, []int{1, 3}},
		{"tx qp=#2 drop", []bth.BTH{packet(send, 16, 1), packet(send, 17, 1), packet(ack, 17, 1), packet(send, 16, 1)}, []int{1, 2}},
		{"tx opcode=WRITE_MIDDLE drop", []bth.BTH{packet(write, 17, 1), packet(middle, 17, 1), packet(bth.Make(bth.UC, bth.WriteMiddle), 17, 1), packet(bth.Make(bth.XRC, bth.WriteMiddle), 17, 1)}, []int{1, 2, 3}},
		{"tx opcode=rc_write_middle drop", []bth.BTH{packet(write, 17, 1), packet(middle, 17, 1), packet(bth.Make(bth.UC, bth.WriteMiddle), 17, 1)}, []int{1}},
		{"tx opcode=WRITE* drop", []bth.BTH{packet(write, 17, 1), packet(middle, 17, 1), packet(send, 17, 1)}, []int{0, 1}},
		{"tx opcode=UC* drop", []bth.BTH{packet(write, 17, 1), packet(bth.Make(bth.UC, bth.WriteMiddle), 17, 1)}, []int{1}},
		{"tx opcode=SEND_ONLY,ACKNOWLEDGE drop", []bth.BTH{packet(write, 17, 1), packet(ack, 17, 1), packet(send, 17, 1)}, []int{1, 2}},
		{"tx opcode=CNP drop", []bth.BTH{packet(bth.CNPNotify, 17, 0)}, []int{0}},
		{"tx psn=0x10 drop", []bth.BTH{packet(send, 17, 15), packet(send, 17, 16)}, []int{1}},
		{"tx psn=+1 drop", []bth.BTH{packet(send, 17, 0xFFFFFF), packet(send, 17, 0), packet(send, 17, 1), packet(send, 18, 0), packet(send, 18, 1)}, []int{1, 4}},
		{"tx psn=+0 drop", []bth.BTH{packet(send, 17, 5), packet(ack, 17, 9), packet(send, 17, 9), packet(ack, 17, 5)}, []int{0, 1}},
		{"tx round=2 drop", []bth.BTH{packet(send, 17, 5), packet(send, 17, 6), packet(send, 17, 5), packet(ack, 17, 6), packet(send, 17, 5), packet(send, 18, 6)}, []int{2}},
		{"tx psn=+1 round=1 drop;tx psn=+1 round=2 drop", []bth.BTH{packet(send, 17, 5), packet(send, 17, 6), packet(send, 17, 7), packet(send, 17, 6), packet(send, 17, 6)}, []int{1, 3}},
		{"tx nth=2 opcode=SEND_ONLY drop", []bth.BTH{packet(send, 17, 1), packet(write, 17, 2), packet(send, 17, 3), packet(send, 17, 4), packet(send, 17, 5)}, []int{2, 4}},
		{"tx count=1 drop", []bth.BTH{packet(send, 17, 1), packet(send, 17, 2)}, []int{0}},
		{"tx count=1 nth=2 drop", []bth.BTH{packet(send, 17, 1), packet(send, 17, 2), packet(send, 17, 3), packet(send, 17, 4)}, []int{1}},
		{"tx qp=1 opcode=WRITE_MIDDLE psn=+5 round=1 drop", []bth.BTH{packet(rc(bth.WriteFirst), 0xABCDEF, 0x100), packet(middle, 0xABCDEF, 0x104), packet(middle, 0xABCDEF, 0x105), packet(middle, 0xABCDEF, 0x105)}, []int{2}},
	} {
		if got := run(t, strings.Split(c.rules, ";"), c.pkts...); !slices.Equal(got, c.want) {
			t.Errorf("%s: hit %v, want %v", c.rules, got, c.want)
		}
	}
}

// Two peers may have QPs of the same number.
func TestConnectionsOfTwoPeers(t *testing.T) {
	r, err := New("rx qp=#2 psn=+1 drop")
	if err != nil {
		t.Fatal(err)
	}
	send := rc(bth.SendOnly)
	for i, c := range []struct {
		peer netip.Addr
		psn  bth.PSN
		drop bool
	}{{peer, 1, false}, {peer2, 10, false}, {peer, 2, false}, {peer2, 11, true}} {
		if e := r.Apply(Rx, c.peer, packet(send, 17, c.psn)); e.Drop != c.drop {
			t.Errorf("packet %d: %+v", i, e)
		}
	}
}

func TestEffects(t *testing.T) {
	r, err := New("tx delay=5ms", "tx delay=1us", "tx duplicate", "tx reorder", "tx duplicate nth=2", "rx drop", "tx nth=3 drop", "tx duplicate")
	if err != nil {
		t.Fatal(err)
	}
	h := packet(rc(bth.SendOnly), 17, 1)
	d := 5*time.Millisecond + time.Microsecond
	for i, w := range []Effect{
		{Duplicate: 2, Delay: d, Reorder: true, Rule: "tx duplicate"},
		{Duplicate: 3, Delay: d, Reorder: true, Rule: "tx duplicate"},
		{Duplicate: 1, Delay: d, Reorder: true, Drop: true, Rule: "tx nth=3 drop"},
	} {
		if e := r.Apply(Tx, peer, h); e != w {
			t.Errorf("packet %d: %+v, want %+v", i, e, w)
		}
	}
}

func TestChance(t *testing.T) {
	hits := func(rule string) (l []int) {
		var pkts []bth.BTH
		for i := range 10000 {
			pkts = append(pkts, packet(rc(bth.SendOnly), 17, bth.PSN(i)))
		}
		return run(t, []string{rule}, pkts...)
	}
	a, b, c := hits("tx drop=1% seed=7"), hits("tx p=1% drop seed=7"), hits("tx drop=1% seed=8")
	if !slices.Equal(a, b) || slices.Equal(a, c) {
		t.Error("the seed does not decide")
	}
	if len(a) < 70 || len(a) > 130 {
		t.Errorf("%d hits, want about 100", len(a))
	}
	if n := len(hits("tx drop=100%")); n != 10000 {
		t.Errorf("100%%: %d hits", n)
	}
	if !slices.Equal(hits("tx drop=1%"), hits("tx drop=1% seed=1")) {
		t.Error("the default seed is not 1")
	}
}

func TestListAndRemove(t *testing.T) {
	var r Rules
	if r.Active(Tx) || r.Active(Rx) {
		t.Error("empty rules are active")
	}
	one, err := r.Add("  tx   nth=2  drop ")
	if err != nil {
		t.Fatal(err)
	}
	two, err := r.Add("rx delay=1ms")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		r.Apply(Tx, peer, packet(rc(bth.SendOnly), 17, 1))
	}
	want := []Status{{one, "tx nth=2 drop", 5, 2}, {two, "rx delay=1ms", 0, 0}}
	if got := r.List(); !slices.Equal(got, want) {
		t.Errorf("list %+v, want %+v", got, want)
	}
	if err := r.Remove(one); err != nil {
		t.Error(err)
	}
	if err := r.Remove(one); err == nil {
		t.Error("removed twice")
	}
	if r.Active(Tx) || !r.Active(Rx) || len(r.List()) != 1 {
		t.Error("rule is not removed")
	}
	r.Clear()
	if r.Active(Rx) || len(r.List()) != 0 {
		t.Error("rules are not cleared")
	}
	if id, err := r.Add("tx drop"); err != nil || id != 3 {
		t.Errorf("ID %d, %v", id, err)
	}
}

func TestParseErrors(t *testing.T) {
	for rule, w := range map[string]string{
		"":                       `want tx or rx first`,
		"drop":                   `"drop": want tx or rx first`,
		"both drop":              `"both": want tx or rx first`,
		"tx":                     `"tx": no action: want an action (drop, duplicate, delay=TIME, reorder, corrupt, ecn=ce, set=FIELD:VALUE, answer=nak-sequence) or at=, count=, icrc=, nth=, opcode=, p=, peer=, psn=, qp=, round=, seed=, xor=`,
		"tx qp=17":               `"qp=17": no action`,
		"tx dorp":                `"dorp": want an action (drop,`,
		"tx drop drop":           `"drop": a rule has one action, and this one has drop`,
		"tx qp=17 qp=18 drop":    `"qp=18": qp is there twice`,
		"tx drop=1% p=1%":        `"p=1%": p is there twice`,
		"tx p=1% drop=1%":        `"drop=1%": p is there twice`,
		"tx drop=1":              `"drop=1": want a percentage`,
		"tx drop=0%":             `want a percentage`,
		"tx drop=101%":           `want a percentage`,
		"tx drop=NaN%":           `want a percentage`,
		"tx drop=":               `want a percentage`,
		"tx delay":               `want a time, as in delay=5ms`,
		"tx delay=5":             `want a time`,
		"tx delay=-5ms":          `want a time`,
		"tx qp drop":             `"qp": want a value: qp=...`,
		"tx qp=0 drop":           `"qp=0": want a QP number`,
		"tx qp=#0 drop":          `want a QP number`,
		"tx qp=#0x1 drop":        `want a QP number`,
		"tx qp=0x1000000 drop":   `want a QP number`,
		"tx qp=x drop":           `want a QP number`,
		"tx psn=5 drop":          `want a PSN in hexadecimal`,
		"tx psn=0x1000000 drop":  `want a PSN in hexadecimal`,
		"tx psn=+-1 drop":        `want a distance`,
		"tx round=0 drop":        `"round=0": want a number from 1 on`,
		"tx nth=0 drop":          `want a number from 1 on`,
		"tx count=x drop":        `want a number from 1 on`,
		"tx seed=x drop":         `want a number`,
		"tx opcode=SENDX drop":   `no opcode is called "SENDX"; want SEND_FIRST, SEND_MIDDLE,`,
		"tx opcode=SEND*, drop":  `no opcode is called ""`,
		"tx peer=x drop":         `want an address, as 10.0.0.2`,
		"tx peer=fe80::1%0 drop": `want an address`,
		"tx ecn=maybe":           `want ecn=ce`,
		"tx ecn":                 `want ecn=ce`,
		"tx set=psn":             `want a field and its value, as psn:0x12 or psn:+1; the fields are opcode, se,`,
		"tx set":                 `want a field and its value`,
		"tx set=lid:1":           `want a field and its value`,
		"tx set=psn:0x1000000":   `psn has 24 bits: want a value, as psn:0x1`,
		"tx set=se:2":            `se has 1 bits`,
		"tx set=psn:1,":          `want a field and its value`,
		"tx answer=ack":          `want nak-sequence, nak-invalid,`,
		"tx answer=rnr:32":       `timer code of 0 ... 31`,
		"tx answer=nak:1":        `want nak-sequence`,
		"tx corrupt at=x":        `want a byte, counted from the BTH on`,
		"tx corrupt xor=0":       `want the bits to turn over`,
		"tx corrupt xor=256":     `want the bits to turn over`,
		"tx corrupt icrc=maybe":  `want icrc=good`,
		"tx drop at=1":           `"at": it goes with corrupt`,
		"tx ecn=ce icrc=bad":     `"icrc": it goes with corrupt and set`,
		"tx corrupt set=psn:1":   `a rule has one action, and this one has corrupt`,
	} {
		if _, err := parse(rule); err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %v\nwant %s", rule, err, w)
		}
	}
}

// What a rule remembers is bounded and right within its bounds.
func TestTrackerBounds(t *testing.T) {
	var rs rounds
	for i := range 100000 {
		if n := rs.sent(bth.PSN(0xFFFF00).Add(i)); n != 1 {
			t.Fatalf("PSN %d: round %d", i, n)
		}
		if i >= maxRounds-1 && i%7 == 0 {
			if n := rs.sent(bth.PSN(0xFFFF00).Add(i - maxRounds + 1)); n < 2 {
				t.Fatalf("PSN %d again: round %d", i-maxRounds+1, n)
			}
		}
	}
	if len(rs.table) != maxRounds {
		t.Errorf("table of %d", len(rs.table))
	}
	r, err := parse("tx qp=#1 round=1 drop")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxFlows {
		f, _ := r.observe(peer, packet(rc(bth.SendOnly), uint32(100+i), 1))
		if (f == nil) != (i >= maxFlows) {
			t.Fatalf("flow %d: %v", i, f)
		}
	}
	if f, round := r.observe(peer, packet(rc(bth.SendOnly), 100, 1)); f == nil || f.conn != 1 || round != 2 {
		t.Errorf("first flow: %+v, round %d", f, round)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"tx qp=1 opcode=WRITE_MIDDLE psn=+5 round=1 drop", "rx drop=1% seed=7", "tx delay=5ms",
		"rx duplicate nth=10", "tx reorder=2%", "tx corrupt=1% at=-1 xor=0x80 icrc=good", "rx peer=10.0.0.0/8 ecn=ce", "tx set=psn:+1,msn:0x10 icrc=bad", "rx answer=rnr:1", "tx qp=#3 psn=0xffffff count=4 p=50% reorder", "tx opcode=RC_*,CNP drop",
	} {
		f.Add(s)
	}
	h := packet(rc(bth.WriteMiddle), 17, 5)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parse(s)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error of two lines: %v", err)
			}
			return
		}
		again, err := parse(r.text)
		if err != nil || again.text != r.text {
			t.Fatalf("%q does not parse again: %v", r.text, err)
		}
		for range 3 {
			fl, n := r.observe(peer, h)
			fl2, n2 := again.observe(peer, h)
			if r.hit(peer, h, fl, n) != again.hit(peer, h, fl2, n2) {
				t.Fatalf("%q and its text differ", s)
			}
		}
	})
}

func TestApplyDoesNotAllocate(t *testing.T) {
	r, err := New("tx qp=#1 psn=+5 round=2 drop", "tx delay=1ms p=50%")
	if err != nil {
		t.Fatal(err)
	}
	h := packet(rc(bth.SendOnly), 17, 0)
	if n := testing.AllocsPerRun(100, func() { r.Apply(Tx, peer, h) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkApply(b *testing.B) {
	for _, rule := range []string{"tx drop=1%", "tx qp=#1 psn=+5 round=2 drop"} {
		b.Run(rule, func(b *testing.B) {
			r, err := New(rule)
			if err != nil {
				b.Fatal(err)
			}
			h := packet(rc(bth.SendOnly), 17, 0)
			b.ReportAllocs()
			for b.Loop() {
				r.Apply(Tx, peer, h)
			}
		})
	}
}
