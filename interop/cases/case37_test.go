package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 37, (a) to (e): a SEND with invalidate and LOCAL_INV, with the right key of a window of type 2 and with others. Other kinds
// of keys are in TestOpsSendInvBadKey, what is under way in TestCase37_WindowGoesInFlight.
func TestCase37_Keys(t *testing.T) {
	for _, typ := range []device.MWType{device.MW2A, device.MW2B} {
		setup := func(t *testing.T, f func(l *lab, c *conn, w *device.MW, mr *device.MR)) func(t *testing.T) {
			return func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.rc(allOps)
				mr := l.mr(64, every)
				w := must(l.pd.AllocMW(typ))
				c.bind(w, mr, 0, 64, device.RemoteWrite)
				for i := range uint64(3) {
					c.recv(1+i, nil, 0)
				}
				f(l, c, w, mr)
			}
		}
		run := func(name string, f func(l *lab, c *conn, w *device.MW, mr *device.MR)) {
			bubble(t, fmt.Sprintf("%d/%s", typ, name), setup(t, f))
		}
		write := func(psn uint32, key uint32, mr *device.MR) *peer.Frame {
			return peer.WriteOnly(nicQP, psn, mr.Addr(), key, []byte{byte(psn)})
		}
		run("(a) the key", func(l *lab, c *conn, w *device.MW, mr *device.MR) {
			key := w.RKey()
			c.gets(write(0x200, key, mr), peer.SendOnlyInv(nicQP, 0x201, key, nil))
			l.take()
			c.receivedFull(fmt.Sprintf("1 SUCCESS RECV 0 inv=%08x", key))
			c.gets(write(0x202, key, mr))
			l.says("ACKNOWLEDGE 000202 62 m2")
			l.events("QP_ACCESS_ERR")
			wantBytes(l.t, "memory", mr.Bytes()[:1], []byte{0})
		})
		for name, wrong := range map[string]func(l *lab, w *device.MW) uint32{
			"(b) key byte":        func(_ *lab, w *device.MW) uint32 { return w.RKey() ^ 1 },
			"(c) key of a region": func(l *lab, _ *device.MW) uint32 { return l.mr(8, every).RKey() },
		} {
			run(name, func(l *lab, c *conn, w *device.MW, mr *device.MR) {
				c.gets(peer.SendOnlyInv(nicQP, 0x200, wrong(l, w), nil))
				l.take()
				c.received("1 REM_INV_REQ_ERR", "2 WR_FLUSH_ERR", "3 WR_FLUSH_ERR")
				c.state(device.StateErr)
				errno(l.t, mr.Dereg(), device.EINVAL) // the window is bound still
			})
		}
		run("(d) LOCAL_INV twice", func(l *lab, c *conn, w *device.MW, mr *device.MR) {
			key := w.RKey()
			c.inv(key)
			want(l.t, "dereg_mr", mr.Dereg(), nil)
			c.local(device.SendWR{Op: device.OpLocalInv, Imm: key}, "MW_BIND_ERR")
			c.state(device.StateErr)
		})
		// (e): before the receive completes a WRITE has its place, behind it none.
		run("(e) WRITEs around it", func(l *lab, c *conn, w *device.MW, mr *device.MR) {
			key := w.RKey()
			var l1 []*peer.Frame
			for i := range uint32(20) {
				l1 = append(l1, write(0x200+i, key, mr))
			}
			l1 = append(l1, peer.SendOnlyInv(nicQP, 0x214, key, nil))
			for i := range uint32(20) {
				l1 = append(l1, write(0x215+i, key, mr))
			}
			c.gets(l1...)
			got := l.take()
			want(l.t, "the last answer", brief(got[len(got)-1]), "ACKNOWLEDGE 000215 62 m21")
			for _, f := range got[:len(got)-1] {
				if f.Op != peer.OpAck || f.AETH.Syndrome != 0x1F || f.PSN > 0x214 {
					l.t.Errorf("%s", brief(f))
				}
			}
			wantBytes(l.t, "memory", mr.Bytes()[:1], []byte{0x13})
			c.receivedFull(fmt.Sprintf("1 SUCCESS RECV 0 inv=%08x", key), "2 WR_FLUSH_ERR", "3 WR_FLUSH_ERR")
			l.events("QP_ACCESS_ERR")
		})
	}
}
