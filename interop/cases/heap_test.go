package cases

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// heap is what is alive on the heap.
func heap() (bytes, objects int64) {
	runtime.GC()
	runtime.GC() // what finalizers and pools held in the first round
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.HeapObjects)
}

// steady runs a round often, and fails if more is alive afterwards than after the first times. It is not for tests
// that run beside others.
func steady(t *testing.T, times int, round func()) {
	t.Helper()
	for range times / 10 {
		round()
	}
	bytes, objects := heap()
	for range times {
		round()
	}
	b, o := heap()
	// A leak of anything that is as large as a pointer, in one round of eight, would be more.
	if b -= bytes; b > int64(times) {
		t.Errorf("%d bytes more on the heap after %d rounds", b, times)
	}
	if o -= objects; o > int64(times)/8 {
		t.Errorf("%d objects more on the heap after %d rounds", o, times)
	}
}

// Case 43: what a group's members drop, and what is copied for those that hear, is given back: the heap does not grow.
// Members with the wrong Q_Key, one that hears, one without a receive, one in RESET.
func TestCase43_Heap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, labConfig{})
		l.listener(qkey+1, group4)
		u, mr := l.listener(qkey, group4)
		none, _ := l.listener(qkey)
		for range 10 {
			l.p.Send(t, peer.UDSend(none.qp.Num(), 0, qkey, peerUD, nil))
		}
		l.settle()
		if err := none.qp.Attach(device.GIDOf(group4)); err != nil {
			t.Fatal(err)
		}
		reset, _ := l.listener(qkey, group4)
		reset.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
		f := peer.UDSend(groupQP, 0, qkey, peerUD, make([]byte, 100))
		f.Src, f.Dst = peer4, group4
		wc := make([]device.WC, 16)
		steady(t, 5000, func() {
			l.p.Send(t, f)
			l.settle()
			if n := u.rcq.Poll(wc); n != 1 || wc[0].Status != device.StatusSuccess {
				t.Fatalf("%d completions", n)
			}
			u.recv(wc[0].ID, mr.SGE(0, 200))
		})
		l.emits()
	})
}

// The same of a connection: requests, RNR NAKs, access of every kind, duplicates, and a READ whose answer is lost.
func TestCase23_Heap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(allOps)
		mr := l.mr(4096, every)
		wc := make([]device.WC, 16)
		in, out, msn := uint32(0x200), uint32(0x100), uint32(0)
		take := func(n int) {
			t.Helper()
			if got := len(l.take()); got != n {
				t.Fatalf("%d frames, want %d", got, n)
			}
		}
		steady(t, 1000, func() {
			f := peer.WriteOnlyImm(nicQP, in, mr.Addr(), mr.RKey(), 1, []byte("data"))
			c.gets(f)
			take(1) // RNR NAK
			c.recv(1, nil, 0)
			c.gets(f)
			take(1)
			c.gets(f) // a duplicate
			take(1)
			c.gets(peer.ReadRequest(nicQP, in+1, mr.Addr(), mr.RKey(), 2000), peer.FetchAdd(nicQP, in+3, mr.Addr(), mr.RKey(), 1))
			take(3)
			in += 4
			c.read(mr, 2000)
			c.send(mr, 8)
			take(2)
			c.gets(ack(out+2, msn+2)) // an implied NAK
			take(2)
			c.gets(readAnswer(out, msn+1, 1024, make([]byte, 2000))...)
			c.gets(ack(out+2, msn+2))
			l.settle()
			out, msn = out+3, msn+2
			if a, b := c.rcq.Poll(wc), c.scq.Poll(wc); a != 1 || b != 2 {
				t.Fatalf("%d and %d completions", a, b)
			}
		})
	})
}
