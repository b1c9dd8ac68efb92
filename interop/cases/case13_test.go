package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 13, requester: a READ goes on after partial data.
func TestCase13_ReadResumed(t *testing.T) {
	data := pattern(11, 4096)
	part := func(i int) []byte { return data[i*1024 : (i+1)*1024] }
	setup := func(t *testing.T) (*lab, *conn, *device.MR) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(4096, all)
		copy(mr.Bytes(), filled(0xFF, 4096))
		c.read(mr, 4096)
		l.emits("READ_REQUEST 000100 ar va=10000+4096")
		return l, c, mr
	}
	const va = remoteVA
	done := func(l *lab, c *conn, mr *device.MR) {
		c.sent("1 SUCCESS RDMA_READ 4096")
		wantBytes(l.t, "what was read", mr.Bytes(), data)
		l.emits()
		c.sent()
		c.state(device.StateRTS)
		want(l.t, "drops", l.drops(), "")
	}
	retry := func(l *lab, psn uint32, left int) {
		f := l.p.Next(l.t)
		want(l.t, "retry", brief(f), fmt.Sprintf("READ_REQUEST %06x ar va=%x+%d", psn, va+4096-left, left))
		want(l.t, "rkey", f.RETH.RKey, remoteKey)
	}

	// The answer to the retry, from 102 on, in every way that a responder may begin it:
	// adapters with FIRST, rxe with MIDDLE (rxe-lab.md C4).
	for _, v := range []struct {
		name   string
		answer []*peer.Frame
	}{
		{"FIRST LAST", []*peer.Frame{peer.ReadRespFirst(nicQP, 0x102, 1, part(2)), peer.ReadRespLast(nicQP, 0x103, 1, part(3))}},
		{"MIDDLE LAST", []*peer.Frame{peer.ReadRespMiddle(nicQP, 0x102, part(2)), peer.ReadRespLast(nicQP, 0x103, 1, part(3))}},
		{"FIRST ONLY", []*peer.Frame{peer.ReadRespFirst(nicQP, 0x102, 1, part(2)), peer.ReadRespOnly(nicQP, 0x103, 1, part(3))}},
	} {
		bubble(t, "requester/silence after two of four/"+v.name, func(t *testing.T) {
			l, c, mr := setup(t)
			c.gets(peer.ReadRespFirst(nicQP, 0x100, 1, part(0)), peer.ReadRespMiddle(nicQP, 0x101, part(1)))
			l.emits()
			retry(l, 0x102, 2048)
			c.gets(v.answer...)
			done(l, c, mr)
		})
	}
	for _, op := range []peer.Op{peer.OpReadRespOnly, peer.OpReadRespLast} { // ONLY; LAST as rxe
		bubble(t, fmt.Sprintf("requester/only 103 missing/%v", op), func(t *testing.T) {
			l, c, mr := setup(t)
			c.gets(peer.ReadRespFirst(nicQP, 0x100, 1, part(0)), peer.ReadRespMiddle(nicQP, 0x101, part(1)), peer.ReadRespMiddle(nicQP, 0x102, part(2)))
			l.emits()
			retry(l, 0x103, 1024)
			c.gets(peer.ReadRespOnly(nicQP, 0x103, 1, part(3)).With(func(f *peer.Frame) { f.Op = op }))
			done(l, c, mr)
		})
	}
	bubble(t, "requester/retry twice", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(peer.ReadRespFirst(nicQP, 0x100, 1, part(0)))
		l.emits()
		retry(l, 0x101, 3072)
		c.gets(peer.ReadRespFirst(nicQP, 0x101, 1, part(1)))
		retry(l, 0x102, 2048)
		retry(l, 0x102, 2048) // no answer at all
		c.gets(peer.ReadRespFirst(nicQP, 0x102, 1, part(2)), peer.ReadRespLast(nicQP, 0x103, 1, part(3)))
		done(l, c, mr)
		l.counts("local_ack_timeout_err=3", "completer_retry_err=3")
	})
	// Nothing came: the whole READ again, and its answer begins with FIRST.
	bubble(t, "requester/nothing came", func(t *testing.T) {
		l, c, mr := setup(t)
		retry(l, 0x100, 4096)
		c.gets(readAnswer(0x100, 1, 1024, data)...)
		done(l, c, mr)
	})

	// A gap: what is behind it is not stored, and what is missing is asked for at once
	// (design.md 8: from the first missing PSN).
	bubble(t, "requester/gap", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(peer.ReadRespFirst(nicQP, 0x100, 1, part(0)), peer.ReadRespMiddle(nicQP, 0x102, filled(0xAA, 1024)))
		l.emits("READ_REQUEST 000101 ar va=10400+3072")
		wantBytes(t, "behind the gap", mr.Bytes()[1024:], filled(0xFF, 3072))
		// The rest of the first answer is still on its way.
		c.gets(peer.ReadRespLast(nicQP, 0x103, 1, filled(0xAA, 1024)))
		l.emits()
		wantBytes(t, "behind the gap", mr.Bytes()[1024:], filled(0xFF, 3072))
		c.gets(peer.ReadRespFirst(nicQP, 0x101, 1, part(1)), peer.ReadRespMiddle(nicQP, 0x102, part(2)), peer.ReadRespLast(nicQP, 0x103, 1, part(3)))
		c.sent("1 SUCCESS RDMA_READ 4096")
		wantBytes(t, "what was read", mr.Bytes(), data)
		want(t, "drops", l.drops(), "early-response=2")
		l.counts("implied_nak_seq_err=1")
	})
	bubble(t, "requester/two gaps", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(peer.ReadRespFirst(nicQP, 0x100, 1, part(0)), peer.ReadRespMiddle(nicQP, 0x102, part(2)))
		l.emits("READ_REQUEST 000101 ar va=10400+3072")
		// The answer to that has a gap too: each gap is asked for at once, when something has
		// come in between.
		c.gets(peer.ReadRespFirst(nicQP, 0x101, 1, part(1)), peer.ReadRespLast(nicQP, 0x103, 1, part(3)))
		l.emits("READ_REQUEST 000102 ar va=10800+2048")
		c.gets(peer.ReadRespFirst(nicQP, 0x102, 1, part(2)), peer.ReadRespLast(nicQP, 0x103, 1, part(3)))
		c.sent("1 SUCCESS RDMA_READ 4096")
		wantBytes(t, "what was read", mr.Bytes(), data)
		l.counts("implied_nak_seq_err=2")
	})
	// After a retry the requester takes any opcode that fits the position (design.md 8), also
	// at the first packet.
	bubble(t, "requester/nothing came, MIDDLE first", func(t *testing.T) {
		l, c, mr := setup(t)
		retry(l, 0x100, 4096)
		answer := readAnswer(0x100, 1, 1024, data)
		answer[0].Op = peer.OpReadRespMiddle
		c.gets(answer...)
		done(l, c, mr)
	})
	bubble(t, "requester/nothing came, LAST alone", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(8, all)
		c.read(mr, 8)
		l.take()
		want(t, "retry", brief(l.p.Next(t)), "READ_REQUEST 000100 ar va=10000+8")
		c.gets(peer.ReadRespLast(nicQP, 0x100, 1, part(0)[:8]))
		c.sent("1 SUCCESS RDMA_READ 8")
		wantBytes(t, "what was read", mr.Bytes(), part(0)[:8])
	})
	// The answers to the first request were late and not lost: they and those to the retry
	// come together. Nothing is stored twice or at the wrong place, and nothing fails.
	bubble(t, "requester/late answers", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(peer.ReadRespFirst(nicQP, 0x100, 1, part(0)))
		l.emits()
		retry(l, 0x101, 3072)
		c.gets(peer.ReadRespMiddle(nicQP, 0x101, part(1)), peer.ReadRespMiddle(nicQP, 0x102, part(2)))
		c.gets(peer.ReadRespFirst(nicQP, 0x101, 1, filled(0xAA, 1024)), peer.ReadRespMiddle(nicQP, 0x102, filled(0xAA, 1024)))
		c.gets(peer.ReadRespLast(nicQP, 0x103, 1, part(3)))
		c.gets(peer.ReadRespLast(nicQP, 0x103, 1, filled(0xAA, 1024)))
		c.sent("1 SUCCESS RDMA_READ 4096")
		wantBytes(t, "what was read", mr.Bytes(), data)
		l.emits()
		want(t, "drops", l.drops(), "stale-response=3")
	})

	// Opcodes that cannot stand where they do: BAD_RESP_ERR (design.md 8), and the packet is
	// not stored.
	bad := filled(0xAA, 1024)
	for _, v := range []struct {
		name string
		good int // packets of the answer that came before
		f    *peer.Frame
	}{
		{"MIDDLE first", 0, peer.ReadRespMiddle(nicQP, 0x100, bad)},
		{"LAST first", 0, peer.ReadRespLast(nicQP, 0x100, 1, bad)},
		{"ONLY first", 0, peer.ReadRespOnly(nicQP, 0x100, 1, bad)},
		{"FIRST again", 1, peer.ReadRespFirst(nicQP, 0x101, 1, bad)},
		{"ONLY in the middle", 1, peer.ReadRespOnly(nicQP, 0x101, 1, bad)},
		{"LAST too early", 2, peer.ReadRespLast(nicQP, 0x102, 1, bad)},
		{"MIDDLE at the end", 3, peer.ReadRespMiddle(nicQP, 0x103, bad)},
		{"FIRST at the end", 3, peer.ReadRespFirst(nicQP, 0x103, 1, bad)},
		{"ONLY at the end", 3, peer.ReadRespOnly(nicQP, 0x103, 1, bad)},
		{"FIRST short", 0, peer.ReadRespFirst(nicQP, 0x100, 1, bad[:1020])},
		{"FIRST long", 0, peer.ReadRespFirst(nicQP, 0x100, 1, filled(0xAA, 1028))},
		{"LAST short", 3, peer.ReadRespLast(nicQP, 0x103, 1, bad[:1000])},
		{"LAST empty", 3, peer.ReadRespLast(nicQP, 0x103, 1, nil)},
		{"LAST long", 3, peer.ReadRespLast(nicQP, 0x103, 1, filled(0xAA, 1028))},
		{"LAST with a NAK in it", 3, peer.ReadRespLast(nicQP, 0x103, 1, bad).With(func(f *peer.Frame) { f.AETH.Syndrome = peer.SynNakAccess })},
		{"FIRST with an RNR NAK in it", 0, peer.ReadRespFirst(nicQP, 0x100, 1, bad).With(func(f *peer.Frame) { f.AETH.Syndrome = peer.RNR(1) })},
		{"ATOMIC ACK", 0, peer.AtomicAck(nicQP, 0x100, 1, 5)},
	} {
		bubble(t, "requester/wrong/"+v.name, func(t *testing.T) {
			l, c, mr := setup(t)
			c.send(mr, 1) // a request behind it
			l.take()
			c.gets(readAnswer(0x100, 1, 1024, data)[:v.good]...)
			c.gets(v.f)
			c.sent("1 BAD_RESP_ERR", "2 WR_FLUSH_ERR")
			c.state(device.StateErr)
			l.emits()
			wantBytes(t, "what came before", mr.Bytes()[:v.good*1024], data[:v.good*1024])
			wantBytes(t, "the rest", mr.Bytes()[v.good*1024:], filled(0xFF, 4096-v.good*1024))
			want(t, "drops", l.drops(), "bad-response=1")
			l.counts("req_cqe_error=1")
			l.events()
		})
	}
	// A local buffer that cannot be written: LOC_PROT_ERR, and no byte outside.
	bubble(t, "requester/local buffer gone", func(t *testing.T) {
		l, c, mr := setup(t)
		c.gets(readAnswer(0x100, 1, 1024, data)[:2]...)
		l.settle()
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		c.gets(readAnswer(0x100, 1, 1024, data)[2:]...)
		c.sent("1 LOC_PROT_ERR")
		c.state(device.StateErr)
		wantBytes(t, "the rest", mr.Bytes()[2048:], filled(0xFF, 2048))
	})
}

// Case 13, responder: duplicates of a READ, whole and in part.
func TestCase13_ReadReplay(t *testing.T) {
	setup := func(t *testing.T) (*lab, *conn, *device.MR) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RQPSN, o.Resp = 0x100, 4 })
		mr := l.mr(8192, all)
		copy(mr.Bytes(), pattern(12, 8192))
		c.gets(peer.ReadRequest(nicQP, 0x100, mr.Addr(), mr.RKey(), 4096))
		got := l.emits("READ_RESPONSE_FIRST 000100 1f m1 [1024]", "READ_RESPONSE_MIDDLE 000101 [1024]",
			"READ_RESPONSE_MIDDLE 000102 [1024]", "READ_RESPONSE_LAST 000103 1f m1 [1024]")
		wantBytes(t, "answer", payloads(got), mr.Bytes()[:4096])
		return l, c, mr
	}
	dup := func(mr *device.MR, psn uint32, off, n int) *peer.Frame {
		return peer.ReadRequest(nicQP, psn, mr.Addr()+uint64(off), mr.RKey(), uint32(n))
	}
	for _, v := range []struct {
		name   string
		psn    uint32
		off, n int
		want   []string
	}{
		{"whole", 0x100, 0, 4096, []string{"READ_RESPONSE_FIRST 000100 1f m1 [1024]", "READ_RESPONSE_MIDDLE 000101 [1024]",
			"READ_RESPONSE_MIDDLE 000102 [1024]", "READ_RESPONSE_LAST 000103 1f m1 [1024]"}},
		{"from 101", 0x101, 1024, 3072, []string{"READ_RESPONSE_FIRST 000101 1f m1 [1024]", "READ_RESPONSE_MIDDLE 000102 [1024]", "READ_RESPONSE_LAST 000103 1f m1 [1024]"}},
		{"from 102", 0x102, 2048, 2048, []string{"READ_RESPONSE_FIRST 000102 1f m1 [1024]", "READ_RESPONSE_LAST 000103 1f m1 [1024]"}},
		{"from 103", 0x103, 3072, 1024, []string{"READ_RESPONSE_ONLY 000103 1f m1 [1024]"}},
		{"a part in the middle", 0x101, 1024, 2048, []string{"READ_RESPONSE_FIRST 000101 1f m1 [1024]", "READ_RESPONSE_LAST 000102 1f m1 [1024]"}},
		{"less than a packet", 0x101, 1024, 100, []string{"READ_RESPONSE_ONLY 000101 1f m1 [100]"}},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l, c, mr := setup(t)
			for range 2 { // and again: rxe answers an earlier address never again (rxe-lab.md C4); softnic does
				c.gets(dup(mr, v.psn, v.off, v.n))
				got := l.emits(v.want...)
				wantBytes(t, "answer", payloads(got), mr.Bytes()[v.off:v.off+v.n])
			}
			c.gets(dup(mr, 0x100, 0, 4096))
			wantBytes(t, "whole", payloads(l.take()), mr.Bytes()[:4096])
			// ePSN and MSN stay.
			c.gets(peer.WriteOnly(nicQP, 0x104, 0, 0, nil))
			l.emits("ACKNOWLEDGE 000104 1f m2")
			l.counts("duplicate_request=3", "rx_read_requests=1")
			want(t, "drops", l.drops(), "duplicate=3")
		})
	}
	for _, v := range []struct {
		name string
		f    func(mr *device.MR) *peer.Frame
	}{
		{"longer than the original", func(mr *device.MR) *peer.Frame { return dup(mr, 0x100, 0, 4097) }},
		{"beyond its end", func(mr *device.MR) *peer.Frame { return dup(mr, 0x102, 2048, 2049) }},
		{"before its start", func(mr *device.MR) *peer.Frame { return dup(mr, 0x100, -1, 4096) }},
		{"another address", func(mr *device.MR) *peer.Frame { return dup(mr, 0x100, 1024, 1024) }},
		{"address of another PSN", func(mr *device.MR) *peer.Frame { return dup(mr, 0x101, 2048, 1024) }},
		{"whole at a later PSN", func(mr *device.MR) *peer.Frame { return dup(mr, 0x101, 0, 4096) }},
		{"another key", func(mr *device.MR) *peer.Frame {
			return dup(mr, 0x100, 0, 4096).With(func(f *peer.Frame) { f.RETH.RKey ^= 0x100 })
		}},
		{"a PSN that no READ had", func(mr *device.MR) *peer.Frame { return dup(mr, 0xFF, 0, 1024) }},
		{"with a payload", func(mr *device.MR) *peer.Frame {
			return dup(mr, 0x100, 0, 4096).With(func(f *peer.Frame) { f.Payload = []byte("1234") })
		}},
	} {
		bubble(t, "dropped/"+v.name, func(t *testing.T) {
			l, c, mr := setup(t)
			c.gets(v.f(mr))
			l.emits()
			c.state(device.StateRTS)
			want(t, "drops", l.drops(), "duplicate-unserved=1")
			l.events()
		})
	}
	bubble(t, "the last max_dest_rd_atomic READs are kept", func(t *testing.T) {
		l, c, mr := setup(t)
		for i := range uint32(4) {
			c.gets(dup(mr, 0x104+i, int(i), 1))
			l.emits(fmt.Sprintf("READ_RESPONSE_ONLY %06x 1f m%d [1]", 0x104+i, 2+i))
		}
		c.gets(dup(mr, 0x100, 0, 4096)) // five ago
		l.emits()
		want(t, "drops", l.drops(), "duplicate-unserved=1")
		for i := range uint32(4) {
			c.gets(dup(mr, 0x104+i, int(i), 1))
			got := l.emits(fmt.Sprintf("READ_RESPONSE_ONLY %06x 1f m5 [1]", 0x104+i))
			wantBytes(t, "answer", got[0].Payload, mr.Bytes()[i:i+1])
		}
	})
	bubble(t, "the key is looked up again", func(t *testing.T) {
		l, c, mr := setup(t)
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
		c.gets(dup(mr, 0x102, 2048, 2048))
		l.emits("ACKNOWLEDGE 000102 62 m1")
		c.state(device.StateErr)
		l.events("QP_ACCESS_ERR")
	})
	// A duplicate while the answer to the first is still being sent: what is on its way is
	// not sent twice.
	bubble(t, "READ twice in one batch", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: 1})
		c := l.rc(func(o *rcOptions) { o.RQPSN = 0x100 })
		mr := l.mr(8192, all)
		c.gets(dup(mr, 0x100, 0, 3000), dup(mr, 0x100, 0, 3000), dup(mr, 0x101, 1024, 3000-1024))
		l.emits("READ_RESPONSE_FIRST 000100 1f m1 [1024]", "READ_RESPONSE_MIDDLE 000101 [1024]", "READ_RESPONSE_LAST 000102 1f m1 [952]")
		want(t, "drops", l.drops(), "duplicate=2")
	})
}
