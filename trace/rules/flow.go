package rules

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"time"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

type flowKey struct {
	src, dst netip.Addr
	qpn      uint32
	service  bth.Service
}

// flow is what goes from one host to one queue pair of another: the requests of
// one end of a connection, and its answers to the requests of the other end.
type flow struct {
	key          flowKey
	newer, older *flow
	in           *pair // the flows between the same hosts
	peer         *flow // the other direction; nil: not known
	candidate    *flow // what may be the peer
	score        int   // answers that fitted it
	tries        int   // answers that fitted nothing, or too much

	hasTx, hasRx bool // packets are seen at the sender, at the receiver
	blind        bool // one packet could not be read
	loose        bool // packets were held back, doubled or changed on purpose: what has arrived, and in which order, is not known
	steps        uint64
	mtu          int  // 0: unknown
	attr         Attr // of the requests

	req     half   // requests that go this way, and what became of them
	answers answer // answers that go this way, to the requests of peer
	doubt   doubt  // a request that may have begun a new connection

	print, body uint64     // fingerprints of the packet at hand
	copy        uint64     // and of which sending of it
	heldTx      [32]uint64 // packets that were held back at their sender and are to come again
	heldRx      [32]uint64 // at their receiver
	bad         [4]uint64  // answers found wrong at their sender
	badAt       int
}

type pairKey struct{ src, dst netip.Addr }

// pair is what goes from one host to another.
type pair struct {
	flows       []*flow
	ce, cnps    int
	early       int   // of cnps: those that may be for packets from before the capture
	ceRx, cnpTx bool  // CE marks were seen at their receiver, CNPs at their sender
	since       int64 // when the first packet was seen at its receiver, if ceRx
}

// maxPairs bounds the pairs of hosts; more take the place of all that have no flow.
const maxPairs = 8192

func (c *Checker) pair(src, dst netip.Addr) *pair {
	k := pairKey{src, dst}
	if t := c.pairs[k]; t != nil {
		return t
	}
	if len(c.pairs) >= max(maxPairs, 2*c.o.Conversations) {
		for k, t := range c.pairs {
			if len(t.flows) == 0 {
				delete(c.pairs, k)
			}
		}
	}
	t := &pair{}
	c.pairs[k] = t
	return t
}

// flow returns the flow of a key, made if it is new.
func (c *Checker) flow(k flowKey) *flow {
	if c.lru.older.key == k && c.lru.older != &c.lru {
		return c.lru.older // the same as last time
	}
	f := c.flows[k]
	if f == nil {
		if len(c.flows) >= c.o.Conversations {
			c.drop(c.lru.newer) // the oldest: the list is a ring
		}
		f = &flow{key: k, in: c.pair(k.src, k.dst), attr: c.o.Default, steps: c.steps, hasTx: c.hosts[k.src], hasRx: c.hosts[k.dst]}
		f.in.flows = append(f.in.flows, f)
		c.flows[k] = f
		c.introduce(f)
	} else {
		f.newer.older, f.older.newer = f.older, f.newer
	}
	f.newer, f.older = &c.lru, c.lru.older
	c.lru.older.newer, c.lru.older = f, f
	return f
}

// drop forgets a flow.
func (c *Checker) drop(f *flow) {
	f.newer.older, f.older.newer = f.older, f.newer
	c.part(f)
	c.records += len(f.req.ring)
	delete(c.flows, f.key)
	l := f.in.flows
	for i := range l {
		if l[i] == f {
			l[i] = l[len(l)-1]
			l[len(l)-1] = nil
			f.in.flows = l[:len(l)-1]
			break
		}
	}
}

// fingerprint takes two of the packet: of all that makes it the same packet when it is seen
// at another place, and of what must not change when it is sent again.
func (c *Checker) fingerprint(f *flow, p *Packet) {
	v := p.View
	b := v.IB
	end := len(b) - wire.ICRCLen
	from := bth.Len
	f.body = maphash.Bytes(c.seed, b[from:end]) ^ uint64(b[0])*0x9E3779B97F4A7C15
	if o := v.BTH().Opcode(); v.Info.Has(bth.Atomic) && o.Operation() == bth.FetchAdd && o != bth.MaskedFetchAdd {
		// What stands in the compare field is not specified.
		o, _ := v.Info.Offset(bth.HAtomicETH)
		f.body = maphash.Bytes(c.seed, b[from:o+20]) ^ uint64(b[0])*0x9E3779B97F4A7C15
	}
	f.print = f.body ^ binary.BigEndian.Uint64(b)*0xD6E8FEB86659FD93 ^ uint64(binary.BigEndian.Uint32(b[8:]))*0xA0761D6478BD642F
	f.copy = f.print ^ uint64(p.Round)*0xE7037ED1A0B428DB
}

// hold notes that the packet at hand is to come again at the same place.
func (f *flow) hold(held *[32]uint64) {
	for i := range held {
		if held[i] == 0 {
			held[i] = f.copy
			return
		}
	}
	held[f.copy%uint64(len(held))] = f.copy
}

// wasHeld reports whether the packet at hand was seen before, when it was held back.
func (f *flow) wasHeld(held *[32]uint64) bool {
	for i := range held {
		if held[i] == f.copy && f.copy != 0 {
			held[i] = 0
			return true
		}
	}
	return false
}

// markBad notes that the answer at hand is wrong, for when it is seen again at its
// receiver.
func (f *flow) markBad() {
	f.bad[f.badAt%len(f.bad)] = f.print
	f.badAt++
}

func (f *flow) wasBad() bool {
	for _, b := range f.bad {
		if b == f.print && b != 0 {
			return true
		}
	}
	return false
}

// learnMTU notes the payload of a packet that is full.
func (c *Checker) learnMTU(f *flow, n int) {
	if f.mtu != 0 || n < 256 || n > 4096 || n&(n-1) != 0 {
		return
	}
	f.mtu = n
	f.req.resolve(n)
	if f.peer != nil && f.peer.mtu == 0 {
		f.peer.mtu = n
		f.peer.req.resolve(n)
	}
}

// ns is a number of nanoseconds as people read it.
func ns(n int64) time.Duration { return time.Duration(n).Round(10 * time.Nanosecond) }
