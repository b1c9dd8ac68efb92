package udp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is the system's part of an endpoint: the socket, who waits for it, and the batch calls on its descriptor.
type socket struct {
	conn  io.Closer
	raw   syscall.RawConn // keeps the descriptor open while a call on it runs
	out   *lookout        // nil for a group, whose socket is under the runtime's poller
	bound uint16          // port
	six   bool
	own   []byte // its address
	scope uint32 // interface of a link-local IPv6 address
	tx    sender
	rx    receiver
}

// missing in x/sys/unix: linux/udp.h, linux/in6.h
const (
	udpNoCheck6Tx = 101
	udpNoCheck6Rx = 102
	ipv6FlowInfo  = 11
)

func (e *Endpoint) open(addr netip.AddrPort, buffer int) error {
	e.six, e.own = addr.Addr().Is6(), addr.Addr().AsSlice()
	conn, err := listen(addr)
	if err != nil {
		return err
	}
	e.bound = conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	d, err := unpolled(conn)
	if err != nil {
		return err
	}
	e.conn, e.raw = d, d
	if e.out, err = newLookout(d.fd); err != nil {
		d.Close()
		return err
	}
	if z := addr.Addr().Zone(); z != "" {
		if ifi, err := net.InterfaceByName(z); err == nil {
			e.scope = uint32(ifi.Index)
		} else if n, err := strconv.Atoi(z); err == nil {
			e.scope = uint32(n)
		}
	}
	e.tx.try, e.rx.try = e.trySend, e.tryRecv
	return e.raw.Control(func(fd uintptr) {
		e.setBuffers(int(fd), buffer)
		e.sendToGroups(int(fd), addr.Addr())
	})
}

// unpolled takes a socket away from the runtime's poller. Its calls do not block all the same, for they ask for that.
func unpolled(c *net.UDPConn) (*descriptor, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &descriptor{fd: fd}, nil
}

// listen returns a socket with the options that the ICRC depends on. Verification uses it too.
func listen(addr netip.AddrPort) (*net.UDPConn, error) {
	network := "udp4"
	if addr.Addr().Is6() {
		network = "udp6"
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = setOptions(int(fd), network == "udp6") }); cerr != nil {
			return cerr
		}
		return err
	}}
	c, err := lc.ListenPacket(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// setOptions makes the host send what the framer assumes: DF, ID 0, no UDP checksum,
// and hop limit 64 unless a packet says otherwise.
func setOptions(fd int, six bool) error {
	level, name, do, what := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, "IP_MTU_DISCOVER"
	if six {
		level, name, do, what = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, "IPV6_MTU_DISCOVER"
	}
	if err := unix.SetsockoptInt(fd, level, name, do); err != nil {
		return os.NewSyscallError("setsockopt "+what, err)
	}
	// Without the others, on a kernel that imitates Linux, most of it works still: the header
	// of a received packet is then filled with what is usual.
	type opt struct{ level, name, value int }
	opts := []opt{
		{unix.IPPROTO_IP, unix.IP_PKTINFO, 1},
		{unix.IPPROTO_IP, unix.IP_RECVTOS, 1},
		{unix.IPPROTO_IP, unix.IP_RECVTTL, 1},
		{unix.IPPROTO_IP, unix.IP_TTL, 64},
		{unix.SOL_SOCKET, unix.SO_NO_CHECK, 1},
	}
	if six {
		opts = []opt{
			{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			{unix.IPPROTO_IPV6, ipv6FlowInfo, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, 0},
			{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 64},
			{unix.IPPROTO_UDP, udpNoCheck6Tx, 1},
			{unix.IPPROTO_UDP, udpNoCheck6Rx, 1},
		}
	}
	for _, o := range append(opts, opt{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1}) {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
	}
	return nil
}

// segments asks the kernel to take bursts as they are, and to hand on what has come together, and returns how many
// packets a burst may have. UDP_SEGMENT wants a UDP checksum, which the ICRC does not cover.
func (e *Endpoint) segments(plain bool) (n int) {
	if plain {
		return 1
	}
	n = 1
	_ = e.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1)
		if unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) != nil {
			return // before Linux 4.18
		}
		level, name := unix.SOL_SOCKET, unix.SO_NO_CHECK
		if e.six {
			level, name = unix.IPPROTO_UDP, udpNoCheck6Tx
		}
		if unix.SetsockoptInt(int(fd), level, name, 0) == nil {
			n = maxSegs
		}
	})
	return n
}

// plainFromNow gives bursts up: the network interface cannot compute the checksum that they need.
func (e *Endpoint) plainFromNow() {
	e.mu.Lock()
	was, f := e.info.MaxSegs, e.watch
	e.info.MaxSegs = 1
	e.mu.Unlock()
	if was > 1 {
		e.log.Info("the network interface refuses bursts (UDP_SEGMENT): each packet is sent alone from now on", "interface", e.name)
		if f != nil {
			go f()
		}
	}
}

// inFlight returns how much payload may be under way to a socket with a receive buffer such as this one: a third of what the kernel
// says, which is twice what was asked for and counts what it needs itself, up to as much again for small datagrams.
func (e *Endpoint) inFlight() (n int) {
	_ = e.raw.Control(func(fd uintptr) { n, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) })
	return n / 3
}

// setBuffers asks for large socket buffers: an RC window that does not fit into the
// receiver's is lost without a trace.
func (e *Endpoint) setBuffers(fd, size int) {
	for _, o := range []struct {
		force, name int
		sysctl      string
	}{
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, "net.core.rmem_max"},
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, "net.core.wmem_max"},
	} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.force, size) == nil {
			continue
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.name, size)
		// the kernel reports twice what can be used
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.name); err == nil && got/2 < size {
			e.log.Info("the host limits the socket buffer; raise the sysctl for fewer lost packets",
				"sysctl", o.sysctl, "bytes", got/2, "wanted", size)
		}
	}
}

func (e *Endpoint) port() uint16 { return e.bound }

func (e *Endpoint) close() error {
	_ = e.out.file.Close() // ends Await
	return e.conn.Close()
}

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32 // bytes moved
}
