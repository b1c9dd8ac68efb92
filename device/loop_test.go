package device_test

import (
	"bytes"
	"testing"

	"github.com/softnic/softnic/device"
)

// TestLoopHoldsBack: a program that sends to its own device faster than that receives is held up: no packet is lost,
// also on a service that would not send it again.
func TestLoopHoldsBack(t *testing.T) {
	a, _ := twoHosts(t, 1500, device.Options{}, device.Options{})
	const messages, size = 200, 64 << 10 // 12,800 packets, three times what waits in the loop
	x, y := a.qp(device.UC, messages), a.qp(device.UC, messages)
	connect(t, x, y, 1, device.ConnectOptions{})
	src, dst := a.mr(size), a.mr(size)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 11)
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
	for range messages {
		a.ok(device.WCRecv)
	}
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("the last message is wrong")
	}
	for _, v := range a.dev.Port().Counters() {
		if v.Name == "loop_lost" && v.Value > 0 {
			t.Errorf("%d packets lost", v.Value)
		}
	}
}
