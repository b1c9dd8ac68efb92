package cases

import (
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/udp"
)

// The addresses of the UDP backend: others use 127.0.0.1 and so on.
var (
	loopNIC  = netip.MustParseAddr("127.0.0.4")
	loopPeer = netip.MustParseAddr("127.0.0.5")
)

// udpLab is a device on UDP 4791 of 127.0.0.4 and the peer on a socket of 127.0.0.5. It
// runs in real time.
func udpLab(t *testing.T) *lab {
	t.Helper()
	ep, err := udp.Open(netip.AddrPortFrom(loopNIC, peer.Port), udp.Options{Plain: true}) // the wire is looked at packet by packet
	if err != nil {
		t.Skipf("UDP %v:%d cannot be bound: %v", loopNIC, peer.Port, err)
	}
	l := &lab{t: t, dst: loopPeer, dice: newDice()}
	l.dev = must(device.Open(ep, device.Options{Rand: l.dice}))
	t.Cleanup(func() { l.dev.Close() })
	conn, err := peer.ListenUDP(netip.AddrPortFrom(loopPeer, peer.Port))
	if err != nil {
		t.Skipf("UDP %v:%d cannot be bound: %v", loopPeer, peer.Port, err)
	}
	t.Cleanup(func() { conn.Close() })
	l.ctx = l.dev.NewContext()
	l.pd = must(l.ctx.AllocPD())
	l.p = peer.New(conn, loopPeer, loopNIC)
	return l
}

// Case 03 on the UDP backend: the host writes IP ID and DF after softnic has
// computed the ICRC; what was assumed must be what is sent.
func TestCase03_ICRCOnUDPBackend(t *testing.T) {
	l := udpLab(t)
	c := l.rc(func(o *rcOptions) {
		o.remote, o.SQPSN, o.RQPSN = loopPeer, 0xFFFF80, 0xFFFF80
		o.Timeout = 21 // 8.6 s: this one runs in real time, and a busy machine is no lost packet
	})
	u := l.ud(device.StateRTS)
	ah := must(l.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(loopPeer), SGIDIndex: gid4}))

	// What the host really sends is seen by a packet socket on lo, where the test may open
	// one; the peer's socket knows that some ID explains the ICRC.
	wire := make(chan int, 1)
	sniffer, err := peer.OpenPacket("lo", [6]byte{}, [6]byte{})
	if err != nil {
		t.Logf("no packet socket, so the IP ID and DF on the wire are not looked at: %v", err)
		wire <- 0
	} else {
		t.Cleanup(func() { sniffer.Close() })
		go func() {
			n := 0
			defer func() { wire <- n }()
			for end := time.Now().Add(time.Minute); ; {
				b, err := sniffer.Read(end)
				if err != nil {
					return
				}
				f, err := peer.Parse(b)
				if err != nil || f.Src != loopNIC {
					continue // what the peer sends passes lo as well
				}
				if n++; !peer.CheckICRC(b) || !f.DF || f.MF {
					t.Errorf("on the wire: ICRC right %v, ID %#x, DF %v: %v\n%x", peer.CheckICRC(b), f.ID, f.DF, f, b)
				}
			}
		}()
	}
	n := workload(t, 1000, c, u, ah, func() *peer.Frame { return l.p.Expect(t) })
	if err == nil {
		time.Sleep(20 * time.Millisecond) // a packet socket is told last
		sniffer.Close()
	}
	// A busy lo may overrun the packet socket: some are enough, if all are right.
	seen := <-wire
	t.Logf("%d packets, %d seen on the wire", n, seen)
	if err == nil && seen == 0 {
		t.Fatalf("none of %d packets was seen on the wire", n)
	}
	l.counts("drop_icrc=0")

	// Receiving: one with a wrong ICRC, and one with MigReq 0.
	want(t, "state", c.qp.State(), device.StateRTS)
	u.recv(1, l.mr(128, all).SGE(0, 128))
	bad := l.p.Address(peer.UDSend(udQP, 0, qkey, peerUD, []byte("bad"))).SpoilICRC()
	if err := l.p.Conn.Write(bad.Marshal()); err != nil {
		t.Fatal(err)
	}
	l.p.Send(t, peer.UDSend(udQP, 0, qkey, peerUD, []byte("good")).With(func(f *peer.Frame) { f.Migrated = false }))
	wc := make([]device.WC, 2)
	ctx, cancel := contextFor(5 * time.Second)
	defer cancel()
	k, err := u.rcq.Wait(ctx, wc)
	if err != nil || k != 1 || wc[0].ByteLen != 44 || wc[0].Status != device.StatusSuccess {
		t.Fatalf("receive: %v %+v", err, wc[:k])
	}
	l.counts("drop_icrc=1", "rx_icrc_encapsulated=1")
}
