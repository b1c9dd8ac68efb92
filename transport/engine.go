package transport

import (
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// State is the state of a queue pair; values as enum ibv_qp_state.
type State uint8

// The states. Package device says what each means to a program.
const (
	Reset State = iota // nothing works
	Init               // receives are taken, and not used
	RTR                // ready to receive
	RTS                // ready to send
	SQD                // send queue drains, or is drained
	SQE                // send queue failed
	Err                // everything is flushed
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns the name as rdma-core prints it; "?" for a state that does not exist.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "?"
}

// Sends reports whether requests that have begun are sent.
func (s State) Sends() bool { return s == RTS || s == SQD }

// Receives reports whether inbound requests are processed.
func (s State) Receives() bool { return s >= RTR && s <= SQE }

// Event is an affiliated asynchronous event; values as enum ibv_event_type.
type Event uint8

// The events that engines raise, and EventSQDrained for them.
const (
	EventQPFatal     Event = 1 // a completion was lost
	EventQPReqErr    Event = 2 // a request of the peer that cannot be executed, and no receive tells of it
	EventQPAccessErr Event = 3 // the same, for memory that its key does not give
	EventCommEst     Event = 4 // the first packet in RTR
	EventSQDrained   Event = 5 // in SQD, what had begun is complete; the device raises it
)

// Attr is what an engine knows of its queue pair. The device writes it under
// the queue pair's lock and then calls Modified.
type Attr struct {
	State           State      // what the device set, or Host.Failed
	QPN             uint32     // the queue pair's own number, 24 bits
	DestQPN         uint32     // connected services: the peer's, 24 bits
	PathMTU         int        // bytes; for datagrams the port's active MTU, for raw packets the link's MTU
	SQPSN, RQPSN    bth.PSN    // first that is sent, and that is expected
	Timeout         uint8      // 0 ... 31; T = 4.096 µs · 2^Timeout, 0: no timer
	RetryCnt        uint8      // 0 ... 7
	RNRRetry        uint8      // 0 ... 7; 7: no limit
	MinRNRTimer     uint8      // timer code, 0 ... 31
	MaxRdAtomic     int        // initiator depth: requests in flight that have a response of their own
	MaxDestRdAtomic int        // responder depth, a power of two or 0
	Access          Access     // what the peer may ask for
	PKey            uint16     // of what is sent
	QKey            uint32     // datagrams: of what is received
	Path            *wire.Path // connected services
	SigAll          bool       // every send request is signaled
	MigReq          bool       // value of BTH.MigReq in what we send
	Rules           Rules      // reliable connections
}

// Rules are what adapters do differently on a reliable connection. The zero value is what the
// specification says.
type Rules struct {
	RetryForever bool // retry_cnt 7 never gives up
	AckEach      bool // every request that asks for an acknowledgement gets one of its own
	Credits      bool // acknowledgements carry credits, where the receive queue is not shared
	DropReserved bool // a reserved opcode is dropped instead of refused
	GoesOn       bool // a READ that is read again from its middle is answered with MIDDLE and LAST, as if it went on
	BadInvMSN    bool // a SEND that is to invalidate a key it cannot is acknowledged without being counted
}

// Changed says what a modify changed, as a set; engines need to know of these only. 0: nothing of these.
type Changed uint8

// The changes.
const (
	ChangedSQPSN Changed = 1 << iota // SQPSN
	ChangedRQPSN                     // RQPSN
	ChangedDepth                     // MaxDestRdAtomic
)

// Host is what an engine calls. The device implements it per queue pair; all calls
// happen under the queue pair's lock.
type Host interface {
	// Local looks up a local key for n bytes at va with the given right (0:
	// read), in the protection domain that receives of c belong to or, where c is nil, that
	// of the queue pair. The reference must be released.
	Local(c *RecvContext, lkey uint32, va uint64, n int, a Access) (Region, Status)
	// Names reports whether Local with this key, for reading and with c nil, would give mem, to which an access has begun and has not ended: then
	// it need not begin another. False may also be that it does not know.
	Names(lkey uint32, va uint64, n int, mem Region) bool
	// Remote looks up a remote key for n bytes at va with the given rights; false if it does not give them. The reference must be
	// released.
	Remote(rkey uint32, va uint64, n uint64, a Access) (Region, bool)
	// Invalidate ends the validity of a key of a window or a fast-registered region, for a
	// LOCAL_INV or, remote, for the peer's SEND with invalidate; false if that is not possible.
	Invalidate(key uint32, remote bool) bool
	// Bind binds a memory window, Register gives a region its memory; false if that is not
	// possible.
	Bind(b *BindWR) bool
	Register(r *RegWR) bool
	// FlushMemory makes n bytes at va of a remote key, or with FlushMR its whole region, visible
	// or persistent; false if the key does not allow it.
	FlushMemory(rkey uint32, va, n uint64, level FlushLevel, t FlushType) bool
	// PathOf returns the path and, for a datagram, nothing else of an address handle.
	PathOf(ah AddressHandle) *wire.Path
	// SendDone publishes a send completion.
	SendDone(wc *WC)
	// Raise raises an asynchronous event for this queue pair.
	Raise(e Event)
	// Failed has the queue pair enter ERR (or, for the send side of
	// datagrams, SQE): the state in Attr is set before it returns.
	Failed(s State)
}

// Engine is the state machine of one queue pair. It is created with its Attr,
// Host, TxList, queues; see the packages below.
type Engine interface {
	// Receive handles a packet that the device has checked: ICRC, addresses,
	// P_Key, service. It returns OK if the packet was of use, else why not.
	Receive(now Time, v *wire.View) wire.Fault
	// EndBurst ends a run of Receive calls: what was held back to be
	// coalesced is emitted.
	EndBurst(now Time)
	// Doorbell says that the send queue, or in ERR any queue, has new requests.
	Doorbell(now Time)
	// Timer says that the deadline has come (or not: early calls are harmless).
	Timer(now Time)
	// Deadline returns when Timer must be called, 0 for never.
	Deadline() Time
	// Pump emits what was held back by the length of the transmit list; true when
	// there is more after that.
	Pump(now Time) (more bool)
	// Sent says that the packets of a transmit list have left.
	Sent(now Time, l *TxList)
	// Modified says that the device has changed Attr.
	Modified(now Time, c Changed)
	// Drained reports whether no request of the send queue has begun and not completed. In SQD none begins: what has begun
	// ends as ever, with its retries, and the others stay where they are.
	Drained() bool
	// Outstanding returns how many requests were sent and wait for an answer; 0 for services without one.
	Outstanding() int
	// Flush completes all requests with a flush error; the state is ERR.
	Flush(now Time)
	// FlushSends does so for the send queue alone; the state is SQE.
	FlushSends(now Time)
	// Reset forgets everything; the state is RESET.
	Reset()
}
