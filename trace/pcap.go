package trace

import (
	"encoding/binary"
	"fmt"
	"io"
)

// pcap files: a header of 24 bytes, and before each packet one of 16.
//
//	 0 magic, version (2+2)         0 seconds
//	 8 zone, accuracy               4 µs or ns
//	16 longest packet               8 bytes in the file
//	20 link type (low 16 bits)     12 bytes on the wire
const (
	pcapHeadLen   = 24
	pcapPacketLen = 16

	pcapMicro    = 0xA1B2C3D4
	pcapNano     = 0xA1B23C4D
	pcapModified = 0xA1B2CD34 // of an old patch to libpcap: its packets have longer headers
)

// pcapHeader reads the header of a pcap file.
func (r *Reader) pcapHeader(magic []byte) *Error {
	var end string
	switch be, le := binary.BigEndian.Uint32(magic), binary.LittleEndian.Uint32(magic); {
	case le == pcapMicro || le == pcapNano:
		r.order, end = binary.LittleEndian, "little-endian"
	case be == pcapMicro || be == pcapNano:
		r.order, end = binary.BigEndian, "big-endian"
	case le == pcapModified || be == pcapModified:
		return &Error{Text: "a pcap file of a modified libpcap: `editcap FILE NEW.pcapng` converts it"}
	default:
		head, _ := r.s.peek(64)
		return &Error{Text: noCapture(head)}
	}
	h, err := r.s.peek(pcapHeadLen)
	if len(h) < pcapHeadLen {
		return r.s.why(err, fmt.Sprintf("the header of a pcap file has %d bytes, and %d are there", pcapHeadLen, len(h)))
	}
	unit := "µs"
	r.res = resolution{mul: 1000}
	if r.order.Uint32(h) == pcapNano {
		unit, r.res = "ns", resolution{mul: 1}
	}
	if v := r.order.Uint16(h[4:]); v != 2 {
		return &Error{Text: fmt.Sprintf("pcap version %d, and only 2 is known", v)}
	}
	r.format = "pcap, " + unit + ", " + end
	r.ifaces = []Interface{{Link: LinkType(r.order.Uint32(h[20:])), Snaplen: r.order.Uint32(h[16:])}}
	r.next = r.nextPcap
	if err := r.s.skip(pcapHeadLen); err != nil {
		return r.s.why(err, "cut off")
	}
	return nil
}

// nextPcap reads a packet of a pcap file.
func (r *Reader) nextPcap() error {
	h, err := r.s.peek(pcapPacketLen)
	if len(h) < pcapPacketLen {
		if len(h) == 0 && err == io.EOF {
			return io.EOF
		}
		return r.s.why(err, "the file ends inside the header of a packet")
	}
	n, whole := r.order.Uint32(h[8:]), r.order.Uint32(h[12:])
	if n > maxRecord-pcapPacketLen {
		return &Error{Offset: r.s.at, Text: fmt.Sprintf("a packet of %d bytes, which no capture has: the file is damaged here", n)}
	}
	sec, frac := r.order.Uint32(h), r.order.Uint32(h[4:])
	b, err := r.s.peek(pcapPacketLen + int(n))
	if len(b) < pcapPacketLen+int(n) {
		return r.s.why(err, fmt.Sprintf("the file ends inside a packet: %d of %d bytes are there", max(0, len(b)-pcapPacketLen), n))
	}
	p := &r.pkt
	p.Time = int64(sec)*1e9 + int64(frac)*int64(r.res.mul)
	p.Link, p.Data, p.Length = r.ifaces[0].Link, b[pcapPacketLen:], int(max(n, whole))
	return r.s.take(len(b))
}
