package cases

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/transport"
)

// drain moves a queue pair to SQD, with or without an event.
func (c *conn) drain(notify bool) {
	c.t.Helper()
	mask := device.AttrState
	if notify {
		mask |= device.AttrSQDNotify
	}
	if err := c.qp.Modify(&device.QPAttr{State: device.StateSQD, SQDNotify: notify}, mask); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conn) resume() {
	c.t.Helper()
	if err := c.qp.Modify(&device.QPAttr{State: device.StateRTS, CurState: device.StateSQD}, device.AttrState|device.AttrCurState); err != nil {
		c.t.Fatal(err)
	}
}

func (c *conn) draining(want bool) {
	c.t.Helper()
	if a, _ := c.qp.Query(); a.State != device.StateSQD || a.SQDraining != want {
		c.t.Errorf("state %v, draining %v; want SQD, %v", a.State, a.SQDraining, want)
	}
}

// SQD: what has begun ends as ever, with its retries; the rest waits; then, if asked for, one event (roce.md B.12).
func TestSQDReliable(t *testing.T) {
	for _, typ := range []device.QPType{device.RC, device.XRCIni} {
		bubble(t, fmt.Sprint(typ), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.requester(typ, func(o *rcOptions) { o.Init = 1 })
			mr := l.mr(8192, all)
			c.write(mr, 3000)
			c.read(mr, 10)
			c.read(mr, 20) // beyond the initiator depth: has not begun
			c.send(mr, 5)
			l.emits("WRITE_FIRST 000100 va=10000+3000 [1024]", "WRITE_MIDDLE 000101 [1024]", "WRITE_LAST 000102 ar [952]", "READ_REQUEST 000103 ar va=10000+10")
			c.drain(true)
			c.draining(true)
			c.send(mr, 6) // is taken
			l.emits()
			// While it drains nothing else can be changed.
			for _, s := range []device.State{device.StateRTS, device.StateSQD} {
				errno(t, c.qp.Modify(&device.QPAttr{State: s}, device.AttrState), device.EINVAL)
			}
			errno(t, c.qp.Modify(&device.QPAttr{RetryCnt: 3}, device.AttrRetryCnt), device.EINVAL)
			// Lost: T is over, it is sent again in SQD.
			time.Sleep(70 * time.Millisecond)
			l.emits("WRITE_FIRST 000100 va=10000+3000 [1024]", "WRITE_MIDDLE 000101 [1024]", "WRITE_LAST 000102 ar [952]", "READ_REQUEST 000103 ar va=10000+10")
			c.gets(ack(0x102, 1))
			c.sent("1 SUCCESS RDMA_WRITE 3000")
			c.draining(true)
			l.events()
			c.gets(peer.ReadRespOnly(nicQP, 0x103, 2, make([]byte, 10)))
			c.sent("2 SUCCESS RDMA_READ 10")
			l.events("SQ_DRAINED")
			c.draining(false)
			l.emits()
			time.Sleep(time.Second)
			l.emits()
			l.events()
			c.resume()
			l.emits("READ_REQUEST 000104 ar va=10000+20", "SEND_ONLY 000105 ar [5]", "SEND_ONLY 000106 ar [6]")
			c.gets(peer.ReadRespOnly(nicQP, 0x104, 3, make([]byte, 20)), ack(0x106, 5))
			c.sent("3 SUCCESS RDMA_READ 20", "4 SUCCESS SEND 5", "5 SUCCESS SEND 6")
			l.events()
		})
	}
	bubble(t, "nothing to drain", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.drain(true)
		l.events("SQ_DRAINED")
		c.draining(false)
		c.resume()
		c.drain(false)
		l.events()
		c.draining(false)
	})
	// An RNR wait, too, is part of what has begun.
	bubble(t, "RNR", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.send(mr, 1)
		c.send(mr, 2)
		l.emits("SEND_ONLY 000100 ar [1]", "SEND_ONLY 000101 ar [2]")
		c.gets(peer.RNRNak(nicQP, 0x100, 14, 0)) // 1.28 ms
		c.drain(true)
		time.Sleep(2 * time.Millisecond)
		l.emits("SEND_ONLY 000100 ar [1]", "SEND_ONLY 000101 ar [2]") // the second had begun: it has its PSN
		c.gets(ack(0x101, 2))
		c.sent("1 SUCCESS SEND 1", "2 SUCCESS SEND 2")
		l.events("SQ_DRAINED")
	})
	bubble(t, "the receive side lives", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(4096, all)
		c.drain(false)
		c.recv(1, mr, 100)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("hello")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received("1 SUCCESS RECV 5")
		c.gets(peer.ReadRequest(nicQP, 0x201, mr.Addr(), mr.RKey(), 5))
		l.emits("READ_RESPONSE_ONLY 000201 1f m2 [5]")
		c.draining(false)
	})
	bubble(t, "ERR and RESET while it drains", func(t *testing.T) {
		for _, s := range []device.State{device.StateErr, device.StateReset} {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			c.send(nil, 0)
			c.drain(true)
			c.send(nil, 0)
			c.to(s)
			if s == device.StateErr {
				c.sent("1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR")
			}
			c.state(s)
			l.events()
			if a, _ := c.qp.Query(); a.SQDraining {
				t.Error("draining outside of SQD")
			}
		}
	})
	bubble(t, "the peer is gone", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RetryCnt = 1 })
		c.send(nil, 0)
		c.drain(true)
		c.send(nil, 0)
		time.Sleep(time.Second)
		c.sent("1 RETRY_EXC_ERR", "2 WR_FLUSH_ERR")
		c.state(device.StateErr)
		l.events()
	})
	bubble(t, "a local request waits too", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.drain(false)
		c.post(device.SendWR{Op: device.OpLocalInv, Imm: 0x1234500})
		c.sent()
		c.resume()
		c.sent("1 MW_BIND_ERR")
		c.state(device.StateErr)
	})
}

// brokenMemory is hookMemory that cannot be read in the end.
type brokenMemory struct{ hookMemory }

func (m *brokenMemory) ReadV(e []transport.Extent) error {
	_ = m.hookMemory.ReadV(e)
	return device.EIO
}

// What may be changed in SQD holds afterwards.
func TestSQDAttributes(t *testing.T) {
	bubble(t, "retries, timer and depth", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.drain(false)
		if err := c.qp.Modify(&device.QPAttr{RetryCnt: 1, Timeout: 10, MaxRdAtomic: 1}, device.AttrRetryCnt|device.AttrTimeout|device.AttrMaxRdAtomic); err != nil {
			t.Fatal(err)
		}
		c.read(mr, 8)
		c.read(mr, 8)
		c.resume()
		want(t, "first", brief(l.p.Next(t)), "READ_REQUEST 000100 ar va=10000+8")
		want(t, "again", brief(l.p.Next(t)), "READ_REQUEST 000100 ar va=10000+8")
		l.p.ExpectSilence(t, time.Second)
		c.sent("1 RETRY_EXC_ERR", "2 WR_FLUSH_ERR")
	})
	bubble(t, "no depth is left for what waits", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.drain(false)
		c.send(mr, 1)
		c.read(mr, 8)
		c.send(mr, 2)
		if err := c.qp.Modify(&device.QPAttr{}, device.AttrMaxRdAtomic); err != nil {
			t.Fatal(err)
		}
		c.refused(device.SendWR{Op: device.OpRead, SGE: sge(mr, 8)})
		c.resume()
		l.emits("SEND_ONLY 000100 ar [1]")
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 1", "2 LOC_QP_OP_ERR", "3 WR_FLUSH_ERR")
		c.state(device.StateErr)
	})
	// A READ that comes again is answered also when the depth is another since.
	bubble(t, "responder depth", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Resp = 4 })
		mr := l.mr(64, every)
		read := func(i uint32) *peer.Frame {
			return peer.ReadRequest(nicQP, 0x200+i, mr.Addr()+uint64(i), mr.RKey(), 1)
		}
		answer := func(i uint32) string { return fmt.Sprintf("READ_RESPONSE_ONLY %06x 1f m4 [1]", 0x200+i) }
		for i := range uint32(4) {
			c.gets(read(i))
		}
		want(t, "answers", len(l.take()), 4)
		for _, v := range []struct{ depth, kept int }{{8, 4}, {2, 2}, {16, 2}} {
			c.drain(false)
			if err := c.qp.Modify(&device.QPAttr{MaxDestRdAtomic: v.depth}, device.AttrMaxDestRdAtomic); err != nil {
				t.Fatal(err)
			}
			c.resume()
			for i := range 4 {
				c.gets(read(uint32(i)))
				if i < 4-v.kept {
					l.emits()
				} else {
					l.emits(answer(uint32(i)))
				}
			}
		}
	})
	bubble(t, "path", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		other4 := netip.MustParseAddr("10.8.0.77")
		c.drain(false)
		if err := c.qp.Modify(&device.QPAttr{AH: device.AHAttr{DGID: device.GIDOf(other4), SGIDIndex: gid4}}, device.AttrAV); err != nil {
			t.Fatal(err)
		}
		c.send(nil, 0)
		c.resume()
		l.dst = other4
		l.emits("SEND_ONLY 000100 ar")
	})
}

// On UC a message of which a packet is out goes on to its end, and a failure stops the send side.
func TestSQDUnreliable(t *testing.T) {
	bubble(t, "UC", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mem := &hookMemory{hook: func(i int) {
			if i == 1 {
				time.Sleep(time.Second)
			}
		}}
		slow := must(l.pd.RegMemory(mem, remoteVA, 1<<20, 0))
		go c.send(slow, 200<<10) // 200 packets; the first burst is being read for a second
		synctest.Wait()
		c.send(slow, 2000) // has not begun: the transmit list is full
		c.drain(true)
		c.send(slow, 1)
		c.draining(true)
		l.events()
		time.Sleep(2 * time.Second)
		want(t, "packets", len(l.take()), 200)
		c.sent("1 SUCCESS SEND 204800")
		l.events("SQ_DRAINED")
		c.draining(false)
		c.resume()
		l.emits("SEND_FIRST 0001c8 [1024]", "SEND_LAST 0001c9 [976]", "SEND_ONLY 0001ca [1]")
	})
	bubble(t, "UC fails", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(nil)
		mem := &brokenMemory{hookMemory{hook: func(int) { time.Sleep(time.Second) }}}
		slow := must(l.pd.RegMemory(mem, remoteVA, 1<<20, 0))
		go c.send(slow, 100)
		synctest.Wait()
		c.drain(true)
		c.send(slow, 1)
		time.Sleep(2 * time.Second)
		c.sent("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
		c.state(device.StateSQE)
		l.events()
	})
	bubble(t, "UD", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mem := &hookMemory{hook: func(int) { time.Sleep(time.Second) }}
		slow := must(l.pd.RegMemory(mem, remoteVA, 1<<20, 0))
		wr := device.SendWR{Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD, SGE: []device.SGE{slow.SGE(0, 10)}}
		go func() {
			if err := u.qp.PostSend(&device.SendWR{ID: 1, Op: device.OpSend, AH: wr.AH, RemoteQPN: peerUD, SGE: wr.SGE}); err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(time.Millisecond)
		u.modify(&device.QPAttr{State: device.StateSQD, SQDNotify: true}, device.AttrState|device.AttrSQDNotify)
		wr.ID = 2
		if err := u.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		errno(t, u.qp.Modify(&device.QPAttr{QKey: 5}, device.AttrQKey), device.EINVAL)
		l.events()
		time.Sleep(2 * time.Second)
		want(t, "packets", len(l.take()), 1)
		u.sent("1 SUCCESS SEND 10")
		l.events("SQ_DRAINED")
		u.modify(&device.QPAttr{QKey: 5}, device.AttrQKey)
		u.modify(&device.QPAttr{State: device.StateRTS}, device.AttrState)
		time.Sleep(2 * time.Second)
		want(t, "packets", len(l.take()), 1)
		u.sent("2 SUCCESS SEND 10")
	})
}
