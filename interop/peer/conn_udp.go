package peer

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// UDPConn is a Conn on a UDP socket: the kernel writes the IP and UDP headers. It
// needs no privilege.
//
// Sending, it takes the packet apart and hands the UDP payload, with TOS and TTL,
// to the kernel; a packet with anything in its headers that the kernel would not
// write (an identification other than 0, another source, options, wrong lengths)
// is refused, because it could not be sent as the test meant it.
//
// Receiving, it makes up an IP and a UDP header from what the kernel tells:
// addresses, ports, TOS and TTL are those of the wire, DF is assumed, the
// identification is 0 and the UDP checksum absent. It is a [HeaderRebuilder].
type UDPConn struct {
	sock  *net.UDPConn
	local netip.AddrPort
	buf   [1 << 16]byte
	oob   [512]byte
}

// ListenUDP opens an unconnected socket on addr; port 0 stands for 4791. On Linux
// the kernel is told never to fragment, with which it sends identification 0; on
// other systems the identification is the kernel's choice, and so the ICRC of what
// is sent over IPv4 may be wrong.
func ListenUDP(addr netip.AddrPort) (*UDPConn, error) {
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), Port)
	}
	network := "udp4"
	if addr.Addr().Is6() {
		network = "udp6"
	}
	sock, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	_ = sock.SetReadBuffer(4 << 20)
	if err := prepareSocket(sock, addr.Addr().Is6()); err != nil {
		sock.Close()
		return nil, fmt.Errorf("peer: socket options on %v: %w", addr, err)
	}
	return &UDPConn{sock: sock, local: addr}, nil
}

// LocalAddr is the address and port that the socket is bound to.
func (c *UDPConn) LocalAddr() netip.AddrPort { return c.local }

// RebuildsHeader is true: the identification of received packets is not known.
func (c *UDPConn) RebuildsHeader() bool { return true }

// Close closes the socket.
func (c *UDPConn) Close() error { return c.sock.Close() }

// datagram is what a UDP socket knows of a packet.
type datagram struct {
	src, dst netip.AddrPort
	tos, ttl uint8
	payload  []byte
}

// Write sends the packet's UDP payload to its destination, from the socket's port.
func (c *UDPConn) Write(ipPacket []byte) error {
	d, err := dismantle(ipPacket)
	if err != nil {
		return err
	}
	if d.src.Port() != c.local.Port() {
		return fmt.Errorf("peer: packet has source port %d, but the UDP socket sends from %d", d.src.Port(), c.local.Port())
	}
	local := c.local.Addr()
	if d.src.Addr() != local.WithZone("") && !local.IsUnspecified() {
		return fmt.Errorf("peer: packet has source %v, but the UDP socket sends from %v", d.src.Addr(), local)
	}
	if to := d.dst.Addr(); to.IsLinkLocalUnicast() && local.Zone() != "" {
		d.dst = netip.AddrPortFrom(to.WithZone(local.Zone()), d.dst.Port())
	}
	_, _, err = c.sock.WriteMsgUDPAddrPort(d.payload, sendControl(d), d.dst)
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	return nil
}

// Read waits for a datagram and puts headers in front of it.
func (c *UDPConn) Read(deadline time.Time) ([]byte, error) {
	if err := c.sock.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	n, noob, _, from, err := c.sock.ReadMsgUDPAddrPort(c.buf[:], c.oob[:])
	if err != nil {
		return nil, err
	}
	d := datagram{
		src:     netip.AddrPortFrom(from.Addr().WithZone(""), from.Port()),
		dst:     netip.AddrPortFrom(c.local.Addr().WithZone(""), c.local.Port()),
		ttl:     64,
		payload: c.buf[:n],
	}
	receivedControl(c.oob[:noob], &d)
	return d.rebuild(), nil
}

// dismantle takes a packet apart, and refuses one that a UDP socket cannot send.
func dismantle(ip []byte) (datagram, error) {
	refuse := func(why string) (datagram, error) {
		return datagram{}, fmt.Errorf("peer: a UDP socket cannot send this packet: %s", why)
	}
	v6, udp, ok := ipLayout(ip)
	if !ok {
		return refuse("no IP and UDP header")
	}
	var d datagram
	r := wireReader(ip)
	var src, dst netip.Addr
	if v6 {
		first := r.u32()
		d.tos = uint8(first >> 20)
		length, next := int(r.u16()), r.u8()
		d.ttl = r.u8()
		src, dst = netip.AddrFrom16([16]byte(r[:16])), netip.AddrFrom16([16]byte(r[16:32]))
		switch {
		case first&0xFFFFF != 0:
			return refuse("it has a flow label")
		case length != len(ip)-40:
			return refuse("its IP length is wrong")
		case next != 17:
			return refuse("it is not UDP")
		case src.Is4In6() || dst.Is4In6():
			return refuse("its addresses would be those of an IPv4 packet")
		}
	} else {
		r.u8()
		d.tos = r.u8()
		length, id, flags := int(r.u16()), r.u16(), r.u16()
		d.ttl = r.u8()
		proto := r.u8()
		src, dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		switch {
		case udp != 20:
			return refuse("it has IP options")
		case id != 0:
			return refuse("its identification is not 0")
		case flags != 0x4000:
			return refuse("its flags are not DF alone")
		case length != len(ip):
			return refuse("its IP length is wrong")
		case proto != 17:
			return refuse("it is not UDP")
		case onesSum(0, ip[:20]) != 0xFFFF:
			return refuse("its header checksum is wrong")
		}
	}
	r = wireReader(ip[udp:])
	d.src, d.dst = netip.AddrPortFrom(src, r.u16()), netip.AddrPortFrom(dst, r.u16())
	if int(r.u16()) != len(ip)-udp {
		return refuse("its UDP length is wrong")
	}
	d.payload = ip[udp+8:]
	return d, nil
}

// rebuild is the inverse of dismantle.
func (d datagram) rebuild() []byte {
	f := Frame{
		Src: d.src.Addr().Unmap(), Dst: d.dst.Addr().Unmap(),
		TOS: d.tos, TTL: d.ttl, DF: true,
	}
	udpLen := 8 + len(d.payload)
	w := f.ipHeader(udpLen)
	w.u16(d.src.Port())
	w.u16(d.dst.Port())
	w.u16(uint16(udpLen))
	w.u16(0)
	return append(w, d.payload...)
}
