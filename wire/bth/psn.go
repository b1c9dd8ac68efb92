package bth

import "fmt"

// PSN is a packet sequence number: 24 bits, arithmetic modulo 2^24.
//
// "Before" and "after" follow the sign of the distance (kernel
// rxe_verbs.h:psn_compare): up to 2^23-1 ahead is after, up to 2^23 behind is
// before. The zero value is the PSN 0.
type PSN uint32

// PSNMask keeps the 24 bits of a PSN.
const PSNMask = 1<<24 - 1

// Add returns p + n modulo 2^24; n may be negative.
func (p PSN) Add(n int) PSN { return PSN((int64(p) + int64(n)) & PSNMask) }

// Next returns the PSN that follows p.
func (p PSN) Next() PSN { return (p + 1) & PSNMask }

// Prev returns the PSN before p.
func (p PSN) Prev() PSN { return (p - 1) & PSNMask }

// Sub returns the signed distance from q to p, -2^23 ... 2^23-1.
func (p PSN) Sub(q PSN) int { return int(int32(uint32(p-q)<<8) >> 8) }

// Before reports whether p is a duplicate seen from q: 1 ... 2^23 behind it.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// After reports whether p lies 1 ... 2^23-1 ahead of q.
func (p PSN) After(q PSN) bool { return p.Sub(q) > 0 }

// In reports whether p is one of the n PSNs from first on.
func (p PSN) In(first PSN, n int) bool {
	return int(uint32(p-first)&PSNMask) < n
}

// String prints the six hex digits that captures and cases use.
func (p PSN) String() string { return fmt.Sprintf("%06x", uint32(p)) }
