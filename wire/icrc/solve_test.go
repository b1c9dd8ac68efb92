package icrc

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
)

// sign writes the right ICRC into the last four bytes of ib.
func sign(net, ib []byte) {
	s := Start(net, ib[:len(ib)-4])
	s.Put(ib[len(ib)-4:])
}

func TestSolveVectors(t *testing.T) {
	for _, v := range vectors {
		p := unhex(t, v.packet)
		net, ib := split(p)
		want := binary.BigEndian.Uint16(p[4:])
		if len(net) == 28 {
			p[4], p[5] = 0, 0
		} else {
			want = 0
		}
		if id, ok := SolveID(net, ib); !ok || id != want {
			t.Errorf("%s: %04x, %v, want %04x", v.name, id, ok, want)
		}
	}
}

// TestSolveEveryID tries all identifications at a few lengths.
func TestSolveEveryID(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, size := range []int{4, 9, 1028, 4116} {
		net, ib := random(r, false, size)
		for id := range 1 << 16 {
			if size > 1000 && id%17 != 0 {
				continue
			}
			binary.BigEndian.PutUint16(net[4:], uint16(id))
			sign(net, ib)
			binary.BigEndian.PutUint16(net[4:], uint16(r.Uint32()))
			if got, ok := SolveID(net, ib); !ok || int(got) != id {
				t.Fatalf("size %d: %04x, %v, want %04x", size, got, ok, id)
			}
		}
	}
}

// TestSolveEveryLength tries every length that an IPv4 packet can have, and
// some that it cannot.
func TestSolveEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	_, ib := random(r, false, 1<<16)
	net := unhex(t, "45000030000040004011b6b9c0000201c0000202c12312b7001c0000")
	step := 1
	if testing.Short() {
		step = 101
	}
	for n := 16; n < len(ib); n += step {
		id := uint16(r.Uint32())
		binary.BigEndian.PutUint16(net[4:], id)
		sign(net, ib[:n])
		net[4], net[5] = 0, 0
		if got, ok := SolveID(net, ib[:n]); !ok || got != id {
			t.Fatalf("length %d: %04x, %v, want %04x", n, got, ok, id)
		}
	}
}

// TestSolveRefuses measures that damage is found as often as 16 bits can find it.
func TestSolveRefuses(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	net, ib := random(r, false, 1028)
	sign(net, ib)
	// A single bit outside the identification is found at every place of this packet.
	for i := range ib[:len(ib)-4] {
		for bit := byte(1); bit != 0; bit <<= 1 {
			if i == 4 {
				continue // masked
			}
			ib[i] ^= bit
			if id, ok := SolveID(net, ib); ok {
				t.Errorf("flip of byte %d bit %02x explained by ID %04x", i, bit, id)
			}
			ib[i] ^= bit
		}
	}
	for i := range net {
		for bit := byte(1); bit != 0; bit <<= 1 {
			net[i] ^= bit
			id, ok := SolveID(net, ib)
			right := i == 1 || i == 4 || i == 5 || i == 8 || i == 10 || i == 11 || i == 26 || i == 27
			if ok != right {
				t.Errorf("flip of header byte %d bit %02x: %04x, %v", i, bit, id, ok)
			}
			net[i] ^= bit
		}
	}
	const tries = 400_000
	missed := 0
	for range tries {
		at := 12 + r.IntN(len(ib)-24)
		old := binary.LittleEndian.Uint64(ib[at:])
		binary.LittleEndian.PutUint64(ib[at:], r.Uint64())
		if _, ok := SolveID(net, ib); ok {
			missed++
		}
		binary.LittleEndian.PutUint64(ib[at:], old)
	}
	if missed > 30 { // 6 expected
		t.Errorf("%d of %d random errors were explained by an identification", missed, tries)
	}
}

// TestUnshift checks the factor against its meaning, zero bytes.
func TestUnshift(t *testing.T) {
	c := uint32(0xDEADBEEF)
	s := State{c}
	for n := range 5000 {
		if got := multiply(s.reg, unshift(n)); got != c {
			t.Fatalf("%d bytes undone: %08x, want %08x", n, got, c)
		}
		s.Update([]byte{0})
	}
	if power(1<<17) != multiply(power(1<<16), power(1<<16)) || unshift(1<<17) != power(1<<17) {
		t.Error("lengths above the cache")
	}
}

// TestSolveConcurrent fills the cache of factors from many goroutines; the
// race detector watches.
func TestSolveConcurrent(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			net, ib := random(rand.New(rand.NewPCG(13, uint64(g))), false, 6000)
			for n := 5000; n < 5200; n++ {
				sign(net, ib[:n])
				if _, ok := SolveID(net, ib[:n]); !ok {
					t.Errorf("length %d refused", n)
				}
			}
		})
	}
	wg.Wait()
}

var sink bool

func BenchmarkCheck(b *testing.B) {
	benchmark(b, func(net, ib []byte) bool { return Check(net, ib) })
}

func BenchmarkSolveID(b *testing.B) {
	benchmark(b, func(net, ib []byte) bool { _, ok := SolveID(net, ib); return ok })
}

// BenchmarkSolveOnly is what SolveID costs on top of the CRC.
func BenchmarkSolveOnly(b *testing.B) {
	var d uint32
	for i := range b.N {
		d ^= multiply(uint32(i)|1<<20, unshift(1024))
	}
	sink = d == 0
}

func benchmark(b *testing.B, f func(net, ib []byte) bool) {
	for _, c := range []struct {
		name string
		size int
	}{{"ack", 8}, {"64B", 84}, {"1KiB", 1028}, {"4KiB", 4100}} {
		b.Run(c.name, func(b *testing.B) {
			net, ib := random(rand.New(rand.NewPCG(1, 1)), false, c.size)
			sign(net, ib)
			net[4] ^= 0x5A
			b.ReportAllocs()
			for b.Loop() {
				sink = f(net, ib)
			}
		})
	}
}
