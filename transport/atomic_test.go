package transport

import (
	"math/rand/v2"
	"testing"
)

// addBits adds bit by bit, as the text of the extended atomics has it: a carry leaves a bit
// unless the bit's boundary is set.
func addBits(a, b, boundary uint64) (sum uint64) {
	carry := uint64(0)
	for i := range 64 {
		x, y := a>>i&1, b>>i&1
		sum |= (x ^ y ^ carry) << i
		carry = x&y | x&carry | y&carry
		if boundary>>i&1 == 1 {
			carry = 0
		}
	}
	return sum
}

func TestMaskedFetchAdd(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 100_000 {
		a, b, m := rnd.Uint64(), rnd.Uint64(), rnd.Uint64()
		switch i % 4 {
		case 0:
			m = 0
		case 1:
			m = 1 << (i / 4 % 64)
		case 2:
			a, b = a|0xFFFF_FFFF, ^uint64(0)
		}
		op := Atomic{Op: OpMaskedFetchAdd, CompareAdd: b, CompareAddMask: m}
		if got, store := op.Apply(a); !store || got != addBits(a, b, m) {
			t.Fatalf("%x + %x, boundaries %x: %x, want %x", a, b, m, got, addBits(a, b, m))
		}
	}
}

func TestAtomic(t *testing.T) {
	for _, c := range []struct {
		a     Atomic
		old   uint64
		want  uint64
		store bool
	}{
		{Atomic{Op: OpCompareSwap, CompareAdd: 5, Swap: 9}, 5, 9, true},
		{Atomic{Op: OpCompareSwap, CompareAdd: 5, Swap: 9}, 6, 0, false},
		{Atomic{Op: OpFetchAdd, CompareAdd: 2}, ^uint64(0), 1, true},
		{Atomic{Op: OpMaskedCompareSwap, CompareAdd: 0x1200, CompareAddMask: 0xFF00, Swap: 0xAB, SwapMask: 0xFF}, 0x1234, 0x12AB, true},
		{Atomic{Op: OpMaskedCompareSwap, CompareAdd: 0x1300, CompareAddMask: 0xFF00, Swap: 0xAB, SwapMask: 0xFF}, 0x1234, 0, false},
		{Atomic{Op: OpMaskedCompareSwap, SwapMask: 0xF0, Swap: 0xFFFF}, 0x1234, 0x12F4, true},
		{Atomic{Op: OpWrite}, 1, 0, false},
	} {
		got, store := c.a.Apply(c.old)
		if store != c.store || store && got != c.want {
			t.Errorf("%+v on %x: %x %v", c.a, c.old, got, store)
		}
	}
}
