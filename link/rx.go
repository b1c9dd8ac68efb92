package link

import (
	"slices"
	"sync"
	"time"

	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// rxState is the receiving half of a port.
type rxState struct {
	mu     sync.Mutex
	held   holder[later]
	closed bool
}

// Parse fills View and Fault of every packet of a batch, ICRC included, and applies
// receive impairment. A packet that impairment drops has the fault Impaired. One that it holds back leaves the batch: it comes, and is
// counted, when it is let go.
func (p *Port) Parse(b *Batch) {
	v := p.view.Load()
	b.arrived, b.aside = time.Time{}, b.aside[:0]
	if s := p.sink.Load(); s != nil {
		b.tellArrived(*s)
	}
	active := p.rules.Active(impair.Rx)
	for i := range b.Packets {
		pk := &b.Packets[i]
		if pk.Other {
			pk.View, pk.Fault = wire.View{}, wire.NotRoCE
			continue
		}
		pk.Fault = p.parse(v, &b.checker, pk, false)
		if active && pk.Fault == wire.OK && !pk.passed && p.impairRx(v, b, pk) {
			b.aside = append(b.aside, aside{i, *pk})
		}
	}
	if active {
		b.leaveAside()
		p.rx.mu.Lock()
		p.armRx()
		p.rx.mu.Unlock()
	}
}

// parse reads a packet; idKnown says whether the IP ID of one that came without its IP header has been found.
func (p *Port) parse(v *portView, c *wire.Checker, pk *Packet, idKnown bool) wire.Fault {
	var f wire.Fault
	switch {
	case pk.Frame == nil:
		f = wire.ParseSplit(pk.Net, pk.IB, idKnown || v.info.SeesIP, &pk.View)
		pk.View.Eth = pk.Eth
	case v.info.Ethernet:
		f = wire.ParseEthernet(pk.Frame, &pk.View)
	default:
		f = wire.ParseIP(pk.Frame, &pk.View)
	}
	// A reserved opcode is a verdict on a whole packet, and one that RC answers: it is
	// believed only if the ICRC is right. Other faults end here.
	if f != wire.OK && f != wire.ReservedOpcode || c.Check(&pk.View) {
		return f
	}
	if p.quirk && takesRxeFlush(&pk.View) {
		return f
	}
	if p.noICRC {
		p.count.icrcIgnored.Inc()
		return f
	}
	return wire.ICRC
}

// impairRx applies the rules to a packet. What is to come later or twice goes
// through the loop, after this batch has been handled or when it is due. held says that the packet itself is to come later.
func (p *Port) impairRx(pv *portView, b *Batch, pk *Packet) (held bool) {
	v := &pk.View
	e := p.rules.Apply(impair.Rx, v.Src(), v.BTH())
	eth, net, ib := v.Eth, v.Net, v.IB // as they are before a change makes a packet of it that cannot be parsed
	if (e.Mark || e.Change != nil) && !e.Drop {
		p.keepOriginal(pk, &e)
		p.changeRx(pv, pk, &e)
	}
	copied := func(note string) later { return later{slices.Concat(eth, net, ib), note} }
	if e.Drop || e.Delay > 0 || e.Reorder {
		p.count.impairedRx.Inc()
		pk.Fault, pk.note = wire.Impaired, e.Rule
	}
	if e.Drop {
		if e.Answered {
			p.answerRx(v, &e)
		}
		return false
	}
	p.rx.mu.Lock()
	defer p.rx.mu.Unlock()
	switch {
	case e.Delay > 0 || e.Reorder:
		note := alsoBy(e.ChangedBy, e.Rule)
		for i := range 1 + e.Duplicate {
			if i == 1 {
				note = doubled(note)
			}
			if p.rx.held.full() || p.rx.closed {
				p.count.overflow.Inc()
				return held
			}
			held = true
			if l := copied(note); e.Delay > 0 {
				p.rx.held.delay(l, p.clk.Now().Add(e.Delay))
			} else {
				p.rx.held.swap(l, p.clk.Now().Add(reorderWait))
			}
		}
	default:
		for range e.Duplicate {
			b.later = append(b.later, copied(doubled(alsoBy(e.ChangedBy, e.Rule))))
		}
		for {
			l, ok := p.rx.held.overtaken()
			if !ok {
				break
			}
			b.later = append(b.later, l)
		}
	}
	return held
}

// aside is a packet that has left a batch.
type aside struct {
	at int // where it stood: in front of that packet
	Packet
}

// leaveAside takes out of the batch what has been put aside, for which at is where it stands.
func (b *Batch) leaveAside() {
	if len(b.aside) == 0 {
		return
	}
	kept, n := b.Packets[:0], 0
	for i := range b.Packets {
		if n < len(b.aside) && b.aside[n].at == i {
			b.aside[n].at = len(kept)
			n++
			continue
		}
		kept = append(kept, b.Packets[i])
	}
	b.Packets = kept
}

// Done tells the port the verdicts on a batch, after the device has handled it: they go
// to the capture.
func (p *Port) Done(b *Batch) {
	if s := p.sink.Load(); s != nil {
		n := 0
		for i := range len(b.Packets) + 1 {
			for ; n < len(b.aside) && b.aside[n].at == i; n++ {
				b.record(*s, &b.aside[n].Packet)
			}
			if i < len(b.Packets) {
				b.record(*s, &b.Packets[i])
			}
		}
		if o, ok := (*s).(OrderedSink); ok && !b.arrived.IsZero() {
			o.Handled(b.arrived)
		}
	}
	clear(b.aside)
	b.aside = b.aside[:0]
	if len(b.later) > 0 {
		p.inject(b)
	}
}

// record captures a packet, and what it was before a rule changed it.
func (b *Batch) record(s Sink, pk *Packet) {
	if len(pk.was) > 0 {
		b.captureOriginal(s, pk)
	}
	if !pk.held {
		b.capture(s, pk)
	}
}

// keepOriginal keeps a packet as it has come for the capture, before a rule changes it.
func (p *Port) keepOriginal(pk *Packet, e *impair.Effect) {
	if p.sink.Load() == nil {
		return
	}
	v := &pk.View
	pk.was, pk.wasNet = slices.Concat(v.Eth, v.Net, v.IB), len(v.Eth)+len(v.Net)
	pk.held = e.Delay > 0 || e.Reorder
}

// captureOriginal captures that.
func (b *Batch) captureOriginal(s Sink, pk *Packet) {
	b.rec = Record{When: pk.When, Dir: Rx, Fault: wire.Impaired, Note: pk.note, Net: pk.was[:pk.wasNet], Head: pk.was[pk.wasNet:]}
	b.rec.QPN = bth.BTH(b.rec.Head).DestQP()
	if eth := len(pk.View.Eth); eth > 0 && eth <= pk.wasNet {
		b.rec.Eth, b.rec.Net = pk.was[:eth], pk.was[eth:pk.wasNet]
	}
	s.Capture(&b.rec)
	b.rec = Record{}
}

// tellArrived tells a sink of the records that are to come.
func (b *Batch) tellArrived(s Sink) {
	o, ok := s.(OrderedSink)
	if !ok || len(b.Packets) == 0 {
		return
	}
	b.arrived = b.Packets[0].When
	for i := range b.Packets {
		if w := b.Packets[i].When; w.Before(b.arrived) {
			b.arrived = w
		}
	}
	o.Arrived(b.arrived)
}

func (b *Batch) capture(s Sink, pk *Packet) {
	b.rec = Record{When: pk.When, Dir: Rx, Fault: pk.Fault, Note: pk.note}
	v := &pk.View
	if len(v.IB) >= bth.Len {
		b.rec.QPN = v.BTH().DestQP()
	}
	switch n := len(v.Eth) + len(v.Net) + len(v.IB); {
	case pk.Frame == nil:
		b.rec.Eth, b.rec.Net, b.rec.Head = pk.Eth, pk.Net, pk.IB
	case len(v.IB) > 0:
		b.rec.Eth, b.rec.Net, b.rec.Head = v.Eth, v.Net, v.IB
		b.rec.Tail = pk.Frame[n:] // what a short Ethernet frame was filled up with
	default:
		b.rec.Net = pk.Frame
	}
	s.Capture(&b.rec)
	b.rec = Record{}
}

// inject puts what a batch left for later into the loop.
func (p *Port) inject(b *Batch) {
	for i := range b.later {
		p.deliver(b.later[i])
		b.later[i] = later{}
	}
	b.later = b.later[:0]
}

func (p *Port) deliver(l later) {
	p.loop.put(item{passed: true, note: l.note}, func(dst []byte) []byte { return append(dst, l.frame...) })
}

// flushRx delivers what is due; the timer calls it, and Flush.
func (p *Port) flushRx(now time.Time) {
	p.rx.mu.Lock()
	defer p.rx.mu.Unlock()
	if p.rx.closed || p.rx.held.empty() {
		return
	}
	for {
		l, ok := p.rx.held.pop(now)
		if !ok {
			break
		}
		p.deliver(l)
	}
	p.armRx()
}

func (p *Port) armRx() {
	if !p.inline && !p.rx.held.empty() && !p.rx.closed {
		p.rx.held.arm(p.clk, func() { p.flushRx(p.clk.Now()) })
	}
}
