package udp

import (
	"encoding/binary"
	"net"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// rxLongest is the longest RoCE packet: every header, 4096 bytes, pad and ICRC. A longer datagram cannot be one.
const rxLongest = bth.MaxHeader + 4096 + wire.MaxTailLen

// rxBuf holds what the kernel has put together of datagrams of one sender (UDP_GRO), rxMessages of which are received at once.
const (
	rxBuf      = 64 << 10
	rxMessages = 16
)

// rxControl holds the control messages asked for: addresses, TOS, TTL, flow label, losses, segment size.
const rxControl = 224

// receiver is the state of the Recv under way.
type receiver struct {
	try   func(fd uintptr) bool // tryRecv, as a value made once
	s     *scratch
	wait  bool
	n     int // messages received
	errno unix.Errno
	idle  bool   // the last look found nothing
	lost  uint32 // last count that the socket told
}

// scratch holds the buffers of one batch, and what was received and did not fit into it.
type scratch struct {
	msgs    []mmsghdr
	iovs    []unix.Iovec
	names   []unix.RawSockaddrInet6
	control [][rxControl]byte
	bufs    [][rxBuf]byte
	net     [][wire.MaxNetLen]byte // of each packet of the batch
	head    [wire.MaxNetLen]byte   // of the message at hand
	at      int                    // message that is next
	n       int                    // messages that there are
	rest    []byte                 // of message at-1: datagrams that are still to be taken
	segment int                    // length of each of them
	place   int                    // of the next among them, in the message
	empty   bool                   // message at-1 is a datagram without a byte
	when    time.Time
}

func newScratch(packets int) *scratch {
	n := min(packets, rxMessages)
	s := &scratch{
		msgs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n), names: make([]unix.RawSockaddrInet6, n),
		control: make([][rxControl]byte, n), bufs: make([][rxBuf]byte, n), net: make([][wire.MaxNetLen]byte, packets),
	}
	for i := range s.msgs {
		s.iovs[i].Base = &s.bufs[i][0]
		s.iovs[i].SetLen(rxBuf)
		h := &s.msgs[i].hdr
		h.Name, h.Iov, h.Control = (*byte)(unsafe.Pointer(&s.names[i])), &s.iovs[i], &s.control[i][0]
		h.SetIovlen(1)
	}
	return s
}

// reset makes the first n messages ready to receive again.
func (s *scratch) reset(n int) {
	for i := range n {
		s.reset1(i)
	}
}

// Recv fills b with datagrams that have arrived.
func (e *Endpoint) Recv(b *link.Batch, wait bool) error {
	r := &e.rx
	r.s = b.Scratch(func() any {
		s := newScratch(cap(b.Packets))
		s.reset(len(s.msgs))
		return s
	}).(*scratch)
	b.Packets = b.Packets[:0]
	for {
		if e.fill(b, r.s); len(b.Packets) > 0 {
			return nil
		}
		r.n, r.wait, r.errno = 0, wait && e.out == nil, 0
		if err := e.raw.Read(r.try); err != nil {
			return net.ErrClosed
		}
		r.s.at, r.s.n = 0, r.n
		switch {
		case r.n > 0:
			r.s.when = e.clk.Now()
		case r.errno != 0 && r.errno != unix.EAGAIN:
			return os.NewSyscallError("recvmsg", r.errno)
		case !wait:
			return nil
		case e.out != nil:
			if err := e.Await(); err != nil {
				return err
			}
		}
	}
}

// tryRecv is called by the poller until it returns true. Who has found nothing asks for one message the next time, for which recvmsg takes 0.3 µs
// less than recvmmsg: most likely there is nothing again, or one.
func (e *Endpoint) tryRecv(fd uintptr) bool {
	r := &e.rx
	for {
		var n uintptr
		var errno unix.Errno
		first := unsafe.Pointer(&r.s.msgs[0])
		if r.idle {
			n, _, errno = unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(first), unix.MSG_DONTWAIT)
		} else {
			n, _, errno = unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(first), uintptr(len(r.s.msgs)), unix.MSG_DONTWAIT, 0, 0)
		}
		if errno == 0 && r.idle {
			r.s.msgs[0].n, n = uint32(n), 1
		}
		r.idle = errno == unix.EAGAIN
		switch errno {
		case 0:
			r.n = int(n)
			return true
		case unix.EINTR, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EMSGSIZE:
			// the error of an earlier send, which reading takes off the socket
		case unix.EAGAIN:
			return !r.wait
		default:
			r.errno = errno
			return true
		}
	}
}

// fill adds to the batch what was received, as much as fits.
func (e *Endpoint) fill(b *link.Batch, s *scratch) {
	for len(b.Packets) < cap(b.Packets) {
		if len(s.rest) == 0 && !e.nextMessage(s) {
			return
		}
		s.empty = false
		n := min(len(s.rest), s.segment)
		ib := s.rest[:n:n]
		if s.rest = s.rest[n:]; n > rxLongest {
			e.count.rxTruncated.Inc()
			continue
		}
		h := s.net[len(b.Packets)][:len(e.head(s))]
		copy(h, e.head(s))
		if n != s.segment { // the last is shorter
			putLength(h, e.six, n)
		}
		if !e.six { // the place in what softnic has sent as a burst; of any other packet still to be solved for
			wire.PutIPID(h, uint16(s.place))
		}
		s.place++
		p := b.Add()
		p.Net, p.IB, p.When = h, ib, s.when
	}
}

// head is the header of the message at hand.
func (e *Endpoint) head(s *scratch) []byte {
	if e.six {
		return s.head[:wire.MaxNetLen]
	}
	return s.head[:wire.NetLen4]
}

// nextMessage goes on to the next message; false if there is none.
func (e *Endpoint) nextMessage(s *scratch) bool {
	for s.at < s.n {
		i := s.at
		s.at++
		m := &s.msgs[i]
		if m.hdr.Flags&unix.MSG_TRUNC != 0 {
			e.count.rxTruncated.Inc()
		} else {
			s.rest, s.empty = s.bufs[i][:m.n], m.n == 0
			s.segment, s.place = e.putNet(e.head(s), s, i), 0
			putLength(e.head(s), e.six, s.segment)
		}
		s.reset1(i)
		if len(s.rest) > 0 || s.empty {
			return true
		}
	}
	return false
}

// reset1 makes a message ready to receive again.
func (s *scratch) reset1(i int) {
	h := &s.msgs[i].hdr
	h.Namelen, h.Flags = unix.SizeofSockaddrInet6, 0
	h.SetControllen(rxControl)
}

// putLength completes a header with what depends on the length of the UDP payload; its ID is 0.
func putLength(n []byte, six bool, ibLen int) {
	if six {
		binary.BigEndian.PutUint16(n[4:], uint16(8+ibLen))
		binary.BigEndian.PutUint16(n[44:], uint16(8+ibLen))
		return
	}
	binary.BigEndian.PutUint16(n[2:], uint16(wire.NetLen4+ibLen))
	wire.PutIPChecksum(n)
	binary.BigEndian.PutUint16(n[24:], uint16(8+ibLen))
}

// putNet rebuilds the IP and UDP header of message i, but for lengths and checksum, from what the socket told. It returns the
// length of each datagram in it; the last may be shorter.
func (e *Endpoint) putNet(n []byte, s *scratch, i int) (segment int) {
	segment = int(s.msgs[i].n)
	dst := e.own // the only address that the socket is bound to, if nothing is told
	tos, ttl, flow := uint8(0), uint8(64), uint32(0)
	control := s.control[i][:s.msgs[i].hdr.Controllen]
	for len(control) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		control = rest
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= 12:
			dst = data[8:12] // ipi_addr: the destination in the header
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(data) >= 1:
			tos = data[0]
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL && len(data) >= 4:
			ttl = uint8(binary.NativeEndian.Uint32(data))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= 16:
			dst = data[:16]
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) >= 4:
			tos = uint8(binary.NativeEndian.Uint32(data))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT && len(data) >= 4:
			ttl = uint8(binary.NativeEndian.Uint32(data))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == ipv6FlowInfo && len(data) >= 4:
			flow = binary.BigEndian.Uint32(data) & 0xFFFFF
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			if size := int(binary.NativeEndian.Uint32(data)); size > 0 {
				segment = size
			}
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_RXQ_OVFL && len(data) >= 4:
			lost := binary.NativeEndian.Uint32(data)
			e.count.rxLost.Add(int(lost - e.rx.lost))
			e.rx.lost = lost
		}
	}
	name := &s.names[i]
	var udp []byte
	if e.six {
		binary.BigEndian.PutUint32(n, 6<<28|uint32(tos)<<20|flow)
		n[6], n[7] = unix.IPPROTO_UDP, ttl
		copy(n[8:24], name.Addr[:])
		copy(n[24:40], dst)
		udp = n[40:]
	} else {
		n[0], n[1] = 0x45, tos
		binary.BigEndian.PutUint32(n[4:], 0x4000) // ID 0; DF as every RoCE sender sets it
		n[8], n[9] = ttl, unix.IPPROTO_UDP
		copy(n[12:16], (*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr[:])
		copy(n[16:20], dst)
		udp = n[20:]
	}
	copy(udp, (*[2]byte)(unsafe.Pointer(&name.Port))[:]) // at the same place for IPv4
	binary.BigEndian.PutUint16(udp[2:], e.addr.Port())
	binary.BigEndian.PutUint16(udp[6:], 0)
	return segment
}
