package transport

import "sync/atomic"

// Share divides what may be under way on a link equally among the queue pairs that have something under way: more than the receiver's
// buffers hold is lost, and who loses most gets least. The nil and the zero value set no bound.
type Share struct {
	Bytes int // of payload, all queue pairs together; 0: no bound
	busy  atomic.Int32
}

// Busy says that a queue pair has something under way from now on, or not any more.
func (s *Share) Busy(now bool) {
	switch {
	case s == nil:
	case now:
		s.busy.Add(1)
	default:
		s.busy.Add(-1)
	}
}

// Users returns how many have something under way.
func (s *Share) Users() int {
	if s == nil {
		return 0
	}
	return int(s.busy.Load())
}

// Each returns how many bytes one of them may have under way; 0: no bound.
func (s *Share) Each() int {
	if s == nil || s.Bytes == 0 {
		return 0
	}
	return max(1, s.Bytes/max(1, int(s.busy.Load())))
}
