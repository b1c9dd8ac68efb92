package transport

import (
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// segments gives the operations of the packets of a message: first, middle, last, only.
type segments [4]bth.Operation

var segmentsOf = [256]*segments{ // by WROp
	OpSend:     {bth.SendFirst, bth.SendMiddle, bth.SendLast, bth.SendOnly},
	OpSendImm:  {bth.SendFirst, bth.SendMiddle, bth.SendLastImm, bth.SendOnlyImm},
	OpSendInv:  {bth.SendFirst, bth.SendMiddle, bth.SendLastInv, bth.SendOnlyInv},
	OpWrite:    {bth.WriteFirst, bth.WriteMiddle, bth.WriteLast, bth.WriteOnly},
	OpWriteImm: {bth.WriteFirst, bth.WriteMiddle, bth.WriteLastImm, bth.WriteOnlyImm},
}

// Segmented reports whether an operation is sent as the packets of a message: SEND and WRITE of all kinds.
func Segmented(op WROp) bool { return segmentsOf[op] != nil }

// Segment returns the operation of packet i, from 0 on, of the n packets of a message. op is Segmented.
func Segment(op WROp, i, n int) bth.Operation {
	s := segmentsOf[op]
	switch {
	case n == 1:
		return s[3]
	case i == 0:
		return s[0]
	case i == n-1:
		return s[2]
	}
	return s[1]
}

// Packets returns how many packets a message of length bytes takes at a path MTU of mtu bytes: one also when it is
// empty.
func Packets(length uint64, mtu int) int {
	return max(1, int((length+uint64(mtu)-1)/uint64(mtu)))
}

// Consumes reports whether an operation takes a receive of the peer.
func (o WROp) Consumes() bool {
	switch o {
	case OpSend, OpSendImm, OpWriteImm, OpSendInv:
		return true
	}
	return false
}

// PutSegment writes the extended headers of a packet with operation op of a message.
func PutSegment(ext []byte, op bth.Operation, wr *SendWR) {
	switch op {
	case bth.WriteFirst, bth.WriteOnly, bth.WriteOnlyImm:
		bth.RETH(ext).Put(wr.RemoteAddr, wr.RKey, uint32(wr.Len()))
		ext = ext[16:]
	}
	if len(ext) == 4 {
		bth.ImmDt(ext).Put(wr.Imm) // or the IETH, of the same form
	}
}

// ExecuteLocal executes a request that sends nothing; false if that is not possible.
func ExecuteLocal(h Host, wr *SendWR) bool {
	switch wr.Op {
	case OpLocalInv:
		return h.Invalidate(wr.Imm, false)
	case OpBindMW:
		return h.Bind(&wr.Bind)
	case OpRegMR:
		return h.Register(&wr.Reg)
	}
	return false
}

// Gather adds bytes [from, from+n) of a message to the last packet of a list, looking each key up
// again.
func Gather(h Host, l *TxList, wr *SendWR, from uint64, n int) Status {
	if wr.Flags&Inline != 0 {
		l.Packets()[l.n-1].Copy(wr.InlineData[from : from+uint64(n)])
		return StatusSuccess
	}
	for i := range wr.SGE {
		s := &wr.SGE[i]
		if n == 0 {
			break
		}
		if from >= uint64(s.Length) {
			from -= uint64(s.Length)
			continue
		}
		k := min(n, int(uint64(s.Length)-from))
		if !l.gatherHeld(h, s.LKey, s.Addr+from, k) {
			reg, st := h.Local(nil, s.LKey, s.Addr+from, k, 0)
			if st != StatusSuccess {
				return st
			}
			l.Gather(reg, s.Addr+from, k)
		}
		n -= k
		from = 0
	}
	return StatusSuccess
}

// Message is what a responder is in the middle of.
type Message uint8

// The messages that have more than one packet.
const (
	NoMessage Message = iota // in none
	InSend                   // in a SEND
	InWrite                  // in a WRITE
)

// InSequence reports whether an opcode may follow: a message that has begun
// goes on with its own kind, and nothing goes on that has not begun.
func (m Message) InSequence(f bth.Flags) bool {
	switch m {
	case InSend:
		return f&bth.Send != 0 && f&bth.Start == 0
	case InWrite:
		return f&bth.Write != 0 && f&bth.Start == 0
	}
	return f&bth.Start != 0
}

// GoodLength checks the payload of a packet against the path MTU and its pad against the
// payload.
func GoodLength(v *wire.View, mtu int) bool {
	n := len(v.Payload)
	f := v.Info.Flags
	switch {
	case v.BTH().Pad() != -n&3:
		return false
	case f&bth.FullMTU != 0:
		return n == mtu
	case f&bth.Start == 0:
		return n >= 1 && n <= mtu
	}
	return n <= mtu
}

// Immediate copies the immediate data of a packet, if any, into a completion.
func Immediate(wc *WC, v *wire.View) {
	if h := v.Header(bth.HImmDt); h != nil {
		wc.Imm, wc.Flags = bth.ImmDt(h).Data(), wc.Flags|WCWithImm
	}
}
