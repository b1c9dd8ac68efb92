package device_test

import (
	"context"
	"fmt"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// sges are entries that name memory of a domain, or nonsense.
func (k *walker) sges(pd *wPD, c *wCtx, most int) (l []device.SGE) {
	n := k.r.IntN(most + 1)
	if k.one(30) {
		n = most + 1
	}
	for range n {
		e := device.SGE{Length: uint32(of(k, 0, 1, 8, 100, 1024, 4000))}
		if m, ok := k.mrs.pick(k, c, func(m *wMR) bool { return m.dom.Load() == pd }); ok {
			e.LKey, e.Addr = m.LKey(), m.Addr()+uint64(k.r.IntN(walkLen-4000))
		}
		if f, ok := k.fasts.pick(k, c, func(m *wFast) bool { return m.pd == pd }); ok && k.one(8) {
			e.LKey, e.Addr = f.LKey(), f.mem.va
		}
		if k.one(60) {
			e.LKey, e.Addr = k.r.Uint32(), k.r.Uint64()
		}
		l = append(l, e)
	}
	return l
}

var walkOps = map[device.QPType][]device.WROp{
	device.UC:        {device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpBindMW, device.OpLocalInv, device.OpRegMR},
	device.UD:        {device.OpSend, device.OpSendImm},
	device.GSI:       {device.OpSend, device.OpSendImm},
	device.SMI:       {device.OpSend, device.OpSendImm},
	device.RawPacket: {device.OpSend},
}

var allOps = []device.WROp{
	device.OpSend, device.OpSend, device.OpSendImm, device.OpWrite, device.OpWrite, device.OpWriteImm, device.OpRead, device.OpRead, device.OpCompareSwap,
	device.OpFetchAdd, device.OpMaskedCompareSwap, device.OpMaskedFetchAdd, device.OpAtomicWrite, device.OpFlush, device.OpSendInv, device.OpReadInv,
	device.OpLocalInv, device.OpBindMW, device.OpRegMR,
}

// request is a random one for a queue pair.
func (k *walker) request(q *wQP) *device.SendWR {
	ops := walkOps[q.typ]
	if ops == nil || k.one(40) {
		ops = allOps
	}
	wr := &device.SendWR{Op: ops[k.r.IntN(len(ops))], Flags: device.SendFlags(k.r.IntN(8)), Imm: k.r.Uint32(), CompareAdd: k.r.Uint64(), Swap: k.r.Uint64()}
	if k.one(50) {
		wr.Op = device.WROp(k.r.IntN(256))
	}
	if wr.SGE = k.sges(q.pd, q.c, max(q.cap.SendSGE, 1)); k.one(4) {
		wr.Flags |= device.Inline
		wr.InlineData = make([]byte, k.r.IntN(max(q.cap.Inline, 1))+k.r.IntN(2))
		wr.SGE = nil
	}
	if wr.Op.IsAtomic() || wr.Op == device.OpAtomicWrite {
		if len(wr.SGE) > 0 && !k.one(20) {
			wr.SGE = wr.SGE[:1]
			wr.SGE[0].Length = 8
		}
	}
	if a, ok := k.ahs.pick(k, q.c, func(a *wAH) bool { return a.pd == q.pd }); ok && !k.one(20) {
		wr.AH = a.AH
	}
	wr.RemoteQPN, wr.RemoteQKey = of[uint32](k, 1, device.MulticastQPN, k.r.Uint32()), walkKey
	if p, ok := k.qps.pick(k, nil, func(o *wQP) bool { return o.typ == q.typ }); ok && k.one(2) {
		wr.RemoteQPN = p.Num()
	}
	if q.typ == device.RawPacket && wr.Flags&device.Inline != 0 && len(wr.InlineData) >= 14 {
		copy(wr.InlineData, k.dev[1-q.c.side].Port().Info().MAC)
		wr.InlineData[12], wr.InlineData[13] = 0x88, 0xB5
	}
	p := q.peer.Load()
	if p == nil {
		p = q
	}
	pd := p.pd
	if s, ok := k.srqs.pick(k, p.c, func(s *wSRQ) bool { return s.xrcd != nil && p.xrcd != nil }); ok && s.xrcd != nil {
		wr.SRQN = s.Num()
		if q.typ == device.XRCIni {
			pd = s.pd
		}
	}
	if m, ok := k.mrs.pick(k, p.c, func(m *wMR) bool { return m.dom.Load() == pd }); ok {
		wr.RKey, wr.RemoteAddr, wr.FlushLen = m.RKey(), m.Addr()+8*uint64(k.r.IntN(walkLen/16)), uint32(k.r.IntN(100))
	}
	if m, ok := k.mws.pick(k, p.c, func(m *wMW) bool { return m.pd == pd }); ok && k.one(6) {
		wr.RKey = m.RKey()
	}
	if m, ok := k.fasts.pick(k, p.c, func(m *wFast) bool { return m.pd == pd }); ok && k.one(6) {
		wr.RKey, wr.RemoteAddr = m.RKey(), m.mem.va
	}
	if k.one(60) {
		wr.RKey = k.r.Uint32()
	}
	wr.FlushType = transport.FlushType(of(k, 1, 1, 1, 2, 4))
	k.local(q, wr)
	return wr
}

// local fills in what requests say that give and take keys.
func (k *walker) local(q *wQP, wr *device.SendWR) {
	switch wr.Op {
	case device.OpSendInv, device.OpLocalInv:
		c := q.c
		if p := q.peer.Load(); p != nil && wr.Op == device.OpSendInv {
			c = p.c
		}
		if f, ok := k.fasts.pick(k, c, nil); ok {
			wr.Imm = f.RKey()
		}
		if m, ok := k.mws.pick(k, c, nil); ok && k.one(2) {
			wr.Imm = m.RKey()
		}
	case device.OpBindMW:
		if m, ok := k.mws.pick(k, q.c, func(m *wMW) bool { return m.pd == q.pd }); ok {
			wr.Bind.Window, wr.Bind.NewKey = m.RKey(), device.IncRKey(m.RKey())
		}
		if m, ok := k.mrs.pick(k, q.c, func(m *wMR) bool { return m.dom.Load() == q.pd && m.bindable.Load() }); ok {
			wr.Bind.MRKey, wr.Bind.Addr, wr.Bind.Length = m.LKey(), m.Addr()+100, of[uint64](k, 0, 8000, 8000, walkLen)
			wr.Bind.Access = of(k, device.RemoteRead, device.RemoteWrite|device.RemoteRead, 0)
		}
	case device.OpRegMR:
		if f, ok := k.fasts.pick(k, q.c, func(m *wFast) bool { return m.pd == q.pd }); ok {
			wr.Reg = transport.RegWR{LKey: f.LKey(), NewKey: device.IncRKey(f.LKey()), Memory: f.mem, Addr: f.mem.va, Length: of[uint64](k, 100, walkLen, 0),
				Access: device.LocalWrite | device.RemoteRead | device.RemoteWrite}
		}
	}
}

// pickSender returns a queue pair that can mostly send.
func (k *walker) pickSender() (*wQP, bool) {
	return k.qps.pick(k, nil, func(q *wQP) bool { s := q.State(); return s == device.StateRTS || s >= device.StateSQD && k.one(4) })
}

func (k *walker) postSend() {
	q, ok := k.pickSender()
	if !ok {
		return
	}
	wr := k.request(q)
	q.post.Lock()
	defer q.post.Unlock()
	if q.send != nil {
		wr.ID = q.send.write(wr.Op, wr.Flags&device.Signaled != 0)
	}
	if err := q.PostSend(wr); !k.did(fmt.Sprintf("post_send %v %v", q.typ, wr.Op), q.c, err) && q.send != nil {
		q.send.unposted(k.walk, wr.ID)
	}
}

func (k *walker) postList() {
	q, ok := k.pickSender()
	if !ok || q.send == nil {
		return
	}
	var l []*device.SendWR
	q.post.Lock()
	defer q.post.Unlock()
	for range k.r.IntN(10) {
		wr := k.request(q)
		wr.ID = q.send.write(wr.Op, wr.Flags&device.Signaled != 0)
		l = append(l, wr)
	}
	if err := q.PostSendList(l...); !k.did("post_send list", q.c, err) {
		for _, wr := range l {
			q.send.maybe(wr.ID)
		}
	}
}

func (k *walker) postRecv() {
	q, ok := k.qps.pick(k, nil, func(q *wQP) bool { return q.recv != nil || k.one(10) })
	if !ok {
		return
	}
	wr := &device.RecvWR{SGE: k.sges(q.pd, q.c, max(q.cap.RecvSGE, 1))}
	q.post.Lock()
	defer q.post.Unlock()
	if q.recv != nil {
		wr.ID = q.recv.write(0, true)
	}
	if err := q.PostRecv(wr); !k.did(fmt.Sprintf("post_recv %v", q.typ), q.c, err) && q.recv != nil {
		q.recv.unposted(k.walk, wr.ID)
	}
}

func (k *walker) postSRQ() {
	s, ok := k.srqs.pick(k, nil, nil)
	if !ok {
		return
	}
	wr := &device.RecvWR{SGE: k.sges(s.pd, s.c, max(s.init.MaxSGE, 1))}
	wr.ID = s.ledger.write(0, true)
	if err := s.PostRecv(wr); !k.did("post_srq_recv", s.c, err) {
		s.ledger.unposted(k.walk, wr.ID)
	}
}

// poll takes all that there is.
func (k *walker) poll() {
	q, ok := k.cqs.pick(k, nil, nil)
	if !ok || !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	began := k.tick.Add(1)
	var l []device.WC
	for {
		n := q.Poll(q.buf[:])
		if l = append(l, q.buf[:n]...); n < len(q.buf) {
			break
		}
	}
	if len(l) > q.Cap()/2 {
		q.lossy.Store(true)
	}
	for i := range l {
		k.completed(q, &l[i], began)
	}
	k.verbs.Add(1)
}

func (k *walker) waitCQ() {
	q, ok := k.cqs.pick(k, nil, nil)
	if !ok || !q.mu.TryLock() {
		return
	}
	defer q.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	began := k.tick.Add(1)
	n, err := q.Wait(ctx, q.buf[:16])
	k.did("wait for a completion", q.c, err)
	for i := range n {
		k.completed(q, &q.buf[i], began)
	}
}

func (k *walker) arm() {
	if q, ok := k.cqs.pick(k, nil, nil); ok {
		q.arms.Add(1)
		q.Arm(k.one(3))
		k.verbs.Add(1)
	}
}

func (k *walker) takeCQ() {
	ch, ok := k.chans.pick(k, nil, nil)
	if !ok {
		return
	}
	began := k.tick.Add(1)
	q, ok := ch.TryGet()
	if !ok && k.one(4) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		var err error
		q, err = ch.Get(ctx)
		ok = k.did("wait for a channel", ch.c, err)
	}
	if !ok {
		return
	}
	k.verbs.Add(1)
	v, known := k.byCQ.Load(q)
	if !known {
		return // it was made just now
	}
	c := v.(*wCQ)
	c.taken.Add(1)
	if g := c.gone.Load(); c.ch != ch || g != 0 && g < began {
		k.errorf("an event of a completion queue that is destroyed, or of another channel")
	}
}

func (k *walker) takeAsync() {
	c := k.in()
	began := k.tick.Add(1)
	e, ok := c.TryAsyncEvent()
	if !ok && k.one(4) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		var err error
		e, err = c.AsyncEvent(ctx)
		ok = k.did("wait for an event", c, err)
	}
	if k.verbs.Add(1); ok {
		k.event(e, began)
	}
}
