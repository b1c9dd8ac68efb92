package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrNotRoCE is returned for a packet that is not UDP to port 4791: other
// traffic, to be passed over. Any other error of Parse is about a RoCE packet
// that is malformed.
var ErrNotRoCE = errors.New("peer: not a RoCEv2 packet")

func malformed(format string, args ...any) error {
	return fmt.Errorf("peer: malformed RoCEv2 packet: "+format, args...)
}

// Parse reads a packet from the IP header on. The UDP length says where it ends;
// what follows becomes the Trailer. It checks what has to hold for the fields to
// be found at all, and nothing else: a wrong ICRC, checksum or IP length is kept
// as an override (see [Frame.Irregular]), an unknown opcode has no headers and all
// is payload. Marshal of the result gives back the same bytes.
func Parse(ip []byte) (*Frame, error) {
	f := &Frame{}
	udpAt, err := f.readIP(ip)
	if err != nil {
		return nil, err
	}
	r := wireReader(ip[udpAt:])
	f.SrcPort, f.DstPort = r.u16(), r.u16()
	if f.DstPort != Port {
		return nil, ErrNotRoCE
	}
	udpLen := int(r.u16())
	f.UDPChecksum = r.u16()
	if have := len(ip) - udpAt; udpLen > have {
		return nil, malformed("UDP length %d, but only %d bytes are there", udpLen, have)
	}
	const least = 8 + 12 + 4
	if udpLen < least {
		return nil, malformed("UDP length %d, BTH and ICRC need %d", udpLen, least)
	}
	end := udpAt + udpLen
	f.Trailer = nonEmpty(ip[end:])
	if err := f.readTransport(wireReader(ip[udpAt+8 : end-4])); err != nil {
		return nil, err
	}
	f.settle(ip[:end], udpLen)
	return f, nil
}

// ParseEth is Parse for a packet with an Ethernet header, tagged or not.
func ParseEth(frame []byte) (*Frame, error) {
	if len(frame) < 14 {
		return nil, ErrNotRoCE
	}
	r := wireReader(frame)
	link := &Link{}
	link.Dst, link.Src = [6]byte(r[:6]), [6]byte(r[6:12])
	r = r[12:]
	etherType := r.u16()
	for etherType == 0x8100 || etherType == 0x88A8 {
		if len(r) < 4 {
			return nil, ErrNotRoCE
		}
		link.Tags = append(link.Tags, Tag{TPID: etherType, TCI: r.u16()})
		etherType = r.u16()
	}
	if etherType != 0x0800 && etherType != 0x86DD {
		return nil, ErrNotRoCE
	}
	f, err := Parse(r)
	if err != nil {
		return nil, err
	}
	if (etherType == 0x86DD) != f.IPv6() {
		link.EtherType = &etherType
	}
	f.Link = link
	return f, nil
}

// readIP takes the IP header off and returns where the UDP header starts.
func (f *Frame) readIP(ip []byte) (udpAt int, err error) {
	v6, udpAt, ok := ipLayout(ip)
	if !ok {
		return 0, ErrNotRoCE
	}
	r := wireReader(ip)
	if v6 {
		first := r.u32()
		f.TOS, f.FlowLabel = uint8(first>>20), first&0xFFFFF
		f.IPLength = new(r.u16())
		if r.u8() != 17 {
			return 0, ErrNotRoCE
		}
		f.TTL = r.u8()
		f.Src, f.Dst = netip.AddrFrom16([16]byte(r[:16])), netip.AddrFrom16([16]byte(r[16:32]))
		if f.Src.Is4In6() || f.Dst.Is4In6() {
			return 0, malformed("IPv4-mapped address in an IPv6 header")
		}
		return udpAt, nil
	}
	r.u8()
	f.TOS = r.u8()
	f.IPLength = new(r.u16())
	f.ID = r.u16()
	flags := r.u16()
	f.EvilBit, f.DF, f.MF = flags&0x8000 != 0, flags&0x4000 != 0, flags&0x2000 != 0
	f.FragOffset = flags & 0x1FFF
	f.TTL = r.u8()
	if r.u8() != 17 || f.FragOffset != 0 {
		return 0, ErrNotRoCE
	}
	f.IPChecksum = new(r.u16())
	f.Src, f.Dst = netip.AddrFrom4([4]byte(r[:4])), netip.AddrFrom4([4]byte(r[4:8]))
	f.IPOptions = nonEmpty(ip[20:udpAt])
	return udpAt, nil
}

// readTransport reads BTH to pad.
func (f *Frame) readTransport(r wireReader) error {
	f.Op = Op(r.u8())
	b := r.u8()
	f.SE, f.Migrated, f.TVer = b&0x80 != 0, b&0x40 != 0, b&15
	padCount := int(b >> 4 & 3)
	f.PKey = r.u16()
	b = r.u8()
	f.FECN, f.BECN, f.Resv6 = b&0x80 != 0, b&0x40 != 0, b&63
	f.DestQP = r.u24()
	b = r.u8()
	f.AckReq, f.Resv7 = b&0x80 != 0, b&127
	f.PSN = r.u24()

	need := f.Op.Headers().Len() + padCount
	if len(r) < need {
		return malformed("%v: %d bytes behind the BTH, headers and pad need %d", f.Op, len(r), need)
	}
	f.readHeaders(&r, f.Op.Headers())
	n := len(r) - padCount
	f.Payload = nonEmpty(r[:n])
	padding := r[n:]
	if padCount != -n&3 || slices.ContainsFunc(padding, func(b byte) bool { return b != 0 }) {
		f.PadBytes = append([]byte{}, padding...)
	}
	return nil
}

// settle drops the overrides that say what Marshal would say anyway. packet ends
// with the ICRC.
func (f *Frame) settle(packet []byte, udpLen int) {
	covered, found := packet[:len(packet)-4], [4]byte(packet[len(packet)-4:])
	if ICRC(covered) != found {
		f.ICRC = &found
	}
	ipLength, ipChecksum := f.IPLength, f.IPChecksum
	f.IPLength, f.IPChecksum = nil, nil
	auto := f.ipHeader(udpLen)
	at := 2
	if f.IPv6() {
		at = 4
	}
	if *ipLength != auto.u16At(at) {
		f.IPLength = ipLength
		auto = f.ipHeader(udpLen) // the checksum covers it
	}
	if ipChecksum != nil && *ipChecksum != auto.u16At(10) {
		f.IPChecksum = ipChecksum
	}
}

// nonEmpty is a copy of b, nil if it is empty.
func nonEmpty(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return slices.Clone(b)
}
