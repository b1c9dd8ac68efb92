package demo

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/softnic/softnic/device"
)

// word is 8 bytes of memory for atomics at one end.
type word struct {
	b  []byte
	mr *device.MR
}

func (n *nic) word() (w word, err error) {
	all := make([]byte, 16)
	w.mr, err = n.pd.RegMR(all, device.LocalWrite|device.RemoteWrite|device.RemoteAtomic)
	if err == nil {
		w.b = all[-w.mr.Addr()&7:][:8]
	}
	return w, err
}

// offset is where the aligned word is in its region.
func (w word) offset() int   { return int(-w.mr.Addr() & 7) }
func (w word) value() uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&w.b[0]))) }

// atomics has both NICs' memory add and swap, and checks what was there before and what is after.
func (d *demo) atomics(ctx context.Context) error {
	type step struct {
		wr     device.SendWR
		before uint64
		after  uint64
	}
	const all = ^uint64(0)
	for _, row := range []struct {
		name  string
		steps []step
	}{
		{"RC FETCH_ADD", []step{
			{device.SendWR{Op: device.OpFetchAdd, CompareAdd: 41}, 0, 41},
			{device.SendWR{Op: device.OpFetchAdd, CompareAdd: 1}, 41, 42},
			{device.SendWR{Op: device.OpFetchAdd, CompareAdd: all}, 42, 41},
		}},
		{"RC CMP_SWAP", []step{
			{device.SendWR{Op: device.OpCompareSwap, CompareAdd: 0, Swap: 7}, 0, 7},
			{device.SendWR{Op: device.OpCompareSwap, CompareAdd: 0, Swap: 9}, 7, 7},
			{device.SendWR{Op: device.OpCompareSwap, CompareAdd: 7, Swap: 9}, 7, 9},
		}},
		{"RC masked CMP_SWAP and FETCH_ADD", []step{
			{device.SendWR{Op: device.OpMaskedCompareSwap, CompareAddMask: 0, Swap: 0xABCD, SwapMask: 0xFF}, 0, 0xCD},
			{device.SendWR{Op: device.OpMaskedFetchAdd, CompareAdd: 0x0133, CompareAddMask: 0x8080}, 0xCD, 0x0100},
		}},
	} {
		at, err := d.b.word()
		if err != nil {
			return err
		}
		result, err := d.a.word()
		if err != nil {
			return err
		}
		for i, s := range row.steps {
			s.wr.SGE = []device.SGE{result.mr.SGE(result.offset(), 8)}
			s.wr.RemoteAddr, s.wr.RKey = at.mr.Addr()+uint64(at.offset()), at.mr.RKey()
			err := d.a.rc.PostSend(&s.wr)
			if err == nil {
				_, err = d.a.await(ctx, 1)
			}
			if err == nil && (result.value() != s.before || at.value() != s.after) {
				err = fmt.Errorf("found 0x%x and left 0x%x, expected 0x%x and 0x%x", result.value(), at.value(), s.before, s.after)
			}
			if err != nil {
				return fmt.Errorf("%s, step %d: %w", row.name, i+1, err)
			}
		}
		d.add(Row{Operation: row.name, Sizes: []int{8}, Messages: len(row.steps), Bytes: 8 * len(row.steps)}, d.retried())
	}
	return nil
}

// windows gives a part of a region to the peer, and has the peer take it away again.
func (d *demo) windows(ctx context.Context) error {
	const name = "RC bind window, WRITE, SEND with invalidate"
	fail := func(err error) error { return fmt.Errorf("%s: %w", name, err) }
	const size, from = 300, 100
	p := d.next(size)
	src, err := d.a.register(size, &p)
	if err != nil {
		return fail(err)
	}
	dst := make([]byte, 1000)
	mr, err := d.b.pd.RegMR(dst, device.LocalWrite|device.MWBind)
	if err != nil {
		return fail(err)
	}
	mw, err := d.b.pd.AllocMW(device.MW2B)
	if err != nil {
		return fail(err)
	}
	bind := &device.SendWR{Op: device.OpBindMW}
	bind.Bind.Window, bind.Bind.NewKey, bind.Bind.MRKey = mw.RKey(), device.IncRKey(mw.RKey()), mr.LKey()
	bind.Bind.Addr, bind.Bind.Length, bind.Bind.Access = mr.Addr()+from, size, device.RemoteWrite
	if err := d.b.rc.PostSend(bind); err != nil {
		return fail(err)
	}
	if _, err := d.b.await(ctx, 1); err != nil {
		return fail(err)
	}
	key := mw.RKey()
	if err := d.b.rc.PostRecv(&device.RecvWR{ID: 3}); err != nil {
		return fail(err)
	}
	for _, wr := range []*device.SendWR{
		{Op: device.OpWrite, SGE: []device.SGE{src.mr.SGE(0, size)}, RemoteAddr: mr.Addr() + from, RKey: key},
		{Op: device.OpSendInv, Imm: key},
	} {
		if err := d.a.rc.PostSend(wr); err != nil {
			return fail(err)
		}
	}
	if _, err := d.a.await(ctx, 2); err != nil {
		return fail(err)
	}
	got, err := d.b.await(ctx, 1)
	if err != nil {
		return fail(err)
	}
	if got[0].Flags&device.WCWithInv == 0 || got[0].Imm != key {
		return fail(fmt.Errorf("the receive does not say that key 0x%08x was invalidated: %+v", key, got[0]))
	}
	want := make([]byte, len(dst))
	p.fill(want[from : from+size])
	for i := range dst {
		if dst[i] != want[i] {
			return fail(fmt.Errorf("byte %d is 0x%02x, expected 0x%02x", i, dst[i], want[i]))
		}
	}
	d.add(Row{Operation: name, Sizes: []int{size}, Messages: 3, Bytes: size}, d.retried())
	return nil
}
