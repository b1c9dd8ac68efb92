package icrc

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestUpdateAsHashCRC32: payload of each length, at each place of a cache line, is taken as hash/crc32 takes it.
func TestUpdateAsHashCRC32(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 4096+64+4)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for n := range 4097 + 4 {
		at, reg := n%64, r.Uint32()
		p := b[at : at+min(n, len(b)-at)]
		s := State{reg}
		s.Update(p)
		if want := ^crc32.Update(^reg, crc32.IEEETable, p); s.reg != want {
			t.Fatalf("%d bytes at %d: %08x, want %08x", len(p), at, s.reg, want)
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
