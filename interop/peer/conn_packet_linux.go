package peer

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// PacketConn is a Conn on an AF_PACKET socket: every byte of the frame is the
// peer's, and the IP header of what is received is the one on the wire. It needs
// CAP_NET_RAW.
//
// It answers nothing by itself, no ARP either: the neighbour entries on both sides
// are the test's business. What the interface itself sends is not read, nor is
// anything that is not UDP to port 4791.
type PacketConn struct {
	file     *os.File
	raw      syscall.RawConn
	src, dst [6]byte
	closed   atomic.Bool
	buf      [1 << 17]byte
}

// pktOutgoing marks a packet that this host sent.
const pktOutgoing = 4

// networkOrder is the number whose bytes in memory are v, big-endian.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}

// OpenPacket opens the interface. Write sends from src, or from the interface's own
// MAC address if src is zero, to dst.
func OpenPacket(ifname string, src, dst [6]byte) (*PacketConn, error) {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("peer: interface %s: %w", ifname, err)
	}
	if src == ([6]byte{}) && len(ifi.HardwareAddr) == 6 {
		src = [6]byte(ifi.HardwareAddr)
	}
	// Opened for no protocol, the socket takes nothing in until it is bound to the
	// interface.
	fd, err := syscall.Socket(syscall.AF_PACKET,
		syscall.SOCK_RAW|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("peer: packet socket (needs CAP_NET_RAW): %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: networkOrder(syscall.ETH_P_ALL), Ifindex: ifi.Index}); err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("peer: packet socket on %s: %w", ifname, err)
	}
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<20)
	file := os.NewFile(uintptr(fd), "packet:"+ifname)
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("peer: packet socket on %s: %w", ifname, err)
	}
	return &PacketConn{file: file, raw: raw, src: src, dst: dst}, nil
}

// Close closes the socket.
func (c *PacketConn) Close() error {
	c.closed.Store(true)
	return c.file.Close()
}

// Write puts an Ethernet header in front of the packet and sends it.
func (c *PacketConn) Write(ipPacket []byte) error {
	etherType := [2]byte{0x08, 0x00}
	if len(ipPacket) > 0 && ipPacket[0]>>4 == 6 {
		etherType = [2]byte{0x86, 0xDD}
	}
	frame := append(append(c.dst[:6:6], c.src[:]...), etherType[:]...)
	return c.WriteEth(append(frame, ipPacket...))
}

// WriteEth sends a frame with its Ethernet header, as Frame.MarshalEth makes it.
func (c *PacketConn) WriteEth(frame []byte) error {
	_, err := c.file.Write(frame)
	return err
}

// Read waits for the next RoCE packet that came in on the interface and gives it
// without its Ethernet header.
func (c *PacketConn) Read(deadline time.Time) ([]byte, error) {
	frame, err := c.ReadEth(deadline)
	if err != nil {
		return nil, err
	}
	_, ip := etherPayload(frame)
	return ip, nil
}

// ReadEth is Read with the Ethernet header left on. A VLAN tag that the kernel has
// taken off is not there.
func (c *PacketConn) ReadEth(deadline time.Time) ([]byte, error) {
	if err := c.file.SetReadDeadline(deadline); err != nil {
		if c.closed.Load() {
			return nil, net.ErrClosed
		}
		return nil, err
	}
	for {
		var n int
		var from syscall.Sockaddr
		var failed error
		err := c.raw.Read(func(fd uintptr) bool {
			n, from, failed = syscall.Recvfrom(int(fd), c.buf[:], syscall.MSG_DONTWAIT)
			return failed != syscall.EAGAIN && failed != syscall.EINTR
		})
		if err != nil {
			if c.closed.Load() {
				return nil, net.ErrClosed
			}
			return nil, err
		}
		if failed != nil {
			return nil, fmt.Errorf("peer: packet socket: %w", failed)
		}
		if ll, ok := from.(*syscall.SockaddrLinklayer); ok && ll.Pkttype == pktOutgoing {
			continue
		}
		if v4or6, ip := etherPayload(c.buf[:n]); v4or6 && toRoCE(ip) {
			return append([]byte(nil), c.buf[:n]...), nil
		}
	}
}

// etherPayload skips the Ethernet header and its tags.
func etherPayload(frame []byte) (isIP bool, payload []byte) {
	for at := 12; at+2 <= len(frame); at += 4 {
		switch etherType := uint16(frame[at])<<8 | uint16(frame[at+1]); etherType {
		case 0x8100, 0x88A8:
		default:
			return etherType == 0x0800 || etherType == 0x86DD, frame[at+2:]
		}
	}
	return false, nil
}

// toRoCE reports whether an IP packet is UDP to port 4791.
func toRoCE(ip []byte) bool {
	v6, udp, ok := ipLayout(ip)
	if !ok {
		return false
	}
	proto := ip[9]
	if v6 {
		proto = ip[6]
	}
	return proto == 17 && int(ip[udp+2])<<8|int(ip[udp+3]) == Port
}
