package rules

// ID is the place of a rule in the table.
type ID uint8

// The rules.
const (
	Format ID = iota
	ICRC
	Pad
	PSNContiguous
	OpcodeSequence
	MessageLength
	GBNSender
	RetransmissionSame
	ReadResume
	Depth
	AckTimeout
	RetryCount
	RNRWait
	ResponseRange
	ResponseKind
	AckMonotonic
	AckOrder
	NakFirstMissing
	NakOncePerGap
	RNRSilence
	MSN
	ReadResponseSequence
	ReadResponseLength
	DuplicateAnswer
	CNPFormat
	CNPPacing
	Timestamps

	Count // number of rules
)

// Rule is a row of the table: what a sender owes.
type Rule struct {
	Name   string // stable: reports, lists of deviations and tests go by it
	Text   string
	Source string // IBTA Vol 1 chapter 9 by topic, a check of Lumina, or the lab
}

// Table holds all rules, by ID.
var Table = [Count]Rule{
	Format: {"format", "a packet's opcode is assigned, its headers fit in it, TVer is 0, its AETH syndrome is not reserved",
		"IBTA ch. 9, headers; roce.md A.2 to A.5"},
	ICRC: {"icrc", "the invariant CRC is right", "IBTA annex A17; kernel rxe_icrc.c"},
	Pad:  {"pad", "PadCnt fills the payload up to four bytes, and the pad is zero", "IBTA ch. 9, BTH; roce.md A.5"},
	PSNContiguous: {"psn-contiguous", "a new request packet has the PSN after that of the one before it",
		"IBTA 9.7.1; Lumina gbn_check (never an unasked gap)"},
	OpcodeSequence: {"opcode-sequence", "a message is FIRST MIDDLE… LAST or ONLY, of one kind", "IBTA ch. 9, requester; roce.md A.5"},
	MessageLength: {"message-length", "FIRST and MIDDLE carry one path MTU, LAST and ONLY at most that; a WRITE carries what its RETH says; READ and atomic requests carry nothing",
		"IBTA ch. 9, packet lengths; roce.md A.5"},
	GBNSender: {"gbn-sender", "sending again begins at the oldest unanswered PSN (after a NAK: at the one it names) and goes on in order",
		"Lumina gbn_check; roce.md B.8"},
	RetransmissionSame: {"retransmission-same", "a request sent again has the opcode, headers and payload of the first time", "IBTA ch. 9, retries; trace-rules.md"},
	ReadResume: {"read-resume", "a READ asked for again from a PSN in its middle has the address and length of what is missing from there on",
		"Lumina read_gbn_check; roce.md B.8"},
	Depth:      {"depth", "no more READs and atomics unanswered than the depth that was agreed", "IBTA ch. 9, responder resources; roce.md B.2"},
	AckTimeout: {"ack-timeout", "without a NAK, sending again waits for the local ACK timeout: not before T, not after 4T", "IBTA 9.7.6.1.3; Lumina timeout check"},
	RetryCount: {"retry-count", "a request is sent again at most retry_cnt times without progress", "IBTA ch. 9, retry counter; roce.md B.8"},
	RNRWait:    {"rnr-wait", "after an RNR NAK the requester is silent for at least the time that it names", "IBTA ch. 9, RNR NAK; roce.md B.9"},
	ResponseRange: {"response-range", "a response has the PSN of a request that has arrived; one of a READ lies in the READ's range",
		"IBTA ch. 9, responses; rxe-lab.md S5"},
	ResponseKind: {"response-kind", "SEND and WRITE are answered by ACKs, READs by READ responses, atomics by atomic ACKs, FLUSH and ATOMIC WRITE by an empty READ response; each may be by a NAK",
		"IBTA ch. 9, responses; rxe-lab.md C1"},
	AckMonotonic: {"ack-monotonic", "acknowledgements never go back", "Lumina, GBN receiver"},
	AckOrder:     {"ack-order", "no response passes an earlier READ response or atomic ACK", "IBTA ch. 9, ordering of responses; trace-rules.md"},
	NakFirstMissing: {"nak-first-missing", "a sequence NAK names exactly the first missing PSN, and something behind it has arrived",
		"Lumina, GBN receiver; roce.md B.5"},
	NakOncePerGap: {"nak-once-per-gap", "one sequence NAK per gap until the missing packet comes", "Lumina, GBN receiver; roce.md B.5"},
	RNRSilence:    {"rnr-silence", "after an RNR NAK the responder is silent until the PSN it named comes again", "roce.md B.5; trace-rules.md"},
	MSN:           {"msn", "the MSN counts completed messages and never goes back", "IBTA ch. 9, MSN; roce.md B.6"},
	ReadResponseSequence: {"read-response-sequence", "READ responses are FIRST MIDDLE… LAST or ONLY, in order, beginning where the READ was asked for (again)",
		"Lumina read_gbn_check; rxe-lab.md C4"},
	ReadResponseLength: {"read-response-length", "READ responses carry one path MTU each, the last one the rest", "IBTA ch. 9, packet lengths; roce.md A.5"},
	DuplicateAnswer:    {"duplicate-answer", "a repeated atomic is not executed again: its answer has the value of the first", "IBTA ch. 9, duplicate atomics; roce.md B.5"},
	CNPFormat:          {"cnp-format", "a CNP has BECN, PSN 0, no AckReq, SE or pad, and 16 zero bytes", "IBTA annex A17; roce.md A.5"},
	CNPPacing:          {"cnp-pacing", "at most one CNP per packet that was CE-marked, and not sooner than the interval after the one before, by the mode of the adapter", "Lumina cnp_check"},
	Timestamps:         {"timestamps", "the packets of an interface go forward in time", "trace-rules.md, integrity of the capture"},
}

// String returns the rule's name.
func (i ID) String() string {
	if i < Count {
		return Table[i].Name
	}
	return "rule?"
}
