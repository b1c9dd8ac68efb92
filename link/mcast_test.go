package link_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
)

// A packet to a group goes to the wire, under the group's MAC, and to the loop while the group is joined; the two are
// the same bytes.
func TestPortMulticast(t *testing.T) {
	for group, mac := range map[string][6]byte{
		"239.129.2.3":          {0x01, 0x00, 0x5E, 0x01, 0x02, 0x03},
		"ff0e::ffff:ef01:203":  {0x33, 0x33, 0xEF, 0x01, 0x02, 0x03},
		"ff02::1":              {0x33, 0x33, 0, 0, 0, 1},
		"224.0.0.1":            {0x01, 0x00, 0x5E, 0, 0, 1},
		"ff05::1:2:3:4:5:6789": {0x33, 0x33, 0, 5, 0x67, 0x89},
	} {
		g := netip.MustParseAddr(group)
		src := addrA
		if g.Is6() {
			src = "2001:db8::1"
		}
		e, raw := pipe.NewRaw(pipe.Config{Addrs: []netip.Prefix{prefixA}, Ethernet: true, MaxSegs: 4})
		p := linktest.Port(t, e, link.PortOptions{})
		loop := func() (frames [][]byte) {
			b := link.NewBatch(8)
			if err := p.Sources()[1].Recv(b, false); err != nil {
				t.Fatal(err)
			}
			p.Parse(b)
			for i := range b.Packets {
				if f := b.Packets[i].Fault; f != wire.OK {
					t.Errorf("%s: %v", group, f)
				}
				frames = append(frames, slices.Clone(b.Packets[i].Frame))
			}
			p.Done(b)
			return frames
		}
		send := func(want int) {
			t.Helper()
			if err := p.Send(linktest.Sends(linktest.Path(src, group), 0xFFFFFF, 1, 3)); err != nil {
				t.Fatal(err)
			}
			own := loop()
			if len(own) != want {
				t.Fatalf("%s: %d packets in the loop, want %d", group, len(own), want)
			}
			for i := range 3 {
				f := raw.TryRead()
				if [6]byte(f) != mac || [6]byte(f[6:]) != [6]byte(e.Info().MAC) {
					t.Errorf("%s: Ethernet header %x", group, f[:14])
				}
				if len(own) > 0 && !slices.Equal(f, own[i]) {
					t.Errorf("%s: on the wire\n%x, in the loop\n%x", group, f, own[i])
				}
			}
			if raw.TryRead() != nil {
				t.Error("a packet too many")
			}
		}
		send(0)
		for range 2 {
			if err := p.Join(g); err != nil {
				t.Fatal(err)
			}
		}
		send(3)
		if err := p.Leave(g); err != nil {
			t.Fatal(err)
		}
		send(0)
		if p.Leave(g) == nil {
			t.Error("left twice")
		}
	}
	e, _ := pipe.New(pipe.Config{}, pipe.Config{})
	p := linktest.Port(t, e, link.PortOptions{})
	for _, a := range []netip.Addr{{}, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:239.1.2.3"), netip.MustParseAddr("ff02::1%lo"), netip.IPv6Unspecified()} {
		if p.Join(a) == nil {
			t.Errorf("joined %v", a)
		}
	}
}

// refusing is an endpoint that refuses to join.
type refusing struct {
	*pipe.End
	err error
}

func (e refusing) Join(netip.Addr, *link.Queue) error { return e.err }
func (e refusing) Leave(netip.Addr) error             { return nil }

func TestPortMulticastRefused(t *testing.T) {
	e, _ := pipe.New(pipe.Config{}, pipe.Config{})
	no := errors.New("no")
	p := linktest.Port(t, refusing{e, no}, link.PortOptions{})
	g := netip.MustParseAddr("239.1.2.3")
	if err := p.Join(g); err != no {
		t.Error(err)
	}
	if p.Leave(g) == nil {
		t.Error("left a group that was not joined")
	}
}

// around wraps an endpoint, as a program does.
type around struct{ link.Endpoint }

func (e around) Unwrap() link.Endpoint { return e.Endpoint }

// What an endpoint can do beyond link.Endpoint is found behind wrappers too.
func TestPortUnwraps(t *testing.T) {
	e, _ := pipe.New(pipe.Config{}, pipe.Config{})
	no := errors.New("no")
	p := linktest.Port(t, around{around{refusing{e, no}}}, link.PortOptions{})
	if err := p.Join(netip.MustParseAddr("239.1.2.3")); err != no {
		t.Error(err)
	}
	for _, v := range p.Counters() {
		if v.Name == "link_tx_lost" {
			return
		}
	}
	t.Error("the counters of the endpoint are missing")
}
