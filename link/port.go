package link

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire/bth"
)

// loopLen is how many packets to the device itself may wait: four times the
// default send window at the smallest MTU would be wasteful, one time is not.
const loopLen = 4096

// PortOptions are the settings of a port. The zero value is an unimpaired, uncaptured
// port under the machine's clock.
type PortOptions struct {
	Clock      clock.Clock   // nil: clock.Real
	Impair     *impair.Rules // nil: none; rules can be added to it while the port runs
	Capture    Sink          // nil: none; see also Port.SetCapture. The port does not close it
	Logger     *slog.Logger  // nil: silent
	Inline     bool          // stepped: no goroutine and no timer; see Port.Flush and Port.Next
	IgnoreICRC bool          // accept packets with a wrong ICRC; they are counted

	// Forge returns what an answer has to have that a rule forges (impair: answer=): where request went out, from queue pair qpn of
	// the device, an answer of its peer; else one of queue pair qpn, to the peer. nil: none are forged. It is called
	// with a lock of the port held, and must not call the port. device.Open sets it.
	Forge func(qpn uint32, psn bth.PSN, out bool) (f Forged, ok bool)

	// RxeFlushICRC is for peers on rdma_rxe, which computes the ICRC of a FLUSH wrongly: FLUSH is sent with
	// that ICRC, and accepted with it as well as with the right one. Any other peer drops such a FLUSH.
	RxeFlushICRC bool
}

// Forged is what a forged answer has.
type Forged struct {
	To  uint32 // queue pair that gets it
	MSN uint32 // in its AETH: messages that the one who would have answered has executed, 24 bits
}

// Port joins an Endpoint with framing, impairment, capture and the loop for packets to the
// device's own addresses.
//
// All methods may be called from any goroutine, Send also by several at once, except
// that a batch belongs to one goroutine from Recv to Done.
type Port struct {
	ep     Endpoint
	clk    clock.Clock
	rules  *impair.Rules
	log    *slog.Logger
	inline bool
	noICRC bool
	quirk  bool // PortOptions.RxeFlushICRC
	forge  func(qpn uint32, psn bth.PSN, out bool) (Forged, bool)

	view  atomic.Pointer[portView]
	sink  atomic.Pointer[Sink]
	loop  *Queue
	tx    txState
	rx    rxState
	count portCounters

	groups groups

	mu     sync.Mutex // what follows, and the order of changes to view
	local  []netip.Addr
	notify func()
	closed bool
}

// portView is what sending and parsing need to know of the endpoint; replaced as a
// whole when something changes.
type portView struct {
	info  Info
	local []netip.Addr // Info.Addrs and SetLocal
	quirk bool         // Port.quirk, where framing finds it
}

func (v *portView) isLocal(a netip.Addr) bool { return slices.Contains(v.local, a) }

// portCounters are the port's own counters; Port.Counters names them.
type portCounters struct {
	tooLong, impairedTx, impairedRx, changedTx, changedRx, forged, overflow, icrcIgnored stats.Counter
}

// NewPort returns a port over ep, which it closes at the end. There is nothing yet that can fail. device.Open makes the port of
// a device.
func NewPort(ep Endpoint, opts PortOptions) (*Port, error) {
	p := &Port{
		ep: ep, clk: clock.Or(opts.Clock), rules: opts.Impair, log: opts.Logger,
		inline: opts.Inline, noICRC: opts.IgnoreICRC, quirk: opts.RxeFlushICRC, forge: opts.Forge,
	}
	if p.rules == nil {
		p.rules = new(impair.Rules)
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.loop = NewQueue(loopLen, p.clk)
	p.tx.init()
	p.SetCapture(opts.Capture)
	p.refresh()
	ep.Watch(p.changed)
	return p, nil
}

// Source is one stream of received packets; a device reads each source from one goroutine at a time.
type Source interface {
	// Recv is that of Endpoint.
	Recv(b *Batch, wait bool) error
}

// Poller is an Endpoint that can be waited for by another goroutine than that which receives.
type Poller interface {
	// Await blocks until there may be something that Recv without wait brings, or until Wake, also one before the call. One goroutine
	// at a time calls it. It costs nothing while nobody does. The error is net.ErrClosed.
	Await() error
	// Wake ends an Await that is under way, or the next.
	Wake()
}

// Poller returns the endpoint's, for the first of Sources; false: it has none, and Recv waits.
func (p *Port) Poller() (Poller, bool) { return ability[Poller](p.ep) }

// Sources returns the endpoint's stream and that of packets which the device sent to
// itself. The second also brings back received packets that impairment delayed.
func (p *Port) Sources() []Source { return []Source{portSource{p, p.ep}, portSource{p, p.loop}} }

type portSource struct {
	p *Port
	s Source
}

func (s portSource) Recv(b *Batch, wait bool) error {
	if len(b.later) > 0 {
		s.p.inject(b) // the device did not call Done
	}
	if s.p.inline {
		s.p.Flush(s.p.clk.Now())
	}
	return s.s.Recv(b, wait)
}

// Info returns the endpoint's Info as the port goes by it. Its slices are not to be changed.
func (p *Port) Info() Info { return p.view.Load().info }

// Watch has f called whenever Info changed, see Endpoint.Watch; nil ends it. A device has taken it.
func (p *Port) Watch(f func()) {
	p.mu.Lock()
	p.notify = f
	p.mu.Unlock()
}

// Impair returns the port's rules, to list and change them; never nil.
func (p *Port) Impair() *impair.Rules { return p.rules }

// SetCapture makes s take the records of all packets from now on; nil ends it. The
// sink before it is not closed; it is no longer called once a send or a Done that is
// under way has ended.
func (p *Port) SetCapture(s Sink) {
	if s == nil {
		p.sink.Store(nil)
		return
	}
	p.sink.Store(&s)
}

// SetLocal tells the port which addresses are the device's own, beside Info.Addrs:
// the addresses of its GID table. What is sent to them goes to the loop.
func (p *Port) SetLocal(addrs []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.local = slices.Clone(addrs)
	p.refreshLocked()
}

// Local reports whether a is an address of the device itself.
func (p *Port) Local(a netip.Addr) bool { return p.view.Load().isLocal(a) }

func (p *Port) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refreshLocked()
}

func (p *Port) refreshLocked() {
	v := &portView{info: p.ep.Info(), quirk: p.quirk}
	v.info.MaxSegs = max(v.info.MaxSegs, 1)
	for _, a := range v.info.Addrs {
		v.local = append(v.local, a.Addr())
	}
	v.local = append(v.local, p.local...)
	p.view.Store(v)
}

// changed is called by the endpoint.
func (p *Port) changed() {
	p.refresh()
	p.mu.Lock()
	f := p.notify
	p.mu.Unlock()
	if f != nil {
		f()
	}
}

// Flush sends and delivers what impairment held back and is due at now. Only a
// stepped port needs it; Send and Recv of one do it too.
func (p *Port) Flush(now time.Time) {
	p.flushTx(now)
	p.flushRx(now)
}

// Next returns when Flush has something to do; false: never, as things are.
func (p *Port) Next() (time.Time, bool) {
	p.tx.mu.Lock()
	at, ok := p.tx.held.next()
	p.tx.mu.Unlock()
	p.rx.mu.Lock()
	defer p.rx.mu.Unlock()
	if at2, ok2 := p.rx.held.next(); ok2 && (!ok || at2.Before(at)) {
		return at2, true
	}
	return at, ok
}

// counting is an endpoint with counters of its own.
type counting interface{ Counters() []stats.Value }

// Counters returns the counters of the port, in packets, and behind them those of its endpoint.
func (p *Port) Counters() []stats.Value {
	c := &p.count
	v := []stats.Value{
		{Name: "tx_too_long", Value: c.tooLong.Load()},      // IP packets above the link's MTU
		{Name: "tx_impaired", Value: c.impairedTx.Load()},   // dropped or held back by a rule
		{Name: "rx_impaired", Value: c.impairedRx.Load()},   // likewise
		{Name: "tx_changed", Value: c.changedTx.Load()},     // bytes changed, or marked, by a rule
		{Name: "rx_changed", Value: c.changedRx.Load()},     // likewise
		{Name: "forged", Value: c.forged.Load()},            // answers that rules have made
		{Name: "impair_lost", Value: c.overflow.Load()},     // to be held back, and there were too many
		{Name: "loop_lost", Value: p.loop.Lost()},           // to the device itself, and the loop was full
		{Name: "icrc_ignored", Value: c.icrcIgnored.Load()}, // wrong ICRC, accepted as PortOptions.IgnoreICRC asks
	}
	if e, ok := ability[counting](p.ep); ok {
		v = append(v, e.Counters()...)
	}
	return v
}

// Close closes the endpoint and ends all sources with net.ErrClosed. The error is the endpoint's. It is idempotent.
func (p *Port) Close() error {
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.notify = nil
	p.mu.Unlock()
	if was {
		return nil
	}
	p.ep.Watch(nil)
	err := p.ep.Close() // before the lock: a Send may be waiting in the endpoint
	p.loop.Close()
	p.tx.mu.Lock()
	p.tx.closed = true
	p.tx.held.drop()
	p.tx.mu.Unlock()
	p.rx.mu.Lock()
	p.rx.closed = true
	p.rx.held.drop()
	p.rx.mu.Unlock()
	return err
}
