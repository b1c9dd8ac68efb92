package trace

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// merged is what an offload makes of packets: the headers of the first, with the length of all.
func merged(packets [][]byte) []byte {
	n := wire.NetLen4
	if packets[0][0]>>4 == 6 {
		n = wire.NetLen6
	}
	b := bytes.Clone(packets[0])
	for _, p := range packets[1:] {
		b = append(b, p[n:]...)
	}
	binary.BigEndian.PutUint16(b[n-4:], uint16(len(b)-n+8))
	if n == wire.NetLen6 {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	} else {
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		wire.PutIPChecksum(b)
	}
	return b
}

// burstOf returns packets of one queue pair as they follow each other, of a payload of so many bytes each.
func burstOf(v6 bool, op bth.Operation, sizes ...int) (l [][]byte) {
	path := wire.Path{Src: hostA, Dst: hostB, SrcPort: 0xC001}
	if v6 {
		path.Src, path.Dst = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	}
	for i, n := range sizes {
		s := wire.NewSpec(path, bth.Make(bth.RC, op), 0x112233, bth.PSN(0xFFFFFE+i)&0xFFFFFF)
		s.ID = uint16(0xFFFE + i)
		s.Payload = bytes.Repeat([]byte{0x11, 0x22, 0x33, 0xFF}, n/4+1)[:n] // the queue pair's number, again and again
		s.Ext.MSN = uint32(i)
		l = append(l, wire.Build(&s))
	}
	return l
}

// What an offload has merged is several packets, each with its own IP header; one that is alone is itself.
func TestBursts(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, packets := range [][][]byte{
			burstOf(v6, bth.SendMiddle, 4096, 4096, 4096, 4096),
			burstOf(v6, bth.SendMiddle, 256, 256, 256),
			burstOf(v6, bth.SendOnly, 64, 64, 64, 13),
			burstOf(v6, bth.SendOnly, 0, 0, 0),
			burstOf(v6, bth.Acknowledge, 0, 0),
			burstOf(v6, bth.SendLast, 3000, 1),
			burstOf(v6, bth.ReadResponseOnly, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000),
			burstOf(v6, bth.WriteFirst, 1024),
			burstOf(v6, bth.SendOnly, 4000),
			burstOf(v6, bth.SendOnly, 4096),
		} {
			whole := merged(packets)
			s, got, err := streamOf(t, StreamOptions{}, pcapFile(orders[0], pcapMicro, 101, whole, sent(1, hostA, hostB)))
			if err != nil || len(got) != len(packets)+1 {
				t.Errorf("%d packets of %d bytes became %d, %v", len(packets), len(packets[0]), len(got)-1, err)
				continue
			}
			for i, p := range packets {
				if !bytes.Equal(got[i].IP, p) || got[i].Number != 1 || got[i].Time != got[0].Time {
					t.Errorf("packet %d of %d is other:\n%x\n%x", i, len(packets), got[i].IP, p)
				}
			}
			bursts := uint64(0)
			if len(packets) > 1 {
				bursts = 1
			}
			if want := (Counts{Total: 2, RoCE: uint64(len(packets)) + 1, Bursts: bursts}); s.Counts != want || got[len(packets)].Number != 2 {
				t.Errorf("%+v, want %+v", s.Counts, want)
			}
			// Of one whose first packet is wrong only that is wrong, whichever byte of it is.
			first := len(packets[0])
			net := wire.NetLen4
			if v6 {
				net = wire.NetLen6
			}
			for _, at := range []int{net, net + 2, net + 6, net + 9, first - 5, first - 1} {
				spoiled := bytes.Clone(whole)
				spoiled[at] ^= 0x11
				want := slices.Clone(packets)
				want[0] = bytes.Clone(want[0])
				want[0][at] ^= 0x11
				_, got, _ := streamOf(t, StreamOptions{}, pcapFile(orders[0], pcapMicro, 101, spoiled))
				if !slices.EqualFunc(got, want, func(g Sighting, w []byte) bool { return bytes.Equal(g.IP, w) }) {
					t.Errorf("IPv6 %v, byte %d wrong: %d packets of %d bytes became %d", v6, at, len(want), first, len(got))
				}
			}
		}
	}
}

// A packet that is right as a whole is one, also if it begins with what could be one by itself.
func TestBurstWithin(t *testing.T) {
	s := wire.NewSpec(wire.Path{Src: hostA, Dst: hostB}, bth.Make(bth.RC, bth.SendOnly), 0x112233, 7)
	s.Payload = make([]byte, 64)
	inner := wire.Build(&s)[wire.NetLen4:]
	s.Payload = append(bytes.Clone(inner[bth.Len:]), inner...)
	whole := wire.Build(&s)
	if !right(packet(whole[:wire.NetLen4], whole[wire.NetLen4:wire.NetLen4+len(inner)], 0)) {
		t.Fatal("the beginning is no packet")
	}
	_, got, err := streamOf(t, StreamOptions{}, pcapFile(orders[0], pcapMicro, 101, whole))
	if err != nil || len(got) != 1 || !bytes.Equal(got[0].IP, whole) {
		t.Errorf("%d packets, %v", len(got), err)
	}
}

// The first two packets of a burst may be wrong; of three wrong ones it cannot be told what they are.
func TestBurstSpoiled(t *testing.T) {
	packets := burstOf(false, bth.SendMiddle, 256, 256, 256, 256)
	whole := merged(packets)
	for i, want := range []int{4, 4, 1} {
		whole[wire.NetLen4+i*(bth.Len+256+wire.ICRCLen)+20] ^= 1
		if _, got, _ := streamOf(t, StreamOptions{}, pcapFile(orders[0], pcapMicro, 101, whole)); len(got) != want {
			t.Errorf("%d packets are wrong: %d of 4, want %d", i+1, len(got), want)
		}
	}
}

// What is taken apart is, put together, what it was, and was not right.
func FuzzBurst(f *testing.F) {
	f.Add(merged(burstOf(false, bth.SendOnly, 64, 64, 13)))
	f.Add(merged(burstOf(true, bth.SendMiddle, 256, 256)))
	f.Add(burstOf(false, bth.SendOnly, 9)[0])
	f.Fuzz(func(t *testing.T, ip []byte) {
		var frame Frame
		new(Decoder).Decode(101, ip, len(ip), &frame)
		if frame.Kind != RoCE {
			return
		}
		l := frame.burst()
		if l == nil {
			return
		}
		if right(frame.IP) {
			t.Error("it was one packet, and right")
		}
		_, want := frame.split()
		var got []byte
		for _, p := range l {
			one := Frame{Kind: RoCE, IP: p}
			_, ib := one.split()
			got = append(got, ib...)
		}
		if !bytes.Equal(got, want) || len(l) < 2 {
			t.Errorf("%d packets, %x, want %x", len(l), got, want)
		}
	})
}
