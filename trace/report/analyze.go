package report

import (
	"cmp"
	"errors"
	"hash/maphash"
	"io"
	"net/netip"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
)

// Options are the settings. The zero value is fine.
type Options struct {
	Rules   rules.Options
	Ports   []uint16     // UDP ports that carry RoCE beside 4791
	Hosts   []netip.Addr // addresses of the host where the capture was made; empty: not known
	QPN     *uint32      // only conversations with this queue pair are in the tables and the picture
	Peer    netip.Addr   // only conversations with this address are in the tables and the picture
	Picture bool         // collect what a picture needs
	// PictureFrom and PictureTo are the time that a picture shows, since the first RoCE packet; PictureTo 0 is the end.
	PictureFrom, PictureTo time.Duration
}

// Analyze reads captures to their end and judges them as one, merged by time: packets are numbered as they come, which is
// the order that mergecap writes. With a *trace.FileError the report holds what was read before; it is nil if that was no RoCE packet.
func Analyze(in []trace.Input, o Options) (*Report, error) {
	s, err := trace.NewStream(in, trace.StreamOptions{Ports: o.Ports, Hosts: o.Hosts})
	if err != nil {
		return nil, err
	}
	a := &analysis{o: o, seed: maphash.MakeSeed(), in: s, rows: map[key]*row{}}
	for {
		var h *trace.Sighting
		if h, err = s.Next(); err != nil {
			break
		}
		a.judge(h)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if s.Counts.RoCE == 0 {
		return nil, cmp.Or(err, s.Nothing())
	}
	return a.report(), err
}

// analysis is one in the making.
type analysis struct {
	o     Options
	seed  maphash.Seed
	in    *trace.Stream
	talks trace.Exchanges

	main, careful *rules.Checker // for a capture that is complete as far as it has directions; for one that is not
	p             Packets
	started       bool
	first, last   int64
	view          wire.View
	changed       bool // origin.changed, of the packet that is looked at
	packet        rules.Packet
	extended      []byte // of packets that are cut

	rows    map[key]*row
	latest  *row
	outside uint64
	dots    int // room that is taken
}

// judge takes a packet.
func (a *analysis) judge(h *trace.Sighting) {
	if h.Moved {
		a.p.Sorted++
	}
	if h.Kind == trace.Exchange {
		a.talks.Add(&h.TCP, a.connect)
		return
	}
	a.begin()
	if !a.started || h.Time < a.first {
		a.first = h.Time
	}
	if !a.started || h.Time > a.last {
		a.last = h.Time
	}
	a.started = true
	v := &a.view
	var fault wire.Fault
	if h.Cut && a.o.Rules.TrustCut {
		a.extended, _ = h.Extended(a.extended, v)
	} else {
		fault = h.View(v)
	}
	if fault == wire.OK {
		fault = h.Fault
	}
	a.packet = rules.Packet{Number: h.Number, Time: h.Time, Iface: h.Iface, Dir: h.Dir, Fate: h.Fate, Fault: fault, Round: h.Round, Cut: h.Cut, View: v}
	p := &a.packet
	a.changed = h.Word.Before
	cause := causes[h.Word.Cause]
	if a.careful == nil && a.o.Rules.Capture == rules.Auto && p.Dir != rules.Unknown {
		p.Dir = rules.Unknown // the capture did not say at its beginning that it has directions
	}
	if h.Apart {
		a.aside(p, cause)
		return
	}
	if a.careful != nil {
		a.careful.Add(p)
	}
	seen := a.main.Add(p)
	a.tally(h, p, &seen, cause)
}

// causes are the reasons for sending again, in the words of package rules.
var causes = map[wire.Cause]rules.Cause{
	wire.RetryTimeout: rules.OnItsOwn, wire.RetrySequence: rules.AfterNAK, wire.RetryImplied: rules.ImpliedNAK, wire.RetryRNR: rules.AfterRNR,
}

// begin makes the checkers, when the first RoCE packet is there.
func (a *analysis) begin() {
	if a.main != nil {
		return
	}
	a.main = rules.New(a.o.Rules)
	directions := len(a.o.Hosts) > 0
	for _, f := range a.in.Files() {
		for i := range f.Interfaces() {
			directions = directions || f.Interfaces()[i].Speaks()
		}
	}
	if directions && a.o.Rules.Capture == rules.Auto {
		o := a.o.Rules
		o.Capture = rules.Incomplete
		a.careful = rules.New(o)
	}
}

// connect tells the checkers of a connection.
func (a *analysis) connect(p trace.Pair) {
	a.begin()
	n := rules.Connection{A: rules.End{Addr: p.A.Addr, QPN: p.A.QPN}, B: rules.End{Addr: p.B.Addr, QPN: p.B.QPN}}
	a.main.Connect(n)
	if a.careful != nil {
		a.careful.Connect(n)
	}
}
