package tap

import (
	"net/netip"
	"slices"
	"time"
)

// Rules of the neighbour table.
const (
	askEvery      = time.Second      // between requests (RFC 4861 RETRANS_TIMER)
	askTimes      = 3                // requests before a neighbour is given up (MAX_MULTICAST_SOLICIT)
	staleAfter    = time.Minute      // a MAC heard longer ago is asked for again when used
	defendEvery   = 10 * time.Second // RFC 5227 DEFEND_INTERVAL
	maxHeld       = 256              // frames that wait for one neighbour: a first burst of RDMA, whose loss costs a retry
	maxUnknown    = 32               // neighbours that may have frames wait for them
	maxNeighbours = 1024             // after that the one least recently used goes
)

// neighbour is an entry of the table. known and a request out at the same time
// means that the entry is old, in use, and being asked for again.
type neighbour struct {
	ip    netip.Addr
	mac   hw
	known bool
	heard time.Time // when the MAC was last confirmed
	used  time.Time

	// While a request is out (the entry is in node.waiting):
	asker netip.Addr // the address of ours to ask with
	tries int
	next  time.Time // when the next request goes, or the neighbour is given up
	held  [][]byte  // frames, whole but for their destination MAC, in order
}

// resolve finds the MAC for a destination. Where it is not known yet, it returns
// the neighbour for hold to put a copy of the frame into, or nil when there is
// no room for another.
func (n *node) resolve(src, dst netip.Addr, now time.Time) (hw, bool, *neighbour) {
	if dst.IsMulticast() {
		return groupMAC(dst), true, nil
	}
	if !station(dst) || n.own[dst] {
		return hw{}, false, nil
	}
	hop := n.nextHop(dst)
	nb := n.table[hop]
	if nb == nil {
		if n.unknown >= maxUnknown || !n.room() {
			return hw{}, false, nil
		}
		nb = &neighbour{ip: hop, used: now}
		n.table[hop] = nb
		n.unknown++
		n.ask(nb, n.asker(src, hop), now)
		return hw{}, false, nb
	}
	nb.used = now
	if !nb.known {
		return hw{}, false, nb
	}
	if nb.tries == 0 && now.Sub(nb.heard) > staleAfter {
		n.ask(nb, n.asker(src, hop), now)
	}
	return nb.mac, true, nil
}

// hold keeps a frame until nb is known and reports whether there was room. The
// newest frames are lost, so that what comes through comes through in order.
func (n *node) hold(nb *neighbour, frame []byte) bool {
	if nb == nil || len(nb.held) >= maxHeld {
		n.count.noNeighbour.Inc()
		return false
	}
	nb.held = append(nb.held, frame)
	return true
}

// nextHop returns the station on the link that a packet to dst goes to.
func (n *node) nextHop(dst netip.Addr) netip.Addr {
	if dst.IsLinkLocalUnicast() {
		return dst
	}
	for _, p := range n.addrs {
		if p.Contains(dst) {
			return dst
		}
	}
	gateway := n.gateway6
	if dst.Is4() {
		gateway = n.gateway4
	}
	if gateway.IsValid() {
		return gateway
	}
	return dst
}

// asker returns the address of ours to ask for hop with: the one that the
// packet has, as RFC 4861 section 7.2.2 prefers.
func (n *node) asker(src, hop netip.Addr) netip.Addr {
	if src.Is4() == hop.Is4() && n.own[src] {
		return src
	}
	for _, p := range n.addrs {
		if p.Addr().Is4() == hop.Is4() {
			return p.Addr()
		}
	}
	if hop.Is4() {
		return netip.IPv4Unspecified()
	}
	return n.linkLocal
}

// ask sends the first request for nb.
func (n *node) ask(nb *neighbour, asker netip.Addr, now time.Time) {
	nb.asker, nb.tries, nb.next = asker, 0, now
	n.waiting[nb.ip] = nb
	n.request(nb, now)
}

// request sends one more: to the neighbour alone when an old MAC is confirmed for the
// first time, else to all.
func (n *node) request(nb *neighbour, now time.Time) {
	unicast := nb.known && nb.tries == 0
	nb.tries++
	nb.next = now.Add(askEvery)
	if nb.ip.Is4() {
		to := broadcast
		if unicast {
			to = nb.mac
		}
		n.emit(putARP(n.out[:], arpRequest, to, n.mac, nb.asker, hw{}, nb.ip))
		return
	}
	group := solicitedNode(nb.ip)
	to, dst := groupMAC(group), group
	if unicast {
		to, dst = nb.mac, nb.ip
	}
	n.emit(putND(n.out[:], to, n.mac, nb.asker, dst, ndSolicit, 0, nb.ip))
}

// learn takes what the link says: ip is at mac. An entry that exists is brought
// up to date; a new one is made only where create says so, and only for a
// neighbour on the link.
func (n *node) learn(ip netip.Addr, mac hw, create bool, now time.Time) {
	if !station(ip) || !mac.unicast() || mac == n.mac || n.own[ip] {
		return
	}
	nb := n.table[ip]
	if nb == nil {
		if !create || !n.onLink(ip) || !n.room() {
			return
		}
		nb = &neighbour{ip: ip, used: now, known: true}
		n.table[ip] = nb
	} else if nb.known && nb.mac != mac {
		n.log.Info("a neighbour has a new MAC", "address", ip, "was", nb.mac, "is", mac)
	}
	if !nb.known {
		n.unknown--
	}
	delete(n.waiting, ip)
	nb.known, nb.mac, nb.heard, nb.tries, nb.next = true, mac, now, 0, time.Time{}
	held := nb.held
	nb.held = nil
	for _, frame := range held {
		copy(frame, mac[:])
		n.emit(frame)
	}
}

// onLink reports whether ip is a neighbour by its address.
func (n *node) onLink(ip netip.Addr) bool {
	if ip.IsLinkLocalUnicast() || ip == n.gateway4 || ip == n.gateway6 {
		return true
	}
	for _, p := range n.addrs {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// room makes room for another entry if the table is full.
func (n *node) room() bool {
	if len(n.table) < maxNeighbours {
		return true
	}
	var old *neighbour
	for _, nb := range n.table {
		if nb.known && (old == nil || nb.used.Before(old.used) || nb.used.Equal(old.used) && nb.ip.Less(old.ip)) {
			old = nb
		}
	}
	if old == nil {
		return false
	}
	delete(n.table, old.ip)
	delete(n.waiting, old.ip)
	return true
}

// tick does what is due: requests again, or gives neighbours up.
func (n *node) tick(now time.Time) {
	var due []*neighbour
	for _, nb := range n.waiting {
		if !nb.next.After(now) {
			due = append(due, nb)
		}
	}
	// In order, so that a run can be repeated.
	slices.SortFunc(due, func(a, b *neighbour) int { return a.ip.Compare(b.ip) })
	for _, nb := range due {
		if nb.tries < askTimes {
			n.request(nb, now)
			continue
		}
		delete(n.waiting, nb.ip)
		delete(n.table, nb.ip)
		if !nb.known {
			n.unknown--
		}
		n.count.unanswered.Inc()
		n.count.noNeighbour.Add(len(nb.held))
		n.log.Warn("no answer from a neighbour", "address", nb.ip, "requests", nb.tries, "dropped", len(nb.held))
	}
	n.tickGroups(now)
}

// deadline returns when tick has to be called next.
func (n *node) deadline() (at time.Time, ok bool) {
	at, ok = n.groupDeadline()
	for _, nb := range n.waiting {
		if !ok || nb.next.Before(at) {
			at, ok = nb.next, true
		}
	}
	return at, ok
}
