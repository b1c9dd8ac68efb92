package device

import (
	"fmt"
	"strings"
)

// Limits of the device; values as rdma_rxe reports them (roce.md C.3), so
// that programs that probe find what they know. The call that would exceed one fails with EINVAL, as on rxe, and changes
// nothing. Numbers of objects are those of all contexts together.
const (
	MaxQP       = 1048560
	MaxQPWR     = 1048576
	MaxSGE      = 32
	MaxCQ       = 1048576
	MaxCQE      = 32767
	MaxMR       = 524287
	MaxMW       = 524287
	MaxPD       = 1048576
	MaxXRCD     = 1048576
	MaxAH       = 32767
	MaxSRQ      = 917503
	MaxSRQWR    = 1048576
	MaxSRQSGE   = 27
	MaxRdAtomic = 128
	MaxInline   = 512
	GIDTableLen = 16
)

// Attr describes a device (ibv_query_device).
type Attr struct {
	Name         string `json:"name"`
	NodeGUID     uint64 `json:"node_guid"`
	FWVersion    string `json:"fw_ver"`
	VendorID     uint32 `json:"vendor_id"`
	Ports        int    `json:"phys_port_cnt"`
	MaxQP        int    `json:"max_qp"`
	MaxQPWR      int    `json:"max_qp_wr"`
	MaxSGE       int    `json:"max_sge"`
	MaxInline    int    `json:"max_inline_data"` // bytes; ibv_query_device has not this one
	MaxCQ        int    `json:"max_cq"`
	MaxCQE       int    `json:"max_cqe"`
	MaxMR        int    `json:"max_mr"`
	MaxMW        int    `json:"max_mw"`
	MaxPD        int    `json:"max_pd"`
	MaxXRCD      int    `json:"max_xrcd"` // nor this one
	MaxAH        int    `json:"max_ah"`
	MaxPKeys     int    `json:"max_pkeys"` // of a table; PortAttr.PKeys says how many there are
	MaxRawEthyQP int    `json:"max_raw_ethy_qp"`

	MaxMcastGrp   int `json:"max_mcast_grp"`
	MaxMcastQP    int `json:"max_mcast_qp_attach"`       // of a group
	MaxMcastTotal int `json:"max_total_mcast_qp_attach"` // of all groups

	MaxSRQ     int    `json:"max_srq"`
	MaxSRQWR   int    `json:"max_srq_wr"`
	MaxSRQSGE  int    `json:"max_srq_sge"`
	MaxRdAtom  int    `json:"max_qp_rd_atom"`
	MaxInitRd  int    `json:"max_qp_init_rd_atom"`
	MaxMRSize  uint64 `json:"max_mr_size"`
	AckDelay   int    `json:"local_ca_ack_delay"`
	MaxMessage uint32 `json:"max_msg_sz"`

	Caps Caps `json:"device_cap_flags"`
	// AtomicCap is for compare-and-swap and fetch-and-add. MaskedAtomicCap is for their masked forms, on RC, which
	// Options.PlainAtomics switches off: a device that says AtomicNone refuses them where they are posted. The kernel
	// has it beside the other (include/rdma/ib_verbs.h: struct ib_device_attr, masked_atomic_cap); struct ibv_device_attr
	// of rdma-core has not, nor is there a flag for it among Caps.
	AtomicCap       AtomicCap `json:"atomic_cap"`
	MaskedAtomicCap AtomicCap `json:"masked_atomic_cap"`
}

// Caps is a set of things that a device can do; values as enum ibv_device_cap_flags (rdma-core, libibverbs/verbs.h),
// those above 32 bits as enum ib_uverbs_device_cap_flags (rdma/ib_user_verbs.h), which is device_cap_flags_ex.
type Caps uint64

// Capabilities.
const (
	CapBadPKeyCntr     Caps = 1 << 1  // packets with a wrong P_Key are counted
	CapBadQKeyCntr     Caps = 1 << 2  // datagrams with a wrong Q_Key are counted
	CapAutoPathMig     Caps = 1 << 4  // alternate paths
	CapChangePhyPort   Caps = 1 << 5  // a queue pair may change its port in SQD
	CapUDAVPortEnforce Caps = 1 << 6  // the port of an address handle is checked
	CapCurrQPStateMod  Caps = 1 << 7  // AttrCurState is looked at
	CapPortActiveEvent Caps = 1 << 10 // EventPortActive tells that the port has become active
	CapSysImageGUID    Caps = 1 << 11
	CapRCRNRNAKGen     Caps = 1 << 12 // a message without a receive is answered with an RNR NAK
	CapSRQResize       Caps = 1 << 13 // shared receive queues change their length
	CapMemWindow       Caps = 1 << 17 // windows of type 1
	CapXRC             Caps = 1 << 20
	CapMemMgtExt       Caps = 1 << 21 // fast registration, local invalidate, SEND with invalidate
	CapMemWindow2A     Caps = 1 << 23
	CapMemWindow2B     Caps = 1 << 24
	CapFlushGlobal     Caps = 1 << 38
	CapFlushPersistent Caps = 1 << 39 // of memory that can be made persistent, see MapFile
	CapAtomicWrite     Caps = 1 << 40
)

// capNames are as ibv_devinfo and iproute2 print them, and in the manner of these where they print a number.
var capNames = map[Caps]string{
	CapBadPKeyCntr: "BAD_PKEY_CNTR", CapBadQKeyCntr: "BAD_QKEY_CNTR", CapAutoPathMig: "AUTO_PATH_MIG", CapChangePhyPort: "CHANGE_PHY_PORT",
	CapUDAVPortEnforce: "UD_AV_PORT_ENFORCE", CapCurrQPStateMod: "CURR_QP_STATE_MOD", CapPortActiveEvent: "PORT_ACTIVE_EVENT",
	CapSysImageGUID: "SYS_IMAGE_GUID", CapRCRNRNAKGen: "RC_RNR_NAK_GEN", CapSRQResize: "SRQ_RESIZE", CapMemWindow: "MEM_WINDOW", CapXRC: "XRC",
	CapMemMgtExt: "MEM_MGT_EXTENSIONS", CapMemWindow2A: "MEM_WINDOW_TYPE_2A", CapMemWindow2B: "MEM_WINDOW_TYPE_2B",
	CapFlushGlobal: "FLUSH_GLOBAL", CapFlushPersistent: "FLUSH_PERSISTENT", CapAtomicWrite: "ATOMIC_WRITE",
}

// Has reports whether all of these are there.
func (c Caps) Has(all Caps) bool { return c&all == all }

// Names returns the names of the capabilities, in the order of their bits.
func (c Caps) Names() []string {
	l := []string{}
	for bit := Caps(1); bit != 0; bit <<= 1 {
		if c&bit == 0 {
			continue
		}
		name := capNames[bit]
		if name == "" {
			name = fmt.Sprintf("0x%X", uint64(bit))
		}
		l = append(l, name)
	}
	return l
}

// String returns the names, with commas between them.
func (c Caps) String() string { return strings.Join(c.Names(), ", ") }

// caps are what every device here can do.
const caps = CapBadPKeyCntr | CapBadQKeyCntr | CapUDAVPortEnforce | CapCurrQPStateMod | CapPortActiveEvent | CapSysImageGUID | CapRCRNRNAKGen | CapSRQResize | CapMemWindow |
	CapXRC | CapMemMgtExt | CapMemWindow2A | CapMemWindow2B | CapFlushGlobal | CapFlushPersistent | CapAtomicWrite

// AtomicCap says between whom atomics are atomic; values as enum ibv_atomic_cap.
type AtomicCap int

// The capabilities of atomics.
const (
	AtomicNone AtomicCap = 0 // there are none
	AtomicHCA  AtomicCap = 1 // among the requests that this device executes
	AtomicGlob AtomicCap = 2 // and all else that touches the memory
)

// String returns the name as ibv_devinfo prints it.
func (c AtomicCap) String() string {
	switch c {
	case AtomicNone:
		return "ATOMIC_NONE"
	case AtomicHCA:
		return "ATOMIC_HCA"
	case AtomicGlob:
		return "ATOMIC_GLOB"
	}
	return fmt.Sprintf("ATOMIC_%d", int(c))
}

// maskedAtomicCap is what the options leave.
func (o *Options) maskedAtomicCap() AtomicCap {
	if o.PlainAtomics {
		return AtomicNone
	}
	return AtomicHCA
}

// PortState is the state of a port; values as enum ibv_port_state.
type PortState int

// Port states.
const (
	PortDown   PortState = 1
	PortActive PortState = 4
)

// String returns the name as ibv_devinfo prints it.
func (s PortState) String() string {
	if s == PortActive {
		return "PORT_ACTIVE"
	}
	return "PORT_DOWN"
}

// PortAttr describes a port (ibv_query_port).
type PortAttr struct {
	State     PortState `json:"state"`
	MaxMTU    int       `json:"max_mtu"`    // bytes, always 4096
	ActiveMTU int       `json:"active_mtu"` // bytes; follows the MTU of the link
	LinkMTU   int       `json:"link_mtu"`   // bytes, IP packet
	GIDs      int       `json:"gid_tbl_len"`
	PKeys     int       `json:"pkey_tbl_len"`
	BadPKeys  int       `json:"bad_pkey_cntr"`  // packets dropped over their P_Key; stops at 65535, as rxe's does
	BadQKeys  int       `json:"qkey_viol_cntr"` // and over their Q_Key
	Netdev    string    `json:"netdev,omitempty"`
	Link      string    `json:"link"`
	IDRule    string    `json:"ip_id"`
}

// headerRoom is what rxe leaves for headers below an IB MTU (roce.md A.10).
const headerRoom = 80

// ActiveMTU returns the largest IB MTU that fits a link MTU with headers; 0 if
// not even 256 does.
func ActiveMTU(link int) int {
	for _, m := range []int{4096, 2048, 1024, 512, 256} {
		if m <= link-headerRoom {
			return m
		}
	}
	return 0
}

func validMTU(m int) bool { return m >= 256 && m <= 4096 && m&(m-1) == 0 }
