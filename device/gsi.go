package device

import (
	"net/netip"
	"sync"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/ud"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/mad"
)

// Queue pair numbers that are not drawn.
const (
	smiQPN = 0
	gsiQPN = 1
)

// wellKnown are the numbers of the queue pairs of which a device, having one port, has one each.
var wellKnown = map[QPType]uint32{SMI: smiQPN, GSI: gsiQPN}

// datagrams reports whether the service is that of UD: address handles, Q_Keys, one packet a message.
func (t QPType) datagrams() bool { return t == UD || t == GSI || t == SMI }

// agent is the device's own part of QP1: it answers performance management, whether or not a program owns
// the queue pair, as a kernel driver does for the kernel's management layer.
type agent struct {
	mu   sync.Mutex
	next transport.Time // when the answers until now would have been sent, one per madGap
	psn  bth.PSN
}

// Answers are paced, so that asking costs the one who asks more than us: a thousand a second, after a burst.
const (
	madGap   = transport.Time(1e6)
	madBurst = 64
)

// take returns the PSN of an answer; false if there have been too many.
func (a *agent) take(now transport.Time) (bth.PSN, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := max(a.next, now)
	if at-now > (madBurst-1)*madGap {
		return 0, false
	}
	a.next = at + madGap
	psn := a.psn
	a.psn = psn.Next()
	return psn, true
}

// managed handles a packet to QP1 that is for the device itself, and reports whether it was; else it is
// for who owns QP1. No lock is held.
func (d *Device) managed(p *link.Packet) bool {
	v := &p.View
	b := v.BTH()
	if p.Fault != wire.OK || b.Opcode() != bth.UDSendOnly || len(v.Payload) != mad.Len || b.Pad() != 0 {
		return false
	}
	h := bth.DETH(v.Header(bth.HDETH))
	pkey, in := d.pkeyIndex(b.PKey())
	if m := v.Payload; !mad.Valid(m) || mad.Header(m).Class() != mad.PerfMgmt || mad.Header(m).Method() != mad.Get ||
		h.QKey() != ud.GSIQKey || !in {
		return false
	}
	psn, ok := d.agent.take(d.now())
	if !ok || !station(v.Src()) {
		d.counters.Inc(stats.MadDropped)
		p.Fault = wire.Ignored
		return true
	}
	var r struct {
		wire.Packet
		path wire.Path
		mad  [mad.Len]byte
	}
	copy(r.mad[:], v.Payload)
	d.perform(r.mad[:])
	// ECN bits are those of the way here.
	r.path = wire.Path{Src: v.Dst(), Dst: v.Src(), SrcPort: datagramPort(gsiQPN), TClass: v.TClass() &^ 3}
	r.QPN, r.Path, r.Cause, r.Len = gsiQPN, &r.path, wire.Reply, bth.UDSendOnly.Info().Len
	bth.BTH(r.Head[:]).Encode(&bth.Fields{
		Opcode: bth.UDSendOnly, MigReq: d.profile.MigReq, PKey: d.pkeys[pkey], DestQP: h.SrcQP(), AckReq: true, PSN: psn,
	})
	bth.DETH(r.Head[bth.Len:]).Put(ud.GSIQKey, gsiQPN)
	r.Data, r.Size = [][]byte{r.mad[:]}, mad.Len
	d.counters.Inc(stats.MadAnswered)
	d.send([]*wire.Packet{&r.Packet}, d.counters, nil)
	return true
}

// station reports whether an address can be that of one other party.
func station(a netip.Addr) bool {
	return !a.IsMulticast() && !a.IsUnspecified() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
