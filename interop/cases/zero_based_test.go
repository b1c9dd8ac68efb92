package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// A region or a window whose first byte has address 0 (IBV_ACCESS_ZERO_BASED).
func TestZeroBased(t *testing.T) {
	word := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	// through has the peer use a key that leads to n bytes, of which b is a view.
	through := func(t *testing.T, l *lab, c *conn, key uint32, b []byte) {
		n := uint64(len(b))
		c.gets(peer.WriteOnly(nicQP, 0x200, 8, key, word), peer.ReadRequest(nicQP, 0x201, 8, key, 8), peer.FetchAdd(nicQP, 0x202, 8, key, 1))
		l.emits("ACKNOWLEDGE 000200 1f m1", "READ_RESPONSE_ONLY 000201 1f m2 [8]", "ATOMIC_ACKNOWLEDGE 000202 1f m3")
		wantBytes(t, "memory", b[8:16], []byte{2, 2, 3, 4, 5, 6, 7, 8})
		c.gets(peer.WriteOnly(nicQP, 0x203, n-8, key, word))
		l.emits("ACKNOWLEDGE 000203 1f m4")
		wantBytes(t, "the end", b[n-8:], word)
		c.gets(peer.WriteOnly(nicQP, 0x204, n-7, key, word))
		l.emits("ACKNOWLEDGE 000204 62 m4")
	}
	tick(t, "region", func(t *testing.T, l *lab, c *conn) {
		b := make([]byte, 64)
		mr := must(l.pd.RegMR(b, every|device.ZeroBased))
		want(t, "address", mr.Addr(), 0)
		copy(b[16:], "local")
		c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{mr.SGE(16, 5)}})
		f := l.emits("SEND_ONLY 000100 ar [5]")
		wantBytes(t, "what is sent", f[0].Payload, []byte("local"))
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 5")
		through(t, l, c, mr.RKey(), b)
	})
	for _, w := range windowTypes {
		for _, far := range []bool{false, true} {
			tick(t, fmt.Sprintf("%v/far %v", w.name, far), func(t *testing.T, l *lab, c *conn) {
				mr := l.mr(128, every|device.MWBind)
				b := mr.Bytes()
				if far { // memory that is read and written with calls
					mr = must(l.pd.RegMemory(&callMemory{device.NewMemory(b)}, mr.Addr(), 128, every|device.MWBind))
				}
				mw := must(l.pd.AllocMW(w.typ))
				c.bind(mw, mr, 32, 64, device.RemoteWrite|device.RemoteRead|device.RemoteAtomic|device.ZeroBased)
				through(t, l, c, mw.RKey(), b[32:96])
				wantBytes(t, "before the window", b[:32], make([]byte, 32))
				wantBytes(t, "behind the window", b[96:], make([]byte, 32))
			})
		}
	}
	bubble(t, "refused", func(t *testing.T) {
		l := newLab(t, labConfig{})
		b := make([]byte, 64)
		_, err := l.pd.RegMemory(device.NewMemory(b), must(l.pd.RegMR(b, 0)).Addr(), 64, device.ZeroBased)
		errno(t, err, device.EINVAL)
	})
}

// callMemory cannot be touched directly.
type callMemory struct{ device.Memory }

func (*callMemory) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }
