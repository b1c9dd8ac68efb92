package icrc

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// foldLeast is from how many bytes on payload is folded, where the processor multiplies polynomials 512 bits at a time: three times as fast as
// hash/crc32, for which 128 bits is the widest.
const foldLeast = 256

var folds = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// fold takes the register over as much of p as it can, and returns how much that is: 0 where the processor cannot.
//
// The data is one long polynomial, of which only the remainder by that of the CRC counts. Its first bytes are multiplied by what is
// congruent to their place and added to bytes further on, until 16 are left ("Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Gopal et al., Intel 2009, in its bit-reflected form).
func fold(reg uint32, p []byte) (uint32, int) {
	if !folds || len(p) < foldLeast {
		return reg, 0
	}
	n := len(p) &^ 63
	lo, hi := fold512(reg, &p[0], n, &foldBy)
	return step8(step8(0, lo), hi), n
}

// fold512 folds n bytes at p, a multiple of 64 and at least 256, to 16.
//
//go:noescape
func fold512(reg uint32, p *byte, n int, k *foldConstants) (lo, hi uint64)

// foldConstants are pairs of factors: of the lower and of the upper half of 16 bytes.
type foldConstants struct {
	by256, by64      [2]uint64
	by48, by32, by16 [2]uint64
	_                [2]uint64
}

var foldBy = foldConstants{by256: factors(256), by64: factors(64), by48: factors(48), by32: factors(32), by16: factors(16)}

// factors returns the pair that moves 16 bytes by n bytes. A product of two reflected polynomials is one bit short of its place, so that they
// are shifted by one; the lower half, which comes first, has 32 bits more than n bytes to go, the upper half 32 less.
func factors(n int) [2]uint64 {
	return [2]uint64{uint64(powerOfX(8*n+32)) << 1, uint64(powerOfX(8*n-32)) << 1}
}

// powerOfX returns x^n modulo the polynomial of the CRC, reflected: the top bit is that of x^0.
func powerOfX(n int) uint32 {
	c := uint32(1 << 31)
	for range n {
		c = c>>1 ^ -(c&1)&crc32.IEEE
	}
	return c
}
