package cases

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// busy has the flusher of a queue pair held for a second by a SEND of 64 bytes, from whose memory the first read is slow.
func (c *conn) busy() {
	c.t.Helper()
	mem := &hookMemory{hook: func(n int) {
		if n == 1 {
			time.Sleep(time.Second)
		}
	}}
	slow := must(c.pd.RegMemory(mem, remoteVA, 64, 0))
	go c.send(slow, 64)
	synctest.Wait()
}

// What waits to be sent behind something that cannot be read any more is not sent: no answer passes a READ response, and
// the requester leaves out no PSN.
func TestBehindWhatIsLost(t *testing.T) {
	setup := func(t *testing.T) (l *lab, c, other *conn) {
		l = newLab(t, labConfig{})
		c = l.rc(func(o *rcOptions) { o.Access = everyQP })
		l.destQP = 0
		other = l.second(nil)
		return l, c, other
	}
	bubble(t, "answers", func(t *testing.T) {
		l, c, other := setup(t)
		mr := l.mr(64, all)
		_, key := other.fast(make([]byte, 16), all)
		c.busy()
		c.recv(1, mr, 64)
		c.gets(peer.ReadRequest(nicQP, 0x200, remoteVA, key, 16), peer.ReadRequest(nicQP, 0x201, mr.Addr(), mr.RKey(), 16), peer.SendOnly(nicQP, 0x202, nil))
		l.settle()
		other.inv(key)
		time.Sleep(2 * time.Second)
		var got []string
		for _, f := range l.take() {
			if f.Op != peer.RC|peer.OpSendOnly {
				got = append(got, brief(f))
			}
		}
		sameList(t, "answers", got, []string{"ACKNOWLEDGE 000200 62 m3"})
		c.received("1 SUCCESS RECV 0")
		c.state(device.StateErr)
		l.events("QP_ACCESS_ERR")
	})
	bubble(t, "requests", func(t *testing.T) {
		l, c, other := setup(t)
		mr := l.mr(64, all)
		_, key := other.fast(make([]byte, 16), all)
		c.busy()
		wr := device.SendWR{ID: 7, Op: device.OpSend, SGE: []device.SGE{{Addr: remoteVA, Length: 8, LKey: key}}}
		next := device.SendWR{ID: 8, Op: device.OpSend, SGE: []device.SGE{mr.SGE(0, 9)}}
		if err := c.qp.PostSendList(&wr, &next); err != nil {
			t.Fatal(err)
		}
		l.settle()
		other.inv(key)
		time.Sleep(1001 * time.Millisecond)
		l.emits("SEND_ONLY 000100 ar [64]")
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 64", "7 LOC_PROT_ERR", "8 WR_FLUSH_ERR")
		c.state(device.StateErr)
		l.emits()
	})
	bubble(t, "datagrams", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mr := l.mr(64, all)
		far := must(l.pd.RegMemory(&farMemory{b: make([]byte, 64), va: 0x1000, broken: true}, 0x1000, 64, 0))
		var list []*device.SendWR
		for i, k := range []device.SGE{mr.SGE(0, 1), {Addr: 0x1000, Length: 8, LKey: far.LKey()}, {Addr: 0x1000, Length: 8, LKey: far.LKey()}, mr.SGE(0, 4)} {
			list = append(list, &device.SendWR{ID: uint64(i + 1), Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD, SGE: []device.SGE{k}})
		}
		attr, _ := u.qp.Query()
		first := attr.SQPSN
		if err := u.qp.PostSendList(list...); err != nil {
			t.Fatal(err)
		}
		l.emits(fmt.Sprintf("SEND_ONLY %06x [1]", first))
		u.sent("1 SUCCESS SEND 1", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR", "4 WR_FLUSH_ERR")
		want(t, "state", u.qp.State(), device.StateSQE)
		u.modify(&device.QPAttr{State: device.StateRTS}, device.AttrState)
		if err := u.qp.PostSendList(list[3]); err != nil {
			t.Fatal(err)
		}
		l.emits(fmt.Sprintf("SEND_ONLY %06x [4]", first+1))
		u.sent("4 SUCCESS SEND 4")
	})
}

// A READ is asked for again in part while the answer to all of it is under way: the rest of that comes, too.
func TestReadAgainInPart(t *testing.T) {
	for _, v := range []struct {
		name     string
		from, n  uint32 // what is asked for again, in packets
		restarts bool
	}{{"the beginning", 0, 2, true}, {"the middle, sent already", 1, 2, true}, {"the middle, not sent yet", 150, 10, false}, {"the end", 150, 50, false}} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mr := l.mr(200*mtu, all)
			c.busy()
			c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 200*mtu)) // some are on the transmit list, others to come
			l.settle()
			c.gets(peer.ReadRequest(nicQP, 0x200+v.from, mr.Addr()+uint64(v.from)*mtu, mr.RKey(), v.n*mtu))
			time.Sleep(1010 * time.Millisecond)
			c.gets(ack(0x100, 1))
			seen := map[uint32]int{}
			for _, f := range l.take() {
				if f.Op.IsResponse() {
					seen[f.PSN]++
				}
			}
			for i := range uint32(200) {
				least := 1
				if v.restarts && i >= v.from && i < v.from+v.n {
					least = 2
				}
				if seen[0x200+i] < least {
					t.Fatalf("response %d comes %d times", i, seen[0x200+i])
				}
			}
			if !v.restarts && len(seen) != 200 {
				t.Errorf("%d responses", len(seen))
			}
			c.state(device.StateRTS)
		})
	}
}

// Notifications that wait for the flusher do not leave together: while one waits there is no other.
func TestNotificationsWait(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.busy()
		for i := range uint32(8) {
			c.recv(uint64(i), nil, 0)
			c.gets(marked(peer.SendOnly(nicQP, 0x200+i, nil)))
			time.Sleep(60 * time.Microsecond)
		}
		time.Sleep(1001 * time.Millisecond)
		cnps := func() (n int) {
			for _, f := range l.take() {
				if f.Op == peer.OpCNP {
					n++
				}
			}
			return n
		}
		want(t, "notifications", cnps(), 1)
		c.recv(9, nil, 0)
		c.gets(marked(peer.SendOnly(nicQP, 0x208, nil)))
		want(t, "notifications", cnps(), 1)
		l.counts("np_ecn_marked_roce_packets=9", "np_cnp_sent=2")
	})
}
