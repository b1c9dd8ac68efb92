package udp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// shaped returns packets as a doorbell has them: runs of one length that end with a shorter one, to several parties. Payload lies in one
// or in two places.
func shaped(r *rand.Rand, from int, paths ...*wire.Path) (l []*wire.Packet) {
	for range 4 {
		path := paths[r.IntN(len(paths))]
		n := 16 * r.IntN(257)
		for range 1 + r.IntN(100) {
			l = append(l, linktest.Send(path, 17, bth.PSN(from+len(l)), bytes.Repeat([]byte{byte(len(l))}, n)))
		}
		l = append(l, linktest.Send(path, 17, bth.PSN(from+len(l)), bytes.Repeat([]byte{0xEE}, r.IntN(n+1)/4*4)))
	}
	for _, pk := range l[len(l)/2:] {
		if len(pk.Data) == 0 {
			continue
		}
		b := pk.Data[0]
		n := r.IntN(len(b) + 1)
		pk.Data = [][]byte{b[:n:n], b[n:]}
	}
	return l
}

// What is sent in bursts arrives as the same packets in the same order, each with the IP ID that its ICRC was made with,
// whether or not either end puts datagrams together.
func TestBursts(t *testing.T) {
	const seed = 1
	for _, six := range []bool{false, true} {
		for _, o := range []struct{ from, to Options }{{}, {to: Options{Plain: true}}, {from: Options{Plain: true}}} {
			t.Run(fmt.Sprint(six, o.from.Plain, o.to.Plain), func(t *testing.T) {
				src, dst := "127.77.0.21", "127.77.0.22"
				if six {
					src, dst = "::1", "::1"
				}
				sink := new(linktest.Sink)
				ea := openWith(t, src, o.from)
				eb := ea // IPv6 has one address here
				if !six {
					eb = openWith(t, dst, o.to)
				}
				a, b := linktest.Port(t, elsewhere{ea}, link.PortOptions{Capture: sink}), linktest.Port(t, eb, link.PortOptions{})
				path, other := linktest.Path(src, dst), linktest.Path(src, dst)
				other.TClass = 2
				r := rand.New(rand.NewPCG(seed, 0))
				psn := 0
				for range 30 {
					pkts := shaped(r, psn, path, other)
					psn += len(pkts)
					if err := a.Send(pkts); err != nil {
						t.Fatal(err)
					}
					want := sink.Take()
					i := 0
					recv(t, b, len(pkts), func(pk *link.Packet) {
						w := &want[i]
						got := append(bytes.Clone(pk.View.Net), pk.View.IB...)
						if pk.Fault != wire.OK || !bytes.Equal(got, w.Bytes) {
							t.Fatalf("packet %d of %d: %v\n%x, want\n%x", i, len(pkts), pk.Fault, got[:60], w.Bytes[:60])
						}
						i++
					})
				}
			})
		}
	}
}

// elsewhere is an endpoint that does not know its own address, to which packets would take the loop, and stays open.
type elsewhere struct{ *Endpoint }

func (e elsewhere) Info() link.Info {
	i := e.Endpoint.Info()
	i.Addrs = []netip.Prefix{netip.MustParsePrefix("2001:db8::1/128")}
	return i
}

func (elsewhere) Close() error { return nil }

// A burst is one datagram for the kernel as long as it can be.
func TestBurstOnTheWire(t *testing.T) {
	fd := sniff(t)
	p := linktest.Port(t, open(t, "127.77.0.23"), link.PortOptions{})
	plain(t, "127.77.0.24:4791")
	path := linktest.Path("127.77.0.23", "127.77.0.24")
	var pkts []*wire.Packet
	for i := range 15 {
		pkts = append(pkts, linktest.Send(path, 17, bth.PSN(i), make([]byte, 4096)))
	}
	if err := p.Send(pkts); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<17)
	for {
		k, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING || k < 28 || buf[0] != 0x45 ||
			netip.AddrFrom4([4]byte(buf[12:])) != path.Src {
			continue
		}
		if want := 28 + 15*pkts[0].IBLen(); k != want || binary.BigEndian.Uint32(buf[4:]) != 0x4000 {
			t.Fatalf("%d bytes on the wire, want %d; % x", k, want, buf[:28])
		}
		return
	}
}
