package trace

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
)

// Segment is a TCP segment with payload.
type Segment struct {
	From, To netip.AddrPort
	Payload  []byte
}

func segment(src, dst, b []byte) (s Segment) {
	if len(b) < 20 {
		return s
	}
	n := int(b[12]>>4) * 4
	if n < 20 || n > len(b) {
		return s
	}
	from, _ := netip.AddrFromSlice(src)
	to, _ := netip.AddrFromSlice(dst)
	be := binary.BigEndian
	return Segment{netip.AddrPortFrom(from, be.Uint16(b)), netip.AddrPortFrom(to, be.Uint16(b[2:])), b[n:]}
}

// kind is Exchange if the payload has the form of what the tools tell each other.
func (s *Segment) kind() Kind {
	if n := sizeOf(s.Payload); n != 0 && len(s.Payload)%n == 0 {
		return Exchange
	}
	return Other
}

// What the tools tell each other of a queue pair, both ways over a TCP connection; rdma-core's ibv_*_pingpong, and perftest:
//
//	LLLL:QQQQQQ:PPPPPP:GID NUL                                52 bytes; LID, QPN, PSN, 32 hex digits
//	LLLL:RRRR:QQQQQQ:PPPPPP:KKKKKKKK:VVVVVVVVVVVVVVVV:GID:SSSSSSSS:NUL
//	                                                         108 bytes; READs, R_Key, address, GID as 16 times two digits, SRQN
const (
	pingpongLen = 52
	perftestLen = 108
)

// sizeOf is the length of the messages that a payload begins with, 0 if it is none.
func sizeOf(b []byte) int {
	switch {
	case len(b) >= perftestLen && form(b[:perftestLen], "hhhh:hhhh:hhhhhh:hhhhhh:hhhhhhhh:hhhhhhhhhhhhhhhh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hh:hhhhhhhh:\x00"):
		return perftestLen
	case len(b) >= pingpongLen && form(b[:pingpongLen], "hhhh:hhhhhh:hhhhhh:hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh\x00"):
		return pingpongLen
	}
	return 0
}

// form reports whether b has the form: h stands for a hexadecimal digit.
func form(b []byte, form string) bool {
	for i, c := range b {
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if form[i] == 'h' && !hex || form[i] != 'h' && form[i] != c {
			return false
		}
	}
	return true
}

// Told is what a tool told of a queue pair.
type Told struct {
	Addr netip.Addr // its GID
	QPN  uint32
	PSN  uint32 // of its first request
}

// Pair is a connection that two tools have told each other.
type Pair struct{ A, B Told }

// Exchanges joins what the tools tell each other. The zero value is ready.
type Exchanges struct {
	open map[tcpKey]*talk
}

type tcpKey struct{ from, to netip.AddrPort }

// talk is one direction of a TCP connection.
type talk struct {
	pending []Told // not yet answered
	last    []Told // the latest: TCP may send them again, interfaces see them twice, perftest tells them again as a barrier
}

const (
	maxTalks   = 4096
	maxPending = 1024
)

// Add takes a segment of an exchange and calls connect for each connection that is complete with it.
func (x *Exchanges) Add(s *Segment, connect func(Pair)) {
	n := sizeOf(s.Payload)
	if n == 0 || len(s.Payload)%n != 0 {
		return
	}
	if x.open == nil || len(x.open) >= maxTalks {
		x.open = map[tcpKey]*talk{}
	}
	t, back := x.talk(s.From, s.To), x.talk(s.To, s.From)
	for b := s.Payload; len(b) > 0; b = b[n:] {
		m := told(b[:n])
		if !m.Addr.IsValid() || m.QPN == 0 {
			continue // no GID: not over RoCE
		}
		if slices.Contains(t.last, m) {
			continue
		}
		t.last = append(t.last, m)
		if len(t.last) > maxPending {
			t.last = t.last[1:]
		}
		if len(back.pending) > 0 {
			connect(Pair{back.pending[0], m})
			back.pending = back.pending[1:]
			continue
		}
		if len(t.pending) < maxPending {
			t.pending = append(t.pending, m)
		}
	}
}

func (x *Exchanges) talk(from, to netip.AddrPort) *talk {
	k := tcpKey{from, to}
	t := x.open[k]
	if t == nil {
		t = new(talk)
		x.open[k] = t
	}
	return t
}

// told reads a message whose form is right.
func told(b []byte) (m Told) {
	num := func(s []byte) uint32 {
		v, _ := strconv.ParseUint(string(s), 16, 32)
		return uint32(v)
	}
	var gid []byte
	if len(b) == pingpongLen {
		m.QPN, m.PSN, gid = num(b[5:11]), num(b[12:18]), b[19:51]
	} else {
		m.QPN, m.PSN, gid = num(b[10:16]), num(b[17:23]), bytes.ReplaceAll(b[50:97], []byte(":"), nil)
	}
	var a [16]byte
	for i := range a {
		a[i] = byte(num(gid[2*i : 2*i+2]))
	}
	if a != [16]byte{} {
		m.Addr = netip.AddrFrom16(a).Unmap()
	}
	return m
}
