package device_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/stats"
)

// P_Key tables that there are, and those that cannot be.
func TestPKeyTable(t *testing.T) {
	long := make([]uint16, device.MaxPKeys+1)
	for i := range long {
		long[i] = uint16(i + 1)
	}
	for _, c := range []struct {
		keys, want []uint16
	}{
		{nil, []uint16{0xFFFF}},
		{[]uint16{}, []uint16{0xFFFF}},
		{[]uint16{0x8001}, []uint16{0x8001}},
		{[]uint16{0x7FFF, 0xFFFF, 1}, []uint16{0x7FFF, 0xFFFF, 1}},
		{long[1:], long[1:]},
		{long, nil},
		{[]uint16{0}, nil},
		{[]uint16{0xFFFF, 0x8000}, nil},
		{[]uint16{3, 0xFFFF, 3}, nil},
	} {
		end, _ := pipe.New(pipe.Config{}, pipe.Config{})
		dev, err := device.Open(end, device.Options{PKeys: c.keys})
		if c.want == nil {
			if !errors.Is(err, device.EINVAL) {
				t.Errorf("%x: %v", c.keys, err)
			}
			end.Close()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var got []uint16
		p, _ := dev.QueryPort(1)
		for i := range p.PKeys {
			k, err := dev.QueryPKey(1, i)
			if err != nil {
				t.Error(err)
			}
			got = append(got, k)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%x, want %x", got, c.want)
		}
		if len(c.keys) > 0 {
			c.keys[0]++ // it is a copy
			if k, _ := dev.QueryPKey(1, 0); k != got[0] {
				t.Error("the table has changed")
			}
			c.keys[0]--
		}
		for _, at := range [][2]int{{1, -1}, {1, len(got)}, {0, 0}, {2, 0}} {
			if _, err := dev.QueryPKey(at[0], at[1]); !errors.Is(err, device.EINVAL) {
				t.Errorf("port %d index %d: %v", at[0], at[1], err)
			}
		}
		dev.Close()
	}
	if _, err := device.ParsePKeys([]string{"0x8001", "65535", "0x12g"}); !errors.Is(err, device.EINVAL) {
		t.Error(err)
	}
	if l, err := device.ParsePKeys([]string{"0x8001", "65535"}); err != nil || !slices.Equal(l, []uint16{0x8001, 0xFFFF}) {
		t.Error(l, err)
	}
}

// Contexts come and go while the link does: each is told of the changes by turns, and in the end knows the state.
func TestPortEventsRace(t *testing.T) {
	end, _ := pipe.New(pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{})
	h := newHost(t, end, device.Options{})
	const downs = 300
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				c := h.dev.NewContext()
				var last device.EventType
				for range 50 {
					e, ok := c.TryAsyncEvent()
					if ok && e.Type == last {
						t.Error(last, "twice")
					}
					if ok {
						last = e.Type
					}
				}
				c.Close()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range downs {
		for _, up := range []bool{false, true} {
			end.Change(func(i *link.Info) { i.Up = up })
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for i := range 2 * downs {
		want := []device.EventType{device.EventPortErr, device.EventPortActive}[i%2]
		if e, err := h.ctx.AsyncEvent(ctx); err != nil || e.Type != want {
			t.Fatalf("event %d: %v %v, want %v", i, e.Type, err, want)
		}
	}
	close(stop)
	wg.Wait()
	if p, _ := h.dev.QueryPort(1); p.State != device.PortActive {
		t.Error(p.State)
	}
	if e, ok := h.ctx.TryAsyncEvent(); ok {
		t.Error(e.Type, "more than there were changes")
	}
	if n := h.dev.Counters().Load(stats.LinkDowned); n != downs {
		t.Errorf("link_downed %d, want %d", n, downs)
	}
}
