package device_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
)

// A stepped device makes an event that moderation held back when its period has passed, and names that time.
func TestStepModerates(t *testing.T) {
	start := time.Unix(1000, 0)
	o := device.Options{Stepped: true, Clock: clock.NewManual(start)}
	ea, _ := pipe.New(pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{})
	a := newHost(t, ea, o)
	ch, err := a.ctx.CreateCompChannel()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := a.ctx.CreateCQ(device.CQInit{Entries: 8, Channel: ch})
	if err != nil {
		t.Fatal(err)
	}
	if err := cq.Moderate(8, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	qa, err := a.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 1, RecvWR: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := qa.Activate(1, 0); err != nil {
		t.Fatal(err)
	}
	ah, err := a.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), SGIDIndex: 1})
	if err != nil {
		t.Fatal(err)
	}
	cq.Arm(false)
	if err := qa.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Signaled, AH: ah, RemoteQPN: 17, RemoteQKey: 1}); err != nil {
		t.Fatal(err)
	}
	next, ok := a.dev.Step(start)
	if _, told := ch.TryGet(); told || !ok || !next.Equal(start.Add(time.Millisecond)) {
		t.Fatalf("next at %v, %v, event %v; want %v and none", next, ok, told, start.Add(time.Millisecond))
	}
	a.dev.Step(next.Add(-1))
	if _, told := ch.TryGet(); told {
		t.Error("the event comes too early")
	}
	a.dev.Step(next)
	if got, told := ch.TryGet(); !told || got != cq {
		t.Error("the event does not come")
	}
}
