package wire

import (
	"encoding/binary"

	"github.com/softnic/softnic/wire/icrc"
)

// A Sealer seals packets that follow each other, as those of a burst do: the IP and UDP header and its part of the ICRC
// are computed once for all that have one Path and one length. The zero value is ready. A Path must not be changed once a packet with
// it was sealed.
type Sealer struct {
	SrcPort uint16 // in place of each Path's; 0: those

	path  *Path // of the last packet; nil: there was none
	port  uint16
	ibLen int
	net   [MaxNetLen]byte // of it, with ID 0
	start icrc.State      // after that
}

// Seal is Packet.Seal.
func (s *Sealer) Seal(p *Packet, net []byte, id uint16, tail []byte) int {
	n := p.Path.NetLen()
	net = net[:n]
	if s.path != p.Path || s.ibLen != p.IBLen() || s.port != s.SrcPort {
		s.path, s.ibLen, s.port = p.Path, p.IBLen(), s.SrcPort
		path := *p.Path
		if s.SrcPort != 0 {
			path.SrcPort = s.SrcPort
		}
		path.PutNet(s.net[:n], 0, s.ibLen)
		s.start = icrc.StartNet(s.net[:n])
	}
	copy(net, s.net[:n])
	c := s.start
	if id != 0 && n == NetLen4 {
		PutIPID(net, id)
		c = c.WithID(id)
	}
	return p.finish(c, tail)
}

// finish adds what follows the UDP header to the ICRC, and writes pad and ICRC.
func (p *Packet) finish(s icrc.State, tail []byte) int {
	s.Transport(p.Head[:p.Len])
	for _, d := range p.Data {
		s.Update(d)
	}
	pad := tail[:p.Pad]
	clear(pad)
	s.Update(pad)
	s.Put(tail[p.Pad:])
	return p.Pad + ICRCLen
}

// A Checker checks packets that follow each other, as CheckICRC does: what the IP and UDP header does to the ICRC is computed once for
// all that differ in the ID alone. The zero value is ready.
type Checker struct {
	known bool
	net   [NetLen4]byte // of the last packet, with ID and checksum 0
	start icrc.State    // after that
}

// Check is CheckICRC.
func (c *Checker) Check(v *View) bool {
	if len(v.Net) != NetLen4 || v.IDKnown || len(v.IB) == 0 {
		return CheckICRC(v)
	}
	net := [NetLen4]byte(v.Net)
	given := binary.BigEndian.Uint16(net[4:])
	net[4], net[5], net[10], net[11] = 0, 0, 0, 0
	if !c.known || c.net != net {
		c.known, c.net, c.start = true, net, icrc.StartNet(net[:])
	}
	id, ok := icrc.SolveIDFrom(c.start.WithID(given), v.Net, v.IB)
	return v.solved(id, ok)
}
