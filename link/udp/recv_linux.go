package udp

import (
	"encoding/binary"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// rxBuf holds the longest RoCE packet: every header, 4096 bytes, pad and ICRC. A longer
// datagram cannot be one.
const rxBuf = bth.MaxHeader + 4096 + wire.MaxTailLen + 1

// rxControl holds the control messages asked for: addresses, TOS, TTL, flow label, losses.
const rxControl = 192

// receiver is the state of the Recv under way.
type receiver struct {
	try   func(fd uintptr) bool // tryRecv, as a value made once
	s     *scratch
	wait  bool
	n     int // messages received
	errno unix.Errno
	lost  uint32 // last count that the socket told
}

// scratch holds the buffers of one batch.
type scratch struct {
	msgs    []mmsghdr
	iovs    []unix.Iovec
	names   []unix.RawSockaddrInet6
	control [][rxControl]byte
	net     [][wire.MaxNetLen]byte
	bufs    [][rxBuf]byte
}

func newScratch(n int) *scratch {
	s := &scratch{
		make([]mmsghdr, n), make([]unix.Iovec, n), make([]unix.RawSockaddrInet6, n),
		make([][rxControl]byte, n), make([][wire.MaxNetLen]byte, n), make([][rxBuf]byte, n),
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
		h := &s.msgs[i].hdr
		h.Namelen, h.Flags = unix.SizeofSockaddrInet6, 0
		h.SetControllen(rxControl)
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
		r.n, r.wait, r.errno = 0, wait, 0
		if err := e.raw.Read(r.try); err != nil {
			return closedError(err)
		}
		if r.n > 0 {
			now := e.clk.Now()
			for i := range r.n {
				e.take(b, r.s, i, now)
			}
			r.s.reset(r.n)
		}
		switch {
		case len(b.Packets) > 0:
			return nil
		case r.errno != 0 && r.errno != unix.EAGAIN:
			return os.NewSyscallError("recvmmsg", r.errno)
		case !wait:
			return nil
		}
	}
}

// tryRecv is called by the poller until it returns true.
func (e *Endpoint) tryRecv(fd uintptr) bool {
	r := &e.rx
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.s.msgs[0])),
			uintptr(len(r.s.msgs)), unix.MSG_DONTWAIT, 0, 0)
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

// take adds message i to the batch: it rebuilds the IP and UDP header from what the socket
// told.
func (e *Endpoint) take(b *link.Batch, s *scratch, i int, now time.Time) {
	m := &s.msgs[i]
	if m.hdr.Flags&unix.MSG_TRUNC != 0 {
		e.count.rxTruncated.Inc()
		return
	}
	ib := s.bufs[i][:m.n]
	n := s.net[i][:wire.NetLen4]
	if e.six {
		n = s.net[i][:wire.MaxNetLen]
	}
	e.putNet(n, s, i, len(ib))
	b.Packets = append(b.Packets, link.Packet{Net: n, IB: ib, When: now})
}

func (e *Endpoint) putNet(n []byte, s *scratch, i, ibLen int) {
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
		binary.BigEndian.PutUint16(n[4:], uint16(8+ibLen))
		n[6], n[7] = unix.IPPROTO_UDP, ttl
		copy(n[8:24], name.Addr[:])
		copy(n[24:40], dst)
		udp = n[40:]
	} else {
		n[0], n[1] = 0x45, tos
		binary.BigEndian.PutUint16(n[2:], uint16(wire.NetLen4+ibLen))
		binary.BigEndian.PutUint32(n[4:], 0x4000) // ID 0, to be solved for; DF as every RoCE sender sets it
		n[8], n[9] = ttl, unix.IPPROTO_UDP
		copy(n[12:16], (*unix.RawSockaddrInet4)(unsafe.Pointer(name)).Addr[:])
		copy(n[16:20], dst)
		wire.PutIPChecksum(n)
		udp = n[20:]
	}
	copy(udp, (*[2]byte)(unsafe.Pointer(&name.Port))[:]) // at the same place for IPv4
	binary.BigEndian.PutUint16(udp[2:], e.addr.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+ibLen))
	binary.BigEndian.PutUint16(udp[6:], 0)
}
