//go:build linux

package guest

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/udp"
)

// TestLossyPath has a path that loses one packet in a hundred and reorders some, both ways, and moves enough data that
// single packets are lost in the middle of bursts, softnic sending and softnic receiving.
func TestLossyPath(t *testing.T) {
	needGuest(t)
	near, far := netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.9.0.1")
	n, dev := udpLab(t, near, "lossy.pcap", udp.Options{Plain: true}) // netem loses what it is given: a burst, or a packet
	// Each end's own queue is where its packets are lost, with a seed where tc has one. Reordering needs a delay to
	// overtake.
	for _, end := range []struct{ netns, dev string }{{"", "v0"}, {"far", "v1"}} {
		runIn(t, options{Netns: end.netns}, "tc", "qdisc", "add", "dev", end.dev, "root", "netem",
			"delay", "1ms", "loss", "1%", "reorder", "99%", "50%", "limit", "10000")
	}
	// The capture is at rxe's end: it sees what softnic's packets became on the way, before rxe has them.
	tcpdump := startCapture(t, options{}, "v0", "lossy-arrived.pcap", "udp", "port", "4791")
	v := startVerbs(t, options{}, dev.Name)
	const size, rounds = 1 << 17, 6 // 128 packets a message
	p := connectRC(t, n, dev, v, near, far, 1024, size, device.ConnectOptions{Timeout: 15, RetryCnt: 7})
	for i := range rounds {
		seed := uint64(1000 + i)
		// softnic sends.
		seeded(seed, p.near.Bytes())
		for range 4 {
			p.n.post(p.q, device.SendWR{Op: device.OpWrite, SGE: []device.SGE{p.near.SGE(0, size)}, RemoteAddr: p.far.Addr, RKey: p.far.RKey})
		}
		for range 4 {
			p.n.completion(device.WCWrite)
		}
		if i%2 == 0 {
			same(t, "softnic's WRITE", p.far.Read(0, size), p.near.Bytes())
		}
		// softnic receives, as the one who asked and as the one who is sent to.
		clear(p.near.Bytes())
		p.n.post(p.q, device.SendWR{Op: device.OpRead, SGE: []device.SGE{p.near.SGE(0, size)}, RemoteAddr: p.far.Addr, RKey: p.far.RKey})
		p.n.completion(device.WCRead)
		same(t, "softnic's READ", p.near.Bytes(), seeded(seed, make([]byte, size)))

		clear(p.near.Bytes())
		p.n.recv(p.q, p.near.SGE(0, size))
		p.vq.PostSend(sendWR{Opcode: "SEND", MR: p.far, Length: size})
		p.n.completion(device.WCRecv)
		same(t, "rxe's SEND", p.near.Bytes(), seeded(seed, make([]byte, size)))
		p.sent("SEND")
	}
	frames := tcpdump.Stop()
	toRxe := gaps(frames, far)
	t.Logf("single gaps in mid-burst: %d of what softnic sent; counters: %s", toRxe, n.drops())
	if toRxe == 0 {
		t.Error("the capture shows no single PSN lost in mid-burst of what softnic sent")
	}
	if n.counter("packet_seq_err") == 0 || n.counter("out_of_seq_request") == 0 || n.counter("implied_nak_seq_err") == 0 {
		t.Errorf("not every kind of loss was seen: %s", n.drops())
	}
	if n.counter("drop_icrc") != 0 {
		t.Errorf("wrong ICRCs: %s", n.drops())
	}
}

// gaps counts the places where one PSN is missing between two WRITE middle packets to dst, and does not come a moment
// later: lost, not overtaken.
func gaps(frames [][]byte, dst netip.Addr) int {
	var psns []uint32
	for _, b := range frames {
		if f, err := peer.ParseEth(b); err == nil && f.Dst == dst && f.Op == peer.OpWriteMiddle {
			psns = append(psns, f.PSN)
		}
	}
	found := 0
	for i := 1; i+8 < len(psns); i++ {
		missing := (psns[i-1] + 1) & 0xFFFFFF
		if psns[i] == (missing+1)&0xFFFFFF && !slices.Contains(psns[i:i+8], missing) {
			found++
		}
	}
	return found
}
