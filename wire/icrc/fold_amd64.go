package icrc

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

const (
	// foldLeast is from how many bytes on they are folded, where the processor multiplies polynomials 256 or 512 bits at a time: two or three
	// times as fast as hash/crc32, for which 128 bits is the widest, and faster than the tables.
	foldLeast = 24
	// copyLeast is the same for what is copied on the way; copy512 needs 256, copy256 128.
	copyLeast = 512
)

// foldWidth is how many bits at a time the processor multiplies, 0 if there is nothing faster than hash/crc32.
var foldWidth = func() int {
	const vpclmulqdq = 1 << 10 // x/sys tells of it only together with AVX-512
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VBMI2 && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasBMI2:
		return 512
	case cpu.X86.HasAVX2 && features7()&vpclmulqdq != 0:
		return 256
	}
	return 0
}()

// fold takes the register over p, of which ones are OR-ed to the first eight bytes, read little-endian; false where the processor
// cannot, and for short ones.
//
// The data is one long polynomial, of which only the remainder by that of the CRC counts. Its first bytes are multiplied by what is
// congruent to their place and added to bytes further on, until 16 are left ("Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Gopal et al., Intel 2009, in its bit-reflected form).
func fold(reg uint32, ones uint64, p []byte) (uint32, bool) {
	if foldWidth == 0 || len(p) < foldLeast || !instructions {
		return reg, false
	}
	block := 64 // of which the first bytes may be fewer, but not fewer than what the register and ones are added to
	if foldWidth == 256 {
		block = 16
	}
	if first := len(p) & (block - 1); first != 0 && first < 8 {
		reg, ones, p = step8(reg, load8(p)|ones), 0, p[8:]
	}
	var lo, hi uint64
	if foldWidth == 512 {
		lo, hi = fold512(reg, ones, &p[0], len(p), &foldBy)
	} else {
		lo, hi = fold256(reg, ones, &p[0], len(p), &foldBy)
	}
	return step8(step8(0, lo), hi), true
}

// foldCopy takes the register over as much of p as it can, which it copies to dst on the way, and returns how much that is.
func foldCopy(reg uint32, dst, p []byte) (uint32, int) {
	if foldWidth == 0 || len(p) < copyLeast || !instructions {
		return reg, 0
	}
	n := len(p) &^ 63
	dst = dst[:n]
	var lo, hi uint64
	if foldWidth == 512 {
		lo, hi = copy512(reg, &dst[0], &p[0], n, &foldBy)
	} else {
		lo, hi = copy256(reg, &dst[0], &p[0], n, &foldBy)
	}
	return step8(step8(0, lo), hi), n
}

// fold512 folds n bytes at p to 16. The first piece, 64 bytes or what is more than a multiple of them, must have eight bytes.
//
//go:noescape
func fold512(reg uint32, ones uint64, p *byte, n int, k *foldConstants) (lo, hi uint64)

// copy512 folds n bytes at p, a multiple of 64 and at least 256, to 16, and copies them to dst.
//
//go:noescape
func copy512(reg uint32, dst, p *byte, n int, k *foldConstants) (lo, hi uint64)

// fold256 folds n bytes at p to 16. The first piece, 16 bytes or what is more than a multiple of them, must have eight bytes, and another 16
// must follow.
//
//go:noescape
func fold256(reg uint32, ones uint64, p *byte, n int, k *foldConstants) (lo, hi uint64)

// copy256 folds n bytes at p, a multiple of 32 and at least 128, to 16, and copies them to dst.
//
//go:noescape
func copy256(reg uint32, dst, p *byte, n int, k *foldConstants) (lo, hi uint64)

// features7 returns the register ECX of CPUID's leaf 7, which whatever has AVX2 has.
func features7() (ecx uint32)

// foldConstants are pairs of factors: of the lower and of the upper half of 16 bytes.
type foldConstants struct {
	by256, by64      [2]uint64
	by48, by32, by16 [2]uint64
	_                [2]uint64
	by128            [2]uint64
}

var foldBy = foldConstants{
	by256: factors(256), by128: factors(128), by64: factors(64), by48: factors(48), by32: factors(32), by16: factors(16),
}

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
