//go:build linux

package guest

import (
	"testing"
	"time"

	"github.com/softnic/softnic/device"
)

// TestOpsDrain takes a send queue to SQD while the kernel's device still owes answers: what was begun ends, what is
// posted waits, what the peer asks for is done, and in RTS it goes on.
func TestOpsDrain(t *testing.T) {
	needGuest(t)
	l := newOps(t, "drain.pcap")
	p := l.connect(opsConn{minRNR: 16})
	const n, size = 1, 900 // one is begun: behind an RNR NAK no other is
	send := func(i int) {
		off := opsSource + i*4096
		p.soft.put(off, seeded(uint64(i), make([]byte, size)))
		p.soft.post(opsWR{ID: uint64(i), Op: device.OpSend, SGE: []span{{off, size}}})
	}
	recv := func(i int) { p.kern.recv(uint64(i), span{opsTarget + i*4096, size}) }
	arrived := func(i int) {
		t.Helper()
		if wc := sent(t, p.soft, "SEND", device.StatusSuccess); wc.ID != uint64(i) {
			t.Errorf("completion %d, want %d", wc.ID, i)
		}
		received(t, p.kern, "SEND", device.StatusSuccess)
		same(t, "message", p.kern.get(opsTarget+i*4096, size), seeded(uint64(i), make([]byte, size)))
	}
	mark := l.tape.mark()
	for i := range n {
		send(i)
	}
	// The kernel has no receive: it answers with RNR NAKs, and the queue cannot drain.
	waitFor(t, patience, "an RNR NAK", func() bool { return l.rnrs(mark, p.kern) >= 1 })
	if err := p.soft.q.Modify(&device.QPAttr{State: device.StateSQD, SQDNotify: true}, device.AttrState|device.AttrSQDNotify); err != nil {
		t.Fatal(err)
	}
	if a, _ := p.soft.q.Query(); a.State != device.StateSQD || !a.SQDraining {
		t.Errorf("state %v, draining %v; want SQD, true", a.State, a.SQDraining)
	}
	l.events(t)
	for i := n; i < n+2; i++ {
		send(i)
	}
	opsMessage(t, p.kern, p.soft, device.OpWrite, 3000, 77, 0)
	opsMessage(t, p.kern, p.soft, device.OpRead, 3000, 78, 0)
	for i := range n + 1 { // one more than was begun
		recv(i)
	}
	for i := range n {
		arrived(i)
	}
	l.events(t, device.EventSQDrained)
	if a, _ := p.soft.q.Query(); a.State != device.StateSQD || a.SQDraining {
		t.Errorf("state %v, draining %v; want SQD, false", a.State, a.SQDraining)
	}
	if wc := p.soft.polled(true, 1, 50*time.Millisecond); len(wc) > 0 {
		t.Errorf("a request began in SQD: %+v", wc)
	}
	if err := p.soft.q.Modify(&device.QPAttr{State: device.StateRTS}, device.AttrState); err != nil {
		t.Fatal(err)
	}
	recv(n + 1)
	arrived(n)
	arrived(n + 1)
	opsMessage(t, p.soft, p.kern, device.OpRead, 3000, 79, 0)
	p.close()
	l.end(nil)
}

// TestOpsResize changes queues that hold something, with the kernel's device as the peer: nothing is lost, and all stays
// in order.
func TestOpsResize(t *testing.T) {
	needGuest(t)
	l := newOps(t, "resize.pcap")
	srq, err := l.n.pd.CreateSRQ(device.SRQInit{MaxWR: 8, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := l.connect(opsConn{srq: srq, minRNR: 16})
	const size = 1500
	posted := 0
	recv := func(n int) {
		t.Helper()
		for range n {
			if err := srq.PostRecv(&device.RecvWR{ID: uint64(posted), SGE: []device.SGE{l.mem.SGE(opsTarget+posted%32*2048, size)}}); err != nil {
				t.Fatal(err)
			}
			posted++
		}
	}
	sends, got := 0, 0
	send := func(n int) {
		t.Helper()
		for range n {
			off := opsSource + sends%16*2048
			p.kern.put(off, seeded(uint64(sends), make([]byte, size)))
			p.kern.post(opsWR{Op: device.OpSend, SGE: []span{{off, size}}})
			sent(t, p.kern, "SEND", device.StatusSuccess)
			sends++
		}
	}
	take := func(n int) {
		t.Helper()
		for _, wc := range wcs(t, p.soft, false, n) {
			if wc.Status != device.StatusSuccess || wc.ID != uint64(got) {
				t.Fatalf("receive %d: %+v", got, wc)
			}
			same(t, "message", p.soft.get(opsTarget+got%32*2048, size), seeded(uint64(got), make([]byte, size)))
			got++
		}
	}
	recv(8)
	send(3)
	if err := srq.Resize(4); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("5 receives in 4 places: %v", err)
	}
	if err := srq.Resize(24); err != nil {
		t.Fatal(err)
	}
	recv(19)
	if err := srq.PostRecv(&device.RecvWR{}); device.ErrnoOf(err) != device.ENOMEM {
		t.Errorf("one receive too many: %v", err)
	}
	send(12)
	// 15 completions wait.
	if err := p.soft.rcq.Resize(14); device.ErrnoOf(err) != device.EINVAL {
		t.Errorf("15 completions in 14 places: %v", err)
	}
	if err := p.soft.rcq.Resize(15); err != nil {
		t.Fatal(err)
	}
	take(15)
	if err := p.soft.rcq.Resize(1000); err != nil {
		t.Fatal(err)
	}
	if err := srq.Resize(12); err != nil {
		t.Fatal(err)
	}
	send(12)
	take(12)
	p.close()
	if err := srq.Destroy(); err != nil {
		t.Error(err)
	}
	l.end(nil)
}
