package capture

import (
	"slices"
	"sync"
	"time"

	"github.com/softnic/softnic/link"
)

// Tee hands each record to several sinks, which come and go while the port runs. The
// zero value has none. It is a link.OrderedSink for those of them that are.
type Tee struct {
	mu    sync.RWMutex
	sinks []link.Sink
	port  interface{ SetCapture(link.Sink) } // nil: nobody is told
}

// NewTee returns a tee to the sinks.
func NewTee(sinks ...link.Sink) *Tee { return &Tee{sinks: sinks} }

// Drive makes the tee the capture of p, a link.Port, while it has sinks, and none while it has not: a capture that nobody
// takes costs a port something.
func (t *Tee) Drive(p interface{ SetCapture(link.Sink) }) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.port = p
	t.drive()
}

func (t *Tee) drive() {
	switch {
	case t.port == nil:
	case len(t.sinks) > 0:
		t.port.SetCapture(t)
	default:
		t.port.SetCapture(nil)
	}
}

// Attach adds a sink. detach takes it away again: when it returns, the sink is not called
// and will not be.
func (t *Tee) Attach(s link.Sink) (detach func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := &attached{s}
	t.sinks = append(t.sinks, one)
	t.drive()
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.sinks = slices.DeleteFunc(t.sinks, func(x link.Sink) bool { return x == link.Sink(one) })
		t.drive()
	}
}

// attached makes each attachment different from all others.
type attached struct{ link.Sink }

// Arrived implements link.OrderedSink.
func (a *attached) Arrived(when time.Time) { arrived(a.Sink, when) }

// Handled implements link.OrderedSink.
func (a *attached) Handled(when time.Time) { handled(a.Sink, when) }

func arrived(s link.Sink, when time.Time) {
	if o, ok := s.(link.OrderedSink); ok {
		o.Arrived(when)
	}
}

func handled(s link.Sink, when time.Time) {
	if o, ok := s.(link.OrderedSink); ok {
		o.Handled(when)
	}
}

// Capture takes a packet.
func (t *Tee) Capture(r *link.Record) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.sinks {
		s.Capture(r)
	}
}

// Arrived implements link.OrderedSink.
func (t *Tee) Arrived(when time.Time) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.sinks {
		arrived(s, when)
	}
}

// Handled implements link.OrderedSink.
func (t *Tee) Handled(when time.Time) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.sinks {
		handled(s, when)
	}
}
