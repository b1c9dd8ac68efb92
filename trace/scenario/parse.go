package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/wire/bth"
)

// Scenario is a scenario that was read.
type Scenario struct {
	Name string // of the file

	nic  nic
	body []*stmt
}

// nic is the statement nic.
type nic struct {
	addr, peer netip.Addr
	profile    string
	mtu        int
}

// stmt is a statement of the text.
type stmt struct {
	line int
	text string
	when moment
	do   action

	body  []*stmt // of repeat
	times int
}

// action is what a statement does. Those that want something to happen are expectations.
type action interface {
	run(p *player, s *stmt) error
}

// mr and qp are what the text has made so far.
type mr struct {
	name     string
	key      uint32
	va, size uint64
	access   device.Access
	data     []byte
}

type qp struct {
	name, service string
	typ           device.QPType
	first         bool // of the scenario
	qpn, dest     uint32
	rq, sq        bth.PSN
	attr          device.QPAttr
}

// unit is T, the time that the ACK timer names.
func (q *qp) unit() time.Duration {
	if q.attr.Timeout == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << q.attr.Timeout
}

// opcode returns the opcode that a name means on the queue pair.
func (q *qp) opcode(name string) (bth.Opcode, bool) {
	for _, n := range []string{strings.ToUpper(q.service) + "_" + name, name} {
		if o, ok := opcodes[n]; ok && (o.Service() == q.serves() || o == bth.CNPNotify) {
			return o, true
		}
	}
	return 0, false
}

func (q *qp) serves() bth.Service {
	return map[string]bth.Service{"rc": bth.RC, "uc": bth.UC, "ud": bth.UD, "xrc": bth.XRC}[q.service]
}

var opcodes = func() map[string]bth.Opcode {
	m := map[string]bth.Opcode{}
	for i := range 256 {
		m[bth.Opcode(i).String()] = bth.Opcode(i)
	}
	return m
}()

// psn reads a PSN: a number, or rq or sq with or without +N and -N.
func (q *qp) psn(w string) (bth.PSN, error) {
	base, rest := bth.PSN(0), w
	switch {
	case strings.HasPrefix(w, "rq"):
		base, rest = q.rq, w[2:]
	case strings.HasPrefix(w, "sq"):
		base, rest = q.sq, w[2:]
	default:
		v, err := number(w, 24)
		return bth.PSN(v), err
	}
	if rest == "" {
		return base, nil
	}
	if rest[0] != '+' && rest[0] != '-' {
		return 0, fmt.Errorf("%q is no PSN: a number, rq+N, rq-N, sq+N or sq-N", w)
	}
	v, err := number(rest[1:], 24)
	if err != nil {
		return 0, err
	}
	if rest[0] == '-' {
		return base.Add(-int(v)), nil
	}
	return base.Add(int(v)), nil
}

// parser reads one text.
type parser struct {
	s   *Scenario
	mrs []*mr
	qps []*qp

	srqs []*srq
	mws  []*mw
}

const (
	maxStatements = 10_000  // of a text
	maxRepeat     = 10_000  // times
	maxSteps      = 200_000 // statements played, repetitions counted
)

// Parse reads a scenario; name is what errors call it. The error is an *Error.
func Parse(name, text string) (*Scenario, error) {
	s := &Scenario{Name: name, nic: nic{addr: netip.MustParseAddr("10.0.0.1"), peer: netip.MustParseAddr("10.0.0.2")}}
	p := &parser{s: s}
	open := []*stmt{{times: 1}} // the text, and the repeat statements that are open
	n := 0
	for i, line := range strings.Split(text, "\n") {
		fail := func(err error) error { return &Error{name, i + 1, err.Error()} }
		l, err := words(line)
		if err != nil {
			return nil, fail(err)
		}
		if len(l) == 0 {
			continue
		}
		if n++; n > maxStatements {
			return nil, fail(fmt.Errorf("more than %d statements", maxStatements))
		}
		st := &stmt{line: i + 1, text: strings.Join(l, " ")}
		into := open[len(open)-1]
		switch {
		case l[0] == "repeat":
			if st.times, err = p.repeat(l, into); err != nil {
				return nil, fail(err)
			}
			into.body = append(into.body, st)
			open = append(open, st)
			continue
		case l[0] == "end":
			if len(l) > 1 || len(open) == 1 {
				return nil, fail(fmt.Errorf("end ends a repeat, and stands alone"))
			}
			open = open[:len(open)-1]
			continue
		}
		if err := p.statement(st, l, len(open) > 1); err != nil {
			return nil, fail(err)
		}
		into.body = append(into.body, st)
	}
	if len(open) > 1 {
		return nil, &Error{name, open[len(open)-1].line, "this repeat has no end"}
	}
	s.body = open[0].body
	if len(s.body) == 0 {
		return nil, &Error{name, 1, "there is nothing in it"}
	}
	return s, nil
}

func (p *parser) repeat(l []string, _ *stmt) (int, error) {
	if len(l) != 2 {
		return 0, fmt.Errorf("repeat N, statements, end")
	}
	n, err := number(l[1], 32)
	if err == nil && (n < 1 || n > maxRepeat) {
		err = fmt.Errorf("1 ... %d repetitions are possible", maxRepeat)
	}
	return int(n), err
}

// statements are the verbs of the language. once: not within repeat.
var statements = map[string]struct {
	parse func(p *parser, l []string) (action, error)
	once  bool
}{
	"nic":        {(*parser).nic, true},
	"reg_mr":     {(*parser).regMR, true},
	"create_qp":  {(*parser).createQP, true},
	"create_srq": {(*parser).createSRQ, true},
	"alloc_mw":   {(*parser).allocMW, true},
	"dereg_mr":   {(*parser).deregMR, true},
	"modify_qp":  {(*parser).modifyQP, false},
	"post_send":  {(*parser).postSend, false},
	"post_recv":  {(*parser).postRecv, false},
	"wc":         {(*parser).wc, false},
	"event":      {(*parser).event, false},
	"state":      {(*parser).state, false},
	"memory":     {(*parser).memory, false},
	"store":      {(*parser).store, false},
	"counter":    {(*parser).counter, false},
	"silence":    {(*parser).silence, false},
	"<":          {(*parser).gets, false},
	">":          {(*parser).sends, false},
}

func verbs() string {
	var l []string
	for n := range statements {
		l = append(l, n)
	}
	slices.Sort(l)
	return strings.Join(l, ", ") + ", repeat"
}

func (p *parser) statement(st *stmt, l []string, repeated bool) (err error) {
	if isTime(l[0]) {
		var unit time.Duration
		if len(p.qps) > 0 {
			unit = p.qps[0].unit()
		}
		if st.when, err = parseMoment(l[0], unit); err != nil {
			return err
		}
		if l = l[1:]; len(l) == 0 {
			return fmt.Errorf("there is a time and no statement: silence says that nothing happens until then")
		}
	}
	v, ok := statements[l[0]]
	if !ok {
		return fmt.Errorf("%q is no statement: %s", l[0], verbs())
	}
	if repeated && (v.once || st.when.absolute) {
		return fmt.Errorf("%s cannot be repeated, nor can what has an absolute time", l[0])
	}
	if st.do, err = v.parse(p, l[1:]); err != nil {
		return err
	}
	if _, ok := st.do.(expectation); !ok && st.when.ranged() {
		return fmt.Errorf("%s happens at one moment: a range of time is for >, wc and event", l[0])
	}
	return nil
}

// takeQP finds the queue pair that qp= names, or the first one.
func (p *parser) takeQP(args []arg) (*qp, []arg, error) {
	if len(p.qps) == 0 {
		return nil, nil, fmt.Errorf("there is no queue pair yet: create_qp")
	}
	i := slices.IndexFunc(args, func(a arg) bool { return a.name == "qp" })
	if i < 0 {
		return p.qps[0], args, nil
	}
	q := find(p.qps, func(q *qp) bool { return q.name == args[i].value })
	if q == nil {
		return nil, nil, fmt.Errorf("there is no queue pair %s", args[i].value)
	}
	return q, slices.Delete(slices.Clone(args), i, i+1), nil
}

func find[T any](l []*T, f func(*T) bool) *T {
	if i := slices.IndexFunc(l, f); i >= 0 {
		return l[i]
	}
	return nil
}

func (p *parser) mr(name string) *mr {
	return find(p.mrs, func(m *mr) bool { return m.name == name })
}

// address reads a number, or MR or MR+OFFSET.
func (p *parser) address(w string) (uint64, error) {
	name, off, _ := strings.Cut(w, "+")
	m := p.mr(name)
	if m == nil {
		return number(w, 64)
	}
	if off == "" {
		return m.va, nil
	}
	o, err := number(off, 64)
	return m.va + o, err
}

// key reads a number, or the name of a region.
func (p *parser) key(w string) (uint64, error) {
	if m := p.mr(w); m != nil {
		return uint64(m.key), nil
	}
	return number(w, 32)
}

// piece reads MR, MR:N, MR+OFFSET or MR+OFFSET:N; without N it is what is left of the region.
func (p *parser) piece(w string) (m *mr, va, n uint64, err error) {
	at, count, given := strings.Cut(w, ":")
	name, off, _ := strings.Cut(at, "+")
	if m = p.mr(name); m == nil {
		return nil, 0, 0, fmt.Errorf("there is no region %q: reg_mr", name)
	}
	var o uint64
	if off != "" {
		if o, err = number(off, 64); err != nil {
			return nil, 0, 0, err
		}
	}
	va = m.va + o
	switch {
	case given:
		n, err = number(count, 32)
	case o > m.size:
		err = fmt.Errorf("%s has %d bytes", m.name, m.size)
	default:
		n = m.size - o
	}
	return m, va, n, err
}

var accesses = map[string]device.Access{
	"none": 0, "local": device.LocalWrite, "write": device.LocalWrite | device.RemoteWrite, "read": device.RemoteRead, "atomic": device.LocalWrite | device.RemoteAtomic,
	"flush": device.FlushGlobal, "persist": device.FlushPersistent, "bind": device.MWBind,
	"all": device.LocalWrite | device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.FlushGlobal | device.FlushPersistent | device.MWBind,
}

func parseAccess(w string) (a device.Access, err error) {
	for _, n := range strings.Split(w, ",") {
		b, ok := accesses[n]
		if !ok {
			return 0, fmt.Errorf("access %q: none, local, write, read, atomic, flush, persist, bind, all", n)
		}
		a |= b
	}
	return a, nil
}
