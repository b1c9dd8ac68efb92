package device

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// host is a queue pair as its engine sees it.
type host QP

var _ transport.Host = (*host)(nil)

// SendDone implements transport.Host.
func (h *host) SendDone(wc *WC) {
	q := (*QP)(h)
	if wc.Status == StatusSuccess && wc.Op == WCSend {
		q.counters.Inc(stats.RDMASends)
	}
	if !q.scq.push(wc, false) {
		q.lost()
	}
}

func (q *QP) recvDone(wc *WC, solicited bool) bool {
	if q.typ == GSI && wc.Status == StatusSuccess {
		wc.PKeyIndex = q.gotPKey // whatever the queue pair's own is
	}
	return q.rcq.push(wc, solicited)
}

// lost has the queue pair enter ERR because its send completion queue was full.
func (q *QP) lost() {
	q.todo.Or(todoCQError)
	q.poke()
}

// Failed implements transport.Host.
func (h *host) Failed(s State) {
	q := (*QP)(h)
	q.dev.log.Debug("queue pair failed", "qp", q.num, "state", s.String())
	q.enterState(s)
}

// PathOf implements transport.Host.
func (h *host) PathOf(x transport.AddressHandle) *wire.Path {
	q := (*QP)(h)
	if q.typ == SMI { // it goes nowhere
		return nil
	}
	a := x.(*AH)
	p := q.paths[a]
	if p == nil {
		if len(q.paths) >= 1024 {
			clear(q.paths) // handles come and go; what is in use is made again
		}
		c := *a.path
		c.SrcPort = datagramPort(q.num)
		p = &c
		q.paths[a] = p
	}
	return p
}

// enterState makes s the state.
func (q *QP) enterState(s State) {
	q.attr.State, q.user.State = s, s
	if q.changed != nil {
		q.changed(s)
	}
}
