package rules

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// stream is WRITEs of a MiB in packets of 1024 bytes, each answered.
func stream(n int) []Packet {
	var out []Packet
	a := wire.Path{Src: hostA, Dst: hostB, SrcPort: 0xC001}
	b := wire.Path{Src: hostB, Dst: hostA, SrcPort: 0xC001}
	psn, msn, now := bth.PSN(100), uint32(0), int64(0)
	put := func(s *wire.Spec, d Direction) {
		v := new(wire.View)
		f := wire.ParseIP(wire.Build(s), v)
		now += 100
		out = append(out, Packet{Number: uint64(len(out) + 1), Time: now, Dir: d, Fault: f, View: v})
	}
	payload := make([]byte, 1024)
	for len(out) < n {
		for i := range 1024 {
			op := bth.WriteMiddle
			switch i {
			case 0:
				op = bth.WriteFirst
			case 1023:
				op = bth.WriteLast
			}
			s := wire.NewSpec(a, bth.Make(bth.RC, op), 0xB, psn)
			s.Payload, s.Ext.Length = payload, 1<<20
			put(&s, Tx)
			if i%32 == 31 {
				if i == 1023 {
					msn++
				}
				s := wire.NewSpec(b, bth.Make(bth.RC, bth.Acknowledge), 0xA, psn)
				s.Ext.Syndrome, s.Ext.MSN = bth.AckUnlimited, msn
				put(&s, Rx)
			}
			psn = psn.Next()
		}
	}
	return out
}

func TestSteadyStateAllocations(t *testing.T) {
	l := stream(4000)
	c := New(Options{NoICRC: true})
	i := 0
	for ; i < 2500; i++ {
		c.Add(&l[i])
	}
	if n := testing.AllocsPerRun(1000, func() { c.Add(&l[i]); i++ }); n > 0 {
		t.Errorf("%v allocations per packet", n)
	}
	if c.Broken() != 0 {
		t.Error(report(c))
	}
}

// Many connections, few remembered: what was forgotten is unknown, and memory stays.
func TestForgets(t *testing.T) {
	c := New(Options{Conversations: 50, Packets: 4000})
	r := rand.New(rand.NewPCG(1, 1))
	psn := map[uint32]bth.PSN{}
	now := int64(0)
	for i := range 20000 {
		q := 16 + r.Uint32N(200)
		if r.IntN(2) == 0 {
			q = 16 // and one that is always there
		}
		now += 1000
		give := func(src, dst netip.Addr, op bth.Operation, q uint32, p bth.PSN, d Direction) {
			s := wire.NewSpec(wire.Path{Src: src, Dst: dst}, bth.Make(bth.RC, op), q, p)
			s.Ext.Syndrome, s.Ext.MSN = bth.AckUnlimited, uint32(p)&0xFFFF
			var v wire.View
			f := wire.ParseIP(wire.Build(&s), &v)
			c.Add(&Packet{Number: uint64(i), Time: now, Dir: d, Fault: f, View: &v})
		}
		p, ok := psn[q]
		if !ok {
			p = bth.PSN(q << 16)
		}
		give(hostA, hostB, bth.SendOnly, q, p, Tx)
		give(hostB, hostA, bth.Acknowledge, q+1000, p, Rx)
		psn[q] = p.Next()
	}
	if c.Broken() != 0 {
		t.Error(report(c))
	}
	if len(c.flows) > 50 || c.records < 0 {
		t.Errorf("%d flows, %d records left", len(c.flows), c.records)
	}
	if c.tally[ResponseRange].unknown[whyUnpaired] == 0 {
		t.Error("nothing was forgotten")
	}
	n := 0
	for f := c.lru.older; f != &c.lru; f = f.older {
		n++
	}
	if n != len(c.flows) {
		t.Errorf("the list has %d flows of %d", n, len(c.flows))
	}
}

// A reader that sorts packets by their time does not hide that the capture had them in another
// order.
func TestSorted(t *testing.T) {
	for _, x := range []struct {
		numbers []uint64
		times   []int64
		want    string
	}{
		{[]uint64{1, 2, 3}, []int64{0, 1e9, 2e9}, ""},
		{[]uint64{1, 3, 2}, []int64{0, 1e9, 2e9}, "timestamps:2"},
		{[]uint64{1, 3, 2}, []int64{0, 1e9, 1e9 + 1000}, ""},
		{[]uint64{3, 2, 1}, []int64{2e9, 1e9, 0}, ""}, // another order, and sorted in no way
		{[]uint64{0, 0, 0}, []int64{0, 2e9, 1e9}, "timestamps:0"},
	} {
		c := New(Options{})
		for i, n := range x.numbers {
			c.Add(&Packet{Number: n, Time: x.times[i]})
		}
		if got := brief(c); got != x.want {
			t.Errorf("numbers %d, times %d: %q, want %q", x.numbers, x.times, got, x.want)
		}
	}
}

func BenchmarkWrites(b *testing.B) {
	l := stream(20000)
	for _, o := range []Options{{}, {NoICRC: true}} {
		b.Run(fmt.Sprintf("noicrc=%v", o.NoICRC), func(b *testing.B) {
			c := New(o)
			b.ReportAllocs()
			b.SetBytes(1100)
			i := 0
			for b.Loop() {
				if i == len(l) {
					i = 0
					c = New(o)
				}
				c.Add(&l[i])
				i++
			}
			if c.Broken() != 0 {
				b.Error(report(c))
			}
		})
	}
	runtime.KeepAlive(l)
}

// FuzzChecker gives a checker packets that make no sense: it never panics and
// keeps its bounds. Each packet of the input is 8 bytes.
func FuzzChecker(f *testing.F) {
	f.Add([]byte("\x00\x04\x64\x00\x04\x01\x00\x00\x01\x11\x64\x00\x00\x02\x00\x00"))
	f.Add([]byte("\x00\x0c\x64\x00\x30\x01\x00\x00\x01\x0d\x64\x00\xff\x02\x00\x00\x01\x0f\x65\x00\x10\x02\x00\x00\x00\x0c\x65\x00\x30\x01\x00\x00"))
	f.Add([]byte("\x00\x13\x64\x00\x00\x01\x00\x00\x01\x12\x64\x00\x00\x02\x00\x00\x01\x11\x64\x00\x60\x02\x00\x00\x01\x11\x64\x00\x25\x02\x00\x00"))
	// By and by many times the same few packets.
	r := rand.New(rand.NewPCG(3, 3))
	for range 8 {
		b := make([]byte, 8*300)
		for i := range b {
			switch i % 8 {
			case 1:
				b[i] = []byte{0, 1, 2, 4, 6, 8, 10, 12, 13, 14, 15, 16, 17, 17, 17, 18, 19, 20, 0x1C, 0x1D}[r.IntN(20)]
			case 2:
				b[i] = byte(r.IntN(24))
			case 4:
				b[i] = []byte{0, 1, 0x40, 0x80, 0x60, 0x61, 0x25}[r.IntN(7)]
			case 0, 5:
				b[i] = byte(r.IntN(256))
			}
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		o := Options{Conversations: 4, Packets: 300, Examples: 3, Default: Attr{Depth: 2, Timeout: 1, RetryCnt: 1}, CNPInterval: 10}
		if len(in) > 0 {
			o.Capture, o.Unruly = Completeness(in[0]%3), in[0]&8 != 0
			if in[0]&16 != 0 {
				o.Connections = []Connection{{A: End{Addr: hostA, QPN: 0xA}, B: End{Addr: hostB, QPN: 0xB}, MTU: 256}}
			}
		}
		c := New(o)
		now := int64(0)
		for n := uint64(1); len(in) >= 8; n++ {
			b := in[:8]
			in = in[8:]
			path := wire.Path{Src: hostA, Dst: hostB, TClass: b[6] & 3}
			qp := uint32(0xB)
			if b[0]&1 != 0 {
				path.Src, path.Dst, qp = hostB, hostA, 0xA
			}
			qp += uint32(b[6]>>4) * 2
			s := wire.NewSpec(path, bth.Opcode(b[1]), qp, bth.PSN(uint32(b[2])|uint32(b[3])<<16))
			s.BTH.AckReq = b[5]&1 != 0
			s.Payload = make([]byte, int(b[4]&0x3F)*16)
			s.Ext = bth.Ext{Syndrome: bth.Syndrome(b[4]), MSN: uint32(b[2]), VA: uint64(b[7]) << 8, Length: uint32(b[7])<<uint(b[6]&0xF) | uint32(b[4])}
			frame := wire.Build(&s)
			if b[5]&0xF0 == 0xF0 {
				frame = frame[:len(frame)-int(b[7])%len(frame)]
			}
			var v wire.View
			p := Packet{Number: n, Time: now, Dir: Direction(b[0] >> 1 & 3 % 3), Fate: Fate(b[5] >> 1 & 7 % 5), Iface: int(b[5] >> 7), View: &v}
			p.Fault = wire.ParseIP(frame, &v)
			if p.Fate == Dropped && p.Fault == wire.OK {
				p.Fault = wire.Fault(b[7]) % wire.Faults
			}
			now += int64(b[7]) * 100
			c.Add(&p)
		}
		records := 0
		for _, x := range c.flows {
			records += len(x.req.ring)
			if len(x.req.reads) > maxReads {
				t.Fatalf("%d reads", len(x.req.reads))
			}
		}
		if len(c.flows) > 4 || records+c.records != 300 {
			t.Fatalf("%d flows, %d records and %d left", len(c.flows), records, c.records)
		}
		for _, x := range c.Findings() {
			if len(x.Violations) > 3 {
				t.Fatal(x)
			}
			_ = x.String()
		}
	})
}
