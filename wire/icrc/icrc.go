package icrc

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"
)

// Len is the length of the ICRC in bytes.
const Len = 4

// The lengths of the IP and UDP headers together, in bytes; Start and Check
// tell the families apart by them.
const (
	net4 = 20 + 8
	net6 = 40 + 8
)

// bthLen is the length of the base transport header in bytes.
const bthLen = 12

// seed is the CRC register after the eight bytes of ones; package hash/crc32
// would call it 0x2144DF1C, since it hands out registers complemented.
const seed = 0xDEBB20E3

// State is an ICRC in the making. Start makes one; the zero value is none.
type State struct {
	reg uint32 // the CRC register, not complemented
}

// Start returns the state after the headers. net is the IP and UDP header, 28
// bytes for IPv4 and 48 for IPv6; ib begins with the BTH, and whatever follows
// in it (extended headers, also payload) is covered as it stands. net and ib
// may hold any values in the fields that are masked.
func Start(net, ib []byte) State {
	s := StartNet(net)
	s.Transport(ib)
	return s
}

// StartNet returns the state after the IP and UDP header, net of Start. For packets whose headers differ in the
// identification alone it need not be computed again, see WithID.
func StartNet(net []byte) State {
	c := uint32(seed)
	// The masked words are put together in registers: a masked copy on the
	// stack would escape to the heap through hash/crc32, which calls the
	// processor's routine by a function variable.
	if len(net) == net4 {
		c = step8(c, binary.LittleEndian.Uint64(net)|0xFF<<8)             // type of service
		c = step8(c, binary.LittleEndian.Uint64(net[8:])|0xFF|0xFFFF<<16) // time to live, checksum
		c = step8(c, binary.LittleEndian.Uint64(net[16:]))                // destination, UDP ports
		c = step4(c, binary.LittleEndian.Uint32(net[24:])|0xFFFF<<16)     // UDP checksum
	} else {
		net = net[:net6]
		c = step8(c, binary.LittleEndian.Uint64(net)|0xFFFFFF0F|0xFF<<56) // class, flow label; hop limit
		c = step8(c, binary.LittleEndian.Uint64(net[8:]))
		c = step8(c, binary.LittleEndian.Uint64(net[16:]))
		c = step8(c, binary.LittleEndian.Uint64(net[24:]))
		c = step8(c, binary.LittleEndian.Uint64(net[32:]))
		c = step8(c, binary.LittleEndian.Uint64(net[40:])|0xFFFF<<48) // UDP checksum
	}
	return State{c}
}

// reserved are the bits of the first eight bytes of a BTH that are ones: FECN, BECN and six reserved ones.
const reserved = 0xFF << 32

// Transport adds the BTH, with which ib begins, and what follows in it, to a state of StartNet.
func (s *State) Transport(ib []byte) {
	if c, ok := fold(s.reg, reserved, ib); ok {
		s.reg = c
		return
	}
	c := step8(s.reg, load8(ib)|reserved)
	s.reg = step4(c, binary.LittleEndian.Uint32(ib[8:]))
	s.Update(ib[bthLen:])
}

// WithID returns the state of StartNet for the same IPv4 header with the bits of its identification changed that are set in diff: a
// CRC is linear.
func (s State) WithID(diff uint16) State {
	return State{s.reg ^ idHigh[diff>>8] ^ idLow[diff&0xFF]}
}

// idHigh and idLow are what a bit in the two bytes of the identification changes in the register at the end of the UDP header.
var idHigh, idLow = behind(net4 - idOffset - 1), behind(net4 - idOffset - 2)

// behind returns the registers after each byte and n zero bytes.
func behind(n int) (t [256]uint32) {
	for b := range t {
		c := crc32.IEEETable[b]
		for range n {
			c = crc32.IEEETable[byte(c)] ^ c>>8
		}
		t[b] = c
	}
	return t
}

// Update adds the next bytes of the packet: payload, piece by piece, then pad.
func (s *State) Update(p []byte) {
	if c, ok := fold(s.reg, 0, p); ok {
		s.reg = c
		return
	}
	// Below 64 bytes hash/crc32 has nothing faster than the tables here, and
	// a few nanoseconds of calls around them.
	if len(p) >= 64 && instructions {
		s.reg = ^crc32.Update(^s.reg, crc32.IEEETable, p)
		return
	}
	s.reg = tables(s.reg, p)
}

// instructions is whether those that the processor has for CRCs are faster than the tables. In an emulator they are not: there tables take half
// the time.
var instructions = true

func init() { instructions = instructionsPay() }

// instructionsPay measures, some microseconds long. The best of several times counts: one may be interrupted.
func instructionsPay() bool {
	var p [512]byte
	var s State
	best := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for range 5 {
		for i, f := range []func(){func() { s.Update(p[:]) }, func() { s.reg = tables(s.reg, p[:]) }} {
			begun := time.Now()
			f()
			best[i] = min(best[i], time.Since(begun))
		}
	}
	return best[0] <= best[1]
}

// Copy copies p to dst, which must be as long at least, and adds it as it stands there: where p changes meanwhile, the sum is that of what was
// copied. The two must not overlap.
func (s *State) Copy(dst, p []byte) {
	if c, n := foldCopy(s.reg, dst, p); n > 0 {
		s.reg, dst, p = c, dst[n:], p[n:]
	}
	s.Update(dst[:copy(dst[:len(p)], p)])
}

// Sum returns the ICRC of what was added so far; the state can go on.
func (s *State) Sum() uint32 { return ^s.reg }

// Put writes the ICRC into dst, Len bytes, as it stands on the wire.
func (s *State) Put(dst []byte) { binary.LittleEndian.PutUint32(dst, s.Sum()) }

// Check reports whether the last four bytes of ib are the packet's ICRC. net is
// as for Start, ib is the whole UDP payload from the BTH to the ICRC.
func Check(net, ib []byte) bool {
	d, ok := diff(net, ib)
	return ok && d == 0
}

// diff returns the ICRC of the packet xor the one that it carries, and false
// when the packet is too short to carry one.
func diff(net, ib []byte) (uint32, bool) { return diffFrom(StartNet(net), ib) }

// diffFrom is diff where the state after the IP and UDP header is known.
func diffFrom(s State, ib []byte) (uint32, bool) {
	n := len(ib) - Len
	if n < bthLen {
		return 0, false
	}
	s.Transport(ib[:n])
	return s.Sum() ^ binary.LittleEndian.Uint32(ib[n:]), true
}

// slice[k][b] is the register after byte b and k zero bytes: one look-up per
// byte, none of which waits for another ("slicing by eight").
var slice = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for b := range t[0] {
		for k := 1; k < len(t); k++ {
			c := t[k-1][b]
			t[k][b] = t[0][byte(c)] ^ c>>8
		}
	}
	return t
}()

func load8(p []byte) uint64 { return binary.LittleEndian.Uint64(p) }

// step8 takes the register over eight bytes, read little-endian.
func step8(c uint32, v uint64) uint32 {
	v ^= uint64(c)
	return slice[7][byte(v)] ^ slice[6][byte(v>>8)] ^ slice[5][byte(v>>16)] ^ slice[4][byte(v>>24)] ^
		slice[3][byte(v>>32)] ^ slice[2][byte(v>>40)] ^ slice[1][byte(v>>48)] ^ slice[0][byte(v>>56)]
}

// tables takes the register over a few bytes.
func tables(c uint32, p []byte) uint32 {
	for len(p) >= 8 {
		c = step8(c, load8(p))
		p = p[8:]
	}
	if len(p) >= 4 {
		c = step4(c, binary.LittleEndian.Uint32(p))
		p = p[4:]
	}
	for _, b := range p {
		c = slice[0][byte(c)^b] ^ c>>8
	}
	return c
}

// step4 takes the register over four bytes, read little-endian.
func step4(c, v uint32) uint32 {
	v ^= c
	return slice[3][byte(v)] ^ slice[2][byte(v>>8)] ^ slice[1][byte(v>>16)] ^ slice[0][byte(v>>24)]
}
