package link

import (
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/icrc"
)

// rdma_rxe of Linux (6.12, and since it has FLUSH) counts the transport headers of a
// FLUSH twice in its ICRC: once masked, as in every packet, and once more as they stand,
// where it takes them for the payload. It drops a FLUSH with any other ICRC. With
// PortOptions.RxeFlushICRC a port does so too.

const (
	rxeFlush    = bth.Opcode(bth.RC) | bth.Opcode(bth.Flush)
	rxeFlushLen = bth.Len + 4 + 16 // BTH, FETH, RETH; nothing follows but the ICRC
)

// sealRxeFlush replaces the ICRC of a sealed frame, if it is a FLUSH, by that of rdma_rxe.
func (f *Frame) sealRxeFlush() {
	if bth.Opcode(f.IB[0]) != rxeFlush || len(f.IB) != rxeFlushLen+icrc.Len {
		return
	}
	s := icrc.Start(f.Net, f.IB[:rxeFlushLen])
	s.Update(f.IB[:rxeFlushLen])
	s.Put(f.IB[rxeFlushLen:])
}

// takesRxeFlush reports whether a view, whose ICRC is wrong, is a FLUSH with that of
// rdma_rxe. It solves for an unknown IP ID as wire.CheckICRC does, which it asks about the
// packet that rdma_rxe has computed the ICRC of.
func takesRxeFlush(v *wire.View) bool {
	if len(v.IB) != rxeFlushLen+icrc.Len || bth.Opcode(v.IB[0]) != rxeFlush {
		return false
	}
	twice := *v
	twice.IB = append(append(make([]byte, 0, 2*rxeFlushLen+icrc.Len), v.IB[:rxeFlushLen]...), v.IB...)
	if !wire.CheckICRC(&twice) {
		return false
	}
	v.IDKnown = twice.IDKnown
	return true
}
