package transport

// SendQueue is the engine's end of a send queue: an in-process ring, or one in
// memory that a program shares.
//
// Requests are fetched in order and retired in order. The place of a request
// is free for a new one only after Retire, which the engine calls before it publishes the
// completion.
type SendQueue interface {
	// Fetch copies the next request into wr, reusing wr's slices; false when
	// there is none. What it returns was validated: a request that cannot be
	// executed comes with the status that it is to complete with.
	Fetch(wr *SendWR) (st Status, ok bool)
	// Retire gives back the places of the n oldest fetched requests.
	Retire(n int)
}

// RecvQueue is the engine's end of a receive queue or of a shared receive
// queue.
type RecvQueue interface {
	// Fetch takes the next receive into wr, reusing wr's slice; false when
	// there is none.
	Fetch(wr *RecvWR) bool
	// Retire gives back the places of the n oldest fetched receives.
	Retire(n int)
}

// CountedQueue is a RecvQueue that knows how many receives wait in it.
type CountedQueue interface {
	RecvQueue
	// Len returns how many receives can be fetched.
	Len() int
}

// RecvContext is what a message is received into: constant for RC and UD,
// chosen by the XRCETH of each packet for XRC.
type RecvContext struct {
	Queue  RecvQueue // where receives come from
	Shared bool      // the queue is an SRQ: not flushed with the queue pair
	Domain any       // its protection domain; nil: that of the queue pair
	// Done publishes a completion; false if the completion queue was full and it
	// is lost, over which the engine has the queue pair enter ERR.
	Done func(wc *WC, solicited bool) bool
}
