package bth

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of an AETH (kernel rxe_hdr.h).
//
//	+-+-----+---------+
//	|0|class|  value  |   class 0 ACK, 1 RNR NAK, 2 reserved, 3 NAK
//	+-+-----+---------+
//
// A syndrome that is none of IsAck, IsRNR and IsNak is reserved, as are the NAK
// codes above NakInvalidRD.
type Syndrome uint8

// The syndromes.
const (
	AckUnlimited      Syndrome = 0x1F // ACK, no credit limit
	RNRNak            Syndrome = 0x20 // receiver not ready; low 5 bits are the timer code
	NakSequence       Syndrome = 0x60 // PSN sequence error
	NakInvalidRequest Syndrome = 0x61 // invalid request
	NakRemoteAccess   Syndrome = 0x62 // remote access error
	NakRemoteOp       Syndrome = 0x63 // remote operational error
	NakInvalidRD      Syndrome = 0x64 // invalid RD request
)

// IsAck reports whether the syndrome acknowledges.
func (s Syndrome) IsAck() bool { return s < 0x20 }

// IsRNR reports whether the syndrome is an RNR NAK.
func (s Syndrome) IsRNR() bool { return s&0xE0 == 0x20 }

// IsNak reports whether the syndrome is a NAK other than RNR.
func (s Syndrome) IsNak() bool { return s&0xE0 == 0x60 }

// Value returns the low five bits: credit code, timer code or NAK code.
func (s Syndrome) Value() int { return int(s & 0x1F) }

// Credits returns the decoded credit count of an ACK, and false when the ACK
// sets no limit.
func (s Syndrome) Credits() (int, bool) {
	v := s.Value()
	if v == 31 {
		return 0, false
	}
	return int(credits[v]), true
}

// AckCredits returns the ACK that grants the most credits that are not more
// than n; a negative n grants none.
func AckCredits(n int) Syndrome {
	s := Syndrome(0)
	for c := range credits {
		if int(credits[c]) <= n {
			s = Syndrome(c)
		}
	}
	return s
}

// RNR returns the RNR NAK with timer code c (0 ... 31).
func RNR(c int) Syndrome { return RNRNak | Syndrome(c&31) }

// RNRTime returns the least time that a requester waits after an RNR NAK with
// timer code c (0 ... 31).
func RNRTime(c int) time.Duration { return time.Duration(rnrMicros[c&31]) * time.Microsecond }

// String names the syndrome as traces do.
func (s Syndrome) String() string {
	switch {
	case s == AckUnlimited:
		return "ACK"
	case s.IsAck():
		return fmt.Sprintf("ACK credits=%d", credits[s.Value()])
	case s.IsRNR():
		return fmt.Sprintf("RNR_NAK timer=%d", s.Value())
	case s == NakSequence:
		return "NAK_SEQUENCE"
	case s == NakInvalidRequest:
		return "NAK_INVALID_REQUEST"
	case s == NakRemoteAccess:
		return "NAK_REMOTE_ACCESS"
	case s == NakRemoteOp:
		return "NAK_REMOTE_OPERATIONAL"
	case s == NakInvalidRD:
		return "NAK_INVALID_RD"
	}
	return fmt.Sprintf("SYNDROME_%02X", uint8(s))
}

// credits decodes the five-bit credit code; kernel sw/rdmavt/rc.c credit_table.
var credits = [31]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// rnrMicros is the RNR timer table in microseconds; kernel
// include/rdma/ib_verbs.h:ib_rnr_timeout. (rxe itself waits 61.41 ms for code 25.)
var rnrMicros = [32]uint32{
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880,
	163840, 245760, 327680, 491520,
}
