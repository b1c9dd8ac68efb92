package transport

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/softnic/softnic/wire"
)

// far is memory that cannot be touched directly: byte i is i. Reads from hole on fail.
type far struct {
	hole  uint64
	calls int
}

func (m *far) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }
func (m *far) ReadV(e []Extent) error {
	m.calls++
	for _, x := range e {
		if x.VA+uint64(len(x.Buf)) > m.hole {
			return errors.New("not mapped")
		}
		for i := range x.Buf {
			x.Buf[i] = byte(x.VA + uint64(i))
		}
	}
	return nil
}
func (m *far) WriteV([]Extent) error                    { return nil }
func (m *far) Atomic64(uint64, *Atomic) (uint64, error) { return 0, nil }
func (m *far) Store64(uint64, uint64) error             { return nil }
func (m *far) Release()                                 {}
func (m *far) Park()                                    {}
func (m *far) Resume() bool                             { return true }
func (m *far) Discard()                                 {}

// near is memory that can.
type near struct{ far }

func (m *near) Slices(dst [][]byte, va uint64, n int) ([][]byte, bool) {
	b := make([]byte, n)
	_ = m.ReadV([]Extent{{va, b}})
	return append(dst, b), true
}

// TestResolve resolves lists whose packets are in one far region, in two, in parts near, and partly
// not readable: the bytes are right, what can be read together is, and the first packet that
// cannot be read is lost, with those behind it.
func TestResolve(t *testing.T) {
	type piece struct {
		mem int // 0 and 1 far, 2 near
		va  uint64
		n   int
	}
	for _, c := range []struct {
		name    string
		packets [][]piece
		lost    []int
		calls   [2]int // least number of calls that the far regions need
	}{
		{"nothing", nil, nil, [2]int{}},
		{"empty packet", [][]piece{{}}, nil, [2]int{}},
		{"one call for a burst", [][]piece{{{0, 0, 9}}, {{0, 9, 9}}, {{0, 18, 9}}}, nil, [2]int{1, 0}},
		{"two regions", [][]piece{{{0, 0, 9}}, {{1, 9, 9}}, {{1, 18, 9}}}, nil, [2]int{1, 1}},
		{"two regions in a packet", [][]piece{{{0, 0, 9}, {1, 5, 3}}, {{1, 8, 9}}}, nil, [2]int{1, 1}},
		{"back and forth", [][]piece{{{0, 0, 9}, {1, 5, 3}, {0, 9, 2}}}, nil, [2]int{2, 1}},
		{"near and far", [][]piece{{{2, 0, 4}, {0, 4, 4}}, {{2, 0, 4}}}, nil, [2]int{1, 0}},
		{"hole at the end", [][]piece{{{0, 0, 9}}, {{0, 50, 9}}, {{0, 1000, 1}}}, []int{2}, [2]int{4, 0}},
		{"hole in the middle", [][]piece{{{0, 0, 9}}, {{0, 99, 2}}, {{0, 18, 9}}}, []int{1}, [2]int{4, 0}},
		{"hole in one of two pieces", [][]piece{{{1, 0, 9}, {0, 100, 1}}, {{1, 1, 1}}}, []int{0}, [2]int{2, 2}},
		{"hole, then another region, then the first", [][]piece{{{0, 100, 9}}, {{1, 9, 9}}, {{0, 18, 9}}}, []int{0}, [2]int{3, 1}},
		{"all", [][]piece{{{0, 100, 9}}, {{0, 101, 2}}}, []int{0}, [2]int{3, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, n := &far{hole: 100}, &far{hole: 100}, &near{far{hole: 100}}
			var l TxList
			var s Scratch
			for range 2 { // reuse must not show; what is new must not either
				a.calls, b.calls = 0, 0
				for i, pieces := range c.packets {
					x := l.Add()
					x.Head[0] = byte(i)
					for _, p := range pieces {
						l.Gather([]Region{a, b, n}[p.mem], p.va, p.n)
					}
				}
				got := l.Resolve(nil, &s)
				first := len(c.packets)
				if c.lost != nil {
					first = c.lost[0]
				}
				k := 0
				for i, x := range l.Packets() {
					if x.Lost != (i == first) || x.Behind != (i > first) {
						t.Errorf("packet %d: lost %v, behind %v", i, x.Lost, x.Behind)
					}
					if i >= first {
						continue
					}
					if k == len(got) || got[k] != &x.Packet {
						t.Fatalf("packet %d is not in its place", i)
					}
					k++
					var want []byte
					for _, p := range c.packets[i] {
						for j := range p.n {
							want = append(want, byte(p.va)+byte(j))
						}
					}
					if b := bytes.Join(x.Data, nil); !bytes.Equal(b, want) {
						t.Errorf("packet %d: %v, want %v", i, b, want)
					}
				}
				if k != len(got) {
					t.Errorf("%d packets, want %d", len(got), k)
				}
				if calls := [2]int{a.calls, b.calls}; calls != c.calls {
					t.Errorf("%v calls, want %v", calls, c.calls)
				}
				l.Release()
			}
		})
	}
}

// shut is memory whose key has become invalid.
type shut struct {
	far
	ended int
}

func (m *shut) Resume() bool { return false }
func (m *shut) Discard()     { m.ended++ }
func (m *shut) Release()     { m.ended += 100 }

// TestResolveInvalid: what is parked under a key that becomes invalid is not read, and lost.
func TestResolveInvalid(t *testing.T) {
	var l TxList
	var s Scratch
	m, n := &shut{far: far{hole: 100}}, &far{hole: 100}
	add := func(r Region, va uint64) {
		l.Add()
		l.Gather(r, va, 2)
	}
	add(n, 1)
	add(n, 3)
	l.Gather(m, 5, 2)
	add(m, 7)
	add(&far{}, 1) // each is read for itself
	if got := l.Resolve(nil, &s); len(got) != 1 || got[0] != &l.Packets()[0].Packet {
		t.Fatalf("%d packets", len(got))
	}
	for i, p := range l.Packets() {
		if p.Lost != (i == 1) || p.Behind != (i > 1) || p.Gone {
			t.Errorf("packet %d: lost %v, behind %v, gone %v", i, p.Lost, p.Behind, p.Gone)
		}
	}
	l.Finish()
	if m.calls > 0 || m.ended != 101 { // two have begun: the list needs but one of them, which is parked
		t.Errorf("%d calls, ended %d", m.calls, m.ended)
	}
	if l.Len() != 4 {
		t.Error("the packets are gone")
	}
	if l.Release(); m.ended != 101 || l.Len() != 0 {
		t.Errorf("ended %d, %d packets", m.ended, l.Len())
	}
}

// counted is memory that counts accesses, those that run and those that are parked.
type counted struct {
	near
	runs, parked int
}

func (m *counted) Release()     { m.runs-- }
func (m *counted) Park()        { m.runs--; m.parked++ }
func (m *counted) Resume() bool { m.runs++; m.parked--; return true }
func (m *counted) Discard()     { m.parked-- }

// keyed is a Host whose keys name counted memory; known tells which of them it knows to be what it was.
type keyed struct {
	Host
	mem    [2]counted
	known  bool
	locals int // looked up
}

func (h *keyed) Local(_ *RecvContext, lkey uint32, _ uint64, _ int, _ Access) (Region, Status) {
	h.locals++
	if int(lkey) >= len(h.mem) {
		return nil, StatusLocalProtection
	}
	h.mem[lkey].runs++
	return &h.mem[lkey], StatusSuccess
}

func (h *keyed) Names(lkey uint32, _ uint64, _ int, mem Region) bool {
	return h.known && int(lkey) < len(h.mem) && mem == Region(&h.mem[lkey])
}

// TestHolds: the packets of a list have one access to a region together, which ends with the list, also with one that loses all its packets. A key
// that is known to name the region still is not looked up.
func TestHolds(t *testing.T) {
	for _, known := range []bool{false, true} {
		h := &keyed{known: known}
		for i := range h.mem {
			h.mem[i].hole = 100
		}
		var l TxList
		var s Scratch
		gather := func(keys ...uint32) (st Status) {
			l.Add()
			wr := &SendWR{}
			for _, k := range keys {
				wr.SGE = append(wr.SGE, SGE{Addr: uint64(k), Length: 1, LKey: k})
			}
			return Gather(h, &l, wr, 0, len(keys))
		}
		state := func(when string, parked, runs [2]int) {
			t.Helper()
			for i := range h.mem {
				if m := &h.mem[i]; m.parked != parked[i] || m.runs != runs[i] {
					t.Errorf("%s: region %d: %d parked, %d run", when, i, m.parked, m.runs)
				}
			}
		}
		none := [2]int{}
		gather(0)
		gather(0)
		gather(0, 1, 1)
		gather(1)
		gather(0)
		state("gathered", [2]int{1, 1}, none)
		if want := map[bool]int{true: 3, false: 7}[known]; h.locals != want { // the region is remembered that was added last
			t.Errorf("known %v: %d looked up, want %d", known, h.locals, want)
		}
		if gather(2) != StatusLocalProtection {
			t.Error("key 2")
		}
		l.DropLast()
		pkts := l.Resolve(nil, &s)
		state("resolved", none, [2]int{1, 1})
		if got := fmt.Sprint(len(pkts), pkts[2].Data, pkts[4].Data); got != "5 [[0] [1] [1]] [[0]]" {
			t.Error(got)
		}
		l.Finish()
		state("sent", none, none)
		l.Release()
		state("released", none, none)

		gather(1)
		l.DropLast()
		state("dropped", none, none)
		gather(1)
		gather(0)
		l.Drop(func(*Tx) bool { return true })
		state("all dropped", none, none)
		gather(1)
		gather(0)
		l.Drop(func(x *Tx) bool { return x == l.list[0] })
		state("one dropped", [2]int{1, 1}, none)
		var o TxList
		l.Swap(&o)
		if pkts = o.Resolve(nil, &s); len(pkts) != 1 || pkts[0].Data[0][0] != 0 {
			t.Error(pkts)
		}
		o.Release()
		state("of another list", none, none)
	}
}

// TestResolveInline has copied bytes beside far ones.
func TestResolveInline(t *testing.T) {
	var l TxList
	var s Scratch
	l.Add().Copy([]byte("inline"))
	l.Add()
	l.Gather(&far{hole: 100}, 1, 2)
	var pkts []*wire.Packet
	pkts = l.Resolve(pkts, &s)
	if got := fmt.Sprintf("%q %v", pkts[0].Data, pkts[1].Data); got != `["inline"] [[1 2]]` {
		t.Error(got)
	}
}

// gone is memory whose owner has ended.
type gone struct{ far }

func (*gone) ReadV([]Extent) error { return ErrGone }

// TestResolveGone tells what is lost because nobody is left from what is lost otherwise.
func TestResolveGone(t *testing.T) {
	var l TxList
	var s Scratch
	l.Add()
	l.Gather(&gone{}, 1, 2)
	x := l.Add()
	l.Gather(&far{}, 1, 2)
	x.Token = 1 // a request
	if got := l.Resolve(nil, &s); len(got) != 0 {
		t.Fatal("something was sent")
	}
	if p := l.Packets(); !p[0].Lost || !p[0].Gone || !p[1].Lost || p[1].Gone {
		t.Errorf("%v %v, %v %v", p[0].Lost, p[0].Gone, p[1].Lost, p[1].Gone)
	}
}

// TestCut: nothing goes behind what is lost, each half of a queue pair for itself.
func TestCut(t *testing.T) {
	for _, c := range []struct{ packets, want string }{ // requests and answers, those that are lost in capitals; - is not sent
		{"raraa", "raraa"}, {"rRra", "rR-a"}, {"raAra", "raAr-"}, {"RaArrA", "RaA---"}, {"Rr", "R-"}, {"", ""},
	} {
		var l TxList
		for _, k := range c.packets {
			x := l.Add()
			x.Lost, x.Gone = k < 'a', k < 'a'
			if k == 'r' || k == 'R' {
				x.Token = 7
			}
		}
		l.Cut()
		got := []byte(c.packets)
		for i, x := range l.Packets() {
			if x.Behind {
				got[i] = '-'
			}
			if x.Lost != (got[i] < 'a' && got[i] != '-') || x.Gone != x.Lost {
				t.Errorf("%s: packet %d: lost %v, gone %v", c.packets, i, x.Lost, x.Gone)
			}
		}
		if string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.packets, got, c.want)
		}
	}
}

// TestAcksLast: acknowledgements go behind requests, and stay where they are where there is anything else.
func TestAcksLast(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"aR", "Ra"}, {"aaRR", "RRaa"}, {"a", "a"}, {"", ""}, {"RR", "RR"}, {"Ra", "Ra"},
		{"aRd", "aRd"}, {"ad", "ad"}, {"da", "da"}, {"adR", "adR"}, {"aRa", "aRa"},
	} {
		var l TxList
		for i, k := range c.list {
			p := l.Add()
			p.Len = i
			switch k {
			case 'a':
				p.Ack = true
			case 'R':
				p.Token = 1
			case 'd': // READ responses, NAKs: their order is that of the queue of answers
			}
		}
		l.AcksLast()
		got, order := "", map[string]int{}
		for _, p := range l.Packets() {
			k := "d"
			switch {
			case p.Ack:
				k = "a"
			case p.Token != 0:
				k = "R"
			}
			if at, ok := order[k]; ok && at > p.Len {
				t.Errorf("%q: those of one kind have changed places", c.list)
			}
			order[k] = p.Len
			got += k
		}
		if got != c.want {
			t.Errorf("%q becomes %q, want %q", c.list, got, c.want)
		}
		if patient := c.list != "" && c.list == strings.Repeat("a", len(c.list)); l.Patient() != patient {
			t.Errorf("%q: Patient is %v", c.list, l.Patient())
		}
	}
}
