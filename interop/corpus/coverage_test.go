package corpus_test

import (
	"testing"

	"github.com/softnic/softnic/interop/peer"
)

// flow is where a frame goes, on which connection.
type flow struct {
	src string
	qpn uint32
}

func (x frame) flow() flow { return flow{x.Src.String(), x.DestQP} }

// request reports whether x is a request of RC.
func (x frame) request() bool { return x.Op.Known() && x.Op.Service() == peer.RC && !x.Op.IsResponse() }

// sights are what the corpus has to hold beside opcodes and syndromes. Each reports whether a frame of a file completes one.
var sights = []struct {
	name string
	// by whom: the kernel's device, softnic
	rxe, softnic bool
	seen         func(f *file, i int) bool
}{
	{"a request in its third round", true, true, func(f *file, i int) bool {
		x, n := f.frames[i], 1
		for _, y := range f.frames[:i] {
			if y.flow() == x.flow() && y.PSN == x.PSN && y.Op == x.Op {
				n++
			}
		}
		return n >= 3 && x.request()
	}},
	{"a READ that goes on where a response was missing", true, true, func(f *file, i int) bool {
		x := f.frames[i]
		for _, y := range f.frames[:i] {
			ahead := (x.PSN - y.PSN) & 0xFFFFFF
			if x.Op == peer.OpReadRequest && y.Op == x.Op && y.flow() == x.flow() && y.RETH.RKey == x.RETH.RKey && ahead > 0 &&
				y.RETH.VA+uint64(ahead)*256 == x.RETH.VA && x.RETH.VA+uint64(x.RETH.Len) == y.RETH.VA+uint64(y.RETH.Len) {
				return true
			}
		}
		return false
	}},
	{"a READ response that is missing", false, true, func(f *file, i int) bool {
		x := f.frames[i]
		if i == 0 || x.Op != peer.OpReadRespMiddle && x.Op != peer.OpReadRespLast {
			return false
		}
		for _, y := range f.frames[:i] {
			if y.flow() == x.flow() && y.PSN == (x.PSN-1)&0xFFFFFF && y.Op.IsResponse() {
				return false
			}
		}
		return true
	}},
	{"a PSN that wraps", true, true, func(f *file, i int) bool {
		x := f.frames[i]
		for _, y := range f.frames[:i] {
			if y.flow() == x.flow() && y.PSN == 0xFFFFFF && x.PSN == 0 && x.request() && y.request() {
				return true
			}
		}
		return false
	}},
	{"IPv6", true, true, func(f *file, i int) bool { return f.frames[i].IPv6() }},
	{"VLAN 5", true, true, func(f *file, i int) bool {
		l := f.frames[i].Link
		return l != nil && len(l.Tags) == 1 && l.Tags[0].TPID == 0x8100 && l.Tags[0].TCI&0xFFF == 5
	}},
	{"a priority of a VLAN", true, false, func(f *file, i int) bool {
		l := f.frames[i].Link
		return l != nil && len(l.Tags) == 1 && l.Tags[0].TCI>>13 == 3
	}},
	{"a mark for congestion experienced", true, true, func(f *file, i int) bool { return f.frames[i].ECN() == 3 }},
	{"a CNP for a mark", false, true, func(f *file, i int) bool {
		x := f.frames[i]
		for _, y := range f.frames[:i] {
			if x.Op == peer.OpCNP && x.BECN && y.ECN() == 3 && y.Dst == x.Src {
				return true
			}
		}
		return false
	}},
	{"a payload of 4096 bytes", true, true, func(f *file, i int) bool { return len(f.frames[i].Payload) == 4096 }},
	{"a wrong ICRC", true, true, func(f *file, i int) bool { return f.frames[i].ICRC != nil }},
	{"each length of pad", true, true, func(f *file, i int) bool {
		lengths := map[int]bool{}
		for _, y := range f.frames[:i+1] {
			if y.rxe == f.frames[i].rxe && y.Op == peer.OpUDSendOnly {
				lengths[len(y.Payload)&3] = true
			}
		}
		return len(lengths) == 4
	}},
}

// rxeLacks are the opcodes that the kernel's device has not, and why.
func rxeLacks(op peer.Op) string {
	switch {
	case op.Service() == peer.XRC:
		return "it has no XRC"
	case op == peer.OpCNP:
		return "it sends none (row congestion of interop/deviations.md)"
	case op == peer.OpMaskedCmpSwap || op == peer.OpMaskedFetchAdd:
		return "softnic's own"
	}
	return ""
}

// The corpus holds what it has to: every opcode of package peer's table and every syndrome, of the kernel's device where it has it, and of
// softnic; and every one of sights. All is read by package peer.
func TestCoverage(t *testing.T) {
	type by struct {
		rxe  bool
		what string
	}
	name := map[bool]string{true: "rxe", false: "softnic"}
	have := map[by]string{} // the first file
	all := files(t)
	for k := range all {
		f := &all[k]
		see := func(x frame, what string) {
			if have[by{x.rxe, what}] == "" {
				have[by{x.rxe, what}] = f.File
			}
		}
		for i, x := range f.frames {
			see(x, x.Op.String())
			if x.HeaderSet().Has(peer.HasAETH) {
				s := x.AETH.Syndrome
				if s.IsRNR() {
					s = peer.RNR(0) // whatever the time
				}
				see(x, s.String())
			}
			for _, s := range sights {
				if s.seen(f, i) {
					see(x, s.name)
				}
			}
		}
	}
	want := func(rxe bool, what string) {
		if have[by{rxe, what}] == "" {
			t.Errorf("the corpus has no %s of %s", what, name[rxe])
		}
	}
	for i := range 256 {
		op := peer.Op(i)
		if !op.Known() || op.Service() == peer.RD {
			continue
		}
		want(false, op.String())
		switch why := rxeLacks(op); {
		case why == "":
			want(true, op.String())
		case have[by{true, op.String()}] != "":
			t.Errorf("%s has %v of rxe, of which is said: %s", have[by{true, op.String()}], op, why)
		}
	}
	for _, s := range []peer.Syndrome{peer.SynAck, peer.SynNakSequence, peer.SynNakInvalid, peer.SynNakAccess, peer.SynNakOperation, peer.RNR(0)} {
		want(true, s.String())
		want(false, s.String())
	}
	for _, s := range sights {
		if s.rxe {
			want(true, s.name)
		}
		if s.softnic {
			want(false, s.name)
		}
	}
}
