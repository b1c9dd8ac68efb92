package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Go-back-N: a sequence NAK acknowledges what is before its PSN and has everything from
// there sent again, at once.
func TestGoBackN(t *testing.T) {
	setup := func(t *testing.T) (*lab, *conn, *device.MR) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SQPSN = 0xFFFFFE })
		mr := l.mr(8192, all)
		copy(mr.Bytes(), pattern(8, 8192))
		return l, c, mr
	}
	const fifth = " ar [904]" // 5000 = 4 · 1024 + 904
	bubble(t, "inside a SEND", func(t *testing.T) {
		l, c, mr := setup(t)
		c.send(mr, 5000)
		l.emits("SEND_FIRST fffffe [1024]", "SEND_MIDDLE ffffff [1024]", "SEND_MIDDLE 000000 [1024]", "SEND_MIDDLE 000001 [1024]", "SEND_LAST 000002"+fifth)
		c.gets(nak(0, peer.SynNakSequence))
		again := l.emits("SEND_MIDDLE 000000 [1024]", "SEND_MIDDLE 000001 [1024]", "SEND_LAST 000002"+fifth)
		wantBytes(t, "again", payloads(again), mr.Bytes()[2048:5000])
		c.gets(nak(2, peer.SynNakSequence))
		again = l.emits("SEND_LAST 000002" + fifth)
		wantBytes(t, "again", payloads(again), mr.Bytes()[4096:5000])
		c.sent()
		c.gets(ack(2, 1))
		c.sent("1 SUCCESS SEND 5000")
		l.counts("packet_seq_err=2", "completer_retry_err=2")
	})
	// The RETH is in the first packet only; a WRITE that goes on in the middle has none. From
	// its first packet on it has it again, unchanged.
	bubble(t, "inside a WRITE", func(t *testing.T) {
		l, c, mr := setup(t)
		c.post(device.SendWR{Op: device.OpWriteImm, SGE: []device.SGE{mr.SGE(1, 1000), mr.SGE(1001, 2000)}, RemoteAddr: remoteVA, RKey: remoteKey, Imm: 3})
		l.emits("WRITE_FIRST fffffe va=10000+3000 [1024]", "WRITE_MIDDLE ffffff [1024]", "WRITE_LAST_IMM 000000 ar imm=00000003 [952]")
		c.gets(nak(0xFFFFFF, peer.SynNakSequence))
		again := l.emits("WRITE_MIDDLE ffffff [1024]", "WRITE_LAST_IMM 000000 ar imm=00000003 [952]")
		wantBytes(t, "again", payloads(again), mr.Bytes()[1025:3001])
		c.gets(ack(0, 1))
		c.sent("1 SUCCESS RDMA_WRITE 3000")
		c.write(mr, 1030)
		l.emits("WRITE_FIRST 000001 va=10000+1030 [1024]", "WRITE_LAST 000002 ar [6]")
		c.gets(nak(1, peer.SynNakSequence))
		l.emits("WRITE_FIRST 000001 va=10000+1030 [1024]", "WRITE_LAST 000002 ar [6]")
	})
	bubble(t, "the third of several messages", func(t *testing.T) {
		l, c, mr := setup(t)
		c.send(mr, 10)
		c.write(mr, 2000)
		c.read(mr, 2000)
		c.send(mr, 20)
		l.take()
		c.gets(nak(1, peer.SynNakSequence)) // the READ, at 1 and 2
		l.emits("READ_REQUEST 000001 ar va=10000+2000", "SEND_ONLY 000003 ar [20]")
		c.sent("1 SUCCESS SEND 10", "2 SUCCESS RDMA_WRITE 2000")
		c.gets(readAnswer(1, 3, 1024, make([]byte, 2000))...)
		c.gets(nak(3, peer.SynNakSequence))
		l.emits("SEND_ONLY 000003 ar [20]")
		c.sent("3 SUCCESS RDMA_READ 2000")
		c.gets(ack(3, 4))
		c.sent("4 SUCCESS SEND 20")
	})
	// What is posted during the retry comes behind it.
	bubble(t, "new work behind the retry", func(t *testing.T) {
		l, c, mr := setup(t)
		c.send(mr, 10)
		c.send(mr, 20)
		l.take()
		c.gets(nak(0xFFFFFE, peer.SynNakSequence))
		l.emits("SEND_ONLY fffffe ar [10]", "SEND_ONLY ffffff ar [20]")
		c.send(mr, 30)
		l.emits("SEND_ONLY 000000 ar [30]")
	})
	// ACKs of the round before still count.
	bubble(t, "an ACK overtakes the retry", func(t *testing.T) {
		l, c, mr := setup(t)
		for range 3 {
			c.send(mr, 10)
		}
		l.take()
		c.gets(nak(0xFFFFFE, peer.SynNakSequence))
		want(t, "again", len(l.take()), 3)
		c.gets(ack(0xFFFFFF, 2))
		c.sent("1 SUCCESS SEND 10", "2 SUCCESS SEND 10")
		l.emits()
		c.gets(ack(0, 3))
		c.sent("3 SUCCESS SEND 10")
		l.p.ExpectSilence(t, time.Second)
	})
	// A host that is slow to send: what waits for it when the retry begins is not sent twice,
	// and every request still completes.
	bubble(t, "what has not left yet", func(t *testing.T) {
		l, c, mr := setup(t)
		mem := &hookMemory{hook: func(n int) {
			if n == 1 {
				time.Sleep(time.Second)
			}
		}}
		far := must(l.pd.RegMemory(mem, 0x1000, 64, 0))
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: 0x1000, Length: 64, LKey: far.LKey()}}})
		}()
		l.settle()
		c.send(mr, 20)
		c.send(mr, 30)
		c.gets(nak(0xFFFFFE, peer.SynNakSequence))
		l.emits()
		<-done
		l.emits("SEND_ONLY fffffe ar [64]", "SEND_ONLY fffffe ar [64]", "SEND_ONLY ffffff ar [20]", "SEND_ONLY 000000 ar [30]")
		c.gets(ack(0, 3))
		c.sent("1 SUCCESS SEND 64", "2 SUCCESS SEND 20", "3 SUCCESS SEND 30")
	})
	// Sending it again fails, and then it turns out that it had arrived.
	bubble(t, "memory gone, and a late ACK", func(t *testing.T) {
		for _, late := range []bool{true, false} {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mr, gone := l.mr(64, 0), l.mr(64, 0)
			c.send(mr, 1)
			c.send(gone, 2)
			l.take()
			if err := gone.Dereg(); err != nil {
				t.Fatal(err)
			}
			c.gets(nak(0x100, peer.SynNakSequence))
			l.emits("SEND_ONLY 000100 ar [1]")
			c.sent()
			if late {
				c.gets(ack(0x101, 2))
				c.sent("1 SUCCESS SEND 1", "2 SUCCESS SEND 2")
				c.state(device.StateRTS)
			} else {
				c.gets(ack(0x100, 1))
				c.sent("1 SUCCESS SEND 1", "2 LOC_PROT_ERR")
			}
		}
	})
	// The key is looked up again: memory that is gone is not sent.
	bubble(t, "memory gone", func(t *testing.T) {
		l, c, mr := setup(t)
		c.send(mr, 3000)
		c.send(mr, 10)
		l.take()
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		c.gets(nak(0xFFFFFF, peer.SynNakSequence))
		l.emits()
		c.sent("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
		c.state(device.StateErr)
	})
	// A long message asks for an answer now and then, also again.
	bubble(t, "AckReq inside a long message", func(t *testing.T) {
		l, c, _ := setup(t)
		mr := l.mr(1<<17, 0)
		c.send(mr, 1<<17)
		ask := 0
		for i, f := range l.take() {
			if f.AckReq {
				ask = i
			}
			if i-ask >= 66 { // rxe asks at the 66th
				t.Fatalf("packet %d: nothing asked for an answer since %d", i, ask)
			}
		}
		if ask == 0 {
			t.Fatal("nothing asks")
		}
	})
}

// The ACK timer: only progress moves it.
func TestAckTimer(t *testing.T) {
	const timeout = 14
	tt := ackTimeout(timeout)
	retried := func(l *lab, c *conn, since time.Time, first string) {
		f := c.peer().Next(l.t)
		want(l.t, "again", brief(f), first)
		if d := time.Since(since); d < tt || d > 4*tt {
			l.t.Fatalf("sent again after %v, T is %v", d, tt)
		}
	}
	// rxe-lab.md S3: in rxe posting pushes the timer forward, in softnic it does not.
	bubble(t, "posting does not push it", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		start := time.Now()
		c.send(mr, 1)
		for i := range 2 {
			time.Sleep(25 * time.Millisecond)
			c.send(mr, 2+i)
		}
		want(t, "sent", len(l.take()), 3)
		retried(l, c, start, "SEND_ONLY 000100 ar [1]")
		want(t, "exact", time.Since(start), tt)
	})
	// A completion is a promise that the memory is not read any more, also where the ACK comes while the request is being sent again.
	bubble(t, "answered while it is read again", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		far := must(l.pd.RegMemory(&hookMemory{hook: func(n int) {
			if n == 2 {
				time.Sleep(time.Second)
			}
		}}, 0x1000, 64, 0))
		c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: 0x1000, Length: 64, LKey: far.LKey()}}})
		l.emits("SEND_ONLY 000100 ar [64]")
		time.Sleep(tt + tt/2)
		c.gets(ack(0x100, 1))
		c.sent()
		time.Sleep(time.Second)
		l.emits("SEND_ONLY 000100 ar [64]")
		c.sent("1 SUCCESS SEND 64")
	})
	// rxe-lab.md S4: nor do stale ACKs, nor ghosts.
	for _, v := range []struct {
		name string
		f    *peer.Frame
	}{
		{"stale ACK", ack(0x100, 1)}, {"older stale ACK", ack(0x80, 0)}, {"ghost ACK", ack(0x200, 0)},
		{"stale NAK", nak(0x100, peer.SynNakSequence)}, {"stale READ response", peer.ReadRespOnly(nicQP, 0x100, 1, nil)},
		{"stale RNR NAK", peer.RNRNak(nicQP, 0x100, 10, 0)},
	} {
		bubble(t, v.name+"s do not push it", func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mr := l.mr(64, all)
			c.send(mr, 1)
			c.gets(ack(0x100, 1))
			c.sent("1 SUCCESS SEND 1")
			l.take()
			start := time.Now()
			c.send(mr, 2)
			for range 2 {
				time.Sleep(25 * time.Millisecond)
				c.gets(v.f)
			}
			l.emits("SEND_ONLY 000101 ar [2]")
			retried(l, c, start, "SEND_ONLY 000101 ar [2]")
		})
	}
	bubble(t, "progress does", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		for range 5 {
			c.send(mr, 1)
		}
		l.take()
		for i := range uint32(4) {
			time.Sleep(tt * 9 / 10)
			c.gets(ack(0x100+i, i+1))
			l.emits()
		}
		retried(l, c, time.Now(), "SEND_ONLY 000104 ar [1]")
		l.counts("local_ack_timeout_err=1")
	})
	// Nothing outstanding, nothing to wait for; the next request starts it anew.
	bubble(t, "it stops with the last answer", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.send(mr, 1)
		l.take()
		c.gets(ack(0x100, 1))
		l.p.ExpectSilence(t, time.Minute)
		start := time.Now()
		c.send(mr, 1)
		l.emits("SEND_ONLY 000101 ar [1]")
		retried(l, c, start, "SEND_ONLY 000101 ar [1]")
	})
	bubble(t, "a partial ACK resets retry_cnt", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RetryCnt = 1 })
		mr := l.mr(4096, all)
		c.send(mr, 3000)
		l.take()
		want(t, "again", brief(l.p.Next(t)), "SEND_FIRST 000100 [1024]")
		l.take()
		c.gets(ack(0x100, 0))
		l.settle()
		want(t, "again", brief(l.p.Next(t)), "SEND_MIDDLE 000101 [1024]")
		l.take()
		c.gets(ack(0x101, 0))
		l.settle()
		want(t, "again", brief(l.p.Next(t)), "SEND_LAST 000102 ar [952]")
		time.Sleep(4 * tt)
		c.sent("1 RETRY_EXC_ERR")
	})
}

// The requester's side of RNR.
func TestRNRWait(t *testing.T) {
	for code := range uint8(32) {
		bubble(t, fmt.Sprintf("code %d", code), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mr := l.mr(64, all)
			c.send(mr, 1)
			c.send(mr, 2)
			l.take()
			start := time.Now()
			c.gets(peer.RNRNak(nicQP, 0x100, code, 0))
			l.settle()
			// Nothing leaves before the table's time, not even new work (rxe-lab.md C8: rxe does
			// send it), and neither does the ACK timer cut the wait short.
			c.send(mr, 3)
			wait := peer.RNRDelay(code)
			l.p.ExpectSilence(t, wait-time.Nanosecond)
			want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [1]")
			if d := time.Since(start); d < wait || d > wait+wait/10+time.Millisecond {
				t.Fatalf("waited %v, the code says %v", d, wait)
			}
			l.emits("SEND_ONLY 000101 ar [2]", "SEND_ONLY 000102 ar [3]")
			c.gets(ack(0x102, 3))
			c.sent("1 SUCCESS SEND 1", "2 SUCCESS SEND 2", "3 SUCCESS SEND 3")
			l.counts("rcvd_rnr_err=1", "completer_retry_err=0", "local_ack_timeout_err=0")
		})
	}
	// It may be the answer to what was sent again a moment before, or the first one twice: the wait begins anew, at no cost.
	bubble(t, "another RNR NAK during the wait", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RNRRetry = 1 })
		mr := l.mr(64, all)
		c.send(mr, 1)
		l.take()
		c.gets(peer.RNRNak(nicQP, 0x100, 14, 0))
		l.settle()
		time.Sleep(time.Millisecond)
		start := time.Now()
		c.gets(peer.RNRNak(nicQP, 0x100, 14, 0))
		l.settle()
		c.gets(peer.RNRNak(nicQP, 0x100, 1, 0)) // a shorter time takes nothing away
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [1]")
		want(t, "waited", time.Since(start), peer.RNRDelay(14))
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 1")
		l.counts("rcvd_rnr_err=1")
	})
	// rxe sends a sequence NAK of what was behind; it costs nothing and changes nothing.
	bubble(t, "sequence NAK during the wait", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RetryCnt = 0 })
		mr := l.mr(64, all)
		c.send(mr, 1)
		c.send(mr, 2)
		l.take()
		start := time.Now()
		c.gets(peer.RNRNak(nicQP, 0x100, 20, 0))
		l.settle()
		for range 3 {
			time.Sleep(time.Millisecond)
			c.gets(nak(0x100, peer.SynNakSequence))
			l.emits()
		}
		c.state(device.StateRTS)
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [1]")
		want(t, "waited", time.Since(start), peer.RNRDelay(20))
		l.emits("SEND_ONLY 000101 ar [2]")
		l.counts("completer_retry_err=0")
	})
	bubble(t, "a second RNR NAK during the wait", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RNRRetry = 1 })
		mr := l.mr(64, all)
		c.send(mr, 1)
		l.take()
		start := time.Now()
		c.gets(peer.RNRNak(nicQP, 0x100, 20, 0))
		l.settle()
		time.Sleep(time.Millisecond)
		c.gets(peer.RNRNak(nicQP, 0x100, 20, 0))
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [1]")
		if d := time.Since(start); d < peer.RNRDelay(20) {
			t.Fatalf("waited %v", d)
		}
		c.state(device.StateRTS)
	})
	// A second copy of the packet found a receive: the wait is over, and what was dropped behind
	// the first copy goes again.
	bubble(t, "an ACK during the wait", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		for i := range 3 {
			c.send(mr, i+1)
		}
		l.take()
		c.gets(peer.RNRNak(nicQP, 0x100, 0, 0), ack(0x100, 1))
		l.emits("SEND_ONLY 000101 ar [2]", "SEND_ONLY 000102 ar [3]")
		c.sent("1 SUCCESS SEND 1")
		c.gets(ack(0x102, 3))
		c.sent("2 SUCCESS SEND 2", "3 SUCCESS SEND 3")
		l.p.ExpectSilence(t, 10*time.Second)
	})
	// The RNR NAK acknowledges what is before its PSN.
	bubble(t, "RNR NAK of the third", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		for i := range 3 {
			c.send(mr, i+1)
		}
		l.take()
		c.gets(peer.RNRNak(nicQP, 0x102, 1, 0))
		c.sent("1 SUCCESS SEND 1", "2 SUCCESS SEND 2")
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000102 ar [3]")
	})
	// A fatal NAK ends the wait.
	bubble(t, "access NAK during the wait", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.send(mr, 1)
		l.take()
		c.gets(peer.RNRNak(nicQP, 0x100, 0, 0), nak(0x100, peer.SynNakAccess))
		c.sent("1 REM_ACCESS_ERR")
	})
	bubble(t, "the ACK timer runs after the wait", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.send(mr, 1)
		l.take()
		c.gets(peer.RNRNak(nicQP, 0x100, 29, 0)) // 245.76 ms, T is 67.1 ms
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [1]")
		start := time.Now()
		want(t, "and again", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [1]")
		if d, tt := time.Since(start), ackTimeout(14); d < tt || d > 4*tt {
			t.Fatalf("after %v, T is %v", d, tt)
		}
	})
}

// Credits of a peer that limits them: one message beyond the limit, with AckReq (roce.md
// A.4, design.md 8).
func TestCredits(t *testing.T) {
	limited := func(psn, msn uint32, code peer.Syndrome) *peer.Frame { return peer.Nak(nicQP, psn, code, msn) }
	setup := func(t *testing.T) (*lab, *conn, *device.MR) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(4096, all)
		c.send(mr, 1)
		l.emits("SEND_ONLY 000100 ar [1]")
		return l, c, mr
	}
	bubble(t, "none: one message at a time", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(limited(0x100, 1, 0))
		c.sent("1 SUCCESS SEND 1")
		for i := range 3 {
			c.send(mr, 2+i)
		}
		for i := range uint32(3) {
			l.emits(fmt.Sprintf("SEND_ONLY %06x ar [%d]", 0x101+i, 2+i))
			l.p.ExpectSilence(t, 10*time.Millisecond)
			c.gets(limited(0x101+i, 2+i, 0))
		}
		want(t, "completions", len(drain(c.scq)), 3)
		l.emits()
	})
	bubble(t, "a message of several packets beyond the limit", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(limited(0x100, 1, 0))
		l.settle()
		c.send(mr, 2000)
		c.send(mr, 1)
		l.emits("SEND_FIRST 000101 [1024]", "SEND_LAST 000102 ar [976]")
		c.gets(ack(0x102, 2)) // no limit any more
		l.emits("SEND_ONLY 000103 ar [1]")
	})
	for _, v := range []struct {
		code    peer.Syndrome
		credits int
	}{{1, 1}, {2, 2}, {4, 4}, {5, 6}, {6, 8}, {7, 12}, {10, 32}} {
		bubble(t, fmt.Sprintf("code %d: %d credits", v.code, v.credits), func(t *testing.T) {
			l, c, mr := setup(t)
			c.gets(limited(0x100, 1, v.code))
			l.settle()
			for range v.credits + 5 {
				c.send(mr, 1)
			}
			got := l.take()
			want(t, "messages", len(got), v.credits+1)
			want(t, "AckReq on the one beyond", got[v.credits].AckReq, true)
			// The first of them is answered: one more place.
			c.gets(limited(0x101, 2, v.code))
			want(t, "messages", len(l.take()), 1)
			c.gets(ack(0x102, 3))
			want(t, "the rest", len(l.take()), 3)
		})
	}
	// One beyond means one unanswered: the answer to a request before it gives no second.
	bubble(t, "an answer before the one beyond", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(limited(0x100, 1, 1))
		l.settle()
		for i := range 3 {
			c.send(mr, 2+i)
		}
		l.emits("SEND_ONLY 000101 ar [2]", "SEND_ONLY 000102 ar [3]") // one in the limit, one beyond
		c.gets(limited(0x101, 2, 0))
		l.emits()
		c.gets(limited(0x102, 3, 0))
		l.emits("SEND_ONLY 000103 ar [4]")
	})
	// It is answered without an ACK of its own: by the response to a READ behind it.
	bubble(t, "the one beyond is answered by a READ response", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(limited(0x100, 1, 0))
		l.settle()
		c.send(mr, 2)
		c.read(mr, 8)
		c.send(mr, 3)
		l.emits("SEND_ONLY 000101 ar [2]", "READ_REQUEST 000102 ar va=10000+8")
		c.gets(peer.ReadRespOnly(nicQP, 0x102, 3, make([]byte, 8)).With(func(f *peer.Frame) { f.AETH.Syndrome = 0 }))
		l.emits("SEND_ONLY 000103 ar [3]")
	})
	// A peer whose MSN lags behind what it acknowledges does not stop the queue: what is answered is not beyond any more.
	bubble(t, "the one beyond is answered with an old MSN", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(limited(0x100, 1, 0))
		l.settle()
		c.send(mr, 2)
		c.send(mr, 3)
		l.emits("SEND_ONLY 000101 ar [2]")
		c.gets(limited(0x101, 1, 0))
		l.emits("SEND_ONLY 000102 ar [3]")
	})
	// A WRITE needs no receive and no credit; with an immediate it does. Each message counts
	// in the limit, because each counts in the MSN.
	bubble(t, "what takes no receive passes", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(limited(0x100, 1, 0))
		l.settle()
		c.write(mr, 1)
		c.read(mr, 1)
		c.write(mr, 1)
		l.emits("WRITE_ONLY 000101 ar va=10000+1 [1]", "READ_REQUEST 000102 ar va=10000+1", "WRITE_ONLY 000103 ar va=10000+1 [1]")
		imm := device.SendWR{Op: device.OpWriteImm, RemoteAddr: remoteVA}
		c.post(imm)
		c.post(imm)
		l.emits("WRITE_ONLY_IMM 000104 ar va=10000+0 imm=00000000")
		c.write(mr, 1) // order is kept: nothing overtakes the one that waits
		l.emits()
		c.gets(peer.ReadRespOnly(nicQP, 0x102, 3, []byte{1}), limited(0x104, 5, 0))
		l.emits("WRITE_ONLY_IMM 000105 ar va=10000+0 imm=00000000", "WRITE_ONLY 000106 ar va=10000+1 [1]")
	})
	// The message beyond the limit meets an RNR NAK, as it may: it is sent again, alone.
	bubble(t, "RNR NAK beyond the limit", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(limited(0x100, 1, 0))
		l.settle()
		c.send(mr, 2)
		c.send(mr, 3)
		l.emits("SEND_ONLY 000101 ar [2]")
		c.gets(peer.RNRNak(nicQP, 0x101, 1, 1))
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000101 ar [2]")
		l.emits()
		c.gets(limited(0x101, 2, 1))
		l.emits("SEND_ONLY 000102 ar [3]")
	})
	// We set no limit ourselves: TestAcknowledge sees 0x1F in every ACK.
	bubble(t, "codes 0 and 1E are ACKs", func(t *testing.T) {
		l, c, _ := setup(t)
		c.gets(limited(0x100, 1, 0x1E))
		c.sent("1 SUCCESS SEND 1")
		l.emits()
	})
}

// Initiator depth and fence.
func TestInitiatorDepth(t *testing.T) {
	bubble(t, "never more READs in flight", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Init = 3 }) // kept exactly, where rxe rounds up (rxe-lab.md S6)
		mr := l.mr(64, all)
		for range 32 {
			c.read(mr, 8)
		}
		c.send(mr, 1)
		sent := len(l.take())
		want(t, "READs at once", sent, 3)
		for i := range 32 {
			c.gets(peer.ReadRespOnly(nicQP, 0x100+uint32(i), uint32(i), make([]byte, 8)))
			more := l.take()
			sent += len(more)
			if flight := min(sent, 32) - i - 1; flight > 3 {
				t.Fatalf("%d READs in flight", flight)
			}
		}
		want(t, "sent", sent, 33)
		c.gets(ack(0x120, 33))
		want(t, "completions", len(drain(c.scq)), 33)
	})
	bubble(t, "a retry takes no second slot", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Init = 2 })
		mr := l.mr(64, all)
		for range 3 {
			c.read(mr, 8)
		}
		want(t, "READs", len(l.take()), 2)
		c.gets(nak(0x100, peer.SynNakSequence))
		want(t, "READs again", len(l.take()), 2)
		c.gets(peer.ReadRespOnly(nicQP, 0x100, 1, make([]byte, 8)))
		l.emits("READ_REQUEST 000102 ar va=10000+8")
		c.gets(peer.ReadRespOnly(nicQP, 0x101, 2, make([]byte, 8)), peer.ReadRespOnly(nicQP, 0x102, 3, make([]byte, 8)))
		want(t, "completions", len(drain(c.scq)), 3)
	})
	bubble(t, "max_rd_atomic 0", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Init = 0 })
		// rxe takes the request and never sends it (rxe-lab.md S7).
		errno(t, c.qp.PostSend(&device.SendWR{Op: device.OpRead}), device.EINVAL)
	})
	// roce.md B.3: a fenced request waits for READs, not for SENDs.
	bubble(t, "fence", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.send(mr, 1)
		c.post(device.SendWR{Op: device.OpSend, Flags: device.Fence, SGE: sge(mr, 2)})
		c.read(mr, 8)
		c.send(mr, 3)
		c.post(device.SendWR{Op: device.OpSend, Flags: device.Fence, SGE: sge(mr, 4)})
		c.send(mr, 5)
		l.emits("SEND_ONLY 000100 ar [1]", "SEND_ONLY 000101 ar [2]", "READ_REQUEST 000102 ar va=10000+8", "SEND_ONLY 000103 ar [3]")
		c.gets(peer.ReadRespOnly(nicQP, 0x102, 3, make([]byte, 8)))
		l.emits("SEND_ONLY 000104 ar [4]", "SEND_ONLY 000105 ar [5]")
	})
}
