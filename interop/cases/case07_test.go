package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/transport"
)

// windowLimit is the documented window of the requester at path MTU 1024: 1 MiB of
// payload (rc.Config.Window).
const windowLimit = 1 << 20 / 1024

// Case 07: the window of unacknowledged PSNs across FFFFFF.
func TestCase07_WindowAcrossWrap(t *testing.T) {
	const writes, packets = 64, 4
	for _, first := range []uint32{0xFFFFF0, 0xFFFFFF, 0x7FFFF0, 0x800000, 0x000000} {
		post := func(t *testing.T) (*lab, *conn, []*peer.Frame) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.SQPSN, o.Timeout = first, 0 })
			mr := l.mr(packets*1024, 0)
			for range writes {
				c.write(mr, packets*1024)
			}
			// P withholds its ACKs until the device pauses.
			return l, c, l.take()
		}
		bubble(t, fmt.Sprintf("%06x/one ACK at a time", first), func(t *testing.T) {
			l, c, sent := post(t)
			paused := len(sent)
			if paused == 0 || paused >= writes*packets || paused > windowLimit {
				t.Fatalf("pauses after %d packets, the window is at most %d", paused, windowLimit)
			}
			// The last packet of a full window must ask for an answer, or nothing would reopen it.
			want(t, "AckReq at the end of the window", sent[paused-1].AckReq, true)
			t.Logf("pauses after %d packets", paused)

			// The ACK before the first PSN changes nothing.
			c.gets(ack(first-1, 0))
			l.emits()
			c.sent()
			want(t, "drops", l.drops(), "stale-response=1")

			done := 0
			for acked := 1; acked <= writes*packets; acked++ {
				c.gets(ack(first+uint32(acked)-1, uint32(acked/packets)))
				more := l.take()
				sent = append(sent, more...)
				if flight := len(sent) - acked; flight > windowLimit {
					t.Fatalf("%d packets in flight", flight)
				}
				if len(more) == 0 && len(sent) < writes*packets {
					t.Fatalf("the ACK of packet %d does not reopen the window (%d sent)", acked, len(sent))
				}
				var ids []string
				for ; done < acked/packets; done++ {
					ids = append(ids, fmt.Sprintf("%d SUCCESS RDMA_WRITE %d", done+1, packets*1024))
				}
				c.sent(ids...)
				// And so does an old ACK in between.
				if acked%50 == 0 {
					c.gets(ack(first-1, 0), ack(first+uint32(acked)-2, 0))
					l.emits()
					c.sent()
				}
			}
			want(t, "packets", len(sent), writes*packets)
			for i, f := range sent {
				want(t, "psn", f.PSN, (first+uint32(i))&0xFFFFFF)
			}
			l.emits()
			l.counts("completer_retry_err=0", "local_ack_timeout_err=0")
		})
		bubble(t, fmt.Sprintf("%06x/one ACK across the wrap", first), func(t *testing.T) {
			l, c, sent := post(t)
			// ACK 000002 where the sequence starts at FFFFF0, the same distance elsewhere: it
			// completes every WRITE up to there.
			at := uint32(0x12)
			c.gets(ack(first+at, 0))
			n := int(at+1) / packets
			var ids []string
			for i := range n {
				ids = append(ids, fmt.Sprintf("%d SUCCESS RDMA_WRITE %d", i+1, packets*1024))
			}
			c.sent(ids...)
			more := l.take()
			if len(more) < int(at)+1 {
				t.Fatalf("%d packets follow an ACK of %d", len(more), at+1)
			}
			want(t, "next psn", more[0].PSN, (first+uint32(len(sent)))&0xFFFFFF)
		})
	}
}

// The window grows with every answer, up to what is documented and no further; it shrinks
// when packets are lost, and a full one always ends in a packet that asks for an answer.
func TestSendWindow(t *testing.T) {
	bubble(t, "grows to the documented size", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Timeout = 0 })
		mr := l.mr(1<<20, 0)
		for range 4 {
			c.write(mr, 1<<20)
		}
		sent, most := len(l.take()), 0
		for acked := 1; acked <= 1000; acked++ {
			c.gets(ack(0x100+uint32(acked)-1, 0))
			sent += len(l.take())
			most = max(most, sent-acked)
		}
		want(t, "packets in flight at most", most, windowLimit)
	})
	bubble(t, "shrinks with losses", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RetryCnt = 7 })
		c.write(l.mr(1<<20, 0), 1<<20)
		full := len(l.take())
		before := full
		for i := range 6 {
			first := l.p.Next(t)
			want(t, "again", first.PSN, 0x100)
			got := append([]*peer.Frame{first}, l.take()...)
			if len(got) > before || i == 5 && len(got) > full/8 {
				t.Fatalf("round %d: %d packets, %d before and %d first", i, len(got), before, full)
			}
			want(t, "AckReq at the end of the window", got[len(got)-1].AckReq, true)
			before = len(got)
		}
	})
	// What was sent before the loss is answered late: it is not sent again.
	bubble(t, "a late ACK beyond the retry", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, 0)
		for range 100 {
			c.write(mr, 8)
		}
		want(t, "sent", len(l.take()), 100)
		var again int
		for range 3 {
			l.p.Next(t)
			again = 1 + len(l.take())
		}
		if again >= 60 {
			t.Fatalf("%d packets in the third retry", again)
		}
		c.gets(ack(0x100+69, 70))
		got := l.take()
		if len(got) == 0 || got[0].PSN != 0x100+70 {
			t.Fatalf("after a late ACK of 70 packets: %v", briefs(got))
		}
		want(t, "completions", len(drain(c.scq)), 70)
		c.gets(ack(0x100+99, 100))
		want(t, "completions", len(drain(c.scq)), 30)
		l.take()
		l.p.ExpectSilence(t, time.Second)
	})
}

// bigMemory is 2^31 bytes that are nowhere.
type bigMemory struct{ transport.Memory }

func (bigMemory) Slices(dst [][]byte, _ uint64, n int) ([][]byte, bool) {
	return append(dst, make([]byte, n)), true
}

// Case 07, last line: never as many as 2^23 PSNs unanswered, READs included.
func TestCase07_FewerThan2to23(t *testing.T) {
	// Two READs that together would make 2^23: TestFewerThan2to23 in transport/rc, where the window
	// is no smaller bound.
	bubble(t, "a READ that can never fit", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.MTU = 256 })
		mr := must(l.pd.RegMemory(bigMemory{}, 0, 1<<31, device.LocalWrite))
		err := c.qp.PostSend(&device.SendWR{Op: device.OpRead, SGE: []device.SGE{{Length: 1 << 31, LKey: mr.LKey()}}})
		errno(t, err, device.EINVAL)
		l.emits()
		// One packet less does.
		c.post(device.SendWR{Op: device.OpRead, SGE: []device.SGE{{Length: 1<<31 - 256, LKey: mr.LKey()}}, RemoteAddr: remoteVA})
		l.emits("READ_REQUEST 000100 ar va=10000+2147483392")
	})
	bubble(t, "responder", func(t *testing.T) {
		// The distances at which a request is new, early or old: 2^23-1 ahead is a gap, 2^23
		// behind is a duplicate (rxe-lab.md 4).
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RQPSN = 0x000010 })
		c.recv(1, nil, 0)
		c.gets(peer.SendOnly(nicQP, 0x10+1<<23-1, nil))
		l.emits("ACKNOWLEDGE 000010 60 m0")
		c.gets(peer.SendOnly(nicQP, 0x10+1<<23, nil))
		l.emits("ACKNOWLEDGE 00000f 1f m0")
		c.received()
		want(t, "drops", l.drops(), "duplicate=1 out-of-sequence=1")
		c.gets(peer.SendOnly(nicQP, 0x10, nil))
		l.emits("ACKNOWLEDGE 000010 1f m1")
	})
}

// A response to a PSN that was never sent is dropped and counted (design.md 8;
// rxe takes it as an ACK of everything, rxe-lab.md S5).
func TestGhostResponse(t *testing.T) {
	bubble(t, "ghost", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SQPSN = 0xFFFFFF })
		mr := l.mr(4096, all)
		c.send(mr, 1)
		c.send(mr, 1)
		c.read(mr, 2048) // PSNs 1 and 2
		l.take()
		ghosts := []uint32{0x3, 0x4, 0x32, 0x7FFFFE}
		for _, psn := range ghosts {
			c.gets(ack(psn, 3), nak(psn, peer.SynNakSequence), nak(psn, peer.SynNakAccess), peer.RNRNak(nicQP, psn, 1, 0),
				peer.ReadRespOnly(nicQP, psn, 0, nil))
		}
		l.emits()
		c.sent()
		c.state(device.StateRTS)
		want(t, "drops", l.drops(), fmt.Sprintf("ghost-response=%d", 5*len(ghosts)))
		// The retransmission timer was not touched either.
		start := time.Now()
		f := l.p.Next(t)
		want(t, "retry", brief(f), "SEND_ONLY ffffff ar [1]")
		if d := time.Since(start); d > 4*ackTimeout(14) {
			t.Fatalf("retry after %v", d)
		}
	})
	bubble(t, "before anything was sent", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.gets(ack(0x100, 0), nak(0x100, peer.SynNakAccess), ack(0x101, 0))
		l.emits()
		c.state(device.StateRTS)
		want(t, "drops", l.drops(), "ghost-response=3")
		c.send(l.mr(1, all), 1)
		l.emits("SEND_ONLY 000100 ar [1]")
	})
}

// ackTimeout is T of roce.md B.8.
func ackTimeout(code int) time.Duration { return 4096 * time.Nanosecond << code }
