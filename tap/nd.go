package tap

import "net/netip"

// ICMPv6 types of Neighbour Discovery, and the options in use.
const (
	ndSolicit   = 135
	ndAdvertise = 136

	optSource = 1 // source link-layer address
	optTarget = 2 // target link-layer address
)

// Flags of an advertisement.
const (
	naSolicited = 0x40
	naOverride  = 0x20
)

const ndLen = 24 // without options

var allNodes = netip.MustParseAddr("ff02::1")

// nd is a neighbour solicitation or advertisement (RFC 4861 sections 4.3, 4.4):
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+-------------------------------+
//	| 135 or 136    |   code = 0    |           checksum            |
//	+-+-+-+---------+---------------+-------------------------------+
//	|R|S|O|                 reserved (135: R S O too)               |
//	+-+-+-+---------------------------------------------------------+
//	|                   target address, 16 bytes                    |
//	+---------------+---------------+-------------------------------+
//	| option type   | length in 8 B |   MAC, 6 bytes ...            |
//	+---------------+---------------+-------------------------------+
//
// A solicitation carries the sender's MAC in option 1, an advertisement that of
// the target in option 2.
type nd struct {
	kind   uint8 // ndSolicit or ndAdvertise
	flags  uint8
	target netip.Addr
	mac    hw // of the option that belongs to kind
	hasMAC bool
}

// parseND applies the checks of RFC 4861 sections 7.1.1 and 7.1.2. ip is the IPv6
// header, msg the ICMPv6 message, of which the checksum is already known to be right.
func parseND(ip, msg []byte) (m nd, ok bool) {
	if len(msg) < ndLen || ip[7] != 255 || msg[1] != 0 || (msg[0] != ndSolicit && msg[0] != ndAdvertise) {
		return m, false
	}
	m.kind, m.flags, m.target = msg[0], msg[4], ip6Addr(msg[8:24])
	if m.target.IsMulticast() || m.target.IsUnspecified() {
		return m, false
	}
	want := uint8(optSource)
	if m.kind == ndAdvertise {
		want = optTarget
	}
	for opts := msg[ndLen:]; len(opts) > 0; {
		if len(opts) < 8 {
			return m, false
		}
		n := int(opts[1]) * 8
		if n == 0 || n > len(opts) {
			return m, false
		}
		if opts[0] == want && n == 8 {
			m.mac, m.hasMAC = hw(opts[2:8]), true
		}
		opts = opts[n:]
	}
	if m.hasMAC && !m.mac.unicast() {
		return m, false
	}
	src, dst := ip6Addr(ip[8:24]), ip6Addr(ip[24:40])
	switch {
	case src.IsMulticast():
		return m, false
	case m.kind == ndSolicit && src.IsUnspecified(): // duplicate address detection
		return m, !m.hasMAC && dst == solicitedNode(m.target)
	case m.kind == ndAdvertise && dst.IsMulticast():
		return m, m.flags&naSolicited == 0
	}
	return m, true
}

// solicitedNode returns the multicast group in which the owner of a listens
// (RFC 4291 section 2.7.1).
func solicitedNode(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0xff, 0x02, 11: 1, 12: 0xff, b[13], b[14], b[15]})
}

// putND writes a whole frame with one link-layer address option and returns it;
// b has room for it.
func putND(b []byte, dstMAC, mac hw, src, dst netip.Addr, kind, flags uint8, target netip.Addr) []byte {
	const n = ndLen + 8
	msg := putIP6(b, dstMAC, mac, src, dst, 255, n)
	t := target.As16()
	copy(msg, []byte{kind, 0, 0, 0, flags, 0, 0, 0})
	copy(msg[8:], t[:])
	msg[24], msg[25] = optSource, 1
	if kind == ndAdvertise {
		msg[24] = optTarget
	}
	copy(msg[26:], mac[:])
	sealICMPv6(b[ethLen:ethLen+ip6Len], msg)
	return b[:ethLen+ip6Len+n]
}

// putIP6 writes Ethernet and IPv6 header of an ICMPv6 message of n bytes and
// returns the room for the message.
func putIP6(b []byte, dstMAC, srcMAC hw, src, dst netip.Addr, hops uint8, n int) []byte {
	putEth(b, dstMAC, srcMAC, typeIPv6)
	ip := b[ethLen : ethLen+ip6Len]
	copy(ip, []byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), protoICMPv6, hops})
	s, d := src.As16(), dst.As16()
	copy(ip[8:], s[:])
	copy(ip[24:], d[:])
	return b[ethLen+ip6Len : ethLen+ip6Len+n]
}

// sealICMPv6 writes the checksum of a message.
func sealICMPv6(ip, msg []byte) {
	msg[2], msg[3] = 0, 0
	be.PutUint16(msg[2:], fold(sum(msg, pseudo6(ip, len(msg)))))
}
