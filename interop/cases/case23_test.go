package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 23, responder: WRITE with immediate and no receive, over and over. An RNR NAK
// leaves nothing behind.
func TestCase23_RNRStorm(t *testing.T) {
	bubble(t, "responder", func(t *testing.T) {
		const times = 10_000
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.MinRNR = 1 })
		mr := l.mr(64, all)
		write := func(psn uint32, s string) *peer.Frame {
			return peer.WriteOnlyImm(nicQP, psn, mr.Addr(), mr.RKey(), 0x89ABCDEF, []byte(s))
		}
		first := write(0x200, "data")
		for range times {
			c.gets(first)
			l.emits("ACKNOWLEDGE 000200 21 m0")
		}
		c.received()
		wantBytes(t, "target", mr.Bytes()[:4], make([]byte, 4))
		c.recv(1, nil, 0)
		c.gets(first)
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received("1 SUCCESS RECV_RDMA_WITH_IMM 4 imm=89abcdef")
		wantBytes(t, "target", mr.Bytes()[:4], []byte("data"))
		c.received() // exactly one
		c.recv(2, nil, 0)

		// The memory is not pinned.
		start := time.Now()
		if err := mr.Dereg(); err != nil {
			t.Fatalf("dereg_mr: %v", err)
		}
		want(t, "dereg_mr waited", time.Since(start), 0)

		// The case has the new WRITE first and the repeated one then; the connection is in
		// ERR after the NAK and hears nothing any more, so here it is asked before
		// and after.
		c.gets(first)
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received()
		c.gets(write(0x201, "new"))
		l.emits("ACKNOWLEDGE 000201 62 m1")
		c.received("2 REM_ACCESS_ERR") // design.md 8: with an immediate the receive that is held tells
		c.state(device.StateErr)
		l.events()
		c.gets(first)
		l.emits()
		l.counts(fmt.Sprintf("send_rnr_err=%d", times), fmt.Sprintf("out_of_buffer=%d", times), "drop_qp-state=1")
	})
	bubble(t, "dereg_mr straight after an RNR NAK", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.gets(peer.WriteOnlyImm(nicQP, 0x200, mr.Addr(), mr.RKey(), 1, []byte("data")))
		l.emits("ACKNOWLEDGE 000200 2c m0")
		start := time.Now()
		if err := mr.Dereg(); err != nil {
			t.Fatalf("dereg_mr: %v", err)
		}
		want(t, "dereg_mr waited", time.Since(start), 0)
	})
	bubble(t, "responder/several packets", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.MinRNR = 1 })
		mr := l.mr(4096, all)
		data := pattern(4, 3000)
		last := peer.WriteLastImm(nicQP, 0x202, 7, data[2048:])
		c.gets(peer.WriteFirst(nicQP, 0x200, mr.Addr(), mr.RKey(), 3000, data[:1024]))
		l.emits()
		c.gets(peer.WriteMiddle(nicQP, 0x201, data[1024:2048]))
		l.emits()
		c.gets(last)
		l.emits("ACKNOWLEDGE 000202 21 m0")
		c.gets(last)
		l.emits("ACKNOWLEDGE 000202 21 m0")
		c.recv(1, nil, 0)
		c.gets(last)
		l.emits("ACKNOWLEDGE 000202 1f m1")
		c.received("1 SUCCESS RECV_RDMA_WITH_IMM 3000 imm=00000007")
		wantBytes(t, "target", mr.Bytes()[:3000], data)
	})
}

// Case 23, requester: only the packet that met the RNR NAK, and what follows, is sent again.
func TestCase23_OnlyLastAgain(t *testing.T) {
	bubble(t, "requester", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(4096, all)
		id := c.post(device.SendWR{Op: device.OpWriteImm, SGE: sge(mr, 3000), RemoteAddr: remoteVA, RKey: remoteKey, Imm: 7})
		c.send(mr, 0)
		l.emits("WRITE_FIRST 000100 va=10000+3000 [1024]", "WRITE_MIDDLE 000101 [1024]", "WRITE_LAST_IMM 000102 ar imm=00000007 [952]", "SEND_ONLY 000103 ar")
		for range 3 {
			start := time.Now()
			c.gets(peer.RNRNak(nicQP, 0x102, 1, 0))
			want(t, "again", brief(l.p.Next(t)), "WRITE_LAST_IMM 000102 ar imm=00000007 [952]")
			if d := time.Since(start); d < 10*time.Microsecond {
				t.Fatalf("waited %v", d)
			}
			want(t, "behind it", brief(l.p.Next(t)), "SEND_ONLY 000103 ar")
		}
		c.gets(ack(0x102, 1))
		c.sent(fmt.Sprintf("%d SUCCESS RDMA_WRITE 3000", id))
	})
}
