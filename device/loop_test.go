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

// slowMemory is stored into slower than the other end sends.
type slowMemory struct{ device.Memory }

func (m *slowMemory) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (m *slowMemory) WriteV([]transport.Extent) error {
	for t := time.Now(); time.Since(t) < 3*time.Microsecond; {
	}
	return nil
}

// loopLost is how many packets to the device itself found no room.
func loopLost(t *testing.T, h *host) uint64 {
	for _, v := range h.dev.Port().Counters() {
		if v.Name == "loop_lost" {
			return v.Value
		}
	}
	t.Fatal("no counter loop_lost")
	return 0
}

// TestLoopBothWays: two queue pairs of one device send to each other, so that who receives has packets to send.
func TestLoopBothWays(t *testing.T) {
	a, _ := twoHosts(t, 1500, device.Options{}, device.Options{})
	const messages, size = 400, 64 << 10
	x, y := a.qp(device.UC, messages), a.qp(device.UC, messages)
	connect(t, x, y, 1, device.ConnectOptions{})
	src := a.mr(size)
	dst, err := a.pd.RegMemory(&slowMemory{device.NewMemory(make([]byte, size))}, 0x10000, size, device.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	var list []*device.SendWR
	for range messages {
		list = append(list, &device.SendWR{Op: device.OpSend, SGE: []device.SGE{src.SGE(0, size)}})
		for _, q := range []*device.QP{x, y} {
			if err := q.PostRecv(&device.RecvWR{SGE: []device.SGE{dst.SGE(0, size)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, q := range []*device.QP{x, y} {
		go func() {
			if err := q.PostSendList(list...); err != nil {
				t.Error(err)
			}
		}()
	}
	for range 2 * messages {
		a.ok(device.WCRecv)
	}
	if n := loopLost(t, a); n > 0 {
		t.Errorf("%d packets lost", n)
	}
}

// TestLoopBehindOthers: datagrams to the device itself are held up also where the first of a burst goes elsewhere.
func TestLoopBehindOthers(t *testing.T) {
	a, b := twoHosts(t, 4200, device.Options{}, device.Options{})
	const n = 100 * 64
	var err error
	if a.cq, err = a.ctx.CreateCQ(device.CQInit{Entries: n}); err != nil { // nobody polls until all is posted
		t.Fatal(err)
	}
	x, y := a.qp(device.UD, n), a.qp(device.UD, n)
	for _, q := range []*device.QP{x, y} {
		if err := q.Activate(5, 1); err != nil {
			t.Fatal(err)
		}
	}
	var ah [2]*device.AH
	for i, h := range []*host{a, b} {
		gid, err := h.dev.QueryGID(1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if ah[i], err = a.pd.CreateAH(device.AHAttr{DGID: gid, SGIDIndex: 1}); err != nil {
			t.Fatal(err)
		}
	}
	src := a.mr(1024)
	dst, err := a.pd.RegMemory(&slowMemory{device.NewMemory(make([]byte, 2048))}, 0x10000, 2048, device.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	var list []*device.SendWR
	own := 0
	for i := range n {
		wr := &device.SendWR{Op: device.OpSend, SGE: []device.SGE{src.SGE(0, 1024)}, AH: ah[0], RemoteQPN: y.Num(), RemoteQKey: 5}
		if i%64 == 0 {
			wr.AH = ah[1]
		} else if own++; true {
			if err := y.PostRecv(&device.RecvWR{SGE: []device.SGE{dst.SGE(0, 2048)}}); err != nil {
				t.Fatal(err)
			}
		}
		list = append(list, wr)
	}
	if err := x.PostSendList(list...); err != nil {
		t.Fatal(err)
	}
	for range own {
		a.ok(device.WCRecv)
	}
	if n := loopLost(t, a); n > 0 {
		t.Errorf("%d packets lost", n)
	}
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
	if n := loopLost(t, a); n > 0 {
		t.Errorf("%d packets lost", n)
	}
}
