package device

import (
	"github.com/softnic/softnic/transport"
)

// The types that engines and programs share; see package transport.
type (
	SendWR    = transport.SendWR
	RecvWR    = transport.RecvWR
	SGE       = transport.SGE
	WC        = transport.WC
	Status    = transport.Status
	WROp      = transport.WROp
	WCOp      = transport.WCOp
	WCFlags   = transport.WCFlags
	SendFlags = transport.SendFlags
	Access    = transport.Access
	State     = transport.State
	Memory    = transport.Memory
)

// Send operations (enum ibv_wr_opcode).
const (
	OpWrite             = transport.OpWrite
	OpWriteImm          = transport.OpWriteImm
	OpSend              = transport.OpSend
	OpSendImm           = transport.OpSendImm
	OpRead              = transport.OpRead
	OpCompareSwap       = transport.OpCompareSwap
	OpFetchAdd          = transport.OpFetchAdd
	OpMaskedCompareSwap = transport.OpMaskedCompareSwap
	OpMaskedFetchAdd    = transport.OpMaskedFetchAdd
	OpAtomicWrite       = transport.OpAtomicWrite
	OpFlush             = transport.OpFlush
	OpSendInv           = transport.OpSendInv
	OpReadInv           = transport.OpReadInv
	OpLocalInv          = transport.OpLocalInv
	OpBindMW            = transport.OpBindMW
	OpRegMR             = transport.OpRegMR
)

// Send flags (enum ibv_send_flags).
const (
	Fence     = transport.Fence
	Signaled  = transport.Signaled
	Solicited = transport.Solicited
	Inline    = transport.Inline
)

// Access rights (enum ibv_access_flags).
const (
	LocalWrite      = transport.LocalWrite
	RemoteWrite     = transport.RemoteWrite
	RemoteRead      = transport.RemoteRead
	RemoteAtomic    = transport.RemoteAtomic
	MWBind          = transport.MWBind
	ZeroBased       = transport.ZeroBased
	FlushGlobal     = transport.FlushGlobalAccess
	FlushPersistent = transport.FlushPersistentAccess
)

// Queue pair states (enum ibv_qp_state).
const (
	StateReset = transport.Reset
	StateInit  = transport.Init
	StateRTR   = transport.RTR
	StateRTS   = transport.RTS
	StateSQD   = transport.SQD
	StateSQE   = transport.SQE
	StateErr   = transport.Err
)

// Completion statuses (enum ibv_wc_status).
const (
	StatusSuccess          = transport.StatusSuccess
	StatusLocalLength      = transport.StatusLocalLength
	StatusLocalQPOp        = transport.StatusLocalQPOp
	StatusLocalProtection  = transport.StatusLocalProtection
	StatusFlush            = transport.StatusFlush
	StatusMWBind           = transport.StatusMWBind
	StatusBadResponse      = transport.StatusBadResponse
	StatusRemoteInvalidReq = transport.StatusRemoteInvalidReq
	StatusRemoteAccess     = transport.StatusRemoteAccess
	StatusRemoteOp         = transport.StatusRemoteOp
	StatusRetryExceeded    = transport.StatusRetryExceeded
	StatusRNRRetryExceeded = transport.StatusRNRRetryExceeded
	StatusFatal            = transport.StatusFatal
)

// Completed operations (enum ibv_wc_opcode) and completion flags (enum ibv_wc_flags).
const (
	WCSend              = transport.WCSend
	WCWrite             = transport.WCWrite
	WCRead              = transport.WCRead
	WCRecv              = transport.WCRecv
	WCRecvImm           = transport.WCRecvImm
	WCCompareSwap       = transport.WCCompareSwap
	WCFetchAdd          = transport.WCFetchAdd
	WCBindMW            = transport.WCBindMW
	WCLocalInv          = transport.WCLocalInv
	WCFlush             = transport.WCFlush
	WCAtomicWrite       = transport.WCAtomicWrite
	WCRegMR             = transport.WCRegMR
	WCMaskedCompareSwap = transport.WCMaskedCompareSwap
	WCMaskedFetchAdd    = transport.WCMaskedFetchAdd
	WCGRH               = transport.WCGRH
	WCWithInv           = transport.WCWithInv
	WCWithImm           = transport.WCWithImm
)

// GRHLen is the length of the area before the payload of a received datagram.
const GRHLen = 40

// MaxMessage is the longest message in bytes.
const MaxMessage = transport.MaxMessage
