package device_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// slow is memory of another place: the first access to it says that it has begun, and takes its time. Once closed is set,
// no access may run.
type slow struct {
	device.Memory
	begun  chan struct{}
	once   atomic.Bool
	closed atomic.Bool
	late   atomic.Int32
}

func newSlow(b []byte) *slow { return &slow{Memory: device.NewMemory(b), begun: make(chan struct{})} }

func (m *slow) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (m *slow) access(f func() error) error {
	if m.once.CompareAndSwap(false, true) {
		close(m.begun)
		for range 200 { // until the key is invalid, or long enough to find that it waits
			if m.closed.Load() {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	if m.closed.Load() {
		m.late.Add(1)
		return errors.New("too late")
	}
	return f()
}

func (m *slow) ReadV(e []transport.Extent) error {
	return m.access(func() error { return m.Memory.ReadV(e) })
}

func (m *slow) WriteV(e []transport.Extent) error {
	return m.access(func() error { return m.Memory.WriteV(e) })
}

// TestCase37_InvalidateInFlight: accesses run under a key, by way of one queue pair, while it is taken away by way of another. When
// that is complete, none runs any more, and what a READ had not got yet is refused.
func TestCase37_InvalidateInFlight(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		name string
		op   device.WROp // what the peer does
		fast bool
		same bool // it is taken away by way of the queue pair that is at it
		free func(h *host, q *device.QP, key uint32) error
	}{
		{"write, LOCAL_INV", device.OpWrite, true, false, invalidate},
		{"read, LOCAL_INV", device.OpRead, true, false, invalidate},
		{"read, LOCAL_INV on its queue pair", device.OpRead, true, true, invalidate},
		{"write, window bound anew", device.OpWrite, false, false, rebind},
		{"read, window bound anew", device.OpRead, false, false, rebind},
		{"write, window freed", device.OpWrite, false, false, nil},
		{"read, window freed", device.OpRead, false, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
			qa, qb := a.qp(device.RC, 16), b.qp(device.RC, 16)
			connect(t, qa, qb, 1, device.ConnectOptions{Access: device.RemoteRead | device.RemoteWrite})
			other := b.qp(device.RC, 16)
			connect(t, a.qp(device.RC, 16), other, 1, device.ConnectOptions{})
			if c.same {
				other = qb
			}

			mem := make([]byte, size)
			m := newSlow(mem)
			all := device.LocalWrite | device.RemoteRead | device.RemoteWrite
			var key uint32
			var w *device.MW
			if c.fast {
				f, err := b.pd.AllocMR(size)
				if err != nil {
					t.Fatal(err)
				}
				key = device.IncRKey(f.RKey())
				reg := device.SendWR{Op: device.OpRegMR, Flags: device.Signaled, Reg: transport.RegWR{LKey: f.LKey(), NewKey: key, Memory: m, Addr: addr(mem), Length: size, Access: all}}
				if err := other.PostSend(&reg); err != nil {
					t.Fatal(err)
				}
				b.ok(device.WCRegMR)
			} else {
				mr, err := b.pd.RegMemory(m, addr(mem), size, all|device.MWBind)
				if err != nil {
					t.Fatal(err)
				}
				if w, err = b.pd.AllocMW(device.MW1); err != nil {
					t.Fatal(err)
				}
				key = device.IncRKey(w.RKey())
				bind := device.SendWR{Op: device.OpBindMW, Flags: device.Signaled, Bind: transport.BindWR{Window: w.RKey(), NewKey: key, MRKey: mr.LKey(), Addr: addr(mem), Length: size, Access: all &^ device.LocalWrite}}
				if err := other.PostSend(&bind); err != nil {
					t.Fatal(err)
				}
				b.ok(device.WCBindMW)
			}
			src := a.mr(size)
			if err := qa.PostSend(&device.SendWR{Op: c.op, Flags: device.Signaled, SGE: []device.SGE{src.SGE(0, size)}, RemoteAddr: addr(mem), RKey: key}); err != nil {
				t.Fatal(err)
			}
			<-m.begun
			if c.free == nil {
				if err := w.Dealloc(); err != nil {
					t.Fatal(err)
				}
			} else {
				if err := c.free(b, other, key); err != nil {
					t.Fatal(err)
				}
			}
			m.closed.Store(true)
			if wc := a.wait(); wc.Status != device.StatusRemoteAccess {
				t.Errorf("the peer's request ended with %v", wc.Status)
			}
			if n := m.late.Load(); n > 0 {
				t.Errorf("%d accesses after the key was gone", n)
			}
		})
	}
}

// invalidate takes a key of a fast-registered region away.
func invalidate(h *host, q *device.QP, key uint32) error {
	if err := q.PostSend(&device.SendWR{Op: device.OpLocalInv, Flags: device.Signaled, Imm: key}); err != nil {
		return err
	}
	h.ok(device.WCLocalInv)
	return nil
}

// rebind takes the memory of a window of type 1 away.
func rebind(h *host, q *device.QP, key uint32) error {
	if err := q.PostSend(&device.SendWR{Op: device.OpBindMW, Flags: device.Signaled, Bind: transport.BindWR{Window: key, NewKey: device.IncRKey(key)}}); err != nil {
		return err
	}
	h.ok(device.WCBindMW)
	return nil
}

func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
