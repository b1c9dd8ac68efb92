package peer

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Want is one thing that Expect asks of a frame.
type Want struct {
	name  string
	check func(f *Frame) (got, want string, ok bool)
}

// Expect waits for the next RoCE frame, as Next does, and compares it with
// everything that is wanted. What is not named is not looked at. It returns the
// frame, for questions that no Want asks.
func (p *Peer) Expect(t testing.TB, wants ...Want) *Frame {
	t.Helper()
	f := p.Next(t)
	if diff := Diff(f, wants...); diff != "" {
		t.Fatalf("peer: not the frame that was expected:\n%s  frame: %v%s", diff, f, p.recent())
	}
	return f
}

// Diff compares a frame with what is wanted: one line for each field that differs,
// empty if none does.
func Diff(f *Frame, wants ...Want) string {
	var b strings.Builder
	for _, w := range wants {
		if got, want, ok := w.check(f); !ok {
			fmt.Fprintf(&b, "  %-10s got %s\n  %-10s want %s\n", w.name, got, "", want)
		}
	}
	return b.String()
}

// field makes a Want of a field, printed with format. It holds only if the frame
// has all the headers named.
func field[T comparable](name, format string, need Headers, get func(f *Frame) T, want T) Want {
	return Want{name, func(f *Frame) (string, string, bool) {
		wanted := fmt.Sprintf(format, want)
		if !f.HeaderSet().Has(need) {
			return fmt.Sprintf("no %v", need), wanted, false
		}
		got := get(f)
		return fmt.Sprintf(format, got), wanted, got == want
	}}
}

// WantOp asks for the opcode.
func WantOp(op Op) Want {
	return field("opcode", "%v", 0, func(f *Frame) Op { return f.Op }, op)
}

// WantPSN asks for the PSN; numbers beyond 24 bits wrap.
func WantPSN(psn uint32) Want {
	return field("psn", "0x%06x", 0, func(f *Frame) uint32 { return f.PSN }, psn&0xFFFFFF)
}

// WantDestQP asks for the destination queue pair.
func WantDestQP(qp uint32) Want {
	return field("destqp", "0x%06x", 0, func(f *Frame) uint32 { return f.DestQP }, qp)
}

// WantAckReq asks for the acknowledge-request bit.
func WantAckReq(on bool) Want {
	return field("ackreq", "%v", 0, func(f *Frame) bool { return f.AckReq }, on)
}

// WantSolicited asks for the solicited-event bit.
func WantSolicited(on bool) Want {
	return field("solicited", "%v", 0, func(f *Frame) bool { return f.SE }, on)
}

// WantMigrated asks for the MigReq bit.
func WantMigrated(on bool) Want {
	return field("migreq", "%v", 0, func(f *Frame) bool { return f.Migrated }, on)
}

// WantPKey asks for the P_Key.
func WantPKey(pkey uint16) Want {
	return field("pkey", "0x%04x", 0, func(f *Frame) uint16 { return f.PKey }, pkey)
}

// WantBECN asks for the BECN bit.
func WantBECN(on bool) Want {
	return field("becn", "%v", 0, func(f *Frame) bool { return f.BECN }, on)
}

// WantTOS asks for the whole TOS or traffic class byte.
func WantTOS(tos uint8) Want {
	return field("tos", "0x%02x", 0, func(f *Frame) uint8 { return f.TOS }, tos)
}

// WantTTL asks for the TTL or hop limit.
func WantTTL(ttl uint8) Want {
	return field("ttl", "%d", 0, func(f *Frame) uint8 { return f.TTL }, ttl)
}

// WantSrcPort asks for the UDP source port.
func WantSrcPort(port uint16) Want {
	return field("srcport", "0x%04x", 0, func(f *Frame) uint16 { return f.SrcPort }, port)
}

// WantSrc asks for the source address.
func WantSrc(a netip.Addr) Want {
	return field("src", "%v", 0, func(f *Frame) netip.Addr { return f.Src }, a.Unmap())
}

// WantDst asks for the destination address.
func WantDst(a netip.Addr) Want {
	return field("dst", "%v", 0, func(f *Frame) netip.Addr { return f.Dst }, a.Unmap())
}

// WantSyndrome asks for the syndrome of the AETH.
func WantSyndrome(s Syndrome) Want {
	return field("syndrome", "%v", HasAETH, func(f *Frame) Syndrome { return f.AETH.Syndrome }, s)
}

// WantMSN asks for the MSN of the AETH; numbers beyond 24 bits wrap.
func WantMSN(msn uint32) Want {
	return field("msn", "%d", HasAETH, func(f *Frame) uint32 { return f.AETH.MSN }, msn&0xFFFFFF)
}

// WantVA asks for the virtual address of a RETH, AtomicETH or MaskedETH.
func WantVA(va uint64) Want {
	return memory("va", "0x%x", va,
		func(f *Frame) uint64 { return f.RETH.VA },
		func(f *Frame) uint64 { return f.Atomic.VA },
		func(f *Frame) uint64 { return f.Masked.VA })
}

// WantRKey asks for the R_Key of a RETH, AtomicETH or MaskedETH.
func WantRKey(rkey uint32) Want {
	return memory("rkey", "0x%08x", rkey,
		func(f *Frame) uint32 { return f.RETH.RKey },
		func(f *Frame) uint32 { return f.Atomic.RKey },
		func(f *Frame) uint32 { return f.Masked.RKey })
}

// memory is field for what three headers have.
func memory[T comparable](name, format string, want T, reth, atomic, masked func(f *Frame) T) Want {
	return Want{name, func(f *Frame) (string, string, bool) {
		switch set := f.HeaderSet(); {
		case set.Has(HasRETH):
			return field(name, format, 0, reth, want).check(f)
		case set.Has(HasAtomicETH):
			return field(name, format, 0, atomic, want).check(f)
		default:
			return field(name, format, HasMaskedETH, masked, want).check(f)
		}
	}}
}

// WantDMALen asks for the length in the RETH.
func WantDMALen(n uint32) Want {
	return field("dmalen", "%d", HasRETH, func(f *Frame) uint32 { return f.RETH.Len }, n)
}

// WantSwapAdd asks for the swap or add operand.
func WantSwapAdd(v uint64) Want {
	return field("swapadd", "0x%x", HasAtomicETH, func(f *Frame) uint64 { return f.Atomic.SwapAdd }, v)
}

// WantCompare asks for the compare operand.
func WantCompare(v uint64) Want {
	return field("compare", "0x%x", HasAtomicETH, func(f *Frame) uint64 { return f.Atomic.Compare }, v)
}

// WantOrig asks for the original value in an ATOMIC Acknowledge.
func WantOrig(v uint64) Want {
	return field("orig", "0x%x", HasAtomicAckETH, func(f *Frame) uint64 { return f.Orig }, v)
}

// WantImm asks for the immediate, 0x89abcdef for the bytes 89 ab cd ef.
func WantImm(v uint32) Want {
	return field("imm", "0x%08x", HasImmDt, func(f *Frame) uint32 { return f.Imm }, v)
}

// WantInvKey asks for the key that is to be invalidated.
func WantInvKey(v uint32) Want {
	return field("inv", "0x%08x", HasIETH, func(f *Frame) uint32 { return f.InvKey }, v)
}

// WantQKey asks for the Q_Key of a datagram.
func WantQKey(v uint32) Want {
	return field("qkey", "0x%08x", HasDETH, func(f *Frame) uint32 { return f.DETH.QKey }, v)
}

// WantSrcQP asks for the source queue pair of a datagram.
func WantSrcQP(v uint32) Want {
	return field("srcqp", "0x%06x", HasDETH, func(f *Frame) uint32 { return f.DETH.SrcQP }, v)
}

// WantSRQN asks for the SRQ number of an XRC request.
func WantSRQN(v uint32) Want {
	return field("srqn", "0x%x", HasXRCETH, func(f *Frame) uint32 { return f.XRCETH.SRQN }, v)
}

// WantLen asks for the length of the payload.
func WantLen(n int) Want {
	return field("len", "%d", 0, func(f *Frame) int { return len(f.Payload) }, n)
}

// WantPayload asks for the payload, byte for byte.
func WantPayload(want []byte) Want {
	return Want{"payload", func(f *Frame) (string, string, bool) {
		if bytes.Equal(f.Payload, want) {
			return "", "", true
		}
		at := 0
		for at < len(want) && at < len(f.Payload) && want[at] == f.Payload[at] {
			at++
		}
		return window(f.Payload, at), window(want, at), false
	}}
}

// window prints some bytes around the first that differs.
func window(b []byte, at int) string {
	from := max(0, at-4)
	to := min(len(b), at+12)
	return fmt.Sprintf("%d bytes, differing at %d, there from %d: % x", len(b), at, from, b[min(from, to):to])
}

// all joins Wants that are one statement.
func all(name string, wants ...Want) Want {
	return Want{name, func(f *Frame) (string, string, bool) {
		var gots, wanted []string
		ok := true
		for _, w := range wants {
			got, want, same := w.check(f)
			gots, wanted = append(gots, w.name+" "+got), append(wanted, w.name+" "+want)
			ok = ok && same
		}
		return strings.Join(gots, ", "), strings.Join(wanted, ", "), ok
	}}
}

// WantAck asks for an RC Acknowledge of this PSN without a credit limit.
func WantAck(psn uint32) Want { return WantNak(psn, SynAck) }

// WantNak asks for an RC Acknowledge with this syndrome and PSN.
func WantNak(psn uint32, s Syndrome) Want {
	return all("answer", WantOp(OpAck), WantPSN(psn), WantSyndrome(s))
}

// WantThat asks whatever the function asks; the error it returns is what the
// failure says.
func WantThat(name string, check func(f *Frame) error) Want {
	return Want{name, func(f *Frame) (string, string, bool) {
		if err := check(f); err != nil {
			return err.Error(), name, false
		}
		return "", "", true
	}}
}
