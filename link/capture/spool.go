package capture

import (
	"errors"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// flushEvery is how long a record may wait before it is written, so that somebody
	// who follows the file sees it; and how seldom a busy port wakes the writing
	// goroutine, since a wake costs more than a packet.
	flushEvery = 50 * time.Millisecond
	// flushSize is how much may wait before it is written earlier than that.
	flushSize = 256 << 10
	// window is how late a record may come for its time, unless it is that of a received packet: those come when
	// the device has handled their burst, after what was sent in answer to it, and are waited for.
	window = 5 * time.Millisecond
	// defaultLimit bounds what waits to be written.
	defaultLimit = 32 << 20
)

var errClosed = errors.New("capture: closed")

// spool puts encoded records into the order of time and writes them, on a goroutine of its
// own: that of a timer, which runs only while something waits.
type spool struct {
	w     io.Writer
	limit int
	block bool // rather write than lose

	mu     sync.Mutex
	in     []record // came since the last flush
	cur    *chunk   // has room for the next record; may be nil
	free   []*chunk
	size   int     // of all records that wait
	open   []int64 // times from which on received packets are being handled, whose records are to come
	armed  bool
	closed bool
	err    error // of writing: the end
	timer  *time.Timer

	wmu   sync.Mutex // taken before mu: writing
	taken []record   // what was in
	held  []record   // in order of time, and too young to be written
	first int        // first of held that is not written
	out   []byte
}

// record is an encoded record.
type record struct {
	when    int64 // ns
	sent    bool  // comes behind what was received at the same time
	c       *chunk
	from, n int // place in c.buf
}

// chunk is memory that records share.
type chunk struct {
	buf  []byte
	left int // records in it that are not written
}

// put adds a record, which encode appends to its argument; it reports whether there was room.
func (s *spool) put(when time.Time, sent bool, encode func(dst []byte) []byte) bool {
	s.mu.Lock()
	for s.block && s.size > s.limit && s.err == nil && !s.closed {
		s.mu.Unlock()
		s.flush(true)
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.closed || s.err != nil || s.size > s.limit {
		return false
	}
	if s.cur == nil {
		if n := len(s.free); n > 0 {
			s.cur = s.free[n-1]
			s.free = s.free[:n-1]
		} else {
			s.cur = &chunk{buf: make([]byte, 0, flushSize+flushSize/8)}
		}
	}
	c := s.cur
	from := len(c.buf)
	c.buf = encode(c.buf)
	c.left++
	n := len(c.buf) - from
	s.in = append(s.in, record{when.UnixNano(), sent, c, from, n})
	s.size += n
	if !s.armed {
		s.arm(flushEvery)
	}
	if len(c.buf) >= flushSize {
		s.cur = nil
		s.arm(0)
	}
	return true
}

// arm has flush called; mu is held.
func (s *spool) arm(d time.Duration) {
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(d, func() { s.flush(false) })
	} else {
		s.timer.Reset(d)
	}
}

// flush writes what is old enough, or everything.
func (s *spool) flush(all bool) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	s.mu.Lock()
	s.armed = false
	s.in, s.taken = s.taken[:0], s.in
	s.cur = nil
	all = all || len(s.taken) == 0
	limit := int64(math.MaxInt64)
	if s.size <= s.limit/2 && !s.closed {
		for _, t := range s.open {
			limit = min(limit, t-1)
		}
	} else {
		all = true
	}
	s.mu.Unlock()

	for _, r := range s.taken {
		s.insert(r)
	}
	clear(s.taken)
	err := s.write(all, limit)

	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.err == nil {
		s.err = err
	}
	if s.first < len(s.held) && !s.armed && !s.closed && s.err == nil {
		s.arm(flushEvery)
	}
}

// insert puts a record into its place, which is nearly always near the end.
func (s *spool) insert(r record) {
	s.held = append(s.held, r)
	for i := len(s.held) - 1; i > s.first && r.before(&s.held[i-1]); i-- {
		s.held[i-1], s.held[i] = s.held[i], s.held[i-1]
	}
}

func (r *record) before(o *record) bool {
	return r.when < o.when || r.when == o.when && !r.sent && o.sent
}

// arrived and handled are those of link.OrderedSink.
func (s *spool) arrived(when time.Time) {
	s.mu.Lock()
	s.open = append(s.open, when.UnixNano())
	s.mu.Unlock()
}

func (s *spool) handled(when time.Time) {
	s.mu.Lock()
	if i := slices.Index(s.open, when.UnixNano()); i >= 0 {
		n := len(s.open) - 1
		s.open[i] = s.open[n]
		s.open = s.open[:n]
	}
	s.mu.Unlock()
}

// write writes what is held, not younger than the window and than the limit.
func (s *spool) write(all bool, limit int64) error {
	if s.first == len(s.held) {
		return nil
	}
	last := s.held[len(s.held)-1].when
	if !all {
		last -= int64(window)
	}
	limit = min(limit, last)
	for s.first < len(s.held) && s.held[s.first].when <= limit {
		s.out = s.out[:0]
		from := s.first
		for ; s.first < len(s.held) && s.held[s.first].when <= limit && len(s.out) < flushSize; s.first++ {
			r := &s.held[s.first]
			s.out = append(s.out, r.c.buf[r.from:r.from+r.n]...)
		}
		if _, err := s.w.Write(s.out); err != nil {
			return err
		}
		s.mu.Lock()
		s.size -= len(s.out)
		for _, r := range s.held[from:s.first] {
			if r.c.left--; r.c.left == 0 && r.c != s.cur {
				r.c.buf = r.c.buf[:0]
				s.free = append(s.free, r.c)
			}
		}
		s.mu.Unlock()
	}
	if s.first > len(s.held)/2 {
		n := copy(s.held, s.held[s.first:])
		clear(s.held[n:])
		s.held, s.first = s.held[:n], 0
	}
	return nil
}

// direct writes data before all records that come later.
func (s *spool) direct(data []byte) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	s.mu.Lock()
	err := s.err
	if s.closed {
		err = errClosed
	}
	s.mu.Unlock()
	if err == nil {
		_, err = s.w.Write(data)
	}
	return err
}

// error returns the error that ended writing.
func (s *spool) error() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// close writes everything and last what end gives.
func (s *spool) close(end func() []byte) error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	if was {
		return s.error()
	}
	s.flush(true)
	s.wmu.Lock()
	defer s.wmu.Unlock()
	err := s.error()
	if err == nil && end != nil {
		_, err = s.w.Write(end())
	}
	return err
}
