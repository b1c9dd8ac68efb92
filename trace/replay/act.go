package replay

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/stage"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// scene is one NIC, and the conversations in which it is the responder.
type scene struct {
	o     Options
	nic   *stage.NIC
	talks []*talk
	mem   map[uint32]*area
	cur   *talk      // whose packet is being fed
	fault wire.Fault // what came of it
	begin int64
	qps   map[uint32]*device.QP // by number; as those of a UD queue pair share its receives,
	owner map[uint32]*talk      // the first counts them
	pkeys []uint16
}

// scratchKey is that of the region where receives end; scratchLen is as long as a message can be.
const (
	scratchKey = 0xFFFFFFFE
	scratchLen = 1<<31 + 4096
)

// act replays the conversations of the responders at an address.
func act(addr netip.Addr, talks []*talk, o Options) (err error) {
	s := &scene{o: o, talks: talks, qps: map[uint32]*device.QP{}, owner: map[uint32]*talk{}, mem: areas(talks, &o)}
	profile := s.profile()
	s.setPKeys()
	s.nic, err = stage.New(stage.Options{
		Addr: addr, Profile: profile, PKeys: s.pkeys, RxeFlushICRC: profile == "rxe",
		Sent: s.sent, Taken: func(f wire.Fault) { s.fault = f },
	})
	if err != nil {
		return err
	}
	defer s.nic.Close()
	s.regions()
	remember(s.mem, talks)
	type event struct {
		t      *talk
		s      *seen
		answer bool
	}
	var l []event
	for _, t := range talks {
		t.c.Profile = profile
		t.left = len(t.f.requests) - t.start + len(t.answers)
		for _, q := range t.f.requests[t.start:] {
			l = append(l, event{t, q, false})
		}
		for _, a := range t.answers {
			l = append(l, event{t, a, true})
		}
	}
	slices.SortStableFunc(l, func(a, b event) int { return cmp.Compare(a.s.at, b.s.at) })
	for _, e := range l {
		if s.begin == 0 {
			s.begin = e.s.time
		}
		if e.answer {
			e.t.answer(s, e.s)
		} else {
			s.feed(e.t, e.s)
		}
		if e.t.left--; e.t.left == 0 {
			s.leave(e.t)
		}
	}
	return nil
}

// leave ends a conversation.
func (s *scene) leave(t *talk) {
	if t.qp != nil && t.f.key.service != bth.UD { // several may send to one of UD
		delete(s.qps, t.qp.Num())
		_ = t.qp.Destroy()
	}
	t.finish()
}

// profile is that of the options, or what the answers look like.
func (s *scene) profile() string {
	if s.o.Profile != "" {
		return s.o.Profile
	}
	with, without := 0, 0
	for _, t := range s.talks {
		for _, a := range t.answers {
			if a.v.BTH().MigReq() {
				with++
			} else {
				without++
			}
		}
	}
	if without <= with {
		return "ibta"
	}
	for _, t := range s.talks {
		t.note("profile rxe: recorded answers have MigReq 0 (--profile)")
	}
	return "rxe"
}

// setPKeys makes a P_Key table of the partitions that requests name.
func (s *scene) setPKeys() {
	for _, t := range s.talks {
		if k := t.f.requests[t.start].v.BTH().PKey() | 0x8000; k&0x7FFF != 0 && !slices.Contains(s.pkeys, k) && len(s.pkeys) < device.MaxPKeys {
			s.pkeys = append(s.pkeys, k)
		}
	}
	if len(s.pkeys) == 0 {
		s.pkeys = nil
	}
}

// regions makes the memory.
func (s *scene) regions() {
	invalidated := map[uint32]bool{}
	for _, t := range s.talks {
		for _, q := range t.f.requests[t.start:] {
			if h := bth.IETH(q.v.Header(bth.HIETH)); h != nil {
				invalidated[h.RKey()] = true
				if s.mem[h.RKey()] == nil {
					s.mem[h.RKey()] = &area{end: 4096, access: everything}
				}
			}
		}
	}
	var keys []uint32
	for k := range s.mem {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	_, _, _ = s.nic.Register(scratchKey, 0, scratchLen, device.LocalWrite)
	for _, k := range keys {
		a := s.mem[k]
		if !invalidated[k] {
			_, a.mem, _ = s.nic.Register(k, a.va, a.end-a.va, a.access)
			continue
		}
		var err error
		if a.fast, err = s.nic.Alloc(k, a.end-a.va); err == nil {
			a.mem = stage.NewMemory()
		}
	}
}

// connect makes the queue pair of a conversation.
func (s *scene) connect(t *talk) error {
	k := t.f.key
	if q := s.qps[k.qpn]; q != nil {
		if k.service != bth.UD || q.Type() != device.UD {
			return fmt.Errorf("queue pair 0x%x has another peer, too", k.qpn)
		}
		t.qp = q
		return nil
	}
	first := t.f.requests[t.start]
	typ := map[bth.Service]device.QPType{bth.RC: device.RC, bth.UC: device.UC, bth.UD: device.UD}[k.service]
	q, err := s.nic.CreateQP(k.qpn, device.QPInit{Type: typ, Cap: device.Cap{SendWR: 4, RecvWR: max(4, s.o.Recvs)}})
	if err != nil {
		return err
	}
	i := max(0, slices.Index(s.pkeys, first.v.BTH().PKey()|0x8000))
	if typ == device.UD {
		var qkey uint32
		if h := bth.DETH(first.v.Header(bth.HDETH)); h != nil {
			qkey = h.QKey()
		}
		err = q.Modify(&device.QPAttr{State: device.StateInit, Port: 1, QKey: qkey, PKeyIndex: i}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrQKey)
		if err == nil {
			err = q.Modify(&device.QPAttr{State: device.StateRTR}, device.AttrState)
		}
	} else {
		var gid int
		if gid, err = s.nic.SGIDIndex(); err == nil {
			err = q.Connect(0, device.Remote{GID: device.GIDOf(t.from()), QPN: t.peer(), PSN: uint32(t.first)}, device.ConnectOptions{
				SGIDIndex: gid, PathMTU: t.mtu, Access: t.rights(), Depth: device.MaxRdAtomic, PKeyIndex: i, Timeout: -1,
			})
		}
	}
	if err != nil {
		_ = q.Destroy()
		return err
	}
	t.qp, s.qps[k.qpn], s.owner[k.qpn] = q, q, t
	for range s.o.Recvs {
		if err := s.postRecv(t, scratchLen-4096, scratchKey); err != nil {
			return err
		}
	}
	return nil
}

// rights are those of the queue pair: all, but for what it refused as an invalid request and never took.
func (t *talk) rights() device.Access {
	var refused, used device.Access
	for _, q := range t.f.requests[t.start:] {
		switch {
		case q.refused == bth.NakInvalidRequest:
			refused |= kind(q)
		case !q.lost:
			used |= kind(q)
		}
	}
	return (device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.FlushGlobal | device.FlushPersistent) &^ (refused &^ used)
}

func (s *scene) postRecv(t *talk, n int, key uint32) error {
	err := t.qp.PostRecv(&device.RecvWR{SGE: []device.SGE{{Addr: 0, Length: uint32(n), LKey: key}}})
	if err == nil {
		s.owner[t.qp.Num()].recvs++
	}
	return err
}

// feed gives softnic's NIC a request.
func (s *scene) feed(t *talk, q *seen) {
	if q.lost || t.lost != nil {
		return
	}
	if t.qp == nil {
		if err := s.connect(t); err != nil {
			t.stop(q, "%v", err)
			return
		}
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
			if o := s.owner[w.QPN]; o != nil {
				o.recvs--
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
	if t.f.key.service == bth.RC && q.pos == t.expect {
		t.expect += int64(q.n)
		if q.has(bth.End) {
			t.msn = (t.msn + 1) & 0xFFFFFF
		}
		t.done = append(t.done, progress{t.expect - 1, t.msn})
	}
	if h := bth.IETH(q.v.Header(bth.HIETH)); h != nil && s.mem[h.RKey()] != nil {
		s.mem[h.RKey()].valid = false
	}
}

// refused notes what the NIC did not take on the services that do not answer.
func (t *talk) refused(q *seen, f wire.Fault) {
	if t.f.key.service == bth.RC && f >= wire.NoReceive {
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

// prepare has the NIC be as the recorded one was when the request came; it returns why it cannot.
func (s *scene) prepare(t *talk, q *seen) string {
	if q.n > 1024 && len(q.replies) < q.n/2 {
		return fmt.Sprintf("a READ of %d packets, of which the capture has %d", q.n, len(q.replies))
	}
	if why := s.validate(t, q); why != "" {
		return why
	}
	if q.refused.IsRNR() {
		if s.owner[t.qp.Num()].recvs > 0 && s.o.Recvs == 0 {
			return "the recorded NIC had no receive, and this one has"
		}
		code := q.refused.Value()
		if err := t.qp.Modify(&device.QPAttr{MinRNRTimer: code}, device.AttrMinRNRTimer); err != nil {
			// In RTS the attribute cannot be changed everywhere: the difference is told.
			t.note("RNR timer code %d cannot be set: %v", code, err)
		}
		return ""
	}
	if s.o.Recvs > 0 || !q.has(bth.Recv) || s.owner[t.qp.Num()].recvs > 0 || t.f.key.service == bth.RC && q.pos != t.expect {
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
	if err := s.postRecv(t, n, key); err != nil {
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
	if a.fast == nil || a.valid {
		return ""
	}
	a.valid = true
	err := t.qp.PostSend(&device.SendWR{Op: device.OpRegMR, Reg: transport.RegWR{
		LKey: key, NewKey: key, Memory: a.mem, Addr: a.va, Length: a.end - a.va, Access: a.access,
	}})
	if err != nil {
		return err.Error()
	}
	return ""
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
