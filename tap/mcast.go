package tap

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"
)

// Group membership: IGMPv3 (RFC 3376) and MLDv2 (RFC 3810), and their predecessors IGMPv2 (RFC 2236) and MLDv1 (RFC 2710)
// while a router that speaks only those is heard. A NIC listens to any source of a group, so that of the newer protocols
// it needs two records: "any source from now on" and "no source any more".

// Message types.
const (
	igmpQuery  = 0x11
	igmpReport = 0x16 // version 2
	igmpLeave  = 0x17
	igmp3      = 0x22 // report of version 3

	mldQuery  = 130
	mldReport = 131 // version 1
	mldDone   = 132
	mld2      = 143 // report of version 2
)

// Types of group records.
const (
	modeIsExclude   = 2 // member
	changeToInclude = 3 // leaves, when there are no sources
	changeToExclude = 4 // joins, when there are no sources
)

// Timing of both protocols.
const (
	robustness      = 2           // unsolicited reports of a change
	unsolicited     = time.Second // the second of them comes within this time
	oldQuerier      = 260 * time.Second
	oldResponse     = 10 * time.Second // where a query of IGMPv1 names no time
	maxRecords      = 60               // of one report: the least MTU of IPv6, 1280, has room
	protoIGMP       = 2
	protoHopByHop   = 0
	ip4OptLen       = 4 // router alert
	hopByHopLen     = 8 // router alert
	igmpLen         = 8
	mldLen          = 24
	mld2QueryLen    = 28
	recordLen4      = 8
	recordLen6      = 20
	reportHead      = 8
	precedence      = 0xC0 // TOS of network control
	groupHops       = 1
	optRouterAlert4 = 0x94
)

var (
	allHosts4    = netip.MustParseAddr("224.0.0.1")
	allRouters4  = netip.MustParseAddr("224.0.0.2")
	allIGMP3     = netip.MustParseAddr("224.0.0.22")
	allRouters6  = netip.MustParseAddr("ff02::2")
	allMLD2      = netip.MustParseAddr("ff02::16")
	routerAlert4 = []byte{optRouterAlert4, 4, 0, 0}
	hopByHop     = []byte{protoICMPv6, 0, 5, 2, 0, 0, 1, 0} // router alert for MLD, two bytes of padding
)

// membership is a group that the NIC listens to, or has just left.
type membership struct {
	group   netip.Addr
	left    bool
	changes int       // reports of the last change that are still to be sent
	change  time.Time // when the next of them goes
	answer  time.Time // when a query is answered; zero: none is
}

// due returns when there is something to send for the group.
func (m *membership) due() (at time.Time, ok bool) {
	if m.changes > 0 {
		at, ok = m.change, true
	}
	if !m.answer.IsZero() && (!ok || m.answer.Before(at)) {
		at, ok = m.answer, true
	}
	return at, ok
}

// groups are the memberships of a node.
type groups struct {
	all map[netip.Addr]*membership
	// Those with something to send, so that others cost no time.
	pending    map[netip.Addr]*membership
	next       time.Time // not after the first of them is due; zero: there is none
	old4, old6 time.Time // until then a router of the older version is taken to be there
}

// reported says whether routers and switches want to hear of a group: of all but all nodes and what stays within
// a node (RFC 3376 section 6, RFC 3810 section 6).
func reported(group netip.Addr) bool {
	return group != allHosts4 && group != allNodes && !group.IsInterfaceLocalMulticast() && (group.Is4() || group.As16()[1]&15 != 0)
}

// joinGroup begins to listen to a group.
func (n *node) joinGroup(group netip.Addr, now time.Time) error {
	if !group.IsMulticast() {
		return fmt.Errorf("%v is no multicast group", group)
	}
	if n.groups.all == nil {
		n.groups.all, n.groups.pending = map[netip.Addr]*membership{}, map[netip.Addr]*membership{}
	}
	m := n.groups.all[group]
	if m != nil && !m.left {
		return nil
	}
	if m == nil {
		m = &membership{group: group}
		n.groups.all[group] = m
	}
	m.left = false
	n.changed(m, now)
	return nil
}

// leaveGroup ends that. The group is kept until routers have been told.
func (n *node) leaveGroup(group netip.Addr, now time.Time) {
	m := n.groups.all[group]
	if m == nil || m.left {
		return
	}
	m.left, m.answer = true, time.Time{}
	n.changed(m, now)
}

// changed reports a change at once, and once more soon.
func (n *node) changed(m *membership, now time.Time) {
	if !reported(m.group) {
		n.settle(m)
		return
	}
	m.changes, m.change = robustness, now
	n.tell([]*membership{m}, now)
}

// settle puts a membership where it is found again when it has something to send, or out of the way.
func (n *node) settle(m *membership) {
	if at, ok := m.due(); ok {
		n.groups.pending[m.group] = m
		if n.groups.next.IsZero() || at.Before(n.groups.next) {
			n.groups.next = at
		}
		return
	}
	delete(n.groups.pending, m.group)
	if m.left {
		delete(n.groups.all, m.group)
	}
}

// announceGroups reports all memberships anew, on a link that has just come up.
func (n *node) announceGroups(now time.Time) {
	for _, m := range n.groups.all {
		if !m.left && reported(m.group) {
			m.changes, m.change = robustness, now
			n.settle(m)
		}
	}
	n.tickGroups(now)
}

// tickGroups sends what is due.
func (n *node) tickGroups(now time.Time) {
	if n.groups.next.IsZero() || now.Before(n.groups.next) {
		return
	}
	var l, later []*membership
	for _, m := range n.groups.pending {
		if at, ok := m.due(); ok && !at.After(now) {
			l = append(l, m)
		} else {
			later = append(later, m)
		}
	}
	n.groups.next = time.Time{}
	for _, m := range later {
		n.settle(m)
	}
	n.tell(l, now)
}

// tell sends what is due of some memberships.
func (n *node) tell(l []*membership, now time.Time) {
	slices.SortFunc(l, func(a, b *membership) int { return a.group.Compare(b.group) }) // IPv4 first
	var r4, r6 []record
	for _, m := range l {
		kind := uint8(0)
		switch {
		case m.changes == 0 || m.change.After(now):
			kind = modeIsExclude
		case m.left:
			kind = changeToInclude
		default:
			kind = changeToExclude
		}
		if kind != modeIsExclude {
			m.changes--
			m.change = now.Add(n.spread(m.group, unsolicited))
		}
		m.answer = time.Time{} // a change tells it too
		n.settle(m)
		switch r := (record{kind, m.group}); {
		case m.group.Is4() && now.Before(n.groups.old4):
			n.oldReport4(r)
		case m.group.Is4():
			r4 = append(r4, r)
		case now.Before(n.groups.old6):
			n.oldReport6(r)
		default:
			r6 = append(r6, r)
		}
	}
	for c := range slices.Chunk(r4, maxRecords) {
		n.report4(c)
	}
	for c := range slices.Chunk(r6, maxRecords) {
		n.report6(c)
	}
}

// groupDeadline returns when tickGroups has to be called next.
func (n *node) groupDeadline() (at time.Time, ok bool) {
	return n.groups.next, !n.groups.next.IsZero()
}

// spread returns a time up to limit that differs between stations and groups, as the protocols want it random; in one
// node it is always the same, so that a run can be repeated.
func (n *node) spread(group netip.Addr, limit time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write(n.mac[:])
	b := group.As16()
	h.Write(b[:])
	return time.Duration(h.Sum64() % uint64(limit/time.Millisecond+1) * uint64(time.Millisecond))
}

// asked has the memberships that a query asks for answer within limit: one, or those of a family if group is the
// unspecified address. A general query is answered for all at once, in as few reports as possible.
func (n *node) asked(group netip.Addr, limit time.Duration, now time.Time) {
	for a, m := range n.groups.all {
		if a.Is4() != group.Is4() || !group.IsUnspecified() && a != group || m.left || !reported(a) {
			continue
		}
		at := now.Add(n.spread(group, limit))
		if m.answer.IsZero() || at.Before(m.answer) {
			m.answer = at
		}
		n.settle(m)
	}
	n.tickGroups(now)
}

// answerIGMP takes queries; what other members report is no news. b is the IPv4 packet.
//
//	 0        1        2                 4                                   8
//	+--------+--------+-----------------+-----------------------------------+
//	|  0x11  |max resp|    checksum     |   group, 0.0.0.0: all              |
//	+--------+--------+-----------------+-----------------------------------+   version 3 from here on
//	|S|QRV   |  QQIC  |number of sources|   sources ...
func (n *node) answerIGMP(b []byte, now time.Time) verdict {
	p, ok := parseIP4(b)
	if !ok || len(p.payload()) < igmpLen || fold(sum(p.payload(), 0)) != 0 {
		return malformed
	}
	msg := p.payload()
	if p.fragment() || msg[0] != igmpQuery || !p.dst().IsMulticast() || n.own[p.src()] {
		return ignored
	}
	group, limit := ip4Addr(msg[4:8]), time.Duration(msg[1])*time.Second/10
	switch {
	case !group.IsUnspecified() && !group.IsMulticast():
		return malformed
	case len(msg) == igmpLen:
		n.groups.old4 = now.Add(oldQuerier)
		if limit == 0 {
			limit = oldResponse
		}
	case len(msg) < 12:
		return malformed
	case msg[1] >= 128:
		limit = time.Duration(msg[1]&15|16) << (msg[1]>>4&7 + 3) * time.Second / 10
	}
	n.asked(group, limit, now)
	return control
}

// answerMLD is answerIGMP for IPv6: ICMPv6 behind a hop-by-hop header. b is the IPv6 packet.
//
//	 0        1        2                 4                 6                 8         24
//	+--------+--------+-----------------+-----------------+-----------------+---------+
//	|  130   |   0    |    checksum     |max response, ms |    reserved     |  group  |
//	+--------+--------+-----------------+-----------------+-----------------+---------+   version 2 from here on
//	|S|QRV   |  QQIC  |number of sources|   sources ...
func (n *node) answerMLD(b []byte, now time.Time) verdict {
	p, ok := parseIP6(b)
	if !ok || len(p) < ip6Len+hopByHopLen+4 {
		return malformed
	}
	if p[ip6Len] != protoICMPv6 || p[ip6Len+1] != 0 {
		return ignored // longer options: nothing that a query has
	}
	msg := p[ip6Len+hopByHopLen:]
	if fold(sum(msg, pseudo6(p, len(msg)))) != 0 {
		return malformed
	}
	// RFC 3810 section 5.1.14: no other query is to be believed.
	if msg[0] != mldQuery || !p.src().IsLinkLocalUnicast() || p[7] != groupHops || n.own[p.src()] {
		return ignored
	}
	if len(msg) < mldLen || len(msg) > mldLen && len(msg) < mld2QueryLen {
		return malformed
	}
	group, code := ip6Addr(msg[8:24]), be.Uint16(msg[4:])
	limit := time.Duration(code) * time.Millisecond
	switch {
	case !group.IsUnspecified() && !group.IsMulticast():
		return malformed
	case len(msg) == mldLen:
		n.groups.old6 = now.Add(oldQuerier)
	case code >= 32768:
		limit = time.Duration(code&0xFFF|0x1000) << (code>>12&7 + 3) * time.Millisecond
	}
	n.asked(group, limit, now)
	return control
}

// record is a group record of a report, which here never names sources:
//
//	+--------+--------+-----------------+-----------------+
//	|  kind  |   0    |        0        |  group, 4 or 16 B
//	+--------+--------+-----------------+-----------------+
type record struct {
	kind  uint8
	group netip.Addr
}

// source4 is the address that IGMP messages come from.
func (n *node) source4() netip.Addr {
	for _, p := range n.addrs {
		if p.Addr().Is4() {
			return p.Addr()
		}
	}
	return netip.IPv4Unspecified()
}

// report4 sends a report of IGMPv3:
//
//	+--------+--------+-----------------+-----------------+-----------------+---- - -
//	|  0x22  |   0    |    checksum     |        0        |number of records| records
//	+--------+--------+-----------------+-----------------+-----------------+---- - -
func (n *node) report4(l []record) {
	msg := n.putIGMP(allIGMP3, reportHead+recordLen4*len(l))
	copy(msg, []byte{igmp3, 0, 0, 0, 0, 0})
	be.PutUint16(msg[6:], uint16(len(l)))
	for i, r := range l {
		b, a := msg[reportHead+recordLen4*i:], r.group.As4()
		copy(b, []byte{r.kind, 0, 0, 0})
		copy(b[4:], a[:])
	}
	n.sendIGMP(msg)
}

// oldReport4 sends a message of IGMPv2.
func (n *node) oldReport4(r record) {
	to, kind := r.group, uint8(igmpReport)
	if r.kind == changeToInclude {
		to, kind = allRouters4, igmpLeave
	}
	msg := n.putIGMP(to, igmpLen)
	a := r.group.As4()
	copy(msg, []byte{kind, 0, 0, 0})
	copy(msg[4:], a[:])
	n.sendIGMP(msg)
}

// putIGMP writes the headers before a message of size bytes, and returns the room for it.
func (n *node) putIGMP(dst netip.Addr, size int) []byte {
	b := n.out[:]
	putEth(b, groupMAC(dst), n.mac, typeIPv4)
	ip := b[ethLen : ethLen+ip4Len+ip4OptLen]
	total := len(ip) + size
	copy(ip, []byte{0x46, precedence, byte(total >> 8), byte(total), 0, 0, 0x40, 0, groupHops, protoIGMP, 0, 0})
	s, d := n.source4().As4(), dst.As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	copy(ip[20:], routerAlert4)
	be.PutUint16(ip[10:], fold(sum(ip, 0)))
	return b[ethLen+len(ip) : ethLen+total]
}

// sendIGMP seals and sends what putIGMP began.
func (n *node) sendIGMP(msg []byte) {
	msg[2], msg[3] = 0, 0
	be.PutUint16(msg[2:], fold(sum(msg, 0)))
	n.count.groupReports.Inc()
	n.emit(n.out[:ethLen+ip4Len+ip4OptLen+len(msg)])
}

// report6 sends a report of MLDv2, which is laid out as that of IGMPv3.
func (n *node) report6(l []record) {
	msg := n.putMLD(allMLD2, reportHead+recordLen6*len(l))
	copy(msg, []byte{mld2, 0, 0, 0, 0, 0})
	be.PutUint16(msg[6:], uint16(len(l)))
	for i, r := range l {
		b, a := msg[reportHead+recordLen6*i:], r.group.As16()
		copy(b, []byte{r.kind, 0, 0, 0})
		copy(b[4:], a[:])
	}
	n.sendMLD(msg)
}

// oldReport6 sends a message of MLDv1.
func (n *node) oldReport6(r record) {
	to, kind := r.group, uint8(mldReport)
	if r.kind == changeToInclude {
		to, kind = allRouters6, mldDone
	}
	msg := n.putMLD(to, mldLen)
	a := r.group.As16()
	copy(msg, []byte{kind, 0, 0, 0, 0, 0, 0, 0})
	copy(msg[8:], a[:])
	n.sendMLD(msg)
}

// putMLD writes the headers before a message of size bytes, and returns the room for it.
func (n *node) putMLD(dst netip.Addr, size int) []byte {
	b := putIP6(n.out[:], groupMAC(dst), n.mac, n.linkLocal, dst, groupHops, hopByHopLen+size)
	n.out[ethLen+6] = protoHopByHop
	copy(b, hopByHop)
	return b[hopByHopLen:]
}

// sendMLD seals and sends what putMLD began.
func (n *node) sendMLD(msg []byte) {
	sealICMPv6(n.out[ethLen:ethLen+ip6Len], msg)
	n.count.groupReports.Inc()
	n.emit(n.out[:ethLen+ip6Len+hopByHopLen+len(msg)])
}
