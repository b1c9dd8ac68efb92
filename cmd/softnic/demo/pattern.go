package demo

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
)

// pattern is the content of one message.
type pattern struct {
	seed, message uint64
	n             int // bytes
}

// fill writes the pattern into b, which is as long as the message.
func (p pattern) fill(b []byte) {
	r := rand.NewPCG(p.seed, p.message)
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	var last [8]byte
	binary.LittleEndian.PutUint64(last[:], r.Uint64())
	copy(b, last[:])
}

// imm is the immediate data of the message.
func (p pattern) imm() uint32 { return uint32(p.message)*0x9E3779B9 + 1 }

// sizeText writes a length for people.
func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<13 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprint(n)
}

func sizesText(l []int) string {
	var s []string
	for _, n := range l {
		s = append(s, sizeText(n))
	}
	return strings.Join(s, ", ")
}
