package rc

import (
	"testing"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// arena is registered memory whose content does not matter.
type arena []byte

func (m *arena) Slices(dst [][]byte, va uint64, n int) ([][]byte, bool) {
	return append(dst, (*m)[va:va+uint64(n)]), true
}
func (m *arena) ReadV([]transport.Extent) error                     { return nil }
func (m *arena) WriteV([]transport.Extent) error                    { return nil }
func (m *arena) Atomic64(uint64, *transport.Atomic) (uint64, error) { return 0, nil }
func (m *arena) Store64(uint64, uint64) error                       { return nil }
func (m *arena) Release()                                           { _ = m }
func (m *arena) Park()                                              { _ = m }
func (m *arena) Resume() bool                                       { return *m != nil }
func (m *arena) Discard()                                           { _ = m }

// side is a machine, the host around it, its send queue and its receive queue.
type side struct {
	*Machine
	attr  transport.Attr
	mem   arena
	tx    transport.TxList
	queue []transport.SendWR
	done  []transport.WC
	recvs receives
}

// receives is a receive queue: n are posted, taken is how many have completed.
type receives struct{ n, taken int }

func (q *receives) Fetch(w *transport.RecvWR) bool {
	if q.n == 0 {
		return false
	}
	q.n--
	w.SGE = append(w.SGE[:0], transport.SGE{Length: 1 << 20})
	return true
}
func (q *receives) Retire(int) {}

// newSide returns a queue pair 1 in RTS, connected to 2, that change may alter.
func newSide(mem arena, change func(*side, *Config)) *side {
	s := &side{mem: mem}
	s.attr = transport.Attr{State: transport.RTS, QPN: 1, DestQPN: 2, PathMTU: 256, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
		MaxRdAtomic: 16, MaxDestRdAtomic: 16, Access: transport.RemoteRead | transport.RemoteWrite, PKey: 0xFFFF, Path: &wire.Path{}}
	c := Config{Attr: &s.attr, Host: s, Tx: &s.tx, SQ: s, Counters: stats.NewCounters(0, nil), Recv: &transport.RecvContext{
		Queue: &s.recvs, Done: func(*transport.WC, bool) bool { s.recvs.taken++; return true }}}
	if change != nil {
		change(s, &c)
	}
	s.Machine = New(c)
	s.Modified(1, transport.ChangedSQPSN|transport.ChangedRQPSN|transport.ChangedDepth)
	return s
}

func (s *side) Fetch(wr *transport.SendWR) (transport.Status, bool) {
	if len(s.queue) == 0 {
		return 0, false
	}
	wr.CopyFrom(&s.queue[0])
	s.queue = s.queue[1:]
	return 0, true
}
func (s *side) Retire(int) {}
func (s *side) Local(_ *transport.RecvContext, _ uint32, va uint64, n int, _ transport.Access) (transport.Region, transport.Status) {
	if va+uint64(n) > uint64(len(s.mem)) {
		return nil, transport.StatusLocalProtection
	}
	return &s.mem, transport.StatusSuccess
}
func (s *side) Names(uint32, uint64, int, transport.Region) bool { return false }
func (s *side) Remote(_ uint32, va, n uint64, _ transport.Access) (transport.Region, bool) {
	return &s.mem, va+n <= uint64(len(s.mem))
}
func (s *side) Invalidate(uint32, bool) bool   { return true }
func (s *side) Bind(*transport.BindWR) bool    { return true }
func (s *side) Register(*transport.RegWR) bool { return true }
func (s *side) FlushMemory(uint32, uint64, uint64, transport.FlushLevel, transport.FlushType) bool {
	return true
}
func (s *side) PathOf(transport.AddressHandle) *wire.Path { return nil }
func (s *side) SendDone(wc *transport.WC)                 { s.done = append(s.done, *wc) }
func (s *side) Raise(transport.Event)                     {}
func (s *side) Failed(st transport.State)                 { s.attr.State = st }

// post adds a request of n bytes and rings.
func (s *side) post(now transport.Time, op transport.WROp, n uint32) {
	s.queue = append(s.queue, transport.SendWR{Op: op, Flags: transport.Signaled, SGE: []transport.SGE{{Length: n}}})
	s.Doorbell(now)
}

// sent takes what is on the transmit list as sent and returns it as packets for a peer.
func (s *side) sent(now transport.Time) (l []*wire.View) {
	var out transport.TxList
	s.tx.Swap(&out)
	for _, p := range out.Packets() {
		ib := append([]byte{}, p.Head[:p.Len]...)
		payload := make([]byte, p.Size)
		l = append(l, &wire.View{IB: append(ib, payload...), Info: bth.BTH(ib).Opcode().Info(), Payload: payload})
	}
	s.Sent(now, &out)
	out.Release()
	return l
}

// packet makes a packet to queue pair 1; a RETH names n bytes at va.
func packet(op bth.Operation, psn bth.PSN, va uint64, n uint32, payload []byte) *wire.View {
	o := bth.Make(bth.RC, op)
	size := max(bth.Make(bth.RC, bth.SendOnly).Info().Len, o.Info().Len)
	ib := make([]byte, size, size+len(payload))
	bth.BTH(ib).Encode(&bth.Fields{Opcode: o, PKey: 0xFFFF, DestQP: 1, AckReq: true, PSN: psn, Pad: -len(payload) & 3})
	if i, ok := o.Info().Offset(bth.HRETH); ok {
		bth.RETH(ib[i:]).Put(va, 7, n)
	}
	return &wire.View{IB: append(ib, payload...), Info: o.Info(), Payload: payload}
}

func ack(psn bth.PSN, s bth.Syndrome, msn uint32) *wire.View {
	v := packet(bth.Acknowledge, psn, 0, 0, nil)
	i, _ := v.Info.Offset(bth.HAETH)
	bth.AETH(v.IB[i:]).Put(s, msn)
	return v
}

// TestReplayComesBeforeLaterReads loses a response of one READ while the next one is
// being answered. The requester asks for both again; what it misses must come first,
// because it can only drop answers to the later READ until then.
func TestReplayComesBeforeLaterReads(t *testing.T) {
	m := newSide(make(arena, 1<<16), nil)
	m.Receive(1, packet(bth.ReadRequest, 0, 0, 4*256, nil))
	m.Receive(1, packet(bth.ReadRequest, 4, 0, 200*256, nil))
	m.EndBurst(1)
	m.sent(1)
	m.Receive(1, packet(bth.ReadRequest, 3, 3*256, 256, nil))
	m.Receive(1, packet(bth.ReadRequest, 4, 0, 200*256, nil))
	m.EndBurst(1)
	var got []bth.PSN
	for m.tx.Len() > 0 {
		for _, v := range m.sent(1) {
			got = append(got, v.BTH().PSN())
		}
		m.Pump(1)
	}
	if len(got) != 201 {
		t.Fatalf("%d responses, want 201", len(got))
	}
	for i, psn := range got {
		if psn != bth.PSN(3+i) {
			t.Fatalf("response %d has PSN %v, want %v", i, psn, bth.PSN(3+i))
		}
	}
}

// TestLostResponseBeforeALongRead joins two machines by a wire that takes six ACK
// timeouts to carry the second READ. Losing one response of the first must cost a
// retry, not the connection: retries do not run out while the answer is under way.
func TestLostResponseBeforeALongRead(t *testing.T) {
	mem := make(arena, 1<<22)
	a := newSide(mem, func(s *side, _ *Config) { s.attr.Timeout, s.attr.QPN, s.attr.DestQPN = 10, 2, 1 })
	b := newSide(mem, nil)
	now := transport.Time(1)
	a.post(now, transport.OpRead, 4*256)
	a.post(now, transport.OpRead, 16000*256)
	lost := false
	move := func(from, to *side) {
		l := from.sent(now)
		from.Pump(now)
		for _, v := range l {
			if from == b && !lost && v.BTH().PSN() == 3 {
				lost = true
				continue
			}
			to.Receive(now, v)
		}
		to.EndBurst(now)
	}
	for range 10_000 {
		if len(a.done) == 2 {
			break
		}
		move(a, b)
		move(b, a)
		now += 100_000
		if d := a.Deadline(); d != 0 && now >= d {
			a.Timer(now)
		}
	}
	if len(a.done) != 2 || a.done[0].Status != transport.StatusSuccess || a.done[1].Status != transport.StatusSuccess {
		t.Fatalf("completions %+v, want two successes", a.done)
	}
}

// TestAnswersBehindAReadAreBounded has a peer make gaps and fill them while a long READ
// is being answered. ACKs and NAKs wait behind that READ, and a peer must not be able to
// fill our memory with them.
func TestAnswersBehindAReadAreBounded(t *testing.T) {
	m := newSide(make(arena, 1<<20), nil)
	m.Receive(1, packet(bth.ReadRequest, 0, 0, 1<<20, nil))
	psn := bth.PSN(1 << 20 / 256)
	for range 5000 {
		m.Receive(1, packet(bth.WriteOnly, psn.Add(5), 0, 0, nil)) // a gap: NAK
		m.Receive(1, packet(bth.WriteOnly, psn, 0, 0, nil))        // ACK
		psn = psn.Next()
	}
	if n := m.rsp.out.n; n > 300 {
		t.Errorf("%d answers wait after 10,000 packets", n)
	}
	// The newest answer survives the bound: it acknowledges all.
	var last *wire.View
	for m.Pump(1); m.tx.Len() > 0; m.Pump(1) {
		for _, v := range m.sent(1) {
			last = v
		}
	}
	if got := last.BTH().PSN(); got != psn.Prev() && got != psn {
		t.Errorf("the last answer names PSN %v, want %v or the one behind", got, psn.Prev())
	}
}

// TestRequestsAreNotStarvedByResponses has a peer that always has two READs in flight.
// Responses must not fill the transmit list alone, or our own request never leaves.
func TestRequestsAreNotStarvedByResponses(t *testing.T) {
	m := newSide(make(arena, 1<<20), nil)
	psn := bth.PSN(0)
	for round := range 20 {
		for m.rsp.out.n < 2 {
			m.Receive(1, packet(bth.ReadRequest, psn, 0, 1<<20, nil))
			psn = psn.Add(1 << 20 / 256)
		}
		m.EndBurst(1)
		if round == 2 {
			m.post(1, transport.OpSend, 256)
		}
		for _, v := range m.sent(1) {
			if v.BTH().Opcode().Operation() == bth.SendOnly {
				return
			}
		}
		m.Pump(1)
	}
	t.Error("our SEND was not sent in 20 rounds")
}

// TestBeyondTheCreditLimit allows one message beyond the peer's credits until that very
// message is answered: half an answer does not allow another one.
func TestBeyondTheCreditLimit(t *testing.T) {
	m := newSide(make(arena, 1<<16), nil)
	m.post(1, transport.OpSend, 1)
	m.sent(1)
	m.Receive(1, ack(0, 0, 1)) // no credits: the limit is message 1
	m.EndBurst(1)
	m.post(1, transport.OpSend, 64*256)
	m.post(1, transport.OpSend, 1)
	if n := len(m.sent(1)); n != 64 {
		t.Fatalf("%d packets, want the 64 of message 2", n)
	}
	if m.Pump(1); m.tx.Len() != 0 {
		t.Fatal("message 3 is out though message 2 is beyond the limit")
	}
	m.Receive(1, ack(32, 0, 1)) // half of message 2
	if m.EndBurst(1); m.tx.Len() != 0 {
		t.Fatal("message 3 is out though message 2 is half answered")
	}
	m.Receive(1, ack(64, 0, 2))
	if m.EndBurst(1); m.tx.Len() != 1 {
		t.Errorf("message 2 is answered: %d packets, want message 3", m.tx.Len())
	}
}

// TestReplayKeepsTheCount has the answer to a duplicate READ go before answers that wait: the message
// sequence numbers on the wire do not go back.
func TestReplayKeepsTheCount(t *testing.T) {
	m := newSide(make(arena, 1<<16), nil)
	m.Receive(1, packet(bth.ReadRequest, 0, 0, 256, nil))
	m.EndBurst(1)
	m.sent(1)
	m.Receive(2, packet(bth.ReadRequest, 1, 0, 200*256, nil)) // waits in part
	m.EndBurst(2)
	m.Receive(2, packet(bth.ReadRequest, 201, 0, 256, nil))
	m.Receive(2, packet(bth.ReadRequest, 0, 0, 256, nil))
	last := -1
	for range 10 {
		for _, v := range m.sent(3) {
			if h := v.Header(bth.HAETH); h != nil {
				if n := int(bth.AETH(h).MSN()); n < last {
					t.Fatalf("psn %v says message %d after %d", v.BTH().PSN(), n, last)
				} else {
					last = n
				}
			}
		}
		m.Pump(3)
	}
	if last != 3 {
		t.Errorf("the last answer says message %d", last)
	}
}
