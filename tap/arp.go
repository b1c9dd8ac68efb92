package tap

import "net/netip"

const arpLen = 28

// ARP operations.
const (
	arpRequest = 1
	arpReply   = 2
)

// arp is an ARP packet for IPv4 on Ethernet (RFC 826), at least arpLen bytes:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|       hardware type = 1       |    protocol type = 0x0800     |
//	+---------------+---------------+-------------------------------+
//	|  hw length 6  | proto length 4|  operation: 1 asks, 2 answers |
//	+---------------+---------------+-------------------------------+
//	|                      sender MAC, 6 bytes                      |
//	|                               +-------------------------------+
//	|                               |     sender IP, 4 bytes        |
//	+-------------------------------+-------------------------------+
//	|                               |     target MAC, 6 bytes       |
//	+-------------------------------+                               |
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                      target IP, 4 bytes                       |
//	+---------------------------------------------------------------+
type arp []byte

// parseARP checks everything but the addresses. Bytes after the packet are
// Ethernet's padding.
func parseARP(b []byte) (arp, bool) {
	if len(b) < arpLen || be.Uint16(b) != 1 || be.Uint16(b[2:]) != typeIPv4 || b[4] != 6 || b[5] != 4 {
		return nil, false
	}
	a := arp(b[:arpLen])
	return a, a.op() == arpRequest || a.op() == arpReply
}

func (a arp) op() uint16           { return be.Uint16(a[6:]) }
func (a arp) senderMAC() hw        { return hw(a[8:14]) }
func (a arp) senderIP() netip.Addr { return ip4Addr(a[14:18]) }
func (a arp) targetIP() netip.Addr { return ip4Addr(a[24:28]) }

// putARP writes a whole frame and returns it; b has room for it.
func putARP(b []byte, op uint16, dst, sender hw, senderIP netip.Addr, target hw, targetIP netip.Addr) []byte {
	putEth(b, dst, sender, typeARP)
	a := b[ethLen : ethLen+arpLen]
	copy(a, []byte{0, 1, typeIPv4 >> 8, typeIPv4 & 0xff, 6, 4})
	be.PutUint16(a[6:], op)
	copy(a[8:], sender[:])
	s, t := senderIP.As4(), targetIP.As4()
	copy(a[14:], s[:])
	copy(a[18:], target[:])
	copy(a[24:], t[:])
	return b[:ethLen+arpLen]
}
