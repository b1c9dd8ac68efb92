package transport

// Atomic is what an atomic operation does to the 64 bits at its address.
type Atomic struct {
	Op         WROp   // one of the four atomic operations
	CompareAdd uint64 // compare value, or the addend
	Swap       uint64 // of a compare and swap: what is stored
	// Masked forms: which bits are compared, or the most significant bit of each field
	// out of which an addition carries nothing; and which bits are swapped.
	CompareAddMask, SwapMask uint64
}

// Apply returns the value that replaces old; store is false when nothing is stored, which is so for an Op that is no atomic too.
func (a *Atomic) Apply(old uint64) (v uint64, store bool) {
	switch a.Op {
	case OpCompareSwap:
		return a.Swap, old == a.CompareAdd
	case OpFetchAdd:
		return old + a.CompareAdd, true
	case OpMaskedCompareSwap:
		return old&^a.SwapMask | a.Swap&a.SwapMask, (old^a.CompareAdd)&a.CompareAddMask == 0
	case OpMaskedFetchAdd:
		// Without the top bit of each field nothing carries out of it; the top bits
		// are then added without a carry.
		top := a.CompareAddMask
		return (old&^top + a.CompareAdd&^top) ^ (old^a.CompareAdd)&top, true
	}
	return old, false
}

// IsAtomic reports whether an operation is one of the four that Atomic has.
func (o WROp) IsAtomic() bool {
	switch o {
	case OpCompareSwap, OpFetchAdd, OpMaskedCompareSwap, OpMaskedFetchAdd:
		return true
	}
	return false
}

// IsMasked reports whether an operation is a masked atomic.
func (o WROp) IsMasked() bool { return o == OpMaskedCompareSwap || o == OpMaskedFetchAdd }

// IsLocal reports whether an operation sends nothing.
func (o WROp) IsLocal() bool { return o == OpLocalInv || o == OpBindMW || o == OpRegMR }
