package peer

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"unsafe"
)

// udpNoCheck6RX lets an IPv6 socket take datagrams without a UDP checksum, as rxe
// sends them.
const udpNoCheck6RX = 102

// prepareSocket asks for identification 0 on what is sent (never fragment, on an
// unconnected socket), and for destination, TOS and TTL of what is received.
func prepareSocket(sock *net.UDPConn, v6 bool) error {
	options := [][3]int{
		{syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO},
		{syscall.IPPROTO_IP, syscall.IP_PKTINFO, 1},
		{syscall.IPPROTO_IP, syscall.IP_RECVTOS, 1},
		{syscall.IPPROTO_IP, syscall.IP_RECVTTL, 1},
	}
	if v6 {
		options = [][3]int{
			{syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER, syscall.IPV6_PMTUDISC_DO},
			{syscall.IPPROTO_IPV6, syscall.IPV6_RECVPKTINFO, 1},
			{syscall.IPPROTO_IPV6, syscall.IPV6_RECVTCLASS, 1},
			{syscall.IPPROTO_IPV6, syscall.IPV6_RECVHOPLIMIT, 1},
			{syscall.IPPROTO_UDP, udpNoCheck6RX, 1},
		}
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for _, o := range options {
			if failed = syscall.SetsockoptInt(int(fd), o[0], o[1], o[2]); failed != nil {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// sendControl is the control message that makes the kernel use the packet's TOS
// and TTL.
func sendControl(d datagram) []byte {
	if d.dst.Addr().Is6() {
		return append(controlInt(syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS, int(d.tos)),
			controlInt(syscall.IPPROTO_IPV6, syscall.IPV6_HOPLIMIT, int(d.ttl))...)
	}
	return append(controlInt(syscall.IPPROTO_IP, syscall.IP_TOS, int(d.tos)),
		controlInt(syscall.IPPROTO_IP, syscall.IP_TTL, int(d.ttl))...)
}

// controlInt is one control message with an int in it.
func controlInt(level, kind, value int) []byte {
	b := make([]byte, syscall.CmsgSpace(4))
	h := (*syscall.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(syscall.CmsgLen(4))
	binary.NativeEndian.PutUint32(b[syscall.CmsgLen(0):], uint32(value))
	return b
}

// receivedControl takes destination, TOS and TTL out of the control messages.
func receivedControl(oob []byte, d *datagram) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range messages {
		switch level, kind := int(m.Header.Level), int(m.Header.Type); {
		case level == syscall.IPPROTO_IP && kind == syscall.IP_TOS && len(m.Data) >= 1:
			d.tos = m.Data[0]
		case level == syscall.IPPROTO_IP && kind == syscall.IP_TTL && len(m.Data) >= 4:
			d.ttl = uint8(binary.NativeEndian.Uint32(m.Data))
		case level == syscall.IPPROTO_IP && kind == syscall.IP_PKTINFO && len(m.Data) >= 12:
			// interface index, local address, address in the header
			d.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Data[8:12])), d.dst.Port())
		case level == syscall.IPPROTO_IPV6 && kind == syscall.IPV6_TCLASS && len(m.Data) >= 4:
			d.tos = uint8(binary.NativeEndian.Uint32(m.Data))
		case level == syscall.IPPROTO_IPV6 && kind == syscall.IPV6_HOPLIMIT && len(m.Data) >= 4:
			d.ttl = uint8(binary.NativeEndian.Uint32(m.Data))
		case level == syscall.IPPROTO_IPV6 && kind == syscall.IPV6_PKTINFO && len(m.Data) >= 16:
			d.dst = netip.AddrPortFrom(netip.AddrFrom16([16]byte(m.Data[:16])), d.dst.Port())
		}
	}
}
