package trace

import (
	"bytes"
	"strings"

	"github.com/softnic/softnic/wire"
)

// Direction says where a packet was seen.
type Direction uint8

// The directions.
const (
	Unknown Direction = iota // somewhere between sender and receiver
	Tx                       // at its sender, as it left or would have left
	Rx                       // at its receiver, as it came in
)

// Fate says what the capture knows of what became of a packet.
type Fate uint8

// The fates.
const (
	Passed   Fate = iota // nothing special
	Dropped              // its receiver did not accept it, or its sender could not send it; a Fault says why
	Lost                 // dropped on purpose, by impairment, where it was seen
	Held                 // held back on purpose: it is in the capture again when it goes on
	Copied               // made on purpose: a copy of a packet that has passed
	Released             // held back on purpose until now: its sender has sent it before
	Forged               // made or changed on purpose: its sender has not sent it, its receiver gets it. Of a changed one what was sent is there too, Lost
)

// Completeness says whether a packet that is not in the capture did not pass the place
// where it was made.
type Completeness uint8

// Completeness of a capture.
const (
	Auto       Completeness = iota // as the capture itself tells
	Complete                       // it lost nothing
	Incomplete                     // it may have lost packets
)

// Word is what a softnic's capture (package link/capture) says of a packet beside its bytes. The zero value is that of every other
// capture: nothing.
type Word struct {
	Dir     Direction
	Fate    Fate
	Fault   wire.Fault // why it was dropped, wire.Impaired if it was on purpose
	Touched bool       // an impairment rule had to do with it
	Changed bool       // its bytes are not those that its sender made, and its ICRC may be wrong
	Before  bool       // it is as it was before a rule changed it: what it was changed to comes next
	Forged  bool       // it is an answer that softnic made up to a request that it lost
	Round   int        // how often the request was sent before
	Cause   wire.Cause // of a retransmission: why, as its sender says; wire.First: it does not say
}

// places are the names of softnic's interfaces behind the NIC's own.
var places = []string{"tx", "rx", "dropped", "impaired"}

// Speaks reports whether the interface is one of a softnic's capture: then there is a Word on each of its packets.
func (i *Interface) Speaks() bool {
	_, place := i.split()
	for _, p := range places {
		if p == place {
			// mergecap keeps the descriptions of interfaces, and not who has written the file.
			return i.App == "softnic" || strings.Contains(i.Description, " softnic on ")
		}
	}
	return false
}

// NIC is the name of the NIC that an interface for which Speaks is true belongs to, "" for the first of a file.
func (i *Interface) NIC() string {
	nic, _ := i.split()
	return nic
}

// split takes NAME/tx apart.
func (i *Interface) split() (nic, place string) {
	at := strings.LastIndexByte(i.Name, '/')
	return i.Name[:max(0, at)], i.Name[at+1:]
}

// Word reads what the capture says of a packet of the interface.
func (i *Interface) Word(p *Packet) (w Word) {
	if !i.Speaks() {
		return w
	}
	switch p.Flags & flagDirMask {
	case FlagInbound:
		w.Dir = Rx
	case FlagOutbound:
		w.Dir = Tx
	}
	words, again, sent := bytes.Cut(p.Comment, []byte("retransmission "))
	if sent {
		n, why, _ := bytes.Cut(again, []byte(" ("))
		w.Round, w.Cause = decimal(n), causes[string(bytes.TrimSuffix(why, []byte(")")))]
	}
	_, place := i.split()
	rule := words
	if _, behind, ok := bytes.Cut(words, []byte(": ")); ok || place == "dropped" || place == "impaired" {
		rule = behind
	}
	did := actionsOf(rule)
	w.Touched, w.Changed = did != 0, did&(didSet|didCorrupt) != 0
	switch place {
	case "impaired":
		w.Fate, w.Fault = Held, wire.Impaired
		w.Before = did&(didSet|didCorrupt|didECN) != 0
		if did&(didDrop|didAnswer) != 0 || w.Before {
			w.Fate = Lost
		}
		w.Changed = false // here it is as it was
	case "dropped":
		w.Fate, w.Fault = Dropped, faultOf(words)
		switch {
		case did&(didSet|didCorrupt|didECN|didAnswer) != 0:
			w.Fate = Forged
		case did&didDuplicate != 0:
			w.Fate = Copied
		case did&(didDelay|didReorder) != 0:
			w.Fate = Released
		}
	default:
		w.Forged = did&didAnswer != 0
		switch {
		case w.Forged || did&(didSet|didCorrupt|didECN) != 0:
			w.Fate = Forged
		case did&didDuplicate != 0:
			w.Fate = Copied
		case did&(didDelay|didReorder) != 0:
			w.Fate = Released
		}
	}
	return w
}

// What an impairment rule does (package link/impair): the word that begins so says it.
const (
	didDrop = 1 << iota
	didDuplicate
	didDelay
	didReorder
	didCorrupt
	didECN
	didSet
	didAnswer
)

var actions = map[string]int{
	"drop": didDrop, "duplicate": didDuplicate, "delay": didDelay, "reorder": didReorder, "corrupt": didCorrupt, "ecn": didECN, "set": didSet, "answer": didAnswer,
}

// actionsOf returns the actions of a rule.
func actionsOf(rule []byte) (did int) {
	for w := range bytes.FieldsSeq(rule) {
		name, _, _ := bytes.Cut(bytes.TrimRight(w, ";,"), []byte("="))
		did |= actions[string(name)]
	}
	return did
}

// faultOf reads why a packet was dropped, which stands first.
func faultOf(comment []byte) wire.Fault {
	name := comment
	if i := bytes.IndexAny(comment, ":;"); i >= 0 {
		name = comment[:i]
	}
	for f := range wire.Faults {
		if f.String() == string(name) {
			return f
		}
	}
	return wire.Ignored
}

// causes are the reasons that softnic gives for sending again.
var causes = map[string]wire.Cause{
	wire.RetryTimeout.String(): wire.RetryTimeout, wire.RetrySequence.String(): wire.RetrySequence,
	wire.RetryImplied.String(): wire.RetryImplied, wire.RetryRNR.String(): wire.RetryRNR,
}

// decimal reads a number; 0 if it is none.
func decimal(b []byte) (n int) {
	for _, c := range b {
		if c < '0' || c > '9' || n > 1<<24 {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}
