package report

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"

	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// key is what goes from one host to one queue pair of another.
type key struct {
	src, dst netip.Addr
	qpn      uint32
	service  bth.Service
}

// row is what the tables know of it.
type row struct {
	key            key
	first, last    int64
	packets, bytes uint64 // sent: those and their payload
	requests       uint64 // packets that are requests
	messages       uint64
	cut            uint64
	ops            []opCount
	again          [rules.OnItsOwn + 1]uint64
	acks, rnr      uint64
	naks           [bth.NakInvalidRD - bth.NakSequence + 1]uint64
	cnps, marked   uint64
	wrong          uint64
	lost, held     uint64 // on purpose
	forged         uint64 // changed or made on purpose
	dropped        [wire.Faults]uint32
	mtu            int
	source         uint32 // queue pair that sends
	sourceOK       bool
	sources        int        // UD: how many were seen, at most 2
	took           *latencies // of the requests that these answer
	hasTx          bool
	recent         [8]glimpse // for packets of which the checker does not say whether they were seen before
	at             int
	requestDots    dots
	answerDots     dots
}

type opCount struct {
	op bth.Opcode
	n  uint64
}

type glimpse struct {
	print uint64
	time  int64
	iface int
}

func (r *row) count(op bth.Opcode) {
	for i := range r.ops {
		if r.ops[i].op == op {
			r.ops[i].n++
			return
		}
	}
	r.ops = append(r.ops, opCount{op, 1})
}

// maxApart bounds the time between two sightings of one packet on two interfaces, as in package rules.
const maxApart = 100e6

// firstSight reports whether a packet is seen for the first time: of what has no place in a connection. The bytes are
// those from the BTH on.
func (r *row) firstSight(p *rules.Packet, seed maphash.Seed, ib []byte) bool {
	switch p.Dir {
	case rules.Tx:
		r.hasTx = true
		return p.Fate != rules.Copied && p.Fate != rules.Released && p.Fate != rules.Dropped && p.Fate != rules.Forged
	case rules.Rx:
		return !r.hasTx && p.Fate != rules.Forged && p.Fate != rules.Released
	}
	h := maphash.Bytes(seed, ib)
	for i := range r.recent {
		g := &r.recent[i]
		if g.print == h && g.print != 0 && p.Time-g.time < maxApart && (g.iface != p.Iface || g.time == p.Time) {
			g.print = 0
			return false
		}
	}
	r.recent[r.at%len(r.recent)] = glimpse{h, p.Time, p.Iface}
	r.at++
	return true
}

// add counts a packet. sent says that this is its first sighting, arrived that it is the one at its receiver.
func (r *row) add(p *rules.Packet, s *rules.Seen, cause rules.Cause, sent, arrived bool) {
	v := p.View
	switch p.Fate {
	case rules.Lost:
		r.lost++
	case rules.Held:
		r.held++
	case rules.Dropped:
		r.dropped[p.Fault]++
	case rules.Forged, rules.Copied, rules.Released:
		if p.Fate == rules.Forged {
			r.forged++
		}
		if p.Fault != wire.OK {
			r.dropped[p.Fault]++
		}
	}
	if arrived && v.TClass()&3 == 3 {
		r.marked++
	}
	if s.Latency >= 0 {
		if r.took == nil {
			r.took = new(latencies)
		}
		r.took.add(s.Latency)
	}
	if s.MTU != 0 {
		r.mtu = s.MTU
	}
	if s.Paired {
		r.source, r.sourceOK = s.Peer, true
	}
	if !sent {
		return
	}
	b := v.BTH()
	op := b.Opcode()
	r.packets++
	r.bytes += uint64(len(v.Payload))
	r.count(op)
	if op.Service() == bth.CNP {
		r.cnps++
		return
	}
	if d := v.Header(bth.HDETH); d != nil {
		if from := bth.DETH(d).SrcQP(); r.sources == 0 || r.sources == 1 && from != r.source {
			r.source = from
			r.sources++
		}
		r.sourceOK = r.sources == 1
	}
	if a := v.Header(bth.HAETH); a != nil && op.Operation() == bth.Acknowledge {
		switch syn := bth.AETH(a).Syndrome(); {
		case syn.IsAck():
			r.acks++
		case syn.IsRNR():
			r.rnr++
		case syn >= bth.NakSequence && syn <= bth.NakInvalidRD:
			r.naks[syn-bth.NakSequence]++
		}
	}
	if v.Info.Has(bth.Request) {
		r.requests++
		r.again[cause]++
		if cause == rules.NotAgain && v.Info.Has(bth.End) {
			r.messages++
		}
	}
}

// addCut counts a packet of which the capture has only the beginning.
func (r *row) addCut(v *wire.View) {
	r.packets++
	r.cut++
	r.count(v.BTH().Opcode())
	net := len(v.Net)
	if n := int(binary.BigEndian.Uint16(v.Net[net-4:])) - 8 - v.Info.Len - wire.ICRCLen - v.BTH().Pad(); n > 0 {
		r.bytes += uint64(n)
	}
}
