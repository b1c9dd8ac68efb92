package device_test

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
)

// stuck is a link that does not send until it may.
type stuck struct {
	link.Endpoint
	may chan struct{}
}

func (s *stuck) Send(f []*link.Frame) error {
	<-s.may
	return s.Endpoint.Send(f)
}

// TestCloseWaitsForDestroy: the end of a context waits for a queue pair that somebody is destroying, and that is
// still sending.
func TestCloseWaitsForDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, _ := pipe.New(pipe.Config{Name: "a", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{Name: "b"})
		s := &stuck{end, make(chan struct{})}
		a := newHost(t, s, device.Options{})
		q := a.qp(device.UD, 4)
		if err := q.Activate(7, 0); err != nil {
			t.Fatal(err)
		}
		ah, err := a.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), SGIDIndex: 1})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = q.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("abc"), AH: ah, RemoteQPN: 99})
		}()
		synctest.Wait()
		go func() { _ = q.Destroy() }()
		synctest.Wait()
		closed := false
		go func() {
			_ = a.ctx.Close()
			closed = true
		}()
		synctest.Wait()
		if closed {
			t.Error("Close has returned while the queue pair is sending")
		}
		close(s.may)
		synctest.Wait()
		if o := a.ctx.Objects(); !closed || o != (device.Objects{}) {
			t.Errorf("closed %v, left %+v", closed, o)
		}
	})
}

// TestHeldReceiveIsFlushed: a datagram queue pair in ERR completes the receive that it has taken from a shared queue.
func TestHeldReceiveIsFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
		srq, err := b.pd.CreateSRQ(device.SRQInit{MaxWR: 16})
		if err != nil {
			t.Fatal(err)
		}
		q, err := b.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq})
		if err != nil {
			t.Fatal(err)
		}
		s := a.qp(device.UD, 4)
		if err := q.Activate(7, 0); err != nil {
			t.Fatal(err)
		}
		if err := s.Activate(7, 0); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(2) {
			if err := srq.PostRecv(&device.RecvWR{ID: i, SGE: []device.SGE{b.mr(64).SGE(0, 64)}}); err != nil {
				t.Fatal(err)
			}
		}
		ah, err := a.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), SGIDIndex: 1})
		if err != nil {
			t.Fatal(err)
		}
		// Too long for the receive, which stays taken.
		if err := s.PostSend(&device.SendWR{Op: device.OpSend, SGE: []device.SGE{a.mr(100).SGE(0, 100)}, AH: ah, RemoteQPN: q.Num(), RemoteQKey: 7}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := q.Modify(&device.QPAttr{State: device.StateErr}, device.AttrState); err != nil {
			t.Fatal(err)
		}
		var wc [4]device.WC
		if n := b.cq.Poll(wc[:]); n != 1 || wc[0].ID != 0 || wc[0].Status != device.StatusFlush {
			t.Errorf("%d completions: %+v", n, wc[:n])
		}
	})
}
