package device

import (
	"errors"
	"math/bits"
	"slices"
	"strings"
	"testing"
)

// TestMoves holds the transition table against rules that stand in roce.md D
// outside the table's rows.
func TestMoves(t *testing.T) {
	illegal := []struct{ from, to State }{
		{StateReset, StateErr}, {StateReset, StateRTR}, {StateReset, StateRTS}, {StateInit, StateRTS},
		{StateRTR, StateInit}, {StateRTR, StateRTR}, {StateRTR, StateSQD}, {StateRTS, StateRTR}, {StateRTS, StateInit},
		{StateSQD, StateInit}, {StateErr, StateInit}, {StateErr, StateRTS}, {StateSQE, StateInit},
	}
	for typ := range typeLetters {
		for _, m := range illegal {
			if err := checkMove(typ, m.from, m.to, ^AttrMask(0)); !errors.Is(err, EINVAL) {
				t.Errorf("%s %s to %s: %v", typ, m.from, m.to, err)
			}
		}
		for s := StateReset; s < StateErr; s++ {
			if err := checkMove(typ, s, StateSQE, AttrState); err == nil {
				t.Errorf("%s %s to SQE is allowed to the user", typ, s)
			}
		}
		for s := StateReset; s <= StateErr; s++ {
			if err := checkMove(typ, s, StateReset, AttrState); err != nil {
				t.Errorf("%s %s to RESET: %v", typ, s, err)
			}
		}
	}
}

// TestAttributeMasks takes each required attribute away and adds each one that does
// not belong; the refusal names it.
func TestAttributeMasks(t *testing.T) {
	steps := []struct {
		typ      QPType
		from, to State
		need     AttrMask
		may      AttrMask
	}{
		{RC, StateReset, StateInit, AttrPKeyIndex | AttrPort | AttrAccess, 0},
		{RC, StateInit, StateRTR, AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer, AttrAltPath | AttrAccess | AttrPKeyIndex},
		{RC, StateRTR, StateRTS, AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic, AttrCurState | AttrAltPath | AttrAccess | AttrMinRNRTimer | AttrPathMig},
		{UD, StateReset, StateInit, AttrPKeyIndex | AttrPort | AttrQKey, 0},
		{UD, StateInit, StateRTR, 0, AttrPKeyIndex | AttrQKey},
		{UD, StateRTR, StateRTS, AttrSQPSN, AttrCurState | AttrQKey},
		{GSI, StateReset, StateInit, AttrPKeyIndex | AttrQKey, 0},
		{GSI, StateInit, StateRTR, 0, AttrPKeyIndex | AttrQKey},
		{GSI, StateRTR, StateRTS, AttrSQPSN, AttrCurState | AttrQKey},
		{SMI, StateReset, StateInit, AttrPKeyIndex | AttrQKey, 0},
		{SMI, StateInit, StateRTR, 0, AttrPKeyIndex | AttrQKey},
		{SMI, StateRTR, StateRTS, AttrSQPSN, AttrCurState | AttrQKey},
		{RawPacket, StateReset, StateInit, AttrPort, 0},
		{RawPacket, StateInit, StateInit, 0, 0},
		{RawPacket, StateInit, StateRTR, 0, 0},
		{RawPacket, StateRTR, StateRTS, 0, 0},
	}
	for _, s := range steps {
		if err := checkMove(s.typ, s.from, s.to, AttrState|s.need); err != nil {
			t.Errorf("%s %s to %s with what it needs: %v", s.typ, s.from, s.to, err)
		}
		if err := checkMove(s.typ, s.from, s.to, AttrState|s.need|s.may); err != nil {
			t.Errorf("%s %s to %s with what it may have: %v", s.typ, s.from, s.to, err)
		}
		for i := 1; i < 21; i++ {
			bit := AttrMask(1 << i)
			name := attrNames[bits.TrailingZeros32(uint32(bit))]
			mask := AttrState | s.need
			switch {
			case s.need&bit != 0:
				mask &^= bit
			case s.may&bit == 0:
				mask |= bit
			default:
				continue
			}
			err := checkMove(s.typ, s.from, s.to, mask)
			if !errors.Is(err, EINVAL) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s %s to %s, %s wrong: %v", s.typ, s.from, s.to, name, err)
			}
		}
	}
}

// kernelMoves is core/verbs.c:qp_state_table, written down from the kernel's: from and to, services, attributes that are required,
// attributes that are possible. IBV_QP_STATE is implied.
const kernelMoves = `
RESET RESET: all: -: -
RESET INIT: RC UC XRC_INI XRC_TGT: PKEY PORT ACC: -
RESET INIT: UD: PKEY PORT QKEY: -
RESET INIT: RAW_PACKET: PORT: -
RESET INIT: GSI SMI: PKEY QKEY: -
INIT RESET: all: -: -
INIT ERR: all: -: -
INIT INIT: RC UC XRC_INI XRC_TGT: -: PKEY PORT ACC
INIT INIT: UD: -: PKEY PORT QKEY
INIT INIT: RAW_PACKET: -: -
INIT INIT: GSI SMI: -: PKEY QKEY
INIT RTR: RC XRC_TGT: AV MTU DQPN RQPSN MDRA RNRT: ALT ACC PKEY
INIT RTR: UC XRC_INI: AV MTU DQPN RQPSN: ALT ACC PKEY
INIT RTR: UD GSI SMI: -: PKEY QKEY
INIT RTR: RAW_PACKET: -: -
RTR RESET: all: -: -
RTR ERR: all: -: -
RTR RTS: RC: TMO RTRY RNRR SQPSN MRA: CUR ALT ACC RNRT MIG
RTR RTS: UC: SQPSN: CUR ALT ACC MIG
RTR RTS: UD GSI SMI: SQPSN: CUR QKEY
RTR RTS: XRC_INI: TMO RTRY RNRR SQPSN MRA: CUR ALT ACC MIG
RTR RTS: XRC_TGT: TMO SQPSN: CUR ALT ACC RNRT MIG
RTR RTS: RAW_PACKET: -: RATE
RTS RESET: all: -: -
RTS ERR: all: -: -
RTS RTS: RC XRC_TGT: -: CUR ACC ALT MIG RNRT
RTS RTS: UC XRC_INI: -: CUR ACC ALT MIG
RTS RTS: UD GSI SMI: -: CUR QKEY
RTS RTS: RAW_PACKET: -: RATE
RTS SQD: RC UC UD XRC_INI XRC_TGT GSI SMI: -: SQDN
RTS SQD: RAW_PACKET: -: -
SQD RESET: all: -: -
SQD ERR: all: -: -
SQD RTS: RC XRC_TGT: -: CUR ALT ACC RNRT MIG
SQD RTS: UC XRC_INI: -: CUR ALT ACC MIG
SQD RTS: UD GSI SMI: -: CUR QKEY
SQD RTS: RAW_PACKET: -: -
SQD SQD: RC: -: PORT AV TMO RTRY RNRR MRA MDRA ALT ACC PKEY RNRT MIG
SQD SQD: UC: -: AV ALT ACC PKEY MIG
SQD SQD: UD GSI SMI: -: PKEY QKEY
SQD SQD: XRC_INI: -: PORT AV TMO RTRY RNRR MRA ALT ACC PKEY MIG
SQD SQD: XRC_TGT: -: PORT AV TMO MDRA ALT ACC PKEY RNRT MIG
SQD SQD: RAW_PACKET: -: -
SQE RESET: all: -: -
SQE ERR: all: -: -
SQE RTS: RC XRC_INI XRC_TGT RAW_PACKET: -: -
SQE RTS: UC: -: CUR ACC
SQE RTS: UD GSI SMI: -: CUR QKEY
ERR RESET: all: -: -
ERR ERR: all: -: -
`

// TestEveryMove holds all pairs of states, of all services, with every attribute more or less, against the kernel's table.
func TestEveryMove(t *testing.T) {
	bit := map[string]AttrMask{
		"PKEY": AttrPKeyIndex, "PORT": AttrPort, "QKEY": AttrQKey, "ACC": AttrAccess, "AV": AttrAV, "MTU": AttrPathMTU, "DQPN": AttrDestQPN, "RQPSN": AttrRQPSN,
		"MDRA": AttrMaxDestRdAtomic, "RNRT": AttrMinRNRTimer, "TMO": AttrTimeout, "RTRY": AttrRetryCnt, "RNRR": AttrRNRRetry, "SQPSN": AttrSQPSN,
		"MRA": AttrMaxRdAtomic, "CUR": AttrCurState, "ALT": AttrAltPath, "MIG": AttrPathMig, "SQDN": AttrSQDNotify, "RATE": AttrRateLimit,
	}
	state := map[string]State{"RESET": StateReset, "INIT": StateInit, "RTR": StateRTR, "RTS": StateRTS, "SQD": StateSQD, "SQE": StateSQE, "ERR": StateErr}
	mask := func(s string) (m AttrMask) {
		for _, n := range strings.Fields(s) {
			if n != "-" {
				m |= bit[n]
			}
		}
		return m
	}
	type key struct {
		typ      QPType
		from, to State
	}
	type attrs struct{ required, optional AttrMask }
	table := map[key]attrs{}
	for _, line := range strings.Split(strings.TrimSpace(kernelMoves), "\n") {
		f := strings.Split(line, ": ")
		between := strings.Fields(f[0])
		for typ, name := range qpTypeNames {
			if f[1] == "all" || slices.Contains(strings.Fields(f[1]), name) {
				table[key{typ, state[between[0]], state[between[1]]}] = attrs{mask(f[2]), mask(f[3])}
			}
		}
	}
	for typ := range qpTypeNames {
		for from := StateReset; from <= StateErr; from++ {
			for to := StateReset; to <= StateErr; to++ {
				a, legal := table[key{typ, from, to}]
				least := AttrState | a.required
				try := func(m AttrMask, want bool) {
					t.Helper()
					if err := checkMove(typ, from, to, m); want != (err == nil) || err != nil && !errors.Is(err, EINVAL) {
						t.Errorf("%s %s to %s with %s: %v", typ, from, to, m, err)
					}
				}
				try(least, legal)
				try(least|a.optional, legal)
				for _, b := range bit {
					try(least|b, legal && (a.required|a.optional)&b != 0)
					if a.required&b != 0 {
						try(least&^b, false)
					}
				}
				try(least|AttrCap, false)
			}
		}
	}
}

func TestActiveMTU(t *testing.T) {
	// Case 53: what rxe gives for these netdev MTUs.
	for link, want := range map[int]int{1500: 1024, 4096: 2048, 4200: 4096, 9000: 4096, 576: 256, 296: 0, 4175: 2048, 4176: 4096, 2128: 2048, 2127: 1024} {
		if got := ActiveMTU(link); got != want {
			t.Errorf("link MTU %d: %d, want %d", link, got, want)
		}
	}
}

// TestSourcePort has the values that roce.md A.7 computed from the kernel's
// formula.
func TestSourcePort(t *testing.T) {
	if p := sourcePort(0, 17, 18); p != 0xC132 {
		t.Errorf("QPs 17 and 18: %04x", p)
	}
	if p := sourcePort(0x12345, 17, 18); p != 0xE341 {
		t.Errorf("flow label 12345: %04x", p)
	}
	if p := datagramPort(1); p != 0xD872 {
		t.Errorf("QPN 1: %04x", p)
	}
	if p := datagramPort(17); p != 0xDF94 {
		t.Errorf("QPN 17: %04x", p)
	}
}
