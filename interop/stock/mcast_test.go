//go:build linux

package stock

import (
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// TestMulticast has programs on one daemon, and on two daemons of one host, attach to a group and send to it.
func TestMulticast(t *testing.T) {
	agents(t, func(t *testing.T, a, b *agent) {
		const qkey, grh, everybody = 0x11111111, 40, 0xFFFFFF
		group := netip.AddrFrom16(netip.MustParseAddr("239.77.3.1").As16()).StringExpanded()
		mcast := func(q *queuePair, group string, attach bool, want int) {
			t.Helper()
			if e := q.a.try(nil, "mcast", args{"qp": q.ID, "group": group, "attach": attach}); e.Errno != want || (e.Error != "") != (want != 0) {
				t.Fatalf("attach=%v %s: %v %d, want errno %d", attach, group, e.Error, e.Errno, want)
			}
		}
		near, far := a.regMR(1024, everyAccess), b.regMR(4096, everyAccess)
		tx := a.createQP("UD")
		rx := []*queuePair{b.createQP("UD"), b.createQP("UD"), b.createQP("UD")}
		for i, q := range append(rx, tx) {
			if q.datagrams(qkey); i < 2 {
				mcast(q, group, true, 0)
			}
		}
		ah := a.create("create_ah", args{"dgid": group, "hop_limit": 1})
		send := func(text string) {
			near.write(0, []byte(text))
			tx.send(sendWR{id: 1, op: "SEND", sge: []sge{near.sge(0, len(text))}, ah: &ah, remoteQPN: everybody, qkey: qkey})
			statuses(t, "send", tx.sent(1), [2]int{1, success})
		}
		for i, q := range rx {
			q.recv(uint64(i), far.sge(1024*i, 1024))
		}
		send("to both of you")
		for i, q := range rx[:2] {
			wc := q.received(1)[0]
			if wc.Status != success || wc.WrID != uint64(i) || wc.ByteLen != grh+14 || wc.SrcQP != tx.QPN || wc.Flags&wcGRH == 0 {
				t.Fatalf("completion %d: %+v", i, wc)
			}
			got := far.read(1024*i, grh+14)
			same(t, "datagram", got[grh:], []byte("to both of you"))
			src, dst := netip.AddrFrom4([4]byte(got[32:36])), netip.AddrFrom4([4]byte(got[36:40]))
			if got[20] != 0x45 || got[28] != 1 || src.String() != a.d.addr || dst.String() != "239.77.3.1" {
				t.Errorf("the GRH area is %x", got[:grh])
			}
		}
		// Not the third, which attaches now; the first leaves.
		mcast(rx[2], group, true, 0)
		mcast(rx[2], group, true, 0)
		mcast(rx[0], group, false, 0)
		rx[0].recv(9, far.sge(0, 1024))
		send("again")
		if wc := rx[2].received(1)[0]; wc.Status != success || wc.ByteLen != grh+5 || wc.WrID != 2 {
			t.Errorf("completion %+v", wc)
		}
		time.Sleep(50 * time.Millisecond)
		var none struct{ WCs []completion }
		b.call(&none, "poll", args{"cq": rx[0].rcq, "count": 1, "limit": 0})
		if len(none.WCs) != 0 {
			t.Errorf("heard after detach: %+v", none.WCs)
		}

		mcast(rx[0], group, false, int(syscall.EINVAL))
		mcast(rx[0], "::ffff:10.0.0.1", true, int(syscall.EINVAL))
		mcast(rx[0], "fe80::1", true, int(syscall.EINVAL))
		mcast(b.createQP("RC"), group, true, int(syscall.EINVAL))
		if e := b.try(nil, "destroy", args{"ids": []int{rx[2].ID}}); e.Errno != int(syscall.EBUSY) {
			t.Errorf("destroy while attached: %v %d", e.Error, e.Errno)
		}
		mcast(rx[1], group, false, 0)
		mcast(rx[2], group, false, 0)
	})
}
