package device

import (
	"fmt"
	"strings"
)

// Limits of the device; values as rdma_rxe reports them (rxe_param.h), but for MaxXRCD and GIDTableLen, so
// that programs that probe find what they know. The call that would exceed one fails with EINVAL, as on rxe, and changes
// nothing. Numbers of objects are those of all contexts together.
const (
	MaxQP       = 1048560 // queue pairs
	MaxQPWR     = 1048576 // work requests of a send or receive queue
	MaxSGE      = 32      // entries of one work request
	MaxCQ       = 1048576 // completion queues, and as many channels
	MaxCQE      = 32767   // completions of a queue
	MaxMR       = 524287  // regions, FastMR too
	MaxMW       = 524287  // memory windows
	MaxPD       = 1048576 // protection domains
	MaxXRCD     = 1048576 // handles of XRC domains; rxe has none
	MaxAH       = 32767   // address handles
	MaxSRQ      = 917503  // shared receive queues
	MaxSRQWR    = 1048576 // receives of one
	MaxSRQSGE   = 27      // entries of a receive of one
	MaxRdAtomic = 128     // READs, atomics and FLUSHes in flight, for each side of a connection
	MaxInline   = 512     // bytes of inline data of a request
	GIDTableLen = 16      // entries of the GID table; rxe has 1024
)

// Attr describes a device (struct ibv_device_attr; JSON has its names). Name and NodeGUID are the device's own, MaxRawEthyQP
// depends on its link, MaskedAtomicCap on its options; the rest is the same for all, and what begins with Max is the constant
// of that name where there is one.
type Attr struct {
	Name         string `json:"name"`
	NodeGUID     uint64 `json:"node_guid"`       // EUI-64 of the MAC of the link; the sys_image_guid too
	FWVersion    string `json:"fw_ver"`          // empty
	VendorID     uint32 `json:"vendor_id"`       // 0xffffff, as rxe's
	Ports        int    `json:"phys_port_cnt"`   // 1
	MaxQP        int    `json:"max_qp"`          // queue pairs
	MaxQPWR      int    `json:"max_qp_wr"`       // of one queue
	MaxSGE       int    `json:"max_sge"`         // of one request; of READs too
	MaxInline    int    `json:"max_inline_data"` // bytes; ibv_query_device has not this one
	MaxCQ        int    `json:"max_cq"`          // completion queues
	MaxCQE       int    `json:"max_cqe"`         // completions of one
	MaxMR        int    `json:"max_mr"`          // regions, FastMR too
	MaxMW        int    `json:"max_mw"`          // memory windows
	MaxPD        int    `json:"max_pd"`          // protection domains
	MaxXRCD      int    `json:"max_xrcd"`        // nor this one
	MaxAH        int    `json:"max_ah"`          // address handles
	MaxPKeys     int    `json:"max_pkeys"`       // of a table; PortAttr.PKeys says how many there are
	MaxRawEthyQP int    `json:"max_raw_ethy_qp"` // MaxRawQP; 0 on a link without Ethernet

	MaxMcastGrp   int `json:"max_mcast_grp"`             // groups that the device listens to
	MaxMcastQP    int `json:"max_mcast_qp_attach"`       // of a group
	MaxMcastTotal int `json:"max_total_mcast_qp_attach"` // of all groups

	MaxSRQ     int    `json:"max_srq"`             // shared receive queues
	MaxSRQWR   int    `json:"max_srq_wr"`          // receives of one
	MaxSRQSGE  int    `json:"max_srq_sge"`         // entries of a receive of one
	MaxRdAtom  int    `json:"max_qp_rd_atom"`      // MaxRdAtomic, as responder
	MaxInitRd  int    `json:"max_qp_init_rd_atom"` // MaxRdAtomic, as initiator
	MaxMRSize  uint64 `json:"max_mr_size"`         // bytes: 2^64-1, no limit
	AckDelay   int    `json:"local_ca_ack_delay"`  // code, 4.096 µs · 2^15: 134 ms, as rxe says
	MaxMessage uint32 `json:"max_msg_sz"`          // bytes; a port attribute of verbs

	Caps Caps `json:"device_cap_flags"` // the same for every device here
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

// Capabilities. Those that no device here has are CapAutoPathMig and CapChangePhyPort.
const (
	CapBadPKeyCntr     Caps = 1 << 1  // packets with a wrong P_Key are counted
	CapBadQKeyCntr     Caps = 1 << 2  // datagrams with a wrong Q_Key are counted
	CapAutoPathMig     Caps = 1 << 4  // alternate paths
	CapChangePhyPort   Caps = 1 << 5  // a queue pair may change its port in SQD
	CapUDAVPortEnforce Caps = 1 << 6  // the port of an address handle is checked
	CapCurrQPStateMod  Caps = 1 << 7  // AttrCurState is looked at
	CapPortActiveEvent Caps = 1 << 10 // EventPortActive tells that the port has become active
	CapSysImageGUID    Caps = 1 << 11 // the device has a GUID of its own: Attr.NodeGUID
	CapRCRNRNAKGen     Caps = 1 << 12 // a message without a receive is answered with an RNR NAK
	CapSRQResize       Caps = 1 << 13 // shared receive queues change their length
	CapMemWindow       Caps = 1 << 17 // windows of type 1
	CapXRC             Caps = 1 << 20 // XRC domains, targets and initiators
	CapMemMgtExt       Caps = 1 << 21 // fast registration, local invalidate, SEND with invalidate
	CapMemWindow2A     Caps = 1 << 23 // windows of type MW2A
	CapMemWindow2B     Caps = 1 << 24 // windows of type MW2B
	CapFlushGlobal     Caps = 1 << 38 // FLUSH of type FlushGlobal
	CapFlushPersistent Caps = 1 << 39 // of memory that can be made persistent, see MapFile
	CapAtomicWrite     Caps = 1 << 40 // ATOMIC WRITE
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

// Names returns the names of the capabilities, as rdma and ibv_devinfo print them, in the order of their bits; the bit itself
// in hexadecimal for one that has none. It is empty, and not nil, for 0.
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

// The port states that there are here.
const (
	PortDown   PortState = 1 // the link has no carrier, or has failed
	PortActive PortState = 4 // packets pass
)

// String returns the name as ibv_devinfo prints it; PORT_DOWN for whatever is not PortActive.
func (s PortState) String() string {
	if s == PortActive {
		return "PORT_ACTIVE"
	}
	return "PORT_DOWN"
}

// PortAttr describes a port (struct ibv_port_attr, whose names JSON has where it has them).
type PortAttr struct {
	State     PortState `json:"state"`            // a number in JSON
	MaxMTU    int       `json:"max_mtu"`          // bytes, always 4096
	ActiveMTU int       `json:"active_mtu"`       // bytes, see func ActiveMTU; follows the MTU of the link, 0 where that has become too small
	LinkMTU   int       `json:"link_mtu"`         // bytes, IP packet
	GIDs      int       `json:"gid_tbl_len"`      // GIDTableLen, empty entries too
	PKeys     int       `json:"pkey_tbl_len"`     // entries of the P_Key table, 1 ... MaxPKeys
	BadPKeys  int       `json:"bad_pkey_cntr"`    // packets dropped over their P_Key; stops at 65535, as rxe's does
	BadQKeys  int       `json:"qkey_viol_cntr"`   // and over their Q_Key
	Netdev    string    `json:"netdev,omitempty"` // network interface of the link; empty if there is none
	Link      string    `json:"link"`             // the link, for people
	IDRule    string    `json:"ip_id"`            // see link.Info
}

// headerRoom is what rxe leaves for headers below an IB MTU (roce.md A.10).
const headerRoom = 80

// ActiveMTU returns the largest IB MTU, in bytes (256, 512, 1024, 2048, 4096), that fits a link MTU (the largest IP packet, in
// bytes) with 80 bytes for headers, as rxe reckons (rxe.c:rxe_set_mtu); 0 if not even 256 does.
func ActiveMTU(link int) int {
	for _, m := range []int{4096, 2048, 1024, 512, 256} {
		if m <= link-headerRoom {
			return m
		}
	}
	return 0
}

func validMTU(m int) bool { return m >= 256 && m <= 4096 && m&(m-1) == 0 }
