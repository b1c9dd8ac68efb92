package cases

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
)

var (
	nicMAC   = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x11}
	otherMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x99}
	groupMAC = net.HardwareAddr{0x01, 0, 0x5E, 1, 2, 3}
	everyMAC = net.HardwareAddr{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
)

// eth is an Ethernet frame.
func eth(dst net.HardwareAddr, typ uint16, payload []byte) []byte {
	b := append(slices.Clone(dst), 0x02, 0, 0, 0, 0, 0xFE)
	return append(binary.BigEndian.AppendUint16(b, typ), payload...)
}

// newEtherLab is a lab whose link has Ethernet. Its peer cannot be used: frames come and go as bytes.
func newEtherLab(t *testing.T, c pipe.Config) *lab {
	t.Helper()
	l := &lab{t: t, dice: newDice()}
	c.Name, c.MAC, c.Ethernet = "ether", nicMAC, true
	c.Addrs = []netip.Prefix{netip.PrefixFrom(nic4, 24), netip.PrefixFrom(nic6, 64)}
	l.end, l.raw = pipe.NewRaw(c)
	l.dev = must(device.Open(l.end, device.Options{Rand: l.dice}))
	t.Cleanup(func() {
		if err := l.dev.Close(); err != nil {
			t.Errorf("device.Close: %v", err)
		}
	})
	l.ctx = l.dev.NewContext()
	l.pd = must(l.ctx.AllocPD())
	return l
}

// rawQP is a raw packet queue pair in RTS; it has 256 requests of either kind, 4 entries each.
func (l *lab) rawQP(s device.Steering) *udConn {
	l.t.Helper()
	u := &udConn{lab: l, scq: must(l.ctx.CreateCQ(device.CQInit{Entries: 1024})), rcq: must(l.ctx.CreateCQ(device.CQInit{Entries: 1024}))}
	u.qp = must(l.pd.CreateQP(device.QPInit{
		Type: device.RawPacket, SendCQ: u.scq, RecvCQ: u.rcq, SigAll: true, Steer: s,
		Cap: device.Cap{SendWR: 256, RecvWR: 256, SendSGE: 4, RecvSGE: 4, Inline: 64},
	}))
	if err := u.qp.Activate(0, 0); err != nil {
		l.t.Fatal(err)
	}
	return u
}

// out takes the frames that the device has emitted.
func (l *lab) out() [][]byte {
	l.settle()
	var out [][]byte
	for f := l.raw.TryRead(); f != nil; f = l.raw.TryRead() {
		out = append(out, f)
	}
	return out
}

// in has frames arrive.
func (l *lab) in(frames ...[]byte) {
	for _, f := range frames {
		if err := l.raw.Write(f); err != nil {
			l.t.Fatal(err)
		}
	}
	l.settle()
}

// roce is a RoCE packet of the peer to an address, in a frame to a MAC.
func roce(dst net.HardwareAddr, to netip.Addr, f *peer.Frame) []byte {
	f.Src, f.Dst = peer4, to
	return eth(dst, 0x0800, f.Marshal())
}

// A frame leaves as it is, whatever is in it and however it lies in memory, and completes when it has left.
func TestRawSent(t *testing.T) {
	frame := func(n int) []byte {
		return append(eth(otherMAC, 0x88B5, nil), pattern(7, max(n-14, 0))...)[:n]
	}
	for _, n := range []int{14, 15, 60, 64, 1000, 1513, 1514} {
		for _, pieces := range []int{0, 1, 2, 4} { // 0: inline
			if pieces == 0 && n > 64 {
				continue
			}
			bubble(t, fmt.Sprintf("%d bytes/%d pieces", n, pieces), func(t *testing.T) {
				l := newEtherLab(t, pipe.Config{MTU: 1500})
				sink := &frames{}
				l.dev.Port().SetCapture(sink)
				u := l.rawQP(device.Steering{})
				mr := l.mr(2000, 0)
				copy(mr.Bytes()[100:], frame(n))
				wr := device.SendWR{Op: device.OpSend}
				switch pieces {
				case 0:
					wr.Flags, wr.InlineData = device.Inline, mr.Bytes()[100:100+n]
				default:
					for i := range pieces { // the first one shorter than a header, where there are several
						from, to := n*i/pieces, n*(i+1)/pieces
						if pieces > 1 && n > 60 {
							from, to = max(i*5, 0), (i+1)*5
							if i == pieces-1 {
								to = n
							}
						}
						wr.SGE = append(wr.SGE, mr.SGE(100+from, to-from))
					}
				}
				u.post(wr)
				got := l.out()
				want(t, "frames", len(got), 1)
				wantBytes(t, "frame", got[0], frame(n))
				u.sent(fmt.Sprintf("1 SUCCESS SEND %d", n))
				want(t, "captured", len(sink.got), 1)
				wantBytes(t, "captured", sink.got[0], frame(n))
				l.counts("raw_sent=1", "sent_pkts=0", "tx_too_long=0")
			})
		}
	}
	bubble(t, "also what looks like ours, or is to ourselves", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{})
		for i, f := range [][]byte{
			roce(otherMAC, peer4, peer.SendOnly(1, 2, []byte("evil"))), // source MAC and ICRC are the program's business
			eth(nicMAC, 0x88B5, []byte("to itself")), eth(everyMAC, 0x0806, make([]byte, 28)), eth(groupMAC, 0x86DD, []byte("x")),
		} {
			u.post(device.SendWR{Op: device.OpSend, SGE: sge(copied(l, f), len(f))})
			got := l.out()
			want(t, "frames", len(got), 1)
			wantBytes(t, fmt.Sprint(i), got[0], f)
		}
		// What the device sends it does not receive.
		want(t, "received", len(drain(u.rcq)), 0)
		want(t, "drops", l.drops(), "")
	})
	// 256 requests, several transmit lists: all leave, in order, unsignaled ones without a completion.
	bubble(t, "many", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{})
		var wrs []*device.SendWR
		for i := range 256 {
			f := eth(otherMAC, 0x88B5, []byte{byte(i)})
			wrs = append(wrs, &device.SendWR{ID: uint64(i), Op: device.OpSend, Flags: device.Inline, InlineData: f})
		}
		if err := u.qp.PostSendList(wrs...); err != nil {
			t.Fatal(err)
		}
		got := l.out()
		want(t, "frames", len(got), 256)
		for i, f := range got {
			want(t, "order", f[14], byte(i))
		}
		want(t, "completions", len(drain(u.scq)), 256)
	})
}

func copied(l *lab, b []byte) *device.MR {
	mr := l.mr(max(len(b), 1), all)
	copy(mr.Bytes(), b)
	return mr
}

// Frames that the link cannot take: too short or too long for any is IBV_WC_LOC_LEN_ERR and SQE; one byte to four more
// than an untagged frame may have is lost at the link if there is no tag.
func TestRawLength(t *testing.T) {
	const mtu = 1500
	tagged := func(n int) []byte { return append(eth(otherMAC, 0x8100, []byte{0, 5, 8, 0}), make([]byte, n-18)...) }
	plain := func(n int) []byte { return append(eth(otherMAC, 0x0800, nil), make([]byte, max(n-14, 0))...)[:n] }
	for _, v := range []struct {
		name  string
		frame []byte
		st    string
		lost  int
	}{
		{"empty", nil, "1 LOC_LEN_ERR", 0},
		{"13 bytes", plain(13), "1 LOC_LEN_ERR", 0},
		{"14 bytes", plain(14), "1 SUCCESS SEND 14", 0},
		{"full", plain(mtu + 14), "1 SUCCESS SEND 1514", 0},
		{"one more", plain(mtu + 15), "1 SUCCESS SEND 1515", 1},
		{"four more", plain(mtu + 18), "1 SUCCESS SEND 1518", 1},
		{"five more", plain(mtu + 19), "1 LOC_LEN_ERR", 0},
		{"full with a tag", tagged(mtu + 18), "1 SUCCESS SEND 1518", 0},
		{"one more with a tag", tagged(mtu + 19), "1 LOC_LEN_ERR", 0},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newEtherLab(t, pipe.Config{MTU: mtu})
			u := l.rawQP(device.Steering{})
			u.post(device.SendWR{Op: device.OpSend, SGE: sge(copied(l, v.frame), len(v.frame))})
			u.sent(v.st)
			good := strings.Contains(v.st, "SUCCESS")
			l.counts(fmt.Sprintf("tx_too_long=%d", v.lost))
			if good {
				want(t, "frames", len(l.out()), 1-v.lost)
				want(t, "state", u.qp.State(), device.StateRTS)
				return
			}
			want(t, "frames", len(l.out()), 0)
			want(t, "state", u.qp.State(), device.StateSQE)
			l.counts("req_cqe_error=1")
			// What comes after it is flushed; the receive side works on, and RTS again too.
			f := eth(otherMAC, 0x88B5, nil)
			again := device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: f}
			u.post(again)
			u.sent("2 WR_FLUSH_ERR")
			u.recv(1, l.mr(64, all).SGE(0, 64))
			l.in(eth(nicMAC, 0x88B5, []byte("good")))
			u.received("1 SUCCESS RECV 18")
			u.modify(&device.QPAttr{State: device.StateRTS}, device.AttrState)
			u.post(again)
			u.sent("3 SUCCESS SEND 14")
			want(t, "frames", len(l.out()), 1)
		})
	}
	bubble(t, "the MTU of the link changes", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{MTU: mtu})
		u := l.rawQP(device.Steering{})
		l.end.Change(func(i *link.Info) { i.MTU = 2000 })
		l.settle()
		u.post(device.SendWR{Op: device.OpSend, SGE: sge(copied(l, plain(2014)), 2014)})
		u.sent("1 SUCCESS SEND 2014")
		want(t, "frames", len(l.out()), 1)
		u.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
		if err := u.qp.Activate(0, 0); err != nil {
			t.Fatal(err)
		}
		u.post(device.SendWR{Op: device.OpSend, SGE: sge(copied(l, plain(2014)), 2014)})
		u.sent("2 SUCCESS SEND 2014")
	})
	bubble(t, "memory that is not the program's", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{MTU: mtu})
		u := l.rawQP(device.Steering{})
		mr := l.mr(64, all)
		bad := mr.SGE(0, 20)
		bad.LKey ^= 0x100
		u.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{mr.SGE(0, 20), bad}})
		u.sent("1 LOC_PROT_ERR")
		want(t, "state", u.qp.State(), device.StateSQE)
		want(t, "frames", len(l.out()), 0)
		if err := mr.Dereg(); err != nil { // no reference is left behind
			t.Fatal(err)
		}
	})
}

// A frame is received as it came: no header stripped, no GRH area, one frame a receive.
func TestRawReceived(t *testing.T) {
	bubble(t, "whole", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{MTU: 1500})
		u := l.rawQP(device.Steering{})
		mr := l.mr(4000, all)
		for i, n := range []int{14, 15, 60, 1514} {
			f := append(eth(nicMAC, 0x88B5, nil), pattern(byte(n), n-14)...)
			u.recv(uint64(i), mr.SGE(0, 10), mr.SGE(10, 0), mr.SGE(20, 1504))
			l.in(f)
			wc := drain(u.rcq)
			if len(wc) != 1 || wc[0].ID != uint64(i) || wc[0].Op != device.WCRecv || int(wc[0].ByteLen) != n || wc[0].Flags != 0 || wc[0].QPN != u.qp.Num() {
				t.Fatalf("%d bytes: %+v", n, wc)
			}
			wantBytes(t, "frame", append(slices.Clone(mr.Bytes()[:10]), mr.Bytes()[20:20+n-10]...)[:n], f)
		}
		want(t, "drops", l.drops(), "")
		l.counts("raw_rcvd=4", "rcvd_pkts=0")
		l.emits()
	})
	bubble(t, "no receive, too short", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{})
		f := eth(nicMAC, 0x88B5, []byte("0123456789"))
		l.in(f)
		want(t, "drops", l.drops(), "no-receive=1")
		l.counts("out_of_buffer=1")
		mr := l.mr(64, all)
		u.recv(1, mr.SGE(0, 23))
		l.in(f)
		want(t, "drops", l.drops(), "no-receive=1 too-long=1")
		u.received()
		l.in(f[:23]) // the receive has stayed
		u.received("1 SUCCESS RECV 23")
		l.counts("raw_rcvd=1")
		want(t, "state", u.qp.State(), device.StateRTS)
	})
	bubble(t, "states", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{})
		mr := l.mr(64, all)
		f := eth(nicMAC, 0x88B5, []byte("x"))
		u.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
		errno(t, u.qp.PostRecv(&device.RecvWR{}), device.EINVAL)
		l.in(f)
		u.modify(&device.QPAttr{State: device.StateInit, Port: 1}, device.AttrState|device.AttrPort)
		u.recv(1, mr.SGE(0, 64))
		u.recv(2, mr.SGE(0, 64))
		l.in(f)
		want(t, "drops", l.drops(), "qp-state=2")
		u.modify(&device.QPAttr{State: device.StateRTR}, device.AttrState)
		errno(t, u.qp.PostSend(&device.SendWR{Op: device.OpSend}), device.EINVAL)
		l.in(f)
		u.received("1 SUCCESS RECV 15")
		u.modify(&device.QPAttr{State: device.StateErr}, device.AttrState)
		u.received("2 WR_FLUSH_ERR")
		u.recv(3)
		u.received("3 WR_FLUSH_ERR")
		u.post(device.SendWR{Op: device.OpSend})
		u.sent("1 WR_FLUSH_ERR")
		l.in(f)
		want(t, "drops", l.drops(), "qp-state=3")
	})
	bubble(t, "a receive that cannot be written", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{})
		mr := l.mr(64, all)
		u.recv(1, mr.SGE(0, 64))
		u.recv(2)
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		l.in(eth(nicMAC, 0x88B5, nil))
		u.received("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
		want(t, "state", u.qp.State(), device.StateErr)
		want(t, "drops", l.drops(), "local-memory=1")
	})
	bubble(t, "completion queue full", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 1}))
		q := must(l.pd.CreateQP(device.QPInit{Type: device.RawPacket, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{RecvWR: 4}}))
		if err := q.Activate(0, 0); err != nil {
			t.Fatal(err)
		}
		mr := l.mr(64, all)
		for range 3 {
			if err := q.PostRecv(&device.RecvWR{SGE: sge(mr, 64)}); err != nil {
				t.Fatal(err)
			}
		}
		f := eth(nicMAC, 0x88B5, nil)
		l.in(f, f)
		l.events("CQ_ERR", "QP_FATAL")
		want(t, "state", q.State(), device.StateErr)
	})
	bubble(t, "shared receive queue", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		srq := must(l.pd.CreateSRQ(device.SRQInit{MaxWR: 4, MaxSGE: 1}))
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 8}))
		q := must(l.pd.CreateQP(device.QPInit{Type: device.RawPacket, SendCQ: cq, RecvCQ: cq, SRQ: srq}))
		if err := q.Activate(0, 0); err != nil {
			t.Fatal(err)
		}
		if err := srq.PostRecv(&device.RecvWR{ID: 4, SGE: sge(l.mr(64, all), 64)}); err != nil {
			t.Fatal(err)
		}
		l.in(eth(nicMAC, 0x88B5, nil))
		sameList(t, "completions", briefWC(drain(cq)), []string{"4 SUCCESS RECV 14"})
	})
}

// Which frames a raw queue pair gets: by destination and EtherType; RoCE to the device's addresses is the RDMA queue
// pairs', and a sniffer's.
func TestRawSteering(t *testing.T) {
	vlan := func(inner uint16) []byte {
		return eth(nicMAC, 0x8100, binary.BigEndian.AppendUint16([]byte{0, 5}, inner))
	}
	send := func(to netip.Addr) *peer.Frame { return peer.UDSend(udQP, 0, qkey, peerUD, []byte("x")) }
	arp := must(hex.DecodeString("0001080006040001020000000000c0000201000000000000c0000202"))
	all := []struct {
		name  string
		frame []byte
	}{
		{"own", eth(nicMAC, 0x88B5, nil)},
		{"broadcast", eth(everyMAC, 0x88B5, nil)},
		{"group", eth(groupMAC, 0x88B5, nil)},
		{"other", eth(otherMAC, 0x88B5, nil)},
		{"arp", eth(everyMAC, 0x0806, arp)},
		{"vlan", vlan(0x88B5)},
		{"vlan-arp", vlan(0x0806)},
		{"vlan-short", eth(nicMAC, 0x8100, nil)},
		{"ip-garbage", eth(nicMAC, 0x0800, []byte("garbage"))},
		{"udp-53", func() []byte {
			b := roce(nicMAC, nic4, send(nic4))
			binary.BigEndian.PutUint16(b[36:], 53)
			return b
		}()},
		{"roce", roce(nicMAC, nic4, send(nic4))},
		{"roce-bad", roce(nicMAC, nic4, send(nic4).With(func(f *peer.Frame) { f.Src, f.Dst = peer4, nic4 }).SpoilICRC())},
		{"roce-elsewhere", roce(nicMAC, peer4, send(peer4))},
		{"roce-group", roce(everyMAC, netip.MustParseAddr("224.1.1.1"), send(nic4))},
		{"short", nicMAC},
	}
	for _, v := range []struct {
		name string
		s    device.Steering
		want string
	}{
		{"default", device.Steering{}, "own broadcast arp vlan vlan-arp vlan-short ip-garbage udp-53 roce-elsewhere roce-group"},
		{"EtherType", device.Steering{EtherType: 0x88B5}, "own broadcast vlan"},
		{"EtherType ARP", device.Steering{EtherType: 0x0806}, "arp vlan-arp"},
		{"EtherType VLAN", device.Steering{EtherType: 0x8100}, "vlan vlan-arp vlan-short"},
		{"EtherType IPv4", device.Steering{EtherType: 0x0800}, "ip-garbage udp-53 roce-elsewhere roce-group"},
		{"own MAC", device.Steering{MACs: []net.HardwareAddr{nicMAC}, EtherType: 0x88B5}, "own vlan"},
		{"other MACs", device.Steering{MACs: []net.HardwareAddr{otherMAC, groupMAC}}, "group other"},
		{"sniffer", device.Steering{Sniffer: true},
			"own broadcast group other arp vlan vlan-arp vlan-short ip-garbage udp-53 roce roce-bad roce-elsewhere roce-group"},
		{"sniffer of IPv4", device.Steering{Sniffer: true, EtherType: 0x0800}, "ip-garbage udp-53 roce roce-bad roce-elsewhere roce-group"},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newEtherLab(t, pipe.Config{})
			u := l.rawQP(v.s)
			second := l.rawQP(v.s) // each gets a copy
			ud := l.ud(device.StateRTS)
			mr := l.mr(4096, device.LocalWrite)
			var got []string
			for _, f := range all {
				u.recv(1, mr.SGE(0, 512))
				second.recv(1, mr.SGE(1024, 512))
				l.in(f.frame)
				wc, wc2 := drain(u.rcq), drain(second.rcq)
				want(t, f.name+", copies of the second", len(wc2), len(wc))
				if len(wc) == 0 {
					continue
				}
				got = append(got, f.name)
				wantBytes(t, f.name, mr.Bytes()[:wc[0].ByteLen], f.frame)
				wantBytes(t, f.name, mr.Bytes()[1024:][:wc2[0].ByteLen], f.frame)
				clear(mr.Bytes())
			}
			want(t, "received", strings.Join(got, " "), v.want)
			// The RDMA queue pair got its own, and nothing else.
			ud.recv(7, mr.SGE(0, 100))
			l.in(roce(nicMAC, nic4, send(nic4)))
			ud.received("7 SUCCESS RECV 41")
			want(t, "frames sent", len(l.out()), 0)
			n := uint64(1)
			want(t, "of the RoCE frames", l.count("drop_no-receive"), n)
			want(t, "of the RoCE frames", l.count("drop_icrc"), n)
		})
	}
	bubble(t, "a multicast group of the device's is RoCE of its own", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{MACs: []net.HardwareAddr{groupMAC}})
		ud := l.ud(device.StateRTS)
		group := netip.MustParseAddr("224.1.2.3")
		if err := ud.qp.Attach(device.GIDOf(group)); err != nil {
			t.Fatal(err)
		}
		mr := l.mr(1024, device.LocalWrite)
		u.recv(1, mr.SGE(0, 512))
		ud.recv(1, mr.SGE(512, 512))
		f := roce(groupMAC, group, peer.UDSend(0xFFFFFF, 0, qkey, peerUD, []byte("x")))
		l.in(f)
		u.received()
		ud.received("1 SUCCESS RECV 41")
		if err := ud.qp.Detach(device.GIDOf(group)); err != nil {
			t.Fatal(err)
		}
		l.in(f)
		u.received(fmt.Sprintf("1 SUCCESS RECV %d", len(f)))
	})
	bubble(t, "no RoCE packet goes to a raw queue pair by its number", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{})
		u.recv(1, l.mr(512, device.LocalWrite).SGE(0, 512))
		l.in(roce(nicMAC, nic4, peer.UDSend(u.qp.Num(), 0, 0, peerUD, []byte("x"))), roce(nicMAC, nic4, peer.SendOnly(u.qp.Num(), 0, nil)))
		u.received()
		want(t, "drops", l.drops(), "no-qp=2")
	})
}

// A raw queue pair without receives holds up nobody: not the RDMA queue pairs, not another raw one.
func TestRawFairness(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		l.rawQP(device.Steering{Sniffer: true})
		u := l.rawQP(device.Steering{})
		ud := l.ud(device.StateRTS)
		mr := l.mr(64, device.LocalWrite)
		for i := range 50 {
			ud.recv(uint64(i), mr.SGE(0, 64))
			u.recv(uint64(i), mr.SGE(0, 64))
			l.in(eth(nicMAC, 0x88B5, nil), roce(nicMAC, nic4, peer.UDSend(udQP, 0, qkey, peerUD, []byte("x"))))
		}
		want(t, "datagrams", len(drain(ud.rcq)), 50)
		want(t, "frames", len(drain(u.rcq)), 50)
		want(t, "drops", l.drops(), "no-receive=100")
	})
}

func TestRawCreate(t *testing.T) {
	init := func(l *lab, s device.Steering) (device.QPInit, *device.CQ) {
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 1}))
		return device.QPInit{Type: device.RawPacket, SendCQ: cq, RecvCQ: cq, Steer: s}, cq
	}
	for name, c := range map[string]labConfig{"no Ethernet": {}, "a UDP socket": {HideIP: true}} {
		bubble(t, name, func(t *testing.T) {
			l := newLab(t, c)
			in, cq := init(l, device.Steering{})
			_, err := l.pd.CreateQP(in)
			errno(t, err, device.EOPNOTSUPP)
			if !strings.Contains(err.Error(), "a UDP socket carries no Ethernet frames: use --tap") {
				t.Error(err)
			}
			want(t, "max_raw_ethy_qp", l.dev.Query().MaxRawEthyQP, 0)
			if _, err := cq.Destroy(); err != nil {
				t.Error(err)
			}
		})
	}
	bubble(t, "Steer", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		for _, s := range []device.Steering{
			{MACs: []net.HardwareAddr{nicMAC[:5]}}, {MACs: []net.HardwareAddr{nicMAC, nil}}, {MACs: []net.HardwareAddr{nicMAC}, Sniffer: true},
			{MACs: make([]net.HardwareAddr, device.MaxSteerMACs+1)},
		} {
			in, _ := init(l, s)
			_, err := l.pd.CreateQP(in)
			errno(t, err, device.EINVAL)
		}
		// It is the queue pair's own, and query tells it.
		mine := slices.Clone(nicMAC)
		u := l.rawQP(device.Steering{MACs: []net.HardwareAddr{mine}, EtherType: 0x88B5})
		mine[5] = 0x12
		u.recv(1, l.mr(64, device.LocalWrite).SGE(0, 64))
		l.in(eth(nicMAC, 0x88B5, nil))
		u.received("1 SUCCESS RECV 14")
		_, got := u.qp.Query()
		want(t, "type and steering", fmt.Sprint(got.Type, " ", len(got.Steer.MACs), " ", got.Steer.EtherType), "RAW_PACKET 1 34997")
	})
	bubble(t, "posts", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		u := l.rawQP(device.Steering{})
		for _, wr := range []device.SendWR{
			{Op: device.OpSendImm}, {Op: device.OpWrite}, {Op: device.OpRead}, {Op: device.OpLocalInv},
			{Op: device.OpSend, SGE: make([]device.SGE, 5)}, {Op: device.OpSend, Flags: device.Inline, InlineData: make([]byte, 65)},
		} {
			errno(t, u.qp.PostSend(&wr), device.EINVAL)
		}
		errno(t, u.qp.Attach(device.GIDOf(netip.MustParseAddr("224.1.2.3"))), device.EINVAL)
	})
	bubble(t, "max_raw_ethy_qp", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		n := l.dev.Query().MaxRawEthyQP
		want(t, "max_raw_ethy_qp", n, device.MaxRawQP)
		in, _ := init(l, device.Steering{})
		var last *device.QP
		for range n {
			last = must(l.pd.CreateQP(in))
		}
		_, err := l.pd.CreateQP(in)
		errno(t, err, device.ENOSPC)
		if err := last.Destroy(); err != nil {
			t.Fatal(err)
		}
		must(l.pd.CreateQP(in))
	})
	// What is destroyed gets nothing, and the others still do.
	bubble(t, "destroy", func(t *testing.T) {
		l := newEtherLab(t, pipe.Config{})
		a, b := l.rawQP(device.Steering{}), l.rawQP(device.Steering{})
		mr := l.mr(64, device.LocalWrite)
		a.recv(1, mr.SGE(0, 64))
		b.recv(1, mr.SGE(0, 64))
		if err := a.qp.Destroy(); err != nil {
			t.Fatal(err)
		}
		l.in(eth(nicMAC, 0x88B5, nil))
		b.received("1 SUCCESS RECV 14")
		a.received()
		if err := l.ctx.Close(); err != nil {
			t.Fatal(err)
		}
		l.in(eth(nicMAC, 0x88B5, nil))
		want(t, "drops", l.drops(), "")
	})
}

// Two softnics on one cable, and a raw queue pair that speaks RoCE to the other's RDMA queue pair: bytes are bytes.
func TestRawPair(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		ea, eb := pipe.New(
			pipe.Config{Name: "a", Ethernet: true, MAC: otherMAC, Addrs: []netip.Prefix{netip.PrefixFrom(peer4, 24)}},
			pipe.Config{Name: "b", MAC: nicMAC, Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}})
		side := func(ep link.Endpoint) *lab {
			l := &lab{t: t, dice: newDice(), dev: must(device.Open(ep, device.Options{}))}
			t.Cleanup(func() { l.dev.Close() })
			l.ctx = l.dev.NewContext()
			l.pd = must(l.ctx.AllocPD())
			return l
		}
		a, b := side(ea), side(eb)
		ua, ub := a.rawQP(device.Steering{}), b.rawQP(device.Steering{})
		ma, mb := a.mr(8192, all), b.mr(8192, all)
		for i, n := range []int{14, 60, 4214} {
			ub.recv(uint64(i), mb.SGE(0, 5000))
			f := append(eth(nicMAC, 0x88B5, nil), pattern(byte(i), n-14)...)
			copy(ma.Bytes(), f)
			ua.post(device.SendWR{Op: device.OpSend, SGE: sge(ma, n)})
			ub.received(fmt.Sprintf("%d SUCCESS RECV %d", i, n))
			wantBytes(t, "frame", mb.Bytes()[:n], f)
		}
		// Answered by b's QP1: a's device gets the answer, for its own address.
		get := roce(nicMAC, nic4, gsiSend(perf("01", "0012", "00 01 ffff")))
		gsi := a.wellKnown(device.GSI)
		gsi.recv(1, ma.SGE(4096, 400))
		copy(ma.Bytes(), get)
		ua.post(device.SendWR{Op: device.OpSend, SGE: sge(ma, len(get))})
		gsi.received("1 SUCCESS RECV 296")
		if m := ma.Bytes()[4096+40:]; !bytes.Equal(m[:4], []byte{1, 4, 1, 0x81}) {
			t.Errorf("answer % x", m[:24])
		}
		want(t, "drops of a", a.drops(), "")
		want(t, "drops of b", b.drops(), "")
	})
}
