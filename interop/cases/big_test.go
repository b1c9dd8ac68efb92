package cases

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/transport"
)

// tiled is a small buffer that repeats without end: 2 GiB of it are no memory.
type tiled struct {
	b     []byte
	base  uint64
	bytes uint64 // stored
	bad   int    // words stored that do not say where they belong
}

// newTiled writes into each word of the tile where it is in the tile.
func newTiled(n int, base uint64) *tiled {
	m := &tiled{b: make([]byte, n), base: base}
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(m.b[i:], uint64(i))
	}
	return m
}

func (m *tiled) Slices(dst [][]byte, va uint64, n int) ([][]byte, bool) {
	for at := int((va - m.base) % uint64(len(m.b))); n > 0; at = 0 {
		k := min(n, len(m.b)-at)
		dst = append(dst, m.b[at:at+k])
		n -= k
	}
	return dst, true
}
func (m *tiled) ReadV([]transport.Extent) error                     { return device.EINVAL }
func (m *tiled) WriteV([]transport.Extent) error                    { return device.EINVAL }
func (m *tiled) Atomic64(uint64, *transport.Atomic) (uint64, error) { return 0, device.EINVAL }
func (m *tiled) Store64(uint64, uint64) error                       { return device.EINVAL }

// checked is the other end: it stores nothing and checks everything.
type checked struct{ tiled }

func (m *checked) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }
func (m *checked) WriteV(e []transport.Extent) error {
	for _, x := range e {
		for i := 0; i+8 <= len(x.Buf); i += 8 {
			if binary.LittleEndian.Uint64(x.Buf[i:]) != (x.VA-m.base+uint64(i))%uint64(len(m.b)) {
				m.bad++
			}
		}
		m.bytes += uint64(len(x.Buf))
	}
	return nil
}

// TestLongestMessages reads and writes 2^31 bytes, the longest message, at both ends of the MTU.
func TestLongestMessages(t *testing.T) {
	if os.Getenv("SOFTNIC_LONG") == "" {
		t.Skip("moves 8 GiB: part of make nightly (SOFTNIC_LONG=1)")
	}
	const base, n, tile = 1 << 40, 1 << 31, 1 << 20
	a, b := pipe.New(
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(peer4, 24)}},
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}})
	type end struct {
		pd *device.PD
		cq *device.CQ
		qp *device.QP
	}
	mk := func(p *pipe.End) end {
		dev := must(device.Open(p, device.Options{}))
		t.Cleanup(func() { dev.Close() })
		ctx := dev.NewContext()
		e := end{pd: must(ctx.AllocPD()), cq: must(ctx.CreateCQ(device.CQInit{Entries: 4}))}
		e.qp = must(e.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: e.cq, RecvCQ: e.cq, SigAll: true, Cap: device.Cap{SendWR: 4}}))
		return e
	}
	req, rsp := mk(a), mk(b)
	ra, rb := req.qp.Address(gid4, 0xFFFFF0), rsp.qp.Address(gid4, 5)
	o := device.ConnectOptions{PathMTU: 4096}
	if err := req.qp.Connect(0xFFFFF0, rb, o); err != nil {
		t.Fatal(err)
	}
	if err := rsp.qp.Connect(5, ra, o); err != nil {
		t.Fatal(err)
	}
	for _, op := range []device.WROp{device.OpRead, device.OpWrite} {
		src, dst := newTiled(tile, base), &checked{*newTiled(tile, base)}
		local, remote := transport.Memory(dst), transport.Memory(src)
		if op == device.OpWrite {
			local, remote = src, dst
		}
		ml := must(req.pd.RegMemory(local, base, n, all))
		mr := must(rsp.pd.RegMemory(remote, base, n, all))
		wr := &device.SendWR{Op: op, SGE: []device.SGE{{Addr: base, Length: n, LKey: ml.LKey()}}, RemoteAddr: base, RKey: mr.RKey()}
		if err := req.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		var wc [1]device.WC
		_, err := req.cq.Wait(ctx, wc[:])
		cancel()
		if err != nil || wc[0].Status != device.StatusSuccess || wc[0].ByteLen != 1<<31 {
			t.Fatalf("%v: %+v %v", op, wc[0], err)
		}
		if dst.bytes < n || dst.bad != 0 {
			t.Errorf("%v: %d bytes stored, %d words wrong", op, dst.bytes, dst.bad)
		}
	}
}
