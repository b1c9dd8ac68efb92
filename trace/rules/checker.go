package rules

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// What captures tell, in the words of package trace.
type (
	Direction    = trace.Direction
	Fate         = trace.Fate
	Completeness = trace.Completeness
)

// The values of these; see package trace.
const (
	Unknown = trace.Unknown
	Tx      = trace.Tx
	Rx      = trace.Rx

	Passed   = trace.Passed
	Dropped  = trace.Dropped
	Lost     = trace.Lost
	Held     = trace.Held
	Copied   = trace.Copied
	Released = trace.Released
	Forged   = trace.Forged

	Auto       = trace.Auto // here: complete for packets that have a direction
	Complete   = trace.Complete
	Incomplete = trace.Incomplete
)

// Packet is one packet of a capture.
type Packet struct {
	Number uint64 // as the capture counts
	Time   int64  // ns since any moment; that it does not go back is a rule, too
	Dir    Direction
	Iface  int        // which interface of the capture saw it
	Fate   Fate       // what became of it
	Fault  wire.Fault // why the receiver dropped it (Dropped), or why View could not be filled
	Cut    bool       // the capture has only the beginning of it
	Round  int        // Tx: how often the request was sent before, if its sender tells
	View   *wire.View // valid during the call only
}

// Attr is what was agreed for the requests of one end of a connection. Zero is unknown.
type Attr struct {
	Depth    int // READs and atomics unanswered; -1: none
	Timeout  int // local ACK timeout code; -1: no timer
	RetryCnt int // retries; -1: none
}

// End is one end of a connection.
type End struct {
	Addr netip.Addr
	QPN  uint32
	Attr Attr // of the requests that it sends
}

// Connection is what is known of a connection.
type Connection struct {
	A, B End
	MTU  int // path MTU in bytes; 0: unknown
}

// CNPMode says between which CNPs an interval is kept.
type CNPMode uint8

// The modes.
const (
	CNPPerPair CNPMode = iota // those from one address to one other
	CNPPerPort                // all that a port sends
	CNPPerDest                // those that a port sends to one address
	CNPPerQP                  // those from one address to one queue pair
)

// Options are the settings of a checker. The zero value is fine.
type Options struct {
	Connections []Connection  // what is known beforehand
	Default     Attr          // for all other connections, and where those have zeros
	Capture     Completeness  // whether the capture lost packets
	Unruly      bool          // the network before the place of the capture may reorder or double packets
	NoICRC      bool          // do not compute the ICRC
	TrustCut    bool          // judge packets that are Cut by their headers, as if their ICRC were right; zeros stand for what is missing
	CNPInterval time.Duration // least time between two CNPs; 0: unknown
	CNPMode     CNPMode       // of which
	Slack       time.Duration // how exact timers are taken, beside what the place of the capture makes unsure
	Examples    int           // violations told per rule; 0: 20
	// Conversations and Packets bound the memory: queue pairs that packets go to, and
	// request packets remembered in all. 0: 4096 and 262,144 (about 30 MB).
	Conversations, Packets int
}

const (
	// inFlight is how long a packet may be on its way through the sending host: what it
	// sends so soon after an answer was captured may not have known the answer.
	inFlight = int64(time.Millisecond)
	// wayBehind bounds the same where the capture was made on the way, round trip included.
	wayBehind = 10 * int64(time.Millisecond)
)

// Checker judges packets. It is not safe for concurrent use.
type Checker struct {
	o       Options
	seed    maphash.Seed
	tally   [Count]tally
	p       *Packet // under judgement
	flows   map[flowKey]*flow
	pairs   map[pairKey]*pair
	cnps    map[cnpKey]int64 // when the last CNP was sent
	known   map[endKey]known
	hosts   map[netip.Addr]bool // where the capture was made
	cm      cmState
	lru     flow       // head of the list of flows, the latest used first
	wrong   [16]uint64 // packets that were wrong by themselves
	wrongAt int
	records int // room left for remembered packets, over all flows
	stamps  [maxIfaces]stamp
	sights  sightings // of packets without a direction
	steps   uint64    // how often time has gone back
	seen    Seen      // of the packet under judgement
}

// New returns a checker.
func New(o Options) *Checker {
	if o.Examples == 0 {
		o.Examples = 20
	}
	if o.Conversations <= 0 {
		o.Conversations = 4096
	}
	if o.Packets <= 0 {
		o.Packets = 1 << 18
	}
	c := &Checker{
		o: o, seed: maphash.MakeSeed(), records: o.Packets,
		flows: map[flowKey]*flow{}, pairs: map[pairKey]*pair{}, cnps: map[cnpKey]int64{}, known: map[endKey]known{}, hosts: map[netip.Addr]bool{},
	}
	c.lru.newer, c.lru.older = &c.lru, &c.lru
	for i := range o.Connections {
		c.learnConnection(&o.Connections[i])
	}
	return c
}

// Add judges the next packet, in order of time. Of packets with the same time
// those received come first: what a host sends may follow from them.
func (c *Checker) Add(p *Packet) Seen {
	c.p, c.seen = p, Seen{Latency: -1}
	c.judge(p)
	c.p = nil
	return c.seen
}

// Connect tells of a connection that is made now. Queue pairs that it names have nothing to do any more with what they did before.
func (c *Checker) Connect(n Connection) {
	c.learnConnection(&n)
	c.restart(n.A.Addr, n.A.QPN)
}

func (c *Checker) judge(p *Packet) {
	v := p.View
	c.stamp(p)
	if v == nil || !c.wellFormed(p) {
		if v != nil && p.Cut && len(v.Net) > 0 {
			c.marked(p) // its CNP may be short enough to be whole
		}
		return
	}
	c.seen.Read = true
	if p.Cut {
		c.unknown(ICRC, whyCut)
		c.unknown(Pad, whyCut)
	} else if !c.goodICRC(p) {
		c.seen.WrongICRC = true
		return
	} else {
		c.pad(v)
	}
	b := v.BTH()
	op := b.Opcode()
	service := serviceOf(op)
	if p.Fate == Forged {
		c.forged(service)
		return
	}
	switch service {
	case bth.CNP:
		c.cnp(p)
		return
	case bth.UD:
		c.datagram(p)
		return
	case bth.RC, bth.UC, bth.XRC:
	default:
		return // RD is not carried over RoCE
	}
	c.marked(p)
	f := c.flow(keyOf(v))
	if f.steps != c.steps {
		f.steps, f.req.stepped = c.steps, true
	}
	sent, arrived := c.sighting(f, p)
	c.seen.Sent, c.seen.Arrived = sent, arrived
	defer c.look(f)
	if v.Info.Has(bth.Response) {
		c.response(f, sent, arrived)
		return
	}
	if sent {
		c.request(f)
	}
	if arrived && service != bth.UC {
		c.arrival(f)
	}
}

// forged takes what nobody has sent: it binds its receiver alone.
func (c *Checker) forged(service bth.Service) {
	p := c.p
	v := p.View
	switch service {
	case bth.UD:
		c.marked(p)
		return
	case bth.RC, bth.UC, bth.XRC:
	default:
		return
	}
	c.marked(p)
	f := c.flow(keyOf(v))
	f.loose = true
	c.fingerprint(f, p)
	arrived := p.Fault == wire.OK || reached(p.Fault)
	if p.Dir == Tx {
		arrived = !f.hasRx
	}
	c.seen.Arrived = arrived
	switch {
	case v.Info.Has(bth.Response):
		c.response(f, false, arrived)
	case arrived && service != bth.UC:
		c.arrival(f)
	}
}

// serviceOf is the service whose rules an opcode keeps: masked atomics are those of reliable
// connections.
func serviceOf(o bth.Opcode) bth.Service {
	if o == bth.MaskedCompareSwap || o == bth.MaskedFetchAdd {
		return bth.RC
	}
	return o.Service()
}

// keyOf is the key of the flow that a packet belongs to.
func keyOf(v *wire.View) flowKey {
	b := v.BTH()
	return flowKey{v.Src(), v.Dst(), b.DestQP(), serviceOf(b.Opcode())}
}

// sighting says what a packet tells: that its sender has sent it, that its receiver got
// it, both (between the two, as long as there is nothing better), or nothing new.
func (c *Checker) sighting(f *flow, p *Packet) (sent, arrived bool) {
	c.fingerprint(f, p)
	if p.Fate == Held || p.Fate == Copied || p.Fate == Released {
		f.loose = true
	}
	old := p.Fate == Copied || p.Fate == Released
	switch p.Dir {
	case Tx:
		if !f.hasTx {
			c.captured(f.key.src)
			f.hasTx = true
		}
		again := old || p.Fate != Held && f.wasHeld(&f.heldTx)
		if p.Fate == Held {
			f.hold(&f.heldTx)
		}
		gone := p.Fate == Lost || p.Fate == Held || p.Fate == Dropped
		return !again && p.Fate != Dropped, !gone && !f.hasRx
	case Rx:
		if !f.hasRx {
			c.captured(f.key.dst)
			f.hasRx = true
		}
		again := old || p.Fate != Held && f.wasHeld(&f.heldRx)
		if p.Fate == Held {
			f.hold(&f.heldRx)
		}
		return !again && !f.hasTx, p.Fate == Passed || p.judged() && (p.Fault == wire.OK || reached(p.Fault))
	}
	if c.sights.again(f, p) {
		return false, false
	}
	return !f.hasTx, !f.hasRx
}

// captured notes that the capture was made at a host: what comes to it or leaves it is seen
// there, also by flows of which nothing was seen yet.
func (c *Checker) captured(host netip.Addr) {
	if c.hosts[host] {
		return
	}
	if len(c.hosts) >= maxKnown {
		clear(c.hosts)
	}
	c.hosts[host] = true
	for _, f := range c.flows {
		f.hasTx = f.hasTx || f.key.src == host
		f.hasRx = f.hasRx || f.key.dst == host
	}
}

// reached reports whether a packet that was dropped for f had reached the engine.
func reached(f wire.Fault) bool { return f >= wire.NoReceive && f != wire.Impaired }

// whole reports whether the capture has all packets of the kind of the one at hand that passed.
func (c *Checker) whole() bool {
	switch c.o.Capture {
	case Complete:
		return true
	case Incomplete:
		return false
	}
	return c.p.Dir != Unknown
}

// wholeFlow is whole for another flow than that of the packet at hand.
func (c *Checker) wholeFlow(f *flow) bool {
	switch c.o.Capture {
	case Complete:
		return true
	case Incomplete:
		return false
	}
	return f.hasTx || f.hasRx
}
