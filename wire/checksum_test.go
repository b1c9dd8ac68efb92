package wire

import (
	"bytes"
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"
)

// checksumOf is the checksum by the book (RFC 1071): the ones' complement of the
// ones' complement sum of the 16-bit words, here as a remainder.
func checksumOf(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(bytes.Clone(b), 0)
	}
	n := new(big.Int).SetBytes(b)
	r := uint16(new(big.Int).Mod(n, big.NewInt(0xFFFF)).Uint64())
	if r == 0 && n.Sign() != 0 {
		r = 0xFFFF
	}
	return ^r
}

func TestSum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 200 {
		for _, fill := range []string{"zero", "ones", "random"} {
			b := make([]byte, n)
			for i := range b {
				switch fill {
				case "ones":
					b[i] = 0xFF
				case "random":
					b[i] = byte(r.Uint32())
				}
			}
			if got, want := ^fold(sum(0, b)), checksumOf(b); got != want {
				t.Errorf("%d bytes, %s: %04x, want %04x", n, fill, got, want)
			}
		}
	}
	for s, want := range map[uint64]uint16{0: 0, 0xFFFF: 0xFFFF, 0x10000: 1, 0x1FFFE: 0xFFFF, 1<<64 - 1: 0xFFFF,
		1<<64 - 2: 0xFFFE, 0xFFFF_FFFF_0000_0001: 1, 0x0001_FFFF: 1, 0xFFFF_0001: 1, 0xFFFE_FFFF_FFFF_FFFF: 0xFFFE} {
		if got := fold(s); got != want {
			t.Errorf("fold(%x) = %04x, want %04x", s, got, want)
		}
	}
}

func TestPutUDPChecksum(t *testing.T) {
	// tshark 4.0 and the reference above agree on these.
	for name, want := range map[string]uint16{"V5": 0x5052, "V6": 0x8DE5} {
		p := vector(t, name)
		n := NetLen4
		pseudo := append(bytes.Clone(p[12:20]), 0, 17)
		if p[0]>>4 == 6 {
			n = NetLen6
			pseudo = append(bytes.Clone(p[8:40]), 0, 17)
		}
		net, ib := p[:n], p[n:]
		pseudo = append(append(pseudo, net[n-4:n-2]...), net[n-8:]...)
		if ref := checksumOf(append(pseudo, ib...)); ref != want {
			t.Errorf("%s: the reference says %04x, want %04x", name, ref, want)
		}
		net[n-1] = 0xA5 // what stood there before must not matter
		PutUDPChecksum(net, ib)
		if got := binary.BigEndian.Uint16(net[n-2:]); got != want {
			t.Errorf("%s: %04x, want %04x", name, got, want)
		}
		// Make the sum come out as 0, which would mean "none".
		f := want + binary.BigEndian.Uint16(ib[12:])
		if f < want {
			f++
		}
		binary.BigEndian.PutUint16(ib[12:], f)
		PutUDPChecksum(net, ib)
		if got := binary.BigEndian.Uint16(net[n-2:]); got != 0xFFFF {
			t.Errorf("%s with a sum of 0: %04x", name, got)
		}
	}
}

func TestPutIPChecksum(t *testing.T) {
	p := vector(t, "V1")
	p[10], p[11] = 0xFF, 0x12
	PutIPChecksum(p)
	if !bytes.Equal(p, vector(t, "V1")) {
		t.Errorf("% x", p[:20])
	}
	p = vector(t, "V6")
	PutIPChecksum(p)
	if !bytes.Equal(p, vector(t, "V6")) {
		t.Error("an IPv6 header has no checksum")
	}
}
