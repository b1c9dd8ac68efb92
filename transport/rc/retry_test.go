package rc

import (
	"testing"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// bench is a machine with nothing around it: inline sends, no memory, no peer.
type bench struct {
	*Machine
	attr  transport.Attr
	tx    transport.TxList
	queue []transport.SendWR
	done  []transport.WC
}

func newBench(timeout, retries uint8) *bench {
	b := &bench{attr: transport.Attr{State: transport.RTS, PathMTU: 256, Timeout: timeout, RetryCnt: retries, Path: &wire.Path{}, SigAll: true}}
	b.Machine = New(Config{Attr: &b.attr, Host: b, Tx: &b.tx, SQ: b, Recv: &transport.RecvContext{Shared: true}, Counters: stats.NewCounters(0, nil)})
	b.Modified(1, transport.ChangedSQPSN)
	return b
}

func (b *bench) Fetch(wr *transport.SendWR) (transport.Status, bool) {
	if len(b.queue) == 0 {
		return 0, false
	}
	wr.CopyFrom(&b.queue[0])
	b.queue = b.queue[1:]
	return 0, true
}

func (b *bench) Retire(int) {}
func (b *bench) Local(*transport.RecvContext, uint32, uint64, int, transport.Access) (transport.Region, transport.Status) {
	return nil, transport.StatusLocalProtection
}
func (b *bench) Names(uint32, uint64, int, transport.Region) bool { return false }
func (b *bench) Remote(uint32, uint64, uint64, transport.Access) (transport.Region, bool) {
	return nil, false
}
func (*bench) Invalidate(uint32, bool) bool   { return true }
func (*bench) Bind(*transport.BindWR) bool    { return true }
func (*bench) Register(*transport.RegWR) bool { return true }
func (*bench) FlushMemory(uint32, uint64, uint64, transport.FlushLevel, transport.FlushType) bool {
	return true
}
func (b *bench) PathOf(transport.AddressHandle) *wire.Path { return &wire.Path{} }
func (b *bench) SendDone(wc *transport.WC)                 { b.done = append(b.done, *wc) }
func (b *bench) Raise(transport.Event)                     {}
func (b *bench) Failed(s transport.State)                  { b.attr.State = s }

// TestTimerFromTheSend: the ACK timer runs from when the oldest packet leaves, however long ago it was emitted; what leaves behind it does not move it.
func TestTimerFromTheSend(t *testing.T) {
	const T = 4096 << 8 // ns, timeout code 8
	b := newBench(8, 2)
	var out transport.TxList
	post := func(now transport.Time) {
		b.queue = append(b.queue, transport.SendWR{Op: transport.OpSend})
		b.Doorbell(now)
	}
	leave := func(now transport.Time) {
		b.tx.Swap(&out)
		b.Sent(now, &out)
		out.Release()
	}
	post(1)
	leave(T / 2)
	if d := b.Deadline(); d != T/2+T {
		t.Errorf("sent %d ns after it was emitted: the timer runs out after %d ns, want %d", T/2, d, T/2+T)
	}
	post(T)
	leave(T + 100)
	if d := b.Deadline(); d != T/2+T {
		t.Errorf("behind another: the timer runs out after %d ns, want %d", d, T/2+T)
	}
	now := b.Deadline()
	b.Timer(now)
	leave(now + T/4)
	if d := b.Deadline(); d != now+T/4+T {
		t.Errorf("sent again: the timer runs out after %d ns, want %d", d, now+T/4+T)
	}
}

// TestTimerWaitsForTheFlusher has a host that is too busy to send what the engine
// emitted. Its ACK timer must not use up the retries of a peer that never heard the
// request, and what was not sent must not pile up.
func TestTimerWaitsForTheFlusher(t *testing.T) {
	const T = 4096 << 8 // ns, timeout code 8
	b := newBench(8, 2)
	b.queue = []transport.SendWR{{ID: 1, Op: transport.OpSend, Flags: transport.Inline, InlineData: make([]byte, 700)}}
	now := transport.Time(1)
	b.Doorbell(now)
	if n := b.tx.Len(); n != 3 {
		t.Fatalf("%d packets, want 3", n)
	}
	for range 10 {
		now = b.Deadline()
		b.Timer(now)
	}
	if len(b.done) != 0 || b.tx.Len() != 3 {
		t.Fatalf("before anything was sent: completions %v, %d packets wait", b.done, b.tx.Len())
	}
	var out transport.TxList
	send := func() {
		b.tx.Swap(&out)
		b.Sent(now, &out)
		out.Release()
	}
	send()
	for round := 1; round <= 2; round++ {
		now = b.Deadline()
		if now == 0 {
			t.Fatal("no timer runs after the send")
		}
		b.Timer(now)
		if n := b.tx.Len(); n != 3 {
			t.Fatalf("round %d: %d packets, want 3", round, n)
		}
		// A second expiry before the retransmission left changes nothing.
		b.Timer(now + T)
		if n := b.tx.Len(); n != 3 || len(b.done) != 0 {
			t.Fatalf("round %d, not sent yet: %d packets, completions %v", round, n, b.done)
		}
		send()
	}
	b.Timer(b.Deadline())
	if len(b.done) != 1 || b.done[0].Status != transport.StatusRetryExceeded {
		t.Fatalf("completions %v, want one %v", b.done, transport.StatusRetryExceeded)
	}
}
