package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// shared makes queue pairs of a type on one shared receive queue: QPN 0x11, 0x12 and so on.
type shared struct {
	*lab
	srq *device.SRQ
	mr  *device.MR
	c   []*conn
}

func (l *lab) shared(n int, in device.SRQInit, typ device.QPType) *shared {
	l.t.Helper()
	s := &shared{lab: l, srq: must(l.pd.CreateSRQ(in)), mr: l.mr(1<<16, every)}
	l.destQP, l.dst = peerQP, peer4
	for i := range n {
		o := defaults()
		o.remote, o.gid, o.QPN, o.Access = peer4, gid4, nicQP+uint32(i), everyQP
		c := &conn{lab: l, o: o}
		c.scq, c.rcq = must(l.ctx.CreateCQ(device.CQInit{Entries: 64})), must(l.ctx.CreateCQ(device.CQInit{Entries: 64}))
		l.dice.push(o.QPN)
		c.qp = must(l.pd.CreateQP(device.QPInit{Type: typ, SendCQ: c.scq, RecvCQ: c.rcq, SRQ: s.srq, SigAll: true, Cap: device.Cap{SendWR: 16}}))
		s.c = append(s.c, c)
		for st := device.StateInit; st <= device.StateRTS; st++ {
			if typ == device.UC {
				c.toUC(st)
			} else {
				c.to(st)
			}
		}
	}
	return s
}

// recv posts a receive of n bytes at offset id · 4096.
func (s *shared) recv(id uint64, n int) {
	s.t.Helper()
	wr := device.RecvWR{ID: id}
	if n > 0 {
		wr.SGE = []device.SGE{s.mr.SGE(int(id)*4096, n)}
	}
	if err := s.srq.PostRecv(&wr); err != nil {
		s.t.Fatalf("post_srq_recv: %v", err)
	}
}

// to addresses frames to queue pair i.
func (s *shared) to(i int, f ...*peer.Frame) {
	s.t.Helper()
	for _, x := range f {
		x.DestQP = nicQP + uint32(i)
	}
	s.c[i].gets(f...)
	s.settle()
}

// Several queue pairs on one queue: receives are taken in order, each completion goes to the queue
// of its queue pair.
func TestSRQOrder(t *testing.T) {
	bubble(t, "RC", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(3, device.SRQInit{MaxWR: 16, MaxSGE: 2}, device.RC)
		for i := range uint64(6) {
			s.recv(i, 4096)
		}
		long := sendOf(0x200, 1024, pattern(1, 2000))
		s.to(0, long[0]) // takes receive 0
		s.to(1, peer.SendOnly(0, 0x200, []byte("one")))
		s.to(2, peer.SendOnlyImm(0, 0x200, 7, []byte("two!")))
		s.to(0, long[1])
		s.to(1, peer.WriteOnlyImm(0, 0x201, s.mr.Addr()+9*4096, s.mr.RKey(), 9, []byte("w")))
		s.to(2, peer.SendOnly(0, 0x201, []byte("three")))
		l.emits("ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000201 1f m1", "ACKNOWLEDGE 000201 1f m2", "ACKNOWLEDGE 000201 1f m2")
		s.c[0].received("0 SUCCESS RECV 2000")
		s.c[1].received("1 SUCCESS RECV 3", "3 SUCCESS RECV_RDMA_WITH_IMM 1 imm=00000009")
		s.c[2].received("2 SUCCESS RECV 4 imm=00000007", "4 SUCCESS RECV 5")
		wantBytes(t, "0", s.mr.Bytes()[:2000], pattern(1, 2000))
		wantBytes(t, "1", s.mr.Bytes()[4096:4100], []byte("one\x00"))
		wantBytes(t, "4", s.mr.Bytes()[4*4096:4*4096+6], []byte("three\x00"))
		wantBytes(t, "3", s.mr.Bytes()[3*4096:3*4096+1], []byte{0})
	})
	bubble(t, "UC", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 16}, device.UC)
		for i := range uint64(4) {
			s.recv(i, 4096)
		}
		s.to(0, ucSend(0x200, 1024, make([]byte, 2000))[0]) // cut, and holds receive 0
		s.to(1, ucSend(0x200, 1024, []byte("one"))...)
		s.to(0, ucSend(0x300, 1024, []byte("zero"))...)
		l.emits()
		s.c[0].received("0 SUCCESS RECV 4")
		s.c[1].received("1 SUCCESS RECV 3")
	})
	// A place is free as soon as a receive is taken.
	bubble(t, "capacity", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 2}, device.RC)
		s.recv(0, 4096)
		s.recv(1, 4096)
		errno(t, s.srq.PostRecv(&device.RecvWR{}), device.ENOMEM)
		s.to(0, peer.SendFirst(0, 0x200, make([]byte, 1024)))
		s.recv(2, 4096)
		errno(t, s.srq.PostRecv(&device.RecvWR{}), device.ENOMEM)
		errno(t, s.srq.PostRecv(&device.RecvWR{SGE: make([]device.SGE, 2)}), device.EINVAL)
		errno(t, s.c[0].qp.PostRecv(&device.RecvWR{}), device.EINVAL) // it has no queue of its own
	})
	// A SEND with invalidate takes its receive from the queue like any other.
	bubble(t, "SEND with invalidate", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 4}, device.RC)
		w := must(l.pd.AllocMW(device.MW2B))
		s.c[1].bind(w, s.mr, 0, 64, device.RemoteWrite)
		s.recv(1, 64)
		s.recv(2, 64)
		s.to(1, peer.SendOnlyInv(0, 0x200, w.RKey(), []byte("x")))
		s.to(0, peer.SendOnlyInv(0, 0x200, w.RKey(), []byte("y"))) // it is gone, and was not its own
		l.emits("ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000200 1f m1")
		s.c[1].receivedFull(fmt.Sprintf("1 SUCCESS RECV 1 inv=%08x", w.RKey()))
		s.c[0].receivedFull("2 REM_INV_REQ_ERR")
		l.events("QP_LAST_WQE_REACHED")
	})
}

// An empty queue is an RNR NAK for who needs a receive, and for nobody else; the queue pairs do not
// hold each other up.
func TestSRQEmpty(t *testing.T) {
	bubble(t, "RC", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 4}, device.RC)
		f := peer.SendOnly(0, 0x200, []byte("x"))
		s.to(0, f)
		l.emits("ACKNOWLEDGE 000200 2c m0")
		s.to(0, peer.SendOnly(0, 0x201, []byte("y"))) // silent behind an RNR NAK
		s.to(1, peer.WriteOnly(0, 0x200, s.mr.Addr(), s.mr.RKey(), []byte{1}))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		s.to(1, peer.WriteOnlyImm(0, 0x201, s.mr.Addr(), s.mr.RKey(), 1, nil))
		l.emits("ACKNOWLEDGE 000201 2c m1")
		s.recv(5, 64)
		s.to(0, f)
		l.emits("ACKNOWLEDGE 000200 1f m1")
		s.c[0].received("5 SUCCESS RECV 1")
		s.to(1, peer.WriteOnlyImm(0, 0x201, s.mr.Addr(), s.mr.RKey(), 1, nil))
		l.emits("ACKNOWLEDGE 000201 2c m1")
		l.counts("out_of_buffer=3", "send_rnr_err=3")
	})
	bubble(t, "UC", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(1, device.SRQInit{MaxWR: 4}, device.UC)
		s.to(0, ucSend(0x200, 1024, []byte("x"))...)
		s.recv(5, 64)
		s.to(0, ucSend(0x201, 1024, []byte("y"))...)
		l.emits()
		s.c[0].received("5 SUCCESS RECV 1")
	})
}

// The limit: one event when fewer receives than it are left, then none until it is set again.
func TestSRQLimit(t *testing.T) {
	bubble(t, "one shot", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 16, Limit: 3}, device.RC)
		l.events() // fewer are there, but none was taken
		psn := [2]uint32{0x200, 0x200}
		take := func(i int) {
			s.to(i, peer.SendOnly(0, psn[i], nil))
			psn[i]++
			l.take()
		}
		for i := range uint64(6) {
			s.recv(i, 0)
		}
		take(0)
		take(1)
		take(0) // 3 are left
		l.events()
		want(t, "limit", s.srq.Query().Limit, 3)
		take(1) // 2 are left
		l.events("SRQ_LIMIT_REACHED")
		want(t, "limit", s.srq.Query().Limit, 0)
		take(0)
		l.events()
		for i := range uint64(6) {
			s.recv(10+i, 0)
		}
		take(0)
		l.events()
		errno(t, s.srq.SetLimit(17), device.EINVAL)
		errno(t, s.srq.SetLimit(-1), device.EINVAL)
		want(t, "modify_srq", s.srq.SetLimit(16), nil) // more than there are: at the next one
		l.events()
		take(1)
		l.events("SRQ_LIMIT_REACHED")
		want(t, "modify_srq", s.srq.SetLimit(3), nil)
		want(t, "modify_srq", s.srq.SetLimit(0), nil) // none any more
		for range 5 {
			take(0)
		}
		l.events()
		// An RNR NAK takes none.
		want(t, "modify_srq", s.srq.SetLimit(1), nil)
		take(0)
		l.counts("send_rnr_err=1")
		l.events()
		psn[0]--
		s.recv(1, 0)
		take(0)
		l.events("SRQ_LIMIT_REACHED")
	})
	bubble(t, "created wrong", func(t *testing.T) {
		l := newLab(t, labConfig{})
		for _, in := range []device.SRQInit{{}, {MaxWR: -1}, {MaxWR: device.MaxSRQWR + 1}, {MaxWR: 1, MaxSGE: device.MaxSRQSGE + 1}, {MaxWR: 1, Limit: 2}, {MaxWR: 1, Limit: -1}} {
			_, err := l.pd.CreateSRQ(in)
			errno(t, err, device.EINVAL)
		}
	})
}

// Case 29: the last-WQE event, once per queue pair and entry to ERR, behind the completion of the
// receive that it held. The receives of the queue are not flushed.
func TestCase29_LastWQE(t *testing.T) {
	setup := func(t *testing.T, typ device.QPType) (*lab, *shared) {
		l := newLab(t, labConfig{})
		s := l.shared(3, device.SRQInit{MaxWR: 16}, typ)
		for i := range uint64(8) {
			s.recv(i, 4096)
		}
		return l, s
	}
	bubble(t, "by verbs", func(t *testing.T) {
		l, s := setup(t, device.RC)
		s.c[0].to(device.StateErr)
		l.events("QP_LAST_WQE_REACHED")
		s.c[0].received() // none of the queue's receives
		s.c[0].to(device.StateErr)
		s.to(0, peer.SendOnly(0, 0x200, nil)) // rxe tells it for every packet again (rxe-lab.md S12)
		s.c[0].send(s.mr, 1)
		s.c[0].sent("1 WR_FLUSH_ERR")
		l.events()
		s.to(1, peer.SendOnly(0, 0x200, nil)) // the others go on
		l.emits("ACKNOWLEDGE 000200 1f m1")
		s.c[1].received("0 SUCCESS RECV 0")
		// Once more with the next life.
		for st := device.StateReset; st <= device.StateRTS; st++ {
			s.c[0].to(st)
		}
		l.events()
		s.c[0].to(device.StateErr)
		l.events("QP_LAST_WQE_REACHED")
	})
	bubble(t, "by a packet", func(t *testing.T) {
		l, s := setup(t, device.RC)
		s.to(1, peer.WriteOnly(0, 0x200, 1, 2, []byte{1}))
		l.emits("ACKNOWLEDGE 000200 62 m0")
		l.events("QP_ACCESS_ERR", "QP_LAST_WQE_REACHED")
		s.c[1].received()
	})
	bubble(t, "with a receive held", func(t *testing.T) {
		l, s := setup(t, device.RC)
		s.to(0, peer.SendFirst(0, 0x200, make([]byte, 1024)))
		s.c[0].to(device.StateErr)
		s.c[0].received("0 WR_FLUSH_ERR")
		l.events("QP_LAST_WQE_REACHED")
		s.to(1, peer.SendOnly(0, 0x200, nil))
		l.take()
		s.c[1].received("1 SUCCESS RECV 0")
	})
	bubble(t, "a bad message with a receive held", func(t *testing.T) {
		l, s := setup(t, device.RC)
		s.to(0, peer.SendFirst(0, 0x200, make([]byte, 1024)), peer.SendFirst(0, 0x201, make([]byte, 1024)))
		l.emits("ACKNOWLEDGE 000201 61 m0")
		s.c[0].received("0 REM_INV_REQ_ERR")
		l.events("QP_LAST_WQE_REACHED")
	})
	bubble(t, "by the requester", func(t *testing.T) {
		l, s := setup(t, device.RC)
		s.c[2].post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Length: 1}}})
		s.c[2].sent("1 LOC_PROT_ERR")
		l.events("QP_LAST_WQE_REACHED")
	})
	bubble(t, "UC: not with SQE, but with ERR", func(t *testing.T) {
		l, s := setup(t, device.UC)
		s.c[0].post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Length: 1}}})
		s.c[0].state(device.StateSQE)
		l.events()
		s.to(0, ucSend(0x200, 1024, nil)...)
		s.c[0].received("0 SUCCESS RECV 0")
		s.c[0].toUC(device.StateErr)
		l.events("QP_LAST_WQE_REACHED")
	})
	bubble(t, "RESET without ERR", func(t *testing.T) {
		l, s := setup(t, device.RC)
		s.to(0, peer.SendFirst(0, 0x200, make([]byte, 1024)))
		s.c[0].to(device.StateReset)
		l.events()
		s.c[0].received()
	})
	bubble(t, "without a shared queue", func(t *testing.T) {
		l := newLab(t, labConfig{})
		l.rc(nil).to(device.StateErr)
		l.events()
	})
	bubble(t, "a handler of its own", func(t *testing.T) {
		l := newLab(t, labConfig{})
		got := make(chan device.AsyncEvent, 4)
		srq := must(l.pd.CreateSRQ(device.SRQInit{MaxWR: 4}))
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 4}))
		q := must(l.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, Handler: func(e device.AsyncEvent) { got <- e }}))
		c := &conn{lab: l, qp: q, o: defaults()}
		c.to(device.StateInit)
		c.to(device.StateErr)
		l.settle()
		e := <-got
		want(t, "event", fmt.Sprint(e.Type, e.QP == q), "IBV_EVENT_QP_LAST_WQE_REACHED true")
		l.events()
	})
}

// Destroying, and the event that nobody has taken.
func TestSRQDestroy(t *testing.T) {
	bubble(t, "in use", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 4, Limit: 2}, device.RC)
		s.recv(0, 0)
		errno(t, s.srq.Destroy(), device.EBUSY)
		s.to(0, peer.SendOnly(0, 0x200, nil))
		l.take()
		for _, c := range s.c {
			errno(t, s.srq.Destroy(), device.EBUSY)
			c.to(device.StateErr)
			errno(t, s.srq.Destroy(), device.EBUSY)
			want(t, "destroy_qp", c.qp.Destroy(), nil)
		}
		want(t, "destroy_srq", s.srq.Destroy(), nil)
		l.events() // the limit's event is withdrawn
		errno(t, s.srq.Destroy(), device.EINVAL)
		errno(t, s.srq.PostRecv(&device.RecvWR{}), device.EINVAL)
		_, err := l.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: s.c[0].scq, RecvCQ: s.c[0].rcq, SRQ: s.srq})
		errno(t, err, device.EINVAL)
	})
	bubble(t, "domain", func(t *testing.T) {
		l := newLab(t, labConfig{})
		pd := must(l.ctx.AllocPD())
		srq := must(pd.CreateSRQ(device.SRQInit{MaxWR: 1}))
		errno(t, pd.Dealloc(), device.EBUSY)
		want(t, "destroy_srq", srq.Destroy(), nil)
		want(t, "dealloc_pd", pd.Dealloc(), nil)
	})
	// The buffers are looked up in the domain of the queue, whatever that of the queue pair is.
	bubble(t, "keys of the queue's domain", func(t *testing.T) {
		l := newLab(t, labConfig{})
		pd2 := must(l.ctx.AllocPD())
		srq := must(pd2.CreateSRQ(device.SRQInit{MaxWR: 4}))
		mr2 := must(pd2.RegMR(make([]byte, 64), device.LocalWrite))
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 4}))
		l.dice.push(nicQP)
		c := &conn{lab: l, scq: cq, rcq: cq, o: defaults()}
		c.o.remote, c.o.gid = peer4, gid4
		l.destQP = peerQP
		c.qp = must(l.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq}))
		for s := device.StateInit; s <= device.StateRTS; s++ {
			c.to(s)
		}
		if err := srq.PostRecv(&device.RecvWR{ID: 1, SGE: sge(mr2, 64)}); err != nil {
			t.Fatal(err)
		}
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("x")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received("1 SUCCESS RECV 1")
	})
}
