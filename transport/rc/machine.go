package rc

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Config is what a machine is made of. All fields are needed but Window and Share.
type Config struct {
	Attr     *transport.Attr        // what the device knows of the queue pair
	Host     transport.Host         // the device
	Tx       *transport.TxList      // where packets go
	SQ       transport.SendQueue    // where requests come from
	Recv     *transport.RecvContext // what is received into
	Counters *stats.Counters        // where it counts
	// Service is RC or, for an XRC queue pair, XRC.
	Service bth.Service
	// Select returns the receive context that an XRCETH names, nil if there is none, and Enter
	// has the Host look memory up in the domain of one. XRC targets need both; Recv is nil there.
	Select func(srqn uint32) *transport.RecvContext
	Enter  func(c *transport.RecvContext)
	// Window is the largest number of unanswered PSNs, those that READs
	// reserve included; 0 means as many as hold 1 MiB of payload, at least 128.
	Window int
	// Share is what the queue pairs of a device may have under way together; nil: no bound.
	Share *transport.Share
}

// Machine is a reliable connection queue pair.
type Machine struct {
	Config
	req  requester
	rsp  responder
	scr  transport.Scratch
	word [8]byte      // the result of an atomic on its way
	wc   transport.WC // the completion being published; a local one would be allocated

	atomic transport.Atomic // the one being executed; likewise
}

var _ transport.Engine = (*Machine)(nil)

// New returns a machine in the state that its Attr says.
func New(c Config) *Machine {
	m := &Machine{Config: c}
	m.req.m, m.rsp.m = m, m
	m.rsp.at = c.Recv
	return m
}

// txHigh is the length of the transmit list at which an engine stops emitting
// until the list was sent: long enough to fill a burst, short enough that one
// queue pair does not hold a thread.
const txHigh = 64

// Receive implements transport.Engine.
func (m *Machine) Receive(now transport.Time, v *wire.View) wire.Fault {
	if v.Info.Has(bth.Response) {
		if m.Attr.State < transport.RTS || m.Attr.State == transport.Err {
			return wire.QPState
		}
		return m.req.receive(now, v)
	}
	if !m.Attr.State.Receives() {
		return wire.QPState
	}
	return m.rsp.receive(now, v)
}

// EndBurst implements transport.Engine.
func (m *Machine) EndBurst(now transport.Time) { m.Pump(now) }

// Doorbell implements transport.Engine.
func (m *Machine) Doorbell(now transport.Time) {
	if m.Attr.State == transport.Err {
		m.Flush(now)
		return
	}
	m.req.send(now)
}

// Timer implements transport.Engine.
func (m *Machine) Timer(now transport.Time) { m.req.timer(now) }

// Deadline implements transport.Engine.
func (m *Machine) Deadline() transport.Time { return m.req.deadline() }

// Pump implements transport.Engine.
func (m *Machine) Pump(now transport.Time) bool {
	m.rsp.pump(now, txHigh/2) // neither half starves the other
	m.req.send(now)
	m.rsp.pump(now, txHigh)
	return m.Tx.Len() > 0 || m.rsp.pending()
}

// Sent implements transport.Engine.
func (m *Machine) Sent(now transport.Time, l *transport.TxList) {
	for _, t := range l.Packets() {
		if t.Token != 0 {
			m.req.left(now, t)
			m.req.sent(t)
		} else if t.Lost && !t.Gone {
			m.Tx.Drop(func(t *transport.Tx) bool { return t.Token == 0 }) // answers to what is behind it
			m.rsp.lost(now, bth.BTH(t.Head[:]).PSN())
		}
	}
	if !m.req.failed {
		m.req.goOn()
	}
	m.req.complete()
	if m.Attr.State == transport.Err {
		m.Flush(now)
	}
}

// Modified implements transport.Engine.
func (m *Machine) Modified(now transport.Time, c transport.Changed) {
	if c&transport.ChangedSQPSN != 0 {
		m.req.start(m.Attr.SQPSN)
	}
	if c&transport.ChangedRQPSN != 0 {
		m.rsp.start(m.Attr.RQPSN)
	}
	if c&transport.ChangedDepth != 0 {
		m.rsp.resize(m.Attr.MaxDestRdAtomic)
	}
	switch m.Attr.State {
	case transport.RTS:
		m.req.send(now)
	case transport.SQD:
		if m.req.drained() {
			m.req.refill() // the budgets may be others
		}
	case transport.Err:
		m.rsp.silence()
		m.req.takeBack()
	}
}

// Drained implements transport.Engine.
func (m *Machine) Drained() bool { return m.req.drained() }

// Outstanding implements transport.Engine.
func (m *Machine) Outstanding() int { return m.req.cur }

// Flush implements transport.Engine.
func (m *Machine) Flush(now transport.Time) {
	m.req.flush()
	m.rsp.flush()
}

// FlushSends implements transport.Engine. RC has no SQE state (roce.md D).
func (m *Machine) FlushSends(now transport.Time) { m.req.flush() }

// Reset implements transport.Engine.
func (m *Machine) Reset() {
	m.req.reset()
	m.rsp.reset()
}

// fail has the queue pair enter ERR and flushes it.
func (m *Machine) fail(now transport.Time) {
	if m.Attr.State != transport.Err {
		m.Host.Failed(transport.Err)
	}
	m.Flush(now)
}

// head writes a BTH and counts nothing.
func (m *Machine) head(t *transport.Tx, op bth.Operation, psn bth.PSN, ackReq, solicited bool) []byte {
	o := bth.Make(m.Service, op)
	ext := m.headOf(t, o, psn, ackReq, solicited)
	if _, ok := o.Info().Offset(bth.HXRCETH); ok {
		bth.XRCETH(ext).Put(m.req.srqn)
		ext = ext[bth.HXRCETH.Len():]
	}
	return ext
}

// headOf is head for an opcode of any service.
func (m *Machine) headOf(t *transport.Tx, o bth.Opcode, psn bth.PSN, ackReq, solicited bool) []byte {
	t.Path = m.Attr.Path
	t.Len = o.Info().Len
	t.Pad = -t.Size & 3
	bth.BTH(t.Head[:]).Encode(&bth.Fields{
		Opcode: o, Solicited: solicited, MigReq: m.Attr.MigReq, Pad: t.Pad, PKey: m.Attr.PKey,
		DestQP: m.Attr.DestQPN, AckReq: ackReq, PSN: psn,
	})
	return t.Head[bth.Len:t.Len]
}

// MSN returns how many messages of the peer were executed, 24 bits: what the next answer has in its AETH.
func (m *Machine) MSN() uint32 { return m.rsp.msn }

// MSNBefore returns what the peer's MSN is when it has executed all requests before the one that has a PSN, 24 bits.
func (m *Machine) MSNBefore(psn bth.PSN) uint32 {
	r := &m.req
	for i := range r.n {
		if w := r.at(i); w.packets > 0 && psn.In(w.first, w.packets) {
			return (w.ssn - 1) & 0xFFFFFF
		}
	}
	return r.ssn & 0xFFFFFF
}
