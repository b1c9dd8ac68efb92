package link

import (
	"time"

	"github.com/softnic/softnic/wire"
)

// Sink takes a record of every packet that passes a port, or does not:
// capture files, packet logs, tests.
//
// Capture is called from the sending and the receiving goroutines at once, with
// a lock of the port held: it must not block for long and must not call the port.
// The record and all that it points to are valid only during the call.
type Sink interface {
	// Capture takes a record.
	Capture(r *Record)
}

// OrderedSink is a Sink that wants records in the order of time, and so has to know which are still to come: those of a batch
// that has arrived come when it has been handled, behind those of what was sent because of it, and those of a send when it has ended.
type OrderedSink interface {
	Sink
	// Arrived says that records are to come that are not older than when; Handled, with the same time, that all of them
	// have come. Calls for several batches and sends may overlap. Handled may come without its Arrived, from the time before the sink was there.
	Arrived(when time.Time)
	Handled(when time.Time)
}

// Direction says which way a packet went.
type Direction uint8

// The directions, seen from the device.
const (
	Tx Direction = iota // sent, or to be sent
	Rx                  // received
)

// Record is one packet as a port saw it. Its bytes are Eth, Net, Head and Tail
// in this order.
type Record struct {
	When  time.Time  // when it was handed to the endpoint, or when it arrived
	Dir   Direction  // which way it went or would have gone
	Fault wire.Fault // OK; why it was dropped; Impaired: dropped or held back on purpose
	Cause wire.Cause // why it was sent; Tx only
	Round int        // how often its PSN was sent before; Tx only
	QPN   uint32     // queue pair of the device that sent it or that it names; 0: none
	Note  string     // the impairment rule that touched it, or other words for people; mostly empty

	Eth  []byte // Ethernet header, empty where the link has none
	Net  []byte // IP and UDP header; all bytes of a packet that could not be parsed
	Head []byte // from the BTH to the ICRC
	Tail []byte // bytes behind the IP packet (Rx); all of a frame that was sent as it is
}

// Len returns the length of the record's packet in bytes.
func (r *Record) Len() int { return len(r.Eth) + len(r.Net) + len(r.Head) + len(r.Tail) }

// AppendTo appends the packet's bytes, Len of them, to dst.
func (r *Record) AppendTo(dst []byte) []byte {
	dst = append(dst, r.Eth...)
	dst = append(dst, r.Net...)
	dst = append(dst, r.Head...)
	return append(dst, r.Tail...)
}
