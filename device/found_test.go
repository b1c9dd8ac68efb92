package device_test

import (
	"testing"

	"github.com/softnic/softnic/device"
)

// TestFoundEventToNobody: a completion queue without channel and handler has delivered no events, however often it was
// armed.
func TestFoundEventToNobody(t *testing.T) {
	h := lone(t, device.Options{})
	cq := h.newCQ(device.CQInit{Entries: 16})
	q := h.qpOn(cq, cq)
	cq.Arm(false)
	flushed(t, q, 1)
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	if n, err := cq.Destroy(); n != 0 || err != nil {
		t.Errorf("%d events delivered, %v", n, err)
	}
}

// TestFoundXRCQueueForQP: a shared receive queue of an XRC domain is for targets (kernel, core/uverbs_cmd.c:create_qp).
func TestFoundXRCQueueForQP(t *testing.T) {
	h := lone(t, device.Options{})
	x, err := h.ctx.AllocXRCD()
	if err != nil {
		t.Fatal(err)
	}
	s, err := h.pd.CreateSRQ(device.SRQInit{MaxWR: 4, XRCD: x, CQ: h.cq})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: h.cq, RecvCQ: h.cq, SRQ: s}); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("%v, want EINVAL", err)
	}
}

// TestFoundLimitOfDeadQueue: modify of a shared receive queue that is destroyed is refused.
func TestFoundLimitOfDeadQueue(t *testing.T) {
	h := lone(t, device.Options{})
	s, err := h.pd.CreateSRQ(device.SRQInit{MaxWR: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := s.SetLimit(1); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("%v, want EINVAL", err)
	}
}

// TestFoundNegativeSGE: a number of entries below 0 is refused, as create_qp refuses it.
func TestFoundNegativeSGE(t *testing.T) {
	h := lone(t, device.Options{})
	if _, err := h.pd.CreateSRQ(device.SRQInit{MaxWR: 4, MaxSGE: -1}); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("%v, want EINVAL", err)
	}
}

// TestFoundNoRequest: no request is a wrong argument, and leaves the queue pair usable.
func TestFoundNoRequest(t *testing.T) {
	h := lone(t, device.Options{})
	q := h.qpOn(h.cq, h.cq)
	s, err := h.pd.CreateSRQ(device.SRQInit{MaxWR: 4})
	if err != nil {
		t.Fatal(err)
	}
	setState(t, q, device.StateErr) // sends are taken
	for _, c := range []struct {
		name string
		f    func() error
	}{
		{"post_send", func() error { return q.PostSend(nil) }},
		{"post_recv", func() error { return q.PostRecv(nil) }},
		{"modify_qp", func() error { return q.Modify(nil, device.AttrState) }},
		{"post_srq_recv", func() error { return s.PostRecv(nil) }},
	} {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s: %v", c.name, r)
				}
			}()
			if err := c.f(); device.ErrnoOf(err) != device.EINVAL {
				t.Errorf("%s: %v, want EINVAL", c.name, err)
			}
		}()
	}
}

// TestFoundUCNeverConnected: what is posted to a UC queue pair that is in ERR and was never connected is flushed.
func TestFoundUCNeverConnected(t *testing.T) {
	h := lone(t, device.Options{})
	q := h.qp(device.UC, 4)
	if err := q.Modify(&device.QPAttr{State: device.StateInit, Port: 1}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess); err != nil {
		t.Fatal(err)
	}
	setState(t, q, device.StateErr)
	if err := q.PostSend(&device.SendWR{ID: 7, Op: device.OpSend, SGE: []device.SGE{h.mr(64).SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	if wc := h.wait(); wc.ID != 7 || wc.Status != device.StatusFlush {
		t.Errorf("%+v", wc)
	}
}

// TestFoundNumberUsedAgain: the end of a queue pair 0 takes no completions of the next one, which has its number.
func TestFoundNumberUsedAgain(t *testing.T) {
	h := lone(t, device.Options{})
	make1 := func() *device.QP {
		for {
			q, err := h.pd.CreateQP(device.QPInit{Type: device.SMI, SendCQ: h.cq, RecvCQ: h.cq, Cap: device.Cap{RecvWR: 1}})
			if err == nil {
				return q
			}
		}
	}
	q, lost := make1(), 0
	const rounds = 4000
	for range rounds {
		done := make(chan error)
		go func(q *device.QP) { done <- q.Destroy() }(q)
		q = make1()
		if err := q.Modify(&device.QPAttr{State: device.StateInit}, device.AttrState|device.AttrPKeyIndex|device.AttrQKey); err != nil {
			t.Fatal(err)
		}
		flushed(t, q, 1)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if h.cq.Poll(make([]device.WC, 1)) == 0 {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d completions of %d are lost", lost, rounds)
	}
}
