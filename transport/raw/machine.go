package raw

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// txHigh is the length of the transmit list at which the machine stops
// emitting until the list was sent.
const txHigh = 64

// Config is what a machine is made of. All fields are needed.
type Config struct {
	Attr     *transport.Attr // PathMTU is the link's MTU: bytes after the Ethernet header
	Host     transport.Host
	Tx       *transport.TxList
	SQ       transport.SendQueue
	Recv     *transport.RecvContext
	Counters *transport.Counters
}

// Machine is a raw packet queue pair.
type Machine struct {
	Config

	// Requests from fetch to completion, in order. A request completes when its frame has left.
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

// isFrame marks the token of a packet, so that it is never 0.
const isFrame = 1 << 31

var _ transport.Engine = (*Machine)(nil)

// New returns a machine in the state that its Attr says.
func New(c Config) *Machine { return &Machine{Config: c} }

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
		if s.status == transport.StatusSuccess {
			s.status = m.emit(s)
		}
		if s.status != transport.StatusSuccess {
			s.done = true
			m.sendError(now)
		}
	}
	m.complete()
	return m.Tx.Len() > 0
}

// sendError has the send side stop over a request that failed.
func (m *Machine) sendError(now transport.Time) {
	m.Counters.ReqCqeError.Inc()
	if m.Attr.State == transport.RTS {
		m.Host.Failed(transport.SQE)
	}
	m.FlushSends(now)
}

// emit puts the frame of s on the transmit list. The longest frame is a tagged one; whether a frame of that length is
// tagged shows when its bytes are read.
func (m *Machine) emit(s *send) transport.Status {
	n := s.wr.Len()
	if n < wire.EthLen || n > uint64(m.Attr.PathMTU)+wire.EthVLANLen {
		return transport.StatusLocalLength
	}
	t := m.Tx.Add()
	if st := transport.Gather(m.Host, t, &s.wr, 0, int(n)); st != transport.StatusSuccess {
		m.Tx.DropLast()
		return st
	}
	t.Token = (m.base + uint32(m.n-1)) | isFrame
	return transport.StatusSuccess
}

// complete retires and reports the finished requests at the head.
func (m *Machine) complete() {
	for m.n > 0 && m.at(0).done {
		s := m.at(0)
		m.base = (m.base + 1) &^ isFrame
		m.n--
		m.SQ.Retire(1)
		if s.status == transport.StatusSuccess && !m.Attr.SigAll && s.wr.Flags&transport.Signaled == 0 {
			continue
		}
		m.wc = transport.WC{ID: s.wr.ID, Status: s.status, Op: transport.WCSend, QPN: m.Attr.QPN}
		if s.status == transport.StatusSuccess {
			m.wc.ByteLen = uint32(s.wr.Len())
		}
		m.Host.SendDone(&m.wc)
	}
}

// Sent implements transport.Engine.
func (m *Machine) Sent(now transport.Time, l *transport.TxList) {
	for _, t := range l.Packets() {
		i := int((t.Token - m.base) &^ isFrame)
		if i >= m.n {
			continue
		}
		m.at(i).done = true
		if t.Lost {
			m.at(i).status = transport.StatusLocalProtection
			m.sendError(now)
		}
	}
	m.complete()
}

// Receive implements transport.Engine: a RoCE packet is for no raw queue pair.
func (m *Machine) Receive(transport.Time, *wire.View) wire.Fault { return wire.NoQP }

// Deliver receives a frame. One that finds no receive, or is longer than the receive that it finds, is lost, and the
// receive stays for the next.
func (m *Machine) Deliver(now transport.Time, frame []byte) wire.Fault {
	if !m.Attr.State.Receives() {
		return wire.QPState
	}
	if !m.held {
		if !m.Recv.Queue.Fetch(&m.recv) {
			m.Counters.OutOfBuffer.Inc()
			return wire.NoReceive
		}
		m.held = true
	}
	if uint64(len(frame)) > transport.SGELen(m.recv.SGE) {
		return wire.TooLong
	}
	st := transport.Scatter(m.Host, m.Recv, m.recv.SGE, 0, frame, &m.scr)
	if st == transport.Gone {
		return wire.LocalMemory
	}
	if st != transport.StatusSuccess {
		m.Counters.RespCqeError.Inc()
		m.finish(transport.WC{Status: st})
		m.Host.Failed(transport.Err)
		m.Flush(now)
		return wire.LocalMemory
	}
	if !m.finish(transport.WC{Op: transport.WCRecv, ByteLen: uint32(len(frame))}) {
		m.Host.Raise(transport.EventQPFatal)
		m.Host.Failed(transport.Err)
		m.Flush(now)
	}
	return wire.OK
}

// finish completes the receive that is held; false if the completion was lost
// because its queue was full.
func (m *Machine) finish(c transport.WC) bool {
	m.wc = c
	m.wc.ID, m.wc.QPN = m.recv.ID, m.Attr.QPN
	m.held = false
	m.Recv.Queue.Retire(1)
	return m.Recv.Done(&m.wc, false)
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

// Flush implements transport.Engine. Frames on the transmit list leave and complete as sent.
func (m *Machine) Flush(now transport.Time) {
	m.FlushSends(now)
	// What was taken from a shared queue is this queue pair's; what waits there is not.
	for m.held || !m.Recv.Shared && m.Recv.Queue.Fetch(&m.recv) {
		m.held = true
		m.finish(transport.WC{Status: transport.StatusFlush})
	}
}

// Reset implements transport.Engine.
func (m *Machine) Reset() {
	if m.held {
		m.Recv.Queue.Retire(1)
	}
	m.base = (m.base + uint32(m.n)) &^ isFrame
	m.n, m.held = 0, false
}
