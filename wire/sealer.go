package wire

import (
	"encoding/binary"

	"github.com/softnic/softnic/wire/icrc"
)

// remembered is how many packets a Sealer or a Checker compares one with, by lengths: requests and acknowledgements take turns.
const remembered = 8

func place(ibLen int) int { return (ibLen>>2 ^ ibLen>>4) % remembered }

// A Sealer seals packets that follow each other, as those of a burst do: the IP and UDP header and its part of the ICRC
// are computed once for all that have one Path and one length. The zero value is ready. A Path must not be changed once a packet with
// it was sealed.
type Sealer struct {
	SrcPort uint16 // in place of each Path's; 0: those

	last [remembered]sealed
}

// sealed is what is known of a packet.
type sealed struct {
	path  *Path // nil: there was none
	port  uint16
	ibLen int
	net   [MaxNetLen]byte // of it, with ID 0
	start icrc.State      // after that
}

// Seal is Packet.Seal.
func (s *Sealer) Seal(p *Packet, net []byte, id uint16, ib []byte) int {
	n, ibLen := p.Path.NetLen(), p.IBLen()
	net = net[:n]
	l := &s.last[place(ibLen)]
	if l.path != p.Path || l.ibLen != ibLen || l.port != s.SrcPort {
		l.path, l.ibLen, l.port = p.Path, ibLen, s.SrcPort
		path := *p.Path
		if s.SrcPort != 0 {
			path.SrcPort = s.SrcPort
		}
		path.PutNet(l.net[:n], 0, ibLen)
		l.start = icrc.StartNet(l.net[:n])
	}
	copy(net, l.net[:n])
	c := l.start
	if id != 0 && n == NetLen4 {
		PutIPID(net, id)
		c = c.WithID(id)
	}
	return p.finish(c, ib)
}

// copiedFirst is how long a payload is at most that is copied before the ICRC is computed, in one go; what is longer is read once for both.
const copiedFirst = 511

// finish writes what follows the UDP header, after which the ICRC is s, and returns how much that is.
func (p *Packet) finish(s icrc.State, ib []byte) int {
	n := copy(ib, p.Head[:p.Len])
	if p.Size <= copiedFirst {
		for _, d := range p.Data {
			n += copy(ib[n:], d)
		}
		clear(ib[n : n+p.Pad])
		n += p.Pad
		s.Transport(ib[:n])
	} else {
		s.Transport(ib[:n])
		for _, d := range p.Data {
			s.Copy(ib[n:], d)
			n += len(d)
		}
		clear(ib[n : n+p.Pad])
		s.Update(ib[n : n+p.Pad])
		n += p.Pad
	}
	s.Put(ib[n:])
	return n + ICRCLen
}

// A Checker checks packets that follow each other, as CheckICRC does: what the IP and UDP header does to the ICRC is computed once for
// all that differ in the ID alone. The zero value is ready.
type Checker struct {
	last [remembered]checked
}

// checked is what is known of a packet.
type checked struct {
	known bool
	net   [NetLen4]byte // with ID and checksum 0
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
	l := &c.last[place(len(v.IB))]
	if !l.known || l.net != net {
		l.known, l.net, l.start = true, net, icrc.StartNet(net[:])
	}
	id, ok := icrc.SolveIDFrom(l.start.WithID(given), v.Net, v.IB)
	return v.solved(id, ok)
}
