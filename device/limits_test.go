package device_test

import (
	"encoding/binary"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/stats"
)

// What a device says that it can do it does, and what it says that it cannot it refuses.
func TestCapabilities(t *testing.T) {
	h := lone(t, device.Options{})
	a := h.dev.Query()
	window := func(typ device.MWType) error {
		w, err := h.pd.AllocMW(typ)
		if err == nil {
			err = w.Dealloc()
		}
		return err
	}
	register := func(access device.Access) error {
		m, err := h.pd.RegMR(make([]byte, 64), access)
		if err == nil {
			err = m.Dereg()
		}
		return err
	}
	for c, try := range map[device.Caps]func() error{
		device.CapMemWindow:   func() error { return window(device.MW1) },
		device.CapMemWindow2A: func() error { return window(device.MW2A) },
		device.CapMemWindow2B: func() error { return window(device.MW2B) },
		device.CapFlushGlobal: func() error { return register(device.FlushGlobal) },
		device.CapXRC:         func() error { _, err := h.ctx.AllocXRCD(); return err },
	} {
		if err := try(); (err == nil) != a.Caps.Has(c) {
			t.Errorf("%s: said %v, and %v", c, a.Caps.Has(c), err)
		}
	}
	if want := device.Caps(0x1C001B23CC6); a.Caps != want {
		t.Errorf("0x%X %s, want 0x%X %s", uint64(a.Caps), a.Caps, uint64(want), want)
	}
	if got, want := (device.CapXRC | device.CapAtomicWrite | 1<<50).String(), "XRC, ATOMIC_WRITE, 0x4000000000000"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if l := device.Caps(0).Names(); l == nil || len(l) != 0 {
		t.Errorf("%q", l)
	}
}

// Masked atomics are where Attr.MaskedAtomicCap says so, and are refused before anything is sent where it does not.
func TestMaskedAtomicCap(t *testing.T) {
	for _, plain := range []bool{false, true} {
		a, b := twoHosts(t, 1500, device.Options{PlainAtomics: plain}, device.Options{})
		at := a.dev.Query()
		if want := map[bool]device.AtomicCap{false: device.AtomicHCA, true: device.AtomicNone}[plain]; at.AtomicCap != device.AtomicHCA || at.MaskedAtomicCap != want {
			t.Fatalf("plain %v: %v and masked %v", plain, at.AtomicCap, at.MaskedAtomicCap)
		}
		qa, qb := a.qp(device.RC, 4), b.qp(device.RC, 4)
		rights := device.RemoteWrite | device.RemoteRead | device.RemoteAtomic
		for _, x := range [][2]*device.QP{{qa, qb}, {qb, qa}} {
			gid, err := map[*device.QP]*host{qa: a, qb: b}[x[1]].dev.QueryGID(1, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := x[0].Connect(7, device.Remote{QPN: x[1].Num(), PSN: 7, GID: gid}, device.ConnectOptions{SGIDIndex: 1, Access: rights}); err != nil {
				t.Fatal(err)
			}
		}
		m := a.mr(8)
		word := make([]byte, 8)
		binary.NativeEndian.PutUint64(word, 0x00FF00FF)
		far, err := b.pd.RegMR(word, rights|device.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []device.WROp{device.OpMaskedFetchAdd, device.OpMaskedCompareSwap} {
			err := qa.PostSend(&device.SendWR{Op: op, Flags: device.Signaled, SGE: []device.SGE{m.SGE(0, 8)}, RemoteAddr: far.Addr(), RKey: far.RKey()})
			if at.MaskedAtomicCap == device.AtomicNone {
				if device.ErrnoOf(err) != device.EINVAL {
					t.Errorf("%s: %v", op, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(op, err)
			}
			if wc := a.wait(); wc.Status != device.StatusSuccess {
				t.Errorf("%s: %+v", op, wc)
			}
		}
		if sent := a.dev.Counters().Load(stats.SentPkts); (sent == 0) != plain {
			t.Errorf("plain %v: %d packets were sent", plain, sent)
		}
	}
	for c, want := range map[device.AtomicCap]string{0: "ATOMIC_NONE", 1: "ATOMIC_HCA", 2: "ATOMIC_GLOB", 9: "ATOMIC_9"} {
		if c.String() != want {
			t.Errorf("%q, want %q", c, want)
		}
	}
}
