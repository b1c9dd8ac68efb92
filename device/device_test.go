package device_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
)

// host is one device with what a program on it has.
type host struct {
	t   *testing.T
	dev *device.Device
	ctx *device.Context
	pd  *device.PD
	cq  *device.CQ
}

func newHost(t *testing.T, ep link.Endpoint, o device.Options) *host {
	t.Helper()
	dev, err := device.Open(ep, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	h := &host{t: t, dev: dev, ctx: dev.NewContext()}
	if h.pd, err = h.ctx.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if h.cq, err = h.ctx.CreateCQ(device.CQInit{Entries: 1024}); err != nil {
		t.Fatal(err)
	}
	return h
}

// twoHosts returns two devices, 10.0.0.1 and 10.0.0.2, on one cable.
func twoHosts(t *testing.T, mtu int, a, b device.Options) (*host, *host) {
	ea, eb := pipe.New(
		pipe.Config{Name: "a", MTU: mtu, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		pipe.Config{Name: "b", MTU: mtu, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("2001:db8::2/64")}})
	return newHost(t, ea, a), newHost(t, eb, b)
}

func (h *host) qp(typ device.QPType, depth int) *device.QP {
	h.t.Helper()
	q, err := h.pd.CreateQP(device.QPInit{Type: typ, SendCQ: h.cq, RecvCQ: h.cq,
		Cap: device.Cap{SendWR: depth, RecvWR: depth, SendSGE: 4, RecvSGE: 4, Inline: 256}})
	if err != nil {
		h.t.Fatal(err)
	}
	return q
}

func (h *host) mr(n int) *device.MR {
	h.t.Helper()
	m, err := h.pd.RegMR(make([]byte, n), device.LocalWrite|device.RemoteWrite|device.RemoteRead)
	if err != nil {
		h.t.Fatal(err)
	}
	return m
}

// wait returns the next completion.
func (h *host) wait() device.WC {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wc [1]device.WC
	if _, err := h.cq.Wait(ctx, wc[:]); err != nil {
		h.t.Fatal(err)
	}
	return wc[0]
}

func (h *host) ok(want device.WCOp) device.WC {
	h.t.Helper()
	wc := h.wait()
	if wc.Status != device.StatusSuccess || wc.Op != want {
		h.t.Fatalf("completion %v %v, want %v", wc.Status, wc.Op, want)
	}
	return wc
}

func connect(t *testing.T, a, b *device.QP, gid int, o device.ConnectOptions) {
	t.Helper()
	ra, rb := a.Address(gid, 0xFFFFF0), b.Address(gid, 0x000100)
	o.SGIDIndex = gid
	if err := a.Connect(ra.PSN, rb, o); err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(rb.PSN, ra, o); err != nil {
		t.Fatal(err)
	}
}

func fill(r *rand.Rand, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.Uint64())
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// sizes are the interesting message lengths at MTU 1024.
var sizes = []int{0, 1, 3, 1023, 1024, 1025, 4096, 65536, 1 << 20}

// exchange runs every operation at every size from a to b and compares bytes.
func exchange(t *testing.T, a, b *host, qa, qb *device.QP, sizes []int, seed uint64) {
	t.Helper()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	ma, mw := a.mr(1<<20), b.mr(1<<20)
	// What is read is filled once: a READ may be answered again, to a requester
	// that has what it asked for, as long as its key is good.
	mrd := b.mr(1 << 20)
	fill(rnd, mrd.Bytes())
	for _, n := range sizes {
		for _, op := range []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpRead} {
			mb := mw
			src, dst := ma.Bytes()[:n], mw.Bytes()[:n]
			fill(rnd, src)
			if op == device.OpRead {
				mb, dst = mrd, mrd.Bytes()[:n]
			} else {
				fill(rnd, dst)
			}
			imm := rnd.Uint32()
			if op != device.OpWrite && op != device.OpRead {
				if err := qb.PostRecv(&device.RecvWR{ID: 7, SGE: []device.SGE{mb.SGE(0, n/3), mb.SGE(n/3, n-n/3)}}); err != nil {
					t.Fatal(err)
				}
			}
			err := qa.PostSend(&device.SendWR{ID: 9, Op: op, Flags: device.Signaled, Imm: imm,
				SGE: []device.SGE{ma.SGE(0, n/2), ma.SGE(n/2, n-n/2)}, RemoteAddr: mb.Addr(), RKey: mb.RKey()})
			if err != nil {
				t.Fatal(err)
			}
			wc := a.ok(op.Completed())
			if wc.ID != 9 || wc.ByteLen != uint32(n) || wc.QPN != qa.Num() {
				t.Fatalf("%v %d bytes: completion %+v", op, n, wc)
			}
			switch op {
			case device.OpSend, device.OpSendImm, device.OpWriteImm:
				want := device.WCRecv
				if op == device.OpWriteImm {
					want = device.WCRecvImm
				}
				wc := b.ok(want)
				if wc.ID != 7 || wc.ByteLen != uint32(n) || wc.SrcQP != qa.Num() {
					t.Fatalf("%v %d bytes: receive completion %+v", op, n, wc)
				}
				if op != device.OpSend && (wc.Imm != imm || wc.Flags&device.WCWithImm == 0) {
					t.Fatalf("%v: immediate %x, want %x", op, wc.Imm, imm)
				}
			}
			if !bytes.Equal(src, dst) {
				t.Fatalf("%v %d bytes: data differs", op, n)
			}
		}
	}
}

func TestRC(t *testing.T) {
	for _, gid := range []int{0, 1, 2} {
		for _, mtu := range []int{256, 1024, 4096} {
			t.Run(fmt.Sprintf("gid%d/mtu%d", gid, mtu), func(t *testing.T) {
				a, b := twoHosts(t, 4200, device.Options{}, device.Options{})
				qa, qb := a.qp(device.RC, 64), b.qp(device.RC, 64)
				connect(t, qa, qb, gid, device.ConnectOptions{PathMTU: mtu})
				exchange(t, a, b, qa, qb, sizes, 1)
				exchange(t, b, a, qb, qa, sizes, 2)
			})
		}
	}
}

func rules(t *testing.T, l ...string) *impair.Rules {
	t.Helper()
	r, err := impair.New(l...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRCLossy(t *testing.T) {
	for _, rule := range []string{"tx drop=2% seed=1", "tx duplicate=5% seed=2", "tx reorder=3% seed=3", "rx drop=2% seed=4"} {
		t.Run(rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := twoHosts(t, 1500, device.Options{Link: link.PortOptions{Impair: rules(t, rule)}},
					device.Options{Link: link.PortOptions{Impair: rules(t, rule)}})
				qa, qb := a.qp(device.RC, 64), b.qp(device.RC, 64)
				connect(t, qa, qb, 1, device.ConnectOptions{Timeout: 10})
				exchange(t, a, b, qa, qb, sizes, 5)
				exchange(t, b, a, qb, qa, sizes, 6)
			})
		})
	}
}

// TestOneDeviceBothWays has two queue pairs of one device send to each other at
// the same time.
func TestOneDeviceBothWays(t *testing.T) {
	ep, _ := pipe.New(pipe.Config{Name: "a", MTU: 4200, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
		pipe.Config{Name: "b", MTU: 4200})
	h := newHost(t, ep, device.Options{})
	const n, rounds = 100_000, 50
	qa, qb := h.qp(device.RC, 64), h.qp(device.RC, 64)
	connect(t, qa, qb, 1, device.ConnectOptions{PathMTU: 4096})
	var wg sync.WaitGroup
	for i, q := range []*device.QP{qa, qb} {
		// WRITEs and READs use memory of their own: between a READ and a later
		// WRITE there is no order without a fence.
		var src, dst [2]*device.MR
		for k := range src {
			src[k], dst[k] = h.mr(n), h.mr(n)
			fill(rand.New(rand.NewPCG(uint64(i), 9)), src[k].Bytes())
		}
		wg.Go(func() {
			for r := range rounds {
				op := device.OpWrite
				if r%2 == 1 {
					op = device.OpRead
				}
				for {
					err := q.PostSend(&device.SendWR{Op: op, Flags: device.Signaled, SGE: []device.SGE{src[r%2].SGE(0, n)}, RemoteAddr: dst[r%2].Addr(), RKey: dst[r%2].RKey()})
					if err == nil {
						break
					}
					if !errors.Is(err, device.ENOMEM) {
						t.Error(err)
						return
					}
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	for range 2 * rounds {
		if wc := h.wait(); wc.Status != device.StatusSuccess {
			t.Fatal(wc.Status)
		}
	}
}

func TestUD(t *testing.T) {
	for _, gid := range []int{1, 2} {
		a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
		qa, qb := a.qp(device.UD, 16), b.qp(device.UD, 16)
		for _, q := range []*device.QP{qa, qb} {
			if err := q.Activate(0x11111111, 5); err != nil {
				t.Fatal(err)
			}
		}
		ah, err := a.pd.CreateAH(device.AHAttr{DGID: qb.Address(gid, 0).GID, SGIDIndex: gid})
		if err != nil {
			t.Fatal(err)
		}
		ma, mb := a.mr(1024), b.mr(1024+device.GRHLen)
		for _, n := range []int{0, 1, 1000, 1024} {
			fill(rand.New(rand.NewPCG(uint64(n), 3)), ma.Bytes())
			if err := qb.PostRecv(&device.RecvWR{SGE: []device.SGE{mb.SGE(0, 40+n)}}); err != nil {
				t.Fatal(err)
			}
			err = qa.PostSend(&device.SendWR{Op: device.OpSendImm, Imm: 0x01020304, Flags: device.Signaled, SGE: []device.SGE{ma.SGE(0, n)},
				AH: ah, RemoteQPN: qb.Num(), RemoteQKey: 0x11111111})
			if err != nil {
				t.Fatal(err)
			}
			a.ok(device.WCSend)
			wc := b.ok(device.WCRecv)
			if wc.ByteLen != uint32(40+n) || wc.SrcQP != qa.Num() || wc.Flags != device.WCGRH|device.WCWithImm || wc.Imm != 0x01020304 {
				t.Fatalf("completion %+v", wc)
			}
			if !bytes.Equal(ma.Bytes()[:n], mb.Bytes()[40:40+n]) {
				t.Fatal("data differs")
			}
		}
		if err := ah.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestThousandQueuePairs creates, connects, uses and destroys a thousand queue pairs
// and looks for what is left.
func TestThousandQueuePairs(t *testing.T) {
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	ma, mb := a.mr(4096), b.mr(4096)
	held := [2]device.Objects{a.ctx.Objects(), b.ctx.Objects()}
	round := func(n int) {
		var qa, qb []*device.QP
		for range n {
			x, y := a.qp(device.RC, 4), b.qp(device.RC, 4)
			connect(t, x, y, 1, device.ConnectOptions{})
			qa, qb = append(qa, x), append(qb, y)
		}
		for i := range qa {
			if err := qb[i].PostRecv(&device.RecvWR{SGE: []device.SGE{mb.SGE(0, 4096)}}); err != nil {
				t.Fatal(err)
			}
			if err := qa[i].PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Signaled, SGE: []device.SGE{ma.SGE(0, 4096)}}); err != nil {
				t.Fatal(err)
			}
			a.ok(device.WCSend)
			b.ok(device.WCRecv)
		}
		for i := range qa {
			if err := errors.Join(qa[i].Destroy(), qb[i].Destroy()); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(50)
	before, mem := runtime.NumGoroutine(), heap()
	for range 4 {
		round(250)
	}
	// A queue pair's goroutine has said that it is done a moment before it is gone.
	for late := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(late); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	if m := heap(); m > mem+2<<20 {
		t.Errorf("heap grew from %d to %d bytes", mem, m)
	}
	for i, h := range []*host{a, b} {
		if o := h.ctx.Objects(); o != held[i] {
			t.Errorf("objects left: %+v, there were %+v", o, held[i])
		}
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestContextCloseInFlight closes a context in the middle of traffic; the other
// side sees a dead peer, nothing hangs.
func TestContextCloseInFlight(t *testing.T) {
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	qa, qb := a.qp(device.RC, 64), b.qp(device.RC, 64)
	connect(t, qa, qb, 1, device.ConnectOptions{Timeout: 8, RetryCnt: 2})
	ma, mb := a.mr(1<<20), b.mr(1<<20)
	for range 32 {
		if err := qa.PostSend(&device.SendWR{Op: device.OpRead, Flags: device.Signaled, SGE: []device.SGE{ma.SGE(0, 1<<20)}, RemoteAddr: mb.Addr(), RKey: mb.RKey()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.ctx.Close(); err != nil {
		t.Fatal(err)
	}
	bad := 0
	for range 32 {
		switch wc := a.wait(); wc.Status {
		case device.StatusSuccess:
		case device.StatusRetryExceeded, device.StatusFlush, device.StatusRemoteAccess:
			bad++
		default:
			t.Fatal(wc.Status)
		}
	}
	if bad == 0 {
		t.Error("all READs of a closed context succeeded")
	}
	if err := a.ctx.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ctx.AllocPD(); !errors.Is(err, device.EIO) {
		t.Errorf("alloc_pd on a closed context: %v", err)
	}
}
