package uc

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// request is a send work request on its way.
type request struct {
	wr      transport.SendWR
	length  uint64
	packets int
	refs    int // packets on the transmit list or with the flusher
	status  transport.Status
	done    bool // all packets were emitted, or it has failed
}

// requester is the send half. Requests live in a ring from fetch to completion; the last one
// alone may not be emitted in whole.
type requester struct {
	m    *Machine
	ring []request // capacity a power of two
	base uint32    // sequence number of the oldest
	n    int       // requests held
	off  int       // packets of the last one that were emitted
	psn  bth.PSN   // of the next packet
}

func (r *requester) at(i int) *request { return &r.ring[(int(r.base)+i)&(len(r.ring)-1)] }

// current returns the request that is being emitted, the next one of the send queue if
// there is none, nil if that is empty.
func (r *requester) current() *request {
	if r.n > 0 && !r.at(r.n-1).done {
		return r.at(r.n - 1)
	}
	if r.n == len(r.ring) {
		big := make([]request, max(16, 2*len(r.ring)))
		for i := range r.n {
			big[(int(r.base)+i)&(len(big)-1)] = *r.at(i)
		}
		r.ring = big
	}
	q := r.at(r.n)
	st, ok := r.m.SQ.Fetch(&q.wr)
	if !ok {
		return nil
	}
	*q = request{wr: q.wr, length: q.wr.Len(), status: st}
	if mtu := r.m.Attr.PathMTU; mtu > 0 { // else it was never connected, and is being flushed
		q.packets = transport.Packets(q.length, mtu)
	}
	r.n++
	r.off = 0
	return q
}

// inside reports whether some packets of a request were emitted, and not all.
func (r *requester) inside() bool { return r.n > 0 && !r.at(r.n-1).done && r.off > 0 }

// drained reports whether what is held has not begun.
func (r *requester) drained() bool { return r.n == 0 || r.n == 1 && !r.at(0).done && r.off == 0 }

// send emits packets until the queue is empty or the transmit list is long enough.
func (r *requester) send() {
	for s := r.m.Attr.State; s.Sends() && r.m.Tx.Len() < txHigh; s = r.m.Attr.State {
		if s == transport.SQD && !r.inside() {
			return
		}
		q := r.current()
		if q == nil {
			return
		}
		local := q.wr.Op.IsLocal()
		switch {
		case q.status != transport.StatusSuccess:
		case local:
			if r.complete(); q.wr.Op == transport.OpLocalInv && r.n > 1 {
				return // those before it have not left
			}
			if !transport.ExecuteLocal(r.m.Host, &q.wr) {
				q.status = transport.StatusMWBind
			}
		default:
			q.status = r.emit(q)
		}
		if q.status != transport.StatusSuccess {
			r.fail(q)
			return
		}
		if r.off++; r.off == q.packets || local {
			q.done = true
		}
	}
}

// emit puts the next packet of q on the transmit list.
func (r *requester) emit(q *request) transport.Status {
	a := r.m.Attr
	t := r.m.Tx.Add()
	from := uint64(r.off) * uint64(a.PathMTU)
	n := int(min(q.length-from, uint64(a.PathMTU)))
	if st := transport.Gather(r.m.Host, r.m.Tx, &q.wr, from, n); st != transport.StatusSuccess {
		r.m.Tx.DropLast()
		return st
	}
	op := transport.Segment(q.wr.Op, r.off, q.packets)
	o := bth.Make(bth.UC, op)
	t.Path, t.Len, t.Pad = a.Path, o.Info().Len, -t.Size&3
	last := r.off == q.packets-1
	bth.BTH(t.Head[:]).Encode(&bth.Fields{
		Opcode: o, Solicited: last && q.wr.Op.Consumes() && q.wr.Flags&transport.Solicited != 0,
		MigReq: a.MigReq, Pad: t.Pad, PKey: a.PKey, DestQP: a.DestQPN, PSN: r.psn,
	})
	transport.PutSegment(t.Head[bth.Len:t.Len], op, &q.wr)
	t.Token = (r.base + uint32(r.n-1)) | 1<<31
	q.refs++
	r.psn = r.psn.Next()
	return transport.StatusSuccess
}

// fail has the send side stop over a request. Those before it complete as they leave.
func (r *requester) fail(q *request) {
	q.done = true
	r.m.Counters.Inc(stats.ReqCqeError)
	if r.m.Attr.State.Sends() {
		r.m.Host.Failed(transport.SQE)
	}
	r.flush()
}

// sent takes back the reference that a packet held on its request.
func (r *requester) sent(t *transport.Tx) {
	i := int((t.Token - r.base) &^ (1 << 31))
	if t.Token == 0 || i >= r.n { // 0: a packet of the device's own
		return
	}
	q := r.at(i)
	q.refs--
	switch {
	case t.Lost:
		// What is behind it is not sent, and its PSN is that of the next.
		r.psn = bth.BTH(t.Head[:]).PSN()
		if q.status == transport.StatusSuccess {
			q.status = transport.StatusLocalProtection
		}
		r.m.Tx.Drop(r.unsent)
		r.fail(q)
	case t.Behind:
		q.unsent()
	}
}

// unsent takes a packet back that is behind one that was lost.
func (r *requester) unsent(t *transport.Tx) bool {
	if t.Token == 0 {
		return false
	}
	q := r.at(int((t.Token - r.base) &^ (1 << 31)))
	q.refs--
	q.unsent()
	return true
}

// unsent ends a request of which a packet was not sent.
func (q *request) unsent() {
	if q.done = true; q.status == transport.StatusSuccess {
		q.status = transport.StatusFlush
	}
}

// complete retires and reports the finished requests at the head.
func (r *requester) complete() {
	for r.n > 0 {
		q := r.at(0)
		if !q.done || q.refs > 0 {
			return
		}
		r.base = (r.base + 1) &^ (1 << 31)
		r.n--
		r.m.SQ.Retire(1)
		wc := &r.m.wc
		*wc = transport.WC{ID: q.wr.ID, Status: q.status, Op: q.wr.Op.Completed(), QPN: r.m.Attr.QPN}
		if q.status == transport.StatusSuccess {
			if !r.m.Attr.SigAll && q.wr.Flags&transport.Signaled == 0 {
				continue
			}
			wc.ByteLen = uint32(q.length)
		}
		r.m.Host.SendDone(wc)
	}
}

// flush completes what has not been emitted in whole with a flush error, in order.
func (r *requester) flush() {
	for q := r.current(); q != nil; q = r.current() {
		q.status, q.done = transport.StatusFlush, true
	}
	r.complete()
}

func (r *requester) reset() {
	*r = requester{m: r.m, ring: r.ring, base: (r.base + uint32(r.n)) &^ (1 << 31)}
}
