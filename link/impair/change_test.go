package impair

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/softnic/softnic/wire/bth"
)

func bin(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a rule makes of packets, byte for byte as the specification draws the headers.
func TestChanges(t *testing.T) {
	const (
		// RC WRITE ONLY: BTH, RETH, four bytes
		write = "0a 40 ffff 00 000011 80 000010  1122334455667788 00000102 00000004  a1a2a3a4"
		ack   = "11 40 ffff 00 000011 00 000010  1f 000007"
		cas   = "13 40 ffff 00 000011 80 000010  0000000000001000 00000102 0000000000000001 0000000000000002"
		imm   = "05 c0 ffff 00 000011 80 000010  01020304"
		ud    = "64 40 ffff 00 000001 00 000010  80010000 00 000012"
	)
	for _, c := range []struct{ rule, packet, want string }{
		{"set=psn:0x123456", write, "0a 40 ffff 00 000011 80 123456  1122334455667788 00000102 00000004  a1a2a3a4"},
		{"set=psn:-0x11", write, "0a 40 ffff 00 000011 80 ffffff  1122334455667788 00000102 00000004  a1a2a3a4"},
		{"set=psn:+1,ackreq:0", write, "0a 40 ffff 00 000011 00 000011  1122334455667788 00000102 00000004  a1a2a3a4"},
		{"set=opcode:0x06", write, "06 40 ffff 00 000011 80 000010  1122334455667788 00000102 00000004  a1a2a3a4"},
		{"set=se:1,migreq:0,pad:2,tver:0xF", write, "0a af ffff 00 000011 80 000010  1122334455667788 00000102 00000004  a1a2a3a4"},
		{"set=pkey:0x7fff,becn:1,resv6:0x2a,dqp:0xabcdef", write, "0a 40 7fff 6a abcdef 80 000010  1122334455667788 00000102 00000004  a1a2a3a4"},
		{"set=fecn:1,resv7:0x55", write, "0a 40 ffff 80 000011 d5 000010  1122334455667788 00000102 00000004  a1a2a3a4"},
		{"set=va:+8,rkey:0xffffffff,length:5", write, "0a 40 ffff 00 000011 80 000010  1122334455667790 ffffffff 00000005  a1a2a3a4"},
		{"set=va:8,rkey:9,swap:3,compare:4", cas, "13 40 ffff 00 000011 80 000010  0000000000000008 00000009 0000000000000003 0000000000000004"},
		{"set=syndrome:0x62,msn:-8", ack, "11 40 ffff 00 000011 00 000010  62 ffffff"},
		{"set=imm:0xdeadbeef", imm, "05 c0 ffff 00 000011 80 000010  deadbeef"},
		{"set=qkey:1,sqp:0x99", ud, "64 40 ffff 00 000001 00 000010  00000001 00 000099"},
		{"corrupt at=12 xor=0x80", write, "0a 40 ffff 00 000011 80 000010  9122334455667788 00000102 00000004  a1a2a3a4"},
		{"corrupt at=-1 xor=0x01", write, "0a 40 ffff 00 000011 80 000010  1122334455667788 00000102 00000004  a1a2a3a5"},
		{"corrupt at=32 xor=0x01", write, write}, // it has 32 bytes
		{"corrupt at=-33 xor=0x01", write, write},
	} {
		r, err := New("tx " + c.rule)
		if err != nil {
			t.Fatal(err)
		}
		b := bin(t, c.packet)
		e := r.Apply(Tx, peer, bth.BTH(b))
		if e.Change == nil {
			t.Errorf("%s does not hit %s", c.rule, c.packet)
			continue
		}
		if bad := strings.HasPrefix(c.rule, "corrupt"); e.Change.BadICRC != bad {
			t.Errorf("%s: ICRC bad %v, want %v", c.rule, e.Change.BadICRC, bad)
		}
		e.Change.Do(b)
		if want := bin(t, c.want); !bytes.Equal(b, want) {
			t.Errorf("%s:\n%x, want\n%x", c.rule, b, want)
		}
	}
	for _, c := range []struct{ rule, packet string }{
		{"set=msn:0", write}, {"set=va:0", ack}, {"set=swap:0", write}, {"set=imm:1", write}, {"set=psn:1,msn:1", write},
		{"answer=rnr", ack}, {"answer=rnr", ud}, {"peer=10.0.0.3 drop", write}, {"peer=fe80::/10 drop", write},
	} {
		r, err := New("tx " + c.rule)
		if err != nil {
			t.Fatal(err)
		}
		if e := r.Apply(Tx, peer, bth.BTH(bin(t, c.packet))); e != (Effect{}) {
			t.Errorf("%s hits %s: %+v", c.rule, c.packet, e)
		}
	}
}

func TestCorruptByChance(t *testing.T) {
	run := func(rule string) (l [][]byte) {
		r, err := New(rule)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			b := make([]byte, 32)
			b[0] = 0x0a
			e := r.Apply(Tx, peer, bth.BTH(b))
			before := bytes.Clone(b)
			if e.Change != nil {
				e.Change.Do(b)
				if bytes.Equal(before, b) {
					t.Fatalf("%s changes nothing", rule)
				}
			}
			l = append(l, b)
		}
		return l
	}
	a, b, c := run("tx corrupt=50% seed=3"), run("tx corrupt p=50% seed=3"), run("tx corrupt=50% seed=4")
	if !equal(a, b) || equal(a, c) {
		t.Error("the seed does not decide")
	}
	at := map[int]bool{}
	for _, x := range a {
		for i := range x {
			if want := byte(0); x[i] != want && (i > 0 || x[0] != 0x0a) {
				at[i] = true
			}
		}
	}
	if len(at) < 25 {
		t.Errorf("only %d of 32 bytes were ever changed", len(at))
	}
}

func equal(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func TestMarksAndAnswers(t *testing.T) {
	r, err := New("rx ecn=ect0", "rx ecn=ce", "rx peer=10.0.0.0/31 opcode=WRITE* answer=rnr:5", "tx answer=nak-access", "rx corrupt icrc=good", "rx set=psn:1 icrc=bad")
	if err != nil {
		t.Fatal(err)
	}
	send, write := packet(rc(bth.SendOnly), 17, 1), packet(rc(bth.WriteOnly), 17, 1)
	near := netip.MustParseAddr("10.0.0.1")
	if e := r.Apply(Rx, near, write); !e.Drop || !e.Answered || e.Answer != 0x25 || e.Rule != "rx peer=10.0.0.0/31 opcode=WRITE* answer=rnr:5" {
		t.Errorf("%+v", e)
	}
	if e := r.Apply(Rx, peer, write); e.Answered || !e.Mark || e.ECN != 3 || e.Change == nil || e.Change.BadICRC || e.Change.Then == nil || !e.Change.Then.BadICRC {
		t.Errorf("%+v", e)
	}
	if e := r.Apply(Tx, near, send); !e.Answered || e.Answer != 0x62 {
		t.Errorf("%+v", e)
	}
}

func FuzzChange(f *testing.F) {
	f.Add("set=psn:+1,va:2,msn:3", []byte("0123456789abcdef0123456789abcdef"))
	f.Add("corrupt at=-3", []byte{0x0a, 1, 2})
	f.Fuzz(func(t *testing.T, rule string, b []byte) {
		r, err := New("tx " + rule)
		if err != nil || len(b) < bth.Len {
			return
		}
		for c := r.Apply(Tx, peer, bth.BTH(b)).Change; c != nil; c = c.Then {
			n := len(b)
			c.Do(b)
			c.Do(b[:bth.Len]) // cut off
			c.Do(nil)
			if len(b) != n {
				t.Fatal("length")
			}
		}
	})
}

// Rules work in the order in which they were added.
func TestOrderOfChanges(t *testing.T) {
	r, err := New("tx set=psn:5", "tx set=psn:+1", "tx set=msn:1 p=1%", "tx set=psn:+2")
	if err != nil {
		t.Fatal(err)
	}
	b := packet(rc(bth.SendOnly), 17, 100)
	for c := r.Apply(Tx, peer, b).Change; c != nil; c = c.Then {
		c.Do(b)
	}
	if psn := b.PSN(); psn != 8 {
		t.Errorf("PSN %v, want 8", psn)
	}
}

// Of one connection there is one request at a time that was answered and is lost: what is behind it is its receiver's.
func TestOneAnswerAtATime(t *testing.T) {
	r, err := New("tx answer=rnr:1 count=4", "tx opcode=WRITE* answer=nak-sequence")
	if err != nil {
		t.Fatal(err)
	}
	send, write, ack := rc(bth.SendOnly), rc(bth.WriteOnly), rc(bth.Acknowledge)
	for i, c := range []struct {
		op  bth.Opcode
		qpn uint32
		psn bth.PSN
		hit bool
	}{
		{send, 17, 0xFFFFFF, true},
		{send, 17, 0, false},
		{write, 17, 1, false},
		{ack, 17, 5, false},
		{send, 18, 0, true}, // another connection
		{send, 17, 0xFFFFFF, true},
		{send, 17, 0, false},
		{send, 17, 0xFFFFFE, true}, // what is before it
		{send, 17, 0xFFFFFF, false},
		{send, 17, 0xFFFFFE, false}, // now it passes, and is not missing any more
		{write, 17, 0xFFFFFF, true},
	} {
		e := r.Apply(Tx, peer, packet(c.op, c.qpn, c.psn))
		if e.Answered != c.hit || e.Drop != c.hit {
			t.Errorf("packet %d: %+v", i, e)
		}
	}
}
