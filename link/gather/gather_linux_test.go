package gather

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func content(l []unix.Iovec) (b []byte) {
	for _, v := range l {
		b = append(b, unsafe.Slice(v.Base, int(v.Len))...)
	}
	return b
}

// TestPieces: messages are what was added to them, also those before one for which there was no room; long pieces are not copied, and there
// are not more pieces than that takes.
func TestPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var p Pieces
	for round := range 50 {
		var want [][]byte
		var got [][]unix.Iovec
		for range 1 + r.IntN(8) {
			var w []byte
			long := 0
			for range r.IntN(300) {
				b := make([]byte, r.IntN(40))
				if r.IntN(20) == 0 {
					b = make([]byte, joinMost-1+r.IntN(3))
				}
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				if len(b) > joinMost {
					long++
				}
				p.Add(b)
				w = append(w, b...)
			}
			l := p.End()
			if most := 2*long + 1 + len(w)/roomy; len(l) > most {
				t.Errorf("round %d: %d pieces, %d are enough", round, len(l), most)
			}
			want, got = append(want, w), append(got, l)
		}
		for i := range want {
			if !bytes.Equal(content(got[i]), want[i]) {
				t.Fatalf("round %d: message %d of %d differs", round, i, len(want))
			}
		}
		p.Reset()
	}
	long := make([]byte, joinMost+1)
	p.Add(long)
	if l := p.End(); len(l) != 1 || l[0].Base != &long[0] {
		t.Error("a long piece is copied")
	}
	p.Reset()
	if l := p.End(); len(l) != 0 || p.list[:1][0].Base != nil {
		t.Error("Reset keeps something")
	}
}

// TestPiecesAllocate: once there was room, nothing is allocated.
func TestPiecesAllocate(t *testing.T) {
	var p Pieces
	head, data := make([]byte, 16), make([]byte, 1024)
	if n := testing.AllocsPerRun(100, func() {
		for range 64 {
			p.Add(head)
			p.Add(data)
			p.Add(head[:4])
		}
		p.End()
		p.Reset()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
