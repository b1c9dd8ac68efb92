package rc

import (
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// maxOutstanding bounds the PSNs between the oldest unanswered one and the
// next: the responder must be able to tell old from new (roce.md B.1).
const maxOutstanding = 1<<23 - 1

// ackEvery is how many packets of a long message go out before one asks for
// an acknowledgement: rxe asks at the 66th, and acknowledges only when asked.
const ackEvery = 32

// maxFetched bounds the requests that a requester holds private copies of.
const maxFetched = 1024

// minWindow is what the window shrinks to when packets are lost.
const minWindow = 8

// wqe is a send work request on its way.
type wqe struct {
	wr transport.SendWR
	progress
}

// progress is how far a request is.
type progress struct {
	length  uint64
	status  transport.Status // what it completes with
	first   bth.PSN
	packets int // PSNs it takes; 0: none assigned yet
	ssn     uint32
	got     int  // READ: responses taken in order
	refs    int  // packets on the transmit list or with the flusher
	round   int  // how often it was sent again
	sent    bool // its first packet was emitted
	reads   bool // it holds a slot of the initiator depth
	again   bool // READ: sent again, so that a response may restart
	done    bool // answered in full
}

func (w *wqe) last() bth.PSN { return w.first.Add(w.packets - 1) }
func (w *wqe) isRead() bool  { return w.wr.Op == transport.OpRead || w.wr.Op == transport.OpReadInv }

// asks reports whether nothing but a response of its own completes the request. Such requests
// are limited by the initiator depth.
func (w *wqe) asks() bool {
	return w.isRead() || w.wr.Op.IsAtomic() || w.wr.Op == transport.OpFlush || w.wr.Op == transport.OpAtomicWrite
}

// requester is the send half. Requests live in a ring from fetch to
// completion: [0, cur) are sent in whole, cur is being sent, the rest waits.
type requester struct {
	m    *Machine
	ring []*wqe // capacity a power of two
	base uint32 // sequence number of the oldest; ring[base & mask]
	n    int    // requests held
	cur  int    // index from the oldest of the request being sent
	off  int    // packets of it that were emitted in this round

	una  bth.PSN // oldest PSN without an answer
	next bth.PSN // PSN of the next packet
	max  bth.PSN // one past the highest PSN ever sent

	window  int  // packets, current
	busy    bool // others were told that something is under way
	sinceAR int  // packets since one asked for an acknowledgement
	reading int  // READs and atomics that hold a slot of the initiator depth

	srqn     uint32  // XRC: target of the request being sent
	ssn      uint32  // message sequence number of the next request, from 1
	limited  bool    // the peer limits credits
	limit    uint32  // ssn up to which it does
	failed   bool    // a request failed while it was being sent
	failedAt uint32  // its sequence number
	behind   bool    // packets behind it were not sent
	behindAt bth.PSN // the first of them
	beyond   uint32  // ssn of the last message that was sent beyond the limit; 0: none
	retries  int     // left
	rnrs     int     // left
	rnrSeen  int     // RNR NAKs in a row
	cause    wire.Cause
	implied  bool           // an implied NAK was acted upon; silent until progress
	ackAt    transport.Time // when the ACK timer runs out; 0: not armed
	rnrUntil transport.Time // end of the RNR wait; 0: none
}

// start takes the first PSN; the state machine allows it only while nothing is
// outstanding.
func (r *requester) start(psn bth.PSN) {
	r.una, r.next, r.max = psn, psn, psn
	r.refill()
	r.window = min(r.windowMax(), 128)
}

func (r *requester) windowMax() int {
	if w := r.m.Window; w > 0 {
		return w
	}
	return max(128, 1<<20/r.m.Attr.PathMTU)
}

// refill gives both retry budgets back: something was answered.
func (r *requester) refill() {
	r.retries, r.rnrs, r.rnrSeen = int(r.m.Attr.RetryCnt), int(r.m.Attr.RNRRetry), 0
}

func (r *requester) at(i int) *wqe { return r.ring[(int(r.base)+i)&(len(r.ring)-1)] }

// fetch takes the next request from the send queue and gives it its PSNs.
func (r *requester) fetch() bool {
	if r.n == len(r.ring) {
		if r.n >= maxFetched {
			return false
		}
		r.grow()
	}
	w := r.at(r.n)
	st, ok := r.m.SQ.Fetch(&w.wr)
	if !ok {
		return false
	}
	w.progress = progress{status: st, length: w.wr.Len()}
	if !w.wr.Op.IsLocal() {
		r.ssn++
	}
	w.ssn = r.ssn
	r.n++
	return true
}

func (r *requester) grow() {
	size := max(16, 2*len(r.ring))
	ring := make([]*wqe, size)
	for i := range ring {
		seq := int(r.base) + i
		if i < r.n {
			ring[seq&(size-1)] = r.at(i)
		} else {
			ring[seq&(size-1)] = new(wqe)
		}
	}
	r.ring = ring
}

// bound returns how many PSNs may be unanswered now: the window, or less where other queue pairs want the link too.
func (r *requester) bound() int {
	if b := r.m.Share.Each(); b > 0 {
		return min(r.window, max(minWindow, b/r.m.Attr.PathMTU))
	}
	return r.window
}

// account tells the others whether this queue pair has something under way.
func (r *requester) account() {
	if busy := r.una != r.max && r.m.Attr.State.Sends(); busy != r.busy {
		r.busy = busy
		r.m.Share.Busy(busy)
	}
}

// send emits packets until the queue is empty or something holds it back.
func (r *requester) send(now transport.Time) {
	r.emit(now)
	r.account()
}

func (r *requester) emit(now transport.Time) {
	a := r.m.Attr
	if !a.State.Sends() {
		return // there may be no path MTU yet
	}
	bound := r.bound()
	for a.State.Sends() && r.rnrUntil == 0 && r.m.Tx.Len() < txHigh && !r.stopped(now) {
		if r.cur == r.n && !r.fetch() {
			return
		}
		w := r.at(r.cur)
		if w.done { // a local request that was executed before what precedes it was sent again
			r.cur++
			continue
		}
		if a.State == transport.SQD && w.packets == 0 {
			return // it has not begun
		}
		if w.status != transport.StatusSuccess {
			// Requests before it are on the wire and complete first.
			if r.cur == r.oldest() {
				r.abort(now, w.status)
			}
			return
		}
		r.srqn = w.wr.SRQN
		if w.wr.Op.IsLocal() {
			if !r.local(w) {
				return
			}
			continue
		}
		if w.packets == 0 && !r.admit(w) {
			if w.status != transport.StatusSuccess {
				continue
			}
			return
		}
		if !r.sendPacket(now, w, bound) {
			return
		}
	}
}

// admit decides whether a request may start, and assigns its PSNs.
func (r *requester) admit(w *wqe) bool {
	a := r.m.Attr
	n := 1
	if w.isRead() || transport.Segmented(w.wr.Op) {
		n = transport.Packets(w.length, a.PathMTU)
	}
	if r.fenced(w) {
		return false
	}
	if r.limited && w.wr.Op.Consumes() && int32(w.ssn-r.limit) > 0 {
		// One message beyond the limit, then wait for its answer (A.4).
		if o := r.oldest(); int32(r.beyond-r.limit) > 0 && int32(r.at(o).ssn-r.beyond) <= 0 {
			return false
		}
		r.beyond = w.ssn
	}
	if w.asks() {
		if a.MaxRdAtomic == 0 { // set to that in SQD, after the request was posted
			w.status = transport.StatusLocalQPOp
			return false
		}
		if r.reading >= a.MaxRdAtomic {
			return false
		}
		// A READ reserves the PSNs of all its responses at once.
		if r.next.Sub(r.una)+n > maxOutstanding {
			return false
		}
		r.reading++
		w.reads = true
	}
	w.first, w.packets = r.next, n
	return true
}

// fenced reports whether w waits for earlier READs and atomics.
func (r *requester) fenced(w *wqe) bool { return w.wr.Flags&transport.Fence != 0 && r.reading > 0 }

// local executes a request that sends nothing, in its turn; false when it must wait: a local
// invalidate for all requests before it, the others for their fence.
func (r *requester) local(w *wqe) bool {
	if r.fenced(w) || w.wr.Op == transport.OpLocalInv && r.cur != r.oldest() {
		return false
	}
	if !transport.ExecuteLocal(r.m.Host, &w.wr) {
		w.status = transport.StatusMWBind
		return true // send sees the status
	}
	w.done = true
	r.cur++
	r.complete()
	return true
}

// sendPacket emits the next packet of w, if fewer than bound are unanswered; false when it must wait.
func (r *requester) sendPacket(now transport.Time, w *wqe, bound int) bool {
	a := r.m.Attr
	flight := r.next.Sub(r.una)
	if flight >= bound || flight >= maxOutstanding {
		return false // responses that were asked for fill the window too
	}
	if w.isRead() {
		r.sendRead(w)
		r.sent1(now, w, w.packets-w.got)
		return true
	}
	if w.asks() {
		if st := r.sendAsk(w); st != transport.StatusSuccess {
			w.status = st
			return true
		}
		r.sent1(now, w, 1)
		return true
	}
	lastOne := r.off == w.packets-1
	ar := lastOne || r.sinceAR+1 >= ackEvery || flight+1 >= bound
	t := r.m.Tx.Add()
	from := uint64(r.off) * uint64(a.PathMTU)
	n := int(min(w.length-from, uint64(a.PathMTU)))
	if st := transport.Gather(r.m.Host, r.m.Tx, &w.wr, from, n); st != transport.StatusSuccess {
		r.m.Tx.DropLast()
		w.status = st
		return true // send sees the status and waits for, or aborts, the queue
	}
	r.headers(t, w, lastOne, ar)
	r.mark(t, w)
	if ar {
		r.sinceAR = 0
	} else {
		r.sinceAR++
	}
	r.sent1(now, w, 1)
	return true
}

// sent1 moves the cursor behind a packet that took n PSNs.
func (r *requester) sent1(now transport.Time, w *wqe, n int) {
	w.sent = true
	r.off += n
	r.next = r.next.Add(n)
	if r.next.After(r.max) {
		r.max = r.next
		r.cause = wire.First
	}
	if r.off >= w.packets {
		r.cur++
		r.off = 0
	}
	if r.ackAt == 0 {
		r.arm(now)
	}
}

// mark notes on the packet what it is for.
func (r *requester) mark(t *transport.Tx, w *wqe) {
	t.Token = (r.base + uint32(r.cur)) | 1<<31
	w.refs++
	t.Cause, t.Round = wire.First, 0
	if r.next.Before(r.max) {
		t.Cause, t.Round = r.cause, w.round
	}
}

// Asks reports whether an operation is answered by a response of its own, and so takes
// initiator depth.
func Asks(op transport.WROp) bool {
	w := wqe{wr: transport.SendWR{Op: op}}
	return w.asks()
}

// Executes reports whether the engine can execute an operation. A queue
// refuses the others before they reach the engine.
func Executes(op transport.WROp) bool {
	return transport.Segmented(op) || Asks(op) || op.IsLocal()
}

// headers writes the headers of a SEND or WRITE packet.
func (r *requester) headers(t *transport.Tx, w *wqe, lastOne, ar bool) {
	op := transport.Segment(w.wr.Op, r.off, w.packets)
	se := lastOne && w.wr.Op.Consumes() && w.wr.Flags&transport.Solicited != 0
	transport.PutSegment(r.m.head(t, op, r.next, ar, se), op, &w.wr)
}

// sendRead emits the READ request for what is missing of w.
func (r *requester) sendRead(w *wqe) {
	t := r.m.Tx.Add()
	done := uint64(w.got) * uint64(r.m.Attr.PathMTU)
	bth.RETH(r.m.head(t, bth.ReadRequest, r.next, true, false)).Put(w.wr.RemoteAddr+done, w.wr.RKey, uint32(w.length-done))
	r.mark(t, w)
	r.sinceAR = 0
}

// sendAsk emits an atomic, a FLUSH or an ATOMIC WRITE: one packet that a response answers.
func (r *requester) sendAsk(w *wqe) transport.Status {
	wr := &w.wr
	t := r.m.Tx.Add()
	switch wr.Op {
	case transport.OpCompareSwap:
		bth.AtomicETH(r.m.head(t, bth.CompareSwap, r.next, true, false)).Put(wr.RemoteAddr, wr.RKey, wr.Swap, wr.CompareAdd)
	case transport.OpFetchAdd:
		bth.AtomicETH(r.m.head(t, bth.FetchAdd, r.next, true, false)).Put(wr.RemoteAddr, wr.RKey, wr.CompareAdd, 0)
	case transport.OpMaskedCompareSwap:
		bth.MaskedETH(r.m.headOf(t, bth.MaskedCompareSwap, r.next, true, false)).Put(wr.RemoteAddr, wr.RKey, wr.Swap, wr.CompareAdd, wr.SwapMask, wr.CompareAddMask)
	case transport.OpMaskedFetchAdd:
		bth.AtomicETH(r.m.headOf(t, bth.MaskedFetchAdd, r.next, true, false)).Put(wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.CompareAddMask)
	case transport.OpFlush:
		ext := r.m.head(t, bth.Flush, r.next, true, false)
		bth.FETH(ext).Put(int(wr.FlushLevel), int(wr.FlushType))
		bth.RETH(ext[4:]).Put(wr.RemoteAddr, wr.RKey, wr.FlushLen)
	case transport.OpAtomicWrite:
		if st := transport.Gather(r.m.Host, r.m.Tx, wr, 0, 8); st != transport.StatusSuccess {
			r.m.Tx.DropLast()
			return st
		}
		bth.RETH(r.m.head(t, bth.AtomicWrite, r.next, true, false)).Put(wr.RemoteAddr, wr.RKey, 8)
	}
	r.mark(t, w)
	r.sinceAR = 0
	return transport.StatusSuccess
}

// sent takes back the reference that a packet held on its request. A packet that was
// lost, because its memory cannot be read any more, fails the request in its turn.
func (r *requester) sent(t *transport.Tx) {
	i := int((t.Token - r.base) &^ (1 << 31))
	if i >= r.n {
		return
	}
	w := r.at(i)
	w.refs--
	if psn := bth.BTH(t.Head[:]).PSN(); t.Behind && (!r.behind || psn.Before(r.behindAt)) {
		r.behind, r.behindAt = true, psn
	}
	if !t.Lost || w.done || w.status != transport.StatusSuccess {
		return
	}
	// send fails it when those before it are answered. The cursor stays where it is: an answer
	// may still say that it had arrived in an earlier round.
	w.status = transport.StatusLocalProtection
	r.m.Tx.Drop(func(t *transport.Tx) bool {
		if t.Token == 0 || int((t.Token-r.base)&^(1<<31)) < i {
			return false
		}
		t.Behind = true
		r.sent(t)
		return true
	})
	if seq := r.base + uint32(i); !r.failed || int32(r.failedAt-seq)<<1 > 0 {
		r.failed, r.failedAt = true, seq&^(1<<31)
	}
}

// goOn sends what was not sent because it was behind a request that had failed, but had arrived in an earlier round.
func (r *requester) goOn() {
	if !r.behind {
		return
	}
	r.behind = false
	from := r.behindAt
	if from.Before(r.una) {
		from = r.una
	}
	if from.Before(r.next) {
		r.takeBack()
		r.seek(from)
	}
}

// stopped reports whether a request that failed while it was being sent is behind the cursor; it
// fails it when it is the oldest.
func (r *requester) stopped(now transport.Time) bool {
	if !r.failed {
		return false
	}
	i := int((r.failedAt - r.base) &^ (1 << 31))
	if i >= r.n || r.at(i).done || r.at(i).status == transport.StatusSuccess {
		r.failed = false // it was answered
		r.goOn()
		return false
	}
	if i >= r.cur {
		return false // send comes to it
	}
	if i == r.oldest() {
		r.abort(now, r.at(i).status)
	}
	return true
}

// complete retires and reports the requests at the head that are finished,
// and whose packets the flusher no longer holds: a completion is a promise that
// the buffer is not read any more.
func (r *requester) complete() {
	for r.n > 0 {
		w := r.at(0)
		if !w.done || w.refs > 0 {
			return
		}
		r.base = (r.base + 1) &^ (1 << 31)
		r.n--
		if r.cur > 0 {
			r.cur--
		}
		r.m.SQ.Retire(1)
		wc := &r.m.wc
		*wc = transport.WC{ID: w.wr.ID, Status: w.status, Op: w.wr.Op.Completed(), QPN: r.m.Attr.QPN}
		if w.status != transport.StatusSuccess {
			if w.status != transport.StatusFlush {
				r.m.Counters.Inc(stats.ReqCqeError)
			}
		} else {
			wc.ByteLen = uint32(w.length)
			if !r.m.Attr.SigAll && w.wr.Flags&transport.Signaled == 0 {
				continue
			}
		}
		r.m.Host.SendDone(wc)
	}
}

// drained reports whether what is held has not begun.
func (r *requester) drained() bool { return r.n == 0 || r.at(0).packets == 0 && !r.at(0).done }

// oldest returns the index of the first request without an answer; n if there
// is none.
func (r *requester) oldest() int {
	for i := range r.n {
		if !r.at(i).done {
			return i
		}
	}
	return r.n
}

// abort fails the oldest unanswered request and with it the queue pair.
func (r *requester) abort(now transport.Time, st transport.Status) {
	if i := r.oldest(); i < r.n {
		w := r.at(i)
		w.status, w.done = st, true
	}
	r.m.rsp.silence()
	r.m.fail(now)
}

// flush completes everything that is left with a flush error, in order. What
// the flusher still holds completes when it lets go (Machine.Sent).
func (r *requester) flush() {
	r.ackAt, r.rnrUntil, r.reading = 0, 0, 0
	r.account()
	for {
		for i := r.oldest(); i < r.n; i++ {
			if w := r.at(i); !w.done {
				w.status, w.done = transport.StatusFlush, true
			}
		}
		r.complete()
		r.cur, r.off = r.n, 0
		if !r.fetch() {
			return
		}
	}
}

func (r *requester) reset() {
	r.una = r.max
	r.account()
	*r = requester{m: r.m, ring: r.ring, base: (r.base + uint32(r.n)) &^ (1 << 31)}
}
