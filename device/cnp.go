package device

import (
	"net/netip"
	"sync"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// notifications paces the congestion notifications of a device (CNPPacing).
type notifications struct {
	mu   sync.Mutex
	last map[cnpKey]transport.Time
}

// cnpKey is what a gap is kept for; what the mode does not look at is left out.
type cnpKey struct{ src, dst netip.Addr }

// maxGaps bounds how many are remembered: addresses come from the wire.
const maxGaps = 1024

// due reports whether a notification from src to dst may be sent now.
func (n *notifications) due(p *CNPPacing, src, dst netip.Addr, now transport.Time) bool {
	var k cnpKey
	switch p.Mode {
	case CNPOff:
		return false
	case CNPPerDest:
		k.dst = dst
	case CNPPerPair:
		k = cnpKey{src, dst}
	}
	gap := transport.Time(p.Gap)
	n.mu.Lock()
	defer n.mu.Unlock()
	if t, ok := n.last[k]; ok && now-t < gap {
		return false
	}
	if len(n.last) >= maxGaps {
		for k, t := range n.last {
			if now-t >= gap {
				delete(n.last, k)
			}
		}
		if len(n.last) >= maxGaps {
			return false // rather none than a list without end
		}
	}
	if n.last == nil {
		n.last = map[cnpKey]transport.Time{}
	}
	n.last[k] = now
	return true
}

// congested tells the peer of a connection that one of its packets was marked on its way; the
// queue pair's lock is held. While a notification waits to be sent there is no other: they would leave together.
func (q *QP) congested(now transport.Time, v *wire.View) {
	q.counters.Inc(stats.NpEcnMarked)
	p := q.attr.Path
	if p == nil || q.cnpWaits || !q.dev.cnp.due(&q.dev.profile.CNP, p.Src, p.Dst, now) {
		return
	}
	q.counters.Inc(stats.NpCnpSent)
	q.cnpWaits = true
	t := q.tx.Add()
	if q.cnpPath == nil || *q.cnpPath != cnpPath(p) {
		path := cnpPath(p)
		q.cnpPath = &path
	}
	t.Path, t.Cause = q.cnpPath, wire.Reply
	t.Len = bth.CNPNotify.Info().Len
	clear(t.Head[:t.Len])
	bth.BTH(t.Head[:]).Encode(&bth.Fields{Opcode: bth.CNPNotify, BECN: true, PKey: q.attr.PKey, DestQP: q.attr.DestQPN})
}

// cnpPath is the way of a notification: it has the highest priority, as ConnectX marks it (roce.md
// A.8: TOS 0xC2).
func cnpPath(p *wire.Path) wire.Path {
	c := *p
	c.TClass = 0xC2
	return c
}

// notified hands a notification from the peer to the rate hook; the queue pair's lock is held.
func (q *QP) notified(now transport.Time) wire.Fault {
	if !q.attr.State.Receives() {
		q.counters.Inc(stats.RpCnpIgnored)
		return wire.Ignored
	}
	q.counters.Inc(stats.RpCnpHandled)
	if q.slowDown != nil {
		q.slowDown(now)
	}
	return wire.OK
}

// ce reports whether a router has marked the packet: congestion experienced.
func ce(v *wire.View) bool { return v.TClass()&3 == 3 }
