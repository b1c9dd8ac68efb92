package device

import "github.com/softnic/softnic/stats"

// going is a queue pair whose packets are being sent with those of others.
type going struct {
	q   *QP
	cnp bool
}

// sendTogether is QP.leave for queue pairs that have little to send each: it goes to the link in one call, where acknowledgements
// to one host are one burst. It has all locks before any access runs, see QP.lookBack. The receiver's drive is held.
func (r *receiver) sendTogether(list []*QP) {
	r.going, r.pkts = r.going[:0], r.pkts[:0]
	for _, q := range list {
		q.mu.Lock()
		q.held = false
		switch {
		case q.dead:
			q.mu.Unlock()
		case q.sending || q.tx.Len() == 0 || q.typ == RawPacket || q.typ == SMI || q.loops():
			q.leave(r.dev.now(), maxBursts, false)
		default:
			q.sending = true
			r.going = append(r.going, going{q, q.take()})
			q.mu.Unlock()
		}
	}
	for _, g := range r.going {
		g.q.resolve()
		r.dev.countSent(g.q.pkts, g.q.counters)
		r.pkts = append(r.pkts, g.q.pkts...)
	}
	if len(r.pkts) > 0 {
		if err := r.dev.port.Send(r.pkts); err != nil {
			r.dev.counters.Inc(stats.SendErr)
		}
		clear(r.pkts)
	}
	for _, g := range r.going {
		g.q.lookBack()
	}
	for i, g := range r.going {
		q := g.q
		r.going[i] = going{}
		q.mu.Lock()
		q.sending = false
		q.idle.Broadcast()
		if q.dead {
			q.out.Release()
			q.tx.Release()
			q.mu.Unlock()
			continue
		}
		q.sent(g.cnp)
		q.leave(r.dev.now(), maxBursts, false) // what came meanwhile
	}
}
