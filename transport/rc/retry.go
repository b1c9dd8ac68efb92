package rc

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// ackTimeout returns T = 4.096 µs · 2^code in nanoseconds, 0 for code 0: no
// timer (roce.md B.8).
func ackTimeout(code uint8) transport.Time {
	if code == 0 {
		return 0
	}
	return 4096 << (code & 31)
}

// arm starts the ACK timer. Posting does not move a timer that runs, and
// neither do stale responses: only progress does (rxe-lab.md S3, S4).
func (r *requester) arm(now transport.Time) {
	r.ackAt = 0
	if t := ackTimeout(r.m.Attr.Timeout); t != 0 && r.una != r.next && r.rnrUntil == 0 {
		r.ackAt = now + t
	}
}

// left starts the ACK timer anew when the oldest unanswered packet has left: it may have waited for company, or for a processor, since it was emitted.
func (r *requester) left(now transport.Time, t *transport.Tx) {
	if r.ackAt != 0 && !t.Lost && !t.Behind && bth.BTH(t.Head[:]).PSN() == r.una {
		r.arm(now)
	}
}

func (r *requester) deadline() transport.Time {
	if r.rnrUntil != 0 {
		return r.rnrUntil
	}
	return r.ackAt
}

func (r *requester) timer(now transport.Time) {
	if r.m.Attr.State == transport.Err {
		return
	}
	switch {
	case r.rnrUntil != 0:
		if now < r.rnrUntil {
			return
		}
		r.rnrUntil = 0
		r.goBack(r.una, wire.RetryRNR)
		r.send(now)
	case r.ackAt != 0 && now >= r.ackAt:
		if i := r.oldest(); i < r.n && r.at(i).refs > 0 {
			// What the peer is to answer has not left yet: a host that is too busy
			// to send must not use up the retries of a peer that never heard.
			r.arm(now)
			return
		}
		r.ackAt = 0
		r.m.Counters.Inc(stats.LocalAckTimeoutErr)
		r.retry(now, r.una, wire.RetryTimeout)
	}
}

// retry spends one of retry_cnt and goes back to psn; with none left the
// request there fails. 7 means 7 here, unlike rxe.
func (r *requester) retry(now transport.Time, psn bth.PSN, cause wire.Cause) {
	if r.retries == 0 {
		r.m.Counters.Inc(stats.RetryExceededErr)
		r.abort(now, transport.StatusRetryExceeded)
		return
	}
	if !r.m.Attr.Rules.RetryForever || r.m.Attr.RetryCnt != 7 {
		r.retries--
	}
	r.m.Counters.Inc(stats.CompleterRetryErr)
	r.window = max(minWindow, r.window/2)
	r.goBack(psn, cause)
	r.send(now)
}

// goBack makes psn, the oldest unanswered PSN, the next one to be sent, and
// counts a new round for everything from there on.
func (r *requester) goBack(psn bth.PSN, cause wire.Cause) {
	r.takeBack() // it is about to be emitted again
	r.seek(psn)
	r.behind = false
	r.cause, r.sinceAR, r.ackAt = cause, 0, 0
	for i := r.cur; i < r.n; i++ {
		if w := r.at(i); w.sent {
			w.round++
			w.again = true
		}
	}
}

// takeBack takes the requests that have not left yet off the transmit list.
func (r *requester) takeBack() {
	r.m.Tx.Drop(func(t *transport.Tx) bool {
		if t.Token != 0 {
			r.sent(t)
		}
		return t.Token != 0
	})
}

// seek moves the send cursor to psn.
func (r *requester) seek(psn bth.PSN) {
	r.next = psn
	for i := r.oldest(); i < r.n; i++ {
		w := r.at(i)
		if w.done {
			continue // a local request between others
		}
		if w.packets == 0 {
			r.cur, r.off = i, 0
			return
		}
		if psn.In(w.first, w.packets) {
			r.cur, r.off = i, psn.Sub(w.first)
			return
		}
	}
	r.cur, r.off = r.n, 0
}

// progress notes that the oldest unanswered PSN has moved.
func (r *requester) progress(now transport.Time) {
	r.refill()
	r.implied = false
	if r.rnrUntil != 0 {
		// Something else was answered than what the peer was not ready for; what
		// came behind that was dropped and has to go again.
		r.rnrUntil = 0
		r.goBack(r.una, wire.RetryRNR)
	}
	if m := r.windowMax(); r.window < m {
		r.window++
	}
	// Answers to what was sent in an earlier round may overtake the round in
	// progress: what is answered need not be sent again.
	if r.next.Before(r.una) {
		r.seek(r.una)
	}
	r.arm(now)
}

// rnr starts the wait that an RNR NAK asks for.
func (r *requester) rnr(now transport.Time, s bth.Syndrome) {
	r.m.Counters.Inc(stats.RcvdRNRErr)
	r.rnrSeen++
	if r.rnrSeen > 100 {
		r.m.Counters.Inc(stats.RNRLoop)
	}
	if r.rnrs == 0 {
		r.m.Counters.Inc(stats.RetryRNRExceededErr)
		r.abort(now, transport.StatusRNRRetryExceeded)
		return
	}
	r.m.Counters.Inc(stats.RNRNakRetryErr)
	if r.m.Attr.RNRRetry != 7 {
		r.rnrs--
	}
	r.rnrUntil = now + transport.Time(bth.RNRTime(s.Value()))
	r.ackAt = 0
	r.takeBack() // the peer would only drop it
}
