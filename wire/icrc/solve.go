package icrc

import (
	"hash/crc32"
	"math/bits"
	"sync/atomic"
)

// SolveID checks the ICRC of an IPv4 packet whose identification is not known,
// as a link over a UDP socket receives it. It returns the identification with
// which the ICRC is right, and false when there is none. The identification in
// net may have any value; everything else in net that the ICRC covers must be
// as it was on the wire. For IPv6, which has no identification, it is Check.
//
// What it costs in safety: of 65536 damaged packets one passes, with a wrong
// identification, where Check lets one in 2^32 pass. An error burst of up to
// 16 bits is no longer certain to be seen.
//
// # How
//
// A CRC is linear: a packet that differs in the two bytes of the
// identification has a CRC that differs by those two bytes, as the low half of
// a register, taken over the n bytes from the identification to the end of the
// pad. Taking a register over n bytes is multiplying it by x^(8n) modulo the CRC polynomial,
// which can be undone. So the difference between the computed and the received
// ICRC is multiplied by x^(-8n); if the high half is then 0, the low half is
// the difference of the identifications, else no identification explains it.
func SolveID(net, ib []byte) (id uint16, ok bool) { return SolveIDFrom(StartNet(net), net, ib) }

// SolveIDFrom is SolveID where the state after net, with the identification that stands there, is known.
func SolveIDFrom(s State, net, ib []byte) (id uint16, ok bool) {
	d, ok := diffFrom(s, ib)
	if !ok || len(net) != net4 {
		return 0, ok && d == 0
	}
	if d != 0 {
		d = multiply(d, unshift(net4-idOffset+len(ib)-Len))
	}
	id = uint16(net[idOffset])<<8 | uint16(net[idOffset+1])
	return id ^ bits.ReverseBytes16(uint16(d)), d>>16 == 0
}

// idOffset is where the identification stands in an IPv4 header.
const idOffset = 4

// Polynomials over GF(2) modulo the CRC polynomial, reflected as the CRC
// register is: bit 31 is x^0, bit 0 is x^31.
const (
	poly = crc32.IEEE
	one  = 1 << 31
)

// multiply returns a times b.
func multiply(a, b uint32) uint32 {
	// Two chains, for the high and the low half of a, keep the processor from
	// waiting: each step needs the one before it.
	c := slice[0][byte(b)] ^ b>>8
	c = slice[0][byte(c)] ^ c>>8 // b times x^16
	var p, q uint32
	for range 16 {
		p ^= b & uint32(int32(a)>>31)
		q ^= c & uint32(int32(a<<16)>>31)
		a <<= 1
		b = b>>1 ^ poly&-(b&1)
		c = c>>1 ^ poly&-(c&1)
	}
	return p ^ q
}

// unshift returns x^(-8n), the factor that undoes n bytes.
func unshift(n int) uint32 {
	if n >= len(unshifts) {
		return power(n)
	}
	f := unshifts[n].Load()
	if f == 0 {
		f = power(n)
		unshifts[n].Store(f)
	}
	return f
}

// unshifts keeps x^(-8n) for every n that an IPv4 packet can have, computed when it
// is first needed; 0 is no power of x and means "not yet". Only the pages of
// lengths that occur are ever touched.
var unshifts [1 << 16]atomic.Uint32

// power computes x^(-8n) by the bits of n.
func power(n int) uint32 {
	f := uint32(one)
	for k := 0; n != 0; k++ {
		if n&1 != 0 {
			f = multiply(f, squares[k])
		}
		n >>= 1
	}
	return f
}

// squares[k] is x^(-8 * 2^k).
var squares = func() (t [31]uint32) {
	f := uint32(one)
	for range 8 {
		// Divided by x: where x^0 is set, the polynomial, which has it too,
		// is added first; its x^32 becomes x^31.
		if f&one != 0 {
			f = (f^poly)<<1 | 1
		} else {
			f <<= 1
		}
	}
	for k := range t {
		t[k] = f
		f = multiply(f, f)
	}
	return t
}()
