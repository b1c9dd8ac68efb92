package device

import (
	"math/bits"
	"slices"
	"strings"
)

// AttrMask says which fields of a QPAttr a modify sets; values as enum
// ibv_qp_attr_mask.
type AttrMask uint32

// The attributes. Each is for the field of its name, AttrAV for AH. There is no field for AttrAltPath and AttrCap, which are
// refused, nor for AttrPathMig and AttrRateLimit, which say nothing where the state table has them.
const (
	AttrState           AttrMask = 1 << 0
	AttrCurState        AttrMask = 1 << 1
	AttrSQDNotify       AttrMask = 1 << 2
	AttrAccess          AttrMask = 1 << 3
	AttrPKeyIndex       AttrMask = 1 << 4
	AttrPort            AttrMask = 1 << 5
	AttrQKey            AttrMask = 1 << 6
	AttrAV              AttrMask = 1 << 7
	AttrPathMTU         AttrMask = 1 << 8
	AttrTimeout         AttrMask = 1 << 9
	AttrRetryCnt        AttrMask = 1 << 10
	AttrRNRRetry        AttrMask = 1 << 11
	AttrRQPSN           AttrMask = 1 << 12
	AttrMaxRdAtomic     AttrMask = 1 << 13
	AttrAltPath         AttrMask = 1 << 14
	AttrMinRNRTimer     AttrMask = 1 << 15
	AttrSQPSN           AttrMask = 1 << 16
	AttrMaxDestRdAtomic AttrMask = 1 << 17
	AttrPathMig         AttrMask = 1 << 18
	AttrCap             AttrMask = 1 << 19
	AttrDestQPN         AttrMask = 1 << 20
	AttrRateLimit       AttrMask = 1 << 25
)

var attrNames = [...]string{
	"IBV_QP_STATE", "IBV_QP_CUR_STATE", "IBV_QP_EN_SQD_ASYNC_NOTIFY", "IBV_QP_ACCESS_FLAGS", "IBV_QP_PKEY_INDEX",
	"IBV_QP_PORT", "IBV_QP_QKEY", "IBV_QP_AV", "IBV_QP_PATH_MTU", "IBV_QP_TIMEOUT", "IBV_QP_RETRY_CNT",
	"IBV_QP_RNR_RETRY", "IBV_QP_RQ_PSN", "IBV_QP_MAX_QP_RD_ATOMIC", "IBV_QP_ALT_PATH", "IBV_QP_MIN_RNR_TIMER",
	"IBV_QP_SQ_PSN", "IBV_QP_MAX_DEST_RD_ATOMIC", "IBV_QP_PATH_MIG_STATE", "IBV_QP_CAP", "IBV_QP_DEST_QPN",
	25: "IBV_QP_RATE_LIMIT",
}

// String lists the verbs names, joined by "|"; "" for 0.
func (m AttrMask) String() string {
	var l []string
	for m != 0 {
		i := bits.TrailingZeros32(uint32(m))
		m &= m - 1
		n := "IBV_QP_?"
		if i < len(attrNames) && attrNames[i] != "" {
			n = attrNames[i]
		}
		l = append(l, n)
	}
	return strings.Join(l, "|")
}

// move is one row of the transition table: which services may go from one
// state to another, with which attributes.
type move struct {
	from, to           State
	types              string // letters as in typeLetters
	required, optional AttrMask
}

// typeLetters abbreviates the services in the table.
var typeLetters = map[QPType]string{RC: "R", UC: "U", UD: "D", XRCIni: "I", XRCTgt: "T", RawPacket: "W", GSI: "G", SMI: "S"}

const (
	allTypes = "RUDITWGS"

	pkey, port, qkey, acc, av     = AttrPKeyIndex, AttrPort, AttrQKey, AttrAccess, AttrAV
	pmtu, dqpn, rqpsn, mdra, rnrt = AttrPathMTU, AttrDestQPN, AttrRQPSN, AttrMaxDestRdAtomic, AttrMinRNRTimer
	tmo, rtry, rnrr, sqpsn, mra   = AttrTimeout, AttrRetryCnt, AttrRNRRetry, AttrSQPSN, AttrMaxRdAtomic
	cur, alt, mig, sqdn, rate     = AttrCurState, AttrAltPath, AttrPathMig, AttrSQDNotify, AttrRateLimit
)

// moves is roce.md D (kernel core/verbs.c:qp_state_table), row by row.
// IBV_QP_STATE is implied. What is not listed is illegal.
var moves = []move{
	{StateReset, StateReset, allTypes, 0, 0},
	{StateReset, StateInit, "RUIT", pkey | port | acc, 0},
	{StateReset, StateInit, "D", pkey | port | qkey, 0},
	{StateReset, StateInit, "W", port, 0},
	{StateReset, StateInit, "GS", pkey | qkey, 0},

	{StateInit, StateReset, allTypes, 0, 0},
	{StateInit, StateErr, allTypes, 0, 0},
	{StateInit, StateInit, "RUIT", 0, pkey | port | acc},
	{StateInit, StateInit, "D", 0, pkey | port | qkey},
	{StateInit, StateInit, "W", 0, 0},
	{StateInit, StateInit, "GS", 0, pkey | qkey},
	{StateInit, StateRTR, "RT", av | pmtu | dqpn | rqpsn | mdra | rnrt, alt | acc | pkey},
	{StateInit, StateRTR, "UI", av | pmtu | dqpn | rqpsn, alt | acc | pkey},
	{StateInit, StateRTR, "DGS", 0, pkey | qkey},
	{StateInit, StateRTR, "W", 0, 0},

	{StateRTR, StateReset, allTypes, 0, 0},
	{StateRTR, StateErr, allTypes, 0, 0},
	{StateRTR, StateRTS, "R", tmo | rtry | rnrr | sqpsn | mra, cur | alt | acc | rnrt | mig},
	{StateRTR, StateRTS, "U", sqpsn, cur | alt | acc | mig},
	{StateRTR, StateRTS, "DGS", sqpsn, cur | qkey},
	{StateRTR, StateRTS, "I", tmo | rtry | rnrr | sqpsn | mra, cur | alt | acc | mig},
	{StateRTR, StateRTS, "T", tmo | sqpsn, cur | alt | acc | rnrt | mig},
	{StateRTR, StateRTS, "W", 0, rate},

	{StateRTS, StateReset, allTypes, 0, 0},
	{StateRTS, StateErr, allTypes, 0, 0},
	{StateRTS, StateRTS, "RT", 0, cur | acc | alt | mig | rnrt},
	{StateRTS, StateRTS, "UI", 0, cur | acc | alt | mig},
	{StateRTS, StateRTS, "DGS", 0, cur | qkey},
	{StateRTS, StateRTS, "W", 0, rate},
	{StateRTS, StateSQD, "RUDITGS", 0, sqdn},
	{StateRTS, StateSQD, "W", 0, 0},

	{StateSQD, StateReset, allTypes, 0, 0},
	{StateSQD, StateErr, allTypes, 0, 0},
	{StateSQD, StateRTS, "RT", 0, cur | alt | acc | rnrt | mig},
	{StateSQD, StateRTS, "UI", 0, cur | alt | acc | mig},
	{StateSQD, StateRTS, "DGS", 0, cur | qkey},
	{StateSQD, StateRTS, "W", 0, 0},
	{StateSQD, StateSQD, "R", 0, port | av | tmo | rtry | rnrr | mra | mdra | alt | acc | pkey | rnrt | mig},
	{StateSQD, StateSQD, "U", 0, av | alt | acc | pkey | mig},
	{StateSQD, StateSQD, "DGS", 0, pkey | qkey},
	{StateSQD, StateSQD, "I", 0, port | av | tmo | rtry | rnrr | mra | alt | acc | pkey | mig},
	{StateSQD, StateSQD, "T", 0, port | av | tmo | mdra | alt | acc | pkey | rnrt | mig},
	{StateSQD, StateSQD, "W", 0, 0},

	{StateSQE, StateReset, allTypes, 0, 0},
	{StateSQE, StateErr, allTypes, 0, 0},
	{StateSQE, StateRTS, "RITW", 0, 0},
	{StateSQE, StateRTS, "U", 0, cur | acc},
	{StateSQE, StateRTS, "DGS", 0, cur | qkey},

	{StateErr, StateReset, allTypes, 0, 0},
	{StateErr, StateErr, allTypes, 0, 0},
}

// checkMove checks a modify of a queue pair of type t against the table.
func checkMove(t QPType, from, to State, mask AttrMask) error {
	for i := range moves {
		m := &moves[i]
		if m.from != from || m.to != to || !strings.Contains(m.types, typeLetters[t]) {
			continue
		}
		if missing := m.required &^ mask; missing != 0 {
			return because(EINVAL, "%s to %s of %s needs %s", from, to, t, missing)
		}
		if extra := mask &^ (m.required | m.optional | AttrState); extra != 0 {
			return because(EINVAL, "%s to %s of %s does not take %s", from, to, t, extra)
		}
		return nil
	}
	return because(EINVAL, "%s cannot go from %s to %s", t, from, to)
}

func sortQPs(l []*QP) {
	slices.SortFunc(l, func(a, b *QP) int { return int(a.num) - int(b.num) })
}
