package rules

import (
	"encoding/binary"
	"net/netip"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// cmState joins the two messages of a CM exchange that tell of a connection: the REQ
// has the queue pair of the active side, the REP that of the passive side. The ACK timeout is not
// taken from them: each side works its own out of several fields, and programs overrule it.
type cmState struct {
	reqs [64]cmReq // the last ones
	at   int
}

type cmReq struct {
	valid   bool
	id      uint32 // communication ID of the active side
	from    netip.Addr
	qpn     uint32
	mtu     int
	retries int
}

const (
	madLen  = 256
	madHead = 24
	attrREQ = 0x0010
	attrREP = 0x0013
	cmClass = 0x07
)

// packet looks at a datagram to QP 1. Offsets are those of roce.md F.3, from the end of
// the MAD header.
func (s *cmState) packet(c *Checker, v *wire.View) {
	b := v.Payload
	if len(b) < madLen || b[1] != cmClass || v.BTH().Opcode() != bth.UDSendOnly {
		return
	}
	attr, m := binary.BigEndian.Uint16(b[16:]), b[madHead:]
	switch attr {
	case attrREQ:
		r := cmReq{valid: true, id: binary.BigEndian.Uint32(m), from: v.Src(), qpn: binary.BigEndian.Uint32(m[32:]) >> 8}
		if code := int(m[50] >> 4); code >= 1 && code <= 5 {
			r.mtu = 128 << code
		}
		r.retries = known0(int(m[47]) & 7)
		for i := range s.reqs {
			if x := &s.reqs[i]; x.valid && x.id == r.id && x.from == r.from {
				*x = r // sent again
				return
			}
		}
		s.reqs[s.at%len(s.reqs)] = r
		s.at++
	case attrREP:
		id := binary.BigEndian.Uint32(m[4:])
		for i := range s.reqs {
			x := &s.reqs[i]
			if !x.valid || x.id != id || x.from != v.Dst() {
				continue
			}
			// The REP has what was agreed: responder resources (24) are those of
			// the passive side, initiator depth (25) is its own.
			c.learnConnection(&Connection{
				A:   End{x.from, x.qpn, Attr{Depth: known0(int(m[24])), RetryCnt: x.retries}},
				B:   End{v.Src(), binary.BigEndian.Uint32(m[12:]) >> 8, Attr{Depth: known0(int(m[25])), RetryCnt: x.retries}},
				MTU: x.mtu,
			})
			x.valid = false
			c.restart(x.from, x.qpn)
			return
		}
	}
}

// restart forgets what the two queue pairs of a known connection did before: they serve a new one.
func (c *Checker) restart(addr netip.Addr, qpn uint32) {
	a := endKey{addr, qpn}
	b := c.known[a].peer
	for _, service := range []bth.Service{bth.RC, bth.UC, bth.XRC} {
		for _, k := range []flowKey{{b.addr, a.addr, a.qpn, service}, {a.addr, b.addr, b.qpn, service}} {
			if f := c.flows[k]; f != nil {
				c.drop(f)
			}
		}
	}
}

// known0 is a value of which 0 means none, as Attr has it.
func known0(n int) int {
	if n == 0 {
		return -1
	}
	return n
}
