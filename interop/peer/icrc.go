package peer

// The invariant CRC, computed as a long division.
//
// The bits of the message are fed, in the order in which Ethernet sends them
// (least significant bit of each byte first), into a 32-bit register that holds
// the remainder modulo
//
//	x^32+x^26+x^23+x^22+x^16+x^12+x^11+x^10+x^8+x^7+x^5+x^4+x^2+x+1.
//
// The register starts as all ones, and the remainder is sent inverted, the
// coefficient of x^31 first. Nothing is copied and nothing is reflected: which
// bits are forced to one is asked for each byte as it passes.

// crcPoly is the generator without its leading term.
const crcPoly = 1<<26 | 1<<23 | 1<<22 | 1<<16 | 1<<12 | 1<<11 | 1<<10 |
	1<<8 | 1<<7 | 1<<5 | 1<<4 | 1<<2 | 1<<1 | 1<<0

// lrhBytes is the length of the dummy local route header of ones which stands in
// front of every RoCEv2 packet in the ICRC.
const lrhBytes = 8

// remainder is the division register.
type remainder uint32

// shift takes one bit in.
func (r *remainder) shift(bit byte) {
	out := byte(*r >> 31)
	*r <<= 1
	if out != bit&1 {
		*r ^= crcPoly
	}
}

// unshift undoes shift for the same bit. It works because the generator has the
// term 1: the lowest bit of the register tells whether it was added.
func (r *remainder) unshift(bit byte) {
	added := byte(*r & 1)
	if added == 1 {
		*r ^= crcPoly
	}
	*r >>= 1
	*r |= remainder(added^bit&1) << 31
}

// octet takes one byte in.
func (r *remainder) octet(b byte) {
	for range 8 {
		r.shift(b)
		b >>= 1
	}
}

// unoctet undoes octet.
func (r *remainder) unoctet(b byte) {
	for i := 7; i >= 0; i-- {
		r.unshift(b >> i)
	}
}

// wire is the four bytes as they are sent: coefficient x^31 first, and each byte
// from its least significant bit.
func (r remainder) wire() [4]byte {
	var out [4]byte
	for i := range 32 {
		if r>>(31-i)&1 == 0 { // inverted
			out[i/8] |= 1 << (i % 8)
		}
	}
	return out
}

// fromWire is the register that would have been sent as these bytes.
func fromWire(b [4]byte) remainder {
	var r remainder
	for i := range 32 {
		if b[i/8]>>(i%8)&1 == 0 {
			r |= 1 << (31 - i)
		}
	}
	return r
}

// variant says which bits of the byte at offset i of the packet may change on
// the way and therefore count as ones. udp is the offset of the UDP header.
//
//	IPv4     1 TOS, 8 TTL, 10-11 header checksum
//	IPv6     0 (low half)-3 traffic class and flow label, 7 hop limit
//	UDP      6-7 checksum
//	BTH      4 FECN, BECN and six reserved bits
func variant(v6 bool, udp, i int) byte {
	switch {
	case v6 && i == 0:
		return 0x0F
	case v6 && (i >= 1 && i <= 3 || i == 7),
		!v6 && (i == 1 || i == 8 || i == 10 || i == 11),
		i == udp+6 || i == udp+7,
		i == udp+8+4:
		return 0xFF
	}
	return 0
}

// ipLayout finds the UDP header of an IP packet.
func ipLayout(ip []byte) (v6 bool, udp int, ok bool) {
	if len(ip) == 0 {
		return false, 0, false
	}
	switch ip[0] >> 4 {
	case 4:
		udp = 4 * int(ip[0]&15)
		return false, udp, udp >= 20 && len(ip) >= udp+8
	case 6:
		return true, 40, len(ip) >= 48
	}
	return false, 0, false
}

// ICRC is the invariant CRC of a packet, as the four bytes stand on the wire.
// covered runs from the first byte of the IP header to the last pad byte: the
// packet without its ICRC. For what is no IPv4 or IPv6 packet it has no meaning.
func ICRC(covered []byte) [4]byte {
	v6, udp, ok := ipLayout(covered)
	if !ok {
		udp = len(covered)
	}
	return icrcAt(covered, v6, udp)
}

// icrcAt is ICRC for a caller who knows the IP version and where the UDP header
// starts, whatever the packet says.
func icrcAt(covered []byte, v6 bool, udp int) [4]byte {
	var r remainder = ^remainder(0)
	for range lrhBytes {
		r.octet(0xFF)
	}
	for i, b := range covered {
		r.octet(b | variant(v6, udp, i))
	}
	return r.wire()
}

// splitICRC cuts an IP packet into what the ICRC covers and the ICRC found. The
// end is where the UDP length says, as the kernel driver has it.
func splitICRC(ip []byte) (covered []byte, found [4]byte, ok bool) {
	_, udp, ok := ipLayout(ip)
	if !ok {
		return nil, found, false
	}
	end := udp + int(ip[udp+4])<<8 + int(ip[udp+5])
	if end < udp+8+4 || end > len(ip) {
		return nil, found, false
	}
	copy(found[:], ip[end-4:end])
	return ip[:end-4], found, true
}

// CheckICRC reports whether a whole packet, from the IP header on, ends in the
// right ICRC. The UDP length says where it ends; what follows is ignored.
func CheckICRC(ipPacket []byte) bool {
	covered, found, ok := splitICRC(ipPacket)
	return ok && ICRC(covered) == found
}

// CheckICRCAnyID is [CheckICRC] for a packet whose IPv4 identification is not
// known, as when the header was rebuilt behind a UDP socket: it tries all 65536
// and returns the one with which the ICRC is right, the one in the packet if
// that will do. IPv6 has no identification and is checked as it is.
//
// Only the header is divided anew each time: the register is run backwards from
// the end of the packet to where the identification ends, and an identification
// fits if the register, run forwards, arrives at the same value.
func CheckICRCAnyID(ipPacket []byte) (id uint16, ok bool) {
	covered, found, ok := splitICRC(ipPacket)
	if !ok {
		return 0, false
	}
	v6, udp, _ := ipLayout(covered)
	if v6 {
		return 0, ICRC(covered) == found
	}
	if CheckICRC(ipPacket) {
		return uint16(ipPacket[4])<<8 | uint16(ipPacket[5]), true
	}
	const idStart, idEnd = 4, 6
	want := fromWire(found)
	for i := len(covered) - 1; i >= idEnd; i-- {
		want.unoctet(covered[i] | variant(v6, udp, i))
	}
	var before remainder = ^remainder(0)
	for range lrhBytes {
		before.octet(0xFF)
	}
	for i := range idStart {
		before.octet(covered[i] | variant(v6, udp, i))
	}
	for id := range 1 << 16 {
		r := before
		r.octet(byte(id >> 8))
		r.octet(byte(id))
		if r == want {
			return uint16(id), true
		}
	}
	return 0, false
}

// RxeFlushICRC is the wrong ICRC that the kernel's rxe driver puts on a FLUSH
// and asks for on one it receives: behind the packet, the last 32 bytes (BTH,
// FETH, RETH) are counted once more, with nothing masked. covered is as for
// [ICRC]. Only what talks to rxe about FLUSH needs it.
func RxeFlushICRC(covered []byte) [4]byte {
	r := fromWire(ICRC(covered))
	for _, b := range covered[max(0, len(covered)-32):] {
		r.octet(b)
	}
	return r.wire()
}

// CheckRxeFlushICRC is [CheckICRC] with [RxeFlushICRC] on FLUSH packets.
func CheckRxeFlushICRC(ipPacket []byte) bool {
	covered, found, ok := splitICRC(ipPacket)
	if !ok {
		return false
	}
	if _, udp, _ := ipLayout(covered); len(covered) > udp+8 && Op(covered[udp+8]) == OpFlush {
		return RxeFlushICRC(covered) == found
	}
	return ICRC(covered) == found
}
