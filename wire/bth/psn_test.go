package bth

import "testing"

func TestPSNArithmetic(t *testing.T) {
	for _, c := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 0, 0}, {0, 1, 1}, {0xFFFFFF, 1, 0}, {0xFFFFFF, 2, 1}, {0, -1, 0xFFFFFF}, {5, -6, 0xFFFFFF},
		{0x7FFFFF, 1, 0x800000}, {0x800000, -1, 0x7FFFFF}, {0xABCDEF, 1 << 24, 0xABCDEF},
		{0xABCDEF, -1 << 24, 0xABCDEF}, {1, 1 << 23, 0x800001}, {0xFFFFF0, 1<<31 - 1, 0xFFFFEF}, {1, -1 << 31, 1},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("%v.Add(%d) = %v, want %v", c.p, c.n, got, c.want)
		}
	}
	for _, p := range []PSN{0, 1, 0x7FFFFF, 0x800000, 0xFFFFFE, 0xFFFFFF} {
		if p.Next() != p.Add(1) || p.Prev() != p.Add(-1) || p.Next().Prev() != p {
			t.Errorf("%v: next %v, previous %v", p, p.Next(), p.Prev())
		}
	}
}

func TestPSNOrder(t *testing.T) {
	for _, c := range []struct {
		p, q PSN
		sub  int
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xFFFFFF, 1}, {0xFFFFFF, 0, -1}, {0x10, 0xFFFFF0, 0x20},
		{0xFFFFF0, 0x10, -0x20},
		// The edge: 2^23-1 ahead is after; exactly 2^23 is before, both ways.
		{0x7FFFFF, 0, 1<<23 - 1}, {0x800000, 0, -1 << 23}, {0x800001, 0, -1<<23 + 1}, {0, 0x800000, -1 << 23},
		{0, 0x7FFFFF, -1<<23 + 1}, {0, 0x800001, 1<<23 - 1}, {0x7FFFFE, 0xFFFFFF, 1<<23 - 1}, {0x7FFFFF, 0xFFFFFF, -1 << 23},
	} {
		if got := c.p.Sub(c.q); got != c.sub {
			t.Errorf("%v - %v = %d, want %d", c.p, c.q, got, c.sub)
		}
		if c.p.Before(c.q) != (c.sub < 0) || c.p.After(c.q) != (c.sub > 0) {
			t.Errorf("%v against %v: before %v, after %v", c.p, c.q, c.p.Before(c.q), c.p.After(c.q))
		}
		if c.q.Add(c.sub) != c.p {
			t.Errorf("%v + %d is not %v", c.q, c.sub, c.p)
		}
	}
	// No PSN is before and after another one, whatever the distance.
	for d := 0; d < 1<<24; d += 4093 {
		for _, q := range []PSN{0, 0x7FFFFF, 0x800000, 0xFFFFFF} {
			p := q.Add(d)
			if p.Before(q) && p.After(q) || (p == q) != (p.Sub(q) == 0) {
				t.Fatalf("%v against %v", p, q)
			}
		}
	}
}

func TestPSNIn(t *testing.T) {
	for _, c := range []struct {
		p, first PSN
		n        int
		want     bool
	}{
		{5, 5, 0, false}, {5, 5, 1, true}, {6, 5, 1, false}, {4, 5, 1, false}, {0, 0xFFFFFE, 3, true},
		{1, 0xFFFFFE, 3, false}, {0xFFFFFD, 0xFFFFFE, 3, false}, {0x800000, 1, 1 << 23, true},
		{0x800001, 1, 1 << 23, false}, {0, 1, 1 << 24, true}, {0, 0, -1, false},
	} {
		if got := c.p.In(c.first, c.n); got != c.want {
			t.Errorf("%v in %d from %v: %v", c.p, c.n, c.first, got)
		}
	}
}

func TestPSNString(t *testing.T) {
	if s := PSN(0xAB).String(); s != "0000ab" {
		t.Error(s)
	}
}
