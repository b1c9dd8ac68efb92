package link_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// quirkPackets are a FLUSH with something in every field, and packets that no quirk may touch: others of its length, the
// FLUSH of another service, and one with a payload, which nobody sends.
func quirkPackets(path *wire.Path) (flush *wire.Packet, others []*wire.Packet) {
	packet := func(op bth.Opcode, psn bth.PSN, payload []byte) *wire.Packet {
		p := linktest.Packet(path, op, 0x777, psn, payload)
		(&bth.Ext{VA: 0x1122334455660008, RKey: 0x77, Length: 0x123, Selectivity: 1, Placement: 3, SRQN: 5}).Put(p.Head[:], op.Info())
		bth.BTH(p.Head[:])[4] |= 0xC0 // FECN and BECN, which the ICRC masks: not where rdma_rxe counts them again
		return p
	}
	flush = packet(bth.Make(bth.RC, bth.Flush), 1, nil)
	others = append(others,
		packet(bth.Make(bth.RC, bth.ReadRequest), 2, nil),
		packet(bth.Make(bth.RC, bth.AtomicWrite), 3, []byte("12345678")),
		packet(bth.Make(bth.RC, bth.SendOnly), 4, bytes.Repeat([]byte{0x1C}, 20)),
		packet(bth.Make(bth.XRC, bth.Flush), 5, nil),
		packet(bth.Make(bth.RC, bth.Flush), 6, []byte("1234")),
	)
	return flush, others
}

// TestRxeFlushICRC holds the quirk against the routine of interop/peer, which shares no code with softnic and was
// found by measuring rdma_rxe: what is sent, and what is taken, with the quirk and without.
func TestRxeFlushICRC(t *testing.T) {
	six := []netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}
	for name, c := range map[string]struct {
		cfg  pipe.Config
		path *wire.Path
	}{
		"ip":       {pipe.Config{Addrs: []netip.Prefix{prefixA}, MaxSegs: 8}, linktest.Path(addrA, addrB)},
		"ethernet": {pipe.Config{Addrs: []netip.Prefix{prefixA}, Ethernet: true}, linktest.Path(addrA, addrB)},
		"udp":      {pipe.Config{Addrs: []netip.Prefix{prefixA}, HideIP: true, MaxSegs: 8}, linktest.Path(addrA, addrB)},
		"ipv6":     {pipe.Config{Addrs: six}, linktest.Path("2001:db8::1", "2001:db8::2")},
		"ipv6 udp": {pipe.Config{Addrs: six, HideIP: true}, linktest.Path("2001:db8::1", "2001:db8::2")},
	} {
		t.Run(name, func(t *testing.T) {
			c.path.TClass, c.path.HopLimit = 0xFF, 3
			flush, others := quirkPackets(c.path)
			for _, quirk := range []bool{false, true} {
				ep, raw := pipe.NewRaw(c.cfg)
				p := linktest.Port(t, ep, link.PortOptions{RxeFlushICRC: quirk})
				if err := p.Send(append([]*wire.Packet{others[0], flush}, others[1:]...)); err != nil { // FLUSH has an IP ID that is not 0
					t.Fatal(err)
				}
				ip := func() []byte {
					b := raw.TryRead()
					if c.cfg.Ethernet {
						b = b[wire.EthLen:]
					}
					return b
				}
				for i := range 1 + len(others) {
					b := ip()
					right, rxe := peer.CheckICRC(b), peer.CheckRxeFlushICRC(b)
					if want := !quirk || i != 1; right != want {
						t.Errorf("quirk %v, packet %d: right ICRC %v, want %v: %x", quirk, i, right, want, b)
					}
					if quirk && i == 1 && !rxe {
						t.Errorf("the FLUSH has not the ICRC that rdma_rxe computes: %x", b)
					}
				}
			}
			// In: the FLUSH with either ICRC, with one that is neither, and other packets with the wrong sum of a FLUSH.
			for _, quirk := range []bool{false, true} {
				ep, raw := pipe.NewRaw(c.cfg)
				p := linktest.Port(t, ep, link.PortOptions{RxeFlushICRC: quirk})
				put := func(ip []byte, icrc [4]byte) {
					b := append(bytes.Clone(ip[:len(ip)-4]), icrc[:]...)
					if c.cfg.Ethernet {
						eth := make([]byte, wire.EthLen)
						wire.PutEthernet(eth, [6]byte(p.Info().MAC), [6]byte{2, 0, 0, 0, 0, 9}, c.path.EtherType())
						b = append(eth, b...)
					}
					raw.Write(b)
				}
				var want []got
				expect := func(psn bth.PSN, taken bool) {
					g := got{PSN: psn}
					if !taken {
						g.Fault = wire.ICRC
					}
					want = append(want, g)
				}
				for i, pk := range append([]*wire.Packet{flush}, others...) {
					b := linktest.Frame(pk)
					covered := b[:len(b)-4]
					right, rxe := peer.ICRC(covered), peer.RxeFlushICRC(covered)
					spoiled := rxe
					spoiled[1] ^= 0x10
					psn := pk.BTH().PSN()
					put(b, right)
					expect(psn, true)
					put(b, rxe)
					expect(psn, quirk && i == 0)
					put(b, spoiled)
					expect(psn, false)
				}
				if g := drain(t, p, 0); len(g) != len(want) {
					t.Fatalf("quirk %v: received %v, want %v", quirk, g, want)
				} else {
					for i := range want {
						if g[i] != want[i] {
							t.Errorf("quirk %v, packet %d: %v, want %v", quirk, i, g[i], want[i])
						}
					}
				}
			}
		})
	}
}

// TestRxeFlushICRCFromUDP has the IP ID of a FLUSH, which a socket hides, solved for through the ICRC of rdma_rxe.
func TestRxeFlushICRCFromUDP(t *testing.T) {
	ep, raw := pipe.NewRaw(pipe.Config{Addrs: []netip.Prefix{prefixB}, HideIP: true})
	p := linktest.Port(t, ep, link.PortOptions{RxeFlushICRC: true})
	f := peer.Flush(0x777, 0x65, 0x10008, 0x77, 0x123, 1)
	f.Src, f.Dst, f.ID = netip.MustParseAddr(addrA), netip.MustParseAddr(addrB), 0xA482
	b := f.Marshal()
	icrc := peer.RxeFlushICRC(b[:len(b)-4])
	raw.Write(append(b[:len(b)-4], icrc[:]...))
	batch := link.NewBatch(1)
	if err := p.Sources()[0].Recv(batch, true); err != nil {
		t.Fatal(err)
	}
	p.Parse(batch)
	v := &batch.Packets[0].View
	if batch.Packets[0].Fault != wire.OK || !v.IDKnown || v.ID() != 0xA482 {
		t.Errorf("%v, IP ID %#x, known %v", batch.Packets[0].Fault, v.ID(), v.IDKnown)
	}
}

// Devices with the quirk understand each other, through the wire and through the loop.
func TestRxeFlushICRCBetweenPorts(t *testing.T) {
	o := link.PortOptions{RxeFlushICRC: true}
	a, b := pair(t, pipe.Config{}, pipe.Config{}, o, o)
	flush, _ := quirkPackets(linktest.Path(addrA, addrB))
	own, _ := quirkPackets(linktest.Path(addrA, addrA))
	if err := a.Send([]*wire.Packet{flush, own}); err != nil {
		t.Fatal(err)
	}
	want(t, drain(t, b, 0), psns(1, 1))
	want(t, drain(t, a, 1), psns(1, 1))
}
