package transport

import "fmt"

// Status is the status of a completion; values as enum ibv_wc_status. Package device says of those that come what each means.
type Status uint8

// The completion statuses.
const (
	StatusSuccess           Status = 0
	StatusLocalLength       Status = 1
	StatusLocalQPOp         Status = 2
	StatusLocalEECOp        Status = 3
	StatusLocalProtection   Status = 4
	StatusFlush             Status = 5
	StatusMWBind            Status = 6
	StatusBadResponse       Status = 7
	StatusLocalAccess       Status = 8
	StatusRemoteInvalidReq  Status = 9
	StatusRemoteAccess      Status = 10
	StatusRemoteOp          Status = 11
	StatusRetryExceeded     Status = 12
	StatusRNRRetryExceeded  Status = 13
	StatusLocalRDDViolation Status = 14
	StatusRemoteInvalidRD   Status = 15
	StatusRemoteAborted     Status = 16
	StatusInvalidEECN       Status = 17
	StatusInvalidEECState   Status = 18
	StatusFatal             Status = 19
	StatusResponseTimeout   Status = 20
	StatusGeneral           Status = 21
	statuses                       = 22
)

var statusNames = [statuses]string{
	"IBV_WC_SUCCESS", "IBV_WC_LOC_LEN_ERR", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_EEC_OP_ERR", "IBV_WC_LOC_PROT_ERR",
	"IBV_WC_WR_FLUSH_ERR", "IBV_WC_MW_BIND_ERR", "IBV_WC_BAD_RESP_ERR", "IBV_WC_LOC_ACCESS_ERR", "IBV_WC_REM_INV_REQ_ERR",
	"IBV_WC_REM_ACCESS_ERR", "IBV_WC_REM_OP_ERR", "IBV_WC_RETRY_EXC_ERR", "IBV_WC_RNR_RETRY_EXC_ERR",
	"IBV_WC_LOC_RDD_VIOL_ERR", "IBV_WC_REM_INV_RD_REQ_ERR", "IBV_WC_REM_ABORT_ERR", "IBV_WC_INV_EECN_ERR",
	"IBV_WC_INV_EEC_STATE_ERR", "IBV_WC_FATAL_ERR", "IBV_WC_RESP_TIMEOUT_ERR", "IBV_WC_GENERAL_ERR",
}

// String returns the verbs name; "IBV_WC_" and the number for one that does not exist.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("IBV_WC_%d", uint8(s))
}

// Error makes a Status other than success usable as an error.
func (s Status) Error() string { return s.String() }

// WCOp is the operation that completed; values as enum ibv_wc_opcode.
type WCOp uint8

// The completed operations. From WCRecv on it is a receive.
const (
	WCSend              WCOp = 0
	WCWrite             WCOp = 1
	WCRead              WCOp = 2
	WCCompareSwap       WCOp = 3
	WCFetchAdd          WCOp = 4
	WCBindMW            WCOp = 5
	WCLocalInv          WCOp = 6
	WCFlush             WCOp = 8
	WCAtomicWrite       WCOp = 9
	WCRegMR             WCOp = 10 // these three as the kernel's enum ib_wc_opcode
	WCMaskedCompareSwap WCOp = 11
	WCMaskedFetchAdd    WCOp = 12
	WCRecv              WCOp = 128
	WCRecvImm           WCOp = 129 // IBV_WC_RECV_RDMA_WITH_IMM
)

var wcOpNames = map[WCOp]string{
	WCSend: "IBV_WC_SEND", WCWrite: "IBV_WC_RDMA_WRITE", WCRead: "IBV_WC_RDMA_READ", WCCompareSwap: "IBV_WC_COMP_SWAP",
	WCFetchAdd: "IBV_WC_FETCH_ADD", WCBindMW: "IBV_WC_BIND_MW", WCLocalInv: "IBV_WC_LOCAL_INV", WCFlush: "IBV_WC_FLUSH",
	WCRegMR: "IB_WC_REG_MR", WCMaskedCompareSwap: "IB_WC_MASKED_COMP_SWAP", WCMaskedFetchAdd: "IB_WC_MASKED_FETCH_ADD",
	WCAtomicWrite: "IBV_WC_ATOMIC_WRITE", WCRecv: "IBV_WC_RECV", WCRecvImm: "IBV_WC_RECV_RDMA_WITH_IMM",
}

// String returns the verbs name.
func (o WCOp) String() string {
	if n := wcOpNames[o]; n != "" {
		return n
	}
	return fmt.Sprintf("IBV_WC_OP_%d", uint8(o))
}

// Completed returns the completion opcode of a send operation; WCSend for one that does not exist.
func (o WROp) Completed() WCOp {
	switch o {
	case OpWrite, OpWriteImm:
		return WCWrite
	case OpRead, OpReadInv:
		return WCRead
	case OpMaskedCompareSwap:
		return WCMaskedCompareSwap
	case OpMaskedFetchAdd:
		return WCMaskedFetchAdd
	case OpRegMR:
		return WCRegMR
	case OpCompareSwap:
		return WCCompareSwap
	case OpFetchAdd:
		return WCFetchAdd
	case OpLocalInv:
		return WCLocalInv
	case OpBindMW:
		return WCBindMW
	case OpFlush:
		return WCFlush
	case OpAtomicWrite:
		return WCAtomicWrite
	}
	return WCSend
}

// WCFlags say which fields of a completion mean something; values as enum ibv_wc_flags.
type WCFlags uint8

// The completion flags.
const (
	WCGRH     WCFlags = 1 << 0 // the first 40 bytes of the buffer hold the GRH area
	WCWithImm WCFlags = 1 << 1 // Imm is immediate data
	WCWithInv WCFlags = 1 << 3 // Imm is the invalidated R_Key
)

// WC is a work completion. With a status other than success only ID, Status
// and QPN mean something.
type WC struct {
	ID        uint64  // of the work request
	Status    Status  // how the request ended
	Op        WCOp    // what has completed
	Flags     WCFlags // which of the other fields mean something
	ByteLen   uint32  // message length in bytes; a datagram's includes the 40 bytes of the GRH area
	Imm       uint32  // immediate data (four bytes in network order) or the invalidated R_Key
	QPN       uint32  // the local queue pair, 24 bits
	SrcQP     uint32  // of a receive: the remote queue pair, 24 bits
	PKeyIndex uint16  // of a receive of QP1: entry of the P_Key table; else 0
	SL        uint8   // of a datagram: what its network header is, as adapters of mlx5's kind tell it: 9 IPv6, 10 IPv4
}

// Err returns nil for a success and the status as an error otherwise.
func (w *WC) Err() error {
	if w.Status == StatusSuccess {
		return nil
	}
	return w.Status
}
