package cases

import (
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 11: an ACK that jumps over an outstanding READ is an implied NAK of the
// READ: it completes what is before the READ, and the READ is asked for again.
func TestCase11_AckBehindRead(t *testing.T) {
	for _, v := range []struct {
		name string
		jump *peer.Frame // what comes in place of the READ response
		n    int         // length of the READ
	}{
		{"ACK of the WRITE behind", ack(0x2A, 3), 16},
		{"ACK of the WRITE behind, READ of three packets", ack(0x2C, 3), 3000},
		{"ACK inside the READ", ack(0x29, 2), 16},
		{"ACK inside a READ of three packets", ack(0x2A, 2), 3000},
		{"ACK of the last packet of a READ of three", ack(0x2B, 2), 3000},
		{"sequence NAK of the WRITE behind", nak(0x2A, peer.SynNakSequence), 16},
		{"access NAK of the WRITE behind", nak(0x2A, peer.SynNakAccess), 16},
		{"RNR NAK of the WRITE behind", peer.RNRNak(nicQP, 0x2A, 1, 2), 16},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.SQPSN = 0x28 })
			mr := l.mr(8192, all)
			c.write(mr, 8)
			dst := l.mr(4096, all)
			c.read(dst, v.n)
			c.write(mr, 8)
			packets := uint32(v.n+1023) / 1024
			behind := 0x29 + packets
			out := l.take()
			want(t, "frames", len(out), 3)
			start := time.Now()
			c.gets(v.jump)
			// The WRITE in front completes; the READ does not, whatever the ACK's PSN. It is
			// asked for again, and the WRITE comes behind it.
			c.sent("1 SUCCESS RDMA_WRITE 8")
			again := l.take()
			want(t, "retry", len(again), 2)
			want(t, "first of it", brief(again[0]), brief(out[1]))
			want(t, "second of it", brief(again[1]), brief(out[2]))
			want(t, "waited", time.Since(start), 0)
			// A second such answer changes nothing: one retry, until something moves.
			c.gets(v.jump)
			l.emits()
			c.sent()
			c.state(device.StateRTS)
			l.counts("implied_nak_seq_err=1", "completer_retry_err=1", "drop_early-response=2")
			wantBytes(t, "READ buffer", dst.Bytes(), make([]byte, 4096))

			data := pattern(7, v.n)
			c.gets(readAnswer(0x29, 2, 1024, data)...)
			c.sent("2 SUCCESS RDMA_READ " + map[int]string{16: "16", 3000: "3000"}[v.n])
			wantBytes(t, "READ buffer", dst.Bytes()[:v.n], data)
			c.gets(ack(behind, 3))
			c.sent("3 SUCCESS RDMA_WRITE 8")
			l.emits()
		})
	}
	bubble(t, "retry at the timeout when the implied one is lost too", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SQPSN = 0x28 })
		mr := l.mr(8192, all)
		c.write(mr, 8)
		c.read(mr, 16)
		c.write(mr, 8)
		l.take()
		for range 3 {
			c.gets(ack(0x2A, 3))
			l.take()
		}
		c.sent("1 SUCCESS RDMA_WRITE 8")
		start := time.Now()
		want(t, "first", brief(l.p.Next(t)), "READ_REQUEST 000029 ar va=10000+16")
		want(t, "then", brief(l.p.Next(t)), "WRITE_ONLY 00002a ar va=10000+8 [8]")
		if d, tt := time.Since(start), ackTimeout(14); d < tt/2 || d > 4*tt {
			t.Fatalf("retry after %v, T is %v", d, tt)
		}
	})
	// A READ response behind the READ acknowledges what is before it, but not a READ.
	bubble(t, "two READs, the second answered", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SQPSN = 0x28 })
		mr := l.mr(8192, all)
		c.write(mr, 8)
		one, two := l.mr(16, all), l.mr(16, all)
		c.read(one, 16)
		c.read(two, 16)
		l.take()
		c.gets(peer.ReadRespOnly(nicQP, 0x2A, 3, pattern(2, 16)))
		l.emits("READ_REQUEST 000029 ar va=10000+16", "READ_REQUEST 00002a ar va=10000+16")
		c.sent("1 SUCCESS RDMA_WRITE 8")
		wantBytes(t, "second buffer", two.Bytes(), make([]byte, 16))
		c.gets(peer.ReadRespOnly(nicQP, 0x29, 2, pattern(1, 16)), peer.ReadRespOnly(nicQP, 0x2A, 3, pattern(2, 16)))
		c.sent("2 SUCCESS RDMA_READ 16", "3 SUCCESS RDMA_READ 16")
		wantBytes(t, "first buffer", one.Bytes(), pattern(1, 16))
		wantBytes(t, "second buffer", two.Bytes(), pattern(2, 16))
	})
	// READ responses acknowledge what is before them.
	bubble(t, "READ response acknowledges the WRITE before", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SQPSN = 0x28 })
		mr := l.mr(8192, all)
		c.write(mr, 8)
		c.read(mr, 16)
		l.take()
		c.gets(peer.ReadRespOnly(nicQP, 0x29, 2, pattern(2, 16)))
		c.sent("1 SUCCESS RDMA_WRITE 8", "2 SUCCESS RDMA_READ 16")
		l.emits()
	})
}
