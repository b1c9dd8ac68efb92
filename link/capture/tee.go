package capture

import (
	"slices"
	"sync"

	"github.com/softnic/softnic/link"
)

// Tee hands each record to several sinks, which come and go while the port runs. The
// zero value has none.
type Tee struct {
	mu    sync.RWMutex
	sinks []link.Sink
}

// NewTee returns a tee to the sinks.
func NewTee(sinks ...link.Sink) *Tee { return &Tee{sinks: sinks} }

// Attach adds a sink. detach takes it away again: when it returns, the sink is not called
// and will not be.
func (t *Tee) Attach(s link.Sink) (detach func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := &attached{s}
	t.sinks = append(t.sinks, one)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.sinks = slices.DeleteFunc(t.sinks, func(x link.Sink) bool { return x == link.Sink(one) })
	}
}

// attached makes each attachment different from all others.
type attached struct{ link.Sink }

// Capture takes a packet.
func (t *Tee) Capture(r *link.Record) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.sinks {
		s.Capture(r)
	}
}
