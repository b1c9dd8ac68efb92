package mad

// The attributes of subnet management that an adapter has.
const (
	NodeDescription AttrID = 0x0010
	NodeInfo        AttrID = 0x0011
	PortInfo        AttrID = 0x0015
)

const (
	// PermissiveLID is the local identifier that every port takes.
	PermissiveLID = 0xFFFF
	// SMPDataLen is the room for an attribute of subnet management.
	SMPDataLen = 64
	// SubnVersion is the version of both classes of subnet management.
	SubnVersion = 1

	direction = 0x8000 // D: on the way back
	smpData   = 64
)

// SMP is a view of a subnet management packet, 256 bytes. One that is routed by LID has the fields in
// brackets reserved.
//
//	+---------------------------------------------------------------+
//	|        common header; in it, for a directed route:            |
//	|        [D] status (15)        [hop pointer] [hop count]       |
//	+---------------------------------------------------------------+ 24
//	|                        M_Key (64 bits)                        |
//	+-------------------------------+-------------------------------+ 32
//	|           [DrSLID]            |           [DrDLID]            |
//	+-------------------------------+-------------------------------+ 36
//	|                     reserved (28 bytes)                       |
//	+---------------------------------------------------------------+ 64
//	|                     attribute (64 bytes)                      |
//	+---------------------------------------------------------------+ 128
//	|                   [initial path] (64 bytes)                   |
//	+---------------------------------------------------------------+ 192
//	|                   [return path] (64 bytes)                    |
//	+---------------------------------------------------------------+ 256
type SMP []byte

// Header returns the common header.
func (p SMP) Header() Header { return Header(p[:HeaderLen]) }

// Returning reports whether the direction bit of a directed route is set.
func (p SMP) Returning() bool { return p[4]&0x80 != 0 }

// HopPointer returns where a directed route has got to.
func (p SMP) HopPointer() uint8 { return p[6] }

// HopCount returns how many hops a directed route has.
func (p SMP) HopCount() uint8 { return p[7] }

// SetHops writes hop pointer and hop count.
func (p SMP) SetHops(pointer, count uint8) { p[6], p[7] = pointer, count }

// MKey returns the management key.
func (p SMP) MKey() uint64 { return be.Uint64(p[24:]) }

// DrSLID and DrDLID return the ends of a directed route that lie behind LIDs.
func (p SMP) DrSLID() uint16 { return be.Uint16(p[32:]) }

// DrDLID is described with DrSLID.
func (p SMP) DrDLID() uint16 { return be.Uint16(p[34:]) }

// SetDrLIDs writes DrSLID and DrDLID.
func (p SMP) SetDrLIDs(source, destination uint16) {
	be.PutUint16(p[32:], source)
	be.PutUint16(p[34:], destination)
}

// Data returns the bytes of the attribute.
func (p SMP) Data() []byte { return p[smpData : smpData+SMPDataLen] }

// NodeInfoView is a view of NodeInfo, 40 bytes.
//
//	+---------------+---------------+---------------+---------------+
//	|  base version | class version |   node type   |     ports     |
//	+---------------+---------------+---------------+---------------+
//	|                  system image GUID (64 bits)                  |
//	+---------------------------------------------------------------+
//	|                      node GUID (64 bits)                      |
//	+---------------------------------------------------------------+
//	|                      port GUID (64 bits)                      |
//	+-------------------------------+-------------------------------+
//	|     entries of P_Key table    |           device ID           |
//	+-------------------------------+-------------------------------+
//	|                           revision                            |
//	+---------------+-----------------------------------------------+
//	|   local port  |              vendor ID (24 bits)              |
//	+---------------+-----------------------------------------------+
type NodeInfoView []byte

// NodeInfoFields is the content of NodeInfo. The two versions are 1.
type NodeInfoFields struct {
	NodeType                    uint8 // 1: channel adapter
	Ports                       uint8
	SystemGUID, NodeGUID        uint64
	PortGUID                    uint64
	PKeys, DeviceID             uint16
	Revision                    uint32
	LocalPort                   uint8
	VendorID                    uint32 // 24 bits
	BaseVersion, SubnMgrVersion uint8  // read only: Encode writes those that there are
}

// NodeInfoLen is the length of NodeInfo.
const NodeInfoLen = 40

// Fields returns all fields.
func (v NodeInfoView) Fields() NodeInfoFields {
	return NodeInfoFields{
		BaseVersion: v[0], SubnMgrVersion: v[1], NodeType: v[2], Ports: v[3],
		SystemGUID: be.Uint64(v[4:]), NodeGUID: be.Uint64(v[12:]), PortGUID: be.Uint64(v[20:]),
		PKeys: be.Uint16(v[28:]), DeviceID: be.Uint16(v[30:]), Revision: be.Uint32(v[32:]),
		LocalPort: v[36], VendorID: be.Uint32(v[36:]) & 0xFFFFFF,
	}
}

// Encode writes all fields.
func (v NodeInfoView) Encode(f *NodeInfoFields) {
	v[0], v[1], v[2], v[3] = BaseVersion, SubnVersion, f.NodeType, f.Ports
	be.PutUint64(v[4:], f.SystemGUID)
	be.PutUint64(v[12:], f.NodeGUID)
	be.PutUint64(v[20:], f.PortGUID)
	be.PutUint16(v[28:], f.PKeys)
	be.PutUint16(v[30:], f.DeviceID)
	be.PutUint32(v[32:], f.Revision)
	be.PutUint32(v[36:], f.VendorID&0xFFFFFF)
	v[36] = f.LocalPort
}

// PortInfoView is a view of PortInfo, 60 bytes.
//
//	+---------------------------------------------------------------+  0
//	|                        M_Key (64 bits)                        |
//	+---------------------------------------------------------------+  8
//	|                     GID prefix (64 bits)                      |
//	+-------------------------------+-------------------------------+ 16
//	|              LID              |         master SM LID         |
//	+-------------------------------+-------------------------------+ 20
//	|                        capability mask                        |
//	+-------------------------------+-------------------------------+ 24
//	|           diagnosis           |        M_Key lease (s)        |
//	+---------------+---------------+---------------+---------------+ 28
//	|   local port  | width enabled | w. supported  | width active  |
//	+-------+-------+-------+-------+---+-----+-----+-------+-------+ 32
//	| speed | state | phys  | down  |MKP|  -  | LMC | speed | speed |
//	|supp'd |       | state |default|   |     |     |active |enabled|
//	+-------+-------+-------+-------+---+-----+-----+-------+-------+ 36
//	|  MTU  | SM SL | VLcap | init  | VL high limit | VL arb. high  |
//	|active |       |       | type  |               |               |
//	+-------+-------+-------+-------+-----+---------+-------+-------+ 40
//	|  VL arb. low  | init  |  MTU  |stall| HOQ life|op. VLs| flags |
//	|               | reply |capable|     |         |       |       |
//	+---------------+-------+-------+-----+---------+-------+-------+ 44
//	|        M_Key violations       |        P_Key violations       |
//	+-------------------------------+-+---+---------+-----+---------+ 48
//	|        Q_Key violations       |    GUIDs      |C|   - |timeout|
//	+-----+---------+-------+-------+---------------+-+---+---------+ 52
//	|  -  | response| phys  |overrun|         max credit hint       |
//	+-----+---------+-------+-------+-------------------------------+ 56
//	|    reserved   |            link round trip latency            |
//	+---------------+-----------------------------------------------+
type PortInfoView []byte

// PortInfoLen is the length of PortInfo.
const PortInfoLen = 60

// PortInfoFields is what an adapter without a subnet has to say in PortInfo; the rest of it is 0.
type PortInfoFields struct {
	GIDPrefix      uint64
	LID            uint16
	Capabilities   uint32
	LocalPort      uint8
	Width          uint8 // enabled, supported and active; a mask
	Speed          uint8 // active: 1 (2.5 Gb/s a lane), 2 (5) or 4 (10)
	Speeds         uint8 // enabled and supported; a mask, 4 bits
	State          uint8 // 1 down, 2 init, 3 armed, 4 active
	PhysState      uint8 // 2 polling, 3 disabled, 5 link up
	ActiveMTU      uint8 // code: 1 (256 bytes) ... 5 (4096)
	MaxMTU         uint8 // code
	VLCap, ActiveV uint8 // code of how many virtual lanes there are and are in use; 1: one
	PKeyViolations uint16
	QKeyViolations uint16
	GUIDs          uint8
	RespTime       uint8 // 4.096 µs · 2^RespTime, 5 bits
}

// Fields returns the fields that Encode writes.
func (v PortInfoView) Fields() PortInfoFields {
	return PortInfoFields{
		GIDPrefix: be.Uint64(v[8:]), LID: be.Uint16(v[16:]), Capabilities: be.Uint32(v[20:]), LocalPort: v[28],
		Width: v[31], State: v[32] & 0xF, PhysState: v[33] >> 4, Speed: v[35] >> 4, Speeds: v[35] & 0xF,
		ActiveMTU: v[36] >> 4, VLCap: v[37] >> 4, MaxMTU: v[41] & 0xF, ActiveV: v[43] >> 4,
		PKeyViolations: be.Uint16(v[46:]), QKeyViolations: be.Uint16(v[48:]), GUIDs: v[50], RespTime: v[52] & 0x1F,
	}
}

// Encode writes the fields and clears the rest.
func (v PortInfoView) Encode(f *PortInfoFields) {
	clear(v[:PortInfoLen])
	be.PutUint64(v[8:], f.GIDPrefix)
	be.PutUint16(v[16:], f.LID)
	be.PutUint32(v[20:], f.Capabilities)
	v[28], v[29], v[30], v[31] = f.LocalPort, f.Width, f.Width, f.Width
	v[32] = f.Speeds<<4 | f.State&0xF
	v[33] = f.PhysState << 4
	v[35] = f.Speed<<4 | f.Speeds&0xF
	v[36] = f.ActiveMTU << 4
	v[37] = f.VLCap << 4
	v[41] = f.MaxMTU & 0xF
	v[43] = f.ActiveV << 4
	be.PutUint16(v[46:], f.PKeyViolations)
	be.PutUint16(v[48:], f.QKeyViolations)
	v[50] = f.GUIDs
	v[52] = f.RespTime & 0x1F
}
