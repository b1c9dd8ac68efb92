package peer

import (
	"net/netip"
	"slices"
)

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// Frame is one RoCEv2 frame, every field of it.
//
// Plain fields are what goes on the wire; numbers too wide for their field lose
// their upper bits, so that PSN+1 wraps by itself. Pointer and slice fields
// marked "auto" are worked out by Marshal while they are nil, and taken as they
// are otherwise: that is how a frame is made wrong on purpose, with new(uint16(9)).
// Parse leaves them nil where the frame has what Marshal would make, so a frame
// that was read can be changed and sent.
//
// Which extended headers are on the wire is decided by the opcode, or by Headers
// when that is set; the others are ignored.
//
// The zero value has no addresses and TTL 0; [NewFrame] and the short constructors give
// a frame with everything that is the same in most frames.
type Frame struct {
	Link *Link // Ethernet header, for MarshalEth; nil: none was parsed, none is made

	// IP. The family of the addresses decides the version.
	//
	//	IPv4: ver|IHL TOS  length  | ID  flags|offset | TTL proto checksum | src | dst
	//	IPv6: ver|class|flow label | length  next  hop limit | src (16) | dst (16)
	Src, Dst   netip.Addr
	TOS        uint8   // traffic class in IPv6
	TTL        uint8   // hop limit in IPv6
	FlowLabel  uint32  // IPv6, 20 bits
	ID         uint16  // IPv4
	DF, MF     bool    // IPv4
	EvilBit    bool    // IPv4, the reserved flag
	FragOffset uint16  // IPv4, 13 bits
	IPOptions  []byte  // IPv4, a multiple of four bytes
	Version    *uint8  // auto: 4 or 6
	IHL        *uint8  // IPv4, auto: 5 and the options
	IPLength   *uint16 // IPv4 total length, IPv6 payload length; auto
	IPChecksum *uint16 // IPv4, auto
	Protocol   *uint8  // protocol or next header, auto: 17

	// UDP.
	//
	//	source port | destination port | length | checksum
	SrcPort, DstPort uint16
	UDPLength        *uint16 // auto
	UDPChecksum      uint16  // 0 as rxe sends it; see SetUDPChecksum

	// BTH.
	//
	//	 0        1               2        4         5      8             9   12
	//	+--------+-+-+---+------+--------+-+-+------+------+-+-----------+-----+
	//	| opcode |S|M|pad| TVer | P_Key  |F|B| res. |  QP  |A| reserved  | PSN |
	//	+--------+-+-+---+------+--------+-+-+------+------+-+-----------+-----+
	Op       Op
	SE       bool   // solicited event
	Migrated bool   // MigReq
	PadCount *uint8 // auto: the number of pad bytes
	TVer     uint8  // 4 bits
	PKey     uint16
	FECN     bool
	BECN     bool
	Resv6    uint8  // 6 bits
	DestQP   uint32 // 24 bits
	AckReq   bool
	Resv7    uint8  // 7 bits
	PSN      uint32 // 24 bits

	// Extended headers, those that the opcode has.
	Headers *Headers // auto: those of the opcode
	RDETH   RDETH
	DETH    DETH
	XRCETH  XRCETH
	FETH    FETH
	RETH    RETH
	Atomic  AtomicETH
	Masked  MaskedETH
	AETH    AETH
	Orig    uint64 // AtomicAckETH: the value before the operation
	Imm     uint32 // ImmDt, 0x89abcdef for the bytes 89 ab cd ef
	InvKey  uint32 // IETH: the R_Key to invalidate
	CNPResv [16]byte

	Payload  []byte
	PadBytes []byte // auto: zeros up to a multiple of four; empty and not nil: none

	// How much of the frame is there.
	BodyLimit *int     // keep only so many bytes of BTH … pad; lengths and ICRC are then those of the shorter frame
	OmitICRC  bool     // no ICRC at all; lengths accordingly
	ICRC      *[4]byte // auto: the right one; the bytes as on the wire
	Trailer   []byte   // behind the ICRC, outside of every length: Ethernet padding
	Cut       int      // drop so many bytes off the end of what was built, lengths unchanged
}

// Link is an Ethernet header.
//
//	 0             6             12 (0 or more tags)     12+4n
//	+-------------+-------------+-----------+-----------+-----------+
//	| destination |   source    |   TPID    |    TCI    | EtherType |
//	+-------------+-------------+-----------+-----------+-----------+
type Link struct {
	Dst, Src  [6]byte
	Tags      []Tag
	EtherType *uint16 // auto: 0x0800 or 0x86dd
}

// Tag is one VLAN tag. TPID 0 stands for 0x8100.
type Tag struct {
	TPID uint16
	TCI  uint16
}

// NewFrame gives a frame of this opcode with the fields that hardware sets the same in
// every frame: DF, TTL 64, source port 0xC000, destination port 4791, MigReq 1,
// P_Key 0xFFFF. It has no addresses; Peer.Send fills its own in.
func NewFrame(op Op, destQP, psn uint32) *Frame {
	return &Frame{
		DF: true, TTL: 64,
		SrcPort: 0xC000, DstPort: Port,
		Op: op, Migrated: true, PKey: 0xFFFF, DestQP: destQP, PSN: psn,
	}
}

// Clone is a deep copy.
func (f *Frame) Clone() *Frame {
	g := *f
	if f.Link != nil {
		l := *f.Link
		l.Tags = slices.Clone(l.Tags)
		l.EtherType = clonePtr(l.EtherType)
		g.Link = &l
	}
	g.IPOptions = slices.Clone(f.IPOptions)
	g.Payload = slices.Clone(f.Payload)
	g.PadBytes = slices.Clone(f.PadBytes)
	g.Trailer = slices.Clone(f.Trailer)
	g.Version = clonePtr(f.Version)
	g.IHL = clonePtr(f.IHL)
	g.IPLength = clonePtr(f.IPLength)
	g.IPChecksum = clonePtr(f.IPChecksum)
	g.Protocol = clonePtr(f.Protocol)
	g.UDPLength = clonePtr(f.UDPLength)
	g.PadCount = clonePtr(f.PadCount)
	g.Headers = clonePtr(f.Headers)
	g.BodyLimit = clonePtr(f.BodyLimit)
	g.ICRC = clonePtr(f.ICRC)
	return &g
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// HeaderSet is the set of extended headers that the frame has on the wire.
func (f *Frame) HeaderSet() Headers {
	if f.Headers != nil {
		return *f.Headers
	}
	return f.Op.Headers()
}

// IPv6 reports whether the frame has an IPv6 header.
func (f *Frame) IPv6() bool { return f.Src.Is6() && !f.Src.Is4In6() }

// ECN is the two low bits of TOS: 0 not capable, 1 and 2 capable, 3 congestion
// experienced.
func (f *Frame) ECN() uint8 { return f.TOS & 3 }

// SpoilICRC makes the ICRC wrong, whatever the rest of the frame says, and
// returns f. It is worked out from the frame as it is now: call it last.
func (f *Frame) SpoilICRC() *Frame {
	_, right := f.body()
	f.ICRC = &[4]byte{^right[0], right[1], right[2], right[3]}
	return f
}

// SetUDPChecksum puts in the right UDP checksum, which covers the ICRC, and
// returns f. It is worked out from the frame as it is now: call it last.
func (f *Frame) SetUDPChecksum() *Frame {
	f.UDPChecksum = f.rightUDPChecksum()
	return f
}

// UDPChecksumOK reports whether the UDP checksum is absent or right.
func (f *Frame) UDPChecksumOK() bool {
	return f.UDPChecksum == 0 || f.UDPChecksum == f.rightUDPChecksum()
}

// irregularICRC is what Irregular calls a wrong ICRC.
const irregularICRC = "ICRC"

// Irregular names everything in a frame that was read which an orderly sender
// does not send: wrong lengths or checksum, pad bytes that are not zero, reserved
// bits that are set, payload where there is none, a wrong ICRC. It is empty for a good frame.
func (f *Frame) Irregular() []string {
	var bad []string
	say := func(cond bool, what string) {
		if cond {
			bad = append(bad, what)
		}
	}
	say(f.Version != nil, "IP version")
	say(f.IHL != nil, "IP header length")
	say(f.IPLength != nil, "IP length does not fit the UDP length")
	say(f.IPChecksum != nil, "IP header checksum")
	say(f.Protocol != nil, "IP protocol")
	say(f.UDPLength != nil, "UDP length")
	say(f.EvilBit, "reserved IP flag set")
	say(f.MF || f.FragOffset != 0, "IP fragment")
	say(len(f.IPOptions) != 0, "IP options")
	say(f.PadCount != nil || f.PadBytes != nil, "padding")
	say(f.TVer != 0, "TVer")
	say(f.Resv6 != 0, "BTH byte 4 reserved bits")
	say(f.Resv7 != 0, "BTH byte 8 reserved bits")
	say(!f.Op.Known(), "unknown opcode")
	say(len(f.Payload) > 0 && !f.Op.CarriesPayload(), "payload in an opcode without one")
	has := f.HeaderSet()
	say(has.Has(HasRDETH) && f.RDETH.Resv != 0, "RDETH reserved bits")
	say(has.Has(HasDETH) && f.DETH.Resv != 0, "DETH reserved bits")
	say(has.Has(HasXRCETH) && f.XRCETH.Resv != 0, "XRCETH reserved bits")
	say(has.Has(HasFETH) && f.FETH.Resv != 0, "FETH reserved bits")
	say(has.Has(HasCNP) && f.CNPResv != [16]byte{}, "CNP reserved bytes")
	say(f.ICRC != nil || f.OmitICRC, irregularICRC)
	return bad
}
