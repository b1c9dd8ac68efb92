package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/device"
)

// warmUp is the part of the messages, or of the time, that goes before what is timed; warmMost is the longest that it takes.
const (
	warmUp   = 10
	warmMost = time.Second
)

// Run measures on dev against the other side on rw, which Serve serves. When ctx ends it ends early, with what was measured
// until then.
func Run(ctx context.Context, dev *device.Device, rw io.ReadWriter, c Config) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	e, err := newEnd(dev, c)
	if err != nil {
		return nil, err
	}
	defer e.close()
	t := &test{e: e, stream: newStream(rw), r: &Result{Config: c, Title: c.title(), Link: dev.Port().Info().Name}}
	defer context.AfterFunc(ctx, func() { t.stop.Store(true) })()
	// The user's wish to end is looked at between messages, and what is under way ends: the context of waits is another.
	wait, cancel := e.beat.watch(context.WithoutCancel(ctx))
	defer cancel()
	if err := t.connect(); err != nil {
		return nil, err
	}
	if err := t.verify(wait); err != nil {
		return nil, err
	}
	if err := t.measure(wait); err != nil {
		return nil, err
	}
	return t.r, nil
}

// test is a test as the measuring side sees it.
type test struct {
	e      *end
	stream *stream
	stop   atomic.Bool
	r      *Result
	before int // operations before the timed part
}

func (t *test) connect() error {
	e := t.e
	e.fill(seedHere)
	remotes, regions := e.describe()
	m, err := t.stream.ask(message{Step: "hello", Version: version, Process: process, Config: &e.c, Remotes: remotes, Regions: regions})
	if err != nil {
		return err
	}
	e.pollers(m.Process)
	return e.connect(m.Remotes, m.Regions)
}

// verify moves one message on each queue pair, and has every byte of it compared.
func (t *test) verify(ctx context.Context) error {
	f := newFlood(t.e, new(atomic.Bool)) // also when the user wants no more: this is short
	n, err := f.run(ctx, t.e.c.QPs, time.Time{})
	if err != nil {
		return err
	}
	t.before += n
	if _, err := t.stream.ask(message{Step: "check"}); err != nil {
		return err
	}
	if t.e.c.Op == Read {
		return t.e.compare(seedThere)
	}
	return nil
}

func (t *test) measure(ctx context.Context) error {
	if _, err := t.stream.ask(message{Step: "start"}); err != nil {
		return err
	}
	before := measure(t.e.dev)
	timed := t.bandwidth
	if t.e.c.Latency {
		timed = t.latency
	}
	moved, err := timed(ctx)
	if err != nil {
		// What the other side has to say explains more.
		_, other := t.stream.ask(message{Step: "stop"})
		return errors.Join(err, other)
	}
	used := measure(t.e.dev).since(before)
	m, err := t.stream.ask(message{Step: "stop"})
	if err != nil {
		return err
	}
	if m.Usage == nil {
		return errors.New("the other side does not say what it used: is it softnic bench serve?")
	}
	if want := uint64(t.before + moved); t.e.c.Op == Atomic && m.Sum != want {
		return fmt.Errorf("%d atomics were executed, and their sum is %d", want, m.Sum)
	}
	t.r.Verified = true
	t.r.use(used, *m.Usage, moved)
	return nil
}

// use takes in what both sides have used for so many messages.
func (r *Result) use(here, there usage, moved int) {
	r.Packets = here.Packets + there.Packets
	r.Processes = 1
	if there.Process != process {
		r.Processes = 2
		here.CPU += there.CPU
		here.Mallocs += there.Mallocs
	}
	if r.Packets > 0 {
		r.AllocsPerPacket = float64(here.Mallocs) / float64(r.Packets)
	}
	if here.HasCPU && there.HasCPU {
		cpu := here.CPU.Seconds()
		per := 0.0
		if bytes := float64(moved) * float64(r.Size); bytes > 0 {
			per = cpu / (bytes / 1e9)
		}
		r.CPUSeconds, r.CPUPerGB = &cpu, &per
	}
}

// parts returns how many messages, or until when, the warm-up and the timed part go.
func (c *Config) parts() (warm, timed int, warmTime time.Duration) {
	if c.Duration > 0 {
		return 0, 0, min(c.Duration/warmUp, warmMost)
	}
	return max(c.Iters/warmUp, 1), c.Iters, warmMost
}

// after returns when d is over; never, which is the zero time, where d is 0.
func after(start time.Time, d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return start.Add(d)
}

// errNothing is the error of a test that the user ended too early.
var errNothing = errors.New("interrupted during the warm-up: nothing was measured")

func (t *test) bandwidth(ctx context.Context) (moved int, err error) {
	f := newFlood(t.e, &t.stop)
	warm, timed, warmTime := t.e.c.parts()
	if moved, err = f.run(ctx, warm, time.Now().Add(warmTime)); err != nil {
		return moved, err
	}
	start := time.Now()
	m := &meter{last: start}
	f.each = func(done int) { m.at(time.Now(), done) }
	n, err := f.run(ctx, timed, after(start, t.e.c.Duration))
	if err != nil {
		return moved, err
	}
	if n == 0 {
		return moved, errNothing
	}
	t.r.timed(n, time.Since(start), t.stop.Load())
	if least, most, ok := f.shares(); ok && timed == 0 && t.e.c.QPs > 1 {
		t.r.LeastShare, t.r.MostShare = &least, &most
	}
	t.r.PeakPerSec = max(m.peak, t.r.MsgPerSec) * float64(t.e.c.Size)
	return moved + n, nil
}

func (t *test) latency(ctx context.Context) (moved int, err error) {
	rally := newRally(t.e, t.e.lanes[0].out[t.e.c.Size-1])
	warm, timed, warmTime := t.e.c.parts()
	room := timed
	if room == 0 {
		room = maxSamples
	}
	samples := make([]time.Duration, 0, room)
	if samples, err = rally.ping(ctx, warm, time.Now().Add(warmTime), &t.stop, samples); err != nil {
		return 0, err
	}
	moved = len(samples)
	start := time.Now()
	if samples, err = rally.ping(ctx, timed, after(start, t.e.c.Duration), &t.stop, samples[:0]); err != nil {
		return 0, err
	}
	if len(samples) == 0 {
		return 0, errNothing
	}
	t.r.timed(len(samples), time.Since(start), t.stop.Load())
	parts := 1
	if t.e.c.active() {
		parts = 2
	}
	l := summarize(samples, parts)
	t.r.Times = &l
	return moved + len(samples), nil
}

func (r *Result) timed(n int, d time.Duration, interrupted bool) {
	r.Iterations, r.Seconds, r.Interrupted = n, d.Seconds(), interrupted
	if s := d.Seconds(); s > 0 {
		r.MsgPerSec = float64(n) / s
		r.BytesPerSec = r.MsgPerSec * float64(r.Size)
	}
}
