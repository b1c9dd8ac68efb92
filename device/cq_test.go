package device_test

import (
	"testing"

	"github.com/softnic/softnic/device"
)

// TestArm: arming says whether completions are there already; asking for any event holds when only solicited ones are asked for
// later; the end of a queue tells how many events were taken, takes back the others, and leaves the channel free.
func TestArm(t *testing.T) {
	h := lone(t, device.Options{})
	ch, err := h.ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	cq := h.newCQ(device.CQInit{Entries: 16, Channel: ch})
	other := h.newCQ(device.CQInit{Entries: 16, Channel: ch})
	a, b := h.qp(device.UD, 4), h.qp(device.UD, 4)
	for _, x := range []struct {
		q  **device.QP
		cq *device.CQ
	}{{&a, cq}, {&b, other}} {
		if err := (*x.q).Destroy(); err != nil {
			t.Fatal(err)
		}
		if *x.q, err = h.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: x.cq, RecvCQ: x.cq, Cap: device.Cap{SendWR: 4, RecvWR: 4}}); err != nil {
			t.Fatal(err)
		}
		if err := (*x.q).Activate(5, 1); err != nil {
			t.Fatal(err)
		}
	}
	ah, err := h.pd.CreateAH(device.AHAttr{DGID: a.Address(1, 0).GID, SGIDIndex: 1})
	if err != nil {
		t.Fatal(err)
	}
	send := func(q *device.QP) { // one completion, not solicited
		t.Helper()
		if err := q.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Signaled, AH: ah, RemoteQPN: 0xFFFFF0}); err != nil {
			t.Fatal(err)
		}
	}
	taken := func(want *device.CQ) {
		t.Helper()
		if got, ok := ch.TryGet(); ok != (want != nil) || got != want {
			t.Errorf("event %v of %p, want one of %p", ok, got, want)
		}
	}
	if cq.Arm(false) {
		t.Error("completions in an empty queue")
	}
	cq.Arm(true)
	send(a)
	taken(cq)
	if !cq.Arm(true) {
		t.Error("no completion, and there is one")
	}
	send(a)
	taken(nil) // it is not solicited
	cq.Arm(false)
	send(a)
	other.Arm(false)
	send(b)
	// One of cq was taken, one is there.
	for _, x := range []struct {
		q  *device.QP
		cq *device.CQ
		n  int
	}{{a, cq, 1}, {b, other, 1}} {
		if x.cq == other {
			taken(other)
			taken(nil)
		}
		if err := x.q.Destroy(); err != nil {
			t.Fatal(err)
		}
		if n, err := x.cq.Destroy(); n != x.n || err != nil {
			t.Errorf("%d events were taken, want %d; %v", n, x.n, err)
		}
	}
	if err := ch.Destroy(); err != nil {
		t.Error(err)
	}
}

// TestTwoQueues: a queue pair stands on both of its completion queues, whichever is which.
func TestTwoQueues(t *testing.T) {
	h := lone(t, device.Options{})
	send, recv := h.newCQ(device.CQInit{Entries: 1}), h.newCQ(device.CQInit{Entries: 1})
	q := h.qpOn(send, recv)
	for name, cq := range map[string]*device.CQ{"send": send, "receive": recv} {
		_, err := cq.Destroy()
		errno(t, name, err, device.EBUSY)
	}
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	for name, cq := range map[string]*device.CQ{"send": send, "receive": recv} {
		if _, err := cq.Destroy(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
