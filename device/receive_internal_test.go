package device

import (
	"testing"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/wire"
)

// TestForeignInRun: packets that follow each other to one queue pair are taken together, but each must be for an address of the device.
func TestForeignInRun(t *testing.T) {
	_, b := twoPolled(t)
	batch := link.NewBatch(16)
	var want []wire.Fault
	for i, dst := range []string{"10.0.0.2", "10.0.0.2", "10.0.0.9", "10.0.0.9", "10.0.0.2"} {
		f := linktest.Frame(linktest.Send(linktest.Path("10.0.0.1", dst), b.qp.num, 1000, []byte{byte(i), 0, 0, 0}))
		batch.Packets = append(batch.Packets, link.Packet{Frame: f})
		if dst == "10.0.0.9" {
			want = append(want, wire.NoAddress)
		} else {
			want = append(want, wire.OK)
		}
	}
	b.dev.receive(batch, nil)
	for i, w := range want {
		if f := batch.Packets[i].Fault; (f == wire.NoAddress) != (w == wire.NoAddress) || f < wire.NoAddress && f != wire.OK {
			t.Errorf("packet %d: %v", i, f)
		}
	}
}
