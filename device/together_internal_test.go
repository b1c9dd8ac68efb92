package device

import (
	"testing"
	"time"

	"github.com/softnic/softnic/wire/bth"
)

// TestTogether: what several queue pairs have to send goes to the link in one call, in the order in which they were held, and each is left
// as QP.leave leaves it: what came meanwhile is sent too, one that is gone or being sent for is no obstacle.
func TestTogether(t *testing.T) {
	a, b := twoPolled(t)
	type pair struct{ here, there *QP }
	var pairs []pair
	for range 5 {
		var p pair
		for _, s := range []struct {
			h *polledHost
			q **QP
		}{{a, &p.here}, {b, &p.there}} {
			var err error
			if *s.q, err = s.h.pd.CreateQP(QPInit{Type: RC, SendCQ: s.h.cq, RecvCQ: s.h.cq, SigAll: true, Cap: Cap{SendWR: 64, Inline: 64}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.here.Connect(1, p.there.Address(1, 2), ConnectOptions{Access: RemoteWrite, Timeout: 20}); err != nil {
			t.Fatal(err)
		}
		if err := p.there.Connect(2, p.here.Address(1, 1), ConnectOptions{Access: RemoteWrite, Timeout: 20}); err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, p)
	}
	rx := a.dev.rx
	rx.drive.Lock()
	var want []uint32
	for i, p := range pairs {
		q := p.here
		q.mu.Lock()
		wr := SendWR{Op: OpWrite, SGE: []SGE{a.mr.SGE(0, 16)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		q.sq.push(&wr, false)
		q.eng.Doorbell(q.dev.now())
		rx.hold(q)
		q.mu.Unlock()
		if i != 1 {
			want = append(want, q.num)
		}
	}
	if err := pairs[1].here.Destroy(); err != nil {
		t.Fatal(err)
	}
	// The last has more than one list: the rest comes while the first is on its way.
	last := pairs[4].here
	last.mu.Lock()
	for range 40 {
		wr := SendWR{Op: OpWrite, SGE: []SGE{a.mr.SGE(0, 16)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		last.sq.push(&wr, false)
	}
	last.mu.Unlock()
	before := len(a.end.calls())
	rx.settle()
	rx.drive.Unlock()
	calls := a.end.calls()[before:]
	if len(calls) == 0 || len(calls[0]) != len(want) {
		t.Fatalf("%d calls, the first of %d packets; want one packet of each of %d queue pairs", len(calls), len(calls[0]), len(want))
	}
	if len(calls) < 2 {
		t.Error("what came meanwhile is not sent")
	}
	for _, f := range calls[0] {
		if f.op != bth.Make(bth.RC, bth.WriteOnly) {
			t.Errorf("%v is sent", f.op)
		}
	}
	for range len(want) + 40 {
		a.take(t)
	}
	if n := a.mr.mem.state.Load() >> 32; n != 0 {
		t.Errorf("%d accesses run", n)
	}

	// Writes to several queue pairs that come in one batch are acknowledged in one call.
	b.dev.rx.drive.Lock()
	for _, p := range []pair{pairs[0], pairs[2], pairs[3]} {
		wr := SendWR{Op: OpWrite, Flags: Inline, InlineData: make([]byte, 8), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		if err := p.here.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		a.dev.rx.turn() // what a has held
		if n := b.end.in.Len(); n == 3 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d packets have arrived", n)
		}
	}
	b.dev.rx.away.Store(true) // and stays so while drive is held: they are held, whatever the receiver's goroutine does meanwhile
	before = len(b.end.calls())
	b.dev.rx.round()
	b.dev.rx.settle()
	b.dev.rx.drive.Unlock()
	if calls := b.end.calls()[before:]; len(calls) != 1 || len(calls[0]) != 3 {
		t.Errorf("acknowledged in %v", calls)
	}
	for range 3 {
		a.take(t)
	}
}

// TestManyQueuePairsGather: who posts one request on each of many queue pairs has the first few sent at once, and the others together at the
// next look.
func TestManyQueuePairsGather(t *testing.T) {
	a, b := twoPolled(t)
	var posters []*QP
	const n = deep + 1 + 20
	for range n {
		var ends [2]*QP
		for i, h := range []*polledHost{a, b} {
			q, err := h.pd.CreateQP(QPInit{Type: RC, SendCQ: h.cq, RecvCQ: h.cq, SigAll: true, Cap: Cap{SendWR: 4}})
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = q
		}
		for i, q := range ends {
			if err := q.Connect(1, ends[1-i].Address(1, 1), ConnectOptions{Access: RemoteWrite, Timeout: 20}); err != nil {
				t.Fatal(err)
			}
		}
		posters = append(posters, ends[0])
	}
	rx := a.dev.rx
	rx.drive.Lock() // nobody looks meanwhile, and answers do not arrive
	rx.away.Store(true)
	post := func(q *QP, size int) {
		t.Helper()
		wr := SendWR{Op: OpWrite, SGE: []SGE{a.mr.SGE(0, size)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		if err := q.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range posters[:n-1] {
		post(q, 1000)
	}
	if sends := len(a.end.calls()); sends != deep {
		t.Errorf("%d queue pairs sent at once, want %d", sends, deep)
	}
	post(posters[n-1], (few+1)*posters[n-1].attr.PathMTU) // a message of many packets does not wait
	if sends := len(a.end.calls()); sends != deep+1 {
		t.Errorf("%d sends", sends)
	}
	rx.settle()
	rx.drive.Unlock()
	calls := a.end.calls()
	if len(calls) != deep+2 || len(calls[deep+1]) != n-1-deep {
		t.Errorf("%d sends, the last of %d packets", len(calls), len(calls[len(calls)-1]))
	}
	for range n {
		a.take(t)
	}
}
