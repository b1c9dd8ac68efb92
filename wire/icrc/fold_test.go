package icrc

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestUpdateAsHashCRC32: bytes of each number, at each place of a cache line, are taken as hash/crc32 takes them, and copied as they are; and by
// Transport with its ones.
func TestUpdateAsHashCRC32(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 64+4200)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	dst := make([]byte, len(b)+1)
	for n := range 4200 {
		at, reg := n*7%64, r.Uint32()
		p := b[at : at+n]
		s := State{reg}
		s.Update(p)
		want := ^crc32.Update(^reg, crc32.IEEETable, p)
		if s.reg != want {
			t.Fatalf("%d bytes at %d: %08x, want %08x", n, at, s.reg, want)
		}
		to := r.IntN(64)
		clear(dst)
		s = State{reg}
		s.Copy(dst[to:len(dst)-1], p)
		if s.reg != want || !bytes.Equal(dst[to:to+n], p) || len(bytes.Trim(dst[:to], "\x00")) != 0 || len(bytes.Trim(dst[to+n:], "\x00")) != 0 {
			t.Fatalf("%d bytes from %d to %d: %08x, want %08x, or not copied", n, at, to, s.reg, want)
		}
		if n < bthLen {
			continue
		}
		copy(dst, p)
		dst[4] = 0xFF
		s = State{reg}
		s.Transport(p)
		if want := ^crc32.Update(^reg, crc32.IEEETable, dst[:n]); s.reg != want {
			t.Fatalf("%d bytes of a packet at %d: %08x, want %08x", n, at, s.reg, want)
		}
	}
	for at := range 64 {
		s := State{7}
		s.Update(b[at : at+1024])
		if want := ^crc32.Update(^uint32(7), crc32.IEEETable, b[at:at+1024]); s.reg != want {
			t.Fatalf("at %d: %08x, want %08x", at, s.reg, want)
		}
	}
}

// TestUpdateWithoutInstructions: an emulated processor comes to the same, with the tables alone.
func TestUpdateWithoutInstructions(t *testing.T) {
	defer func(was bool) { instructions = was }(instructions)
	instructions = false
	TestUpdateAsHashCRC32(t)
}

// TestUpdateAtTheEdge: what is not part of the data is not read, nor written behind a copy, at either end of what is mapped.
func TestUpdateAtTheEdge(t *testing.T) {
	low, high := edges(t)
	for n := range min(1100, len(low)) {
		for _, p := range [][]byte{low[:n], high[len(high)-n:]} {
			var s State
			s.Update(p)
			s = State{}
			s.Copy(make([]byte, n), p)
			s = State{}
			s.Copy(p, make([]byte, n))
			if n >= bthLen {
				s.Transport(p)
			}
		}
	}
}
