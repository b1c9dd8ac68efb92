package report

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
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
	packet        rules.Packet
	extended      []byte // of packets that are cut

	rows    map[key]*row
	latest  *row
	outside uint64
	dots    int // room that is taken
}

// input is a file that is read.
type input struct {
	name  string
	r     *trace.Reader
	p     *trace.Packet // the next one
	done  bool
	ids   []int   // number of each interface over all files
	place []place // of each interface
	nic   []int   // its NIC, where it is softnic's
	nics  []nic
}

// nic is one of softnic's in a file, by the names of its interfaces.
type nic struct {
	name string
	live bool // a packet of its own was seen that was not lost on purpose; or it is the first, of whom the file is
	left bool // before that, some were left out of judgement
}

// nicOf is the number of the NIC that an interface belongs to.
func (f *input) nicOf(name string) int {
	name = name[:strings.LastIndexByte(name, '/')+1]
	for i := range f.nics {
		if f.nics[i].name == name {
			return i
		}
	}
	f.nics = append(f.nics, nic{name: name, live: name == ""})
	return len(f.nics) - 1
}

// maxRows bounds the tables.
const maxRows = 16384

func (a *analysis) read(in []Input) error {
	for _, i := range in {
		r, err := trace.NewReader(i.R)
		if err != nil {
			return &FileError{i.Name, err}
		}
		f := &input{name: i.Name, r: r}
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
	for i := len(f.ids); i <= p.Iface; i++ {
		f.ids = append(f.ids, a.nextIface)
		x := &f.r.Interfaces()[i]
		f.place = append(f.place, placeOf(x))
		f.nic = append(f.nic, f.nicOf(x.Name))
		a.nextIface++
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
	q.Number, q.Iface = a.number, f.ids[p.Iface]
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
	var o origin
	if at := place(h.Flags >> placeShift & 0xFF); at != elsewhere {
		o = originOf(at, h.Flags, h.Comment)
		p.Dir, p.Fate, p.Round = o.dir, o.fate, o.round
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

// aside counts a packet that was lost on purpose where nothing else is captured.
func (a *analysis) aside(p *rules.Packet, cause rules.Cause) {
	v := p.View
	if p.Fault != wire.Impaired || len(v.IB) < bth.Len {
		return
	}
	r := a.row(key{v.Src(), v.Dst(), v.BTH().DestQP(), serviceOf(v.BTH().Opcode())}, p.Time, false)
	if r == nil {
		return
	}
	sent := p.Dir == rules.Tx && p.Fate == rules.Lost // the others are seen elsewhere, or later
	if !sent {
		a.p.TwiceSeen++
	}
	r.add(p, &rules.Seen{Latency: -1}, cause, sent, false)
	if p.Fate == rules.Lost {
		a.dot(r, p, MarkLost)
	}
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

// tally counts a packet in the tables.
func (a *analysis) tally(h *trace.Held, p *rules.Packet, s *rules.Seen, cause rules.Cause) {
	v := p.View
	if h.BadIP {
		a.p.BadIPSum++
	}
	if h.BadUDP {
		a.p.BadUDPSum++
	}
	switch {
	case h.Cut && s.Read:
		a.p.Cut++
	case h.Cut:
		a.p.Cut++
		if len(v.IB) < bth.Len {
			return
		}
	case s.WrongICRC:
		a.p.WrongICRC++
	case p.Fault == wire.ReservedOpcode:
		a.p.Reserved++
		return
	case !s.Read:
		a.p.Malformed++
		return
	}
	b := v.BTH()
	k := key{v.Src(), v.Dst(), b.DestQP(), serviceOf(b.Opcode())}
	r := a.row(k, h.Time, s.WrongICRC)
	if r == nil {
		return
	}
	r.last = max(r.last, h.Time)
	switch {
	case s.WrongICRC:
		if r.firstSight(p, a.seed, v.IB) {
			r.wrong++
		} else {
			a.p.WrongICRC--
			a.p.TwiceSeen++
		}
		a.dot(r, p, MarkLost)
		return
	case h.Cut && !s.Read:
		if r.firstSight(p, a.seed, v.IB) {
			r.addCut(v)
		} else {
			a.p.TwiceSeen++
		}
		return
	}
	sent, arrived := s.Sent, s.Arrived
	if k.service == bth.UD || k.service == bth.CNP {
		sent = r.firstSight(p, a.seed, v.IB)
		arrived = p.Dir == rules.Rx || p.Dir == rules.Unknown && sent
	}
	if !sent {
		a.p.TwiceSeen++
	}
	if s.Cause != rules.NotAgain && cause != rules.NotAgain {
		s.Cause = cause // its sender knows
	}
	r.add(p, s, s.Cause, sent, arrived)
	if h.Cut && sent {
		r.cut++
	}
	if gone := p.Fate == rules.Lost || p.Fate == rules.Dropped; sent || gone {
		a.dot(r, p, markOf(v, s.Cause, p.Fate))
	}
}

// serviceOf is the service that a packet is counted with: masked atomics are of RC.
func serviceOf(o bth.Opcode) bth.Service {
	if o.Service() == bth.Vendor {
		return bth.RC
	}
	return o.Service()
}

// row returns the row of a key; nil if there is none, and none is made for known only or for want of room.
func (a *analysis) row(k key, now int64, known bool) *row {
	if a.latest != nil && a.latest.key == k {
		return a.latest
	}
	r := a.rows[k]
	if r == nil {
		switch {
		case known:
			return nil
		case len(a.rows) >= maxRows:
			a.outside++
			return nil
		}
		r = &row{key: k, first: now}
		a.rows[k] = r
	}
	a.latest = r
	return r
}

// nothing says why there is nothing to judge.
func (a *analysis) nothing(in []Input) error {
	names := make([]string, len(in))
	for i := range in {
		names[i] = in[i].Name
	}
	what := fmt.Sprintf("%d packets", a.p.Total)
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{a.p.RoCEv1, "%d of RoCEv1, which is not judged"},
		{a.p.Fragments, "%d UDP fragments, which are not judged"},
		{a.p.UnknownLink, "%d of a link type that cannot be read (" + a.unknownLink() + ")"},
	} {
		if x.n > 0 {
			what += ", " + fmt.Sprintf(x.text, x.n)
		}
	}
	advice := "RoCE goes to UDP port 4791 (--port for others), and an adapter's own traffic is seen only with `tcpdump -i` on the RDMA device, on a mirror port, or in `softnic run --capture`"
	switch {
	case a.p.Total == 0:
		what = "no packets at all"
	case a.p.UnknownLink == a.p.Total:
		advice = "capture on an Ethernet or IP interface"
	case a.p.RoCEv1 > 0:
		advice = "only RoCEv2 is judged: the adapter's GIDs of type RoCE v2 use it (ibv_*_pingpong -g)"
	}
	return &FileError{strings.Join(names, " "), fmt.Errorf("no RoCE packets: %s; %s", what, advice)}
}

func (a *analysis) unknownLink() string {
	for _, f := range a.files {
		for _, i := range f.r.Interfaces() {
			if !i.Link.Known() && i.Packets > 0 {
				return i.Link.String()
			}
		}
	}
	return ""
}
