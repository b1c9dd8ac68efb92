package link_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

const (
	addrA = "10.0.0.1"
	addrB = "10.0.0.2"
)

var (
	prefixA = netip.MustParsePrefix(addrA + "/24")
	prefixB = netip.MustParsePrefix(addrB + "/24")
)

// pair returns two ports over a pipe.
func pair(tb testing.TB, ca, cb pipe.Config, oa, ob link.PortOptions) (*link.Port, *link.Port) {
	tb.Helper()
	if ca.Addrs == nil {
		ca.Addrs = []netip.Prefix{prefixA}
	}
	if cb.Addrs == nil {
		cb.Addrs = []netip.Prefix{prefixB}
	}
	ea, eb := pipe.New(ca, cb)
	return linktest.Port(tb, ea, oa), linktest.Port(tb, eb, ob)
}

type got = linktest.Got

func drain(tb testing.TB, p *link.Port, source int) []got {
	tb.Helper()
	return linktest.Drain(tb, p, source)
}

func psns(from, to int) (l []got) {
	for i := from; i <= to; i++ {
		l = append(l, got{PSN: bth.PSN(i)})
	}
	return l
}

var sends = linktest.Sends

func want(tb testing.TB, g, w []got) {
	tb.Helper()
	if !slices.Equal(g, w) {
		tb.Fatalf("received %v, want %v", g, w)
	}
}

func TestPortSendsAndReceives(t *testing.T) {
	six := []netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}
	for name, c := range map[string]struct {
		cfg  pipe.Config
		path *wire.Path
	}{
		"ip":       {pipe.Config{}, linktest.Path(addrA, addrB)},
		"ethernet": {pipe.Config{Ethernet: true}, linktest.Path(addrA, addrB)},
		"udp":      {pipe.Config{HideIP: true}, linktest.Path(addrA, addrB)},
		"ipv6":     {pipe.Config{Addrs: six}, linktest.Path("2001:db8::1", "2001:db8::2")},
		"ipv6 udp": {pipe.Config{Addrs: six, HideIP: true}, linktest.Path("2001:db8::1", "2001:db8::2")},
	} {
		t.Run(name, func(t *testing.T) {
			cb := c.cfg
			cb.Addrs = nil
			a, b := pair(t, c.cfg, cb, link.PortOptions{}, link.PortOptions{})
			if err := a.Send(sends(c.path, 0x11, 1, 200)); err != nil {
				t.Fatal(err)
			}
			batch := link.NewBatch(16)
			for psn := 1; psn <= 200; {
				if err := b.Sources()[0].Recv(batch, true); err != nil {
					t.Fatal(err)
				}
				b.Parse(batch)
				for i := range batch.Packets {
					p := &batch.Packets[i]
					if p.Fault != wire.OK || p.View.BTH().PSN() != bth.PSN(psn) {
						t.Fatalf("packet %d: %v, PSN %v", psn, p.Fault, p.View.BTH().PSN())
					}
					if w := fmt.Sprintf("packet %d", psn); string(p.View.Payload) != w {
						t.Fatalf("payload %q, want %q", p.View.Payload, w)
					}
					if p.View.Src() != c.path.Src || p.View.Dst() != c.path.Dst || p.View.SrcPort() != 0xC123 || !p.View.IDKnown {
						t.Fatalf("addresses %v > %v, port %x, ID known %v", p.View.Src(), p.View.Dst(), p.View.SrcPort(), p.View.IDKnown)
					}
					if p.When.IsZero() {
						t.Fatal("no arrival time")
					}
					psn++
				}
				b.Done(batch)
			}
		})
	}
}

// Case 03, transmit: recompute every ICRC from the bytes on the wire.
func TestPortICRC(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{Addrs: []netip.Prefix{prefixA}, MaxSegs: 8})
	p := linktest.Port(t, e, link.PortOptions{})
	path := linktest.Path(addrA, addrB)
	path.TClass, path.HopLimit = 0xFF, 3
	for i := range 1000 {
		pk := linktest.Send(path, 17, bth.PSN(i), bytes.Repeat([]byte{byte(i)}, i%1025))
		if err := p.Send([]*wire.Packet{pk}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		f := raw.TryRead()
		if w, g := linktest.ICRC(f); w != g {
			t.Fatalf("packet %d: ICRC %08x, want %08x", i, g, w)
		}
	}
	if f := raw.TryRead(); f != nil {
		t.Fatalf("one packet too many: %x", f)
	}
}

// burstEndpoint records how frames come in bursts.
type burstEndpoint struct {
	*pipe.End
	bursts []string
}

func (e *burstEndpoint) Send(frames []*link.Frame) error {
	for _, f := range frames {
		id := uint16(f.Net[4])<<8 | uint16(f.Net[5])
		s := fmt.Sprintf("%d:%d", id, f.Size)
		if int(id) != f.Segment {
			s += "!"
		}
		if f.Segment == 0 {
			e.bursts = append(e.bursts, s)
		} else {
			e.bursts[len(e.bursts)-1] += " " + s
		}
	}
	return e.End.Send(frames)
}

func TestPortBursts(t *testing.T) {
	path, other := linktest.Path(addrA, addrB), linktest.Path(addrA, "10.0.0.3")
	same := *path // another Path of the same content
	size := func(p *wire.Path, n ...int) (l []*wire.Packet) {
		for i, n := range n {
			l = append(l, linktest.Send(p, 17, bth.PSN(i), make([]byte, n)))
		}
		return l
	}
	write := func() (l []*wire.Packet) {
		for i, o := range []bth.Operation{bth.WriteFirst, bth.WriteMiddle, bth.WriteMiddle, bth.WriteMiddle, bth.WriteLast} {
			n := 256
			if o == bth.WriteLast {
				n = 8
			}
			l = append(l, linktest.Packet(path, bth.Make(bth.RC, o), 17, bth.PSN(i), make([]byte, n)))
		}
		return l
	}
	for name, c := range map[string]struct {
		segs int
		in   []*wire.Packet
		want []string
	}{
		"one by one":       {1, size(path, 8, 8, 8), []string{"0:8", "0:8", "0:8"}},
		"equal":            {64, size(path, 8, 8, 8), []string{"0:8 1:8 2:8"}},
		"limit":            {2, size(path, 8, 8, 8), []string{"0:8 1:8", "0:8"}},
		"shorter ends":     {64, size(path, 8, 4, 4, 4), []string{"0:8 1:4", "0:4 1:4"}},
		"longer begins":    {64, size(path, 4, 8, 8), []string{"0:4", "0:8 1:8"}},
		"destination":      {64, append(size(path, 8, 8), size(other, 8)...), []string{"0:8 1:8", "0:8"}},
		"equal path":       {64, append(size(path, 8), size(&same, 8)...), []string{"0:8 1:8"}},
		"write with RETH":  {64, write(), []string{"0:256 1:256", "0:256 1:256 2:8"}},
		"at most 64 KiB":   {64, size(path, slices.Repeat([]int{4096}, 17)...), []string{"0:4096 1:4096 2:4096 3:4096 4:4096 5:4096 6:4096 7:4096 8:4096 9:4096 10:4096 11:4096 12:4096 13:4096 14:4096", "0:4096 1:4096"}},
		"ring ends bursts": {100, size(path, slices.Repeat([]int{0}, 65)...), nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := pipe.New(pipe.Config{MaxSegs: c.segs}, pipe.Config{})
			e := &burstEndpoint{End: a}
			p := linktest.Port(t, e, link.PortOptions{})
			if err := p.Send(c.in); err != nil {
				t.Fatal(err)
			}
			if c.want == nil {
				if len(e.bursts) != 2 {
					t.Fatalf("%d bursts", len(e.bursts))
				}
				return
			}
			if !slices.Equal(e.bursts, c.want) {
				t.Fatalf("bursts %q\nwant   %q", e.bursts, c.want)
			}
		})
	}
}

func TestPortFixedSourcePort(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{SrcPort: 4791})
	sink := new(linktest.Sink)
	p := linktest.Port(t, e, link.PortOptions{Capture: sink})
	path := linktest.Path(addrA, addrB)
	pk := linktest.Send(path, 17, 1, []byte("abc"))
	if err := p.Send([]*wire.Packet{pk, pk}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f := raw.TryRead()
		if f[20] != 4791>>8 || f[21] != 4791&0xFF {
			t.Fatalf("source port %x", f[20:22])
		}
		if w, g := linktest.ICRC(f); w != g {
			t.Fatalf("ICRC %08x, want %08x", g, w)
		}
	}
	if path.SrcPort != 0xC123 || pk.Path != path {
		t.Fatal("the engine's packet or path was changed")
	}
	if all := sink.Take(); len(all) != 2 || all[0].Bytes[21] != 4791&0xFF {
		t.Fatalf("capture %+v", all)
	}
}

func TestPortTooLong(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{MTU: 28 + 12 + 256 + 4})
	sink := new(linktest.Sink)
	p := linktest.Port(t, e, link.PortOptions{Capture: sink})
	path := linktest.Path(addrA, addrB)
	for n, ok := range map[int]bool{256: true, 257: false} {
		if err := p.Send([]*wire.Packet{linktest.Send(path, 17, 1, make([]byte, n))}); err != nil {
			t.Fatal(err)
		}
		if f := raw.TryRead(); (f != nil) != ok {
			t.Fatalf("%d bytes: sent %v", n, f != nil)
		}
		if all := sink.Take(); len(all) != 1 || (all[0].Fault == wire.OK) != ok {
			t.Fatalf("%d bytes: capture %v", n, all)
		}
	}
	if v := p.Counters()[0]; v.Name != "tx_too_long" || v.Value != 1 {
		t.Fatalf("counter %v", v)
	}
}

func TestPortLoop(t *testing.T) {
	for _, eth := range []bool{false, true} {
		t.Run(fmt.Sprintf("ethernet=%v", eth), func(t *testing.T) {
			e, raw := pipe.NewRaw(pipe.Config{Addrs: []netip.Prefix{prefixA}, Ethernet: eth, HideIP: !eth})
			sink := new(linktest.Sink)
			p := linktest.Port(t, e, link.PortOptions{Capture: sink})
			ll := netip.MustParseAddr("fe80::200:aff:fe00:1")
			if p.Local(ll) || !p.Local(prefixA.Addr()) || p.Local(prefixB.Addr()) {
				t.Fatal("Local is wrong")
			}
			p.SetLocal([]netip.Addr{prefixA.Addr(), ll})
			if !p.Local(ll) {
				t.Fatal("Local is wrong after SetLocal")
			}
			self := linktest.Path(addrA, addrA)
			self6 := &wire.Path{Src: ll, Dst: ll, SrcPort: 0xC000}
			out := linktest.Path(addrA, addrB)
			pkts := append(sends(self, 17, 1, 2), sends(out, 17, 9, 9)...)
			pkts = append(pkts, sends(self6, 17, 3, 3)...)
			if err := p.Send(pkts); err != nil {
				t.Fatal(err)
			}
			want(t, drain(t, p, 1), psns(1, 3))
			if f := raw.TryRead(); f == nil || raw.TryRead() != nil {
				t.Fatal("exactly one packet should have left")
			}
			n := map[link.Direction]int{}
			for _, r := range sink.Take() {
				n[r.Dir]++
				ip := r.Bytes[len(r.Eth):]
				if w, g := linktest.ICRC(ip); w != g {
					t.Fatalf("captured ICRC %08x, want %08x", g, w)
				}
			}
			if n[link.Tx] != 4 || n[link.Rx] != 3 {
				t.Fatalf("captured %v", n)
			}
		})
	}
}

func TestPortBadICRC(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		e, raw := pipe.NewRaw(pipe.Config{})
		sink := new(linktest.Sink)
		p := linktest.Port(t, e, link.PortOptions{Capture: sink, IgnoreICRC: ignore})
		f := linktest.Frame(linktest.Send(linktest.Path(addrB, addrA), 17, 1, []byte("abc")))
		good := bytes.Clone(f)
		f[len(f)-5] ^= 1 // pad
		raw.Write(f)
		raw.Write(good)
		raw.Write([]byte{0x60, 1, 2})
		b := link.NewBatch(4)
		if err := p.Sources()[0].Recv(b, true); err != nil {
			t.Fatal(err)
		}
		p.Parse(b)
		p.Done(b)
		all := sink.Take()
		w := wire.ICRC
		if ignore {
			w = wire.OK
		}
		if len(all) != 3 || all[0].Fault != w || all[1].Fault != wire.OK || all[2].Fault != wire.Malformed {
			t.Fatalf("ignore %v: %v", ignore, all)
		}
		if !bytes.Equal(all[0].Bytes, f) || !bytes.Equal(all[1].Bytes, good) || len(all[2].Bytes) != 3 {
			t.Fatal("captured bytes differ from those on the wire")
		}
		if v := p.Counters()[8]; v.Name != "icrc_ignored" || (v.Value == 1) != ignore {
			t.Fatalf("counter %v", v)
		}
	}
}

func TestPortClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := pair(t, pipe.Config{}, pipe.Config{}, link.PortOptions{}, link.PortOptions{})
		errs := make(chan error)
		for _, s := range a.Sources() {
			go func() { errs <- s.Recv(link.NewBatch(1), true) }()
		}
		synctest.Wait()
		a.Close()
		for range a.Sources() {
			if err := <-errs; !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Send(sends(linktest.Path(addrA, addrB), 17, 1, 1)); !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
		if err := a.Sources()[0].Recv(link.NewBatch(1), false); !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
	})
}

func TestPortWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := pipe.New(pipe.Config{}, pipe.Config{})
		p := linktest.Port(t, e, link.PortOptions{})
		n := 0
		p.Watch(func() { n++ })
		e.Change(func(i *link.Info) { i.MTU, i.Addrs = 1500, []netip.Prefix{prefixA} })
		synctest.Wait()
		if n != 1 || p.Info().MTU != 1500 || !p.Local(prefixA.Addr()) {
			t.Fatalf("%d calls, %+v", n, p.Info())
		}
		p.Watch(nil)
		e.Change(func(i *link.Info) { i.Up = false })
		synctest.Wait()
		if n != 1 || p.Info().Up {
			t.Fatalf("%d calls, %+v", n, p.Info())
		}
	})
}

func TestMakeMAC(t *testing.T) {
	for a, w := range map[string]string{
		"10.1.2.3":        "02:00:0a:01:02:03",
		"::ffff:10.1.2.3": "02:00:0a:01:02:03",
	} {
		if m := link.MakeMAC(netip.MustParseAddr(a)); m.String() != w {
			t.Errorf("%s: %v", a, m)
		}
	}
	m := link.MakeMAC(netip.MustParseAddr("2001:db8::1"))
	if len(m) != 6 || m[0]&3 != 2 || bytes.Equal(m, link.MakeMAC(netip.MustParseAddr("2001:db8::2"))) {
		t.Errorf("IPv6: %v", m)
	}
}
