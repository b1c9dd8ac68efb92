package device_test

import (
	"net/netip"
	"testing"

	"github.com/softnic/softnic/device"
)

// TestObjects makes a different number of each kind: each counts as itself, until it is destroyed or its context is closed.
func TestObjects(t *testing.T) {
	h := lone(t, device.Options{})
	for _, end := range []string{"destroyed", "closed"} {
		c := h.dev.NewContext()
		var ends []func() error
		made := func(err error, end func() error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			ends = append([]func() error{end}, ends...) // the last first
		}
		var pd *device.PD
		for range 2 {
			p, err := c.AllocPD()
			made(err, func() error { return p.Dealloc() })
			pd = p
		}
		for range 3 {
			m, err := pd.RegMR(make([]byte, 8), device.LocalWrite)
			made(err, func() error { return m.Dereg() })
		}
		for range 4 {
			m, err := pd.AllocMR(8)
			made(err, func() error { return m.Dereg() })
		}
		for range 5 {
			m, err := pd.AllocMW(device.MW2B)
			made(err, func() error { return m.Dealloc() })
		}
		var cq *device.CQ
		for range 6 {
			q, err := c.CreateCQ(device.CQInit{Entries: 1})
			made(err, func() error { _, err := q.Destroy(); return err })
			cq = q
		}
		for range 7 {
			q, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq})
			made(err, func() error { return q.Destroy() })
		}
		for range 8 {
			a, err := pd.CreateAH(device.AHAttr{DGID: device.GIDOf(netip.MustParseAddr("10.0.0.1")), SGIDIndex: 1})
			made(err, func() error { return a.Destroy() })
		}
		for range 9 {
			s, err := pd.CreateSRQ(device.SRQInit{MaxWR: 1})
			made(err, func() error { return s.Destroy() })
		}
		for range 10 {
			x, err := c.AllocXRCD()
			made(err, func() error { return x.Close() })
		}
		for range 11 {
			ch, err := c.CreateCompChannel()
			made(err, func() error { return ch.Destroy() })
		}
		want := device.Objects{PD: 2, MR: 3, FastMR: 4, MW: 5, CQ: 6, QP: 7, AH: 8, SRQ: 9, XRCD: 10, Channel: 11}
		if o := c.Objects(); o != want {
			t.Errorf("%+v, want %+v", o, want)
		}
		if end == "destroyed" {
			for _, f := range ends {
				if err := f(); err != nil {
					t.Error(err)
				}
			}
		} else if err := c.Close(); err != nil {
			t.Error(err)
		}
		if o := c.Objects(); o != (device.Objects{}) {
			t.Errorf("%s, and left: %+v", end, o)
		}
	}
}
