package device

import (
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/rc"
)

// errNoRequest is for nil in place of a work request.
var errNoRequest = because(EINVAL, "there is no work request")

// PostSend adds a send work request (ibv_post_send). The request and its lists, inline data too, are copied; the data is read
// until the completion. ENOMEM: Cap.SendWR requests have not ended. EINVAL: the state is below RTS, an operation that the
// service does not have, more entries than Cap.SendSGE, more inline data than Cap.Inline, more than MaxMessage bytes, an atomic
// or ATOMIC WRITE of other than 8 bytes, a READ, atomic or FLUSH where MaxRdAtomic is 0, a READ of more than 2^23-1 packets, an
// address handle that is missing, destroyed or of another PD, nil, queues that are rings, a queue pair that is destroyed. In
// SQD requests wait, in SQE and ERR they are flushed. A bad key is no error here but a completion. Now and
// then it receives, as CQ.Poll does: functions that the program has given to other queues and queue pairs may be called meanwhile.
func (q *QP) PostSend(wr *SendWR) error { return q.PostSendList(wr) }

// PostSendList adds several requests and rings one doorbell. The first that is
// refused ends it with the error that PostSend has for it; those before it are posted.
func (q *QP) PostSendList(wrs ...*SendWR) error {
	q.mu.Lock()
	var err error
	for _, wr := range wrs {
		if err = q.checkSend(wr); err != nil {
			break
		}
		q.sq.push(wr, q.typ.datagrams())
	}
	q.ring()
	if err != nil {
		return &OpError{"post_send", qpName(q.num), err}
	}
	return nil
}

// Doorbell says that a program has added requests to its SendRing. Below RTS that is
// refused (EINVAL), and the requests stay where they are.
func (q *QP) Doorbell() error {
	q.mu.Lock()
	if err := q.takesSends(); err != nil {
		q.mu.Unlock()
		return &OpError{"post_send", qpName(q.num), err}
	}
	q.ring()
	if rx := q.dev.rx; rx != nil {
		rx.rung(q)
	}
	return nil
}

// ring has the engine look at the send queue; it unlocks.
func (q *QP) ring() {
	switch q.attr.State {
	case StateRTS, StateErr, StateSQE:
		now := q.dev.now()
		q.eng.Doorbell(now)
		if q.coalesces() {
			q.dev.rx.hold(q)
			q.leaveHeld(now)
		} else {
			q.leave(now, maxBursts, true)
		}
		if rx := q.dev.rx; rx != nil {
			rx.afterPost(now)
		}
	default:
		q.mu.Unlock()
	}
}

func (q *QP) takesSends() error {
	switch {
	case q.dead:
		return because(EINVAL, "it is destroyed")
	case q.attr.State < StateRTS:
		return because(EINVAL, "state %s: sends need RTS", q.attr.State)
	case q.typ == XRCTgt:
		return because(EINVAL, "an XRC target cannot send")
	}
	return nil
}

// checkSend checks a request that is posted.
func (q *QP) checkSend(wr *SendWR) error {
	if wr == nil {
		return errNoRequest
	}
	if err := q.takesSends(); err != nil {
		return err
	}
	if q.sendRing != nil {
		return because(EINVAL, "its queues are rings of a program")
	}
	if q.sq.full() {
		return because(ENOMEM, "%d requests are outstanding", len(q.sq.slot))
	}
	if err := q.validate(wr); err != nil {
		return err
	}
	if a, ok := wr.AH.(*AH); ok && a != nil && q.typ.datagrams() && !a.acquire() {
		return because(EINVAL, "the address handle is destroyed")
	}
	return nil
}

// validate is the validator of send requests: what it refuses is an error for who posts, and a
// completion with IBV_WC_LOC_QP_OP_ERR where a ring has it.
func (q *QP) validate(wr *SendWR) error {
	switch {
	case len(wr.SGE) > q.cap.SendSGE:
		return because(EINVAL, "%d entries, max_send_sge is %d", len(wr.SGE), q.cap.SendSGE)
	case wr.Flags&Inline != 0 && len(wr.InlineData) > q.cap.Inline:
		return because(EINVAL, "%d bytes inline, max_inline_data is %d", len(wr.InlineData), q.cap.Inline)
	case wr.Flags&Inline != 0 && wr.Op != OpAtomicWrite && !transport.Segmented(wr.Op):
		return because(EINVAL, "%s has no inline data", wr.Op)
	case wr.Len() > MaxMessage:
		return because(EINVAL, "%d bytes, the longest message is 2^31", wr.Len())
	}
	if q.typ.datagrams() {
		return q.checkDatagram(wr)
	}
	if q.typ == RawPacket {
		return q.checkRaw(wr)
	}
	if q.typ == UC {
		if !transport.Segmented(wr.Op) && !wr.Op.IsLocal() || wr.Op == OpSendInv { // ibv_post_send(3), but for what has no opcode
			return because(EINVAL, "%s is not possible on UC", wr.Op)
		}
		return nil
	}
	return q.checkReliable(wr)
}

func (q *QP) checkReliable(wr *SendWR) error {
	switch {
	case !rc.Executes(wr.Op), q.typ == XRCIni && wr.Op.IsMasked():
		return because(EINVAL, "%s is not possible on %s", wr.Op, q.typ)
	case wr.Op.IsMasked() && q.dev.opts.PlainAtomics:
		return because(EINVAL, "%s: this device has no masked atomics", wr.Op)
	case (wr.Op.IsAtomic() || wr.Op == OpAtomicWrite) && wr.Len() != 8:
		return because(EINVAL, "%s of %d bytes: 8 are possible", wr.Op, wr.Len())
	case wr.Op == OpReadInv && len(wr.SGE) == 0:
		return because(EINVAL, "%s without an entry: there is no key to invalidate", wr.Op)
	case wr.Op == OpFlush && (wr.Len() != 0 || wr.FlushType&^(transport.FlushGlobal|transport.FlushPersistent) != 0 || wr.FlushLevel > transport.FlushMR):
		return because(EINVAL, "%s takes no data, types 1 and 2, levels 0 and 1", wr.Op)
	}
	if !rc.Asks(wr.Op) || !q.attr.State.Sends() {
		return nil
	}
	if q.attr.MaxRdAtomic == 0 {
		return because(EINVAL, "max_rd_atomic is 0: no %s can be sent", wr.Op)
	}
	if wr.Len() > uint64(q.attr.PathMTU)*(1<<23-1) {
		return because(EINVAL, "%d bytes need more than 2^23 packets at path MTU %d", wr.Len(), q.attr.PathMTU)
	}
	return nil
}

func (q *QP) checkDatagram(wr *SendWR) error {
	if wr.Op != OpSend && wr.Op != OpSendImm {
		return because(EINVAL, "%s is not possible on %s", wr.Op, q.typ)
	}
	a, ok := wr.AH.(*AH)
	if !ok || a == nil {
		if q.typ == SMI { // there is but one place that it can go to
			return nil
		}
		return because(EINVAL, "no address handle")
	}
	if a.pd != q.pd {
		return because(EINVAL, "the address handle belongs to another protection domain")
	}
	return nil
}

// PostRecv adds a receive work request (ibv_post_recv). The request and its list are copied. ENOMEM: Cap.RecvWR receives have
// not ended. EINVAL: state RESET, more entries than Cap.RecvSGE, a queue pair without a receive queue of its own (SRQ, XRC),
// nil, queues that are rings, a queue pair that is destroyed. In ERR it is flushed.
func (q *QP) PostRecv(wr *RecvWR) error {
	q.mu.Lock()
	err := q.checkRecv(wr)
	if err != nil {
		q.mu.Unlock()
		return &OpError{"post_recv", qpName(q.num), err}
	}
	q.rq.push(wr)
	if q.attr.State == StateErr {
		now := q.dev.now()
		q.eng.Doorbell(now)
		q.leave(now, maxBursts, true)
		return nil
	}
	q.mu.Unlock()
	return nil
}

func (q *QP) checkRecv(wr *RecvWR) error {
	switch {
	case wr == nil:
		return errNoRequest
	case q.dead:
		return because(EINVAL, "it is destroyed")
	case q.attr.State == StateReset:
		return because(EINVAL, "state RESET: receives need INIT")
	case q.srq != nil:
		return because(EINVAL, "it receives from %s", q.srq.name())
	case q.rcq == nil:
		return because(EINVAL, "%s has no receive queue", q.typ)
	case q.recvRing != nil:
		return because(EINVAL, "its queues are rings of a program")
	case len(wr.SGE) > q.cap.RecvSGE:
		return because(EINVAL, "%d entries, max_recv_sge is %d", len(wr.SGE), q.cap.RecvSGE)
	case q.rq.full():
		return because(ENOMEM, "%d receives are outstanding", len(q.rq.slot))
	}
	return nil
}
