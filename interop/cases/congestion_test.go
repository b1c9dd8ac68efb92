package cases

import (
	"slices"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

const ceMark = 3 // ECN field: congestion experienced

// answers are the frames that are no congestion notifications: all ones in the TOS are also a mark.
func answers(l []*peer.Frame) []*peer.Frame {
	return slices.DeleteFunc(l, func(f *peer.Frame) bool { return f.Op == peer.OpCNP })
}

func marked(f *peer.Frame) *peer.Frame {
	f.TOS |= ceMark
	return f
}

// A packet that was marked on its way is executed and answered as ever, and the peer is told, at
// most once in 50 µs (design.md 8).
func TestCongestionNotification(t *testing.T) {
	bubble(t, "paced", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		for i := range uint64(4) {
			c.recv(i, mr, 64)
		}
		c.gets(marked(peer.SendOnly(nicQP, 0x200, []byte("abc"))))
		got := l.emits("CNP 000000", "ACKNOWLEDGE 000200 1f m1")
		if f := got[0]; f.TOS != 0xC2 || f.DestQP != peerQP || f.AckReq || f.SE || f.CNPResv != [16]byte{} {
			t.Errorf("notification %+v", f)
		}
		time.Sleep(49 * time.Microsecond)
		c.gets(marked(peer.SendOnly(nicQP, 0x201, []byte("abc"))))
		l.emits("ACKNOWLEDGE 000201 1f m2")
		time.Sleep(time.Microsecond)
		c.gets(marked(peer.SendOnly(nicQP, 0x202, []byte("abc"))))
		l.emits("CNP 000000", "ACKNOWLEDGE 000202 1f m3")
		c.gets(peer.SendOnly(nicQP, 0x203, []byte("abc")).With(func(f *peer.Frame) { f.TOS = 2 }))
		l.emits("ACKNOWLEDGE 000203 1f m4")
		l.counts("np_ecn_marked_roce_packets=3", "np_cnp_sent=2")
	})
	bubble(t, "a response", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.write(mr, 64)
		l.emits("WRITE_ONLY 000100 ar va=10000+64 [64]")
		c.gets(marked(peer.Ack(nicQP, 0x100, 1)))
		l.emits("CNP 000000")
		c.sent("1 SUCCESS RDMA_WRITE 64")
	})
	bubble(t, "off", func(t *testing.T) {
		l := newLab(t, labConfig{Profile: "rxe"})
		c := l.rc(nil)
		c.recv(1, l.mr(64, all), 64)
		c.gets(marked(peer.SendOnly(nicQP, 0x200, []byte("abc"))))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		l.counts("np_ecn_marked_roce_packets=1", "np_cnp_sent=0")
	})
	bubble(t, "arrives", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.gets(peer.CNP(nicQP))
		l.emits()
		l.counts("rp_cnp_ignored=0", "rp_cnp_handled=1")
		c.state(device.StateRTS)
	})
}

// What the profiles do differently on the wire.
func TestProfiles(t *testing.T) {
	bubble(t, "rxe acknowledges each", func(t *testing.T) {
		l := newLab(t, labConfig{Profile: "rxe"})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.recv(1, mr, 64)
		c.recv(2, mr, 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")), peer.SendOnly(nicQP, 0x201, []byte("abc")))
		l.emits("ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000201 1f m2")
	})
	bubble(t, "rxe drops a reserved opcode", func(t *testing.T) {
		l := newLab(t, labConfig{Profile: "rxe"})
		c := l.rc(nil)
		c.gets(peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.Op = 0x18 }))
		l.emits()
		c.state(device.StateRTS)
	})
	bubble(t, "rxe never gives up at retry_cnt 7", func(t *testing.T) {
		l := newLab(t, labConfig{Profile: "rxe"})
		c := l.rc(func(o *rcOptions) { o.RetryCnt, o.Timeout = 7, 8 })
		c.write(l.mr(8, all), 8)
		time.Sleep(time.Second) // T is 1.05 ms
		if n := len(l.take()); n < 100 {
			t.Errorf("sent %d times", n)
		}
		c.state(device.StateRTS)
	})
	bubble(t, "rxe has one key", func(t *testing.T) {
		l := newLab(t, labConfig{Profile: "rxe"})
		if mr := l.mr(8, all); mr.LKey() != mr.RKey() {
			t.Errorf("keys %x and %x", mr.LKey(), mr.RKey())
		}
	})
	bubble(t, "connectx grants credits", func(t *testing.T) {
		l := newLab(t, labConfig{Profile: "connectx"})
		c := l.rc(nil)
		mr := l.mr(64, all)
		for i := range uint64(6) {
			c.recv(i, mr, 64)
		}
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits("ACKNOWLEDGE 000200 04 m1") // five are left: code 4 is four of them, code 5 would be six
	})
	t.Run("unknown", func(t *testing.T) {
		if _, err := device.ProfileByName("mlx4"); device.ErrnoOf(err) != device.EINVAL {
			t.Error(err)
		}
	})
}
