package replay

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// expect is what is to be told of a packet; "" for Field and Why: anything.
type expect struct {
	v      Verdict
	packet int
	field  string
	why    string
}

// tells compares findings with what is to be told, in order; what is the same or declared is not told unless it is wanted.
func tells(t *testing.T, r *Result, want ...expect) {
	t.Helper()
	v := []Verdict{Different, Unknown}
	for _, w := range want {
		if w.v == Declared {
			v = append(v, Declared)
		}
	}
	got := findings(r, v...)
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		g, w := got[i], want[i]
		ok = ok && g.Verdict == w.v && g.Packet == w.packet && strings.Contains(g.Field, w.field) && strings.Contains(g.Why, w.why)
	}
	if !ok {
		var b strings.Builder
		_ = r.Text(&b, true)
		t.Errorf("told: %v\nwant: %+v\n%s", got, want, &b)
	}
}

// same checks that everything recorded was compared and is the same.
func same(t *testing.T, r *Result, n int) {
	t.Helper()
	tells(t, r)
	got := 0
	for _, c := range r.Conversations {
		got += c.Same
	}
	if got != n {
		var b strings.Builder
		_ = r.Text(&b, true)
		t.Errorf("%d answers are the same, want %d\n%s", got, n, &b)
	}
}

func reth(va uint64, n int) func(*wire.Spec) { return at(va, rkey, uint32(n)) }

// A recording of every kind of request, by hand: the answers are what the specification has.
func everything1() *tape {
	r := new(tape)
	r.ask(bth.SendOnly, 0xFFFFFE, data(1, 100), nil)
	r.ack(0xFFFFFE, 1)
	r.ask(bth.WriteFirst, 0xFFFFFF, data(2, 1024), silent(reth(base, 2000)))
	r.ask(bth.WriteLast, 0, data(3, 976), nil)
	r.ack(0, 2)
	r.ask(bth.ReadRequest, 1, nil, reth(base, 2000))
	r.reply(bth.ReadResponseFirst, 1, bth.AckUnlimited, 3, data(2, 1024))
	r.reply(bth.ReadResponseLast, 2, bth.AckUnlimited, 3, data(3, 976))
	r.ask(bth.FetchAdd, 3, nil, func(s *wire.Spec) { at(base+4096, rkey, 0)(s); s.Ext.SwapAdd = 5 })
	r.replyTo(bth.AtomicAcknowledge, 3, bth.AckUnlimited, 4, nil, func(s *wire.Spec) { s.Ext.Original = 70 })
	r.ask(bth.CompareSwap, 4, nil, func(s *wire.Spec) { at(base+4096, rkey, 0)(s); s.Ext.Compare, s.Ext.SwapAdd = 75, 1 })
	r.replyTo(bth.AtomicAcknowledge, 4, bth.AckUnlimited, 5, nil, func(s *wire.Spec) { s.Ext.Original = 75 })
	r.ask(bth.AtomicWrite, 5, data(9, 8), reth(base+4096, 8))
	r.reply(bth.ReadResponseOnly, 5, bth.AckUnlimited, 6, nil)
	r.ask(bth.Flush, 6, nil, func(s *wire.Spec) { reth(base, 64)(s); s.Ext.Placement = 3 })
	r.reply(bth.ReadResponseOnly, 6, bth.AckUnlimited, 7, nil)
	r.ask(bth.ReadRequest, 7, nil, reth(base+4096, 8))
	r.reply(bth.ReadResponseOnly, 7, bth.AckUnlimited, 8, data(9, 8))
	r.ask(bth.WriteOnlyImm, 8, data(4, 8), reth(base+8, 8))
	r.ack(8, 9)
	r.ask(bth.SendOnlyInv, 9, []byte("bye"), func(s *wire.Spec) { s.Ext.InvKey = 0x777 })
	r.ack(9, 10)
	return r
}

func TestEveryRequest(t *testing.T) {
	same(t, everything1().play(t, Options{}), 11)
	same(t, everything1().play(t, Options{Still: true, Regions: []Region{{rkey, base, 1 << 20}}}), 11)
}

// Addresses of the other family, behind a VLAN tag.
func TestIPv6(t *testing.T) {
	for _, a := range [][2]string{{"2001:db8::2", "2001:db8::1"}, {"fe80::2", "fe80::1"}} {
		r := everything1()
		r.readdress(netip.MustParseAddr(a[0]), netip.MustParseAddr(a[1]))
		same(t, r.play(t, Options{}), 11)
	}
}

// Both ends at one address, as with two programs on one softnic.
func TestOneAddress(t *testing.T) {
	for _, a := range []string{"127.0.0.1", "2001:db8::1"} {
		r := everything1()
		r.readdress(netip.MustParseAddr(a), netip.MustParseAddr(a))
		same(t, r.play(t, Options{}), 11)
	}
	r := new(tape) // its answers are nowhere
	r.ask(bth.SendOnly, 0, nil, nil)
	r.readdress(addrB, addrB)
	same(t, r.play(t, Options{}), 0)
}

// What has no answers is taken, or it is said what was not.
func TestUnanswered(t *testing.T) {
	r := new(tape)
	op := func(o bth.Opcode, key uint16) func(*wire.Spec) {
		return func(s *wire.Spec) {
			s.BTH.Opcode, s.BTH.PKey, s.Ext = o, key, bth.Ext{QKey: 0x55, SrcQP: 7, VA: base, RKey: rkey, Length: 8}
			s.BTH.DestQP += uint32(o.Service())
		}
	}
	uc := func(o bth.Operation) func(*wire.Spec) { return op(bth.Make(bth.UC, o), 0x8001) }
	r.ask(0, 5, data(1, 8), uc(bth.WriteOnly))
	r.ask(0, 6, data(1, 8), uc(bth.SendOnly))
	r.ask(0, 8, data(1, 8), uc(bth.SendLast)) // 7 is lost
	r.ask(0, 9, data(1, 8), uc(bth.WriteOnly))
	r.ask(0, 1, data(1, 100), op(bth.UDSendOnly, 0x0002))
	r.ask(0, 1, data(1, 100), op(bth.UDSendOnly, 0x8002)) // PSNs of UD mean nothing
	res := r.play(t, Options{})
	if c := res.Conversations[0]; c.Service != "UC" || c.Fed != 4 || c.Taken != 3 || !strings.Contains(strings.Join(c.Notes, ""), "packet 3 is not taken") {
		t.Errorf("%+v", c)
	}
	if c := res.Conversations[1]; c.Service != "UD" || c.Fed != 2 || c.Taken != 2 {
		t.Errorf("%+v", c)
	}
	tells(t, res)
}

// A key that was invalidated may be made valid again before it is used, and is refused where the recorded NIC refused it.
func TestInvalidate(t *testing.T) {
	r := new(tape)
	write := func(psn bth.PSN) { r.ask(bth.WriteOnly, psn, data(1, 8), reth(base, 8)) }
	inv := func(psn bth.PSN) {
		r.ask(bth.SendOnlyInv, psn, nil, func(s *wire.Spec) { s.Ext.InvKey = rkey })
	}
	write(1)
	r.ack(1, 1)
	inv(2)
	r.ack(2, 2)
	write(3)
	r.ack(3, 3)
	inv(4)
	r.ack(4, 4)
	write(5)
	r.nak(5, bth.NakRemoteAccess, 4)
	same(t, r.play(t, Options{}), 5)
}

// A region or window that is registered again with other low 8 bits of its key, for another range, as kernel programs do: each key is good
// from its first use to the next one's, and one of before is refused where the recorded NIC refused it.
func TestNextKey(t *testing.T) {
	r := new(tape)
	psn, msn := bth.PSN(0), uint32(0)
	for i := range uint32(300) { // the low 8 bits come round
		key := rkey&^0xFF | i&0xFF
		r.ask(bth.WriteOnly, psn, data(byte(i), 8), at(base+uint64(i)*64, key, 8))
		r.ack(psn, msn+1)
		r.ask(bth.ReadRequest, psn+1, nil, at(base+uint64(i)*64, key, 8))
		r.reply(bth.ReadResponseOnly, psn+1, bth.AckUnlimited, msn+2, data(byte(i), 8))
		if i%3 > 0 { // otherwise its own program has taken it away
			r.ask(bth.SendOnlyInv, psn+2, nil, func(s *wire.Spec) { s.Ext.InvKey = key })
			r.ack(psn+2, msn+3)
			psn, msn = psn+1, msn+1
		}
		psn, msn = psn+2, msn+2
	}
	r.ask(bth.WriteOnly, psn, data(9, 8), at(base, rkey&^0xFF|0x80, 8))
	r.nak(psn, bth.NakRemoteAccess, msn)
	same(t, r.play(t, Options{Still: true}), 801)
}

// What was there at first is what READ responses and atomics show; what has changed with no request is unknown, or, where nobody else writes, different.
func TestMemory(t *testing.T) {
	read := func(r *tape, psn bth.PSN, msn uint32, b []byte) int {
		r.ask(bth.ReadRequest, psn, nil, reth(base, len(b)))
		return r.reply(bth.ReadResponseOnly, psn, bth.AckUnlimited, msn, b)
	}
	add := func(r *tape, psn bth.PSN, msn uint32, original uint64) int {
		r.ask(bth.FetchAdd, psn, nil, func(s *wire.Spec) { at(base, rkey, 0)(s); s.Ext.SwapAdd = 3 })
		return r.replyTo(bth.AtomicAcknowledge, psn, bth.AckUnlimited, msn, nil, func(s *wire.Spec) { s.Ext.Original = original })
	}
	odd := append(data(1, 50), append([]byte{0xEE}, data(1, 100)[51:]...)...)
	for wrong := range 5 { // which of the READs shows another byte
		r := new(tape)
		n := 0
		for i := range 5 {
			b := data(1, 100)
			if i == wrong {
				b = odd
			}
			if k := read(r, bth.PSN(i), uint32(i+1), b); i == wrong {
				n = k
			}
		}
		tells(t, r.play(t, Options{Still: true}), expect{Different, n, "payload", ""})
		res := r.play(t, Options{})
		if l := findings(res, Unknown); res.Different > 0 || len(l) == 0 || l[0].Packet != n {
			t.Errorf("READ %d: %v", wrong, l)
		}
	}
	for wrong := range 5 {
		r := new(tape)
		n := 0
		for i := range 5 {
			v := 100 + 3*uint64(i)
			if i == wrong {
				v++
			}
			if k := add(r, bth.PSN(i), uint32(i+1), v); i == wrong {
				n = k
			}
		}
		tells(t, r.play(t, Options{Still: true}), expect{Different, n, "original", ""})
		if res := r.play(t, Options{}); res.Different > 0 || findings(res, Unknown)[0].Packet != n {
			t.Errorf("atomic %d: %v", wrong, findings(res, Unknown))
		}
	}
	// The program of the recorded NIC counts: from there on the NIC here goes on with its value.
	r := new(tape)
	add(r, 0, 1, 100)
	n := add(r, 1, 2, 200)
	add(r, 2, 3, 203)
	add(r, 3, 4, 206)
	if l := findings(r.play(t, Options{}), Unknown); len(l) != 1 && (len(l) == 0 || l[0].Packet > n) {
		t.Errorf("%v", l)
	}
	// What a request has written is known.
	r = new(tape)
	r.ask(bth.WriteOnly, 0, data(7, 100), reth(base, 100))
	r.ack(0, 1)
	n = read(r, 1, 2, data(8, 100))
	read(r, 2, 3, data(8, 100))
	tells(t, r.play(t, Options{Still: true}), expect{Different, n, "payload", ""}, expect{Different, n + 2, "payload", ""})
	tells(t, r.play(t, Options{}), expect{Unknown, n, "payload", "--still"})
}

// Acknowledgements may stand for several, and come unasked.
func TestCoalesced(t *testing.T) {
	send := func(r *tape, psn bth.PSN) int { return r.ask(bth.SendOnly, psn, nil, nil) }
	r := new(tape)
	first := send(r, 0)
	send(r, 1)
	send(r, 2)
	last := r.ack(2, 3)
	tells(t, r.play(t, Options{}), expect{Declared, first, "", fmt.Sprint("packet ", last)}, expect{Declared, first + 1, "", fmt.Sprint("packet ", last)})
	// Unasked.
	r = new(tape)
	r.ask(bth.SendOnly, 0, nil, silent(nil))
	n := r.ack(0, 1)
	send(r, 1)
	r.ack(1, 2)
	tells(t, r.play(t, Options{}), expect{Declared, n, "", "unasked"})
	// Unasked, with an MSN that it cannot have.
	r = new(tape)
	r.ask(bth.SendOnly, 0, nil, silent(nil))
	n = r.ack(0, 2)
	send(r, 1)
	r.ack(1, 2)
	send(r, 2)
	r.ack(2, 3)
	tells(t, r.play(t, Options{}), expect{Different, n, "MSN", ""})
	// Before the request came.
	r = new(tape)
	send(r, 0)
	r.ack(0, 1)
	n = r.ack(1, 2)
	send(r, 1)
	tells(t, r.play(t, Options{}), expect{Different, n, "", "no such answer"}, expect{Unknown, n + 1, "", "ends"})
	// Credits.
	r = new(tape)
	send(r, 0)
	n = r.nak(0, bth.AckCredits(8), 1)
	tells(t, r.play(t, Options{}), expect{Declared, n, "syndrome", "credits"})
	// An ACK in place of a READ response.
	r = new(tape)
	send(r, 0)
	r.ack(0, 1)
	r.ask(bth.ReadRequest, 1, nil, reth(base, 8))
	n = r.ack(1, 2)
	r.ask(bth.SendOnly, 2, nil, nil)
	r.ack(2, 3)
	tells(t, r.play(t, Options{}), expect{Different, n - 1, "", ""}, expect{Different, n, "", "READ"})
}

// FuzzRun replays packets of any kind, with a right ICRC, at queue pairs that may exist: nothing may panic, and no more may come of them
// than there was.
func FuzzRun(f *testing.F) {
	for _, all := range []*tape{everything1(), everything1().xrc()} {
		var b []byte
		for i, s := range all.spec {
			ib := all.l[i].IP[28:]
			dir := byte(0)
			if s.BTH.Opcode.Info().Has(bth.Response) {
				dir = 1
			}
			if len(ib) < 200 {
				b = append(append(b, dir, byte(len(ib)-4)), ib[:len(ib)-4]...)
			}
		}
		f.Add(b)
	}
	words := []trace.Word{
		{}, {Dir: trace.Tx}, {Dir: trace.Rx}, {Dir: trace.Tx, Fate: trace.Held}, {Dir: trace.Rx, Fate: trace.Dropped}, {Dir: trace.Tx, Fate: trace.Lost},
		{Dir: trace.Rx, Fate: trace.Copied}, {Dir: trace.Tx, Changed: true}, {Dir: trace.Tx, Touched: true},
	}
	f.Add([]byte{0, 12, 4, 0, 255, 255, 0, 0, 0, 0x11, 0x80, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		var l list
		for len(in) >= 2 && len(l) < 64 {
			n := min(int(in[1]), len(in)-2)
			dir, ib := in[0], in[2:2+n]
			in = in[2+n:]
			p := wire.Path{Src: addrA, Dst: addrB, SrcPort: 0xC000}
			if dir&1 != 0 {
				p.Src, p.Dst = p.Dst, p.Src
			}
			if len(ib) < bth.Len {
				continue
			}
			s := wire.Spec{Path: p, BTH: bth.BTH(ib).Fields(), RawExt: append([]byte{}, ib[bth.Len:]...), Pad: make([]byte, bth.BTH(ib).Pad())}
			h := sighting(len(l)+1, int64(len(l))*1000, wire.Build(&s))
			h.Word = words[int(dir>>1)%len(words)]
			l = append(l, h)
		}
		n := len(l)
		r, err := run(&l, Options{Still: n%2 == 0}, none)
		if err != nil {
			return
		}
		if r.Packets.RoCE > uint64(n) || len(r.Conversations) > n {
			t.Errorf("%d packets gave %+v", n, r)
		}
		var b bytes.Buffer
		_ = r.Text(&b, true)
	})
}
