package scenario

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/stage"
	"github.com/softnic/softnic/wire"
)

// Result is what came of a scenario.
type Result struct {
	File       string   `json:"file"`
	Passed     bool     `json:"passed"`
	Statements int      `json:"statements"` // that were played
	Sent       int      `json:"sent"`       // packets of the NIC
	Time       int64    `json:"time_ns"`    // virtual
	Failure    *Failure `json:"failure,omitempty"`
}

// Failure says where what happened is not what was wanted.
type Failure struct {
	Line   int    `json:"line"`
	Wanted string `json:"wanted"`
	Got    string `json:"got"`
	Why    string `json:"why,omitempty"` // how they differ
}

// Error returns the failure in one line.
func (f *Failure) Error() string {
	s := fmt.Sprintf("wanted %s; got %s", f.Wanted, f.Got)
	if f.Why != "" {
		s += ": " + f.Why
	}
	return s
}

// String returns the verdict in one line.
func (r *Result) String() string {
	if r.Failure != nil {
		return fmt.Sprintf("%s:%d: %v", r.File, r.Failure.Line, r.Failure)
	}
	return fmt.Sprintf("%s: passed: %d statements, %d packets sent, %v", r.File, r.Statements, r.Sent, time.Duration(r.Time))
}

// happening is something that the NIC did.
type happening[T any] struct {
	at   time.Duration
	what T
}

// player is a scenario that is being played.
type player struct {
	s      *Scenario
	nic    *stage.NIC
	path   wire.Path // of the peer's packets
	out    func(at time.Duration, line string)
	regs   map[*mr]*device.MR
	mems   map[*mr]*stage.Memory
	qps    map[*qp]*device.QP
	srqs   map[*srq]*device.SRQ
	mws    map[*mw]*device.MW
	played int
	total  int // packets sent

	// What has happened and no line has expected yet.
	sent   []happening[*wire.Spec]
	wcs    []happening[device.WC]
	events []happening[device.AsyncEvent]
	fault  wire.Fault // of the last packet that was received
	broken error      // what the NIC sent cannot be read
}

// Play plays the scenario. out, if not nil, hears of everything that happens, in lines of the language. The result says whether
// the NIC did what it had to; the error is an *Error over a statement that cannot be played.
func (s *Scenario) Play(out func(at time.Duration, line string)) (*Result, error) {
	if out == nil {
		out = func(time.Duration, string) {}
	}
	p := &player{s: s, out: out, regs: map[*mr]*device.MR{}, mems: map[*mr]*stage.Memory{}, qps: map[*qp]*device.QP{}, srqs: map[*srq]*device.SRQ{}, mws: map[*mw]*device.MW{}}
	p.path = wire.Path{Src: s.nic.peer, Dst: s.nic.addr, SrcPort: 0xC000}
	var err error
	p.nic, err = stage.New(stage.Options{
		Addr: s.nic.addr, LinkMTU: s.nic.mtu, Profile: s.nic.profile, Sent: p.takeSent,
		Taken: func(f wire.Fault) { p.fault = f },
	})
	if err != nil {
		return nil, &Error{s.Name, s.body[0].line, err.Error()}
	}
	defer p.nic.Close()
	r := &Result{File: s.Name}
	line, err := p.all(s.body)
	if err == nil {
		if err = p.unexpected(-1); err != nil {
			line++ // behind the last
		}
	}
	r.Statements, r.Sent, r.Time = p.played, p.total, int64(p.nic.Now())
	if err == nil {
		r.Passed = true
		return r, nil
	}
	if errors.As(err, &r.Failure) {
		r.Failure.Line = line
		return r, nil
	}
	return nil, &Error{s.Name, line, err.Error()}
}

// all plays statements; line is that of the last one.
func (p *player) all(l []*stmt) (line int, err error) {
	for _, s := range l {
		line = s.line
		if s.do == nil {
			for range s.times {
				if line, err = p.all(s.body); err != nil {
					return line, err
				}
			}
			continue
		}
		if p.played++; p.played > maxSteps {
			return line, fmt.Errorf("more than %d statements with all repetitions", maxSteps)
		}
		if err := p.play(s); err != nil {
			return line, err
		}
	}
	return line, nil
}

// play plays a statement at its time.
func (p *player) play(s *stmt) error {
	lo := p.nic.Now()
	switch {
	case s.when.absolute:
		if s.when.lo < lo {
			return fmt.Errorf("it is %v already: %v has passed", lo, s.when.lo)
		}
		lo = s.when.lo
	case s.when.given:
		lo += s.when.lo
	}
	for !p.hop(lo) {
		if err := p.unexpected(p.nic.Now()); err != nil {
			return err
		}
	}
	if err := p.unexpected(p.nic.Now()); err != nil {
		return err
	}
	if err := s.do.run(p, s); err != nil {
		return err
	}
	p.hop(p.nic.Now())
	return p.broken
}

// hop moves the time to t or the next moment before it, and takes what happened; true when t was reached.
func (p *player) hop(t time.Duration) bool {
	reached := p.nic.Advance(t)
	var wc [16]device.WC
	for n := 1; n > 0; {
		n = p.nic.CQ.Poll(wc[:])
		for _, w := range wc[:n] {
			p.wcs = append(p.wcs, happening[device.WC]{p.nic.Now(), w})
			p.out(p.nic.Now(), p.showWC(&w))
		}
	}
	for e, ok := p.nic.Ctx.TryAsyncEvent(); ok; e, ok = p.nic.Ctx.TryAsyncEvent() {
		p.events = append(p.events, happening[device.AsyncEvent]{p.nic.Now(), e})
		p.out(p.nic.Now(), "event "+eventName(e.Type))
	}
	return reached
}

// takeSent takes a packet that the NIC has sent.
func (p *player) takeSent(b []byte) {
	b = slices.Clone(b)
	var v wire.View
	if f := wire.ParseIP(b, &v); f != wire.OK && f != wire.ReservedOpcode || !wire.CheckICRC(&v) {
		p.broken = fmt.Errorf("the NIC has sent what is no good packet: %v: %x", f, b)
		return
	}
	p.total++
	s := wire.SpecOf(&v)
	p.sent = append(p.sent, happening[*wire.Spec]{p.nic.Now(), &s})
	p.out(p.nic.Now(), "> "+p.show(&s))
}

func (p *player) show(s *wire.Spec) string {
	for q := range p.qps {
		if q.dest == s.BTH.DestQP {
			return show(s, q.service) + p.of(q)
		}
	}
	return show(s, "rc")
}

// of names a queue pair as statements do that are not about the first one.
func (p *player) of(q *qp) string {
	if q.first {
		return ""
	}
	return " qp=" + q.name
}

// showWC writes a completion as a line of a scenario has it.
func (p *player) showWC(w *device.WC) string {
	for q := range p.qps {
		if q.qpn == w.QPN {
			return showWC(w) + p.of(q)
		}
	}
	return showWC(w)
}

// unexpected tells of what happened before now and no line has expected; now -1: at any time.
func (p *player) unexpected(now time.Duration) error {
	fail := func(at time.Duration, what string) error {
		return &Failure{Wanted: "nothing", Got: what, Why: fmt.Sprintf("no line before this one expects it, at %v", at)}
	}
	old := func(at time.Duration) bool { return now < 0 || at < now }
	switch {
	case len(p.sent) > 0 && old(p.sent[0].at):
		return fail(p.sent[0].at, "> "+p.show(p.sent[0].what))
	case len(p.wcs) > 0 && old(p.wcs[0].at):
		return fail(p.wcs[0].at, p.showWC(&p.wcs[0].what))
	case len(p.events) > 0 && old(p.events[0].at):
		return fail(p.events[0].at, "event "+eventName(p.events[0].what.Type))
	}
	return nil
}

// await waits until one of l has happened, in the time of the statement, and takes it.
func await[T any](p *player, s *stmt, l *[]happening[T]) (*T, error) {
	hi := p.nic.Now() + s.when.hi - s.when.lo
	for len(*l) == 0 {
		now := p.nic.Now()
		if now >= hi {
			return nil, &Failure{Wanted: s.text, Got: "nothing", Why: fmt.Sprintf("it is %v", now)}
		}
		p.hop(hi)
		if len(*l) == 0 {
			if err := p.unexpected(p.nic.Now()); err != nil {
				return nil, err
			}
		}
	}
	t := (*l)[0].what
	*l = (*l)[1:]
	return &t, nil
}
