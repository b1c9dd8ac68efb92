package tap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// header makes a vnet of its fields.
func header(flags, gso uint8, head, size, start, offset int) vnet {
	h := vnet{flags, gso}
	for _, v := range []int{head, size, start, offset} {
		h = binary.NativeEndian.AppendUint16(h, uint16(v))
	}
	return h
}

func TestVnet(t *testing.T) {
	h := make(vnet, vnetLen)
	h.putBurst(42, 1040)
	if want := header(1, 5, 42, 1040, 34, 6); !bytes.Equal(h, want) {
		t.Errorf("% x, want % x", h, want)
	}
	if h = header(3, 0x84, 1, 2, 3, 4); !h.needsSum() || h.gso() != 0x84 || h.size() != 2 || h.start() != 3 || h.offset() != 4 {
		t.Errorf("% x is read wrongly", h)
	}
	if h = header(2, 0, 0, 0, 0, 0); h.needsSum() {
		t.Error("a checksum that is right already is taken for one that is needed")
	}
}

// packets returns RoCE packets that can be a burst, as the builder of package wire makes them, with UDP checksum or without: their
// IDs count on from one that soon is 0 again.
func packets(eth []byte, src, dst string, count, size, last int, summed bool) (l [][]byte) {
	for i := range count {
		s := wire.NewSpec(wire.Path{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: 0xc123, TClass: 2}, bth.Make(bth.UC, bth.SendOnly), 17, bth.PSN(i))
		s.Eth, s.ID, s.UDPSum = eth, uint16(0xfffe+i), summed
		s.Payload = bytes.Repeat([]byte{byte(i), 0xff, 3}, 2000)[:size]
		if i == count-1 {
			s.Payload = s.Payload[:last]
		}
		l = append(l, wire.Build(&s))
	}
	return l
}

// inOne makes one frame of packets, by the book.
func inOne(l [][]byte, eth, ipLen int) []byte {
	n := eth + ipLen + udpLen
	f := bytes.Clone(l[0][:n])
	for _, p := range l {
		f = append(f, p[n:]...)
	}
	ip, udp := f[eth:eth+ipLen], f[eth+ipLen:n]
	var pseudo []byte
	if ip[0]>>4 == 4 {
		be.PutUint16(ip[2:], uint16(len(f)-eth))
		be.PutUint16(ip[10:], 0)
		be.PutUint16(ip[10:], ^ones(ip))
		pseudo = append(pseudo, ip[12:20]...)
	} else {
		be.PutUint16(ip[4:], uint16(len(f)-eth-ip6Len))
		pseudo = append(pseudo, ip[8:40]...)
	}
	be.PutUint16(udp[4:], uint16(len(f)-eth-ipLen))
	be.PutUint16(udp[6:], ones(append(pseudo, 0, protoUDP, udp[4], udp[5])))
	return f
}

// ones is the ones' complement sum.
func ones(b []byte) uint16 {
	s := 0
	for i := 0; i < len(b); i += 2 {
		s += int(be.Uint16(b[i:]))
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

var (
	ethPlain  = []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}
	ethPlain6 = []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd}
	ethTagged = []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x60, 0, 8, 0}
)

// split takes a frame apart.
func split(tb testing.TB, h vnet, frame []byte, summed bool) (l [][]byte) {
	tb.Helper()
	var s burst
	if ok, fits := s.open(h, frame); !ok || !fits {
		tb.Fatalf("refused: %v %v", ok, fits)
	}
	for len(s.rest) > 0 {
		head := make([]byte, headLen)
		p := s.next(head, summed)
		l = append(l, append(head[:len(s.head):len(s.head)], p...))
	}
	return l
}

// A burst is taken apart into the packets that it was made of, to the byte: the ID of each is the one that its ICRC was computed with.
func TestBurstIsItsPackets(t *testing.T) {
	for _, c := range []struct {
		eth               []byte
		src, dst          string
		count, size, last int
	}{
		{ethPlain, "10.8.0.1", "10.8.0.2", 2, 4, 4},
		{ethPlain, "10.8.0.1", "10.8.0.2", 15, 4096, 4096},
		{ethPlain, "10.8.0.1", "10.8.0.2", 64, 100, 0},
		{ethPlain, "10.8.0.1", "239.1.2.3", 5, 1024, 8},
		{ethPlain6, "fd00:8::1", "fd00:8::2", 14, 4096, 1},
		{ethPlain6, "fd00:8::1", "fd00:8::2", 3, 0, 0},
		{ethTagged, "10.8.0.1", "10.8.0.2", 7, 256, 4},
	} {
		ipLen := ip4Len
		if netip.MustParseAddr(c.src).Is6() {
			ipLen = ip6Len
		}
		for _, summed := range []bool{false, true} {
			t.Run(fmt.Sprint(c.dst, c.count, c.size, summed), func(t *testing.T) {
				want := packets(c.eth, c.src, c.dst, c.count, c.size, c.last, summed)
				frame := inOne(want, len(c.eth), ipLen)
				n := len(c.eth) + ipLen + udpLen
				h := header(needsSum, gsoUDP, n, len(want[0])-n, n-udpLen, udpSum)
				before := bytes.Clone(frame)
				got := split(t, h, append(bytes.Clone(frame), 0, 0, 0), summed) // with padding, which is nobody's
				if len(got) != len(want) {
					t.Fatalf("%d packets, want %d", len(got), len(want))
				}
				for i := range want {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("packet %d:\n% x, want\n% x", i, got[i][:n+12], want[i][:n+12])
					}
					var v wire.View
					if f := wire.ParseEthernet(got[i], &v); f != wire.OK || !wire.CheckICRC(&v) {
						t.Errorf("packet %d: %v", i, f)
					}
				}
				if !bytes.Equal(frame, before) {
					t.Error("the frame was changed")
				}
				if len(c.eth) != ethLen {
					return
				}
				// And what is sent is the same burst.
				head := bytes.Clone(want[0][:n])
				joinHead(head, len(frame)-n)
				if !bytes.Equal(head, frame[:n]) {
					t.Errorf("joined:\n% x, want\n% x", head, frame[:n])
				}
				mine := make(vnet, vnetLen)
				if mine.putBurst(n, len(want[0])-n); !bytes.Equal(mine, h) {
					t.Errorf("% x, want % x", mine, h)
				}
			})
		}
	}
}

// Options stay with each packet of a burst.
func TestBurstWithOptions(t *testing.T) {
	l := packets(ethPlain, "10.8.0.1", "10.8.0.2", 3, 64, 64, false)
	for i, p := range l {
		p = append(append(bytes.Clone(p[:34]), 1, 1, 1, 0), p[34:]...)
		p[14] = 0x46
		l[i] = p
	}
	f := inOne(l, ethLen, 24)
	var s burst
	if ok, fits := s.open(header(needsSum, gsoUDP, 46, len(l[0])-46, 38, 6), f); !ok || !fits {
		t.Fatalf("%v %v", ok, fits)
	}
	for i := range l {
		head := make([]byte, headLen)
		payload := s.next(head, true)
		p, ok := parseIP4(append(head[ethLen:len(s.head):len(s.head)], payload...))
		if !ok || len(p) != len(l[i])-ethLen || be.Uint16(p[4:]) != uint16(0xfffe+i) || !bytes.Equal(p[20:24], []byte{1, 1, 1, 0}) {
			t.Errorf("packet %d: %v % x", i, ok, head)
		}
		if got := ones(append(bytes.Clone(p[12:20]), append([]byte{0, protoUDP, p[28], p[29]}, p[24:]...)...)); got != 0xffff {
			t.Errorf("packet %d: the UDP checksum makes %x", i, got)
		}
	}
}

// What is wrong with a burst loses it whole.
func TestBurstRefused(t *testing.T) {
	good4 := inOne(packets(ethPlain, "10.8.0.1", "10.8.0.2", 4, 64, 64, false), ethLen, ip4Len)
	good6 := inOne(packets(ethPlain6, "fd00:8::1", "fd00:8::2", 4, 64, 64, false), ethLen, ip6Len)
	h4, h6 := header(needsSum, gsoUDP, 42, 80, 34, 6), header(needsSum, gsoUDP, 62, 80, 54, 6)
	split(t, h4, good4, false)
	split(t, h6, good6, false)
	edit := func(f []byte, do func(f []byte)) []byte {
		f = bytes.Clone(f)
		do(f)
		if f[14]>>4 == 4 && f[14] == 0x45 {
			sumIP4(f[14:34])
		}
		return f
	}
	for name, c := range map[string]struct {
		h     vnet
		frame []byte
	}{
		"no checksum to complete": {header(0, gsoUDP, 42, 80, 34, 6), good4},
		"TCP":                     {header(needsSum, 1, 42, 80, 34, 6), good4},
		"UFO":                     {header(needsSum, 3, 42, 80, 34, 6), good4},
		"with ECN":                {header(needsSum, 0x85, 42, 80, 34, 6), good4},
		"checksum elsewhere":      {header(needsSum, gsoUDP, 42, 80, 34, 4), good4},
		"header elsewhere":        {header(needsSum, gsoUDP, 42, 80, 35, 6), good4},
		"header far elsewhere":    {header(needsSum, gsoUDP, 42, 80, 65535, 6), good4},
		"segments of nothing":     {header(needsSum, gsoUDP, 42, 0, 34, 6), good4},
		"of IPv4, for IPv6":       {h4, good6},
		"nothing":                 {h4, nil},
		"cut in Ethernet":         {h4, good4[:13]},
		"cut in a tag":            {h4, append(bytes.Clone(good4[:12]), 0x81, 0, 0)},
		"cut in IPv4":             {h4, good4[:14+19]},
		"cut in UDP":              {h4, good4[:14+27]},
		"cut in the payload":      {h4, good4[:len(good4)-1]},
		"no payload":              {h4, edit(good4[:42], func(f []byte) { be.PutUint16(f[16:], 28); be.PutUint16(f[38:], 8) })},
		"IPv4 checksum":           {h4, append(append(bytes.Clone(good4[:24]), good4[24]^1), good4[25:]...)},
		"IPv4 header of 16":       {h4, edit(good4, func(f []byte) { f[14] = 0x44 })},
		"IPv4 header of 60":       {header(needsSum, gsoUDP, 42, 80, 74, 6), edit(good4[:60], func(f []byte) { f[14] = 0x4f })},
		"IPv4 of another version": {h4, edit(good4, func(f []byte) { f[14] = 0x55 })},
		"IPv4 too short":          {h4, edit(good4, func(f []byte) { be.PutUint16(f[16:], 27) })},
		"IPv4 too long":           {h4, edit(good4, func(f []byte) { be.PutUint16(f[16:], uint16(len(good4)-13)) })},
		"UDP shorter than IPv4":   {h4, edit(good4, func(f []byte) { be.PutUint16(f[38:], be.Uint16(f[38:])-1) })},
		"UDP longer than IPv4":    {h4, edit(good4, func(f []byte) { be.PutUint16(f[38:], be.Uint16(f[38:])+1) })},
		"TCP in IPv4":             {h4, edit(good4, func(f []byte) { f[23] = 6 })},
		"first fragment":          {h4, edit(good4, func(f []byte) { f[20] |= 0x20 })},
		"later fragment":          {h4, edit(good4, func(f []byte) { f[21] = 1 })},
		"ARP":                     {h4, edit(good4, func(f []byte) { f[13] = 6 })},
		"cut in IPv6":             {h6, good6[:14+39]},
		"cut in UDP over IPv6":    {h6, good6[:14+47]},
		"IPv6 of another version": {h6, edit(good6, func(f []byte) { f[14] = 0x50 })},
		"IPv6 too long":           {h6, edit(good6, func(f []byte) { be.PutUint16(f[18:], be.Uint16(f[18:])+1) })},
		"extension header":        {h6, edit(good6, func(f []byte) { f[20] = 0 })},
	} {
		var s burst
		if ok, fits := s.open(c.h, c.frame); ok || !fits || len(s.rest) > 0 {
			t.Errorf("%s: %v %v, %d bytes", name, ok, fits, len(s.rest))
		}
	}
}

// A packet of a burst may be as long as the largest MTU, and no longer.
func TestBurstFits(t *testing.T) {
	frame := append(bytes.Clone(packets(ethPlain, "10.8.0.1", "10.8.0.2", 1, 4, 4, false)[0][:42]), make([]byte, 3*MaxMTU)...)
	be.PutUint16(frame[16:], uint16(len(frame)-14))
	be.PutUint16(frame[38:], uint16(len(frame)-34))
	sumIP4(frame[14:34])
	for size, want := range map[int]bool{MaxMTU - 28: true, MaxMTU - 27: false, 65535: false} {
		var s burst
		if ok, fits := s.open(header(needsSum, gsoUDP, 42, size, 34, 6), frame); !ok || fits != want || fits != (len(s.rest) > 0) {
			t.Errorf("packets of %d bytes: %v %v", size, ok, fits)
		}
	}
}

func TestComplete(t *testing.T) {
	tcp := unhex(t, "0200 0000 0001 0200 0000 0002 0800 4500 0029 0001 4000 4006 0000 0a08 0001 0a08 0002 1234 0050 0000 0001 0000 0000 5002 0800 0000 0000 41")
	be.PutUint16(tcp[50:], ones([]byte{10, 8, 0, 1, 10, 8, 0, 2, 0, 6, 0, 21}))
	if !header(needsSum, 0, 54, 0, 34, 16).complete(tcp) {
		t.Fatal("refused")
	}
	if s := ones(append([]byte{10, 8, 0, 1, 10, 8, 0, 2, 0, 6, 0, 21}, append(bytes.Clone(tcp[34:]), 0)...)); s != 0xffff {
		t.Errorf("the checksum makes %x", s)
	}
	// 0 would be no checksum.
	zero := append(make([]byte, 20), 0xff, 0xff)
	if !header(needsSum, 0, 0, 0, 16, 0).complete(zero) || be.Uint16(zero[16:]) != 0xffff {
		t.Errorf("% x", zero)
	}
	for name, h := range map[string]vnet{
		"behind the end": header(needsSum, 0, 0, 0, 21, 0), "half behind": header(needsSum, 0, 0, 0, 0, 21),
		"far": header(needsSum, 0, 0, 0, 65535, 65535), "start behind the end": header(needsSum, 0, 0, 0, 23, 0),
	} {
		if before := bytes.Clone(zero); h.complete(zero) || !bytes.Equal(zero, before) {
			t.Errorf("%s: % x", name, zero)
		}
	}
}

// Whatever the kernel gives, what comes of it is no more than went in, and right.
func FuzzBurst(f *testing.F) {
	l := packets(ethPlain, "10.8.0.1", "10.8.0.2", 3, 8, 4, false)
	f.Add([]byte(header(needsSum, gsoUDP, 42, 24, 34, 6)), inOne(l, ethLen, ip4Len), true)
	f.Add([]byte(header(needsSum, gsoUDP, 42, 1, 34, 6)), inOne(l, ethLen, ip4Len), false)
	f.Add([]byte(header(needsSum, gsoUDP, 42, 65535, 34, 6)), inOne(l, ethLen, ip4Len), false)
	l = packets(ethTagged, "10.8.0.1", "10.8.0.2", 3, 8, 4, false)
	f.Add([]byte(header(needsSum, gsoUDP, 46, 24, 38, 6)), inOne(l, ethLen+vlanLen, ip4Len), true)
	l = packets(ethPlain6, "fd00:8::1", "fd00:8::2", 3, 8, 4, false)
	f.Add([]byte(header(needsSum, gsoUDP, 62, 24, 54, 6)), inOne(l, ethLen, ip6Len), true)
	f.Fuzz(func(t *testing.T, h, frame []byte, summed bool) {
		if len(h) < vnetLen {
			return
		}
		before := bytes.Clone(frame)
		var s burst
		ok, fits := s.open(h[:vnetLen], frame)
		if !ok || !fits {
			if len(s.rest) > 0 {
				t.Error("refused, and yet there are packets")
			}
			return
		}
		all, payload := len(s.rest), s.rest
		eth, first := s.eth, 0
		for i := 0; len(s.rest) > 0; i++ {
			var head [headLen]byte
			p := s.next(head[:], summed)
			if len(p) == 0 || !bytes.Equal(p, payload[:len(p)]) || cap(p) != len(p) {
				t.Fatalf("packet %d: %d bytes", i, len(p))
			}
			payload = payload[len(p):]
			if i == 0 {
				first = len(p)
			} else if len(p) > first || len(p) < first && len(s.rest) > 0 {
				t.Fatalf("packet %d of %d bytes, the first has %d", i, len(p), first)
			}
			packet := append(head[eth:len(s.head):len(s.head)], p...)
			if len(packet) > MaxMTU {
				t.Fatalf("packet %d of %d bytes", i, len(packet))
			}
			if packet[0]>>4 == 4 {
				if ip, ok := parseIP4(packet); !ok || len(ip) != len(packet) || ip.fragment() {
					t.Fatalf("packet %d: % x", i, packet)
				}
			} else if ip, ok := parseIP6(packet); !ok || len(ip) != len(packet) {
				t.Fatalf("packet %d: % x", i, packet)
			}
			if int(be.Uint16(packet[len(s.head)-eth-4:])) != udpLen+len(p) {
				t.Fatalf("packet %d: % x", i, packet)
			}
			if !summed && be.Uint16(packet[len(s.head)-eth-2:]) != 0 {
				t.Fatalf("packet %d has a checksum", i)
			}
		}
		if len(payload) != 0 {
			t.Errorf("%d of %d bytes are lost", len(payload), all)
		}
		if !bytes.Equal(frame, before) {
			t.Error("the frame was changed")
		}
	})
}
