package raw

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/dgram"
	"github.com/softnic/softnic/wire"
)

// Machine is a raw packet queue pair. Attr.PathMTU is the link's MTU: bytes after the Ethernet header.
type Machine struct {
	dgram.Machine
	frame []byte // being received
	put   func() transport.Status
}

var _ transport.Engine = (*Machine)(nil)

// New returns a machine in the state that its Attr says.
func New(c dgram.Config) *Machine {
	m := &Machine{Machine: dgram.Machine{Config: c}}
	m.Emit, m.put = m.emit, m.store
	return m
}

// emit puts a frame on the transmit list. The longest frame is a tagged one; whether a frame of that length is
// tagged shows when its bytes are read.
func (m *Machine) emit(wr *transport.SendWR) transport.Status {
	n := wr.Len()
	if n < wire.EthLen || n > uint64(m.Attr.PathMTU)+wire.EthVLANLen {
		return transport.StatusLocalLength
	}
	m.Tx.Add()
	st := transport.Gather(m.Host, m.Tx, wr, 0, int(n))
	if st != transport.StatusSuccess {
		m.Tx.DropLast()
	}
	return st
}

// Receive implements transport.Engine: a RoCE packet is for no raw queue pair.
func (m *Machine) Receive(transport.Time, *wire.View) wire.Fault { return wire.NoQP }

// Deliver receives a frame.
func (m *Machine) Deliver(now transport.Time, frame []byte) wire.Fault {
	if !m.Attr.State.Receives() {
		return wire.QPState
	}
	m.frame = frame
	f := m.Take(now, uint64(len(frame)), m.put, &transport.WC{}, false)
	m.frame = nil
	return f
}

func (m *Machine) store() transport.Status { return m.Store(0, m.frame) }
