package tap

import (
	"bytes"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"golang.org/x/sys/unix"
)

// packetSocket is an AF_PACKET socket on the host's side of a TAP, for one EtherType.
func packetSocket(t *testing.T, tap *Tap, typ uint16) int {
	t.Helper()
	swapped := typ>>8 | typ<<8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(swapped))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: swapped, Ifindex: tap.dev.index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// A raw frame goes out as it is: no header before it, no neighbour asked for.
func TestSendRaw(t *testing.T) {
	private(t)
	tap := open(t, config())
	fd := packetSocket(t, tap, 0x88B5)
	payload := make([]byte, 2000)
	for i := range payload {
		payload[i] = byte(i)
	}
	buf := make([]byte, 5000)
	for _, pieces := range [][][]byte{
		{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x88, 0xB5}, payload},
		{{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12, 0x88}, {0xB5, 1}, payload[:100], payload},
		{bytes.Repeat([]byte{0xFF}, 6), {2, 0, 0, 0, 0, 1, 0x88, 0xB5}},
	} {
		if err := tap.Send([]*link.Frame{{Packet: new(wire.Packet), IB: slices.Concat(pieces...), Raw: true}}); err != nil {
			t.Fatal(err)
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil || !bytes.Equal(buf[:n], bytes.Join(pieces, nil)) {
			t.Fatalf("%v, %d bytes", err, n)
		}
	}
	for _, name := range []string{"tap_tx_refused", "tap_tx_no_neighbour"} {
		if n := counter(tap, name); n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
}

// What is diverted comes in with Other set, and the NIC still answers what it answers; RoCE packets are what they were.
func TestDivert(t *testing.T) {
	private(t)
	tap := open(t, config())
	var wanted atomic.Uint32 // EtherType
	type in struct {
		frame []byte
		other bool
	}
	got := make(chan in, 256)
	go func() {
		b := link.NewBatch(64)
		for tap.Recv(b, true) == nil {
			for _, p := range b.Packets {
				got <- in{bytes.Clone(p.Frame), p.Other}
			}
		}
		close(got)
	}()
	fd := packetSocket(t, tap, 0x88B5)
	send := func(dst []byte, typ uint16, payload string) []byte {
		t.Helper()
		f := append(append(bytes.Clone(dst), 2, 0, 0, 0, 0, 0xFE), byte(typ>>8), byte(typ))
		f = append(f, payload...)
		if _, err := unix.Write(fd, f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	roce, err := net.Dial("udp", "10.8.0.2:4791")
	if err != nil {
		t.Fatal(err)
	}
	defer roce.Close()
	next := func(other bool) []byte {
		t.Helper()
		select {
		case f := <-got:
			if f.other != other {
				t.Fatalf("Other is %v: % x", f.other, f.frame)
			}
			return f.frame
		case <-time.After(20 * time.Second):
			t.Fatal("nothing in 20 s")
			return nil
		}
	}
	foreign := []byte{2, 0, 0, 0, 0, 0x99}
	own := []byte(tap.mac)
	before := counter(tap, "tap_rx_ignored")
	send(own, 0x88B5, "nobody asks for it")
	eventually(t, "the frame being ignored", func() bool { return counter(tap, "tap_rx_ignored") > before }) // the host sends some too

	wanted.Store(0x88B5)
	tap.Divert(func(f []byte) bool { return uint32(be.Uint16(f[12:])) == wanted.Load() })
	for _, dst := range [][]byte{own, foreign, bytes.Repeat([]byte{0xFF}, 6)} {
		f := send(dst, 0x88B5, "raw")
		if g := next(true); !bytes.Equal(g, f) {
			t.Errorf("% x, want % x", g, f)
		}
	}
	if _, err := roce.Write([]byte("packet")); err != nil {
		t.Fatal(err)
	}
	if g := next(false); !bytes.Equal(g[42:], []byte("packet")) {
		t.Errorf("% x", g)
	}
	// A copy of what the NIC answers: the question still gets its answer.
	wanted.Store(typeARP)
	arp := packetSocket(t, tap, typeARP)
	replies := counter(tap, "tap_arp_replies")
	ask := "\x00\x01\x08\x00\x06\x04\x00\x01\x02\x00\x00\x00\x00\xfe\x0a\x08\x00\x07\x00\x00\x00\x00\x00\x00\x0a\x08\x00\x02"
	for g, f := []byte(nil), send(own, typeARP, ask); !bytes.Equal(g, f); { // the host may ask too
		g = next(true)
	}
	eventually(t, "an answer", func() bool { return counter(tap, "tap_arp_replies") > replies })
	buf := make([]byte, 100)
	for {
		n, _, err := unix.Recvfrom(arp, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n >= 42 && buf[21] == 2 && bytes.Equal(buf[:6], []byte{2, 0, 0, 0, 0, 0xFE}) {
			break
		}
	}
	// And no more.
	tap.Divert(nil)
	before = counter(tap, "tap_rx_ignored")
	send(own, 0x88B5, "nobody asks for it")
	eventually(t, "the frame being ignored", func() bool { return counter(tap, "tap_rx_ignored") > before }) // the host sends some too
}
