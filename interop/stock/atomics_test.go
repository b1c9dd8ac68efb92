//go:build linux

package stock

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
)

func (m *memory) word(offset int) uint64 {
	m.a.t.Helper()
	return binary.NativeEndian.Uint64(m.read(offset, 8))
}

func (m *memory) setWord(offset int, v uint64) {
	m.a.t.Helper()
	m.write(offset, binary.NativeEndian.AppendUint64(nil, v))
}

// TestAtomics has the atomics of a program: what comes back and what is there then, after each, and nothing else.
func TestAtomics(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		q, p := a.createQP("RC"), b.createQP("RC")
		connect(q, p, path{mtu: 1024, rnrRetry: 7})
		t.Run("values", func(t *testing.T) {
			const at = 64
			rnd := rand.New(rand.NewPCG(1, 2))
			far.write(0, seeded(9, 256))
			background := far.read(0, 256)
			now := far.word(at)
			for i := range 40 {
				w := sendWR{id: uint64(i), op: "ATOMIC_FETCH_AND_ADD", sge: []sge{near.sge(8, 8)}, remoteAddr: far.Addr + at, rkey: far.RKey, compareAdd: rnd.Uint64()}
				wantOp, next := wcFetchAdd, now+w.compareAdd
				if i%2 == 1 {
					w.op, w.swap, wantOp, next = "ATOMIC_CMP_AND_SWP", rnd.Uint64(), wcCompareSwap, now
					if i%4 == 1 {
						w.compareAdd, next = now, w.swap
					}
				}
				near.setWord(8, ^now)
				q.send(w)
				if wc := q.sent(1)[0]; wc.Status != success || wc.WrID != uint64(i) || wc.Opcode != wantOp || wc.QPN != q.QPN {
					t.Fatalf("%+v: completion %+v", w, wc)
				}
				if got := near.word(8); got != now {
					t.Fatalf("%+v: %#x came back, %#x was there", w, got, now)
				}
				if got := far.word(at); got != next {
					t.Fatalf("%+v: %#x is there, was %#x, want %#x", w, got, now, next)
				}
				now = next
			}
			binary.NativeEndian.PutUint64(background[at:], now)
			same(t, "the memory around", far.read(0, 256), background)
		})

		t.Run("at once", func(t *testing.T) {
			// Two queue pairs add to one word, as many requests as they have room for: every value comes back once.
			q2, p2 := a.createQP("RC"), b.createQP("RC")
			connect(q2, p2, path{mtu: 1024, rnrRetry: 7})
			const at, rounds = 128, 3
			far.setWord(at, 0)
			seen := map[uint64]bool{}
			for range rounds {
				for i := range depth {
					for j, x := range []*queuePair{q, q2} {
						x.send(sendWR{id: uint64(i), op: "ATOMIC_FETCH_AND_ADD", sge: []sge{near.sge(512+16*i+8*j, 8)}, remoteAddr: far.Addr + at, rkey: far.RKey, compareAdd: 1})
					}
				}
				for _, wc := range append(q.sent(depth), q2.sent(depth)...) {
					if wc.Status != success {
						t.Fatalf("completion %+v", wc)
					}
				}
				for i := range 2 * depth {
					seen[near.word(512+8*i)] = true
				}
			}
			if got := far.word(at); got != 2*depth*rounds || len(seen) != 2*depth*rounds || !seen[0] || seen[2*depth*rounds] {
				t.Errorf("%d is there, and %d values came back, of %d requests", got, len(seen), 2*depth*rounds)
			}
			q2.destroy()
			p2.destroy()
		})

		t.Run("atomic write", func(t *testing.T) {
			x, y := a.createQPEx("ATOMIC_WRITE", "RDMA_READ"), b.createQPEx("ATOMIC_WRITE", "RDMA_READ")
			connect(x, y, path{mtu: 1024, rnrRetry: 7})
			far.write(0, seeded(11, 256))
			want := far.read(0, 256)
			for i, v := range []uint64{0x0102030405060708, 0, ^uint64(0)} {
				at := 8 * i
				x.atomicWrite(uint64(i), far.Addr+uint64(at), far.RKey, v)
				if wc := x.sent(1)[0]; wc.Status != success || wc.Opcode != wcAtomicWrite {
					t.Fatalf("completion %+v", wc)
				}
				binary.NativeEndian.PutUint64(want[at:], v)
				same(t, fmt.Sprintf("%#x", v), far.read(0, 256), want)
			}
			x.destroy()
			y.destroy()
		})

		t.Run("refused", func(t *testing.T) {
			w := sendWR{id: 1, op: "ATOMIC_FETCH_AND_ADD", sge: []sge{near.sge(8, 8)}, remoteAddr: far.Addr + 4, rkey: far.RKey, compareAdd: 1}
			before := far.read(0, 256)
			if f := q.trySend(w); f.Errno != int(syscall.EINVAL) {
				t.Errorf("misaligned: %+v, librxe refuses that", f)
			}
			locked := b.regMR(64, localWrite|remoteWrite|remoteRead)
			w.remoteAddr, w.rkey = locked.Addr, locked.RKey
			q.send(w)
			statuses(t, "without the right", q.sent(1), [2]int{1, remoteAccess})
			same(t, "misaligned", far.read(0, 256), before)
			same(t, "without the right", locked.read(0, 64), make([]byte, 64))
		})
		q.destroy()
		p.destroy()
	})
}

// TestWindows has memory windows of both types: bound through pyverbs, used by the peer for just what they are, and taken
// away: by their owner, and with a SEND of the peer.
func TestWindows(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(4096, everyAccess), b.regMR(4096, everyAccess)
		const at, length = 1000, 500
		for _, c := range []struct {
			typ int // enum ibv_mw_type
			how string
		}{{1, "unbound"}, {1, "deallocated"}, {2, "SEND with invalidate"}, {2, "local invalidate"}, {2, "deallocated"}} {
			t.Run(fmt.Sprintf("type %d, %s", c.typ, c.how), func(t *testing.T) {
				q, p := a.createQP("RC"), b.createQP("RC")
				connect(q, p, path{mtu: 1024, rnrRetry: 7})
				w := b.window(c.typ)
				old := w.RKey
				p.bind(1, w, far, at, length, remoteWrite|remoteRead|localWrite) // rdma-core's own tests ask for the last, too
				if wc := p.sent(1)[0]; wc.Status != success || wc.Opcode != wcBindMW || wc.WrID != 1 {
					t.Fatalf("bind: completion %+v", wc)
				}
				if w.RKey == old || w.RKey>>8 != old>>8 {
					t.Errorf("key %#x, it was %#x", w.RKey, old)
				}
				pattern := seeded(uint64(c.typ), length)
				near.write(0, pattern)
				far.write(0, make([]byte, 4096))
				q.send(sendWR{id: 2, op: "RDMA_WRITE", sge: []sge{near.sge(0, length)}, remoteAddr: far.Addr + at, rkey: w.RKey})
				statuses(t, "WRITE", q.sent(1), [2]int{2, success})
				q.send(sendWR{id: 3, op: "RDMA_READ", sge: []sge{near.sge(2000, length)}, remoteAddr: far.Addr + at, rkey: w.RKey})
				statuses(t, "READ", q.sent(1), [2]int{3, success})
				same(t, "WRITE", far.read(at-32, length+64), append(append(make([]byte, 32), pattern...), make([]byte, 32)...))
				same(t, "READ", near.read(2000, length), pattern)

				switch c.how {
				case "unbound":
					p.bind(4, w, far, 0, 0, 0)
					statuses(t, "unbind", p.sent(1), [2]int{4, success})
				case "deallocated":
					w.dealloc()
				case "local invalidate":
					p.send(sendWR{id: 4, op: "LOCAL_INV", invalidate: w.RKey})
					if wc := p.sent(1)[0]; wc.Status != success || wc.Opcode != wcLocalInv {
						t.Fatalf("local invalidate: completion %+v", wc)
					}
				case "SEND with invalidate":
					p.recv(5, far.sge(0, 64))
					q.send(sendWR{id: 4, op: "SEND_WITH_INV", invalidate: w.RKey, sge: []sge{near.sge(0, 64)}})
					if wc := q.sent(1)[0]; wc.Status != success || wc.Opcode != wcSend {
						t.Fatalf("SEND: completion %+v", wc)
					}
					if wc := p.received(1)[0]; wc.Status != success || wc.Opcode != wcRecv || wc.ByteLen != 64 || wc.Flags&wcWithInv == 0 || wc.Key != w.RKey {
						t.Fatalf("SEND: the receiver's completion %+v, key %#x, want %#x", wc, wc.Key, w.RKey)
					}
					same(t, "SEND", far.read(0, 64), pattern[:64])
				}
				near.write(0, make([]byte, 64))
				q.send(sendWR{id: 6, op: "RDMA_WRITE", sge: []sge{near.sge(0, 64)}, remoteAddr: far.Addr + at, rkey: w.RKey})
				statuses(t, "WRITE to a window that is gone", q.sent(1), [2]int{6, remoteAccess})
				same(t, "the memory of a window that is gone", far.read(at, length), pattern)
				if c.how != "deallocated" {
					w.dealloc()
				}
				q.destroy()
				p.destroy()
			})
		}

		t.Run("outside", func(t *testing.T) {
			q, p := a.createQP("RC"), b.createQP("RC")
			connect(q, p, path{mtu: 1024, rnrRetry: 7})
			w := b.window(2)
			p.bind(1, w, far, at, length, remoteWrite)
			statuses(t, "bind", p.sent(1), [2]int{1, success})
			before := far.read(0, 4096)
			q.send(sendWR{id: 2, op: "RDMA_WRITE", sge: []sge{near.sge(0, 2)}, remoteAddr: far.Addr + at + length - 1, rkey: w.RKey})
			statuses(t, "past the end", q.sent(1), [2]int{2, remoteAccess})
			same(t, "past the end", far.read(0, 4096), before)
			w.dealloc()
			q.destroy()
			p.destroy()
		})
	})
}

// TestUnstored has an answer that the program's memory does not take: EFAULT, and what was made is gone.
func TestUnstored(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	a := startAgent(t, d, d.exec())
	var got struct{ Codes, Handles []int }
	a.call(&got, "unstored", nil)
	if want := fmt.Sprint([]int{0, 0, int(syscall.EFAULT), 0, 0, int(syscall.EFAULT)}); fmt.Sprint(got.Codes) != want || got.Handles[0] != got.Handles[1] {
		t.Errorf("%+v: want the codes %s, and one handle for both domains", got, want)
	}
	a.quit()
	d.free()
}
