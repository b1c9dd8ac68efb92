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
		n := 1 + r.IntN(2) // a second one is posted in the moment in which the ring has become quiet, however busy the machine is
		for range n {
			if err := b.qp.PostRecv(&RecvWR{}); err != nil {
				t.Fatal(err)
			}
			ring.posted.Add(1)
			if ring.quiet.Load() {
				quiet++
			} else if err := q.Doorbell(); err != nil {
				t.Fatal(err)
			}
		}
		// The program does not look at the link, and so leaves that to the receiver's goroutine.
		for done := 0; done < n; {
			if c := cq.take(make([]WC, 1)); c == 0 {
				runtime.Gosched()
			} else {
				done += c
			}
			if ctx.Err() != nil {
				t.Fatalf("message %d was not sent; %d were posted without a doorbell, the ring is quiet: %v", i, quiet, ring.quiet.Load())
			}
		}
		b.cq.take(make([]WC, 2))
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

// aQuietRing makes a queue pair of a, connected to nobody who answers, at whose ring only the caller looks; he has the receiver's drive.
func aQuietRing(t *testing.T, a, b *polledHost, typ QPType) (*quietRing, *QP) {
	t.Helper()
	ring := new(quietRing)
	q, err := a.pd.CreateQP(QPInit{Type: typ, SendCQ: a.cq, RecvCQ: a.cq, Cap: Cap{SendWR: 1024, RecvWR: 1}, SendRing: ring, RecvRing: noRecvs{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Connect(1, b.qp.Address(1, 200), ConnectOptions{Timeout: 20}); err != nil {
		t.Fatal(err)
	}
	a.dev.rx.drive.Lock()
	q.mu.Lock()
	q.quiet = true
	ring.Quiet(true)
	q.mu.Unlock()
	a.dev.rx.bells.add(q)
	return ring, q
}

// TestFullWindowIsNoNews: requests that cannot be sent yet do not keep the receiver looking for ever.
func TestFullWindowIsNoNews(t *testing.T) {
	for name, typ := range map[string]QPType{"window": RC, "SQD": UC} {
		t.Run(name, func(t *testing.T) {
			a, b := twoPolled(t)
			ring, q := aQuietRing(t, a, b, typ)
			defer a.dev.rx.drive.Unlock()
			if name == "SQD" {
				if err := q.Modify(&QPAttr{State: StateSQD}, AttrState); err != nil {
					t.Fatal(err)
				}
			}
			ring.posted.Add(1000)
			looks := 0
			for a.dev.rx.bells.look() {
				if looks++; looks > 1000 {
					t.Fatal("it looks on, though nothing can be taken")
				}
			}
			if !ring.Pending() {
				t.Fatal("all was taken")
			}
		})
	}
}

// TestFailedLinkRings: where the link has failed nobody looks at rings any more, and programs have to ring.
func TestFailedLinkRings(t *testing.T) {
	a, b := twoPolled(t)
	ring, q := aQuietRing(t, a, b, UC)
	a.end.broken.Store(true)
	a.dev.rx.round()
	a.dev.rx.drive.Unlock()
	if ring.quiet.Load() || !a.dev.rx.bells.empty() {
		t.Error("the program is not told to ring again")
	}
	a.dev.rx.away.Store(false)
	for range 3 {
		if err := q.Doorbell(); err != nil {
			t.Fatal(err)
		}
	}
	if ring.quiet.Load() {
		t.Error("the program is told that it need not ring")
	}
}

// TestDestroyedRing: the ring of a queue pair that is destroyed is not looked at, and not kept.
func TestDestroyedRing(t *testing.T) {
	a, b := twoPolled(t)
	ring, q := aQuietRing(t, a, b, UC)
	a.dev.rx.bells.look()
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	if !a.dev.rx.bells.empty() || a.dev.rx.bells.due[:1][0] != nil {
		t.Error("the receiver keeps the queue pair")
	}
	ring.posted.Add(1)
	if q.lookAtRing(true); !ring.quiet.Load() || ring.fetched != 0 { // where the receiver was about to: the ring may be another's by now
		t.Error("the ring was touched")
	}
	a.dev.rx.drive.Unlock()
}

// TestDoorbellsAreNoLooks: programs that ring often do not poll the device, and the receiver's goroutine is not to believe it.
func TestDoorbellsAreNoLooks(t *testing.T) {
	a, b := twoPolled(t)
	_, q := aQuietRing(t, a, b, UC)
	a.dev.rx.drive.Unlock()
	before := a.dev.rx.looks.Load()
	if err := q.Doorbell(); err != nil {
		t.Fatal(err)
	}
	if a.dev.rx.looks.Load() != before {
		t.Errorf("%d looks", a.dev.rx.looks.Load()-before)
	}
}
