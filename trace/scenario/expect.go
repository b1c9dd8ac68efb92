package scenario

import (
	"fmt"
	"strings"

	"github.com/softnic/softnic/device"
)

// expectation is an action that waits for something.
type expectation interface{ expects() }

// gets is a packet of the peer, sends one that the NIC must send.
type gets struct{ *packet }
type sends struct{ *packet }

func (sends) expects() {}

func (p *parser) gets(l []string) (action, error) {
	k, err := p.parsePacket(l, true)
	return gets{k}, err
}

func (p *parser) sends(l []string) (action, error) {
	k, err := p.parsePacket(l, false)
	return sends{k}, err
}

// wc is a completion that must be there.
type wc struct {
	id     uint64
	status device.Status
	op     *device.WCOp
	len    *uint32
	imm    *uint32
	inv    *uint32
	srcqp  *uint32
	qp     *qp
}

func (*wc) expects() {}

var statuses = func() map[string]device.Status {
	m := map[string]device.Status{}
	for s := device.Status(0); s < 22; s++ {
		m[strings.TrimPrefix(s.String(), "IBV_WC_")] = s
	}
	return m
}()

var wcOps = func() map[string]device.WCOp {
	m := map[string]device.WCOp{}
	for o := range 256 {
		op := device.WCOp(o)
		m[wcOpName(op)] = op
	}
	return m
}()

func wcOpName(o device.WCOp) string {
	return strings.TrimPrefix(strings.TrimPrefix(o.String(), "IBV_WC_"), "IB_WC_")
}

// wc reads wc ID STATUS [OPERATION] [len=N] [imm=N] [srcqp=N] [qp=NAME].
func (p *parser) wc(l []string) (action, error) {
	if len(l) < 2 {
		return nil, fmt.Errorf("wc ID STATUS: wc 1 SUCCESS SEND")
	}
	w := new(wc)
	var err error
	if w.id, err = number(l[0], 64); err != nil {
		return nil, err
	}
	var ok bool
	if w.status, ok = statuses[l[1]]; !ok {
		return nil, fmt.Errorf("no status %q: SUCCESS, or what ibv_wc_status has behind IBV_WC_", l[1])
	}
	rest := l[2:]
	if len(rest) > 0 && !strings.Contains(rest[0], "=") {
		op, ok := wcOps[rest[0]]
		if !ok {
			return nil, fmt.Errorf("no operation %q: SEND, RDMA_WRITE, RDMA_READ, RECV and so on, as ibv_wc_opcode has them", rest[0])
		}
		w.op, rest = &op, rest[1:]
	}
	args, err := splitArgs(rest)
	if err != nil {
		return nil, err
	}
	if w.qp, args, err = p.takeQP(args); err != nil {
		return nil, err
	}
	for _, a := range args {
		to := map[string]**uint32{"len": &w.len, "imm": &w.imm, "inv": &w.inv, "srcqp": &w.srcqp}[a.name]
		if to == nil {
			return nil, fmt.Errorf("a completion has len=, imm=, inv=, srcqp= and qp=, not %s", a.name)
		}
		read := func(w string) (uint64, error) { return number(w, 32) }
		if a.name == "inv" {
			read = p.key
		}
		v, err := read(a.value)
		if err != nil {
			return nil, err
		}
		n := uint32(v)
		*to = &n
	}
	return w, nil
}

func (w *wc) mismatch(got *device.WC) string {
	var l []string
	add := func(name string, want, got any) {
		if want != got {
			l = append(l, fmt.Sprintf("%s is %v, not %v", name, got, want))
		}
	}
	add("the ID", w.id, got.ID)
	add("the status", statusName(w.status), statusName(got.Status))
	add("the queue pair", fmt.Sprintf("0x%x", w.qp.qpn), fmt.Sprintf("0x%x", got.QPN))
	if w.op != nil {
		add("the operation", wcOpName(*w.op), wcOpName(got.Op))
	}
	for _, f := range []struct {
		name string
		want *uint32
		got  uint32
	}{{"len", w.len, got.ByteLen}, {"imm", w.imm, only(got, device.WCWithImm)}, {"inv", w.inv, only(got, device.WCWithInv)}, {"srcqp", w.srcqp, got.SrcQP}} {
		if f.want != nil {
			add(f.name, fmt.Sprintf("0x%x", *f.want), fmt.Sprintf("0x%x", f.got))
		}
	}
	return strings.Join(l, ", ")
}

// only returns the immediate data, or the invalidated key, if that is what the completion has.
func only(w *device.WC, f device.WCFlags) uint32 {
	if w.Flags&f == 0 {
		return 0
	}
	return w.Imm
}

func statusName(s device.Status) string { return strings.TrimPrefix(s.String(), "IBV_WC_") }

func showWC(w *device.WC) string {
	s := fmt.Sprintf("wc %d %s", w.ID, statusName(w.Status))
	if w.Status == device.StatusSuccess {
		s += fmt.Sprintf(" %s len=%d", wcOpName(w.Op), w.ByteLen)
	}
	return s
}

// event is an asynchronous event that must be there.
type event struct {
	typ device.EventType
}

func (event) expects() {}

func (p *parser) event(l []string) (action, error) {
	for t := device.EventType(0); t <= device.EventGIDChange; t++ {
		if len(l) == 1 && eventName(t) == l[0] {
			return event{t}, nil
		}
	}
	return nil, fmt.Errorf("event NAME: QP_ACCESS_ERR and the like, as ibv_event_type has them behind IBV_EVENT_")
}

func eventName(t device.EventType) string { return strings.TrimPrefix(t.String(), "IBV_EVENT_") }

// state is a state that a queue pair must be in.
type state struct {
	qp   *qp
	want device.State
}

func (p *parser) state(l []string) (action, error) {
	if len(l) == 0 {
		return nil, fmt.Errorf("state RTS")
	}
	args, err := splitArgs(l[1:])
	if err != nil {
		return nil, err
	}
	var s state
	if s.qp, args, err = p.takeQP(args); err != nil {
		return nil, err
	}
	var ok bool
	if s.want, ok = states[l[0]]; !ok || len(args) > 0 {
		return nil, fmt.Errorf("state RESET, INIT, RTR, RTS, SQD, SQE or ERR, with qp= or without")
	}
	return s, nil
}

// memory is what must be in a region, store what the program puts there.
type memory struct {
	mr   *mr
	va   uint64
	data []byte
}
type store struct{ memory }

func (p *parser) memory(l []string) (action, error) { m, err := p.bytes(l); return m, err }
func (p *parser) store(l []string) (action, error)  { m, err := p.bytes(l); return store{m}, err }

func (p *parser) bytes(l []string) (m memory, err error) {
	if len(l) != 2 || strings.Contains(l[0], ":") {
		return m, fmt.Errorf("a place and bytes: a+8 pattern:1:64")
	}
	var n uint64
	if m.mr, m.va, n, err = p.piece(l[0]); err != nil {
		return m, err
	}
	if m.data, err = parseData(l[1]); err != nil {
		return m, err
	}
	if uint64(len(m.data)) > n {
		return m, fmt.Errorf("%d bytes at a place where the region has %d", len(m.data), n)
	}
	return m, nil
}

// counter is a counter of the device that must have a value.
type counter struct {
	name string
	want uint64
}

func (p *parser) counter(l []string) (action, error) {
	if len(l) == 1 {
		if n, v, ok := strings.Cut(l[0], "="); ok && n != "" {
			w, err := number(v, 64)
			return counter{n, w}, err
		}
	}
	return nil, fmt.Errorf("counter NAME=N, with the names of `softnic statistic show`")
}

// silence says that nothing has happened.
type silence struct{}

func (p *parser) silence(l []string) (action, error) {
	if len(l) > 0 {
		return nil, fmt.Errorf("silence stands alone")
	}
	return silence{}, nil
}

// nothing is done by statements that were done with when they were read.
type nothing struct{}

func (nothing) run(*player, *stmt) error { return nil }
