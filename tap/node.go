package tap

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
)

// verdict says what becomes of a received frame.
type verdict uint8

const (
	ignored   verdict = iota // nothing for us: another protocol, port or address
	foreign                  // to another station's MAC, or one of our own frames come back
	malformed                // cut off, contradictory, or a wrong checksum
	deliver                  // RoCE: for the device
	control                  // ARP, ICMP or IGMP: for node.answer
)

// frameInfo is where classify found the network header of a frame.
type frameInfo struct {
	verdict verdict
	etype   uint16
	off     int
}

// node is the NIC as a neighbour on the link: ARP, ND, echo, and the neighbour
// table. It does no I/O and knows no time: frames and times are parameters, and what
// it sends goes through emit, which must not keep the slice. Methods other than
// classify take one caller at a time.
type node struct {
	mac       hw
	linkLocal netip.Addr
	addrs     []netip.Prefix // configured
	own       map[netip.Addr]bool
	gateway4  netip.Addr // for destinations that are not on the link; invalid: none
	gateway6  netip.Addr
	log       *slog.Logger
	emit      func(frame []byte)

	table    map[netip.Addr]*neighbour
	waiting  map[netip.Addr]*neighbour // the part of table that has a request out
	unknown  int                       // the part of waiting whose MAC is not known
	defended time.Time                 // when the last conflict was answered
	groups   groups
	out      [ethLen + vlanLen + MaxMTU]byte

	count nodeCounters
}

type nodeCounters struct {
	arpReplies, ndReplies, echoReplies stats.Counter
	conflicts                          stats.Counter // frames from another station with one of our addresses
	unanswered                         stats.Counter // neighbours given up
	groupReports                       stats.Counter // IGMP and MLD
	noNeighbour                        stats.Counter // frames lost because of them, or because the queue was full
}

func newNode(mac hw, addrs []netip.Prefix, log *slog.Logger, emit func([]byte)) *node {
	n := &node{
		mac: mac, linkLocal: mac.linkLocal(), addrs: addrs, own: map[netip.Addr]bool{}, log: log, emit: emit,
		table: map[netip.Addr]*neighbour{}, waiting: map[netip.Addr]*neighbour{},
	}
	n.own[n.linkLocal] = true
	for _, p := range addrs {
		n.own[p.Addr()] = true
	}
	return n
}

// classify says what a received frame is. It reads only what does not change, so it takes no
// lock. It looks at no more than it needs to tell whose a packet is: package wire judges it.
func (n *node) classify(frame []byte) frameInfo {
	if len(frame) < ethLen {
		return frameInfo{verdict: malformed}
	}
	dst, src := hw(frame[0:6]), hw(frame[6:12])
	if (dst != n.mac && !dst.group()) || src == n.mac || src.group() {
		return frameInfo{verdict: foreign}
	}
	f := frameInfo{etype: be.Uint16(frame[12:]), off: ethLen}
	if f.etype == typeVLAN {
		if len(frame) < ethLen+vlanLen {
			return frameInfo{verdict: malformed}
		}
		if be.Uint16(frame[14:])&0xfff != 0 {
			return frameInfo{verdict: ignored}
		}
		f.etype, f.off = be.Uint16(frame[16:]), ethLen+vlanLen
	}
	b := frame[f.off:]
	switch f.etype {
	case typeARP:
		f.verdict = control
	case typeIPv4:
		f.verdict = n.classify4(b)
	case typeIPv6:
		f.verdict = n.classify6(b)
	}
	return f
}

func (n *node) classify4(b []byte) verdict {
	if len(b) < ip4Len || b[0]>>4 != 4 || b[0]&15 < 5 {
		return malformed
	}
	dst := ip4Addr(b[16:20])
	if !n.own[dst] && !dst.IsMulticast() {
		return ignored
	}
	if b[9] == protoICMP || b[9] == protoIGMP {
		return control
	}
	// A fragment other than the first shows no port.
	if b[9] != protoUDP || be.Uint16(b[6:])&0x1fff != 0 {
		return ignored
	}
	return classifyUDP(b, int(b[0]&15)*4)
}

func (n *node) classify6(b []byte) verdict {
	if len(b) < ip6Len || b[0]>>4 != 6 {
		return malformed
	}
	dst := ip6Addr(b[24:40])
	if !n.own[dst] && !dst.IsMulticast() {
		return ignored
	}
	switch b[6] {
	case protoICMPv6, protoHopByHop:
		return control
	case protoUDP:
		return classifyUDP(b, ip6Len)
	}
	return ignored
}

func classifyUDP(b []byte, off int) verdict {
	if len(b) < off+udpLen {
		return malformed
	}
	if be.Uint16(b[off+2:]) != wire.Port {
		return ignored
	}
	return deliver
}

// answer handles a frame that classify called control.
func (n *node) answer(frame []byte, f frameInfo, now time.Time) verdict {
	from, b := hw(frame[6:12]), frame[f.off:]
	if !from.unicast() {
		return malformed
	}
	switch f.etype {
	case typeARP:
		return n.answerARP(b, now)
	case typeIPv4:
		if b[9] == protoIGMP {
			return n.answerIGMP(b, now)
		}
		return n.answerICMP(from, b)
	default:
		if b[6] == protoHopByHop {
			return n.answerMLD(b, now)
		}
		return n.answerICMPv6(from, b, now)
	}
}

// answerARP follows the flow chart of RFC 826, with the defence of RFC 5227
// section 2.4.
func (n *node) answerARP(b []byte, now time.Time) verdict {
	a, ok := parseARP(b)
	if !ok {
		return malformed
	}
	mac, ip, target := a.senderMAC(), a.senderIP(), a.targetIP()
	if !mac.unicast() {
		return malformed
	}
	if mac == n.mac {
		return ignored
	}
	if n.own[ip] {
		n.conflict(ip, mac, now)
		return control
	}
	// Who asks us will hear from us; an answer to what nobody asked makes no entry.
	asksUs := n.own[target] && a.op() == arpRequest
	n.learn(ip, mac, asksUs, now)
	if asksUs {
		n.count.arpReplies.Inc()
		// A probe (sender 0.0.0.0) gets the same answer: that is what it looks for.
		n.emit(putARP(n.out[:], arpReply, mac, n.mac, target, mac, ip))
	}
	return control
}

// answerICMP answers echo requests. Neither a packet to a group nor one from a group,
// from nobody, or from ourselves is answered.
func (n *node) answerICMP(from hw, b []byte) verdict {
	p, ok := parseIP4(b)
	if !ok {
		return malformed
	}
	src, msg := p.src(), p.payload()
	if p.fragment() || !n.own[p.dst()] || !station(src) || n.own[src] {
		return ignored
	}
	if len(msg) < echoLen || fold(sum(msg, 0)) != 0 {
		return malformed
	}
	if msg[0] != echoRequest || msg[1] != 0 || ethLen+ip4Len+len(msg) > len(n.out) {
		return ignored
	}
	n.count.echoReplies.Inc()
	n.emit(putEcho4(n.out[:], from, n.mac, p.dst(), src, p[1], msg))
	return control
}

// answerICMPv6 handles neighbour discovery and echo requests, the latter also to all nodes.
func (n *node) answerICMPv6(from hw, b []byte, now time.Time) verdict {
	p, ok := parseIP6(b)
	if !ok {
		return malformed
	}
	msg := p.payload()
	if len(msg) < 4 || fold(sum(msg, pseudo6(p, len(msg)))) != 0 {
		return malformed
	}
	switch msg[0] {
	case ndSolicit, ndAdvertise:
		m, ok := parseND(p, msg)
		if !ok {
			return malformed
		}
		if m.kind == ndSolicit {
			return n.solicited(from, p.src(), m, now)
		}
		return n.advertised(from, m, now)
	case echoRequest6:
	default:
		return ignored
	}
	src, dst := p.src(), p.dst()
	if dst == allNodes {
		dst = n.linkLocal
	}
	if len(msg) < echoLen || msg[1] != 0 {
		return malformed
	}
	if !n.own[dst] || !station(src) || n.own[src] || ethLen+ip6Len+len(msg) > len(n.out) {
		return ignored
	}
	n.count.echoReplies.Inc()
	n.emit(putEcho6(n.out[:], from, n.mac, dst, src, msg))
	return control
}

// solicited answers a neighbour solicitation (RFC 4861 section 7.2.3, RFC 4862
// section 5.4.3).
func (n *node) solicited(from hw, src netip.Addr, m nd, now time.Time) verdict {
	if !n.own[m.target] {
		return ignored
	}
	if src.IsUnspecified() {
		// Somebody is about to take our address: tell all.
		n.conflict(m.target, from, now)
		return control
	}
	if n.own[src] {
		n.conflict(src, from, now)
		return control
	}
	to := from
	if m.hasMAC {
		to = m.mac
		n.learn(src, m.mac, true, now)
	}
	n.count.ndReplies.Inc()
	n.emit(putND(n.out[:], to, n.mac, m.target, src, ndAdvertise, naSolicited|naOverride, m.target))
	return control
}

// advertised takes a neighbour advertisement (RFC 4861 section 7.2.5).
func (n *node) advertised(from hw, m nd, now time.Time) verdict {
	if n.own[m.target] {
		if from != n.mac {
			n.conflict(m.target, from, now)
		}
		return control
	}
	nb := n.table[m.target]
	switch {
	case nb == nil:
	case m.hasMAC && (!nb.known || m.flags&naOverride != 0 || m.mac == nb.mac):
		n.learn(m.target, m.mac, false, now)
	case !m.hasMAC && nb.known && m.flags&naSolicited != 0 && from == nb.mac:
		n.learn(m.target, nb.mac, false, now) // the answer to a unicast probe may leave the option out
	}
	return control
}

// conflict defends one of our addresses against another station that uses it,
// not more often than every ten seconds (RFC 5227 section 2.4 c); probes for
// duplicates of an IPv6 address are always answered.
func (n *node) conflict(ip netip.Addr, mac hw, now time.Time) {
	n.count.conflicts.Inc()
	if ip.Is4() {
		if !n.defended.IsZero() && now.Sub(n.defended) < defendEvery {
			return
		}
		n.defended = now
	}
	n.log.Warn("another station uses an address of the NIC", "address", ip, "mac", mac)
	n.announceOne(ip)
}

// announce tells the link where our addresses are.
func (n *node) announce() {
	for _, p := range n.addrs {
		n.announceOne(p.Addr())
	}
	n.announceOne(n.linkLocal)
}

func (n *node) announceOne(ip netip.Addr) {
	if ip.Is4() {
		n.emit(putARP(n.out[:], arpRequest, broadcast, n.mac, ip, hw{}, ip))
		return
	}
	n.emit(putND(n.out[:], groupMAC(allNodes), n.mac, ip, allNodes, ndAdvertise, naOverride, ip))
}

// station reports whether a can be the address of one station.
func station(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && !a.Is4In6() && (!a.Is4() || a.As4()[0] != 255)
}
