package link

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/softnic/softnic/wire"
)

// Diverter is an Endpoint with Ethernet that keeps back frames which are nothing for a RoCE device: other protocols,
// other stations' addresses.
type Diverter interface {
	// Divert has Recv bring in also those of them for which f is true, with Packet.Other set; nil: none any more. What
	// the endpoint does with a frame otherwise, it does all the same. f is called by who calls Recv.
	Divert(f func(frame []byte) bool)
}

// Divert is that of the endpoint; it does nothing for one that brings in every frame anyway.
func (p *Port) Divert(f func(frame []byte) bool) {
	if d, ok := ability[Diverter](p.ep); ok {
		d.Divert(f)
	}
}

// SendRaw captures and transmits whole Ethernet frames as they are: each the Data of a packet without a Path, which
// impairment, having rules for RoCE packets, does not see. It keeps none of them. A frame to the link's own address goes to
// the wire like any other. On a link without Ethernet, and where they are shorter than a header or longer than the
// link takes, frames are lost and counted.
func (p *Port) SendRaw(pkts []*wire.Packet) error {
	t := &p.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	v := p.view.Load()
	t.now = time.Time{}
	defer t.recorded()
	for _, pk := range pkts {
		if !v.info.Ethernet || !fitsRaw(pk, v.info.MTU) {
			p.count.tooLong.Inc()
			p.log.Debug("raw frame does not fit the link", "length", pk.Size, "mtu", v.info.MTU)
			continue
		}
		if len(t.list) == len(t.ring) || t.used+pk.Size > len(t.room) {
			_ = p.transmit(v) // a closed endpoint shows again below
		}
		f := t.all[len(t.list)]
		t.raw(f, pk)
		t.add(f)
	}
	return p.transmit(v)
}

// fitsRaw reports whether a frame fits a link with some MTU: a tag does not count against it.
func fitsRaw(pk *wire.Packet, mtu int) bool {
	if pk.Size <= mtu+wire.EthLen {
		return pk.Size >= wire.EthLen
	}
	return pk.Size <= mtu+wire.EthVLANLen && rawType(pk) == wire.EtherTypeVLAN
}

// rawType returns the EtherType of a frame whose bytes are in pieces.
func rawType(pk *wire.Packet) uint16 {
	var head [wire.EthLen]byte
	n := 0
	for _, d := range pk.Data {
		n += copy(head[n:], d)
	}
	return binary.BigEndian.Uint16(head[12:])
}

// raw makes f a frame that is sent as it is.
func (t *txState) raw(f *Frame, pk *wire.Packet) {
	f.Packet, f.Segment, f.Raw = pk, 0, true
	f.Eth, f.Net = nil, nil
	ib, n := t.place(pk.Size), 0
	for _, d := range pk.Data {
		n += copy(ib[n:], d)
	}
	f.IB = ib[:n]
}
