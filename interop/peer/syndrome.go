package peer

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of an AETH.
//
//	  7   6   5   4   3   2   1   0
//	+---+-------+-------------------+
//	| 0 | class |       value       |
//	+---+-------+-------------------+
//
// Class 0 is an ACK (value: credit code, 31 for no limit), 1 an RNR NAK (value:
// timer code), 3 a NAK (value: its reason). Class 2 and bit 7 are reserved.
type Syndrome uint8

// The syndromes with a name. RNR(n) makes those of an RNR NAK.
const (
	SynAck          Syndrome = 0x1F // ACK without a credit limit
	SynNakSequence  Syndrome = 0x60 // PSN sequence error
	SynNakInvalid   Syndrome = 0x61 // invalid request
	SynNakAccess    Syndrome = 0x62 // remote access error
	SynNakOperation Syndrome = 0x63 // remote operational error
	SynNakInvalidRD Syndrome = 0x64 // invalid RD request
)

// RNR is the syndrome of an RNR NAK with this timer code.
func RNR(code uint8) Syndrome { return 0x20 | Syndrome(code&31) }

// IsAck reports whether s is an ACK, with or without credits.
func (s Syndrome) IsAck() bool { return s>>5 == 0 }

// IsRNR reports whether s is an RNR NAK.
func (s Syndrome) IsRNR() bool { return s>>5 == 1 }

// IsNak reports whether s is a NAK other than an RNR NAK.
func (s Syndrome) IsNak() bool { return s>>5 == 3 }

// Value is the low five bits: credit code, timer code or NAK reason.
func (s Syndrome) Value() uint8 { return uint8(s & 31) }

// rnrHundredths is the wait of each RNR timer code in units of 10 µs.
var rnrHundredths = [32]int{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
	16384, 24576, 32768, 49152,
}

// RNRDelay is how long a requester has to wait at least after an RNR NAK with
// this timer code.
func RNRDelay(code uint8) time.Duration {
	return time.Duration(rnrHundredths[code&31]) * 10 * time.Microsecond
}

// String prints the byte and what it means.
func (s Syndrome) String() string {
	text := "reserved"
	switch {
	case s == SynAck:
		text = "ACK"
	case s.IsAck():
		text = fmt.Sprintf("ACK, credit code %d", s.Value())
	case s.IsRNR():
		text = fmt.Sprintf("RNR NAK, %v", RNRDelay(s.Value()))
	case s == SynNakSequence:
		text = "NAK, PSN sequence"
	case s == SynNakInvalid:
		text = "NAK, invalid request"
	case s == SynNakAccess:
		text = "NAK, remote access"
	case s == SynNakOperation:
		text = "NAK, remote operational"
	case s == SynNakInvalidRD:
		text = "NAK, invalid RD request"
	}
	return fmt.Sprintf("0x%02x (%s)", uint8(s), text)
}
