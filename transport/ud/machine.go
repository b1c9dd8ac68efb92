package ud

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// GRHLen is the length of the area before the payload of a received datagram.
const GRHLen = 40

// GSIQKey is the Q_Key of every QP1 (IB_QP1_QKEY of rdma/ib_mad.h).
const GSIQKey = 0x80010000

// txHigh is the length of the transmit list at which the machine stops
// emitting until the list was sent.
const txHigh = 64

// Config is what a machine is made of. All fields but GSI are needed.
type Config struct {
	Attr     *transport.Attr // PathMTU is the port's active MTU
	Host     transport.Host
	Tx       *transport.TxList
	SQ       transport.SendQueue
	Recv     *transport.RecvContext
	Counters *transport.Counters
	GSI      bool // QP1: GSIQKey is sent and expected, whatever else is set
}

// Machine is an unreliable datagram queue pair.
type Machine struct {
	Config
	psn bth.PSN

	// Requests from fetch to completion, in order. A request completes when
	// its packet has left: until then the buffer is read.
	ring []send // capacity a power of two
	base uint32
	n    int

	recv transport.RecvWR
	held bool // recv was taken from the queue and not used yet
	area [GRHLen]byte
	scr  transport.Scratch
	wc   transport.WC // the completion being published; a local one would be allocated
}

// send is a send work request on its way.
type send struct {
	wr     transport.SendWR
	status transport.Status
	done   bool
}

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

// emit puts the datagram of s on the transmit list.
func (m *Machine) emit(s *send) transport.Status {
	n := s.wr.Len()
	if n > uint64(m.Attr.PathMTU) {
		// C10-93.1.1: no error, and nothing is sent.
		m.Counters.UDOversize.Inc()
		s.done = true
		return transport.StatusSuccess
	}
	t := m.Tx.Add()
	if s.wr.Flags&transport.Inline != 0 {
		t.Copy(s.wr.InlineData)
	}
	for i := range s.wr.SGE {
		e := &s.wr.SGE[i]
		if e.Length == 0 || s.wr.Flags&transport.Inline != 0 {
			continue
		}
		mem, st := m.Host.Local(nil, e.LKey, e.Addr, int(e.Length), 0)
		if st != transport.StatusSuccess {
			m.Tx.DropLast()
			return st
		}
		t.Gather(mem, e.Addr, int(e.Length))
	}
	op := bth.UDSendOnly
	if s.wr.Op == transport.OpSendImm {
		op = bth.UDSendOnlyImm
	}
	qkey := s.wr.RemoteQKey
	switch {
	case m.GSI:
		qkey = GSIQKey
	case qkey&(1<<31) != 0:
		qkey = m.Attr.QKey // privileged Q_Key rule, roce.md B.2
	}
	t.Path, t.Len, t.Pad = m.Host.PathOf(s.wr.AH), op.Info().Len, -t.Size&3
	bth.BTH(t.Head[:]).Encode(&bth.Fields{
		Opcode: op, Solicited: s.wr.Flags&transport.Solicited != 0, MigReq: m.Attr.MigReq, Pad: t.Pad,
		PKey: m.Attr.PKey, DestQP: s.wr.RemoteQPN, PSN: m.psn,
		AckReq: m.GSI, // nobody heeds it; rxe sets it, roce.md B.2
	})
	ext := t.Head[bth.Len:t.Len]
	bth.DETH(ext).Put(qkey, m.Attr.QPN)
	if op == bth.UDSendOnlyImm {
		bth.ImmDt(ext[8:]).Put(s.wr.Imm)
	}
	t.Token = (m.base + uint32(m.n-1)) | 1<<31
	m.psn = m.psn.Next()
	return transport.StatusSuccess
}

// complete retires and reports the finished requests at the head.
func (m *Machine) complete() {
	for m.n > 0 && m.at(0).done {
		s := m.at(0)
		m.base = (m.base + 1) &^ (1 << 31)
		m.n--
		m.SQ.Retire(1)
		if s.status == transport.StatusSuccess && !m.Attr.SigAll && s.wr.Flags&transport.Signaled == 0 {
			continue
		}
		wc := &m.wc
		*wc = transport.WC{ID: s.wr.ID, Status: s.status, Op: transport.WCSend, QPN: m.Attr.QPN}
		if s.status == transport.StatusSuccess {
			wc.ByteLen = uint32(s.wr.Len())
		}
		m.Host.SendDone(wc)
	}
}

// Sent implements transport.Engine.
func (m *Machine) Sent(now transport.Time, l *transport.TxList) {
	for _, t := range l.Packets() {
		i := int((t.Token - m.base) &^ (1 << 31))
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

// Receive implements transport.Engine.
func (m *Machine) Receive(now transport.Time, v *wire.View) wire.Fault {
	if !m.Attr.State.Receives() {
		return wire.QPState
	}
	if !v.Info.Known() {
		return wire.ReservedOpcode
	}
	d := bth.DETH(v.Header(bth.HDETH))
	if d.QKey() != m.qkey() {
		return wire.QKey
	}
	if v.BTH().Pad() != -len(v.Payload)&3 {
		return wire.Malformed
	}
	wc := transport.WC{Op: transport.WCRecv, Flags: transport.WCGRH, SrcQP: d.SrcQP(), SL: slIPv4}
	if v.V6 {
		wc.SL = slIPv6
	}
	if h := v.Header(bth.HImmDt); h != nil {
		wc.Imm, wc.Flags = bth.ImmDt(h).Data(), wc.Flags|transport.WCWithImm
	}
	return m.take(now, v.IP(), v.Payload, wc, v.BTH().Solicited())
}

// What WC.SL says of the header of a datagram.
const (
	slIPv6 = 8 | 1
	slIPv4 = 8 | 2
)

// qkey returns the Q_Key that is expected.
func (m *Machine) qkey() uint32 {
	if m.GSI {
		return GSIQKey
	}
	return m.Attr.QKey
}

// Deliver receives a datagram that was on no wire: there is no GRH, and its area is zero.
func (m *Machine) Deliver(now transport.Time, payload []byte, src uint32) wire.Fault {
	if !m.Attr.State.Receives() {
		return wire.QPState
	}
	return m.take(now, nil, payload, transport.WC{Op: transport.WCRecv, SrcQP: src}, false)
}

// take stores a datagram into the next receive and completes it with wc.
func (m *Machine) take(now transport.Time, ip, payload []byte, wc transport.WC, solicited bool) wire.Fault {
	if !m.held {
		if !m.Recv.Queue.Fetch(&m.recv) {
			m.Counters.OutOfBuffer.Inc()
			return wire.NoReceive
		}
		m.held = true
	}
	if uint64(len(payload))+GRHLen > transport.SGELen(m.recv.SGE) {
		return wire.TooLong // the receive stays for the next one
	}
	st := m.store(ip, payload)
	if st == transport.Gone {
		return wire.LocalMemory
	}
	if st != transport.StatusSuccess {
		m.Counters.RespCqeError.Inc()
		m.finish(transport.WC{Status: st}, false)
		m.Host.Failed(transport.Err)
		m.Flush(now)
		return wire.LocalMemory
	}
	m.Counters.RDMARecvs.Inc()
	wc.ByteLen = uint32(GRHLen + len(payload))
	if !m.finish(wc, solicited) {
		m.Host.Raise(transport.EventQPFatal)
		m.Host.Failed(transport.Err)
		m.Flush(now)
	}
	return wire.OK
}

// store writes GRH area and payload. Over IPv4 the area is 20 zero bytes and the
// IPv4 header as received, over IPv6 the IPv6 header (roce.md B.10).
func (m *Machine) store(ip, payload []byte) transport.Status {
	clear(m.area[:])
	copy(m.area[GRHLen-len(ip):], ip)
	if st := transport.Scatter(m.Host, m.Recv, m.recv.SGE, 0, m.area[:], &m.scr); st != transport.StatusSuccess {
		return st
	}
	return transport.Scatter(m.Host, m.Recv, m.recv.SGE, GRHLen, payload, &m.scr)
}

// finish completes the receive that is held; false if the completion was lost
// because its queue was full.
func (m *Machine) finish(c transport.WC, solicited bool) bool {
	wc := &m.wc
	*wc = c
	wc.ID, wc.QPN = m.recv.ID, m.Attr.QPN
	m.held = false
	m.Recv.Queue.Retire(1)
	return m.Recv.Done(wc, solicited)
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

// Timer implements transport.Engine; datagrams wait for nothing.
func (m *Machine) Timer(transport.Time) {}

// Deadline implements transport.Engine.
func (m *Machine) Deadline() transport.Time { return 0 }

// Modified implements transport.Engine.
func (m *Machine) Modified(now transport.Time, c transport.Changed) {
	if c&transport.ChangedSQPSN != 0 {
		m.psn = m.Attr.SQPSN
	}
	if m.Attr.State == transport.RTS {
		m.Pump(now)
	}
}

// FlushSends implements transport.Engine.
func (m *Machine) FlushSends(now transport.Time) {
	for {
		s := m.fetch()
		if s == nil {
			break
		}
		s.status, s.done = transport.StatusFlush, true
	}
	m.complete()
}

// Flush implements transport.Engine. Datagrams on the transmit list leave and
// complete as sent.
func (m *Machine) Flush(now transport.Time) {
	m.FlushSends(now)
	// What was taken from a shared queue is this queue pair's; what waits there is not.
	for m.held || !m.Recv.Shared && m.Recv.Queue.Fetch(&m.recv) {
		m.held = true
		m.finish(transport.WC{Status: transport.StatusFlush}, false)
	}
}

// Reset implements transport.Engine.
func (m *Machine) Reset() {
	if m.held {
		m.Recv.Queue.Retire(1)
	}
	m.base = (m.base + uint32(m.n)) &^ (1 << 31)
	m.n, m.psn, m.held = 0, 0, false
}
