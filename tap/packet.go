package tap

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/softnic/softnic/link"
)

// EtherTypes and IP protocols.
const (
	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeVLAN = 0x8100
	typeIPv6 = 0x86dd

	protoICMP   = 1
	protoUDP    = 17
	protoICMPv6 = 58
)

// Header lengths.
const (
	ethLen  = 14
	vlanLen = 4
	ip4Len  = 20
	ip6Len  = 40
	udpLen  = 8
)

var be = binary.BigEndian

// hw is an Ethernet address.
type hw [6]byte

var broadcast = hw{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// group reports whether a stands for many stations: multicast or broadcast.
func (a hw) group() bool { return a[0]&1 != 0 }

// unicast reports whether a can be the address of one station.
func (a hw) unicast() bool { return !a.group() && a != hw{} }

func (a hw) String() string { return net.HardwareAddr(a[:]).String() }

// linkLocal returns the IPv6 link-local address of a (RFC 4291 appendix A).
func (a hw) linkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: a[0] ^ 2, a[1], a[2], 0xff, 0xfe, a[3], a[4], a[5]})
}

// groupMAC returns the Ethernet address of a multicast group.
func groupMAC(group netip.Addr) hw { return hw(link.GroupMAC(group)) }

// putEth writes an Ethernet header without tag.
func putEth(b []byte, dst, src hw, etherType uint16) {
	_ = b[ethLen-1]
	copy(b, dst[:])
	copy(b[6:], src[:])
	be.PutUint16(b[12:], etherType)
}

// sum adds b, as 16-bit words, to a ones' complement sum (RFC 1071). It takes
// the last byte of an odd b as the high one: only the last piece may be odd.
func sum(b []byte, s uint64) uint64 {
	for len(b) >= 4 {
		s += uint64(be.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		s += uint64(be.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		s += uint64(b[0]) << 8
	}
	return s
}

// fold turns a sum into the checksum. Over data that holds its own checksum the
// result is 0.
func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// pseudo6 is the sum over the IPv6 pseudo-header of an ICMPv6 message; ip is
// the IPv6 header.
func pseudo6(ip []byte, length int) uint64 { return sum(ip[8:40], uint64(length)+protoICMPv6) }

// ip4Addr and ip6Addr read an address.
func ip4Addr(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }
func ip6Addr(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }
