package replay

import (
	"encoding/binary"
	"sort"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/stage"
	"github.com/softnic/softnic/wire/bth"
)

// area is a region as the packets show it.
type area struct {
	va, end uint64
	access  device.Access
	given   bool // by the options
	guess   guess
	mem     *stage.Memory // nil: it could not be made
	fast    *fast         // nil: the key is always valid
}

// fast is a region, or window, whose key can be taken away, and may come again with other low 8 bits, for another range: each of its
// keys is an area.
type fast struct {
	mr    *device.FastMR
	key   uint32 // that it has
	valid bool
}

// areas reconstructs the regions of a NIC from the requests of its conversations: of each key the range that was named, with
// the rights that were used, but for what was refused.
func areas(talks []*talk, o *Options) map[uint32]*area {
	m := map[uint32]*area{}
	for _, r := range o.Regions {
		m[r.RKey] = &area{va: r.VA, end: r.VA + r.Size, access: everything, given: true}
	}
	for _, t := range talks {
		for _, q := range t.f.requests[t.start:] {
			key, va, n, ok := names(q)
			if !ok || q.lost || q.idle() || q.known() || q.refused.IsNak() && !crooked(q, va) || va+n < va || n == 0 {
				continue
			}
			a := m[key]
			switch {
			case a == nil:
				a = &area{va: va, end: va + n}
				m[key] = a
			case !a.given:
				a.va, a.end = min(a.va, va), max(a.end, va+n)
			}
			a.access |= kind(q)
		}
	}
	for _, a := range m {
		if a.access&(device.RemoteWrite|device.RemoteAtomic) != 0 {
			a.access |= device.LocalWrite
		}
	}
	return m
}

// crooked reports whether a request was refused for its address, which is no multiple of 8: that is looked at behind the key, so that there is memory.
func crooked(q *seen, va uint64) bool {
	return va&7 != 0 && q.refused == bth.NakInvalidRequest && (q.has(bth.Atomic) || q.op.Operation() == bth.AtomicWrite)
}

const everything = device.LocalWrite | device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.FlushGlobal | device.FlushPersistent

// guess is what was in a region at first: what READ responses and atomics show of bytes that no request had written. Where
// they contradict each other it is what most show.
type guess struct {
	pages map[uint64]*guessed
	added map[uint64]uint64 // what fetch-and-add has added to a word since
}

type guessed struct {
	written [guessLen / 64]uint64
	byte    [guessLen]byte
	votes   [guessLen]int32
}

const guessLen = 4096

func (g *guess) page(va uint64) *guessed {
	if g.pages == nil {
		g.pages = map[uint64]*guessed{}
	}
	p := g.pages[va/guessLen]
	if p == nil {
		p = new(guessed)
		g.pages[va/guessLen] = p
	}
	return p
}

func (g *guess) each(va uint64, n int, f func(p *guessed, i, k int)) {
	for k := range n {
		at := va + uint64(k)
		f(g.page(at), int(at%guessLen), k)
	}
}

// write notes that a request has written n bytes.
func (g *guess) write(va uint64, n int) {
	g.each(va, n, func(p *guessed, i, _ int) { p.written[i/64] |= 1 << (i % 64) })
}

// shows notes that there were these bytes at first, unless a request had written there; a majority wins (Boyer and Moore).
func (g *guess) shows(va uint64, b []byte) {
	g.each(va, len(b), func(p *guessed, i, k int) {
		switch {
		case p.written[i/64]&(1<<(i%64)) != 0:
		case p.votes[i] == 0 && p.byte[i] != b[k]:
			p.byte[i], p.votes[i] = b[k], 1
		case p.byte[i] == b[k]:
			p.votes[i]++
		default:
			p.votes[i]--
		}
	})
}

// atomic notes what an atomic shows and does.
func (g *guess) atomic(q *seen, va uint64) {
	h := bth.AtomicETH(q.v.Header(bth.HAtomicETH))
	adds := h != nil && q.op.Operation() == bth.FetchAdd
	sum, chain := g.added[va]
	for _, a := range q.replies {
		v := bth.AtomicAckETH(a.v.Header(bth.HAtomicAckETH)).Original()
		b := binary.NativeEndian.AppendUint64(nil, v-sum)
		if chain { // only additions so far: what was there at first follows
			g.vote(va, b)
		} else {
			g.shows(va, b)
		}
	}
	w := g.isWritten(va)
	g.write(va, 8)
	switch {
	case adds && (chain || !w):
		if g.added == nil {
			g.added = map[uint64]uint64{}
		}
		g.added[va] = sum + h.SwapAdd()
	case chain:
		delete(g.added, va)
	}
}

func (g *guess) isWritten(va uint64) bool {
	return g.page(va).written[va%guessLen/64]&(1<<(va%guessLen%64)) != 0
}

// vote is shows for bytes that an atomic has written.
func (g *guess) vote(va uint64, b []byte) {
	g.each(va, len(b), func(p *guessed, i, k int) {
		bit := uint64(1) << (i % 64)
		was := p.written[i/64]
		p.written[i/64] &^= bit
		g.shows(va+uint64(k), b[k:k+1])
		p.written[i/64] = was
	})
}

// remember guesses what was in the regions at first.
func remember(m map[uint32]*area, talks []*talk) {
	type asks struct {
		t *talk
		q *seen
	}
	var l []asks
	for _, t := range talks {
		for _, q := range t.f.requests[t.start:] {
			l = append(l, asks{t, q})
		}
	}
	sort.SliceStable(l, func(i, j int) bool { return l[i].q.at < l[j].q.at })
	done := map[*talk]int64{}
	for _, x := range l {
		t, q := x.t, x.q
		if q.lost || q.idle() || q.refused != 0 {
			continue
		}
		again := q.pos < done[t]
		done[t] = max(done[t], q.pos+int64(q.n))
		key, va, _, ok := names(q)
		if q.has(bth.Write) {
			if ok {
				t.write = place{key, va, q.pos, true}
			}
			if a := m[t.write.rkey]; a != nil && t.write.ok && q.pos >= t.write.pos && !again {
				a.guess.write(t.write.va+uint64(q.pos-t.write.pos)*uint64(t.mtu), len(q.v.Payload))
			}
			continue
		}
		a := m[key]
		switch {
		case !ok || a == nil:
		case q.has(bth.Atomic):
			if !again {
				a.guess.atomic(q, va)
			}
		case q.op.Operation() == bth.AtomicWrite:
			a.guess.write(va, 8)
		case q.has(bth.Read):
			for _, r := range q.replies {
				a.guess.shows(va+uint64(r.pos-q.pos)*uint64(t.mtu), r.v.Payload)
			}
		}
	}
	for _, a := range m {
		if a.mem == nil {
			continue
		}
		for n, p := range a.guess.pages {
			a.mem.Write(n*guessLen, p.byte[:])
		}
	}
}
