package device_test

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
)

// xrcPair is an initiator on one host connected with a target on another, and a shared receive
// queue there.
type xrcPair struct {
	a, b *host
	ini  *device.QP
	tgt  *device.QP
	dom  *device.XRCD
	srq  *device.SRQ
}

func newXRC(t *testing.T) *xrcPair {
	t.Helper()
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	p := &xrcPair{a: a, b: b}
	var err error
	if p.dom, err = b.ctx.AllocXRCD(); err != nil {
		t.Fatal(err)
	}
	p.srq = p.newSRQ(t, b)
	if p.tgt, err = p.dom.CreateXRCTarget(nil); err != nil {
		t.Fatal(err)
	}
	p.ini, err = a.pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: a.cq, Cap: device.Cap{SendWR: 16, SendSGE: 2}})
	if err != nil {
		t.Fatal(err)
	}
	connect(t, p.ini, p.tgt, 1, device.ConnectOptions{Access: device.RemoteRead | device.RemoteWrite | device.RemoteAtomic})
	return p
}

// newSRQ makes a shared receive queue of the domain for a host of the same device.
func (p *xrcPair) newSRQ(t *testing.T, h *host) *device.SRQ {
	t.Helper()
	x, err := h.ctx.OpenXRCD(p.dom)
	if err != nil {
		t.Fatal(err)
	}
	s, err := h.pd.CreateSRQ(device.SRQInit{MaxWR: 16, XRCD: x, CQ: h.cq})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// second returns another program on the host's device.
func (h *host) second(t *testing.T) *host {
	t.Helper()
	n := &host{t: t, dev: h.dev, ctx: h.dev.NewContext()}
	var err error
	if n.pd, err = n.ctx.AllocPD(); err != nil {
		t.Fatal(err)
	}
	if n.cq, err = n.ctx.CreateCQ(device.CQInit{Entries: 64}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestXRC sends over one connection to the shared receive queues of two programs, each with its own
// protection domain, and reads, writes and adds in the memory of both.
func TestXRC(t *testing.T) {
	p := newXRC(t)
	c := p.b.second(t)
	other := p.newSRQ(t, c)
	if p.srq.Num() == 0 || other.Num() == 0 || p.srq.Num() == other.Num() {
		t.Fatalf("numbers %d and %d", p.srq.Num(), other.Num())
	}
	src := p.a.mr(4000)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 7)
	}
	for _, to := range []struct {
		h *host
		s *device.SRQ
	}{{p.b, p.srq}, {c, other}, {p.b, p.srq}} {
		dst, err := to.h.pd.RegMR(make([]byte, 4096), device.LocalWrite|device.RemoteRead|device.RemoteWrite|device.RemoteAtomic)
		if err != nil {
			t.Fatal(err)
		}
		if err := to.s.PostRecv(&device.RecvWR{ID: 5, SGE: []device.SGE{dst.SGE(0, 4096)}}); err != nil {
			t.Fatal(err)
		}
		post := func(wr device.SendWR, want device.WCOp) {
			t.Helper()
			wr.SRQN, wr.Flags = to.s.Num(), device.Signaled
			if err := p.ini.PostSend(&wr); err != nil {
				t.Fatal(err)
			}
			p.a.ok(want)
		}
		post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{src.SGE(0, 4000)}}, device.WCSend)
		if wc := to.h.ok(device.WCRecv); wc.ID != 5 || wc.ByteLen != 4000 || wc.QPN != p.tgt.Num() {
			t.Errorf("receive %+v", wc)
		}
		if !bytes.Equal(dst.Bytes()[:4000], src.Bytes()) {
			t.Error("the message is wrong")
		}
		post(device.SendWR{Op: device.OpWrite, SGE: []device.SGE{src.SGE(100, 3000)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()}, device.WCWrite)
		if !bytes.Equal(dst.Bytes()[:3000], src.Bytes()[100:3100]) {
			t.Error("the WRITE is wrong")
		}
		back := p.a.mr(3000)
		post(device.SendWR{Op: device.OpRead, SGE: []device.SGE{back.SGE(0, 3000)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()}, device.WCRead)
		if !bytes.Equal(back.Bytes(), dst.Bytes()[:3000]) {
			t.Error("the READ is wrong")
		}
		off := -dst.Addr() & 7
		post(device.SendWR{Op: device.OpFetchAdd, CompareAdd: 1, SGE: []device.SGE{back.SGE(0, 8)}, RemoteAddr: dst.Addr() + off, RKey: dst.RKey()}, device.WCFetchAdd)
		if back.Bytes()[0]+1 != dst.Bytes()[off] {
			t.Error("the addition is wrong")
		}
	}
}

// TestXRCWrongKey uses the key of one program through the shared receive queue of another.
func TestXRCWrongKey(t *testing.T) {
	p := newXRC(t)
	c := p.b.second(t)
	p.newSRQ(t, c)
	dst, err := c.pd.RegMR(make([]byte, 64), device.LocalWrite|device.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	src := p.a.mr(8)
	err = p.ini.PostSend(&device.SendWR{Op: device.OpWrite, Flags: device.Signaled, SGE: []device.SGE{src.SGE(0, 8)}, SRQN: p.srq.Num(), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	if err != nil {
		t.Fatal(err)
	}
	if wc := p.a.wait(); wc.Status != device.StatusRemoteAccess {
		t.Errorf("status %v", wc.Status)
	}
}

// TestXRCNoQueue names a shared receive queue that is of no domain, or was destroyed.
func TestXRCNoQueue(t *testing.T) {
	p := newXRC(t)
	num := p.srq.Num()
	if err := p.dom.Close(); device.ErrnoOf(err) != device.EBUSY {
		t.Errorf("closing a domain in use: %v", err)
	}
	if err := p.srq.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := p.ini.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Signaled, SRQN: num}); err != nil {
		t.Fatal(err)
	}
	if wc := p.a.wait(); wc.Status != device.StatusRemoteInvalidReq {
		t.Errorf("status %v", wc.Status)
	}
	if s := p.tgt.State(); s != device.StateErr {
		t.Errorf("target in %v", s)
	}
}

// TestXRCRefusals tries what an XRC queue pair does not do.
func TestXRCRefusals(t *testing.T) {
	p := newXRC(t)
	if err := p.tgt.PostSend(&device.SendWR{Op: device.OpSend}); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("send on a target: %v", err)
	}
	for _, q := range []*device.QP{p.ini, p.tgt} {
		if err := q.PostRecv(&device.RecvWR{}); device.ErrnoOf(err) != device.EINVAL {
			t.Errorf("receive on %v: %v", q.Type(), err)
		}
	}
	if _, err := p.a.pd.CreateQP(device.QPInit{Type: device.XRCTgt}); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("a target of a protection domain: %v", err)
	}
	if _, err := p.a.ctx.OpenXRCD(p.dom); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("a domain of another device: %v", err)
	}
	if err := p.ini.PostSend(&device.SendWR{Op: device.OpMaskedFetchAdd, SGE: []device.SGE{{Length: 8}}}); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("a masked atomic: %v", err)
	}
}

// TestXRCDuplicateFirst: the first packet that a target gets is a duplicate, under every profile.
func TestXRCDuplicateFirst(t *testing.T) {
	for _, profile := range device.ProfileNames() {
		a, b := twoHosts(t, 1500, device.Options{}, device.Options{Profile: profile})
		p := &xrcPair{a: a, b: b}
		var err error
		if p.dom, err = b.ctx.AllocXRCD(); err != nil {
			t.Fatal(err)
		}
		p.srq = p.newSRQ(t, b)
		if p.tgt, err = p.dom.CreateXRCTarget(nil); err != nil {
			t.Fatal(err)
		}
		if p.ini, err = a.pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: a.cq, Cap: device.Cap{SendWR: 1, SendSGE: 1}}); err != nil {
			t.Fatal(err)
		}
		ra, rb := p.ini.Address(1, 100), p.tgt.Address(1, 200)
		ra.PSN = 101 // the target is one ahead
		if err := p.ini.Connect(100, rb, device.ConnectOptions{SGIDIndex: 1}); err != nil {
			t.Fatal(err)
		}
		if err := p.tgt.Connect(200, ra, device.ConnectOptions{SGIDIndex: 1}); err != nil {
			t.Fatal(err)
		}
		if err := p.ini.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Signaled, SRQN: p.srq.Num()}); err != nil {
			t.Fatal(err)
		}
		a.ok(device.WCSend) // it is acknowledged as one that was executed
	}
}

// TestXRCHeadFits: the XRCETH counts where path MTU and link are compared.
func TestXRCHeadFits(t *testing.T) {
	a, b := twoHosts(t, 1024+84, device.Options{}, device.Options{})
	ini, err := a.pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: a.cq, Cap: device.Cap{SendWR: 1, SendSGE: 1}})
	if err != nil {
		t.Fatal(err)
	}
	rc := a.qp(device.RC, 1)
	r := device.Remote{GID: device.GIDOf(netip.MustParseAddr("2001:db8::2")), QPN: 99}
	_ = b
	if err := rc.Connect(0, r, device.ConnectOptions{SGIDIndex: 2, PathMTU: 1024}); err != nil {
		t.Errorf("RC: %v", err)
	}
	if err := ini.Connect(0, r, device.ConnectOptions{SGIDIndex: 2, PathMTU: 1024}); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("XRC: %v", err)
	}
}

// TestXRCHeldMessage: a queue is not destroyed in the middle of a message; with its context it goes, and nothing
// is heard of the message any more.
func TestXRCHeldMessage(t *testing.T) {
	p := newXRC(t)
	c := p.b.second(t)
	srq := p.newSRQ(t, c)
	dst, err := c.pd.RegMR(make([]byte, 4096), device.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := srq.PostRecv(&device.RecvWR{SGE: []device.SGE{dst.SGE(0, 4096)}}); err != nil {
		t.Fatal(err)
	}
	if err := srq.SetLimit(1); err != nil {
		t.Fatal(err)
	}
	if _, err := p.a.dev.Port().Impair().Add("tx opcode=XRC_SEND_LAST drop"); err != nil {
		t.Fatal(err)
	}
	src := p.a.mr(4000)
	if err := p.ini.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Signaled, SRQN: srq.Num(), SGE: []device.SGE{src.SGE(0, 4000)}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if e, err := c.ctx.AsyncEvent(ctx); err != nil || e.Type != device.EventSRQLimit || e.SRQ != srq { // it has taken the receive
		t.Fatalf("event %v of %v, %v", e.Type, e.SRQ, err)
	}
	if err := srq.Destroy(); device.ErrnoOf(err) != device.EBUSY {
		t.Fatalf("destroyed in the middle of a message: %v", err)
	}
	if err := c.ctx.Close(); err != nil {
		t.Fatal(err)
	}
	if o := c.ctx.Objects(); o != (device.Objects{}) {
		t.Errorf("left: %+v", o)
	}
	var wc [1]device.WC
	if n := c.cq.Poll(wc[:]); n != 0 {
		t.Errorf("a completion of a closed context: %+v", wc[0])
	}
}
