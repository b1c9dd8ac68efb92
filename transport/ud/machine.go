package ud

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/dgram"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// GRHLen is the length of the area before the payload of a received datagram.
const GRHLen = 40

// GSIQKey is the Q_Key of every QP1 (IB_QP1_QKEY of rdma/ib_mad.h).
const GSIQKey = 0x80010000

// Machine is an unreliable datagram queue pair. Attr.PathMTU is the port's active MTU.
type Machine struct {
	dgram.Machine
	gsi bool // QP1: GSIQKey is sent and expected, whatever else is set
	psn bth.PSN

	area        [GRHLen]byte
	ip, payload []byte // being received
	put         func() transport.Status
	got         transport.WC
}

var _ transport.Engine = (*Machine)(nil)

// New returns a machine in the state that its Attr says; gsi makes it QP1.
func New(c dgram.Config, gsi bool) *Machine {
	m := &Machine{Machine: dgram.Machine{Config: c}, gsi: gsi}
	m.Emit, m.put = m.emit, m.store
	return m
}

// emit puts a datagram on the transmit list.
func (m *Machine) emit(wr *transport.SendWR) transport.Status {
	n := wr.Len()
	if n > uint64(m.Attr.PathMTU) {
		// C10-93.1.1: no error, and nothing is sent.
		m.Counters.Inc(stats.UDOversize)
		return transport.StatusSuccess
	}
	t := m.Tx.Add()
	if st := transport.Gather(m.Host, m.Tx, wr, 0, int(n)); st != transport.StatusSuccess {
		m.Tx.DropLast()
		return st
	}
	op := bth.UDSendOnly
	if wr.Op == transport.OpSendImm {
		op = bth.UDSendOnlyImm
	}
	qkey := wr.RemoteQKey
	switch {
	case m.gsi:
		qkey = GSIQKey
	case qkey&(1<<31) != 0:
		qkey = m.Attr.QKey // privileged Q_Key rule, roce.md B.2
	}
	t.Path, t.Len, t.Pad = m.Host.PathOf(wr.AH), op.Info().Len, -t.Size&3
	bth.BTH(t.Head[:]).Encode(&bth.Fields{
		Opcode: op, Solicited: wr.Flags&transport.Solicited != 0, MigReq: m.Attr.MigReq, Pad: t.Pad,
		PKey: m.Attr.PKey, DestQP: wr.RemoteQPN, PSN: m.psn,
		AckReq: m.gsi, // nobody heeds it; rxe sets it, roce.md B.2
	})
	ext := t.Head[bth.Len:t.Len]
	bth.DETH(ext).Put(qkey, m.Attr.QPN)
	if op == bth.UDSendOnlyImm {
		bth.ImmDt(ext[8:]).Put(wr.Imm)
	}
	m.psn = m.psn.Next()
	return transport.StatusSuccess
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
	wc := &m.got
	*wc = transport.WC{Flags: transport.WCGRH, SrcQP: d.SrcQP(), SL: slIPv4}
	if v.V6 {
		wc.SL = slIPv6
	}
	if h := v.Header(bth.HImmDt); h != nil {
		wc.Imm, wc.Flags = bth.ImmDt(h).Data(), wc.Flags|transport.WCWithImm
	}
	return m.take(now, v.IP(), v.Payload, v.BTH().Solicited())
}

// What WC.SL says of the header of a datagram.
const (
	slIPv6 = 8 | 1
	slIPv4 = 8 | 2
)

// qkey returns the Q_Key that is expected.
func (m *Machine) qkey() uint32 {
	if m.gsi {
		return GSIQKey
	}
	return m.Attr.QKey
}

// Deliver receives a datagram that was on no wire: there is no GRH, and its area is zero.
func (m *Machine) Deliver(now transport.Time, payload []byte, src uint32) wire.Fault {
	if !m.Attr.State.Receives() {
		return wire.QPState
	}
	m.got = transport.WC{SrcQP: src}
	return m.take(now, nil, payload, false)
}

// take stores a datagram into the next receive and completes it with got.
func (m *Machine) take(now transport.Time, ip, payload []byte, solicited bool) wire.Fault {
	m.ip, m.payload = ip, payload
	f := m.Take(now, GRHLen+uint64(len(payload)), m.put, &m.got, solicited)
	m.ip, m.payload = nil, nil
	return f
}

// store writes GRH area and payload. Over IPv4 the area is 20 zero bytes and the
// IPv4 header as received, over IPv6 the IPv6 header (roce.md B.10).
func (m *Machine) store() transport.Status {
	clear(m.area[:])
	copy(m.area[GRHLen-len(m.ip):], m.ip)
	if st := m.Store(0, m.area[:]); st != transport.StatusSuccess {
		return st
	}
	st := m.Store(GRHLen, m.payload)
	if st == transport.StatusSuccess {
		m.Counters.Inc(stats.RDMARecvs)
	}
	return st
}

// Sent implements transport.Engine. What is not sent has no PSN.
func (m *Machine) Sent(now transport.Time, l *transport.TxList) {
	m.Machine.Sent(now, l)
	for _, t := range l.Packets() {
		if t.Lost && t.Token != 0 {
			m.psn = bth.BTH(t.Head[:]).PSN()
			return
		}
	}
}

// Modified implements transport.Engine.
func (m *Machine) Modified(now transport.Time, c transport.Changed) {
	if c&transport.ChangedSQPSN != 0 {
		m.psn = m.Attr.SQPSN
	}
	m.Machine.Modified(now, c)
}

// Reset implements transport.Engine.
func (m *Machine) Reset() {
	m.psn = 0
	m.Machine.Reset()
}
