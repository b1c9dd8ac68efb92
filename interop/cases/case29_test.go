package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// datagrams makes a UD queue pair on the shared receive queue, in RTS.
func (s *shared) datagrams(handler func(device.AsyncEvent)) *udConn {
	s.t.Helper()
	u := &udConn{lab: s.lab, scq: must(s.ctx.CreateCQ(device.CQInit{Entries: 64})), rcq: must(s.ctx.CreateCQ(device.CQInit{Entries: 64}))}
	s.dice.push(udQP)
	u.qp = must(s.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: u.scq, RecvCQ: u.rcq, SRQ: s.srq, SigAll: true, Handler: handler, Cap: device.Cap{SendWR: 8}}))
	if err := u.qp.Activate(qkey, 5); err != nil {
		s.t.Fatal(err)
	}
	return u
}

func (u *udConn) to(s device.State) {
	u.t.Helper()
	u.modify(&device.QPAttr{State: s}, device.AttrState)
}

// Case 29 with a UD queue pair beside two RC ones on the shared receive queue: it takes its receives from the queue, and
// has its last-WQE event as they have.
func TestCase29_Datagrams(t *testing.T) {
	setup := func(t *testing.T) (*lab, *shared, *udConn) {
		l := newLab(t, labConfig{})
		s := l.shared(2, device.SRQInit{MaxWR: 16}, device.RC)
		for i := range uint64(8) {
			s.recv(i, 1000)
		}
		return l, s, s.datagrams(nil)
	}
	say := func(l *lab, data string) {
		l.p.Send(l.t, peer.UDSend(udQP, 0, qkey, peerUD, []byte(data)))
		l.settle()
	}
	bubble(t, "in turn", func(t *testing.T) {
		l, s, u := setup(t)
		s.to(0, peer.SendOnly(0, 0x200, []byte("zero")))
		say(l, "one")
		s.to(1, peer.SendOnly(0, 0x200, []byte("two")))
		say(l, "three")
		l.emits("ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000200 1f m1")
		s.c[0].received("0 SUCCESS RECV 4")
		u.received("1 SUCCESS RECV 43", "3 SUCCESS RECV 45")
		s.c[1].received("2 SUCCESS RECV 3")
		wantBytes(t, "datagram", s.mr.Bytes()[4096+40:][:4], []byte("one\x00"))
		errno(t, u.qp.PostRecv(&device.RecvWR{}), device.EINVAL)
	})
	bubble(t, "to ERR, twice", func(t *testing.T) {
		l, s, u := setup(t)
		u.to(device.StateErr)
		l.events("QP_LAST_WQE_REACHED")
		u.received()
		u.to(device.StateErr)
		say(l, "lost")
		l.events()
		s.to(0, peer.SendOnly(0, 0x200, nil))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		s.c[0].received("0 SUCCESS RECV 0")
	})
	bubble(t, "goes on when another ends", func(t *testing.T) {
		l, s, u := setup(t)
		s.to(0, peer.WriteOnly(0, 0x200, 1, 2, []byte{1}))
		l.emits("ACKNOWLEDGE 000200 62 m0")
		l.events("QP_ACCESS_ERR", "QP_LAST_WQE_REACHED")
		say(l, "one")
		u.received("0 SUCCESS RECV 43")
	})
	// A datagram that does not fit is dropped; the receive waits for the next one, and is the last that the queue pair
	// has: its flush comes before the event.
	bubble(t, "with a receive held", func(t *testing.T) {
		l, s, u := setup(t)
		say(l, string(make([]byte, 961)))
		want(t, "drops", l.drops(), "too-long=1")
		s.to(0, peer.SendOnly(0, 0x200, nil))
		l.take()
		s.c[0].received("1 SUCCESS RECV 0")
		say(l, "fits")
		u.received("0 SUCCESS RECV 44")
		say(l, string(make([]byte, 961)))
		u.to(device.StateErr)
		u.received("2 WR_FLUSH_ERR")
		l.events("QP_LAST_WQE_REACHED")
	})
	bubble(t, "SQE is not ERR", func(t *testing.T) {
		l, _, u := setup(t)
		u.post(device.SendWR{Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD, SGE: []device.SGE{{Length: 1}}})
		u.sent("1 LOC_PROT_ERR")
		want(t, "state", u.qp.State(), device.StateSQE)
		l.events()
		say(l, "one")
		u.received("0 SUCCESS RECV 43")
	})
	bubble(t, "RESET without ERR", func(t *testing.T) {
		l, _, u := setup(t)
		u.to(device.StateReset)
		l.events()
	})
}

// Case 29: queue pairs that end while they are sending, with nothing more to be done for them: the event comes at once.
func TestCase29_WhileSending(t *testing.T) {
	// Memory that cannot be read when its turn to be sent comes.
	bubble(t, "a SEND", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(1, device.SRQInit{MaxWR: 4}, device.RC)
		far := must(l.pd.RegMemory(&farMemory{b: make([]byte, 64), va: 0x1000, broken: true}, 0x1000, 64, 0))
		s.c[0].post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: 0x1000, Length: 8, LKey: far.LKey()}}})
		s.c[0].sent("1 LOC_PROT_ERR")
		s.c[0].state(device.StateErr)
		l.events("QP_LAST_WQE_REACHED")
		l.emits()
	})
	// A READ of many bursts whose memory goes in the middle.
	bubble(t, "a READ", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(1, device.SRQInit{MaxWR: 4}, device.RC)
		var mr *device.MR
		mem := &hookMemory{hook: func(n int) {
			if n == 100 {
				go func() { _ = mr.Dereg() }()
				time.Sleep(time.Millisecond)
			}
		}}
		mr = must(l.pd.RegMemory(mem, 0x40000000, 1<<20, device.RemoteRead))
		s.to(0, peer.ReadRequest(0, 0x200, mr.Addr(), mr.RKey(), 1<<20))
		time.Sleep(2 * time.Millisecond)
		got := l.take()
		want(t, "the end", brief(got[len(got)-1]), fmt.Sprintf("ACKNOWLEDGE %06x 62 m1", 0x200+len(got)-1))
		s.c[0].state(device.StateErr)
		l.events("QP_ACCESS_ERR", "QP_LAST_WQE_REACHED")
	})
}

// Case 29: destroying. When destroy_qp returns nobody hears of the queue pair any more: an event that was not taken is
// taken back (that libibverbs waits for the acknowledgement of those that were is told it by the count that the uverbs
// interface returns), and the others keep theirs.
func TestCase29_Destroy(t *testing.T) {
	for _, taken := range []bool{false, true} {
		bubble(t, fmt.Sprintf("event taken: %v", taken), func(t *testing.T) {
			l := newLab(t, labConfig{})
			s := l.shared(2, device.SRQInit{MaxWR: 16}, device.RC)
			u := s.datagrams(nil)
			s.recv(0, 4096)
			s.recv(1, 4096)
			s.to(0, peer.SendFirst(0, 0x200, make([]byte, 1024)))
			s.c[0].to(device.StateErr)
			u.to(device.StateErr)
			l.settle()
			if taken {
				l.events("QP_LAST_WQE_REACHED", "QP_LAST_WQE_REACHED")
			}
			want(t, "destroy_qp", s.c[0].qp.Destroy(), nil)
			if !taken {
				l.events("QP_LAST_WQE_REACHED") // that of the UD one
			}
			l.events()
			s.c[0].received() // its completions are gone too
			want(t, "destroy_qp", u.qp.Destroy(), nil)
			// The second RC queue pair still has what was not held.
			s.to(1, peer.SendOnly(0, 0x200, nil))
			l.emits("ACKNOWLEDGE 000200 1f m1")
			s.c[1].received("1 SUCCESS RECV 0")
			// Destroyed without ERR, a queue pair has no event.
			want(t, "destroy_qp", s.c[1].qp.Destroy(), nil)
			l.events()
			want(t, "destroy_srq", s.srq.Destroy(), nil)
		})
	}
	bubble(t, "a handler of its own", func(t *testing.T) {
		l := newLab(t, labConfig{})
		s := l.shared(1, device.SRQInit{MaxWR: 4}, device.RC)
		var heard int
		busy, leave := make(chan struct{}), make(chan struct{})
		a := s.datagrams(func(device.AsyncEvent) { close(busy); <-leave })
		s.dice.push(0x34)
		b := must(s.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: a.scq, RecvCQ: a.rcq, SRQ: s.srq, Handler: func(device.AsyncEvent) { heard++ }}))
		if err := b.Activate(qkey, 5); err != nil {
			t.Fatal(err)
		}
		a.to(device.StateErr)
		<-busy // the dispatcher is at the event of another
		if err := b.Modify(&device.QPAttr{State: device.StateErr}, device.AttrState); err != nil {
			t.Fatal(err)
		}
		l.settle()
		want(t, "destroy_qp", b.Destroy(), nil)
		close(leave)
		l.settle()
		want(t, "events of a queue pair that is destroyed", heard, 0)
	})
}
