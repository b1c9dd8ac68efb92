package peer

import (
	"fmt"
	"strings"
)

// String is the frame in one line: opcode, queue pair, PSN, the headers that the
// opcode has, the payload length, and whatever is irregular.
func (f *Frame) String() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("%v qp=0x%06x psn=0x%06x", f.Op, f.DestQP, f.PSN)
	for _, flag := range []struct {
		on   bool
		name string
	}{{f.AckReq, "ackreq"}, {f.SE, "solicited"}, {f.FECN, "fecn"}, {f.BECN, "becn"}, {f.ECN() == 3, "ce"}} {
		if flag.on {
			say(" %s", flag.name)
		}
	}
	has := f.HeaderSet()
	if has.Has(HasRDETH) {
		say(" eec=0x%x", f.RDETH.EEC)
	}
	if has.Has(HasDETH) {
		say(" qkey=0x%08x srcqp=0x%06x", f.DETH.QKey, f.DETH.SrcQP)
	}
	if has.Has(HasXRCETH) {
		say(" srqn=0x%x", f.XRCETH.SRQN)
	}
	if has.Has(HasFETH) {
		say(" sel=%d plt=%d", f.FETH.Sel, f.FETH.PLT)
	}
	if has.Has(HasRETH) {
		say(" va=0x%x rkey=0x%08x dmalen=%d", f.RETH.VA, f.RETH.RKey, f.RETH.Len)
	}
	if has.Has(HasAtomicETH) {
		say(" va=0x%x rkey=0x%08x swapadd=0x%x compare=0x%x", f.Atomic.VA, f.Atomic.RKey, f.Atomic.SwapAdd, f.Atomic.Compare)
	}
	if has.Has(HasMaskedETH) {
		say(" va=0x%x rkey=0x%08x swap=0x%x/0x%x compare=0x%x/0x%x", f.Masked.VA, f.Masked.RKey,
			f.Masked.Swap, f.Masked.SwapMask, f.Masked.Compare, f.Masked.CompareMask)
	}
	if has.Has(HasAETH) {
		say(" syndrome=%v msn=%d", f.AETH.Syndrome, f.AETH.MSN)
	}
	if has.Has(HasAtomicAckETH) {
		say(" orig=0x%x", f.Orig)
	}
	if has.Has(HasImmDt) {
		say(" imm=0x%08x", f.Imm)
	}
	if has.Has(HasIETH) {
		say(" inv=0x%08x", f.InvKey)
	}
	say(" len=%d", len(f.Payload))
	if f.Src.IsValid() && f.Dst.IsValid() {
		say(" %v > %v", f.Src, f.Dst)
	}
	if bad := f.Irregular(); len(bad) != 0 {
		say(" IRREGULAR: %s", strings.Join(bad, ", "))
	}
	return b.String()
}
