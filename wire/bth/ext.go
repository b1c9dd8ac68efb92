package bth

// Ext is the content of all extended headers, for building a packet and for
// showing one. An opcode uses the fields of the headers that its table row
// lists. Reserved bits are not in it: they are written as 0.
type Ext struct {
	EECN  uint32 // RDETH: EE context, 24 bits
	QKey  uint32 // DETH: queue key
	SrcQP uint32 // DETH: source queue pair, 24 bits
	SRQN  uint32 // XRCETH: target SRQ, 24 bits

	VA     uint64 // RETH, AtomicETH: remote virtual address
	RKey   uint32 // RETH, AtomicETH: remote key
	Length uint32 // RETH: length of the message in bytes

	SwapAdd     uint64 // AtomicETH: swap value or addend
	Compare     uint64 // AtomicETH: compare value
	SwapMask    uint64 // MaskedAtomicETH: which bits are swapped
	CompareMask uint64 // MaskedAtomicETH: which bits are compared
	Original    uint64 // AtomicAckETH: value before the operation

	Syndrome Syndrome // AETH
	MSN      uint32   // AETH: message sequence number, 24 bits

	Imm    uint32 // ImmDt: the four bytes, big-endian
	InvKey uint32 // IETH: key to invalidate

	Selectivity int // FETH: SEL
	Placement   int // FETH: PLT
}

// Put writes the extended headers of table row i into b, which begins with the
// BTH and must hold i.Len bytes.
func (e *Ext) Put(b []byte, i *Info) {
	for _, h := range i.Headers {
		o, ok := i.Offset(h)
		if !ok {
			continue
		}
		p := b[o : o+h.Len()]
		switch h {
		case HRDETH:
			RDETH(p).Put(e.EECN)
		case HDETH:
			DETH(p).Put(e.QKey, e.SrcQP)
		case HXRCETH:
			XRCETH(p).Put(e.SRQN)
		case HRETH:
			RETH(p).Put(e.VA, e.RKey, e.Length)
		case HAtomicETH:
			AtomicETH(p).Put(e.VA, e.RKey, e.SwapAdd, e.Compare)
		case HMaskedETH:
			MaskedETH(p).Put(e.VA, e.RKey, e.SwapAdd, e.Compare, e.SwapMask, e.CompareMask)
		case HAETH:
			AETH(p).Put(e.Syndrome, e.MSN)
		case HAtomicAckETH:
			AtomicAckETH(p).Put(e.Original)
		case HImmDt:
			ImmDt(p).Put(e.Imm)
		case HIETH:
			IETH(p).Put(e.InvKey)
		case HFETH:
			FETH(p).Put(e.Selectivity, e.Placement)
		case HCNP:
			clear(p)
		}
	}
}

// ReadExt returns the content of the extended headers of table row i from b,
// which begins with the BTH and must hold i.Len bytes.
func ReadExt(b []byte, i *Info) Ext {
	var e Ext
	for _, h := range i.Headers {
		o, ok := i.Offset(h)
		if !ok {
			continue
		}
		p := b[o : o+h.Len()]
		switch h {
		case HRDETH:
			e.EECN = RDETH(p).EECN()
		case HDETH:
			e.QKey, e.SrcQP = DETH(p).QKey(), DETH(p).SrcQP()
		case HXRCETH:
			e.SRQN = XRCETH(p).SRQN()
		case HRETH:
			e.VA, e.RKey, e.Length = RETH(p).VA(), RETH(p).RKey(), RETH(p).Length()
		case HAtomicETH:
			a := AtomicETH(p)
			e.VA, e.RKey, e.SwapAdd, e.Compare = a.VA(), a.RKey(), a.SwapAdd(), a.Compare()
		case HMaskedETH:
			a := MaskedETH(p)
			e.VA, e.RKey, e.SwapAdd, e.Compare, e.SwapMask, e.CompareMask = a.VA(), a.RKey(), a.Swap(), a.Compare(), a.SwapMask(), a.CompareMask()
		case HAETH:
			e.Syndrome, e.MSN = AETH(p).Syndrome(), AETH(p).MSN()
		case HAtomicAckETH:
			e.Original = AtomicAckETH(p).Original()
		case HImmDt:
			e.Imm = ImmDt(p).Data()
		case HIETH:
			e.InvKey = IETH(p).RKey()
		case HFETH:
			e.Selectivity, e.Placement = FETH(p).Selectivity(), FETH(p).Placement()
		}
	}
	return e
}
