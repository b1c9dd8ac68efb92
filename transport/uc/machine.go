package uc

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// Config is what a machine is made of. All fields are needed.
type Config struct {
	Attr     *transport.Attr        // what the device knows of the queue pair
	Host     transport.Host         // the device
	Tx       *transport.TxList      // where packets go
	SQ       transport.SendQueue    // where requests come from
	Recv     *transport.RecvContext // what is received into
	Counters *stats.Counters        // where it counts
}

// Machine is an unreliable connection queue pair.
type Machine struct {
	Config
	req requester
	rsp responder
	scr transport.Scratch
	wc  transport.WC // the completion being published; a local one would be allocated
}

var _ transport.Engine = (*Machine)(nil)

// New returns a machine in the state that its Attr says.
func New(c Config) *Machine {
	m := &Machine{Config: c}
	m.req.m, m.rsp.m = m, m
	return m
}

// txHigh is the length of the transmit list at which the machine stops emitting
// until the list was sent.
const txHigh = 64

// Receive implements transport.Engine.
func (m *Machine) Receive(now transport.Time, v *wire.View) wire.Fault {
	if !m.Attr.State.Receives() {
		return wire.QPState
	}
	if !v.Info.Known() {
		return wire.ReservedOpcode
	}
	return m.rsp.receive(now, v)
}

// EndBurst implements transport.Engine.
func (m *Machine) EndBurst(now transport.Time) { m.Pump(now) }

// Doorbell implements transport.Engine.
func (m *Machine) Doorbell(now transport.Time) {
	switch m.Attr.State {
	case transport.Err:
		m.Flush(now)
	case transport.SQE:
		m.FlushSends(now)
	default:
		m.Pump(now)
	}
}

// Timer implements transport.Engine; nothing is waited for.
func (m *Machine) Timer(transport.Time) {}

// Deadline implements transport.Engine.
func (m *Machine) Deadline() transport.Time { return 0 }

// Pump implements transport.Engine.
func (m *Machine) Pump(now transport.Time) bool {
	m.req.send()
	m.req.complete()
	return m.Tx.Len() > 0
}

// Sent implements transport.Engine.
func (m *Machine) Sent(now transport.Time, l *transport.TxList) {
	for _, t := range l.Packets() {
		m.req.sent(t)
	}
	m.req.complete()
}

// Modified implements transport.Engine.
func (m *Machine) Modified(now transport.Time, c transport.Changed) {
	if c&transport.ChangedSQPSN != 0 {
		m.req.psn = m.Attr.SQPSN
	}
	if c&transport.ChangedRQPSN != 0 {
		m.rsp.epsn = m.Attr.RQPSN
	}
	if m.Attr.State == transport.RTS {
		m.Pump(now)
	}
}

// Drained implements transport.Engine.
func (m *Machine) Drained() bool { return m.req.drained() }

// FlushSends implements transport.Engine.
func (m *Machine) FlushSends(transport.Time) { m.req.flush() }

// Outstanding implements transport.Engine.
func (m *Machine) Outstanding() int { return 0 }

// Flush implements transport.Engine. Packets on the transmit list leave.
func (m *Machine) Flush(now transport.Time) {
	m.req.flush()
	m.rsp.flush()
}

// Reset implements transport.Engine.
func (m *Machine) Reset() {
	m.req.reset()
	m.rsp.reset()
}
