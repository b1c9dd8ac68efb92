//go:build linux

package uverbs

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// table is what a program has made, by handle. The connection's goroutine alone
// changes it; mu is for the rings, which look address handles up.
type table struct {
	mu       sync.RWMutex
	objects  map[uint32]any
	free     []uint32
	next     uint32
	channels map[uint32]*channel // by the id that the library knows
	made     int                 // channels that there are, closed ones that are still used included
	freed    func(n int)         // hears of file descriptors that are closed before the connection ends
	nextID   uint32
	left     int      // channels that the program has closed and queues are still on
	events   sync.Map // *device.QP and *device.CQ to *counted: for asynchronous events
}

func (t *table) init() {
	t.objects, t.channels = map[uint32]any{}, map[uint32]*channel{}
	t.next, t.nextID = 1, 1 // 0 is no address handle to librxe, and no event fd to the library
}

// add gives an object a handle.
func (t *table) add(o any) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.next
	if n := len(t.free); n > 0 {
		h, t.free = t.free[n-1], t.free[:n-1]
	} else {
		t.next++
	}
	t.objects[h] = o
	return h
}

func (t *table) remove(h uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.objects, h)
	t.free = append(t.free, h)
}

// get resolves a handle to an object of a kind.
func get[T any](t *table, h uint32) (o T, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	o, ok := t.objects[h].(T)
	if !ok {
		return o, device.EINVAL
	}
	return o, nil
}

// doomed is get for a command that destroys: there ENOENT says that nothing has the handle
// (rdma_core.c:lookup_get_idr_uobject).
func doomed[T any](t *table, h uint32) (o T, err error) {
	t.mu.RLock()
	_, there := t.objects[h]
	t.mu.RUnlock()
	if !there {
		return o, device.Errno(unix.ENOENT)
	}
	return get[T](t, h)
}

// addressHandle is how rings resolve one.
func (t *table) addressHandle(h uint32) *device.AH {
	a, _ := get[*device.AH](t, h)
	return a
}

// counted is an object with events: what the program calls it, and how many of them
// were sent.
type counted struct {
	user        uint64
	comp, async atomic.Int32
}

// A protection domain, memory region or address handle is in the table as *device.PD,
// *device.MR or *device.AH.

type completionQueue struct {
	counted
	*device.CQ
	ring    span
	state   stateByte // stateCQ while it is there
	channel *channel  // nil: none
}

type queuePair struct {
	counted
	*device.QP
	sq, rq   span
	bell     bell
	attached map[attachment]struct{} // multicast groups
}

type sharedReceives struct {
	counted
	*device.SRQ
	ring span
}

// channel is a completion channel.
type channel struct {
	*eventPipe
	ino    uint64
	uses   int  // completion queues on it
	closed bool // the program has closed it
}

// find returns the channel whose other end fd is.
func (t *table) find(fd int) *channel {
	ino := inodeOf(fd)
	for _, ch := range t.channels {
		if ino != 0 && ch.ino == ino {
			return ch
		}
	}
	return nil
}

// closeChannel handles that the program has closed its end.
func (t *table) closeChannel(id uint32, ch *channel) {
	ch.closed = true
	delete(t.channels, id)
	for _, rec := range ch.hangUp() {
		for _, o := range t.objects {
			if q, ok := o.(*completionQueue); ok && q.channel == ch && q.user == le.Uint64(rec) {
				q.comp.Add(-1) // never reported
				break
			}
		}
	}
	if ch.uses == 0 {
		t.end(ch)
	} else {
		t.left++
	}
}

// end frees a channel that nobody uses any more.
func (t *table) end(ch *channel) {
	ch.close()
	t.made--
	t.freed(channelFDs)
}

// leave takes a completion queue off its channel.
func (t *table) leave(ch *channel) {
	if ch.uses--; ch.uses == 0 && ch.closed {
		t.end(ch)
		t.left--
	}
}

// release frees what is not the context's: rings and channels. The context is closed.
func (t *table) release(a *arena) {
	for _, o := range t.objects {
		switch o := o.(type) {
		case *completionQueue:
			a.put(o.ring)
			if o.channel != nil {
				t.leave(o.channel)
			}
		case *queuePair:
			a.put(o.sq)
			a.put(o.rq)
		case *sharedReceives:
			a.put(o.ring)
		}
	}
	for _, ch := range t.channels {
		ch.close()
	}
}
