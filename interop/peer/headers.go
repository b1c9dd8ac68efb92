package peer

// RETH names the memory of an RDMA WRITE, READ, FLUSH or ATOMIC WRITE.
//
//	 0                               8               12              16
//	+-------------------------------+---------------+---------------+
//	|        virtual address        |     R_Key     |  DMA length   |
//	+-------------------------------+---------------+---------------+
type RETH struct {
	VA   uint64
	RKey uint32
	Len  uint32
}

// AETH is the answer of a responder. [Syndrome] names the values of the first byte.
//
//	 0        1                       4
//	+--------+-----------------------+
//	|syndrome|          MSN          |
//	+--------+-----------------------+
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// DETH belongs to datagrams.
//
//	 0                               4        5                       8
//	+-------------------------------+--------+-----------------------+
//	|             Q_Key             |reserved|       source QP       |
//	+-------------------------------+--------+-----------------------+
type DETH struct {
	QKey  uint32
	Resv  uint8
	SrcQP uint32 // 24 bits
}

// AtomicETH is the operand of a compare-and-swap or fetch-and-add.
//
//	 0                       8           12                      20                      28
//	+-----------------------+-----------+-----------------------+-----------------------+
//	|    virtual address    |   R_Key   |      swap or add      |        compare        |
//	+-----------------------+-----------+-----------------------+-----------------------+
//
// A fetch-and-add leaves Compare without meaning; a masked one has its field
// boundaries there.
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// MaskedETH is the operand of a masked compare-and-swap (opcode 0xD3).
//
//	 0             8       12            20            28            36            44
//	+-------------+-------+-------------+-------------+-------------+-------------+
//	|     VA      | R_Key |    swap     |   compare   |  swap mask  | compare mask|
//	+-------------+-------+-------------+-------------+-------------+-------------+
type MaskedETH struct {
	VA          uint64
	RKey        uint32
	Swap        uint64
	Compare     uint64
	SwapMask    uint64
	CompareMask uint64
}

// XRCETH names the shared receive queue of an XRC request.
//
//	 0        1                       4
//	+--------+-----------------------+
//	|reserved|   XRC SRQ number      |
//	+--------+-----------------------+
type XRCETH struct {
	Resv uint8
	SRQN uint32 // 24 bits
}

// RDETH names the end-to-end context of a reliable datagram.
//
//	 0        1                       4
//	+--------+-----------------------+
//	|reserved|      EE context       |
//	+--------+-----------------------+
type RDETH struct {
	Resv uint8
	EEC  uint32 // 24 bits
}

// FETH says what a FLUSH is to flush, and how far.
//
//	 31                        6 5   4 3       0
//	+---------------------------+-----+---------+
//	|         reserved          | SEL |   PLT   |
//	+---------------------------+-----+---------+
type FETH struct {
	Resv uint32 // 26 bits
	Sel  uint8  // 0: the range of the RETH, 1: the whole memory region
	PLT  uint8  // bit 0: global visibility, bit 1: persistence
}

// wireWriter appends big-endian fields.
type wireWriter []byte

func (w *wireWriter) u8(v uint8)   { *w = append(*w, v) }
func (w *wireWriter) u16(v uint16) { *w = append(*w, byte(v>>8), byte(v)) }
func (w *wireWriter) u24(v uint32) { *w = append(*w, byte(v>>16), byte(v>>8), byte(v)) }
func (w *wireWriter) u32(v uint32) { w.u16(uint16(v >> 16)); w.u16(uint16(v)) }
func (w *wireWriter) u64(v uint64) { w.u32(uint32(v >> 32)); w.u32(uint32(v)) }

// u16At reads back a field.
func (w wireWriter) u16At(at int) uint16 { return uint16(w[at])<<8 | uint16(w[at+1]) }

// wireReader takes big-endian fields off the front. The caller has checked that
// there is enough.
type wireReader []byte

func (r *wireReader) u(n int) uint64 {
	var v uint64
	for _, b := range (*r)[:n] {
		v = v<<8 | uint64(b)
	}
	*r = (*r)[n:]
	return v
}
func (r *wireReader) u8() uint8   { return uint8(r.u(1)) }
func (r *wireReader) u16() uint16 { return uint16(r.u(2)) }
func (r *wireReader) u24() uint32 { return uint32(r.u(3)) }
func (r *wireReader) u32() uint32 { return uint32(r.u(4)) }
func (r *wireReader) u64() uint64 { return r.u(8) }

// appendHeaders writes the extended headers of the set, in wire order.
func (f *Frame) appendHeaders(w *wireWriter, set Headers) {
	if set.Has(HasRDETH) {
		w.u8(f.RDETH.Resv)
		w.u24(f.RDETH.EEC)
	}
	if set.Has(HasDETH) {
		w.u32(f.DETH.QKey)
		w.u8(f.DETH.Resv)
		w.u24(f.DETH.SrcQP)
	}
	if set.Has(HasXRCETH) {
		w.u8(f.XRCETH.Resv)
		w.u24(f.XRCETH.SRQN)
	}
	if set.Has(HasFETH) {
		w.u32(f.FETH.Resv<<6 | uint32(f.FETH.Sel&3)<<4 | uint32(f.FETH.PLT&15))
	}
	if set.Has(HasRETH) {
		w.u64(f.RETH.VA)
		w.u32(f.RETH.RKey)
		w.u32(f.RETH.Len)
	}
	if set.Has(HasAtomicETH) {
		w.u64(f.Atomic.VA)
		w.u32(f.Atomic.RKey)
		w.u64(f.Atomic.SwapAdd)
		w.u64(f.Atomic.Compare)
	}
	if set.Has(HasMaskedETH) {
		w.u64(f.Masked.VA)
		w.u32(f.Masked.RKey)
		w.u64(f.Masked.Swap)
		w.u64(f.Masked.Compare)
		w.u64(f.Masked.SwapMask)
		w.u64(f.Masked.CompareMask)
	}
	if set.Has(HasAETH) {
		w.u8(uint8(f.AETH.Syndrome))
		w.u24(f.AETH.MSN)
	}
	if set.Has(HasAtomicAckETH) {
		w.u64(f.Orig)
	}
	if set.Has(HasImmDt) {
		w.u32(f.Imm)
	}
	if set.Has(HasIETH) {
		w.u32(f.InvKey)
	}
	if set.Has(HasCNP) {
		*w = append(*w, f.CNPResv[:]...)
	}
}

// readHeaders is the inverse of appendHeaders.
func (f *Frame) readHeaders(r *wireReader, set Headers) {
	if set.Has(HasRDETH) {
		f.RDETH = RDETH{Resv: r.u8(), EEC: r.u24()}
	}
	if set.Has(HasDETH) {
		f.DETH = DETH{QKey: r.u32(), Resv: r.u8(), SrcQP: r.u24()}
	}
	if set.Has(HasXRCETH) {
		f.XRCETH = XRCETH{Resv: r.u8(), SRQN: r.u24()}
	}
	if set.Has(HasFETH) {
		v := r.u32()
		f.FETH = FETH{Resv: v >> 6, Sel: uint8(v >> 4 & 3), PLT: uint8(v & 15)}
	}
	if set.Has(HasRETH) {
		f.RETH = RETH{VA: r.u64(), RKey: r.u32(), Len: r.u32()}
	}
	if set.Has(HasAtomicETH) {
		f.Atomic = AtomicETH{VA: r.u64(), RKey: r.u32(), SwapAdd: r.u64(), Compare: r.u64()}
	}
	if set.Has(HasMaskedETH) {
		f.Masked = MaskedETH{VA: r.u64(), RKey: r.u32(), Swap: r.u64(), Compare: r.u64(),
			SwapMask: r.u64(), CompareMask: r.u64()}
	}
	if set.Has(HasAETH) {
		f.AETH = AETH{Syndrome: Syndrome(r.u8()), MSN: r.u24()}
	}
	if set.Has(HasAtomicAckETH) {
		f.Orig = r.u64()
	}
	if set.Has(HasImmDt) {
		f.Imm = r.u32()
	}
	if set.Has(HasIETH) {
		f.InvKey = r.u32()
	}
	if set.Has(HasCNP) {
		for i := range f.CNPResv {
			f.CNPResv[i] = r.u8()
		}
	}
}
