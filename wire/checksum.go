package wire

import (
	"encoding/binary"
	"math/bits"
)

// PutIPChecksum computes the checksum of the IPv4 header that ip begins with
// and writes it; an IPv6 header has none and stays as it is. Whoever changes
// TOS or TTL of a finished frame calls it.
func PutIPChecksum(ip []byte) {
	if ip[0]>>4 != 4 {
		return
	}
	// On the packet path: four bytes at a time, without the checksum itself, and folded at the end.
	ip = ip[:ipLen4]
	be := binary.BigEndian
	s := uint64(be.Uint32(ip)) + uint64(be.Uint32(ip[4:])) + uint64(be.Uint16(ip[8:])) + uint64(be.Uint32(ip[12:])) + uint64(be.Uint32(ip[16:]))
	s = s>>32 + s&0xFFFFFFFF
	s = s>>16 + s&0xFFFF
	s = s>>16 + s&0xFFFF
	s += s >> 16
	be.PutUint16(ip[10:], ^uint16(s))
}

// PutIPID gives the IPv4 header that ip begins with an ID in place of 0, and corrects its checksum.
func PutIPID(ip []byte, id uint16) {
	binary.BigEndian.PutUint16(ip[4:], id)
	// RFC 1624: the sum without its complement grows by what the ID has grown.
	s := uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(id)
	binary.BigEndian.PutUint16(ip[10:], ^uint16(s+s>>16))
}

// PutUDPChecksum computes the UDP checksum of a packet and writes it into net,
// its IP and UDP header; ib is the whole UDP payload. RoCEv2 senders leave the
// checksum 0, and so does softnic.
func PutUDPChecksum(net, ib []byte) {
	udp := net[len(net)-udpLen:]
	binary.BigEndian.PutUint16(udp[6:], 0)
	c := ^fold(udpSum(net, ib))
	if c == 0 {
		c = 0xFFFF // 0 means "no checksum" (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], c)
}

// udpSum adds up the pseudo header, the UDP header and the payload.
func udpSum(net, ib []byte) uint64 {
	addr := net[12:20]
	if len(net) == NetLen6 {
		addr = net[8:40]
	}
	udp := net[len(net)-udpLen:]
	s := uint64(protoUDP) + uint64(binary.BigEndian.Uint16(udp[4:]))
	return sum(sum(sum(s, addr), udp), ib)
}

// sum adds b to the ones' complement sum s as 16-bit words. Any word size will do
// for that, since 2^16 is 1 modulo 2^16-1. Only the last b of a sum may be of
// odd length.
func sum(s uint64, b []byte) uint64 {
	var c uint64
	for len(b) >= 32 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[24:]), c)
		s += c
		b = b[32:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	if len(b) >= 4 {
		s, c = bits.Add64(s, uint64(binary.BigEndian.Uint32(b)), 0)
		s += c
		b = b[4:]
	}
	if len(b) >= 2 {
		s, c = bits.Add64(s, uint64(binary.BigEndian.Uint16(b)), 0)
		s += c
		b = b[2:]
	}
	if len(b) == 1 {
		s, c = bits.Add64(s, uint64(b[0])<<8, 0)
		s += c
	}
	return s
}

// fold brings a sum down to 16 bits.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xFFFFFFFF
	s = s>>32 + s&0xFFFFFFFF
	s = s>>16 + s&0xFFFF
	s = s>>16 + s&0xFFFF
	return uint16(s)
}

// ChecksumsOK reports whether the checksum of the IPv4 header is right, and that of UDP where there is one. net is the IP and
// UDP header of a packet, NetLen4 or NetLen6 bytes, ib the whole UDP payload.
func ChecksumsOK(net, ib []byte) (ip, udp bool) {
	ip = len(net) != NetLen4 || fold(sum(0, net[:ipLen4])) == 0xFFFF
	u := net[len(net)-udpLen:]
	udp = u[6]|u[7] == 0 || fold(udpSum(net, ib)) == 0xFFFF
	return ip, udp
}
