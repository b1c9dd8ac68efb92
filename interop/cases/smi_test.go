package cases

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
)

// The MAC of a lab's device is made up from its address, 192.0.2.2; its GUID is the EUI-64 of that.
const labGUID = "0000c0fffe000202"

// smp is a directed route without hops: method, attribute and modifier, and from offset 64 on its data.
func smp(method, attr, modifier, data string) []byte {
	return madOf("01 81 01 " + method + " 0000 00 00 0102030405060708 " + attr + " 0000 " + modifier + " 0000000000000000 ffff ffff @64 " + data)
}

// What queue pair 0 sends for the local port is answered by the port, and received by queue pair 0. Nothing is on the wire.
func TestSMIAnswers(t *testing.T) {
	const (
		nodeInfo = "@64 01 01 01 01 " + labGUID + " " + labGUID + " " + labGUID + " 0001 0000 00000000 01 ffffff"
		nodeDesc = "@64 736f66746e696320" + "7278655f736f66746e696330" // softnic rxe_softnic0
		// GID prefix; LID and master 0; CM supported; port 1; 1X; QDR, active; link up; MTU 4096 of 4096; one lane; 16 GUIDs.
		portInfo = "@64 0000000000000000 fe80000000000000 0000 0000 00010000 0000 0000 01 01 01 01 74 50 00 47 50 10 00 00 00 05 00 10 0000 0000 0000 10 00 12"
	)
	lid := func(b []byte) []byte { // the same, routed by LID
		b[1] = 1
		clear(b[32:36])
		return b
	}
	for _, v := range []struct {
		name   string
		ask    []byte
		status string // of the answer
		want   string // from offset 64 on
	}{
		{"NodeInfo", smp("01", "0011", "00000000", ""), "8000", nodeInfo},
		{"NodeInfo over what the request had there", smp("01", "0011", "00000000", "@100 ffffffffffffffffffffffffffffffff"), "8000", nodeInfo},
		{"NodeInfo by LID", lid(smp("01", "0011", "00000000", "")), "0000", nodeInfo},
		{"NodeDescription", smp("01", "0010", "00000000", ""), "8000", nodeDesc},
		{"PortInfo", smp("01", "0015", "00000000", ""), "8000", portInfo},
		{"PortInfo of port 1", smp("01", "0015", "00000001", ""), "8000", portInfo},
		{"PortInfo by LID", lid(smp("01", "0015", "00000001", "")), "0000", portInfo},
		{"PortInfo of port 2", smp("01", "0015", "00000002", "aa"), "801c", "@64 aa"},
		{"NodeInfo with a modifier", smp("01", "0011", "00000001", ""), "801c", ""},
		{"GUIDInfo", smp("01", "0014", "00000000", "aa"), "800c", "@64 aa"},
		{"Set(PortInfo)", smp("02", "0015", "00000001", "aa"), "800c", "@64 aa"},
		{"Set(NodeInfo) by LID", lid(smp("02", "0011", "00000000", "aa")), "000c", "@64 aa"},
		{"class version", func() []byte { b := smp("01", "0011", "00000000", ""); b[2] = 2; return b }(), "8004", ""},
	} {
		for _, inline := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s/inline=%v", v.name, inline), func(t *testing.T) {
				l := newLab(t, labConfig{})
				u := l.wellKnown(device.SMI)
				want(t, "number", u.qp.Num(), 0)
				mr := l.mr(1024, all)
				copy(mr.Bytes()[700:], v.ask)
				for i := range mr.Bytes()[:296] {
					mr.Bytes()[i] = 0xEE
				}
				u.recv(9, mr.SGE(0, 296))
				wr := device.SendWR{Op: device.OpSend, SGE: []device.SGE{mr.SGE(700, 100), mr.SGE(800, 156)}}
				if inline {
					wr.SGE, wr.Flags, wr.InlineData = nil, device.Inline, v.ask
				} else {
					wr.AH = u.ah(false) // is taken, and means nothing
				}
				u.post(wr)
				u.sent("1 SUCCESS SEND 256")
				wc := drain(u.rcq)
				if len(wc) != 1 || wc[0].ID != 9 || wc[0].Status != device.StatusSuccess || wc[0].Op != device.WCRecv || wc[0].ByteLen != 296 ||
					wc[0].QPN != 0 || wc[0].SrcQP != 0 || wc[0].Flags != 0 {
					t.Fatalf("completions %+v", wc)
				}
				answer := madOf("01 @4 " + v.status + " @64 " + v.want)
				copy(answer[1:3], v.ask[1:3])
				answer[3] = 0x81
				copy(answer[6:64], v.ask[6:64])
				wantBytes(t, "GRH area", mr.Bytes()[:40], make([]byte, 40))
				wantBytes(t, "answer", mr.Bytes()[40:296], answer)
				wantBytes(t, "ProcessMAD's answer", must(l.dev.ProcessMAD(1, v.ask)), answer)
				l.emits()
				l.counts("sent_pkts=0", "rcvd_pkts=0")
				want(t, "drops", l.drops(), "")
			})
		}
	}
}

// PortInfo follows the link.
func TestSMIPortInfo(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{MTU: 1500})
		ask := smp("01", "0015", "00000000", "")
		got := must(l.dev.ProcessMAD(1, ask))
		want(t, "state, physical state, MTU", fmt.Sprintf("%02x %02x %02x", got[64+32], got[64+33], got[64+36]), "74 50 30")
		l.end.Change(func(i *link.Info) { i.Up, i.MTU = false, 576 })
		l.settle()
		got = must(l.dev.ProcessMAD(1, ask))
		want(t, "state, physical state, MTU", fmt.Sprintf("%02x %02x %02x", got[64+32], got[64+33], got[64+36]), "71 30 10")
	})
}

// What is not for the local port is lost, and counted under a name; it completes as sent, as datagrams do.
func TestSMILost(t *testing.T) {
	change := func(at int, b ...byte) []byte {
		m := smp("01", "0011", "00000000", "")
		copy(m[at:], b)
		return m
	}
	for _, v := range []struct {
		name string
		m    []byte
		wr   device.SendWR
		drop string
	}{
		{"a hop", change(7, 1), device.SendWR{}, "ignored"},
		{"hop pointer", change(6, 1), device.SendWR{}, "ignored"},
		{"on its way back", change(4, 0x80), device.SendWR{}, "ignored"},
		{"LID behind the route", change(34, 0, 1), device.SendWR{}, "ignored"},
		{"LID before the route", change(32, 0, 1), device.SendWR{}, "ignored"},
		{"a response", change(3, 0x81), device.SendWR{}, "ignored"},
		{"a trap", change(3, 5), device.SendWR{}, "ignored"},
		{"performance management", perf("01", "0012", "0001ffff"), device.SendWR{}, "ignored"},
		{"base version", change(0, 2), device.SendWR{}, "malformed"},
		{"too short", change(0)[:255], device.SendWR{}, "malformed"},
		{"too long", append(change(0), 0), device.SendWR{}, "malformed"},
		{"nothing", nil, device.SendWR{}, "malformed"},
		{"Q_Key", change(0), device.SendWR{RemoteQKey: 0x1234}, "qkey"},
		{"Q_Key of QP1", change(0), device.SendWR{RemoteQKey: gsiQKey}, "qkey"},
		{"another queue pair", change(0), device.SendWR{RemoteQPN: 1}, "no-qp"},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			u := l.wellKnown(device.SMI)
			l.wellKnown(device.GSI) // does not hear it either
			mr := l.mr(700, all)
			copy(mr.Bytes()[400:], v.m)
			u.recv(1, mr.SGE(0, 300))
			v.wr.Op = device.OpSend
			if len(v.m) > 0 {
				v.wr.SGE = []device.SGE{mr.SGE(400, len(v.m))}
			}
			u.post(v.wr)
			u.sent(fmt.Sprintf("1 SUCCESS SEND %d", len(v.m)))
			u.received()
			l.emits()
			want(t, "drops", l.drops(), v.drop+"=1")
		})
	}
	bubble(t, "no receive, a short one, and one that cannot be written", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.wellKnown(device.SMI)
		ask := device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: smp("01", "0011", "00000000", "")}
		u.post(ask)
		want(t, "drops", l.takeDrops(), "no-receive=1")
		mr := l.mr(296, all)
		u.recv(1, mr.SGE(0, 295))
		u.post(ask)
		want(t, "drops", l.takeDrops(), "no-receive=1 too-long=1")
		u.received()
		u.modify(&device.QPAttr{State: device.StateErr}, device.AttrState)
		u.received("1 WR_FLUSH_ERR")
		u.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
		if err := u.qp.Activate(0, 0); err != nil {
			t.Fatal(err)
		}
		drain(u.scq)
		u.recv(2, mr.SGE(0, 296))
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		u.post(ask)
		u.received("2 LOC_PROT_ERR")
		want(t, "state", u.qp.State(), device.StateErr)
		u.sent("3 SUCCESS SEND 256")
	})
}

// Queue pair 0 is not on the wire, in neither direction, whoever owns it.
func TestSMINotOnTheWire(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.wellKnown(device.SMI)
		u.recv(1, l.mr(400, all).SGE(0, 400))
		for _, f := range []*peer.Frame{
			peer.UDSend(0, 0, 0, 0, smp("01", "0011", "00000000", "")), peer.UDSend(0, 0, 0x1234, 1, []byte("evil")), peer.SendOnly(0, 0, nil),
			peer.UDSend(0, 0, gsiQKey, 1, perf("01", "0012", "0001ffff")),
		} {
			l.p.Send(t, f)
		}
		l.emits()
		u.received()
		want(t, "drops", l.drops(), "no-qp=4")
		// Nor is what it sends captured: it is not sent.
		sink := &frames{}
		l.dev.Port().SetCapture(sink)
		u.post(device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: smp("01", "0011", "00000000", ""), AH: u.ah(true)})
		u.received("1 SUCCESS RECV 296")
		l.emits()
		want(t, "captured", len(sink.got), 0)
		// There is one.
		_, err := l.pd.CreateQP(device.QPInit{Type: device.SMI, SendCQ: u.scq, RecvCQ: u.rcq})
		errno(t, err, device.EINVAL)
		errno(t, u.qp.PostSend(&device.SendWR{Op: device.OpWrite}), device.EINVAL)
		errno(t, u.qp.Attach(device.GIDOf(netip.MustParseAddr("224.1.2.3"))), device.EINVAL)
	})
}

// Many at once: as many answers, in order; more than one transmit list.
func TestSMIMany(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := &udConn{lab: l, scq: must(l.ctx.CreateCQ(device.CQInit{Entries: 512})), rcq: must(l.ctx.CreateCQ(device.CQInit{Entries: 512}))}
		u.qp = must(l.pd.CreateQP(device.QPInit{Type: device.SMI, SendCQ: u.scq, RecvCQ: u.rcq, SigAll: true,
			Cap: device.Cap{SendWR: 300, RecvWR: 300, Inline: 256}}))
		if err := u.qp.Activate(0, 0); err != nil {
			t.Fatal(err)
		}
		mr := l.mr(300*296, all)
		var wrs []*device.SendWR
		for i := range 300 {
			u.recv(uint64(i), mr.SGE(i*296, 296))
			m := smp("01", "0010", "00000000", "")
			m[8], m[9] = byte(i>>8), byte(i)
			wrs = append(wrs, &device.SendWR{ID: uint64(i), Op: device.OpSend, Flags: device.Inline, InlineData: m})
		}
		if err := u.qp.PostSendList(wrs...); err != nil {
			t.Fatal(err)
		}
		want(t, "sent", len(drain(u.scq)), 300)
		for i, w := range drain(u.rcq) {
			if b := mr.Bytes()[i*296+40:]; w.ID != uint64(i) || w.Status != device.StatusSuccess || int(b[8])<<8+int(b[9]) != i || b[3] != 0x81 {
				t.Fatalf("%d: %+v % x", i, w, b[:24])
			}
		}
	})
}

func TestProcessMAD(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		ask := smp("01", "0011", "00000000", "")
		for _, v := range []struct {
			port int
			m    []byte
		}{{0, ask}, {2, ask}, {1, nil}, {1, ask[:255]}, {1, append(ask[:256:256], 0)}, {1, append([]byte{2}, ask[1:]...)}} {
			_, err := l.dev.ProcessMAD(v.port, v.m)
			errno(t, err, device.EINVAL)
		}
		// Not for the port: no answer, no error.
		for _, m := range [][]byte{
			smp("81", "0011", "00000000", ""), smp("05", "0011", "00000000", ""), perf("02", "0012", "0001ffff"), perf("81", "0012", ""),
			madOf("01 07 02 03"), madOf("01 03 02 01"), madOf("01 81 01 01 8000"),
		} {
			r, err := l.dev.ProcessMAD(1, m)
			if r != nil || err != nil {
				t.Errorf("% x: % x, %v", m[:24], r, err)
			}
		}
		// Hops are who calls's business, and the request stays as it was.
		ask[6], ask[7] = 1, 0
		r := must(l.dev.ProcessMAD(1, ask))
		want(t, "header", fmt.Sprintf("%x %x", r[:8], ask[:8]), "0181018180000100 0181010100000100")
	})
}

// frames is a sink that keeps what it is told.
type frames struct{ got [][]byte }

func (s *frames) Capture(r *link.Record) { s.got = append(s.got, r.AppendTo(nil)) }
