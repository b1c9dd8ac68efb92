package icrc

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
)

// reference computes an ICRC from a packet that begins with its IP header and
// ends with its pad, bit by bit and on a masked copy: slow, and of one mind
// with the text of the rule rather than with the package under test.
func reference(packet []byte) uint32 {
	m := append([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, packet...)
	ip := m[8:]
	udp := ip[20:]
	if ip[0]>>4 == 6 {
		udp = ip[40:]
		ip[0] |= 0x0F
		ip[1], ip[2], ip[3], ip[7] = 0xFF, 0xFF, 0xFF, 0xFF
	} else {
		ip[1], ip[8], ip[10], ip[11] = 0xFF, 0xFF, 0xFF, 0xFF
	}
	udp[6], udp[7] = 0xFF, 0xFF
	udp[8+4] = 0xFF
	r := ^uint32(0)
	for _, b := range m {
		for i := range 8 {
			in := uint32(b>>i) & 1
			if (r^in)&1 != 0 {
				r = r>>1 ^ 0xEDB88320
			} else {
				r >>= 1
			}
		}
	}
	return ^r
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func split(packet []byte) (net, ib []byte) {
	if packet[0]>>4 == 6 {
		return packet[:48], packet[48:]
	}
	return packet[:28], packet[28:]
}

// vectors are packets from the IP header to the ICRC. The first two were
// made by others: a ConnectX-4 Lx, and Scapy.
var vectors = []struct{ name, packet string }{
	{"hardware CNP", "45c2003c718c400040119161 0a001101 0a001201 000012b700280000 8100ffff 40000118 00000000 00000000000000000000000000000000 82fd002a"},
	{"scapy UC SEND ONLY", "4501004004784000 4011 0000 c0a80007 c0a80007 c00012b7002c0000 2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3"},
	{"SEND ONLY abc", "45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 0d7b363d"},
	{"the same, ID 1", "45000030000140004011b6b8c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 a470bf73"},
	{"the same, other TTL and TOS", "45ff0030000040000311b6b9c0000201c0000202 c12312b7001c0000 0410ffff0000001180001234 61626300 0d7b363d"},
	{"the same, MigReq", "45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 0450ffff0000001180001234 61626300 7000cdf7"},
	{"ACK", "45000030000040004011b6b9c0000201c0000202 c12312b7001c0000 1100ffff0000001200001234 1f000001 c67ef876"},
	{"IPv6 SEND ONLY", "60000000001c1140 20010db8000000000000000000000001 20010db8000000000000000000000002 c12312b7001cbeef 0410ffff0000001180001234 61626300 f97401d0"},
	{"V1", "4500002c123440004011a489c0000201c0000202c00012b7001800000440ffff000000118000000085871b75"},
	{"V2", "45000030123440004011a485c0000201c0000202c00012b7001c00000470ffff0000001180ffffff5a000000ae553cca"},
	{"V3", "45000030123440004011a485c0000202c0000201c00012b7001c00001140ffff0000002200ffffff1f0000019c2b4a95"},
	{"V4", "45c0003c123440004011a3b9c0000202c0000201c00012b7002800008100ffff400000220000000000000000000000000000000000000000a091a1f2"},
	{"V5", "45000038123440004011a47dc0000201c0000202c00012b7002400006440ffff0000003300000005111111110000004461626364293ae3b8"},
	{"V6", "60012345001c114020010db800000000000000000000000120010db8000000000000000000000002c00012b7001c00000460ffff00000011807fffff686900008c17ca32"},
	{"V7", "4500003c123440004011a479c0000201c0000202c00012b7002800000c40ffff0000001180fffffd0000000000001000000203040000100165d180f7"},
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			p := unhex(t, v.packet)
			want := binary.LittleEndian.Uint32(p[len(p)-4:])
			if got := reference(p[:len(p)-4]); got != want {
				t.Fatalf("the reference disagrees with the vector: %08x, want %08x", got, want)
			}
			net, ib := split(p)
			s := Start(net, ib[:len(ib)-4])
			if got := s.Sum(); got != want {
				t.Errorf("Sum = %08x, want %08x", got, want)
			}
			var b [4]byte
			s.Put(b[:])
			if string(b[:]) != string(p[len(p)-4:]) {
				t.Errorf("Put wrote % x, want % x", b, p[len(p)-4:])
			}
			if !Check(net, ib) {
				t.Error("Check refused it")
			}
			p[len(p)-1] ^= 0x80
			if Check(net, ib) {
				t.Error("Check took it with a bit of the ICRC flipped")
			}
		})
	}
}

// TestFlushOfRxe shows how the ICRC that kernel rxe puts on a FLUSH can be had:
// it covers the transport headers twice, the second time unmasked.
func TestFlushOfRxe(t *testing.T) {
	p := unhex(t, "45000040a4824000401182160a0900010a090002 d53912b7002c0000 1c00ffff0000077780000065 00000001 0000000000010008 00000077 00000123 6a1c7848")
	net, ib := split(p)
	s := Start(net, ib[:len(ib)-4])
	s.Update(ib[:len(ib)-4])
	if got, want := s.Sum(), binary.LittleEndian.Uint32(ib[len(ib)-4:]); got != want {
		t.Errorf("%08x, want %08x", got, want)
	}
	if Check(net, ib) {
		t.Error("Check takes the faulty ICRC of rxe's FLUSH")
	}
}

// random returns a packet of either family with random content: the headers
// too, but for the version.
func random(r *rand.Rand, v6 bool, size int) (net, ib []byte) {
	n, version := 28, byte(0x45)
	if v6 {
		n, version = 48, 0x60
	}
	p := make([]byte, n+12+size)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	p[0] = version | p[0]&0xF
	return p[:n:n], p[n:]
}

func TestAgainstReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for size := 0; size < 300; size++ {
		for _, v6 := range []bool{false, true} {
			net, ib := random(r, v6, size)
			want := reference(append(net, ib...))
			s := Start(net, ib)
			if got := s.Sum(); got != want {
				t.Fatalf("v6=%v size=%d: whole: %08x, want %08x", v6, size, got, want)
			}
			// The same in pieces of random lengths.
			s = Start(net, ib[:12])
			for rest := ib[12:]; ; {
				n := min(len(rest), r.IntN(100))
				s.Update(rest[:n])
				if rest = rest[n:]; len(rest) == 0 {
					break
				}
			}
			if got := s.Sum(); got != want {
				t.Fatalf("v6=%v size=%d: in pieces: %08x, want %08x", v6, size, got, want)
			}
		}
	}
}

// TestMask flips every bit of the headers, one at a time: exactly the bits
// that a router may change leave the ICRC as it is.
func TestMask(t *testing.T) {
	masked := map[bool]map[int]byte{
		false: {1: 0xFF, 8: 0xFF, 10: 0xFF, 11: 0xFF, 26: 0xFF, 27: 0xFF, 32: 0xFF},
		true:  {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF, 46: 0xFF, 47: 0xFF, 52: 0xFF},
	}
	r := rand.New(rand.NewPCG(3, 4))
	for _, v6 := range []bool{false, true} {
		net, ib := random(r, v6, 20)
		p := append(net, ib...)
		net, ib = p[:len(net)], p[len(net):]
		s := Start(net, ib)
		want := s.Sum()
		for i := range p {
			for bit := byte(1); bit != 0; bit <<= 1 {
				p[i] ^= bit
				s := Start(net, ib)
				if same := s.Sum() == want; same != (masked[v6][i]&bit != 0) {
					t.Errorf("v6=%v byte %d bit %02x: ICRC unchanged: %v", v6, i, bit, same)
				}
				p[i] ^= bit
			}
		}
	}
}

func TestShort(t *testing.T) {
	net := make([]byte, 28)
	for n := range 16 {
		if Check(net, make([]byte, n)) {
			t.Errorf("Check took a UDP payload of %d bytes", n)
		}
		if _, ok := SolveID(net, make([]byte, n)); ok {
			t.Errorf("SolveID took a UDP payload of %d bytes", n)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		net, ib := random(rand.New(rand.NewPCG(5, 6)), v6, 1028)
		if n := testing.AllocsPerRun(100, func() {
			Check(net, ib)
			SolveID(net, ib)
			s := Start(net, ib[:12])
			s.Update(ib[12:])
			s.Put(ib[len(ib)-4:])
		}); n != 0 {
			t.Errorf("v6=%v: %v allocations", v6, n)
		}
	}
}
