package wire

// Fault is the reason why a received packet was not accepted. The zero value
// means accepted. Its String is the name of the drop counter, of the log field
// and of the capture comment.
type Fault uint8

// The faults, in the order in which the receive path looks for them. The
// first block is found by the codec, the second by the device, the third by the
// engines.
const (
	OK Fault = iota

	NotRoCE          // not UDP to the RoCE port: another program's packet
	Malformed        // cut off, or lengths that contradict each other
	Fragment         // an IP fragment
	IPChecksum       // wrong IPv4 header checksum
	UDPChecksum      // wrong UDP checksum (0 is no checksum)
	ReservedOpcode   // the opcode is not assigned
	TransportVersion // BTH TVer is not 0
	ICRC             // wrong invariant CRC

	NoAddress    // destination address is not in the GID table, nor a group that a queue pair is attached to
	NoQP         // no such queue pair, or QP 0
	WrongService // the opcode's service is not that of the queue pair
	QPState      // the queue pair is not in a state that takes the packet
	WrongPeer    // addresses are not those of the connection
	PKey         // partition key does not match
	QKey         // queue key does not match

	NoReceive         // no receive work request (datagrams)
	TooLong           // datagram longer than the receive work request
	LocalMemory       // the receive buffer could not be written (datagrams)
	Duplicate         // request PSN before the expected one
	OutOfSequence     // request PSN after the expected one
	DuplicateUnserved // duplicate READ or atomic that no saved resource answers
	NotReady          // answered with an RNR NAK
	BadRequest        // answered with a NAK other than sequence or RNR
	BadMessage        // against the rules, on a service that does not answer
	GhostResponse     // response to a PSN that was never sent
	StaleResponse     // response to a PSN that is answered already
	EarlyResponse     // response behind a gap: implied NAK
	BadResponse       // response that its request cannot have
	Ignored           // valid, and of no use here
	Impaired          // dropped or held back on purpose by link/impair

	Faults // number of faults
)

var faultNames = [Faults]string{
	"ok", "not-roce", "malformed", "fragment", "ip-checksum", "udp-checksum", "reserved-opcode",
	"transport-version", "icrc", "no-address", "no-qp", "wrong-service", "qp-state", "wrong-peer",
	"pkey", "qkey", "no-receive", "too-long", "local-memory", "duplicate", "out-of-sequence",
	"duplicate-unserved", "not-ready", "bad-request", "bad-message", "ghost-response", "stale-response",
	"early-response", "bad-response", "ignored", "impaired",
}

// String returns the fault's name, lower case with hyphens.
func (f Fault) String() string {
	if f < Faults {
		return faultNames[f]
	}
	return "fault?"
}
