package device

import (
	"sync/atomic"

	"github.com/softnic/softnic/wire"
)

// AHAttr is an address vector (ibv_ah_attr): where packets go. On RoCE it is always global: is_global and the LID of verbs have no
// field. Source and destination are both IPv4 or both IPv6.
type AHAttr struct {
	DGID         GID    // destination; not zero
	SGIDIndex    int    // entry of the GID table to send from, 0 ... GIDTableLen-1; one that is not empty
	FlowLabel    uint32 // 20 bits; chooses the UDP source port of a connection, 0: its queue pair numbers do. It is not sent
	HopLimit     uint8  // 0 means 64; to a multicast group 1: it stays on the link
	TrafficClass uint8  // IPv4 TOS or IPv6 traffic class, ECN bits included
	Port         int    // 0 or 1, which are the same
}

// AH is an address handle (ibv_ah): where a datagram goes. It is good for the queue pairs of its protection domain.
type AH struct {
	pd   *PD
	path *wire.Path
	attr AHAttr
	uses atomic.Int32 // outstanding send work requests that name it; -1: destroyed
}

// acquire counts a work request; false if the handle is destroyed.
func (a *AH) acquire() bool {
	for {
		n := a.uses.Load()
		if n < 0 {
			return false
		}
		if a.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// CreateAH makes an address handle (ibv_create_ah). EINVAL: a destination of the other IP version than the source address, no
// destination, an empty entry of the GID table, a value out of its range, more than MaxAH on the device. Nobody is asked for
// the Ethernet address of the destination: that is the link's, when it sends.
func (pd *PD) CreateAH(a AHAttr) (*AH, error) {
	path, err := pd.ctx.dev.path(&a)
	if err != nil {
		return nil, &OpError{"create_ah", "", err}
	}
	ah := &AH{pd: pd, path: path, attr: a}
	c := pd.ctx
	err = own(c, "create_ah", c.ahs, MaxAH, ah, pd.live, func() { pd.uses.Add(1) })
	if err != nil {
		return nil, err
	}
	return ah, nil
}

// Attr returns what the handle was made of, as it was given.
func (a *AH) Attr() AHAttr { return a.attr }

// Destroy frees the handle (ibv_destroy_ah). EBUSY: a send that has not ended names it. EINVAL: it is destroyed already.
func (a *AH) Destroy() error {
	if !a.uses.CompareAndSwap(0, -1) {
		n := a.uses.Load()
		if n < 0 {
			return &OpError{"destroy_ah", "", because(EINVAL, "it is destroyed already")}
		}
		return &OpError{"destroy_ah", "", because(EBUSY, "%d outstanding work requests name it", n)}
	}
	c := a.pd.ctx
	c.mu.Lock()
	delete(c.ahs, a)
	c.mu.Unlock()
	a.pd.uses.Add(-1)
	return nil
}

// path resolves an address vector against the GID table.
func (d *Device) path(a *AHAttr) (*wire.Path, error) {
	if a.Port != 0 && a.Port != 1 {
		return nil, because(EINVAL, "port %d: the device has port 1", a.Port)
	}
	if a.SGIDIndex < 0 || a.SGIDIndex >= GIDTableLen {
		return nil, because(EINVAL, "GID index %d: the table has %d entries", a.SGIDIndex, GIDTableLen)
	}
	src := d.gids.Load().entries[a.SGIDIndex]
	if src.IsZero() {
		return nil, because(EINVAL, "GID index %d is empty; see `softnic dev show`", a.SGIDIndex)
	}
	s, t := src.Addr(), a.DGID.Addr()
	if a.DGID.IsZero() {
		return nil, because(EINVAL, "no destination GID: RoCE needs a GID, add -g 1")
	}
	if s.Is4() != t.Is4() {
		return nil, because(EINVAL, "GID %s cannot reach %s: one is IPv4, the other IPv6", src, a.DGID)
	}
	if a.FlowLabel >= 1<<20 {
		return nil, because(EINVAL, "flow label 0x%x is longer than 20 bits", a.FlowLabel)
	}
	hops := a.HopLimit
	if hops == 0 && t.IsMulticast() {
		// What sockets have by default (RFC 1112 section 6.1). rxe sends as given, also 0, which no receiver ever
		// sees beyond its own host.
		hops = 1
	}
	return &wire.Path{Src: s, Dst: t, TClass: a.TrafficClass, HopLimit: hops}, nil
}

// sourcePort is the UDP source port of a connection (roce.md A.7).
func sourcePort(fl uint32, local, remote uint32) uint16 {
	if fl == 0 {
		v := uint64(local) * uint64(remote)
		v ^= v >> 20
		v ^= v >> 40
		fl = uint32(v & 0xFFFFF)
	}
	return 0xC000 | uint16(fl&0x3FFF^fl>>14)
}

// datagramPort is the UDP source port of a datagram queue pair (roce.md A.7).
func datagramPort(qpn uint32) uint16 { return 0xC000 + uint16(qpn*0x61C88647>>18) }
