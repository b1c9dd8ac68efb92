package device

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Limits of multicast; values as rdma_rxe reports them (rxe_param.h). Beyond one QP.Attach fails with ENOMEM.
const (
	MaxMcastGrp   = 8192                     // groups of a device
	MaxMcastQP    = 56                       // queue pairs of a group
	MaxMcastTotal = MaxMcastGrp * MaxMcastQP // attachments of a device
)

// MulticastQPN is the queue pair number that a datagram to a multicast group is sent to (SendWR.RemoteQPN).
const MulticastQPN = 0xFFFFFF

// IsMulticast reports whether the GID is that of a multicast group: an IPv6 one, ff00::/8, or an IPv4 one, 224.0.0.0/4, mapped.
func (g GID) IsMulticast() bool { return g.Addr().IsMulticast() }

// mcast is who listens to which group.
type mcast struct {
	change sync.Mutex // one attach or detach at a time; before all other locks
	mu     sync.RWMutex
	groups map[netip.Addr][]*QP // changed with both locks held; lists are replaced, not changed
}

// groupSet are the groups of a queue pair.
type groupSet map[netip.Addr]struct{}

// members returns the queue pairs of a group, nil if there is none.
func (m *mcast) members(a netip.Addr) []*QP {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.groups[a]
}

// set replaces the list of a group.
func (m *mcast) set(a netip.Addr, l []*QP) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(l) == 0 {
		delete(m.groups, a)
		return
	}
	if m.groups == nil {
		m.groups = map[netip.Addr][]*QP{}
	}
	m.groups[a] = l
}

// groupOf checks the arguments of attach and detach as the kernel's core does (verbs.c:ib_attach_mcast).
func (q *QP) groupOf(gid GID) (netip.Addr, error) {
	switch {
	case q.typ != UD:
		return netip.Addr{}, because(EINVAL, "a queue pair of type %s: multicast is for UD", q.typ)
	case !gid.IsMulticast():
		return netip.Addr{}, because(EINVAL, "%v is no multicast group", gid)
	}
	return gid.Addr(), nil
}

// Attach has the queue pair receive datagrams to a multicast group (ibv_attach_mcast); also those that the device itself
// sends, the queue pair's own among them, unless QPInit.BlockSelfMulticast was set. The state does not
// matter. Attaching again does nothing, as on rxe. EINVAL: not UD, no group, destroyed. Beyond a limit the error is ENOMEM, as
// there (rxe_mcast.c). While it is attached, Destroy is EBUSY.
//
// The first attachment of the device has the link join the group; what the link says against it is the error: EOPNOTSUPP where it
// cannot join any, else EIO.
func (q *QP) Attach(gid GID) error {
	const op = "attach_mcast"
	fail := func(err error) error { return &OpError{op, qpName(q.num), err} }
	a, err := q.groupOf(gid)
	if err != nil {
		return fail(err)
	}
	m := &q.dev.mcast
	m.change.Lock()
	defer m.change.Unlock()
	l := m.members(a)
	switch {
	case slices.Contains(l, q):
		return nil
	case l == nil && len(m.groups) >= MaxMcastGrp:
		return fail(because(ENOMEM, "max_mcast_grp: the device listens to %d groups", MaxMcastGrp))
	case len(l) >= MaxMcastQP:
		return fail(because(ENOMEM, "max_mcast_qp_attach: %d queue pairs listen to %v", MaxMcastQP, gid))
	}
	if l == nil {
		if err := q.dev.port.Join(a); err != nil {
			return fail(joinError(err))
		}
	}
	if !q.joined(a) {
		if l == nil {
			q.dev.leave(a)
		}
		return fail(because(EINVAL, "it is destroyed"))
	}
	m.set(a, append(slices.Clone(l), q))
	return nil
}

func joinError(err error) error {
	e := EIO
	if errors.Is(err, errors.ErrUnsupported) {
		e = EOPNOTSUPP
	}
	return because(e, "%v", err)
}

// joined records the group with the queue pair; false if that is destroyed.
func (q *QP) joined(a netip.Addr) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return false
	}
	if q.groups == nil {
		q.groups = groupSet{}
	}
	q.groups[a] = struct{}{}
	return true
}

// Detach is the reverse of Attach (ibv_detach_mcast): when it returns, no datagram to the group is delivered any more. A
// group that the queue pair is not attached to is EINVAL; so is what is no group, or no UD queue pair.
func (q *QP) Detach(gid GID) error {
	const op = "detach_mcast"
	a, err := q.groupOf(gid)
	if err != nil {
		return &OpError{op, qpName(q.num), err}
	}
	m := &q.dev.mcast
	m.change.Lock()
	defer m.change.Unlock()
	if !slices.Contains(m.members(a), q) {
		return &OpError{op, qpName(q.num), because(EINVAL, "it is not attached to %v", gid)}
	}
	q.detach(a)
	return nil
}

// detach takes the queue pair out of a group; mcast.change is held.
func (q *QP) detach(a netip.Addr) {
	d := q.dev
	l := slices.DeleteFunc(slices.Clone(d.mcast.members(a)), func(o *QP) bool { return o == q })
	d.mcast.set(a, l)
	q.mu.Lock()
	delete(q.groups, a)
	q.mu.Unlock()
	if len(l) == 0 {
		d.leave(a)
	}
}

// detachAll is detach from everything, for a queue pair that ends with its context.
func (q *QP) detachAll() {
	q.dev.mcast.change.Lock()
	defer q.dev.mcast.change.Unlock()
	q.mu.Lock()
	l := make([]netip.Addr, 0, len(q.groups))
	for a := range q.groups {
		l = append(l, a)
	}
	q.mu.Unlock()
	for _, a := range l {
		q.detach(a)
	}
}

func (d *Device) leave(a netip.Addr) {
	if err := d.port.Leave(a); err != nil {
		d.log.Debug("leaving a multicast group", "group", a, "err", err)
	}
}

// fanOut delivers a packet that is to none of our addresses to every queue pair that is attached to the group it is for.
// The verdict is then that of the queue pair where it came furthest: taken, if one took it. A packet to no group, or to one
// that nobody listens to, keeps its verdict.
func (d *Device) fanOut(p *link.Packet) {
	to := p.View.Dst()
	if !to.IsMulticast() {
		return
	}
	l := d.mcast.members(to)
	switch {
	case l == nil:
		return
	case p.View.BTH().DestQP() != MulticastQPN:
		p.Fault = wire.NoQP
		return
	}
	_, ours := d.gids.Load().index[p.View.Src()]
	taken := false
	p.Fault = wire.OK
	for _, q := range l {
		f := q.hear(&p.View, to, ours)
		taken = taken || f == wire.OK
		p.Fault = max(p.Fault, f) // faults are in the order of the receive path
	}
	if taken {
		p.Fault = wire.OK
	}
}

// hear is the receive path of one queue pair of a group.
func (q *QP) hear(v *wire.View, group netip.Addr, ours bool) wire.Fault {
	q.mu.Lock()
	if _, in := q.groups[group]; q.dead || !in { // since the list was taken
		q.mu.Unlock()
		return wire.NoQP
	}
	now := q.dev.now()
	f := q.accept(v)
	switch {
	case f != wire.OK:
	case ours && q.notSelf && sentBy(v, q.num):
		f = wire.Ignored
	default:
		f = q.eng.Receive(now, v)
	}
	q.judged(f, v)
	q.eng.EndBurst(now)
	q.leave(now, maxBursts, false)
	return f
}

// sentBy reports whether a datagram names a queue pair as its source.
func sentBy(v *wire.View, qpn uint32) bool {
	h := v.Header(bth.HDETH)
	return h != nil && bth.DETH(h).SrcQP() == qpn
}
