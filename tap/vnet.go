package tap

import "encoding/binary"

// vnetLen is the length of a vnet without the fields for merged buffers, which a TAP does not need.
const vnetLen = 10

// maxFrame is the longest frame that the host gives with a vnet: a whole IP packet of the greatest length that there is.
const maxFrame = ethLen + vlanLen + 65535

// vnet is what stands before each frame of a TAP with IFF_VNET_HDR (struct virtio_net_hdr, legacy), in the byte order of the host:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+-------------------------------+
//	|     flags     |   gso type    |       length of headers       |
//	+---------------+---------------+-------------------------------+
//	|   length of each segment      |     checksum from here on     |
//	+-------------------------------+-------------------------------+
//	|   and its place behind that   |
//	+-------------------------------+
//
// A frame with a gso type is a burst: packets that differ in nothing but payload, and are still one. A frame with needsSum has a checksum
// that is not one yet: what stands in its place is the sum over the pseudo-header.
type vnet []byte

// Of a vnet: flags, and types.
const (
	needsSum = 1
	gsoNone  = 0
	gsoUDP   = 5 // VIRTIO_NET_HDR_GSO_UDP_L4
)

func (h vnet) needsSum() bool { return h[0]&needsSum != 0 }
func (h vnet) gso() uint8     { return h[1] }
func (h vnet) size() int      { return int(binary.NativeEndian.Uint16(h[4:])) }
func (h vnet) start() int     { return int(binary.NativeEndian.Uint16(h[6:])) }
func (h vnet) offset() int    { return int(binary.NativeEndian.Uint16(h[8:])) }

// putBurst makes h that of a burst of UDP packets: head bytes of headers, and then payloads of size bytes each, the last perhaps fewer.
func (h vnet) putBurst(head, size int) {
	h[0], h[1] = needsSum, gsoUDP
	for i, v := range []int{head, size, head - udpLen, udpSum} {
		binary.NativeEndian.PutUint16(h[2+2*i:], uint16(v))
	}
}

// udpSum is where in a UDP header the checksum stands.
const udpSum = 6

// complete computes the checksum that a frame needs. It is false if its place is not in the frame.
func (h vnet) complete(frame []byte) bool {
	at := h.start() + h.offset()
	if at+2 > len(frame) {
		return false
	}
	putSum(frame[at:], fold(sum(frame[h.start():], 0))) // over the sum of the pseudo-header, which is in its place
	return true
}

// clearSum leaves a RoCE packet, which classify has found to be one, without UDP checksum, as such packets usually are: it
// would have to be computed first.
func (f frameInfo) clearSum(frame []byte) {
	ip := frame[f.off:]
	udp := ip6Len
	if f.etype == typeIPv4 {
		udp = int(ip[0]&15) * 4
	}
	be.PutUint16(ip[udp+udpSum:], 0)
}

// putSum writes a checksum where 0 would mean that there is none.
func putSum(b []byte, s uint16) {
	if s == 0 {
		s = 0xffff
	}
	be.PutUint16(b, s)
}

// joinHead makes the headers of a burst out of those of its first packet: b has the Ethernet, IP and UDP header, n is the length of all
// payloads. The UDP checksum is to be completed by who takes the burst apart.
func joinHead(b []byte, n int) {
	ip, udp := b[ethLen:len(b)-udpLen], b[len(b)-udpLen:]
	n += udpLen
	addrs := ip[8:]
	if ip[0]>>4 == 4 {
		addrs = ip[12:]
		be.PutUint16(ip[2:], uint16(len(ip)+n))
		sumIP4(ip)
	} else {
		be.PutUint16(ip[4:], uint16(n))
	}
	be.PutUint16(udp[4:], uint16(n))
	be.PutUint16(udp[udpSum:], ^fold(sum(addrs, uint64(n)+protoUDP)))
}

// sumIP4 writes the checksum of an IPv4 header.
func sumIP4(ip []byte) {
	be.PutUint16(ip[10:], 0)
	be.PutUint16(ip[10:], fold(sum(ip, 0)))
}

// burst is a frame that is being taken apart.
type burst struct {
	head    []byte // Ethernet, IP and UDP header of the whole
	eth     int    // length of the first of them
	rest    []byte // payloads that have not been taken yet
	size    int    // of each of them; the last may be shorter
	taken   uint16
	verdict verdict // on all of them
}

// headLen is what the headers of a burst may be long: the IPv4 header may have options.
const headLen = ethLen + vlanLen + 60 + udpLen

// open begins to take a frame apart. It believes no length that it has not checked: what is not ok is dropped whole, and so is
// that of whose packets one does not fit because it is longer than any on this link.
func (s *burst) open(h vnet, frame []byte) (ok, fits bool) {
	*s = burst{}
	off := ethLen
	if len(frame) >= ethLen && be.Uint16(frame[12:]) == typeVLAN {
		off += vlanLen
	}
	if len(frame) < off+ip4Len {
		return false, true
	}
	ip := frame[off:]
	udp, end := ip6Len, 0
	switch be.Uint16(frame[off-2:]) {
	case typeIPv4:
		udp, end = int(ip[0]&15)*4, int(be.Uint16(ip[2:]))
		if ip[0]>>4 != 4 || udp < ip4Len || udp > len(ip) || ip[9] != protoUDP || be.Uint16(ip[6:])&0x3fff != 0 || fold(sum(ip[:udp], 0)) != 0 {
			return false, true
		}
	case typeIPv6:
		end = ip6Len + int(be.Uint16(ip[4:]))
		if ip[0]>>4 != 6 || ip[6] != protoUDP {
			return false, true
		}
	}
	n := end - udp - udpLen
	if n <= 0 || end > len(ip) || int(be.Uint16(ip[udp+4:])) != udpLen+n ||
		h.gso() != gsoUDP || !h.needsSum() || h.start() != off+udp || h.offset() != udpSum || h.size() == 0 {
		return false, true
	}
	if udp+udpLen+min(h.size(), n) > MaxMTU {
		return true, false
	}
	head := off + udp + udpLen
	*s = burst{head: frame[:head], eth: off, rest: frame[head : head+n], size: h.size()}
	return true, true
}

// next takes the next packet: its headers go into b, which has room for them, and its payload is returned. Its IP ID is that of the burst and
// one more for each packet before it: so whoever takes bursts apart counts, and so they were counted when their ICRCs were computed.
// The UDP checksum is computed only if it is asked for, and else 0, which means none: RoCE packets have none, and have an ICRC.
func (s *burst) next(b []byte, summed bool) (payload []byte) {
	n := min(len(s.rest), s.size)
	payload, s.rest = s.rest[:n:n], s.rest[n:]
	ip, udp := b[s.eth:len(s.head)-udpLen], b[len(s.head)-udpLen:len(s.head)]
	copy(b, s.head)
	if ip[0]>>4 == 4 {
		be.PutUint16(ip[2:], uint16(len(ip)+udpLen+n))
		be.PutUint16(ip[4:], be.Uint16(ip[4:])+s.taken)
		sumIP4(ip)
	} else {
		be.PutUint16(ip[4:], uint16(udpLen+n))
	}
	s.taken++
	was := be.Uint16(udp[4:])
	be.PutUint16(udp[4:], uint16(udpLen+n))
	if !summed {
		be.PutUint16(udp[udpSum:], 0)
		return payload
	}
	// The sum over the pseudo-header, whose length was that of the whole, stands where the checksum goes.
	putSum(udp[udpSum:], fold(sum(payload, sum(udp, uint64(^was)+uint64(udpLen+n)))))
	return payload
}
