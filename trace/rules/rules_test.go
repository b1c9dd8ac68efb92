package rules

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Traces that keep all rules, and traces with one fault each: the checker finds it at its
// packet, under its rule, and nothing else.
type scriptCase struct {
	name  string
	from  string // "A": captured at the requester; default: "AB"
	o     Options
	lines string
	want  string // broken, "rule:packet ..."
	kept  string // rules that must have been kept
	unk   string // rules that must be unknown at least once
}

// requestCases are traces for the rules on single packets, of requesters and of READ.
var requestCases = []scriptCase{
	{name: "messages", kept: "psn-contiguous opcode-sequence message-length msn ack-monotonic pad icrc format response-range response-kind", lines: `
		A> SEND_ONLY 100 7 ar
		B> ACK 100 msn=1
		A> SEND_FIRST 101 256
		A> SEND_MIDDLE 102 256
		A> SEND_LAST 103 1 ar
		B> ACK 103 msn=2
		A> WRITE_FIRST 104 256 rlen=300
		A> WRITE_LAST_IMM 105 44 ar
		A> WRITE_ONLY 106 0 ar
		B> ACK 106 msn=4
		A> SEND_ONLY_INVALIDATE 107 0 ar
		B> ACK 107 msn=5`},
	{name: "PSN wrap", kept: "psn-contiguous msn", lines: `
		A> SEND_ONLY 0xFFFFFE 4
		A> SEND_ONLY 0xFFFFFF 4 ar
		B> ACK 0xFFFFFF msn=0xFFFFFF
		A> SEND_ONLY 0 4 ar
		B> ACK 0 msn=0
		A> SEND_ONLY 1 4 ar
		B> ACK 1 msn=1`},
	{name: "both directions at once", kept: "psn-contiguous msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> SEND_ONLY 900 4 ar
		B> ACK 100 msn=1
		A> ACK 900 msn=1
		A> READ 101 rlen=300
		B> READ 901 rlen=100
		B> RR_F 101 256 msn=2
		A> RR_O 901 100 msn=2
		B> RR_L 102 44 msn=2`},

	// Single packets.
	{name: "ICRC", want: "icrc:2", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar bad
		B> ACK 100 msn=1`},
	{name: "ICRC, dropped by the receiver", from: "B", want: "icrc:2", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar bad dropped=icrc
		B> ACK 100 msn=1
		A> SEND_ONLY 102 4 ar
		B> ACK 101 msn=1 syn=nak`},
	{name: "pad is dirty", want: "pad:1", lines: `
		A> SEND_ONLY 100 7 dirt`},
	{name: "pad is short", want: "pad:1", lines: `
		A> SEND_ONLY 100 7 pad=0`},
	{name: "TVer", want: "format:1", lines: `
		A> SEND_ONLY 100 8 tver=1`},
	{name: "reserved syndrome", want: "format:2", lines: `
		A> SEND_ONLY 100 8 ar
		B> ACK 100 syn=0x45`},

	// Sequences.
	{name: "PSN skipped", want: "psn-contiguous:2", lines: `
		A> SEND_ONLY 100 4
		A> SEND_ONLY 102 4`},
	{name: "PSN skipped, told by its sender's host", from: "A", want: "psn-contiguous:3", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 102 4 ar`},
	{name: "PSN skipped or lost", from: "B", unk: "psn-contiguous", kept: "nak-first-missing", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "no FIRST", want: "opcode-sequence:2", lines: `
		A> SEND_ONLY 100 4
		A> SEND_LAST 101 4`},
	{name: "no LAST", want: "opcode-sequence:2", lines: `
		A> SEND_FIRST 100 256
		A> SEND_ONLY 101 4`},
	{name: "kinds mixed", want: "opcode-sequence:2", lines: `
		A> SEND_FIRST 100 256
		A> WRITE_LAST 101 4`},
	{name: "READ in a message", want: "opcode-sequence:2", lines: `
		A> SEND_FIRST 100 256
		A> READ 101 rlen=4`},
	{name: "a READ, and then a gap in the capture: the PSNs tell no path MTU", from: "?", lines: `
		A> READ 100 rlen=1559
		A> SEND_ONLY 104 1000 ar`},
	{name: "MSN goes back once", want: "msn:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "MSN runs ahead once", want: "msn:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=9
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=7`},
	{name: "MSN counts what may be missing in the capture", from: "B", o: Options{Capture: Incomplete}, unk: "msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=5
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=9`},
	{name: "a READ asked for again may be missing in the capture", from: "B", o: Options{Capture: Incomplete}, unk: "read-response-sequence", lines: `
		A> SEND_ONLY 99 256 ar
		A> SEND_FIRST 98 256
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=5
		B> RR_M 101 256
		B> RR_L 102 88 msn=5
		B> RR_F 101 256 msn=5
		B> RR_L 102 88 msn=5`},
	{name: "a READ is answered out of order, and the capture has all", from: "B", want: "read-response-sequence:5", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=5
		B> RR_M 101 256
		B> RR_L 102 88 msn=5
		B> RR_F 101 256 msn=5`},
	{name: "READs of one packet and an unknown path MTU", from: "B", kept: "ack-order", unk: "read-response-sequence", lines: `
		A> READ 100 rlen=1000
		B> RR_O 100 1000 msn=1
		A> READ 101 rlen=1000
		B> RR_O 101 1000 msn=2`},
	{name: "a READ that is forgotten is asked for again, and lost", from: "B", kept: "ack-order", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_M 101 256
		B> RR_L 102 88 msn=1
		READS 103 8
		+70ms A> READ 101 rlen=344 va=0x1100 lost
		A> READ 104 rlen=4
		B> RR_O 104 4 msn=9`},
	{name: "rounds that begin further on have made progress", from: "B", o: Options{Default: Attr{RetryCnt: 1}}, kept: "retry-count", lines: `
		A> SEND_ONLY 100 4
		A> SEND_ONLY 101 4
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3
		+70ms A> SEND_ONLY 100 4
		A> SEND_ONLY 101 4
		A> SEND_ONLY 102 4 ar
		+70ms A> SEND_ONLY 101 4
		A> SEND_ONLY 102 4 ar
		+70ms A> SEND_ONLY 102 4 ar`},
	{name: "answers before it is known whose they are", kept: "gbn-sender read-response-sequence ack-order", lines: `
		C> SEND_ONLY 500 4 ar
		D> ACK 500 msn=1
		A> READ 100 rlen=4
		A> READ 101 rlen=4
		A> READ 102 rlen=4
		B> RR_O 100 4 msn=5
		B> RR_O 101 4 msn=6
		B> RR_O 102 4 msn=7
		A> SEND_ONLY 103 4 lost
		A> SEND_ONLY 104 4 ar
		B> ACK 103 syn=nak msn=7
		A> SEND_ONLY 103 4
		A> SEND_ONLY 104 4 ar
		B> ACK 104 msn=9`},
	{name: "begins in a message", unk: "opcode-sequence", lines: `
		A> SEND_MIDDLE 100 256
		A> SEND_LAST 101 4`},
	{name: "MIDDLE is short", want: "message-length:2", lines: `
		A> SEND_FIRST 100 256
		A> SEND_MIDDLE 101 252
		A> SEND_LAST 102 4`},
	{name: "LAST is long", want: "message-length:2", lines: `
		A> SEND_FIRST 100 256
		A> SEND_LAST 101 260`},
	{name: "LAST is empty", want: "message-length:2", lines: `
		A> SEND_FIRST 100 256
		A> SEND_LAST 101 0`},
	{name: "WRITE ends early", want: "message-length:2", lines: `
		A> WRITE_FIRST 100 256 rlen=300
		A> WRITE_LAST 101 40`},
	{name: "WRITE is longer than it says", want: "message-length:2", lines: `
		A> WRITE_FIRST 100 256 rlen=300
		A> WRITE_MIDDLE 101 256`},
	{name: "WRITE ONLY differs", want: "message-length:1", lines: `
		A> WRITE_ONLY 100 8 rlen=9`},
	{name: "RETH too long", want: "message-length:1", lines: `
		A> READ 100 rlen=0x80000001`},

	// Going back.
	{name: "NAK", kept: "gbn-sender retransmission-same nak-first-missing nak-once-per-gap", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		A> SEND_ONLY 103 4 ar
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		A> SEND_ONLY 103 4 ar
		B> ACK 103 msn=4`},
	{name: "goes back too far", want: "gbn-sender:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		+2ms A> SEND_ONLY 100 4 ar`},
	{name: "sends again what is answered", want: "gbn-sender:5", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		+5ms A> SEND_ONLY 101 4 ar`},
	{name: "goes back too little", want: "gbn-sender:6", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		A> SEND_ONLY 102 4 ar`},
	{name: "jumps in a round", want: "gbn-sender:8", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		A> SEND_ONLY 103 4 ar
		B> ACK 101 syn=nak msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 103 4 ar`},
	{name: "jumps over what is answered", kept: "gbn-sender", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		A> SEND_ONLY 103 4 ar
		+70ms A> SEND_ONLY 101 4 ar
		B> ACK 102 msn=3
		A> SEND_ONLY 103 4 ar`},
	{name: "payload changed", want: "retransmission-same:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+70ms A> SEND_ONLY 101 4 ar fill=1`},
	{name: "opcode changed", want: "retransmission-same:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+70ms A> SEND_ONLY_IMM 101 4 ar`},
	{name: "address changed", want: "retransmission-same:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> ATOMIC_WRITE 101 8 va=0x1000 lost
		+70ms A> ATOMIC_WRITE 101 8 va=0`},
	{name: "AckReq and the compare field of FADD may change", kept: "retransmission-same", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 lost
		A> FADD 102 add=1 compare=5 lost
		+70ms A> SEND_ONLY 101 4 ar
		A> FADD 102 add=1 compare=6`},
	{name: "UC goes on", kept: "psn-contiguous opcode-sequence", lines: `
		UC
		A> SEND_FIRST 100 256
		A> SEND_LAST 101 256
		A> WRITE_ONLY 102 8`},
	{name: "UC skips", want: "psn-contiguous:2", lines: `
		UC
		A> SEND_FIRST 100 256
		A> SEND_LAST 102 256`},
	{name: "UC goes back", want: "psn-contiguous:3", lines: `
		UC
		A> SEND_ONLY 100 256
		A> SEND_ONLY 101 256
		A> SEND_ONLY 101 256`},
	{name: "UC with losses", from: "B", unk: "psn-contiguous opcode-sequence", lines: `
		UC
		A> SEND_FIRST 100 256
		A> SEND_LAST 102 256
		A> SEND_ONLY 103 4`},

	{name: "masked atomics", kept: "psn-contiguous response-kind retransmission-same duplicate-answer msn ack-order depth", o: Options{Default: Attr{Depth: 2}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> MASKED_CSWAP 101 compare=1
		A> MASKED_FADD 102 add=1 compare=2 lost
		B> AACK 101 msn=2 value=5
		+70ms A> MASKED_FADD 102 add=1 compare=2
		B> AACK 102 msn=3 value=6 lost
		+70ms A> MASKED_FADD 102 add=1 compare=2
		B> AACK 102 msn=3 value=6
		A> SEND_ONLY 103 4 ar
		B> ACK 103 msn=4`},
	{name: "mask changed", want: "retransmission-same:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> MASKED_FADD 101 add=1 compare=2 lost
		+70ms A> MASKED_FADD 101 add=1 compare=3`},
	{name: "a masked atomic becomes a plain one", want: "retransmission-same:4", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> MASKED_FADD 101 add=1 lost
		+70ms A> FADD 101 add=1`},
	{name: "ACK for a masked atomic", want: "response-kind:4", lines: `
		A> SEND_ONLY 98 4 ar
		B> ACK 98 msn=1
		A> MASKED_CSWAP 99
		B> ACK 99 msn=2`},

	// READ.
	{name: "READ", kept: "read-response-sequence read-response-length ack-order response-kind", lines: `
		A> READ 100 rlen=600
		A> SEND_ONLY 103 4 ar
		B> RR_F 100 256 msn=1
		B> RR_M 101 256
		B> RR_L 102 88 msn=1
		B> ACK 103 msn=2`},
	{name: "READ resumed after a gap", kept: "read-resume gbn-sender read-response-sequence", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_M 101 256 lost
		B> RR_L 102 88 msn=1
		A> READ 101 rlen=344 va=0x1100
		B> RR_F 101 256 msn=1
		B> RR_L 102 88 msn=1`},
	{name: "READ resumed at a wrong address", want: "read-resume:5", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_M 101 256 lost
		B> RR_L 102 88 msn=1
		A> READ 101 rlen=344 va=0x1000`},
	{name: "READ resumed with a wrong length", want: "read-resume:5", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_M 101 256 lost
		B> RR_L 102 88 msn=1
		A> READ 101 rlen=600 va=0x1100`},
	{name: "READ resumed from the wrong PSN", want: "gbn-sender:5", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_M 101 256 lost
		B> RR_L 102 88 msn=1
		A> READ 102 rlen=88 va=0x1200`},
	{name: "partial re-read answered as rxe does", want: "read-response-sequence:6", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_M 101 256 lost
		B> RR_L 102 88 msn=1
		A> READ 101 rlen=344 va=0x1100
		B> RR_M 101 256`},
	{name: "the same, captured at the requester", from: "A", want: "read-response-sequence:6", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_M 101 256
		B> RR_L 102 88 msn=1
		A> READ 101 rlen=344 va=0x1100
		B> RR_M 101 256`},
	{name: "READ response missing", want: "read-response-sequence:3", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_L 102 88 msn=1`},
	{name: "READ response lost", from: "A", lines: `
		A> READ 100 rlen=600
		B> RR_F 100 256 msn=1
		B> RR_L 102 88 msn=1`},
	{name: "FIRST where LAST is due", want: "read-response-sequence:3", lines: `
		A> READ 100 rlen=300
		B> RR_F 100 256 msn=1
		B> RR_F 101 44 msn=1`},
	{name: "READ response short", want: "read-response-length:3", lines: `
		A> READ 100 rlen=300
		B> RR_F 100 256 msn=1
		B> RR_L 101 43 msn=1`},
	{name: "READ response outside the READ", want: "response-range:3", lines: `
		A> READ 100 rlen=300
		B> RR_F 100 256 msn=1
		B> RR_L 102 44 msn=1`},
	{name: "ACK inside a READ", want: "response-kind:4", lines: `
		A> SEND_ONLY 99 4 ar
		B> ACK 99 msn=1
		A> READ 100 rlen=300
		B> ACK 100 msn=2`},
	{name: "READ response to a SEND", want: "response-kind:4", lines: `
		A> SEND_ONLY 98 4 ar
		B> ACK 98 msn=1
		A> SEND_ONLY 99 4
		B> RR_O 99 0 msn=2`},
	{name: "ACK for an atomic", want: "response-kind:4", lines: `
		A> SEND_ONLY 98 4 ar
		B> ACK 98 msn=1
		A> FADD 99
		B> ACK 99 msn=2`},
	{name: "ACK passes a READ response", want: "ack-order:4", lines: `
		A> READ 100 rlen=300
		A> SEND_ONLY 102 4 ar
		B> RR_F 100 256 msn=1
		B> ACK 102 msn=2
		B> RR_L 101 44 msn=1`, unk: ""},
	{name: "ACK passes an atomic", from: "A", want: "ack-order:4", o: Options{Capture: Complete}, lines: `
		A> FADD 100
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		B> AACK 100 msn=2`},
	{name: "atomic ACK lost before", from: "A", kept: "ack-order", lines: `
		A> FADD 100
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		A> FADD 100
		B> AACK 100 msn=2`},
	{name: "atomic again", kept: "duplicate-answer response-kind", lines: `
		A> CSWAP 100
		B> AACK 100 msn=1 value=5 lost
		+70ms A> CSWAP 100
		B> AACK 100 msn=1 value=5`},
	{name: "atomic executed twice", want: "duplicate-answer:4", lines: `
		A> CSWAP 100
		B> AACK 100 msn=1 value=5 lost
		+70ms A> CSWAP 100
		B> AACK 100 msn=1 value=6`},
	{name: "FLUSH and ATOMIC WRITE", kept: "response-kind read-response-length message-length", lines: `
		A> FLUSH 100 rlen=64
		A> ATOMIC_WRITE 101 8
		B> RR_O 100 0 msn=1
		B> RR_O 101 0 msn=2`},
	{name: "depth kept", kept: "depth", o: Options{Default: Attr{Depth: 2}}, lines: `
		A> READ 100 rlen=4
		B> RR_O 100 4 msn=1
		A> READ 101 rlen=4
		A> FADD 102
		B> RR_O 101 4 msn=2
		A> READ 103 rlen=4`},
	{name: "depth exceeded", want: "depth:5", o: Options{Default: Attr{Depth: 2}}, lines: `
		A> READ 100 rlen=4
		B> RR_O 100 4 msn=1
		A> READ 101 rlen=4
		A> FADD 102
		A> READ 103 rlen=4`},
	{name: "depth not known", unk: "depth", lines: `
		A> READ 100 rlen=4`},

	// Timers.
	{name: "timeout", kept: "ack-timeout retry-count gbn-sender", o: Options{Default: Attr{Timeout: 14, RetryCnt: 7}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+68ms A> SEND_ONLY 101 4 ar lost
		+80ms A> SEND_ONLY 101 4 ar`},
	{name: "timeout too early", want: "ack-timeout:4", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+60ms A> SEND_ONLY 101 4 ar`},
	{name: "timeout too late", want: "ack-timeout:4", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+300ms A> SEND_ONLY 101 4 ar`},
	{name: "timeout and NAK in one moment", from: "A", kept: "gbn-sender", unk: "ack-timeout", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		+68ms B> ACK 101 syn=nak msn=1
		+0s A> SEND_ONLY 101 4 ar
		+0s A> SEND_ONLY 102 4 ar
		+0s A> SEND_ONLY 101 4 ar
		+0s A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "a second round after a NAK, and the timer had not run out", from: "A", want: "ack-timeout:7", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		+0s A> SEND_ONLY 101 4 ar
		+0s A> SEND_ONLY 101 4 ar`},
	{name: "a second round long after a NAK", from: "A", want: "ack-timeout:7", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar
		+68ms B> ACK 101 syn=nak msn=1
		+0s A> SEND_ONLY 101 4 ar
		+2ms A> SEND_ONLY 101 4 ar`},
	{name: "timeout not known", unk: "ack-timeout retry-count", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+1ms A> SEND_ONLY 101 4 ar`},
	{name: "no timer", want: "ack-timeout:4", o: Options{Default: Attr{Timeout: -1}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+1s A> SEND_ONLY 101 4 ar`},
	{name: "too many retries", want: "retry-count:5", o: Options{Default: Attr{RetryCnt: 1}}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		+70ms A> SEND_ONLY 101 4 ar lost
		+70ms A> SEND_ONLY 101 4 ar lost`},
	{name: "RNR", kept: "rnr-wait rnr-silence gbn-sender", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+11ms A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "RNR not waited for", want: "rnr-wait:4", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+9ms A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "RNR not waited for, between the hosts", from: "?", o: Options{Capture: Complete, Default: Attr{Timeout: 14}}, want: "rnr-wait:4", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+9ms A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "new request in the RNR wait", want: "rnr-wait:3", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+5ms A> SEND_ONLY 101 4 ar
		+6ms A> SEND_ONLY 100 4 ar`},
	{name: "on its way when the RNR NAK came", kept: "rnr-wait", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 syn=rnr20 msn=0
		A> SEND_ONLY 101 4 ar
		+11ms A> SEND_ONLY 100 4 ar`},
	{name: "on its way when the RNR NAK came, on a slow machine", kept: "rnr-wait", o: Options{Slack: 4 * time.Millisecond}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+4500us A> SEND_ONLY 101 4 ar
		+8ms A> SEND_ONLY 100 4 ar`},
	{name: "not on its way any more, on a slow machine", want: "rnr-wait:3", o: Options{Slack: 4 * time.Millisecond}, lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 syn=rnr20 msn=0
		+5500us A> SEND_ONLY 101 4 ar
		+8ms A> SEND_ONLY 100 4 ar`},
	{name: "sequence NAK after an RNR NAK", want: "rnr-silence:4", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=rnr20 msn=0
		B> ACK 100 syn=nak msn=0
		+11ms A> SEND_ONLY 100 4 ar`},
	{name: "ACK after an RNR NAK", want: "rnr-silence:4", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=rnr20 msn=0
		B> ACK 101 msn=2`},
	// What was made or changed on purpose binds who gets it, and nobody else.
	{name: "a forged RNR NAK, and the responder's own answer", from: "A", kept: "rnr-wait", lines: `
		A> SEND_ONLY 100 4 ar lost
		B> ACK 100 syn=rnr20 msn=9 forged
		B> ACK 99 msn=3
		+11ms A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=4`},
	{name: "a forged RNR NAK stands in the capture a little late", from: "A", kept: "rnr-wait", lines: `
		A> SEND_ONLY 100 4 ar lost
		B> ACK 100 syn=rnr20 msn=0 forged
		+10239998ns A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1`},
	{name: "a forged RNR NAK that is not waited for", from: "A", want: "rnr-wait:3", lines: `
		A> SEND_ONLY 100 4 ar lost
		B> ACK 100 syn=rnr20 msn=0 forged
		+9ms A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1`},
	{name: "a forged RNR NAK in the moment of an answer that makes it stale", from: "A", unk: "ack-timeout", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 lost
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		B> ACK 101 msn=2
		+1ns B> ACK 100 syn=rnr20 msn=0 forged
		+0s A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "a forged RNR NAK that an answer has made stale", from: "A", want: "ack-timeout:6", o: Options{Default: Attr{Timeout: 14}}, lines: `
		A> SEND_ONLY 100 4 lost
		A> SEND_ONLY 101 4 ar
		A> SEND_ONLY 102 4 ar
		B> ACK 101 msn=2
		B> ACK 100 syn=rnr20 msn=0 forged
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "a forged sequence NAK is acted upon", from: "A", kept: "gbn-sender", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=nak msn=0 forged
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "a forged sequence NAK is acted upon wrongly", from: "A", want: "gbn-sender:4", lines: `
		A> SEND_ONLY 100 4 ar
		A> SEND_ONLY 101 4 ar
		B> ACK 100 syn=nak msn=0 forged
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2`},
	{name: "requests held back and doubled, and what the responder makes of it", unk: "response-range", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar held
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1
		A> SEND_ONLY 101 4 ar released
		A> SEND_ONLY 101 4 ar copied
		B> ACK 101 msn=7`},
	{name: "an answer held back is the responder's when it was sent", from: "B", kept: "ack-monotonic msn", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1 held
		A> SEND_ONLY 101 4 ar
		B> ACK 101 msn=2
		B> ACK 100 msn=1 released
		A> SEND_ONLY 102 4 ar
		B> ACK 102 msn=3`},
	{name: "changed on its way out", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 102 4 ar tver=1 pad=1 forged
		A> SEND_ONLY 102 4 ar`},
	{name: "its ICRC spoiled on its way out", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 101 4 ar bad forged
		A> SEND_ONLY 102 4 ar
		B> ACK 101 syn=nak msn=1`},
	{name: "a PSN that skips because it was changed, and the NAK", unk: "response-range", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 105 4 ar forged
		B> ACK 101 syn=nak msn=1`},
	{name: "a NAK beyond what was sent, to a changed PSN", unk: "response-range", lines: `
		A> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		A> SEND_ONLY 101 4 ar lost
		A> SEND_ONLY 105 4 ar forged
		B> ACK 102 syn=nak msn=1`},
}

func TestRules(t *testing.T) {
	broken := map[string]bool{}
	kept := map[string]bool{}
	for _, x := range slices.Concat(requestCases, answerCases, rebornCases) {
		if x.from == "" {
			x.from = "AB"
		}
		t.Run(x.name, func(t *testing.T) {
			c := run(t, x.o, x.from, x.lines)
			if got := brief(c); got != x.want {
				t.Errorf("broken: %q, want %q", got, x.want)
			}
			for _, f := range c.Findings() {
				name := f.Rule.String()
				if f.Kept == 0 && has(x.kept, name) {
					t.Errorf("%s was not kept", name)
				}
				if f.Unknown == 0 && has(x.unk, name) {
					t.Errorf("%s is not unknown", name)
				}
				broken[name] = broken[name] || f.Broken > 0
				kept[name] = kept[name] || f.Kept > 0 && f.Broken == 0
			}
			if t.Failed() {
				t.Log("\n" + report(c))
			}
		})
	}
	for i := range Count {
		if n := i.String(); !broken[n] || !kept[n] {
			t.Errorf("rule %s: a trace breaks it: %v, one keeps it: %v", n, broken[n], kept[n])
		}
	}
}

func has(list, name string) bool {
	return slices.Contains(strings.Fields(list), name)
}
