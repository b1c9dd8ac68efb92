//go:build linux

package stock

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
)

// agents starts a program on each daemon, or one on the one daemon.
func agents(t *testing.T, f func(t *testing.T, a, b *agent)) {
	t.Helper()
	needStock(t)
	modes(t, daemonOptions{}, func(t *testing.T, d, e *daemon) {
		a, b := startAgent(t, d, d.exec()), startAgent(t, e, e.exec())
		f(t, a, b)
		if t.Failed() {
			return
		}
		a.quit()
		b.quit()
		d.free()
		e.free()
	})
}

// enum ibv_wc_opcode, and flags of a completion.
const (
	wcSend, wcWrite, wcRead     = 0, 1, 2
	wcCompareSwap, wcFetchAdd   = 3, 4
	wcBindMW, wcLocalInv        = 5, 6
	wcAtomicWrite               = 9
	wcRecv, wcRecvImm           = 128, 129
	wcGRH, wcWithImm, wcWithInv = 1, 2, 8
)

// TestData moves seeded patterns with every operation and compares every byte, and that nothing else was written. The
// memory at both ends is gathered from and scattered to several places.
func TestData(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		const room, guard = 1<<20 + 64, 32
		near, far := a.regMR(room, everyAccess), b.regMR(room, everyAccess)
		for _, mtu := range []int{1024, 4096} {
			q, p := a.createQP("RC"), b.createQP("RC")
			connect(q, p, path{mtu: mtu, rnrRetry: 7})
			sizes := []int{0, 1, mtu - 1, mtu, mtu + 1, 64<<10 + 3, 1 << 20}
			if mtu != 1024 {
				sizes = []int{1, mtu - 1, mtu, mtu + 1, 64<<10 + 3}
			}
			for i, size := range sizes {
				for j, op := range []string{"SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ"} {
					if size > 100000 && (op == "SEND_WITH_IMM" || op == "RDMA_WRITE_WITH_IMM") {
						continue // a megabyte passes the pipe to the program as text four times
					}
					for _, parts := range []int{1, 3} {
						if parts > 1 && (size < parts || size > 100000) {
							continue
						}
						what := fmt.Sprintf("%s of %d bytes in %d parts, MTU %d", op, size, parts, mtu)
						move(t, what, q, p, near, far, op, seeded(uint64(1000*mtu+100*i+10*j+parts), size), parts, guard)
					}
				}
			}
			q.destroy()
			p.destroy()
		}
	})
}

// scatter is the part of a buffer from offset on as so many entries.
func scatter(m *memory, offset, size, parts int) []sge {
	var l []sge
	for i := range parts {
		n := size/parts + i // never equal
		if i == parts-1 {
			n = size
		}
		n = min(n, size)
		if n > 0 {
			l = append(l, m.sge(offset, n))
		}
		offset, size = offset+n, size-n
	}
	return l
}

// move moves a pattern from q to p, or with a READ from p to q.
func move(t *testing.T, what string, q, p *queuePair, near, far *memory, op string, pattern []byte, parts, guard int) {
	t.Helper()
	size := len(pattern)
	from, to := near, far
	if op == "RDMA_READ" {
		from, to = far, near
	}
	from.write(0, pattern)
	background := make([]byte, size+2*guard)
	for i := range background {
		background[i] = 0xA5
	}
	to.write(0, background)

	w := sendWR{id: 7, op: op, imm: 0x89ABCDEF, sge: scatter(near, 0, size, parts), remoteAddr: far.Addr + uint64(guard), rkey: far.RKey}
	wantOp, wantRecv := wcSend, -1
	switch op {
	case "RDMA_READ":
		w.sge, w.remoteAddr = scatter(near, guard, size, parts), far.Addr
		wantOp = wcRead
	case "SEND", "SEND_WITH_IMM":
		p.recv(9, scatter(far, guard, size, parts)...)
		wantRecv = wcRecv
	case "RDMA_WRITE":
		wantOp = wcWrite
	case "RDMA_WRITE_WITH_IMM":
		p.recv(9)
		wantOp, wantRecv = wcWrite, wcRecvImm
	}
	q.send(w)
	if wc := q.sent(1)[0]; wc.Status != success || wc.WrID != 7 || wc.Opcode != wantOp || wc.QPN != q.QPN {
		t.Fatalf("%s: completion %+v", what, wc)
	}
	if wantRecv >= 0 {
		wc := p.received(1)[0]
		if wc.Status != success || wc.WrID != 9 || wc.Opcode != wantRecv || wc.QPN != p.QPN || wc.ByteLen != size {
			t.Fatalf("%s: the receiver's completion %+v", what, wc)
		}
		if imm := op != "SEND"; imm != (wc.Flags&wcWithImm != 0) || imm && wc.Imm != 0x89ABCDEF {
			t.Fatalf("%s: the receiver's completion %+v, immediate %#x", what, wc, wc.Imm)
		}
	}
	want := append(append(background[:guard:guard], pattern...), background[guard+size:]...)
	same(t, what, to.read(0, len(want)), want)
}

// TestDatagrams does it for UD, with the GRH in front of the data and immediate.
func TestDatagrams(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		const qkey, grh = 0x11111111, 40
		near, far := a.regMR(8192, everyAccess), b.regMR(8192, everyAccess)
		q, p := a.createQP("UD"), b.createQP("UD")
		q.datagrams(qkey)
		p.datagrams(qkey)
		ah := a.create("create_ah", args{"dgid": b.d.gid()})
		for i, size := range []int{0, 1, 1000, 4095, 4096} {
			pattern := seeded(uint64(i), size)
			near.write(0, pattern)
			far.write(0, make([]byte, 8192))
			p.recv(5, scatter(far, 0, grh+size, 1+i%3)...)
			w := sendWR{id: 3, op: "SEND_WITH_IMM", imm: 0x01020304, sge: scatter(near, 0, size, 1), ah: &ah, remoteQPN: p.QPN, qkey: qkey}
			if i%2 == 1 {
				w.op = "SEND"
			}
			q.send(w)
			if wc := q.sent(1)[0]; wc.Status != success {
				t.Fatalf("%d bytes: completion %+v", size, wc)
			}
			wc := p.received(1)[0]
			if wc.Status != success || wc.ByteLen != grh+size || wc.SrcQP != q.QPN || wc.Flags&wcGRH == 0 {
				t.Fatalf("%d bytes: the receiver's completion %+v", size, wc)
			}
			if imm := w.op != "SEND"; imm != (wc.Flags&wcWithImm != 0) || imm && wc.Imm != w.imm {
				t.Fatalf("%d bytes: the receiver's completion %+v, immediate %#x", size, wc, wc.Imm)
			}
			got := far.read(0, grh+size+16)
			same(t, fmt.Sprint(size, " bytes"), got[grh:], append(pattern, make([]byte, 16)...))
			// An IPv4 header stands in the last 20 bytes of the area.
			src, dst := netip.AddrFrom4([4]byte(got[32:36])), netip.AddrFrom4([4]byte(got[36:40]))
			if got[20] != 0x45 || src.String() != a.d.addr || dst.String() != b.d.addr {
				t.Errorf("%d bytes: the GRH area is %x", size, got[:grh])
			}
		}
		// Another Q_Key is as if nothing had come; the next datagram takes the receive.
		p.recv(6, far.sge(0, 100))
		for id, key := range []uint32{qkey + 1, qkey} {
			q.send(sendWR{id: uint64(id), op: "SEND", sge: []sge{near.sge(0, 10+id)}, ah: &ah, remoteQPN: p.QPN, qkey: key})
		}
		statuses(t, "datagrams", q.sent(2), [2]int{0, success}, [2]int{1, success})
		if wc := p.received(1)[0]; wc.Status != success || wc.ByteLen != grh+11 {
			t.Errorf("a datagram with a wrong Q_Key: %+v", wc)
		}
	})
}

// TestFailures has what can go wrong with a work request, and what it leaves.
func TestFailures(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		locked := b.regMR(4096, localWrite)
		// enum ibv_event_type, at the responder.
		const qpFatal, qpAccessErr = 1, 3
		for _, c := range []struct {
			name    string
			recv    []sge
			wr      sendWR
			sent    int // status at the requester
			got     int // status at the responder; -1: the receive is flushed
			event   int // asynchronous, at the responder; -1: none is waited for
			noState bool
		}{
			{name: "wrong R_Key", wr: sendWR{op: "RDMA_WRITE", rkey: far.RKey ^ 0x100, remoteAddr: far.Addr, sge: []sge{near.sge(0, 8)}},
				sent: remoteAccess, got: -1, event: qpAccessErr},
			{name: "R_Key without the right to read", wr: sendWR{op: "RDMA_READ", rkey: locked.RKey, remoteAddr: locked.Addr, sge: []sge{near.sge(0, 8)}},
				sent: remoteAccess, got: -1, event: qpAccessErr},
			{name: "past the end", wr: sendWR{op: "RDMA_WRITE", rkey: far.RKey, remoteAddr: far.Addr + 4090, sge: []sge{near.sge(0, 8)}},
				sent: remoteAccess, got: -1, event: qpAccessErr},
			{name: "wrong L_Key", wr: sendWR{op: "SEND", sge: []sge{{near.Addr, 8, uint64(near.LKey ^ 0x100)}}},
				sent: localProtection, got: -1, event: -1, noState: true},
			{name: "too short a receive", recv: []sge{far.sge(0, 7)}, wr: sendWR{op: "SEND", sge: []sge{near.sge(0, 8)}},
				sent: remoteInvalid, got: localLength, event: -1},
			{name: "wrong L_Key in a receive", recv: []sge{{far.Addr, 8, uint64(far.LKey ^ 0x100)}}, wr: sendWR{op: "SEND", sge: []sge{near.sge(0, 8)}},
				sent: remoteOperation, got: localProtection, event: -1},
		} {
			t.Run(c.name, func(t *testing.T) {
				q, p := a.createQP("RC"), b.createQP("RC")
				connect(q, p, path{mtu: 1024, rnrRetry: 7})
				if c.recv == nil {
					c.recv = []sge{far.sge(0, 64)}
				}
				p.recv(50, c.recv...)
				p.recv(51, far.sge(0, 64))
				q.recv(60, near.sge(0, 64))
				// One that is good, the bad one, and more, which must not be done.
				const at = 100
				far.write(at, []byte("before"))
				q.send(sendWR{id: 1, op: "RDMA_READ", sge: []sge{near.sge(1000, 8)}, remoteAddr: far.Addr, rkey: far.RKey})
				c.wr.id = 2
				q.send(c.wr)
				for id := range uint64(3) {
					near.write(0, []byte("after "))
					if f := q.trySend(sendWR{id: 3 + id, op: "RDMA_WRITE", sge: []sge{near.sge(0, 6)}, remoteAddr: far.Addr + at, rkey: far.RKey}); f.Error != "" {
						t.Fatalf("post in ERR: %s", f.Error)
					}
				}
				statuses(t, "requester", q.sent(5), [2]int{1, success}, [2]int{2, c.sent}, [2]int{3, flushed}, [2]int{4, flushed}, [2]int{5, flushed})
				statuses(t, "requester's receive", q.received(1), [2]int{60, flushed})
				if s := q.state(); s != "ERR" {
					t.Errorf("the requester is in %s", s)
				}
				same(t, "memory that a flushed WRITE was to change", far.read(at, 6), []byte("before"))
				// The responder: it does not hear of the requester's own mistake.
				if c.noState {
					if s := p.state(); s != "RTS" {
						t.Errorf("the responder is in %s", s)
					}
					p.modify("ERR", args{})
				}
				want := [][2]int{{50, c.got}, {51, flushed}}
				if c.got < 0 {
					want[0][1] = flushed
				}
				statuses(t, "responder", p.received(2), want...)
				if s := p.state(); s != "ERR" {
					t.Errorf("the responder is in %s", s)
				}
				if c.event >= 0 {
					var event struct{ Type int }
					b.call(&event, "get_async_event", nil)
					if event.Type != c.event {
						t.Errorf("asynchronous event %d, want %d (QP_FATAL is %d)", event.Type, c.event, qpFatal)
					}
				}
				// What is posted in ERR is flushed too.
				for _, q := range []*queuePair{q, p} {
					q.send(sendWR{id: 70, op: "SEND", sge: []sge{}})
					q.recv(71)
					statuses(t, "send in ERR", q.sent(1), [2]int{70, flushed})
					statuses(t, "receive in ERR", q.received(1), [2]int{71, flushed})
				}
				q.destroy()
				p.destroy()
			})
		}
	})
}

// TestDrain has a queue pair in SQD while the peer is not ready: what was begun ends, what is posted then waits.
func TestDrain(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		q, p := a.createQP("RC"), b.createQP("RC")
		connect(q, p, path{mtu: 1024, rnrRetry: 7})
		draining := func(want bool) {
			t.Helper()
			var got struct {
				State    string
				Draining bool
			}
			a.call(&got, "query", args{"qp": q.ID})
			if got.State != "SQD" || got.Draining != want {
				t.Errorf("state %s, draining %v, want SQD, %v", got.State, got.Draining, want)
			}
		}
		near.write(0, []byte("first then"))
		before := b.d.counters()["send_rnr_err"]
		q.send(sendWR{id: 1, op: "SEND", sge: []sge{near.sge(0, 5)}})
		eventually(t, "an RNR NAK", func() bool { return b.d.counters()["send_rnr_err"] > before })
		q.modify("SQD", args{"en_sqd_async_notify": 1})
		q.send(sendWR{id: 2, op: "SEND", sge: []sge{near.sge(6, 4)}})
		draining(true)
		if f := a.try(nil, "modify", args{"qp": q.ID, "state": "RTS", "attrs": args{}}); f.Errno != int(syscall.EINVAL) {
			t.Errorf("RTS while it drains: %+v", f)
		}
		p.recv(10, far.sge(0, 100))
		p.recv(11, far.sge(100, 100))
		statuses(t, "what had begun", q.sent(1), [2]int{1, success})
		var event struct{ Type int }
		a.call(&event, "get_async_event", nil)
		if event.Type != 5 { // IBV_EVENT_SQ_DRAINED
			t.Errorf("asynchronous event %d", event.Type)
		}
		draining(false)
		statuses(t, "receive", p.received(1), [2]int{10, success})
		q.modify("", args{"retry_cnt": 3, "timeout": 16})
		q.modify("RTS", args{})
		statuses(t, "what waited", q.sent(1), [2]int{2, success})
		statuses(t, "receive", p.received(1), [2]int{11, success})
		same(t, "messages", append(far.read(0, 5), far.read(100, 4)...), []byte("firstthen"))
		q.destroy()
		p.destroy()
	})
}

// TestNoReceive has a SEND for which no receive is there: the requester tries again as often as it may.
func TestNoReceive(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		q, p := a.createQP("RC"), b.createQP("RC")
		connect(q, p, path{mtu: 1024, rnrRetry: 2})
		q.send(sendWR{id: 1, op: "SEND", sge: []sge{near.sge(0, 8)}})
		q.send(sendWR{id: 2, op: "SEND", sge: []sge{near.sge(0, 8)}})
		statuses(t, "with 2 retries", q.sent(2), [2]int{1, rnrExceeded}, [2]int{2, flushed})
		if s := p.state(); s != "RTS" {
			t.Errorf("the responder is in %s", s)
		}
		q.destroy()
		p.destroy()

		q, p = a.createQP("RC"), b.createQP("RC")
		connect(q, p, path{mtu: 1024, rnrRetry: 7})
		before := b.d.counters()["send_rnr_err"]
		near.write(0, []byte("patience"))
		q.send(sendWR{id: 1, op: "SEND", sge: []sge{near.sge(0, 8)}})
		eventually(t, "RNR NAKs", func() bool { return b.d.counters()["send_rnr_err"] > before+10 })
		p.recv(2, far.sge(0, 8))
		statuses(t, "with retries for ever", q.sent(1), [2]int{1, success})
		statuses(t, "receive", p.received(1), [2]int{2, success})
		same(t, "late", far.read(0, 8), []byte("patience"))
		q.destroy()
		p.destroy()
	})
}

// TestEvents has completion channels: which completions raise an event, and that events which nobody reads do not hold
// up destruction.
func TestEvents(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		channel := b.create("create_channel", nil)
		rcq := b.create("create_cq", args{"depth": 64, "channel": channel, "vector": 0})
		scq := b.create("create_cq", args{"depth": 64})
		q, p := a.createQP("RC"), b.createQPOn("RC", scq, rcq)
		connect(q, p, path{mtu: 1024, rnrRetry: 7})
		send := func(flags int) {
			t.Helper()
			p.recv(1, far.sge(0, 64))
			q.send(sendWR{op: "SEND", flags: flags, sge: []sge{near.sge(0, 8)}})
			statuses(t, "send", q.sent(1), [2]int{0, success})
			statuses(t, "receive", p.received(1), [2]int{1, success})
		}
		pending := func() (n int) {
			t.Helper()
			var answer struct{ FDs map[string]bool }
			b.call(&answer, "event_fds", nil)
			for _, readable := range answer.FDs {
				if readable {
					n++
				}
			}
			return n
		}
		expect := func(what string, want int) {
			t.Helper()
			if n := pending(); n != want {
				t.Fatalf("%s: %d event descriptors can be read, want %d", what, n, want)
			}
		}
		send(0)
		expect("not armed", 0)
		b.call(nil, "arm", args{"cq": rcq, "solicited": false})
		expect("armed over an old completion", 0)
		send(0)
		expect("armed for all", 1)
		b.call(nil, "get_event", args{"channel": channel, "cq": rcq})
		send(0)
		expect("once an arming", 0)
		b.call(nil, "arm", args{"cq": rcq, "solicited": true})
		send(0)
		expect("armed for solicited, and it was not", 0)
		send(solicited)
		expect("armed for solicited", 1)
		b.call(nil, "get_event", args{"channel": channel, "cq": rcq})
		expect("read", 0)

		// A program that sleeps is woken.
		b.call(nil, "arm", args{"cq": rcq, "solicited": false})
		p.recv(1, far.sge(0, 64))
		b.ask("get_event", args{"channel": channel, "cq": rcq})
		q.send(sendWR{op: "SEND", sge: []sge{near.sge(0, 8)}})
		if f := b.answer(nil); f.Error != "" {
			t.Fatal(f.Error)
		}
		statuses(t, "receive", p.received(1), [2]int{1, success})
		q.sent(1)

		// An event that nobody has read goes with its queue; one of another queue on the channel stays.
		other := b.create("create_cq", args{"depth": 64, "channel": channel})
		p2, q2 := b.createQPOn("RC", scq, other), a.createQP("RC")
		connect(q2, p2, path{mtu: 1024, rnrRetry: 7})
		for _, x := range []struct{ q, p *queuePair }{{q, p}, {q2, p2}} {
			b.call(nil, "arm", args{"cq": x.p.rcq, "solicited": false})
			x.p.recv(1, far.sge(0, 64))
			x.q.send(sendWR{op: "SEND", sge: []sge{near.sge(0, 8)}})
			statuses(t, "send", x.q.sent(1), [2]int{0, success})
			statuses(t, "receive", x.p.received(1), [2]int{1, success})
		}
		expect("both", 1)
		b.call(nil, "destroy", args{"ids": []int{p.ID, rcq}})
		expect("the other's", 1)
		b.call(nil, "get_event", args{"channel": channel, "cq": other})
		expect("none", 0)

		// An asynchronous event that nobody reads goes with its queue pair.
		q2.send(sendWR{op: "RDMA_WRITE", rkey: 1, remoteAddr: 1, sge: []sge{near.sge(0, 8)}})
		statuses(t, "send", q2.sent(1), [2]int{0, remoteAccess})
		eventually(t, "the asynchronous event", func() bool { return pending() == 1 })
		b.call(nil, "destroy", args{"ids": []int{p2.ID, other, scq, channel}})
		expect("none", 0)
		q.destroy()
		q2.destroy()
	})
}

// TestRefusals has what the kernel refuses, with the kernel's numbers.
func TestRefusals(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	a := startAgent(t, d, d.exec())
	var limits struct {
		Vectors int
		MaxCQE  int `json:"max_cqe"`
	}
	a.call(&limits, "query_device", nil)
	if limits.MaxCQE != 32767 || limits.Vectors < 1 {
		t.Errorf("limits %+v", limits)
	}
	cq := a.create("create_cq", args{"depth": 16})
	qp := func(change args) args {
		v := args{"type": "RC", "scq": cq, "rcq": cq, "depth": 16, "sge": 1, "sig_all": false}
		for k, x := range change {
			v[k] = x
		}
		return v
	}
	q := a.createQPOn("RC", cq, cq)
	ud := a.createQPOn("UD", cq, cq)
	for _, c := range []struct {
		name string
		verb string
		args args
		want syscall.Errno
	}{
		{"CQ depth 0", "create_cq", args{"depth": 0}, syscall.EINVAL},
		{"CQ depth above the limit", "create_cq", args{"depth": limits.MaxCQE + 1}, syscall.EINVAL},
		{"completion vector", "create_cq", args{"depth": 16, "vector": limits.Vectors}, syscall.EINVAL},
		{"remote write without local write", "reg_mr", args{"length": 64, "access": remoteWrite}, syscall.EINVAL},
		{"remote atomics without local write", "reg_mr", args{"length": 64, "access": remoteAtomic}, syscall.EINVAL},
		{"port 0", "query_port", args{"port": 0}, syscall.EINVAL},
		{"port 2", "query_port", args{"port": 2}, syscall.EINVAL},
		{"address handle without GRH", "create_ah", args{}, syscall.EINVAL},
		{"address handle with an empty GID index", "create_ah", args{"dgid": d.gid(), "sgid_index": 15}, syscall.EINVAL},
		{"queue pair type", "create_qp", qp(args{"type": "RAW_PACKET"}), syscall.EOPNOTSUPP},
		{"too many requests", "create_qp", qp(args{"depth": 1<<20 + 1}), syscall.EINVAL},
		{"too many entries", "create_qp", qp(args{"sge": 33}), syscall.EINVAL},
		{"RESET to RTS", "modify", args{"qp": q.ID, "state": "RTS", "attrs": args{"sq_psn": 0}}, syscall.EINVAL},
		{"INIT on port 2", "modify", args{"qp": q.ID, "state": "INIT", "attrs": args{"pkey_index": 0, "port_num": 2, "qp_access_flags": 0}}, syscall.EINVAL},
		{"INIT without what it needs", "modify", args{"qp": q.ID, "state": "INIT", "attrs": args{"port_num": 1}}, syscall.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			if f := a.try(nil, c.verb, c.args); f.Error == "" || f.Errno != int(c.want) {
				t.Errorf("%s %v: %+v, want errno %d (%v)", c.verb, c.args, f, c.want, c.want)
			}
		})
	}
	m := a.regMR(64, everyAccess)
	for _, state := range []string{"RESET", "INIT"} {
		if state == "INIT" {
			q.init()
		}
		if f := q.trySend(sendWR{op: "SEND", sge: []sge{m.sge(0, 8)}}); f.Errno != int(syscall.EINVAL) {
			t.Errorf("post_send in %s: %+v, want EINVAL", state, f)
		}
	}
	if s := ud.state(); s != "RESET" {
		t.Errorf("a queue pair that nothing was done to is in %s", s)
	}
	a.stdin.Close()
	if r := a.wait(patience); r.Code != 0 || r.Stderr != "softnic: address handle refused: RoCE needs a GID index, add -g 1\n" {
		t.Errorf("ended badly: %v", r)
	}
	d.free()
}
