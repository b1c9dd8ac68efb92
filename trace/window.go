package trace

import "time"

// window puts packets into the order of time as far as they are out of it by little: a program that captures
// in several threads writes some behind later ones, and softnic writes a packet that came in behind those that
// were sent because of it. Of packets of the same time received ones come first, otherwise the order stays.
//
// It keeps copies, a bounded number of them. What is earlier than its predecessor by more than the window is no
// matter of order: the clock was set, and nothing is moved across that.
type window struct {
	most   int64
	ring   [windowSize]*Sighting // n in order from head on
	head   int
	n      int
	bytes  int
	latest int64 // time of those in the ring
	free   []*Sighting
	given  *Sighting
}

// Sighting is a packet of a Stream: in the order of time, and decoded.
type Sighting struct {
	Packet        // without Data and Comment
	Frame         // what it refers to are copies of the window's own
	Word          // what the capture says of it beside
	Apart  bool   // Word says what became of it, but not where the other packets of its NIC were seen: nothing else is captured of that
	Moved  bool   // it was put in front of others
	buf    []byte // of the copies
}

// The bounds of a window.
const (
	// defaultWindow is more than softnic's captures or those of a host are out of order.
	defaultWindow = 20 * time.Millisecond
	windowSize    = 1024 // a power of two
	windowBytes   = 32 << 20
)

// newWindow returns a window of a length in time; 0 is defaultWindow.
func newWindow(d time.Duration) *window {
	if d == 0 {
		d = defaultWindow
	}
	return &window{most: int64(d)}
}

// full reports whether a packet must be taken out before p can be put in.
func (w *window) full(p *Packet) bool {
	return w.n == windowSize || w.bytes >= windowBytes || w.n > 0 && !p.NoTime && p.Time < w.latest-w.most
}

func (w *window) at(i int) **Sighting { return &w.ring[(w.head+i)&(windowSize-1)] }

// put puts a packet in, for which it must not be full. One that was sent belongs behind those received in the same moment.
func (w *window) put(p *Packet, f *Frame, word Word) *Sighting {
	var h *Sighting
	if n := len(w.free); n > 0 {
		h, w.free = w.free[n-1], w.free[:n-1]
	} else {
		h = new(Sighting)
	}
	h.Packet, h.Frame, h.Word, h.Moved = *p, *f, word, false
	h.Data, h.Comment = nil, nil
	h.buf = append(append(h.buf[:0], f.IP...), f.TCP.Payload...)
	n := len(f.IP)
	h.IP, h.TCP.Payload = h.buf[:n:n], h.buf[n:]
	w.bytes += len(h.buf)
	if w.n == 0 || h.Time > w.latest {
		if h.NoTime {
			h.Time = max(h.Time, w.latest)
		}
		w.latest = h.Time
	} else if h.NoTime {
		h.Time = w.latest
	}
	i := w.n
	for ; i > 0; i-- {
		x := *w.at(i - 1)
		if x.Time < h.Time || x.Time == h.Time && (word.Dir == Tx || x.Dir != Tx) {
			break
		}
		*w.at(i) = x
		h.Moved = true
	}
	*w.at(i) = h
	w.n++
	return h
}

// next takes the earliest packet out; nil if there is none. It is valid until the next call.
func (w *window) next() *Sighting {
	if w.given != nil {
		w.free = append(w.free, w.given)
		w.given = nil
	}
	if w.n == 0 {
		return nil
	}
	h := *w.at(0)
	*w.at(0) = nil
	w.head++
	w.n--
	w.bytes -= len(h.buf)
	w.given = h
	return h
}
