package wire

import (
	"encoding/binary"
	"slices"

	"github.com/softnic/softnic/wire/icrc"
)

// Lengths of the headers around the transport headers, in bytes.
const (
	EthLen     = 14      // Ethernet header
	EthVLANLen = 18      // Ethernet header with one 802.1Q tag
	NetLen4    = 20 + 8  // IPv4 (without options) and UDP
	NetLen6    = 40 + 8  // IPv6 and UDP
	MaxNetLen  = NetLen6 // the longer of the two
	MaxTailLen = 3 + ICRCLen
)

// The EtherTypes that RoCEv2 meets.
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeVLAN = 0x8100 // 802.1Q tag
	EtherTypeIPv6 = 0x86DD
)

const (
	ipLen4   = 20
	ipLen6   = 40
	udpLen   = 8
	protoUDP = 17

	flagDF = 0x4000 // IPv4 flags and fragment offset, 16 bits

	defaultHops = 64
)

// PutEthernet writes an Ethernet header into dst, EthLen bytes, and returns
// its length.
//
//	+-----------------------+-----------------------+-----------+
//	|  destination (6 B)    |     source (6 B)      | EtherType |
//	+-----------------------+-----------------------+-----------+
func PutEthernet(dst []byte, dstMAC, srcMAC [6]byte, etherType uint16) int {
	_ = dst[EthLen-1]
	copy(dst, dstMAC[:])
	copy(dst[6:], srcMAC[:])
	binary.BigEndian.PutUint16(dst[12:], etherType)
	return EthLen
}

// PutEthernetVLAN writes an Ethernet header with one 802.1Q tag into dst,
// EthVLANLen bytes, and returns its length. tci is priority (3 bits), drop
// eligible (1) and VLAN identifier (12).
//
//	+-----------------+------------+--------+-----+-----------+
//	| dst, src (12 B) | 0x8100 (2) | pri, 0 | VID | EtherType |
//	+-----------------+------------+--------+-----+-----------+
func PutEthernetVLAN(dst []byte, dstMAC, srcMAC [6]byte, tci, etherType uint16) int {
	_ = dst[EthVLANLen-1]
	PutEthernet(dst, dstMAC, srcMAC, EtherTypeVLAN)
	binary.BigEndian.PutUint16(dst[14:], tci)
	binary.BigEndian.PutUint16(dst[16:], etherType)
	return EthVLANLen
}

// EtherType returns the EtherType of p's family.
func (p *Path) EtherType() uint16 {
	if p.Dst.Is4() {
		return EtherTypeIPv4
	}
	return EtherTypeIPv6
}

// NetLen returns the length of the IP and UDP headers of p's family: 28 or 48.
func (p *Path) NetLen() int {
	if p.Dst.Is4() {
		return NetLen4
	}
	return NetLen6
}

// PutNet writes the IP and UDP header of a packet with ibLen bytes of UDP
// payload into dst, which must hold NetLen bytes. IPv4 gets DF, the given ID
// and a header checksum; the UDP checksum is 0.
//
//	IPv4                                        IPv6
//	 0 0x45, TOS, total length                   0 6, traffic class (8 bits), flow label (20)
//	 4 ID, DF                                    4 payload length, 17, hop limit
//	 8 TTL, 17, header checksum                  8 source
//	12 source                                   24 destination
//	16 destination                              40 UDP
//	20 UDP: source port, destination port, length, checksum
func (p *Path) PutNet(dst []byte, id uint16, ibLen int) {
	hops := p.HopLimit
	if hops == 0 {
		hops = defaultHops
	}
	var udp []byte
	if p.Dst.Is4() {
		dst = dst[:NetLen4]
		src, to := p.Src.As4(), p.Dst.As4()
		dst[0], dst[1] = 0x45, p.TClass
		binary.BigEndian.PutUint16(dst[2:], uint16(NetLen4+ibLen))
		binary.BigEndian.PutUint16(dst[4:], id)
		binary.BigEndian.PutUint16(dst[6:], flagDF)
		dst[8], dst[9] = hops, protoUDP
		copy(dst[12:16], src[:])
		copy(dst[16:20], to[:])
		PutIPChecksum(dst)
		udp = dst[ipLen4:]
	} else {
		dst = dst[:NetLen6]
		src, to := p.Src.As16(), p.Dst.As16()
		binary.BigEndian.PutUint32(dst, 6<<28|uint32(p.TClass)<<20|p.FlowLabel&0xFFFFF)
		binary.BigEndian.PutUint16(dst[4:], uint16(udpLen+ibLen))
		dst[6], dst[7] = protoUDP, hops
		copy(dst[8:24], src[:])
		copy(dst[24:40], to[:])
		udp = dst[ipLen6:]
	}
	port := p.DstPort
	if port == 0 {
		port = Port
	}
	binary.BigEndian.PutUint16(udp, p.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], port)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+ibLen))
	binary.BigEndian.PutUint16(udp[6:], 0)
}

// Seal writes the IP and UDP header with the given ID into net (Path.NetLen
// bytes), and what follows it, from the BTH to the ICRC, into ib (at least IBLen bytes); it returns IBLen.
//
// The payload is read once: what is written has the right ICRC also where the memory changes meanwhile. p is not changed, and Seal may be
// called again with another ID, as when a burst is cut differently. For IPv6
// the ID has no effect.
func (p *Packet) Seal(net []byte, id uint16, ib []byte) int {
	net = net[:p.Path.NetLen()]
	p.Path.PutNet(net, id, p.IBLen())
	return p.finish(icrc.StartNet(net), ib)
}

// Append appends the packet, from the IP header to the ICRC, to
// dst and returns the longer slice.
func (p *Packet) Append(dst []byte, id uint16) []byte {
	start, net := len(dst), p.Path.NetLen()
	dst = slices.Grow(dst, net+p.IBLen())
	dst = dst[:start+net+p.IBLen()]
	p.Seal(dst[start:], id, dst[start+net:])
	return dst
}
