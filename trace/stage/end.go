package stage

import (
	"net"
	"net/netip"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
)

// end is the endpoint of a NIC. Unlike package pipe's it loses nothing, however long an answer is: what is sent goes to
// the script at once.
type end struct {
	info link.Info
	in   *link.Queue
	wait [][]byte // what found the queue full
	sent func(packet []byte)
	buf  []byte
}

var _ link.Endpoint = (*end)(nil)

// queueLen is how many packets the queue holds.
const queueLen = 64

func newEnd(addr netip.Addr, mtu int, c clock.Clock, sent func([]byte)) *end {
	if sent == nil {
		sent = func([]byte) {}
	}
	bits := 24
	if addr.Is6() {
		bits = 64
	}
	return &end{
		info: link.Info{
			Name: "script", MTU: mtu, MAC: link.MakeMAC(addr), Addrs: []netip.Prefix{netip.PrefixFrom(addr, bits)}, Up: true,
			SeesIP: true, MaxSegs: 1, IDRule: "written",
		},
		in: link.NewQueue(queueLen, c), sent: sent,
	}
}

func (e *end) put(packet []byte) { e.wait = append(e.wait, packet) }

// Info implements link.Endpoint.
func (e *end) Info() link.Info { return e.info }

// Watch implements link.Endpoint: nothing ever changes.
func (e *end) Watch(func()) {}

// Send implements link.Endpoint.
func (e *end) Send(frames []*link.Frame) error {
	if e.in.Closed() {
		return net.ErrClosed
	}
	for _, f := range frames {
		e.buf = f.AppendTo(e.buf[:0])
		e.sent(e.buf)
	}
	return nil
}

// Recv implements link.Endpoint.
func (e *end) Recv(b *link.Batch, wait bool) error {
	for len(e.wait) > 0 && e.in.Len() < queueLen {
		p := e.wait[0]
		e.wait = e.wait[1:]
		e.in.Put(0, func(dst []byte) []byte { return append(dst, p...) })
	}
	return e.in.Recv(b, wait)
}

// Close implements link.Endpoint.
func (e *end) Close() error {
	e.in.Close()
	return nil
}
