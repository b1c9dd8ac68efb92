package device

import (
	"github.com/softnic/softnic/transport"
)

// The types that engines and programs share; package transport has their fields and methods (go doc ./transport SendWR), and more of
// their kind: FlushType and FlushLevel, BindWR, RegWR.
type (
	SendWR    = transport.SendWR    // a send work request (ibv_send_wr); the zero value is a WRITE of nothing
	RecvWR    = transport.RecvWR    // a receive work request (ibv_recv_wr); the zero value takes a message of no bytes
	SGE       = transport.SGE       // an entry of a gather or scatter list (ibv_sge), see MR.SGE
	WC        = transport.WC        // a work completion (ibv_wc)
	Status    = transport.Status    // how a request ended; 0 is StatusSuccess. WC.Err makes an error of the others
	WROp      = transport.WROp      // what a send request asks for; 0 is OpWrite
	WCOp      = transport.WCOp      // what has completed
	WCFlags   = transport.WCFlags   // which fields of a WC mean something
	SendFlags = transport.SendFlags // see Fence, Signaled, Solicited, Inline
	Access    = transport.Access    // rights to memory; 0 is local read alone
	State     = transport.State     // of a queue pair; 0 is StateReset
	Memory    = transport.Memory    // what stands behind a region: see NewMemory, MapFile, PD.RegMemory
)

// Send operations; values as enum ibv_wr_opcode, those of OpReadInv, the masked atomics and OpRegMR as the kernel's enum
// ib_wr_opcode (include/rdma/ib_verbs.h). What a service does not have, posting refuses with EINVAL: RC has all, XRC all but
// the masked atomics, UC SEND and WRITE with their immediates and what is local, datagrams SEND with and without immediate, raw
// packets SEND.
const (
	OpWrite             = transport.OpWrite             // WRITE to RemoteAddr under RKey
	OpWriteImm          = transport.OpWriteImm          // the same, and the peer's next receive completes with Imm
	OpSend              = transport.OpSend              // SEND into the peer's next receive
	OpSendImm           = transport.OpSendImm           // the same, with Imm in its completion
	OpRead              = transport.OpRead              // READ from RemoteAddr under RKey into SGE
	OpCompareSwap       = transport.OpCompareSwap       // if 8 bytes equal CompareAdd they become Swap; SGE gets what they were
	OpFetchAdd          = transport.OpFetchAdd          // CompareAdd is added to 8 bytes; SGE gets what they were
	OpMaskedCompareSwap = transport.OpMaskedCompareSwap // on the bits of CompareAddMask and SwapMask, see transport.Atomic
	OpMaskedFetchAdd    = transport.OpMaskedFetchAdd    // in fields that end with the bits of CompareAddMask, likewise
	OpAtomicWrite       = transport.OpAtomicWrite       // 8 bytes are stored at once, at an address that 8 divides
	OpFlush             = transport.OpFlush             // what was written to FlushLen bytes at RemoteAddr becomes visible or persistent
	OpSendInv           = transport.OpSendInv           // SEND that makes the peer's key Imm invalid
	OpReadInv           = transport.OpReadInv           // READ that makes the L_Key of the first SGE invalid when it is complete
	OpLocalInv          = transport.OpLocalInv          // makes the own key Imm invalid, after all requests before it
	OpBindMW            = transport.OpBindMW            // binds a memory window, see SendWR.Bind
	OpRegMR             = transport.OpRegMR             // gives a FastMR memory, see SendWR.Reg
)

// Send flags; values as enum ibv_send_flags.
const (
	Fence     = transport.Fence     // RC, XRC: begin only when the READs, atomics and FLUSHes before it are complete
	Signaled  = transport.Signaled  // make a completion on success too; errors always make one
	Solicited = transport.Solicited // the peer's completion is one that CQ.Arm(true) waits for
	Inline    = transport.Inline    // the data is InlineData, copied when posted, and not in SGE
)

// Access rights; values as enum ibv_access_flags. Local read is always given.
const (
	LocalWrite      = transport.LocalWrite            // receives, READs and results of atomics may be stored here
	RemoteWrite     = transport.RemoteWrite           // peers may WRITE and ATOMIC WRITE; needs LocalWrite
	RemoteRead      = transport.RemoteRead            // peers may READ
	RemoteAtomic    = transport.RemoteAtomic          // peers may use atomics; needs LocalWrite
	MWBind          = transport.MWBind                // windows may be bound to the region
	ZeroBased       = transport.ZeroBased             // addresses in it count from 0
	FlushGlobal     = transport.FlushGlobalAccess     // peers may FLUSH with transport.FlushGlobal
	FlushPersistent = transport.FlushPersistentAccess // and with transport.FlushPersistent; for memory that persists, see MapFile
)

// Queue pair states; values as enum ibv_qp_state. QP.Modify says how to go from one to another.
const (
	StateReset = transport.Reset // nothing can be posted, and what arrives is dropped
	StateInit  = transport.Init  // receives can be posted; what arrives is dropped
	StateRTR   = transport.RTR   // receives messages
	StateRTS   = transport.RTS   // sends too
	StateSQD   = transport.SQD   // sends that have begun end, others wait; receives go on
	StateSQE   = transport.SQE   // UC, datagrams, raw packets: after a failed send; sends are flushed, receives go on
	StateErr   = transport.Err   // all requests are flushed, those posted now too
)

// Completion statuses; values as enum ibv_wc_status. After any but StatusSuccess a reliable connection is in StateErr.
const (
	StatusSuccess          = transport.StatusSuccess
	StatusLocalLength      = transport.StatusLocalLength      // longer than the receive, or than the link takes
	StatusLocalQPOp        = transport.StatusLocalQPOp        // a request that the queue pair cannot execute
	StatusLocalProtection  = transport.StatusLocalProtection  // an L_Key that does not give these bytes, or memory that is gone
	StatusFlush            = transport.StatusFlush            // not executed, or not known to be: the queue pair is in ERR, or SQE
	StatusMWBind           = transport.StatusMWBind           // OpBindMW, OpRegMR or OpLocalInv was not possible
	StatusBadResponse      = transport.StatusBadResponse      // the peer's answer was not one to this request
	StatusRemoteInvalidReq = transport.StatusRemoteInvalidReq // NAK 0x61: the peer cannot execute that, or its receive is too short; of a receive: the key of a SEND with invalidate was bad
	StatusRemoteAccess     = transport.StatusRemoteAccess     // NAK 0x62: the R_Key does not give that access
	StatusRemoteOp         = transport.StatusRemoteOp         // NAK 0x63: the peer failed on its own side
	StatusRetryExceeded    = transport.StatusRetryExceeded    // no answer, retry_cnt times: mostly a peer that is not there
	StatusRNRRetryExceeded = transport.StatusRNRRetryExceeded // rnr_retry times the peer had no receive
	StatusFatal            = transport.StatusFatal            // for completeness: softnic has no such status
)

// Completed operations, values as enum ibv_wc_opcode, then completion flags, values as enum ibv_wc_flags. The masked atomics and
// OpRegMR, of which that has none, are as in the kernel's enum ib_wc_opcode.
const (
	WCSend              = transport.WCSend    // any SEND
	WCWrite             = transport.WCWrite   // WRITE, with immediate too
	WCRead              = transport.WCRead    // READ, with invalidate too
	WCRecv              = transport.WCRecv    // a receive that a SEND has filled
	WCRecvImm           = transport.WCRecvImm // a receive that a WRITE with immediate has used up: its memory is untouched
	WCCompareSwap       = transport.WCCompareSwap
	WCFetchAdd          = transport.WCFetchAdd
	WCBindMW            = transport.WCBindMW
	WCLocalInv          = transport.WCLocalInv
	WCFlush             = transport.WCFlush
	WCAtomicWrite       = transport.WCAtomicWrite
	WCRegMR             = transport.WCRegMR
	WCMaskedCompareSwap = transport.WCMaskedCompareSwap
	WCMaskedFetchAdd    = transport.WCMaskedFetchAdd

	WCGRH     = transport.WCGRH     // the first GRHLen bytes of the receive are the network header
	WCWithInv = transport.WCWithInv // Imm is the key that was made invalid
	WCWithImm = transport.WCWithImm // Imm is immediate data
)

// GRHLen is the length, in bytes, of the area before the payload of a received datagram: a receive of UD and QP1 must have
// room for it, and WC.ByteLen counts it. Over IPv4 it is 20 zero bytes and the IPv4 header, over IPv6 the IPv6 header, as rdma_rxe
// was seen to have it (Linux 6.12); in what QP0 receives it is zero.
const GRHLen = 40

// MaxMessage is the longest message in bytes, 2^31 (ibv_query_port: max_msg_sz). A datagram is at most PortAttr.ActiveMTU long,
// a raw frame what the link takes.
const MaxMessage = transport.MaxMessage
