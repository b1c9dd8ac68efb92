package link

import (
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// ringLen is how many frames go to the endpoint in one call.
const ringLen = 64

// maxBurst bounds the UDP payload of a burst: the kernel wants a burst with its
// headers to fit into one IP packet.
const maxBurst = 65535 - wire.MaxNetLen

// roomLen is how many bytes of packets, from the BTH to the ICRC, are under construction at most: ringLen of the longest.
const roomLen = ringLen * (bth.MaxHeader + 4096 + wire.MaxTailLen)

// txState is the sending half of a port.
type txState struct {
	mu     sync.Mutex
	ring   []Frame
	list   []*Frame // framed, in order; element i is &ring[i]
	room   []byte   // where the packets are put together, one behind the other
	used   int      // of it, by those on the list
	all    []*Frame // pointers to the whole ring; list is a prefix of it
	now    time.Time
	forged time.Time   // when the last forged answer came: what is sent because of it is not earlier
	told   OrderedSink // it waits for the records of now; nil: none does
	held   holder[outgoing]
	rec    Record
	sealer wire.Sealer
	closed bool

	// the burst under construction
	path  *wire.Path
	open  bool
	segs  int
	size  int // length of all but the last
	bytes int
}

// outgoing is a packet on its way to be framed.
type outgoing struct {
	*wire.Packet
	change *impair.Change // of its bytes, once it is framed
	note   string         // rule that did more than hold it back
}

func (t *txState) init() {
	t.ring = make([]Frame, ringLen)
	t.all = make([]*Frame, ringLen)
	t.room = make([]byte, roomLen)
	for i := range t.ring {
		t.all[i] = &t.ring[i]
	}
	t.list = t.all[:0]
}

// Send impairs, frames, captures and transmits the packets in order. It keeps none
// of them. What the network refuses is lost as on any wire; the error is
// net.ErrClosed.
func (p *Port) Send(pkts []*wire.Packet) error { return p.SendNoting(pkts, nil) }

// SendNoting is Send that sets copied when none of the packets is needed any more. Of packets that leave in one call that is before the
// first can be answered, which may be long before SendNoting returns. nil: nothing is noted.
func (p *Port) SendNoting(pkts []*wire.Packet, copied *atomic.Bool) error {
	t := &p.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	v := p.view.Load()
	t.now = time.Time{}
	defer t.recorded()
	if p.inline && !t.held.empty() {
		p.release(v, p.txNow())
	}
	if !p.rules.Active(impair.Tx) {
		for _, pk := range pkts {
			p.emit(v, outgoing{Packet: pk})
		}
		if len(t.held.behind) > 0 && len(pkts) > 0 { // the rule is gone, its packets are not
			p.emitOvertaken(v)
		}
		p.note(copied)
		return p.transmit(v)
	}
	for _, pk := range pkts {
		p.impairTx(v, pk)
	}
	p.note(copied)
	err := p.transmit(v)
	p.armTx()
	return err
}

func (p *Port) note(copied *atomic.Bool) {
	if copied == nil {
		return
	}
	if p.sink.Load() != nil {
		p.txNow() // timers that begin with copied do not begin before the packet by the capture
	}
	copied.Store(true)
}

// txNow is the time of the send under way.
func (p *Port) txNow() time.Time {
	if p.tx.now.IsZero() {
		p.tx.begin(p.clk.Now(), p.sink.Load())
	}
	return p.tx.now
}

// begin sets the time of a send and has a sink wait for its records.
func (t *txState) begin(now time.Time, s *Sink) {
	t.now = now
	if now.Before(t.forged) {
		t.now = t.forged // time stands still
	}
	t.tell(s)
}

// tell has a sink wait for the records of the send under way: they come when it has ended.
func (t *txState) tell(s *Sink) {
	if s == nil {
		return
	}
	if o, ok := (*s).(OrderedSink); ok {
		o.Arrived(t.now)
		t.told = o
	}
}

// recorded ends that.
func (t *txState) recorded() {
	if t.told != nil {
		t.told.Handled(t.now)
		t.told = nil
	}
}

// impairTx is the packet stage: it comes before framing, because the IP ID is the index
// in the burst and the ICRC covers it.
func (p *Port) impairTx(v *portView, pk *wire.Packet) {
	t := &p.tx
	e := p.rules.Apply(impair.Tx, pk.Path.Dst, pk.BTH())
	o := outgoing{Packet: pk, change: e.Change}
	if e.Mark {
		o.Packet = marked(pk, e.ECN)
	}
	if (e.Mark || e.Change != nil) && !e.Drop {
		o.note = e.ChangedBy
		p.count.changedTx.Inc()
	}
	switch {
	case e.Drop || e.Delay > 0 || e.Reorder:
		p.count.impairedTx.Inc()
		p.captureUnsent(v, pk, wire.Impaired, e.Rule)
	case o.note != "":
		p.captureUnsent(v, pk, wire.Impaired, o.note) // as it was
	}
	switch {
	case e.Drop:
		if e.Answered && pk.QPN != 0 {
			p.answerTx(v, pk, &e)
		}
		return
	case e.Delay > 0 || e.Reorder:
		o.note = alsoBy(e.ChangedBy, e.Rule)
		for i := range 1 + e.Duplicate {
			if t.held.full() {
				p.count.overflow.Inc()
				return
			}
			if i == 1 {
				o.note = doubled(o.note)
			}
			if e.Delay > 0 {
				t.held.delay(o.copied(), p.txNow().Add(e.Delay))
			} else {
				t.held.swap(o.copied(), p.txNow().Add(reorderWait))
			}
		}
		return
	}
	p.emit(v, o)
	o.note = doubled(alsoBy(e.ChangedBy, e.Rule))
	for range e.Duplicate {
		p.emit(v, o)
	}
	p.emitOvertaken(v)
}

// alsoBy is the note on a packet that one rule has changed, perhaps, and a later one has made something of.
func alsoBy(changed, rule string) string {
	if changed == "" || changed == rule {
		return rule
	}
	return changed + ", " + rule
}

// doubled is the note on a copy, whichever rule was the last.
func doubled(note string) string {
	if strings.Contains(note, " duplicate") {
		return note
	}
	return note + ", duplicate"
}

// copied returns o with a packet of its own, for longer than the call that brought it.
func (o outgoing) copied() outgoing {
	pk := o.Packet
	c, path := *pk, *pk.Path
	c.Path = &path
	data := make([]byte, 0, pk.Size)
	for _, d := range pk.Data {
		data = append(data, d...)
	}
	c.Data = [][]byte{data}
	o.Packet = &c
	return o
}

// emitOvertaken sends what waited for a packet to pass.
func (p *Port) emitOvertaken(v *portView) {
	for {
		pk, ok := p.tx.held.overtaken()
		if !ok {
			return
		}
		p.emit(v, pk)
	}
}

// release sends what is due.
func (p *Port) release(v *portView, now time.Time) {
	for {
		pk, ok := p.tx.held.pop(now)
		if !ok {
			return
		}
		p.emit(v, pk)
	}
}

// flushTx is release from outside a send; the timer calls it, and Flush.
func (p *Port) flushTx(now time.Time) {
	t := &p.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.held.empty() {
		return
	}
	v := p.view.Load()
	t.begin(now, p.sink.Load())
	defer t.recorded()
	p.release(v, now)
	if err := p.transmit(v); err != nil {
		p.log.Debug("delayed packets not sent", "err", err)
	}
	p.armTx()
}

func (p *Port) armTx() {
	if !p.inline && !p.tx.held.empty() {
		p.tx.held.arm(p.clk, func() { p.flushTx(p.clk.Now()) })
	}
}

// Loops reports whether a packet on this path goes to the device itself, perhaps to others too, by way of a queue that
// has an end: who sends faster than the device receives must wait, or lose what no wire has lost.
func (p *Port) Loops(path *wire.Path) bool {
	return !p.inline && path != nil && (p.view.Load().isLocal(path.Dst) || path.Dst.IsMulticast() && p.groups.has(path.Dst))
}

// Await waits until there is room in that queue for many packets. It must not be called by who receives from it, nor
// where that would wait for the caller: those ask whether it is Crowded, and leave the packets to somebody else.
func (p *Port) Await() { p.loop.Relieve(loopLen / 2) }

// Crowded reports whether Await would wait.
func (p *Port) Crowded() bool { return p.loop.Len() > loopLen/2 }

// emit frames a packet and puts it into the ring or, if it is for the device itself, into
// the loop.
func (p *Port) emit(v *portView, o outgoing) {
	t, pk := &p.tx, o.Packet
	if pk.Path.NetLen()+pk.IBLen() > v.info.MTU {
		p.count.tooLong.Inc()
		p.log.Debug("packet exceeds the MTU of the link", "length", pk.Path.NetLen()+pk.IBLen(), "mtu", v.info.MTU)
		p.captureUnsent(v, pk, wire.TooLong, "exceeds the MTU of the link")
		return
	}
	if len(t.list) == len(t.ring) || t.used+pk.IBLen() > len(t.room) {
		_ = p.transmit(v) // a closed endpoint shows again at the next call
	}
	f := t.all[len(t.list)]
	if v.isLocal(pk.Path.Dst) {
		t.frame(f, v, pk, 0)
		f.alter(v, o.change)
		if s := p.sink.Load(); s != nil {
			f.note = o.note
			t.capture(*s, p.txNow(), f, wire.OK)
		}
		p.loop.Put(0, f.AppendTo)
		f.clear()
		return
	}
	t.frame(f, v, pk, t.segment(v, pk))
	f.note = o.note
	f.alter(v, o.change) // the frame is sealed, and what is changed is what the capture has to show
	if pk.Path.Dst.IsMulticast() && p.groups.has(pk.Path.Dst) {
		p.loop.Put(0, f.AppendTo) // the wire brings no copy back
	}
	t.add(f)
}

// add puts a frame on the list.
func (t *txState) add(f *Frame) {
	t.used += len(f.IB)
	t.list = t.all[:len(t.list)+1]
}

// segment returns the place of a packet in the burst under construction, or begins
// a new one.
func (t *txState) segment(v *portView, pk *wire.Packet) int {
	maxSegs := v.info.MaxSegs
	n := pk.IBLen()
	if t.open && t.segs < maxSegs && n <= t.size && t.bytes+n <= maxBurst &&
		(t.path == pk.Path || t.alike(v, pk.Path)) {
		t.segs++
		t.bytes += n
		t.open = n == t.size // a shorter one is the last
		return t.segs - 1
	}
	t.path, t.open, t.segs, t.size, t.bytes = pk.Path, maxSegs > 1, 1, n, n
	return 0
}

// alike reports whether packets on a path may be in one burst with those of the burst: all is the same, but for the source port where
// the endpoint has one for all.
func (t *txState) alike(v *portView, p *wire.Path) bool {
	a := *t.path
	if v.info.SrcPort != 0 {
		a.SrcPort = p.SrcPort
	}
	return a == *p
}

// transmit hands the ring to the endpoint. The capture comes after it, with the time
// before it: the endpoint fills in the Ethernet addresses.
func (p *Port) transmit(v *portView) error {
	t := &p.tx
	t.open, t.path = false, nil
	if len(t.list) == 0 {
		return nil
	}
	s := p.sink.Load()
	if s != nil {
		p.txNow()
	}
	err := p.ep.Send(t.list)
	for _, f := range t.list {
		if s != nil && err == nil {
			t.capture(*s, t.now, f, wire.OK)
		}
		f.clear()
	}
	t.list, t.used = t.all[:0], 0
	return err
}

// captureUnsent records a packet that is not going to be sent, or not now.
func (p *Port) captureUnsent(v *portView, pk *wire.Packet, why wire.Fault, note string) {
	s := p.sink.Load()
	if s == nil {
		return
	}
	if len(p.tx.list) > 0 {
		_ = p.transmit(v) // what comes before it stands before it in the capture
	}
	var f Frame
	p.tx.frame(&f, v, pk, 0)
	f.note = note
	p.tx.capture(*s, p.txNow(), &f, why)
}

func (t *txState) capture(s Sink, when time.Time, f *Frame, why wire.Fault) {
	t.rec = Record{
		When: when, Dir: Tx, Fault: why, Cause: f.Cause, Round: f.Round, QPN: f.QPN, Note: f.note,
		Eth: f.Eth, Net: f.Net, Head: f.IB,
	}
	if f.Raw {
		t.rec.Head, t.rec.Tail = nil, f.IB
	}
	s.Capture(&t.rec)
	t.rec = Record{}
}

// frame makes f the frame of pk at place id of its burst, behind those on the list. The payload is copied: what is captured after
// the send is what was sent, also where the program has changed its memory meanwhile, and its ICRC is right.
func (t *txState) frame(f *Frame, v *portView, pk *wire.Packet, id int) {
	f.Packet, f.Segment, f.Raw = pk, id, false
	f.Net = f.buf[wire.EthLen : wire.EthLen+pk.Path.NetLen()]
	t.sealer.SrcPort = v.info.SrcPort
	ib := t.place(pk.IBLen())
	f.IB = ib[:t.sealer.Seal(pk, f.Net, uint16(id), ib)]
	if v.quirk {
		f.sealRxeFlush()
	}
	if v.info.Ethernet {
		f.Eth = f.buf[:wire.EthLen]
		copy(f.Eth, v.info.MAC)
		if pk.Path.Dst.IsMulticast() {
			*(*[6]byte)(f.Eth) = GroupMAC(pk.Path.Dst)
		}
		copy(f.Eth[6:], v.info.MAC)
		binary.BigEndian.PutUint16(f.Eth[12:], pk.Path.EtherType())
	}
}

// place returns n bytes or more behind the packets on the list, or elsewhere if there is no room: who lists the frame sees to it that there is.
func (t *txState) place(n int) []byte {
	if b := t.room[t.used:]; len(b) >= n {
		return b
	}
	return make([]byte, n)
}

// clear drops references to memory that is not the port's.
func (f *Frame) clear() { f.Packet, f.Eth, f.note = nil, nil, "" }

// AppendTo appends the bytes of the frame to dst, with its Ethernet header if it has one.
func (f *Frame) AppendTo(dst []byte) []byte {
	dst = append(dst, f.Eth...)
	return f.AppendIP(dst)
}

// AppendIP appends the bytes of the frame to dst, without Ethernet header.
func (f *Frame) AppendIP(dst []byte) []byte { return append(append(dst, f.Net...), f.IB...) }
