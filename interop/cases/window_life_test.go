package cases

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// windowTypes are the types of memory windows by name.
var windowTypes = []struct {
	name string
	typ  device.MWType
}{{"type 1", device.MW1}, {"type 2A", device.MW2A}, {"type 2B", device.MW2B}}

// A window narrows its region: on both sides, and to its own rights (rxe does not look at the
// bounds: roce.md B.14).
func TestWindowNarrows(t *testing.T) {
	const size, off, n = 4096, 1024, 1000
	const rights = device.RemoteRead | device.RemoteWrite | device.RemoteAtomic | device.FlushGlobal
	for _, wt := range windowTypes {
		for _, v := range []struct {
			name   string
			rights device.Access
			f      func(base uint64, key uint32) *peer.Frame
			answer string
		}{
			{"WRITE of all of it", rights, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, b+off, k, make([]byte, n)) }, "ACKNOWLEDGE 000200 1f m1"},
			{"WRITE at its end", rights, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, b+off+n-1, k, []byte{1}) }, "ACKNOWLEDGE 000200 1f m1"},
			{"WRITE one byte below", rights, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, b+off-1, k, []byte{1}) }, "ACKNOWLEDGE 000200 62 m0"},
			{"WRITE across the begin", rights, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, b+off-1, k, []byte{1, 2}) }, "ACKNOWLEDGE 000200 62 m0"},
			{"WRITE across the end", rights, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, b+off+n-1, k, []byte{1, 2}) }, "ACKNOWLEDGE 000200 62 m0"},
			{"WRITE behind", rights, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, b+off+n, k, []byte{1}) }, "ACKNOWLEDGE 000200 62 m0"},
			{"READ of all of it", rights, func(b uint64, k uint32) *peer.Frame { return peer.ReadRequest(nicQP, 0x200, b+off, k, n) }, "READ_RESPONSE_ONLY 000200 1f m1 [1000]"},
			{"READ below", rights, func(b uint64, k uint32) *peer.Frame { return peer.ReadRequest(nicQP, 0x200, b, k, 8) }, "ACKNOWLEDGE 000200 62 m0"},
			{"READ behind", rights, func(b uint64, k uint32) *peer.Frame { return peer.ReadRequest(nicQP, 0x200, b+2048, k, 8) }, "ACKNOWLEDGE 000200 62 m0"},
			{"atomic inside", rights, func(b uint64, k uint32) *peer.Frame { return peer.FetchAdd(nicQP, 0x200, b+off, k, 1) }, "ATOMIC_ACKNOWLEDGE 000200 1f m1 orig=0"},
			{"atomic at its last 8 bytes", rights, func(b uint64, k uint32) *peer.Frame { return peer.FetchAdd(nicQP, 0x200, b+off+n-8, k, 1) }, "ATOMIC_ACKNOWLEDGE 000200 1f m1 orig=0"},
			{"atomic behind", rights, func(b uint64, k uint32) *peer.Frame { return peer.FetchAdd(nicQP, 0x200, b+off+n, k, 1) }, "ACKNOWLEDGE 000200 62 m0"},
			{"ATOMIC WRITE below", rights, func(b uint64, k uint32) *peer.Frame {
				return peer.AtomicWrite(nicQP, 0x200, b+off-8, k, make([]byte, 8))
			}, "ACKNOWLEDGE 000200 62 m0"},
			{"FLUSH inside", rights, func(b uint64, k uint32) *peer.Frame { return peer.Flush(nicQP, 0x200, b+off, k, n, 1) }, "READ_RESPONSE_ONLY 000200 1f m1"},
			{"FLUSH across the end", rights, func(b uint64, k uint32) *peer.Frame { return peer.Flush(nicQP, 0x200, b+off, k, n+1, 1) }, "ACKNOWLEDGE 000200 62 m0"},
			{"WRITE without the right", rights &^ device.RemoteWrite, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, b+off, k, []byte{1}) }, "ACKNOWLEDGE 000200 62 m0"},
			{"READ without the right", rights &^ device.RemoteRead, func(b uint64, k uint32) *peer.Frame { return peer.ReadRequest(nicQP, 0x200, b+off, k, 8) }, "ACKNOWLEDGE 000200 62 m0"},
			{"atomic without the right", rights &^ device.RemoteAtomic, func(b uint64, k uint32) *peer.Frame { return peer.FetchAdd(nicQP, 0x200, b+off, k, 1) }, "ACKNOWLEDGE 000200 62 m0"},
			{"FLUSH without the right", rights &^ device.FlushGlobal, func(b uint64, k uint32) *peer.Frame { return peer.Flush(nicQP, 0x200, b+off, k, n, 1) }, "ACKNOWLEDGE 000200 62 m0"},
			{"length 0 needs no key", 0, func(b uint64, k uint32) *peer.Frame { return peer.WriteOnly(nicQP, 0x200, 0, k, nil) }, "ACKNOWLEDGE 000200 1f m1"},
		} {
			tick(t, wt.name+"/"+v.name, func(t *testing.T, l *lab, c *conn) {
				mr := l.mr(size+8, every)
				skip := int(-mr.Addr() & 7) // atomics are aligned
				w := must(l.pd.AllocMW(wt.typ))
				c.bind(w, mr, skip+off, n, v.rights)
				c.gets(v.f(mr.Addr()+uint64(skip), w.RKey()))
				l.says(v.answer)
				if v.answer == "ACKNOWLEDGE 000200 62 m0" {
					l.events("QP_ACCESS_ERR")
				}
			})
		}
	}
	// A window gives rights that the region has not for its own key, but local write is needed.
	for _, v := range []struct {
		region, window device.Access
		ok             bool
	}{
		{device.MWBind, device.RemoteRead, true},
		{device.MWBind | device.LocalWrite, device.RemoteWrite | device.RemoteAtomic, true},
		{device.MWBind, device.RemoteWrite, false},
		{device.MWBind, device.RemoteAtomic, false},
		{device.LocalWrite, device.RemoteWrite, false},
		{device.MWBind | device.LocalWrite, device.RemoteWrite | device.LocalWrite, true}, // it says nothing of a window
		{device.MWBind, device.RemoteWrite | device.LocalWrite, false},
		{device.MWBind | device.LocalWrite, device.MWBind, false},
		{device.MWBind | device.LocalWrite, device.ZeroBased, true},
	} {
		tick(t, fmt.Sprintf("rights %x of a region with %x", int(v.window), int(v.region)), func(t *testing.T, l *lab, c *conn) {
			status := "SUCCESS BIND_MW 0"
			if !v.ok {
				status = "MW_BIND_ERR"
			}
			c.local(bindOf(must(l.pd.AllocMW(device.MW2B)), l.mr(64, v.region), 0, 64, v.window), status)
		})
	}
}

// Case 35, and whatever else cannot be bound: MW_BIND_ERR, and the window as it was.
func TestCase35_Bind(t *testing.T) {
	for _, wt := range windowTypes {
		for mix := range 8 {
			bubble(t, fmt.Sprintf("%s/domains %03b", wt.name, mix), func(t *testing.T) {
				l := newLab(t, labConfig{})
				pds := []*device.PD{l.pd, must(l.ctx.AllocPD())}
				l.pd = pds[mix&1]
				c := l.rc(allOps)
				w := must(pds[mix>>1&1].AllocMW(wt.typ))
				mr := must(pds[mix>>2&1].RegMR(make([]byte, 64), every))
				old := w.RKey()
				ok := mix == 0 || mix == 7
				if wt.typ == device.MW2A { // the window's domain is not compared with the queue pair's
					ok = mix&1 == mix>>2&1
				}
				wr := bindOf(w, mr, 0, 64, device.RemoteWrite)
				if ok {
					c.local(wr, "SUCCESS BIND_MW 0")
					want(t, "key", w.RKey(), wr.Bind.NewKey)
					c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), w.RKey(), []byte{1}))
					l.says("ACKNOWLEDGE 000200 1f m1")
					return
				}
				c.local(wr, "MW_BIND_ERR")
				c.state(device.StateErr)
				want(t, "key", w.RKey(), old)
				l.pd = pds[mix>>2&1] // a queue pair of the region's domain
				other := l.second(allOps)
				other.gets(to12(peer.WriteOnly(0, 0x200, mr.Addr(), wr.Bind.NewKey, []byte{1})))
				l.says("ACKNOWLEDGE 000200 62 m0")
			})
		}
		for _, v := range []struct {
			name   string
			change func(l *lab, wr *device.SendWR, mr *device.MR)
		}{
			{"key of another index", func(_ *lab, wr *device.SendWR, _ *device.MR) { wr.Bind.NewKey ^= 0x100 }},
			{"window's old key is not its key", func(_ *lab, wr *device.SendWR, _ *device.MR) { wr.Bind.Window ^= 1 }},
			{"region's R_Key", func(_ *lab, wr *device.SendWR, mr *device.MR) { wr.Bind.MRKey = mr.RKey() }},
			{"no such region", func(_ *lab, wr *device.SendWR, _ *device.MR) { wr.Bind.MRKey = 7 }},
			{"range before the region", func(_ *lab, wr *device.SendWR, _ *device.MR) { wr.Bind.Addr-- }},
			{"range behind the region", func(_ *lab, wr *device.SendWR, _ *device.MR) { wr.Bind.Addr++ }},
			{"range that wraps", func(_ *lab, wr *device.SendWR, _ *device.MR) { wr.Bind.Length = ^uint64(0) }},
			{"a window of a window", func(l *lab, wr *device.SendWR, _ *device.MR) {
				w := must(l.pd.AllocMW(device.MW1))
				l.second(allOps).bind(w, l.mr(64, every), 0, 64, device.RemoteWrite)
				wr.Bind.MRKey = w.RKey()
			}},
		} {
			tick(t, wt.name+"/"+v.name, func(t *testing.T, l *lab, c *conn) {
				mr := l.mr(64, every)
				w := must(l.pd.AllocMW(wt.typ))
				old := w.RKey()
				wr := bindOf(w, mr, 0, 64, device.RemoteWrite)
				v.change(l, &wr, mr)
				c.local(wr, "MW_BIND_ERR")
				want(t, "key", w.RKey(), old)
				want(t, "free", mr.Dereg(), nil) // nothing is bound to it by this
			})
		}
	}
	tick(t, "a failed bind leaves what was bound", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		w := must(l.pd.AllocMW(device.MW1))
		c.bind(w, mr, 0, 64, device.RemoteWrite)
		old := w.RKey()
		other := l.second(allOps)
		c.local(bindOf(w, mr, 0, 65, device.RemoteWrite), "MW_BIND_ERR")
		want(t, "key", w.RKey(), old)
		other.gets(to12(peer.WriteOnly(0, 0x200, mr.Addr(), old, []byte{1})))
		l.says("ACKNOWLEDGE 000200 1f m1")
	})
}

// A window of another context is out of reach, also one of type 2A, whose domain does not matter.
func TestWindowOfAnotherContext(t *testing.T) {
	for _, wt := range windowTypes {
		tick(t, wt.name, func(t *testing.T, l *lab, c *conn) {
			w := must(must(l.dev.NewContext().AllocPD()).AllocMW(wt.typ))
			old := w.RKey()
			c.local(bindOf(w, l.mr(64, every), 0, 64, device.RemoteWrite), "MW_BIND_ERR")
			want(t, "key", w.RKey(), old)
		})
	}
}

// Deregistration against a bind that comes at the same moment: one of them wins, and where it is the
// deregistration, no key gives access any more.
func TestWindowBindAgainstDereg(t *testing.T) {
	tick(t, "race", func(t *testing.T, l *lab, _ *conn) {
		for range 100 {
			c := l.second(allOps)
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(device.MW1))
			wr := bindOf(w, mr, 0, 64, device.RemoteWrite)
			done := make(chan error)
			go func() { done <- c.qp.PostSend(&wr) }()
			freed := mr.Dereg() == nil
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			wc := briefWC(drain(c.scq))
			if bound := wc[0] == "0 SUCCESS BIND_MW 0"; bound == freed {
				t.Fatalf("dereg_mr succeeded: %v, and bind: %v", freed, wc)
			}
			if !freed {
				want(t, "dealloc_mw", w.Dealloc(), nil)
				want(t, "dereg_mr", mr.Dereg(), nil)
			}
			want(t, "destroy_qp", c.qp.Destroy(), nil)
		}
	})
}

// Whose a window is: type 1 is for every queue pair of its domain, type 2 for the one that bound it.
func TestWindowOwner(t *testing.T) {
	for _, wt := range windowTypes {
		tick(t, wt.name, func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(wt.typ))
			c.bind(w, mr, 0, 64, device.RemoteWrite|device.RemoteRead)
			other := l.second(allOps)
			c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), w.RKey(), []byte{1}))
			l.says("ACKNOWLEDGE 000200 1f m1")
			other.gets(to12(peer.WriteOnly(0, 0x200, mr.Addr(), w.RKey(), []byte{1})))
			if wt.typ == device.MW1 {
				l.says("ACKNOWLEDGE 000200 1f m1")
			} else {
				l.says("ACKNOWLEDGE 000200 62 m0")
			}
			// As L_Key it is nothing.
			c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: mr.Addr(), Length: 1, LKey: w.RKey()}}})
			c.sent("1 LOC_PROT_ERR")
		})
		bubble(t, wt.name+" from another domain", func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(allOps)
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(wt.typ))
			c.bind(w, mr, 0, 64, device.RemoteWrite)
			l.pd = must(l.ctx.AllocPD())
			other := l.second(allOps)
			other.gets(to12(peer.WriteOnly(0, 0x200, mr.Addr(), w.RKey(), []byte{1})))
			l.says("ACKNOWLEDGE 000200 62 m0")
		})
	}
}

// The life of a window: bound, bound anew, taken away, freed.
func TestWindowLife(t *testing.T) {
	// use tries the key through the connection: 1f or 62. A NAK ends the connection, so that it
	// is tried through one made for that.
	type tryer struct {
		l *lab
		n uint32
	}
	use := func(x *tryer, mr *device.MR, key uint32, off int, answer string) {
		x.l.t.Helper()
		x.n++
		qpn := 0x100 + x.n
		c := x.l.rc(func(o *rcOptions) { allOps(o); o.QPN = qpn })
		c.gets(peer.WriteOnly(qpn, 0x200, mr.Addr()+uint64(off), key, []byte{1}))
		m := map[string]int{"1f": 1, "62": 0}[answer]
		x.l.says(fmt.Sprintf("ACKNOWLEDGE 000200 %s m%d", answer, m))
		if err := c.qp.Destroy(); err != nil {
			x.l.t.Fatal(err)
		}
	}
	tick(t, "type 1", func(t *testing.T, l *lab, c *conn) {
		x := &tryer{l: l}
		mr, mr2 := l.mr(64, every), l.mr(64, every)
		w := must(l.pd.AllocMW(device.MW1))
		use(x, mr, w.RKey(), 0, "62") // not bound
		c.bind(w, mr, 0, 8, device.RemoteWrite)
		k1 := w.RKey()
		use(x, mr, k1, 0, "1f")
		c.bind(w, mr, 8, 8, device.RemoteWrite) // anew: elsewhere, with another key
		k2 := w.RKey()
		use(x, mr, k1, 0, "62")
		use(x, mr, k2, 0, "62")
		use(x, mr, k2, 8, "1f")
		errno(t, mr.Dereg(), device.EINVAL) // a window is bound to it
		c.bind(w, mr2, 0, 8, device.RemoteWrite)
		k3 := w.RKey()
		want(t, "dereg_mr", mr.Dereg(), nil)
		use(x, mr2, k3, 0, "1f")
		c.bind(w, mr2, 0, 0, 0) // length 0: not bound any more
		use(x, mr2, k3, 0, "62")
		use(x, mr2, w.RKey(), 0, "62")
		want(t, "dereg_mr", mr2.Dereg(), nil)
		want(t, "dealloc_mw", w.Dealloc(), nil)
		errno(t, w.Dealloc(), device.EINVAL)
		for _, k := range []uint32{k1, k2, k3} {
			want(t, "upper 24 bits", k>>8, k1>>8)
		}
	})
	for _, wt := range windowTypes[1:] {
		tick(t, wt.name, func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(wt.typ))
			for i := range uint32(3) {
				c.bind(w, mr, 0, 8, device.RemoteWrite)
				k := w.RKey()
				c.gets(peer.WriteOnly(nicQP, 0x200+3*i, mr.Addr(), k, []byte{1}))
				l.says(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", 0x200+3*i, 3*i+1))
				errno(t, mr.Dereg(), device.EINVAL)
				if i == 1 { // the peer takes it away
					c.recv(1, nil, 0)
					c.gets(peer.SendOnlyInv(nicQP, 0x201+3*i, k, nil))
					l.says(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", 0x201+3*i, 3*i+2))
					c.receivedFull(fmt.Sprintf("1 SUCCESS RECV 0 inv=%08x", k))
				} else {
					c.inv(k)
					c.gets(peer.WriteOnly(nicQP, 0x201+3*i, 0, 0, nil))
					l.says(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", 0x201+3*i, 3*i+2))
				}
				want(t, "key", w.RKey(), k)
				c.gets(peer.WriteOnly(nicQP, 0x202+3*i, 0, 0, nil))
				l.says(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", 0x202+3*i, 3*i+3))
			}
			want(t, "dereg_mr", mr.Dereg(), nil)
			c.gets(peer.WriteOnly(nicQP, 0x209, mr.Addr(), w.RKey(), []byte{1}))
			l.says("ACKNOWLEDGE 000209 62 m9")
		})
		tick(t, wt.name+", length 0", func(t *testing.T, l *lab, c *conn) {
			c.local(bindOf(must(l.pd.AllocMW(wt.typ)), l.mr(64, every), 0, 0, device.RemoteWrite), "MW_BIND_ERR")
		})
		tick(t, wt.name+", bound while it is bound", func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(wt.typ))
			c.bind(w, mr, 0, 8, device.RemoteWrite)
			c.local(bindOf(w, mr, 0, 8, device.RemoteWrite), "MW_BIND_ERR")
		})
		tick(t, wt.name+", invalidated by another queue pair", func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(wt.typ))
			c.bind(w, mr, 0, 8, device.RemoteWrite)
			other := l.second(allOps)
			other.local(device.SendWR{Op: device.OpLocalInv, Imm: w.RKey()}, "MW_BIND_ERR")
			c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), w.RKey(), []byte{1}))
			l.says("ACKNOWLEDGE 000200 1f m1")
		})
		// With its queue pair it dies, and the region is free.
		tick(t, wt.name+", destroyed queue pair", func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w, keep := must(l.pd.AllocMW(wt.typ)), must(l.pd.AllocMW(device.MW1))
			c.bind(w, mr, 0, 8, device.RemoteWrite)
			c.bind(keep, mr, 8, 8, device.RemoteWrite)
			if err := c.qp.Destroy(); err != nil {
				t.Fatal(err)
			}
			x := &tryer{l: l}
			use(x, mr, w.RKey(), 0, "62")
			use(x, mr, keep.RKey(), 8, "1f") // type 1 lives on
			errno(t, mr.Dereg(), device.EINVAL)
			other := l.second(allOps)
			other.bind(w, mr, 0, 8, device.RemoteWrite) // and can be bound by another
			other.inv(w.RKey())
			want(t, "dealloc_mw", keep.Dealloc(), nil)
			want(t, "dereg_mr", mr.Dereg(), nil)
		})
		tick(t, wt.name+", queue pair to RESET and to ERR", func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(wt.typ))
			c.bind(w, mr, 0, 8, device.RemoteWrite)
			c.to(device.StateErr)
			c.to(device.StateReset)
			c.to(device.StateInit)
			c.to(device.StateRTR)
			c.to(device.StateRTS)
			// It is still this queue pair's: only destroying that ends it.
			c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), w.RKey(), []byte{1}))
			l.says("ACKNOWLEDGE 000200 1f m1")
		})
	}
	for _, wt := range windowTypes {
		tick(t, wt.name+", freed while bound", func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w := must(l.pd.AllocMW(wt.typ))
			c.bind(w, mr, 0, 8, device.RemoteWrite)
			want(t, "dealloc_mw", w.Dealloc(), nil)
			want(t, "dereg_mr", mr.Dereg(), nil)
			c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), w.RKey(), []byte{1}))
			l.says("ACKNOWLEDGE 000200 62 m0")
		})
		tick(t, wt.name+", domain in use", func(t *testing.T, l *lab, _ *conn) {
			pd := must(l.ctx.AllocPD())
			w := must(pd.AllocMW(wt.typ))
			errno(t, pd.Dealloc(), device.EBUSY)
			want(t, "dealloc_mw", w.Dealloc(), nil)
			want(t, "dealloc_pd", pd.Dealloc(), nil)
		})
	}
	tick(t, "types that do not exist", func(t *testing.T, l *lab, _ *conn) {
		for _, typ := range []device.MWType{0, 4, -1} {
			_, err := l.pd.AllocMW(typ)
			errno(t, err, device.EINVAL)
		}
	})
	tick(t, "everything bound when the context goes", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		for _, wt := range windowTypes {
			c.bind(must(l.pd.AllocMW(wt.typ)), mr, 0, 8, device.RemoteWrite)
		}
		c.fast(make([]byte, 8), all)
		want(t, "close", l.ctx.Close(), nil)
	})
}

// Case 37: a window goes while it is used. What is behind that is refused, at its PSN.
func TestCase37_WindowGoesInFlight(t *testing.T) {
	tick(t, "WRITE of several packets", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(4096, every)
		w := must(l.pd.AllocMW(device.MW2B))
		c.bind(w, mr, 0, 4096, device.RemoteWrite)
		c.gets(peer.WriteFirst(nicQP, 0x200, mr.Addr(), w.RKey(), 3000, filled(1, 1024)))
		l.settle()
		c.inv(w.RKey())
		c.gets(peer.WriteMiddle(nicQP, 0x201, filled(2, 1024)), peer.WriteLast(nicQP, 0x202, filled(3, 952)))
		l.says("ACKNOWLEDGE 000201 62 m0")
		l.events("QP_ACCESS_ERR")
		wantBytes(t, "memory", mr.Bytes(), append(filled(1, 1024), make([]byte, 3072)...))
	})
	// (f): the READ is being answered.
	bubble(t, "READ", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(allOps)
		const size = 8 << 20
		mem := &hookMemory{}
		mr := must(l.pd.RegMemory(mem, 0x40000000, size, device.MWBind))
		w := must(l.pd.AllocMW(device.MW2B))
		c.bind(w, mr, 0, size, device.RemoteRead)
		inv := device.SendWR{ID: 50, Op: device.OpLocalInv, Imm: w.RKey()}
		mem.hook = func(n int) {
			if n == 150 {
				posting := make(chan struct{})
				go func() { // it waits for this access
					close(posting)
					if err := c.qp.PostSend(&inv); err != nil {
						t.Error(err)
					}
				}()
				<-posting
				for range 1000 {
					runtime.Gosched()
				}
			}
		}
		c.gets(peer.ReadRequest(nicQP, 0x200, 0x40000000, w.RKey(), size))
		got := l.take()
		z := got[len(got)-1]
		want(t, "the last answer", full(z), fmt.Sprintf("ACKNOWLEDGE %06x 62 m1", 0x200+len(got)-1))
		if n := len(got); n < 150 || n > 1000 {
			t.Fatalf("%d responses", n)
		}
		for i, f := range got[:len(got)-1] {
			want(t, "PSN", f.PSN, uint32(0x200+i))
		}
		l.events("QP_ACCESS_ERR")
		c.state(device.StateErr)
	})
	// Duplicates of a READ whose window is gone are refused, as those of a region (rxe-lab.md 4).
	tick(t, "duplicate READ", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		w := must(l.pd.AllocMW(device.MW2B))
		c.bind(w, mr, 0, 64, device.RemoteRead)
		f := peer.ReadRequest(nicQP, 0x200, mr.Addr(), w.RKey(), 8)
		c.gets(f)
		l.says("READ_RESPONSE_ONLY 000200 1f m1 [8]")
		c.inv(w.RKey())
		c.gets(f)
		l.says("ACKNOWLEDGE 000200 62 m1")
	})
}

// Keys: the upper 24 bits of a window or fast-registered region are its own, also against a random
// source that wants them shared.
func TestWindowKeys(t *testing.T) {
	tick(t, "windows", func(t *testing.T, l *lab, c *conn) {
		l.dice.push(0xAABBCC01, 0xAABBCC02, 0xAABBCC03, 0x11223344)
		mr := l.mr(8, every) // both keys begin alike
		want(t, "L_Key", mr.LKey(), 0xAABBCC01)
		want(t, "R_Key", mr.RKey(), 0xAABBCC02)
		w := must(l.pd.AllocMW(device.MW1)) // this one may not begin so
		want(t, "window", w.RKey(), 0x11223344)
		l.dice.push(0x11223355, 0x11223344, 0x55667788)
		f := must(l.pd.AllocMR(8))
		want(t, "fast region", f.RKey(), 0x55667788)
		l.dice.push(0x11223301, 0x55667700, 0, 0xFFFFFFFF, 0x01010101, 0x11223302, 0x01010102)
		mr2 := l.mr(8, every)
		want(t, "L_Key", mr2.LKey(), 0x01010101)
		want(t, "R_Key", mr2.RKey(), 0x01010102)
		// 24 bits of 0 or all ones would make keys that mean "none".
		l.dice.push(0x00000042, 0xFFFFFF42, 0x77777777)
		w2 := must(l.pd.AllocMW(device.MW2B))
		want(t, "window", w2.RKey(), 0x77777777)
		// Freed, its 24 bits are free; also the region's, once both keys are gone.
		want(t, "dealloc_mw", w.Dealloc(), nil)
		want(t, "dereg_mr", mr.Dereg(), nil)
		l.dice.push(0x112233FF)
		want(t, "window", must(l.pd.AllocMW(device.MW1)).RKey(), 0x112233FF)
		l.dice.push(0xAABBCCFF)
		want(t, "window", must(l.pd.AllocMW(device.MW1)).RKey(), 0xAABBCCFF)
	})
	want(t, "next key", device.IncRKey(0x112233FF), 0x11223300)
	want(t, "next key", device.IncRKey(0x11223344), 0x11223345)
}

// The whole life of a fast-registered region.
func TestWindowFastRegistration(t *testing.T) {
	tick(t, "life", func(t *testing.T, l *lab, c *conn) {
		mem, mem2 := pattern(1, 64), make([]byte, 64)
		f := must(l.pd.AllocMR(64))
		k0 := f.RKey()
		want(t, "L_Key", f.LKey(), k0)
		other := l.second(allOps)
		other.gets(to12(peer.ReadRequest(0, 0x200, remoteVA, k0, 8))) // invalid
		l.says("ACKNOWLEDGE 000200 62 m0")
		c.reg(f, mem, all)
		k1 := f.RKey()
		want(t, "new key", k1, device.IncRKey(k0))
		// Both sides, through every queue pair of the domain.
		c.gets(peer.ReadRequest(nicQP, 0x200, remoteVA+1, k1, 8))
		got := l.says("READ_RESPONSE_ONLY 000200 1f m1 [8]")
		wantBytes(t, "data", got[0].Payload, mem[1:9])
		c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: remoteVA + 60, Length: 4, LKey: k1}}})
		got = l.says("SEND_ONLY 000100 ar [4]")
		wantBytes(t, "data", got[0].Payload, mem[60:])
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 4")
		c.inv(k1)
		want(t, "key", f.RKey(), k1)
		// The same region with other memory, and the key anew.
		c.reg(f, mem2, device.LocalWrite|device.RemoteWrite)
		k2 := f.RKey()
		c.gets(peer.WriteOnly(nicQP, 0x201, remoteVA, k2, []byte("new")))
		l.says("ACKNOWLEDGE 000201 1f m2")
		wantBytes(t, "memory", mem2[:4], []byte("new\x00"))
		wantBytes(t, "old memory", mem, pattern(1, 64))
		c.gets(peer.WriteOnly(nicQP, 0x202, remoteVA, k1, []byte("old"))) // the key before
		l.says("ACKNOWLEDGE 000202 62 m2")
		want(t, "dereg_mr", f.Dereg(), nil)
		errno(t, f.Dereg(), device.EINVAL)
	})
	for _, v := range []struct {
		name   string
		change func(l *lab, wr *device.SendWR)
	}{
		{"key of another index", func(_ *lab, wr *device.SendWR) { wr.Reg.NewKey ^= 0x100 }},
		{"its key is not its key", func(_ *lab, wr *device.SendWR) { wr.Reg.LKey ^= 1 }},
		{"key of a plain region", func(l *lab, wr *device.SendWR) { wr.Reg.LKey = l.mr(8, every).LKey(); wr.Reg.NewKey = wr.Reg.LKey }},
		{"too long", func(_ *lab, wr *device.SendWR) { wr.Reg.Length = 65 }},
		{"length 0", func(_ *lab, wr *device.SendWR) { wr.Reg.Length = 0 }},
		{"range that wraps", func(_ *lab, wr *device.SendWR) { wr.Reg.Addr = ^uint64(0) - 8 }},
		{"no memory", func(_ *lab, wr *device.SendWR) { wr.Reg.Memory = nil }},
		{"remote write without local write", func(_ *lab, wr *device.SendWR) { wr.Reg.Access = device.RemoteWrite }},
		{"remote atomic without local write", func(_ *lab, wr *device.SendWR) { wr.Reg.Access = device.RemoteAtomic }},
		{"rights that it cannot have", func(_ *lab, wr *device.SendWR) { wr.Reg.Access = device.LocalWrite | device.MWBind }},
		{"persistence of memory that does not outlive the power", func(_ *lab, wr *device.SendWR) { wr.Reg.Access = device.FlushPersistent }},
	} {
		tick(t, v.name, func(t *testing.T, l *lab, c *conn) {
			f := must(l.pd.AllocMR(64))
			old := f.RKey()
			wr := device.SendWR{Op: device.OpRegMR, Reg: regOf(f, make([]byte, 64), all)}
			v.change(l, &wr)
			c.local(wr, "MW_BIND_ERR")
			c.state(device.StateErr)
			want(t, "key", f.RKey(), old)
			other := l.second(allOps)
			other.gets(to12(peer.WriteOnly(0, 0x200, remoteVA, wr.Reg.NewKey, []byte{1})))
			l.says("ACKNOWLEDGE 000200 62 m0")
		})
	}
	bubble(t, "another protection domain", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(allOps)
		f := must(must(l.ctx.AllocPD()).AllocMR(64))
		c.local(device.SendWR{Op: device.OpRegMR, Reg: regOf(f, make([]byte, 64), all)}, "MW_BIND_ERR")
		// Nor can it be invalidated from there.
		other := l.second(allOps)
		other.local(device.SendWR{Op: device.OpLocalInv, Imm: f.RKey()}, "MW_BIND_ERR")
	})
	tick(t, "registered while it is valid", func(t *testing.T, l *lab, c *conn) {
		f, key := c.fast(make([]byte, 64), all)
		c.local(device.SendWR{Op: device.OpRegMR, Reg: regOf(f, make([]byte, 64), all)}, "MW_BIND_ERR")
		want(t, "key", f.RKey(), key)
	})
	tick(t, "rights of its own", func(t *testing.T, l *lab, c *conn) {
		_, key := c.fast(make([]byte, 64), device.RemoteRead)
		c.gets(peer.ReadRequest(nicQP, 0x200, remoteVA, key, 64))
		l.says("READ_RESPONSE_ONLY 000200 1f m1 [64]")
		c.read2(key)
		c.gets(peer.ReadRespOnly(nicQP, 0x100, 1, make([]byte, 8)))
		c.sent("1 LOC_PROT_ERR") // no local write
	})
	tick(t, "not posted at all", func(t *testing.T, l *lab, _ *conn) {
		_, err := l.pd.AllocMR(0)
		errno(t, err, device.EINVAL)
		pd := must(l.ctx.AllocPD())
		f := must(pd.AllocMR(1))
		errno(t, pd.Dealloc(), device.EBUSY)
		want(t, "dereg_mr", f.Dereg(), nil)
		want(t, "dealloc_pd", pd.Dealloc(), nil)
	})
	// Invalid while packets that carry its memory have not left: those leave, and dereg_mr waits
	// for them.
	for _, invalidated := range []bool{false, true} {
		bubble(t, fmt.Sprintf("dereg_mr waits, invalidated before: %v", invalidated), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(allOps)
			other := l.second(allOps)
			mem := &hookMemory{}
			f := must(l.pd.AllocMR(1 << 20))
			reg := regOf(f, nil, device.RemoteRead)
			reg.Memory, reg.Length = mem, 1<<20
			c.local(device.SendWR{Op: device.OpRegMR, Reg: reg}, "SUCCESS IB_WC_REG_MR 0")
			entered, leave, freed := make(chan struct{}), make(chan struct{}), make(chan struct{})
			mem.hook = func(n int) {
				if n == 1 {
					close(entered)
					<-leave
				}
			}
			other.gets(to12(peer.ReadRequest(0, 0x200, remoteVA, f.RKey(), 8)))
			<-entered
			go func() {
				if invalidated { // it waits too
					c.inv(f.RKey())
				}
				if err := f.Dereg(); err != nil {
					t.Error(err)
				}
				mem.mu.Lock()
				mem.gone = true
				mem.mu.Unlock()
				close(freed)
			}()
			time.Sleep(time.Second)
			select {
			case <-freed:
				t.Error("dereg_mr did not wait for an access that was running")
			default:
			}
			close(leave)
			<-freed
			want(t, "bytes read after dereg_mr", mem.stale, 0)
			l.take()
		})
	}
}

// read2 posts a READ of 8 bytes into a region by key.
func (c *conn) read2(key uint32) {
	c.post(device.SendWR{Op: device.OpRead, SGE: []device.SGE{{Addr: remoteVA, Length: 8, LKey: key}}, RemoteAddr: 1, RKey: 2})
}
