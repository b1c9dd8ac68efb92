package trace

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// burst takes packets apart that a host's offload has made one of: UDP_SEGMENT where it is captured before it is cut up (on lo, on a TAP, at
// its sender), GRO at a receiver. They are of one queue pair, all as long as the first but for the last, which may be shorter, and in IPv4
// their IDs count on. It returns the packets, in memory of their own, or nil: the frame is one packet, or it cannot be told
// where one ends. That the first one ends somewhere, its ICRC tells, or, if it was spoiled, that of one behind it.
func (f *Frame) burst() [][]byte {
	net, ib := f.split()
	if len(ib) < 2*shortest || alone(ib) {
		return nil
	}
	size := firstOf(net, ib)
	if size == 0 {
		size = spoiledFirstOf(net, ib)
	}
	if size == 0 || right(f.IP) {
		return nil
	}
	var l [][]byte
	for ; len(ib) > 0; ib = ib[min(size, len(ib)):] {
		l = append(l, packet(net, ib[:min(size, len(ib))], len(l)))
	}
	return l
}

// firstOf returns how long the first packet of a burst is, if it is right: the second one begins behind it, for the same queue pair. 0: there is none.
func firstOf(net, ib []byte) int {
	near := ib[:min(len(ib), maxPacket+bth.Len)]
	for at := shortest; ; at += 4 {
		i := bytes.Index(near[min(at+5, len(near)):], ib[5:8])
		if i < 0 {
			return 0
		}
		at += i
		if at%4 != 0 || !bytes.Equal(ib[at+2:at+4], ib[2:4]) {
			at -= at % 4
			continue
		}
		if right(packet(net, ib[:at], 0)) {
			return at
		}
	}
}

// spoiledFirstOf is firstOf for one of which a byte is wrong, perhaps of its header: the second or the third packet is right.
func spoiledFirstOf(net, ib []byte) int {
	for at := shortest; at <= min(len(ib)-shortest, maxPacket); at += 4 {
		if differ(ib[2:8], ib[at+2:at+8]) > 1 { // P_Key and queue pair
			continue
		}
		for i := 1; i <= 2 && i*at < len(ib); i++ {
			if right(packet(net, ib[i*at:min((i+1)*at, len(ib))], i)) {
				return at
			}
		}
	}
	return 0
}

// differ returns how many bytes of a and b, which are equally long, differ.
func differ(a, b []byte) (n int) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// split returns the IP and UDP headers, and what is between them and the end that UDP names; nil if there is none, or more behind it.
func (f *Frame) split() (net, ib []byte) {
	n := wire.NetLen4
	if f.IP[0]>>4 == 6 {
		n = wire.NetLen6
	} else if f.IP[0] != 0x45 {
		return nil, nil
	}
	if f.Cut || len(f.IP) < n || int(binary.BigEndian.Uint16(f.IP[n-4:])) != len(f.IP)-n+udpLen {
		return nil, nil
	}
	return f.IP[:n], f.IP[n:]
}

const (
	// maxPacket is more than any has between its UDP header and the end: all headers, payload, pad and ICRC.
	maxPacket = 4096 + 128
	// shortest is the least that one has.
	shortest = bth.Len + wire.ICRCLen
)

// alone reports whether it is as long as one packet of its opcode is, of those that are long and many.
func alone(ib []byte) bool {
	info := bth.Opcode(ib[0]).Info()
	payload := len(ib) - info.Len - wire.ICRCLen
	return info.Known() && info.Has(bth.FullMTU) && payload <= 4096 && bits.OnesCount(uint(payload)) == 1
}

// packet is the i-th of a burst.
func packet(net, ib []byte, i int) []byte {
	b := append(append(make([]byte, 0, len(net)+len(ib)), net...), ib...)
	be := binary.BigEndian
	be.PutUint16(b[len(net)-4:], uint16(len(ib)+udpLen))
	be.PutUint16(b[len(net)-2:], 0)
	if len(net) == wire.NetLen6 {
		be.PutUint16(b[4:], uint16(len(ib)+udpLen))
		return b
	}
	be.PutUint16(b[2:], uint16(len(b)))
	be.PutUint16(b[4:], be.Uint16(b[4:])+uint16(i))
	wire.PutIPChecksum(b)
	return b
}

// right reports whether an IP packet has the ICRC that it should.
func right(ip []byte) bool {
	f := Frame{Kind: RoCE, IP: ip}
	var v wire.View
	return f.View(&v) == wire.OK && wire.CheckICRC(&v)
}
