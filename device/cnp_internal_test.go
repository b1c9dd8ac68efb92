package device

import (
	"testing"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
)

// TestRateHook: a notification is handed to the rate hook of a queue pair that has a peer.
func TestRateHook(t *testing.T) {
	var heard []transport.Time
	q := &QP{dev: &Device{}, counters: stats.NewCounters(0, nil)}
	q.notified(1)
	q.attr.State = StateRTS
	q.notified(2)
	q.slowDown = func(now transport.Time) { heard = append(heard, now) }
	q.notified(7)
	if len(heard) != 1 || heard[0] != 7 {
		t.Errorf("heard of %v", heard)
	}
	if h, i := q.counters.Load(stats.RpCnpHandled), q.counters.Load(stats.RpCnpIgnored); h != 2 || i != 1 {
		t.Errorf("%d handled, %d ignored", h, i)
	}
}
