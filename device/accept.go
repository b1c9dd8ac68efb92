package device

import (
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// accept is what the device checks of a packet for this queue pair before the
// engine sees it.
func (q *QP) accept(v *wire.View) wire.Fault {
	b := v.BTH()
	switch q.typ {
	case RC, UC, XRCIni, XRCTgt:
		if b.Opcode().Service() == bth.CNP {
			return q.acceptCNP(v)
		}
		if !q.serves(b.Opcode(), v.Info) {
			return wire.WrongService
		}
		if !q.attr.State.Receives() {
			return wire.QPState
		}
		if p := q.attr.Path; p == nil || v.Src() != p.Dst || v.Dst() != p.Src {
			return wire.WrongPeer
		}
	case UD, GSI:
		if b.Opcode().Service() != bth.UD {
			return wire.WrongService
		}
	default: // SMI, RAW_PACKET: no RoCE packet is for them
		return wire.NoQP
	}
	if q.typ == GSI {
		i, ok := q.dev.pkeyIndex(b.PKey())
		if !ok {
			return wire.PKey
		}
		q.gotPKey = uint16(i)
		return wire.OK
	}
	if !pkeyMatch(b.PKey(), q.attr.PKey) {
		return wire.PKey
	}
	return wire.OK
}

// acceptCNP takes a congestion notification from the peer of a connection.
func (q *QP) acceptCNP(v *wire.View) wire.Fault {
	p := q.attr.Path
	switch {
	case v.BTH().Opcode() != bth.CNPNotify:
		return wire.Ignored
	case p == nil || v.Src() != p.Dst || v.Dst() != p.Src:
		return wire.WrongPeer
	}
	return q.notified(q.dev.now())
}

// serves reports whether an opcode is of the service of a connection.
func (q *QP) serves(o bth.Opcode, i *bth.Info) bool {
	switch o.Service() {
	case bth.XRC:
		// A reserved opcode goes to the responder, which refuses it.
		return q.typ == XRCIni && i.Has(bth.Response) || q.typ == XRCTgt && !i.Has(bth.Response)
	case bth.RC:
		return q.typ == RC
	case bth.UC:
		return q.typ == UC
	}
	return q.typ == RC && !q.dev.opts.PlainAtomics && (o == bth.MaskedCompareSwap || o == bth.MaskedFetchAdd)
}
