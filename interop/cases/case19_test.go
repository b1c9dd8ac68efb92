package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 19: rnr_retry 0 to 7 against a peer that answers every SEND with RNR NAK 21 (code 1, 10 µs).
func TestCase19_RNRRetry(t *testing.T) {
	for _, typ := range requesters {
		t.Run(typ.String(), func(t *testing.T) { case19(t, typ) })
	}
}

func case19(t *testing.T, typ device.QPType) {
	const code, wait = 1, 10 * time.Microsecond
	setup := func(t *testing.T, retry int) (*lab, *conn, *device.MR) {
		l := newLab(t, labConfig{})
		c := l.requester(typ, func(o *rcOptions) { o.RNRRetry = retry })
		mr := l.mr(64, all)
		c.send(mr, 5)
		return l, c, mr
	}
	for retry := range 7 {
		bubble(t, fmt.Sprint(retry), func(t *testing.T) {
			l, c, mr := setup(t, retry)
			c.send(mr, 6)
			want(t, "first", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [5]")
			want(t, "second", brief(l.p.Next(t)), "SEND_ONLY 000101 ar [6]")
			for i := range retry + 1 {
				c.sent()
				c.state(device.StateRTS)
				start := time.Now()
				c.gets(peer.RNRNak(nicQP, 0x100, code, 0))
				if i == retry {
					break
				}
				want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [5]")
				if d := time.Since(start); d < wait {
					t.Fatalf("waited %v, the NAK asks for %v", d, wait)
				}
				want(t, "and what is behind it", brief(l.p.Next(t)), "SEND_ONLY 000101 ar [6]")
			}
			// 1 + rnr_retry transmissions, and no more.
			c.sent("1 RNR_RETRY_EXC_ERR", "2 WR_FLUSH_ERR")
			c.state(device.StateErr)
			l.p.ExpectSilence(t, 10*time.Second)
			l.counts(fmt.Sprintf("rcvd_rnr_err=%d", retry+1), "retry_rnr_exceeded_err=1", fmt.Sprintf("rnr_nak_retry_err=%d", retry),
				"retry_exceeded_err=0", "completer_retry_err=0")
			l.events()
		})
	}
	bubble(t, "7 has no limit", func(t *testing.T) {
		l, c, _ := setup(t, 7)
		const naks = 5000
		for range naks {
			want(t, "transmission", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [5]")
			c.gets(peer.RNRNak(nicQP, 0x100, code, 0))
		}
		want(t, "still trying", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [5]")
		c.sent()
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 5")
		c.state(device.StateRTS)
		l.counts(fmt.Sprintf("rcvd_rnr_err=%d", naks))
		// A user can tell that this is a loop and not a hang.
		if n := l.count("rnr_loop"); n == 0 || n > naks {
			t.Fatalf("rnr_loop is %d after %d RNR NAKs in a row", n, naks)
		}
	})
	bubble(t, "7 ends with the state ERR", func(t *testing.T) {
		l, c, mr := setup(t, 7)
		for range 100 {
			want(t, "transmission", brief(l.p.Next(t)), "SEND_ONLY 000100 ar [5]")
			c.gets(peer.RNRNak(nicQP, 0x100, code, 0))
		}
		l.settle()
		c.send(mr, 1)
		start := time.Now()
		c.to(device.StateErr)
		c.sent("1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR")
		want(t, "waited", time.Since(start), 0)
		l.p.ExpectSilence(t, 10*time.Second)
	})
	// Any success refills the budget: the ACK of a later request, and the acknowledgement
	// that is in an RNR NAK of a later PSN.
	bubble(t, "the budget refills", func(t *testing.T) {
		l, c, mr := setup(t, 1)
		nakOnce := func(psn uint32, n int) {
			want(t, "transmission", brief(l.p.Next(t)), fmt.Sprintf("SEND_ONLY %06x ar [%d]", psn, n))
			c.gets(peer.RNRNak(nicQP, psn, code, 0))
			want(t, "again", brief(l.p.Next(t)), fmt.Sprintf("SEND_ONLY %06x ar [%d]", psn, n))
		}
		nakOnce(0x100, 5)
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 5")
		c.send(mr, 6)
		nakOnce(0x101, 6)
		c.send(mr, 7)
		want(t, "transmission", brief(l.p.Next(t)), "SEND_ONLY 000102 ar [7]")
		c.gets(peer.RNRNak(nicQP, 0x102, code, 0)) // acknowledges 101
		c.sent("2 SUCCESS SEND 6")
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000102 ar [7]")
		c.gets(ack(0x102, 1))
		c.sent("3 SUCCESS SEND 7")
	})
	// And it does not without one.
	bubble(t, "stale answers refill nothing", func(t *testing.T) {
		l, c, mr := setup(t, 1)
		l.take()
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 5")
		c.send(mr, 6)
		l.take()
		c.gets(peer.RNRNak(nicQP, 0x101, code, 0))
		c.gets(ack(0x100, 1))
		want(t, "again", brief(l.p.Next(t)), "SEND_ONLY 000101 ar [6]")
		c.gets(ack(0x100, 1), peer.RNRNak(nicQP, 0x101, code, 0))
		c.sent("2 RNR_RETRY_EXC_ERR")
	})
}
