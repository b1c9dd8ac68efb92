package cases

import (
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// UC has windows, fast registration and their invalidation (ibv_post_send(3)); a WRITE under a key that is gone is dropped
// (roce.md B.10).
func TestUCLocal(t *testing.T) {
	write := func(c *conn, psn uint32, va uint64, key uint32, b string) {
		c.gets(peer.WriteOnly(nicQP, psn, va, key, []byte(b)).AsUC())
		c.settle()
	}
	for _, w := range windowTypes {
		bubble(t, w.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.uc(func(o *rcOptions) { o.Access = everyQP })
			mr := l.mr(64, every)
			mw := must(l.pd.AllocMW(w.typ))
			c.bind(mw, mr, 8, 8, device.RemoteWrite)
			write(c, 0x200, mr.Addr()+8, mw.RKey(), "abcdefgh")
			write(c, 0x201, mr.Addr()+16, mw.RKey(), "no") // beyond the window
			if w.typ == device.MW1 {
				c.local(device.SendWR{Op: device.OpBindMW, Bind: bindOf(mw, mr, 0, 0, 0).Bind}, "SUCCESS BIND_MW 0")
			} else {
				c.inv(mw.RKey())
			}
			write(c, 0x202, mr.Addr()+8, mw.RKey(), "ABCDEFGH")
			wantBytes(t, "memory", mr.Bytes()[:24], []byte("\x00\x00\x00\x00\x00\x00\x00\x00abcdefgh\x00\x00\x00\x00\x00\x00\x00\x00"))
			c.state(device.StateRTS)
		})
	}
	bubble(t, "fast registration", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.Access = everyQP })
		mem := make([]byte, 16)
		_, key := c.fast(mem, all)
		write(c, 0x200, remoteVA, key, "abcdefgh")
		c.inv(key)
		write(c, 0x201, remoteVA, key, "ABCDEFGH")
		wantBytes(t, "memory", mem[:8], []byte("abcdefgh"))
	})
	// LOCAL_INV waits until what is before it has left; a bind does not.
	bubble(t, "order", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.Access = everyQP })
		mem := &hookMemory{hook: func(int) { time.Sleep(time.Second) }}
		slow := must(l.pd.RegMemory(mem, remoteVA, 64, 0))
		mr := l.mr(64, every)
		w1, w2 := must(l.pd.AllocMW(device.MW2B)), must(l.pd.AllocMW(device.MW2B))
		c.bind(w1, mr, 0, 8, device.RemoteWrite)
		go c.send(slow, 64) // is being read for a second
		time.Sleep(time.Millisecond)
		bind, inv, last := bindOf(w2, mr, 0, 8, device.RemoteWrite), device.SendWR{ID: 51, Op: device.OpLocalInv, Imm: w1.RKey()}, device.SendWR{ID: 52, Op: device.OpSend}
		bind.ID = 50
		if err := c.qp.PostSendList(&bind, &inv, &last); err != nil {
			t.Fatal(err)
		}
		c.sent() // completions are in order
		write(c, 0x200, mr.Addr(), w1.RKey(), "x")
		write(c, 0x201, mr.Addr()+1, w2.RKey(), "y")
		wantBytes(t, "memory", mr.Bytes()[:2], []byte("xy"))
		time.Sleep(2 * time.Second)
		l.emits("SEND_ONLY 000100 [64]", "SEND_ONLY 000101")
		c.sent("1 SUCCESS SEND 64", "50 SUCCESS BIND_MW 0", "51 SUCCESS LOCAL_INV 0", "52 SUCCESS SEND 0")
		mr.Bytes()[0] = 0
		write(c, 0x202, mr.Addr(), w1.RKey(), "z")
		want(t, "byte", mr.Bytes()[0], 0)
	})
	// A failure stops the send side alone.
	bubble(t, "failure", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.uc(func(o *rcOptions) { o.Access = everyQP })
		inv, next := device.SendWR{ID: 7, Op: device.OpLocalInv, Imm: 0x1234500}, device.SendWR{ID: 8, Op: device.OpSend}
		if err := c.qp.PostSendList(&inv, &next); err != nil {
			t.Fatal(err)
		}
		c.sent("7 MW_BIND_ERR", "8 WR_FLUSH_ERR")
		c.state(device.StateSQE)
	})
}
