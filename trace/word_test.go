package trace

import (
	"testing"

	"github.com/softnic/softnic/wire"
)

// What softnic says of a packet in the interface, flags and comment is what packages link/capture and link/impair document.
func TestWord(t *testing.T) {
	for _, c := range []struct {
		at      string
		flags   uint32
		comment string
		want    Word
	}{
		{"tx", 2, "", Word{Dir: Tx}},
		{"rx", 1, "", Word{Dir: Rx}},
		{"tx", 2, "retransmission 3 (retry-nak)", Word{Dir: Tx, Round: 3, Cause: wire.RetrySequence}},
		{"tx", 2, "retransmission 1 (retry-timeout)", Word{Dir: Tx, Round: 1, Cause: wire.RetryTimeout}},
		{"tx", 2, "tx duplicate p=1%; retransmission 12 (retry-implied-nak)", Word{Dir: Tx, Fate: Copied, Touched: true, Round: 12, Cause: wire.RetryImplied}},
		{"tx", 2, "tx duplicate; retransmission 1 (retry-rnr)", Word{Dir: Tx, Fate: Copied, Touched: true, Round: 1, Cause: wire.RetryRNR}},
		{"tx", 2, "replay", Word{Dir: Tx}},
		{"tx", 2, "tx opcode=ACKNOWLEDGE set=msn:3", Word{Dir: Tx, Fate: Forged, Touched: true, Changed: true}},
		{"tx", 2, "replay: tx corrupt=1% icrc=good", Word{Dir: Tx, Fate: Forged, Touched: true, Changed: true}},
		{"tx", 2, "tx ecn=ce", Word{Dir: Tx, Fate: Forged, Touched: true}},
		{"tx", 2, "rx psn=0x7 answer=nak-access", Word{Dir: Tx, Fate: Forged, Touched: true, Forged: true}},
		{"rx", 1, "tx psn=0x7 answer=nak-access", Word{Dir: Rx, Fate: Forged, Touched: true, Forged: true}},
		{"rx", 1, "rx duplicate p=2%", Word{Dir: Rx, Fate: Copied, Touched: true}},
		{"rx", 1, "rx delay=40us", Word{Dir: Rx, Fate: Released, Touched: true}},
		{"dropped", 1, "out-of-sequence", Word{Dir: Rx, Fate: Dropped, Fault: wire.OutOfSequence}},
		{"dropped", 1, "duplicate", Word{Dir: Rx, Fate: Dropped, Fault: wire.Duplicate}},
		{"dropped", 1, "icrc: more words", Word{Dir: Rx, Fate: Dropped, Fault: wire.ICRC}},
		{"dropped", 1, "icrc: rx corrupt", Word{Dir: Rx, Fate: Forged, Fault: wire.ICRC, Touched: true, Changed: true}},
		{"dropped", 2, "no-address; retransmission 2 (retry-rnr)", Word{Dir: Tx, Fate: Dropped, Fault: wire.NoAddress, Round: 2, Cause: wire.RetryRNR}},
		{"dropped", 1, "stale-response: rx duplicate p=2%", Word{Dir: Rx, Fate: Copied, Fault: wire.StaleResponse, Touched: true}},
		{"dropped", 1, "duplicate: rx delay=1ms", Word{Dir: Rx, Fate: Released, Fault: wire.Duplicate, Touched: true}},
		{"tx", 2, "tx delay=1ms, duplicate", Word{Dir: Tx, Fate: Copied, Touched: true}},
		{"tx", 2, "tx corrupt, tx delay=1ms", Word{Dir: Tx, Fate: Forged, Touched: true, Changed: true}},
		{"impaired", 2, "impaired: tx set=psn:+1", Word{Dir: Tx, Fate: Lost, Fault: wire.Impaired, Touched: true, Before: true}},
		{"dropped", 1, "what is not known", Word{Dir: Rx, Fate: Dropped, Fault: wire.Ignored}},
		{"impaired", 1, "impaired: rx drop=1%", Word{Dir: Rx, Fate: Lost, Fault: wire.Impaired, Touched: true}},
		{"impaired", 2, "impaired: tx answer=rnr:3", Word{Dir: Tx, Fate: Lost, Fault: wire.Impaired, Touched: true}},
		{"impaired", 2, "impaired: tx reorder; retransmission 1 (retry-nak)", Word{Dir: Tx, Fate: Held, Fault: wire.Impaired, Touched: true, Round: 1, Cause: wire.RetrySequence}},
		{"tx", 2, "retransmission many (of them)", Word{Dir: Tx}},
		{"tx", 2, "retransmission 99999999999999999999 (retry-nak)", Word{Dir: Tx, Cause: wire.RetrySequence}},
		{"eth0", 1, "rx drop", Word{}},
	} {
		i, p := Interface{Name: c.at, App: "softnic"}, Packet{Flags: c.flags, Comment: []byte(c.comment)}
		if got := i.Word(&p); got != c.want {
			t.Errorf("%s %d %q: %+v, want %+v", c.at, c.flags, c.comment, got, c.want)
		}
		i.Name = "other/" + c.at
		if got := i.Word(&p); got != c.want {
			t.Errorf("%s %d %q: %+v, want %+v", i.Name, c.flags, c.comment, got, c.want)
		}
	}
	for name, want := range map[string]string{"tx": "", "b/rx": "b", "a/b/dropped": "a/b", "impaired": "", "eth0": "no", "tx2": "no", "": "no"} {
		i := Interface{Name: name, App: "softnic"}
		if got := i.NIC(); i.Speaks() != (want != "no") || i.Speaks() && got != want {
			t.Errorf("%q: %v, NIC %q", name, i.Speaks(), got)
		}
		if i.App = "dumpcap"; i.Speaks() || i.Word(&Packet{Flags: 1}) != (Word{}) {
			t.Errorf("%s of another program", name)
		}
	}
}
