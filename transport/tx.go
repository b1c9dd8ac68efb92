package transport

import (
	"slices"

	"github.com/softnic/softnic/wire"
)

// Tx is a packet on an engine's transmit list.
type Tx struct {
	wire.Packet
	Token  uint32  // the engine's own mark, handed back by Sent
	Lost   bool    // it was not sent: its memory could not be read
	Gone   bool    // it is lost, and because of ErrGone
	Behind bool    // it was not sent: one before it is lost, see Cut
	Ack    bool    // it is a plain acknowledgement, for which nobody is in a hurry
	pieces []piece // gather list
	inline []byte  // bytes that were copied into the packet
}

type piece struct {
	hold int // of the list
	va   uint64
	n    int
}

// hold is an access to a region that all packets of a list have together: to begin one for each would cost as much as to send it.
type hold struct {
	mem  Region
	runs bool // the access is not parked
}

// Copy adds a copy of b to the payload; used for inline data only, and not
// together with Gather.
func (t *Tx) Copy(b []byte) {
	t.inline = append(t.inline, b...)
	t.Size += len(b)
}

// TxList is the list of packets that an engine has emitted and nobody has
// sent yet. The engine appends under the queue pair's lock; the flusher takes
// the whole list and sends it with no lock held. Packets are reused.
type TxList struct {
	list  []*Tx
	n     int
	holds []hold // what the packets read, until they are sent
}

// Add returns a cleared packet at the end of the list.
func (l *TxList) Add() *Tx {
	if l.n == len(l.list) {
		l.list = append(l.list, new(Tx))
	}
	t := l.list[l.n]
	l.n++
	t.Packet.Path, t.Len, t.Size, t.Pad, t.Cause, t.Round = nil, 0, 0, 0, 0, 0
	t.Data, t.pieces, t.inline, t.Token, t.Lost, t.Gone, t.Behind, t.Ack = t.Data[:0], t.pieces[:0], t.inline[:0], 0, false, false, false, false
	return t
}

// Gather adds n bytes at va of mem to the payload of the last packet. The access passes to the list, parked until
// that is sent.
func (l *TxList) Gather(mem Region, va uint64, n int) {
	for i := range l.holds {
		if l.holds[i].mem == mem {
			mem.Release()
			l.gather(i, va, n)
			return
		}
	}
	mem.Park()
	l.holds = append(l.holds, hold{mem: mem})
	l.gather(len(l.holds)-1, va, n)
}

// gatherHeld is Gather from the region that was added last, without another access, if the key still names that.
func (l *TxList) gatherHeld(h Host, lkey uint32, va uint64, n int) bool {
	i := len(l.holds) - 1
	if i < 0 || !h.Names(lkey, va, n, l.holds[i].mem) {
		return false
	}
	l.gather(i, va, n)
	return true
}

func (l *TxList) gather(i int, va uint64, n int) {
	t := l.list[l.n-1]
	t.pieces = append(t.pieces, piece{i, va, n})
	t.Size += n
}

// DropLast takes back the packet that Add returned last.
func (l *TxList) DropLast() {
	l.n--
	l.list[l.n].release()
	l.dropHolds()
}

// Drop takes back the packets for which unwanted is true.
func (l *TxList) Drop(unwanted func(t *Tx) bool) {
	kept := 0
	for i, t := range l.list[:l.n] {
		if unwanted(t) {
			t.release()
			continue
		}
		l.list[kept], l.list[i] = t, l.list[kept]
		kept++
	}
	l.n = kept
	l.dropHolds()
}

// dropHolds ends the accesses of a list without a packet: it is not going to be sent.
func (l *TxList) dropHolds() {
	if l.n == 0 {
		l.Finish()
	}
}

// Patient reports whether there are packets on the list, and all are plain acknowledgements.
func (l *TxList) Patient() bool {
	for _, t := range l.Packets() {
		if !t.Ack {
			return false
		}
	}
	return l.n > 0
}

// Acks reports whether a plain acknowledgement is on the list.
func (l *TxList) Acks() bool {
	return slices.ContainsFunc(l.Packets(), func(t *Tx) bool { return t.Ack })
}

// AcksLast moves plain acknowledgements that stand before requests behind them, if there is nothing else on the list: between the two
// halves of a queue pair there is no order, and the shorter packet may be the last of a burst, not its first.
func (l *TxList) AcksLast() {
	acks := 0
	for acks < l.n && l.list[acks].Ack {
		acks++
	}
	if acks == 0 || acks == l.n {
		return
	}
	for _, t := range l.list[acks:l.n] {
		if t.Token == 0 {
			return
		}
	}
	for range acks {
		a := l.list[0]
		copy(l.list, l.list[1:l.n])
		l.list[l.n-1] = a
	}
}

// Len returns the number of packets on the list.
func (l *TxList) Len() int { return l.n }

// Packets returns the packets in order.
func (l *TxList) Packets() []*Tx { return l.list[:l.n] }

// Resolve turns the gather list of every packet into bytes: slices of the
// memory where it can be touched, else a copy, made with one call for all packets of one
// region that follow each other. It appends the packets to dst; one whose memory cannot be
// read any more, or under a key that is not valid any more, is left out and marked Lost; what is behind it, see Cut.
func (l *TxList) Resolve(dst []*wire.Packet, s *Scratch) []*wire.Packet {
	valid := true // all keys are
	for i := range l.holds {
		l.holds[i].runs = l.holds[i].mem.Resume()
		valid = valid && l.holds[i].runs
	}
	from := 0
	var mem Region // of the extents collected from packet from on
	for i, t := range l.Packets() {
		if t.Lost = !valid && !l.readable(t); t.Lost || l.direct(t) {
			continue
		}
		t.inline = slices.Grow(t.inline[:0], t.Size)[:t.Size]
		t.Data = append(t.Data[:0], t.inline)
		off := 0
		for k := range t.pieces {
			p := &t.pieces[k]
			if m := l.holds[p.hold].mem; m != mem {
				l.read(mem, from, i, s)
				mem, from = m, i
			}
			s.extents = append(s.extents, Extent{p.va, t.inline[off : off+p.n]})
			off += p.n
		}
	}
	l.read(mem, from, l.n-1, s)
	l.Cut()
	for _, t := range l.Packets() {
		if !t.Lost && !t.Behind {
			dst = append(dst, &t.Packet)
		}
	}
	return dst
}

// Cut marks what stands behind a lost packet as Behind, for it is not sent either: requests behind a request, since no PSN
// may be left out, and answers behind an answer, since none may pass a READ response. What has a Token is a request.
func (l *TxList) Cut() {
	var request, answer bool // one is lost
	for _, t := range l.Packets() {
		cut := &answer
		if t.Token != 0 {
			cut = &request
		}
		if *cut {
			t.Lost, t.Gone, t.Behind = false, false, true
		}
		*cut = *cut || t.Lost
	}
}

// readable reports whether the keys of a packet are all valid.
func (l *TxList) readable(t *Tx) bool {
	for i := range t.pieces {
		if !l.holds[t.pieces[i].hold].runs {
			return false
		}
	}
	return true
}

// direct gives the packet its bytes where nothing has to be copied.
func (l *TxList) direct(t *Tx) bool {
	if len(t.inline) > 0 {
		t.Data = append(t.Data, t.inline)
		return true
	}
	for i := range t.pieces {
		p := &t.pieces[i]
		d, ok := l.holds[p.hold].mem.Slices(t.Data, p.va, p.n)
		if !ok {
			return false
		}
		t.Data = d
	}
	return true
}

// read fills the extents that were collected from mem, of packets from to to. When
// that fails, each packet is read for itself, to know which are lost.
func (l *TxList) read(mem Region, from, to int, s *Scratch) {
	if len(s.extents) == 0 {
		return
	}
	err := mem.ReadV(s.extents)
	clear(s.extents)
	s.extents = s.extents[:0]
	if err == nil {
		return
	}
	for _, t := range l.list[from : to+1] {
		if t.Lost {
			continue
		}
		off := 0
		for k := range t.pieces {
			p := &t.pieces[k]
			if l.holds[p.hold].mem == mem {
				s.extents = append(s.extents, Extent{p.va, t.inline[off : off+p.n]})
			}
			off += p.n
		}
		if len(s.extents) > 0 {
			if err := mem.ReadV(s.extents); err != nil {
				t.Lost, t.Gone = true, err == ErrGone
			}
		}
		clear(s.extents)
		s.extents = s.extents[:0]
	}
}

func (t *Tx) release() {
	clear(t.Data)
	t.Data, t.pieces = t.Data[:0], t.pieces[:0]
}

// Finish ends the accesses of all packets, which have been sent; the list itself stays, for Engine.Sent.
func (l *TxList) Finish() {
	for _, t := range l.Packets() {
		t.release()
	}
	for i := range l.holds {
		if h := &l.holds[i]; h.runs {
			h.mem.Release()
		} else {
			h.mem.Discard()
		}
		l.holds[i] = hold{}
	}
	l.holds = l.holds[:0]
}

// Release ends the accesses of all packets and empties the list.
func (l *TxList) Release() {
	l.Finish()
	l.n = 0
}

// Swap exchanges the contents of two lists.
func (l *TxList) Swap(o *TxList) { *l, *o = *o, *l }
