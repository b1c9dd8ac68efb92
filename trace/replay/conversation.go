package replay

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"slices"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// seen is a packet of the capture that belongs to a conversation.
type seen struct {
	number int   // as the capture counts, from 1
	time   int64 // ns
	dir    trace.Direction
	fate   trace.Fate
	fault  wire.Fault // as its receiver says
	before bool       // it is as it was before a rule changed it
	iface  int        // which of the capture saw it; -1: it does not tell
	v      wire.View
	op     bth.Opcode
	psn    bth.PSN
	n      int   // PSNs that it takes: those of a READ are its responses
	at     int   // place in the order of the capture
	pos    int64 // its PSN, counted on from the first of the conversation instead of modulo 2^24
	lost   bool  // it did not arrive
	again  bool  // it came again: softnic had executed its PSN
	// refused is what the recorded NIC answered to this very packet in place of taking it: an RNR NAK, or an error NAK; 0: neither.
	refused bth.Syndrome
	// Of the packet that takes a receive: that is too short, or its entry is bad, as a later NAK tells.
	short   int // bytes that it has; -1: enough
	badRecv bool
	replies []*seen // of a READ or atomic: the recorded answers
}

// taken reports whether a softnic says that it took it.
func (s *seen) taken() bool { return s.dir == trace.Rx && s.fault == wire.OK }

// known reports whether a softnic says that it had executed its PSN before.
func (s *seen) known() bool {
	return s.dir == trace.Rx && (s.fault == wire.Duplicate || s.fault == wire.DuplicateUnserved)
}

// idle reports whether a softnic says that it did nothing for it: that came before its turn, or to a queue pair that takes nothing.
func (s *seen) idle() bool {
	switch s.fault {
	case wire.OK, wire.Duplicate, wire.NotReady, wire.BadRequest, wire.LocalMemory:
		return false
	}
	return s.dir == trace.Rx
}

// repeats reports whether it is an answer that a softnic's rules had to do with, as it went on. The capture has it before, as it was made: that is
// what the NIC has answered, and when.
func (s *seen) repeats() bool {
	return s.has(bth.Response) && (s.fate == trace.Released || s.fate == trace.Copied || s.fate == trace.Forged)
}

// onPurpose reports whether a softnic lost it, or held it back.
func (s *seen) onPurpose() bool { return s.fate == trace.Lost || s.fate == trace.Held }

func (s *seen) has(f bth.Flags) bool { return s.v.Info.Has(f) }

// aeth returns the syndrome and MSN of an answer; ok is false for one without.
func (s *seen) aeth() (bth.Syndrome, uint32, bool) {
	h := bth.AETH(s.v.Header(bth.HAETH))
	if h == nil {
		return 0, 0, false
	}
	return h.Syndrome(), h.MSN(), true
}

// flowKey is what goes from one address to one queue pair of another.
type flowKey struct {
	src, dst netip.Addr
	qpn      uint32
	service  bth.Service
}

// reliable reports whether requests are answered.
func (k *flowKey) reliable() bool { return k.service == bth.RC || k.service == bth.XRC }

// flow is what was seen of that. Requests are those of src, answers are those to requests of dst.
type flow struct {
	key       flowKey
	requests  []*seen
	answers   []*seen
	atSource  bool // answers were seen where they were sent
	atTarget  bool // requests were seen where they arrived
	impaired  bool // a softnic lost or held back some of it on purpose
	peer      *flow
	ambiguous bool
}

// recording is a capture, sorted.
type recording struct {
	flows  []*flow // in order of appearance
	byKey  map[flowKey]*flow
	last   int64 // time of the last packet of all
	frames int   // RoCE packets
	bytes  int   // of these
	bad    int   // packets that no NIC would take: malformed, a wrong ICRC, cut
}

// The bounds of what is kept in memory, where a packet takes about 900 bytes beside its own. Variables so that a test can lower them.
var (
	mostFrames = 2 << 20
	mostBytes  = 1 << 30
)

// errTooLong is over a capture beyond them.
var errTooLong = errors.New("the capture is too long to be kept in memory, and was replayed to here: `editcap -c 1000000 FILE PART.pcapng` makes several of it")

// maxFlows bounds what is looked at for one pair of addresses.
const maxFlows = 1024

// source is where packets come from, in order of time: a trace.Stream.
type source interface {
	Next() (*trace.Sighting, error)
	Last() int64
}

// listen reads a capture. With an error there is what was read before it.
func listen(src source) (*recording, error) {
	r := &recording{byKey: map[flowKey]*flow{}}
	var failed error
	for n := 0; ; n++ {
		p, err := src.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				failed = err
			}
			break
		}
		if p.Kind != trace.RoCE {
			continue
		}
		if r.frames == mostFrames || r.bytes > mostBytes {
			failed = errTooLong
			break
		}
		r.frames++
		r.bytes += len(p.IP)
		r.last = max(r.last, p.Time)
		if s := r.parse(p); s != nil {
			s.at = n
			r.add(s)
		}
	}
	r.last = max(r.last, src.Last())
	for _, f := range r.flows {
		f.requests, f.atTarget = choose(f.requests, trace.Rx)
		f.answers, f.atSource = choose(f.answers, trace.Tx)
	}
	r.pair()
	return r, failed
}

// parse returns a packet that has been on the wire, if a NIC could take it, and its receiver's program did not make it up.
func (r *recording) parse(p *trace.Sighting) *seen {
	s := &seen{number: int(p.Number), time: p.Time, dir: p.Dir, fate: p.Fate, fault: p.Fault, before: p.Before, iface: p.Iface, n: 1, short: -1}
	if p.Link == trace.LinkSLL {
		s.iface = -1
	}
	frame := p.Frame
	frame.IP = bytes.Clone(p.IP)
	f := frame.View(&s.v)
	switch {
	case f != wire.OK && f != wire.ReservedOpcode, p.Cut:
		r.bad++
		return nil
	}
	s.op, s.psn = s.v.BTH().Opcode(), s.v.BTH().PSN()
	flushed := s.op.Service() == bth.RC && s.op.Operation() == bth.Flush // rdma_rxe's ICRC of it is wrong
	switch {
	case !wire.CheckICRC(&s.v) && !flushed:
		r.bad++
		return nil
	case p.Fate == trace.Dropped && p.Dir == trace.Tx: // it was never sent
		return nil
	case s.has(bth.Response) && (p.Forged || p.Changed): // it is not what its sender said: what that was stands before it
		return nil
	}
	return s
}

// flow returns the flow that a packet belongs to.
func (r *recording) flow(s *seen) *flow {
	service := s.op.Service()
	if service == bth.Vendor {
		service = bth.RC // the masked atomics
	}
	k := flowKey{s.v.Src(), s.v.Dst(), s.v.BTH().DestQP(), service}
	f := r.byKey[k]
	if f == nil {
		f = &flow{key: k}
		r.byKey[k] = f
		r.flows = append(r.flows, f)
	}
	return f
}

// add sorts a packet into its flow.
func (r *recording) add(s *seen) {
	f := r.flow(s)
	switch {
	case s.onPurpose() && !s.has(bth.Response):
		f.impaired = true
	case s.has(bth.Response):
		f.answers = append(f.answers, s)
	default:
		f.requests = append(f.requests, s)
	}
}

// choose keeps, of several sightings of the same packets, those of the better place: best, else between, else the other
// end. whole says that it is best. Where a capture was made, what was lost there on purpose does not tell: that may be all that there is.
func choose(l []*seen, best trace.Direction) (out []*seen, whole bool) {
	have := map[trace.Direction]bool{}
	for _, s := range l {
		if !s.onPurpose() || s.before {
			have[s.dir] = true
		}
	}
	at := trace.Unknown
	switch {
	case have[best]:
		at, whole = best, true
	case !have[trace.Unknown]:
		at = trace.Tx + trace.Rx - best
	}
	several := slices.ContainsFunc(l, func(s *seen) bool { return s.iface < 0 || s.iface != l[0].iface })
	for _, s := range l {
		if s.dir == at && !s.repeats() && !(at == trace.Unknown && several && again(out, s)) {
			out = append(out, s)
		}
	}
	return out, whole
}

// again reports whether a packet was seen a moment ago on another interface, as with tcpdump -i any.
func again(l []*seen, s *seen) bool {
	const moment = 10_000_000 // ns
	for i := len(l) - 1; i >= 0 && s.time-l[i].time < moment; i-- {
		if (l[i].iface != s.iface || s.iface < 0) && bytes.Equal(l[i].v.Net, s.v.Net) && bytes.Equal(l[i].v.IB, s.v.IB) {
			return true
		}
	}
	return false
}

// pair finds the flows that are the two directions of a connection: packets name only the queue pair that they go to. Of the flows back
// it is the one whose answers fit the requests best, in both directions, where no other flow can be meant; or the only one there is.
func (r *recording) pair() {
	type addrs struct {
		a, b    netip.Addr
		service bth.Service
	}
	by := map[addrs][]*flow{}
	for _, f := range r.flows {
		if f.key.reliable() {
			k := addrs{f.key.src, f.key.dst, f.key.service}
			by[k] = append(by[k], f)
		}
	}
	can := map[*flow][]*flow{} // those that fit best
	for _, f := range r.flows {
		if !f.key.reliable() {
			continue
		}
		there, back := by[addrs{f.key.src, f.key.dst, f.key.service}], by[addrs{f.key.dst, f.key.src, f.key.service}]
		switch top := 0; {
		case len(there) == 1 && len(back) == 1 && back[0] != f:
			can[f] = back
		case len(there) > maxFlows || len(back) > maxFlows:
			f.ambiguous = true
		default:
			for _, g := range back {
				n := 0
				if g != f {
					n = fits(f, g) + fits(g, f)
				}
				if n > top {
					top, can[f] = n, nil
				}
				if n > 0 && n == top {
					can[f] = append(can[f], g)
				}
			}
		}
	}
	for more := true; more; {
		more = false
		only := map[*flow]int{} // how many can be of no other
		for _, l := range can {
			if len(l) == 1 {
				only[l[0]]++
			}
		}
		for f, l := range can {
			if len(l) != 1 || only[l[0]] != 1 || !slices.Contains(can[l[0]], f) {
				continue
			}
			g := l[0]
			f.peer, g.peer, more = g, f, true
			delete(can, f)
			delete(can, g)
			for o, l := range can {
				can[o] = slices.DeleteFunc(slices.Clone(l), func(x *flow) bool { return x == f || x == g })
			}
			break
		}
	}
	for f, l := range can {
		f.ambiguous = f.ambiguous || len(l) > 0
	}
}

// fits counts the answers of g that are to requests of f: the last thing that was sent with their PSN is of their kind.
func fits(f, g *flow) (n int) {
	kinds := map[bth.PSN]bth.Flags{}
	i := 0
	for _, a := range g.answers {
		for ; i < len(f.requests) && f.requests[i].at < a.at; i++ {
			q := f.requests[i]
			if q.fault == wire.NoQP {
				continue // nobody answers it
			}
			kinds[q.psn] = q.v.Info.Flags&(bth.Read|bth.Atomic) | bth.Request
		}
		k, ok := kinds[a.psn]
		switch {
		case a.op.Operation() == bth.Acknowledge, a.has(bth.Middle), a.has(bth.Read) && a.has(bth.End):
		case a.has(bth.Read):
			ok = ok && k&bth.Read != 0
		case a.has(bth.Atomic):
			ok = ok && k&bth.Atomic != 0
		}
		if ok {
			n++
		}
	}
	return n
}
