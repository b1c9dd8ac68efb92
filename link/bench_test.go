package link_test

import (
	"testing"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// null is an endpoint that takes everything and does nothing with it.
type null struct{ *pipe.End }

func (null) Send([]*link.Frame) error { return nil }

// burst is a message of 16 packets of 1024 bytes.
func burst(path *wire.Path) (l []*wire.Packet) {
	data := make([]byte, 1024)
	for i := range 16 {
		o := bth.WriteMiddle
		if i == 0 {
			o = bth.WriteFirst
		}
		l = append(l, linktest.Packet(path, bth.Make(bth.RC, o), 17, bth.PSN(i), data))
	}
	return l
}

// ways are the ways of a packet that must not allocate.
var ways = map[string]struct {
	cfg  pipe.Config
	dst  string
	recv bool
}{
	"send":                 {pipe.Config{}, addrB, false},
	"send, bursts":         {pipe.Config{MaxSegs: 64}, addrB, false},
	"send, fixed port":     {pipe.Config{SrcPort: 4791}, addrB, false},
	"send, Ethernet":       {pipe.Config{Ethernet: true}, addrB, false},
	"there and parse":      {pipe.Config{}, addrB, true},
	"there and parse, UDP": {pipe.Config{HideIP: true}, addrB, true},
	"loop and parse":       {pipe.Config{}, addrA, true},
}

// way returns a function that takes a burst of 16 packets once along the way.
func way(tb testing.TB, name string) func() {
	w := ways[name]
	ca, cb := w.cfg, w.cfg
	ca.Addrs, cb.Addrs = append(ca.Addrs, prefixA), append(cb.Addrs, prefixB)
	ea, eb := pipe.New(ca, cb)
	var a, b *link.Port
	if b = linktest.Port(tb, eb, link.PortOptions{}); w.recv {
		a = linktest.Port(tb, ea, link.PortOptions{})
	} else {
		a = linktest.Port(tb, null{ea}, link.PortOptions{})
	}
	src := b.Sources()[0]
	if w.dst == addrA {
		b, src = a, a.Sources()[1]
	}
	pkts, batch := burst(linktest.Path(addrA, w.dst)), link.NewBatch(32)
	return func() {
		if err := a.Send(pkts); err != nil {
			tb.Fatal(err)
		}
		if !w.recv {
			return
		}
		if err := src.Recv(batch, false); err != nil || len(batch.Packets) != len(pkts) {
			tb.Fatal(err, len(batch.Packets))
		}
		b.Parse(batch)
		for i := range batch.Packets {
			if f := batch.Packets[i].Fault; f != wire.OK {
				tb.Fatal(f)
			}
		}
		b.Done(batch)
	}
}

func TestNoAllocations(t *testing.T) {
	for name := range ways {
		f := way(t, name)
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations for 16 packets", name, n)
		}
	}
}

func BenchmarkPort(b *testing.B) {
	for name := range ways {
		b.Run(name, func(b *testing.B) {
			f := way(b, name)
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/16, "ns/packet")
		})
	}
}
