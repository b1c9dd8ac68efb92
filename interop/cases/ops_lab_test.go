package cases

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/transport"
)

// every is every access right that memory which does not outlive the power can have.
const every = all | device.RemoteAtomic | device.MWBind | device.FlushGlobal

// everyQP is every right of a queue pair.
const everyQP = device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.FlushGlobal | device.FlushPersistent

// full is brief with the headers of the operations that SEND, WRITE and READ do not have: keys,
// atomic operands, the original value, FETH, and the key to invalidate.
func full(f *peer.Frame) string {
	var b strings.Builder
	b.WriteString(brief(f))
	has := f.HeaderSet()
	if has.Has(peer.HasRETH) {
		fmt.Fprintf(&b, " key=%x", f.RETH.RKey)
	}
	if has.Has(peer.HasFETH) {
		fmt.Fprintf(&b, " sel=%d plt=%d", f.FETH.Sel, f.FETH.PLT)
	}
	if has.Has(peer.HasAtomicETH) {
		fmt.Fprintf(&b, " va=%x key=%x swapadd=%x compare=%x", f.Atomic.VA, f.Atomic.RKey, f.Atomic.SwapAdd, f.Atomic.Compare)
	}
	if has.Has(peer.HasMaskedETH) {
		fmt.Fprintf(&b, " va=%x key=%x swap=%x/%x compare=%x/%x", f.Masked.VA, f.Masked.RKey, f.Masked.Swap, f.Masked.SwapMask, f.Masked.Compare, f.Masked.CompareMask)
	}
	if has.Has(peer.HasAtomicAckETH) {
		fmt.Fprintf(&b, " orig=%x", f.Orig)
	}
	if has.Has(peer.HasIETH) {
		fmt.Fprintf(&b, " inv=%x", f.InvKey)
	}
	return b.String()
}

// says takes what the device has emitted and compares it with full forms.
func (l *lab) says(want ...string) []*peer.Frame {
	l.t.Helper()
	got := l.take()
	s := make([]string, len(got))
	for i, f := range got {
		s[i] = full(f)
	}
	sameList(l.t, "frames", s, append([]string{}, want...))
	return got
}

// allOps changes the defaults of a connection to one with every right.
func allOps(o *rcOptions) { o.Access = everyQP }

// Words of memory, in the byte order of the host.
func word(mr *device.MR, off int) uint64 { return binary.NativeEndian.Uint64(mr.Bytes()[off:]) }

func setWord(mr *device.MR, off int, v uint64) { binary.NativeEndian.PutUint64(mr.Bytes()[off:], v) }

// stored is the bytes that a value has in the memory of this host.
func stored(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// fullWC is briefWC with the key that was invalidated.
func fullWC(l []device.WC) []string {
	out := briefWC(l)
	for i, w := range l {
		if w.Status == device.StatusSuccess && w.Flags&device.WCWithInv != 0 {
			out[i] += fmt.Sprintf(" inv=%08x", w.Imm)
		}
	}
	return out
}

// receivedFull is received with the keys that were invalidated.
func (c *conn) receivedFull(want ...string) {
	c.t.Helper()
	sameList(c.t, "receive completions", fullWC(drain(c.rcq)), append([]string{}, want...))
}

// refused checks that a request is refused when it is posted, with EINVAL, and that
// nothing is sent.
func (c *conn) refused(wr device.SendWR) {
	c.t.Helper()
	errno(c.t, c.qp.PostSend(&wr), device.EINVAL)
	c.says()
	c.sent()
}

// The test's own idea of an atomic operation, a bit at a time.
func maskedAdd(old, add, boundary uint64) uint64 {
	var sum, carry uint64
	for i := range 64 {
		b := old>>i&1 + add>>i&1 + carry
		sum |= b & 1 << i
		carry = b >> 1
		if boundary>>i&1 == 1 {
			carry = 0
		}
	}
	return sum
}

func maskedSwap(old, compare, compareMask, swap, swapMask uint64) uint64 {
	for i := range 64 {
		if compareMask>>i&1 == 1 && old>>i&1 != compare>>i&1 {
			return old
		}
	}
	v := uint64(0)
	for i := range 64 {
		from := old
		if swapMask>>i&1 == 1 {
			from = swap
		}
		v |= from >> i & 1 << i
	}
	return v
}

// second makes another RC queue pair of the lab's device, QPN 0x12, connected to the same peer.
func (l *lab) second(change func(o *rcOptions)) *conn {
	return l.rc(func(o *rcOptions) {
		o.QPN = 0x12
		if change != nil {
			change(o)
		}
	})
}

// to12 addresses a frame to the second queue pair.
func to12(f *peer.Frame) *peer.Frame {
	f.DestQP = 0x12
	return f
}

// tick makes names of subtests.
func tick(t *testing.T, name string, f func(t *testing.T, l *lab, c *conn)) {
	bubble(t, name, func(t *testing.T) {
		l := newLab(t, labConfig{})
		f(t, l, l.rc(allOps))
	})
}

// fast gives a new fast-registered region memory: at address 0x10000, through the connection.
func (c *conn) fast(mem []byte, a device.Access) (*device.FastMR, uint32) {
	c.t.Helper()
	f := must(c.pd.AllocMR(1 << 20))
	c.reg(f, mem, a)
	return f, f.RKey()
}

// reg posts the registration of mem and waits for it. Its ID is outside the count of post.
func (c *conn) reg(f *device.FastMR, mem []byte, a device.Access) {
	c.t.Helper()
	c.local(device.SendWR{Op: device.OpRegMR, Reg: regOf(f, mem, a)}, "SUCCESS IB_WC_REG_MR 0")
}

func regOf(f *device.FastMR, mem []byte, a device.Access) transport.RegWR {
	return transport.RegWR{LKey: f.LKey(), NewKey: device.IncRKey(f.LKey()), Memory: &farMemory{b: mem, va: remoteVA}, Addr: remoteVA, Length: uint64(len(mem)), Access: a}
}

// local executes a request that sends nothing, and compares its completion.
func (c *conn) local(wr device.SendWR, status string) {
	c.t.Helper()
	wr.ID = 99
	if err := c.qp.PostSend(&wr); err != nil {
		c.t.Fatalf("post_send: %v", err)
	}
	c.sent("99 " + status)
}

func bindOf(w *device.MW, mr *device.MR, off, n int, a device.Access) device.SendWR {
	return device.SendWR{Op: device.OpBindMW, Bind: transport.BindWR{
		Window: w.RKey(), NewKey: device.IncRKey(w.RKey()), MRKey: mr.LKey(), Addr: mr.Addr() + uint64(off), Length: uint64(n), Access: a,
	}}
}

// bind binds a window to a part of a region, through the connection.
func (c *conn) bind(w *device.MW, mr *device.MR, off, n int, a device.Access) {
	c.t.Helper()
	c.local(bindOf(w, mr, off, n, a), "SUCCESS BIND_MW 0")
}

func (c *conn) inv(key uint32) {
	c.t.Helper()
	c.local(device.SendWR{Op: device.OpLocalInv, Imm: key}, "SUCCESS LOCAL_INV 0")
}

// sortWords puts the words of a line into alphabetical order.
func sortWords(s string) string {
	w := strings.Fields(s)
	slices.Sort(w)
	return strings.Join(w, " ")
}
