package peer

// Short constructors, for RC unless the name says otherwise. As the last packet of
// a request, ONLY and LAST packets ask for an acknowledgement; FIRST and MIDDLE do
// not. AsUC and AsXRC change the service; fields are set on the result.

// last is NewFrame with AckReq.
func last(op Op, qp, psn uint32) *Frame {
	f := NewFrame(op, qp, psn)
	f.AckReq = true
	return f
}

// With applies a change and returns f, to change a frame inside an expression.
func (f *Frame) With(change func(f *Frame)) *Frame {
	change(f)
	return f
}

// AsUC makes a UC frame of an RC one: the service in the opcode, and no AckReq.
func (f *Frame) AsUC() *Frame {
	f.Op = UC | f.Op.Operation()
	f.AckReq = false
	return f
}

// AsXRC makes an XRC frame of an RC one. Responses have no XRCETH: srqn is then
// ignored.
func (f *Frame) AsXRC(srqn uint32) *Frame {
	f.Op = XRC | f.Op.Operation()
	f.XRCETH.SRQN = srqn
	return f
}

func (f *Frame) carry(payload []byte) *Frame {
	f.Payload = payload
	return f
}

// SendFirst is an RC SEND First.
func SendFirst(qp, psn uint32, payload []byte) *Frame {
	return NewFrame(OpSendFirst, qp, psn).carry(payload)
}

// SendMiddle is an RC SEND Middle.
func SendMiddle(qp, psn uint32, payload []byte) *Frame {
	return NewFrame(OpSendMiddle, qp, psn).carry(payload)
}

// SendLast is an RC SEND Last.
func SendLast(qp, psn uint32, payload []byte) *Frame {
	return last(OpSendLast, qp, psn).carry(payload)
}

// SendLastImm is an RC SEND Last with Immediate.
func SendLastImm(qp, psn, imm uint32, payload []byte) *Frame {
	f := last(OpSendLastImm, qp, psn).carry(payload)
	f.Imm = imm
	return f
}

// SendLastInv is an RC SEND Last with Invalidate.
func SendLastInv(qp, psn, rkey uint32, payload []byte) *Frame {
	f := last(OpSendLastInv, qp, psn).carry(payload)
	f.InvKey = rkey
	return f
}

// SendOnly is an RC SEND Only.
func SendOnly(qp, psn uint32, payload []byte) *Frame {
	return last(OpSendOnly, qp, psn).carry(payload)
}

// SendOnlyImm is an RC SEND Only with Immediate.
func SendOnlyImm(qp, psn, imm uint32, payload []byte) *Frame {
	f := last(OpSendOnlyImm, qp, psn).carry(payload)
	f.Imm = imm
	return f
}

// SendOnlyInv is an RC SEND Only with Invalidate.
func SendOnlyInv(qp, psn, rkey uint32, payload []byte) *Frame {
	f := last(OpSendOnlyInv, qp, psn).carry(payload)
	f.InvKey = rkey
	return f
}

// WriteFirst is an RC RDMA WRITE First; dmaLen is the length of the whole message.
func WriteFirst(qp, psn uint32, va uint64, rkey, dmaLen uint32, payload []byte) *Frame {
	f := NewFrame(OpWriteFirst, qp, psn).carry(payload)
	f.RETH = RETH{VA: va, RKey: rkey, Len: dmaLen}
	return f
}

// WriteMiddle is an RC RDMA WRITE Middle.
func WriteMiddle(qp, psn uint32, payload []byte) *Frame {
	return NewFrame(OpWriteMiddle, qp, psn).carry(payload)
}

// WriteLast is an RC RDMA WRITE Last.
func WriteLast(qp, psn uint32, payload []byte) *Frame {
	return last(OpWriteLast, qp, psn).carry(payload)
}

// WriteLastImm is an RC RDMA WRITE Last with Immediate.
func WriteLastImm(qp, psn, imm uint32, payload []byte) *Frame {
	f := last(OpWriteLastImm, qp, psn).carry(payload)
	f.Imm = imm
	return f
}

// WriteOnly is an RC RDMA WRITE Only; the DMA length is that of the payload.
func WriteOnly(qp, psn uint32, va uint64, rkey uint32, payload []byte) *Frame {
	f := last(OpWriteOnly, qp, psn).carry(payload)
	f.RETH = RETH{VA: va, RKey: rkey, Len: uint32(len(payload))}
	return f
}

// WriteOnlyImm is an RC RDMA WRITE Only with Immediate.
func WriteOnlyImm(qp, psn uint32, va uint64, rkey, imm uint32, payload []byte) *Frame {
	f := WriteOnly(qp, psn, va, rkey, payload)
	f.Op, f.Imm = OpWriteOnlyImm, imm
	return f
}

// ReadRequest is an RC RDMA READ Request.
func ReadRequest(qp, psn uint32, va uint64, rkey, length uint32) *Frame {
	f := last(OpReadRequest, qp, psn)
	f.RETH = RETH{VA: va, RKey: rkey, Len: length}
	return f
}

// readResp is a READ response whose AETH, if it has one, is a plain ACK.
func readResp(op Op, qp, psn, msn uint32, payload []byte) *Frame {
	f := NewFrame(op, qp, psn).carry(payload)
	f.AETH = AETH{Syndrome: SynAck, MSN: msn}
	return f
}

// ReadRespFirst is an RC READ Response First.
func ReadRespFirst(qp, psn, msn uint32, payload []byte) *Frame {
	return readResp(OpReadRespFirst, qp, psn, msn, payload)
}

// ReadRespMiddle is an RC READ Response Middle, which has no AETH.
func ReadRespMiddle(qp, psn uint32, payload []byte) *Frame {
	return NewFrame(OpReadRespMiddle, qp, psn).carry(payload)
}

// ReadRespLast is an RC READ Response Last.
func ReadRespLast(qp, psn, msn uint32, payload []byte) *Frame {
	return readResp(OpReadRespLast, qp, psn, msn, payload)
}

// ReadRespOnly is an RC READ Response Only; without payload it also answers a
// FLUSH or an ATOMIC WRITE.
func ReadRespOnly(qp, psn, msn uint32, payload []byte) *Frame {
	return readResp(OpReadRespOnly, qp, psn, msn, payload)
}

// Ack is an RC Acknowledge without a credit limit.
func Ack(qp, psn, msn uint32) *Frame { return Nak(qp, psn, SynAck, msn) }

// Nak is an RC Acknowledge with this syndrome.
func Nak(qp, psn uint32, syndrome Syndrome, msn uint32) *Frame {
	f := NewFrame(OpAck, qp, psn)
	f.AETH = AETH{Syndrome: syndrome, MSN: msn}
	return f
}

// RNRNak is an RC RNR NAK with this timer code.
func RNRNak(qp, psn uint32, code uint8, msn uint32) *Frame {
	return Nak(qp, psn, RNR(code), msn)
}

// AtomicAck is an RC ATOMIC Acknowledge with the value before the operation.
func AtomicAck(qp, psn, msn uint32, orig uint64) *Frame {
	f := Ack(qp, psn, msn)
	f.Op, f.Orig = OpAtomicAck, orig
	return f
}

// CmpSwap is an RC compare-and-swap.
func CmpSwap(qp, psn uint32, va uint64, rkey uint32, compare, swap uint64) *Frame {
	f := last(OpCmpSwap, qp, psn)
	f.Atomic = AtomicETH{VA: va, RKey: rkey, SwapAdd: swap, Compare: compare}
	return f
}

// FetchAdd is an RC fetch-and-add.
func FetchAdd(qp, psn uint32, va uint64, rkey uint32, add uint64) *Frame {
	f := last(OpFetchAdd, qp, psn)
	f.Atomic = AtomicETH{VA: va, RKey: rkey, SwapAdd: add}
	return f
}

// MaskedCmpSwap is a masked compare-and-swap (opcode 0xD3).
func MaskedCmpSwap(qp, psn uint32, m MaskedETH) *Frame {
	f := last(OpMaskedCmpSwap, qp, psn)
	f.Masked = m
	return f
}

// MaskedFetchAdd is a masked fetch-and-add (opcode 0xD4); boundary is the mask of
// field boundaries.
func MaskedFetchAdd(qp, psn uint32, va uint64, rkey uint32, add, boundary uint64) *Frame {
	f := last(OpMaskedFetchAdd, qp, psn)
	f.Atomic = AtomicETH{VA: va, RKey: rkey, SwapAdd: add, Compare: boundary}
	return f
}

// Flush is an RC FLUSH of a range, to the placement level plt.
func Flush(qp, psn uint32, va uint64, rkey, length uint32, plt uint8) *Frame {
	f := last(OpFlush, qp, psn)
	f.FETH.PLT = plt
	f.RETH = RETH{VA: va, RKey: rkey, Len: length}
	return f
}

// AtomicWrite is an RC ATOMIC WRITE; the DMA length is that of the payload.
func AtomicWrite(qp, psn uint32, va uint64, rkey uint32, payload []byte) *Frame {
	f := WriteOnly(qp, psn, va, rkey, payload)
	f.Op = OpAtomicWrite
	return f
}

// UDSend is a UD SEND Only.
func UDSend(qp, psn, qkey, srcQP uint32, payload []byte) *Frame {
	f := NewFrame(OpUDSendOnly, qp, psn).carry(payload)
	f.DETH = DETH{QKey: qkey, SrcQP: srcQP}
	return f
}

// UDSendImm is a UD SEND Only with Immediate.
func UDSendImm(qp, psn, qkey, srcQP, imm uint32, payload []byte) *Frame {
	f := UDSend(qp, psn, qkey, srcQP, payload)
	f.Op, f.Imm = OpUDSendOnlyImm, imm
	return f
}

// CNP is a congestion notification for the peer's queue pair: BECN set, MigReq 0,
// DSCP 48, as an adapter sends it.
func CNP(qp uint32) *Frame {
	f := NewFrame(OpCNP, qp, 0)
	f.BECN, f.Migrated, f.TOS = true, false, 48<<2
	return f
}
