package tap

import "net/netip"

// ICMP types.
const (
	echoRequest  = 8
	echoReply    = 0
	echoRequest6 = 128
	echoReply6   = 129
)

const (
	echoLen  = 8 // type, code, checksum, identifier, sequence number
	replyTTL = 64
)

// ip4 is a received IPv4 packet without what Ethernet padded it with.
type ip4 []byte

// parseIP4 checks the header; the checksum too.
func parseIP4(b []byte) (ip4, bool) {
	if len(b) < ip4Len || b[0]>>4 != 4 {
		return nil, false
	}
	n, total := int(b[0]&15)*4, int(be.Uint16(b[2:]))
	if n < ip4Len || total < n || total > len(b) || fold(sum(b[:n], 0)) != 0 {
		return nil, false
	}
	return ip4(b[:total]), true
}

func (p ip4) src() netip.Addr { return ip4Addr(p[12:16]) }
func (p ip4) dst() netip.Addr { return ip4Addr(p[16:20]) }
func (p ip4) fragment() bool  { return be.Uint16(p[6:])&0x3fff != 0 } // more fragments, or an offset
func (p ip4) payload() []byte { return p[int(p[0]&15)*4:] }

// ip6 is a received IPv6 packet without what Ethernet padded it with.
type ip6 []byte

// parseIP6 checks the fixed header.
func parseIP6(b []byte) (ip6, bool) {
	if len(b) < ip6Len || b[0]>>4 != 6 {
		return nil, false
	}
	total := ip6Len + int(be.Uint16(b[4:]))
	if total > len(b) {
		return nil, false
	}
	return ip6(b[:total]), true
}

func (p ip6) src() netip.Addr { return ip6Addr(p[8:24]) }
func (p ip6) dst() netip.Addr { return ip6Addr(p[24:40]) }
func (p ip6) payload() []byte { return p[ip6Len:] }

// putEcho4 writes the frame that answers an ICMP echo request (RFC 792) and
// returns it; b has room for it. msg is the request, checked.
func putEcho4(b []byte, dstMAC, mac hw, src, dst netip.Addr, tos uint8, msg []byte) []byte {
	putEth(b, dstMAC, mac, typeIPv4)
	ip := b[ethLen : ethLen+ip4Len]
	total := ip4Len + len(msg)
	copy(ip, []byte{0x45, tos, byte(total >> 8), byte(total), 0, 0, 0x40, 0, replyTTL, protoICMP, 0, 0})
	s, d := src.As4(), dst.As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	be.PutUint16(ip[10:], fold(sum(ip, 0)))
	m := b[ethLen+ip4Len : ethLen+total]
	copy(m, msg)
	m[0], m[2], m[3] = echoReply, 0, 0
	be.PutUint16(m[2:], fold(sum(m, 0)))
	return b[:ethLen+total]
}

// putEcho6 is putEcho4 for ICMPv6 (RFC 4443 section 4.2).
func putEcho6(b []byte, dstMAC, mac hw, src, dst netip.Addr, msg []byte) []byte {
	m := putIP6(b, dstMAC, mac, src, dst, replyTTL, len(msg))
	copy(m, msg)
	m[0] = echoReply6
	sealICMPv6(b[ethLen:ethLen+ip6Len], m)
	return b[:ethLen+ip6Len+len(msg)]
}
