package trace

import (
	"encoding/binary"
	"fmt"

	"github.com/softnic/softnic/wire"
)

// LinkType is what the frames of an interface begin with (tcpdump.org/linktypes.html).
type LinkType uint16

// The link types that are read.
const (
	LinkNull     LinkType = 0   // BSD loopback: 4 bytes of address family, in the order of the host
	LinkEthernet LinkType = 1   // with 802.1Q and 802.1ad tags
	LinkRaw12    LinkType = 12  // raw IP, as most systems number it in memory
	LinkRaw14    LinkType = 14  // raw IP, as OpenBSD does
	LinkRaw      LinkType = 101 // raw IP
	LinkLoop     LinkType = 108 // OpenBSD loopback: as null, in network order
	LinkSLL      LinkType = 113 // Linux cooked, version 1: 16 bytes
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkSLL2     LinkType = 276 // Linux cooked, version 2: 20 bytes
)

// String is the name, as tcpdump has it.
func (l LinkType) String() string {
	switch l {
	case LinkNull:
		return "null"
	case LinkEthernet:
		return "Ethernet"
	case LinkRaw, LinkRaw12, LinkRaw14:
		return "raw IP"
	case LinkLoop:
		return "loopback"
	case LinkSLL:
		return "Linux cooked v1"
	case LinkSLL2:
		return "Linux cooked v2"
	case LinkIPv4:
		return "raw IPv4"
	case LinkIPv6:
		return "raw IPv6"
	}
	return fmt.Sprintf("link type %d", uint16(l))
}

// Known reports whether frames of the link type can be read.
func (l LinkType) Known() bool {
	switch l {
	case LinkNull, LinkEthernet, LinkRaw12, LinkRaw14, LinkRaw, LinkLoop, LinkSLL, LinkSLL2, LinkIPv4, LinkIPv6:
		return true
	}
	return false
}

const (
	etherTypeRoCEv1 = 0x8915
	etherTypeQinQ   = 0x88A8
	etherTypeQinQ1  = 0x9100 // before 802.1ad
)

// network returns what follows the link header, and its EtherType; for raw IP that of the version that
// stands there. It is 0 where there is none, or where it does not fit.
func (l LinkType) network(b []byte) (etherType uint16, packet []byte) {
	be := binary.BigEndian
	switch l {
	case LinkEthernet:
		if len(b) < wire.EthLen {
			return 0, nil
		}
		return tags(be.Uint16(b[12:]), b[wire.EthLen:])
	case LinkSLL:
		if len(b) < 16 {
			return 0, nil
		}
		return tags(be.Uint16(b[14:]), b[16:])
	case LinkSLL2:
		if len(b) < 20 {
			return 0, nil
		}
		return tags(be.Uint16(b), b[20:])
	case LinkNull, LinkLoop:
		if len(b) < 4 {
			return 0, nil
		}
		b = b[4:] // the families of IPv6 differ from system to system: the version tells
	case LinkRaw, LinkRaw12, LinkRaw14, LinkIPv4, LinkIPv6:
	default:
		return 0, nil
	}
	if len(b) == 0 {
		return 0, nil
	}
	switch b[0] >> 4 {
	case 4:
		return wire.EtherTypeIPv4, b
	case 6:
		return wire.EtherTypeIPv6, b
	}
	return 0, nil
}

// port is that of Frame.Port: version 1 has only the direction.
func (l LinkType) port(b []byte) uint64 {
	const outgoing = 4
	switch {
	case l == LinkSLL && len(b) >= 16:
		if binary.BigEndian.Uint16(b) == outgoing {
			return 1
		}
	case l == LinkSLL2 && len(b) >= 20:
		n := uint64(binary.BigEndian.Uint32(b[4:])) << 1
		if b[10] == outgoing {
			n |= 1
		}
		return n
	}
	return 0
}

// tags passes over VLAN tags.
func tags(etherType uint16, b []byte) (uint16, []byte) {
	for etherType == wire.EtherTypeVLAN || etherType == etherTypeQinQ || etherType == etherTypeQinQ1 {
		if len(b) < 4 {
			return 0, nil
		}
		etherType, b = binary.BigEndian.Uint16(b[2:]), b[4:]
	}
	return etherType, b
}
