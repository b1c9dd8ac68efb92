package mad

// The attributes of performance management that an adapter has, beside ClassPortInfo.
const (
	PortCounters         AttrID = 0x0012
	PortCountersExtended AttrID = 0x001D
)

const (
	// PerfVersion is the version of the class.
	PerfVersion = 1
	// AllPorts in place of a port number stands for the sum over all.
	AllPorts = 0xFF
	// PerfDataLen is the room for an attribute of performance management.
	PerfDataLen = 192

	perfData = 64
)

// The capability mask of performance management in ClassPortInfo.
const (
	CapAllPorts uint16 = 1 << 8  // AllPorts is understood
	CapExtended uint16 = 1 << 10 // PortCountersExtended, without the counts by unicast and multicast
)

// PerfData returns the bytes of the attribute of a performance management datagram, which follow its header after
// 40 reserved ones.
func PerfData(b []byte) []byte { return b[perfData : perfData+PerfDataLen] }

// ClassPortInfoView is a view of ClassPortInfo, 72 bytes.
//
//	+---------------+---------------+-------------------------------+  0
//	|  base version | class version |        capability mask        |
//	+---------------+---------------+---------------------+---------+  4
//	|             capability mask 2 (27 bits)             |resp.time|
//	+-----------------------------------------------------+---------+  8
//	|                    redirect: GID (16 bytes)                   |
//	+---------------+-------+---------------------------------------+ 24
//	| traffic class |  SL   |              flow label               |
//	+---------------+-------+-------+-------------------------------+ 28
//	|         redirect: LID         |        redirect: P_Key        |
//	+---------------+---------------+-------------------------------+ 32
//	|   reserved    |                 redirect: QP                  |
//	+---------------+-----------------------------------------------+ 36
//	|                        redirect: Q_Key                        |
//	+---------------------------------------------------------------+ 40
//	|          traps: the same again, from GID to Q_Key             |
//	+---------------------------------------------------------------+ 72
type ClassPortInfoView []byte

// ClassPortInfoLen is the length of ClassPortInfo.
const ClassPortInfoLen = 72

// ClassPortInfoFields is what a class without redirection and traps has in ClassPortInfo; the rest is 0.
type ClassPortInfoFields struct {
	ClassVersion  uint8
	Capabilities  uint16
	Capabilities2 uint32 // 27 bits
	RespTime      uint8  // 4.096 µs · 2^RespTime, 5 bits
}

// Fields returns the fields that Encode writes.
func (v ClassPortInfoView) Fields() ClassPortInfoFields {
	w := be.Uint32(v[4:])
	return ClassPortInfoFields{ClassVersion: v[1], Capabilities: be.Uint16(v[2:]), Capabilities2: w >> 5, RespTime: uint8(w & 0x1F)}
}

// Encode writes the fields and clears the rest.
func (v ClassPortInfoView) Encode(f *ClassPortInfoFields) {
	clear(v[:ClassPortInfoLen])
	v[0], v[1] = BaseVersion, f.ClassVersion
	be.PutUint16(v[2:], f.Capabilities)
	be.PutUint32(v[4:], f.Capabilities2<<5|uint32(f.RespTime&0x1F))
}

// PortCountersView is a view of PortCounters, 44 bytes. The counters stand still at their highest value.
//
//	+---------------+---------------+-------------------------------+  0
//	|   reserved    |     port      |        counter select         |
//	+---------------+---------------+---------------+---------------+  4
//	|         symbol errors         | link recovery |   link down   |
//	+-------------------------------+---------------+---------------+  8
//	|         receive errors        |      remote physical errors   |
//	+-------------------------------+-------------------------------+ 12
//	|       switch relay errors     |        send discards          |
//	+---------------+---------------+---------------+-------+-------+ 16
//	|xmit constraint| rcv constraint|   reserved    |integr.|overrun|
//	+---------------+---------------+---------------+-------+-------+ 20
//	|           reserved            |         VL15 dropped          |
//	+-------------------------------+-------------------------------+ 24
//	|                       sent data, 4 bytes                      |
//	+---------------------------------------------------------------+ 28
//	|                     received data, 4 bytes                    |
//	+---------------------------------------------------------------+ 32
//	|                          sent packets                         |
//	+---------------------------------------------------------------+ 36
//	|                        received packets                       |
//	+---------------------------------------------------------------+ 40
//	|                           send wait                           |
//	+---------------------------------------------------------------+
type PortCountersView []byte

// PortCountersLen is the length of PortCounters.
const PortCountersLen = 44

// Port returns which port is asked for: in PortCounters, and in PortCountersExtended too.
func (v PortCountersView) Port() uint8 { return v[1] }

// PortCountersFields is the content of PortCounters. Values that have no room there are its highest.
type PortCountersFields struct {
	Port                                uint8
	Select                              uint16
	SymbolErrors                        uint64 // 16 bits
	LinkRecovery, LinkDowned            uint64 // 8 bits
	RcvErrors, RcvRemotePhysErrors      uint64 // 16 bits
	SwitchRelayErrors, XmitDiscards     uint64 // 16 bits
	XmitConstraint, RcvConstraint       uint64 // 8 bits
	LinkIntegrity, Overruns             uint64 // 4 bits
	VL15Dropped                         uint64 // 16 bits
	XmitData, RcvData                   uint64 // in units of 4 bytes; 32 bits, as those below
	XmitPackets, RcvPackets, XmitWaited uint64
}

// Fields returns all fields.
func (v PortCountersView) Fields() PortCountersFields {
	u16 := func(i int) uint64 { return uint64(be.Uint16(v[i:])) }
	u32 := func(i int) uint64 { return uint64(be.Uint32(v[i:])) }
	return PortCountersFields{
		Port: v[1], Select: be.Uint16(v[2:]), SymbolErrors: u16(4), LinkRecovery: uint64(v[6]), LinkDowned: uint64(v[7]),
		RcvErrors: u16(8), RcvRemotePhysErrors: u16(10), SwitchRelayErrors: u16(12), XmitDiscards: u16(14),
		XmitConstraint: uint64(v[16]), RcvConstraint: uint64(v[17]), LinkIntegrity: uint64(v[19] >> 4), Overruns: uint64(v[19] & 0xF),
		VL15Dropped: u16(22), XmitData: u32(24), RcvData: u32(28), XmitPackets: u32(32), RcvPackets: u32(36), XmitWaited: u32(40),
	}
}

// Encode writes all fields.
func (v PortCountersView) Encode(f *PortCountersFields) {
	clear(v[:PortCountersLen])
	v[1] = f.Port
	be.PutUint16(v[2:], f.Select)
	for _, c := range []struct {
		at, bytes int
		val       uint64
	}{
		{4, 2, f.SymbolErrors}, {6, 1, f.LinkRecovery}, {7, 1, f.LinkDowned}, {8, 2, f.RcvErrors}, {10, 2, f.RcvRemotePhysErrors},
		{12, 2, f.SwitchRelayErrors}, {14, 2, f.XmitDiscards}, {16, 1, f.XmitConstraint}, {17, 1, f.RcvConstraint},
		{22, 2, f.VL15Dropped}, {24, 4, f.XmitData}, {28, 4, f.RcvData}, {32, 4, f.XmitPackets}, {36, 4, f.RcvPackets}, {40, 4, f.XmitWaited},
	} {
		n := min(c.val, 1<<(8*c.bytes)-1)
		for i := range c.bytes {
			v[c.at+i] = byte(n >> (8 * (c.bytes - 1 - i)))
		}
	}
	v[19] = byte(min(f.LinkIntegrity, 0xF)<<4 | min(f.Overruns, 0xF))
}

// ExtendedView is a view of PortCountersExtended, 72 bytes.
//
//	+---------------+---------------+-------------------------------+  0
//	|   reserved    |     port      |        counter select         |
//	+---------------+---------------+-------------------------------+  4
//	|                            reserved                           |
//	+---------------------------------------------------------------+  8
//	|    eight counters of 64 bits: sent data, received data,       |
//	|    sent packets, received packets; unicast sent, received;    |
//	|    multicast sent, received (packets)                         |
//	+---------------------------------------------------------------+ 72
type ExtendedView []byte

// ExtendedLen is the length of PortCountersExtended.
const ExtendedLen = 72

// ExtendedFields is the content of PortCountersExtended.
type ExtendedFields struct {
	Port                         uint8
	Select                       uint16
	XmitData, RcvData            uint64 // in units of 4 bytes
	XmitPackets, RcvPackets      uint64
	UnicastXmit, UnicastRcv      uint64
	MulticastXmit, MulticastRcvd uint64
}

// Fields returns all fields.
func (v ExtendedView) Fields() ExtendedFields {
	u := func(i int) uint64 { return be.Uint64(v[8+8*i:]) }
	return ExtendedFields{v[1], be.Uint16(v[2:]), u(0), u(1), u(2), u(3), u(4), u(5), u(6), u(7)}
}

// Encode writes all fields.
func (v ExtendedView) Encode(f *ExtendedFields) {
	clear(v[:ExtendedLen])
	v[1] = f.Port
	be.PutUint16(v[2:], f.Select)
	for i, c := range []uint64{f.XmitData, f.RcvData, f.XmitPackets, f.RcvPackets, f.UnicastXmit, f.UnicastRcv, f.MulticastXmit, f.MulticastRcvd} {
		be.PutUint64(v[8+8*i:], c)
	}
}
