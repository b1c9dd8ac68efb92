package cases

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// What a UD queue pair sends: headers, pad, immediate, Q_Key, source port, PSN.
func TestDatagramSent(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{0, 1, 2, 3, 4, 1000, 1023, 1024} {
			for _, inline := range []bool{false, true} {
				if inline && n > 64 {
					continue
				}
				for _, op := range []device.WROp{device.OpSend, device.OpSendImm} {
					bubble(t, fmt.Sprintf("IPv6=%v/%v/%d/inline=%v", v6, op, n, inline), func(t *testing.T) {
						l := newLab(t, labConfig{MTU: 1500})
						u := l.ud(device.StateRTS)
						if v6 {
							l.dst = peer6
						}
						mr := l.mr(1024, 0)
						copy(mr.Bytes(), pattern(4, 1024))
						wr := device.SendWR{Op: op, SGE: sge(mr, n), AH: u.ah(v6), RemoteQPN: peerUD, RemoteQKey: 0x12345, Imm: 0x89ABCDEF}
						if inline {
							wr.SGE, wr.Flags, wr.InlineData = nil, device.Inline, mr.Bytes()[:n]
						}
						u.post(wr)
						s, imm := "SEND_ONLY 000005", ""
						if op == device.OpSendImm {
							s, imm = "SEND_ONLY_IMM 000005", " imm=89abcdef"
						}
						if n > 0 {
							imm += fmt.Sprintf(" [%d]", n)
						}
						// No AckReq: rxe sets it on QP1 only, and nobody heeds it (roce.md B.2).
						f := l.emits(s + imm)[0]
						want(t, "destination", f.DestQP, peerUD)
						want(t, "source", f.DETH.SrcQP, udQP)
						want(t, "qkey", f.DETH.QKey, 0x12345)
						wantBytes(t, "payload", f.Payload, mr.Bytes()[:n])
						// roce.md A.7: 0xC000 + the top 14 bits of QPN · 0x61C88647.
						var qp32 uint32 = udQP
						want(t, "source port", f.SrcPort, uint16(0xC000+qp32*0x61C88647>>18))
						u.sent(fmt.Sprintf("1 SUCCESS SEND %d", n))
						// The next datagram has the next PSN.
						u.post(device.SendWR{Op: device.OpSend, AH: u.ah(v6), RemoteQPN: peerUD, Flags: device.Solicited})
						l.emits("SEND_ONLY 000006 se")
					})
				}
			}
		}
	}
	// roce.md A.7 [M]: QPN 17 has source port 0xDF94.
	bubble(t, "source port of QPN 17", func(t *testing.T) {
		l := newLab(t, labConfig{})
		l.dice.push(17)
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 4}))
		qp := must(l.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 4}}))
		if err := qp.Activate(qkey, 0xFFFFFF); err != nil {
			t.Fatal(err)
		}
		ah := must(l.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4, TrafficClass: 0x2A}))
		for range 2 {
			if err := qp.PostSend(&device.SendWR{Op: device.OpSend, AH: ah, RemoteQPN: 1}); err != nil {
				t.Fatal(err)
			}
		}
		f := l.emits("SEND_ONLY ffffff", "SEND_ONLY 000000")[0]
		want(t, "source port", f.SrcPort, 0xDF94)
		want(t, "traffic class", f.TOS, 0x2A)
		want(t, "unsignaled", len(drain(cq)), 0)
	})
	// roce.md B.2: with bit 31 set the queue pair's own Q_Key is sent.
	for _, v := range []struct{ key, want uint32 }{{0x80000000, qkey}, {0xFFFFFFFF, qkey}, {0x7FFFFFFF, 0x7FFFFFFF}, {0, 0}} {
		bubble(t, fmt.Sprintf("Q_Key %08x", v.key), func(t *testing.T) {
			l := newLab(t, labConfig{})
			u := l.ud(device.StateRTS)
			u.post(device.SendWR{Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD, RemoteQKey: v.key})
			want(t, "qkey", l.emits("SEND_ONLY 000005")[0].DETH.QKey, v.want)
		})
	}
}

// A datagram above the MTU completes with success and is not sent (C10-93.1.1).
func TestDatagramOversize(t *testing.T) {
	for _, v := range []struct{ link, mtu int }{{1500, 1024}, {4200, 4096}, {576, 256}} {
		bubble(t, fmt.Sprintf("link MTU %d", v.link), func(t *testing.T) {
			l := newLab(t, labConfig{MTU: v.link})
			u := l.ud(device.StateRTS)
			mr := l.mr(8192, 0)
			ah := u.ah(false)
			for _, op := range []device.WROp{device.OpSend, device.OpSendImm} {
				u.post(device.SendWR{Op: op, SGE: sge(mr, v.mtu+1), AH: ah, RemoteQPN: peerUD})
			}
			l.emits()
			u.sent(fmt.Sprintf("1 SUCCESS SEND %d", v.mtu+1), fmt.Sprintf("2 SUCCESS SEND %d", v.mtu+1))
			l.counts("ud_oversize=2")
			if err := ah.Destroy(); err != nil {
				t.Fatal(err)
			}
			u.post(device.SendWR{Op: device.OpSend, SGE: sge(mr, v.mtu), AH: u.ah(false), RemoteQPN: peerUD})
			l.emits(fmt.Sprintf("SEND_ONLY 000005 [%d]", v.mtu))
			u.sent(fmt.Sprintf("3 SUCCESS SEND %d", v.mtu))
			want(t, "state", u.qp.State(), device.StateRTS)
		})
	}
}

// What a UD queue pair takes, and what it drops. All drops are silent.
func TestDatagramReceived(t *testing.T) {
	good := func() *peer.Frame { return peer.UDSend(udQP, 0, qkey, peerUD, []byte("good")) }
	for _, v := range []struct {
		name string
		f    *peer.Frame
		drop string // "" for taken
	}{
		{"good", good(), ""},
		{"any PSN", good().With(func(f *peer.Frame) { f.PSN = 0x7FFFFF }), ""},
		{"AckReq", good().With(func(f *peer.Frame) { f.AckReq = true }), ""}, // as rxe's QP1
		{"MigReq 0", good().With(func(f *peer.Frame) { f.Migrated = false }), ""},
		{"any source", good().With(func(f *peer.Frame) { f.Src, f.SrcPort = netip.MustParseAddr("198.51.100.7"), 99 }), ""},
		{"limited P_Key", good().With(func(f *peer.Frame) { f.PKey = 0x7FFF }), ""},
		{"reserved bits", good().With(func(f *peer.Frame) { f.Resv6, f.Resv7, f.DETH.Resv = 63, 127, 255 }), ""},
		{"Q_Key", peer.UDSend(udQP, 0, qkey^1, peerUD, nil), "qkey"},
		{"Q_Key with bit 31", peer.UDSend(udQP, 0, qkey|1<<31, peerUD, nil), "qkey"},
		{"P_Key", good().With(func(f *peer.Frame) { f.PKey = 0xFFFE }), "pkey"},
		{"P_Key 0", good().With(func(f *peer.Frame) { f.PKey = 0 }), "pkey"},
		{"RC opcode", peer.SendOnly(udQP, 0, nil), "wrong-service"},
		{"UC opcode", peer.SendOnly(udQP, 0, nil).AsUC(), "wrong-service"},
		{"reserved UD opcode", good().With(func(f *peer.Frame) { f.Op = 0x66 }), "reserved-opcode"},
		{"CNP", peer.CNP(udQP), "wrong-service"},
		{"unknown queue pair", peer.UDSend(udQP+1, 0, qkey, peerUD, nil), "no-qp"},
		{"queue pair 0", peer.UDSend(0, 0, qkey, peerUD, nil), "no-qp"},
		{"multicast queue pair to a unicast address", peer.UDSend(0xFFFFFF, 0, qkey, peerUD, nil), "no-qp"},
		{"another address", good().With(func(f *peer.Frame) { f.Dst = netip.MustParseAddr("192.0.2.77") }), "no-address"},
		{"ICRC", good().With(func(f *peer.Frame) { f.Src, f.Dst = peer4, nic4 }).SpoilICRC(), "icrc"},
		{"TVer", good().With(func(f *peer.Frame) { f.TVer = 1 }), "transport-version"},
		{"pad that the payload does not have", good().With(func(f *peer.Frame) { f.PadCount, f.PadBytes = new(uint8(2)), make([]byte, 2) }), "malformed"},
		{"too little pad", good().With(func(f *peer.Frame) { f.Payload, f.PadBytes = []byte("12345"), []byte{} }), "malformed"},
		{"too long", peer.UDSend(udQP, 0, qkey, peerUD, make([]byte, 61)), "too-long"},
		{"fits exactly", peer.UDSend(udQP, 0, qkey, peerUD, make([]byte, 60)), ""},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			u := l.ud(device.StateRTS)
			mr := l.mr(200, all)
			u.recv(1, mr.SGE(0, 50), mr.SGE(60, 50))
			l.p.Send(t, v.f)
			l.emits()
			if v.drop != "" {
				u.received()
				want(t, "drops", l.drops(), v.drop+"=1")
				// The receive stays for the next one, from its first byte on.
				l.p.Send(t, good())
				u.received("1 SUCCESS RECV 44")
				wantBytes(t, "payload", mr.Bytes()[40:44], []byte("good"))
			} else {
				u.received(fmt.Sprintf("1 SUCCESS RECV %d", 40+len(v.f.Payload)))
				want(t, "drops", l.drops(), "")
			}
			l.emits()
			l.events()
			want(t, "state", u.qp.State(), device.StateRTS)
		})
	}
	bubble(t, "no receive", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		l.p.Send(t, good())
		l.emits()
		want(t, "drops", l.takeDrops(), "no-receive=1")
		l.counts("out_of_buffer=1")
		u.recv(1, l.mr(100, all).SGE(0, 100))
		u.received() // it is lost
		l.p.Send(t, good())
		u.received("1 SUCCESS RECV 44")
	})
	bubble(t, "receive shorter than the GRH area", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		u.recv(1, l.mr(100, all).SGE(0, 39))
		l.p.Send(t, peer.UDSend(udQP, 0, qkey, peerUD, nil))
		u.received()
		want(t, "drops", l.drops(), "too-long=1")
	})
	bubble(t, "in RTR", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTR)
		u.recv(1, l.mr(100, all).SGE(0, 100))
		l.p.Send(t, good())
		u.received("1 SUCCESS RECV 44")
	})
	bubble(t, "in INIT", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateInit)
		u.recv(1, l.mr(100, all).SGE(0, 100))
		l.p.Send(t, good())
		u.received()
		want(t, "drops", l.drops(), "qp-state=1")
	})
	// A receive that cannot be written: the queue pair ends, as class "local protection" does
	// on the receive side of every service.
	bubble(t, "receive buffer gone", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mr := l.mr(100, all)
		u.recv(1, mr.SGE(0, 100))
		u.recv(2)
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		l.p.Send(t, good())
		u.received("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
		want(t, "drops", l.drops(), "local-memory=1")
		want(t, "state", u.qp.State(), device.StateErr)
		l.counts("resp_cqe_error=1")
	})
}

// Errors of the send side: SQE, and receives go on (design.md 8, roce.md B.12).
func TestDatagramSendErrors(t *testing.T) {
	for _, v := range []struct {
		name string
		sge  func(l *lab) device.SGE
	}{
		{"bad key", func(l *lab) device.SGE { s := l.mr(64, 0).SGE(0, 64); s.LKey ^= 0x100; return s }},
		{"R_Key in place of the L_Key", func(l *lab) device.SGE { m := l.mr(64, all); s := m.SGE(0, 64); s.LKey = m.RKey(); return s }},
		{"beyond the end", func(l *lab) device.SGE { return l.mr(64, 0).SGE(1, 64) }},
		{"before the start", func(l *lab) device.SGE { return l.mr(64, 0).SGE(-1, 64) }},
		{"another protection domain", func(l *lab) device.SGE {
			return must(must(l.ctx.AllocPD()).RegMR(make([]byte, 64), 0)).SGE(0, 64)
		}},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			u := l.ud(device.StateRTS)
			ah := u.ah(false)
			mr := l.mr(128, all)
			u.recv(9, mr.SGE(0, 128))
			good := device.SendWR{Op: device.OpSend, SGE: sge(mr, 4), AH: ah, RemoteQPN: peerUD}
			u.post(good)
			// The bad entry is the second: nothing of the first may be sent either.
			u.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{mr.SGE(0, 4), v.sge(l)}, AH: ah, RemoteQPN: peerUD})
			u.post(good)
			l.emits("SEND_ONLY 000005 [4]")
			u.sent("1 SUCCESS SEND 4", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
			want(t, "state", u.qp.State(), device.StateSQE)
			// The receive side works on.
			l.p.Send(t, peer.UDSend(udQP, 0, qkey, peerUD, []byte("good")))
			u.received("9 SUCCESS RECV 44")
			// SQE to RTS, and it sends again, with the PSN that follows.
			u.modify(&device.QPAttr{State: device.StateRTS}, device.AttrState)
			u.post(good)
			l.emits("SEND_ONLY 000006 [4]")
			u.sent("4 SUCCESS SEND 4")
			l.counts("req_cqe_error=1")
			l.events()
		})
	}
	bubble(t, "refused at post", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		other := must(must(l.ctx.AllocPD()).CreateAH(device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}))
		gone := u.ah(false)
		if err := gone.Destroy(); err != nil {
			t.Fatal(err)
		}
		for _, wr := range []device.SendWR{
			{Op: device.OpSend}, {Op: device.OpSend, AH: other}, {Op: device.OpSend, AH: gone},
			{Op: device.OpWrite, AH: u.ah(false)}, {Op: device.OpRead, AH: u.ah(false)},
			{Op: device.OpSend, AH: u.ah(false), Flags: device.Inline, InlineData: make([]byte, 65)},
			{Op: device.OpSend, AH: u.ah(false), SGE: make([]device.SGE, 5)},
		} {
			errno(t, u.qp.PostSend(&wr), device.EINVAL)
		}
		l.emits()
		u.sent()
	})
}

// An address handle that an outstanding request names cannot be destroyed.
func TestDatagramAddressHandleInUse(t *testing.T) {
	setup := func(t *testing.T) (*lab, *udConn, *device.AH, chan struct{}) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mem := &hookMemory{hook: func(int) { time.Sleep(time.Second) }}
		mr := must(l.pd.RegMemory(mem, 0x1000, 64, 0))
		ah := u.ah(false)
		done := make(chan struct{})
		go func() {
			defer close(done)
			u.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: 0x1000, Length: 64, LKey: mr.LKey()}}, AH: ah, RemoteQPN: peerUD})
		}()
		l.settle()
		return l, u, ah, done
	}
	bubble(t, "being sent", func(t *testing.T) {
		l, u, ah, done := setup(t)
		u.sent()
		errno(t, ah.Destroy(), device.EBUSY)
		errno(t, l.pd.Dealloc(), device.EBUSY)
		<-done
		u.sent("1 SUCCESS SEND 64")
		l.emits("SEND_ONLY 000005 [64]")
		if err := ah.Destroy(); err != nil {
			t.Fatal(err)
		}
		errno(t, ah.Destroy(), device.EINVAL)
	})
	bubble(t, "behind one that is being sent", func(t *testing.T) {
		l, u, _, done := setup(t)
		ah := u.ah(true)
		u.post(device.SendWR{Op: device.OpSend, AH: ah, RemoteQPN: peerUD})
		errno(t, ah.Destroy(), device.EBUSY)
		// ERR flushes it, and RESET drops it without a completion.
		u.modify(&device.QPAttr{State: device.StateErr}, device.AttrState)
		<-done
		l.dst = netip.Addr{}
		l.take()
		if err := ah.Destroy(); err != nil {
			t.Fatal(err)
		}
		want(t, "completions", len(drain(u.scq)), 2)
	})
	bubble(t, "reset", func(t *testing.T) {
		_, u, ah, done := setup(t)
		second := u.ah(true)
		u.post(device.SendWR{Op: device.OpSend, AH: second, RemoteQPN: peerUD})
		u.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
		<-done
		for _, a := range []*device.AH{ah, second} {
			if err := a.Destroy(); err != nil {
				t.Fatal(err)
			}
		}
		u.sent()
	})
}
