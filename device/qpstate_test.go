package device

import (
	"errors"
	"math/bits"
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
