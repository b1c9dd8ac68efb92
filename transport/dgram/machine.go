package dgram

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// txHigh is the length of the transmit list at which the machine stops
// emitting until the list was sent.
const txHigh = 64

// sentMark marks the token of a packet, so that it is never 0.
const sentMark = 1 << 31

// Config is what a machine is made of. All fields are needed.
type Config struct {
	Attr     *transport.Attr        // PathMTU is the port's active MTU
	Host     transport.Host         // the device
	Tx       *transport.TxList      // where packets go
	SQ       transport.SendQueue    // where requests come from
	Recv     *transport.RecvContext // what is received into
	Counters *stats.Counters        // where it counts
}

// Machine is transport.Engine but for Receive.
type Machine struct {
	Config

	// Emit puts the packet of a request on the transmit list, or says why not. Without a packet on the list the request
	// completes at once.
	Emit func(wr *transport.SendWR) transport.Status

	// Requests from fetch to completion, in order. A request completes when
	// its packet has left: until then the buffer is read.
	ring []send // capacity a power of two
	base uint32 // 31 bits
	n    int

	recv transport.RecvWR
	held bool // recv was taken from the queue and not used yet
	scr  transport.Scratch
	wc   transport.WC // the completion being published; a local one would be allocated
}

// send is a send work request on its way.
type send struct {
	wr     transport.SendWR
	status transport.Status
	done   bool
}

func (m *Machine) at(i int) *send { return &m.ring[(int(m.base)+i)&(len(m.ring)-1)] }

// fetch takes the next request from the send queue.
func (m *Machine) fetch() *send {
	if m.n == len(m.ring) {
		big := make([]send, max(16, 2*len(m.ring)))
		for i := range m.n {
			big[(int(m.base)+i)&(len(big)-1)] = *m.at(i)
		}
		m.ring = big
	}
	s := m.at(m.n)
	st, ok := m.SQ.Fetch(&s.wr)
	if !ok {
		return nil
	}
	s.status, s.done = st, false
	m.n++
	return s
}

// Pump implements transport.Engine.
func (m *Machine) Pump(now transport.Time) bool {
	for m.Attr.State == transport.RTS && m.Tx.Len() < txHigh {
		s := m.fetch()
		if s == nil {
			break
		}
		before := m.Tx.Len()
		if s.status == transport.StatusSuccess {
			s.status = m.Emit(&s.wr)
		}
		switch {
		case s.status != transport.StatusSuccess:
			s.done = true
			m.sendError(now)
		case m.Tx.Len() == before:
			s.done = true
		default:
			m.Tx.Packets()[before].Token = (m.base + uint32(m.n-1)) | sentMark
		}
	}
	m.complete()
	return m.Tx.Len() > 0
}

// sendError has the send side stop over a request that failed.
func (m *Machine) sendError(now transport.Time) {
	m.Counters.Inc(stats.ReqCqeError)
	if m.Attr.State.Sends() {
		m.Host.Failed(transport.SQE)
	}
	m.FlushSends(now)
}

// complete retires and reports the finished requests at the head.
func (m *Machine) complete() {
	for m.n > 0 && m.at(0).done {
		s := m.at(0)
		m.base = (m.base + 1) &^ sentMark
		m.n--
		n := s.wr.Len() // of lists that are the queue's
		m.SQ.Retire(1)
		if s.status == transport.StatusSuccess && !m.Attr.SigAll && s.wr.Flags&transport.Signaled == 0 {
			continue
		}
		m.wc = transport.WC{ID: s.wr.ID, Status: s.status, Op: transport.WCSend, QPN: m.Attr.QPN}
		if s.status == transport.StatusSuccess {
			m.wc.ByteLen = uint32(n)
		}
		m.Host.SendDone(&m.wc)
	}
}

// Sent implements transport.Engine.
func (m *Machine) Sent(now transport.Time, l *transport.TxList) {
	for _, t := range l.Packets() {
		s := m.of(t)
		if s == nil {
			continue
		}
		s.done = true
		switch {
		case t.Lost:
			s.status = transport.StatusLocalProtection
			m.Tx.Drop(m.unsent) // what is behind it
			m.sendError(now)
		case t.Behind:
			s.status = transport.StatusFlush
		}
	}
	m.complete()
}

// of returns the request of a packet; nil if it has none.
func (m *Machine) of(t *transport.Tx) *send {
	if i := int((t.Token - m.base) &^ sentMark); t.Token != 0 && i < m.n {
		return m.at(i)
	}
	return nil
}

// unsent takes a packet back that is behind one that was lost.
func (m *Machine) unsent(t *transport.Tx) bool {
	s := m.of(t)
	if s != nil {
		s.status, s.done = transport.StatusFlush, true
	}
	return s != nil
}

// Take receives a packet of n bytes into the next receive with store, and completes that with wc. A packet that finds no receive, or
// is longer than the one that it finds, is lost, and the receive stays for the next.
func (m *Machine) Take(now transport.Time, n uint64, store func() transport.Status, wc *transport.WC, solicited bool) wire.Fault {
	if !m.held {
		if !m.Recv.Queue.Fetch(&m.recv) {
			m.Counters.Inc(stats.OutOfBuffer)
			return wire.NoReceive
		}
		m.held = true
	}
	if n > transport.SGELen(m.recv.SGE) {
		return wire.TooLong
	}
	st := store()
	if st == transport.Gone {
		return wire.LocalMemory
	}
	if st != transport.StatusSuccess {
		m.Counters.Inc(stats.RespCqeError)
		m.wc = transport.WC{Status: st}
		m.finish(false)
		m.Host.Failed(transport.Err)
		m.Flush(now)
		return wire.LocalMemory
	}
	m.wc = *wc
	m.wc.Op, m.wc.ByteLen = transport.WCRecv, uint32(n)
	if !m.finish(solicited) {
		m.Host.Raise(transport.EventQPFatal)
		m.Host.Failed(transport.Err)
		m.Flush(now)
	}
	return wire.OK
}

// Store writes b at offset from of the receive in use.
func (m *Machine) Store(from uint64, b []byte) transport.Status {
	return transport.Scatter(m.Host, m.Recv, m.recv.SGE, from, b, &m.scr)
}

// finish completes the receive that is held with wc; false if the completion was lost
// because its queue was full.
func (m *Machine) finish(solicited bool) bool {
	m.wc.ID, m.wc.QPN = m.recv.ID, m.Attr.QPN
	m.held = false
	m.Recv.Queue.Retire(1)
	return m.Recv.Done(&m.wc, solicited)
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

// Modified implements transport.Engine.
func (m *Machine) Modified(now transport.Time, _ transport.Changed) {
	if m.Attr.State == transport.RTS {
		m.Pump(now)
	}
}

// Drained implements transport.Engine.
func (m *Machine) Drained() bool { return m.n == 0 }

// FlushSends implements transport.Engine.
func (m *Machine) FlushSends(transport.Time) {
	for {
		s := m.fetch()
		if s == nil {
			break
		}
		s.status, s.done = transport.StatusFlush, true
	}
	m.complete()
}

// Outstanding implements transport.Engine.
func (m *Machine) Outstanding() int { return 0 }

// Flush implements transport.Engine. Packets on the transmit list leave and
// complete as sent.
func (m *Machine) Flush(now transport.Time) {
	m.FlushSends(now)
	// What was taken from a shared queue is this queue pair's; what waits there is not.
	for m.held || !m.Recv.Shared && m.Recv.Queue.Fetch(&m.recv) {
		m.held = true
		m.wc = transport.WC{Status: transport.StatusFlush}
		m.finish(false)
	}
}

// Reset implements transport.Engine.
func (m *Machine) Reset() {
	if m.held {
		m.Recv.Queue.Retire(1)
	}
	m.base = (m.base + uint32(m.n)) &^ sentMark
	m.n, m.held = 0, false
}
