package device

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/dgram"
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
	SMI       QPType = 0  // QP0: datagrams of subnet management with the device itself
	GSI       QPType = 1  // QP1: datagrams of general management
	RC        QPType = 2  // reliable connection
	UC        QPType = 3  // unreliable connection
	UD        QPType = 4  // unreliable datagram
	RawPacket QPType = 8  // Ethernet frames
	XRCIni    QPType = 9  // XRC, the side that sends
	XRCTgt    QPType = 10 // XRC, the side that receives into the shared receive queue that a request names
)

var qpTypeNames = map[QPType]string{SMI: "SMI", GSI: "GSI", RC: "RC", UC: "UC", UD: "UD", RawPacket: "RAW_PACKET", XRCIni: "XRC_INI", XRCTgt: "XRC_TGT"}

// String returns the name as `rdma resource show` prints it; "" for a type that is none of these.
func (t QPType) String() string { return qpTypeNames[t] }

// Cap is the capacity of a queue pair (ibv_qp_cap). In the zero value nothing can be posted.
type Cap struct {
	SendWR, RecvWR   int // work requests that have not ended, 0 ... MaxQPWR; RecvWR is not looked at where there is an SRQ
	SendSGE, RecvSGE int // entries of one work request, 0 means 1, at most MaxSGE
	Inline           int // bytes of inline data, 0 ... MaxInline
}

// QPInit says what a queue pair is to be (ibv_qp_init_attr).
type QPInit struct {
	Type           QPType           // the service; not XRCTgt. The zero value is SMI
	SendCQ, RecvCQ *CQ              // where its requests complete, perhaps the same; RecvCQ is nil for XRCIni
	Cap            Cap              // how much can be posted
	XRCD           *XRCD            // not looked at: CreateXRCTarget sets it
	SRQ            *SRQ             // receives come from it instead of a queue of its own; nil: none
	SigAll         bool             // every send request makes a completion (sq_sig_all); else those with Signaled
	Steer          Steering         // RAW_PACKET: what it receives
	Handler        func(AsyncEvent) // called for its events (event_handler); nil: they go to the context's list

	// BlockSelfMulticast keeps what the queue pair sends to a multicast group from itself, if it is attached
	// (IBV_QP_CREATE_BLOCK_SELF_MCAST_LB). Others on the device hear it.
	BlockSelfMulticast bool

	// SendRing and RecvRing are queues in memory that a program shares, instead of those
	// that PostSend and PostRecv fill. Both or none are set; with an SRQ, RecvRing is nil.
	SendRing SendRing
	RecvRing RecvRing
	// StateChanged hears of every new state, at once and under the queue pair's lock: it must not
	// block or call the device.
	StateChanged func(State)
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
	// Clear is that of SendRing.
	Clear()
}

// QP is a queue pair (ibv_qp): a send queue and a receive queue with a service, and what it knows of its peer.
type QP struct {
	dev         *Device
	ctx         *Context
	pd          *PD
	typ         QPType
	num         uint32
	counters    *stats.Counters
	scq, rcq    *CQ
	cap         Cap
	handler     func(AsyncEvent)
	changed     func(State) // QPInit.StateChanged
	recv        transport.RecvContext
	sendRing    SendRing             // nil: sq
	recvRing    RecvRing             // nil: rq, or srq
	srq         *SRQ                 // nil: none
	xrcd        *XRCD                // XRC_TGT
	windows     int                  // memory windows that it has bound; the key table's lock guards it
	slowDown    func(transport.Time) // rate hook: hears of congestion notifications; nil, for nothing slows down yet
	cnpWaits    bool                 // a congestion notification is on the transmit list or with the flusher
	cnpPath     *wire.Path           // of the last notification that was sent
	lastWQE     bool                 // the event was raised since it entered ERR
	draining    bool                 // in SQD: requests that were begun are not complete
	tellDrained bool                 // with an event
	notSelf     bool                 // it does not hear what it sends to a multicast group
	groups      groupSet             // that it is attached to; mcast.change is held too where it changes

	mu                     sync.Mutex // first in the lock order
	idle                   sync.Cond  // flushing has ended
	attr                   transport.Attr
	user                   QPAttr // what modify was given, for query
	eng                    transport.Engine
	sq                     sendRing
	rq                     recvRing
	tx                     transport.TxList // emitted, not sent
	lastLocal, lastRemote  lastKey
	dead                   bool
	gotPKey                uint16    // GSI: index of the P_Key of what is being received
	warned                 bool      // of a mistake of the peer, once
	sendBudget, recvBudget int       // see spend
	sending                bool      // one flusher: it sends what others emit meanwhile
	told                   bool      // the engine knows already that it has sent them, see sentEarly
	held                   bool      // the receiver has been told that there is something to send, see receiver.hold
	quiet                  bool      // the receiver looks at sendRing
	rungAt                 time.Time // the last doorbell for it
	fetches                uint32    // from it, so far

	copied atomic.Bool // the link does not need what is being sent any more

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
	gone    chan struct{} // closed when Destroy is over
}

// What other objects ask of a queue pair's goroutine.
const (
	todoCQError uint32 = 1 << iota // a completion was lost
	todoMore                       // the engine has not seen all of its queues
)

// CreateQP makes a queue pair in state RESET (ibv_create_qp), with a random number from 0x10 on. An XRC initiator has no
// receive queue, and RecvCQ is nil. EINVAL: a completion queue that is missing, a value of Cap out of its range, an SRQ of an
// XRC domain, a second SMI or GSI, XRCTgt, a Steering that cannot be, rings for one queue alone, more than MaxQP on the device.
// EOPNOTSUPP: another type, or RawPacket on a link without Ethernet. ENOSPC: more than MaxRawQP.
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
		dev: c.dev, ctx: c, pd: pd, typ: in.Type, scq: in.SendCQ, rcq: in.RecvCQ, cap: in.Cap, handler: in.Handler, changed: in.StateChanged,
		sendRing: in.SendRing, recvRing: in.RecvRing, srq: in.SRQ, xrcd: in.XRCD,
		counters: stats.NewCounters(int(wire.Faults), c.dev.counters),
		wake:     make(chan struct{}, 1), done: make(chan struct{}), gone: make(chan struct{}),
	}
	q.idle.L = &q.mu
	q.recv = transport.RecvContext{Queue: (*recvSide)(q), Done: q.recvDone}
	sends := (*sendSide)(q)
	q.refill()
	if in.SendRing == nil {
		q.sq.slot, q.rq.slot = make([]SendWR, in.Cap.SendWR), make([]RecvWR, in.Cap.RecvWR)
	}
	if in.SRQ != nil {
		q.recv.Queue, q.recv.Shared, q.recv.Domain = in.SRQ, true, in.SRQ.pd
	}
	q.attr.SigAll, q.notSelf = in.SigAll, in.BlockSelfMulticast
	q.attr.MigReq, q.attr.Rules = c.dev.profile.MigReq, c.dev.profile.Rules
	q.attr.PKey = c.dev.pkeys[0]
	switch in.Type {
	case RC, XRCIni, XRCTgt:
		cfg := rc.Config{Service: bth.RC, Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: q.counters, Share: &c.dev.share}
		if in.Type != RC {
			cfg.Service = bth.XRC
		}
		if in.Type == XRCTgt {
			cfg.Recv, cfg.Select, cfg.Enter = nil, q.selectSRQ, q.enter
		}
		q.eng = rc.New(cfg)
	case UC:
		q.eng = uc.New(uc.Config{Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: q.counters})
	case UD, GSI, SMI:
		q.eng = ud.New(dgram.Config{Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: q.counters}, in.Type == GSI)
		q.paths = map[*AH]*wire.Path{}
	case RawPacket:
		q.eng = raw.New(dgram.Config{Attr: &q.attr, Host: (*host)(q), Tx: &q.tx, SQ: sends, Recv: &q.recv, Counters: q.counters})
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
		if in.SRQ != nil && in.SRQ.init.XRCD != nil { // uverbs_cmd.c:create_qp
			return because(EINVAL, "%s is for XRC targets", in.SRQ.name())
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
	k, leastRecv := &in.Cap, 1
	if in.SRQ != nil || in.Type == XRCIni {
		leastRecv = 0 // there is no receive queue
	}
	for _, v := range []struct {
		name    string
		val     *int
		least   int
		highest int
	}{
		{"max_send_wr", &k.SendWR, 0, MaxQPWR}, {"max_recv_wr", &k.RecvWR, 0, MaxQPWR},
		{"max_send_sge", &k.SendSGE, 1, MaxSGE}, {"max_recv_sge", &k.RecvSGE, leastRecv, MaxSGE},
		{"max_inline_data", &k.Inline, 0, MaxInline},
	} {
		if *v.val < 0 || *v.val > v.highest {
			return because(EINVAL, "%s %d: 0 ... %d are possible", v.name, *v.val, v.highest)
		}
		*v.val = max(*v.val, v.least)
	}
	return nil
}

// Num returns the queue pair number, 24 bits: 0 for SMI, 1 for GSI. After Destroy another queue pair may get it.
func (q *QP) Num() uint32 { return q.num }

// Type returns the service.
func (q *QP) Type() QPType { return q.typ }

// State returns the state; RESET when the queue pair is destroyed.
func (q *QP) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attr.State
}

// Statistics lists the queue pair's counters by name, from its creation on: those of [Device.Statistics] that have a
// meaning for one queue pair. What it counts the device counts as well, but for a multicast packet, which
// comes to the device once. Packets with a wrong ICRC, and others that never got to a queue pair, are the device's alone.
func (q *QP) Statistics() []stats.Value { return q.counters.Values(dropName) }

// Destroy stops the queue pair and frees it (ibv_destroy_qp), in any state. Requests that are outstanding make
// no completions, and those that nobody has polled are removed; what is in a CompletionRing stays. EBUSY: it is attached to a multicast
// group. EINVAL: it is destroyed already. No event of it comes afterwards; a Handler that runs meanwhile ends later.
func (q *QP) Destroy() error { return q.destroy(false) }

// destroy is Destroy. With its context a queue pair goes even while it is attached to a multicast group.
func (q *QP) destroy(force bool) error {
	q.mu.Lock()
	q.farewell()
	if q.dead {
		q.mu.Unlock()
		if force {
			<-q.gone // the context's end waits for whoever is at it
		}
		return &OpError{"destroy_qp", qpName(q.num), because(EINVAL, "it is destroyed already")}
	}
	if n := len(q.groups); n > 0 && !force {
		q.mu.Unlock()
		return &OpError{"destroy_qp", qpName(q.num), because(EBUSY, "multicast groups that it is attached to: %d", n)}
	}
	q.dead = true
	if q.quiet {
		q.dev.rx.bells.remove(q)
	}
	defer close(q.gone)
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
	q.dev.keys.unbindAll(q)
	q.poke()
	<-q.done
	q.scq.purge(q.num)
	q.rcq.purge(q.num)
	q.dev.removeQP(q) // another may have its number from now on
	c := q.ctx
	c.async.withdraw(func(e AsyncEvent) bool { return e.QP == q })
	c.dev.dispatch.withdraw(func(f call) bool { return f.of == q })
	c.mu.Lock()
	delete(c.qps, q)
	q.count(-1) // with the lock: Close, which does not find the queue pair any more, must not find its queues in use
	c.mu.Unlock()
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
