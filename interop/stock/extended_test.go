//go:build linux

package stock

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// everyField are the fields of an entry that may be asked for (enum ibv_create_cq_wc_flags).
const everyField = 0x7F

// polled is what a call of extended polling has returned: 0 and an entry, or an errno.
type polled struct {
	Code int
	WCs  []completion
}

// step is start_poll, next_poll or end_poll.
func (a *agent) step(verb string, cq int) (p polled) {
	a.t.Helper()
	a.call(&p, verb, args{"cq": cq})
	return p
}

// batch waits for count completions, which it reads in batches as long as may be.
func (a *agent) batch(cq, count int) (l []completion) {
	a.t.Helper()
	for end := time.Now().Add(patience); len(l) < count; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			a.t.Fatalf("%d completions, want %d: %+v", len(l), count, l)
		}
		p := a.step("start_poll", cq)
		if p.Code != 0 {
			continue // and no end_poll
		}
		for p.Code == 0 {
			l = append(l, p.WCs...)
			if len(l) == count {
				break
			}
			p = a.step("next_poll", cq)
		}
		a.step("end_poll", cq)
	}
	return l
}

// steps holds what a call has returned.
func steps(t *testing.T, what string, p polled, code syscall.Errno, ids ...uint64) {
	t.Helper()
	var got []uint64
	for _, wc := range p.WCs {
		got = append(got, wc.WrID)
	}
	if p.Code != int(code) || fmt.Sprint(got) != fmt.Sprint(ids) {
		t.Fatalf("%s: code %d, completions %v, want %d, %v", what, p.Code, got, code, ids)
	}
}

// TestExtendedCQ has completion queues of ibv_create_cq_ex: what ibv_wc_read_* read there is what ibv_poll_cq has for the
// same traffic; and the batches of case 47.
func TestExtendedCQ(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(1<<16, everyAccess), b.regMR(1<<16, everyAccess)
		extended := func(x *agent) int {
			t.Helper()
			return x.create("create_cq_ex", args{"depth": 4 * depth, "wc_flags": everyField})
		}

		for _, typ := range []string{"RC", "UC", "UD"} {
			t.Run(typ, func(t *testing.T) {
				pair := func(ex bool) (q, p *queuePair, poll func(x *agent, cq, count int) []completion) {
					t.Helper()
					if ex {
						q = a.createQPOn(typ, extended(a), extended(a))
						p = b.createQPOn(typ, extended(b), extended(b))
						poll = (*agent).batch
					} else {
						q, p, poll = a.createQP(typ), b.createQP(typ), (*agent).poll
					}
					switch typ {
					case "UD":
						q.datagrams(7)
						p.datagrams(7)
					default:
						connectAs(typ, q, p, path{mtu: 1024, rnrRetry: 7})
					}
					return q, p, poll
				}
				var seen [2][]completion
				for i := range seen {
					q, p, poll := pair(i == 1)
					seen[i] = everyMessage(t, typ, q, p, near, far, poll)
					q.destroy()
					p.destroy()
				}
				if len(seen[0]) < 4 || fmt.Sprint(seen[0]) != fmt.Sprint(seen[1]) {
					t.Errorf("ibv_poll_cq has\n%+v\nthe fields of extended completion queues are\n%+v", seen[0], seen[1])
				}
			})
		}

		t.Run("batches", func(t *testing.T) {
			rcq, scq := b.create("create_cq_ex", args{"depth": 6}), b.create("create_cq", args{"depth": 4 * depth})
			q, p := a.createQP("RC"), b.createQPOn("RC", scq, rcq)
			q2, p2 := a.createQP("RC"), b.createQPOn("RC", scq, rcq)
			connect(q, p, path{mtu: 1024, rnrRetry: 7})
			connect(q2, p2, path{mtu: 1024, rnrRetry: 7})
			message := func(q, p *queuePair, id uint64) {
				t.Helper()
				p.recv(id, far.sge(0, 8))
				q.send(sendWR{id: id, op: "SEND", sge: []sge{near.sge(0, 8)}})
				// An RC message is acknowledged after it was received.
				statuses(t, "send", q.sent(1), [2]int{int(id), success})
			}
			none, enoent := syscall.Errno(0), syscall.ENOENT
			steps(t, "start on an empty queue", b.step("start_poll", rcq), enoent)
			steps(t, "and again: nothing is held", b.step("start_poll", rcq), enoent)
			message(q, p, 1)
			steps(t, "start", b.step("start_poll", rcq), none, 1)
			emptied := func() {
				t.Helper()
				// Until rdma-core's commit b78b414e0, end_poll takes an entry that is not there when next_poll found none.
				if rdmaCore(t) >= 56 {
					steps(t, "next on an empty queue", b.step("next_poll", rcq), enoent)
				}
			}
			emptied()
			b.step("end_poll", rcq)
			steps(t, "start after the only one", b.step("start_poll", rcq), enoent)
			message(q, p, 2)
			steps(t, "start: one that came later", b.step("start_poll", rcq), none, 2)
			message(q2, p2, 3)
			steps(t, "next: one that came within the batch", b.step("next_poll", rcq), none, 3)
			b.step("end_poll", rcq)
			steps(t, "each once", b.step("start_poll", rcq), enoent)

			// More than the queue is deep, so that its indices wrap.
			for id := range uint64(24) {
				message(q, p, id)
				if id%2 == 1 {
					statuses(t, "wrapped", b.batch(rcq, 2), [2]int{int(id) - 1, success}, [2]int{int(id), success})
				}
			}

			// A queue pair goes in the middle of a batch. What it has in the queue may stay or go; the rest stays.
			message(q, p, 10)
			message(q2, p2, 20)
			message(q, p, 11)
			steps(t, "start", b.step("start_poll", rcq), none, 10)
			b.call(nil, "destroy", args{"ids": []int{p2.ID}})
			next := b.step("next_poll", rcq)
			if next.Code == 0 && next.WCs[0].WrID == 20 {
				next = b.step("next_poll", rcq)
			}
			steps(t, "next, of the other queue pair", next, none, 11)
			emptied()
			b.step("end_poll", rcq)
			message(q, p, 12)
			statuses(t, "after it", b.batch(rcq, 1), [2]int{12, success})
			b.call(nil, "destroy", args{"ids": []int{p.ID, rcq, scq}})
			q.destroy()
			q2.destroy()
		})

		t.Run("refused", func(t *testing.T) {
			for _, c := range []struct {
				name string
				args args
				want syscall.Errno
			}{
				{"depth 0", args{"depth": 0}, syscall.EINVAL},
				{"depth above the limit", args{"depth": 32768}, syscall.EINVAL},
				{"completion vector", args{"depth": 16, "vector": 1 << 16}, syscall.EINVAL},
				{"time stamps", args{"depth": 16, "wc_flags": 1 << 7}, syscall.EOPNOTSUPP},
				{"a field that nobody knows", args{"depth": 16, "wc_flags": 1 << 30}, syscall.EOPNOTSUPP},
			} {
				if f := a.try(nil, "create_cq_ex", c.args); f.Errno != int(c.want) {
					t.Errorf("%s: %+v, want errno %d (%v)", c.name, f, c.want, c.want)
				}
			}
		})
	})
}

// rdmaCore is the version of the libraries under test.
func rdmaCore(t *testing.T) (version int) {
	t.Helper()
	links, _ := filepath.Glob("/usr/lib/*/libibverbs.so.1")
	for _, link := range links {
		if file, err := filepath.EvalSymlinks(link); err == nil {
			var abi int
			_, _ = fmt.Sscanf(filepath.Base(file), "libibverbs.so.1.%d.%d", &abi, &version)
		}
	}
	if version == 0 {
		t.Fatalf("no version in the name of libibverbs: %v", links)
	}
	return version
}

// connectAs is connect, for UC too.
func connectAs(typ string, q, far *queuePair, p path) {
	if typ != "UC" {
		connect(q, far, p)
		return
	}
	for _, x := range [][2]*queuePair{{q, far}, {far, q}} {
		x[0].a.t.Helper()
		x[0].modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": remoteWrite})
	}
	for _, x := range [][2]*queuePair{{q, far}, {far, q}} {
		x[0].modify("RTR", args{"ah_attr": args{"dgid": x[1].a.d.gid()}, "path_mtu": 3, "dest_qp_num": x[1].QPN, "rq_psn": 0xFFFFFE})
		x[0].modify("RTS", args{"sq_psn": 0xFFFFFE})
	}
}

// everyMessage sends what such queue pairs can, compares the data, and returns the completions of both ends: without what
// the verbs leave open, and with 1 and 2 as the numbers of the queue pairs.
func everyMessage(t *testing.T, typ string, q, p *queuePair, near, far *memory, poll func(*agent, int, int) []completion) (l []completion) {
	t.Helper()
	ops := []string{"SEND", "SEND_WITH_IMM"}
	var ah *int
	room := 0
	switch typ {
	case "UD":
		h := q.a.create("create_ah", args{"dgid": p.a.d.gid()})
		ah, room = &h, 40
	case "UC":
		ops = append(ops, "RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
	default:
		ops = append(ops, "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ", "ATOMIC_FETCH_AND_ADD", "SEND_WITH_INV")
	}
	numbers := map[uint32]uint32{q.QPN: 1, p.QPN: 2, 0: 0}
	for i, op := range ops {
		size := 1000 + i
		if op == "ATOMIC_FETCH_AND_ADD" {
			size = 8
		}
		pattern := seeded(uint64(77+i), size)
		from, to, at := near, far, room
		if op == "RDMA_READ" || op == "ATOMIC_FETCH_AND_ADD" {
			from, to = far, near
		}
		from.write(0, pattern)
		to.write(0, make([]byte, 2048))
		w := sendWR{id: uint64(100 + i), op: op, imm: 0x89ABCDEF, sge: []sge{near.sge(0, size)}, remoteAddr: far.Addr, rkey: far.RKey, compareAdd: 1, ah: ah, remoteQPN: p.QPN, qkey: 7}
		received := op == "SEND" || op == "SEND_WITH_IMM" || op == "RDMA_WRITE_WITH_IMM" || op == "SEND_WITH_INV"
		var win *window
		if op == "SEND_WITH_INV" {
			win = p.a.window(2)
			p.bind(50, win, far, 0, 64, remoteRead)
			if wc := poll(p.a, p.scq, 1)[0]; wc.Status != success || wc.Opcode != wcBindMW {
				t.Fatalf("bind: %+v", wc)
			}
			w.invalidate = win.RKey
		}
		if received {
			p.recv(uint64(200+i), far.sge(0, 2000))
		}
		q.send(w)
		wc := poll(q.a, q.scq, 1)[0]
		if wc.Status != success || wc.WrID != w.id {
			t.Fatalf("%s: %+v", op, wc)
		}
		wc.Imm, wc.Key, wc.SrcQP = 0, 0, 0 // only of receives
		if wc.QPN = numbers[wc.QPN]; op != "RDMA_READ" && op != "ATOMIC_FETCH_AND_ADD" {
			wc.ByteLen = 0
		}
		l = append(l, wc)
		if received {
			wc := poll(p.a, p.rcq, 1)[0]
			if wc.Status != success || wc.WrID != uint64(200+i) || wc.ByteLen != room+size || wc.QPN != p.QPN {
				t.Fatalf("%s: the receiver's %+v", op, wc)
			}
			switch op {
			case "SEND_WITH_INV":
				if wc.Flags&wcWithInv == 0 || wc.Key != win.RKey {
					t.Errorf("%s: the receiver's %+v, want the key %#x", op, wc, win.RKey)
				}
			case "SEND":
			default:
				if wc.Flags&wcWithImm == 0 || wc.Imm != w.imm {
					t.Errorf("%s: the receiver's %+v, want the immediate %#x", op, wc, w.imm)
				}
			}
			if wc.Flags&wcWithImm == 0 {
				wc.Imm = 0
			}
			wc.Key, wc.QPN = 0, numbers[wc.QPN]
			if typ == "UD" {
				if wc.SrcQP != q.QPN || wc.Flags&wcGRH == 0 {
					t.Errorf("%s: the receiver's %+v, want the source %d", op, wc, q.QPN)
				}
			}
			wc.SrcQP = numbers[wc.SrcQP]
			l = append(l, wc)
		} else if typ == "UC" {
			eventually(t, "the WRITE", func() bool { return to.read(size-1, 1)[0] == pattern[size-1] })
		}
		same(t, op, to.read(at, size+16), append(append([]byte{}, pattern...), make([]byte, 16)...))
		if win != nil {
			win.dealloc()
		}
	}
	return l
}

// TestExtendedQP has queue pairs whose requests are made by calls, wr_start to wr_complete: every operation, data that is
// gathered and data that is inline, several requests in one piece, and what is given up leaves nothing.
func TestExtendedQP(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		near, far := a.regMR(1<<16, everyAccess), b.regMR(1<<16, everyAccess)
		connected := []string{"SEND", "SEND_WITH_IMM", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM"}
		for typ, ops := range map[string][]string{
			"RC": append([]string{"RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "SEND_WITH_INV"}, connected...),
			"UC": connected,
			"UD": connected[:2],
		} {
			t.Run(typ, func(t *testing.T) {
				q, p := a.createQPExOf(typ, ops...), b.createQPExOf(typ, ops...)
				room := 0
				var ah *int
				if typ == "UD" {
					h := a.create("create_ah", args{"dgid": b.d.gid()})
					ah, room = &h, 40
					q.datagrams(7)
					p.datagrams(7)
				} else {
					connectAs(typ, q, p, path{mtu: 1024, rnrRetry: 7})
				}
				request := func(id uint64, op string, l ...sge) sendWR {
					return sendWR{id: id, op: op, flags: signaled, imm: 0x01020384, sge: l, remoteAddr: far.Addr, rkey: far.RKey, ah: ah, remoteQPN: p.QPN, qkey: 7}
				}
				post := func(inline map[int]string, l ...sendWR) {
					t.Helper()
					if f := q.postEx(false, inline, l...); f.Error != "" {
						t.Fatalf("post %+v: %s", l, f.Error)
					}
				}

				// Each operation: gathered from one place, from three, and inline. librxe does not set the flag of that by
				// itself, and takes a list of inline buffers for nothing.
				for i, op := range ops {
					switch op {
					case "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "SEND_WITH_INV":
						continue
					}
					for _, parts := range []int{1, 3, 0} {
						what := fmt.Sprintf("%s in %d parts (0: inline)", op, parts)
						// Equal parts: librxe takes the length of the first for that of all.
						size := 2499
						if typ == "UD" || parts == 0 {
							size = inlineMax - 1
						}
						if op == "RDMA_READ" && parts == 0 {
							continue
						}
						pattern := seeded(uint64(1000*i+parts+10), size)
						from, to := near, far
						if op == "RDMA_READ" {
							from, to = far, near
						}
						from.write(0, pattern)
						to.write(0, make([]byte, 4096))
						w := request(uint64(i), op)
						var in map[int]string
						if parts == 0 {
							in = map[int]string{0: hex.EncodeToString(pattern)}
							if op != "SEND" { // ibv_wr_set_inline_data(3) does not ask for the flag, and librxe does not set it
								w.flags |= inlineData
							}
							near.write(0, make([]byte, size)) // it is not taken from there
						} else {
							for j := range parts {
								w.sge = append(w.sge, near.sge(j*size/parts, size/parts))
							}
						}
						received := op != "RDMA_WRITE" && op != "RDMA_READ"
						if received {
							p.recv(uint64(100+i), far.sge(0, 4096))
						}
						post(in, w)
						statuses(t, what, q.sent(1), [2]int{i, success})
						if received {
							wc := p.received(1)[0]
							if wc.Status != success || wc.WrID != uint64(100+i) || wc.ByteLen != room+size || (op != "SEND") != (wc.Flags&wcWithImm != 0) || op != "SEND" && wc.Imm != w.imm {
								t.Fatalf("%s: the receiver's %+v", what, wc)
							}
						} else if typ == "UC" {
							eventually(t, what, func() bool { return far.read(size-1, 1)[0] == pattern[size-1] })
						}
						same(t, what, to.read(room, size+16), append(append([]byte{}, pattern...), make([]byte, 16)...))
					}
				}

				// Several in one piece arrive in their order.
				l := []sendWR{request(30, "SEND", near.sge(0, 1)), request(31, "SEND_WITH_IMM", near.sge(1, 2)), request(32, "SEND", near.sge(3, 3))}
				near.write(0, []byte("abbccc"))
				for i := range l {
					p.recv(uint64(40+i), far.sge(100*i, 64))
				}
				post(nil, l...)
				statuses(t, "three", q.sent(3), [2]int{30, success}, [2]int{31, success}, [2]int{32, success})
				statuses(t, "three", p.received(3), [2]int{40, success}, [2]int{41, success}, [2]int{42, success})
				for i, want := range []string{"a", "bb", "ccc"} {
					same(t, "three", far.read(100*i+room, len(want)), []byte(want))
				}

				// What is given up, or wrong, leaves nothing behind: the next message is the first that comes.
				if f := q.postEx(true, nil, l...); f.Error != "" {
					t.Errorf("wr_abort: %s", f.Error)
				}
				p.recv(50, far.sge(0, 64))
				long := map[int]string{1: hex.EncodeToString(seeded(1, inlineMax+1))}
				if f := q.postEx(false, long, l...); f.Errno != int(syscall.ENOSPC) {
					t.Errorf("%d bytes inline: %+v, want errno %d (ENOSPC)", inlineMax+1, f, syscall.ENOSPC)
				}
				near.write(0, []byte("last"))
				post(nil, request(60, "SEND", near.sge(0, 4)))
				statuses(t, "after what was given up", q.sent(1), [2]int{60, success})
				statuses(t, "after what was given up", p.received(1), [2]int{50, success})
				same(t, "after what was given up", far.read(room, 4), []byte("last"))

				// More than there is room for: all or nothing.
				many := make([]sendWR, 64*depth)
				for i := range many {
					many[i] = request(uint64(i), "SEND", near.sge(0, 4))
				}
				if f := q.postEx(false, nil, many...); f.Errno != int(syscall.ENOSPC) {
					t.Errorf("%d requests at once: %+v, want errno %d (ENOSPC)", len(many), f, syscall.ENOSPC)
				}
				var none struct{ WCs []completion }
				a.call(&none, "poll", args{"cq": q.scq, "count": 1, "limit": 0})
				if len(none.WCs) != 0 {
					t.Errorf("completions of what was not posted: %+v", none.WCs)
				}

				if typ == "RC" {
					atomicsByCalls(t, q, p, near, far)
				}
				q.destroy()
				p.destroy()
			})
		}

		t.Run("refused", func(t *testing.T) {
			cq := a.create("create_cq", args{"depth": depth})
			for _, c := range []struct{ typ, op string }{
				{"UD", "RDMA_WRITE"}, {"UC", "RDMA_READ"}, {"UC", "ATOMIC_FETCH_AND_ADD"}, {"UD", "ATOMIC_WRITE"}, {"RC", "TSO"},
			} {
				f := a.try(nil, "create_qp_ex", args{"type": c.typ, "scq": cq, "rcq": cq, "depth": 4, "sge": 1, "sig_all": true, "ops": []string{c.op}})
				if f.Errno != int(syscall.EOPNOTSUPP) {
					t.Errorf("%s with %s: %+v, want errno %d (EOPNOTSUPP)", c.typ, c.op, f, syscall.EOPNOTSUPP)
				}
			}
		})
	})
}

// atomicsByCalls has what RC has beside messages.
func atomicsByCalls(t *testing.T, q, p *queuePair, near, far *memory) {
	t.Helper()
	post := func(w sendWR) {
		t.Helper()
		if f := q.postEx(false, nil, w); f.Error != "" {
			t.Fatalf("post %+v: %s", w, f.Error)
		}
	}
	const was = 0xFEDCBA9876543210
	far.setWord(0, was)
	w := sendWR{id: 1, op: "ATOMIC_FETCH_AND_ADD", flags: signaled, sge: []sge{near.sge(8, 8)}, remoteAddr: far.Addr, rkey: far.RKey, compareAdd: 3}
	post(w)
	statuses(t, w.op, q.sent(1), [2]int{1, success})
	if near.word(8) != was || far.word(0) != was+3 {
		t.Errorf("%s: %#x came back, %#x is there", w.op, near.word(8), far.word(0))
	}
	w.op, w.compareAdd, w.swap = "ATOMIC_CMP_AND_SWP", was+3, 0x1122334455667788
	post(w)
	statuses(t, w.op, q.sent(1), [2]int{1, success})
	if near.word(8) != was+3 || far.word(0) != w.swap {
		t.Errorf("%s: %#x came back, %#x is there", w.op, near.word(8), far.word(0))
	}

	// A window of the receiver goes with a message, one of the sender by itself.
	win := p.a.window(2)
	p.bind(2, win, far, 0, 64, remoteRead)
	statuses(t, "bind", p.sent(1), [2]int{2, success})
	p.recv(3, far.sge(0, 64))
	near.write(0, binary.BigEndian.AppendUint64(nil, was))
	post(sendWR{id: 4, op: "SEND_WITH_INV", flags: signaled, invalidate: win.RKey, sge: []sge{near.sge(0, 8)}})
	statuses(t, "SEND_WITH_INV", q.sent(1), [2]int{4, success})
	if wc := p.received(1)[0]; wc.Status != success || wc.Flags&wcWithInv == 0 || wc.Key != win.RKey {
		t.Errorf("SEND_WITH_INV: the receiver's %+v, want the key %#x", wc, win.RKey)
	}
	same(t, "SEND_WITH_INV", far.read(0, 8), binary.BigEndian.AppendUint64(nil, was))
	win.dealloc()

	win = q.a.window(2)
	q.bind(5, win, near, 0, 64, remoteRead|remoteWrite)
	statuses(t, "bind", q.sent(1), [2]int{5, success})
	post(sendWR{id: 6, op: "LOCAL_INV", flags: signaled, invalidate: win.RKey})
	if wc := q.sent(1)[0]; wc.Status != success || wc.Opcode != wcLocalInv {
		t.Errorf("LOCAL_INV: %+v", wc)
	}
	p.send(sendWR{id: 7, op: "RDMA_READ", sge: []sge{far.sge(0, 8)}, remoteAddr: near.Addr, rkey: win.RKey})
	statuses(t, "READ of a window that is gone", p.sent(1), [2]int{7, remoteAccess})
	win.dealloc()
}
