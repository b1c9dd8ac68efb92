package device

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softnic/softnic/transport"
)

// quietRing is a send ring in memory whose program is the test. Its requests are SENDs of nothing.
type quietRing struct {
	posted  atomic.Uint32 // the program's
	quiet   atomic.Bool   // the device's, for the program
	becomes atomic.Int32  // how often that was
	fetched uint32
}

func (r *quietRing) Fetch(wr *SendWR) (Status, bool) {
	if r.fetched == r.posted.Load() {
		return StatusSuccess, false
	}
	r.fetched++
	*wr = SendWR{Op: transport.OpSend, ID: uint64(r.fetched), Flags: Signaled}
	return StatusSuccess, true
}

func (r *quietRing) Retire(int)    {}
func (r *quietRing) Clear()        {}
func (r *quietRing) Pending() bool { return r.fetched != r.posted.Load() }
func (r *quietRing) Quiet(on bool) {
	if on {
		r.becomes.Add(1)
	}
	r.quiet.Store(on)
}

// noRecvs is a receive ring without receives.
type noRecvs struct{}

func (noRecvs) Fetch(*RecvWR) bool { return false }
func (noRecvs) Retire(int)         {}
func (noRecvs) Clear()             {}

// TestQuietRings: a program that posts often need not ring, and is never forgotten: what it posts without a doorbell is sent, also
// where the device stops looking at that moment, and where the queue pair goes.
func TestQuietRings(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a, b := twoPolled(t)
	ring := new(quietRing)
	cq, err := a.ctx.CreateCQ(CQInit{Entries: 64})
	if err != nil {
		t.Fatal(err)
	}
	q, err := a.pd.CreateQP(QPInit{Type: RC, SendCQ: cq, RecvCQ: cq, Cap: Cap{SendWR: 32, RecvWR: 1}, SendRing: ring, RecvRing: noRecvs{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Connect(1, b.qp.Address(1, 200), ConnectOptions{Timeout: 20}); err != nil {
		t.Fatal(err)
	}
	if err := b.qp.Modify(&QPAttr{State: StateReset}, AttrState); err != nil {
		t.Fatal(err)
	}
	if err := b.qp.Connect(200, q.Address(1, 1), ConnectOptions{Timeout: 20}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const messages = 2000
	quiet := 0
	for i, end := 0, time.Now().Add(20*time.Second); i < messages || (quiet == 0 || ring.becomes.Load() < 2) && time.Now().Before(end); i++ {
		if err := b.qp.PostRecv(&RecvWR{}); err != nil {
			t.Fatal(err)
		}
		ring.posted.Add(1)
		if ring.quiet.Load() {
			quiet++
		} else if err := q.Doorbell(); err != nil {
			t.Fatal(err)
		}
		// The program does not look at the link, and so leaves that to the receiver's goroutine.
		for done := 0; done == 0; {
			if done = cq.take(make([]WC, 1)); done == 0 {
				runtime.Gosched()
			}
			if ctx.Err() != nil {
				t.Fatalf("message %d was not sent; %d were posted without a doorbell, the ring is quiet: %v", i, quiet, ring.quiet.Load())
			}
		}
		b.cq.take(make([]WC, 1))
		if r.IntN(20) == 0 {
			time.Sleep(time.Duration(r.IntN(500)) * time.Microsecond)
		}
	}
	if quiet == 0 || ring.becomes.Load() < 2 {
		t.Errorf("%d were posted without a doorbell, %d times it became quiet", quiet, ring.becomes.Load())
	}
	for end := time.Now().Add(20 * time.Second); ring.quiet.Load(); {
		if time.Now().After(end) {
			t.Fatal("nobody posts, and the ring stays quiet")
		}
		time.Sleep(time.Millisecond)
	}
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
}

// TestLastLook: what was posted without a doorbell is sent when programs have to ring again.
func TestLastLook(t *testing.T) {
	a, b := twoPolled(t)
	ring := new(quietRing)
	q, err := a.pd.CreateQP(QPInit{Type: UC, SendCQ: a.cq, RecvCQ: a.cq, Cap: Cap{SendWR: 32, RecvWR: 1}, SendRing: ring, RecvRing: noRecvs{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Connect(1, b.qp.Address(1, 200), ConnectOptions{}); err != nil {
		t.Fatal(err)
	}
	rx := a.dev.rx
	rx.drive.Lock() // only this test looks
	defer rx.drive.Unlock()
	q.mu.Lock()
	q.quiet = true
	ring.Quiet(true)
	q.mu.Unlock()
	rx.bells.add(q)
	before := len(a.end.calls())
	ring.posted.Add(1)
	if !rx.bells.ring() || len(a.end.calls()) != before+1 {
		t.Error("it was not sent")
	}
	if ring.quiet.Load() || !rx.bells.empty() {
		t.Error("the program is not told to ring again")
	}
	ring.posted.Add(1)
	if rx.bells.look() || len(a.end.calls()) != before+1 {
		t.Error("nobody has rung, and it was sent")
	}
}
