package cases

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/transport"
)

// Atomics as responder: the operands are big-endian on the wire and in host order in memory, the
// answer is what was there, with the MSN that counts it.
func TestOpsAtomicExecuted(t *testing.T) {
	const a, b = 0x0102030405060708, 0x1112131415161718
	const top = 0x8000_8000_8000_8000
	type frame func(psn uint32, va uint64, key uint32) *peer.Frame
	cswap := func(cmp, swap uint64) frame {
		return func(psn uint32, va uint64, key uint32) *peer.Frame {
			return peer.CmpSwap(nicQP, psn, va, key, cmp, swap)
		}
	}
	fadd := func(add uint64) frame {
		return func(psn uint32, va uint64, key uint32) *peer.Frame { return peer.FetchAdd(nicQP, psn, va, key, add) }
	}
	mswap := func(cmp, cmpMask, swap, swapMask uint64) frame {
		return func(psn uint32, va uint64, key uint32) *peer.Frame {
			return peer.MaskedCmpSwap(nicQP, psn, peer.MaskedETH{VA: va, RKey: key, Swap: swap, Compare: cmp, SwapMask: swapMask, CompareMask: cmpMask})
		}
	}
	madd := func(add, boundary uint64) frame {
		return func(psn uint32, va uint64, key uint32) *peer.Frame {
			return peer.MaskedFetchAdd(nicQP, psn, va, key, add, boundary)
		}
	}
	for _, v := range []struct {
		name     string
		old, new uint64
		f        frame
	}{
		{"compare and swap, equal", a, b, cswap(a, b)},
		{"compare and swap, not equal", a, a, cswap(a+1, b)},
		{"compare and swap, swapped bytes do not match", a, a, cswap(0x0807060504030201, b)},
		{"compare and swap, zero", 0, 1, cswap(0, 1)},
		{"fetch and add", a, a + b, fadd(b)},
		{"fetch and add, nothing", a, a, fadd(0)},
		{"fetch and add, wraps", ^uint64(0), 4, fadd(5)},
		{"fetch and add, minus one", a, a - 1, fadd(^uint64(0))},
		{"fetch and add ignores the compare field", a, a + 1, func(psn uint32, va uint64, key uint32) *peer.Frame {
			return peer.FetchAdd(nicQP, psn, va, key, 1).With(func(f *peer.Frame) { f.Atomic.Compare = ^uint64(0) })
		}},
		{"masked compare and swap, all masks set", a, b, mswap(a, ^uint64(0), b, ^uint64(0))},
		{"masked compare and swap, all masks clear", a, a, mswap(b, 0, b, 0)},
		{"masked compare and swap, compare mask clear", a, b, mswap(b, 0, b, ^uint64(0))},
		{"masked compare and swap, a part", a, a&^0xFF | 0x99, mswap(a&0xFFFF, 0xFFFF, 0x99, 0xFF)},
		{"masked compare and swap, bits of compare outside the mask", a, a&^0xFF | 0x99, mswap(0xFFFF_FFFF_FFFF_0000|a&0xFFFF, 0xFFFF, 0x99, 0xFF)},
		{"masked compare and swap, a part differs", a, a, mswap(a+1, 0xFFFF, 0x99, 0xFF)},
		{"masked fetch and add, one field", a, a + b, madd(b, 1<<63)},
		{"masked fetch and add, no boundary", ^uint64(0), 1, madd(2, 0)},
		{"masked fetch and add, four fields that overflow", 0xFFFF_FFFF_FFFF_FFFF, 0, madd(0x0001_0001_0001_0001, top)},
		{"masked fetch and add, a carry stays in its field", 0x0001_FFFF_0001_FFFF, 0x0001_0000_0001_0000, madd(0x0000_0001_0000_0001, top)},
		{"masked fetch and add, a boundary at bit 0", 0x1, 0x0, madd(1, 1)},
		{"masked fetch and add, every bit a field", a, a ^ b, madd(b, ^uint64(0))},
	} {
		tick(t, v.name, func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(24, every)
			copy(mr.Bytes(), filled(0x55, 24))
			setWord(mr, 8, v.old)
			for i := range uint32(2) { // twice: the second finds what the first left
				before := word(mr, 8)
				c.gets(v.f(0x200+i, mr.Addr()+8, mr.RKey()))
				l.says(fmt.Sprintf("ATOMIC_ACKNOWLEDGE %06x 1f m%d orig=%x", 0x200+i, i+1, before))
				if i == 0 {
					want(t, "memory", fmt.Sprintf("%x", word(mr, 8)), fmt.Sprintf("%x", v.new))
				}
			}
			wantBytes(t, "memory before", mr.Bytes()[:8], filled(0x55, 8))
			wantBytes(t, "memory behind", mr.Bytes()[16:], filled(0x55, 8))
			l.counts("rx_atomic_requests=2")
			c.received()
			l.events()
		})
	}
	// Against a model that goes bit by bit.
	bubble(t, "random masks", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(allOps)
		mr := l.mr(8, every)
		r := newDice().rng
		for i := range uint32(300) {
			m := peer.MaskedETH{VA: mr.Addr(), RKey: mr.RKey(), Swap: r.Uint64(), Compare: r.Uint64(), SwapMask: r.Uint64() & r.Uint64(), CompareMask: r.Uint64() & r.Uint64() & r.Uint64() & r.Uint64()}
			old := r.Uint64() | r.Uint64()
			setWord(mr, 0, old)
			next := uint64(0)
			if i%2 == 0 {
				c.gets(peer.MaskedCmpSwap(nicQP, 0x200+i, m))
				next = maskedSwap(old, m.Compare, m.CompareMask, m.Swap, m.SwapMask)
			} else {
				c.gets(peer.MaskedFetchAdd(nicQP, 0x200+i, m.VA, m.RKey, m.Swap, m.SwapMask))
				next = maskedAdd(old, m.Swap, m.SwapMask)
			}
			l.says(fmt.Sprintf("ATOMIC_ACKNOWLEDGE %06x 1f m%d orig=%x", 0x200+i, i+1, old))
			want(t, "memory", word(mr, 0), next)
		}
	})
}

// persistentMemory outlives the power, and notes what it was asked for.
type persistentMemory struct {
	device.Memory
	mu    sync.Mutex
	calls []string
	fails bool
}

func (m *persistentMemory) Persist(va, n uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, fmt.Sprintf("%x+%d", va, n))
	if m.fails {
		return errFar
	}
	return nil
}

var _ transport.Persistent = (*persistentMemory)(nil)

// FLUSH and ATOMIC WRITE as responder.
func TestOpsFlushAndAtomicWrite(t *testing.T) {
	const va = 0x50000
	setup := func(t *testing.T) (*lab, *conn, *persistentMemory, *device.MR) {
		l := newLab(t, labConfig{})
		c := l.rc(allOps)
		m := &persistentMemory{Memory: &farMemory{b: make([]byte, 4096), va: va}}
		return l, c, m, must(l.pd.RegMemory(m, va, 4096, every|device.FlushPersistent))
	}
	for _, v := range []struct {
		name     string
		at       uint64
		n        uint32
		sel, plt uint8
		persists string
		nak      string
	}{
		{"range, global", va + 1, 100, 0, 1, "", ""},
		{"range, persistent", va + 1, 100, 0, 2, "50001+100", ""},
		{"range, both", va, 4096, 0, 3, "50000+4096", ""},
		{"range of length 0", va + 8192, 0, 0, 2, "", ""},
		{"no placement", va, 8, 0, 0, "", ""},
		{"region", 99, 1 << 31, 1, 2, "50000+4096", ""},
		{"region, global", 99, 5, 1, 1, "", ""},
		{"range, across the end", va + 1, 4096, 0, 1, "", "62"},
		{"range, before", va - 1, 2, 0, 2, "", "62"},
		{"range, of 2^31 and one", va, 1<<31 + 1, 0, 1, "", "61"},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l, c, m, mr := setup(t)
			f := peer.Flush(nicQP, 0x200, v.at, mr.RKey(), v.n, v.plt)
			f.FETH.Sel = v.sel
			c.gets(f)
			if v.nak != "" {
				l.says("ACKNOWLEDGE 000200 " + v.nak + " m0")
				c.state(device.StateErr)
				want(t, "calls", len(m.calls), 0)
				return
			}
			l.says("READ_RESPONSE_ONLY 000200 1f m1")
			want(t, "persisted", fmt.Sprint(m.calls), "["+v.persists+"]")
			c.gets(peer.WriteOnly(nicQP, 0x201, va, mr.RKey(), []byte{1}))
			l.says("ACKNOWLEDGE 000201 1f m2")
			l.events()
		})
	}
	// Of nothing, the key is not looked at either (rxe-lab.md 3).
	tick(t, "range of length 0, key 0", func(t *testing.T, l *lab, c *conn) {
		c.gets(peer.Flush(nicQP, 0x200, 0, 0, 0, 1), peer.Flush(nicQP, 0x201, 0, 0, 0, 1).With(func(f *peer.Frame) { f.FETH.Sel = 1 }))
		l.says("READ_RESPONSE_ONLY 000200 1f m1", "ACKNOWLEDGE 000201 62 m1")
	})
	// The answer comes without AckReq too.
	bubble(t, "no AckReq", func(t *testing.T) {
		l, c, _, mr := setup(t)
		c.gets(peer.Flush(nicQP, 0x200, va, mr.RKey(), 8, 1).With(func(f *peer.Frame) { f.AckReq = false }))
		l.says("READ_RESPONSE_ONLY 000200 1f m1")
	})
	bubble(t, "the file fails", func(t *testing.T) {
		l, c, m, mr := setup(t)
		m.fails = true
		c.gets(peer.Flush(nicQP, 0x200, va, mr.RKey(), 8, 2))
		l.says("ACKNOWLEDGE 000200 62 m0")
		l.events("QP_ACCESS_ERR")
	})
	bubble(t, "registration of memory that does not outlive the power", func(t *testing.T) {
		l := newLab(t, labConfig{})
		_, err := l.pd.RegMR(make([]byte, 8), every|device.FlushPersistent)
		errno(t, err, device.EINVAL)
	})
	// The payload of an ATOMIC WRITE is bytes: nothing is swapped.
	tick(t, "ATOMIC WRITE", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(24, every)
		copy(mr.Bytes(), filled(0x55, 24))
		c.gets(peer.AtomicWrite(nicQP, 0x200, mr.Addr()+8, mr.RKey(), []byte("abcdefgh")))
		l.says("READ_RESPONSE_ONLY 000200 1f m1")
		wantBytes(t, "memory", mr.Bytes(), []byte("UUUUUUUUabcdefghUUUUUUUU"))
		l.events()
	})
}

// Case 33: an ATOMIC WRITE that is not 8 bytes, or not aligned, is refused, and nothing is
// stored.
func TestCase33_AtomicWriteLengths(t *testing.T) {
	for _, v := range []struct {
		name    string
		len     uint32
		payload int
		off     uint64
		change  func(f *peer.Frame)
	}{
		{name: "0, 0"}, {name: "4, 4", len: 4, payload: 4}, {name: "8, 4", len: 8, payload: 4}, {name: "8, 0", len: 8},
		{name: "8, 12", len: 8, payload: 12}, {name: "16, 16", len: 16, payload: 16}, {name: "0, 8", payload: 8}, {name: "16, 8", len: 16, payload: 8},
		{name: "8, 5 with pad 3", len: 8, payload: 5},
		{name: "8, 8 with pad 3", len: 8, payload: 8, change: func(f *peer.Frame) { f.PadCount, f.PadBytes = new(uint8(3)), make([]byte, 3) }},
		{name: "8, 8 misaligned", len: 8, payload: 8, off: 4}, {name: "8, 8 at an odd address", len: 8, payload: 8, off: 1},
	} {
		tick(t, v.name, func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			f := peer.AtomicWrite(nicQP, 0x200, mr.Addr()+v.off, mr.RKey(), filled(9, v.payload))
			f.RETH.Len = v.len
			if v.change != nil {
				v.change(f)
			}
			c.gets(f)
			l.says("ACKNOWLEDGE 000200 61 m0")
			wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
			c.state(device.StateErr)
			l.events("QP_REQ_ERR")
		})
	}
	tick(t, "8, 8", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		c.gets(peer.AtomicWrite(nicQP, 0x200, mr.Addr(), mr.RKey(), filled(9, 8)))
		l.says("READ_RESPONSE_ONLY 000200 1f m1")
		wantBytes(t, "memory", mr.Bytes(), append(filled(9, 8), make([]byte, 56)...))
	})
}

// Atomics of two queue pairs and of the program itself do not tear.
func TestOpsAtomicAndProgram(t *testing.T) {
	tick(t, "sum", func(t *testing.T, l *lab, c *conn) {
		other := l.second(allOps)
		mr := l.mr(8, every)
		const n = 200
		for i := range uint32(n) {
			c.gets(peer.FetchAdd(nicQP, 0x200+i, mr.Addr(), mr.RKey(), 1))
			other.gets(to12(peer.MaskedFetchAdd(0, 0x200+i, mr.Addr(), mr.RKey(), 1<<32, 1<<31)))
		}
		want(t, "answers", len(l.take()), 2*n)
		want(t, "sum", fmt.Sprintf("%x", word(mr, 0)), fmt.Sprintf("%x", uint64(n)<<32|n))
	})
}

// Masked atomics are an option of the device: without it they are refused where they are posted, and
// their opcodes are of no service.
func TestOpsPlainAtomics(t *testing.T) {
	bubble(t, "off", func(t *testing.T) {
		l := newLab(t, labConfig{})
		end, raw := pipe.NewRaw(pipe.Config{Name: "plain", Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}})
		l.dev = must(device.Open(end, device.Options{Rand: l.dice, PlainAtomics: true}))
		t.Cleanup(func() { l.dev.Close() })
		l.ctx, l.raw, l.conn = l.dev.NewContext(), raw, &rawConn{raw}
		l.pd = must(l.ctx.AllocPD())
		l.p = peer.New(l.conn, peer4, nic4)
		c := l.rc(allOps)
		mr := l.mr(64, every)
		c.refused(device.SendWR{Op: device.OpMaskedCompareSwap, SGE: sge(mr, 8)})
		c.refused(device.SendWR{Op: device.OpMaskedFetchAdd, SGE: sge(mr, 8)})
		c.gets(peer.MaskedFetchAdd(nicQP, 0x200, mr.Addr(), mr.RKey(), 1, 0),
			peer.MaskedCmpSwap(nicQP, 0x200, peer.MaskedETH{VA: mr.Addr(), RKey: mr.RKey()}))
		l.says()
		want(t, "drops", l.drops(), "wrong-service=2")
		c.gets(peer.FetchAdd(nicQP, 0x200, mr.Addr(), mr.RKey(), 1))
		l.says("ATOMIC_ACKNOWLEDGE 000200 1f m1 orig=0")
	})
}
