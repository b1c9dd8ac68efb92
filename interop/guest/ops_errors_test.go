//go:build linux

package guest

import (
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire/bth"
)

// rnrs counts the RNR NAKs with which an end has answered since a mark.
func (l *opsLab) rnrs(mark int, to opsEnd) (n int) {
	for _, s := range l.tape.naks(mark, answers(to)) {
		if s.IsRNR() {
			n++
		}
	}
	return n
}

// TestOpsRNR posts the receive late, or never, with either as the one that requests.
func TestOpsRNR(t *testing.T) {
	needGuest(t)
	l := newOps(t, "rnr.pcap")
	t.Run("late", func(t *testing.T) {
		// One is in flight behind another: the kernel's responder answers those with a sequence NAK (roce.md B.5).
		l.eachNew(t, opsConn{minRNR: 20, rnr: 7}, func(t *testing.T, p *opsPair, from, to opsEnd) {
			for _, op := range []device.WROp{device.OpSend, device.OpWriteImm} {
				mark := l.tape.mark()
				sizes := []int{10, 2500, 5}
				for i, size := range sizes {
					from.put(opsSource+i*4096, seeded(uint64(i), make([]byte, size)))
					from.post(opsWR{ID: uint64(i), Op: op, SGE: []span{{opsSource + i*4096, size}}, Addr: to.addr(opsTarget + i*4096), Key: to.key()})
				}
				waitFor(t, patience, "an RNR NAK", func() bool { return l.rnrs(mark, to) >= 2 })
				if wc := from.polled(true, 1, 10*time.Millisecond); len(wc) > 0 {
					t.Fatalf("%s's request completes without a receive: %+v", from.who(), wc)
				}
				for i := range sizes {
					to.recv(uint64(10+i), span{opsTarget + i*4096, 4096})
				}
				for i, size := range sizes {
					if wc := sent(t, from, op.String(), device.StatusSuccess); wc.ID != uint64(i) {
						t.Errorf("%s's completion %d: %+v", from.who(), i, wc)
					}
					opsReceived(t, to, op, size, uint64(10+i), 0)
					same(t, op.String()+" after RNR", to.get(opsTarget+i*4096, size), seeded(uint64(i), make([]byte, size)))
				}
			}
		})
	})
	t.Run("exhausted", func(t *testing.T) {
		l.eachNew(t, opsConn{minRNR: 15, rnr: 2}, func(t *testing.T, p *opsPair, from, to opsEnd) {
			mark := l.tape.mark()
			from.post(opsWR{ID: 1, Op: device.OpSend, SGE: []span{{opsSource, 10}}})
			if wc := sent(t, from, "SEND without a receive", device.StatusRNRRetryExceeded); wc.ID != 1 {
				t.Errorf("completion %+v", wc)
			}
			if n := l.rnrs(mark, to); n != 3 {
				t.Errorf("%s has answered with %d RNR NAKs, want 3", to.who(), n)
			}
			inState(t, from, "ERR")
			inState(t, to, "RTS")
			from.post(opsWR{ID: 2, Op: device.OpSend, SGE: []span{{opsSource, 10}}})
			if wc := sent(t, from, "SEND in ERR", device.StatusFlush); wc.ID != 2 {
				t.Errorf("completion %+v", wc)
			}
		})
	})
	t.Run("new-request", func(t *testing.T) {
		// The kernel's requester sends what is posted while it has to wait (rxe-lab.md C8): softnic is silent to that.
		p := l.connect(opsConn{minRNR: 28}) // 164 ms
		defer p.close()
		mark := l.tape.mark()
		post := func(id uint64) { p.kern.post(opsWR{ID: id, Op: device.OpSend, SGE: []span{{opsSource, 10}}}) }
		post(1)
		waitFor(t, patience, "an RNR NAK", func() bool { return l.rnrs(mark, p.soft) == 1 })
		time.Sleep(30 * time.Millisecond) // longer than what may have been on its way
		post(2)
		p.soft.recv(1, span{opsTarget, 100})
		p.soft.recv(2, span{opsTarget, 100})
		for i := range 2 {
			sent(t, p.kern, "SEND after RNR", device.StatusSuccess)
			if wc := received(t, p.soft, "SEND after RNR", device.StatusSuccess); wc.ID != uint64(i+1) {
				t.Errorf("receive %d: %+v", i, wc)
			}
		}
		if n := l.tape.naks(mark, rules.Tx); len(n) != 1 {
			t.Errorf("softnic answers with NAKs %x, want one", n)
		}
		var psns []uint32
		for _, v := range l.tape.seen(mark, rules.Rx) {
			psns = append(psns, uint32(v.BTH().PSN()))
		}
		deviation(t, "rnr-new-request", psns[1] == psns[0]+1, "PSNs %x", psns)
	})
	l.end([]string{"drop_not-ready", "drop_out-of-sequence", "drop_duplicate", "drop_stale-response"}, rules.RNRWait, rules.RNRSilence, rules.AckTimeout)
	deviation(t, "rnr-new-request", l.breaks(rules.RNRWait), "it sends nothing while it has to wait")
	deviation(t, "rnr-sequence-nak", l.breaks(rules.RNRSilence), "it is silent after an RNR NAK")
}

// TestOpsErrors is requests that the responder refuses: the NAK, the status at either end, the event, the memory, and
// what becomes of the queue pairs.
func TestOpsErrors(t *testing.T) {
	needGuest(t)
	l := newOps(t, "errors.pcap")
	const size = 3000
	at := func(off int, x uint32) func(w *opsWR, to opsEnd) {
		return func(w *opsWR, to opsEnd) { w.Addr, w.Key = to.addr(off), to.key()^x }
	}
	closed := func(a device.Access) func(w *opsWR, to opsEnd) {
		return func(w *opsWR, to opsEnd) { w.Addr, w.Key = to.region(4096, a) }
	}
	const (
		access  = bth.NakRemoteAccess
		invalid = bth.NakInvalidRequest
	)
	for _, c := range []struct {
		name  string
		op    device.WROp
		where func(w *opsWR, to opsEnd)
		conn  opsConn
		nak   bth.Syndrome
		recv  device.Status // of the receive that a WRITE with immediate holds, at both

		misaligned bool
	}{
		{name: "write-key", op: device.OpWrite, where: at(0, 0x100), nak: access},
		{name: "write-key-byte", op: device.OpWrite, where: at(0, 1), nak: access},
		{name: "write-range", op: device.OpWrite, where: at(opsSize-size+1, 0), nak: access},
		{name: "write-before", op: device.OpWrite, where: at(-1, 0), nak: access},
		{name: "write-closed", op: device.OpWrite, where: closed(device.LocalWrite | device.RemoteRead), nak: access},
		{name: "write-disabled", op: device.OpWrite, where: at(0, 0), conn: opsConn{none: true}, nak: invalid},
		{name: "write-imm-key", op: device.OpWriteImm, where: at(0, 0x100), nak: access, recv: device.StatusRemoteAccess},
		{name: "read-key", op: device.OpRead, where: at(0, 0x100), nak: access},
		{name: "read-range", op: device.OpRead, where: at(opsSize-size+1, 0), nak: access},
		{name: "read-closed", op: device.OpRead, where: closed(device.LocalWrite | device.RemoteWrite), nak: access},
		{name: "read-disabled", op: device.OpRead, where: at(0, 0), conn: opsConn{none: true}, nak: invalid},
		{name: "fetch-add-key", op: device.OpFetchAdd, where: at(0, 0x100), nak: access},
		{name: "fetch-add-range", op: device.OpFetchAdd, where: at(opsSize, 0), nak: access},
		{name: "fetch-add-closed", op: device.OpFetchAdd, where: closed(device.LocalWrite | device.RemoteWrite | device.RemoteRead), nak: access},
		{name: "fetch-add-disabled", op: device.OpFetchAdd, where: at(0, 0), conn: opsConn{none: true}, nak: invalid},
		{name: "fetch-add-misaligned", op: device.OpFetchAdd, where: at(4, 0), nak: invalid, misaligned: true},
		{name: "fetch-add-misaligned-key", op: device.OpFetchAdd, where: at(4, 0x100), nak: access, misaligned: true},
		{name: "compare-swap-key", op: device.OpCompareSwap, where: at(0, 0x100), nak: access},
		{name: "compare-swap-misaligned", op: device.OpCompareSwap, where: at(1, 0), nak: invalid, misaligned: true},
		{name: "atomic-write-key", op: device.OpAtomicWrite, where: at(0, 0x100), conn: opsConn{extended: true}, nak: access},
		{name: "atomic-write-misaligned", op: device.OpAtomicWrite, where: at(4, 0), conn: opsConn{extended: true}, nak: invalid, misaligned: true},
		{name: "atomic-write-disabled", op: device.OpAtomicWrite, where: at(0, 0), conn: opsConn{extended: true, none: true}, nak: invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.eachNew(t, c.conn, func(t *testing.T, p *opsPair, from, to opsEnd) {
				n := size
				switch c.op {
				case device.OpWrite, device.OpRead:
				case device.OpWriteImm:
					n = 100 // of several packets, no receive is held yet
				default:
					n = 8
				}
				if c.misaligned && from == opsEnd(p.kern) {
					return // its library does not post that
				}
				before, local := seeded(1, make([]byte, opsSource)), seeded(2, make([]byte, size))
				to.put(0, before)
				from.put(opsSource, local)
				mark := l.tape.mark()
				w := opsWR{ID: 1, Op: c.op, SGE: []span{{opsSource, n}}, Compare: 1, Swap: 2}
				c.where(&w, to)
				to.recv(7, span{0, size})
				from.post(w)
				// What is behind it is flushed, as is what is posted later.
				from.post(opsWR{ID: 2, Op: device.OpWrite, SGE: []span{{opsSource, 10}}, Addr: to.addr(0), Key: to.key()})
				status, event := device.StatusRemoteAccess, device.EventQPAccessErr
				if c.nak == invalid {
					status, event = device.StatusRemoteInvalidReq, device.EventQPReqErr
				}
				if wc := sent(t, from, c.op.String(), status); wc.ID != 1 {
					t.Errorf("completion %+v", wc)
				}
				if wc := sent(t, from, "WRITE behind it", device.StatusFlush); wc.ID != 2 {
					t.Errorf("completion behind it %+v", wc)
				}
				want := device.StatusFlush
				if c.recv != 0 {
					want = c.recv
				}
				if wc := received(t, to, c.op.String(), want); wc.ID != 7 {
					t.Errorf("%s's receive: %+v", to.who(), wc)
				}
				opsNak(t, l, mark, to, c.nak)
				inState(t, from, "ERR")
				inState(t, to, "ERR")
				if to == opsEnd(p.soft) && c.recv == 0 {
					l.events(t, event)
				} else {
					l.events(t)
				}
				same(t, "memory of the responder", to.get(0, opsSource), before)
				same(t, "memory of the requester", from.get(opsSource, size), local)
				from.post(opsWR{ID: 3, Op: device.OpSend, SGE: []span{{opsSource, 1}}})
				sent(t, from, "SEND in ERR", device.StatusFlush)
			})
		})
	}
	// Where the two do not agree: what softnic says, and what the kernel's device says.
	type verdict struct {
		nak           bth.Syndrome // 0: none
		request, recv device.Status
	}
	for _, c := range []struct {
		name, row string
		recv      func(to opsEnd)
		wr        opsWR
		soft, rxe verdict
	}{
		{name: "send-too-long", row: "receive-too-short", recv: func(to opsEnd) { to.recv(7, span{0, 2000}) },
			wr:   opsWR{Op: device.OpSend, SGE: []span{{opsSource, 2001}}},
			soft: verdict{invalid, device.StatusRemoteInvalidReq, device.StatusLocalLength}, rxe: verdict{bth.NakRemoteOp, device.StatusRemoteOp, device.StatusLocalQPOp}},
		{name: "receive-key", row: "receive-bad-key", recv: func(to opsEnd) { to.recvBad(7, span{0, 100}) },
			wr:   opsWR{Op: device.OpSend, SGE: []span{{opsSource, 10}}},
			soft: verdict{bth.NakRemoteOp, device.StatusRemoteOp, device.StatusLocalProtection}, rxe: verdict{bth.NakRemoteOp, device.StatusRemoteOp, device.StatusLocalQPOp}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.eachNew(t, opsConn{}, func(t *testing.T, p *opsPair, from, to opsEnd) {
				c.recv(to)
				mark := l.tape.mark()
				from.post(c.wr)
				got := verdict{request: wcs(t, from, true, 1)[0].Status, recv: wcs(t, to, false, 1)[0].Status}
				waitFor(t, patience, "the NAK on the tape", func() bool { return len(l.tape.naks(mark, answers(to))) > 0 })
				got.nak = l.tape.naks(mark, answers(to))[0]
				if to == opsEnd(p.soft) {
					if got != c.soft {
						t.Errorf("softnic: %+v, want %+v", got, c.soft)
					}
				} else {
					deviation(t, c.row, got == c.rxe, "%+v", got)
				}
				inState(t, to, "ERR")
				l.events(t)
			})
		})
	}
	// A key that cannot be invalidated: the message has arrived and is acknowledged.
	t.Run("send-inv-key", func(t *testing.T) {
		l.eachNew(t, opsConn{}, func(t *testing.T, p *opsPair, from, to opsEnd) {
			to.recv(7, span{0, 100})
			mark := l.tape.mark()
			from.post(opsWR{Op: device.OpSendInv, SGE: []span{{opsSource, 10}}, Imm: 0xDEAD00})
			sent(t, from, "SEND with invalidate of no key", device.StatusSuccess)
			received(t, to, "SEND with invalidate of no key", device.StatusRemoteInvalidReq)
			inState(t, to, "ERR")
			l.events(t)
			answer := l.tape.seen(mark, answers(to))
			if len(answer) != 1 {
				t.Fatalf("%d answers, want one", len(answer))
			}
			msn := bth.AETH(answer[0].Header(bth.HAETH)).MSN()
			if to == opsEnd(p.kern) {
				deviation(t, "send-inv-msn", msn == 0, "MSN %d", msn)
			} else if msn != 1 {
				t.Errorf("softnic answers with MSN %d, want 1", msn)
			}
		})
	})
	// What a requester finds itself, before anything is sent.
	t.Run("local", func(t *testing.T) {
		for _, w := range []opsWR{
			{ID: 1, Op: device.OpSend, SGE: []span{{opsSource, 10}}, BadLKey: true},
			{ID: 1, Op: device.OpWrite, SGE: []span{{opsSource, 10}}, BadLKey: true},
		} {
			l.eachNew(t, opsConn{}, func(t *testing.T, p *opsPair, from, to opsEnd) {
				w.Addr, w.Key = to.addr(0), to.key()
				before := l.dev.Counters(t)["sent_pkts"]
				mark := l.tape.mark()
				from.post(w)
				got := wcs(t, from, true, 1)[0]
				if from == opsEnd(p.soft) {
					if got.Status != device.StatusLocalProtection {
						t.Errorf("softnic's %v with a wrong L_Key: %v", w.Op, got.Status)
					}
				} else {
					deviation(t, "local-error-flush", got.Status == device.StatusFlush, "%v with a wrong L_Key: %v", w.Op, got.Status)
				}
				inState(t, from, "ERR")
				inState(t, to, "RTS")
				if n := len(l.tape.seen(mark, rules.Tx)); n != 0 || l.dev.Counters(t)["sent_pkts"] != before {
					t.Error("something was sent")
				}
				l.events(t)
			})
		}
		l.eachNew(t, opsConn{}, func(t *testing.T, p *opsPair, from, to opsEnd) {
			from.post(opsWR{Op: device.OpRead, SGE: []span{{opsSource, 10}}, BadLKey: true, Addr: to.addr(0), Key: to.key()})
			sent(t, from, "READ into a wrong L_Key", device.StatusLocalProtection)
			inState(t, from, "ERR")
			inState(t, to, "RTS")
		})
	})
	l.end([]string{"drop_bad-request", "drop_local-memory", "drop_qp-state", "drop_stale-response", "drop_bad-response", "drop_duplicate"})
}

// TestOpsSRQ has three queue pairs of softnic share receives, against three of the kernel's device.
func TestOpsSRQ(t *testing.T) {
	needGuest(t)
	l := newOps(t, "srq.pcap")
	srq, err := l.n.pd.CreateSRQ(device.SRQInit{MaxWR: 32, MaxSGE: 2, Limit: 0})
	if err != nil {
		t.Fatal(err)
	}
	var pairs []*opsPair
	for range 3 {
		pairs = append(pairs, l.connect(opsConn{srq: srq, minRNR: 16}))
	}
	recv := func(n int) {
		t.Helper()
		for i := range n {
			if err := srq.PostRecv(&device.RecvWR{ID: uint64(i), SGE: []device.SGE{l.mem.SGE(i*4096, 100), l.mem.SGE(i*4096+100, 3000)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := map[uint32][]string{}
	take := func(p *opsPair) {
		t.Helper()
		wc := received(t, p.soft, "SEND", device.StatusSuccess)
		got[p.soft.num()] = append(got[p.soft.num()], string(p.soft.get(int(wc.ID)*4096, wc.Len)))
	}
	want := map[uint32][]string{}
	send := func(k, i, size int) {
		t.Helper()
		p := pairs[k]
		data := seeded(uint64(100*k+i), make([]byte, size))
		off := opsSource + (k*8+i)*3072
		p.kern.put(off, data)
		p.kern.post(opsWR{Op: device.OpSend, SGE: []span{{off, size}}})
		want[p.soft.num()] = append(want[p.soft.num()], string(data))
	}
	same3 := func() {
		t.Helper()
		for _, p := range pairs {
			g, w := got[p.soft.num()], want[p.soft.num()]
			if len(g) != len(w) {
				t.Fatalf("%d messages, want %d", len(g), len(w))
			}
			for i := range w {
				same(t, "message through a shared receive queue", []byte(g[i]), []byte(w[i]))
			}
		}
	}
	// More messages than each would have receives of its own.
	recv(18)
	if err := srq.SetLimit(5); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		for k := range pairs {
			send(k, i, 1+1000*k+i)
		}
	}
	for _, p := range pairs {
		for range 4 {
			sent(t, p.kern, "SEND", device.StatusSuccess)
			take(p)
		}
	}
	same3()
	l.events(t) // 6 are left
	send(0, 4, 5)
	send(1, 4, 5)
	for _, p := range pairs[:2] {
		sent(t, p.kern, "SEND", device.StatusSuccess)
		take(p)
	}
	l.events(t, device.EventSRQLimit) // once: fewer than 5 are left
	if n := srq.Query().Limit; n != 0 {
		t.Errorf("the limit is %d after its event", n)
	}
	// None is left: all three wait, and none is lost.
	for i := range 4 {
		send(2, 4+i, 100)
	}
	for range 4 {
		sent(t, pairs[2].kern, "SEND", device.StatusSuccess)
		take(pairs[2])
	}
	mark := l.tape.mark()
	for k := range pairs {
		send(k, 7-k%2, 2000) // slots that are free again
	}
	waitFor(t, patience, "three RNR NAKs", func() bool { return l.rnrs(mark, pairs[0].soft) >= 3 })
	recv(3)
	for _, p := range pairs {
		sent(t, p.kern, "SEND after RNR", device.StatusSuccess)
		take(p)
	}
	same3()
	l.events(t)
	// In ERR a queue pair takes nothing more, and says so; receives stay for the others.
	recv(1)
	if err := pairs[0].soft.q.Modify(&device.QPAttr{State: device.StateErr}, device.AttrState); err != nil {
		t.Fatal(err)
	}
	l.events(t, device.EventLastWQE)
	if wc := pairs[0].soft.polled(false, 1, 50*time.Millisecond); len(wc) > 0 {
		t.Errorf("ERR takes a receive of others: %+v", wc)
	}
	send(1, 0, 700)
	sent(t, pairs[1].kern, "SEND", device.StatusSuccess)
	take(pairs[1])
	same3()
	for _, p := range pairs {
		p.close()
	}
	if err := srq.Destroy(); err != nil {
		t.Error(err)
	}
	l.end([]string{"drop_not-ready", "drop_out-of-sequence", "drop_duplicate", "drop_stale-response"}, rules.RNRWait, rules.RNRSilence, rules.AckTimeout)
}
