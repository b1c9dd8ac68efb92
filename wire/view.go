package wire

import (
	"encoding/binary"
	"net/netip"

	"github.com/softnic/softnic/wire/bth"
)

// View is a received packet, parsed once. Its slices alias the receive buffer
// and are valid until the receiver hands the buffer back. What a view holds
// after a Fault says ParseEthernet; the methods below need the slices that
// they read.
//
// Where the link does not show the IP header (a UDP socket), the link rebuilds
// IP and UDP header from what the socket told and leaves IDKnown false; the
// ICRC check then solves for the ID and completes Net, so that a capture or a
// GRH area holds the header as it was on the wire.
type View struct {
	Eth     []byte    // Ethernet header, 14 or 18 bytes; empty without one
	Net     []byte    // IP and UDP header, 28 bytes for IPv4, 48 for IPv6
	IB      []byte    // BTH ... ICRC
	Info    *bth.Info // row of the opcode table; never nil after a parse
	Payload []byte    // payload without pad
	IDKnown bool      // Net holds the IPv4 ID as received; true for IPv6
	V6      bool
}

// BTH returns the base transport header.
func (v *View) BTH() bth.BTH { return bth.BTH(v.IB[:bth.Len]) }

// Header returns the bytes of an extended header, nil if the opcode has none.
func (v *View) Header(h bth.Header) []byte {
	o, ok := v.Info.Offset(h)
	if !ok {
		return nil
	}
	return v.IB[o : o+h.Len()]
}

// Src returns the source address; IPv4 as a 4-byte address.
func (v *View) Src() netip.Addr {
	if v.V6 {
		return netip.AddrFrom16([16]byte(v.Net[8:24]))
	}
	return netip.AddrFrom4([4]byte(v.Net[12:16]))
}

// Dst returns the destination address; IPv4 as a 4-byte address.
func (v *View) Dst() netip.Addr {
	if v.V6 {
		return netip.AddrFrom16([16]byte(v.Net[24:40]))
	}
	return netip.AddrFrom4([4]byte(v.Net[16:20]))
}

// IP returns the IP header alone, 20 or 40 bytes.
func (v *View) IP() []byte { return v.Net[:len(v.Net)-8] }

// TClass returns the IPv4 TOS or the IPv6 traffic class.
func (v *View) TClass() uint8 {
	if v.V6 {
		return v.Net[0]<<4 | v.Net[1]>>4
	}
	return v.Net[1]
}

// SrcPort returns the UDP source port.
func (v *View) SrcPort() uint16 { return binary.BigEndian.Uint16(v.Net[len(v.Net)-8:]) }

// DstPort returns the UDP destination port.
func (v *View) DstPort() uint16 { return binary.BigEndian.Uint16(v.Net[len(v.Net)-6:]) }

// ID returns the IPv4 identification, 0 for IPv6.
func (v *View) ID() uint16 {
	if v.V6 {
		return 0
	}
	return binary.BigEndian.Uint16(v.Net[4:])
}

// HopLimit returns the IPv4 TTL or the IPv6 hop limit.
func (v *View) HopLimit() uint8 {
	if v.V6 {
		return v.Net[7]
	}
	return v.Net[8]
}

// FlowLabel returns the IPv6 flow label, 20 bits; 0 for IPv4.
func (v *View) FlowLabel() uint32 {
	if v.V6 {
		return binary.BigEndian.Uint32(v.Net) & 0xFFFFF
	}
	return 0
}

// Path returns the packet's way as its sender had it.
func (v *View) Path() Path {
	return Path{
		Src: v.Src(), Dst: v.Dst(), SrcPort: v.SrcPort(), DstPort: v.DstPort(),
		TClass: v.TClass(), HopLimit: v.HopLimit(), FlowLabel: v.FlowLabel(),
	}
}

// Pad returns the pad bytes after the payload, 0 to 3.
func (v *View) Pad() []byte {
	end := len(v.IB) - ICRCLen
	if !v.Info.Known() {
		return v.IB[end:end]
	}
	return v.IB[end-v.BTH().Pad() : end]
}

// ICRC returns the four bytes of the invariant CRC as they stand on the wire.
func (v *View) ICRC() []byte { return v.IB[len(v.IB)-ICRCLen:] }

// DstMAC returns the destination of the Ethernet header.
func (v *View) DstMAC() [6]byte { return [6]byte(v.Eth) }

// SrcMAC returns the source of the Ethernet header.
func (v *View) SrcMAC() [6]byte { return [6]byte(v.Eth[6:]) }

// VLAN returns the tag control information of the 802.1Q tag, and false when
// there is no tag.
func (v *View) VLAN() (uint16, bool) {
	if len(v.Eth) != EthVLANLen {
		return 0, false
	}
	return binary.BigEndian.Uint16(v.Eth[14:]), true
}
