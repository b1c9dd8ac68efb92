package rules

import (
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// wellFormed judges what can be judged of a packet alone, and says whether it can be
// judged further.
func (c *Checker) wellFormed(p *Packet) bool {
	v := p.View
	if p.Cut && (!c.o.TrustCut || p.Fault != wire.OK && !p.judged() || !v.Info.Known() || len(v.IB) < v.Info.Len+wire.ICRCLen) {
		c.unknown(Format, whyCut)
		c.unknown(ICRC, whyCut)
		return false
	}
	f := wire.OK
	if !p.judged() || p.Fault < wire.ICRC {
		f = p.Fault // of the parser
	}
	switch {
	case f == wire.NotRoCE || f == wire.Fragment:
		return false
	case f == wire.ReservedOpcode, f == wire.OK && len(v.IB) >= bth.Len+wire.ICRCLen && !v.Info.Known():
		c.unknown(Format, whyVendor)
		return false
	case f == wire.TransportVersion:
		c.malformed(Format, "TVer is %d", v.BTH().TVer())
		return false
	case f != wire.OK && f != wire.Impaired || len(v.Net) == 0 || len(v.IB) < v.Info.Len+wire.ICRCLen || v.Info.Len < bth.Len:
		c.malformed(Format, "%v", max(f, wire.Malformed))
		return false
	}
	if h := v.Header(bth.HAETH); h != nil {
		if s := bth.AETH(h).Syndrome(); reserved(s) {
			c.malformed(Format, "AETH syndrome %02x is reserved", uint8(s))
			return true
		}
	}
	c.formed(Format)
	return true
}

// judged reports whether the fault is the verdict of the packet's receiver.
func (p *Packet) judged() bool {
	return p.Fate == Dropped || p.Fate == Forged || p.Fate == Copied || p.Fate == Released
}

func reserved(s bth.Syndrome) bool {
	return !s.IsAck() && !s.IsRNR() && (!s.IsNak() || s > bth.NakInvalidRD)
}

// malformed is broken for a rule on single packets: of a packet that is wrong at its
// sender and at its receiver it counts the first sighting.
func (c *Checker) malformed(r ID, format string, args ...any) {
	h := maphash.Bytes(c.seed, c.p.View.IB) ^ uint64(r)
	for i, x := range c.wrong {
		if x == h && c.p.Dir == Rx {
			c.wrong[i] = 0
			return
		}
	}
	if c.p.Dir == Tx {
		c.wrong[c.wrongAt%len(c.wrong)] = h
		c.wrongAt++
	}
	if c.p.Fate == Forged {
		return
	}
	c.broken(r, format, args...)
}

// formed counts that a packet keeps a rule on single packets.
func (c *Checker) formed(r ID) {
	if c.p.Fate == Forged {
		return
	}
	if v := c.p.View; c.p.Dir == Rx {
		if f := c.flows[keyOf(v)]; f != nil && f.hasTx {
			return
		}
	}
	c.tally[r].kept++
}

// goodICRC judges the ICRC. A packet with a wrong one says nothing else for sure.
func (c *Checker) goodICRC(p *Packet) bool {
	v := p.View
	switch {
	case p.judged() && p.Fault == wire.ICRC:
	case c.o.NoICRC:
		c.unknown(ICRC, whyNoICRC)
		return true
	case !v.IDKnown && !v.V6:
		c.unknown(ICRC, whyID)
		return true
	case wire.CheckICRC(v):
		c.formed(ICRC)
		return true
	}
	c.malformed(ICRC, "%v PSN %v: wrong ICRC", v.BTH().Opcode(), v.BTH().PSN())
	if f := c.flows[keyOf(v)]; f != nil && p.Fate != Forged {
		f.blind = true // it may have had any PSN
	}
	return false
}

func (c *Checker) pad(v *wire.View) {
	n := v.BTH().Pad()
	if want := -len(v.Payload) & 3; n != want {
		c.malformed(Pad, "%v: PadCnt %d with %d bytes of payload, not %d", v.BTH().Opcode(), n, len(v.Payload), want)
		return
	}
	for _, x := range v.Pad() {
		if x != 0 {
			c.malformed(Pad, "%v: pad is not zero", v.BTH().Opcode())
			return
		}
	}
	c.formed(Pad)
}

// datagram judges a UD packet. Its PSN says nothing: each sender counts its own, and
// nobody looks.
func (c *Checker) datagram(p *Packet) {
	v := p.View
	c.marked(p)
	if n := len(v.Payload); n > 4096 {
		c.broken(MessageLength, "datagram of %d bytes", n)
	} else {
		c.keep(MessageLength)
	}
	if v.BTH().DestQP() == 1 && !p.Cut {
		c.cm.packet(c, v)
	}
}

// cnp judges a congestion notification.
func (c *Checker) cnp(p *Packet) {
	v := p.View
	b := v.BTH()
	ok := b.BECN() && b.PSN() == 0 && !b.AckReq() && !b.Solicited() && b.Pad() == 0 && len(v.Payload) == 0
	for _, x := range v.Header(bth.HCNP) {
		ok = ok && x == 0
	}
	if ok {
		c.keep(CNPFormat)
	} else {
		c.broken(CNPFormat, "CNP with other fields: %x", v.IB[:bth.Len])
	}
	if p.Fate == Copied || p.Fate == Released {
		return // it was sent before
	}
	t := c.pair(v.Src(), v.Dst())
	if p.Dir == Tx {
		t.cnpTx = true
	} else if t.cnpTx {
		return // the same again
	}
	// Marks on packets the other way; only their receiver sees them for sure.
	marks := c.pair(v.Dst(), v.Src())
	gap, first := c.cnpGap(p)
	t.cnps++
	if !marks.ceRx || p.Time-marks.since <= cnpLag {
		t.early++
	}
	counted := p.Dir == Tx && marks.ceRx && c.whole()
	switch {
	case counted && t.cnps-t.early > marks.ce:
		c.broken(CNPPacing, "CNP %d for %d packets that were CE-marked", t.cnps, marks.ce)
		t.cnps = marks.ce + t.early
	case !first && p.Dir == Tx && c.o.CNPInterval > 0 && gap < 0:
		c.unknown(CNPPacing, whyClock)
	case !first && p.Dir == Tx && c.o.CNPInterval > 0 && gap < int64(c.o.CNPInterval-c.o.Slack):
		c.broken(CNPPacing, "CNP %v after the one before", ns(gap))
	case p.Dir != Tx || !marks.ceRx:
		c.unknown(CNPPacing, whyCE)
	case counted && t.cnps > marks.ce:
		c.unknown(CNPPacing, whyStart)
	case c.o.CNPInterval == 0:
		c.unknown(CNPPacing, whyInterval)
	default:
		c.keep(CNPPacing)
	}
}

// cnpLag bounds how long after a marked packet its CNP is sent. What a host sends so soon after the first packet that was seen
// there may be for packets from before the capture.
const cnpLag = 100 * int64(time.Millisecond)

// cnpKey is what an interval between CNPs is kept for; what the mode does not look at is left out.
type cnpKey struct {
	iface    int // at its sender, a port is an interface of the capture
	src, dst netip.Addr
	qpn      uint32
}

// cnpGap returns the time since the CNP before, of those that the mode speaks of.
func (c *Checker) cnpGap(p *Packet) (gap int64, first bool) {
	v := p.View
	var k cnpKey
	switch c.o.CNPMode {
	case CNPPerPort:
		k.iface = p.Iface
	case CNPPerDest:
		k.iface, k.dst = p.Iface, v.Dst()
	case CNPPerQP:
		k.src, k.dst, k.qpn = v.Src(), v.Dst(), v.BTH().DestQP()
	default:
		k.src, k.dst = v.Src(), v.Dst()
	}
	at, ok := c.cnps[k]
	if !ok && len(c.cnps) >= maxKnown {
		clear(c.cnps)
	}
	c.cnps[k] = p.Time
	return p.Time - at, !ok
}

// marked counts CE-marked packets.
func (c *Checker) marked(p *Packet) {
	v := p.View
	ce := v.TClass()&3 == 3 && p.Dir != Tx
	t := c.pairs[pairKey{v.Src(), v.Dst()}]
	if t == nil && ce {
		t = c.pair(v.Src(), v.Dst())
	}
	if t != nil && p.Dir == Rx && !t.ceRx {
		t.ceRx, t.since = true, p.Time
	}
	if !ce {
		return
	}
	if p.Fate != Lost && p.Fate != Held {
		t.ce++
	}
}
