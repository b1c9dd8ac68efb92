package cases

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// What a queue pair hears in each state.
func TestStatesReceiving(t *testing.T) {
	for _, s := range []device.State{device.StateReset, device.StateInit, device.StateErr} {
		bubble(t, fmt.Sprintf("deaf in %v", s), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.State = min(s, device.StateInit) })
			mr := l.mr(64, all)
			if s != device.StateReset {
				c.recv(1, mr, 64)
			}
			if s == device.StateErr {
				c.to(s)
				c.received("1 WR_FLUSH_ERR")
			}
			c.gets(peer.SendOnly(nicQP, 0x200, nil), peer.WriteOnly(nicQP, 0x200, mr.Addr(), mr.RKey(), []byte("evil")),
				peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8), ack(0x100, 0), peer.NewFrame(0x15, nicQP, 0x200))
			l.emits()
			c.received()
			l.events()
			c.state(s)
			want(t, "drops", l.drops(), "qp-state=5")
			wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
		})
	}
	// Posted in INIT, used in RTR (roce.md D: a packet that came before is lost, the peer
	// sends it again).
	bubble(t, "receives posted in INIT", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.State = device.StateInit })
		mr := l.mr(64, all)
		c.recv(1, mr, 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("early")))
		l.emits()
		c.to(device.StateRTR)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("again")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received("1 SUCCESS RECV 5")
		wantBytes(t, "memory", mr.Bytes()[:5], []byte("again"))
	})
	// COMM_EST: once, at the first packet in RTR (roce.md B.12: rdma_cm lives on it).
	bubble(t, "COMM_EST", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.State = device.StateRTR })
		c.recv(1, nil, 0)
		c.recv(2, nil, 0)
		l.events()
		c.gets(ack(0x100, 0)) // an answer is no communication: nothing was asked yet
		l.events()
		want(t, "drops", l.drops(), "qp-state=1")
		c.gets(peer.SendOnly(nicQP, 0x200, nil))
		l.events("COMM_EST")
		c.gets(peer.SendOnly(nicQP, 0x201, nil))
		l.events()
		want(t, "answers", len(l.take()), 2)
		c.to(device.StateRTS)
		c.recv(3, nil, 0)
		c.gets(peer.SendOnly(nicQP, 0x202, nil))
		l.emits("ACKNOWLEDGE 000202 1f m3")
		l.events()
		// After RESET it is a new connection.
		c.to(device.StateReset)
		for s := device.StateInit; s <= device.StateRTR; s++ {
			c.to(s)
		}
		c.recv(4, nil, 0)
		c.gets(peer.SendOnly(nicQP, 0x200, nil))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		l.events("COMM_EST")
	})
	bubble(t, "no COMM_EST in RTS", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.recv(1, nil, 0)
		c.gets(peer.SendOnly(nicQP, 0x200, nil))
		c.received("1 SUCCESS RECV 0")
		l.events()
	})
	// A handler of the queue pair's own gets its events in place of the list.
	bubble(t, "event handler", func(t *testing.T) {
		l := newLab(t, labConfig{})
		var mu sync.Mutex
		var got []device.EventType
		c := l.rc(func(o *rcOptions) {
			o.State = device.StateRTR
			o.Handler = func(e device.AsyncEvent) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, e.Type)
			}
		})
		c.gets(peer.WriteOnly(nicQP, 0x200, 1, 2, []byte("evil")))
		l.emits("ACKNOWLEDGE 000200 62 m0")
		l.events()
		mu.Lock()
		defer mu.Unlock()
		want(t, "handler's events", fmt.Sprint(got), "[IBV_EVENT_COMM_EST IBV_EVENT_QP_ACCESS_ERR]")
	})
}

// Posting in each state.
func TestStatesPosting(t *testing.T) {
	bubble(t, "RC", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.State = device.StateReset })
		post := func() error { return c.qp.PostSend(&device.SendWR{ID: 7, Op: device.OpSend}) }
		recv := func() error { return c.qp.PostRecv(&device.RecvWR{ID: 8}) }
		errno(t, post(), device.EINVAL)
		errno(t, recv(), device.EINVAL)
		c.to(device.StateInit)
		errno(t, post(), device.EINVAL)
		c.to(device.StateRTR)
		// rxe refuses and sends it later all the same (rxe-lab.md S9).
		errno(t, post(), device.EINVAL)
		c.to(device.StateRTS)
		l.emits()
		if err := recv(); err != nil {
			t.Fatal(err)
		}
		if err := post(); err != nil {
			t.Fatal(err)
		}
		l.emits("SEND_ONLY 000100 ar")
		c.to(device.StateErr)
		c.sent("7 WR_FLUSH_ERR")
		c.received("8 WR_FLUSH_ERR")
		// In ERR posts are taken and flushed, in order, as often as one likes.
		for range 300 {
			if err := post(); err != nil {
				t.Fatal(err)
			}
			if err := recv(); err != nil {
				t.Fatal(err)
			}
		}
		want(t, "send completions", len(drain(c.scq)), 300)
		want(t, "receive completions", len(drain(c.rcq)), 300)
		c.to(device.StateErr) // again
		c.sent()
		c.received()
		c.to(device.StateReset)
		errno(t, post(), device.EINVAL)
		l.emits()
	})
	bubble(t, "UD", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTR)
		wr := device.SendWR{ID: 7, Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD}
		errno(t, u.qp.PostSend(&wr), device.EINVAL)
		u.modify(&device.QPAttr{State: device.StateRTS, SQPSN: 9}, device.AttrState|device.AttrSQPSN)
		u.post(wr)
		l.emits("SEND_ONLY 000009")
		u.recv(1)
		u.recv(2)
		u.modify(&device.QPAttr{State: device.StateErr}, device.AttrState)
		u.sent("1 SUCCESS SEND 0")
		u.received("1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR")
		u.post(wr)
		u.recv(3)
		u.sent("2 WR_FLUSH_ERR")
		u.received("3 WR_FLUSH_ERR")
		l.emits()
		l.p.Send(t, peer.UDSend(udQP, 0, qkey, peerUD, nil))
		want(t, "drops", l.takeDrops(), "qp-state=1")
	})
	bubble(t, "full queues", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SendWR, o.RecvWR = 2, 2 })
		for range 2 {
			c.recv(1, nil, 0)
			c.send(nil, 0)
		}
		errno(t, c.qp.PostSend(&device.SendWR{Op: device.OpSend}), device.ENOMEM)
		errno(t, c.qp.PostRecv(&device.RecvWR{}), device.ENOMEM)
		l.emits("SEND_ONLY 000100 ar", "SEND_ONLY 000101 ar")
		// A place is free when the request has completed.
		c.gets(ack(0x100, 1), peer.SendOnly(nicQP, 0x200, nil))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.send(nil, 0)
		c.recv(2, nil, 0)
		errno(t, c.qp.PostSend(&device.SendWR{Op: device.OpSend}), device.ENOMEM)
		errno(t, c.qp.PostRecv(&device.RecvWR{}), device.ENOMEM)
	})
}

// Flush: every request completes once, in order, unsignaled ones too, each with its own ID.
func TestFlush(t *testing.T) {
	bubble(t, "order", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SigAll, o.Init = false, 1 })
		mr := l.mr(1<<17, all)
		for i := range uint64(5) {
			c.recv(100+i, mr, 8)
		}
		c.gets(peer.SendFirst(nicQP, 0x200, make([]byte, 1024))) // one of them is held by half a message... too short for it
		l.settle()
		c.received("100 LOC_LEN_ERR", "101 WR_FLUSH_ERR", "102 WR_FLUSH_ERR", "103 WR_FLUSH_ERR", "104 WR_FLUSH_ERR")
	})
	bubble(t, "a receive that half a message holds", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(4096, all)
		for i := range uint64(3) {
			c.recv(100+i, mr, 4096)
		}
		c.gets(peer.SendFirst(nicQP, 0x200, make([]byte, 1024)))
		l.settle()
		c.to(device.StateErr)
		c.received("100 WR_FLUSH_ERR", "101 WR_FLUSH_ERR", "102 WR_FLUSH_ERR")
		// The next life of the queue pair begins with no message half done.
		for _, s := range []device.State{device.StateReset, device.StateInit, device.StateRTR} {
			c.to(s)
		}
		c.recv(7, mr, 4096)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("new")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received("7 SUCCESS RECV 3")
	})
	bubble(t, "requests in every stage", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SigAll, o.Init = false, 1 })
		mr := l.mr(1<<18, all)
		post := func(op device.WROp, n int, f device.SendFlags) {
			c.post(device.SendWR{Op: op, SGE: sge(mr, n), Flags: f, RemoteAddr: remoteVA, RKey: remoteKey})
		}
		post(device.OpSend, 8, 0)               // answered, unsignaled: no completion
		post(device.OpSend, 8, device.Signaled) // answered
		post(device.OpWrite, 3000, 0)           // answered in part
		post(device.OpRead, 3000, device.Signaled)
		post(device.OpRead, 8, 0)       // waits for the READ before it
		post(device.OpSend, 200<<10, 0) // and so does everything behind
		post(device.OpSend, 0, device.Signaled)
		l.take()
		c.gets(ack(0x102, 2))
		c.sent("2 SUCCESS SEND 8")
		c.to(device.StateErr)
		c.sent("3 WR_FLUSH_ERR", "4 WR_FLUSH_ERR", "5 WR_FLUSH_ERR", "6 WR_FLUSH_ERR", "7 WR_FLUSH_ERR")
		l.emits()
		l.p.ExpectSilence(t, 10*time.Second)
		c.gets(ack(0x104, 3)) // too late
		c.sent()
		want(t, "drops", l.drops(), "qp-state=1")
		l.counts("req_cqe_error=0")
	})
	// Case 25 in short: a bad key at the peer, then more requests.
	bubble(t, "after an access NAK", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SigAll = false })
		mr := l.mr(64, all)
		c.write(mr, 8)
		l.take()
		c.gets(nak(0x100, peer.SynNakAccess))
		c.sent("1 REM_ACCESS_ERR")
		for i := range 9 {
			c.post(device.SendWR{Op: device.OpWrite, Flags: device.SendFlags(i%2) * device.Signaled})
			c.sent(fmt.Sprintf("%d WR_FLUSH_ERR", i+2))
		}
	})
	bubble(t, "posted while the NAK is on its way", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Millisecond})
		c := l.rc(func(o *rcOptions) { o.SigAll = false })
		mr := l.mr(64, all)
		c.write(mr, 8)
		l.take()
		c.gets(nak(0x100, peer.SynNakAccess))
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range uint64(100) {
				time.Sleep(20 * time.Microsecond)
				if err := c.qp.PostSend(&device.SendWR{ID: 2 + i, Op: device.OpWrite}); err != nil {
					t.Errorf("post_send: %v", err)
				}
			}
		})
		wg.Wait()
		got := drain(c.scq)
		want(t, "completions", len(got), 101)
		for i, w := range got {
			st := device.StatusFlush
			if i == 0 {
				st = device.StatusRemoteAccess
			}
			want(t, "completion", fmt.Sprint(w.ID, w.Status), fmt.Sprint(i+1, st))
		}
		l.dst = peer4
		l.take()
	})
	// A completion says that the buffer is no longer read: it waits for the sender, also
	// when the answer or the flush is there before.
	for _, how := range []string{"ACK", "flush"} {
		bubble(t, "not before the buffer is let go/"+how, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mem := &hookMemory{hook: func(int) { time.Sleep(time.Second) }}
			mr := must(l.pd.RegMemory(mem, 0x1000, 64, 0))
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: 0x1000, Length: 64, LKey: mr.LKey()}}})
			}()
			l.settle()
			wantWC := "1 SUCCESS SEND 64"
			if how == "ACK" {
				c.gets(ack(0x100, 1))
			} else {
				c.to(device.StateErr)
				wantWC = "1 WR_FLUSH_ERR"
			}
			c.sent()
			<-done
			c.sent(wantWC)
			l.emits("SEND_ONLY 000100 ar [64]")
		})
	}
}

// RESET forgets everything: queues, completions, PSNs, MSN, half messages, saved READs.
func TestReset(t *testing.T) {
	bubble(t, "RC", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(4096, all)
		c.recv(1, mr, 4096)
		c.recv(2, mr, 4096)
		c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8), peer.SendOnly(nicQP, 0x201, nil), peer.SendFirst(nicQP, 0x202, make([]byte, 1024)))
		l.settle()
		c.send(mr, 8)
		c.send(mr, 8)
		l.take()
		c.gets(ack(0x100, 1))
		l.settle()
		c.to(device.StateReset)
		c.sent() // completions that nobody polled are gone too
		c.received()
		l.p.ExpectSilence(t, 10*time.Second)
		c.o.RQPSN, c.o.SQPSN = 0x300, 0x400
		for _, s := range []device.State{device.StateInit, device.StateRTR, device.StateRTS} {
			c.to(s)
		}
		l.emits()
		c.gets(peer.SendOnly(nicQP, 0x300, nil)) // no receive is left of before
		l.emits("ACKNOWLEDGE 000300 2c m0")
		c.recv(3, mr, 64)
		c.gets(peer.SendOnly(nicQP, 0x300, nil))
		l.emits("ACKNOWLEDGE 000300 1f m1")
		c.received("3 SUCCESS RECV 0")
		c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8)) // of the life before
		l.emits()
		c.send(mr, 5)
		l.emits("SEND_ONLY 000400 ar [5]")
		c.gets(ack(0x400, 1))
		c.sent("3 SUCCESS SEND 5")
	})
	bubble(t, "an RNR wait ends with it", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.send(nil, 0)
		l.take()
		c.gets(peer.RNRNak(nicQP, 0x100, 0, 0))
		l.settle()
		for _, s := range []device.State{device.StateReset, device.StateInit, device.StateRTR, device.StateRTS} {
			c.to(s)
		}
		c.send(nil, 0)
		l.emits("SEND_ONLY 000100 ar")
	})
	bubble(t, "UD", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mr := l.mr(100, all)
		u.recv(1, mr.SGE(0, 100))
		l.p.Send(t, peer.UDSend(udQP, 0, qkey, peerUD, make([]byte, 100))) // takes the receive, and leaves it
		l.settle()
		u.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
		u.modify(&device.QPAttr{State: device.StateInit, Port: 1, QKey: 5}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrQKey)
		u.modify(&device.QPAttr{State: device.StateRTR}, device.AttrState)
		l.p.Send(t, peer.UDSend(udQP, 0, 5, peerUD, nil))
		l.settle()
		u.received()
		want(t, "drops", l.drops(), "no-receive=1 too-long=1")
		u.recv(2, mr.SGE(0, 40))
		l.p.Send(t, peer.UDSend(udQP, 0, 5, peerUD, nil))
		u.received("2 SUCCESS RECV 40")
		u.modify(&device.QPAttr{State: device.StateRTS, SQPSN: 77}, device.AttrState|device.AttrSQPSN)
		u.post(device.SendWR{Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD})
		l.emits("SEND_ONLY 00004d")
	})
}

// Solicited events, and the SE bit.
func TestSolicited(t *testing.T) {
	bubble(t, "sent", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(2000, all)
		for _, op := range []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpRead} {
			c.post(device.SendWR{Op: op, SGE: sge(mr, 2000), Flags: device.Solicited})
		}
		// On the last packet only, and never on a plain WRITE or a READ (rxe-lab.md 4).
		l.emits("SEND_FIRST 000100 [1024]", "SEND_LAST 000101 ar se [976]",
			"SEND_FIRST 000102 [1024]", "SEND_LAST_IMM 000103 ar se imm=00000000 [976]",
			"WRITE_FIRST 000104 va=0+2000 [1024]", "WRITE_LAST 000105 ar [976]",
			"WRITE_FIRST 000106 va=0+2000 [1024]", "WRITE_LAST_IMM 000107 ar se imm=00000000 [976]",
			"READ_REQUEST 000108 ar va=0+2000")
	})
	for _, solicitedOnly := range []bool{false, true} {
		bubble(t, fmt.Sprintf("woken/solicited only %v", solicitedOnly), func(t *testing.T) {
			l := newLab(t, labConfig{})
			ch := must(l.ctx.CreateCompChannel())
			cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 16, Channel: ch}))
			c := l.rc(func(o *rcOptions) { o.recvCQ = cq })
			for i := range uint64(6) {
				c.recv(i, nil, 0)
			}
			woken := func() bool { l.settle(); _, ok := ch.TryGet(); return ok }
			want(t, "missed", cq.Arm(solicitedOnly), false)
			c.gets(peer.SendOnly(nicQP, 0x200, nil))
			want(t, "woken by a plain SEND", woken(), !solicitedOnly)
			want(t, "missed", cq.Arm(solicitedOnly), true)
			want(t, "polled", len(drain(cq)), 1)
			c.gets(peer.SendOnly(nicQP, 0x201, nil).With(func(f *peer.Frame) { f.SE = true }))
			want(t, "woken by SE", woken(), true)
			c.gets(peer.SendOnly(nicQP, 0x202, nil).With(func(f *peer.Frame) { f.SE = true }))
			want(t, "woken again without being armed", woken(), false)
			drain(cq)
			cq.Arm(solicitedOnly)
			c.gets(peer.WriteOnlyImm(nicQP, 0x203, 0, 0, 1, nil).With(func(f *peer.Frame) { f.SE = true }))
			want(t, "woken by an immediate", woken(), true)
			drain(cq)
			// Errors wake, in rxe they do not (rxe-lab.md C15).
			cq.Arm(solicitedOnly)
			c.to(device.StateErr)
			want(t, "woken by a flush", woken(), true)
		})
	}
}

// Context.Close and Device.Close at any moment: with requests, READ answers, RNR waits in flight.
func TestCloseInFlight(t *testing.T) {
	for _, what := range []string{"context", "device", "destroy"} {
		bubble(t, what, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			u := l.ud(device.StateRTS)
			l.destQP = 0
			mr := l.mr(1<<20, all)
			for range 20 {
				c.send(mr, 10000)
				u.post(device.SendWR{Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD})
			}
			for i := range uint64(20) {
				c.recv(i, mr, 1000)
			}
			c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 1<<20), peer.RNRNak(nicQP, 0x100, 0, 0))
			switch what {
			case "context":
				if err := l.ctx.Close(); err != nil {
					t.Fatal(err)
				}
				want(t, "objects", l.ctx.Objects(), device.Objects{})
			case "device":
				if err := l.dev.Close(); err != nil {
					t.Fatal(err)
				}
			case "destroy":
				if err := c.qp.Destroy(); err != nil {
					t.Fatal(err)
				}
				c.sent()
				c.received()
				l.take()
				c.gets(peer.SendOnly(nicQP, 0x300, nil))
				l.emits()
				if l.count("drop_no-qp") == 0 {
					t.Fatal("a packet for a destroyed queue pair was not dropped as such")
				}
			}
			// The bubble ends only when every goroutine has ended.
		})
	}
	bubble(t, "waiting for an event", func(t *testing.T) {
		l := newLab(t, labConfig{})
		done := make(chan error)
		go func() {
			_, err := l.ctx.AsyncEvent(context.Background())
			done <- err
		}()
		l.settle()
		if err := l.ctx.Close(); err != nil {
			t.Fatal(err)
		}
		errno(t, <-done, device.EIO)
	})
}
