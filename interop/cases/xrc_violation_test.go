package cases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// The rows of roce.md B.13 for an XRC target: as on RC, but what a message takes comes from the shared receive queue
// that it names, and the other receives of that queue stay for others.
func TestXRCViolations(t *testing.T) {
	for _, v := range violations {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{Latency: time.Microsecond})
			c := l.responder(device.XRCTgt, v.change)
			tg := &target{conn: c.conn, mr: l.mr(4096, all), local: l.mr(4096, device.LocalWrite), readOnly: l.mr(4096, device.RemoteRead)}
			tg.foreign = must(must(l.ctx.AllocPD()).RegMR(make([]byte, 4096), all))
			forbidden := []*device.MR{tg.foreign, tg.local, tg.readOnly}
			for _, m := range forbidden {
				copy(m.Bytes(), filled(0x55, 4096))
			}
			buf := l.mr(4096, all)
			for i := range v.recvs {
				c.recv(uint64(i+1), buf, 2048)
			}
			c.gets(v.send(tg)...)
			got := l.take()
			if len(got) == 0 {
				t.Fatalf("no answer (drops: %s)", l.drops())
			}
			want(t, "answer", brief(got[len(got)-1]), fmt.Sprintf("ACKNOWLEDGE %06x %02x m%d", 0x200+v.at, uint8(v.nak), v.msn))
			for i, f := range got {
				want(t, "service", f.Op.Service(), peer.XRC)
				if i < len(got)-1 && f.Op.Operation() == peer.OpAck && f.AETH.Syndrome != peer.SynAck {
					t.Fatalf("a second NAK: %v", f)
				}
			}
			c.state(device.StateErr)
			if v.wc != "" {
				c.flushed("1 " + v.wc)
				l.events()
			} else {
				c.flushed("")
				l.events(v.event)
			}
			l.counts("drop_bad-request=1")
			for _, m := range forbidden {
				wantBytes(t, "memory", m.Bytes(), filled(0x55, 4096))
			}
			c.gets(peer.SendOnly(nicQP, 0x200, nil), peer.SendOnly(nicQP, 0x201, nil), peer.SendOnly(nicQP, 0x210, nil))
			l.emits()
			l.events()
			// What the message did not hold serves the next target: in order, and all of it.
			left := uint64(1)
			if v.wc != "" {
				left++
			}
			c.next()
			c.gets(peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.DestQP = 0x12 }))
			if left > uint64(v.recvs) {
				l.emits("ACKNOWLEDGE 000200 2c m0")
				return
			}
			l.emits("ACKNOWLEDGE 000200 1f m1")
			sameList(t, "receive of the next target", briefWC(drain(c.rcq)), []string{fmt.Sprintf("%d SUCCESS RECV 0", left)})
		})
	}
	for _, v := range []struct {
		name   string
		frame  func(mr *device.MR) *peer.Frame
		answer string
	}{
		// RNR before the key and before the length (design.md 8).
		{"no receive and a bad key", func(*device.MR) *peer.Frame { return peer.WriteOnlyImm(nicQP, 0x200, 1, 99, 1, []byte{1}) }, "ACKNOWLEDGE 000200 2c m0"},
		{"no receive and a bad length", func(*device.MR) *peer.Frame { return peer.SendOnly(nicQP, 0x200, make([]byte, mtu+1)) }, "ACKNOWLEDGE 000200 2c m0"},
		{"WRITE of length 0 needs no key", func(*device.MR) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, 99, 99, nil) }, "ACKNOWLEDGE 000200 1f m1"},
		{"READ of length 0 needs no key", func(*device.MR) *peer.Frame { return peer.ReadRequest(nicQP, 0x200, 99, 99, 0) }, "READ_RESPONSE_ONLY 000200 1f m1"},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.responder(device.XRCTgt, nil)
			c.gets(v.frame(l.mr(64, all)))
			l.emits(v.answer)
			c.state(device.StateRTS)
			l.events()
		})
	}
}

// next makes another target of the same XRC domain, QPN 0x12.
func (r *receiver) next() *conn {
	r.t.Helper()
	c := &conn{lab: r.lab, o: r.o, scq: r.scq, rcq: r.rcq}
	r.dice.push(0x12)
	c.qp = must(r.srq.Query().XRCD.CreateXRCTarget(nil))
	c.toXRC()
	return c
}

// Receive buffers of the shared queue that cannot be written: NAK 63, LOC_PROT_ERR.
func TestXRCReceiveBufferErrors(t *testing.T) {
	for _, v := range []struct {
		name string
		sge  func(l *lab) device.SGE
	}{
		{"bad key", func(l *lab) device.SGE { s := l.mr(64, all).SGE(0, 64); s.LKey ^= 0x100; return s }},
		{"R_Key in place of the L_Key", func(l *lab) device.SGE { m := l.mr(64, all); s := m.SGE(0, 64); s.LKey = m.RKey(); return s }},
		{"no local write", func(l *lab) device.SGE { return l.mr(64, device.RemoteRead).SGE(0, 64) }},
		{"range", func(l *lab) device.SGE { return l.mr(64, all).SGE(32, 64) }},
		{"another protection domain", func(l *lab) device.SGE {
			return must(must(l.ctx.AllocPD()).RegMR(make([]byte, 64), all)).SGE(0, 64)
		}},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.responder(device.XRCTgt, nil)
			c.post(device.RecvWR{ID: 1, SGE: []device.SGE{v.sge(l)}})
			c.recv(2, nil, 0)
			c.gets(peer.SendOnly(nicQP, 0x200, make([]byte, 50)))
			l.emits("ACKNOWLEDGE 000200 63 m0")
			c.state(device.StateErr)
			c.flushed("1 LOC_PROT_ERR", 2)
			l.events()
			l.counts("resp_cqe_error=1")
		})
	}
}

// The completion queue of the shared receive queue is full: CQ error event, the target to ERR with QP_FATAL, and the
// packet is not answered (design.md 8).
func TestXRCReceiveCQFull(t *testing.T) {
	for name, req := range map[string]func(psn uint32) *peer.Frame{
		"SEND":                 func(psn uint32) *peer.Frame { return peer.SendOnly(nicQP, psn, nil) },
		"WRITE with immediate": func(psn uint32) *peer.Frame { return peer.WriteOnlyImm(nicQP, psn, 0, 0, 1, nil) },
	} {
		bubble(t, name, func(t *testing.T) {
			l := newLab(t, labConfig{Latency: time.Microsecond})
			c := l.responder(device.XRCTgt, func(o *rcOptions) { o.CQ = 3 })
			for i := range uint64(6) {
				c.recv(i, nil, 0)
			}
			for i := range uint32(3) {
				c.gets(req(0x200 + i))
				l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", 0x200+i, i+1))
			}
			c.gets(req(0x203), req(0x204), req(0x203))
			l.emits()
			c.state(device.StateErr)
			l.events("CQ_ERR", "QP_FATAL")
			got := drain(c.rcq)
			want(t, "completions", len(got), 3)
			for i, w := range got {
				want(t, "completion", fmt.Sprint(w.ID, w.Status), fmt.Sprint(i, device.StatusSuccess))
			}
			l.p.ExpectSilence(t, time.Second)
			l.events()
		})
	}
}

// SEND with invalidate of a key that cannot be invalidated, on XRC: ACKed and counted, the receive completes with
// REM_INV_REQ_ERR, and the target is in ERR.
func TestXRCSendInvBadKey(t *testing.T) {
	for name, key := range map[string]func(l *lab) uint32{
		"key that does not exist": func(*lab) uint32 { return 0xDEAD00 },
		"key of a region":         func(l *lab) uint32 { return l.mr(64, every).RKey() },
		"region that is invalid":  func(l *lab) uint32 { return must(l.pd.AllocMR(8)).RKey() },
	} {
		bubble(t, name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.responder(device.XRCTgt, allOps)
			c.recv(1, l.mr(64, all), 64)
			c.recv(2, nil, 0)
			c.gets(peer.SendOnlyInv(nicQP, 0x200, key(l), []byte("data")))
			l.says("ACKNOWLEDGE 000200 1f m1")
			c.flushed("1 REM_INV_REQ_ERR", 2)
			c.state(device.StateErr)
			l.events()
		})
	}
}

// The requester's side on XRC: which status a NAK gives, and which answers no request can have.
func TestXRCRequesterStatus(t *testing.T) {
	for _, v := range []struct {
		f      *peer.Frame // to the second of three
		status string
	}{
		{nak(0x101, peer.SynNakInvalid), "REM_INV_REQ_ERR"},
		{nak(0x101, peer.SynNakAccess), "REM_ACCESS_ERR"},
		{nak(0x101, peer.SynNakOperation), "REM_OP_ERR"},
		{nak(0x101, peer.SynNakInvalidRD), "BAD_RESP_ERR"},
		{nak(0x101, 0x7F), "BAD_RESP_ERR"},
		{peer.ReadRespOnly(nicQP, 0x101, 2, nil), "BAD_RESP_ERR"},
		{peer.AtomicAck(nicQP, 0x101, 2, 0), "BAD_RESP_ERR"},
	} {
		bubble(t, brief(v.f), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.requester(device.XRCIni, nil)
			mr := l.mr(64, all)
			c.write(mr, 8)
			c.send(mr, 8)
			c.send(mr, 8)
			want(t, "sent", len(l.take()), 3)
			c.gets(ack(0x100, 1), v.f)
			c.sent("1 SUCCESS RDMA_WRITE 8", "2 "+v.status, "3 WR_FLUSH_ERR")
			c.state(device.StateErr)
			l.emits()
			l.events()
			l.counts("req_cqe_error=1")
		})
	}
	for name, bad := range map[string]func(l *lab) device.SGE{
		"bad key": func(l *lab) device.SGE { s := l.mr(64, all).SGE(0, 64); s.LKey ^= 0x100; return s },
		"range":   func(l *lab) device.SGE { return l.mr(64, all).SGE(1, 64) },
	} {
		bubble(t, "local/"+name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.requester(device.XRCIni, nil)
			mr := l.mr(64, all)
			c.send(mr, 8)
			c.post(device.SendWR{Op: device.OpWrite, SGE: []device.SGE{mr.SGE(0, 8), bad(l)}, RemoteAddr: remoteVA, RKey: remoteKey})
			c.send(mr, 8)
			l.emits("SEND_ONLY 000100 ar [8]")
			c.sent()
			c.gets(ack(0x100, 1))
			c.sent("1 SUCCESS SEND 8", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
			c.state(device.StateErr)
			l.emits()
		})
	}
}

// UC with a shared receive queue (roce.md B.10): whatever is wrong with a message is not answered and costs that
// message alone. The receive that it held is not lost: it serves the next message of the queue pair, and is flushed with
// it. The other queue pair of the queue does not notice.
func TestUCSharedViolations(t *testing.T) {
	for _, v := range []struct {
		name string
		f    func(mr *device.MR) []*peer.Frame // from PSN 0x200 on
		drop string
	}{
		{"WRITE with immediate, bad key", func(mr *device.MR) []*peer.Frame {
			return []*peer.Frame{peer.WriteOnlyImm(nicQP, 0x200, mr.Addr(), mr.RKey()^0x100, 5, []byte{1})}
		}, "bad-message=1"},
		{"WRITE with immediate, range", func(mr *device.MR) []*peer.Frame {
			return []*peer.Frame{peer.WriteOnlyImm(nicQP, 0x200, mr.Addr()+1<<16-1, mr.RKey(), 5, []byte{1, 2})}
		}, "bad-message=1"},
		{"WRITE of packets with immediate, its last is short", func(mr *device.MR) []*peer.Frame {
			return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, mr.Addr(), mr.RKey(), 2000, make([]byte, mtu)), peer.WriteLastImm(nicQP, 0x201, 5, make([]byte, 975))}
		}, "bad-message=1"},
		{"WRITE with immediate of 2^31+1", func(mr *device.MR) []*peer.Frame {
			f := peer.WriteOnlyImm(nicQP, 0x200, mr.Addr(), mr.RKey(), 5, []byte{1})
			f.RETH.Len = 1<<31 + 1
			return []*peer.Frame{f}
		}, "bad-message=1"},
		{"SEND of a wrong length, nothing held", func(*device.MR) []*peer.Frame {
			return []*peer.Frame{peer.SendOnly(nicQP, 0x200, make([]byte, mtu+4))}
		}, "bad-message=1"},
		{"SEND, its middle is of a wrong length", func(*device.MR) []*peer.Frame {
			return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.SendMiddle(nicQP, 0x201, make([]byte, mtu-4)), peer.SendLast(nicQP, 0x202, []byte{1})}
		}, "bad-message=1 out-of-sequence=1"},
		{"SEND, wrong pad in its last", func(*device.MR) []*peer.Frame {
			return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)),
				peer.SendLast(nicQP, 0x201, make([]byte, 4)).With(func(f *peer.Frame) { f.PadCount, f.PadBytes = new(uint8(1)), make([]byte, 1) })}
		}, "bad-message=1"},
		{"SEND longer than the receive", func(*device.MR) []*peer.Frame { return sendOf(0x200, mtu, make([]byte, 2049)) }, "too-long=1"},
		{"SEND of one packet longer than the receive", func(*device.MR) []*peer.Frame {
			return sendOf(0x200, 4096, make([]byte, 2049))
		}, "bad-message=1"}, // longer than the MTU too: that is seen first
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			s := l.shared(2, device.SRQInit{MaxWR: 8}, device.UC)
			mr := l.mr(1<<16, every)
			for i := range uint64(3) {
				s.recv(i, 2048)
			}
			held := 1 // whose receive is which: the bad message comes first
			if strings.HasSuffix(v.name, "nothing held") || strings.HasPrefix(v.name, "SEND of one packet") {
				held = 0
			}
			s.to(0, asUC(v.f(mr)...)...)
			l.emits()
			want(t, "drops", sortWords(l.drops()), v.drop)
			s.c[0].received()
			s.c[0].state(device.StateRTS)
			s.to(1, asUC(peer.SendOnly(nicQP, 0x200, []byte("other")))...)
			s.c[1].received(fmt.Sprintf("%d SUCCESS RECV 5", held))
			s.to(0, asUC(peer.SendOnly(nicQP, 0x300, []byte("next")))...)
			s.c[0].received(fmt.Sprintf("%d SUCCESS RECV 4", 1-held))
			// Again, and the queue pair ends with the receive held: its receive is the last.
			s.to(0, asUC(v.f(mr)...)...)
			s.c[0].toUC(device.StateErr)
			if held == 1 {
				s.c[0].received("2 WR_FLUSH_ERR")
			} else {
				s.c[0].received()
			}
			l.events("QP_LAST_WQE_REACHED")
			l.emits()
			wantBytes(t, "memory behind", mr.Bytes()[1<<16-8:], make([]byte, 8))
		})
	}
	bubble(t, "receive that cannot be written", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 8}, device.UC)
		if err := s.srq.PostRecv(&device.RecvWR{ID: 1, SGE: []device.SGE{{Addr: 1, Length: 64, LKey: 3}}}); err != nil {
			t.Fatal(err)
		}
		s.recv(2, 64)
		s.to(0, ucSend(0x200, mtu, []byte("x"))...)
		s.c[0].received("1 LOC_PROT_ERR")
		s.c[0].state(device.StateErr)
		l.events("QP_LAST_WQE_REACHED")
		s.to(1, ucSend(0x200, mtu, []byte("y"))...)
		s.c[1].received("2 SUCCESS RECV 1")
		l.emits()
	})
}
