package device

import (
	"fmt"
	"sync"
)

// Context owns the objects of one user of a device: what a process is to a
// kernel driver. Close frees them all.
type Context struct {
	dev   *Device
	owner Owner
	async *eventList[AsyncEvent]

	mu       sync.Mutex
	closed   bool
	gone     chan struct{} // closed when Close has freed everything
	pds      map[*PD]struct{}
	mrs      map[*MR]struct{}
	fasts    map[*FastMR]struct{}
	mws      map[*MW]struct{}
	cqs      map[*CQ]struct{}
	qps      map[*QP]struct{}
	srqs     map[*SRQ]struct{}
	xrcds    map[*XRCD]struct{}
	ahs      map[*AH]struct{}
	channels map[*CompChannel]struct{}
	nextCQ   int
	nextSRQ  int
}

// Owner is the process that a context serves, for tools. The zero value is this one.
type Owner struct {
	PID  int    // process ID; 0: this process
	Comm string // as ps prints it
}

// SetOwner says whom the context serves: QPInfo has it. It is called before anything is created, without a lock.
func (c *Context) SetOwner(o Owner) { c.owner = o }

// NewContext returns an empty context (ibv_open_device). Of a device that is closed it is closed too: what it is asked for is EIO.
func (d *Device) NewContext() *Context {
	c := &Context{
		dev: d, async: newEventList[AsyncEvent](), gone: make(chan struct{}),
		pds: map[*PD]struct{}{}, mrs: map[*MR]struct{}{}, fasts: map[*FastMR]struct{}{}, mws: map[*MW]struct{}{}, cqs: map[*CQ]struct{}{},
		qps: map[*QP]struct{}{}, srqs: map[*SRQ]struct{}{}, xrcds: map[*XRCD]struct{}{}, ahs: map[*AH]struct{}{}, channels: map[*CompChannel]struct{}{},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		c.closed = true
		close(c.gone)
	}
	d.contexts[c] = struct{}{}
	return c
}

// Device returns the device of the context.
func (c *Context) Device() *Device { return c.dev }

// own records a new object in its set, or says why it cannot be: limit is how many there can be of its kind on the device,
// beyond which the error is EINVAL, as of rxe (rxe_pool.c). live checks, under
// the context's lock, that what the object stands on is alive; made, if not nil,
// publishes the object while Close has to wait.
func own[T comparable](c *Context, op string, set map[T]struct{}, limit int, o T, live func() error, made func()) error {
	l, k := &c.dev.limits, kindOf(o)
	l.mu.Lock()
	defer l.mu.Unlock()
	limit, full := l.full(c.dev, k, limit)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return &OpError{op, "", because(EIO, "the context is closed")}
	}
	if live != nil {
		if err := live(); err != nil {
			return &OpError{op, "", err}
		}
	}
	if full {
		return &OpError{op, "", because(EINVAL, "the device has as many as there can be: %d", limit)}
	}
	l.bound[k]++
	set[o] = struct{}{}
	if made != nil {
		made()
	}
	return nil
}

// alive is a live check of one object; the context's lock is held.
func alive[T comparable](set map[T]struct{}, o T, what string) error {
	if _, ok := set[o]; !ok {
		return because(EINVAL, "the %s is destroyed, or of another context", what)
	}
	return nil
}

// Close frees everything that belongs to the context (ibv_close_device), at any moment: queue
// pairs first, so that nothing is in flight when the rest goes. Whoever calls it, also again, nothing is
// used any more when it returns. The error is nil. Who waits for a completion or an event gets EIO.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.gone // another is at it
		return nil
	}
	c.closed = true
	defer close(c.gone)
	qps, mrs, ahs, cqs, srqs := keysOf(c.qps), keysOf(c.mrs), keysOf(c.ahs), keysOf(c.cqs), keysOf(c.srqs)
	channels, fasts, mws := keysOf(c.channels), keysOf(c.fasts), keysOf(c.mws)
	clear(c.mrs)
	clear(c.fasts)
	clear(c.mws)
	c.mu.Unlock()

	for _, q := range qps {
		_ = q.destroy(true)
	}
	for _, s := range srqs {
		_ = s.destroy(true)
	}
	for _, w := range mws {
		w.drop()
	}
	for _, f := range fasts {
		f.drop()
	}
	for _, m := range mrs {
		m.drop()
	}
	for _, a := range ahs {
		_ = a.Destroy()
	}
	for _, q := range cqs {
		_, _ = q.Destroy()
	}
	for _, ch := range channels {
		ch.close()
	}
	c.async.close()
	c.mu.Lock()
	clear(c.pds)
	clear(c.channels)
	clear(c.xrcds)
	c.mu.Unlock()
	d := c.dev
	d.mu.Lock()
	delete(d.contexts, c)
	d.mu.Unlock()
	return nil
}

func keysOf[K comparable](m map[K]struct{}) []K {
	l := make([]K, 0, len(m))
	for k := range m {
		l = append(l, k)
	}
	return l
}

// Objects counts what a context holds, by kind, for tests and tools. The zero value is a context that holds nothing.
type Objects struct {
	PD      int `json:"pd"`           // protection domains
	MR      int `json:"mr"`           // regions
	FastMR  int `json:"fast_mr"`      // regions for fast registration
	MW      int `json:"mw"`           // memory windows
	CQ      int `json:"cq"`           // completion queues
	QP      int `json:"qp"`           // queue pairs
	AH      int `json:"ah"`           // address handles
	SRQ     int `json:"srq"`          // shared receive queues
	XRCD    int `json:"xrcd"`         // handles of XRC domains
	Channel int `json:"comp_channel"` // completion channels
}

// Objects returns how many objects the context holds.
func (c *Context) Objects() Objects {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Objects{
		PD: len(c.pds), MR: len(c.mrs), FastMR: len(c.fasts), MW: len(c.mws), CQ: len(c.cqs), QP: len(c.qps), AH: len(c.ahs), SRQ: len(c.srqs),
		XRCD: len(c.xrcds), Channel: len(c.channels),
	}
}

func qpName(n uint32) string { return fmt.Sprintf("qp 0x%06x", n) }
