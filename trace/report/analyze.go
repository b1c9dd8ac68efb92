package report

import (
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

// Input is a capture.
type Input struct {
	Name string
	R    io.Reader
}

// FileError is a capture that cannot be read, or has nothing to judge.
type FileError struct {
	Name string
	Err  error
}

// Error is one line.
func (e *FileError) Error() string { return e.Name + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *FileError) Unwrap() error { return e.Err }

// Analyze reads captures to their end and judges them as one, merged by time: packets are numbered as they come, which is
// the order that mergecap writes. With a *FileError the report holds what was read before; it is nil if that was no RoCE packet.
func Analyze(in []Input, o Options) (*Report, error) {
	a := &analysis{
		o: o, seed: maphash.MakeSeed(), decoder: trace.Decoder{Ports: o.Ports}, window: trace.NewWindow(0),
		rows: map[key]*row{},
	}
	err := a.read(in)
	if a.p.RoCE == 0 {
		if err == nil {
			err = a.nothing(in)
		}
		return nil, err
	}
	return a.report(), err
}

// analysis is one in the making.
type analysis struct {
	o       Options
	seed    maphash.Seed
	decoder trace.Decoder
	window  *trace.Window
	files   []*input
	talks   trace.Exchanges

	main, careful *rules.Checker // for a capture that is complete as far as it has directions; for one that is not
	number        uint64
	nextIface     int
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

func (a *analysis) read(in []Input) error {
	for _, i := range in {
		r, err := trace.NewReader(i.R)
		if err != nil {
			return &FileError{i.Name, err}
		}
		f := &input{name: i.Name, r: r, ids: map[port]int{}}
		a.files = append(a.files, f)
	}
	var failed error
	advance := func(f *input) {
		p, err := f.r.Next()
		if err != nil {
			f.done = true
			if !errors.Is(err, io.EOF) && failed == nil {
				failed = &FileError{f.name, err}
			}
			return
		}
		f.p = p
	}
	for _, f := range a.files {
		advance(f)
	}
	for {
		var f *input
		for _, x := range a.files {
			if !x.done && (f == nil || x.p.Time < f.p.Time) {
				f = x
			}
		}
		if f == nil {
			break
		}
		a.take(f)
		advance(f)
	}
	for h := a.window.Next(); h != nil; h = a.window.Next() {
		a.judge(h)
	}
	return failed
}

// take looks at a packet as it stands in a file.
func (a *analysis) take(f *input) {
	p := f.p
	a.number++
	a.p.Total++
	for i := len(f.place); i <= p.Iface; i++ {
		x := &f.r.Interfaces()[i]
		f.place = append(f.place, placeOf(x))
		f.nic = append(f.nic, f.nicOf(x.Name))
	}
	var frame trace.Frame
	a.decoder.Decode(p.Link, p.Data, p.Length, &frame)
	switch frame.Kind {
	case trace.RoCE, trace.Exchange:
	case trace.RoCEv1:
		a.p.RoCEv1++
		return
	case trace.Fragment:
		a.p.Fragments++
		return
	default:
		if !p.Link.Known() {
			a.p.UnknownLink++
		} else {
			a.p.Other++
		}
		return
	}
	for a.window.Full(p) {
		a.judge(a.window.Next())
	}
	// In the window the number is that over all files, and the interface too.
	q := *p
	q.Number, q.Iface = a.number, a.iface(f, port{p.Iface, frame.Port})
	q.Flags &= trace.FlagInbound | trace.FlagOutbound
	late := false
	if at := f.place[p.Iface]; at != elsewhere {
		late = p.Flags&3 == trace.FlagOutbound
		q.Flags |= uint32(at) << placeShift
		n := &f.nics[f.nic[p.Iface]]
		if at != atImpaired {
			n.live = true
		} else if !n.live {
			n.left = true
			q.Flags |= apart
		}
	} else if len(a.o.Hosts) > 0 && frame.Kind == trace.RoCE {
		late = a.sentHere(&frame)
	}
	a.window.Put(&q, &frame, late)
}

// The flags of a packet in the window: where the place stands, and that of its NIC nothing is captured but what was
// lost on purpose: it does not tell where the others were seen.
const (
	placeShift = 8
	apart      = 1 << 16
)

func (a *analysis) sentHere(f *trace.Frame) bool {
	src, dst, ok := f.Addrs()
	return ok && hostOrigin(a.o.Hosts, src, dst) == rules.Tx
}

// judge takes a packet out of the window.
func (a *analysis) judge(h *trace.Held) {
	if h.Moved {
		a.p.Sorted++
	}
	if h.Kind == trace.Exchange {
		a.p.Other++
		a.talks.Add(&h.TCP, a.connect)
		return
	}
	a.begin()
	a.p.RoCE++
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
	a.packet = rules.Packet{Number: h.Number, Time: h.Time, Iface: h.Iface, Fault: fault, Cut: h.Cut, View: v}
	p := &a.packet
	a.changed = false
	var o origin
	if at := place(h.Flags >> placeShift & 0xFF); at != elsewhere {
		o = originOf(at, h.Flags, h.Comment)
		p.Dir, p.Fate, p.Round = o.dir, o.fate, o.round
		a.changed = o.changed
		if fault == wire.OK {
			p.Fault = o.fault
		}
	} else if len(a.o.Hosts) > 0 && len(v.Net) > 0 {
		p.Dir = hostOrigin(a.o.Hosts, v.Src(), v.Dst())
	}
	if a.careful == nil && a.o.Rules.Capture == rules.Auto && p.Dir != rules.Unknown {
		p.Dir = rules.Unknown // the capture did not say at its beginning that it has directions
	}
	if h.Flags&apart != 0 {
		a.aside(p, o.cause)
		return
	}
	if a.careful != nil {
		a.careful.Add(p)
	}
	seen := a.main.Add(p)
	a.tally(h, p, &seen, o.cause)
}

// begin makes the checkers, when the first RoCE packet is there.
func (a *analysis) begin() {
	if a.main != nil {
		return
	}
	a.main = rules.New(a.o.Rules)
	directions := len(a.o.Hosts) > 0
	for _, f := range a.files {
		for i := range f.r.Interfaces() {
			directions = directions || placeOf(&f.r.Interfaces()[i]) != elsewhere
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
