package device

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// SRQInit says what a shared receive queue is to be (ibv_srq_init_attr).
type SRQInit struct {
	MaxWR  int // receives that it holds, 1 ... MaxSRQWR
	MaxSGE int // entries of one receive, 0 means 1, at most MaxSRQSGE
	Limit  int // 0 ... MaxWR; see SRQ.SetLimit
	// XRCD makes it the target of XRC requests, which complete to CQ; nil: it serves the queue
	// pairs that are created with it.
	XRCD *XRCD
	CQ   *CQ
	// Ring is the queue in memory that a program shares, instead of what PostRecv fills; nil: none.
	Ring SharedRing
}

// SharedRing is a RecvRing that knows how many receives it holds. It is called under the lock of
// the shared receive queue.
type SharedRing interface {
	RecvRing
	// Len returns how many receives it holds that were not fetched.
	Len() int
	// Malformed reports whether the receive fetched last cannot be what the program meant. Whoever has
	// taken it fails with it, and the queue raises EventSRQErr, once.
	Malformed() bool
}

// SRQ is a shared receive queue (ibv_srq): receives for any message of the queue pairs that were created
// with it.
type SRQ struct {
	ctx  *Context
	pd   *PD
	id   int
	init SRQInit
	num  uint32                // XRC
	uses atomic.Int32          // queue pairs
	recv transport.RecvContext // XRC: as targets see it

	mu    sync.Mutex
	ring  recvRing
	n     int // receives in ring
	limit int
	holds int  // XRC: receives that targets have taken and not completed
	bad   bool // EventSRQErr was raised
	dead  bool
}

// CreateSRQ makes a shared receive queue (ibv_create_srq). EINVAL: a value out of its range, one of XRCD and CQ without the other, more
// than MaxSRQ on the device.
func (pd *PD) CreateSRQ(in SRQInit) (*SRQ, error) {
	const op = "create_srq"
	if in.MaxSGE == 0 {
		in.MaxSGE = 1
	}
	switch {
	case in.MaxWR < 1 || in.MaxWR > MaxSRQWR:
		return nil, &OpError{op, "", because(EINVAL, "max_wr %d: 1 ... %d are possible", in.MaxWR, MaxSRQWR)}
	case in.MaxSGE < 0 || in.MaxSGE > MaxSRQSGE:
		return nil, &OpError{op, "", because(EINVAL, "max_sge %d: 1 ... %d are possible", in.MaxSGE, MaxSRQSGE)}
	case in.Limit < 0 || in.Limit > in.MaxWR:
		return nil, &OpError{op, "", because(EINVAL, "srq_limit %d: 0 ... max_wr %d are possible", in.Limit, in.MaxWR)}
	}
	if (in.XRCD == nil) != (in.CQ == nil) {
		return nil, &OpError{op, "", because(EINVAL, "an XRC domain and a completion queue go together")}
	}
	s := &SRQ{ctx: pd.ctx, pd: pd, init: in, limit: in.Limit}
	if in.Ring == nil {
		s.ring.slot = make([]RecvWR, in.MaxWR)
	}
	c := pd.ctx
	live := func() error {
		if in.XRCD == nil {
			return pd.live()
		}
		return cmp.Or(pd.live(), alive(c.xrcds, in.XRCD, "XRC domain"), alive(c.cqs, in.CQ, "completion queue"))
	}
	err := own(c, op, c.srqs, MaxSRQ, s, live, func() {
		pd.uses.Add(1)
		s.id = c.nextSRQ
		c.nextSRQ++
		if in.XRCD != nil {
			in.XRCD.uses.Add(1)
			in.CQ.uses.Add(1)
			s.recv = transport.RecvContext{Queue: s, Shared: true, Domain: pd, Done: in.CQ.push}
			c.dev.addSRQ(s)
		}
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *SRQ) name() string { return fmt.Sprintf("srq %d", s.id) }

// PostRecv adds a receive work request (ibv_post_srq_recv). The request and its list are
// copied. ENOMEM: it holds MaxWR. EINVAL: more entries than MaxSGE, nil, a queue with a Ring, or one that is destroyed.
func (s *SRQ) PostRecv(wr *RecvWR) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch {
	case wr == nil:
		err = errNoRequest
	case s.dead:
		err = because(EINVAL, "it is destroyed")
	case s.init.Ring != nil:
		err = because(EINVAL, "it is a ring of a program")
	case len(wr.SGE) > s.init.MaxSGE:
		err = because(EINVAL, "%d entries, max_sge is %d", len(wr.SGE), s.init.MaxSGE)
	case s.ring.full():
		err = because(ENOMEM, "%d receives are outstanding", len(s.ring.slot))
	}
	if err != nil {
		return &OpError{"post_srq_recv", s.name(), err}
	}
	s.ring.push(wr)
	s.n++
	return nil
}

// SetLimit asks for one event EventSRQLimit when fewer than n receives are left after one was
// taken; 0 asks for none (ibv_modify_srq). The event goes to the context's list, and ends it: set the limit again. EINVAL: n is not
// 0 ... MaxWR, or the queue is destroyed.
func (s *SRQ) SetLimit(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return &OpError{"modify_srq", s.name(), because(EINVAL, "it is destroyed")}
	}
	if n < 0 || n > s.init.MaxWR {
		return &OpError{"modify_srq", s.name(), because(EINVAL, "srq_limit %d: 0 ... max_wr %d are possible", n, s.init.MaxWR)}
	}
	s.limit = n
	return nil
}

// Resize changes how many receives the queue holds: 1 ... MaxSRQWR, at least those that it does and not less than its limit
// (ibv_modify_srq). EINVAL: other values, a queue with a Ring, or one that is destroyed.
func (s *SRQ) Resize(maxWR int) error {
	return s.resize(maxWR, func() error {
		if s.init.Ring != nil {
			return because(EINVAL, "it is a ring of a program")
		}
		if maxWR < s.n {
			return because(EINVAL, "max_wr %d, and %d receives are there", maxWR, s.n)
		}
		ring := recvRing{slot: make([]RecvWR, maxWR)}
		var wr RecvWR
		for s.ring.Fetch(&wr) {
			ring.push(&wr)
		}
		s.ring = ring
		return nil
	})
}

// ReplaceRing gives a queue with a Ring another one for maxWR receives, that f makes of it. f moves the receives that are
// there; it is called under the queue's lock, so that none is taken meanwhile. With its error all stays as it was, and the
// OpError wraps it. EINVAL as from Resize, and for a queue without a Ring.
func (s *SRQ) ReplaceRing(maxWR int, f func(old SharedRing) (SharedRing, error)) error {
	return s.resize(maxWR, func() error {
		if s.init.Ring == nil {
			return because(EINVAL, "it has no ring")
		}
		r, err := f(s.init.Ring)
		if err == nil {
			s.init.Ring = r
		}
		return err
	})
}

func (s *SRQ) resize(maxWR int, f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch {
	case s.dead:
		err = because(EINVAL, "it is destroyed")
	case maxWR < 1 || maxWR > MaxSRQWR:
		err = because(EINVAL, "max_wr %d: 1 ... %d are possible", maxWR, MaxSRQWR)
	case maxWR < s.limit:
		err = because(EINVAL, "max_wr %d is below srq_limit %d", maxWR, s.limit)
	default:
		err = f()
	}
	if err != nil {
		return &OpError{"modify_srq", s.name(), err}
	}
	s.init.MaxWR = maxWR
	return nil
}

// Query returns what the queue was made with or changed to, and the limit that is in force, 0 when its
// event was sent (ibv_query_srq).
func (s *SRQ) Query() SRQInit {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.init
	in.Limit = s.limit
	return in
}

// Fetch implements transport.RecvQueue, for engines and not for programs. A place is free for a new receive at once: with several queue
// pairs they do not complete in order.
func (s *SRQ) Fetch(wr *RecvWR) bool {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return false
	}
	ok := false
	left := 0
	if r := s.init.Ring; r != nil {
		if ok = r.Fetch(wr); ok {
			r.Retire(1)
			if !s.bad && r.Malformed() {
				s.bad = true
				s.ctx.raise(AsyncEvent{Type: EventSRQErr, SRQ: s}, nil)
			}
		}
		left = r.Len()
	} else {
		if ok = s.ring.Fetch(wr); ok {
			s.ring.Retire(1)
			s.n--
		}
		left = s.n
	}
	if ok && s.init.XRCD != nil {
		s.holds++
	}
	reached := ok && left < s.limit
	if reached {
		s.limit = 0 // one shot
	}
	if reached {
		s.ctx.raise(AsyncEvent{Type: EventSRQLimit, SRQ: s}, nil) // under the lock: none comes after Destroy
	}
	s.mu.Unlock()
	return ok
}

// Retire implements transport.RecvQueue, for engines and not for programs. The places are free already.
func (s *SRQ) Retire(n int) {
	if s.init.XRCD == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds -= n
}

// Destroy frees the queue (ibv_destroy_srq). EBUSY: a queue pair uses it, or an XRC target is in the middle of a message that it
// receives here. EINVAL: it is destroyed already. Receives that are left make no completions.
func (s *SRQ) Destroy() error { return s.destroy(false) }

func (s *SRQ) destroy(force bool) error {
	c := s.ctx
	c.mu.Lock()
	s.mu.Lock()
	var err error
	if _, live := c.srqs[s]; !live {
		err = because(EINVAL, "it is destroyed already")
	} else if n := s.uses.Load(); n > 0 {
		err = because(EBUSY, "%d queue pairs use it", n)
	} else if s.holds > 0 && !force {
		err = because(EBUSY, "XRC targets are in the middle of %d messages for it", s.holds)
	}
	s.dead = s.dead || err == nil
	s.mu.Unlock()
	if err != nil {
		c.mu.Unlock()
		return &OpError{"destroy_srq", s.name(), err}
	}
	delete(c.srqs, s)
	if s.init.XRCD != nil {
		c.dev.qpMu.Lock()
		delete(c.dev.srqs, s.num)
		c.dev.qpMu.Unlock()
		s.init.XRCD.uses.Add(-1)
		s.init.CQ.uses.Add(-1)
	}
	s.pd.uses.Add(-1) // with the lock, as in QP.destroy
	c.mu.Unlock()
	c.async.withdraw(func(e AsyncEvent) bool { return e.SRQ == s })
	return nil
}
