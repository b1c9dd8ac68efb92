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
// their IDs count on. It returns the packets, in memory of their own, or nil: the frame is one packet, or none that is right can begin it.
func (f *Frame) burst() [][]byte {
	net, ib := f.split()
	if len(ib) < bth.Len || !long(ib) {
		return nil
	}
	shortest := bth.Opcode(ib[0]).Info().Len + wire.ICRCLen
	near := ib[:min(len(ib), maxPacket+bth.Len)] // the second one begins here, for the same queue pair
	for at := shortest; ; at += 4 {
		i := bytes.Index(near[min(at+5, len(near)):], ib[5:8])
		if i < 0 {
			return nil
		}
		at += i
		if at%4 != 0 || !bytes.Equal(ib[at+2:at+4], ib[2:4]) {
			at -= at % 4
			continue
		}
		if !right(packet(net, ib[:at], 0)) {
			continue
		}
		if right(f.IP) {
			return nil
		}
		var l [][]byte
		for ; len(ib) > 0; ib = ib[min(at, len(ib)):] {
			l = append(l, packet(net, ib[:min(at, len(ib))], len(l)))
		}
		return l
	}
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

// maxPacket is more than any has between its UDP header and the end: all headers, payload, pad and ICRC.
const maxPacket = 4096 + 128

// long reports whether it may be several packets: it is longer than the opcode allows, or any length is right for that.
func long(ib []byte) bool {
	info := bth.Opcode(ib[0]).Info()
	payload := len(ib) - info.Len - wire.ICRCLen
	switch {
	case !info.Known() || payload <= 0:
		return false
	case info.Has(bth.FullMTU):
		return payload > 4096 || bits.OnesCount(uint(payload)) != 1
	}
	return true
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
