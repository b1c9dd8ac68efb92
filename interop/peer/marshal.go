package peer

import "fmt"

// or is *p, or auto while p is nil.
func or[T any](p *T, auto T) T {
	if p != nil {
		return *p
	}
	return auto
}

// bit is 1<<n if on.
func bit(on bool, n int) uint8 {
	if on {
		return 1 << n
	}
	return 0
}

// pad is the pad bytes that the frame carries.
func (f *Frame) pad() []byte {
	if f.PadBytes != nil {
		return f.PadBytes
	}
	return make([]byte, -len(f.Payload)&3)
}

// transport is BTH to pad, cut to BodyLimit.
func (f *Frame) transport() []byte {
	var w wireWriter
	pad := f.pad()
	w.u8(uint8(f.Op))
	w.u8(bit(f.SE, 7) | bit(f.Migrated, 6) | or(f.PadCount, uint8(len(pad)))&3<<4 | f.TVer&15)
	w.u16(f.PKey)
	w.u8(bit(f.FECN, 7) | bit(f.BECN, 6) | f.Resv6&63)
	w.u24(f.DestQP)
	w.u8(bit(f.AckReq, 7) | f.Resv7&127)
	w.u24(f.PSN)
	f.appendHeaders(&w, f.HeaderSet())
	w = append(w, f.Payload...)
	w = append(w, pad...)
	if f.BodyLimit != nil && *f.BodyLimit < len(w) {
		w = w[:*f.BodyLimit]
	}
	return w
}

// body is the packet from the IP header to the pad, and its right ICRC.
func (f *Frame) body() (covered []byte, right [4]byte) {
	transport := f.transport()
	udpLen := 8 + len(transport) + 4
	if f.OmitICRC {
		udpLen -= 4
	}
	w := f.ipHeader(udpLen)
	w.u16(f.SrcPort)
	w.u16(f.DstPort)
	w.u16(or(f.UDPLength, uint16(udpLen)))
	w.u16(f.UDPChecksum)
	w = append(w, transport...)
	// The masks follow what was built, also where a version or a length in it is
	// wrong on purpose.
	v6, udpAt := f.IPv6(), len(w)-len(transport)-8
	return w, icrcAt(w, v6, udpAt)
}

// ipHeader builds the IP header for a UDP datagram of this length.
func (f *Frame) ipHeader(udpLen int) (w wireWriter) {
	if !f.Src.IsValid() || !f.Dst.IsValid() {
		panic(fmt.Sprintf("peer: %v frame without IP addresses: set Src and Dst, or send it through a Peer", f.Op))
	}
	src, dst := f.Src.Unmap(), f.Dst.Unmap()
	if src.Is4() != dst.Is4() {
		panic(fmt.Sprintf("peer: %v and %v are not of one IP version", f.Src, f.Dst))
	}
	if src.Is6() {
		w.u32(uint32(or(f.Version, 6)&15)<<28 | uint32(f.TOS)<<20 | f.FlowLabel&0xFFFFF)
		w.u16(or(f.IPLength, uint16(udpLen)))
		w.u8(or(f.Protocol, 17))
		w.u8(f.TTL)
		w = append(w, src.AsSlice()...)
		return append(w, dst.AsSlice()...)
	}
	hdr := 20 + len(f.IPOptions)
	w.u8(or(f.Version, 4)&15<<4 | or(f.IHL, uint8(hdr/4))&15)
	w.u8(f.TOS)
	w.u16(or(f.IPLength, uint16(hdr+udpLen)))
	w.u16(f.ID)
	w.u8(bit(f.EvilBit, 7) | bit(f.DF, 6) | bit(f.MF, 5) | uint8(f.FragOffset>>8)&31)
	w.u8(uint8(f.FragOffset))
	w.u8(f.TTL)
	w.u8(or(f.Protocol, 17))
	w.u16(0)
	w = append(w, src.AsSlice()...)
	w = append(w, dst.AsSlice()...)
	w = append(w, f.IPOptions...)
	sum := or(f.IPChecksum, ^onesSum(0, w))
	w[10], w[11] = byte(sum>>8), byte(sum)
	return w
}

// onesSum adds 16-bit words in ones' complement arithmetic.
func onesSum(start uint16, b []byte) uint16 {
	sum := uint64(start)
	for len(b) >= 2 {
		sum += uint64(b[0])<<8 | uint64(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	return uint16(sum)
}

// rightUDPChecksum is the UDP checksum over pseudo header, UDP header and what
// follows, ICRC included.
func (f *Frame) rightUDPChecksum() uint16 {
	g := *f
	g.UDPChecksum, g.Link, g.Trailer, g.Cut = 0, nil, nil, 0
	ip := g.Marshal()
	udp := ip[20+len(f.IPOptions):]
	if f.IPv6() {
		udp = ip[40:]
	}
	src, dst := f.Src.Unmap(), f.Dst.Unmap()
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = append(pseudo, 0, 17, byte(len(udp)>>8), byte(len(udp)))
	if sum := ^onesSum(onesSum(0, pseudo), udp); sum != 0 {
		return sum
	}
	return 0xFFFF
}

// Marshal gives the frame from the IP header on. It panics if the frame has no
// addresses, or one of each IP version.
func (f *Frame) Marshal() []byte {
	out, icrc := f.body()
	if f.ICRC != nil {
		icrc = *f.ICRC
	}
	if !f.OmitICRC {
		out = append(out, icrc[:]...)
	}
	out = append(out, f.Trailer...)
	return out[:len(out)-min(f.Cut, len(out))]
}

// MarshalEth is Marshal with the Ethernet header of Link in front; without one it
// has MAC addresses of zero.
func (f *Frame) MarshalEth() []byte {
	link := or(f.Link, Link{})
	etherType := uint16(0x0800)
	if f.IPv6() {
		etherType = 0x86DD
	}
	var w wireWriter
	w = append(w, link.Dst[:]...)
	w = append(w, link.Src[:]...)
	for _, tag := range link.Tags {
		if tag.TPID == 0 {
			tag.TPID = 0x8100
		}
		w.u16(tag.TPID)
		w.u16(tag.TCI)
	}
	w.u16(or(link.EtherType, etherType))
	return append(w, f.Marshal()...)
}
