package link_test

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
)

// rawPackets makes frames for SendRaw, each in two pieces where it is long enough.
func rawPackets(frames ...[]byte) []*wire.Packet {
	var l []*wire.Packet
	for _, f := range frames {
		k := len(f) / 3
		l = append(l, &wire.Packet{Data: [][]byte{f[:k], nil, f[k:]}, Size: len(f)})
	}
	return l
}

func ether(n int, typ uint16) []byte {
	f := make([]byte, max(n, 14))
	copy(f, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, byte(typ >> 8), byte(typ)})
	for i := 14; i < n; i++ {
		f[i] = byte(i)
	}
	return f[:n]
}

type keep struct{ got []link.Record }

func (k *keep) Capture(r *link.Record) {
	k.got = append(k.got, link.Record{Dir: r.Dir, Fault: r.Fault, Tail: r.AppendTo(nil)})
}

// Raw frames leave and are captured as they are; those that the link has no room for are lost; RoCE packets between them are as
// ever.
func TestSendRaw(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{Ethernet: true, MTU: 1500})
	rules, err := impair.New("tx drop")
	if err != nil {
		t.Fatal(err)
	}
	k := &keep{}
	p := linktest.Port(t, e, link.PortOptions{Impair: rules, Capture: k})
	frames := [][]byte{ether(14, 0x88B5), ether(1514, 0x88B5), ether(1518, 0x8100)}
	if err := p.SendRaw(rawPackets(frames[0], ether(13, 0), frames[1], ether(1515, 0x88B5), frames[2], ether(1519, 0x8100))); err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		if got := raw.TryRead(); !bytes.Equal(got, f) {
			t.Errorf("%d: %d bytes, want %d", i, len(got), len(f))
		}
		if r := k.got[i]; r.Dir != link.Tx || r.Fault != wire.OK || !bytes.Equal(r.Tail, f) {
			t.Errorf("%d: captured %v %v", i, r.Dir, r.Fault)
		}
	}
	if raw.TryRead() != nil || len(k.got) != len(frames) {
		t.Error("more than that")
	}
	if v := p.Counters()[0]; v.Name != "tx_too_long" || v.Value != 3 {
		t.Error(v)
	}
	// The ring is reused: no mark of a raw frame is left on a RoCE packet.
	rules.Clear()
	for range 100 {
		if err := p.SendRaw(rawPackets(frames[0])); err != nil {
			t.Fatal(err)
		}
		if err := p.Send(linktest.Sends(linktest.Path("10.0.0.1", "10.0.0.2"), 17, 1, 1)); err != nil {
			t.Fatal(err)
		}
		if got := raw.TryRead(); !bytes.Equal(got, frames[0]) {
			t.Fatalf("raw frame % x", got)
		}
		var v wire.View
		if got := raw.TryRead(); wire.ParseEthernet(got, &v) != wire.OK || !wire.CheckICRC(&v) {
			t.Fatalf("RoCE packet % x", got)
		}
	}
	// More than the ring holds, in one call.
	many := make([][]byte, 200)
	for i := range many {
		many[i] = ether(15+i, 0x88B5)
	}
	if err := p.SendRaw(rawPackets(many...)); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		if got := raw.TryRead(); !bytes.Equal(got, many[i]) {
			t.Fatalf("%d of many", i)
		}
	}
	p.Close()
	if err := p.SendRaw(rawPackets(frames[0])); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

// A link without Ethernet takes none, and an end that imitates a UDP socket sees none.
func TestSendRawWithoutEthernet(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{})
	p := linktest.Port(t, e, link.PortOptions{})
	if err := p.SendRaw(rawPackets(ether(20, 0x88B5))); err != nil || raw.TryRead() != nil {
		t.Fatal("sent", err)
	}
	ea, eb := pipe.New(pipe.Config{Ethernet: true}, pipe.Config{HideIP: true})
	a, b := linktest.Port(t, ea, link.PortOptions{}), linktest.Port(t, eb, link.PortOptions{})
	if err := a.SendRaw(rawPackets(ether(20, 0x88B5))); err != nil {
		t.Fatal(err)
	}
	batch := link.NewBatch(4)
	if err := b.Sources()[0].Recv(batch, false); err != nil || len(batch.Packets) != 0 {
		t.Fatalf("%v, %d packets", err, len(batch.Packets))
	}
}

// diverter is an endpoint that brings in what it is asked for.
type diverter struct {
	link.Endpoint
	f func([]byte) bool
}

func (d *diverter) Divert(f func([]byte) bool) { d.f = f }

// What a Diverter brings in is not taken for a RoCE packet, even if it is one, and RoCE packets are no less.
func TestDivert(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{})
	d := &diverter{Endpoint: e}
	p := linktest.Port(t, d, link.PortOptions{})
	p.Divert(func([]byte) bool { return true })
	if d.f == nil || !d.f(nil) {
		t.Fatal("not handed on")
	}
	good := linktest.Frame(linktest.Send(linktest.Path("10.0.0.2", "10.0.0.1"), 17, 1, []byte("abcd")))
	raw.Write(good)
	raw.Write(good)
	b := link.NewBatch(4)
	if err := p.Sources()[0].Recv(b, false); err != nil || len(b.Packets) != 2 {
		t.Fatal(err, len(b.Packets))
	}
	b.Packets[0].Other = true
	p.Parse(b)
	if x := &b.Packets[0]; x.Fault != wire.NotRoCE || len(x.View.Net)+len(x.View.IB) != 0 {
		t.Errorf("diverted: %v", x.Fault)
	}
	if x := &b.Packets[1]; x.Fault != wire.OK {
		t.Errorf("RoCE: %v", x.Fault)
	}
	p.Done(b)
	p.Divert(nil)
	if d.f != nil {
		t.Error("nil is not handed on")
	}
}

// Many long frames, more than the port has room for at once, arrive as they are, in order.
func TestSendRawLong(t *testing.T) {
	const size, n = 9000 + 14, 70
	e, raw := pipe.NewRaw(pipe.Config{Ethernet: true, MTU: 9000})
	p := linktest.Port(t, e, link.PortOptions{})
	frames := make([][]byte, n)
	for i := range frames {
		frames[i] = ether(size, 0x88B5)
		frames[i][14], frames[i][size-1] = byte(i), byte(^i)
	}
	if err := p.SendRaw(rawPackets(frames...)); err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		if got := raw.TryRead(); !bytes.Equal(got, f) {
			t.Fatalf("frame %d: %d bytes", i, len(got))
		}
	}
}
