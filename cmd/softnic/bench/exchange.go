package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/stats"
)

// version is that of the exchange. Two sides of different versions do not measure.
const version = 1

// The seeds of the patterns that the two sides send.
const (
	seedHere  = 1
	seedThere = 2
)

// message is what the sides tell each other; of its fields those count that the step has.
type message struct {
	Step    string          `json:"step"` // ready, hello, check, start, stop; in an answer the same
	Error   string          `json:"error,omitempty"`
	Version int             `json:"version,omitempty"`
	Process uint64          `json:"process,omitempty"` // see process
	Config  *Config         `json:"config,omitempty"`
	Remotes []device.Remote `json:"remotes,omitempty"`
	Regions []region        `json:"regions,omitempty"`
	Usage   *usage          `json:"usage,omitempty"`
	Sum     uint64          `json:"sum,omitempty"` // what atomics have added
}

// usage is what a side has used in a test.
type usage struct {
	Process uint64        `json:"process"` // two sides in one process are counted once
	CPU     time.Duration `json:"cpu"`
	HasCPU  bool          `json:"has_cpu"`
	Mallocs uint64        `json:"mallocs"`
	Packets uint64        `json:"packets"` // sent by its NIC
}

// process is a number of this process that no other has, on whatever machine.
var process = rand.Uint64()

func measure(d *device.Device) usage {
	u := usage{Process: process, Packets: d.Counters().Load(stats.SentPkts)}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Mallocs = m.Mallocs
	u.CPU, u.HasCPU = cpuTime()
	return u
}

func (u usage) since(o usage) usage {
	u.CPU -= o.CPU
	u.Mallocs -= o.Mallocs
	u.Packets -= o.Packets
	return u
}

// stream is the way to the other side.
type stream struct {
	in  *json.Decoder
	out *json.Encoder
}

func newStream(rw io.ReadWriter) *stream { return &stream{json.NewDecoder(rw), json.NewEncoder(rw)} }

// ask sends a step and returns the answer.
func (s *stream) ask(m message) (message, error) {
	var r message
	if err := s.out.Encode(&m); err != nil {
		return r, fmt.Errorf("the other side is gone: %w", err)
	}
	if err := s.in.Decode(&r); err != nil {
		return r, fmt.Errorf("the other side ended during %q: %w", m.Step, err)
	}
	switch {
	case r.Error != "":
		return r, errors.New(r.Error)
	case r.Step != m.Step:
		return r, fmt.Errorf("the other side answers %q to %q: is it softnic bench serve?", r.Step, m.Step)
	}
	return r, nil
}

// maxAsked is how many bytes a measuring side may say: a hello with all queue pairs is 400 KB.
const maxAsked = 16 << 20

// Serve is the other side of one test on dev. It returns when the stream ends, with nil unless something failed here; the
// measuring side is told of that.
func Serve(ctx context.Context, dev *device.Device, rw io.ReadWriter) error {
	s := &server{dev: dev, stream: newStream(rw)}
	s.stream.in = json.NewDecoder(io.LimitReader(rw, maxAsked))
	defer s.end()
	for {
		var m message
		if err := s.stream.in.Decode(&m); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
				return s.failed
			}
			return fmt.Errorf("the measuring side: %w", err)
		}
		r, err := s.step(ctx, m)
		if err != nil {
			r.Error, s.failed = err.Error(), err
		}
		r.Step = m.Step
		if err := s.stream.out.Encode(&r); err != nil {
			return errors.Join(s.failed, err)
		}
	}
}

// server is the other side.
type server struct {
	dev    *device.Device
	stream *stream
	side   *end
	before usage
	stop   context.CancelFunc
	loop   chan error // what the loop ended with
	failed error
}

func (s *server) end() {
	_ = s.endLoop()
	if s.side != nil {
		s.side.close()
	}
}

func (s *server) endLoop() error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	s.stop = nil
	return <-s.loop
}

func (s *server) step(ctx context.Context, m message) (r message, err error) {
	switch {
	case m.Step == "ready":
		return r, nil
	case m.Step == "hello" && s.side == nil:
		return s.hello(m)
	case s.side == nil:
		return r, fmt.Errorf("%q before \"hello\"", m.Step)
	case m.Step == "check":
		return r, s.check(ctx)
	case m.Step == "start" && s.stop == nil:
		s.before = measure(s.dev)
		s.start(ctx)
		return r, nil
	case m.Step == "stop":
		err = s.endLoop()
		u := measure(s.dev).since(s.before)
		r.Usage = &u
		if s.side.c.Op == Atomic {
			r.Sum = s.side.sum()
		}
		return r, err
	}
	return r, fmt.Errorf("%q is no step here", m.Step)
}

func (s *server) hello(m message) (r message, err error) {
	if m.Version != version || m.Config == nil {
		return r, fmt.Errorf("the two sides are of different versions of softnic: %d here, %d there", version, m.Version)
	}
	if err := m.Config.Check(); err != nil {
		return r, err
	}
	side, err := newEnd(s.dev, *m.Config)
	if err != nil {
		return r, err
	}
	s.side = side
	side.pollers(m.Process)
	r.Process = process
	side.fill(seedThere)
	r.Remotes, r.Regions = side.describe()
	return r, side.connect(m.Remotes, m.Regions)
}

// check takes the message that came on each queue pair, and compares it.
func (s *server) check(ctx context.Context) error {
	e := s.side
	ctx, cancel := e.beat.watch(ctx)
	defer cancel()
	for n := 0; e.c.receives() && n < e.c.QPs; {
		took, err := e.takeReceives(ctx)
		if err != nil || took == 0 {
			return err
		}
		n += took
	}
	if e.c.Op == Write || e.c.Op == Send {
		return e.compare(seedHere)
	}
	return nil
}

// start starts what this side does in the test.
func (s *server) start(ctx context.Context) {
	loop, done := s.side.part(), make(chan error, 1)
	ctx, s.stop = context.WithCancel(ctx)
	s.loop = done
	go func() { done <- loop(ctx) }()
}
