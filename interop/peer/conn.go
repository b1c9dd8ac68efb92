package peer

import (
	"net"
	"os"
	"sync"
	"time"
)

// Conn is where the peer's packets go out and come in: IP packets, one a call.
type Conn interface {
	// Write sends one packet, from the IP header on. The packet is the caller's
	// again when Write returns.
	Write(ipPacket []byte) error
	// Read waits for the next packet, until the deadline; a zero deadline means for
	// ever. The error is then one that os.ErrDeadlineExceeded matches, and after
	// Close one that net.ErrClosed matches. The packet is the caller's to keep.
	Read(deadline time.Time) ([]byte, error)
}

// HeaderRebuilder is a [Conn] that does not see the IP header of what it receives
// and makes one up: its IPv4 identification is not the one that was sent.
type HeaderRebuilder interface {
	RebuildsHeader() bool
}

// Funcs makes a Conn of two functions.
type Funcs struct {
	WriteFunc func(ipPacket []byte) error
	ReadFunc  func(deadline time.Time) ([]byte, error)
}

// Write calls WriteFunc.
func (c Funcs) Write(ipPacket []byte) error { return c.WriteFunc(ipPacket) }

// Read calls ReadFunc.
func (c Funcs) Read(deadline time.Time) ([]byte, error) { return c.ReadFunc(deadline) }

// Queue is a Conn for a link that calls back: what the peer writes goes to a
// function, what the link delivers waits in an unbounded queue until it is read.
// Made inside a testing/synctest bubble, it waits in virtual time.
type Queue struct {
	write func(ipPacket []byte) error

	mu      sync.Mutex
	packets [][]byte
	closed  bool
	wake    chan struct{} // holds a token while packets or closed may be news
}

// NewQueue makes a Queue that hands what it is to send to write. write may call
// Deliver.
func NewQueue(write func(ipPacket []byte) error) *Queue {
	return &Queue{write: write, wake: make(chan struct{}, 1)}
}

// NewPipe gives two Queues, each of which reads what the other writes.
func NewPipe() (a, b *Queue) {
	a = NewQueue(func(p []byte) error { b.Deliver(p); return nil })
	b = NewQueue(func(p []byte) error { a.Deliver(p); return nil })
	return a, b
}

// Deliver puts a packet, from the IP header on, into the queue. It copies the
// packet and never blocks; any goroutine may call it.
func (c *Queue) Deliver(ipPacket []byte) {
	c.mu.Lock()
	c.packets = append(c.packets, append([]byte(nil), ipPacket...))
	c.mu.Unlock()
	c.signal()
}

func (c *Queue) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Write hands the packet on.
func (c *Queue) Write(ipPacket []byte) error { return c.write(ipPacket) }

// Read takes the next packet that was delivered.
func (c *Queue) Read(deadline time.Time) ([]byte, error) {
	var expired <-chan time.Time
	if !deadline.IsZero() {
		timer := time.NewTimer(time.Until(deadline))
		defer timer.Stop()
		expired = timer.C
	}
	for {
		c.mu.Lock()
		if len(c.packets) > 0 {
			p := c.packets[0]
			c.packets = c.packets[1:]
			c.mu.Unlock()
			c.signal() // for another reader
			return p, nil
		}
		closed := c.closed
		c.mu.Unlock()
		if closed {
			c.signal()
			return nil, net.ErrClosed
		}
		select {
		case <-c.wake:
		case <-expired:
			return nil, os.ErrDeadlineExceeded
		}
	}
}

// Close lets reads fail once the queue is empty.
func (c *Queue) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.signal()
	return nil
}
