package report

import (
	"net/netip"
	"time"

	"github.com/softnic/softnic/trace"
)

// Report is what a capture tells. The JSON names are stable; docs/trace.md explains them.
type Report struct {
	Files         []File         `json:"files"`
	Packets       Packets        `json:"packets"`
	Span          Span           `json:"span"`
	Capture       Capture        `json:"capture"`
	Conversations []Conversation `json:"conversations"`
	// OutOfTable counts RoCE packets of conversations for which the tables have no room.
	OutOfTable uint64    `json:"out_of_table,omitempty"`
	Rules      []Verdict `json:"rules"`
	Broken     uint64    `json:"broken"` // times that any rule was broken

	picture  *Picture
	trustCut bool
	chosen   bool // only some conversations were asked for
}

// File is one that was read.
type File struct {
	Name       string      `json:"name"`
	Format     string      `json:"format"`
	Interfaces []Interface `json:"interfaces"`
}

// Interface is one of a file.
type Interface struct {
	Name        string `json:"name,omitempty"`
	Description string `json:"description,omitempty"`
	Link        string `json:"link"`
	Packets     uint64 `json:"packets"`
	Received    uint64 `json:"received,omitempty"` // as the capture says
	Lost        uint64 `json:"lost,omitempty"`     // not in the capture for want of room, as it says
}

// Packets counts the packets of the files.
type Packets struct {
	Total       uint64 `json:"total"`
	RoCE        uint64 `json:"roce"`
	Bursts      uint64 `json:"bursts"`     // of Total: several RoCE packets that an offload has made one of, each of which counts in RoCE
	TwiceSeen   uint64 `json:"seen_twice"` // of RoCE
	RoCEv1      uint64 `json:"rocev1"`     // not judged
	Fragments   uint64 `json:"fragments"`  // of UDP packets that may be RoCE; not judged
	Other       uint64 `json:"other"`
	UnknownLink uint64 `json:"unknown_link"` // of link types that cannot be read
	Cut         uint64 `json:"truncated"`    // RoCE, of which the capture has only the beginning
	WrongICRC   uint64 `json:"wrong_icrc"`
	Malformed   uint64 `json:"malformed"`
	Reserved    uint64 `json:"reserved_opcode"` // of a manufacturer, or not assigned
	BadIPSum    uint64 `json:"wrong_ip_checksum"`
	BadUDPSum   uint64 `json:"wrong_udp_checksum"`
	Sorted      uint64 `json:"sorted"` // put before others, by their time
}

// Span is the time from the first RoCE packet to the last.
type Span struct {
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Duration int64     `json:"duration_ns"`
}

// Capture says what was taken for granted of the capture.
type Capture struct {
	Complete bool   `json:"complete"` // it lost nothing
	Why      string `json:"why"`
	Lost     uint64 `json:"lost"` // packets, as the files say
}

// Conversation is what two queue pairs say to each other, or what goes to one of which the other cannot be told.
type Conversation struct {
	A       trace.End  `json:"a"`
	B       trace.End  `json:"b"`
	Service string     `json:"service"`
	MTU     int        `json:"path_mtu,omitempty"` // bytes; 0: not seen
	First   time.Time  `json:"first"`
	Last    time.Time  `json:"last"`
	AB      *Direction `json:"a_to_b"`
	BA      *Direction `json:"b_to_a"`
}

// Direction is what goes from one end to the other. Frames that were seen twice count once.
type Direction struct {
	Packets         uint64            `json:"packets"`
	Bytes           uint64            `json:"bytes"` // payload, also of READ responses
	Opcodes         map[string]uint64 `json:"opcodes"`
	Messages        uint64            `json:"messages"` // requests that were sent to their end, once each
	Retransmissions Retransmissions   `json:"retransmissions"`
	ACKs            uint64            `json:"acks"`
	NAKs            map[string]uint64 `json:"naks"`
	RNRNAKs         uint64            `json:"rnr_naks"`
	CNPs            uint64            `json:"cnps"`
	CEMarked        uint64            `json:"ce_marked"`
	WrongICRC       uint64            `json:"wrong_icrc"`
	Cut             uint64            `json:"truncated"`
	LostOnPurpose   uint64            `json:"lost_on_purpose"`
	HeldOnPurpose   uint64            `json:"held_on_purpose"`
	ForgedOnPurpose uint64            `json:"forged_on_purpose"` // changed, or made, by a rule
	Dropped         map[string]uint64 `json:"dropped"`           // by the receiver, as the capture says why
	Latency         *Latency          `json:"latency"`           // of the requests that go this way
}

// Retransmissions are packets by why they were sent again.
type Retransmissions struct {
	AfterNAK uint64 `json:"after_nak"`
	Implied  uint64 `json:"implied_nak"`
	AfterRNR uint64 `json:"after_rnr"`
	OnItsOwn uint64 `json:"timeout_or_unknown"`
}

// Sum is all of them.
func (r Retransmissions) Sum() uint64 { return r.AfterNAK + r.Implied + r.AfterRNR + r.OnItsOwn }

// Latency is how long requests waited for their first answer, in ns; those that were sent once, and that an answer names.
type Latency struct {
	Count  uint64 `json:"count"`
	Min    int64  `json:"min_ns"`
	Median int64  `json:"median_ns"`
	P99    int64  `json:"p99_ns"`
	Max    int64  `json:"max_ns"`
}

// Verdict is that on a rule.
type Verdict struct {
	Rule       string      `json:"rule"`
	Verdict    string      `json:"verdict"` // broken, kept, unknown, not-met
	Kept       uint64      `json:"kept"`
	Broken     uint64      `json:"broken"`
	Unknown    uint64      `json:"unknown"`
	Why        []Reason    `json:"why"`
	Violations []Violation `json:"violations"` // the first
}

// Reason says how often a rule could not be judged for it.
type Reason struct {
	Text  string `json:"text"`
	Times uint64 `json:"times"`
}

// Violation is one place where a rule was broken.
type Violation struct {
	Packet uint64     `json:"packet"`
	Time   time.Time  `json:"time"`
	Src    netip.Addr `json:"src"`
	Dst    netip.Addr `json:"dst"`
	QPN    uint32     `json:"qpn"` // destination
	Text   string     `json:"text"`
}
