package layers

import (
	"encoding/binary"
	"errors"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/icrc"
)

// Stack holds one layer of each kind, for decoding many packets without
// allocation:
//
//	var s roce.Stack
//	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip4, &ip6, &udp)
//	for _, l := range s.Layers() {
//		parser.AddDecodingLayer(l)
//	}
//
// The zero value is ready for use. A Stack must not be copied after Layers.
type Stack struct {
	BTH             BTH
	RDETH           RDETH
	DETH            DETH
	XRCETH          XRCETH
	RETH            RETH
	AtomicETH       AtomicETH
	AETH            AETH
	AtomicAckETH    AtomicAckETH
	ImmDt           ImmDt
	IETH            IETH
	FETH            FETH
	CNP             CNP
	MaskedAtomicETH MaskedAtomicETH
	Payload         Payload
	ICRC            ICRC
}

// Layers links the layers to the BTH and returns them.
func (s *Stack) Layers() []gopacket.DecodingLayer {
	all := []layer{
		&s.BTH, &s.RDETH, &s.DETH, &s.XRCETH, &s.RETH, &s.AtomicETH, &s.AETH, &s.AtomicAckETH,
		&s.ImmDt, &s.IETH, &s.FETH, &s.CNP, &s.MaskedAtomicETH, &s.Payload, &s.ICRC,
	}
	list := make([]gopacket.DecodingLayer, len(all))
	for i, l := range all {
		l.link(&s.BTH)
		list[i] = l
	}
	return list
}

// CheckICRC reports whether a decoded packet has a BTH, stands in one piece in
// IPv4 without options or IPv6 without extension headers, and has the right ICRC.
func CheckICRC(p gopacket.Packet) bool {
	b, ok := p.Layer(LayerTypeBTH).(*BTH)
	if !ok {
		return false
	}
	ip, udp := p.NetworkLayer(), p.TransportLayer()
	if ip == nil || udp == nil {
		return false
	}
	var net [wire.MaxNetLen]byte
	n := len(ip.LayerContents()) + len(udp.LayerContents())
	if n != wire.NetLen4 && n != wire.NetLen6 {
		return false
	}
	copy(net[copy(net[:], ip.LayerContents()):], udp.LayerContents())
	ib := udp.LayerPayload()
	return len(ib) != 0 && &ib[0] == &b.Contents[0] && icrc.Check(net[:n], ib)
}

// Serialize is gopacket.SerializeLayers for a RoCEv2 packet, which begins with
// an Ethernet or an IP layer and ends with an ICRC. It links the layers to the
// BTH among them; with FixLengths the pad is computed too, and with
// ComputeChecksums the IPv4 header checksum and the ICRC, while the UDP
// checksum stays what the UDP layer says: 0, as RoCEv2 senders have it.
func Serialize(buf gopacket.SerializeBuffer, opts gopacket.SerializeOptions, list ...gopacket.SerializableLayer) error {
	var base *BTH
	for _, l := range list {
		if b, ok := l.(*BTH); ok {
			base = b
		}
	}
	for _, l := range list {
		if l, ok := l.(layer); ok {
			l.link(base)
		}
	}
	check := opts.ComputeChecksums
	opts.ComputeChecksums = false
	if err := gopacket.SerializeLayers(buf, opts, list...); err != nil || !check {
		return err
	}
	icrcLayer, ok := list[len(list)-1].(*ICRC)
	if !ok {
		return errors.New("the last layer is not an ICRC")
	}
	net, ib, err := headers(buf.Bytes(), list[0].LayerType() == layers.LayerTypeEthernet)
	if err != nil {
		return err
	}
	wire.PutIPChecksum(net)
	n := len(ib) - wire.ICRCLen
	s := icrc.Start(net, ib[:n])
	s.Put(ib[n:])
	icrcLayer.Sum = s.Sum()
	return nil
}

// headers returns IP and UDP header, and the UDP payload, of a frame that may
// have wrong checksums.
func headers(frame []byte, ethernet bool) (net, ib []byte, err error) {
	packet := frame
	if ethernet && len(frame) >= wire.EthVLANLen {
		packet = frame[wire.EthLen:]
		if binary.BigEndian.Uint16(frame[12:]) == wire.EtherTypeVLAN {
			packet = frame[wire.EthVLANLen:]
		}
	}
	n := 0
	switch {
	case len(packet) >= wire.NetLen4 && packet[0] == 0x45:
		n = wire.NetLen4
	case len(packet) >= wire.NetLen6 && packet[0]>>4 == 6:
		n = wire.NetLen6
	default:
		return nil, nil, errors.New("neither IPv4 without options nor IPv6")
	}
	net, ib = packet[:n], packet[n:]
	udp := int(binary.BigEndian.Uint16(net[n-4:])) - 8
	if udp < 16 || udp > len(ib) {
		return nil, nil, errors.New("the UDP length does not fit; FixLengths sets it")
	}
	return net, ib[:udp], nil
}
