package device

import (
	"cmp"
	"crypto/rand"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/transport/rc"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Options of a device. The zero value is a device for production.
type Options struct {
	Name         string           // for people and tools; "" means rxe_softnic0: the stock verbs provider matches the prefix rxe
	Clock        clock.Clock      // nil: the machine's; of a stepped device it says when it begins, and no more
	Rand         io.Reader        // keys, queue pair numbers, PSNs; nil, and when it fails: crypto/rand
	Logger       *slog.Logger     // nil: silent; it is called with locks held and must not call the device
	Stepped      bool             // no goroutines: the program calls Step
	PlainAtomics bool             // no masked atomics, for which there is no standard wire form; see Attr.MaskedAtomicCap
	Profile      string           // how it behaves where adapters differ, see ProfileByName
	CNP          CNPPacing        // how often it sends congestion notifications; the zero value: as the profile says
	SameKeys     bool             // L_Key and R_Key of a region are equal, as on other adapters
	PKeys        []uint16         // the P_Key table, see ParsePKeys; nil: DefaultPKey alone
	Link         link.PortOptions // impairment and capture; its Clock, Logger and Inline are set by Open
}

// Device is an RDMA adapter with one port: what ibv_get_device_list lists. Open makes it.
type Device struct {
	name     string
	opts     Options
	clock    clock.Clock
	log      *slog.Logger
	port     *link.Port
	start    time.Time
	steps    *clock.Manual // Stepped: the clock, which Step sets; else nil
	rand     io.Reader
	randMu   sync.Mutex
	keys     keys
	profile  Profile
	cnp      notifications
	dispatch *dispatcher
	counters *stats.Counters
	gids     atomic.Pointer[gidTable]
	pkeys    []uint16     // never empty, and never changed
	mtu      atomic.Int32 // active MTU
	up       atomic.Bool  // the port is active, as contexts were told; changed with mu held
	limits   limits       // has its lock
	batches  []*link.Batch
	share    transport.Share
	rx       *receiver // of what the link brings; nil where only a goroutine can receive
	wg       sync.WaitGroup

	qpMu sync.RWMutex
	qps  map[uint32]*QP

	srqs map[uint32]*SRQ // of XRC domains

	mcast mcast // has its locks
	agent agent // likewise

	raws atomic.Pointer[[]*QP] // raw packet queue pairs; nil: none. The list is replaced, with qpMu held, not changed

	following sync.Mutex // one change of the link at a time; before all other locks

	watchMu  sync.Mutex
	watchers map[*func()]struct{} // see Watch

	mu       sync.Mutex
	closed   bool
	failed   bool // the link does not receive any more, and contexts were told
	downs    int  // link.Info.Downs, as far as contexts were told
	contexts map[*Context]struct{}
}

// rxBatch is how many packets one call of the link may bring.
const rxBatch = 64

// Open starts a device on a link endpoint. The device owns the endpoint from then on and closes it; where Open fails the
// endpoint is still the caller's. EINVAL: a profile that does not exist, a link MTU too small for packets of 256 bytes (below
// 336), a bad P_Key table (see ParsePKeys).
func Open(ep link.Endpoint, o Options) (*Device, error) {
	if ep == nil {
		return nil, &OpError{"open_device", "", because(EINVAL, "no link")}
	}
	if o.Name == "" {
		o.Name = "rxe_softnic0"
	}
	d := &Device{
		name: o.Name, opts: o, clock: clock.Or(o.Clock), log: o.Logger, rand: o.Rand,
		keys: newKeys(),
		qps:  map[uint32]*QP{}, srqs: map[uint32]*SRQ{}, contexts: map[*Context]struct{}{},
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.rand == nil {
		d.rand = rand.Reader
	}
	var err error
	if d.profile, err = ProfileByName(o.Profile); err != nil {
		return nil, &OpError{"open_device", "", err}
	}
	d.profile.SameKeys = d.profile.SameKeys || o.SameKeys
	if o.CNP.Mode != CNPDefault {
		d.profile.CNP = o.CNP
	}
	if d.pkeys, err = checkPKeys(o.PKeys); err != nil {
		return nil, &OpError{"open_device", "", err}
	}
	d.counters = stats.NewCounters(int(wire.Faults), nil)
	d.start = d.clock.Now()
	if o.Stepped {
		d.steps = clock.NewManual(d.start)
		d.clock = d.steps
	}
	info := ep.Info()
	if ActiveMTU(info.MTU) == 0 {
		return nil, &OpError{"open_device", info.Name, because(EINVAL, "link MTU %d is too small: the smallest IB MTU, 256, needs %d", info.MTU, 256+headerRoom)}
	}
	lo := o.Link
	lo.Clock, lo.Logger, lo.Inline, lo.Forge = d.clock, d.log, o.Stepped, d.forge
	port, err := link.NewPort(ep, lo)
	if err != nil {
		return nil, &OpError{"open_device", info.Name, err}
	}
	d.port = port
	d.share.Bytes = info.InFlight
	d.gids.Store((*gidTable)(nil).next(info))
	d.up.Store(info.Up)
	d.downs = info.Downs
	d.follow()
	d.dispatch = newDispatcher(o.Stepped)
	for i, src := range port.Sources() {
		if p, ok := port.Poller(); ok && i == 0 && !o.Stepped {
			d.rx = newReceiver(d, src, p)
			d.wg.Add(1)
			go d.rx.loop()
			continue
		}
		b := link.NewBatch(rxBatch)
		if o.Stepped {
			d.batches = append(d.batches, b)
			continue
		}
		d.wg.Add(1)
		go d.receiveLoop(src, b)
	}
	port.Watch(d.follow)
	d.follow() // what changed before
	return d, nil
}

// longest returns the MTU of a service whose messages follow that of the port; 0 for the others.
func (d *Device) longest(t QPType) int {
	switch {
	case t.datagrams():
		return int(d.mtu.Load())
	case t == RawPacket:
		return d.port.Info().MTU
	}
	return 0
}

// now returns the time since Open, from 1 on.
func (d *Device) now() transport.Time {
	return transport.Time(clock.Since(d.clock, d.start)) + 1
}

func duration(t transport.Time) time.Duration { return time.Duration(t) }

// Progress takes in what the link has brought, as CQ.Poll does when it finds nothing, for a program that polls memory; it reports whether there
// was anything. Packets are also taken in when nobody calls it, only later. On links other than UDP, and where somebody else is at
// it, it does nothing.
func (d *Device) Progress() bool { return d.rx != nil && d.rx.look() }

// Name returns Options.Name, or what that means.
func (d *Device) Name() string { return d.name }

// Port returns the device's port to the link, for impairment and capture at run time.
func (d *Device) Port() *link.Port { return d.port }

// Counters returns the device's counters, which go on counting. Drops are by wire.Fault.
func (d *Device) Counters() *stats.Counters { return d.counters }

// Statistics lists all counters by name, in a fixed order, those of the link behind those of the
// device. A packet that was not taken is counted once, as drop_ and its reason.
func (d *Device) Statistics() []stats.Value {
	return append(d.counters.Values(dropName), d.port.Counters()...)
}

// dropName names the drop counters; the verdict OK is none.
func dropName(i int) string {
	if i == int(wire.OK) {
		return ""
	}
	return wire.Fault(i).String()
}

// Query describes the device (ibv_query_device). It does not fail, also not when the device is closed.
func (d *Device) Query() Attr {
	return Attr{
		Name: d.name, NodeGUID: nodeGUID(d.port.Info().MAC), VendorID: 0xFFFFFF, Ports: 1,
		MaxQP: MaxQP, MaxQPWR: MaxQPWR, MaxSGE: MaxSGE, MaxInline: MaxInline, MaxCQ: MaxCQ, MaxCQE: MaxCQE, MaxMR: MaxMR, MaxMW: MaxMW,
		MaxPD: MaxPD, MaxXRCD: MaxXRCD, MaxAH: MaxAH, MaxPKeys: MaxPKeys,
		MaxMcastGrp: MaxMcastGrp, MaxMcastQP: MaxMcastQP, MaxMcastTotal: MaxMcastTotal,
		MaxRawEthyQP: d.maxRaw(), MaxSRQ: MaxSRQ, MaxSRQWR: MaxSRQWR, MaxSRQSGE: MaxSRQSGE,
		MaxRdAtom: MaxRdAtomic, MaxInitRd: MaxRdAtomic, MaxMRSize: ^uint64(0), AckDelay: 15, MaxMessage: MaxMessage,
		Caps: caps, AtomicCap: AtomicHCA, MaskedAtomicCap: d.opts.maskedAtomicCap(),
	}
}

// maxRaw returns how many raw packet queue pairs there can be.
func (d *Device) maxRaw() int {
	if _, err := newSteering(new(Steering), d.port.Info()); err != nil {
		return 0
	}
	return MaxRawQP
}

// addQP gives q its number, mostly a random one, and makes it known to the receive path.
func (d *Device) addQP(q *QP) error {
	d.qpMu.Lock()
	defer d.qpMu.Unlock()
	n, known := wellKnown[q.typ]
	if known && d.qps[n] != nil {
		return because(EINVAL, "the port has a queue pair %d (%s) already", n, q.typ)
	}
	for !known && (n < 0x10 || n == 0xFFFFFF || d.qps[n] != nil) {
		n = d.random32() & 0xFFFFFF
	}
	q.num, q.attr.QPN, q.attr.PathMTU = n, n, d.longest(q.typ)
	if q.typ == RawPacket {
		if err := d.addRaw(q); err != nil {
			return err
		}
	}
	d.qps[n] = q
	return nil
}

// addSRQ gives a shared receive queue of an XRC domain a random number.
func (d *Device) addSRQ(s *SRQ) {
	d.qpMu.Lock()
	defer d.qpMu.Unlock()
	for {
		if n := d.random32() & 0xFFFFFF; n != 0 && d.srqs[n] == nil {
			s.num = n
			d.srqs[n] = s
			return
		}
	}
}

func (d *Device) removeQP(q *QP) {
	d.qpMu.Lock()
	defer d.qpMu.Unlock()
	delete(d.qps, q.num)
	if q.typ == RawPacket {
		d.removeRaw(q)
	}
}

func (d *Device) lookup(qpn uint32) *QP {
	d.qpMu.RLock()
	defer d.qpMu.RUnlock()
	return d.qps[qpn]
}

// forge is link.PortOptions.Forge: what an answer of queue pair qpn, or to what it has sent, would have.
func (d *Device) forge(qpn uint32, psn bth.PSN, out bool) (f link.Forged, ok bool) {
	q := d.lookup(qpn)
	if q == nil {
		return f, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	m, ok := q.eng.(*rc.Machine)
	if !ok || q.dead || q.attr.State < StateRTR || q.attr.Path == nil {
		return f, false
	}
	if out {
		return link.Forged{To: qpn, MSN: m.MSNBefore(psn)}, true
	}
	return link.Forged{To: q.attr.DestQPN, MSN: m.MSN()}, true
}

// send hands packets to the link and counts them; no lock is held. copied, if it is not nil, is set when they are not needed any more.
func (d *Device) send(pkts []*wire.Packet, c *stats.Counters, copied *atomic.Bool) {
	d.countSent(pkts, c)
	if err := d.port.SendNoting(pkts, copied); err != nil {
		c.Inc(stats.SendErr)
	}
}

func (d *Device) countSent(pkts []*wire.Packet, c *stats.Counters) {
	n := 0
	for _, p := range pkts {
		n += p.IBLen()
	}
	c.Add(stats.SentPkts, len(pkts))
	c.Add(stats.SentBytes, n)
}

// Close closes the link and all contexts, and waits until nothing runs. It waits for
// handlers too, so that it must not be called from one. The error is that of closing the endpoint. A second call returns nil at
// once, perhaps before the first one has ended.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	contexts := keysOf(d.contexts)
	d.mu.Unlock()
	d.rx.close()
	// The link first: it lets go of a send that waits, and of whoever waits for that.
	err := d.port.Close()
	for _, c := range contexts {
		_ = c.Close()
	}
	d.wg.Wait()
	d.dispatch.close()
	<-d.dispatch.done
	if err != nil {
		return &OpError{"close_device", d.name, err}
	}
	return nil
}

// QPInfo describes a queue pair for tools: its number QPN, 24 bits, Type and State in words (QPType.String, State.String), DestQPN, the
// peer's number of a connection, 0 before it has one, and the Owner of its context.
type QPInfo struct {
	QPN     uint32 `json:"lqpn"`
	Type    string `json:"type"`
	State   string `json:"state"`
	DestQPN uint32 `json:"rqpn,omitempty"`
	Owner   Owner  `json:"-"`
}

// allQPs copies the table: its lock is not held while that of a queue pair is taken, because an XRC target takes it
// under its own.
func (d *Device) allQPs() []*QP {
	d.qpMu.RLock()
	defer d.qpMu.RUnlock()
	l := make([]*QP, 0, len(d.qps))
	for _, q := range d.qps {
		l = append(l, q)
	}
	return l
}

// QPs lists the queue pairs of the device, those of all contexts, in no order.
func (d *Device) QPs() []QPInfo {
	l := d.allQPs()
	out := make([]QPInfo, 0, len(l))
	for _, q := range l {
		q.mu.Lock()
		out = append(out, QPInfo{q.num, q.typ.String(), q.attr.State.String(), q.attr.DestQPN, q.ctx.owner})
		q.mu.Unlock()
	}
	return out
}

// QPCounters are those of a queue pair, for tools.
type QPCounters struct {
	QPN      uint32        // its number
	Type     string        // as QPType.String has it
	Counters []stats.Value // see QP.Statistics
}

// QPStatistics lists the counters of all queue pairs, by number.
func (d *Device) QPStatistics() []QPCounters {
	l := d.allQPs()
	out := make([]QPCounters, 0, len(l))
	for _, q := range l {
		out = append(out, QPCounters{q.num, q.typ.String(), q.Statistics()})
	}
	slices.SortFunc(out, func(a, b QPCounters) int { return cmp.Compare(a.QPN, b.QPN) })
	return out
}

// String returns the device name and its link, for people: "rxe_softnic0 on udp 127.0.0.1:4791".
func (d *Device) String() string { return d.name + " on " + d.port.Info().Name }
