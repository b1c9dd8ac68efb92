package device

import (
	"time"

	"github.com/softnic/softnic/transport"
)

// Step runs a stepped device at the point in time now: it takes in what the
// link has, fires the timers that are due, runs handlers, and goes on until nothing is left
// to do. It returns when it must be called next even if nothing arrives; ok is
// false if never. A packet that is on the link is something that arrives: the link knows of it (pipe.End.Next).
//
// Calls of other methods between two steps act at the time of the last one; now does not go back. It is for a device with
// Options.Stepped alone, with any other it does nothing, and for one goroutine at a time.
func (d *Device) Step(now time.Time) (next time.Time, ok bool) {
	if d.steps == nil {
		return time.Time{}, false
	}
	d.steps.Set(now)
	for d.stepOnce() {
	}
	var at transport.Time
	for _, q := range d.stepQPs() {
		q.mu.Lock()
		if dl := q.eng.Deadline(); dl != 0 && !q.dead && (at == 0 || dl < at) {
			at = dl
		}
		q.mu.Unlock()
	}
	next, ok = d.port.Next()
	if t, is := d.steps.Next(); is && (!ok || t.Before(next)) {
		next, ok = t, true
	}
	if at != 0 {
		if t := d.start.Add(duration(at - 1)); !ok || t.Before(next) {
			next, ok = t, true
		}
	}
	return next, ok
}

// stepOnce does one round of everything; it reports whether there was anything
// to do.
func (d *Device) stepOnce() bool {
	busy := false
	d.port.Flush(d.clock.Now())
	for i, src := range d.port.Sources() {
		switch err := src.Recv(d.batches[i], false); {
		case err != nil:
			d.deaf(err)
		case len(d.batches[i].Packets) > 0:
			busy = true
			d.receive(d.batches[i], nil)
		}
	}
	now := d.now()
	for _, q := range d.stepQPs() {
		q.mu.Lock()
		dl := q.eng.Deadline()
		if q.dead || q.todo.Load() == 0 && q.tx.Len() == 0 && (dl == 0 || now < dl) {
			q.mu.Unlock()
			continue
		}
		busy = true
		q.turn(now)
	}
	return d.dispatch.runAll() || busy
}

// stepQPs lists the queue pairs in the order of their numbers, so that a run
// repeats exactly.
func (d *Device) stepQPs() []*QP {
	l := d.allQPs()
	sortQPs(l)
	return l
}
