package cases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// uc makes a UC connection: queue pair 0x11, as rc does.
func (l *lab) uc(change func(o *rcOptions)) *conn {
	l.t.Helper()
	o := defaults()
	o.remote, o.gid = peer4, gid4
	if change != nil {
		change(&o)
	}
	l.destQP, l.dst = peerQP, peer4
	c := &conn{lab: l, o: o}
	c.scq = must(l.ctx.CreateCQ(device.CQInit{Entries: o.SendCQ}))
	c.rcq = must(l.ctx.CreateCQ(device.CQInit{Entries: o.CQ}))
	l.dice.push(o.QPN)
	c.qp = must(l.pd.CreateQP(device.QPInit{
		Type: device.UC, SendCQ: c.scq, RecvCQ: c.rcq, SigAll: o.SigAll, Handler: o.Handler,
		Cap: device.Cap{SendWR: o.SendWR, RecvWR: o.RecvWR, SendSGE: o.SendSGE, RecvSGE: 4, Inline: o.Inline},
	}))
	for s := device.StateInit; s <= o.State; s++ {
		c.toUC(s)
	}
	return c
}

// toUC moves the queue pair one state on.
func (c *conn) toUC(s device.State) {
	c.t.Helper()
	o := &c.o
	a := device.QPAttr{
		State: s, Port: 1, Access: o.Access, PathMTU: o.MTU, DestQPN: peerQP, RQPSN: o.RQPSN, SQPSN: o.SQPSN,
		AH: device.AHAttr{DGID: device.GIDOf(o.remote), SGIDIndex: o.gid},
	}
	mask := device.AttrState
	switch s {
	case device.StateInit:
		mask |= device.AttrPKeyIndex | device.AttrPort | device.AttrAccess
	case device.StateRTR:
		mask |= device.AttrAV | device.AttrPathMTU | device.AttrDestQPN | device.AttrRQPSN
	case device.StateRTS:
		mask |= device.AttrSQPSN
	}
	if err := c.qp.Modify(&a, mask); err != nil {
		c.t.Fatalf("modify_qp to %v: %v", s, err)
	}
}

// asUC makes UC frames of RC ones.
func asUC(l ...*peer.Frame) []*peer.Frame {
	for _, f := range l {
		f.AsUC()
	}
	return l
}

// ucWrite is the packets of a WRITE of data.
func ucWrite(psn uint32, m int, va uint64, key uint32, data []byte) []*peer.Frame {
	l := sendOf(psn, m, data)
	for i, f := range l {
		f.Op += peer.OpWriteFirst
		if i == 0 {
			f.RETH = peer.RETH{VA: va, RKey: key, Len: uint32(len(data))}
		}
	}
	return asUC(l...)
}

func ucSend(psn uint32, m int, data []byte) []*peer.Frame { return asUC(sendOf(psn, m, data)...) }

// Messages as requester: the packets of RC with the opcodes of UC, without AckReq, and the
// completion without an answer.
func TestUCRequester(t *testing.T) {
	for _, m := range []int{256, 1024, 4096} {
		for _, n := range sizes(m) {
			for _, v := range []struct {
				op        device.WROp
				name      string
				imm, reth bool
				wc        string
			}{
				{device.OpSend, "SEND", false, false, "SEND"}, {device.OpSendImm, "SEND", true, false, "SEND"},
				{device.OpWrite, "WRITE", false, true, "RDMA_WRITE"}, {device.OpWriteImm, "WRITE", true, true, "RDMA_WRITE"},
			} {
				bubble(t, fmt.Sprintf("MTU %d, %v of %d", m, v.op, n), func(t *testing.T) {
					l := newLab(t, labConfig{})
					c := l.uc(func(o *rcOptions) { o.MTU, o.SQPSN = m, 0xFFFFFE })
					mr := l.mr(4*m, 0)
					copy(mr.Bytes(), pattern(7, 4*m))
					c.post(device.SendWR{Op: v.op, SGE: append([]device.SGE{{LKey: 5}}, sge(mr, n)...), Imm: 0x89ABCDEF, RemoteAddr: remoteVA, RKey: remoteKey})
					w := segments(v.name, v.imm, v.reth, 0xFFFFFE, m, n)
					for i := range w {
						w[i] = strings.Replace(w[i], " ar", "", 1)
					}
					got := l.emits(w...)
					for _, f := range got {
						want(t, "service", f.Op.Service(), peer.UC)
						if f.HeaderSet().Has(peer.HasRETH) {
							want(t, "key", f.RETH.RKey, remoteKey)
						}
					}
					wantBytes(t, "payload", payloads(got), mr.Bytes()[:n])
					c.sent(fmt.Sprintf("1 SUCCESS %s %d", v.wc, n))
					// Nothing waits, nothing is sent again.
					l.p.ExpectSilence(t, time.Hour)
					c.state(device.StateRTS)
				})
			}
		}
	}
	bubble(t, "solicited", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mr := l.mr(2000, 0)
		for _, op := range []device.WROp{device.OpSend, device.OpWrite, device.OpWriteImm} {
			c.post(device.SendWR{Op: op, SGE: sge(mr, 2000), Flags: device.Solicited, RemoteAddr: remoteVA, RKey: remoteKey})
		}
		l.emits("SEND_FIRST 000100 [1024]", "SEND_LAST 000101 se [976]", "WRITE_FIRST 000102 va=10000+2000 [1024]", "WRITE_LAST 000103 [976]",
			"WRITE_FIRST 000104 va=10000+2000 [1024]", "WRITE_LAST_IMM 000105 se imm=00000000 [976]")
	})
	bubble(t, "unsignaled, inline", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.SigAll = false })
		c.post(device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("abc")})
		c.post(device.SendWR{Op: device.OpSend, Flags: device.Inline | device.Signaled, InlineData: []byte("defg")})
		got := l.emits("SEND_ONLY 000100 [3]", "SEND_ONLY 000101 [4]")
		wantBytes(t, "payload", payloads(got), []byte("abcdefg"))
		c.sent("2 SUCCESS SEND 4")
	})
	// What UC has not is refused.
	bubble(t, "refused", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mr := l.mr(64, every)
		for _, op := range []device.WROp{device.OpRead, device.OpReadInv, device.OpCompareSwap, device.OpFetchAdd, device.OpMaskedCompareSwap,
			device.OpMaskedFetchAdd, device.OpAtomicWrite, device.OpFlush, device.OpSendInv} {
			c.refused(device.SendWR{Op: op, SGE: sge(mr, 8)})
		}
	})
	// More than a transmit list holds goes out in order.
	bubble(t, "long", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.MTU = 256 })
		mr := l.mr(1<<18, 0)
		copy(mr.Bytes(), pattern(9, 1<<18))
		c.send(mr, 1<<18)
		c.send(mr, 1)
		got := l.take()
		want(t, "packets", len(got), 1025)
		for i, f := range got {
			want(t, "PSN", f.PSN, uint32(0x100+i))
		}
		wantBytes(t, "payload", payloads(got[:1024]), mr.Bytes())
		c.sent("1 SUCCESS SEND 262144", "2 SUCCESS SEND 1")
	})
	// The buffer is the engine's until the last packet has left.
	bubble(t, "no completion before the last packet has left", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		entered, leave := make(chan struct{}), make(chan struct{})
		mem := &hookMemory{hook: func(n int) {
			if n == 3 { // reading the third packet
				close(entered)
				<-leave
			}
		}}
		far := must(l.pd.RegMemory(mem, 0x1000, 4096, 0))
		mr := l.mr(8, 0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: 0x1000, Length: 3000, LKey: far.LKey()}}})
		}()
		<-entered
		c.send(mr, 1)
		c.sent()
		close(leave)
		<-done
		c.sent("1 SUCCESS SEND 3000", "2 SUCCESS SEND 1")
		want(t, "packets", len(l.take()), 4)
	})
}

// Local errors: the request gets its status, those before it are done, the rest is flushed; the
// send side is in SQE, the receive side goes on, and modify_qp to RTS repairs it.
func TestUCSendErrors(t *testing.T) {
	for _, v := range []struct {
		name string
		bad  func(l *lab) device.SendWR
		sent []string // packets of the bad one that leave before it fails
	}{
		{"bad key", func(l *lab) device.SendWR {
			return device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: 1, Length: 8, LKey: 1}}}
		}, nil},
		{"range", func(l *lab) device.SendWR {
			return device.SendWR{Op: device.OpWrite, SGE: []device.SGE{l.mr(64, 0).SGE(60, 8)}}
		}, nil},
		{"another domain", func(l *lab) device.SendWR {
			return device.SendWR{Op: device.OpSend, SGE: sge(must(must(l.ctx.AllocPD()).RegMR(make([]byte, 64), 0)), 8)}
		}, nil},
		{"second entry, in the third packet", func(l *lab) device.SendWR {
			return device.SendWR{Op: device.OpSend, SGE: []device.SGE{l.mr(2048, 0).SGE(0, 2048), {Addr: 1, Length: 8, LKey: 1}}}
		}, []string{"SEND_FIRST 000101 [1024]", "SEND_MIDDLE 000102 [1024]"}},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.uc(nil)
			mr := l.mr(64, all)
			c.recv(1, mr, 64)
			c.recv(2, mr, 64)
			good := device.SendWR{ID: 1, Op: device.OpSend, SGE: sge(mr, 1)}
			bad, behind := v.bad(l), device.SendWR{ID: 3, Op: device.OpSend, SGE: sge(mr, 3)}
			bad.ID = 2
			if err := c.qp.PostSendList(&good, &bad, &behind); err != nil {
				t.Fatal(err)
			}
			l.emits(append([]string{"SEND_ONLY 000100 [1]"}, v.sent...)...)
			c.sent("1 SUCCESS SEND 1", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
			c.state(device.StateSQE)
			l.events()
			l.counts("req_cqe_error=1")
			// What is posted now is flushed; the receive side is alive.
			c.seq = 3
			c.send(mr, 4)
			c.sent("4 WR_FLUSH_ERR")
			c.gets(ucSend(0x200, mtu, []byte("alive"))...)
			c.received("1 SUCCESS RECV 5")
			l.emits()
			c.toUCFromSQE()
			c.state(device.StateRTS)
			c.send(mr, 5)
			next := uint32(0x101 + len(v.sent))
			l.emits(fmt.Sprintf("SEND_ONLY %06x [5]", next))
			c.sent("5 SUCCESS SEND 5")
			c.gets(ucSend(0x201, mtu, []byte("still"))...)
			c.received("2 SUCCESS RECV 5")
		})
	}
	// From SQE on to ERR: the receive side is flushed too.
	bubble(t, "SQE to ERR", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		c.recv(1, nil, 0)
		c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Length: 8}}})
		c.sent("1 LOC_PROT_ERR")
		c.received()
		c.toUC(device.StateErr)
		c.received("1 WR_FLUSH_ERR")
		c.gets(ucSend(0x200, mtu, nil)...)
		c.recv(2, nil, 0)
		c.received("2 WR_FLUSH_ERR")
	})
	// Memory that cannot be read when its turn to be sent comes.
	bubble(t, "far memory gone", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		m := &farMemory{b: make([]byte, 64), va: 0x1000, broken: true}
		far := must(l.pd.RegMemory(m, 0x1000, 64, 0))
		mr := l.mr(64, 0)
		a := device.SendWR{ID: 1, Op: device.OpSend, SGE: sge(mr, 1)}
		b := device.SendWR{ID: 2, Op: device.OpSend, SGE: []device.SGE{{Addr: 0x1000, Length: 8, LKey: far.LKey()}}}
		e := b
		e.ID = 3
		d := device.SendWR{ID: 4, Op: device.OpSend, SGE: sge(mr, 3)}
		if err := c.qp.PostSendList(&a, &b, &e, &d); err != nil {
			t.Fatal(err)
		}
		l.emits("SEND_ONLY 000100 [1]") // and nothing behind the one that fails
		c.sent("1 SUCCESS SEND 1", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR", "4 WR_FLUSH_ERR")
		c.state(device.StateSQE)
		c.toUCFromSQE()
		c.seq = 4
		c.send(mr, 1)
		l.emits("SEND_ONLY 000101 [1]") // what was not sent has no PSN
		c.sent("5 SUCCESS SEND 1")
	})
	bubble(t, "RESET while it is sending", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mr := l.mr(64, 0)
		c.send(mr, 1)
		for _, s := range []device.State{device.StateReset, device.StateInit, device.StateRTR, device.StateRTS} {
			c.toUC(s)
		}
		l.take()
		c.sent() // RESET takes completions back
		c.send(mr, 2)
		l.emits("SEND_ONLY 000100 [2]")
		c.sent("2 SUCCESS SEND 2")
	})
}

func (c *conn) toUCFromSQE() {
	c.t.Helper()
	if err := c.qp.Modify(&device.QPAttr{State: device.StateRTS}, device.AttrState); err != nil {
		c.t.Fatal(err)
	}
}

// As responder (roce.md B.10): what is cut, lost or wrong costs its own message and no other, and
// nothing is ever answered. In rxe a cut WRITE leaves the queue pair deaf (rxe-lab.md 3).
func TestUCResponder(t *testing.T) {
	const m = 1024
	data := func(seed byte, n int) []byte { return pattern(seed, n) }
	type step struct {
		f    []*peer.Frame
		wc   string // receive that completes; "" none
		drop string // drops so far
	}
	type env struct {
		mr *device.MR // WRITEs
	}
	w := func(e *env, psn uint32, at uint64, b []byte) []*peer.Frame {
		return ucWrite(psn, m, e.mr.Addr()+at, e.mr.RKey(), b)
	}
	good := func(e *env, psn uint32) []step { // a WRITE and a SEND that must arrive
		return []step{{f: w(e, psn, 8000, []byte("good"))}, {f: ucSend(psn+1, m, []byte("fine")), wc: "RECV 4"}}
	}
	for _, v := range []struct {
		name  string
		steps func(e *env) []step
		sends int // receives that complete
	}{
		{name: "WRITE, LAST lost", steps: func(e *env) []step {
			return append([]step{{f: w(e, 0x200, 0, data(1, 2000))[:1]}}, good(e, 0x202)...)
		}},
		{name: "WRITE, LAST lost, the next with its PSN", steps: func(e *env) []step {
			return append([]step{{f: w(e, 0x200, 0, data(1, 2000))[:1]}}, good(e, 0x201)...)
		}},
		{name: "WRITE, FIRST lost", steps: func(e *env) []step {
			return append([]step{{f: w(e, 0x200, 0, data(1, 3000))[1:], drop: "out-of-sequence=2"}}, good(e, 0x203)...)
		}},
		{name: "WRITE, MIDDLE lost", steps: func(e *env) []step {
			f := w(e, 0x200, 0, data(1, 3000))
			return append([]step{{f: []*peer.Frame{f[0], f[2]}, drop: "out-of-sequence=1"}}, good(e, 0x203)...)
		}},
		{name: "WRITE, ONLY lost", steps: func(e *env) []step { return good(e, 0x205) }},
		{name: "SEND, LAST lost", steps: func(e *env) []step {
			return append([]step{{f: ucSend(0x200, m, data(1, 2000))[:1]}}, good(e, 0x202)...)
		}},
		{name: "SEND, FIRST lost", steps: func(e *env) []step {
			return append([]step{{f: ucSend(0x200, m, data(1, 2000))[1:], drop: "out-of-sequence=1"}}, good(e, 0x202)...)
		}},
		{name: "SEND, MIDDLE lost", steps: func(e *env) []step {
			f := ucSend(0x200, m, data(1, 4000))
			return append([]step{{f: []*peer.Frame{f[0], f[2], f[3]}, drop: "out-of-sequence=2"}}, good(e, 0x204)...)
		}},
		{name: "SEND cut by SEND First", steps: func(e *env) []step {
			return append([]step{{f: ucSend(0x200, m, data(1, 2000))[:1]}, {f: ucSend(0x202, m, data(2, 1500)), wc: "RECV 1500"}}, good(e, 0x204)...)
		}},
		{name: "SEND cut by WRITE", steps: func(e *env) []step {
			return append([]step{{f: ucSend(0x200, m, data(1, 2000))[:1]}, {f: w(e, 0x202, 0, data(2, 1500))}}, good(e, 0x204)...)
		}},
		{name: "WRITE cut by SEND", steps: func(e *env) []step {
			return append([]step{{f: w(e, 0x200, 0, data(2, 1500))[:1]}, {f: ucSend(0x202, m, data(1, 2000)), wc: "RECV 2000"}}, good(e, 0x204)...)
		}},
		{name: "SEND goes on as WRITE", steps: func(e *env) []step {
			return append([]step{{f: ucSend(0x200, m, data(1, 2000))[:1]}, {f: w(e, 0x200, 0, data(2, 2000))[1:], drop: "out-of-sequence=1"}}, good(e, 0x202)...)
		}},
		{name: "WRITE goes on as SEND", steps: func(e *env) []step {
			return append([]step{{f: w(e, 0x200, 0, data(2, 2000))[:1]}, {f: ucSend(0x200, m, data(1, 2000))[1:], drop: "out-of-sequence=1"}}, good(e, 0x202)...)
		}},
		{name: "LAST twice", steps: func(e *env) []step {
			f := ucSend(0x200, m, data(1, 2000))
			return append([]step{{f: f, wc: "RECV 2000"}, {f: f[1:], drop: "out-of-sequence=1"}}, good(e, 0x202)...)
		}},
		{name: "MIDDLE twice", steps: func(e *env) []step {
			f := ucSend(0x200, m, data(1, 3000))
			return append([]step{{f: []*peer.Frame{f[0], f[1], f[1], f[2]}, drop: "out-of-sequence=2"}}, good(e, 0x203)...)
		}},
		{name: "FIRST twice", steps: func(e *env) []step { // it begins anew
			f := ucSend(0x200, m, data(1, 2000))
			return append([]step{{f: []*peer.Frame{f[0], f[0], f[1]}, wc: "RECV 2000"}}, good(e, 0x202)...)
		}},
		{name: "WRITE FIRST twice", steps: func(e *env) []step {
			f := w(e, 0x200, 0, data(1, 2000))
			return append([]step{{f: []*peer.Frame{f[0], f[0], f[1]}}}, good(e, 0x202)...)
		}},
		{name: "PSNs far away, and round the wrap", steps: func(e *env) []step {
			return append([]step{{f: ucSend(0x7FFFFF, m, data(1, 2000)), wc: "RECV 2000"}, {f: ucSend(0xFFFFFE, m, data(2, 4000)), wc: "RECV 4000"}}, good(e, 2)...)
		}},
		{name: "FIRST of a wrong length", steps: func(e *env) []step {
			return append([]step{{f: asUC(peer.SendFirst(nicQP, 0x200, make([]byte, m-4)), peer.SendLast(nicQP, 0x201, []byte{1})), drop: "out-of-sequence=1 bad-message=1"}}, good(e, 0x202)...)
		}},
		{name: "MIDDLE of a wrong length", steps: func(e *env) []step {
			return append([]step{{f: asUC(peer.SendFirst(nicQP, 0x200, make([]byte, m)), peer.SendMiddle(nicQP, 0x201, make([]byte, m+4)), peer.SendLast(nicQP, 0x202, []byte{1})), drop: "out-of-sequence=1 bad-message=1"}}, good(e, 0x203)...)
		}},
		{name: "LAST empty", steps: func(e *env) []step {
			return append([]step{{f: asUC(peer.SendFirst(nicQP, 0x200, make([]byte, m)), peer.SendLast(nicQP, 0x201, nil)), drop: "bad-message=1"}}, good(e, 0x202)...)
		}},
		{name: "wrong pad", steps: func(e *env) []step {
			f := peer.SendOnly(nicQP, 0x200, []byte{1, 2, 3, 4})
			f.PadCount, f.PadBytes = new(uint8(3)), make([]byte, 3)
			return append([]step{{f: asUC(f), drop: "bad-message=1"}}, good(e, 0x201)...)
		}},
		{name: "longer than the receive, which stays", steps: func(e *env) []step {
			return append([]step{{f: ucSend(0x200, m, make([]byte, 4097)), drop: "too-long=1"}}, good(e, 0x205)...)
		}},
		{name: "WRITE, bad key", steps: func(e *env) []step {
			return append([]step{{f: ucWrite(0x200, m, e.mr.Addr(), e.mr.RKey()^0x100, data(1, 2000)), drop: "out-of-sequence=1 bad-message=1"}}, good(e, 0x202)...)
		}},
		{name: "WRITE, range", steps: func(e *env) []step {
			return append([]step{{f: w(e, 0x200, 8191, []byte{1, 2}), drop: "bad-message=1"}}, good(e, 0x201)...)
		}},
		{name: "WRITE of 2^31+1", steps: func(e *env) []step {
			f := w(e, 0x200, 0, data(1, 2000))
			f[0].RETH.Len = 1<<31 + 1
			return append([]step{{f: f, drop: "out-of-sequence=1 bad-message=1"}}, good(e, 0x202)...)
		}},
		{name: "WRITE longer than its RETH", steps: func(e *env) []step {
			f := w(e, 0x200, 0, data(1, 2000))
			f[0].RETH.Len = 1999
			return append([]step{{f: f, drop: "bad-message=1"}}, good(e, 0x202)...)
		}},
		{name: "WRITE shorter than its RETH", steps: func(e *env) []step {
			f := w(e, 0x200, 0, data(1, 2000))
			f[0].RETH.Len = 2001
			return append([]step{{f: f, drop: "bad-message=1"}}, good(e, 0x202)...)
		}},
		{name: "WRITE with immediate, bad key: the receive stays", steps: func(e *env) []step {
			f := peer.WriteOnlyImm(nicQP, 0x200, e.mr.Addr(), 1, 5, []byte{1})
			return append([]step{{f: asUC(f), drop: "bad-message=1"}}, good(e, 0x201)...)
		}},
		{name: "immediates", steps: func(e *env) []step {
			return append([]step{
				{f: asUC(peer.SendOnlyImm(nicQP, 0x200, 0x01020304, []byte("abc"))), wc: "RECV 3 imm=01020304"},
				{f: asUC(peer.WriteOnlyImm(nicQP, 0x201, e.mr.Addr(), e.mr.RKey(), 0x89ABCDEF, []byte("abc"))), wc: "RECV_RDMA_WITH_IMM 3 imm=89abcdef"},
				{f: asUC(peer.WriteOnlyImm(nicQP, 0x202, 0, 0, 7, nil)), wc: "RECV_RDMA_WITH_IMM 0 imm=00000007"},
				{f: asUC(peer.SendFirst(nicQP, 0x203, make([]byte, m)), peer.SendLastImm(nicQP, 0x204, 9, []byte{1})), wc: "RECV 1025 imm=00000009"},
				{f: asUC(peer.WriteFirst(nicQP, 0x205, e.mr.Addr(), e.mr.RKey(), 1025, make([]byte, m)), peer.WriteLastImm(nicQP, 0x206, 3, []byte{1})), wc: "RECV_RDMA_WITH_IMM 1025 imm=00000003"},
			}, good(e, 0x207)...)
		}},
		{name: "AckReq is not looked at", steps: func(e *env) []step {
			f := ucSend(0x200, m, []byte("abc"))
			f[0].AckReq = true
			return append([]step{{f: f, wc: "RECV 3"}}, good(e, 0x201)...)
		}},
		{name: "opcodes that UC has not", steps: func(e *env) []step {
			var f []*peer.Frame
			for _, op := range []peer.Op{0x2C, 0x2D, 0x31, 0x32, 0x33, 0x34, 0x36, 0x37, 0x3C, 0x3D, 0x3F} {
				x := peer.NewFrame(op, nicQP, 0x200)
				x.Payload = make([]byte, 40)
				f = append(f, x)
			}
			return append([]step{{f: f, drop: "reserved-opcode=11"}}, good(e, 0x200)...)
		}},
		{name: "RC opcodes", steps: func(e *env) []step {
			return append([]step{{f: []*peer.Frame{peer.SendOnly(nicQP, 0x200, nil), peer.ReadRequest(nicQP, 0x200, e.mr.Addr(), e.mr.RKey(), 8)}, drop: "wrong-service=2"}}, good(e, 0x200)...)
		}},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.uc(nil)
			e := &env{mr: l.mr(8192, all)}
			buf := l.mr(4096, device.LocalWrite)
			n := 0
			for range 8 {
				n++
				c.recv(uint64(n), buf, 4096)
			}
			done := 0
			drops := ""
			for i, s := range v.steps(e) {
				c.gets(s.f...)
				l.emits() // never an answer
				if s.drop != "" {
					drops = s.drop
				}
				want(t, fmt.Sprintf("step %d: drops", i), sortWords(l.drops()), sortWords(drops))
				if s.wc == "" {
					c.received()
					continue
				}
				done++
				c.received(fmt.Sprintf("%d SUCCESS %s", done, s.wc))
				if z := s.f[len(s.f)-1]; z.Op.Operation() >= peer.OpSendLast && z.Op.Operation() <= peer.OpSendOnlyImm {
					k := 0 // of a message that began twice, what came last
					for j, f := range s.f {
						if o := f.Op.Operation(); o == peer.OpSendFirst || o == peer.OpSendOnly || o == peer.OpSendOnlyImm {
							k = j
						}
					}
					b := payloads(s.f[k:])
					wantBytes(t, "received", buf.Bytes()[:len(b)], b)
				}
			}
			wantBytes(t, "memory", e.mr.Bytes()[8000:8005], []byte("good\x00"))
			c.state(device.StateRTS)
			l.events()
		})
	}
	// A message that was cut does not write where it should not: its packets behind the gap are lost.
	bubble(t, "behind a gap nothing is stored", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mr := l.mr(4096, all)
		f := ucWrite(0x200, m, mr.Addr(), mr.RKey(), filled(9, 4096))
		c.gets(f[0], f[2], f[3], f[1])
		l.emits()
		wantBytes(t, "memory", mr.Bytes(), append(filled(9, 1024), make([]byte, 3072)...))
	})
	bubble(t, "no receive", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mr := l.mr(4096, all)
		c.gets(ucSend(0x200, m, data(1, 2000))...)
		c.gets(asUC(peer.WriteOnlyImm(nicQP, 0x202, mr.Addr(), mr.RKey(), 1, []byte{1}))...)
		l.emits()
		want(t, "drops", l.drops(), "no-receive=2 out-of-sequence=1")
		l.counts("out_of_buffer=2")
		// The receive comes in the middle of a message: that one is lost, the next is taken.
		f := ucSend(0x203, m, data(1, 3000))
		c.gets(f[0])
		l.settle()
		c.recv(1, mr, 4096)
		c.gets(f[1:]...)
		c.received()
		c.gets(ucSend(0x206, m, data(2, 2000))...)
		c.received("1 SUCCESS RECV 2000")
		wantBytes(t, "data", mr.Bytes()[:2000], data(2, 2000))
		wantBytes(t, "a WRITE that found no receive", mr.Bytes()[2000:], make([]byte, 2096))
	})
	// The rights of the queue pair.
	bubble(t, "WRITE not enabled", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.Access = device.RemoteRead })
		mr := l.mr(64, all)
		c.recv(1, mr, 64)
		c.gets(ucWrite(0x200, m, mr.Addr(), mr.RKey(), []byte{1})...)
		c.gets(asUC(peer.WriteOnlyImm(nicQP, 0x201, mr.Addr(), mr.RKey(), 1, []byte{1}))...)
		c.gets(ucWrite(0x202, m, 0, 0, nil)...)
		l.emits()
		want(t, "drops", l.drops(), "bad-message=3")
		wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
		c.gets(ucSend(0x203, m, []byte("x"))...)
		c.received("1 SUCCESS RECV 1")
	})
	bubble(t, "region gone in the middle of a WRITE", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mr, mr2 := l.mr(4096, all), l.mr(64, all)
		f := ucWrite(0x200, m, mr.Addr(), mr.RKey(), data(1, 3000))
		c.gets(f[0])
		l.settle()
		want(t, "dereg_mr", mr.Dereg(), nil)
		c.gets(f[1:]...)
		c.gets(ucWrite(0x203, m, mr2.Addr(), mr2.RKey(), []byte("ok"))...)
		l.emits()
		want(t, "drops", sortWords(l.drops()), "bad-message=1 out-of-sequence=1")
		wantBytes(t, "memory", mr2.Bytes()[:3], []byte("ok\x00"))
		wantBytes(t, "memory that is gone", mr.Bytes()[1024:], make([]byte, 3072))
	})
	// The receive's own buffer is wrong: that is a local error.
	bubble(t, "bad receive buffer", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		if err := c.qp.PostRecv(&device.RecvWR{ID: 1, SGE: []device.SGE{{Addr: 1, Length: 64, LKey: 3}}}); err != nil {
			t.Fatal(err)
		}
		c.recv(2, nil, 0)
		c.gets(ucSend(0x200, m, []byte("x"))...)
		l.emits()
		c.received("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
		c.state(device.StateErr)
		l.counts("resp_cqe_error=1")
	})
	// A receive that a cut message holds is flushed with the queue pair, first.
	bubble(t, "flush in the middle of a message", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mr := l.mr(4096, all)
		c.recv(1, mr, 4096)
		c.recv(2, mr, 4096)
		c.gets(ucSend(0x200, m, data(1, 2000))[0])
		l.settle()
		c.toUC(device.StateErr)
		c.received("1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR")
		for _, s := range []device.State{device.StateReset, device.StateInit, device.StateRTR} {
			c.toUC(s)
		}
		c.recv(3, mr, 4096)
		c.gets(ucSend(0x200, m, data(1, 2000))[1]) // the rest of the old message
		c.received()
		c.gets(ucSend(0x300, m, []byte("new"))...)
		c.received("3 SUCCESS RECV 3")
		l.events("COMM_EST")
	})
	bubble(t, "states", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.State = device.StateInit })
		c.recv(1, nil, 0)
		c.gets(ucSend(0x200, m, nil)...)
		c.received()
		c.toUC(device.StateRTR)
		c.gets(ucSend(0x201, m, nil)...)
		c.received("1 SUCCESS RECV 0")
		l.events("COMM_EST")
		c.gets(ucSend(0x202, m, nil)...)
		l.settle()
		l.events()
		wr := device.SendWR{Op: device.OpSend}
		errno(t, c.qp.PostSend(&wr), device.EINVAL)
		c.toUC(device.StateRTS)
		c.post(wr)
		l.emits("SEND_ONLY 000100")
	})
	bubble(t, "solicited", func(t *testing.T) {
		l := newLab(t, labConfig{})
		ch := must(l.ctx.CreateCompChannel())
		c := l.uc(nil)
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 16, Channel: ch}))
		l.dice.push(0x15)
		c.qp = must(l.pd.CreateQP(device.QPInit{Type: device.UC, SendCQ: c.scq, RecvCQ: cq, Cap: device.Cap{RecvWR: 8}}))
		for s := device.StateInit; s <= device.StateRTS; s++ {
			c.toUC(s)
		}
		for i := range uint64(3) {
			c.recv(i, nil, 0)
		}
		cq.Arm(true)
		at := func(psn uint32, se bool) *peer.Frame {
			f := ucSend(psn, m, nil)[0]
			f.DestQP, f.SE = 0x15, se
			return f
		}
		c.gets(at(0x200, false))
		l.settle()
		_, ok := ch.TryGet()
		want(t, "woken by a plain one", ok, false)
		c.gets(at(0x201, true))
		l.settle()
		_, ok = ch.TryGet()
		want(t, "woken by a solicited one", ok, true)
	})
	bubble(t, "receive CQ full", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.CQ = 1 })
		for i := range uint64(4) {
			c.recv(i, nil, 0)
		}
		n := c.rcq.Cap()
		for i := range n + 1 {
			c.gets(ucSend(0x200+uint32(i), m, nil)...)
		}
		l.settle()
		c.state(device.StateErr)
		l.events("CQ_ERR", "QP_FATAL")
	})
}
