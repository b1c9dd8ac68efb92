//go:build linux

package stock

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// TestFullQueues posts to queues that have no room: ENOMEM, and what was posted before is done, in its order.
func TestFullQueues(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		const size = 16
		near, far := a.regMR(1<<16, everyAccess), b.regMR(1<<16, everyAccess)
		q, p := a.createQP("RC"), b.createQP("RC")
		connect(q, p, path{mtu: 1024, rnrRetry: 7})
		pattern := seeded(3, 1<<16)
		near.write(0, pattern)

		// Nobody receives, so that nothing ends.
		n := 0
		for ; n < 1000; n++ {
			f := q.trySend(sendWR{id: uint64(n), op: "SEND", sge: []sge{near.sge(n*size, size)}})
			if f.Errno == int(syscall.ENOMEM) {
				break
			}
			if f.Error != "" {
				t.Fatalf("request %d: %+v", n, f)
			}
		}
		if n < depth {
			t.Errorf("%d requests were taken, the queue was made for %d", n, depth)
		}
		m := 0
		for ; m < 1000; m++ {
			f := b.try(nil, "post_recv", args{"qp": p.ID, "wr_id": m, "sge": []sge{far.sge(m*size, size)}})
			if f.Errno == int(syscall.ENOMEM) {
				break
			}
			if f.Error != "" {
				t.Fatalf("receive %d: %+v", m, f)
			}
			if m > 0 {
				continue
			}
			// The first message was received: there is room for one.
			statuses(t, "the first", q.sent(1), [2]int{0, success})
			q.send(sendWR{id: uint64(n), op: "SEND", sge: []sge{near.sge(n*size, size)}})
		}
		if m < depth {
			t.Errorf("%d receives were taken, the queue was made for %d", m, depth)
		}
		for i := 1; i <= n; i++ {
			if i > m-1 {
				p.recv(uint64(i), far.sge(i*size, size))
			}
			statuses(t, "in order", q.sent(1), [2]int{i, success})
		}
		for i := 0; i <= n; i++ {
			statuses(t, "in order", p.received(1), [2]int{i, success})
		}
		same(t, "messages", far.read(0, (n+1)*size), pattern[:(n+1)*size])
		q.destroy()
		p.destroy()
	})
}

// TestInline has data that goes with the request: it is taken at once, as much as was asked for, and no more.
func TestInline(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		const most = 100
		for _, typ := range []string{"RC", "UC"} {
			q := a.createQPWith(typ, a.create("create_cq", args{"depth": 64}), a.create("create_cq", args{"depth": 64}), args{"sge": 1, "inline": most})
			p := b.createQP(typ)
			connectAs(typ, q, p, path{mtu: 1024, rnrRetry: 7})
			var made struct{ Caps [5]int }
			a.call(&made, "query", args{"qp": q.ID})
			room := made.Caps[4]
			if room < most {
				t.Errorf("%s: %d bytes inline are possible, asked for %d", typ, room, most)
			}
			for _, size := range []int{0, 1, most, room} {
				pattern := seeded(uint64(size+1), size)
				near.write(0, pattern)
				far.write(0, make([]byte, 4096))
				p.recv(1, far.sge(0, 4096))
				// The key is not looked at.
				q.send(sendWR{id: 2, op: "SEND", flags: inlineData, sge: []sge{{near.Addr, uint64(size), 0xBAD}}})
				near.write(0, make([]byte, room))
				statuses(t, "inline", q.sent(1), [2]int{2, success})
				if wc := p.received(1)[0]; wc.Status != success || wc.ByteLen != size {
					t.Fatalf("%s: %d bytes inline: the receiver's %+v", typ, size, wc)
				}
				same(t, fmt.Sprint(size, " bytes inline"), far.read(0, size+16), append(pattern, make([]byte, 16)...))
			}
			for _, l := range [][]sge{{near.sge(0, room+1)}, {near.sge(0, 1<<31)}} {
				if f := q.trySend(sendWR{id: 3, op: "SEND", flags: inlineData, sge: l}); f.Errno != int(syscall.EINVAL) {
					t.Errorf("%s: %d bytes inline: %+v, want errno %d (EINVAL)", typ, l[0][1], f, syscall.EINVAL)
				}
			}
			// More entries than it was made for.
			l := make([]sge, 64)
			for i := range l {
				l[i] = near.sge(i, 1)
			}
			if f := q.trySend(sendWR{id: 3, op: "SEND", sge: l}); f.Errno != int(syscall.EINVAL) {
				t.Errorf("%s: %d entries: %+v, want errno %d (EINVAL)", typ, len(l), f, syscall.EINVAL)
			}
			if f := b.try(nil, "post_recv", args{"qp": p.ID, "wr_id": 1, "sge": l}); f.Errno != int(syscall.EINVAL) {
				t.Errorf("%s: a receive of %d entries: %+v, want errno %d (EINVAL)", typ, len(l), f, syscall.EINVAL)
			}
			q.destroy()
			p.destroy()
		}
	})
}

// TestAsyncEvents has events that tests of something else have not, each once.
func TestAsyncEvents(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)

		t.Run("communication established", func(t *testing.T) {
			q, p := a.createQP("RC"), b.createQP("RC")
			q.init()
			p.init()
			p.modify("RTR", args{"ah_attr": args{"dgid": a.d.gid()}, "path_mtu": 3, "dest_qp_num": q.QPN, "rq_psn": 9, "max_dest_rd_atomic": 1, "min_rnr_timer": 1})
			q.connect(p, 9, 9, path{mtu: 1024, rnrRetry: 7, timeout: 14})
			p.recv(1, far.sge(0, 64))
			b.quiet("nothing came")
			near.write(0, []byte("hello"))
			q.send(sendWR{id: 2, op: "SEND", sge: []sge{near.sge(0, 5)}})
			statuses(t, "receive in RTR", p.received(1), [2]int{1, success})
			if e := b.event(); e != eventCommEst {
				t.Errorf("asynchronous event %d, want %d (COMM_EST)", e, eventCommEst)
			}
			same(t, "message", far.read(0, 5), []byte("hello"))
			statuses(t, "send", q.sent(1), [2]int{2, success})
			p.modify("RTS", args{"sq_psn": 9, "max_rd_atomic": 1, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7})
			q.send(sendWR{id: 3, op: "RDMA_WRITE", sge: []sge{near.sge(0, 5)}, remoteAddr: far.Addr, rkey: far.RKey})
			statuses(t, "WRITE", q.sent(1), [2]int{3, success})
			b.quiet("a second message")
			q.destroy()
			p.destroy()
		})

		t.Run("request error", func(t *testing.T) {
			q, p := a.createQP("RC"), b.createQP("RC")
			q.init()
			p.init()
			p.modify("RTR", args{"ah_attr": args{"dgid": a.d.gid()}, "path_mtu": 3, "dest_qp_num": q.QPN, "rq_psn": 9, "max_dest_rd_atomic": 0, "min_rnr_timer": 1})
			p.modify("RTS", args{"sq_psn": 9, "max_rd_atomic": 1, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7})
			q.connect(p, 9, 9, path{mtu: 1024, rnrRetry: 7})
			q.send(sendWR{id: 1, op: "RDMA_READ", sge: []sge{near.sge(0, 8)}, remoteAddr: far.Addr, rkey: far.RKey})
			statuses(t, "READ of one that serves none", q.sent(1), [2]int{1, remoteInvalid})
			if e := b.event(); e != eventQPReqErr {
				t.Errorf("asynchronous event %d, want %d (QP_REQ_ERR)", e, eventQPReqErr)
			}
			b.quiet("a request error")
			a.quiet("a NAK, which has a completion")
			q.destroy()
			p.destroy()
		})

		t.Run("completion queue overflow", func(t *testing.T) {
			// Case 45. Two queue pairs on a queue that nobody polls.
			cq := a.create("create_cq", args{"depth": 4})
			rcq := a.create("create_cq", args{"depth": 4})
			var q, p [2]*queuePair
			for i := range q {
				q[i], p[i] = a.createQPOn("RC", cq, rcq), b.createQP("RC")
				connect(q[i], p[i], path{mtu: 1024, rnrRetry: 7})
			}
			n := 0
			for ; q[0].state() == "RTS"; n++ {
				if n > 100 {
					t.Fatal("100 completions are in a queue for 4")
				}
				near.setWord(0, uint64(n))
				q[0].send(sendWR{id: uint64(n), op: "RDMA_WRITE", sge: []sge{near.sge(0, 8)}, remoteAddr: far.Addr + uint64(8*n), rkey: far.RKey})
				eventually(t, "the WRITE, or its error", func() bool { return far.word(8*n) == uint64(n) || q[0].state() != "RTS" })
				time.Sleep(5 * time.Millisecond) // for the completion
			}
			got := map[int]int{a.event(): 1}
			got[a.event()]++
			if got[eventCQErr] != 1 || got[eventQPFatal] != 1 {
				t.Errorf("asynchronous events %v, want one each of %d (CQ_ERR) and %d (QP_FATAL)", got, eventCQErr, eventQPFatal)
			}
			a.quiet("an overflow")
			// What there was room for is there, in its order.
			var kept struct{ WCs []completion }
			a.call(&kept, "poll", args{"cq": cq, "count": n, "limit": 0})
			var want [][2]int
			for i := range kept.WCs {
				want = append(want, [2]int{i, success})
			}
			if len(want) < 4 || len(want) >= n {
				t.Errorf("%d completions of %d were kept, the queue was made for 4", len(want), n)
			}
			statuses(t, "before the overflow", kept.WCs, want...)
			ids := []int{}
			for i := range q {
				ids = append(ids, q[i].ID)
				p[i].destroy()
			}
			a.call(nil, "destroy", args{"ids": append(ids, cq, rcq)})
			a.quiet("in the end")
		})

		t.Run("solicited and errors", func(t *testing.T) {
			channel := b.create("create_channel", nil)
			scq, rcq := b.create("create_cq", args{"depth": 64}), b.create("create_cq", args{"depth": 64, "channel": channel})
			q, p := a.createQP("RC"), b.createQPOn("RC", scq, rcq)
			connect(q, p, path{mtu: 1024, rnrRetry: 7})
			b.call(nil, "arm", args{"cq": rcq, "solicited": true})
			for i, op := range []string{"SEND", "SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM"} {
				for _, flags := range []int{0, solicited} {
					p.recv(uint64(i), far.sge(0, 64))
					q.send(sendWR{id: uint64(i), op: op, flags: flags, sge: []sge{near.sge(0, 8)}, remoteAddr: far.Addr, rkey: far.RKey})
					statuses(t, op, q.sent(1), [2]int{i, success})
					statuses(t, op, p.received(1), [2]int{i, success})
					if flags == 0 {
						b.quiet(op + ", not solicited")
						continue
					}
					b.call(nil, "get_event", args{"channel": channel, "cq": rcq})
					b.quiet(op)
					b.call(nil, "arm", args{"cq": rcq, "solicited": true})
				}
			}
			p.recv(9, far.sge(0, 64))
			p.modify("ERR", args{})
			b.call(nil, "get_event", args{"channel": channel, "cq": rcq})
			statuses(t, "flushed", p.received(1), [2]int{9, flushed})
			b.call(nil, "destroy", args{"ids": []int{p.ID, rcq, scq, channel}})
			q.destroy()
		})
	})
}

// TestReply answers datagrams to where they came from: ibv_create_ah_from_wc, with the GRH of the receive.
func TestReply(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		const qkey, grh = 0x22, 40
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		q, p := a.createQP("UD"), b.createQP("UD")
		q.datagrams(qkey)
		p.datagrams(qkey)
		there := a.create("create_ah", args{"dgid": b.d.gid(), "traffic_class": 0x40, "hop_limit": 9})
		for i := range 3 {
			pattern := seeded(uint64(i), 500+i)
			near.write(0, pattern)
			far.write(0, make([]byte, 1000))
			p.recv(1, far.sge(0, 1000))
			q.recv(2, near.sge(1000, 1000))
			q.send(sendWR{id: 3, op: "SEND", sge: []sge{near.sge(0, len(pattern))}, ah: &there, remoteQPN: p.QPN, qkey: qkey})
			statuses(t, "there", q.sent(1), [2]int{3, success})
			wc := p.received(1)[0]
			if wc.Status != success || wc.SrcQP != q.QPN {
				t.Fatalf("there: %+v", wc)
			}
			back := b.create("reply_ah", args{"grh": far.Addr})
			p.send(sendWR{id: 4, op: "SEND", sge: []sge{far.sge(grh, len(pattern))}, ah: &back, remoteQPN: wc.SrcQP, qkey: qkey})
			statuses(t, "back", p.sent(1), [2]int{4, success})
			if wc := q.received(1)[0]; wc.Status != success || wc.SrcQP != p.QPN || wc.ByteLen != grh+len(pattern) {
				t.Fatalf("back: %+v", wc)
			}
			same(t, "there and back", near.read(1000+grh, len(pattern)), pattern)
			header := near.read(1000, grh)
			if src, dst := netip.AddrFrom4([4]byte(header[32:36])), netip.AddrFrom4([4]byte(header[36:40])); src.String() != b.d.addr || dst.String() != a.d.addr {
				t.Errorf("back from %v to %v", src, dst)
			}
			b.call(nil, "destroy", args{"ids": []int{back}})
		}
		q.destroy()
		p.destroy()
	})
}

// TestSendError has a send that fails by itself on services that nobody acknowledges: the queue pair sends no more, receives
// as before, and sends again when it is told to.
func TestSendError(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		for _, typ := range []string{"UC", "UD"} {
			q, p := a.createQP(typ), b.createQP(typ)
			room := 0
			var there, back *int
			if typ == "UD" {
				h, k := a.create("create_ah", args{"dgid": b.d.gid()}), b.create("create_ah", args{"dgid": a.d.gid()})
				there, back, room = &h, &k, 40
				q.datagrams(7)
				p.datagrams(7)
			} else {
				connectAs(typ, q, p, path{mtu: 1024})
			}
			w := sendWR{op: "SEND", ah: there, remoteQPN: p.QPN, qkey: 7}
			send := func(id uint64, l sge) {
				t.Helper()
				w.id, w.sge = id, []sge{l}
				q.send(w)
			}
			good := near.sge(0, 8)
			p.recv(20, far.sge(0, 64))
			p.recv(21, far.sge(64, 64))
			q.recv(30, near.sge(1000, 64))
			near.write(0, []byte("the data"))
			send(1, good)
			send(2, sge{near.Addr, 8, uint64(near.LKey ^ 0x100)})
			send(3, good)
			statuses(t, typ, q.sent(3), [2]int{1, success}, [2]int{2, localProtection}, [2]int{3, flushed})
			if s := q.state(); s != "SQE" {
				t.Errorf("%s: the state is %s, want SQE", typ, s)
			}
			send(4, good)
			statuses(t, typ+", in SQE", q.sent(1), [2]int{4, flushed})
			far.write(2000, []byte("not deaf"))
			p.send(sendWR{id: 40, op: "SEND", sge: []sge{far.sge(2000, 8)}, ah: back, remoteQPN: q.QPN, qkey: 7})
			statuses(t, typ+", to one in SQE", p.sent(1), [2]int{40, success})
			statuses(t, typ+", receive in SQE", q.received(1), [2]int{30, success})
			same(t, typ+", receive in SQE", near.read(1000+room, 8), []byte("not deaf"))
			q.modify("RTS", args{})
			near.write(0, []byte("as usual"))
			send(5, good)
			statuses(t, typ+", in RTS", q.sent(1), [2]int{5, success})
			// Nothing between the first and the last has come.
			statuses(t, typ, p.received(2), [2]int{20, success}, [2]int{21, success})
			same(t, typ, far.read(room, 8), []byte("the data"))
			same(t, typ, far.read(64+room, 8), []byte("as usual"))
			q.destroy()
			p.destroy()
		}
	})
}
