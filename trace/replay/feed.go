package replay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// feed gives softnic's NIC a request.
func (s *scene) feed(t *talk, q *seen) {
	if q.lost || t.lost != nil && q.at >= t.lost.at {
		return
	}
	if t.qp == nil {
		if err := s.connect(t); err != nil {
			t.stop(q, "%v", err)
			return
		}
	}
	if q.dir == trace.Rx && q.fault == wire.QPState && t.qp.State() != device.StateErr {
		t.note("packet %d is left out: the queue pair was in no state to take it, and why is not in the capture", q.number)
		return
	}
	if why := s.prepare(t, q); why != "" {
		t.stop(q, "%s", why)
		return
	}
	s.nic.Run(time.Duration(max(0, q.time-s.begin)))
	t.c.Fed++
	s.cur, t.cur, s.fault = t, q, wire.OK
	q.again = q.pos < t.expect
	s.nic.Receive(t.packet(q))
	s.nic.Step()
	s.cur = nil
	var wc [8]device.WC
	for n := s.nic.CQ.Poll(wc[:]); n > 0; n = s.nic.CQ.Poll(wc[:]) {
		for _, w := range wc[:n] {
			if w.ID != 0 {
				s.pools[w.ID].n--
			}
		}
	}
	for _, ok := s.nic.Ctx.TryAsyncEvent(); ok; _, ok = s.nic.Ctx.TryAsyncEvent() {
	}
	if s.fault != wire.OK {
		t.refused(q, s.fault)
		return
	}
	t.c.Taken++
	if t.f.key.reliable() && q.pos == t.expect {
		t.expect += int64(q.n)
		if q.has(bth.End) {
			t.msn = (t.msn + 1) & 0xFFFFFF
		}
		t.done = append(t.done, progress{t.expect - 1, t.msn})
	}
	if h := bth.IETH(q.v.Header(bth.HIETH)); h != nil {
		if a := s.mem[h.RKey()]; a != nil && a.fast != nil && a.fast.key == h.RKey() {
			a.fast.valid = false
		}
	}
}

// refused notes what the NIC did not take on the services that do not answer.
func (t *talk) refused(q *seen, f wire.Fault) {
	if t.f.key.reliable() && f >= wire.NoReceive {
		return // the answer says it, and is compared
	}
	if q.dir == trace.Rx {
		t.note("packet %d is not taken: %v", q.number, f)
	} else {
		t.note("packet %d is not taken (%v): something before it is missing, or the recorded NIC did not take it either", q.number, f)
	}
}

// packet returns the bytes from the IP header on as they arrive: checksums that an adapter would have filled in
// are set right, which the ICRC does not cover.
func (t *talk) packet(q *seen) []byte {
	b := append(bytes.Clone(q.v.Net), q.v.IB...)
	if from := t.from(); from != t.f.key.src || q.v.DstPort() != wire.Port {
		s := wire.SpecOf(&q.v)
		s.Eth, s.Path.Src, s.UDPSum = nil, from, false
		return wire.Build(&s)
	}
	udp := b[len(q.v.Net)-8:]
	udp[6], udp[7] = 0, 0
	wire.PutIPChecksum(b)
	return b
}

// from is the address of the requester for softnic's NIC: another, where both are at the same, because what a NIC sends to itself does not
// leave it.
func (t *talk) from() netip.Addr {
	k := t.f.key
	if k.src != k.dst {
		return k.src
	}
	t.note("requester and responder have one address: here the requester has %s", k.src.Next())
	return k.src.Next()
}

// receives reports whether a request takes a receive: the first packet of a SEND does, and that of a WRITE with the immediate.
func (q *seen) receives() bool {
	return q.has(bth.Send|bth.Start) || q.has(bth.Write) && q.v.Header(bth.HImmDt) != nil
}

// prepare has the NIC be as the recorded one was when the request came; it returns why it cannot.
func (s *scene) prepare(t *talk, q *seen) string {
	if q.n > 1024 && len(q.replies) < q.n/2 && q.pos <= t.expect { // one that comes too early is not answered
		return fmt.Sprintf("a READ of %d packets, of which the capture has %d", q.n, len(q.replies))
	}
	if why := s.validate(t, q); why != "" {
		return why
	}
	if q.refused.IsRNR() && q.receives() {
		if p := s.recvs(t, q); p != nil && p.n > 0 && s.o.Recvs == 0 {
			return "the recorded NIC had no receive, and this one has"
		}
		code := q.refused.Value()
		if err := t.qp.Modify(&device.QPAttr{MinRNRTimer: code}, device.AttrMinRNRTimer); err != nil {
			// In RTS the attribute cannot be changed everywhere: the difference is told.
			t.note("RNR timer code %d cannot be set: %v", code, err)
		}
		return ""
	}
	pool := s.recvs(t, q)
	if pool == nil || s.o.Recvs > 0 || !q.has(bth.Recv) || q.idle() || pool.n > 0 || t.f.key.reliable() && q.pos != t.expect {
		return ""
	}
	n, key := scratchLen-4096, uint32(scratchKey)
	if q.short >= 0 {
		n = q.short
		t.note("packet %d met a receive of %d bytes: it was refused as too long", q.number, n)
	}
	if q.badRecv {
		key--
		t.note("packet %d met a receive with a bad entry: it was refused", q.number)
	}
	if err := pool.add(n, key); err != nil {
		return err.Error()
	}
	return ""
}

// validate makes the key valid that a request names, of a region that can be invalidated: the recorded NIC's program had done so.
func (s *scene) validate(t *talk, q *seen) string {
	key, _, n, ok := names(q)
	if h := bth.IETH(q.v.Header(bth.HIETH)); h != nil {
		key, n, ok = h.RKey(), 1, true
	}
	a := s.mem[key]
	if !ok || n == 0 || a == nil || q.refused.IsNak() {
		return ""
	}
	if a.mem == nil {
		return fmt.Sprintf("no region can have the key 0x%x", key)
	}
	f := a.fast
	if f == nil || f.valid && f.key == key {
		return ""
	}
	err := s.keeper(t)
	if err == nil && f.valid {
		err = s.valid.PostSend(&device.SendWR{Op: device.OpLocalInv, Imm: f.key})
	}
	if err == nil {
		err = s.valid.PostSend(&device.SendWR{Op: device.OpRegMR, Reg: transport.RegWR{
			LKey: f.key, NewKey: key, Memory: a.mem, Addr: a.va, Length: a.end - a.va, Access: a.access,
		}})
	}
	if err != nil {
		return err.Error()
	}
	f.key, f.valid = key, true
	return ""
}

// keeper makes the queue pair of the NIC's own that makes keys valid, with a number that no recorded one has.
func (s *scene) keeper(t *talk) error {
	if s.valid != nil {
		return nil
	}
	qpn := uint32(0xFFFFFE)
	for slices.ContainsFunc(s.talks, func(t *talk) bool { return t.f.key.qpn == qpn }) {
		qpn--
	}
	q, err := s.nic.CreateQP(qpn, device.QPInit{Type: device.RC, Cap: device.Cap{SendWR: 4}})
	if err != nil {
		return err
	}
	gid, err := s.nic.SGIDIndex()
	if err == nil {
		err = q.Connect(0, device.Remote{GID: device.GIDOf(t.from()), QPN: 0xFFFFFE}, device.ConnectOptions{SGIDIndex: gid})
	}
	if err == nil {
		s.valid = q
	}
	return err
}

// sent takes an answer of softnic's NIC.
func (s *scene) sent(b []byte) {
	b = bytes.Clone(b)
	a := new(answer)
	if f := wire.ParseIP(b, &a.v); f != wire.OK || s.cur == nil {
		return
	}
	t := s.cur
	a.op, a.psn = a.v.BTH().Opcode(), a.v.BTH().PSN()
	if a.op == bth.CNPNotify {
		t.note("congestion notifications are not compared")
		return
	}
	a.to, a.pos = t.cur, t.cur.pos+int64(a.psn.Sub(t.cur.psn))
	t.ours = append(t.ours, a)
	t.byPSN[a.pos] = append(t.byPSN[a.pos], a)
}

// takeOver has memory be what the recorded answer shows of it: the program at the recorded NIC has written there.
func (s *scene) takeOver(to, rec *seen, mtu int) {
	key, va, _, _ := names(to)
	m := s.mem[key]
	switch {
	case m == nil || m.mem == nil:
	case rec.has(bth.Read):
		m.mem.Write(va+uint64(rec.pos-to.pos)*uint64(mtu), rec.v.Payload)
	case to.op.Operation() == bth.FetchAdd:
		v := bth.AtomicAckETH(rec.v.Header(bth.HAtomicAckETH)).Original() + bth.AtomicETH(to.v.Header(bth.HAtomicETH)).SwapAdd()
		m.mem.Write(va, binary.NativeEndian.AppendUint64(nil, v))
	}
}
