// Package stats counts. Counters are plain atomics with the names that the
// RDMA world knows: those of rdma_rxe (roce.md C.2, kernel rxe_hw_counters.c)
// and of mlx5 where the meaning is the same, and one per reason of a drop.
//
// The device and the links count, the program shows. It imports nothing of
// softnic and never formats more than a name.
package stats

import "sync/atomic"

// Counter is one number that only grows. The zero value is ready.
type Counter struct{ v atomic.Uint64 }

// Inc adds one.
func (c *Counter) Inc() { c.v.Add(1) }

// Add adds n, which is not below 0.
func (c *Counter) Add(n int) { c.v.Add(uint64(n)) }

// Load returns the value.
func (c *Counter) Load() uint64 { return c.v.Load() }

// Value is a named reading: Name is that of a counter, with words in lower case and underlines between them.
type Value struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// ID names a counter. Its String is the name that tools show.
type ID uint8

// The counters, in the order in which they are shown.
const (
	// As rdma_rxe names them (rxe_hw_counters.c).
	SentPkts         ID = iota // all, acknowledgements too
	RcvdPkts                   // all, what is dropped too; what a rule holds back is there when it goes on
	DuplicateRequest           // requests that were executed before
	OutOfSeqRequest            // NAKs sent for a gap
	RcvdRNRErr                 // RNR NAKs
	SendRNRErr
	RcvdSeqErr          // NAKs for a gap
	RetryExceededErr    // requests given up
	RetryRNRExceededErr // requests given up after RNR NAKs
	CompleterRetryErr   // times that a requester went back
	SendErr             // bursts that the link did not take
	LinkDowned          // times that the port went down
	RDMASends           // SENDs that completed with success
	RDMARecvs           // receives that were filled or used up

	// As mlx5 names them.
	PacketSeqErr       // sequence NAKs received
	ImpliedNakSeqErr   // answers behind a missing one
	LocalAckTimeoutErr // times that the ACK timer ran out
	RNRNakRetryErr     // RNR NAKs that were waited for
	OutOfBuffer        // requests that found no receive
	RxReadRequests     // requests that were executed, not their packets
	RxWriteRequests
	RxAtomicRequests
	ReqCqeError        // completions with an error, of send requests
	RespCqeError       // of receives
	RxICRCEncapsulated // wrong ICRC
	NpEcnMarked        // packets marked on their way
	NpCnpSent          // CNPs for them
	RpCnpHandled       // CNPs that came
	RpCnpIgnored

	// softnic's own.
	SentBytes // UDP payload
	RcvdBytes
	UDOversize // datagrams above the MTU: completed, not sent
	RNRLoop    // RNR NAKs beyond the hundredth in a row to one request
	LateAck    // stale responses
	RawSent    // frames of raw packet queue pairs
	RawRcvd
	MadAnswered // performance management that the device itself answered
	MadDropped  // and did not: too many, or nobody could get the answer

	IDs // number of counters
)

var names = [IDs]string{
	SentPkts:            "sent_pkts",
	RcvdPkts:            "rcvd_pkts",
	DuplicateRequest:    "duplicate_request",
	OutOfSeqRequest:     "out_of_seq_request",
	RcvdRNRErr:          "rcvd_rnr_err",
	SendRNRErr:          "send_rnr_err",
	RcvdSeqErr:          "rcvd_seq_err",
	RetryExceededErr:    "retry_exceeded_err",
	RetryRNRExceededErr: "retry_rnr_exceeded_err",
	CompleterRetryErr:   "completer_retry_err",
	SendErr:             "send_err",
	LinkDowned:          "link_downed",
	RDMASends:           "rdma_sends",
	RDMARecvs:           "rdma_recvs",
	PacketSeqErr:        "packet_seq_err",
	ImpliedNakSeqErr:    "implied_nak_seq_err",
	LocalAckTimeoutErr:  "local_ack_timeout_err",
	RNRNakRetryErr:      "rnr_nak_retry_err",
	OutOfBuffer:         "out_of_buffer",
	RxReadRequests:      "rx_read_requests",
	RxWriteRequests:     "rx_write_requests",
	RxAtomicRequests:    "rx_atomic_requests",
	ReqCqeError:         "req_cqe_error",
	RespCqeError:        "resp_cqe_error",
	RxICRCEncapsulated:  "rx_icrc_encapsulated",
	NpEcnMarked:         "np_ecn_marked_roce_packets",
	NpCnpSent:           "np_cnp_sent",
	RpCnpHandled:        "rp_cnp_handled",
	RpCnpIgnored:        "rp_cnp_ignored",
	SentBytes:           "sent_bytes",
	RcvdBytes:           "rcvd_bytes",
	UDOversize:          "ud_oversize",
	RNRLoop:             "rnr_loop",
	LateAck:             "late_ack",
	RawSent:             "raw_sent",
	RawRcvd:             "raw_rcvd",
	MadAnswered:         "mad_answered",
	MadDropped:          "mad_dropped",
}

// String returns the counter's name.
func (id ID) String() string {
	if id < IDs {
		return names[id]
	}
	return "counter?"
}

// ofDevice are the counters that have no value for a queue pair: nobody is to blame.
var ofDevice = [IDs]bool{LinkDowned: true, RxICRCEncapsulated: true, MadAnswered: true, MadDropped: true}

// Counters are those of a device, or of one of its queue pairs, which count for the device as well. NewCounters makes
// them; all methods may be called at any time, from anywhere.
type Counters struct {
	device *Counters // nil: these are the device's
	count  [IDs]Counter
	drops  []Counter
}

// NewCounters returns counters with so many reasons for drops. With device they are those of a queue
// pair of it.
func NewCounters(reasons int, device *Counters) *Counters {
	return &Counters{device: device, drops: make([]Counter, reasons)}
}

// Inc adds one, for the device too.
func (c *Counters) Inc(id ID) { c.Add(id, 1) }

// Add adds n, for the device too.
func (c *Counters) Add(id ID, n int) {
	c.count[id].Add(n)
	if c.device != nil {
		c.device.count[id].Add(n)
	}
}

// AddOwn adds n, and nothing for the device: a multicast packet comes to it once, and to several queue pairs.
func (c *Counters) AddOwn(id ID, n int) { c.count[id].Add(n) }

// Drop counts a packet that was dropped for a reason, for the device too.
func (c *Counters) Drop(reason int) {
	c.drops[reason].Inc()
	if c.device != nil {
		c.device.drops[reason].Inc()
	}
}

// DropOwn is Drop without the device.
func (c *Counters) DropOwn(reason int) { c.drops[reason].Inc() }

// Load returns the value of a counter.
func (c *Counters) Load(id ID) uint64 { return c.count[id].Load() }

// Drops returns how many packets were dropped for a reason.
func (c *Counters) Drops(reason int) uint64 { return c.drops[reason].Load() }

// Values lists the counters in the order of their IDs, without those that mean nothing for a queue pair where they are of
// one; behind them the drops, named by name as "drop_<name>". Reasons that it names "" are left out.
func (c *Counters) Values(dropName func(i int) string) []Value {
	v := make([]Value, 0, int(IDs)+len(c.drops))
	for id := range IDs {
		if c.device == nil || !ofDevice[id] {
			v = append(v, Value{id.String(), c.Load(id)})
		}
	}
	for i := range c.drops {
		if n := dropName(i); n != "" {
			v = append(v, Value{"drop_" + n, c.drops[i].Load()})
		}
	}
	return v
}
