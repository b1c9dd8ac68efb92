package trace

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"net/netip"
	"strings"
)

// The blocks of pcapng files (draft-ietf-opsawg-pcapng) that are read; the others are passed over.
const (
	blockSection   = 0x0A0D0D0A
	blockInterface = 1
	blockOldPacket = 2 // obsolete
	blockSimple    = 3
	blockStatistic = 5
	blockPacket    = 6

	byteOrderMagic = 0x1A2B3C4D

	optEnd     = 0
	optComment = 1

	sectionApp = 4 // shb_userappl

	interfaceName        = 2
	interfaceDescription = 3
	interfaceIPv4        = 4
	interfaceIPv6        = 5
	interfaceResolution  = 9
	interfaceOffset      = 14

	packetFlags = 2
	packetDrops = 4

	statisticReceived = 4
	statisticDropped  = 5
	statisticOSDrop   = 7
)

var blockSectionMagic = []byte{0x0A, 0x0D, 0x0D, 0x0A}

// nextBlock reads blocks up to the next packet.
func (r *Reader) nextBlock() error {
	for {
		h, err := r.s.peek(8)
		if len(h) < 8 {
			if len(h) == 0 && err == io.EOF {
				return io.EOF
			}
			return r.s.why(err, "the file ends inside the header of a block")
		}
		typ := r.order.Uint32(h)
		if typ == blockSection { // the same in both orders
			if e := r.section(); e != nil {
				return e
			}
			continue
		}
		n := r.order.Uint32(h[4:])
		if n < 12 || n%4 != 0 {
			return &Error{Offset: r.s.at, Text: fmt.Sprintf("a block (type 0x%x) of %d bytes: the file is damaged here", typ, n)}
		}
		switch typ {
		case blockInterface, blockOldPacket, blockSimple, blockStatistic, blockPacket:
		default:
			if err := r.s.skip(int64(n)); err != nil {
				return r.s.why(err, fmt.Sprintf("the file ends inside a block of %d bytes (type 0x%x)", n, typ))
			}
			continue
		}
		b, e := r.block(n)
		if e != nil {
			return e
		}
		body, found := b[8:n-4], false
		var bad string
		switch typ {
		case blockInterface:
			bad = r.iface(body)
		case blockStatistic:
			bad = r.statistic(body)
		default:
			found = true
			bad = r.packet(typ, body)
		}
		if bad != "" {
			return &Error{Offset: r.s.at, Text: bad}
		}
		if err := r.s.take(int(n)); err != nil || found {
			return err
		}
	}
}

// block returns a whole block, without going on.
func (r *Reader) block(n uint32) ([]byte, *Error) {
	if n > maxRecord {
		return nil, &Error{Offset: r.s.at, Text: fmt.Sprintf("a block of %d bytes, which no capture has: the file is damaged here", n)}
	}
	b, err := r.s.peek(int(n))
	if len(b) < int(n) {
		return nil, r.s.why(err, fmt.Sprintf("the file ends inside a block: %d of %d bytes are there", len(b), n))
	}
	if again := r.order.Uint32(b[n-4:]); again != n {
		return nil, &Error{Offset: r.s.at, Text: fmt.Sprintf("a block of %d bytes that says %d at its end: the file is damaged here", n, again)}
	}
	return b, nil
}

// section reads a section header; interfaces count anew from there.
func (r *Reader) section() *Error {
	h, err := r.s.peek(12)
	if len(h) < 12 {
		return r.s.why(err, "the file ends inside a section header")
	}
	switch binary.LittleEndian.Uint32(h[8:]) {
	case byteOrderMagic:
		r.order = binary.LittleEndian
	case bits.ReverseBytes32(byteOrderMagic):
		r.order = binary.BigEndian
	default:
		return &Error{Offset: r.s.at, Text: fmt.Sprintf("the byte order of the section cannot be told: % x where 1a2b3c4d should be", h[8:12])}
	}
	n := r.order.Uint32(h[4:])
	if n < 28 || n%4 != 0 {
		return &Error{Offset: r.s.at, Text: fmt.Sprintf("a section header of %d bytes: the file is damaged here", n)}
	}
	b, e := r.block(n)
	if e != nil {
		return e
	}
	if v := r.order.Uint16(b[12:]); v != 1 {
		return &Error{Offset: r.s.at, Text: fmt.Sprintf("pcapng version %d, and only 1 is known", v)}
	}
	r.base, r.app = len(r.ifaces), ""
	r.options(b[24:n-4], func(code uint16, v []byte) {
		if code == sectionApp {
			r.app = text(v)
		}
	})
	if err := r.s.take(int(n)); err != nil {
		return r.s.why(err, "cut off")
	}
	return nil
}

// options calls f for each option; what is cut off is left out.
func (r *Reader) options(b []byte, f func(code uint16, v []byte)) {
	for len(b) >= 4 {
		code, n := r.order.Uint16(b), int(r.order.Uint16(b[2:]))
		if code == optEnd || n > len(b)-4 {
			return
		}
		f(code, b[4:4+n])
		b = b[min(len(b), 4+(n+3)&^3):]
	}
}

// text is an option that is a string.
func text(b []byte) string { return strings.ToValidUTF8(strings.TrimRight(string(b), "\x00"), "?") }

func (r *Reader) iface(b []byte) string {
	if len(b) < 8 {
		return "the description of an interface is cut off"
	}
	if len(r.ifaces) >= maxInterfaces {
		return fmt.Sprintf("more than %d interfaces", maxInterfaces)
	}
	i := Interface{Link: LinkType(r.order.Uint16(b)), Snaplen: r.order.Uint32(b[4:]), App: r.app, toNs: resolution{mul: 1000}}
	r.options(b[8:], func(code uint16, v []byte) {
		switch {
		case code == interfaceName:
			i.Name = text(v)
		case code == interfaceDescription:
			i.Description = text(v)
		case code == interfaceIPv4 && len(v) == 8:
			i.Addrs = append(i.Addrs, netip.AddrFrom4([4]byte(v)))
		case code == interfaceIPv6 && len(v) == 17:
			i.Addrs = append(i.Addrs, netip.AddrFrom16([16]byte(v)))
		case code == interfaceResolution && len(v) >= 1:
			off := i.toNs.offset
			i.toNs = resolutionOf(v[0])
			i.toNs.offset = off
		case code == interfaceOffset && len(v) == 8:
			i.toNs.offset = int64(r.order.Uint64(v))
		}
	})
	r.ifaces = append(r.ifaces, i)
	return ""
}

func (r *Reader) statistic(b []byte) string {
	if len(b) < 12 {
		return "the statistics of an interface are cut off"
	}
	id := uint64(r.order.Uint32(b)) + uint64(r.base)
	if id >= uint64(len(r.ifaces)) {
		return fmt.Sprintf("statistics of interface %d, which the section does not have", r.order.Uint32(b))
	}
	i := &r.ifaces[id]
	var drops uint64
	r.options(b[12:], func(code uint16, v []byte) {
		if len(v) != 8 {
			return
		}
		switch code {
		case statisticReceived:
			i.Received, i.Told = r.order.Uint64(v), true
		case statisticDropped, statisticOSDrop:
			drops += r.order.Uint64(v)
			i.Told = true
		}
	})
	i.Dropped = max(i.Dropped, drops)
	return ""
}

// packet reads one of the blocks that hold a packet; the text says what is wrong with it.
func (r *Reader) packet(typ uint32, b []byte) string {
	p := &r.pkt
	p.Flags, p.Comment, p.NoTime = 0, nil, false
	id, head := 0, 20
	var when uint64
	var n, whole uint32
	drops := uint32(0)
	switch typ {
	case blockSimple:
		head = 4
		if len(b) < head {
			return "a packet block is cut off"
		}
		whole = r.order.Uint32(b)
		n = min(whole, uint32(len(b)-head))
		if r.base < len(r.ifaces) {
			if s := r.ifaces[r.base].Snaplen; s != 0 {
				n = min(n, s)
			}
		}
		p.NoTime = true
	default:
		if len(b) < head {
			return "a packet block is cut off"
		}
		id = int(r.order.Uint32(b))
		if typ == blockOldPacket {
			id = int(r.order.Uint16(b))
			if d := r.order.Uint16(b[2:]); d != 0xFFFF {
				drops = uint32(d)
			}
		}
		when = uint64(r.order.Uint32(b[4:]))<<32 | uint64(r.order.Uint32(b[8:]))
		n, whole = r.order.Uint32(b[12:]), r.order.Uint32(b[16:])
	}
	if id >= len(r.ifaces)-r.base {
		return fmt.Sprintf("a packet of interface %d, which the section does not have", id)
	}
	if n > uint32(len(b)-head) {
		return fmt.Sprintf("a packet of %d bytes in a block that has room for %d: the file is damaged here", n, len(b)-head)
	}
	p.Iface = r.base + id
	i := &r.ifaces[p.Iface]
	p.Link, p.Data, p.Length = i.Link, b[head:head+int(n)], int(max(n, whole))
	if !p.NoTime {
		p.Time = i.toNs.ns(when)
	}
	if o := b[head+int((n+3)&^3):]; typ != blockSimple && len(o) >= 4 {
		r.options(o, func(code uint16, v []byte) {
			switch {
			case code == packetFlags && len(v) == 4:
				p.Flags = r.order.Uint32(v)
			case code == optComment && p.Comment == nil:
				p.Comment = v
			case code == packetDrops && len(v) == 8:
				r.lost += r.order.Uint64(v)
			}
		})
	}
	r.lost += uint64(drops)
	return ""
}

// resolution turns the units of an interface's clock into ns. Of mul, div and shift one is set.
type resolution struct {
	mul, div uint64
	shift    uint
	offset   int64 // s
}

// resolutionOf reads if_tsresol: a negative power of ten, or with the high bit of two.
func resolutionOf(v byte) resolution {
	if v&0x80 != 0 {
		return resolution{shift: uint(min(v&0x7F, 63))}
	}
	x := resolution{mul: 1, div: 1}
	for i := v; i < 9; i++ {
		x.mul *= 10
	}
	for i := byte(9); i < v && i < 28; i++ {
		x.div *= 10
	}
	return x
}

// ns turns a time into ns since 1970; what is out of range is the last that is in it.
func (x resolution) ns(v uint64) int64 {
	var hi, lo uint64
	switch {
	case x.mul == 0: // 2^-shift seconds
		hi, lo = bits.Mul64(v, 1e9)
		lo = hi<<(64-x.shift) | lo>>x.shift
		hi >>= x.shift
	default:
		hi, lo = bits.Mul64(v, x.mul)
		if x.div > 1 && hi == 0 {
			lo /= x.div
		}
	}
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	t := int64(lo)
	if x.offset != 0 {
		off := x.offset
		if off > math.MaxInt64/1_000_000_000 || off < math.MinInt64/1_000_000_000 {
			return t
		}
		off *= 1_000_000_000
		if s := t + off; (off > 0) == (s > t) {
			return s
		}
	}
	return t
}
