package scenario

import (
	"fmt"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/wire"
)

func (g gets) run(p *player, s *stmt) error {
	b := g.build(p.path)
	var v wire.View
	if f := wire.ParseIP(b, &v); f == wire.OK {
		spec := wire.SpecOf(&v)
		p.out(p.nic.Now(), "< "+show(&spec, g.qp.service)+p.of(g.qp))
	} else {
		p.out(p.nic.Now(), s.text)
	}
	p.fault = wire.OK
	p.nic.Receive(b)
	p.hop(p.nic.Now())
	if p.fault != wire.OK {
		p.out(p.nic.Now(), "# that was not taken: "+p.fault.String())
	}
	return nil
}

func (e sends) run(p *player, s *stmt) error {
	got, err := await(p, s, &p.sent)
	if err != nil {
		return err
	}
	if d := e.mismatch(*got); d != "" {
		return &Failure{Wanted: s.text, Got: "> " + p.show(*got), Why: d}
	}
	return nil
}

func (w *wc) run(p *player, s *stmt) error {
	got, err := await(p, s, &p.wcs)
	if err != nil {
		return err
	}
	if d := w.mismatch(got); d != "" {
		return &Failure{Wanted: s.text, Got: p.showWC(got), Why: d}
	}
	return nil
}

func (e event) run(p *player, s *stmt) error {
	got, err := await(p, s, &p.events)
	if err != nil {
		return err
	}
	if got.Type != e.typ {
		return &Failure{Wanted: s.text, Got: "event " + eventName(got.Type)}
	}
	return nil
}

func (e state) run(p *player, s *stmt) error {
	if got := p.qps[e.qp].State(); got != e.want {
		return &Failure{Wanted: s.text, Got: "state " + got.String()}
	}
	return nil
}

func (m memory) run(p *player, s *stmt) error {
	got := make([]byte, len(m.data))
	p.mems[m.mr].Read(m.va, got)
	if d := differ(m.data, got); d != "" {
		return &Failure{Wanted: s.text, Got: "other bytes", Why: d}
	}
	return nil
}

func (m store) run(p *player, s *stmt) error {
	p.out(p.nic.Now(), s.text)
	p.mems[m.mr].Write(m.va, m.data)
	return nil
}

func (c counter) run(p *player, s *stmt) error {
	for _, v := range p.nic.Device.Statistics() {
		if v.Name != c.name {
			continue
		}
		if v.Value != c.want {
			return &Failure{Wanted: s.text, Got: fmt.Sprintf("counter %s=%d", c.name, v.Value)}
		}
		return nil
	}
	return fmt.Errorf("there is no counter %s: `softnic statistic show` lists them", c.name)
}

func (silence) run(p *player, _ *stmt) error { return p.unexpected(-1) }

func (d doRegMR) run(p *player, s *stmt) error {
	reg, mem, err := p.nic.Register(d.key, d.va, d.size, d.access)
	if err != nil {
		return err
	}
	mem.Write(d.va, d.data)
	p.regs[d.mr], p.mems[d.mr] = reg, mem
	p.out(p.nic.Now(), fmt.Sprintf("reg_mr %s key=0x%x va=0x%x size=%d", d.name, d.key, d.va, d.size))
	return nil
}

func (d doDereg) run(p *player, s *stmt) error {
	p.out(p.nic.Now(), s.text)
	return p.regs[d.mr].Dereg()
}

func (d doCreateQP) run(p *player, s *stmt) error {
	room := device.Cap{SendWR: 1024, RecvWR: 1024, SendSGE: device.MaxSGE, RecvSGE: device.MaxSGE}
	if d.typ == device.XRCIni || d.typ == device.XRCTgt {
		room.RecvWR, room.RecvSGE = 0, 0
	}
	if d.typ == device.XRCTgt {
		room = device.Cap{}
	}
	q, err := p.nic.CreateQP(d.qpn, device.QPInit{Type: d.typ, Cap: room})
	if err != nil {
		return err
	}
	p.qps[d.qp] = q
	p.out(p.nic.Now(), fmt.Sprintf("create_qp %s %s qpn=0x%x dest=0x%x sq_psn=0x%s rq_psn=0x%s mtu=%d", d.name, serviceName(d.typ), d.qpn, d.dest, d.sq, d.rq, d.attr.PathMTU))
	for st := device.StateInit; st <= d.state; st++ {
		if err := p.move(d.qp, st); err != nil {
			return err
		}
	}
	return nil
}

// serviceName is the word for a type of queue pairs.
func serviceName(t device.QPType) string {
	for n, v := range services {
		if v == t {
			return n
		}
	}
	return ""
}

// move takes a queue pair to a state, with all that the move needs.
func (p *player) move(q *qp, to device.State) error {
	a, mask := q.attr, device.AttrState
	a.State, a.Port, a.DestQPN, a.RQPSN, a.SQPSN = to, 1, q.dest, uint32(q.rq), uint32(q.sq)
	ud := q.service == "ud"
	asks, answers := q.typ == device.RC || q.typ == device.XRCIni, q.typ == device.RC || q.typ == device.XRCTgt // reliably
	from := p.qps[q].State()
	switch {
	case from == device.StateReset && to == device.StateInit:
		mask |= device.AttrPKeyIndex | device.AttrPort
		if ud {
			mask |= device.AttrQKey
		} else {
			mask |= device.AttrAccess
		}
	case to == device.StateRTR && !ud:
		i, err := p.nic.SGIDIndex()
		if err != nil {
			return err
		}
		a.AH = device.AHAttr{DGID: device.GIDOf(p.s.nic.peer), SGIDIndex: i}
		mask |= device.AttrAV | device.AttrPathMTU | device.AttrDestQPN | device.AttrRQPSN
		if answers {
			mask |= device.AttrMaxDestRdAtomic | device.AttrMinRNRTimer
		}
	case from == device.StateRTR && to == device.StateRTS:
		mask |= device.AttrSQPSN
		if asks || answers {
			mask |= device.AttrTimeout
		}
		if asks {
			mask |= device.AttrRetryCnt | device.AttrRNRRetry | device.AttrMaxRdAtomic
		}
	}
	return p.qps[q].Modify(&a, mask)
}

func (d doModify) run(p *player, s *stmt) error {
	p.out(p.nic.Now(), s.text)
	return refused(s, p.move(d.qp, d.to), d.err)
}

func (d doPost) run(p *player, s *stmt) error {
	p.out(p.nic.Now(), s.text)
	if d.srq != nil {
		return refused(s, p.srqs[d.srq].PostRecv(&d.recv), d.err)
	}
	q := p.qps[d.qp]
	if !d.send {
		return refused(s, q.PostRecv(&d.recv), d.err)
	}
	wr := d.wr
	if d.mw != nil {
		wr.Bind.Window = p.mws[d.mw].RKey()
	}
	if d.qp.service == "ud" {
		i, err := p.nic.SGIDIndex()
		if err != nil {
			return err
		}
		ah, err := p.nic.PD.CreateAH(device.AHAttr{DGID: device.GIDOf(p.s.nic.peer), SGIDIndex: i})
		if err != nil {
			return err
		}
		wr.AH = ah
	}
	return refused(s, q.PostSend(&wr), d.err)
}

// refused compares the error of a call with the one that the line wants.
func refused(s *stmt, err error, want device.Errno) error {
	got := device.Errno(0)
	if err != nil {
		got = device.ErrnoOf(err)
	}
	switch {
	case got == want:
		return nil
	case err == nil:
		return &Failure{Wanted: s.text, Got: "no error"}
	}
	return &Failure{Wanted: s.text, Got: err.Error()}
}

// What calls do.
type (
	doRegMR    struct{ *mr }
	doDereg    struct{ *mr }
	doCreateQP struct {
		*qp
		state device.State
	}
	doModify struct {
		qp  *qp
		to  device.State
		err device.Errno
	}
	doPost struct {
		qp   *qp
		srq  *srq // nil: of qp
		mw   *mw  // that is bound
		send bool
		wr   device.SendWR
		recv device.RecvWR
		err  device.Errno
	}
)
