package peer

import (
	"bytes"
	"hash/crc32"
	"testing"
)

// masked lists the bits that may change under way, byte by byte, as roce.md A.8
// item 2 does; offsets are from the IP header of a packet without options.
var masked = map[bool]map[int]byte{
	false: {1: 0xFF, 8: 0xFF, 10: 0xFF, 11: 0xFF, // TOS, TTL, checksum
		20 + 6: 0xFF, 20 + 7: 0xFF, // UDP checksum
		28 + 4: 0xFF}, // FECN, BECN, reserved
	true: {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF, // class, flow label, hop limit
		40 + 6: 0xFF, 40 + 7: 0xFF,
		48 + 4: 0xFF},
}

// Every bit of every vector, flipped alone, must matter or not as the rule says.
func TestEveryBit(t *testing.T) {
	for _, v := range vectors() {
		t.Run(v.name, func(t *testing.T) {
			packet := unhex(t, v.bytes)
			v6 := packet[0]>>4 == 6
			for i := range packet {
				for bit := range 8 {
					packet[i] ^= 1 << bit
					free := masked[v6][i]>>bit&1 == 1
					if CheckICRC(packet) != free {
						t.Errorf("byte %d bit %d flipped: right %v, want %v", i, bit, !free, free)
					}
					packet[i] ^= 1 << bit
				}
			}
		})
	}
}

// The division must agree with the CRC-32 of the standard library, which it shares
// nothing with, on messages of every length.
func TestAgainstTable(t *testing.T) {
	message := bytes.Repeat([]byte("softnic!"), 16)
	for n := range message {
		var r remainder = ^remainder(0)
		for _, b := range message[:n] {
			r.octet(b)
		}
		want := crc32.ChecksumIEEE(message[:n])
		if got := r.wire(); got != [4]byte{byte(want), byte(want >> 8), byte(want >> 16), byte(want >> 24)} {
			t.Fatalf("%d bytes: % x, want %08x", n, got, want)
		}
		if back := fromWire(r.wire()); back != r {
			t.Fatalf("%d bytes: fromWire(wire()) is %08x, want %08x", n, back, r)
		}
		for i := n - 1; i >= 0; i-- {
			r.unoctet(message[i])
		}
		if r != ^remainder(0) {
			t.Fatalf("%d bytes: run backwards the register is %08x", n, r)
		}
	}
}

func TestAnyID(t *testing.T) {
	f := between(v4a, v4b, SendOnly(0x11, 0x1234, bytes.Repeat([]byte{0xA5}, 1024)), worked)
	for _, id := range []uint16{0, 1, 2, 0x0334, 0x8000, 0xFFFF} {
		f.ID = id
		packet := f.Marshal()
		packet[4], packet[5] = 0, 0 // as rebuilt behind a socket
		if got, ok := CheckICRCAnyID(packet); !ok || got != id {
			t.Errorf("identification %04x: got %04x, %v", id, got, ok)
		}
		packet[60] ^= 0x10
		if got, ok := CheckICRCAnyID(packet); ok {
			t.Errorf("identification %04x: a corrupt packet passes with %04x", id, got)
		}
	}
	f.ID = 7
	if id, ok := CheckICRCAnyID(f.Marshal()); !ok || id != 7 {
		t.Errorf("intact packet: got %d, %v", id, ok)
	}
	six := between(v6a, v6b, SendOnly(0x11, 1, nil), nil).Marshal()
	if _, ok := CheckICRCAnyID(six); !ok {
		t.Error("intact IPv6 packet fails")
	}
	six[50] ^= 1
	if _, ok := CheckICRCAnyID(six); ok {
		t.Error("corrupt IPv6 packet passes")
	}
}

func TestICRCOfShortPackets(t *testing.T) {
	whole := between(v4a, v4b, Ack(1, 2, 3), nil).Marshal()
	for n := range whole {
		if CheckICRC(whole[:n]) {
			t.Errorf("cut to %d bytes it passes", n)
		}
	}
	if _, ok := CheckICRCAnyID(whole[:10]); ok {
		t.Error("CheckICRCAnyID of ten bytes passes")
	}
	if CheckRxeFlushICRC(nil) || !CheckRxeFlushICRC(whole) {
		t.Error("CheckRxeFlushICRC of something else is not the standard rule")
	}
}

func BenchmarkICRC4096(b *testing.B) {
	packet := between(v4a, v4b, SendOnly(1, 2, make([]byte, 4096)), nil).Marshal()
	b.SetBytes(int64(len(packet)))
	for b.Loop() {
		CheckICRC(packet)
	}
}
