package device

import (
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
)

// heldMemory is not written to before it is let go.
type heldMemory struct {
	Memory
	held chan struct{}
}

func (m *heldMemory) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (m *heldMemory) WriteV([]transport.Extent) error {
	<-m.held
	return nil
}

// TestReceiverDoesNotFillLoop: who receives sends nothing to the device itself while many packets wait there, but leaves it
// to the queue pair's goroutine, which can wait.
func TestReceiverDoesNotFillLoop(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	addr := netip.MustParsePrefix("192.0.2.1/24")
	end, _ := pipe.New(pipe.Config{Addrs: []netip.Prefix{addr}}, pipe.Config{})
	dev, err := Open(end, Options{})
	must(err)
	defer dev.Close()
	ctx := dev.NewContext()
	pd, _ := ctx.AllocPD()
	cq, _ := ctx.CreateCQ(CQInit{Entries: 4096})
	var q [3]*QP // the last sends to the first, as does the second
	for i := range q {
		q[i], err = pd.CreateQP(QPInit{Type: UC, SendCQ: cq, RecvCQ: cq, Cap: Cap{SendWR: 256, RecvWR: 256}})
		must(err)
	}
	for i := range q {
		must(q[i].Connect(1, q[max(1-i, 0)].Address(1, 1), ConnectOptions{}))
	}
	mem := &heldMemory{NewMemory(make([]byte, 4096)), make(chan struct{})}
	dst, err := pd.RegMemory(mem, 0x1000, 4096, LocalWrite)
	must(err)
	src, err := pd.RegMR(make([]byte, 64<<10), 0)
	must(err)
	must(q[0].PostRecv(&RecvWR{SGE: []SGE{dst.SGE(0, 4096)}}))
	posted := make(chan error)
	go func() {
		list := []*SendWR{{Op: OpSend, SGE: []SGE{src.SGE(0, 100)}}}
		for range 100 {
			list = append(list, &SendWR{Op: OpWrite, SGE: []SGE{src.SGE(0, 64<<10)}})
		}
		posted <- q[1].PostSendList(list...)
	}()
	for deadline := time.Now().Add(10 * time.Second); !dev.port.Crowded(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the loop does not fill")
		}
	}
	last := q[2]
	last.mu.Lock()
	last.sq.push(&SendWR{Op: OpWrite, Flags: Signaled, SGE: []SGE{src.SGE(0, 100)}}, false)
	last.eng.Doorbell(dev.now())
	before := dev.counters.Load(stats.SentPkts)
	last.leave(dev.now(), maxBursts, false)
	if n := dev.counters.Load(stats.SentPkts); n != before {
		t.Errorf("%d packets were sent", n-before)
	}
	close(mem.held)
	must(<-posted)
	var wc [1]WC
	for deadline := time.Now().Add(10 * time.Second); cq.Poll(wc[:]) == 0 || wc[0].QPN != last.num; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it was not sent at all")
		}
	}
}
