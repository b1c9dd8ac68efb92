package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// connected makes a connection of a service.
func (l *lab) connected(typ device.QPType) *conn {
	switch typ {
	case device.UC:
		return l.uc(nil)
	case device.XRCTgt:
		return l.responder(typ, nil).conn
	}
	return l.requester(typ, nil)
}

// Every connection tells its peer of marked packets, with opcode 0x81 whatever the service, paced for all of an address
// pair (roce.md A.5, design.md 8): UC, though it answers nothing else, an XRC target of requests, an XRC initiator of
// responses.
func TestCongestionServices(t *testing.T) {
	// A packet with a PSN that is of use: the first, the second.
	request := func(i uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200+i, 0, 0, nil) }
	response := func(i uint32) *peer.Frame { return peer.ReadRespOnly(nicQP, 0x100+i, i+1, filled(9, 8)) }
	for _, v := range []struct {
		typ    device.QPType
		packet func(i uint32) *peer.Frame
		answer []string // of the first packet, without the notification
	}{
		{device.RC, request, []string{"ACKNOWLEDGE 000200 1f m1"}},
		{device.RC, response, nil},
		{device.UC, func(i uint32) *peer.Frame { return request(i).AsUC() }, nil},
		{device.XRCTgt, request, []string{"ACKNOWLEDGE 000200 1f m1"}},
		{device.XRCIni, response, nil},
	} {
		bubble(t, fmt.Sprintf("%v/%v", v.typ, v.packet(0).Op), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.connected(v.typ)
			mr := l.mr(64, all)
			if v.packet(0).Op.IsResponse() {
				c.read(mr, 8)
				c.read(mr, 8)
				l.take()
			}
			c.gets(marked(v.packet(0)))
			f := l.emits(append([]string{"CNP 000000"}, v.answer...)...)[0]
			want(t, "opcode", f.Op, peer.OpCNP)
			want(t, "destination", f.DestQP, peerQP)
			want(t, "BECN, AckReq, SE, TOS", fmt.Sprintf("%v %v %v %x", f.BECN, f.AckReq, f.SE, f.TOS), "true false false c2")
			// The packet was of use, and the next one is too early for another notification.
			time.Sleep(49 * time.Microsecond)
			c.gets(marked(v.packet(1)))
			for _, f := range l.take() {
				if f.Op == peer.OpCNP {
					t.Error("a notification 49 µs after the last")
				}
			}
			l.counts("np_ecn_marked_roce_packets=2", "np_cnp_sent=1")
			if v.packet(0).Op.IsResponse() {
				c.sent("1 SUCCESS RDMA_READ 8", "2 SUCCESS RDMA_READ 8")
			}
			want(t, "drops", l.drops(), "")
			c.state(device.StateRTS)
		})
	}
	// And each counts those that come, and changes nothing for it: no answer, no PSN, no state.
	for _, typ := range []device.QPType{device.RC, device.UC, device.XRCIni, device.XRCTgt} {
		bubble(t, fmt.Sprintf("%v/arrives", typ), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.connected(typ)
			mr := l.mr(64, all)
			if typ != device.XRCTgt {
				c.send(mr, 8)
				l.emits(map[bool]string{true: "SEND_ONLY 000100 [8]", false: "SEND_ONLY 000100 ar [8]"}[typ == device.UC])
			}
			c.gets(peer.CNP(nicQP), marked(peer.CNP(nicQP)))
			l.emits()
			l.counts("rp_cnp_handled=2", "np_ecn_marked_roce_packets=0", "np_cnp_sent=0", "drop_ignored=0")
			c.state(device.StateRTS)
			switch typ {
			case device.UC:
				c.sent("1 SUCCESS SEND 8")
				c.gets(request(0).AsUC())
				l.emits()
			case device.XRCTgt:
				c.gets(request(0))
				l.emits("ACKNOWLEDGE 000200 1f m1")
			default:
				c.sent()
				c.gets(ack(0x100, 1))
				c.sent("1 SUCCESS SEND 8")
			}
			l.counts("rx_write_requests=" + map[bool]string{true: "1", false: "0"}[typ == device.UC || typ == device.XRCTgt])
		})
	}
}
