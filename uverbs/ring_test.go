//go:build linux

package uverbs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// seeded returns a random source whose seed the test's output has.
func seeded(tb testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	tb.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// steps is how long a random test of rings goes on.
const steps = 3000

// twoEnds gives a piece of an arena, and the mapping that a program makes of it.
func twoEnds(tb testing.TB, n uint64) (span, []byte) {
	tb.Helper()
	a, err := newArena()
	if err != nil {
		tb.Fatal(err)
	}
	s, err := a.get(n)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := unix.Mmap(a.fd, int64(s.off), len(s.buf), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		unix.Munmap(b)
		a.close()
	})
	return s, b
}

func newTestSendRing(tb testing.TB, n, sge, inline int) (*sendRing, queue) {
	room := max(sge*sgeLen, inline)
	s, b := twoEnds(tb, ringSize(n, sendWQELen+room))
	r := &sendRing{consumer: newConsumer(newRing(s.buf, n, sendWQELen+room)), maxSGE: room / sgeLen, maxInline: room,
		ah: func(uint32) *device.AH { return nil }}
	return r, newQueue(b)
}

func newTestRecvRing(tb testing.TB, n, sge int) (*recvRing, queue) {
	s, b := twoEnds(tb, ringSize(n, recvWQELen+sge*sgeLen))
	r := newRecvRing(s, n, sge)
	return r, newQueue(b)
}

func newTestCQRing(tb testing.TB, n int) (*cqRing, queue) {
	s, b := twoEnds(tb, ringSize(n, cqeLen))
	r := &cqRing{ring: newRing(s.buf, n, cqeLen)}
	return r, newQueue(b)
}

func TestRingShape(t *testing.T) {
	for _, c := range []struct{ n, elem, capacity, shift int }{
		{0, 64, 0, 6}, {1, 64, 1, 6}, {2, 64, 3, 6}, {3, 64, 3, 6}, {4, 64, 7, 6}, {7, 65, 7, 7}, {8, 56, 15, 6},
		{1000, 208 + 16, 1023, 8}, {1023, 256, 1023, 8}, {1024, 257, 2047, 9}, {device.MaxCQE, 64, device.MaxCQE, 6},
		{device.MaxQPWR, 208 + 512, 2*device.MaxQPWR - 1, 10},
	} {
		size := ringSize(c.n, c.elem)
		if want := uint64(384) + uint64(c.capacity+1)<<c.shift; size != want {
			t.Errorf("%d of %d: %d bytes, want %d", c.n, c.elem, size, want)
		}
		if size > 1<<20 {
			continue
		}
		s, b := twoEnds(t, size)
		r := newRing(s.buf, c.n, c.elem)
		q := newQueue(b)
		if r.capacity() != c.capacity || int(q.mask()) != c.capacity || int(q.shift) != c.shift {
			t.Errorf("%d of %d: capacity %d, mask %d, shift %d, want %d, %d", c.n, c.elem, r.capacity(), q.mask(), q.shift, c.capacity, c.shift)
		}
		_ = q.slot(q.mask()) // lies in the mapping
		_ = r.slot(r.mask)
	}
}

// A consumer ring against a list: both ends take turns at random, and every request comes out once, in order,
// and makes room when it is retired, not before.
func TestConsumerRings(t *testing.T) {
	rnd := seeded(t)
	for _, n := range []int{1, 2, 3, 5, 16, 100} {
		t.Run(fmt.Sprint("send", n), func(t *testing.T) {
			r, q := newTestSendRing(t, n, 2, 0)
			var wr device.SendWR
			model(t, rnd, r.capacity(), q, func(id uint64) bool {
				return q.push((&request_{id: id, op: device.OpSend, sge: sges(device.SGE{Addr: id, Length: uint32(id), LKey: 5})}).fill)
			}, func() (uint64, bool) {
				st, ok := r.Fetch(&wr)
				if ok && (st != device.StatusSuccess || len(wr.SGE) != 1 || wr.SGE[0].Addr != wr.ID || wr.SGE[0].Length != uint32(wr.ID)) {
					t.Fatal(st, wr)
				}
				return wr.ID, ok
			}, r.Retire)
		})
		t.Run(fmt.Sprint("recv", n), func(t *testing.T) {
			r, q := newTestRecvRing(t, n, 2)
			var wr device.RecvWR
			model(t, rnd, r.capacity(), q, func(id uint64) bool {
				return q.push(func(b []byte) {
					view("rxe_recv_wqe", b).put("wr_id", id).put("dma.num_sge", 1)
					putSGE(b[at("rxe_recv_wqe.dma.sge").off:], sges(device.SGE{Addr: id}))
				})
			}, func() (uint64, bool) {
				ok := r.Fetch(&wr)
				if ok && (len(wr.SGE) != 1 || wr.SGE[0].Addr != wr.ID) {
					t.Fatal(wr)
				}
				return wr.ID, ok
			}, r.Retire)
		})
	}
}

func model(t *testing.T, rnd *rand.Rand, capacity int, q queue, push func(id uint64) bool, fetch func() (uint64, bool), retire func(int)) {
	var list []uint64 // pushed and not retired
	fetched, id := 0, uint64(0)
	for range steps {
		switch rnd.IntN(3) {
		case 0:
			for range rnd.IntN(capacity + 2) {
				ok := push(id)
				if ok != (len(list) < capacity) {
					t.Fatalf("push %v with %d of %d", ok, len(list), capacity)
				}
				if ok {
					list = append(list, id)
					id++
				}
			}
		case 1:
			for range rnd.IntN(capacity + 2) {
				got, ok := fetch()
				if ok != (fetched < len(list)) {
					t.Fatalf("fetch %v with %d of %d fetched", ok, fetched, len(list))
				}
				if ok {
					if got != list[fetched] {
						t.Fatalf("request %d, want %d", got, list[fetched])
					}
					fetched++
				}
			}
		default:
			n := rnd.IntN(fetched + 1)
			retire(n)
			list = list[n:]
			fetched -= n
		}
		if q.count() != len(list) {
			t.Fatalf("the header says %d, there are %d", q.count(), len(list))
		}
	}
}

// The same for completion queues: what was pushed comes out once, in order; a full one takes nothing.
func TestCQRing(t *testing.T) {
	rnd := seeded(t)
	for _, n := range []int{1, 2, 3, 16, 100} {
		r, q := newTestCQRing(t, n)
		next, want := uint64(0), uint64(0)
		for range steps {
			if rnd.IntN(2) == 0 {
				for range rnd.IntN(r.capacity() + 2) {
					ok := r.Push(&device.WC{ID: next, QPN: uint32(next)})
					if ok != (int(next-want) < r.capacity()) {
						t.Fatalf("push %v with %d of %d", ok, next-want, r.capacity())
					}
					if ok {
						next++
					}
				}
				continue
			}
			for range rnd.IntN(r.capacity() + 2) {
				w, ok := q.pop()
				if ok != (want < next) || ok && w.id != want {
					t.Fatalf("completion %d %v, want %d", w.id, ok, want)
				}
				if ok {
					want++
				}
			}
		}
	}
}

// RESET drops what was posted, and the ring works on.
func TestRingClear(t *testing.T) {
	r, q := newTestSendRing(t, 3, 1, 0)
	var wr device.SendWR
	for i := range uint64(2) {
		q.push((&request_{id: i}).fill)
	}
	r.Fetch(&wr)
	r.Clear()
	if q.count() != 0 {
		t.Fatal("requests are left")
	}
	if _, ok := r.Fetch(&wr); ok {
		t.Fatal("a request came back")
	}
	for i := range uint64(3) {
		if !q.push((&request_{id: 10 + i}).fill) {
			t.Fatal("full")
		}
	}
	for i := range uint64(3) {
		if _, ok := r.Fetch(&wr); !ok || wr.ID != 10+i {
			t.Fatal(wr.ID, ok)
		}
	}
}

// Requests as librxe writes them, and what is wrong with some.
func TestSendRequest(t *testing.T) {
	r, q := newTestSendRing(t, 3, 4, 0)
	if r.maxInline != 64 {
		t.Fatal(r.maxInline)
	}
	var wr device.SendWR
	ah := new(device.AH)
	list := sges(device.SGE{Addr: 1 << 40, Length: 100, LKey: 7}, device.SGE{Addr: 2, Length: 50, LKey: 8})
	for _, c := range []struct {
		name string
		ud   bool
		fill func(b []byte)
		want device.SendWR
		st   device.Status
	}{
		{"send", false, (&request_{id: 1 << 60, op: device.OpSend, flags: 5, sge: list}).fill,
			device.SendWR{ID: 1 << 60, Op: device.OpSend, Flags: 5, SGE: list}, 0},
		{"immediate data in network order", false, (&request_{op: device.OpSendImm, imm: 0x01020304}).fill, device.SendWR{Op: device.OpSendImm, Imm: 0x01020304}, 0},
		{"key in host order", false, func(b []byte) {
			view("rxe_send_wqe", b).put("wr.opcode", uint64(transport.OpSendInv)).put("wr.ex.imm_data", 0x01020304)
		}, device.SendWR{Op: transport.OpSendInv, Imm: 0x01020304}, 0},
		{"write", false, (&request_{op: device.OpWrite, remote: 1 << 50, rkey: 9, sge: list[:1]}).fill,
			device.SendWR{Op: device.OpWrite, RemoteAddr: 1 << 50, RKey: 9, SGE: list[:1]}, 0},
		{"atomic", false, func(b []byte) {
			view("rxe_send_wqe", b).put("wr.opcode", uint64(transport.OpCompareSwap)).put("wr.wr.atomic.remote_addr", 1<<50).
				put("wr.wr.atomic.compare_add", 2).put("wr.wr.atomic.swap", 3).put("wr.wr.atomic.rkey", 4)
		}, device.SendWR{Op: transport.OpCompareSwap, RemoteAddr: 1 << 50, CompareAdd: 2, Swap: 3, RKey: 4}, 0},
		{"fetch and add", false, fetchAdd(0, 1<<50, 4, 2), device.SendWR{Op: device.OpFetchAdd, RemoteAddr: 1 << 50, CompareAdd: 2, RKey: 4}, 0},
		{"atomic write", false, atomicWrite(0, 1<<50, 4, 0x0102030405060708), device.SendWR{Op: device.OpAtomicWrite, Flags: device.Inline, RemoteAddr: 1 << 50,
			RKey: 4, InlineData: []byte{8, 7, 6, 5, 4, 3, 2, 1}}, 0},
		{"flush", false, flush(0, 1<<50, 4, 100, 3, 1), device.SendWR{Op: device.OpFlush, RemoteAddr: 1 << 50, RKey: 4, FlushLen: 100,
			FlushType: transport.FlushGlobal | transport.FlushPersistent, FlushLevel: transport.FlushMR}, 0},
		{"window", false, bindMW(0, 0x1100, 0x1101, 0x2200, 1<<50, 1<<33, device.RemoteRead|device.RemoteAtomic), device.SendWR{Op: device.OpBindMW,
			Bind: transport.BindWR{Window: 0x1100, NewKey: 0x1101, MRKey: 0x2200, Addr: 1 << 50, Length: 1 << 33, Access: device.RemoteRead | device.RemoteAtomic}}, 0},
		{"local invalidate, key in host order", false, localInv(0, 0x01020304), device.SendWR{Op: device.OpLocalInv, Imm: 0x01020304}, 0},
		{"inline", false, (&request_{op: device.OpSend, inline: []byte("some bytes")}).fill,
			device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("some bytes")}, 0},
		{"all inline", false, (&request_{op: device.OpSend, inline: make([]byte, 64)}).fill,
			device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: make([]byte, 64)}, 0},
		{"too much inline", false, (&request_{op: device.OpSend, inline: []byte{1}, length: 65}).fill, device.SendWR{Op: device.OpSend, Flags: device.Inline}, device.StatusLocalQPOp},
		{"very much inline", false, (&request_{op: device.OpSend, inline: []byte{1}, length: 1<<32 - 1}).fill, device.SendWR{Op: device.OpSend, Flags: device.Inline}, device.StatusLocalQPOp},
		{"four entries", false, (&request_{op: device.OpSend, sge: append(list, list...)}).fill, device.SendWR{Op: device.OpSend, SGE: append(list, list...)}, 0},
		{"five entries", false, func(b []byte) {
			view("rxe_send_wqe", b).put("wr.opcode", 2).put("dma.num_sge", 5)
		}, device.SendWR{Op: device.OpSend}, device.StatusLocalQPOp},
		{"2^32-1 entries", false, func(b []byte) {
			view("rxe_send_wqe", b).put("wr.opcode", 2).put("dma.num_sge", 1<<32-1)
		}, device.SendWR{Op: device.OpSend}, device.StatusLocalQPOp},
		{"length below the sum", false, (&request_{op: device.OpSend, sge: list, length: 120}).fill,
			device.SendWR{Op: device.OpSend, SGE: sges(list[0], device.SGE{Addr: 2, Length: 20, LKey: 8})}, 0},
		{"length above the sum", false, (&request_{op: device.OpSend, sge: list, length: 151}).fill, device.SendWR{Op: device.OpSend, SGE: list}, device.StatusLocalQPOp},
		{"LSO", false, (&request_{op: 10, sge: list}).fill, device.SendWR{Op: 10}, device.StatusLocalQPOp},
		{"READ with invalidate", false, (&request_{op: device.OpReadInv, sge: list}).fill, device.SendWR{Op: device.OpReadInv}, device.StatusLocalQPOp},
		{"masked swap", false, (&request_{op: device.OpMaskedCompareSwap, sge: list}).fill, device.SendWR{Op: device.OpMaskedCompareSwap}, device.StatusLocalQPOp},
		{"masked add", false, (&request_{op: device.OpMaskedFetchAdd, sge: list}).fill, device.SendWR{Op: device.OpMaskedFetchAdd}, device.StatusLocalQPOp},
		{"opcode 16", false, (&request_{op: 16}).fill, device.SendWR{Op: 16}, device.StatusLocalQPOp},
		{"opcode 2^32-254", false, func(b []byte) { view("rxe_send_wqe", b).put("wr.opcode", 1<<32-254) }, device.SendWR{Op: 255}, device.StatusLocalQPOp},
		{"datagram", true, (&request_{op: device.OpSend, ud: &[3]uint32{0xFF000011, 0x22, 77}, sge: list[:1]}).fill,
			device.SendWR{Op: device.OpSend, RemoteQPN: 0x11, RemoteQKey: 0x22, AH: ah, SGE: list[:1]}, 0},
		{"datagram without a handle", true, (&request_{op: device.OpSend, ud: &[3]uint32{0x11, 0x22, 78}}).fill,
			device.SendWR{Op: device.OpSend, RemoteQPN: 0x11, RemoteQKey: 0x22}, 0},
	} {
		r.datagram = c.ud
		r.ah = func(n uint32) *device.AH {
			if n == 77 {
				return ah
			}
			return nil
		}
		if !q.push(c.fill) {
			t.Fatal("full")
		}
		st, ok := r.Fetch(&wr)
		r.Retire(1)
		wr2 := wr
		c.want.SGE = append([]device.SGE{}, c.want.SGE...)
		wr2.SGE = append([]device.SGE{}, wr.SGE...)
		c.want.InlineData, wr2.InlineData = append([]byte{}, c.want.InlineData...), append([]byte{}, wr.InlineData...)
		if !ok || st != c.st {
			t.Errorf("%s: %v %v", c.name, st, ok)
		} else if st == 0 && fmt.Sprint(c.want) != fmt.Sprint(wr2) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, wr2, c.want)
		}
		if wr.AH == transport.AddressHandle((*device.AH)(nil)) {
			t.Errorf("%s: an address handle that is none", c.name)
		}
	}
}

func TestRecvRequest(t *testing.T) {
	r, q := newTestRecvRing(t, 3, 3)
	var wr device.RecvWR
	for _, c := range []struct {
		sges int
		want int
		bad  bool
	}{{0, 0, false}, {1, 1, false}, {3, 3, false}, {4, 1, true}, {1<<32 - 1, 1, true}} {
		q.push(func(b []byte) {
			view("rxe_recv_wqe", b).put("wr_id", 5).put("dma.num_sge", uint64(c.sges))
			putSGE(b[at("rxe_recv_wqe.dma.sge").off:], make([]device.SGE, min(c.sges, 3)))
		})
		if !r.Fetch(&wr) || wr.ID != 5 || len(wr.SGE) != c.want {
			t.Errorf("%d entries: %+v", c.sges, wr)
		}
		if c.bad && (wr.SGE[0].LKey != 0 || wr.SGE[0].Length == 0) { // no region has the key 0
			t.Errorf("%d entries: %+v could be good", c.sges, wr)
		}
		r.Retire(1)
	}
}

// A completion is struct ib_uverbs_wc.
func TestCompletion(t *testing.T) {
	r, q := newTestCQRing(t, 3)
	copy(q.slot(0), bytes.Repeat([]byte{0xFF}, 64))
	r.Push(&device.WC{ID: 1 << 60, Status: device.StatusRemoteAccess, Op: device.WCRecvImm, ByteLen: 3, Imm: 0x01020304, QPN: 5, SrcQP: 6,
		Flags: device.WCWithImm | device.WCGRH, PKeyIndex: 7})
	s := view("ib_uverbs_wc", q.slot(0))
	for m, want := range map[string]uint64{
		"wr_id": 1 << 60, "status": 10, "opcode": 129, "vendor_err": 0, "byte_len": 3, "ex.imm_data": 0x04030201, "qp_num": 5, "src_qp": 6,
		"wc_flags": 3, "pkey_index": 7, "slid": 0, "sl": 0, "dlid_path_bits": 0, "port_num": 1,
	} {
		if got := s.get(m); got != want {
			t.Errorf("%s %d, want %d", m, got, want)
		}
	}
	r.Push(&device.WC{Imm: 0x01020304, Flags: transport.WCWithInv})
	if got := view("ib_uverbs_wc", q.slot(1)).get("ex.imm_data"); got != 0x01020304 {
		t.Errorf("invalidated key 0x%x", got)
	}
}

// hostileRing drives a ring over bytes that a program writes at any time.
type hostileRing struct {
	mask int
	step func() int // it returns how many are outstanding
}

func hostileSend(tb testing.TB, n, sge int) (hostileRing, queue) {
	r, q := newTestSendRing(tb, n, sge, 0)
	var wr device.SendWR
	outstanding := 0
	return hostileRing{mask: r.capacity(), step: func() int {
		if _, ok := r.Fetch(&wr); ok {
			outstanding++
			if len(wr.SGE) > r.maxSGE || len(wr.InlineData) > r.maxInline {
				tb.Fatalf("%d entries, %d inline", len(wr.SGE), len(wr.InlineData))
			}
		} else if outstanding > 0 {
			r.Retire(1)
			outstanding--
		}
		return outstanding
	}}, q
}

func hostileRecv(tb testing.TB, n, sge int) (hostileRing, queue) {
	r, q := newTestRecvRing(tb, n, sge)
	var wr device.RecvWR
	outstanding := 0
	return hostileRing{mask: r.capacity(), step: func() int {
		if r.Fetch(&wr) {
			outstanding++
			if len(wr.SGE) > max(r.maxSGE, 1) {
				tb.Fatalf("%d entries", len(wr.SGE))
			}
		} else if outstanding > 0 {
			r.Retire(outstanding)
			outstanding = 0
		}
		if l := r.Len(); l < 0 || l > r.capacity() {
			tb.Fatal(l)
		}
		return outstanding
	}}, q
}

// A program that writes anything anywhere in its ring harms itself only: every call stays in the ring, and no
// more than the capacity is outstanding.
func TestHostileRings(t *testing.T) {
	rnd := seeded(t)
	for name, f := range map[string]func() (hostileRing, queue){
		"send": func() (hostileRing, queue) { return hostileSend(t, 5, 3) }, "recv": func() (hostileRing, queue) { return hostileRecv(t, 5, 3) },
		"send 0": func() (hostileRing, queue) { return hostileSend(t, 0, 1) }, "recv 0": func() (hostileRing, queue) { return hostileRecv(t, 0, 1) },
	} {
		r, q := f()
		for range steps {
			scribble(rnd, q)
			if n := r.step(); n > r.mask {
				t.Fatalf("%s: %d outstanding of %d", name, n, r.mask)
			}
		}
	}
	r, q := newTestCQRing(t, 5)
	end := ringData + (r.capacity()+1)<<r.shift
	for range steps {
		scribble(rnd, q)
		rest := bytes.Clone(q.b[end:])
		r.Push(&device.WC{ID: 1})
		if !bytes.Equal(rest, q.b[end:]) {
			t.Fatal("a completion outside the ring")
		}
	}
}

// A producer index beyond the mask counts within it: the daemon takes that many requests, whatever is in the
// slots, and then waits.
func TestIndexJumps(t *testing.T) {
	for _, v := range []uint32{1, 7, 8, 9, 15, 1 << 31, 1<<31 + 3, ^uint32(0)} {
		r, q := newTestRecvRing(t, 7, 1)
		*q.word("producer_index") = v
		var wr device.RecvWR
		if n := r.Len(); n != int(v&7) {
			t.Errorf("index 0x%x: %d receives", v, n)
		}
		for i := range 2 {
			n := 0
			for n < 100 && r.Fetch(&wr) {
				n++
				r.Retire(1)
			}
			if want := int(v&7) * (1 - i); n != want {
				t.Errorf("index 0x%x: %d requests, want %d", v, n, want)
			}
		}
	}
}

func scribble(rnd *rand.Rand, q queue) {
	switch rnd.IntN(4) {
	case 0:
		q.b[rnd.IntN(ringData)] = byte(rnd.Uint32())
	case 1:
		le.PutUint32(q.b[[...]int{ringProducer, ringConsumer, ringShift, ringMask}[rnd.IntN(4)]:], rnd.Uint32())
	case 2:
		o := ringData + rnd.IntN(len(q.b)-ringData-8)
		le.PutUint64(q.b[o:], rnd.Uint64())
	default:
		for i := range q.b[ringData:min(len(q.b), 2048)] {
			q.b[ringData+i] = byte(rnd.Uint32())
		}
	}
}

func FuzzSendRing(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0}, uint8(3))
	f.Add(bytes.Repeat([]byte{0xFF}, 300), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		r, q := hostileSend(t, int(n%9), 2)
		fuzzRing(t, b, r, q)
	})
}

func FuzzRecvRing(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0}, uint8(3))
	f.Add(bytes.Repeat([]byte{0xFF}, 300), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		r, q := hostileRecv(t, int(n%9), 2)
		fuzzRing(t, b, r, q)
	})
}

// fuzzRing takes b as pairs of a place and 6 bytes that are written there, with a step after each.
func fuzzRing(t *testing.T, b []byte, r hostileRing, q queue) {
	for ; len(b) >= 8; b = b[8:] {
		o := int(le.Uint16(b)) % (len(q.b) - 6)
		copy(q.b[o:], b[2:8])
		if n := r.step(); n > r.mask {
			t.Fatalf("%d outstanding of %d", n, r.mask)
		}
	}
}

func FuzzCQRing(f *testing.F) {
	f.Add([]byte{0, 1, 1, 0, 0, 0, 0, 0}, uint8(1), uint64(1), uint32(2))
	f.Add(bytes.Repeat([]byte{0xFF}, 64), uint8(7), uint64(1), uint32(2))
	f.Fuzz(func(t *testing.T, b []byte, n uint8, id uint64, v uint32) {
		r, q := newTestCQRing(t, int(n%9))
		end := ringData + (r.capacity()+1)<<r.shift
		for ; len(b) >= 8; b = b[8:] {
			o := int(le.Uint16(b)) % (end - 6)
			copy(q.b[o:], b[2:8])
			r.Push(&device.WC{ID: id, Status: device.Status(v), ByteLen: v, Flags: device.WCFlags(v)})
			for _, c := range q.b[end:] {
				if c != 0 {
					t.Fatal("a completion outside the ring")
				}
			}
		}
	})
}
