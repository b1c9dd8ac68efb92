package wire

import (
	"bytes"

	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/icrc"
)

// Spec describes a whole packet, right or deliberately wrong, for Build. Tests,
// the scripted peer and tools use it; engines emit a Packet.
//
// The zero value of every field but Path is usable: an RC SEND FIRST without
// payload to QP 0.
type Spec struct {
	Eth    []byte // Ethernet header to begin with, see PutEthernet; empty: begin with the IP header
	Path   Path
	ID     uint16 // IPv4 identification
	UDPSum bool   // compute the UDP checksum instead of leaving it 0

	BTH     bth.Fields // Pad is set from the field Pad below
	Ext     bth.Ext    // the extended headers that the opcode has are written
	RawExt  []byte     // if not nil, stands instead of Ext, at any length
	Payload []byte
	Pad     []byte // pad bytes; nil: zeros up to a multiple of four

	// IB, if not nil, is the whole UDP payload, ICRC included, as it is to
	// stand there: of any length, nothing is computed for it.
	IB []byte

	// Edit, if not nil, changes the packet (from its IP header to its pad, or
	// to its end with IB) before IP checksum and ICRC are computed: lengths
	// that lie, a forged pad count, reserved bits, fragments.
	Edit func(packet []byte)

	// Trailer follows the packet, outside the IP length, as Ethernet padding does.
	Trailer []byte
}

// NewSpec returns the description of a packet as connection software sends it:
// default P_Key, MigReq set, the rest 0.
func NewSpec(path Path, op bth.Opcode, destQP uint32, psn bth.PSN) Spec {
	return Spec{Path: path, BTH: bth.Fields{Opcode: op, MigReq: true, PKey: 0xFFFF, DestQP: destQP, PSN: psn}}
}

// SpecOf returns the description of a received packet that was accepted or is
// faulty only from ReservedOpcode on. Build makes the same bytes of it, unless
// the packet has something that a Spec has no field for: IPv4 without DF, a TTL
// of 0, an IP length beyond the UDP length, a wrong ICRC. RawExt is set only
// where reserved bits of an extended header are, IB only for a reserved opcode.
// The description shares the packet's memory.
func SpecOf(v *View) Spec {
	udp := v.Net[len(v.Net)-udpLen:]
	s := Spec{
		Eth: v.Eth, Path: v.Path(), ID: v.ID(), UDPSum: udp[6]|udp[7] != 0,
		BTH: v.BTH().Fields(), Payload: v.Payload, Pad: v.Pad(),
	}
	if !v.Info.Known() {
		s.IB = v.IB
		return s
	}
	s.Ext = bth.ReadExt(v.IB, v.Info)
	ext := v.IB[bth.Len:v.Info.Len:v.Info.Len]
	if !bytes.Equal(ext, s.ext(v.Info)) {
		s.RawExt = ext
	}
	return s
}

// ext returns the bytes of the extended headers that table row i asks for.
func (s *Spec) ext(i *bth.Info) []byte {
	if !i.Known() {
		return nil
	}
	b := make([]byte, i.Len)
	s.Ext.Put(b, i)
	return b[bth.Len:]
}

// Build returns the bytes of the packet that s describes: from the Ethernet
// header on if there is one, else from the IP header. IP lengths, IP checksum
// and ICRC are right unless Edit, IB or RawExt see to it that they are not; to
// break a checksum or the ICRC, change the bytes that Build returned.
func Build(s *Spec) []byte {
	f := s.BTH
	ext := s.RawExt
	if ext == nil {
		ext = s.ext(f.Opcode.Info())
	}
	pad := s.Pad
	if pad == nil {
		pad = make([]byte, -len(s.Payload)&3)
	}
	f.Pad = len(pad)

	start, net := len(s.Eth), s.Path.NetLen()
	ibLen := len(s.IB)
	if s.IB == nil {
		ibLen = bth.Len + len(ext) + len(s.Payload) + len(pad) + ICRCLen
	}
	frame := make([]byte, start+net, start+net+ibLen+len(s.Trailer))
	copy(frame, s.Eth)
	s.Path.PutNet(frame[start:], s.ID, ibLen)
	if s.IB != nil {
		frame = append(frame, s.IB...)
	} else {
		frame = frame[:len(frame)+bth.Len]
		bth.BTH(frame[start+net:]).Encode(&f)
		frame = append(append(append(frame, ext...), s.Payload...), pad...)
	}
	packet := frame[start:]
	if s.Edit != nil {
		s.Edit(packet)
		PutIPChecksum(packet)
	}
	if s.IB == nil {
		c := icrc.Start(packet[:net], packet[net:])
		frame = frame[:len(frame)+ICRCLen]
		c.Put(frame[len(frame)-ICRCLen:])
		packet = frame[start:]
	}
	if s.UDPSum {
		PutUDPChecksum(packet[:net], packet[net:])
	}
	return append(frame, s.Trailer...)
}
