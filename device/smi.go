package device

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/ud"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/mad"
)

// Queue pair 0 of a RoCE port has nobody to talk to: what it sends goes to the port's own agent or nowhere, and never to
// the link.

// local handles what queue pair 0 has sent; answers wait for deliver. Its flusher calls it, with no lock held.
func (q *QP) local(pkts []*wire.Packet) {
	for _, p := range pkts {
		m := make([]byte, 0, mad.Len)
		for _, b := range p.Data {
			m = append(m, b...)
		}
		if f := q.answer(p, m); f != wire.OK {
			q.counters.Drop(int(f))
			continue
		}
		q.answers = append(q.answers, m)
	}
}

// answer makes a datagram that queue pair 0 has sent its own answer.
func (q *QP) answer(p *wire.Packet, m []byte) wire.Fault {
	switch {
	case p.BTH().DestQP() != smiQPN:
		return wire.NoQP
	case bth.DETH(p.Head[bth.Len:]).QKey() != 0:
		return wire.QKey
	case !mad.Valid(m):
		return wire.Malformed
	case !mad.Header(m).Class().Subnet(), !forLocalPort(m), !q.dev.manage(m):
		return wire.Ignored
	}
	return wire.OK
}

// forLocalPort reports whether a packet of subnet management is for the port that sends it. A directed route is when it
// has no hops, neither before nor behind LIDs. One that is routed by LID always is: a RoCE port has no LID, so that nothing
// but the permissive one can be meant.
func forLocalPort(m []byte) bool {
	p := mad.SMP(m)
	return p.Header().Class() == mad.SubnLIDRouted ||
		p.HopCount() == 0 && p.HopPointer() == 0 && p.DrSLID() == mad.PermissiveLID && p.DrDLID() == mad.PermissiveLID
}

// deliver has queue pair 0 receive the answers to what it sent; its lock is held.
func (q *QP) deliver(now transport.Time) {
	for i, m := range q.answers {
		if f := q.eng.(*ud.Machine).Deliver(now, m, smiQPN); f != wire.OK {
			q.counters.Drop(int(f))
		}
		q.answers[i] = nil
	}
	q.answers = q.answers[:0]
}
