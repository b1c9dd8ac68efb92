package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
)

// missing in x/sys/unix: linux/in.h, linux/in6.h
const (
	ipMulticastAll   = 49
	ipv6MulticastAll = 29
)

// groupBatch is how many datagrams to a group are received with one call.
const groupBatch = 32

// members are the groups that have been joined. Linux does not hand multicast datagrams to a socket
// that is bound to an address of the host, so each group has a socket, bound to the group itself: several
// NICs of one host may share it (SO_REUSEADDR), and each gets its copy.
type members struct {
	mu     sync.Mutex
	closed bool
	of     map[netip.Addr]*member
}

type member struct {
	ep   *Endpoint // no more than a socket and its counters
	done chan struct{}
}

// sendToGroups has multicast leave through the interface that owns the address, and with the hop limit
// of unicast unless a packet says otherwise. What the host loops back (IP_MULTICAST_LOOP stays on) is for the other
// NICs on it: our own copy is dropped by its source address. The loopback interface ignores that option, and
// brings every datagram back once.
func (e *Endpoint) sendToGroups(fd int, a netip.Addr) {
	index := e.index()
	if e.six {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 64)
		return
	}
	_ = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: a.As4(), Ifindex: int32(index)})
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 64)
}

// index returns the number of the interface that owns the endpoint's address, 0 if unknown.
func (e *Endpoint) index() int {
	if e.scope != 0 {
		return int(e.scope)
	}
	if ifi, _ := owner(e.addr.Addr()); ifi != nil {
		return ifi.Index
	}
	return 0
}

// Join implements link.Multicaster.
func (e *Endpoint) Join(group netip.Addr, in *link.Queue) error {
	if group.Is6() != e.six {
		return fmt.Errorf("udp: %v has no IPv%d, which the group %v needs", e.addr.Addr(), version(group), group)
	}
	m := &e.members
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return net.ErrClosed
	}
	if m.of[group] != nil {
		return nil
	}
	g := &Endpoint{addr: netip.AddrPortFrom(group, e.addr.Port()), clk: e.clk, log: e.log}
	g.six, g.own = e.six, group.AsSlice()
	conn, err := e.listenGroup(g.addr)
	if err != nil {
		return fmt.Errorf("udp: cannot join the group %v on %v: %w", group, e.addr.Addr(), err)
	}
	if g.raw, err = conn.SyscallConn(); err != nil {
		conn.Close()
		return err
	}
	g.conn = conn
	g.rx.try = g.tryRecv
	n := &member{ep: g, done: make(chan struct{})}
	if m.of == nil {
		m.of = map[netip.Addr]*member{}
	}
	m.of[group] = n
	if e.six && e.addr.Addr().IsLoopback() {
		// Measured on Linux 6.18: nothing arrives there, with or without a route.
		e.log.Warn("IPv6 multicast does not work on the loopback interface: the NIC hears only itself", "group", group)
	}
	go func() {
		defer close(n.done)
		e.listenTo(g, in)
	}()
	return nil
}

// listenGroup opens the socket of a group. Package net would bind it to all addresses, and so take the port from
// the other NICs of the host.
func (e *Endpoint) listenGroup(addr netip.AddrPort) (*net.UDPConn, error) {
	family, index, group := unix.AF_INET, e.index(), addr.Addr()
	var sa unix.Sockaddr
	if e.six {
		family = unix.AF_INET6
		sa = &unix.SockaddrInet6{Addr: group.As16(), Port: int(addr.Port()), ZoneId: uint32(index)}
	} else {
		sa = &unix.SockaddrInet4{Addr: group.As4(), Port: int(addr.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "group")
	defer f.Close()
	if err := setOptions(fd, e.six); err != nil {
		return nil, err
	}
	if err := joinGroup(fd, e.addr.Addr(), group, index); err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	c, err := net.FilePacketConn(f) // a copy of the descriptor
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// joinGroup makes a socket a member on one interface, and deaf to what the host receives from the group on others.
func joinGroup(fd int, own, group netip.Addr, index int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_REUSEADDR", err)
	}
	if group.Is6() {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, ipv6MulticastAll, 0)
		err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
			&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
		return os.NewSyscallError("setsockopt IPV6_JOIN_GROUP", err)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, ipMulticastAll, 0)
	err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
		&unix.IPMreqn{Multiaddr: group.As4(), Address: own.As4(), Ifindex: int32(index)})
	return os.NewSyscallError("setsockopt IP_ADD_MEMBERSHIP", err)
}

// listenTo moves datagrams of a group into the queue until the socket closes.
func (e *Endpoint) listenTo(g *Endpoint, in *link.Queue) {
	b := link.NewBatch(groupBatch)
	var p *link.Packet
	fill := func(dst []byte) []byte { return append(append(dst, p.Net...), p.IB...) }
	for {
		cut, lost := g.count.rxTruncated.Load(), g.count.rxLost.Load()
		if err := g.Recv(b, true); err != nil {
			if closedError(err) != net.ErrClosed {
				e.log.Warn("a multicast group is not received any more", "group", g.addr.Addr(), "err", err)
			}
			return
		}
		e.count.rxTruncated.Add(int(g.count.rxTruncated.Load() - cut))
		e.count.rxLost.Add(int(g.count.rxLost.Load() - lost))
		for i := range b.Packets {
			p = &b.Packets[i]
			if !e.sent(p.Net) {
				in.Put(len(p.Net), fill)
			}
		}
	}
}

// sent reports whether a datagram is one of ours, come back: address and port are those of our socket.
func (e *Endpoint) sent(n []byte) bool {
	udp := n[len(n)-8:]
	if uint16(udp[0])<<8|uint16(udp[1]) != e.addr.Port() {
		return false
	}
	if len(n) == wire.NetLen4 {
		return [4]byte(n[12:16]) == [4]byte(e.own)
	}
	return [16]byte(n[8:24]) == [16]byte(e.own)
}

// Leave implements link.Multicaster.
func (e *Endpoint) Leave(group netip.Addr) error {
	m := &e.members
	m.mu.Lock()
	g := m.of[group]
	delete(m.of, group)
	m.mu.Unlock()
	if g == nil {
		return nil
	}
	return g.end()
}

func (g *member) end() error {
	err := g.ep.conn.Close() // the membership goes with it
	<-g.done
	return err
}

// close ends all memberships.
func (m *members) close() {
	m.mu.Lock()
	m.closed = true
	l := m.of
	m.of = nil
	m.mu.Unlock()
	for _, g := range l {
		_ = g.end()
	}
}
