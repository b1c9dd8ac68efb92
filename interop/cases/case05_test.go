package cases

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// ib6 is where the BTH is in an IPv6 vector.
const ib6 = 48

var case05Changes = []change{
	{"V6", "V6", "", "", func(b []byte) []byte { return b }},

	// Masked: accepted with the ICRC as it is.
	{"traffic class, high half", "V6", "", "", set(0, 0x0F)},
	{"traffic class, low half", "V6", "", "", set(1, 0xF0)},
	{"flow label", "V6", "", "", set(1, 0x0F)},
	{"flow label, low bytes", "V6", "", "", func(b []byte) []byte { return set(3, 0xFF)(set(2, 0xFF)(b)) }},
	{"hop limit", "V6", "", "", set(7, 0xFF)},
	{"UDP checksum, right", "V6", "", "", udpSum},
	{"BTH byte 4", "V6", "", "", set(ib6+4, 0xFF)},

	// A wrong checksum would pass the ICRC, but no IP stack lets it through
	// (rxe-lab.md S16): a reason of its own.
	{"UDP checksum, wrong", "V6", "udp-checksum", "-", set(ib6-1, 1)},

	// Covered.
	{"payload length", "V6", "icrc", "-", func(b []byte) []byte { // the same datagram, a longer IP packet around it
		b[5] += 4
		return append(b, 0, 0, 0, 0)
	}},
	{"source address", "V6", "icrc", "icrc", set(23, 8)},
	{"destination address", "V6", "icrc", "icrc", set(39, 8)},
	{"UDP source port", "V6", "icrc", "icrc", set(ib6-7, 1)},
	{"UDP length", "V6", "icrc", "icrc", func(b []byte) []byte {
		b[45] += 4
		b[5] += 4
		return append(b, 0, 0, 0, 0)
	}},
	{"PSN", "V6", "icrc", "icrc", set(ib6+11, 1)},
	{"MigReq", "V6", "icrc", "icrc", set(ib6+1, 0x40)},
	{"pad byte", "V6", "icrc", "icrc", set(ib6+15, 1)},

	// Not UDP any more: another program's packet, which no RoCE counter counts.
	{"next header", "V6", "other", "-", set(6, 1)},
	{"payload length, cut", "V6", "malformed", "-", set(5, 4)},
}

// Case 05: what the ICRC covers over IPv6, and what it masks.
func TestCase05_ICRCOverIPv6(t *testing.T) {
	for _, hide := range []bool{false, true} {
		backend := "ip-in-sight/"
		if hide {
			backend = "behind-udp-socket/"
		}
		for _, ch := range case05Changes {
			drop := ch.drop
			if hide {
				drop = ch.dropUDP
			}
			if drop == "-" {
				continue
			}
			bubble(t, backend+ch.name, func(t *testing.T) {
				l := newLab(t, labConfig{HideIP: hide})
				c := l.rc(func(o *rcOptions) { o.V6, o.RQPSN = true, 0x7FFFFF })
				mr := l.mr(64, all)
				c.recv(1, mr, 64)
				before := l.count("rcvd_pkts")
				l.p6.SendRaw(t, ch.change(vector("V6")))
				switch drop {
				case "":
					want(t, "drops", l.takeDrops(), "")
				case "other":
					l.emits()
					want(t, "drops", l.drops(), "")
					want(t, "packets counted", l.count("rcvd_pkts"), before)
				default:
					l.emits()
					want(t, "drops", l.drops(), drop+"=1")
				}
				if drop != "" {
					c.received()
					c.state(device.StateRTS)
					l.p6.SendRaw(t, vector("V6"))
				}
				// The answer's ICRC is checked by take, and its PSN is beyond the sign bit of
				// 24-bit arithmetic.
				sameList(t, "frames", briefs(answers(l.take())), []string{"ACKNOWLEDGE 7fffff 1f m1"})
				c.received("1 SUCCESS RECV 2")
				wantBytes(t, "payload", mr.Bytes()[:2], []byte("hi"))
			})
		}
	}

	// Link-local and global addresses, both checksum forms, both ways.
	for _, a := range []struct {
		name string
		peer netip.Addr
		gid  int
	}{{"global", peer6, gid6}, {"link-local", netip.MustParseAddr("fe80::1"), gidLinkLocal}} {
		for _, sum := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s/checksum=%v", a.name, sum), func(t *testing.T) {
				l := newLab(t, labConfig{})
				g := must(l.dev.QueryGID(1, a.gid))
				c := l.rc(func(o *rcOptions) { o.V6, o.remote, o.gid = true, a.peer, a.gid })
				l.dst = netip.Addr{}
				p := peer.New(l.conn, a.peer, g.Addr())
				mr := l.mr(64, all)
				c.recv(1, mr, 64)
				f := p.Address(peer.SendOnly(nicQP, 0x200, []byte("abc")))
				if sum {
					f.SetUDPChecksum()
				}
				l.p.SendRaw(t, f.Marshal())
				got := l.emits("ACKNOWLEDGE 000200 1f m1")
				want(t, "source", got[0].Src, g.Addr())
				want(t, "destination", got[0].Dst, a.peer)
				c.received("1 SUCCESS RECV 3")
				c.send(mr, 3)
				got = l.emits("SEND_ONLY 000100 ar [3]")
				want(t, "source", got[0].Src, g.Addr())
				want(t, "flow label", got[0].FlowLabel, 0)
				f = p.Address(ack(0x100, 1))
				if sum {
					f.SetUDPChecksum()
				}
				l.p.SendRaw(t, f.Marshal())
				c.sent("1 SUCCESS SEND 3")
			})
		}
	}
}

// takeDrops is drops after everything was handled.
func (l *lab) takeDrops() string {
	l.settle()
	return l.drops()
}
