package capture

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Log writes what a port sent and received as lines of JSON, for tests that compare it with
// another view of the same traffic:
//
//	{"addr":["10.0.0.1"]}
//	{"dir":"tx","op":"RC_SEND_ONLY","qpn":17,"psn":4660,"cause":"first","time":1700000000000000000}
//	{"dir":"rx","op":"RC_ACKNOWLEDGE","qpn":18,"psn":4660,"syndrome":31,"cause":"ok","time":1700000000000001000}
//
// The first line has the addresses of the NIC. dir is tx for what was sent, impaired for what
// an impairment rule dropped or held back instead, dropped for what could not be sent, rx for
// everything received. qpn is the destination QP, syndrome is there where the
// packet has an AETH. cause is, of a sent packet, why it was sent, of a received one "ok" or
// the fault. op, qpn and psn are missing where a packet has no BTH. Lines are in order of
// time (ns since 1970, by the port's clock).
//
// Unlike a Writer a Log loses nothing: it slows the port down instead.
type Log struct {
	spool spool
}

// NewLog begins a log on w, which it does not close. The error is that of writing the first line.
func NewLog(w io.Writer, info link.Info) (*Log, error) {
	l := new(Log)
	l.spool.w, l.spool.limit, l.spool.block = w, defaultLimit, true
	addrs := make([]netip.Addr, 0, len(info.Addrs))
	for _, a := range info.Addrs {
		addrs = append(addrs, a.Addr())
	}
	b, err := json.Marshal(struct {
		Addr []netip.Addr `json:"addr"`
	}{addrs})
	if err == nil {
		err = l.spool.direct(append(b, '\n'))
	}
	if err != nil {
		return nil, fmt.Errorf("capture: cannot write: %w", err)
	}
	return l, nil
}

// Capture takes a packet.
func (l *Log) Capture(r *link.Record) {
	l.spool.put(r.When, r.Dir == link.Tx, func(b []byte) []byte { return appendLine(b, r) })
}

// Arrived implements link.OrderedSink.
func (l *Log) Arrived(when time.Time) { l.spool.arrived(when) }

// Handled implements link.OrderedSink.
func (l *Log) Handled(when time.Time) { l.spool.handled(when) }

// appendLine writes what names and numbers need no escaping for.
func appendLine(b []byte, r *link.Record) []byte {
	b = append(b, `{"dir":"`...)
	switch {
	case r.Dir == link.Rx:
		b = append(b, "rx"...)
	case r.Fault == wire.OK:
		b = append(b, "tx"...)
	case r.Fault == wire.Impaired:
		b = append(b, "impaired"...)
	default:
		b = append(b, "dropped"...)
	}
	b = append(b, '"')
	if len(r.Head) >= bth.Len {
		h := bth.BTH(r.Head)
		b = append(b, `,"op":"`...)
		b = append(b, h.Opcode().String()...)
		b = append(b, `","qpn":`...)
		b = strconv.AppendUint(b, uint64(h.DestQP()), 10)
		b = append(b, `,"psn":`...)
		b = strconv.AppendUint(b, uint64(h.PSN()), 10)
		if at, ok := h.Opcode().Info().Offset(bth.HAETH); ok && len(r.Head) >= at+bth.HAETH.Len() {
			b = append(b, `,"syndrome":`...)
			b = strconv.AppendUint(b, uint64(bth.AETH(r.Head[at:]).Syndrome()), 10)
		}
	}
	cause := r.Fault.String()
	if r.Dir == link.Tx {
		cause = r.Cause.String()
	}
	b = append(b, `,"cause":"`...)
	b = append(b, cause...)
	b = append(b, `","time":`...)
	b = strconv.AppendInt(b, r.When.UnixNano(), 10)
	return append(b, "}\n"...)
}

// Flush writes what was captured until now. The error is the first of all writing.
func (l *Log) Flush() error {
	l.spool.flush(true)
	return l.spool.error()
}

// Close writes the rest. The error is the first of all writing. It is idempotent.
func (l *Log) Close() error {
	if err := l.spool.close(nil); err != nil {
		return fmt.Errorf("capture: cannot write: %w", err)
	}
	return nil
}
