package capture

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// The blocks of a pcapng file that softnic writes, in little-endian order (the section
// header says so). gopacket's writer knows no comments, and is not needed for the rest.
const (
	blockSection   = 0x0A0D0D0A
	blockInterface = 1
	blockStatistic = 5
	blockPacket    = 6

	optEnd     = 0
	optComment = 1

	sectionApp = 4 // shb_userappl

	interfaceName        = 2
	interfaceDescription = 3
	interfaceIPv4        = 4
	interfaceIPv6        = 5
	interfaceMAC         = 6
	interfaceResolution  = 9

	packetFlags = 2

	statisticReceived = 4 // isb_ifrecv
	statisticDropped  = 5 // isb_ifdrop

	linkEthernet = 1
	linkRaw      = 101 // begins with an IPv4 or IPv6 header
)

// Direction bits of a packet's flags.
const (
	flagInbound  = 1
	flagOutbound = 2
)

var le = binary.LittleEndian

// begin appends the head of a block and returns where the block starts.
func begin(b []byte, typ uint32) ([]byte, int) {
	start := len(b)
	b = le.AppendUint32(b, typ)
	return le.AppendUint32(b, 0), start
}

// end completes the block that starts at start.
func end(b []byte, start int) []byte {
	n := uint32(len(b) - start + 4)
	le.PutUint32(b[start+4:], n)
	return le.AppendUint32(b, n)
}

// option appends an option.
func option(b []byte, code uint16, value ...byte) []byte {
	b = le.AppendUint16(b, code)
	b = le.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return pad(b, len(value))
}

// text appends an option that is a string.
func text(b []byte, code uint16, s string) []byte {
	if s == "" {
		return b
	}
	s = s[:min(len(s), 65535)]
	b = le.AppendUint16(b, code)
	b = le.AppendUint16(b, uint16(len(s)))
	b = append(b, s...)
	return pad(b, len(s))
}

// number appends an option that is a 64-bit number.
func number(b []byte, code uint16, v uint64) []byte {
	b = le.AppendUint16(b, code)
	b = le.AppendUint16(b, 8)
	return le.AppendUint64(b, v)
}

// pad fills up to four bytes what is n bytes long.
func pad(b []byte, n int) []byte {
	for ; n%4 != 0; n++ {
		b = append(b, 0)
	}
	return b
}

// section appends a section header block.
func section(b []byte, app string) []byte {
	b, start := begin(b, blockSection)
	b = le.AppendUint32(b, 0x1A2B3C4D)
	b = le.AppendUint16(b, 1)          // version 1.0
	b = le.AppendUint16(b, 0)          //
	b = le.AppendUint64(b, ^uint64(0)) // length of the section: not known
	b = text(b, sectionApp, app)
	b = option(b, optEnd)
	return end(b, start)
}

// iface appends an interface description block.
func iface(b []byte, linkType uint16, name, description string, mac net.HardwareAddr, addrs []netip.Prefix) []byte {
	b, start := begin(b, blockInterface)
	b = le.AppendUint16(b, linkType)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint32(b, 0) // packets are never cut
	b = text(b, interfaceName, name)
	b = text(b, interfaceDescription, description)
	for _, a := range addrs {
		if a.Addr().Is4() {
			ip, mask := a.Addr().As4(), net.CIDRMask(a.Bits(), 32)
			b = option(b, interfaceIPv4, append(ip[:], mask...)...)
		} else {
			ip := a.Addr().As16()
			b = option(b, interfaceIPv6, append(ip[:], byte(a.Bits()))...)
		}
	}
	if len(mac) == 6 {
		b = option(b, interfaceMAC, mac...)
	}
	b = option(b, interfaceResolution, 9) // nanoseconds
	b = option(b, optEnd)
	return end(b, start)
}

// packetHead appends an enhanced packet block up to the packet's bytes, n of them.
func packetHead(b []byte, id uint32, when int64, n int) ([]byte, int) {
	b, start := begin(b, blockPacket)
	b = le.AppendUint32(b, id)
	b = le.AppendUint32(b, uint32(uint64(when)>>32))
	b = le.AppendUint32(b, uint32(when))
	b = le.AppendUint32(b, uint32(n))
	return le.AppendUint32(b, uint32(n)), start
}

// packetTail appends what follows the n bytes of the packet: flags and comment.
func packetTail(b []byte, start, n int, flags byte, comment string) []byte {
	b = pad(b, n)
	b = option(b, packetFlags, flags, 0, 0, 0)
	b = text(b, optComment, comment)
	b = option(b, optEnd)
	return end(b, start)
}

// statistic appends an interface statistics block.
func statistic(b []byte, id uint32, when int64, received, dropped uint64, comment string) []byte {
	b, start := begin(b, blockStatistic)
	b = le.AppendUint32(b, id)
	b = le.AppendUint32(b, uint32(uint64(when)>>32))
	b = le.AppendUint32(b, uint32(when))
	b = number(b, statisticReceived, received)
	b = number(b, statisticDropped, dropped)
	b = text(b, optComment, comment)
	b = option(b, optEnd)
	return end(b, start)
}
