package device

import (
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// receiveLoop reads one source until it is closed.
func (d *Device) receiveLoop(src link.Source, b *link.Batch) {
	defer d.wg.Done()
	for {
		if err := src.Recv(b, true); err != nil {
			d.deaf(err)
			return
		}
		d.receive(b, nil)
	}
}

// receive handles a batch: parse, route to queue pairs, one lock and one burst for a
// run of packets to the same one, verdicts to the capture. Acknowledgements can be held where rx holds any.
func (d *Device) receive(b *link.Batch, rx *receiver) {
	d.port.Parse(b)
	if l := d.raws.Load(); l != nil {
		d.spread(*l, b)
	}
	for i := 0; i < len(b.Packets); {
		p := &b.Packets[i]
		q := d.route(p)
		if q == nil {
			d.verdict(p)
			i++
			continue
		}
		qpn, dst := q.num, p.View.Dst()
		q.mu.Lock()
		now := d.now()
		q.sentEarly(now)
		var good tally
		for i < len(b.Packets) {
			p = &b.Packets[i]
			if !engineWants(p.Fault) || p.View.BTH().DestQP() != qpn || p.View.Dst() != dst {
				break
			}
			if q.dead {
				p.Fault = wire.NoQP
			} else if f := q.accept(&p.View); f != wire.OK {
				p.Fault = f
			} else if p.View.BTH().Opcode() != bth.CNPNotify {
				p.Fault = q.eng.Receive(now, &p.View)
				if ce(&p.View) {
					q.congested(now, &p.View)
				}
			}
			if p.Fault == wire.OK {
				good.add(&p.View)
			} else {
				d.verdict(p)
				if !q.dead {
					q.judged(p.Fault, &p.View)
				}
			}
			i++
			if qpn == gsiQPN {
				break // the next may be for the device itself
			}
		}
		good.count(d.counters)
		if q.dead {
			q.mu.Unlock()
			continue
		}
		good.countOwn(q.counters)
		q.eng.EndBurst(now)
		if rx != nil && !q.sending && q.tx.Patient() {
			rx.hold(q)
			q.leaveHeld(now)
			continue
		}
		q.leave(now, maxBursts, false)
	}
	if rx != nil {
		rx.handled(len(b.Packets))
	}
	d.port.Done(b)
}

// engineWants reports whether a packet with this verdict of the codec goes to
// an engine: a reserved opcode does, because RC answers it with a NAK.
func engineWants(f wire.Fault) bool { return f == wire.OK || f == wire.ReservedOpcode }

// mine reports whether the destination is an address of the device.
func (d *Device) mine(p *link.Packet) bool {
	_, ok := d.gids.Load().index[p.View.Dst()]
	return ok
}

// route finds the queue pair of a packet, or sets the fault. A packet to a multicast group it delivers.
func (d *Device) route(p *link.Packet) *QP {
	if !engineWants(p.Fault) {
		return nil
	}
	if !d.mine(p) {
		p.Fault = wire.NoAddress
		d.fanOut(p)
		return nil
	}
	n := p.View.BTH().DestQP()
	if n == gsiQPN && d.managed(p) {
		return nil
	}
	q := d.lookup(n)
	if q == nil {
		p.Fault = wire.NoQP
	}
	return q
}

// verdict counts a packet under its verdict.
func (d *Device) verdict(p *link.Packet) {
	if p.Fault == wire.NotRoCE {
		return
	}
	d.counters.Inc(stats.RcvdPkts)
	d.counters.Add(stats.RcvdBytes, len(p.View.IB))
	if p.Fault == wire.OK {
		return
	}
	d.counters.Drop(int(p.Fault))
	if p.Fault == wire.ICRC {
		d.counters.Inc(stats.RxICRCEncapsulated)
	}
}

// tally counts the good packets of a run, to be added at once.
type tally struct{ packets, bytes int }

func (t *tally) add(v *wire.View) {
	t.packets++
	t.bytes += len(v.IB)
}

func (t *tally) count(c *stats.Counters) {
	c.Add(stats.RcvdPkts, t.packets)
	c.Add(stats.RcvdBytes, t.bytes)
}

func (t *tally) countOwn(c *stats.Counters) {
	c.AddOwn(stats.RcvdPkts, t.packets)
	c.AddOwn(stats.RcvdBytes, t.bytes)
}

// judged counts a packet that came to the queue pair; the device has counted it.
func (q *QP) judged(f wire.Fault, v *wire.View) {
	q.counters.AddOwn(stats.RcvdPkts, 1)
	q.counters.AddOwn(stats.RcvdBytes, len(v.IB))
	if f != wire.OK {
		q.counters.DropOwn(int(f))
	}
}
