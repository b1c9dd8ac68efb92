package wire

import (
	"encoding/binary"

	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/icrc"
)

// noInfo is the table row of a view whose opcode is not usable: no headers.
var noInfo = new(bth.Info)

// ParseEthernet fills v from an Ethernet frame (one 802.1Q tag allowed). It
// checks everything up to and including the length of the opcode's headers,
// header by header and for each in the order of the Fault list, but not the
// ICRC.
//
// NotRoCE wins as soon as what is there shows it: another program's broken
// packet is NotRoCE, a packet that is cut off before its port is Malformed, and
// so is one to the RoCE port with IPv4 options. A later fragment, which has no
// port, is Fragment.
//
// After ReservedOpcode and TransportVersion the whole view is filled in; the
// Payload of a reserved opcode is everything between BTH and ICRC. After any other
// fault the view has what was seen until then: slices that are nil where
// nothing was, an empty Info, an IB only where a BTH and an ICRC fit in it.
func ParseEthernet(frame []byte, v *View) Fault { return parseEthernet(frame, v, true) }

// ParseEthernetNoSum is ParseEthernet without a look at the UDP checksum, for
// a frame whose virtio header says that it is partial or was checked already.
func ParseEthernetNoSum(frame []byte, v *View) Fault { return parseEthernet(frame, v, false) }

// ParseIP is ParseEthernet for a packet that begins with its IP header.
// Bytes after the UDP length are ignored.
func ParseIP(packet []byte, v *View) Fault {
	*v = View{Info: noInfo}
	return v.parseIP(packet, true)
}

// ParseSplit fills v from an IP and UDP header that stand apart from the UDP
// payload ib, as a link over a UDP socket has them. The headers are trusted;
// net must be NetLen4 bytes of IPv4 or NetLen6 bytes of IPv6, else the packet
// is Malformed. idKnown says whether net holds the IPv4 ID as received.
func ParseSplit(net, ib []byte, idKnown bool, v *View) Fault {
	*v = View{Info: noInfo}
	switch {
	case len(net) == NetLen4 && net[0]>>4 == 4:
		v.IDKnown = idKnown
	case len(net) == NetLen6 && net[0]>>4 == 6:
		v.V6, v.IDKnown = true, true
	default:
		return Malformed
	}
	v.Net = net
	return v.parseIB(ib)
}

// CheckICRC checks the ICRC of a parsed view. With the ID unknown (IPv4 only) it solves
// for the ID and sets IDKnown; where v.Net, which has a right header checksum, has another, it writes both into it. 16 bits of
// check remain. It is false for a view without an IB.
func CheckICRC(v *View) bool {
	if v.IDKnown || v.V6 {
		return len(v.IB) != 0 && icrc.Check(v.Net, v.IB)
	}
	if len(v.IB) == 0 {
		return false
	}
	id, ok := icrc.SolveID(v.Net, v.IB)
	return v.solved(id, ok)
}

// solved takes over the ID that the ICRC tells.
func (v *View) solved(id uint16, ok bool) bool {
	if !ok {
		return false
	}
	if id != binary.BigEndian.Uint16(v.Net[4:]) {
		binary.BigEndian.PutUint16(v.Net[4:], id)
		PutIPChecksum(v.Net)
	}
	v.IDKnown = true
	return true
}

func parseEthernet(frame []byte, v *View, checkSum bool) Fault {
	*v = View{Info: noInfo}
	if len(frame) < EthLen {
		return Malformed
	}
	n, etherType := EthLen, binary.BigEndian.Uint16(frame[12:])
	if etherType == EtherTypeVLAN {
		if len(frame) < EthVLANLen {
			return Malformed
		}
		n, etherType = EthVLANLen, binary.BigEndian.Uint16(frame[16:])
	}
	version := byte(4)
	switch etherType {
	case EtherTypeIPv4:
	case EtherTypeIPv6:
		version = 6
	default:
		return NotRoCE
	}
	v.Eth = frame[:n]
	packet := frame[n:]
	if len(packet) == 0 || packet[0]>>4 != version {
		return Malformed
	}
	return v.parseIP(packet, checkSum)
}

func (v *View) parseIP(packet []byte, checkSum bool) Fault {
	if len(packet) == 0 {
		return Malformed
	}
	switch packet[0] >> 4 {
	case 4:
		return v.parseIP4(packet, checkSum)
	case 6:
		return v.parseIP6(packet, checkSum)
	}
	return NotRoCE
}

func (v *View) parseIP4(packet []byte, checkSum bool) Fault {
	if len(packet) > 9 && packet[9] != protoUDP {
		return NotRoCE
	}
	if len(packet) < ipLen4 {
		return Malformed
	}
	n, total := int(packet[0]&0xF)*4, int(binary.BigEndian.Uint16(packet[2:]))
	frag := binary.BigEndian.Uint16(packet[6:])
	first, more := frag&0x1FFF == 0, frag&0x2000 != 0
	if first && n >= ipLen4 && otherPort(packet[min(n, len(packet)):]) {
		return NotRoCE
	}
	if n < ipLen4 || total < n || total > len(packet) {
		return Malformed
	}
	if !first {
		return Fragment
	}
	if n != ipLen4 || total < NetLen4 {
		return Malformed
	}
	if more {
		return Fragment
	}
	if fold(sum(0, packet[:ipLen4])) != 0xFFFF {
		return IPChecksum
	}
	v.Net, v.IDKnown = packet[:NetLen4], true
	return v.parseUDP(packet[NetLen4:total], checkSum)
}

func (v *View) parseIP6(packet []byte, checkSum bool) Fault {
	if len(packet) > 6 && packet[6] != protoUDP {
		return NotRoCE
	}
	if len(packet) < ipLen6 {
		return Malformed
	}
	if otherPort(packet[ipLen6:]) {
		return NotRoCE
	}
	end := ipLen6 + int(binary.BigEndian.Uint16(packet[4:]))
	if end < NetLen6 || end > len(packet) {
		return Malformed
	}
	v.Net, v.V6, v.IDKnown = packet[:NetLen6], true, true
	return v.parseUDP(packet[NetLen6:end], checkSum)
}

// otherPort reports whether udp shows a destination port that is not RoCE's.
func otherPort(udp []byte) bool {
	return len(udp) >= 4 && binary.BigEndian.Uint16(udp[2:]) != Port
}

// parseUDP takes what follows v.Net inside the IP length.
func (v *View) parseUDP(data []byte, checkSum bool) Fault {
	udp := v.Net[len(v.Net)-udpLen:]
	n := int(binary.BigEndian.Uint16(udp[4:])) - udpLen
	if n < 0 || n > len(data) {
		return Malformed
	}
	ib := data[:n]
	if n >= minIB {
		v.IB = ib
	}
	if checkSum && binary.BigEndian.Uint16(udp[6:]) != 0 && fold(udpSum(v.Net, ib)) != 0xFFFF {
		return UDPChecksum
	}
	return v.parseIB(ib)
}

// minIB is the shortest UDP payload: a BTH and an ICRC.
const minIB = bth.Len + ICRCLen

func (v *View) parseIB(ib []byte) Fault {
	if len(ib) < minIB {
		return Malformed
	}
	v.IB = ib
	b := bth.BTH(ib)
	info := b.Opcode().Info()
	end := len(ib) - ICRCLen
	if !info.Known() {
		v.Info, v.Payload = info, ib[bth.Len:end]
		return ReservedOpcode
	}
	end -= b.Pad()
	if info.Len > end {
		return Malformed
	}
	v.Info, v.Payload = info, ib[info.Len:end]
	if b.TVer() != 0 {
		return TransportVersion
	}
	return OK
}
