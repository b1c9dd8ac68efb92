package report

import (
	"bytes"
	"net/netip"
	"strings"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
)

// place is what an interface of softnic's captures holds, by its name (package link/capture).
type place uint8

const (
	elsewhere place = iota // not softnic's
	atTx
	atRx
	atDropped
	atImpaired
)

// placeOf tells the interfaces that softnic writes: tx, rx, dropped, impaired, and of a further NIC NAME/tx and so on.
func placeOf(i *trace.Interface) place {
	if i.App != "softnic" {
		return elsewhere
	}
	name := i.Name[strings.LastIndexByte(i.Name, '/')+1:]
	return map[string]place{"tx": atTx, "rx": atRx, "dropped": atDropped, "impaired": atImpaired}[name]
}

// origin is what the capture tells of a packet beside its bytes.
type origin struct {
	dir   rules.Direction
	fate  rules.Fate
	fault wire.Fault // why it was dropped
	round int
	cause rules.Cause // as its sender said; NotAgain: it did not
	// changed says that the packet did not go on as it stands here: the one that did comes next.
	changed bool
}

// originOf reads what softnic says of a packet, in its flags and comment.
func originOf(at place, flags uint32, comment []byte) (o origin) {
	switch flags & 3 {
	case trace.FlagInbound:
		o.dir = rules.Rx
	case trace.FlagOutbound:
		o.dir = rules.Tx
	}
	words, again, sent := bytes.Cut(comment, []byte("retransmission "))
	if sent {
		n, why, _ := bytes.Cut(again, []byte(" ("))
		o.round, o.cause = number(n), causes[string(bytes.TrimSuffix(why, []byte(")")))]
	}
	// The words that softnic's own rules for impairment use; see package link/impair.
	switch at {
	case atTx, atRx:
		switch {
		case forges(words):
			o.fate = rules.Forged
		case bytes.Contains(words, []byte("duplicate")):
			o.fate = rules.Copied
		}
	case atImpaired:
		o.fate, o.fault = rules.Held, wire.Impaired
		o.changed = forges(words) && !bytes.Contains(words, []byte(" answer="))
		if bytes.Contains(words, []byte("drop")) || forges(words) {
			o.fate = rules.Lost
		}
	case atDropped:
		o.fate = rules.Dropped
		if forges(words) {
			o.fate = rules.Forged
		}
		name := words
		for i, c := range words {
			if c == ':' || c == ';' {
				name = words[:i]
				break
			}
		}
		o.fault = wire.Ignored
		for f := range wire.Faults {
			if f.String() == string(name) {
				o.fault = f
			}
		}
	}
	return o
}

// forges reports whether a rule that stands in a comment changes packets, or makes some.
func forges(words []byte) bool {
	for _, w := range [][]byte{[]byte(" corrupt"), []byte(" set="), []byte(" ecn="), []byte(" answer=")} {
		if bytes.Contains(words, w) {
			return true
		}
	}
	return false
}

// causes are the reasons that softnic gives for sending again.
var causes = map[string]rules.Cause{
	wire.RetryTimeout.String(): rules.OnItsOwn, wire.RetrySequence.String(): rules.AfterNAK,
	wire.RetryImplied.String(): rules.ImpliedNAK, wire.RetryRNR.String(): rules.AfterRNR,
}

// number reads a decimal number; 0 if it is none.
func number(b []byte) (n int) {
	for _, c := range b {
		if c < '0' || c > '9' || n > 1<<24 {
			return 0
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// hostOrigin is the direction of a packet in a capture that was made at a host.
func hostOrigin(hosts []netip.Addr, src, dst netip.Addr) rules.Direction {
	from, to := false, false
	for _, h := range hosts {
		from, to = from || h == src, to || h == dst
	}
	switch {
	case from && !to:
		return rules.Tx
	case to && !from:
		return rules.Rx
	}
	return rules.Unknown
}
