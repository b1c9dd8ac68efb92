package replay

import (
	"fmt"
	"slices"
	"sort"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// talk is a conversation under replay.
type talk struct {
	c       *Conversation
	f       *flow
	o       *Options
	last    int64 // time of the last packet of the capture
	answers []*seen
	whole   bool // all answers that were sent are in the capture
	mtu     int
	start   int // index of the first request that is fed

	sent   map[int64][]*seen // transmissions of each PSN
	ends   map[int64]int     // where in the capture something was sent that ends before a PSN
	twice  int64             // the first PSN that was sent more than once, and
	top    int64             // the last that is near one
	behind []int64           // of each request from start on: the least PSN that was sent from it on

	qp     *device.QP
	first  bth.PSN             // that softnic's NIC expects
	expect int64               // the next PSN that softnic's NIC expects
	msn    uint32              // messages that it has completed
	done   []progress          // what it has executed
	write  place               // where the WRITE goes on
	ours   []*answer           // what it has answered
	byPSN  map[int64][]*answer // those that no recorded answer was compared with
	left   int                 // requests and answers that are still to come
	pairs  []pair
	cur    *seen  // being fed
	hi     int64  // highest PSN that the recorded NIC has acknowledged
	rnr    int64  // PSN of the last recorded RNR NAK, if it is the last answer; -1
	delta  uint32 // how much more the recorded NIC has counted, by the last answer
	synced bool   // an answer was the same
	lost   *seen  // nothing can be told from this request on; nil: all can
}

// progress is the MSN after the PSNs up to pos.
type progress struct {
	pos int64
	msn uint32
}

// place is an address of a region.
type place struct {
	rkey uint32
	va   uint64
	pos  int64 // PSN of the packet that begins there
	ok   bool
}

func newTalk(r *recording, f *flow, o Options) *talk {
	t := &talk{f: f, o: &o, last: r.last, hi: -1, rnr: -1, sent: map[int64][]*seen{}, ends: map[int64]int{}, byPSN: map[int64][]*answer{}, twice: 1 << 62}
	k := f.key
	t.c = &Conversation{
		Service: k.service.String(), Requester: trace.End{Addr: k.src}, Responder: trace.End{Addr: k.dst, QPN: &k.qpn}, Requests: len(f.requests),
		Notes: []string{}, Findings: []Finding{},
	}
	if f.peer != nil {
		t.answers, t.whole = f.peer.answers, f.peer.atSource
		t.c.Requester.QPN = &f.peer.key.qpn
	}
	t.c.Answers = len(t.answers)
	if k.reliable() {
		switch {
		case f.peer != nil && len(t.answers) > 0:
		case f.ambiguous:
			t.note("which answers are to these requests cannot be told: several connections fit")
		default:
			t.note("its answers are not in the capture")
		}
	}
	t.setMTU()
	old := 0 // requests that came first, and the responder knows from before
	for old < len(f.requests) && f.requests[old].known() {
		old++
	}
	if old > 0 {
		t.note("%d requests are left out: their receiver knows them from before the capture", old)
	}
	for t.start = old; t.start < len(f.requests) && !f.requests[t.start].has(bth.Start); {
		t.start++
	}
	if t.start == len(f.requests) {
		return t
	}
	t.begin(old)
	return t
}

// peer is the requester's queue pair, 0 if it is not known.
func (t *talk) peer() uint32 {
	if t.c.Requester.QPN == nil {
		return 0
	}
	return *t.c.Requester.QPN
}

func (t *talk) note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if !slices.Contains(t.c.Notes, s) {
		t.c.Notes = append(t.c.Notes, s)
	}
}

// setMTU finds the path MTU: what a packet holds that must be full.
func (t *talk) setMTU() {
	t.mtu = t.o.MTU
	for _, l := range [][]*seen{t.f.requests, t.answers} {
		for _, s := range l {
			if t.mtu == 0 && s.has(bth.FullMTU) && s.v.Info.Known() {
				switch n := len(s.v.Payload); n {
				case 256, 512, 1024, 2048, 4096:
					t.mtu = n
				}
			}
		}
	}
	if t.mtu == 0 {
		t.mtu = 4096
		if slices.ContainsFunc(t.f.requests, func(q *seen) bool { _, _, n, _ := names(q); return q.has(bth.Read) && n > 256 }) {
			t.note("path MTU 4096: no packet tells it (--path-mtu)")
		}
	}
	t.c.MTU = t.mtu
}

// plan reads from the answers what became of requests.
func (t *talk) plan() {
	requests := t.f.requests[t.start:]
	t.behind = make([]int64, len(requests)+1)
	t.behind[len(requests)] = 1 << 62
	for i, q := range slices.Backward(requests) {
		t.behind[i] = min(t.behind[i+1], q.pos)
	}
	for _, q := range requests {
		if _, ok := t.ends[q.pos+int64(q.n)]; !ok {
			t.ends[q.pos+int64(q.n)] = q.at
		}
		if t.sent[q.pos] = append(t.sent[q.pos], q); len(t.sent[q.pos]) > 1 {
			t.twice = min(t.twice, q.pos)
			t.top = max(t.top, q.pos+int64(q.n))
		}
	}
	// good[i] is the highest PSN that an answer from i on says was executed.
	good := make([]int64, len(t.answers)+1)
	good[len(t.answers)] = -1 << 62
	for i := len(t.answers) - 1; i >= 0; i-- {
		good[i] = good[i+1]
		if s, _, ok := t.answers[i].aeth(); !ok || s.IsAck() {
			good[i] = max(good[i], t.answers[i].pos)
		}
	}
	rnr := int64(-1)
	for i, a := range t.answers {
		s, _, ok := a.aeth()
		if ok && a.op.Operation() == bth.Acknowledge && !s.IsAck() {
			tx := t.sent[a.pos]
			later := len(tx) > 0 && tx[len(tx)-1].at > a.at
			switch believed := good[i+1] < a.pos; {
			case s == bth.NakSequence && (later || believed) && rnr != a.pos && !t.f.atTarget:
				t.gap(requests, tx, a)
			case s.IsRNR() && (later || believed):
				mark(tx, a, s)
			case s.IsNak() && s != bth.NakSequence && believed:
				if q := mark(tx, a, s); q != nil {
					t.receiver(requests, q, !a.v.BTH().MigReq())
				}
			}
		}
		rnr = -1
		if ok && s.IsRNR() {
			rnr = a.pos
		}
		if a.has(bth.Read) || a.has(bth.Atomic) {
			if q := asked(requests, a); q != nil {
				q.replies = append(q.replies, a)
			}
		}
	}
}

// gap marks what a sequence NAK says was lost: what was sent of its PSN before the packet that showed the gap.
func (t *talk) gap(requests, tx []*seen, nak *seen) {
	for _, q := range requests {
		if q.at > nak.at {
			return
		}
		if q.pos > nak.pos {
			for _, x := range tx {
				// What came before its turn was refused, and did not need to be lost.
				if before, ok := t.ends[x.pos]; x.at < q.at && (x == requests[0] || ok && before < x.at) {
					x.lost = true
				}
			}
			return
		}
	}
}

// mark marks the last transmission before an answer that refuses it.
func mark(tx []*seen, a *seen, s bth.Syndrome) *seen {
	for i := len(tx) - 1; i >= 0; i-- {
		if q := tx[i]; q.at < a.at && !q.lost && q.refused == 0 && !q.taken() && !q.idle() && (q.dir != trace.Rx || s.IsRNR() == (q.fault == wire.NotReady)) {
			q.refused = s
			return q
		}
	}
	return nil
}

// receiver tells from a refused SEND what receive it met: one that was too short, or with a bad entry. rdma_rxe has one NAK for both; where it is
// for a later packet of a message, the receive was too short sooner than bad.
func (t *talk) receiver(requests []*seen, q *seen, rxe bool) {
	if !q.has(bth.Send) || q.refused == bth.NakRemoteAccess {
		return
	}
	for i := sort.Search(len(requests), func(i int) bool { return requests[i].at > q.at }) - 1; i >= 0; i-- {
		s := requests[i]
		if !s.has(bth.Start) || s.pos > q.pos {
			continue
		}
		n := int(q.pos-s.pos)*t.mtu + len(q.v.Payload)
		switch {
		case q.refused == bth.NakRemoteOp && (q == s || !rxe):
			s.badRecv = true
		case n > 0:
			s.short = n - 1
		}
		return
	}
}

// far is how many requests are looked through for that of an answer.
const far = 1 << 15

// asked finds the READ or atomic that an answer is to: the last that has its PSN.
func asked(requests []*seen, a *seen) *seen {
	from := sort.Search(len(requests), func(i int) bool { return requests[i].at > a.at }) - 1
	for i := from; i >= max(0, from-far); i-- {
		q := requests[i]
		if a.pos >= q.pos && a.pos < q.pos+int64(q.n) {
			if q.has(bth.Read) == a.has(bth.Read) && q.has(bth.Atomic) == a.has(bth.Atomic) {
				return q
			}
			return nil
		}
	}
	return nil
}

// kind is the right that a request needs.
func kind(q *seen) device.Access {
	switch op := q.op.Operation(); {
	case q.has(bth.Write), op == bth.AtomicWrite:
		return device.RemoteWrite
	case q.has(bth.Read):
		return device.RemoteRead
	case q.has(bth.Atomic):
		return device.RemoteAtomic
	case op == bth.Flush && q.v.Info.Known(): // RC and XRC have it, elsewhere the opcode is reserved
		var a device.Access
		p := bth.FETH(q.v.Header(bth.HFETH)).Placement()
		if p&1 != 0 {
			a |= device.FlushGlobal
		}
		if p&2 != 0 {
			a |= device.FlushPersistent
		}
		return a
	}
	return 0
}

// names returns the range of memory that a request names.
func names(q *seen) (rkey uint32, va, n uint64, ok bool) {
	if h := bth.RETH(q.v.Header(bth.HRETH)); h != nil {
		return h.RKey(), h.VA(), uint64(h.Length()), true
	}
	if h := bth.AtomicETH(q.v.Header(bth.HAtomicETH)); h != nil {
		return h.RKey(), h.VA(), 8, true
	}
	if h := bth.MaskedETH(q.v.Header(bth.HMaskedETH)); h != nil {
		return h.RKey(), h.VA(), 8, true
	}
	return 0, 0, 0, false
}
