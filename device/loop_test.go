package device_test

import (
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// lateMemory stores nothing until all was posted, or half a second has passed because that is held up.
type lateMemory struct {
	device.Memory
	posted chan struct{}
	once   sync.Once
}

func (m *lateMemory) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (m *lateMemory) WriteV([]transport.Extent) error {
	m.once.Do(func() {
		select {
		case <-m.posted:
		case <-time.After(time.Second / 2):
		}
	})
	return nil
}

// TestLoopHoldsBack: a program that sends to its own device faster than that receives is held up: no packet is lost,
// also on a service that would not send it again.
func TestLoopHoldsBack(t *testing.T) {
	a, _ := twoHosts(t, 1500, device.Options{}, device.Options{})
	const messages, size = 200, 64 << 10 // 12,800 packets, three times what waits in the loop
	x, y := a.qp(device.UC, messages), a.qp(device.UC, messages)
	connect(t, x, y, 1, device.ConnectOptions{})
	src := a.mr(size)
	posted := make(chan struct{})
	mem := &lateMemory{Memory: device.NewMemory(make([]byte, size)), posted: posted}
	dst, err := a.pd.RegMemory(mem, 0x10000, size, device.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	for range messages {
		if err := y.PostRecv(&device.RecvWR{SGE: []device.SGE{dst.SGE(0, size)}}); err != nil {
			t.Fatal(err)
		}
	}
	for range messages {
		if err := x.PostSend(&device.SendWR{Op: device.OpSend, SGE: []device.SGE{src.SGE(0, size)}}); err != nil {
			t.Fatal(err)
		}
	}
	close(posted)
	for range messages {
		a.ok(device.WCRecv)
	}
	for _, v := range a.dev.Port().Counters() {
		if v.Name == "loop_lost" && v.Value > 0 {
			t.Errorf("%d packets lost", v.Value)
		}
	}
}
