package transport

import "fmt"

// WROp is the operation of a send work request; values as enum ibv_wr_opcode. Package device says which service has which.
type WROp uint8

// The operations.
const (
	OpWrite       WROp = 0
	OpWriteImm    WROp = 1
	OpSend        WROp = 2
	OpSendImm     WROp = 3
	OpRead        WROp = 4
	OpCompareSwap WROp = 5
	OpFetchAdd    WROp = 6
	OpLocalInv    WROp = 7
	OpBindMW      WROp = 8
	OpSendInv     WROp = 9
	OpFlush       WROp = 14
	OpAtomicWrite WROp = 15

	// As the kernel's enum ib_wr_opcode has them.
	OpReadInv           WROp = 11 // READ, then local invalidate of the first SGE's key
	OpMaskedCompareSwap WROp = 12
	OpMaskedFetchAdd    WROp = 13
	OpRegMR             WROp = 0x20 // fast registration
)

var wrOpNames = map[WROp]string{
	OpWrite: "IBV_WR_RDMA_WRITE", OpWriteImm: "IBV_WR_RDMA_WRITE_WITH_IMM", OpSend: "IBV_WR_SEND",
	OpSendImm: "IBV_WR_SEND_WITH_IMM", OpRead: "IBV_WR_RDMA_READ", OpCompareSwap: "IBV_WR_ATOMIC_CMP_AND_SWP",
	OpFetchAdd: "IBV_WR_ATOMIC_FETCH_AND_ADD", OpLocalInv: "IBV_WR_LOCAL_INV", OpBindMW: "IBV_WR_BIND_MW",
	OpSendInv: "IBV_WR_SEND_WITH_INV", OpFlush: "IBV_WR_FLUSH", OpAtomicWrite: "IBV_WR_ATOMIC_WRITE",
	OpReadInv: "IB_WR_RDMA_READ_WITH_INV", OpMaskedCompareSwap: "IB_WR_MASKED_ATOMIC_CMP_AND_SWP",
	OpMaskedFetchAdd: "IB_WR_MASKED_ATOMIC_FETCH_AND_ADD", OpRegMR: "IB_WR_REG_MR",
}

// String returns the verbs name.
func (o WROp) String() string {
	if n := wrOpNames[o]; n != "" {
		return n
	}
	return fmt.Sprintf("IBV_WR_%d", uint8(o))
}

// SendFlags modify a send work request; values as enum ibv_send_flags.
type SendFlags uint8

// The send flags.
const (
	Fence     SendFlags = 1 << 0 // start only after all earlier READs, atomics, ATOMIC WRITEs and FLUSHes are complete
	Signaled  SendFlags = 1 << 1 // make a completion also on success
	Solicited SendFlags = 1 << 2 // wake a receiver that waits for solicited events
	Inline    SendFlags = 1 << 3 // the data is in InlineData, not in SGEs
)

// SGE is one entry of a gather or scatter list.
type SGE struct {
	Addr   uint64 // address in the region that LKey names
	Length uint32 // bytes; 0 is an empty entry
	LKey   uint32 // key of the region; not looked at where nothing is stored or read
}

// AddressHandle is where a datagram goes: a *device.AH.
type AddressHandle any

// SendWR is a send work request. What its Op has no use for means nothing.
type SendWR struct {
	ID         uint64    // handed back in the completion
	Op         WROp      // what is to be done
	Flags      SendFlags // how
	SGE        []SGE     // the data, or where the data that is asked for goes; together at most MaxMessage bytes
	InlineData []byte    // with Inline; copied when posted
	Imm        uint32    // immediate data, as the four bytes in network order; or the R_Key to invalidate

	RemoteAddr uint64 // RDMA and atomics: address in the peer's region; 8 divides it for atomics and ATOMIC WRITE
	RKey       uint32 // and the key of that

	SRQN       uint32        // XRC: the shared receive queue at the peer, SRQ.Num there
	AH         AddressHandle // datagrams: where to; RemoteQPN says to whom, 24 bits
	RemoteQPN  uint32
	RemoteQKey uint32 // datagrams: the Q_Key that is sent; with bit 31 set the queue pair's own is

	// What follows few have a use for, and is not touched for the others.

	// Atomics: compare value or addend, swap value and, for the masked forms, what Atomic says
	// of CompareAddMask and SwapMask. The original value is stored in the SGEs, 8 bytes in host order.
	CompareAdd, Swap         uint64
	CompareAddMask, SwapMask uint64
	// FLUSH: how far (0: not at all), and what is flushed. RemoteAddr and FlushLen, in bytes, name the range; with FlushLevel
	// FlushMR they are not looked at.
	FlushType  FlushType
	FlushLevel FlushLevel
	FlushLen   uint32
	Bind       BindWR // OpBindMW
	Reg        RegWR  // OpRegMR
}

// FlushType says how far a FLUSH goes; values as enum ib_flush_type.
type FlushType uint8

// The flush types, to be combined.
const (
	FlushGlobal     FlushType = 1 << 0 // visible to all of the remote host
	FlushPersistent FlushType = 1 << 1 // kept without power
)

// FlushLevel says what of the memory a FLUSH is about; values as enum ib_selectivity_level.
type FlushLevel uint8

// The flush levels.
const (
	FlushRange FlushLevel = 0 // the range that the request names
	FlushMR    FlushLevel = 1 // the whole region of the key
)

// BindWR binds a memory window, or with Length 0 unbinds one of type 1.
type BindWR struct {
	Window uint32 // R_Key that the window has
	NewKey uint32 // R_Key that it gets; only the low 8 bits may differ
	MRKey  uint32 // L_Key of the region
	Addr   uint64 // first address of the window, in the region
	Length uint64 // bytes
	Access Access // remote rights, and ZeroBased; LocalWrite is allowed and says nothing
}

// RegWR gives an invalid region memory, and a key of which only the low 8 bits may differ.
type RegWR struct {
	LKey   uint32 // that the region has
	NewKey uint32 // that it gets
	Memory Memory // what stands behind it
	Addr   uint64 // first address, of Memory and of the region
	Length uint64 // bytes, 1 ... what the region was made for
	Access Access // rights; RemoteWrite and RemoteAtomic need LocalWrite, MWBind and ZeroBased are not possible
}

// Len returns the message length in bytes: of InlineData with Inline, else of all SGEs.
func (w *SendWR) Len() uint64 {
	if w.Flags&Inline != 0 {
		return uint64(len(w.InlineData))
	}
	return SGELen(w.SGE)
}

// CopyFrom makes w an independent copy of what o's Op has a use for, reusing the slices of w.
func (w *SendWR) CopyFrom(o *SendWR) {
	w.fields(o)
	w.SGE = append(w.SGE[:0], o.SGE...)
	w.InlineData = append(w.InlineData[:0], o.InlineData...)
}

// Share is CopyFrom that shares the slices of o, which must stay as they are as long as w is used.
func (w *SendWR) Share(o *SendWR) {
	w.fields(o)
	w.SGE, w.InlineData = o.SGE, o.InlineData
}

// fields copies all but the slices. A request is four cache lines, of which a SEND or a WRITE has half.
func (w *SendWR) fields(o *SendWR) {
	if w.Op == OpRegMR {
		w.Reg = RegWR{} // keeps memory alive
	}
	w.ID, w.Op, w.Flags, w.Imm = o.ID, o.Op, o.Flags, o.Imm
	w.RemoteAddr, w.RKey = o.RemoteAddr, o.RKey
	w.SRQN, w.AH, w.RemoteQPN, w.RemoteQKey = o.SRQN, o.AH, o.RemoteQPN, o.RemoteQKey
	switch o.Op {
	case OpCompareSwap, OpFetchAdd, OpMaskedCompareSwap, OpMaskedFetchAdd:
		w.CompareAdd, w.Swap, w.CompareAddMask, w.SwapMask = o.CompareAdd, o.Swap, o.CompareAddMask, o.SwapMask
	case OpFlush:
		w.FlushType, w.FlushLevel, w.FlushLen = o.FlushType, o.FlushLevel, o.FlushLen
	case OpBindMW:
		w.Bind = o.Bind
	case OpRegMR:
		w.Reg = o.Reg
	}
}

// RecvWR is a receive work request.
type RecvWR struct {
	ID  uint64 // handed back in the completion
	SGE []SGE  // where the message goes; none: it has to be empty
}

// CopyFrom makes w an independent copy of o, reusing the slice of w.
func (w *RecvWR) CopyFrom(o *RecvWR) { w.ID, w.SGE = o.ID, append(w.SGE[:0], o.SGE...) }

// SGELen sums the lengths of a list, in 64 bits: three entries of 1.5 GB do
// not wrap.
func SGELen(l []SGE) uint64 {
	var n uint64
	for i := range l {
		n += uint64(l[i].Length)
	}
	return n
}

// MaxMessage is the longest message in bytes: 2^31, as rdma_rxe has it (max_msg_sz, roce.md C.3).
const MaxMessage = 1 << 31
