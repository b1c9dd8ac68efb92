package udp

import (
	"encoding/binary"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
)

// txControl holds three control messages: TOS, TTL, segment size.
const txControl = 96

// maxSegs is the kernel's limit of datagrams that one UDP_SEGMENT makes (UDP_MAX_SEGMENTS; 64 before Linux 6.9).
const maxSegs = 64

// sender keeps what sendmmsg needs between calls. The port sees to it that there is one at a time.
type sender struct {
	try     func(fd uintptr) bool // trySend, as a value made once
	msgs    []mmsghdr
	iovs    []unix.Iovec            // of each message
	names   []unix.RawSockaddrInet6 // also large enough for IPv4
	control [][txControl]byte
	segs    []int // frames of each message
	next    int   // first message not yet taken by the kernel
	errs    []sendError
	full    [1]unix.PollFd
	shut    bool // the endpoint was closed while it waited for room
}

// sendError is why the frames of a message were not sent.
type sendError struct {
	errno  unix.Errno
	frames int
}

// Send transmits the frames. What the host refuses for one destination does not keep the
// others back.
func (e *Endpoint) Send(frames []*link.Frame) error {
	t := &e.tx
	// Everything that messages point to must be in place before the first pointer is taken.
	if cap(t.msgs) < len(frames) {
		n := max(len(frames), 64)
		t.msgs, t.iovs, t.names, t.control, t.segs = make([]mmsghdr, 0, n), make([]unix.Iovec, n), make([]unix.RawSockaddrInet6, n), make([][txControl]byte, n), make([]int, n)
	}
	t.msgs, t.next = t.msgs[:0], 0
	for len(frames) > 0 {
		// One message for a burst, which the kernel takes apart again, if at all, as late as it can (UDP_SEGMENT).
		n := 1
		for n < len(frames) && frames[n].Segment > 0 {
			n++
		}
		e.addBurst(frames[:n])
		frames = frames[n:]
	}
	err := e.raw.Write(t.try)
	if err != nil || t.shut {
		err = net.ErrClosed
	}
	for _, x := range t.errs {
		e.countError(x)
	}
	t.errs = t.errs[:0]
	return err
}

// addBurst makes a message of the frames of a burst.
func (e *Endpoint) addBurst(burst []*link.Frame) {
	t := &e.tx
	p := burst[0].Path
	switch {
	case p.Dst.Is6() != e.six:
		e.count.unreachable.Add(len(burst))
		return
	case p.Src != e.addr.Addr().WithZone(""):
		// the host would put the socket's address into the header, and the ICRC would be wrong
		e.count.wrongSource.Add(len(burst))
		return
	}
	i := len(t.msgs)
	ib := link.Burst(burst)
	t.iovs[i] = unix.Iovec{Base: &ib[0]}
	t.iovs[i].SetLen(len(ib))
	t.msgs = t.msgs[:i+1]
	t.segs[i] = len(burst)
	h := &t.msgs[i].hdr
	*h = unix.Msghdr{Iov: &t.iovs[i], Name: (*byte)(unsafe.Pointer(&t.names[i]))}
	h.SetIovlen(1)
	h.Namelen = e.putName(&t.names[i], p)
	n := e.putControl(t.control[i][:], p)
	if len(burst) > 1 {
		n += putSegment(t.control[i][n:], len(burst[0].IB))
	}
	if n > 0 {
		h.Control = &t.control[i][0]
		h.SetControllen(n)
	}
}

// putName writes the destination and returns its length.
func (e *Endpoint) putName(n *unix.RawSockaddrInet6, p *wire.Path) uint32 {
	port := p.DstPort
	if port == 0 {
		port = wire.Port
	}
	if !e.six {
		n4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(n))
		*n4 = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: p.Dst.As4()}
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&n4.Port))[:], port)
		return unix.SizeofSockaddrInet4
	}
	*n = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: p.Dst.As16()}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&n.Port))[:], port)
	if p.Dst.IsLinkLocalUnicast() || p.Dst.IsLinkLocalMulticast() {
		n.Scope_id = e.scope
	}
	return unix.SizeofSockaddrInet6
}

// putControl writes TOS and TTL where they differ from the socket's, and returns the length.
func (e *Endpoint) putControl(b []byte, p *wire.Path) (n int) {
	level, tos, ttl := int32(unix.IPPROTO_IP), int32(unix.IP_TOS), int32(unix.IP_TTL)
	if e.six {
		level, tos, ttl = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
	}
	if p.TClass != 0 {
		n += putInt(b[n:], level, tos, p.TClass)
	}
	if p.HopLimit != 0 && p.HopLimit != 64 {
		n += putInt(b[n:], level, ttl, p.HopLimit)
	}
	return n
}

// putInt writes a control message that holds an int.
func putInt(b []byte, level, typ int32, v uint8) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, typ
	h.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(b[unix.CmsgLen(0):], uint32(v))
	return unix.CmsgSpace(4)
}

// putSegment writes the control message that has the kernel make datagrams of n bytes each; the last may be shorter.
func putSegment(b []byte, n int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(n))
	return unix.CmsgSpace(2)
}

// room waits until the send buffer has room, as a NIC waits for its wire; false if the endpoint is closed meanwhile.
func (e *Endpoint) room(fd uintptr) bool {
	const look = 20 // ms, how often it looks for Close
	t := &e.tx
	for !t.shut {
		t.full[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
		if n, err := unix.Poll(t.full[:], look); n > 0 || err != nil && err != unix.EINTR {
			return true
		}
		e.mu.Lock()
		t.shut = e.closed
		e.mu.Unlock()
	}
	return false
}

// trySend sends the messages; it returns true. The scheduler of Go is not told of the call, which does not wait: told, it would now and then
// give this goroutine's processor to another in the middle of it, and look after its processors every 20 µs for a while (Go's runtime/proc.go:
// retake, sysmon).
func (e *Endpoint) trySend(fd uintptr) bool {
	t := &e.tx
	for t.next < len(t.msgs) {
		first, left, n := unsafe.Pointer(&t.msgs[t.next]), len(t.msgs)-t.next, uintptr(1)
		var errno unix.Errno
		if left == 1 { // sendmmsg takes 0.1 to 0.2 µs more
			_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(first), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		} else {
			n, _, errno = unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(first), uintptr(left), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		}
		switch errno {
		case 0:
			t.next += int(n)
		case unix.EINTR:
		case unix.EAGAIN:
			if !e.room(fd) {
				return true
			}
		default:
			// The first message of the call is what failed; the others get their turn.
			t.errs = append(t.errs, sendError{errno, t.segs[t.next]})
			t.next++
		}
	}
	return true
}

func (e *Endpoint) countError(x sendError) {
	c := &e.count
	switch n := x.frames; x.errno {
	case unix.ENOBUFS, unix.ENOMEM:
		c.noBuffer.Add(n)
	case unix.ECONNREFUSED:
		c.refused.Add(n)
	case unix.EMSGSIZE:
		c.tooLong.Add(n)
	case unix.EPERM, unix.EACCES:
		c.denied.Add(n)
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EHOSTDOWN, unix.EADDRNOTAVAIL, unix.EINVAL:
		// EINVAL: from a loopback address to one that is not on this host
		c.unreachable.Add(n)
	default:
		c.failed.Add(n)
	}
	if x.frames > 1 && (x.errno == unix.EIO || x.errno == unix.EINVAL) {
		e.plainFromNow()
	}
	e.log.Debug("packets not sent", "packets", x.frames, "err", x.errno)
}
