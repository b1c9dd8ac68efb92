package peer

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// listen opens a UDP conn, and skips the test if someone else has the address.
func listen(t *testing.T, addr string) *UDPConn {
	t.Helper()
	c, err := ListenUDP(netip.AddrPortFrom(netip.MustParseAddr(addr), 0))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		t.Skipf("UDP %d on %s is taken: %v", Port, addr, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT):
		t.Skipf("this host has no %s: %v", addr, err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestUDP(t *testing.T) {
	for _, addrs := range [][2]string{{"127.91.47.1", "127.91.47.2"}, {"::1", "::1"}} {
		t.Run(addrs[0], func(t *testing.T) {
			a := listen(t, addrs[0])
			b := a
			if addrs[1] != addrs[0] {
				b = listen(t, addrs[1])
			}
			pa := New(a, a.LocalAddr().Addr(), b.LocalAddr().Addr())
			pb := New(b, b.LocalAddr().Addr(), a.LocalAddr().Addr())
			six := a.LocalAddr().Addr().Is6()
			for _, f := range []*Frame{
				SendOnly(0x11, 1, []byte("hello")),
				WriteFirst(0x11, 2, 3, 4, 5, bytes.Repeat([]byte{0xC3}, 4096)),
				Ack(0x11, 3, 4).With(func(f *Frame) { f.TOS, f.TTL = 0x6B, 9 }), // CE
			} {
				if six {
					f.DF = false
				}
				sent := pa.Address(f)
				pa.Send(t, f)
				got := pb.Next(t)
				if !reflect.DeepEqual(got, sent) {
					t.Errorf("\n got %+v\nsent %+v", got, sent)
				}
			}
			pb.ExpectSilence(t, time.Millisecond)
		})
	}
}

// A segmented burst counts the identification up: the headers that are made up then
// have the wrong one, and the peer finds the right one.
func TestUDPSolvesID(t *testing.T) {
	a, b := listen(t, "127.91.47.1"), listen(t, "127.91.47.2")
	f := between(a.LocalAddr().Addr(), b.LocalAddr().Addr(), SendOnly(1, 2, []byte("burst")),
		func(f *Frame) { f.ID, f.SrcPort = 0x1F2, Port })
	payload := f.Marshal()[28:]
	if _, err := a.sock.WriteToUDPAddrPort(payload, b.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	got := New(b, f.Dst, f.Src).Expect(t, WantOp(OpSendOnly), WantPayload([]byte("burst")))
	if got.ID != 0x1F2 {
		t.Errorf("identification %04x, want 01f2", got.ID)
	}
}

func TestUDPRefuses(t *testing.T) {
	c := listen(t, "127.91.47.1")
	for want, change := range map[string]func(f *Frame){
		"identification":   func(f *Frame) { f.ID = 1 },
		"flags":            func(f *Frame) { f.DF = false },
		"IP options":       func(f *Frame) { f.IPOptions = make([]byte, 4) },
		"IP length":        func(f *Frame) { f.IPLength = new(uint16(7)) },
		"UDP length":       func(f *Frame) { f.UDPLength = new(uint16(7)) },
		"header checksum":  func(f *Frame) { f.IPChecksum = new(uint16(7)) },
		"not UDP":          func(f *Frame) { f.Protocol = new(uint8(7)) },
		"source port 7":    func(f *Frame) { f.SrcPort = 7 },
		"source 127.1.2.3": func(f *Frame) { f.Src = netip.MustParseAddr("127.1.2.3") },
		"flow label":       func(f *Frame) { f.Src, f.Dst, f.FlowLabel = v6a, v6b, 1 },
		"no IP":            func(f *Frame) { f.Cut = 30 },
	} {
		f := between(c.LocalAddr().Addr(), netip.MustParseAddr("127.91.47.2"), Ack(1, 2, 3),
			func(f *Frame) { f.SrcPort = Port }).With(change)
		if err := c.Write(f.Marshal()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// packetConn opens the loopback interface, which needs CAP_NET_RAW.
func packetConn(t *testing.T) *PacketConn {
	t.Helper()
	c, err := OpenPacket("lo", [6]byte{}, [6]byte{})
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("no right to open a packet socket: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// nextFrom reads frames until one is from src: the loopback interface has the
// frames of every test that runs on this host.
func nextFrom(t *testing.T, c *PacketConn, src netip.Addr) *Frame {
	t.Helper()
	deadline := time.Now().Add(DefaultTimeout)
	for {
		b, err := c.ReadEth(deadline)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := ParseEth(b); err == nil && f.Src == src {
			return f
		}
	}
}

// What a UDPConn sends is on the wire as Marshal had it, identification and ICRC
// too: seen by a packet socket.
func TestUDPOnTheWire(t *testing.T) {
	wire := packetConn(t)
	a, b := listen(t, "127.91.47.3"), listen(t, "127.91.47.4")
	p := New(a, a.LocalAddr().Addr(), b.LocalAddr().Addr())
	for psn := range uint32(3) {
		f := SendOnly(0x11, psn, []byte("abc")).With(func(f *Frame) { f.TOS, f.TTL = 0x22, 33 })
		p.Send(t, f)
		want := p.Address(f)
		got := nextFrom(t, wire, want.Src)
		got.Link, got.UDPChecksum = nil, 0 // the kernel's checksum, which the ICRC does not cover
		if !reflect.DeepEqual(got, want) {
			t.Errorf("\n got %+v\nwant %+v", got, want)
		}
	}
}

func TestPacket(t *testing.T) {
	a, b := packetConn(t), packetConn(t)
	// Addresses that the host does not have, so that it answers nothing.
	src := netip.MustParseAddr("192.0.2.91")
	for _, f := range []*Frame{
		between(src, v4b, SendOnly(0x11, 1, []byte("abc")), func(f *Frame) { f.ID = 0x777 }),
		between(src, v4b, SendOnly(0x11, 2, []byte("abc")), nil).SpoilICRC(),
	} {
		if err := a.Write(f.Marshal()); err != nil {
			t.Fatal(err)
		}
		got := nextFrom(t, b, src)
		if got.Link == nil {
			t.Fatal("no Ethernet header")
		}
		got.Link = nil
		if !reflect.DeepEqual(got, f) {
			t.Errorf("\n got %+v\nwant %+v", got, f)
		}
	}
	// Read is ReadEth without the Ethernet header.
	f := between(src, v4b, Ack(1, 2, 3), func(f *Frame) { f.Link = &Link{} })
	if err := a.WriteEth(f.MarshalEth()); err != nil {
		t.Fatal(err)
	}
	for {
		ip, err := b.Read(time.Now().Add(DefaultTimeout))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(ip, f.Marshal()) {
			break
		}
	}
}

func TestPacketDeadlineAndErrors(t *testing.T) {
	c := packetConn(t)
	if _, err := c.Read(time.Now().Add(-time.Second)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline in the past: %v", err)
	}
	c.Close()
	if _, err := c.Read(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := OpenPacket("no-such-if", [6]byte{}, [6]byte{}); err == nil {
		t.Error("opened an interface that is not there")
	}
}

func TestToRoCE(t *testing.T) {
	if toRoCE(nil) || toRoCE(between(v4a, v4b, Ack(1, 2, 3), func(f *Frame) { f.DstPort = 53 }).Marshal()) ||
		toRoCE(between(v6a, v6b, Ack(1, 2, 3), func(f *Frame) { f.Protocol = new(uint8(6)) }).Marshal()) {
		t.Error("other traffic passes")
	}
	if !toRoCE(between(v6a, v6b, Ack(1, 2, 3), nil).Marshal()) {
		t.Error("RoCE does not")
	}
	tagged := between(v4a, v4b, Ack(1, 2, 3), func(f *Frame) { f.Link = &Link{Tags: []Tag{{TCI: 5}}} })
	if ok, ip := etherPayload(tagged.MarshalEth()); !ok || !bytes.Equal(ip, tagged.Marshal()) {
		t.Error("tagged frame")
	}
	if ok, _ := etherPayload(make([]byte, 13)); ok {
		t.Error("short frame")
	}
}
