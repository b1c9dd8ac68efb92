package rc

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// replyKind is what a reply sends.
type replyKind uint8

const (
	replyAck    replyKind = iota // an ACK or NAK
	replyRead                    // READ responses; an empty one also answers FLUSH and ATOMIC WRITE
	replyAtomic                  // an atomic acknowledge
)

// reply is one entry of the ordered response queue: an acknowledgement, or the
// responses of a READ or atomic that are still to be sent.
type reply struct {
	kind     replyKind
	syndrome bth.Syndrome
	psn      bth.PSN // of the ACK or NAK, or of the next response
	msn      uint32

	res   resource // what is read, or the original value
	id    uint32   // which saved resource it answers
	sent  int      // response packets that are out, from the start of res
	until int      // responses to send, from the start of res
	start int      // where this answer began: its first packet is FIRST or ONLY
	again bool     // answers a duplicate
}

// maxReplies bounds the acknowledgements that wait behind a long READ: a peer that
// makes gaps and fills them can ask for two at a time.
const maxReplies = 256

// replies is the ordered response queue. An ACK or NAK never passes a queued
// READ response.
type replies struct {
	q    []reply // ring, capacity a power of two
	base uint32
	n    int
}

func (q *replies) at(i int) *reply { return &q.q[(int(q.base)+i)&(len(q.q)-1)] }

func (q *replies) push(e reply) {
	if q.n == len(q.q) {
		big := make([]reply, max(8, 2*len(q.q)))
		for i := range q.n {
			big[(int(q.base)+i)&(len(big)-1)] = *q.at(i)
		}
		q.q = big
	}
	q.n++
	*q.at(q.n - 1) = e
}

// insert adds an answer to a duplicate, in PSN order: what the peer misses must not wait behind
// answers to later requests, which it can only drop until then.
func (q *replies) insert(e reply) {
	q.push(e)
	for i := q.n - 1; i > 0 && e.psn.Before(q.at(i-1).psn); i-- {
		a, b := q.at(i-1), q.at(i)
		*a, *b = *b, *a
		a.msn = b.msn // the count does not go back
	}
}

func (q *replies) pop() {
	q.base++
	q.n--
}

// acknowledge queues an acknowledgement of psn.
func (r *responder) acknowledge(psn bth.PSN) {
	r.reply(reply{syndrome: r.ackSyndrome(), psn: psn, msn: r.msn})
}

// ackSyndrome is that of an acknowledgement made now.
func (r *responder) ackSyndrome() bth.Syndrome {
	if r.m.Attr.Rules.Credits && r.at != nil && !r.at.Shared {
		if q, ok := r.at.Queue.(transport.CountedQueue); ok {
			return bth.AckCredits(q.Len())
		}
	}
	return bth.AckUnlimited
}

// nak queues a NAK or RNR NAK.
func (r *responder) nak(s bth.Syndrome, psn bth.PSN) {
	r.reply(reply{syndrome: s, psn: psn, msn: r.msn})
}

// reply queues an ACK or NAK. An ACK that directly follows another replaces it, because
// they are cumulative. When too many wait, the newest replaces the last of any kind, but
// an ACK of what a NAK has acknowledged already adds nothing.
func (r *responder) reply(e reply) {
	if n := r.out.n; n > 0 {
		last := r.out.at(n - 1)
		switch {
		case last.kind != replyAck:
		case last.syndrome.IsAck() && e.syndrome.IsAck() && !r.m.Attr.Rules.AckEach:
			*last = e
			return
		case n > maxReplies: // behind a long READ: the newest says it all
			if last.syndrome.IsAck() || !e.psn.Before(last.psn) {
				*last = e
			}
			return
		}
	}
	r.out.push(e)
}

// pending reports whether responses wait to be sent.
func (r *responder) pending() bool { return r.out.n > 0 }

// silence forgets the responses that are queued: a queue pair in ERR does not
// answer. Only an error that the responder finds itself answers what came before it.
func (r *responder) silence() { r.out = replies{q: r.out.q} }

// pump sends queued responses until the transmit list has high packets.
func (r *responder) pump(now transport.Time, high int) {
	for r.out.n > 0 && r.m.Tx.Len() < high {
		e := r.out.at(0)
		if e.kind == replyAck {
			r.emitAck(e)
			r.out.pop()
			continue
		}
		if e.kind == replyAtomic {
			r.emitAtomic(e)
		} else if !r.emitRead(e) {
			// The memory is gone: the NAK names the first response that is
			// missing, and nothing follows it.
			r.lost(now, e.psn)
			return
		}
		if e.sent == e.until {
			r.answeredRead(e.id)
			r.out.pop()
		}
	}
}

// lost ends the connection over a READ whose memory is gone: psn is the first response
// that could not be made.
func (r *responder) lost(now transport.Time, psn bth.PSN) {
	if r.m.Attr.State == transport.Err {
		return
	}
	r.silence()
	r.m.Host.Raise(transport.EventQPAccessErr)
	r.emitAck(&reply{syndrome: bth.NakRemoteAccess, psn: psn, msn: r.msn})
	r.m.fail(now)
}

func (r *responder) emitAck(e *reply) {
	if e.syndrome.IsAck() && r.m.Tx.Patient() && !r.m.Attr.Rules.AckEach {
		r.m.Tx.DropLast() // it has not left yet, and this one says more
	}
	t := r.m.Tx.Add()
	bth.AETH(r.m.head(t, bth.Acknowledge, e.psn, false, false)).Put(e.syndrome, e.msn)
	t.Cause, t.Ack = wire.Reply, e.syndrome.IsAck()
}

func (r *responder) emitAtomic(e *reply) {
	t := r.m.Tx.Add()
	ext := r.m.head(t, bth.AtomicAcknowledge, e.psn, false, false)
	bth.AETH(ext).Put(r.ackSyndrome(), e.msn)
	bth.AtomicAckETH(ext[4:]).Put(e.res.value)
	t.Cause = wire.Reply
	if e.again {
		t.Cause = wire.Replay
	}
	e.sent++
}

// emitRead sends one READ response; false when the memory cannot be read.
func (r *responder) emitRead(e *reply) bool {
	t := r.m.Tx.Add()
	mtu := uint64(r.m.Attr.PathMTU)
	at := uint64(e.sent) * mtu
	n := int(min(mtu, uint64(e.res.length)-at))
	if n > 0 {
		if r.m.Enter != nil {
			r.m.Enter(e.res.at)
		}
		mem, ok := r.m.Host.Remote(e.res.rkey, e.res.va+at, uint64(n), transport.RemoteRead)
		if !ok {
			r.m.Tx.DropLast()
			return false
		}
		r.m.Tx.Gather(mem, e.res.va+at, n)
	}
	first, last := e.sent == e.start, e.sent == e.until-1
	if r.m.Attr.Rules.GoesOn {
		first = e.sent == 0
	}
	op := bth.ReadResponseMiddle
	switch {
	case first && last:
		op = bth.ReadResponseOnly
	case first:
		op = bth.ReadResponseFirst
	case last:
		op = bth.ReadResponseLast
	}
	ext := r.m.head(t, op, e.psn, false, false)
	if len(ext) > 0 {
		bth.AETH(ext).Put(r.ackSyndrome(), e.msn)
	}
	t.Cause = wire.Reply
	if e.again {
		t.Cause = wire.Replay
	}
	e.sent++
	e.psn = e.psn.Next()
	return true
}
