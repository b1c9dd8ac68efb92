package device

// Limits of the device; values as rdma_rxe reports them (roce.md C.3), so
// that programs that probe find what they know.
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
	MaxCQ        int    `json:"max_cq"`
	MaxCQE       int    `json:"max_cqe"`
	MaxMR        int    `json:"max_mr"`
	MaxMW        int    `json:"max_mw"`
	MaxPD        int    `json:"max_pd"`
	MaxAH        int    `json:"max_ah"`
	MaxRawEthyQP int    `json:"max_raw_ethy_qp"`
	MaxSRQ       int    `json:"max_srq"`
	MaxSRQWR     int    `json:"max_srq_wr"`
	MaxSRQSGE    int    `json:"max_srq_sge"`
	MaxRdAtom    int    `json:"max_qp_rd_atom"`
	MaxInitRd    int    `json:"max_qp_init_rd_atom"`
	MaxMRSize    uint64 `json:"max_mr_size"`
	AckDelay     int    `json:"local_ca_ack_delay"`
	MaxMessage   uint32 `json:"max_msg_sz"`
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
