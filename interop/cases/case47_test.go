package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 47, with the Go API, where a batch is one Poll (ibv_start_poll and its like are in interop/stock: TestExtendedCQ and
// TestCase47_TwoThreads; two goroutines: TestCase47_TwoPollers in package device). A poll that finds nothing loses nothing that
// comes later, and a queue pair that is destroyed between two polls takes its completions along, and no others.
func TestCase47_Batches(t *testing.T) {
	setup := func(t *testing.T) (l *lab, cq *device.CQ, c [2]*conn, message func(i int, id uint64)) {
		l = newLab(t, labConfig{})
		cq = must(l.ctx.CreateCQ(device.CQInit{Entries: 6}))
		var psn [2]uint32
		for i := range c {
			c[i] = l.rc(func(o *rcOptions) { o.recvCQ, o.QPN = cq, nicQP+uint32(i) })
		}
		return l, cq, c, func(i int, id uint64) {
			t.Helper()
			c[i].recv(id, nil, 0)
			c[i].gets(peer.SendOnly(c[i].o.QPN, 0x200+psn[i], nil))
			psn[i]++
			l.take()
		}
	}
	polled := func(t *testing.T, cq *device.CQ, most int, want ...string) {
		t.Helper()
		wc := make([]device.WC, most)
		sameList(t, "completions", briefWC(wc[:cq.Poll(wc)]), append([]string{}, want...))
	}
	bubble(t, "nothing there", func(t *testing.T) {
		_, cq, _, message := setup(t)
		polled(t, cq, 2)
		polled(t, cq, 0)
		for id := range uint64(10) { // the ring wraps
			message(0, id)
			polled(t, cq, 1, fmt.Sprintf("%d SUCCESS RECV 0", id))
			polled(t, cq, 1)
			polled(t, cq, 3)
		}
		message(0, 10)
		message(0, 11)
		polled(t, cq, 4, "10 SUCCESS RECV 0", "11 SUCCESS RECV 0")
		polled(t, cq, 4)
	})
	for _, wrapped := range []int{0, 2, 3, 5} {
		bubble(t, fmt.Sprintf("destroyed between two polls, %d polled before", wrapped), func(t *testing.T) {
			_, cq, c, message := setup(t)
			for id := range wrapped {
				message(0, uint64(id))
			}
			for id := range wrapped {
				polled(t, cq, 1, fmt.Sprintf("%d SUCCESS RECV 0", id))
			}
			for i, id := range []uint64{10, 20, 11, 21, 12, 22} {
				message(i%2, id)
			}
			polled(t, cq, 1, "10 SUCCESS RECV 0")
			want(t, "destroy_qp", c[1].qp.Destroy(), nil)
			polled(t, cq, 6, "11 SUCCESS RECV 0", "12 SUCCESS RECV 0")
			polled(t, cq, 6)
			var all []string
			for id := range uint64(6) { // all places are free
				message(0, 30+id)
				all = append(all, fmt.Sprintf("%d SUCCESS RECV 0", 30+id))
			}
			polled(t, cq, 7, all...)
			_, err := cq.Destroy()
			errno(t, err, device.EBUSY) // of the queue pair that is left
			want(t, "destroy_qp", c[0].qp.Destroy(), nil)
			_, err = cq.Destroy()
			want(t, "destroy_cq", err, nil)
		})
	}
}
