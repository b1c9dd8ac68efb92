package device

import (
	"encoding/binary"
	"net"
	"slices"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/raw"
	"github.com/softnic/softnic/wire"
)

// Steering says which Ethernet frames a raw packet queue pair receives. Each queue pair whose steering a frame fits gets a
// copy; none takes a frame away from who else gets it.
//
// RoCE packets to an address of the device belong to its other queue pairs, and a raw one sees them only as a Sniffer. What a
// TAP answers by itself (ARP, neighbour discovery, echo) it answers all the same. What the device sends it does not receive.
// The zero value takes every frame to the port's own address and to all.
type Steering struct {
	MACs      []net.HardwareAddr // destinations of 6 bytes, at most MaxSteerMACs; none: the port's own address, and broadcast
	EtherType uint16             // of the frame, or behind one VLAN tag; 0: any
	Sniffer   bool               // whatever the destination, RoCE packets too; MACs is empty
}

// Limits of raw packet queue pairs. Beyond one PD.CreateQP fails: with ENOSPC for the first, with EINVAL for the second.
const (
	MaxRawQP     = 64 // of a device: each frame is compared with all
	MaxSteerMACs = 64 // of a Steering
)

type mac [6]byte

// steering is a Steering as it is compared with frames.
type steering struct {
	any  bool
	macs []mac
	typ  uint16
}

// newSteering checks a Steering on a port.
func newSteering(s *Steering, port link.Info) (*steering, error) {
	if !port.Ethernet || !port.SeesIP {
		return nil, because(EOPNOTSUPP, "%s: a UDP socket carries no Ethernet frames: use --tap", port.Name)
	}
	r := &steering{any: s.Sniffer, typ: s.EtherType}
	switch {
	case s.Sniffer && len(s.MACs) > 0:
		return nil, because(EINVAL, "a sniffer receives whatever the destination: leave Steer.MACs empty")
	case len(s.MACs) > MaxSteerMACs:
		return nil, because(EINVAL, "%d addresses in Steer.MACs: %d are possible", len(s.MACs), MaxSteerMACs)
	case len(s.MACs) == 0:
		r.macs = []mac{mac(port.MAC), {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}}
	}
	for _, a := range s.MACs {
		if len(a) != 6 {
			return nil, because(EINVAL, "%v in Steer.MACs is no Ethernet address", a)
		}
		r.macs = append(r.macs, mac(a))
	}
	return r, nil
}

// fits reports whether a frame is one that is asked for.
func (s *steering) fits(frame []byte) bool {
	if len(frame) < wire.EthLen {
		return false
	}
	if s.typ != 0 {
		t := binary.BigEndian.Uint16(frame[12:])
		if t == wire.EtherTypeVLAN && s.typ != t && len(frame) >= wire.EthVLANLen {
			t = binary.BigEndian.Uint16(frame[16:])
		}
		if t != s.typ {
			return false
		}
	}
	return s.any || slices.Contains(s.macs, mac(frame))
}

// addRaw makes a raw packet queue pair known to the receive path; qpMu is held, as for removeRaw.
func (d *Device) addRaw(q *QP) error {
	l := d.raws.Load()
	if l != nil && len(*l) >= MaxRawQP {
		return because(ENOSPC, "max_raw_ethy_qp: the limit of %d is reached", MaxRawQP)
	}
	var n []*QP
	if l != nil {
		n = slices.Clone(*l)
	}
	d.setRaws(append(n, q))
	return nil
}

func (d *Device) removeRaw(q *QP) {
	d.setRaws(slices.DeleteFunc(slices.Clone(*d.raws.Load()), func(o *QP) bool { return o == q }))
}

// setRaws replaces the list; the link brings in what it asks for.
func (d *Device) setRaws(l []*QP) {
	if len(l) == 0 {
		d.raws.Store(nil)
		d.port.Divert(nil)
		return
	}
	d.raws.Store(&l)
	d.port.Divert(func(frame []byte) bool {
		return slices.ContainsFunc(l, func(q *QP) bool { return q.steer.fits(frame) })
	})
}

// spread gives the frames of a batch to the raw packet queue pairs that ask for them.
func (d *Device) spread(l []*QP, b *link.Batch) {
	for _, q := range l {
		var now transport.Time // not 0: the queue pair is locked
		for i := range b.Packets {
			p := &b.Packets[i]
			if p.Frame == nil || p.Fault == wire.Impaired || !q.steer.fits(p.Frame) || !q.steer.any && d.belongs(p) {
				continue
			}
			if now == 0 {
				q.mu.Lock()
				now = d.now()
			}
			if q.dead {
				continue
			}
			if f := q.eng.(*raw.Machine).Deliver(now, p.Frame); f != wire.OK {
				q.counters.Drop(int(f))
				continue
			}
			q.counters.Inc(stats.RawRcvd)
		}
		switch {
		case now == 0:
		case q.dead:
			q.mu.Unlock()
		default:
			q.eng.EndBurst(now)
			q.leave(now, maxBursts, false)
		}
	}
}

// belongs reports whether a packet is the RDMA queue pairs': RoCE, to an address of the device or to a group that it
// listens to, good or bad.
func (d *Device) belongs(p *link.Packet) bool {
	v := &p.View
	if len(v.Net) == 0 {
		return false
	}
	to := v.Dst()
	if to.IsMulticast() {
		return d.mcast.members(to) != nil
	}
	_, own := d.gids.Load().index[to]
	return own
}

// sendRaw hands q.pkts to the link; the flusher calls it, with no lock held.
func (q *QP) sendRaw() {
	q.counters.Add(stats.RawSent, len(q.pkts))
	if err := q.dev.port.SendRaw(q.pkts); err != nil {
		q.counters.Inc(stats.SendErr)
	}
}

func (q *QP) checkRaw(wr *SendWR) error {
	if wr.Op != OpSend {
		return because(EINVAL, "%s is not possible on a raw packet queue pair", wr.Op)
	}
	return nil
}
