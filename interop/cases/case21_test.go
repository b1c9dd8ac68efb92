package cases

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 21 (a): nothing is sent again while the peer answers in time.
func TestCase21_NoSpuriousRetransmission(t *testing.T) {
	// The case says 100,000 WRITEs of 4 KiB; 400 here, for the time that the test takes (SOFTNIC_LONG: all).
	const packets, batch = 4, 50
	writes := 400
	if os.Getenv("SOFTNIC_LONG") != "" {
		writes = 100_000
	}
	bubble(t, "WRITEs", func(t *testing.T) {
		t.Logf("%d WRITEs of %d packets; 100,000 in the case", writes, packets)
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(packets*1024, 0)
		psn := uint32(0x100)
		for done := 0; done < writes; done += batch {
			for range batch {
				c.write(mr, packets*1024)
			}
			for n := 0; n < batch*packets; {
				got := l.take()
				if len(got) == 0 {
					t.Fatal("the device is silent")
				}
				for _, f := range got {
					want(t, "psn", f.PSN, psn&0xFFFFFF)
					psn++
				}
				n += len(got)
				time.Sleep(900 * time.Microsecond)
				c.gets(ack(psn-1, 0))
				l.settle()
			}
			want(t, "completions", len(drain(c.scq)), batch)
		}
		l.p.ExpectSilence(t, 10*time.Second)
		l.counts("completer_retry_err=0", "local_ack_timeout_err=0", "packet_seq_err=0", "implied_nak_seq_err=0")
	})
	// (b) One long READ, ten times the timeout in all, never idle for more than half of it. 1
	// MiB instead of 64 MiB, but with SOFTNIC_LONG.
	bubble(t, "READ", func(t *testing.T) {
		size := 1 << 20
		if os.Getenv("SOFTNIC_LONG") != "" {
			size = 64 << 20
		}
		t.Logf("%d bytes; 64 MiB in the case", size)
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(size, all)
		c.read(mr, size)
		l.emits(fmt.Sprintf("READ_REQUEST 000100 ar va=10000+%d", size))
		data := pattern(3, size)
		answer := readAnswer(0x100, 1, 1024, data)
		start := time.Now()
		const steps = 21
		for i := range steps {
			time.Sleep(ackTimeout(14) * 49 / 100)
			c.gets(answer[len(answer)*i/steps : len(answer)*(i+1)/steps]...)
			l.emits()
		}
		if d := time.Since(start); d < 10*ackTimeout(14) {
			t.Fatalf("took %v only", d)
		}
		c.sent(fmt.Sprintf("1 SUCCESS RDMA_READ %d", size))
		wantBytes(t, "what was read", mr.Bytes(), data)
		l.p.ExpectSilence(t, 10*time.Second)
		l.counts("completer_retry_err=0", "local_ack_timeout_err=0", "implied_nak_seq_err=0")
	})
}

// Case 21 (c): timeout 0 is no timer.
func TestCase21_TimeoutZero(t *testing.T) {
	bubble(t, "mute for 10 s", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Timeout = 0 })
		mr := l.mr(64, all)
		c.send(mr, 1)
		c.read(mr, 8)
		l.emits("SEND_ONLY 000100 ar [1]", "READ_REQUEST 000101 ar va=10000+8")
		l.p.ExpectSilence(t, 10*time.Second)
		l.p.ExpectSilence(t, 24*time.Hour)
		c.sent()
		c.state(device.StateRTS)
		c.to(device.StateErr)
		c.sent("1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR")
		l.emits()
	})
}

// Case 21 (d): a mute peer, retry_cnt 0 to 7; 1 + retry_cnt transmissions, T to 4T apart (roce.md
// B.8). retry_cnt 7 is 7: an rxe peer with 7 tries for ever, softnic does not (cases.md,
// disagreement 1).
func TestCase21_MutePeer(t *testing.T) {
	for _, v := range []struct {
		name string
		op   device.WROp
		n    int
	}{{"SEND", device.OpSend, 5}, {"WRITE", device.OpWrite, 3000}, {"READ", device.OpRead, 3000}} {
		for i := range 2 * 8 * 4 {
			typ, retry, timeout := requesters[i%2], i/2%8, []int{14, 1, 8, 20}[i/16]
			bubble(t, fmt.Sprintf("%v/%s/retry_cnt=%d/timeout=%d", typ, v.name, retry, timeout), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.requester(typ, func(o *rcOptions) { o.Timeout, o.RetryCnt = timeout, retry })
				mr := l.mr(4096, all)
				l.p.Timeout = time.Hour
				start := time.Now()
				c.post(device.SendWR{Op: v.op, SGE: sge(mr, v.n), RemoteAddr: remoteVA, RKey: remoteKey})
				c.send(mr, 1)
				round := l.take()
				tt := ackTimeout(timeout)
				last := start
				for range retry {
					for i, f := range round {
						want(t, "again", brief(l.p.Next(t)), brief(f))
						if i > 0 {
							continue
						}
						if d := time.Since(last); d < tt || d > 4*tt {
							t.Fatalf("sent again after %v, T is %v", d, tt)
						}
						last = time.Now()
					}
					c.sent()
				}
				// The end comes one timeout later.
				wc := make([]device.WC, 1)
				ctx, cancel := contextFor(time.Hour)
				defer cancel()
				if k, err := c.scq.Wait(ctx, wc); k != 1 || err != nil {
					t.Fatalf("no completion: %v", err)
				}
				if d := time.Since(last); d < tt || d > 4*tt {
					t.Fatalf("gave up after %v, T is %v", d, tt)
				}
				if d := time.Since(start); retry == 7 && timeout == 14 && (d < 500*time.Millisecond || d > 2200*time.Millisecond) {
					t.Fatalf("retry_cnt 7 took %v, 0.5 to 2.2 s are asked for", d)
				}
				sameList(t, "completion", briefWC(wc), []string{"1 RETRY_EXC_ERR"})
				c.sent("2 WR_FLUSH_ERR")
				c.state(device.StateErr)
				l.p.ExpectSilence(t, time.Hour)
				l.counts("retry_exceeded_err=1", fmt.Sprintf("completer_retry_err=%d", retry), fmt.Sprintf("local_ack_timeout_err=%d", retry+1),
					"retry_rnr_exceeded_err=0")
				l.events()
			})
		}
	}
}

// Case 21 (e): sequence NAKs of the same PSN count against retry_cnt; forward
// progress fills it up again.
func TestCase21_SequenceNaksCount(t *testing.T) {
	for i := range 2 * 8 {
		typ, retry := requesters[i%2], i/2
		bubble(t, fmt.Sprintf("%v/%d and one time", typ, retry), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.requester(typ, func(o *rcOptions) { o.RetryCnt = retry })
			mr := l.mr(64, all)
			c.send(mr, 1)
			l.emits("SEND_ONLY 000100 ar [1]")
			for range retry {
				c.gets(nak(0x100, peer.SynNakSequence))
				l.emits("SEND_ONLY 000100 ar [1]")
				c.sent()
			}
			c.gets(nak(0x100, peer.SynNakSequence))
			l.emits()
			c.sent("1 RETRY_EXC_ERR")
			c.state(device.StateErr)
			l.counts(fmt.Sprintf("packet_seq_err=%d", retry+1), fmt.Sprintf("rcvd_seq_err=%d", retry+1), "retry_exceeded_err=1")
		})
	}
	for _, v := range []struct {
		name string
		f    *peer.Frame
	}{
		{"an ACK of a part", ack(0x100, 0)},
		{"the acknowledgement in a NAK", nak(0x101, peer.SynNakSequence)},
	} {
		bubble(t, "progress by "+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.RetryCnt = 1 })
			mr := l.mr(4096, all)
			c.send(mr, 3000)
			l.take()
			c.gets(nak(0x100, peer.SynNakSequence))
			want(t, "packets again", len(l.take()), 3)
			c.gets(v.f)
			l.take()
			if v.f.AETH.Syndrome == peer.SynAck {
				c.gets(nak(0x101, peer.SynNakSequence))
				want(t, "packets again", len(l.take()), 2)
			}
			c.sent()
			c.gets(nak(0x101, peer.SynNakSequence))
			l.emits()
			c.sent("1 RETRY_EXC_ERR")
		})
	}
	// NAKs and timeouts draw on the same budget.
	bubble(t, "one budget", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RetryCnt = 2 })
		mr := l.mr(4096, all)
		c.send(mr, 1)
		l.take()
		c.gets(nak(0x100, peer.SynNakSequence))
		l.emits("SEND_ONLY 000100 ar [1]")
		want(t, "after T", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [1]")
		c.gets(nak(0x100, peer.SynNakSequence))
		c.sent("1 RETRY_EXC_ERR")
	})
}
