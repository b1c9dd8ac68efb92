package device

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/raw"
	"github.com/softnic/softnic/transport/rc"
	"github.com/softnic/softnic/transport/uc"
	"github.com/softnic/softnic/transport/ud"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// QPType is the service of a queue pair; values as enum ib_qp_type.
type QPType int

// The queue pair types. CreateQP takes all but XRC_TGT, which CreateXRCTarget makes. There is one GSI (QP1) and
// one SMI (QP0) at a time; RAW_PACKET needs a link with Ethernet.
const (
	SMI       QPType = 0
	GSI       QPType = 1
	RC        QPType = 2
	UC        QPType = 3
	UD        QPType = 4
	RawPacket QPType = 8
	XRCIni    QPType = 9
	XRCTgt    QPType = 10
)

var qpTypeNames = map[QPType]string{SMI: "SMI", GSI: "GSI", RC: "RC", UC: "UC", UD: "UD", RawPacket: "RAW_PACKET", XRCIni: "XRC_INI", XRCTgt: "XRC_TGT"}

// String returns the name as `rdma resource show` prints it.
func (t QPType) String() string { return qpTypeNames[t] }

// Cap is the capacity of a queue pair (ibv_qp_cap).
type Cap struct {
	SendWR, RecvWR   int // work requests, 0 ... MaxQPWR
	SendSGE, RecvSGE int // entries of one work request, 0 means 1, at most MaxSGE
	Inline           int // bytes of inline data, 0 ... MaxInline
}

// QPInit says what a queue pair is to be (ibv_qp_init_attr).
type QPInit struct {
	Type           QPType
	SendCQ, RecvCQ *CQ
	Cap            Cap
	XRCD           *XRCD            // set by CreateXRCTarget
	SRQ            *SRQ             // receives come from it instead of a queue of its own; nil: none
	SigAll         bool             // every send request makes a completion
	Steer          Steering         // RAW_PACKET: what it receives
	Handler        func(AsyncEvent) // event_handler; nil: events go to the context's list

	// BlockSelfMulticast keeps what the queue pair sends to a multicast group from itself, if it is attached
	// (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB). Others on the device hear it.
	BlockSelfMulticast bool

	// SendRing and RecvRing are queues in memory that a program shares, instead of those
	// that PostSend and PostRecv fill. Both or none are set; with an SRQ, RecvRing is nil.
	SendRing SendRing
	RecvRing RecvRing
}

// SendRing is a send queue in memory that a program shares. The device checks what it
// fetches as it checks what is posted, with a completion instead of an error. It is called under
// the queue pair's lock.
type SendRing interface {
	transport.SendQueue
	// Clear drops all requests without completions, as RESET does.
	Clear()
}

// RecvRing is a receive queue in memory that a program shares; see SendRing.
type RecvRing interface {
	transport.RecvQueue
	Clear()
}

// QP is a queue pair.
type QP struct {
	dev      *Device
	ctx      *Context
	pd       *PD
	typ      QPType
	num      uint32
	scq, rcq *CQ
	cap      Cap
	handler  func(AsyncEvent)
	recv     transport.RecvContext
	sendRing SendRing             // nil: sq
	recvRing RecvRing             // nil: rq, or srq
	srq      *SRQ                 // nil: none
	xrcd     *XRCD                // XRC_TGT
	windows  int                  // memory windows that it has bound; the key table's lock guards it
	slowDown func(transport.Time) // rate hook: hears of congestion notifications; nil: there is none
	cnpPath  *wire.Path           // of the last notification that was sent
	lastWQE  bool                 // the event was raised since it entered ERR
	notSelf  bool                 // it does not hear what it sends to a multicast group
	groups   groupSet             // that it is attached to; mcast.change is held too where it changes

	mu      sync.Mutex // first in the lock order
	idle    sync.Cond  // flushing has ended
	attr    transport.Attr
	user    QPAttr // what modify was given, for query
	eng     transport.Engine
	sq      sendRing
	rq      recvRing
	tx      transport.TxList // emitted, not sent
	dead    bool
	sending bool // one flusher: it sends what others emit meanwhile

	// The flusher alone uses these, while sending is set.
	out     transport.TxList
	pkts    []*wire.Packet
	scr     transport.Scratch
	answers [][]byte // SMI: to what it sent

	timer   clock.Timer
	lookAt  transport.Time     // when to look at the rings of a queue pair in ERR; 0: not needed
	timerAt transport.Time     // when timer fires; 0: not running
	paths   map[*AH]*wire.Path // UD: paths with this queue pair's source port
	steer   *steering          // RAW_PACKET
	steered Steering           // what steer was made of
	todo    atomic.Uint32      // what other objects asked for
	wake    chan struct{}
	done    chan struct{}
}

// What other objects ask of a queue pair's goroutine.
const (
	todoCQError uint32 = 1 << iota // a completion was lost
)

// CreateQP makes a queue pair in state RESET. An XRC initiator has no receive queue, and RecvCQ is nil.
func (pd *PD) CreateQP(in QPInit) (*QP, error) {
	if in.Type == XRCTgt {
		return nil, &OpError{"create_qp", "", because(EINVAL, "an XRC target belongs to an XRC domain: CreateXRCTarget")}
	}
	in.XRCD = nil
	return createQP(pd.ctx, pd, in)
}

func createQP(c *Context, pd *PD, in QPInit) (*QP, error) {
	const op = "create_qp"
	if err := checkQPInit(&in); err != nil {
		return nil, &OpError{op, "", err}
	}
	q := &QP{
		dev: c.dev, ctx: c, pd: pd, typ: in.Type, scq: in.SendCQ, rcq: in.RecvCQ, cap: in.Cap, handler: in.Handler,
		sendRing: in.SendRing, recvRing: in.RecvRing, srq: in.SRQ, xrcd: in.XRCD,
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	q.idle.L = &q.mu
	q.recv = transport.RecvContext{Queue: &q.rq, Done: q.recvDone}
	var sends transport.SendQueue = &q.sq
	if in.SendRing != nil {
		sends, q.recv.Queue = (*checkedRing)(q), in.RecvRing
	} else {
		q.sq.slot, q.rq.slot = make([]SendWR, in.Cap.SendWR), make([]RecvWR, in.Cap.RecvWR)
	}
	if in.SRQ != nil {
		q.recv.Queue, q.recv.Shared = in.SRQ, true
	}
	q.attr.SigAll, q.notSelf = in.SigAll, in.BlockSelfMulticast
	q.attr.MigReq, q.attr.Rules = c.dev.profile.MigReq, c.dev.profile.Rules
	q.attr.PKey = DefaultPKey
	switch in.Type {
	case RC, XRCIni, XRCTgt:
		cfg := rc.Config{Service: bth.RC, Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: &c.dev.counters}
		if in.Type != RC {
			cfg.Service = bth.XRC
		}
		if in.Type == XRCTgt {
			cfg.Recv, cfg.Select, cfg.Enter = nil, q.selectSRQ, q.enter
		}
		q.eng = rc.New(cfg)
	case UC:
		q.eng = uc.New(uc.Config{Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: &c.dev.counters})
	case UD, GSI, SMI:
		q.eng = ud.New(ud.Config{Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: &c.dev.counters, GSI: in.Type == GSI})
		q.paths = map[*AH]*wire.Path{}
	case RawPacket:
		q.eng = raw.New(raw.Config{Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: &c.dev.counters})
		q.steered = Steering{slices.Clone(in.Steer.MACs), in.Steer.EtherType, in.Steer.Sniffer}
		var err error
		if q.steer, err = newSteering(&q.steered, c.dev.port.Info()); err != nil {
			return nil, &OpError{op, "", err}
		}
	}
	live := func() error {
		return q.liveParts()
	}
	var taken error
	err := own(c, op, c.qps, MaxQP, q, live, func() {
		if taken = c.dev.addQP(q); taken != nil {
			delete(c.qps, q)
			return
		}
		q.count(1)
		if c.dev.opts.Stepped {
			close(q.done)
		} else {
			go q.loop()
		}
	})
	if err != nil {
		return nil, err
	}
	if taken != nil {
		return nil, &OpError{op, "", taken}
	}
	return q, nil
}

// liveParts checks that what the queue pair stands on is alive; the context's lock is held.
func (q *QP) liveParts() error {
	c := q.ctx
	var errs []error
	if q.xrcd != nil {
		errs = append(errs, alive(c.xrcds, q.xrcd, "XRC domain"))
	} else {
		errs = append(errs, q.pd.live(), alive(c.cqs, q.scq, "send completion queue"))
	}
	if q.rcq != nil {
		errs = append(errs, alive(c.cqs, q.rcq, "receive completion queue"))
	}
	if q.srq != nil {
		errs = append(errs, alive(c.srqs, q.srq, "shared receive queue"))
	}
	return cmp.Or(errs...)
}

// count counts the queue pair at, or off, what it stands on. An XRC target's protection domain
// is that of a shared receive queue, which counts for itself.
func (q *QP) count(n int32) {
	if q.xrcd != nil {
		q.xrcd.uses.Add(n)
		return
	}
	q.pd.uses.Add(n)
	q.scq.uses.Add(n)
	if q.rcq != nil {
		q.rcq.uses.Add(n)
	}
	if q.srq != nil {
		q.srq.uses.Add(n)
	}
}

func checkQPInit(in *QPInit) error {
	switch in.Type {
	case XRCTgt:
		if in.SendRing != nil || in.RecvRing != nil {
			return because(EINVAL, "an XRC target has no queues")
		}
		return nil
	case XRCIni:
		if in.SendCQ == nil || in.RecvCQ != nil || in.SRQ != nil || in.SendRing != nil || in.RecvRing != nil {
			return because(EINVAL, "an XRC initiator has a send completion queue, and nothing to receive with")
		}
		in.Cap.RecvWR, in.Cap.RecvSGE = 0, 0
	case RC, UC, UD, GSI, SMI, RawPacket:
		if in.SendCQ == nil || in.RecvCQ == nil {
			return because(EINVAL, "a queue pair needs a send and a receive completion queue")
		}
		if _, one := wellKnown[in.Type]; one && (in.SRQ != nil || in.SendRing != nil || in.RecvRing != nil) {
			return because(EINVAL, "%s has queues of its own", in.Type)
		}
	default:
		return because(EOPNOTSUPP, "queue pair type %d is not supported", int(in.Type))
	}
	if rings := in.SendRing != nil; (in.RecvRing != nil) != (rings && in.SRQ == nil) {
		return because(EINVAL, "a queue pair has all its queues in rings, or none")
	}
	if in.SRQ != nil {
		in.Cap.RecvWR, in.Cap.RecvSGE = 0, 0 // as the kernel has it
	}
	k := &in.Cap
	for _, v := range []struct {
		name    string
		val     *int
		least   int
		highest int
	}{
		{"max_send_wr", &k.SendWR, 0, MaxQPWR}, {"max_recv_wr", &k.RecvWR, 0, MaxQPWR},
		{"max_send_sge", &k.SendSGE, 1, MaxSGE}, {"max_recv_sge", &k.RecvSGE, 1, MaxSGE},
		{"max_inline_data", &k.Inline, 0, MaxInline},
	} {
		if *v.val < 0 || *v.val > v.highest {
			return because(EINVAL, "%s %d: 0 ... %d are possible", v.name, *v.val, v.highest)
		}
		*v.val = max(*v.val, v.least)
	}
	return nil
}

// Num returns the queue pair number, 24 bits.
func (q *QP) Num() uint32 { return q.num }

// Type returns the service.
func (q *QP) Type() QPType { return q.typ }

// State returns the state.
func (q *QP) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr.State
}

// Destroy stops the queue pair and frees it. Requests that are outstanding make
// no completions, and those that nobody has polled are removed.
func (q *QP) Destroy() error { return q.destroy(false) }

// destroy is Destroy. With its context a queue pair goes even while it is attached to a multicast group.
func (q *QP) destroy(force bool) error {
	q.mu.Lock()
	if q.dead {
		q.mu.Unlock()
		return &OpError{"destroy_qp", qpName(q.num), because(EINVAL, "it is destroyed already")}
	}
	if n := len(q.groups); n > 0 && !force {
		q.mu.Unlock()
		return &OpError{"destroy_qp", qpName(q.num), because(EBUSY, "multicast groups that it is attached to: %d", n)}
	}
	q.dead = true
	q.attr.State = StateReset
	for q.sending {
		q.idle.Wait()
	}
	q.tx.Release()
	q.eng.Reset()
	q.clearQueues()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.mu.Unlock()

	if force {
		q.detachAll()
	}
	q.dev.removeQP(q)
	q.dev.keys.unbindAll(q)
	q.poke()
	<-q.done
	q.scq.purge(q.num)
	q.rcq.purge(q.num)
	c := q.ctx
	c.async.withdraw(func(e AsyncEvent) bool { return e.QP == q })
	c.dev.dispatch.withdraw(func(f call) bool { return f.of == q })
	c.mu.Lock()
	delete(c.qps, q)
	c.mu.Unlock()
	q.count(-1)
	return nil
}

// clearQueues drops all work requests without completions.
func (q *QP) clearQueues() {
	q.lastWQE = false
	if q.sendRing != nil {
		q.sendRing.Clear()
		if q.recvRing != nil {
			q.recvRing.Clear()
		}
		return
	}
	q.sq.clear()
	q.rq.clear()
}

// poke wakes the queue pair's goroutine.
func (q *QP) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// loop is the queue pair's goroutine: timers, backlog, and what others ask for.
func (q *QP) loop() {
	defer close(q.done)
	for range q.wake {
		q.mu.Lock()
		if q.dead {
			q.mu.Unlock()
			return
		}
		q.turn(q.dev.now())
	}
}

// turn does what is due; it unlocks.
func (q *QP) turn(now transport.Time) {
	if q.todo.Swap(0)&todoCQError != 0 && q.attr.State != StateErr && q.attr.State != StateReset {
		q.attr.State = StateErr
		q.user.State = StateErr
		q.eng.Modified(now, 0)
		q.eng.Flush(now)
		(*host)(q).Raise(transport.EventQPFatal)
	}
	if q.timerAt != 0 && now >= q.timerAt {
		q.timerAt = 0
	}
	if d := q.eng.Deadline(); d != 0 && now >= d {
		q.eng.Timer(now)
	}
	if q.lookAt != 0 && now >= q.lookAt {
		q.lookAt = 0
		q.eng.Doorbell(now)
	}
	q.eng.Pump(now)
	q.leave(now, maxBursts)
}

// maxBursts bounds how many transmit lists one caller sends before the queue
// pair's goroutine takes over, so that a poster or the receive loop is not held.
const maxBursts = 4

// leave ends every call of the engine: it sets the timer, sends what was
// emitted, and unlocks. Only one goroutine at a time sends for a queue pair, with
// no lock held; the others leave their packets to it.
func (q *QP) leave(now transport.Time, bursts int) {
	if q.srq != nil && q.attr.State == StateErr && !q.lastWQE {
		q.lastWQE = true // once per entry to ERR: no more receives will be taken
		q.ctx.raise(AsyncEvent{Type: EventLastWQE, QP: q}, q.handler)
	}
	q.setTimer(now)
	if q.sending || q.tx.Len() == 0 {
		q.mu.Unlock()
		return
	}
	q.sending = true
	for ; q.tx.Len() > 0 && (bursts > 0 || q.dev.opts.Stepped); bursts-- {
		q.tx.Swap(&q.out)
		q.mu.Unlock()
		q.pkts = q.out.Resolve(q.pkts[:0], &q.scr)
		q.transmit()
		clear(q.pkts)
		q.mu.Lock()
		if q.dead {
			q.out.Release()
			q.tx.Release()
			break
		}
		now = q.dev.now()
		q.eng.Sent(now, &q.out)
		q.out.Release()
		if len(q.answers) > 0 {
			q.deliver(now)
		}
		q.eng.Pump(now)
		q.setTimer(now)
	}
	q.sending = false
	q.idle.Broadcast()
	more := q.tx.Len() > 0
	q.mu.Unlock()
	if more {
		q.poke()
	}
}

// transmit sends q.pkts; the flusher calls it, with no lock held.
func (q *QP) transmit() {
	switch q.typ {
	case RawPacket:
		q.dev.sendRaw(q.pkts)
	case SMI:
		q.local(q.pkts)
	default:
		q.dev.send(q.pkts)
	}
}

// ringLook is how often the queues of a queue pair in ERR are looked at when they are in
// rings: a receive that is posted rings no doorbell, and has to be flushed all the same.
const ringLook = transport.Time(5e6)

// setTimer has the goroutine woken at the engine's deadline. A timer that
// runs is moved only if it is late: most deadlines move on before they come.
func (q *QP) setTimer(now transport.Time) {
	d := q.eng.Deadline()
	if q.sendRing != nil && q.attr.State == StateErr {
		if q.lookAt == 0 {
			q.lookAt = now + ringLook
		}
		if d == 0 || q.lookAt < d {
			d = q.lookAt
		}
	}
	if d == 0 || q.dev.opts.Stepped || q.timerAt != 0 && q.timerAt <= d {
		return
	}
	q.timerAt = d
	wait := max(d-now, 0)
	if q.timer == nil {
		q.timer = q.dev.clock.AfterFunc(duration(wait), q.poke)
	} else {
		q.timer.Reset(duration(wait))
	}
}

// PostSend adds a send work request (ibv_post_send). The request and its lists
// are copied; the data is read until the completion.
func (q *QP) PostSend(wr *SendWR) error { return q.PostSendList(wr) }

// PostSendList adds several requests and rings one doorbell. The first that is
// refused ends it; those before it are posted.
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
// refused, and the requests stay where they are.
func (q *QP) Doorbell() error {
	q.mu.Lock()
	if err := q.takesSends(); err != nil {
		q.mu.Unlock()
		return &OpError{"post_send", qpName(q.num), err}
	}
	q.ring()
	return nil
}

// ring has the engine look at the send queue; it unlocks.
func (q *QP) ring() {
	switch q.attr.State {
	case StateRTS, StateErr, StateSQE:
		now := q.dev.now()
		q.eng.Doorbell(now)
		q.leave(now, maxBursts)
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
		if !transport.Segmented(wr.Op) || wr.Op == OpSendInv {
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
	if !rc.Asks(wr.Op) || q.attr.State != StateRTS {
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

// PostRecv adds a receive work request (ibv_post_recv). The request and its
// list are copied.
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
		q.leave(now, maxBursts)
		return nil
	}
	q.mu.Unlock()
	return nil
}

func (q *QP) checkRecv(wr *RecvWR) error {
	switch {
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

// host is a queue pair as its engine sees it.
type host QP

var _ transport.Host = (*host)(nil)

// SendDone implements transport.Host.
func (h *host) SendDone(wc *WC) {
	q := (*QP)(h)
	if wc.Status == StatusSuccess && wc.Op == WCSend {
		q.dev.counters.RDMASends.Inc()
	}
	if !q.scq.push(wc, false) {
		q.lost()
	}
}

func (q *QP) recvDone(wc *WC, solicited bool) bool { return q.rcq.push(wc, solicited) }

// lost has the queue pair enter ERR because its send completion queue was full.
func (q *QP) lost() {
	q.todo.Or(todoCQError)
	q.poke()
}

// Failed implements transport.Host.
func (h *host) Failed(s State) {
	q := (*QP)(h)
	q.dev.log.Debug("queue pair failed", "qp", q.num, "state", s.String())
	q.attr.State, q.user.State = s, s
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

// accept is what the device checks of a packet for this queue pair before the
// engine sees it.
func (q *QP) accept(v *wire.View) wire.Fault {
	b := v.BTH()
	switch q.typ {
	case RC, UC, XRCIni, XRCTgt:
		if b.Opcode().Service() == bth.CNP {
			return q.acceptCNP(v)
		}
		if !q.serves(b.Opcode(), v.Info) {
			return wire.WrongService
		}
		if !q.attr.State.Receives() {
			return wire.QPState
		}
		if p := q.attr.Path; p == nil || v.Src() != p.Dst || v.Dst() != p.Src {
			return wire.WrongPeer
		}
	case UD, GSI:
		if b.Opcode().Service() != bth.UD {
			return wire.WrongService
		}
	default: // SMI, RAW_PACKET: no RoCE packet is for them
		return wire.NoQP
	}
	if !pkeyMatch(b.PKey(), q.attr.PKey) {
		return wire.PKey
	}
	return wire.OK
}

// acceptCNP takes a congestion notification from the peer of a connection.
func (q *QP) acceptCNP(v *wire.View) wire.Fault {
	p := q.attr.Path
	switch {
	case v.BTH().Opcode() != bth.CNPNotify:
		return wire.Ignored
	case p == nil || v.Src() != p.Dst || v.Dst() != p.Src:
		return wire.WrongPeer
	}
	q.notified(q.dev.now())
	return wire.Ignored
}

// serves reports whether an opcode is of the service of a connection.
func (q *QP) serves(o bth.Opcode, i *bth.Info) bool {
	switch o.Service() {
	case bth.XRC:
		// A reserved opcode goes to the responder, which refuses it.
		return q.typ == XRCIni && i.Has(bth.Response) || q.typ == XRCTgt && !i.Has(bth.Response)
	case bth.RC:
		return q.typ == RC
	case bth.UC:
		return q.typ == UC
	}
	return q.typ == RC && !q.dev.opts.PlainAtomics && (o == bth.MaskedCompareSwap || o == bth.MaskedFetchAdd)
}

// DefaultPKey is the one entry of the P_Key table: the default partition, full member.
const DefaultPKey = 0xFFFF

// pkeyMatch compares partition keys: the same partition, and at least one of
// the two a full member (roce.md A.11).
func pkeyMatch(a, b uint16) bool { return (a^b)&0x7FFF == 0 && (a|b)&0x8000 != 0 }
