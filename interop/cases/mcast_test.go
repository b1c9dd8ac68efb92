package cases

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// The groups of the tests, and the number that all of them have (roce.md A.11 item 10).
var (
	group4 = netip.MustParseAddr("239.129.2.3")
	group6 = netip.MustParseAddr("ff0e::ffff:ef01:203")
)

const groupQP = 0xFFFFFF

// listener makes another UD queue pair, with receives for ten datagrams, and attaches it.
func (l *lab) listener(qkey uint32, groups ...netip.Addr) (*udConn, *device.MR) {
	l.t.Helper()
	u := l.ud(device.StateReset)
	mr := l.mr(4096, all)
	u.modify(&device.QPAttr{State: device.StateInit, Port: 1, QKey: qkey}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrQKey)
	u.modify(&device.QPAttr{State: device.StateRTR}, device.AttrState)
	for i := range 10 {
		u.recv(uint64(i), mr.SGE(200*i, 200))
	}
	for _, g := range groups {
		if err := u.qp.Attach(device.GIDOf(g)); err != nil {
			l.t.Fatal(err)
		}
	}
	return u, mr
}

// Which datagrams reach the queue pairs of a group. All drops are silent.
func TestMulticastReceived(t *testing.T) {
	for _, group := range []netip.Addr{group4, group6} {
		to := func(f *peer.Frame) *peer.Frame {
			f.Src, f.Dst = peer4, group
			if group.Is6() {
				f.Src = peer6
			}
			return f
		}
		good := func() *peer.Frame { return to(peer.UDSend(groupQP, 0, qkey, peerUD, []byte("good"))) }
		other := group.Next()
		for _, v := range []struct {
			name  string
			f     *peer.Frame
			drop  string // "" for taken
			heard []bool // by the two members with the Q_Key, by the one with another, by the one that is no member
		}{
			{"good", good(), "", []bool{true, true, false, false}},
			{"the other Q_Key", good().With(func(f *peer.Frame) { f.DETH.QKey++ }), "", []bool{false, false, true, false}},
			{"nobody's Q_Key", good().With(func(f *peer.Frame) { f.DETH.QKey = 7 }), "qkey", make([]bool, 4)},
			{"immediate", to(peer.UDSendImm(groupQP, 0, qkey, peerUD, 0x01020304, []byte("good"))), "", []bool{true, true, false, false}},
			{"limited P_Key", good().With(func(f *peer.Frame) { f.PKey = 0x7FFF }), "", []bool{true, true, false, false}},
			{"P_Key", good().With(func(f *peer.Frame) { f.PKey = 0xFFFE }), "pkey", make([]bool, 4)},
			{"RC opcode", to(peer.SendOnly(groupQP, 0, []byte("good"))), "wrong-service", make([]bool, 4)},
			{"UC opcode", to(peer.SendOnly(groupQP, 0, []byte("good")).AsUC()), "wrong-service", make([]bool, 4)},
			{"CNP", to(peer.CNP(groupQP)), "wrong-service", make([]bool, 4)},
			{"reserved UD opcode", good().With(func(f *peer.Frame) { f.Op = 0x66 }), "reserved-opcode", make([]bool, 4)},
			{"a member's number", good().With(func(f *peer.Frame) { f.DestQP = udQP }), "no-qp", make([]bool, 4)},
			{"queue pair 1", good().With(func(f *peer.Frame) { f.DestQP = 1 }), "no-qp", make([]bool, 4)},
			{"another group", good().With(func(f *peer.Frame) { f.Dst = other }), "no-address", make([]bool, 4)},
			{"another group, RC opcode", to(peer.SendOnly(groupQP, 0, nil)).With(func(f *peer.Frame) { f.Dst = other }), "no-address", make([]bool, 4)},
			{"another group, a member's number", good().With(func(f *peer.Frame) { f.Dst, f.DestQP = other, udQP }), "no-address", make([]bool, 4)},
			{"too long", good().With(func(f *peer.Frame) { f.Payload = make([]byte, 164) }), "too-long", make([]bool, 4)},
			{"ICRC", good().SpoilICRC(), "icrc", make([]bool, 4)},
			{"TVer", good().With(func(f *peer.Frame) { f.TVer = 1 }), "transport-version", make([]bool, 4)},
		} {
			for _, hide := range []bool{false, true} {
				bubble(t, fmt.Sprintf("%v/%s/hidden=%v", group, v.name, hide), func(t *testing.T) {
					l := newLab(t, labConfig{HideIP: hide})
					var us []*udConn
					var mrs []*device.MR
					for i := range 4 {
						key, groups := uint32(qkey), []netip.Addr{group4, group6}
						if i == 2 {
							key++
						}
						if i == 3 {
							groups = nil
						}
						u, mr := l.listener(key, groups...)
						us, mrs = append(us, u), append(mrs, mr)
					}
					l.p.Send(t, v.f)
					l.emits()
					for i, u := range us {
						if !v.heard[i] {
							u.received()
							continue
						}
						imm := ""
						if v.f.Op == peer.OpUDSendOnlyImm {
							imm = " imm=01020304"
						}
						u.received("0 SUCCESS RECV 44" + imm)
						b := mrs[i].Bytes()
						wantBytes(t, "payload", b[40:44], []byte("good"))
						src, dst := b[32:36], b[36:40]
						if group.Is6() {
							src, dst = b[8:24], b[24:40]
							want(t, "version", b[0]>>4, 6)
						} else {
							wantBytes(t, "before the header", b[:20], make([]byte, 20))
							want(t, "version and length", b[20], 0x45)
						}
						wantBytes(t, "source in the GRH area", src, v.f.Src.AsSlice())
						wantBytes(t, "destination in the GRH area", dst, group.AsSlice())
					}
					drops := ""
					if v.drop != "" {
						drops = v.drop + "=1"
					}
					want(t, "drops", l.drops(), drops)
					l.counts("rcvd_pkts=1")
					l.events()
				})
			}
		}
	}
}

// In one batch with others, before and behind: each packet has its own verdict.
func TestMulticastAmongOthers(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Millisecond})
		u, _ := l.listener(qkey, group4)
		one := func() *peer.Frame { return peer.UDSend(udQP, 0, qkey, peerUD, nil) }
		all := func() *peer.Frame {
			return peer.UDSend(groupQP, 0, qkey, peerUD, []byte("all!")).With(func(f *peer.Frame) { f.Dst = group4 })
		}
		for _, f := range []*peer.Frame{
			one(), all(), one(), all().With(func(f *peer.Frame) { f.DestQP = udQP }), one(),
			all().With(func(f *peer.Frame) { f.Dst = group4.Next(); f.DestQP = udQP }), all(), all(), one(),
		} {
			l.p.Send(t, f)
		}
		l.emits()
		u.received("0 SUCCESS RECV 40", "1 SUCCESS RECV 44", "2 SUCCESS RECV 40", "3 SUCCESS RECV 40", "4 SUCCESS RECV 44", "5 SUCCESS RECV 44", "6 SUCCESS RECV 40")
		want(t, "drops", l.drops(), "no-address=1 no-qp=1")
		l.counts("rcvd_pkts=9")
	})
}

// Detach, and what stays: one member goes, then the other, and the group is nobody's.
func TestMulticastDetach(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		a, _ := l.listener(qkey, group4)
		b, _ := l.listener(qkey, group4)
		gid := device.GIDOf(group4)
		say := func() {
			l.p.Send(t, peer.UDSend(groupQP, 0, qkey, peerUD, nil).With(func(f *peer.Frame) { f.Dst = group4 }))
			l.emits()
		}
		say()
		a.received("0 SUCCESS RECV 40")
		b.received("0 SUCCESS RECV 40")
		errno(t, a.qp.Destroy(), device.EBUSY)
		if err := a.qp.Detach(gid); err != nil {
			t.Fatal(err)
		}
		say()
		a.received()
		b.received("1 SUCCESS RECV 40")
		// A member in ERR hears nothing, and says why.
		b.modify(&device.QPAttr{State: device.StateErr}, device.AttrState)
		l.settle()
		drain(b.rcq)
		say()
		want(t, "drops", l.drops(), "qp-state=1")
		if err := b.qp.Detach(gid); err != nil {
			t.Fatal(err)
		}
		say()
		want(t, "drops", l.drops(), "no-address=1 qp-state=1")
		for _, u := range []*udConn{a, b} {
			if err := u.qp.Destroy(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What goes to a group: its address, its number as the program gave it, the hop limit of the handle, and the copy to
// oneself behind the frame.
func TestMulticastSent(t *testing.T) {
	for _, group := range []netip.Addr{group4, group6} {
		for _, hops := range []uint8{0, 1, 5, 64, 255} {
			bubble(t, fmt.Sprintf("%v/hop limit %d", group, hops), func(t *testing.T) {
				l := newLab(t, labConfig{})
				u := l.ud(device.StateRTS)
				index, src := gid4, nic4
				if group.Is6() {
					index, src = gid6, nic6
				}
				ah := must(l.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(group), SGIDIndex: index, HopLimit: hops, TrafficClass: 0x20}))
				mr := l.mr(100, all)
				copy(mr.Bytes(), "to all")
				for _, member := range []bool{false, true} {
					if member {
						if err := u.qp.Attach(device.GIDOf(group)); err != nil {
							t.Fatal(err)
						}
					}
					u.recv(1, mr.SGE(20, 80))
					u.post(device.SendWR{Op: device.OpSend, SGE: sge(mr, 6), AH: ah, RemoteQPN: groupQP, RemoteQKey: qkey})
					l.settle()
					b := l.raw.TryRead()
					f, err := peer.Parse(b)
					if err != nil {
						t.Fatal(err)
					}
					want(t, "irregular", fmt.Sprint(f.Irregular()), "[]")
					want(t, "source", f.Src, src)
					want(t, "destination", f.Dst, group)
					want(t, "queue pair", f.DestQP, groupQP)
					want(t, "hop limit", f.TTL, max(hops, 1)) // none given: it stays on the link
					want(t, "class", f.TOS, 0x20)
					want(t, "pad", len(f.Payload), 6)
					if l.raw.TryRead() != nil {
						t.Error("more than one frame")
					}
					if member {
						u.received("1 SUCCESS RECV 46")
						wantBytes(t, "own copy", mr.Bytes()[60:66], []byte("to all"))
					} else {
						u.received()
					}
				}
			})
		}
	}
}
