//go:build linux

package uverbs

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// Work requests other than those of request_, as librxe writes them (rdma-core, providers/rxe/rxe.c: convert_send_wr, and
// the wr_... of the same names).

func newWQE(b []byte, id uint64, op device.WROp) structure {
	return view("rxe_send_wqe", b).put("wr.wr_id", id).put("wr.opcode", uint64(op))
}

func compareSwap(id, remote uint64, rkey uint32, compare, swap uint64, result device.SGE) func([]byte) {
	return atomic64(id, device.OpCompareSwap, remote, rkey, compare, swap, result)
}

func fetchAdd(id, remote uint64, rkey uint32, add uint64, result ...device.SGE) func([]byte) {
	return atomic64(id, device.OpFetchAdd, remote, rkey, add, 0, result...)
}

func atomic64(id uint64, op device.WROp, remote uint64, rkey uint32, compareAdd, swap uint64, result ...device.SGE) func([]byte) {
	return func(b []byte) {
		newWQE(b, id, op).put("wr.wr.atomic.remote_addr", remote).put("wr.wr.atomic.rkey", uint64(rkey)).
			put("wr.wr.atomic.compare_add", compareAdd).put("wr.wr.atomic.swap", swap).
			put("dma.length", uint64(8*len(result))).put("dma.resid", uint64(8*len(result))).put("dma.num_sge", uint64(len(result)))
		putSGE(b[at("rxe_send_wqe.dma.sge").off:], result)
	}
}

// atomicWrite is wr_atomic_write: the 8 bytes stand where entries do (dma.atomic_wr), without IBV_SEND_INLINE.
func atomicWrite(id, remote uint64, rkey uint32, v uint64) func([]byte) {
	return func(b []byte) {
		newWQE(b, id, device.OpAtomicWrite).put("wr.wr.rdma.remote_addr", remote).put("wr.wr.rdma.rkey", uint64(rkey)).
			put("dma.length", 8).put("dma.resid", 8)
		le.PutUint64(b[at("rxe_send_wqe.dma.inline_data").off:], v)
	}
}

// flush is wr_flush of an rdma-core newer than the headers here (44), which do not have its part of the union:
// remote_addr 24, length 32, rkey 36, type 40, level 41. It leaves that length alone and sets dma.length.
func flush(id, remote uint64, rkey, length uint32, typ, level uint8) func([]byte) {
	return func(b []byte) {
		newWQE(b, id, device.OpFlush).put("dma.length", uint64(length)).put("dma.resid", uint64(length))
		le.PutUint64(b[24:], remote)
		le.PutUint32(b[36:], rkey)
		b[40], b[41] = typ, level
	}
}

func bindMW(id uint64, window, newKey, lkey uint32, addr, length uint64, access device.Access) func([]byte) {
	return func(b []byte) {
		newWQE(b, id, device.OpBindMW).put("wr.wr.mw.addr", addr).put("wr.wr.mw.length", length).put("wr.wr.mw.mr_lkey", uint64(lkey)).
			put("wr.wr.mw.mw_rkey", uint64(window)).put("wr.wr.mw.rkey", uint64(newKey)).put("wr.wr.mw.access", uint64(access))
	}
}

func localInv(id uint64, key uint32) func([]byte) {
	return func(b []byte) { newWQE(b, id, device.OpLocalInv).put("wr.ex.invalidate_rkey", uint64(key)) }
}

func sendInv(id uint64, key uint32, l ...device.SGE) func([]byte) {
	return func(b []byte) {
		(&request_{id: id, op: device.OpSendInv, flags: device.Signaled, sge: l}).fill(b)
		view("rxe_send_wqe", b).put("wr.ex.invalidate_rkey", uint64(key))
	}
}

// postWQE posts what fill writes, and rings.
func (q *qp_) postWQE(fill func([]byte)) {
	q.p.tb.Helper()
	if !q.sq.push(fill) {
		q.p.tb.Fatal("the send queue is full")
	}
	q.ring()
}

// allow changes what peers may do on a connected queue pair.
func (q *qp_) allow(a device.Access) {
	q.p.tb.Helper()
	q.modify(q.modifyStruct(device.StateRTS, device.AttrState|device.AttrAccess).put("qp_access_flags", uint64(a)))
}

// window allocates a memory window.
func (p *program) window(pd uint32, typ device.MWType) (handle, rkey uint32) {
	p.tb.Helper()
	r := p.do(legacy(cmdAllocMW, newStruct("ib_uverbs_alloc_mw").put("pd_handle", uint64(pd)).put("mw_type", uint64(typ)), 8))
	s := view("ib_uverbs_alloc_mw_resp", r.b)
	return uint32(s.get("mw_handle")), uint32(s.get("rkey"))
}

// requests keeps the headers of the requests that a device has sent, from the BTH on.
type requests struct {
	mu sync.Mutex
	l  [][]byte
}

func (r *requests) Capture(rec *link.Record) {
	if rec.Dir != link.Tx || len(rec.Head) < bth.Len {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.l = append(r.l, bytes.Clone(rec.Head))
}

// last returns the headers behind the BTH of the last packet with an opcode.
func (r *requests) last(t *testing.T, op bth.Opcode) []byte {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.l) - 1; i >= 0; i-- {
		if bth.BTH(r.l[i]).Opcode() == op {
			return r.l[i][bth.Len:]
		}
	}
	t.Fatalf("no packet with opcode 0x%02x was sent", uint8(op))
	return nil
}

const everyRight = device.LocalWrite | device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.MWBind | device.FlushGlobal

// opened returns two connected programs on two daemons between which everything is allowed.
func opened(t *testing.T) (a, b *side, sent *requests) {
	t.Helper()
	da, db := twoDaemons(t)
	sent = new(requests)
	da.dev.Port().SetCapture(sent)
	a, b = newSide(da.open(how{}), device.RC, 4096), newSide(db.open(how{}), device.RC, 4096)
	for _, s := range []*side{a, b} {
		s.m = s.mr(s.dom, s.buf, uint32(everyRight))
	}
	connect(a.q, b.q)
	a.q.allow(everyRight &^ device.LocalWrite)
	b.q.allow(everyRight &^ device.LocalWrite)
	return a, b, sent
}

// Atomics, ATOMIC WRITE and FLUSH through a ring: the completion, the memory at both ends, and what went over the wire.
func TestAtomicsOfAProgram(t *testing.T) {
	a, b, sent := opened(t)
	far, near := b.buf[64:72], a.buf[8:16]
	result := sge(near, a.m)
	const v = 0x1122334455667788
	le.PutUint64(far, v)
	for _, c := range []struct {
		name string
		fill func([]byte)
		op   device.WCOp
		old  uint64 // what comes back
		now  uint64 // what is there then
		code bth.Opcode
		want string // header
	}{
		{"fetch and add", fetchAdd(1, addressOf(far), b.m.rkey, ^uint64(0), result), device.WCFetchAdd, v, v - 1, 0x14, "ffffffffffffffff 0"},
		{"compare and swap, unequal", compareSwap(1, addressOf(far), b.m.rkey, v, 5, result), device.WCCompareSwap, v - 1, v - 1, 0x13, "5 1122334455667788"},
		{"compare and swap, equal", compareSwap(1, addressOf(far), b.m.rkey, v-1, 5, result), device.WCCompareSwap, v - 1, 5, 0x13, "5 1122334455667787"},
		{"fetch and add over the end", fetchAdd(1, addressOf(far), b.m.rkey, 1<<63, result), device.WCFetchAdd, 5, 5 + 1<<63, 0x14, "8000000000000000 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			le.PutUint64(near, 0xA5A5)
			a.q.postWQE(c.fill)
			if w := a.c.expect(1, device.StatusSuccess); w.op != c.op || w.qpn != a.q.num {
				t.Errorf("%+v", w)
			}
			if got := le.Uint64(near); got != c.old {
				t.Errorf("0x%x came back, want 0x%x", got, c.old)
			}
			if got := le.Uint64(far); got != c.now {
				t.Errorf("0x%x is there, want 0x%x", got, c.now)
			}
			h := bth.AtomicETH(sent.last(t, c.code))
			if got := fmt.Sprintf("%x %x", h.SwapAdd(), h.Compare()); h.VA() != addressOf(far) || h.RKey() != b.m.rkey || c.code == 0x13 && got != c.want ||
				c.code == 0x14 && got[:len(c.want)-2] != c.want[:len(c.want)-2] { // the other field is not FETCH ADD's
				t.Errorf("header % x, want %s", []byte(h[:28]), c.want)
			}
		})
	}

	t.Run("atomic write", func(t *testing.T) {
		a.q.postWQE(atomicWrite(2, addressOf(far), b.m.rkey, v))
		if w := a.c.expect(2, device.StatusSuccess); w.op != device.WCAtomicWrite {
			t.Errorf("%+v", w)
		}
		if got := le.Uint64(far); got != v {
			t.Errorf("0x%x is there", got)
		}
		if h := bth.RETH(sent.last(t, 0x1D)); h.VA() != addressOf(far) || h.RKey() != b.m.rkey || h.Length() != 8 {
			t.Errorf("header % x", []byte(h[:16]))
		}
	})

	t.Run("flush", func(t *testing.T) {
		before := bytes.Clone(b.buf)
		for level, length := range []uint32{300, 0} {
			a.q.postWQE(flush(3, addressOf(far), b.m.rkey, length, uint8(transport.FlushGlobal), uint8(level)))
			if w := a.c.expect(3, device.StatusSuccess); w.op != device.WCFlush {
				t.Errorf("%+v", w)
			}
			b := sent.last(t, 0x1C)
			f, h := bth.FETH(b), bth.RETH(b[4:])
			if f.Placement() != 1 || f.Selectivity() != level || h.VA() != addressOf(far) || h.Length() != length {
				t.Errorf("level %d: headers % x, want a length of %d", level, b[:20], length)
			}
		}
		if !bytes.Equal(b.buf, before) {
			t.Error("a FLUSH has changed memory")
		}
	})

	// The range that a FLUSH names is looked at: its length is where librxe leaves it.
	t.Run("flush past the end", func(t *testing.T) {
		a.q.postWQE(flush(4, addressOf(far), b.m.rkey, 5000, uint8(transport.FlushGlobal), 0))
		a.c.expect(4, device.StatusRemoteAccess)
	})
}

// What a queue pair was not given is refused.
func TestRightsOfAProgram(t *testing.T) {
	for name, fill := range map[string]func(remote uint64, rkey uint32, result device.SGE) func([]byte){
		"fetch and add":    func(r uint64, k uint32, s device.SGE) func([]byte) { return fetchAdd(1, r, k, 1, s) },
		"compare and swap": func(r uint64, k uint32, s device.SGE) func([]byte) { return compareSwap(1, r, k, 0, 1, s) },
		"atomic write":     func(r uint64, k uint32, _ device.SGE) func([]byte) { return atomicWrite(1, r, k, 1) },
		"flush": func(r uint64, k uint32, _ device.SGE) func([]byte) {
			return flush(1, r, k, 8, uint8(transport.FlushGlobal), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, _ := opened(t)
			m := b.mr(b.dom, b.buf, uint32(device.LocalWrite|device.RemoteRead))
			a.q.postWQE(fill(addressOf(b.buf), m.rkey, sge(a.buf[:8], a.m)))
			a.c.expect(1, device.StatusRemoteAccess)
			if !bytes.Equal(b.buf, make([]byte, len(b.buf))) {
				t.Error("the memory has changed")
			}
		})
	}
}

// Windows of both types through a ring: bound, used, invalidated by their owner and by a peer, and not used after.
func TestWindowsOfAProgram(t *testing.T) {
	const access = device.RemoteWrite | device.RemoteRead
	write := func(a *side, remote []byte, key uint32, want device.Status) {
		t.Helper()
		a.q.post(request_{id: 9, op: device.OpWrite, flags: device.Signaled, inline: []byte("window"), remote: addressOf(remote), rkey: key})
		a.c.expect(9, want)
	}
	for _, typ := range []device.MWType{device.MW1, device.MW2B} {
		for _, how := range []string{"deallocated", "local invalidate", "send with invalidate", "unbound", "outside"} {
			if typ == device.MW1 && (how == "local invalidate" || how == "send with invalidate") || typ == device.MW2B && how == "unbound" {
				continue // these are of the other type
			}
			t.Run(fmt.Sprint(typ, how), func(t *testing.T) {
				a, b, _ := opened(t)
				handle, key := b.window(b.dom, typ)
				if _, other := b.window(b.dom, typ); other>>8 == key>>8 {
					t.Fatalf("keys 0x%x and 0x%x", key, other)
				}
				part := b.buf[1000:2000]
				bound := device.IncRKey(key)
				b.q.postWQE(bindMW(5, key, bound, b.m.lkey, addressOf(part), uint64(len(part)), access))
				if w := b.c.expect(5, device.StatusSuccess); w.op != device.WCBindMW {
					t.Errorf("%+v", w)
				}
				write(a, part[50:], bound, device.StatusSuccess)
				if string(part[50:56]) != "window" {
					t.Errorf("%q", part[50:56])
				}
				switch how {
				case "deallocated":
					b.do(handleCommand(cmdDeallocMW, handle))
				case "local invalidate":
					b.q.postWQE(localInv(6, bound))
					if w := b.c.expect(6, device.StatusSuccess); w.op != device.WCLocalInv {
						t.Errorf("%+v", w)
					}
				case "send with invalidate":
					b.q.recv(7, sge(b.buf[:8], b.m))
					a.q.postWQE(sendInv(8, bound, sge(a.buf[:8], a.m)))
					if w := a.c.expect(8, device.StatusSuccess); w.op != device.WCSend {
						t.Errorf("%+v", w)
					}
					if w := b.c.expect(7, device.StatusSuccess); w.op != device.WCRecv || w.flags&uint32(device.WCWithInv) == 0 || w.imm != bound || w.len != 8 {
						t.Errorf("%+v, want the key 0x%x", w, bound)
					}
				case "unbound":
					b.q.postWQE(bindMW(6, bound, device.IncRKey(bound), b.m.lkey, 0, 0, 0))
					b.c.expect(6, device.StatusSuccess)
				case "outside":
					write(a, b.buf[2000-5:], bound, device.StatusRemoteAccess)
					return
				}
				write(a, part, bound, device.StatusRemoteAccess)
				if string(part[:6]) == "window" {
					t.Error("it was written")
				}
			})
		}
	}

	// A bind that is refused completes with an error.
	_, b, _ := opened(t)
	_, key := b.window(b.dom, device.MW2B)
	plain := b.mr(b.dom, b.buf, allAccess) // without the right to be bound
	b.q.postWQE(bindMW(5, key, device.IncRKey(key), plain.lkey, addressOf(b.buf), 8, access))
	b.c.expect(5, device.StatusMWBind)
	// Types that the interface has not.
	for _, typ := range []uint64{0, 3, 255} {
		b.fails(eINVAL, legacy(cmdAllocMW, newStruct("ib_uverbs_alloc_mw").put("pd_handle", uint64(b.dom)).put("mw_type", typ), 8))
	}
}
