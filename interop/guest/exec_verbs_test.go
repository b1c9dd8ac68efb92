//go:build linux

package guest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// Numbers of enum ibv_wc_status.
const (
	wcSuccess     = 0
	wcLocProtErr  = 4
	wcFlushErr    = 5
	wcRemAccess   = 10
	wcRemOpErr    = 11
	wcFlagImm     = 2 // enum ibv_wc_flags: IBV_WC_WITH_IMM
	wcOpRecv      = 128
	wcOpRecvImm   = 129
	enumMTU1024   = 3
	enumMTU4096   = 5
	verbsPairSize = 1 << 16
)

// verbsEnd is one program of a verbsPair.
type verbsEnd struct {
	name string
	v    *verbs
	gid  int
	addr netip.Addr
	q    *verbsQP
	mr   *verbsMR
}

// verbsPair is two programs with the same verbs: one on softnic, one on the kernel's device.
type verbsPair struct{ softnic, kernel *verbsEnd }

func (l *execLab) pair(t testing.TB, ipv6 bool) *verbsPair {
	t.Helper()
	ours := &verbsEnd{name: "softnic", v: startVerbs(t, l.ours, "rxe_softnic0"), addr: l.near[ipv6], gid: l.gidIndex(t, l.near[ipv6])}
	theirs := &verbsEnd{name: "rxe", v: startVerbs(t, options{}, l.dev.Name), addr: l.far[ipv6], gid: l.dev.GIDIndex(t, l.far[ipv6])}
	for _, e := range []*verbsEnd{ours, theirs} {
		e.mr = e.v.RegMR(verbsPairSize, accessAll)
	}
	return &verbsPair{ours, theirs}
}

// each calls f with either end as the one that requests.
func (p *verbsPair) each(f func(from, to *verbsEnd)) {
	f(p.softnic, p.kernel)
	f(p.kernel, p.softnic)
}

// connect gives both ends a queue pair, and connects them. The old ones go.
func (p *verbsPair) connect(mtu int) {
	const psn = 0xFFFFFA // wraps soon
	p.each(func(e, _ *verbsEnd) {
		if e.q != nil {
			e.q.Destroy()
		}
		e.q = e.v.CreateEventQP("RC")
	})
	p.each(func(e, other *verbsEnd) {
		e.q.Connect(connection{SGIDIndex: e.gid, DGID: other.addr, QPN: other.q.QPN, SendPSN: psn, RecvPSN: psn,
			PathMTU: mtu, Timeout: 17, RetryCnt: 6, RNRRetry: 7, MaxRdAtomic: 16, MinRNRTimer: 12})
	})
}

// sent waits for the completion of one request.
func (e *verbsEnd) sent(t testing.TB, what string, status int) {
	t.Helper()
	if wc := e.q.SendCompletions(1)[0]; wc.Status != status {
		t.Fatalf("%s's %s: status %d, want %d", e.name, what, wc.Status, status)
	}
}

// exchange moves seeded patterns of size bytes with every operation from one end to the other, and compares what arrived.
func exchange(t testing.TB, from, to *verbsEnd, size int, seed uint64) {
	t.Helper()
	put := func(e *verbsEnd, seed uint64) []byte {
		b := seeded(seed, make([]byte, size))
		e.mr.Write(0, b)
		return b
	}
	what := func(op string) string { return fmt.Sprintf("%s's %s of %d bytes", from.name, op, size) }

	want := put(to, seed)
	put(from, seed+1)
	from.q.PostSend(sendWR{Opcode: "RDMA_READ", MR: from.mr, Length: size, RemoteAddr: to.mr.Addr, RKey: to.mr.RKey})
	from.sent(t, what("READ"), wcSuccess)
	same(t, what("READ"), from.mr.Read(0, size), want)

	for i, c := range []struct {
		op          string
		write, recv bool
		imm         bool
	}{{"RDMA_WRITE", true, false, false}, {"SEND", false, true, false}, {"SEND_WITH_IMM", false, true, true}, {"RDMA_WRITE_WITH_IMM", true, true, true}} {
		want := put(from, seed+2+2*uint64(i))
		put(to, seed+3+2*uint64(i))
		if c.recv {
			to.q.PostRecv(uint64(size), to.mr, 0, size)
		}
		wr := sendWR{ID: seed, Opcode: c.op, MR: from.mr, Length: size}
		if c.write {
			wr.RemoteAddr, wr.RKey = to.mr.Addr, to.mr.RKey
		}
		if c.imm {
			wr.Imm = 0x89ABCDEF
		}
		from.q.PostSend(wr)
		from.sent(t, what(c.op), wcSuccess)
		if c.recv {
			wc := to.q.RecvCompletions(1)[0]
			opcode := wcOpRecv
			if c.write {
				opcode = wcOpRecvImm
			}
			if wc.Status != wcSuccess || wc.ByteLen != size || wc.Opcode != opcode || wc.WrID != uint64(size) || wc.QPN != to.q.QPN ||
				c.imm != (wc.Flags&wcFlagImm != 0) || c.imm && wc.Imm != 0x89ABCDEF {
				t.Fatalf("%s: %s's completion %+v", what(c.op), to.name, wc)
			}
		}
		same(t, what(c.op), to.mr.Read(0, size), want)
	}
}

// TestExecData moves seeded patterns between two programs with the same verbs, one on softnic, one on the kernel's
// device, with every operation, both ways, and compares every byte.
func TestExecData(t *testing.T) {
	needGuest(t)
	for _, c := range []struct{ netMTU, mtu, path int }{{1500, 1024, enumMTU1024}, {4200, 4096, enumMTU4096}} {
		t.Run(fmt.Sprintf("mtu%d", c.netMTU), func(t *testing.T) {
			l := execTap(t, c.netMTU, "data")
			before := l.dev.Counters(t)
			for _, ipv6 := range []bool{false, true} {
				p := l.pair(t, ipv6)
				p.connect(c.path)
				sizes := []int{1, c.mtu - 1, c.mtu, c.mtu + 1, verbsPairSize}
				if ipv6 {
					sizes = []int{c.mtu + 1}
				}
				for i, size := range sizes {
					p.each(func(from, to *verbsEnd) { exchange(t, from, to, size, uint64(100*i)+uint64(from.q.QPN)) })
				}
				p.each(func(e, _ *verbsEnd) {
					e.q.Destroy()
					e.v.finish(t)
				})
			}
			quietTools(t, l.dev.Counters(t).Since(before))
			l.stop(t)
		})
	}
}

// finish ends the program, which must go well.
func (v *verbs) finish(t testing.TB) {
	t.Helper()
	v.p.stdin.Close()
	if r := v.p.Wait(patience); r.Code != 0 || r.Stderr != "" {
		t.Errorf("the program did not end well: %v", r)
	}
}

// TestExecVerbs is what programs see that is not data: wrong keys, events, the end of a queue pair.
func TestExecVerbs(t *testing.T) {
	needGuest(t)
	l := execTap(t, 1500, "verbs")
	p := l.pair(t, false)
	kernel := complaints(t)
	const size = 3000

	// What a wrong key must not change, and what it does to both queue pairs.
	t.Run("rkey", func(t *testing.T) {
		p.each(func(from, to *verbsEnd) {
			for _, op := range []string{"RDMA_WRITE", "RDMA_READ"} {
				p.connect(enumMTU1024)
				want := seeded(1, make([]byte, size))
				to.mr.Write(0, want)
				from.mr.Write(0, make([]byte, size))
				to.q.PostRecv(9, to.mr, 0, size)
				from.q.PostSend(sendWR{Opcode: op, MR: from.mr, Length: size, RemoteAddr: to.mr.Addr, RKey: to.mr.RKey ^ 0x100})
				from.sent(t, op+" with a wrong R_Key", wcRemAccess)
				same(t, "what a wrong R_Key leads to", to.mr.Read(0, size), want)
				same(t, "what a wrong R_Key reads", from.mr.Read(0, size), make([]byte, size))
				if wc := to.q.RecvCompletions(1)[0]; wc.Status != wcFlushErr || wc.WrID != 9 {
					t.Errorf("%s's receive after a wrong R_Key: %+v", to.name, wc)
				}
				p.each(func(e, _ *verbsEnd) { e.state(t, "ERR") })
			}
		})
	})
	t.Run("rkey-range", func(t *testing.T) {
		p.each(func(from, to *verbsEnd) {
			p.connect(enumMTU1024)
			from.q.PostSend(sendWR{Opcode: "RDMA_WRITE", MR: from.mr, Length: size, RemoteAddr: to.mr.Addr + verbsPairSize - size + 1, RKey: to.mr.RKey})
			from.sent(t, "WRITE that goes one byte too far", wcRemAccess)
		})
	})
	t.Run("lkey", func(t *testing.T) {
		// The kernel's device gives a flush error to the first, whatever is wrong.
		local := map[string]int{"softnic": wcLocProtErr, "rxe": wcFlushErr}
		p.each(func(from, to *verbsEnd) {
			p.connect(enumMTU1024)
			from.q.PostSend(sendWR{Opcode: "SEND", MR: from.mr, Length: size, LKey: from.mr.LKey ^ 0x100})
			from.sent(t, "SEND with a wrong L_Key", local[from.name])
			from.state(t, "ERR")
			to.state(t, "RTS")

			p.connect(enumMTU1024)
			from.q.PostSend(sendWR{Opcode: "RDMA_READ", MR: from.mr, Length: size, LKey: from.mr.LKey ^ 0x100, RemoteAddr: to.mr.Addr, RKey: to.mr.RKey})
			from.sent(t, "READ with a wrong L_Key", wcLocProtErr)
			from.state(t, "ERR")
		})
	})
	t.Run("access", func(t *testing.T) {
		p.each(func(from, to *verbsEnd) {
			closed := to.v.RegMR(size, accessLocalWrite)
			p.connect(enumMTU1024)
			from.q.PostSend(sendWR{Opcode: "RDMA_WRITE", MR: from.mr, Length: size, RemoteAddr: closed.Addr, RKey: closed.RKey})
			from.sent(t, "WRITE to memory that is not open", wcRemAccess)
			same(t, "memory that is not open", closed.Read(0, size), make([]byte, size))
		})
	})
	t.Run("events", func(t *testing.T) {
		p.connect(enumMTU1024)
		p.each(func(from, to *verbsEnd) {
			send := func(flags int) {
				t.Helper()
				to.q.PostRecv(1, to.mr, 0, size)
				from.q.PostSend(sendWR{Opcode: "SEND", Flags: flags, MR: from.mr, Length: size})
				from.sent(t, "SEND", wcSuccess)
				if wc := to.q.RecvCompletions(1)[0]; wc.Status != wcSuccess {
					t.Fatalf("%s's receive: %+v", to.name, wc)
				}
			}
			// The completion is there before the reply to its SEND, and so is its event: a short wait shows that there is none.
			expect := func(e *verbsEnd, cq int, want bool, what string) {
				t.Helper()
				limit := 100 * time.Millisecond
				if want {
					limit = patience
				}
				if got := e.q.Event(cq, limit); got != want {
					t.Errorf("%s, %s: event %v, want %v", e.name, what, got, want)
				}
			}
			send(0)
			expect(to, recvCQ, false, "not armed")
			expect(from, sendCQ, false, "not armed")
			to.q.Arm(recvCQ, false)
			from.q.Arm(sendCQ, false)
			expect(to, recvCQ, false, "armed with nothing new")
			send(0)
			expect(to, recvCQ, true, "armed")
			expect(from, sendCQ, true, "armed")
			send(0)
			expect(to, recvCQ, false, "armed once, the second")
			to.q.Arm(recvCQ, true)
			send(0)
			expect(to, recvCQ, false, "solicited only, not solicited")
			send(sendSolicited)
			expect(to, recvCQ, true, "solicited only, solicited")
		})
		// An event that nobody took does not keep the queue from being destroyed.
		p.each(func(from, to *verbsEnd) {
			to.q.Arm(recvCQ, false)
			to.q.PostRecv(1, to.mr, 0, size)
			from.q.PostSend(sendWR{Opcode: "SEND", MR: from.mr, Length: size})
			from.sent(t, "SEND", wcSuccess)
			to.q.RecvCompletions(1)
		})
		p.connect(enumMTU1024)
	})
	t.Run("flush", func(t *testing.T) {
		p.connect(enumMTU1024)
		p.each(func(e, _ *verbsEnd) {
			e.q.Arm(recvCQ, false)
			for i := range 5 {
				e.q.PostRecv(uint64(i), e.mr, 0, size)
			}
		})
		p.each(func(e, _ *verbsEnd) {
			e.q.Modify("ERR", nil)
			for i, wc := range e.q.RecvCompletions(5) {
				if wc.Status != wcFlushErr || wc.WrID != uint64(i) || wc.QPN != e.q.QPN {
					t.Errorf("%s's receive %d after ERR: %+v", e.name, i, wc)
				}
			}
			if !e.q.Event(recvCQ, patience) {
				t.Errorf("%s has no event for flushed receives", e.name)
			}
			e.q.PostSend(sendWR{ID: 7, Opcode: "SEND", MR: e.mr, Length: size})
			if wc := e.q.SendCompletions(1)[0]; wc.Status != wcFlushErr || wc.WrID != 7 {
				t.Errorf("%s's send in ERR: %+v", e.name, wc)
			}
			if e == p.kernel {
				return // it looks at receives that are posted later only when there is something else to do
			}
			e.q.PostRecv(8, e.mr, 0, size)
			if wc := e.q.RecvCompletions(1)[0]; wc.Status != wcFlushErr || wc.WrID != 8 {
				t.Errorf("%s's receive in ERR: %+v", e.name, wc)
			}
		})
	})
	p.each(func(e, _ *verbsEnd) { e.v.finish(t) })
	if after := complaints(t); len(after) > len(kernel) {
		t.Errorf("the kernel complains: %v", after[len(kernel):])
	}
	l.stop(t, "drop_bad-request", "drop_local-memory", "drop_qp-state")
}

// state waits until the device reports the state: an error becomes known after its completion.
func (e *verbsEnd) state(t testing.TB, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = e.q.State(); got == want {
			return
		}
	}
	t.Errorf("%s's queue pair is in %s, want %s", e.name, got, want)
}
