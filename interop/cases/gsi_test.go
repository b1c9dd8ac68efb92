package cases

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/stats"
)

const (
	gsiQKey = 0x80010000 // roce.md F.1
	gsiPort = 0xD872     // roce.md A.7: source port of QPN 1
	madLen  = 256
)

// wellKnown is a UD-like queue pair with a number of its own, by default in RTS with PSN 5.
func (l *lab) wellKnown(typ device.QPType) *udConn {
	l.t.Helper()
	u := &udConn{lab: l}
	u.scq = must(l.ctx.CreateCQ(device.CQInit{Entries: 256}))
	u.rcq = must(l.ctx.CreateCQ(device.CQInit{Entries: 256}))
	u.qp = must(l.pd.CreateQP(device.QPInit{
		Type: typ, SendCQ: u.scq, RecvCQ: u.rcq, SigAll: true,
		Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 4, RecvSGE: 4, Inline: 256},
	}))
	if err := u.qp.Activate(0x1234, 5); err != nil {
		l.t.Fatal(err)
	}
	return u
}

// madOf is a management datagram, by hand: hexadecimal from the first byte, then "@offset", and so on; the rest is 0.
func madOf(s string) []byte {
	b := make([]byte, madLen)
	at := 0
	for _, w := range strings.Fields(s) {
		if n, ok := strings.CutPrefix(w, "@"); ok {
			must(fmt.Sscan(n, &at))
			continue
		}
		at += copy(b[at:], must(hex.DecodeString(w)))
	}
	return b
}

// perf is a datagram of performance management (class 4), version 1, with TID 0102030405060708: method,
// attribute, and from offset 64 on its data.
func perf(method, attr, data string) []byte {
	return madOf("01 04 01 " + method + " 0000 0000 0102030405060708 " + attr + " 0000 00000000 @64 " + data)
}

func gsiSend(m []byte) *peer.Frame {
	return peer.UDSend(1, 0, gsiQKey, 1, m).With(func(f *peer.Frame) { f.AckReq = true })
}

// What QP1 sends: AckReq, source QP 1, source port of QPN 1, and the one Q_Key, whatever the request and the
// attributes say (roce.md B.2, F.1).
func TestGSISent(t *testing.T) {
	for _, key := range []uint32{0, 0x1234, 0x80000000, gsiQKey} {
		bubble(t, fmt.Sprintf("Q_Key %08x", key), func(t *testing.T) {
			l := newLab(t, labConfig{})
			u := l.wellKnown(device.GSI)
			want(t, "number", u.qp.Num(), 1)
			mr := l.mr(madLen, 0)
			copy(mr.Bytes(), pattern(3, madLen))
			u.post(device.SendWR{Op: device.OpSend, SGE: sge(mr, madLen), AH: u.ah(false), RemoteQPN: 1, RemoteQKey: key})
			f := l.emits("SEND_ONLY 000005 ar [256]")[0]
			want(t, "destination", f.DestQP, 1)
			want(t, "source", f.DETH.SrcQP, 1)
			want(t, "qkey", f.DETH.QKey, gsiQKey)
			want(t, "source port", f.SrcPort, gsiPort)
			wantBytes(t, "payload", f.Payload, mr.Bytes())
			u.sent("1 SUCCESS SEND 256")
			l.dst = peer6
			u.post(device.SendWR{Op: device.OpSendImm, SGE: sge(mr, 4), AH: u.ah(true), RemoteQPN: 77, RemoteQKey: key, Imm: 5})
			want(t, "qkey", l.emits("SEND_ONLY_IMM 000006 ar imm=00000005 [4]")[0].DETH.QKey, gsiQKey)
		})
	}
}

// What QP1 takes. Without an owner it takes nothing.
func TestGSIReceived(t *testing.T) {
	cm := madOf("01 07 02 03 0000 0000 00000000000000aa 0010") // a connection request, in its header
	for _, v := range []struct {
		name string
		f    *peer.Frame
		drop string // "" for taken
	}{
		{"CM", gsiSend(cm), ""},
		{"no AckReq", peer.UDSend(1, 9, gsiQKey, 1, cm), ""},
		{"from another queue pair", peer.UDSend(1, 0, gsiQKey, 0x77, cm), ""},
		{"limited P_Key", gsiSend(cm).With(func(f *peer.Frame) { f.PKey = 0x7FFF }), ""},
		{"no management datagram", gsiSend([]byte("good")), ""},
		{"performance management, Set", gsiSend(perf("02", "0012", "0001ffff")), ""},
		{"performance management, response", gsiSend(perf("81", "0012", "0001ffff")), ""},
		{"performance management, trap", gsiSend(perf("05", "0002", "")), ""},
		{"performance management, too short", gsiSend(perf("01", "0012", "0001ffff")[:255]), ""},
		{"performance management with immediate", peer.UDSendImm(1, 0, gsiQKey, 1, 7, perf("01", "0012", "0001ffff")), ""},
		{"base version", gsiSend(madOf("02 04 01 01 0000 0000 00000000000000aa 0012")), ""},
		{"subnet management", gsiSend(madOf("01 01 01 01 0000 0000 00000000000000aa 0011")), ""},
		{"Q_Key of the attributes", peer.UDSend(1, 0, 0x1234, 1, cm), "qkey"},
		{"Q_Key 0", peer.UDSend(1, 0, 0, 1, cm), "qkey"},
		{"Get with a wrong Q_Key", peer.UDSend(1, 0, gsiQKey|1, 1, perf("01", "0012", "0001ffff")), "qkey"},
		{"Get with a wrong P_Key", gsiSend(perf("01", "0012", "0001ffff")).With(func(f *peer.Frame) { f.PKey = 0xFFFE }), "pkey"},
		{"RC", peer.SendOnly(1, 0, cm), "wrong-service"},
		{"UC", peer.SendOnly(1, 0, cm).AsUC(), "wrong-service"},
		{"reserved opcode", gsiSend(cm).With(func(f *peer.Frame) { f.Op = 0x66 }), "reserved-opcode"},
		{"ICRC", gsiSend(perf("01", "0012", "0001ffff")).With(func(f *peer.Frame) { f.Src, f.Dst = peer4, nic4 }).SpoilICRC(), "icrc"},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			u := l.wellKnown(device.GSI)
			mr := l.mr(40+madLen, all)
			u.recv(1, mr.SGE(0, 40+madLen))
			l.p.Send(t, v.f.Clone())
			l.emits()
			if v.drop != "" {
				u.received()
				want(t, "drops", l.drops(), v.drop+"=1")
				return
			}
			wc := drain(u.rcq)
			if len(wc) != 1 || wc[0].Status != device.StatusSuccess || int(wc[0].ByteLen) != 40+len(v.f.Payload) || wc[0].QPN != 1 ||
				wc[0].SrcQP != v.f.DETH.SrcQP || wc[0].Flags&device.WCGRH == 0 {
				t.Fatalf("completions %+v", wc)
			}
			wantBytes(t, "payload", mr.Bytes()[40:40+len(v.f.Payload)], v.f.Payload)
			want(t, "drops", l.drops(), "")
		})
		bubble(t, v.name+", no owner", func(t *testing.T) {
			l := newLab(t, labConfig{})
			l.p.Send(t, v.f.Clone())
			l.emits()
			drop := "no-qp=1"
			if v.drop == "icrc" {
				drop = "icrc=1"
			}
			want(t, "drops", l.drops(), drop)
		})
	}
}

// Performance management is answered by the device, whether or not somebody owns QP1, who does not see it.
func TestGSIPerfMgmt(t *testing.T) {
	const classPortInfo = "@64 01 01 0500 00000012" // AllPorts, ExtendedWidth without IETF; answers within 4.096 µs · 2^18
	for _, v := range []struct {
		name, data string
		attr       string
		version    string // "" is 01
		modifier   string // "" is 00000000
		status     string
		want       string // of the answer, from offset 64 on
	}{
		{"ClassPortInfo", "", "0001", "", "", "0000", classPortInfo},
		{"ClassPortInfo over what the request had there", "ffffffffffffffff @150 ffff @254 ffff", "0001", "", "", "0000", classPortInfo},
		{"PortCounters", "00 01 ffff", "0012", "", "", "0000", "@64 00 01 ffff"},
		{"PortCounters of all ports", "00 ff 0001", "0012", "", "", "0000", "@64 00 ff 0001"},
		{"PortCountersExtended", "00 01 000f", "001d", "", "", "0000", "@64 00 01 000f"},
		{"PortCounters of port 2", "00 02 ffff", "0012", "", "", "001c", "@64 00 02 ffff"},
		{"PortCounters of port 0", "00 00 ffff", "0012", "", "", "001c", "@64 00 00 ffff"},
		{"attribute modifier", "00 01 ffff", "0012", "", "00000001", "001c", "@64 00 01 ffff"},
		{"PortSamplesControl", "00 01", "0010", "", "", "000c", "@64 00 01"},
		{"no such attribute", "aabb", "ff12", "", "", "000c", "@64 aabb"},
		{"class version", "00 01 ffff", "0012", "02", "", "0004", "@64 00 01 ffff"},
	} {
		if v.version == "" {
			v.version = "01"
		}
		if v.modifier == "" {
			v.modifier = "00000000"
		}
		const tid = "fedcba9876543210"
		ask := madOf("01 04 " + v.version + " 01 0000 0000 " + tid + " " + v.attr + " 0000 " + v.modifier + " @64 " + v.data)
		answer := madOf("01 04 " + v.version + " 81 " + v.status + " 0000 " + tid + " " + v.attr + " 0000 " + v.modifier + " " + v.want)
		for _, owned := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s/owned=%v", v.name, owned), func(t *testing.T) {
				l := newLab(t, labConfig{})
				var u *udConn
				if owned {
					u = l.wellKnown(device.GSI)
					u.recv(1, l.mr(400, all).SGE(0, 400))
				}
				l.p.Send(t, peer.UDSend(1, 0x123456, gsiQKey, 0x98765, ask).With(func(f *peer.Frame) { f.TOS = 0x2B }))
				f := l.emits("SEND_ONLY 000000 ar [256]")[0]
				wantBytes(t, "answer", f.Payload, answer)
				want(t, "destination", f.DestQP, 0x98765)
				want(t, "source", f.DETH.SrcQP, 1)
				want(t, "qkey", f.DETH.QKey, gsiQKey)
				want(t, "source port", f.SrcPort, gsiPort)
				want(t, "traffic class without ECN", f.TOS, 0x28)
				want(t, "drops", l.drops(), "")
				l.counts("mad_answered=1", "mad_dropped=0", "sent_pkts=1", "rcvd_pkts=1")
				if owned {
					u.received()
				}
				// Over IPv6 too, and the next PSN.
				l.dst = peer6
				l.p6.Send(t, peer.UDSend(1, 0, gsiQKey, 1, ask))
				want(t, "destination", l.emits("SEND_ONLY 000001 ar [256]")[0].DestQP, 1)
				// A Go caller gets the same.
				got := must(l.dev.ProcessMAD(1, ask))
				wantBytes(t, "header of ProcessMAD's answer", got[:24], answer[:24])
			})
		}
	}
}

// The counters are those of the device: data in units of four bytes, errors, and at their highest value they stand still.
func TestGSIPortCounters(t *testing.T) {
	get := perf("01", "0012", "00 01 ffff")
	bubble(t, "PortCounters", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mr := l.mr(256, all)
		u.post(device.SendWR{Op: device.OpSend, SGE: sge(mr, 100), AH: u.ah(false), RemoteQPN: peerUD}) // 12+8+100+4
		l.emits("SEND_ONLY 000005 [100]")
		good := peer.UDSend(udQP, 0, qkey, peerUD, make([]byte, 56))
		l.p.Send(t, good.Clone())                                                                                                 // 80 bytes, no receive
		l.p.Send(t, good.Clone().With(func(f *peer.Frame) { f.Src, f.Dst = peer4, nic4 }).SpoilICRC())                            // an error
		l.p.Send(t, good.Clone().With(func(f *peer.Frame) { f.TVer = 1 }), good.Clone().With(func(f *peer.Frame) { f.PKey = 2 })) // an error, a constraint
		l.settle()
		l.p.Send(t, gsiSend(get))
		want := madOf("@64 00 01 ffff 0000 00 00 0002 0000 0000 0000 00 01 00 00 0000 0000 0000001f 00000050 00000001 00000004 00000000")
		wantBytes(t, "counters", l.emits("SEND_ONLY 000000 ar [256]")[0].Payload[64:], want[64:])
		l.p.Send(t, gsiSend(perf("01", "001d", "00 01 ffff"))) // 280 bytes each way since then
		want = madOf("@64 00 01 ffff 00000000 0000000000000065 0000000000000096 0000000000000002 0000000000000005")
		wantBytes(t, "extended counters", l.emits("SEND_ONLY 000001 ar [256]")[0].Payload[64:], want[64:])
	})
	bubble(t, "at their highest", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.dev.Counters()
		c.Add(stats.SentBytes, 1<<40)
		c.Add(stats.SentPkts, 1<<32-1)
		c.Add(stats.SendErr, 65536)
		c.Add(stats.LinkDowned, 255)
		l.p.Send(t, gsiSend(get))
		want := madOf("@64 00 01 ffff 0000 00 ff 0000 0000 0000 ffff 00 00 00 00 0000 0000 ffffffff 00000000 ffffffff 00000000 00000000")
		wantBytes(t, "counters", l.emits("SEND_ONLY 000000 ar [256]")[0].Payload[64:], want[64:])
	})
}

// A flood of questions is answered at a bounded rate, and what is not answered is not kept.
func TestGSIFlood(t *testing.T) {
	bubble(t, "rate", func(t *testing.T) {
		l := newLab(t, labConfig{})
		flood := func(n int) int {
			for range n {
				l.p.Send(t, gsiSend(perf("01", "0012", "00 01 ffff")))
			}
			return len(l.take())
		}
		want(t, "answers at once", flood(1000), 64)
		want(t, "drops", l.drops(), "ignored=936")
		l.counts("mad_answered=64", "mad_dropped=936")
		want(t, "answers without time between", flood(100), 0)
		time.Sleep(10 * time.Millisecond)
		want(t, "what was dropped is not answered later", len(l.take()), 0)
		want(t, "answers after 10 ms", flood(100), 10)
		time.Sleep(time.Second)
		want(t, "answers after a second", flood(1000), 64)
	})
	// An answer goes to one station or to nobody.
	for _, src := range []string{"255.255.255.255", "224.0.0.1", "0.0.0.0"} {
		bubble(t, "from "+src, func(t *testing.T) {
			l := newLab(t, labConfig{})
			l.p.Send(t, gsiSend(perf("01", "0012", "00 01 ffff")).With(func(f *peer.Frame) { f.Src, f.Dst = netip.MustParseAddr(src), nic4 }))
			l.emits()
			want(t, "drops", l.drops(), "ignored=1")
		})
	}
	// An answer is a datagram like any other.
	bubble(t, "impaired", func(t *testing.T) {
		l := newLab(t, labConfig{})
		id := must(l.dev.Port().Impair().Add("tx drop"))
		l.p.Send(t, gsiSend(perf("01", "0012", "00 01 ffff")))
		l.emits()
		l.counts("tx_impaired=1", "mad_answered=1")
		if err := l.dev.Port().Impair().Remove(id); err != nil {
			t.Fatal(err)
		}
		l.p.Send(t, gsiSend(perf("01", "0012", "00 01 ffff")))
		l.emits("SEND_ONLY 000001 ar [256]")
	})
	// A Get in the middle of what the owner gets.
	bubble(t, "between others", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Millisecond})
		u := l.wellKnown(device.GSI)
		mr := l.mr(4096, all)
		for i := range uint64(3) {
			u.recv(i+1, mr.SGE(int(i)*400, 400))
		}
		l.p.Send(t, gsiSend([]byte("one")), gsiSend(perf("01", "0012", "00 01 ffff")), gsiSend([]byte("three")), gsiSend(perf("01", "0001", "")), gsiSend([]byte("five")))
		l.emits("SEND_ONLY 000000 ar [256]", "SEND_ONLY 000001 ar [256]")
		u.received("1 SUCCESS RECV 43", "2 SUCCESS RECV 45", "3 SUCCESS RECV 44")
		want(t, "drops", l.drops(), "")
	})
}

// There is one QP1, of whatever context, as the kernel has it: the second is EINVAL (rxe_qp.c:rxe_qp_chk_init).
func TestGSICreate(t *testing.T) {
	bubble(t, "one", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.wellKnown(device.GSI)
		init := device.QPInit{Type: device.GSI, SendCQ: u.scq, RecvCQ: u.rcq}
		before := l.ctx.Objects()
		_, err := l.pd.CreateQP(init)
		errno(t, err, device.EINVAL)
		other := l.dev.NewContext()
		pd, cq := must(other.AllocPD()), must(other.CreateCQ(device.CQInit{Entries: 1}))
		_, err = pd.CreateQP(device.QPInit{Type: device.GSI, SendCQ: cq, RecvCQ: cq})
		errno(t, err, device.EINVAL)
		if l.ctx.Objects() != before || other.Objects() != (device.Objects{PD: 1, CQ: 1}) {
			t.Error("a queue pair that was refused is counted")
		}
		if _, err := cq.Destroy(); err != nil { // nothing holds it
			t.Error(err)
		}
		if err := pd.Dealloc(); err != nil {
			t.Error(err)
		}
		// The refused one has not taken the place of the first.
		u.recv(1, l.mr(64, all).SGE(0, 64))
		l.p.Send(t, gsiSend([]byte("good")))
		u.received("1 SUCCESS RECV 44")
		if err := u.qp.Destroy(); err != nil {
			t.Fatal(err)
		}
		q := must(l.pd.CreateQP(init))
		want(t, "number", q.Num(), 1)
		want(t, "type", q.Type().String(), "GSI")
	})
	bubble(t, "refusals", func(t *testing.T) {
		l := newLab(t, labConfig{})
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 1}))
		srq := must(l.pd.CreateSRQ(device.SRQInit{MaxWR: 1}))
		for _, typ := range []device.QPType{device.GSI, device.SMI} {
			for _, in := range []device.QPInit{{RecvCQ: cq}, {SendCQ: cq}, {SendCQ: cq, RecvCQ: cq, SRQ: srq}} {
				in.Type = typ
				_, err := l.pd.CreateQP(in)
				errno(t, err, device.EINVAL)
			}
		}
		u := l.wellKnown(device.GSI)
		other := must(must(l.ctx.AllocPD()).CreateAH(device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}))
		for _, wr := range []device.SendWR{{Op: device.OpSend}, {Op: device.OpWrite, AH: u.ah(false)}, {Op: device.OpSend, AH: other}} {
			errno(t, u.qp.PostSend(&wr), device.EINVAL)
		}
		errno(t, u.qp.Attach(device.GIDOf(netip.MustParseAddr("224.1.2.3"))), device.EINVAL)
	})
	// RESET takes the number not away, nor does the MTU get lost.
	bubble(t, "reset", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.wellKnown(device.GSI)
		u.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
		l.p.Send(t, gsiSend([]byte("early")))
		l.emits()
		want(t, "drops", l.takeDrops(), "qp-state=1")
		if err := u.qp.Activate(0, 7); err != nil {
			t.Fatal(err)
		}
		u.recv(1, l.mr(64, all).SGE(0, 64))
		l.p.Send(t, gsiSend([]byte("good")))
		u.received("1 SUCCESS RECV 44")
		u.post(device.SendWR{Op: device.OpSend, SGE: sge(l.mr(madLen, 0), madLen), AH: u.ah(false), RemoteQPN: 1})
		l.emits("SEND_ONLY 000007 ar [256]")
	})
}
