package cases

import (
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 09: a duplicate READ arrives in the middle of a new WRITE, or of a new SEND; so do
// duplicates of other requests. The message goes on as if they had not been.
func TestCase09_DuplicateReadInsideWrite(t *testing.T) {
	const mtu = 4096
	readReplies := []string{
		"READ_RESPONSE_FIRST 000014 1f m1 [4096]", "READ_RESPONSE_MIDDLE 000015 [4096]", "READ_RESPONSE_LAST 000016 1f m1 [4096]",
	}
	setup := func(t *testing.T) (*lab, *conn, *device.MR, *peer.Frame) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.MTU, o.RQPSN = mtu, 0x14 })
		mr := l.mr(8*mtu, all)
		copy(mr.Bytes(), pattern(1, 3*mtu))
		return l, c, mr, peer.ReadRequest(nicQP, 0x14, mr.Addr(), mr.RKey(), 3*mtu)
	}
	bubble(t, "WRITE", func(t *testing.T) {
		l, c, mr, read := setup(t)
		target := mr.Addr() + 4*mtu
		data := pattern(2, 3*mtu)
		first := peer.WriteFirst(nicQP, 0x17, target, mr.RKey(), 3*mtu, data[:mtu])
		c.gets(read)
		one := l.emits(readReplies...)
		c.gets(first)
		l.emits()
		c.gets(read)
		two := l.emits(readReplies...)
		wantBytes(t, "first answer", payloads(one), pattern(1, 3*mtu))
		wantBytes(t, "second answer", payloads(two), pattern(1, 3*mtu))
		// A duplicate WRITE packet is acknowledged at once, without the A-bit too (roce.md B.5).
		c.gets(first)
		l.emits("ACKNOWLEDGE 000017 1f m1")
		c.gets(peer.WriteMiddle(nicQP, 0x18, data[mtu:2*mtu]))
		l.emits()
		c.gets(peer.WriteLast(nicQP, 0x19, data[2*mtu:]))
		l.emits("ACKNOWLEDGE 000019 1f m2") // MSN +2 in total
		wantBytes(t, "target", mr.Bytes()[4*mtu:7*mtu], data)
		// ePSN is 1A.
		c.gets(peer.WriteOnly(nicQP, 0x1A, 0, 0, nil))
		l.emits("ACKNOWLEDGE 00001a 1f m3")
		l.counts("duplicate_request=2", "out_of_seq_request=0", "rx_read_requests=1")
		want(t, "drops", l.drops(), "duplicate=2")
		l.events()
	})
	bubble(t, "SEND", func(t *testing.T) {
		l, c, _, read := setup(t)
		buf := l.mr(4*mtu, all)
		c.recv(1, buf, 4*mtu)
		data := pattern(3, 2*mtu+5)
		c.gets(read)
		l.emits(readReplies...)
		c.gets(peer.SendFirst(nicQP, 0x17, data[:mtu]))
		c.gets(read)
		l.emits(readReplies...)
		c.gets(peer.SendMiddle(nicQP, 0x18, data[mtu:2*mtu]))
		// The READ again, and duplicates of the SEND with other bytes: none of them stores any.
		c.gets(read)
		l.emits(readReplies...)
		c.gets(peer.SendFirst(nicQP, 0x17, filled(0xEE, mtu)), peer.SendMiddle(nicQP, 0x18, filled(0xEE, mtu)))
		l.settle()
		c.gets(peer.SendLast(nicQP, 0x19, data[2*mtu:]))
		got := l.take()
		want(t, "last frame", brief(got[len(got)-1]), "ACKNOWLEDGE 000019 1f m2")
		c.received("1 SUCCESS RECV 8197")
		wantBytes(t, "what was received", buf.Bytes()[:len(data)], data)
	})
	bubble(t, "duplicates of finished messages inside a WRITE", func(t *testing.T) {
		l, c, mr, _ := setup(t)
		buf := l.mr(64, all)
		c.recv(1, buf, 64)
		c.recv(2, buf, 64)
		only := peer.SendOnly(nicQP, 0x14, []byte("once"))
		write := peer.WriteOnly(nicQP, 0x15, mr.Addr(), mr.RKey(), []byte("once"))
		c.gets(only, write)
		l.settle()
		l.take()
		c.received("1 SUCCESS RECV 4")
		c.gets(peer.WriteFirst(nicQP, 0x16, mr.Addr()+4*mtu, mr.RKey(), 2*mtu, pattern(4, mtu)))
		l.emits()
		// Other operands and data in the duplicate: it is not looked at, even with a bad key.
		c.gets(only.Clone().With(func(f *peer.Frame) { f.Payload = []byte("more than once") }))
		l.emits("ACKNOWLEDGE 000016 1f m2")
		c.gets(write.Clone().With(func(f *peer.Frame) { f.Payload, f.RETH.RKey = []byte("evil"), 99 }))
		l.emits("ACKNOWLEDGE 000016 1f m2")
		c.gets(peer.WriteLast(nicQP, 0x17, pattern(4, 2*mtu)[mtu:]))
		l.emits("ACKNOWLEDGE 000017 1f m3")
		wantBytes(t, "WRITE before", mr.Bytes()[:4], []byte("once"))
		wantBytes(t, "SEND before", buf.Bytes()[:5], []byte("once\x00"))
		wantBytes(t, "target", mr.Bytes()[4*mtu:6*mtu], pattern(4, 2*mtu))
		c.received() // the second receive is still there
		c.gets(peer.SendOnly(nicQP, 0x18, nil))
		c.received("2 SUCCESS RECV 0")
	})
}
