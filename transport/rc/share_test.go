package rc

import (
	"testing"

	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// TestShare: queue pairs that have something under way share what may be on the link equally; who has nothing, because it was answered,
// reset or flushed, leaves its part to the others. However many they are, each may have minWindow packets.
func TestShare(t *testing.T) {
	const mtu = 256
	share := &transport.Share{Bytes: 64 * mtu}
	open := func() *side {
		return newSide(make(arena, 1<<20), func(_ *side, c *Config) { c.Window, c.Share = 1000, share })
	}
	wants := func(what string, s *side, now transport.Time, n int) {
		t.Helper()
		s.Pump(now)
		if got := len(s.asked(now)); got != n {
			t.Errorf("%s: %d packets, want %d", what, got, n)
		}
	}
	a, b := open(), open()
	a.post(1, transport.OpSend, 160*mtu)
	wants("alone, all of it", a, 1, 64)
	b.post(1, transport.OpSend, 100*mtu)
	// While b looks, only a is known to want the link; from then on both are.
	n := len(b.asked(1))
	if n < 32 || n > 64 {
		t.Errorf("the second: %d packets", n)
	}
	wants("nothing more while both are at it", a, 1, 0)
	a.Receive(2, ack(63, bth.AckUnlimited, 0))
	a.EndBurst(2)
	wants("the half", a, 2, 32)
	b.Modified(3, 0)
	b.attr.State = transport.Err
	b.Flush(3)
	a.Receive(3, ack(95, bth.AckUnlimited, 0))
	a.EndBurst(3)
	wants("all of it, the other being flushed", a, 3, 64)
	a.Receive(4, ack(159, bth.AckUnlimited, 1))
	a.EndBurst(4)
	if share.Each() != share.Bytes {
		t.Errorf("nothing is under way, and each may have %d of %d", share.Each(), share.Bytes)
	}

	c := open()
	c.post(5, transport.OpRead, 40*mtu)
	wants("a READ", c, 5, 1)
	for range 31 { // as many more
		share.Busy(true)
	}
	d := open()
	d.post(5, transport.OpSend, 100*mtu)
	wants("never less than this", d, 5, minWindow)
	c.Reset()
	d.Reset()
	for range 31 {
		share.Busy(false)
	}
	if share.Each() != share.Bytes {
		t.Errorf("all were reset, and each may have %d of %d", share.Each(), share.Bytes)
	}
	var none *transport.Share
	none.Busy(true)
	if none.Each() != 0 || new(transport.Share).Each() != 0 {
		t.Error("no bound is a bound")
	}
}

// TestShareUnconnected: a queue pair that fails before it is connected has no path MTU to share by.
func TestShareUnconnected(t *testing.T) {
	for _, state := range []transport.State{transport.Reset, transport.Init, transport.RTR, transport.Err} {
		s := newSide(nil, func(_ *side, c *Config) { c.Share = &transport.Share{Bytes: 1 << 20} })
		s.attr.State, s.attr.PathMTU, s.attr.Path = state, 0, nil
		s.queue = []transport.SendWR{{Op: transport.OpSend}}
		s.Pump(2)
		s.Doorbell(3)
		s.Flush(4)
	}
}
