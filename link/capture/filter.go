package capture

import (
	"net/netip"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Filter says which packets are of interest; all that is set must hold. The zero value lets everything pass. A packet that could
// not be read passes only where nothing is asked of what could not be read.
type Filter struct {
	QP   uint32       // of the device: what it sends, and what comes for it; 0: any
	Peer netip.Prefix // address of the other end; not valid: any
	Ops  *[256]bool   // opcodes, see impair.Opcodes; nil: any
}

// Sink returns a sink that hands to s what passes.
func (f Filter) Sink(s link.Sink) link.Sink {
	if f == (Filter{}) {
		return s
	}
	return &filtered{s, f}
}

type filtered struct {
	link.Sink
	f Filter
}

// Capture takes a packet.
func (s *filtered) Capture(r *link.Record) {
	if s.f.passes(r) {
		s.Sink.Capture(r)
	}
}

// Arrived implements link.OrderedSink.
func (s *filtered) Arrived(when time.Time) { arrived(s.Sink, when) }

// Handled implements link.OrderedSink.
func (s *filtered) Handled(when time.Time) { handled(s.Sink, when) }

func (f *Filter) passes(r *link.Record) bool {
	switch {
	case f.QP != 0 && r.QPN != f.QP,
		f.Ops != nil && (len(r.Head) < bth.Len || !f.Ops[r.Head[0]]):
		return false
	case f.Peer.IsValid():
		peer, ok := peerOf(r)
		return ok && f.Peer.Contains(peer)
	}
	return true
}

// peerOf returns the address of the other end.
func peerOf(r *link.Record) (netip.Addr, bool) {
	if len(r.Net) == 0 {
		return netip.Addr{}, false
	}
	src, n := 12, 4
	if r.Net[0]>>4 == 6 {
		src, n = 8, 16
	}
	if r.Dir == link.Tx {
		src += n
	}
	if len(r.Net) < wire.NetLen4 || len(r.Net) < src+n {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(r.Net[src : src+n])
}
