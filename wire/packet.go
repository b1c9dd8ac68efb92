package wire

import (
	"net/netip"

	"github.com/softnic/softnic/wire/bth"
)

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// Path says where a packet goes and how its outer headers look. Engines share
// a Path among packets, so it is never changed after its first use.
type Path struct {
	Src, Dst  netip.Addr // of one family; IPv4 addresses are not 4-in-6
	SrcPort   uint16     // UDP source port, 0xC000 ... 0xFFFF, or the socket's own
	DstPort   uint16     // UDP destination port; 0 means Port
	TClass    uint8      // IPv4 TOS or IPv6 traffic class, ECN bits included
	HopLimit  uint8      // IPv4 TTL or IPv6 hop limit; 0 means 64
	FlowLabel uint32     // IPv6 flow label, 20 bits
}

// Cause says why a packet is on its way; captures and the packet log show it.
type Cause uint8

// The causes.
const (
	First         Cause = iota // first transmission of a request
	RetryTimeout               // sent again: the ACK timer ran out
	RetrySequence              // sent again: NAK sequence error
	RetryImplied               // sent again: a READ response or its place was missing
	RetryRNR                   // sent again: the RNR wait is over
	Reply                      // response to a request
	Replay                     // response to a duplicate request
	Notify                     // congestion notification
	causes
)

var causeNames = [causes]string{"first", "retry-timeout", "retry-nak", "retry-implied-nak", "retry-rnr", "reply", "replay", "notify"}

// String names the cause.
func (c Cause) String() string {
	if c < causes {
		return causeNames[c]
	}
	return "cause?"
}

// Retry reports whether the packet is a retransmission of a request.
func (c Cause) Retry() bool { return c >= RetryTimeout && c <= RetryRNR }

// Packet is one outgoing packet on its way from an engine to the framer. The
// ICRC is not in it: it covers the IP ID, which is known only when a burst is
// shaped.
type Packet struct {
	Path  *Path
	Head  [bth.MaxHeader]byte // BTH and extended headers, Len bytes of it
	Len   int                 // length of the headers
	Data  [][]byte            // payload, in order; entries may be empty
	Size  int                 // payload length in bytes, the sum over Data
	Pad   int                 // 0 ... 3 zero bytes after the payload
	Cause Cause
	QPN   uint32 // queue pair that sends it, which is not on the wire; 0: not known
	Round int    // how often this PSN was sent before, 0 for the first time
}

// BTH returns the base transport header of the packet.
func (p *Packet) BTH() bth.BTH { return bth.BTH(p.Head[:bth.Len]) }

// IBLen returns the length of the UDP payload: headers, payload, pad and ICRC.
func (p *Packet) IBLen() int { return p.Len + p.Size + p.Pad + ICRCLen }

// ICRCLen is the length of the invariant CRC in bytes.
const ICRCLen = 4
