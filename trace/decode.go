package trace

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Kind is what a frame is.
type Kind uint8

// The kinds.
const (
	Other    Kind = iota // another program's packet, or one of which no more can be told
	RoCE                 // UDP to the RoCE port
	RoCEv1               // EtherType 0x8915: InfiniBand without IP
	Fragment             // of a UDP packet over IPv4 or IPv6, perhaps RoCE
	Exchange             // TCP: what the tools may tell each other
)

// Frame is a frame as a Decoder reads it.
type Frame struct {
	Kind Kind
	// IP is the packet from its IP header on, if it is RoCE: as long as the header says if Cut is not set.
	IP  []byte
	Cut bool // the capture has only the beginning
	TCP Segment
	// Port tells apart where a frame was seen on an interface that stands for several (Linux cooked, any): the system's
	// index of the one, and whether it was on its way out. 0 on all others.
	Port uint64
	// BadIP and BadUDP say, after View, that a checksum is wrong. Where a capture is made at its sender,
	// the adapter has not put it in yet.
	BadIP, BadUDP bool
}

// Decoder finds the RoCE packet in a frame. The zero value is for UDP port 4791 only.
type Decoder struct {
	Ports []uint16 // further UDP ports that carry RoCE
}

const (
	protoTCP      = 6
	protoUDP      = 17
	protoFragment = 44
	ipLen4        = 20
	ipLen6        = 40
	udpLen        = 8
)

// Decode looks at a frame: data is what the capture has of it. What f holds afterwards aliases data. length is how
// long the frame was on the wire.
func (d *Decoder) Decode(link LinkType, data []byte, length int, f *Frame) {
	*f = Frame{Port: link.port(data)}
	etherType, b := link.network(data)
	cut := length > len(data)
	switch etherType {
	case wire.EtherTypeIPv4:
		d.decode4(b, cut, f)
	case wire.EtherTypeIPv6:
		d.decode6(b, cut, f)
	case etherTypeRoCEv1:
		f.Kind = RoCEv1
	}
}

func (d *Decoder) decode4(b []byte, cut bool, f *Frame) {
	if len(b) < ipLen4 || b[0]>>4 != 4 {
		return
	}
	n, total := int(b[0]&0xF)*4, int(binary.BigEndian.Uint16(b[2:]))
	if n < ipLen4 || total < n || n > len(b) {
		return
	}
	frag := binary.BigEndian.Uint16(b[6:])
	switch {
	case frag&0x3FFF != 0: // more to come, or an offset
		if b[9] == protoUDP && (frag&0x1FFF != 0 || d.port(b[n:])) {
			f.Kind = Fragment
		}
	case b[9] == protoTCP:
		f.TCP = segment(b[12:16], b[16:20], clip(b, total)[n:])
		f.Kind = f.TCP.kind()
	case b[9] == protoUDP && d.port(b[n:]):
		f.found(b, total, cut)
	}
}

func (d *Decoder) decode6(b []byte, cut bool, f *Frame) {
	if len(b) < ipLen6 || b[0]>>4 != 6 {
		return
	}
	total := ipLen6 + int(binary.BigEndian.Uint16(b[4:]))
	switch b[6] {
	case protoFragment:
		if r := b[ipLen6:]; len(r) >= 8 && r[0] == protoUDP {
			if binary.BigEndian.Uint16(r[2:])&0xFFF8 != 0 || d.port(r[8:]) {
				f.Kind = Fragment
			}
		}
	case protoTCP:
		f.TCP = segment(b[8:24], b[24:40], clip(b, total)[ipLen6:])
		f.Kind = f.TCP.kind()
	case protoUDP:
		if d.port(b[ipLen6:]) {
			f.found(b, total, cut)
		}
	}
}

func (f *Frame) found(b []byte, total int, cut bool) {
	f.Kind, f.Cut, f.IP = RoCE, cut && total > len(b), clip(b, total)
}

func clip(b []byte, n int) []byte { return b[:min(n, len(b))] }

// port reports whether a UDP header is there that names a port of RoCE as its destination.
func (d *Decoder) port(udp []byte) bool {
	if len(udp) < 4 {
		return false
	}
	p := binary.BigEndian.Uint16(udp[2:])
	return p == wire.Port || len(d.Ports) > 0 && slices.Contains(d.Ports, p)
}

// View fills v from the packet of a frame whose Kind is RoCE. A wrong checksum is no fault: see BadIP and BadUDP. Of a packet that is Cut it shows what is there; v.IB is nil if the BTH is not.
func (f *Frame) View(v *wire.View) wire.Fault {
	*v = wire.View{Info: bth.Opcode(0xFF).Info()}
	b := f.IP
	n := wire.NetLen4
	if b[0]>>4 == 6 {
		n = wire.NetLen6
	} else if b[0] != 0x45 {
		return wire.Malformed // RoCE has no IP options
	}
	if len(b) < n {
		return wire.Malformed
	}
	size := int(binary.BigEndian.Uint16(b[n-4:])) - udpLen
	if size < 0 {
		return wire.Malformed
	}
	if f.Cut {
		v.Net, v.V6, v.IDKnown = b[:n], n == wire.NetLen6, true
		if ib := b[n:]; len(ib) >= bth.Len {
			v.IB = ib
			v.Info = v.BTH().Opcode().Info()
			if v.Info.Known() && v.Info.Len <= len(ib) {
				v.Payload = ib[v.Info.Len:]
			}
		}
		return wire.OK
	}
	if size > len(b)-n {
		return wire.Malformed
	}
	ip, udp := wire.ChecksumsOK(b[:n], b[n:n+size])
	f.BadIP, f.BadUDP = !ip, !udp
	return wire.ParseSplit(b[:n], b[n:n+size], true, v)
}

// Extended is View of a packet that is Cut, with zeros in place of what is missing, in buf, which grows as it must. It
// reports whether all headers of the opcode are there; if not v is as View leaves it.
func (f *Frame) Extended(buf []byte, v *wire.View) (grown []byte, ok bool) {
	if f.View(v) != wire.OK || v.IB == nil || !v.Info.Known() || len(v.IB) < v.Info.Len {
		return buf, false
	}
	total := int(binary.BigEndian.Uint16(f.IP[2:]))
	if v.V6 {
		total = ipLen6 + int(binary.BigEndian.Uint16(f.IP[4:]))
	}
	buf = append(buf[:0], f.IP...)
	buf = append(buf, make([]byte, max(0, total-len(buf)))...)
	whole := Frame{Kind: RoCE, IP: buf}
	var w wire.View
	if whole.View(&w) != wire.OK {
		return buf, false
	}
	*v = w
	return buf, true
}

// Addrs returns the addresses of a packet whose Kind is RoCE; false if it is too short.
func (f *Frame) Addrs() (src, dst netip.Addr, ok bool) {
	b := f.IP
	switch {
	case len(b) >= ipLen4 && b[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), true
	case len(b) >= ipLen6 && b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), true
	}
	return src, dst, false
}
