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

// Device holds the counters of a device and its port. The zero value is ready, but for Drops. RoCE packets are counted unless
// the comment says otherwise.
type Device struct {
	// As rdma_rxe names them (rxe_hw_counters.c). SentPkts and RcvdPkts: all, acknowledgements and what is dropped too.
	// DuplicateRequest: requests that were executed before. OutOfSeqRequest: NAKs that were sent for a gap.
	// RcvdRNRErr, SendRNRErr: RNR NAKs. RcvdSeqErr: NAKs for a gap. RetryExceededErr, RetryRNRExceededErr: requests given up.
	// CompleterRetryErr: times that a requester went back. SendErr: bursts that the link did not take. LinkDowned: times that the
	// port went down. RDMASends, RDMARecvs: SENDs that completed, and receives that were filled or used up, without errors.
	SentPkts, RcvdPkts                     Counter
	DuplicateRequest, OutOfSeqRequest      Counter
	RcvdRNRErr, SendRNRErr, RcvdSeqErr     Counter
	RetryExceededErr, RetryRNRExceededErr  Counter
	CompleterRetryErr, SendErr, LinkDowned Counter
	RDMASends, RDMARecvs                   Counter
	// As mlx5 names them. LocalAckTimeoutErr: times that the ACK timer ran out. RNRNakRetryErr: RNR NAKs that were waited for.
	// RxReadRequests, RxWriteRequests, RxAtomicRequests: requests that were executed, not their packets. ReqCqeError, RespCqeError:
	// completions of sends and of receives with a status other than success and flush.
	PacketSeqErr, ImpliedNakSeqErr     Counter // NAKs and gaps seen by the requester
	LocalAckTimeoutErr, RNRNakRetryErr Counter
	OutOfBuffer                        Counter // requests that found no receive
	RxReadRequests, RxWriteRequests    Counter
	RxAtomicRequests                   Counter
	ReqCqeError, RespCqeError          Counter
	RxICRCEncapsulated                 Counter // wrong ICRC
	NpEcnMarked, NpCnpSent             Counter // packets marked on their way; CNPs for them
	RpCnpHandled, RpCnpIgnored         Counter // CNPs that came
	// softnic's own
	SentBytes, RcvdBytes Counter // UDP payload
	UDOversize           Counter // datagrams above the MTU: completed, not sent
	RNRLoop              Counter // RNR NAKs beyond the hundredth in a row to one request
	LateAck              Counter // stale responses
	RawSent, RawRcvd     Counter // frames of raw packet queue pairs
	MadAnswered          Counter // performance management that the device itself answered
	MadDropped           Counter // and did not: too many, or nobody could get the answer

	Drops []Counter // packets that were not taken, by reason; the owner makes and names them
}

// Values lists the counters in a fixed order, drops as "drop_" and what dropName says of the reason; one that it calls "" is left out.
func (d *Device) Values(dropName func(i int) string) []Value {
	v := []Value{
		{"sent_pkts", d.SentPkts.Load()}, {"rcvd_pkts", d.RcvdPkts.Load()},
		{"duplicate_request", d.DuplicateRequest.Load()}, {"out_of_seq_request", d.OutOfSeqRequest.Load()},
		{"rcvd_rnr_err", d.RcvdRNRErr.Load()}, {"send_rnr_err", d.SendRNRErr.Load()},
		{"rcvd_seq_err", d.RcvdSeqErr.Load()},
		{"retry_exceeded_err", d.RetryExceededErr.Load()}, {"retry_rnr_exceeded_err", d.RetryRNRExceededErr.Load()},
		{"completer_retry_err", d.CompleterRetryErr.Load()}, {"send_err", d.SendErr.Load()},
		{"link_downed", d.LinkDowned.Load()}, {"rdma_sends", d.RDMASends.Load()}, {"rdma_recvs", d.RDMARecvs.Load()},
		{"packet_seq_err", d.PacketSeqErr.Load()}, {"implied_nak_seq_err", d.ImpliedNakSeqErr.Load()},
		{"local_ack_timeout_err", d.LocalAckTimeoutErr.Load()}, {"rnr_nak_retry_err", d.RNRNakRetryErr.Load()},
		{"out_of_buffer", d.OutOfBuffer.Load()},
		{"rx_read_requests", d.RxReadRequests.Load()}, {"rx_write_requests", d.RxWriteRequests.Load()},
		{"rx_atomic_requests", d.RxAtomicRequests.Load()},
		{"req_cqe_error", d.ReqCqeError.Load()}, {"resp_cqe_error", d.RespCqeError.Load()},
		{"rx_icrc_encapsulated", d.RxICRCEncapsulated.Load()},
		{"np_ecn_marked_roce_packets", d.NpEcnMarked.Load()}, {"np_cnp_sent", d.NpCnpSent.Load()},
		{"rp_cnp_handled", d.RpCnpHandled.Load()}, {"rp_cnp_ignored", d.RpCnpIgnored.Load()},
		{"sent_bytes", d.SentBytes.Load()}, {"rcvd_bytes", d.RcvdBytes.Load()},
		{"ud_oversize", d.UDOversize.Load()}, {"rnr_loop", d.RNRLoop.Load()}, {"late_ack", d.LateAck.Load()},
		{"raw_sent", d.RawSent.Load()}, {"raw_rcvd", d.RawRcvd.Load()},
		{"mad_answered", d.MadAnswered.Load()}, {"mad_dropped", d.MadDropped.Load()},
	}
	for i := range d.Drops {
		if n := dropName(i); n != "" {
			v = append(v, Value{"drop_" + n, d.Drops[i].Load()})
		}
	}
	return v
}
