package device

import (
	"context"
	"fmt"
	"sync"

	"github.com/softnic/softnic/transport"
)

// eventList is a list of events on their way to a consumer. Either the
// consumer takes them with get, or they are handed to a sink at once. Destroying an object
// withdraws what was not taken and learns what was.
type eventList[T any] struct {
	mu     sync.Mutex
	list   []T
	closed bool
	ready  sleeper // is woken while list is not empty, or it is closed
	sink   func(T) // takes the events instead of the list; nil: none
}

func newEventList[T any]() *eventList[T] { return &eventList[T]{ready: newSleeper()} }

// add appends an event.
func (l *eventList[T]) add(e T) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	if l.sink != nil {
		l.sink(e)
		l.mu.Unlock()
		return
	}
	l.list = append(l.list, e)
	l.ready.wake()
	l.mu.Unlock()
}

// setSink hands what is on the list, and from then on every event, to sink: one at a time, in their order, which says
// what the state of a port is.
func (l *eventList[T]) setSink(sink func(T)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sink = sink
	if sink == nil {
		return
	}
	for _, e := range l.list {
		sink(e)
	}
	l.list = nil
}

// tryGet takes the oldest event.
func (l *eventList[T]) tryGet() (e T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return e, false
	}
	e = l.list[0]
	l.list = append(l.list[:0], l.list[1:]...)
	if len(l.list) > 0 || l.closed {
		l.ready.wake()
	}
	return e, true
}

// get waits for an event, and receives from the link meanwhile if rx is given. It fails with the error of ctx, or EIO after close.
func (l *eventList[T]) get(ctx context.Context, rx *receiver) (e T, err error) {
	for {
		if e, ok := l.tryGet(); ok {
			return e, nil
		}
		l.mu.Lock()
		closed := l.closed
		if closed {
			l.ready.wake()
		}
		l.mu.Unlock()
		if closed {
			return e, EIO
		}
		if ctx.Err() != nil {
			return e, ctx.Err()
		}
		l.ready.sleep(ctx, rx) // who has the token takes what came with it, also at the end of ctx: others who wait have no other
	}
}

// withdraw takes back the events for which mine is true and returns how many
// there were.
func (l *eventList[T]) withdraw(mine func(T) bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep := l.list[:0]
	for _, e := range l.list {
		if !mine(e) {
			keep = append(keep, e)
		}
	}
	n := len(l.list) - len(keep)
	clear(l.list[len(keep):])
	l.list = keep
	return n
}

func (l *eventList[T]) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.ready.wake()
}

// EventType is the kind of an asynchronous event; values as enum
// ibv_event_type.
type EventType int

// The event types. Which field of the AsyncEvent is set stands in front.
const (
	EventCQErr       EventType = 0  // CQ: a completion found it full and is lost; once for each queue
	EventQPFatal     EventType = 1  // QP: it is in ERR because a completion of it was lost
	EventQPReqErr    EventType = 2  // QP: it is in ERR because the peer asked for what cannot be, and no receive tells of it
	EventQPAccessErr EventType = 3  // QP: the same, for memory that the key does not give
	EventCommEst     EventType = 4  // QP: a connection in RTR got its first packet
	EventSQDrained   EventType = 5  // QP: in SQD, and what had begun is complete; see QPAttr.SQDNotify
	EventDeviceFatal EventType = 8  // the link has failed for good: nothing is received, the port is down, and no event of the port comes after it
	EventPortActive  EventType = 9  // the link has come up
	EventPortErr     EventType = 10 // the link has gone down
	EventSRQErr      EventType = 14 // SRQ: a receive in the memory that a program shares is malformed; once for a queue
	EventSRQLimit    EventType = 15 // SRQ: fewer receives are left than its limit; see SRQ.SetLimit
	EventLastWQE     EventType = 16 // QP: in ERR, and it takes no more receives from its SRQ
	EventGIDChange   EventType = 18 // the GID table is another; one for each change, of one entry or several
)

var eventNames = map[EventType]string{
	EventCQErr: "IBV_EVENT_CQ_ERR", EventQPFatal: "IBV_EVENT_QP_FATAL", EventQPReqErr: "IBV_EVENT_QP_REQ_ERR",
	EventQPAccessErr: "IBV_EVENT_QP_ACCESS_ERR", EventCommEst: "IBV_EVENT_COMM_EST", EventSQDrained: "IBV_EVENT_SQ_DRAINED", EventDeviceFatal: "IBV_EVENT_DEVICE_FATAL",
	EventPortActive: "IBV_EVENT_PORT_ACTIVE", EventPortErr: "IBV_EVENT_PORT_ERR", EventGIDChange: "IBV_EVENT_GID_CHANGE",
	EventSRQErr: "IBV_EVENT_SRQ_ERR", EventSRQLimit: "IBV_EVENT_SRQ_LIMIT_REACHED", EventLastWQE: "IBV_EVENT_QP_LAST_WQE_REACHED",
}

// String returns the verbs name.
func (t EventType) String() string {
	if n := eventNames[t]; n != "" {
		return n
	}
	return fmt.Sprintf("IBV_EVENT_%d", int(t))
}

// Unaffiliated reports whether such events are about the port or the device, and not about one object: every context
// gets them.
func (t EventType) Unaffiliated() bool {
	return t == EventDeviceFatal || t == EventPortActive || t == EventPortErr || t == EventGIDChange
}

// AsyncEvent is an asynchronous event (ibv_async_event) with the object that it is about, QP, CQ or SRQ; the
// others are nil, and for a Type that is Unaffiliated all are.
type AsyncEvent struct {
	Type EventType
	Port int // 1 for those of the port, else 0: for EventDeviceFatal too
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
}

// AsyncEvent waits for the next asynchronous event of the context
// (ibv_get_async_event). Those of queue pairs with a Handler do not come here. It fails with the error of ctx, and with EIO when the
// context is closed and what it held was taken. There is nothing to acknowledge: an object can be destroyed before its event is taken,
// which is then not delivered.
func (c *Context) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	e, err := c.async.get(ctx, nil)
	if err != nil {
		return e, &OpError{"get_async_event", "", err}
	}
	return e, nil
}

// OnAsyncEvent has every asynchronous event of the context handed to f at once instead
// of being listed, beginning with what is on the list; nil lists them again. f is called under locks: it must not block or call the
// device. An object that was destroyed has no more events.
func (c *Context) OnAsyncEvent(f func(AsyncEvent)) { c.async.setSink(f) }

// TryAsyncEvent takes the next asynchronous event if there is one, and does not wait.
func (c *Context) TryAsyncEvent() (AsyncEvent, bool) { return c.async.tryGet() }

// Raise implements transport.Host.
func (h *host) Raise(e transport.Event) {
	q := (*QP)(h)
	q.dev.log.Debug("event", "qp", q.num, "event", EventType(e).String())
	q.ctx.raise(AsyncEvent{Type: EventType(e), QP: q}, q.handler)
}

// raise delivers an event to its object's handler or to the context's list.
func (c *Context) raise(e AsyncEvent, handler func(AsyncEvent)) {
	if handler == nil {
		c.async.add(e)
		return
	}
	var of any = e.CQ
	if e.QP != nil {
		of = e.QP
	}
	c.dev.dispatch.add(call{of, func() { handler(e) }})
}

// CompChannel collects the completion events of the queues that were created
// with it (ibv_comp_channel).
type CompChannel struct {
	ctx  *Context
	list *eventList[*CQ]
	uses int // completion queues on it; the context's lock guards it
}

// CreateCompChannel makes a completion channel (ibv_create_comp_channel). EINVAL: more than MaxCQ on the device.
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	ch := &CompChannel{ctx: c, list: newEventList[*CQ]()}
	if err := own(c, "create_comp_channel", c.channels, MaxCQ, ch, nil, nil); err != nil {
		return nil, err
	}
	return ch, nil
}

// Get waits for a completion event and returns the queue that it is about, to be armed again and polled (ibv_get_cq_event;
// there is nothing to acknowledge). It fails with the error of ctx, and with EIO when the channel is destroyed and what it held
// was taken.
func (ch *CompChannel) Get(ctx context.Context) (*CQ, error) {
	q, err := ch.list.get(ctx, ch.ctx.dev.rx)
	if err != nil {
		return nil, &OpError{"get_cq_event", "", err}
	}
	return q, nil
}

// TryGet takes a completion event if there is one, and does not wait.
func (ch *CompChannel) TryGet() (*CQ, bool) { return ch.list.tryGet() }

// Destroy frees the channel (ibv_destroy_comp_channel). EBUSY: a completion queue is on it. EINVAL: it is destroyed already.
func (ch *CompChannel) Destroy() error {
	c := ch.ctx
	c.mu.Lock()
	if _, live := c.channels[ch]; !live {
		c.mu.Unlock()
		return &OpError{"destroy_comp_channel", "", because(EINVAL, "it is destroyed already")}
	}
	if n := ch.uses; n > 0 {
		c.mu.Unlock()
		return &OpError{"destroy_comp_channel", "", because(EBUSY, "%d completion queues are on it", n)}
	}
	delete(c.channels, ch)
	c.mu.Unlock()
	ch.close()
	return nil
}

func (ch *CompChannel) close() { ch.list.close() }

// dispatcher runs handlers, one after the other, on a goroutine of its own or, in
// a stepped device, in Step.
type dispatcher struct {
	*eventList[call]
	done chan struct{}
}

// call is a handler to be called, and the object that it is of: what is destroyed
// is not heard of any more.
type call struct {
	of any
	f  func()
}

func newDispatcher(stepped bool) *dispatcher {
	d := &dispatcher{newEventList[call](), make(chan struct{})}
	if stepped {
		close(d.done)
		return d
	}
	go func() {
		defer close(d.done)
		for {
			f, err := d.get(context.Background(), nil)
			if err != nil {
				return
			}
			f.f()
		}
	}()
	return d
}

// runAll runs what is there; it reports whether there was anything.
func (d *dispatcher) runAll() bool {
	any := false
	for {
		f, ok := d.tryGet()
		if !ok {
			return any
		}
		any = true
		f.f()
	}
}
