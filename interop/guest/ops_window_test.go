//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire/bth"
)

// TestOpsWindows has either end bind memory windows, and the other use their keys inside, outside, through another queue
// pair, for what they do not allow, and after they are gone.
func TestOpsWindows(t *testing.T) {
	needGuest(t)
	l := newOps(t, "windows.pcap")
	const off, size = 4096, 4096 // of the window, in the region
	types := map[device.MWType]string{device.MW1: "type1", device.MW2B: "type2"}
	// open binds a window, and has the other end write and read through it.
	open := func(t *testing.T, from, to opsEnd, w *opsWindow) {
		t.Helper()
		to.bind(w, off, size, device.RemoteWrite|device.RemoteRead|device.LocalWrite) // the last says nothing, on either
		if wc := sent(t, to, "bind", device.StatusSuccess); wc.Op != device.WCBindMW {
			t.Errorf("completion of the bind: %+v", wc)
		}
		data := seeded(uint64(w.rkey), make([]byte, size))
		from.put(opsSource, data)
		from.post(opsWR{Op: device.OpWrite, SGE: []span{{opsSource, size}}, Addr: to.addr(off), Key: w.rkey})
		sent(t, from, "WRITE through a window", device.StatusSuccess)
		same(t, "WRITE through a window", to.get(off, size), data)
		from.put(opsSource, make([]byte, size))
		from.post(opsWR{Op: device.OpRead, SGE: []span{{opsSource, size}}, Addr: to.addr(off), Key: w.rkey})
		sent(t, from, "READ through a window", device.StatusSuccess)
		same(t, "READ through a window", from.get(opsSource, size), data)
	}
	for _, typ := range []device.MWType{device.MW1, device.MW2B} {
		t.Run(types[typ], func(t *testing.T) {
			l.eachNew(t, opsConn{}, func(t *testing.T, p *opsPair, from, to opsEnd) {
				w := to.window(typ)
				defer to.freeWindow(w)
				open(t, from, to, w)

				// What the window does not allow, or what is not in it, fails on queue pairs of their own, since it ends
				// them. A window of type 2 is good for the queue pair alone that bound it.
				refused := func(name string, bind bool, wr opsWR) (device.Status, []byte) {
					t.Helper()
					q := l.connect(opsConn{})
					defer q.close()
					a, b := opsEnd(q.soft), opsEnd(q.kern)
					if from == opsEnd(p.kern) {
						a, b = b, a
					}
					if bind {
						x := b.window(typ)
						defer b.freeWindow(x)
						b.bind(x, off, size, device.RemoteWrite|device.RemoteRead)
						sent(t, b, "bind", device.StatusSuccess)
						wr.Key = x.rkey
					}
					b.put(0, filled(0x44, 4*off))
					a.put(opsSource, seeded(9, make([]byte, 64)))
					mark := l.tape.mark()
					a.post(wr)
					status := wcs(t, a, true, 1)[0].Status
					if status == device.StatusSuccess {
						return status, b.get(0, 4*off)
					}
					opsNak(t, l, mark, b, bth.NakRemoteAccess)
					if status != device.StatusRemoteAccess {
						t.Errorf("%s: %v", name, status)
					}
					if to == opsEnd(p.soft) {
						l.events(t, device.EventQPAccessErr)
					}
					if !bytes.Equal(b.get(0, 4*off), filled(0x44, 4*off)) {
						t.Errorf("%s: memory has changed", name)
					}
					return status, nil
				}
				write := func(at int) opsWR {
					return opsWR{Op: device.OpWrite, SGE: []span{{opsSource, 64}}, Addr: to.addr(at), Key: w.rkey}
				}
				for _, c := range []struct {
					name string
					at   int
				}{{"below", off - 64}, {"across the start", off - 8}, {"across the end", off + size - 8}, {"above", off + size}} {
					status, left := refused(c.name, true, write(c.at))
					switch {
					case to == opsEnd(p.soft):
						if status != device.StatusRemoteAccess {
							t.Errorf("WRITE %s softnic's window: %v", c.name, status)
						}
					default:
						done := status == device.StatusSuccess && bytes.Equal(left[c.at:c.at+64], seeded(9, make([]byte, 64)))
						deviation(t, "mw-bounds", done, "WRITE %s the window: %v", c.name, status)
					}
				}
				for _, c := range []struct {
					name string
					wr   opsWR
				}{
					{"FETCH ADD through a window without that right", opsWR{Op: device.OpFetchAdd, SGE: []span{{opsSource, 8}}, Addr: to.addr(off), Compare: 1}},
					{"WRITE behind the region", opsWR{Op: device.OpWrite, SGE: []span{{opsSource, 64}}, Addr: to.addr(opsSize - 32)}},
				} {
					if status, _ := refused(c.name, true, c.wr); status != device.StatusRemoteAccess {
						t.Errorf("%s: %v", c.name, status)
					}
				}
				want := device.StatusSuccess
				if typ == device.MW2B {
					want = device.StatusRemoteAccess
				}
				if status, _ := refused("window of another queue pair", false, write(off)); status != want {
					t.Errorf("through another queue pair: %v, want %v", status, want)
				}

				// Gone: type 2 by LOCAL INVALIDATE, type 1 by another bind, which makes the old key void.
				old := w.rkey
				if typ == device.MW2B {
					to.post(opsWR{Op: device.OpLocalInv, Imm: w.rkey})
					if wc := sent(t, to, "LOCAL INVALIDATE", device.StatusSuccess); wc.Op != device.WCLocalInv {
						t.Errorf("completion of LOCAL INVALIDATE: %+v", wc)
					}
				} else {
					open(t, from, to, w)
					if w.rkey == old {
						t.Fatalf("another bind keeps the key %#x", old)
					}
				}
				to.put(off, filled(0x33, 64))
				mark := l.tape.mark()
				from.post(opsWR{Op: device.OpWrite, SGE: []span{{opsSource, 64}}, Addr: to.addr(off), Key: old})
				sent(t, from, "WRITE through a window that is gone", device.StatusRemoteAccess)
				opsNak(t, l, mark, to, bth.NakRemoteAccess)
				same(t, "what a window that is gone leads to", to.get(off, 64), filled(0x33, 64))
				if to == opsEnd(p.soft) {
					l.events(t, device.EventQPAccessErr)
				}
			})
		})
	}
	// A region that may not have windows.
	t.Run("bind-refused", func(t *testing.T) {
		p := l.connect(opsConn{})
		defer p.close()
		w, vw := p.soft.window(device.MW2B), p.kern.window(device.MW2B)
		mr, err := l.n.pd.RegMR(make([]byte, 4096), device.LocalWrite|device.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		p.soft.bindTo(w, mr, 0, 64, device.RemoteWrite)
		sent(t, p.soft, "bind to a region that allows no windows", device.StatusMWBind)
		p.kern.bindTo(vw, l.v.RegMR(4096, accessLocalWrite|accessRemoteWrite), 0, 64, device.RemoteWrite)
		got := wcs(t, p.kern, true, 1)[0].Status
		deviation(t, "local-error-flush", got == device.StatusFlush, "bind to a region that allows no windows: %v", got)
		for _, e := range []opsEnd{p.soft, p.kern} {
			inState(t, e, "ERR")
		}
		p.soft.freeWindow(w)
		p.kern.freeWindow(vw)
	})
	l.end([]string{"drop_bad-request", "drop_qp-state"})
}

// TestOpsLoss has softnic lose two packets of a hundred, of those that it sends and of those that it receives, while
// both ends request everything at once that the kernel's device gets right. Data, values and order are exact, and an
// atomic whose answer was lost is not executed again.
func TestOpsLoss(t *testing.T) {
	needGuest(t)
	l := newOps(t, "loss.pcap")
	l.slack = 16 * time.Millisecond // softnic may have seen late what rxe has sent in time
	p := l.connect(opsConn{timeout: 14, minRNR: 12})
	ids := map[string]int{}
	for _, rule := range []string{"tx drop=2% seed=11", "rx drop=2% seed=12"} {
		id, err := l.n.dev.Port().Impair().Add(rule)
		if err != nil {
			t.Fatal(err)
		}
		ids[rule] = id
	}
	const (
		rounds  = 25
		each    = 3000           // bytes of a message
		counter = opsTarget + 16 // word that the other end adds to
		writes  = opsTarget + 4096
		receive = opsTarget + 16384
		reads   = opsTarget + 32768
		source  = opsSource
		result  = opsSource + 40960
	)
	ends := []opsEnd{p.soft, p.kern}
	word := func(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
	sum := map[opsEnd]uint64{}
	for _, e := range ends {
		e.put(opsTarget, make([]byte, 32))
	}
	for r := range rounds {
		type sides struct{ data, there []byte }
		all := map[opsEnd]sides{}
		for k, e := range ends {
			s := sides{seeded(uint64(10*r+k), make([]byte, each)), seeded(uint64(10*r+k+5), make([]byte, each))}
			e.put(source, s.data)
			e.put(reads, s.there)
			e.put(result, make([]byte, 8192))
			for i := range 4 { // SEND, SEND with immediate, WRITE with immediate, one of nothing
				e.recv(uint64(i), span{receive + i*4096, 4096})
			}
			all[e] = s
		}
		for k, e := range ends {
			to := ends[1-k]
			at := func(off int) (uint64, uint32) { return to.addr(off), to.key() }
			post := func(op device.WROp, sge span, off int, compare, swap uint64) {
				addr, key := at(off)
				e.post(opsWR{Op: op, SGE: []span{sge}, Imm: uint32(r), Addr: addr, Key: key, Compare: compare, Swap: swap})
			}
			post(device.OpSend, span{source, each}, 0, 0, 0)
			post(device.OpFetchAdd, span{result, 8}, counter, uint64(r+1), 0)
			post(device.OpRead, span{result + 64, each}, reads, 0, 0)
			post(device.OpSendImm, span{source, each - 1}, 0, 0, 0)
			post(device.OpWrite, span{source, each}, writes, 0, 0)
			post(device.OpFetchAdd, span{result + 8, 8}, counter, uint64(r+1), 0)
			post(device.OpCompareSwap, span{result + 16, 8}, counter+8, uint64(r), uint64(r+1))
			post(device.OpCompareSwap, span{result + 24, 8}, counter+8, uint64(r), 12345) // misses
			post(device.OpWriteImm, span{source, 1}, writes+each, 0, 0)
		}
		for k, e := range ends {
			to := ends[1-k]
			for i, wc := range wcs(t, e, true, 9) {
				if wc.Status != device.StatusSuccess {
					t.Fatalf("round %d, %s's request %d: %v; softnic: %s", r, e.who(), i, wc.Status, l.n.drops())
				}
			}
			for i, wc := range wcs(t, to, false, 3) {
				want := []int{each, each - 1, 1}[i]
				if wc.Status != device.StatusSuccess || wc.Len != want || wc.ID != uint64(i) || i > 0 && wc.Imm != uint32(r) {
					t.Fatalf("round %d, %s's receive %d: %+v", r, to.who(), i, wc)
				}
			}
			what := fmt.Sprintf("round %d, %s's ", r, e.who())
			data := all[e].data
			same(t, what+"SEND", to.get(receive, each), data)
			same(t, what+"SEND with immediate", to.get(receive+4096, each-1), data[:each-1])
			same(t, what+"WRITE", to.get(writes, each), data)
			same(t, what+"WRITE with immediate", to.get(writes+each, 1), data[:1])
			same(t, what+"READ", e.get(result+64, each), all[to].there)
			got := e.get(result, 32)
			for i, want := range []uint64{sum[e], sum[e] + uint64(r+1), uint64(r), uint64(r + 1)} {
				if v := word(got[8*i:]); v != want {
					t.Fatalf("%satomic %d brings %d, want %d", what, i, v, want)
				}
			}
			sum[e] += 2 * uint64(r+1)
			left := to.get(counter, 16)
			if word(left) != sum[e] || word(left[8:]) != uint64(r+1) {
				t.Fatalf("%satomics leave %d and %d, want %d and %d", what, word(left), word(left[8:]), sum[e], r+1)
			}
		}
		// The receive that nobody took.
		for k, e := range ends {
			ends[1-k].post(opsWR{Op: device.OpSend, SGE: []span{{source, 3}}})
			sent(t, ends[1-k], "SEND", device.StatusSuccess)
			received(t, e, "SEND", device.StatusSuccess)
		}
	}
	for i := range 8 {
		for k, e := range ends {
			to := ends[1-k]
			w := to.window(device.MW2B)
			to.bind(w, writes, 64, device.RemoteWrite)
			sent(t, to, "bind", device.StatusSuccess)
			data := seeded(uint64(i), make([]byte, each))
			e.put(source, data)
			to.recv(5, span{receive, 4096})
			e.post(opsWR{Op: device.OpSendInv, SGE: []span{{source, each}}, Imm: w.rkey})
			sent(t, e, "SEND with invalidate", device.StatusSuccess)
			if wc := received(t, to, "SEND with invalidate", device.StatusSuccess); wc.Len != each || wc.Imm != w.rkey {
				t.Fatalf("%s's receive of SEND with invalidate of %#x: %+v", to.who(), w.rkey, wc)
			}
			same(t, "SEND with invalidate", to.get(receive, each), data)
			to.freeWindow(w)
		}
	}
	// ATOMIC WRITE is right from softnic alone: see atomic-write-retry.
	p.soft.put(opsSource, seeded(77, make([]byte, 8*64)))
	for i := range 64 {
		p.soft.post(opsWR{Op: device.OpAtomicWrite, SGE: []span{{opsSource + 8*i, 8}}, Addr: p.kern.addr(writes + 8*i), Key: p.kern.key()})
	}
	for _, wc := range wcs(t, p.soft, true, 64) {
		if wc.Status != device.StatusSuccess {
			t.Fatalf("ATOMIC WRITE: %v", wc.Status)
		}
	}
	same(t, "ATOMIC WRITEs", p.kern.get(writes, 8*64), p.soft.get(opsSource, 8*64))
	for _, s := range l.n.dev.Port().Impair().List() {
		t.Logf("%s: %d of %d", s.Rule, s.Hits, s.Matched)
		if s.Hits < 10 {
			t.Errorf("%s has lost %d packets", s.Rule, s.Hits)
		}
	}
	for _, id := range ids {
		if err := l.n.dev.Port().Impair().Remove(id); err != nil {
			t.Error(err)
		}
	}
	t.Logf("softnic: %s", l.n.drops())
	p.close()

	// Each second answer to an atomic is lost: it has been executed, and is asked for again.
	t.Run("atomic-again", func(t *testing.T) {
		p := l.connect(opsConn{timeout: 14})
		defer p.close()
		p.each(t, func(t *testing.T, from, to opsEnd) {
			dir := map[bool]string{true: "rx", false: "tx"}[from == opsEnd(p.soft)]
			if _, err := l.n.dev.Port().Impair().Add(dir + " opcode=ATOMIC_ACKNOWLEDGE nth=2 count=4 drop"); err != nil {
				t.Fatal(err)
			}
			to.put(opsTarget, make([]byte, 16))
			for i := range uint64(8) {
				from.post(opsWR{Op: device.OpFetchAdd, SGE: []span{{opsSource, 8}}, Addr: to.addr(opsTarget), Key: to.key(), Compare: 3})
				sent(t, from, "FETCH ADD", device.StatusSuccess)
				if v := word(from.get(opsSource, 8)); v != 3*i {
					t.Fatalf("FETCH ADD %d brings %d, want %d", i, v, 3*i)
				}
				from.post(opsWR{Op: device.OpCompareSwap, SGE: []span{{opsSource, 8}}, Addr: to.addr(opsTarget + 8), Key: to.key(), Compare: i, Swap: i + 1})
				sent(t, from, "COMPARE SWAP", device.StatusSuccess)
				if v := word(from.get(opsSource, 8)); v != i { // the second time it would miss
					t.Fatalf("COMPARE SWAP %d brings %d, want %d", i, v, i)
				}
			}
			if left := to.get(opsTarget, 16); word(left) != 24 || word(left[8:]) != 8 {
				t.Errorf("%d and %d are left, want 24 and 8", word(left), word(left[8:]))
			}
			for _, s := range l.n.dev.Port().Impair().List() {
				if s.Hits != 4 {
					t.Errorf("%s has lost %d answers, want 4", s.Rule, s.Hits)
				}
			}
			l.n.dev.Port().Impair().Clear()
		})
	})
	// The kernel's device sends an ATOMIC WRITE again with address 0 (rxe-lab.md 3).
	t.Run("rxe-atomic-write", func(t *testing.T) {
		p := l.connect(opsConn{extended: true, timeout: 14})
		defer p.close()
		if _, err := l.n.dev.Port().Impair().Add("rx opcode=ATOMIC_WRITE round=1 drop"); err != nil {
			t.Fatal(err)
		}
		p.kern.post(opsWR{Op: device.OpAtomicWrite, SGE: []span{{opsSource, 8}}, Addr: p.soft.addr(8), Key: p.soft.key()})
		got := wcs(t, p.kern, true, 1)[0].Status
		deviation(t, "atomic-write-retry", got == device.StatusRemoteAccess, "ATOMIC WRITE that was lost ends with %v", got)
		l.n.dev.Port().Impair().Clear()
	})
	// The kernel's device goes on in the middle of a READ with MIDDLE and LAST (rxe-lab.md C4): softnic takes that.
	t.Run("read-again", func(t *testing.T) {
		p := l.connect(opsConn{})
		defer p.close()
		if _, err := l.n.dev.Port().Impair().Add("rx opcode=READ_RESPONSE_MIDDLE psn=+2 round=1 drop"); err != nil {
			t.Fatal(err)
		}
		data := seeded(5, make([]byte, 5000))
		p.kern.put(opsTarget, data)
		p.soft.post(opsWR{Op: device.OpRead, SGE: []span{{opsSource, 5000}}, Addr: p.kern.addr(opsTarget), Key: p.kern.key()})
		sent(t, p.soft, "READ", device.StatusSuccess)
		same(t, "READ that has lost a response", p.soft.get(opsSource, 5000), data)
		l.n.dev.Port().Impair().Clear()
	})
	l.end([]string{"drop_impaired", "drop_duplicate", "drop_out-of-sequence", "drop_stale-response", "drop_early-response", "drop_not-ready",
		"drop_duplicate-unserved", "drop_bad-request", "drop_no-qp", "drop_qp-state"}, rules.RetransmissionSame, rules.ReadResponseSequence)
	deviation(t, "atomic-write-retry", l.breaks(rules.RetransmissionSame), "it keeps retransmission-same")
	deviation(t, "read-again", l.breaks(rules.ReadResponseSequence), "it keeps read-response-sequence")
}
