package main

import (
	"context"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/corpus"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/transport"
)

// rights is what memory and queue pairs allow.
const rights = device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.FlushGlobal

// ownFile is a file of two softnics: do is what the first asks of the second.
type ownFile struct {
	name, shows string
	ethernet    bool
	lost        bool
	do          func(a, b *host)
}

var own = []ownFile{
	{name: "xrc-messages-softnic.pcapng", shows: "XRC: every message, READ, atomics, ATOMIC WRITE and FLUSH, of one packet and of three", do: func(a, b *host) {
		q, srqn := a.xrc(b, 40)
		a.messages(q, b, srqn)
		a.words(q, b, srqn)
		a.flush(q, b, srqn)
	}},
	{name: "xrc-send-inv-softnic.pcapng", shows: "XRC: SEND with invalidate of a key that nobody has, of one packet and of three", do: func(a, b *host) {
		for _, n := range sizes {
			q, srqn := a.xrc(b, 1)
			a.post(q, device.SendWR{Op: device.OpSendInv, SGE: []device.SGE{a.mr.SGE(0, n)}, Imm: 0xDEAD00, SRQN: srqn}, device.StatusSuccess)
		}
	}},
	{name: "xrc-nak-softnic.pcapng", lost: true, shows: "XRC: a lost WRITE, NAK sequence; a SEND without a receive, RNR NAK; a wrong R_Key, NAK remote access", do: func(a, b *host) {
		q, srqn := a.xrc(b, 0)
		rule, err := a.dev.Port().Impair().Add("tx psn=+1 round=1 drop")
		must(err)
		a.post(q, a.wr(device.OpWrite, b, 600, srqn), device.StatusSuccess)
		must(a.dev.Port().Impair().Remove(rule))
		a.post(q, a.wr(device.OpSend, b, 10, srqn), device.StatusRNRRetryExceeded)
		q, srqn = a.xrc(b, 0)
		wrong := a.wr(device.OpWrite, b, 600, srqn)
		wrong.RKey ^= 0x100
		a.post(q, wrong, device.StatusRemoteAccess)
	}},
	{name: "rc-masked-atomics-softnic.pcapng", ethernet: true, shows: "masked FETCH ADD and masked COMPARE SWAP, in softnic's own wire form", do: func(a, b *host) {
		q := a.rc(b)
		for _, op := range []device.WROp{device.OpMaskedFetchAdd, device.OpMaskedCompareSwap} {
			wr := a.wr(op, b, 8, 0)
			wr.CompareAdd, wr.Swap, wr.CompareAddMask, wr.SwapMask = 0x0123456789ABCDEF, 0x1112131415161718, 0x8000000080000000, 0xFF00FF00FF00FF00
			a.post(q, wr, device.StatusSuccess)
		}
	}},
	{name: "rc-flush-softnic.pcapng", ethernet: true, shows: "FLUSH of a range and of a region behind a WRITE, with the right ICRC", do: func(a, b *host) {
		q := a.rc(b)
		a.post(q, a.wr(device.OpWrite, b, 600, 0), device.StatusSuccess)
		a.flush(q, b, 0)
	}},
}

// sizes are those of a message of one packet and of one of three.
var sizes = []int{10, 600}

func (o ownFile) make(dir string) made {
	m := made{path: filepath.Join(dir, o.name)}
	m.Entry = corpus.Entry{File: o.name, Shows: o.shows, By: "softnic at both ends", How: "interop/corpus/make", At: "both", Lost: o.lost}
	f, err := os.Create(m.path)
	must(err)
	ea, eb := pipe.New(pipe.Config{Name: "a", Ethernet: o.ethernet, Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.2/24")}},
		pipe.Config{Name: "b", Ethernet: o.ethernet, Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/24")}})
	w, err := capture.NewWriter(f, ea.Info(), capture.Options{})
	must(err)
	second, err := w.Add("b", eb.Info())
	must(err)
	a, b := open(ea, w), open(eb, second)
	o.do(a, b)
	must(a.dev.Close())
	must(b.dev.Close())
	must(w.Close())
	must(f.Close())
	return m
}

// host is one of two devices.
type host struct {
	dev      *device.Device
	ctx      *device.Context
	pd       *device.PD
	scq, rcq *device.CQ
	mr       *device.MR
	gid      int
}

func open(e *pipe.End, sink link.Sink) *host {
	h := &host{}
	var err error
	h.dev, err = device.Open(e, device.Options{Link: link.PortOptions{Capture: sink}})
	must(err)
	h.ctx = h.dev.NewContext()
	h.pd, err = h.ctx.AllocPD()
	must(err)
	for _, cq := range []**device.CQ{&h.scq, &h.rcq} {
		*cq, err = h.ctx.CreateCQ(device.CQInit{Entries: 256})
		must(err)
	}
	h.mr, err = h.pd.RegMR(make([]byte, 1<<14), rights|device.LocalWrite)
	must(err)
	for i := range h.mr.Bytes() {
		h.mr.Bytes()[i] = byte(i*7 + i>>8)
	}
	for i := range device.GIDTableLen {
		if g, err := h.dev.QueryGID(1, i); err == nil && !g.IsZero() && g.Addr().Is4() {
			h.gid = i
		}
	}
	return h
}

func (a *host) connect(q *device.QP, b *host, to *device.QP) {
	o := device.ConnectOptions{PathMTU: 256, SGIDIndex: a.gid, Access: rights, RNRRetry: 1}
	ra, rb := q.Address(a.gid, 0xFFFFF0), to.Address(b.gid, 0x7FFFFE)
	must(q.Connect(ra.PSN, rb, o))
	o.SGIDIndex = b.gid
	must(to.Connect(rb.PSN, ra, o))
}

// rc connects queue pairs of RC.
func (a *host) rc(b *host) *device.QP {
	var l [2]*device.QP
	for i, h := range []*host{a, b} {
		var err error
		l[i], err = h.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: h.scq, RecvCQ: h.rcq, Cap: device.Cap{SendWR: 16, RecvWR: 16, SendSGE: 1, RecvSGE: 1}})
		must(err)
	}
	a.connect(l[0], b, l[1])
	return l[0]
}

// xrc connects an XRC initiator with a target, and returns it and the number of a shared receive queue with so many receives.
func (a *host) xrc(b *host, recvs int) (*device.QP, uint32) {
	dom, err := b.ctx.AllocXRCD()
	must(err)
	srq, err := b.pd.CreateSRQ(device.SRQInit{MaxWR: 64, MaxSGE: 1, XRCD: dom, CQ: b.rcq})
	must(err)
	for range recvs {
		must(srq.PostRecv(&device.RecvWR{SGE: []device.SGE{b.mr.SGE(8192, 1024)}}))
	}
	ini, err := a.pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: a.scq, Cap: device.Cap{SendWR: 16, SendSGE: 1}})
	must(err)
	tgt, err := dom.CreateXRCTarget(nil)
	must(err)
	a.connect(ini, b, tgt)
	return ini, srq.Num()
}

// wr is a request of n bytes of a's memory, for those of b's.
func (a *host) wr(op device.WROp, b *host, n int, srqn uint32) device.SendWR {
	return device.SendWR{Op: op, SGE: []device.SGE{a.mr.SGE(16, n)}, RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(), Imm: 0x89ABCDEF, SRQN: srqn}
}

func (a *host) messages(q *device.QP, b *host, srqn uint32) {
	for _, op := range []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpRead} {
		for _, n := range sizes {
			a.post(q, a.wr(op, b, n, srqn), device.StatusSuccess)
		}
	}
}

func (a *host) words(q *device.QP, b *host, srqn uint32) {
	for _, op := range []device.WROp{device.OpFetchAdd, device.OpCompareSwap, device.OpAtomicWrite} {
		wr := a.wr(op, b, 8, srqn)
		wr.CompareAdd, wr.Swap = 0x0123456789ABCDEF, 0xFEDCBA9876543210
		a.post(q, wr, device.StatusSuccess)
	}
}

func (a *host) flush(q *device.QP, b *host, srqn uint32) {
	for _, level := range []transport.FlushLevel{transport.FlushRange, transport.FlushMR} {
		wr := a.wr(device.OpFlush, b, 0, srqn)
		wr.SGE, wr.FlushType, wr.FlushLevel, wr.FlushLen = nil, transport.FlushGlobal, level, 600
		a.post(q, wr, device.StatusSuccess)
	}
}

// post posts a request and waits for its completion, which must be that.
func (a *host) post(q *device.QP, wr device.SendWR, want device.Status) {
	wr.Flags |= device.Signaled
	must(q.PostSend(&wr))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wc [1]device.WC
	_, err := a.scq.Wait(ctx, wc[:])
	must(err)
	if wc[0].Status != want {
		log.Fatalf("%v: %v, want %v", wr.Op, wc[0].Status, want)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
