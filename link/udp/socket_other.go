//go:build !linux

package udp

import (
	"net"
	"net/netip"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
)

// socket is a plain UDP socket. The system sets DF and the IP ID as it likes, so that peers
// which see IP headers may refuse the ICRC; TOS and TTL are neither set nor known.
type socket struct {
	conn *net.UDPConn
	in   *link.Queue
}

func (e *Endpoint) open(addr netip.AddrPort, buffer int) error {
	network := "udp4"
	if addr.Addr().Is6() {
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return err
	}
	_ = conn.SetReadBuffer(buffer) // as much as the system gives
	_ = conn.SetWriteBuffer(buffer)
	e.conn, e.in = conn, link.NewQueue(1024, e.clk)
	go e.receive()
	return nil
}

// inFlight is not known here.
func (e *Endpoint) inFlight() int { return 0 }

func (e *Endpoint) port() uint16 { return e.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// receive moves datagrams into the queue: a Recv that does not wait has no portable
// form on a socket.
func (e *Endpoint) receive() {
	defer e.in.Close()
	buf := make([]byte, 65536)
	local := e.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	for failed := 0; failed < 1000; {
		n, from, err := e.conn.ReadFromUDPAddrPort(buf)
		if closedError(err) == net.ErrClosed {
			return
		}
		if err != nil {
			failed++ // some systems report here that an earlier send met nobody
			continue
		}
		failed = 0
		p := wire.Path{Src: from.Addr().Unmap().WithZone(""), Dst: e.addr.Addr().WithZone(""), SrcPort: from.Port(), DstPort: local.Port()}
		e.in.Put(p.NetLen(), func(dst []byte) []byte {
			dst = append(dst, make([]byte, p.NetLen())...)
			p.PutNet(dst, 0, n)
			return append(dst, buf[:n]...)
		})
	}
}

// Send transmits the frames.
func (e *Endpoint) Send(frames []*link.Frame) error {
	for _, f := range frames {
		port := f.Path.DstPort
		if port == 0 {
			port = wire.Port
		}
		switch {
		case f.Path.Dst.Is6() != e.addr.Addr().Is6():
			e.count.unreachable.Inc()
			continue
		case f.Path.Src != e.addr.Addr().WithZone(""):
			e.count.wrongSource.Inc()
			continue
		}
		dst := f.Path.Dst
		if dst.IsLinkLocalUnicast() {
			dst = dst.WithZone(e.addr.Addr().Zone())
		}
		_, err := e.conn.WriteToUDPAddrPort(f.IB, netip.AddrPortFrom(dst, port))
		switch {
		case err == nil:
		case closedError(err) == net.ErrClosed:
			return net.ErrClosed
		default:
			e.count.failed.Inc()
			e.log.Debug("packet not sent", "err", err)
		}
	}
	return nil
}

// Recv fills b with datagrams that have arrived.
func (e *Endpoint) Recv(b *link.Batch, wait bool) error { return e.in.Recv(b, wait) }

func (e *Endpoint) close() error {
	e.in.Close()
	return e.conn.Close()
}

func portHolder(netip.AddrPort) string { return "another program: stop it or use another address" }

// idRule says that nothing is known.
func idRule(netip.Addr) string { return "unverified" }

// segments returns how many packets a burst may have: one, on systems without UDP_SEGMENT.
func (e *Endpoint) segments(bool) int { return 1 }
