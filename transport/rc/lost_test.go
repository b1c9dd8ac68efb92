package rc

import (
	"testing"

	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// sentBut is sent, with the packets for which lost is true not sent.
func (s *side) sentBut(now transport.Time, lost func(psn bth.PSN) bool) (psns []bth.PSN) {
	var out transport.TxList
	s.tx.Swap(&out)
	for _, p := range out.Packets() {
		p.Lost = lost(bth.BTH(p.Head[:]).PSN())
	}
	out.Cut()
	for _, p := range out.Packets() {
		if !p.Lost && !p.Behind {
			psns = append(psns, bth.BTH(p.Head[:]).PSN())
		}
	}
	s.Sent(now, &out)
	out.Release()
	s.Pump(now)
	return psns
}

// TestLostRequest: a request whose memory goes away between the post and the send fails with a
// local protection error, after those before it, and flushes those behind it.
func TestLostRequest(t *testing.T) {
	s := newSide(make(arena, 1<<16), nil)
	for i := range 4 {
		s.queue = append(s.queue, transport.SendWR{ID: uint64(i), Op: transport.OpWrite, Flags: transport.Signaled, SGE: []transport.SGE{{Length: 600}}})
	}
	s.Doorbell(1) // three packets each
	got := s.sentBut(2, func(p bth.PSN) bool { return p == 4 })
	if len(got) != 4 { // nothing behind it, for no PSN is left out
		t.Fatalf("sent %v", got)
	}
	if len(s.done) != 0 || s.attr.State != transport.RTS {
		t.Fatalf("%v in %v before the first was answered", s.done, s.attr.State)
	}
	s.Receive(3, ack(2, bth.AckUnlimited, 1))
	s.EndBurst(3)
	want := []transport.Status{transport.StatusSuccess, transport.StatusLocalProtection, transport.StatusFlush, transport.StatusFlush}
	if len(s.done) != len(want) || s.attr.State != transport.Err {
		t.Fatalf("%v in %v", s.done, s.attr.State)
	}
	for i, st := range want {
		if s.done[i].ID != uint64(i) || s.done[i].Status != st {
			t.Errorf("completion %d: request %d %v, want %v", i, s.done[i].ID, s.done[i].Status, st)
		}
	}
	if l := s.sentBut(4, func(bth.PSN) bool { return false }); len(l) != 0 {
		t.Errorf("sent %v after the error", l)
	}
}

// TestLostFirst: the first request fails at once, nothing has to be waited for.
func TestLostFirst(t *testing.T) {
	s := newSide(make(arena, 1<<16), nil)
	s.post(1, transport.OpSend, 100)
	s.sentBut(2, func(bth.PSN) bool { return true })
	if len(s.done) != 1 || s.done[0].Status != transport.StatusLocalProtection || s.attr.State != transport.Err {
		t.Errorf("%v in %v", s.done, s.attr.State)
	}
}

// TestLostAgain: what was answered while its retransmission was lost is a success.
func TestLostAgain(t *testing.T) {
	s := newSide(make(arena, 1<<16), nil)
	s.post(1, transport.OpWrite, 100)
	s.sent(1)
	d := s.Deadline()
	s.Timer(d)
	s.Receive(d, ack(0, bth.AckUnlimited, 1))
	s.sentBut(d, func(bth.PSN) bool { return true })
	if len(s.done) != 1 || s.done[0].Status != transport.StatusSuccess || s.attr.State != transport.RTS {
		t.Errorf("%v in %v", s.done, s.attr.State)
	}
}

// TestLostResponse: a READ whose memory goes away while it is answered ends in a remote access
// NAK that names the first response which is missing.
func TestLostResponse(t *testing.T) {
	s := newSide(make(arena, 1<<16), nil)
	s.Receive(1, packet(bth.ReadRequest, 0, 0, 1000, nil))
	s.EndBurst(1)
	s.sentBut(2, func(p bth.PSN) bool { return p >= 2 })
	if s.attr.State != transport.Err {
		t.Fatalf("state %v", s.attr.State)
	}
	l := s.sent(3)
	if len(l) != 1 {
		t.Fatalf("%d answers", len(l))
	}
	a := bth.AETH(l[0].IB[bth.Len:])
	if l[0].BTH().Opcode().Operation() != bth.Acknowledge || a.Syndrome() != bth.NakRemoteAccess || l[0].BTH().PSN() != 2 {
		t.Errorf("answer %v %v psn %d", l[0].BTH().Opcode(), a.Syndrome(), l[0].BTH().PSN())
	}
}

// TestLostAgainInTheMiddle: three messages have arrived, and nothing was heard of it. Sent again, the second cannot be
// read any more; then the answer to the first round comes. Nothing is sent under a PSN that is not its own.
func TestLostAgainInTheMiddle(t *testing.T) {
	never := func(bth.PSN) bool { return false }
	s := newSide(make(arena, 1<<16), nil)
	for i := range 3 {
		s.queue = append(s.queue, transport.SendWR{ID: uint64(i), Op: transport.OpSend, Flags: transport.Signaled, SGE: []transport.SGE{{Length: 100}}})
	}
	s.Doorbell(1)
	s.sentBut(1, never)
	d := s.Deadline()
	s.Timer(d)
	s.sentBut(d, func(p bth.PSN) bool { return p == 1 })
	s.Receive(d+1, ack(1, bth.AckUnlimited, 2))
	s.EndBurst(d + 1)
	if l := s.sentBut(d+2, never); len(l) != 1 || l[0] != 2 { // it was behind, and not sent
		t.Errorf("sent PSNs %v, want 2", l)
	}
	s.Receive(d+3, ack(2, bth.AckUnlimited, 3))
	s.EndBurst(d + 3)
	s.post(d+4, transport.OpSend, 100)
	if l := s.sentBut(d+4, never); len(l) != 1 || l[0] != 3 {
		t.Errorf("the next request was sent as %v", l)
	}
	s.Receive(d+5, ack(3, bth.AckUnlimited, 4))
	s.EndBurst(d + 5)
	if len(s.done) != 4 || s.attr.State != transport.RTS {
		t.Fatalf("%v in %v", s.done, s.attr.State)
	}
	for i, wc := range s.done {
		if wc.Status != transport.StatusSuccess {
			t.Errorf("request %d: %v", i, wc.Status)
		}
	}
}

// TestLostBehindALoss: a request that cannot be read is behind one whose packet was lost: that is sent again, and the
// other fails in its turn.
func TestLostBehindALoss(t *testing.T) {
	s := newSide(make(arena, 1<<16), nil)
	for i := range 3 {
		s.queue = append(s.queue, transport.SendWR{ID: uint64(i), Op: transport.OpSend, Flags: transport.Signaled, SGE: []transport.SGE{{Length: 100}}})
	}
	s.Doorbell(1)
	s.sentBut(1, func(p bth.PSN) bool { return p == 1 })
	s.post(2, transport.OpSend, 100)
	if l := s.sentBut(2, func(bth.PSN) bool { return false }); len(l) != 0 {
		t.Errorf("sent %v behind a request that has failed", l)
	}
	d := s.Deadline()
	s.Timer(d)
	if l := s.sentBut(d, func(bth.PSN) bool { return false }); len(l) != 1 || l[0] != 0 {
		t.Fatalf("sent again: %v", l)
	}
	s.Receive(d+1, ack(0, bth.AckUnlimited, 1))
	s.EndBurst(d + 1)
	want := []transport.Status{transport.StatusSuccess, transport.StatusLocalProtection, transport.StatusFlush, transport.StatusFlush}
	if len(s.done) != len(want) {
		t.Fatalf("%v in %v", s.done, s.attr.State)
	}
	for i, st := range want {
		if s.done[i].Status != st {
			t.Errorf("request %d: %v, want %v", i, s.done[i].Status, st)
		}
	}
}

// TestLostAtomicWriteAgain: what was answered while sending it again failed is a success, also where the answer is one of
// its own.
func TestLostAtomicWriteAgain(t *testing.T) {
	s := newSide(make(arena, 1<<16), nil)
	s.post(1, transport.OpWrite, 100)
	s.post(1, transport.OpAtomicWrite, 8)
	s.sent(1)
	d := s.Deadline()
	s.Timer(d)
	s.sentBut(d, func(p bth.PSN) bool { return p == 1 })
	s.Receive(d, ack(0, bth.AckUnlimited, 1))
	v := packet(bth.ReadResponseOnly, 1, 0, 0, nil)
	i, _ := v.Info.Offset(bth.HAETH)
	bth.AETH(v.IB[i:]).Put(bth.AckUnlimited, 2)
	s.Receive(d, v)
	s.EndBurst(d)
	if len(s.done) != 2 || s.done[1].Status != transport.StatusSuccess || s.attr.State != transport.RTS {
		t.Errorf("%v in %v", s.done, s.attr.State)
	}
}

// TestRNRTakesBack: what the flusher has not taken when the peer is not ready does not leave before the wait ends.
func TestRNRTakesBack(t *testing.T) {
	never := func(bth.PSN) bool { return false }
	s := newSide(make(arena, 1<<16), nil)
	s.attr.RNRRetry = 7
	s.post(1, transport.OpSend, 100)
	s.sentBut(1, never)
	s.post(2, transport.OpSend, 100)
	s.Receive(3, ack(0, bth.RNRNak|14, 0))
	s.EndBurst(3)
	if l := s.sentBut(4, never); len(l) != 0 {
		t.Errorf("sent %v in the wait", l)
	}
	d := s.Deadline()
	s.Timer(d)
	if l := s.sentBut(d, never); len(l) != 2 || l[0] != 0 || l[1] != 1 {
		t.Errorf("sent %v after the wait", l)
	}
	s.Receive(d+1, ack(1, bth.AckUnlimited, 2))
	s.EndBurst(d + 1)
	if len(s.done) != 2 || s.done[0].Status != transport.StatusSuccess || s.done[1].Status != transport.StatusSuccess {
		t.Errorf("%v", s.done)
	}
}

// TestErrTakesBack: what has not left when the program says that it is over does not leave any more.
func TestErrTakesBack(t *testing.T) {
	never := func(bth.PSN) bool { return false }
	s := newSide(make(arena, 1<<16), nil)
	s.post(1, transport.OpSend, 100)
	s.sentBut(1, never)
	s.post(2, transport.OpSend, 100)
	s.attr.State = transport.Err
	s.Modified(3, 0)
	s.Flush(3)
	if l := s.sentBut(4, never); len(l) != 0 {
		t.Errorf("sent %v in ERR", l)
	}
	if len(s.done) != 2 || s.done[0].Status != transport.StatusFlush || s.done[1].Status != transport.StatusFlush {
		t.Errorf("%v", s.done)
	}
}

// TestLostResponseInErr: a queue pair in ERR does not answer any more, also where the flusher has a response that cannot be made.
func TestLostResponseInErr(t *testing.T) {
	s := newSide(make(arena, 1<<16), nil)
	s.Receive(1, packet(bth.ReadRequest, 0, 0, 1000, nil))
	s.EndBurst(1)
	s.attr.State = transport.Err
	s.Modified(2, 0)
	s.Flush(2)
	s.sentBut(3, func(bth.PSN) bool { return true })
	if l := s.sent(4); len(l) != 0 {
		t.Errorf("%d answers in ERR", len(l))
	}
}
