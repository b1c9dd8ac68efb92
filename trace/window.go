package trace

import "time"

// Window puts packets into the order of time as far as they are out of it by little: a program that captures
// in several threads writes some behind later ones, and softnic writes a packet that came in behind those that
// were sent because of it. Of packets of the same time received ones come first, otherwise the order stays.
//
// It keeps copies, a bounded number of them. What is earlier than its predecessor by more than the window is no
// matter of order: the clock was set, and nothing is moved across that.
type Window struct {
	most   int64
	ring   [windowSize]*Held // n in order from head on
	head   int
	n      int
	bytes  int
	latest int64 // time of those in the ring
	free   []*Held
	given  *Held
}

// Held is a packet in a window.
type Held struct {
	Packet        // Data is nil; Comment is the window's own copy
	Frame         // what it refers to are copies of the window's own
	Late   bool   // it belongs behind what came in the same moment: it was sent, not received
	Moved  bool   // it was put in front of others
	buf    []byte // of the copies
}

// The bounds of a window.
const (
	// DefaultWindow is more than softnic's captures or those of a host are out of order.
	DefaultWindow = 20 * time.Millisecond
	windowSize    = 1024 // a power of two
	windowBytes   = 32 << 20
)

// NewWindow returns a window of a length in time; 0 is DefaultWindow.
func NewWindow(d time.Duration) *Window {
	if d == 0 {
		d = DefaultWindow
	}
	return &Window{most: int64(d)}
}

// Full reports whether a packet must be taken out before p can be put in.
func (w *Window) Full(p *Packet) bool {
	return w.n == windowSize || w.bytes >= windowBytes || w.n > 0 && !p.NoTime && p.Time < w.latest-w.most
}

func (w *Window) at(i int) **Held { return &w.ring[(w.head+i)&(windowSize-1)] }

// Put puts a packet in, which must not be Full. late says that it was sent, at the place of the capture.
func (w *Window) Put(p *Packet, f *Frame, late bool) {
	var h *Held
	if n := len(w.free); n > 0 {
		h, w.free = w.free[n-1], w.free[:n-1]
	} else {
		h = new(Held)
	}
	h.Packet, h.Frame, h.Late, h.Moved = *p, *f, late, false
	h.Data = nil
	h.buf = append(append(append(h.buf[:0], f.IP...), f.TCP.Payload...), p.Comment...)
	n, m := len(f.IP), len(f.IP)+len(f.TCP.Payload)
	h.IP, h.TCP.Payload, h.Comment = h.buf[:n:n], h.buf[n:m:m], h.buf[m:]
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
		if x.Time < h.Time || x.Time == h.Time && (late || !x.Late) {
			break
		}
		*w.at(i) = x
		h.Moved = true
	}
	*w.at(i) = h
	w.n++
}

// Next takes the earliest packet out; nil if there is none. It is valid until the next call of Next.
func (w *Window) Next() *Held {
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
