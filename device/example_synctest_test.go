package device_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
)

// TestExampleTwoNICs is an example in the form of a test: two NICs and a cable that loses a packet, under fake time. It is to be
// copied, and so needs nothing of the other files. Whatever is opened in the bubble is closed in it.
func TestExampleTwoNICs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := [2]*pipe.End{}
		ends[0], ends[1] = pipe.New(
			pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
			pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
		loss, err := impair.New("tx opcode=SEND_ONLY count=1 drop")
		if err != nil {
			t.Fatal(err)
		}
		var cq [2]*device.CQ
		var qp [2]*device.QP
		for i, opts := range []device.Options{{Link: link.PortOptions{Impair: loss}}, {}} {
			dev, err := device.Open(ends[i], opts)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			ctx := dev.NewContext()
			pd, err := ctx.AllocPD()
			if err != nil {
				t.Fatal(err)
			}
			if cq[i], err = ctx.CreateCQ(device.CQInit{Entries: 16}); err != nil {
				t.Fatal(err)
			}
			qp[i], err = pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq[i], RecvCQ: cq[i], SigAll: true, Cap: device.Cap{SendWR: 4, RecvWR: 4}})
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range qp {
			psn, peer := uint32(100+i), qp[1-i].Address(1, uint32(101-i))
			if err := qp[i].Connect(psn, peer, device.ConnectOptions{Timeout: 14}); err != nil {
				t.Fatal(err)
			}
		}

		if err := qp[1].PostRecv(&device.RecvWR{ID: 7}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := qp[0].PostSend(&device.SendWR{Op: device.OpSend}); err != nil {
			t.Fatal(err)
		}
		for i := range cq { // the ACK timeout passes at once, because everybody waits for it
			var wc [1]device.WC
			if _, err := cq[i].Wait(context.Background(), wc[:]); err != nil || wc[0].Err() != nil {
				t.Fatal(err, wc[0].Err())
			}
		}
		if late, timeout := time.Since(begin), 4096*time.Nanosecond<<14; late < timeout || late > 4*timeout {
			t.Errorf("the message came again after %v, the timeout is %v", late, timeout)
		}
	})
}
