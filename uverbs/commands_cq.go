//go:build linux

package uverbs

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// maxChannels bounds the completion channels of a context, each of which takes file
// descriptors of the daemon.
const maxChannels = 1024

func createCompChannel(c *conn, _ *request, a *answer) error {
	if len(c.objects.channels)+c.objects.left >= maxChannels {
		return emfile
	}
	if !c.s.take(c.uid, channelFDs) {
		return emfile
	}
	p, end, err := newEventPipe()
	if err != nil {
		c.s.give(c.uid, channelFDs)
		return emfile
	}
	c.objects.made++
	id := c.objects.nextID
	c.objects.nextID++
	c.objects.channels[id] = &channel{eventPipe: p, ino: p.inode()}
	a.undo = func(c *conn) { c.closed(id) }
	a.fd, a.fdID = end, id
	a.core = make([]byte, 4)
	return nil
}

// createCQ serves struct ib_uverbs_create_cq and, without the response at its beginning, struct
// ib_uverbs_ex_create_cq.
func createCQ(c *conn, r *request, a *answer) error {
	at := 8
	if r.extended {
		at = 0
		if r.u32(at+20) != 0 || r.u32(at+28) != 0 { // comp_mask, reserved
			return device.EINVAL
		}
		if r.u32(at+24) != 0 { // flags: timestamps, ignored overruns
			return device.EOPNOTSUPP
		}
	}
	entries, vector, fd := r.u32(at+8), r.u32(at+12), int32(r.u32(at+16))
	if entries == 0 || entries > device.MaxCQE {
		return invalid("create_cq: cqe %d: 1 ... %d are possible", entries, device.MaxCQE)
	}
	if vector >= uint32(runtime.NumCPU()) {
		return invalid("create_cq: comp_vector %d: 0 ... %d are possible", vector, runtime.NumCPU()-1)
	}
	q := &completionQueue{counted: counted{user: r.u64(at)}}
	if fd >= 0 {
		if q.channel = c.objects.find(r.fd); q.channel == nil {
			return device.Errno(unix.EBADF)
		}
	}
	var err error
	q.ring, err = c.arena.get(ringSize(int(entries), cqeLen))
	if err != nil {
		return err
	}
	h := c.objects.add(q)
	ring := &cqRing{ring: newRing(q.ring.buf, int(entries), cqeLen), arm: armOf(c.arena.arms, h)}
	ring.Disarm() // what another queue of the same name has left
	q.CQ, err = c.ctx.CreateCQ(device.CQInit{Entries: ring.capacity(), Ring: ring, Notify: q.notify})
	if err != nil {
		c.objects.remove(h)
		c.arena.put(q.ring)
		return err
	}
	q.state = stateOf(c.arena.states, h)
	q.state.set(stateCQ)
	if q.channel != nil {
		q.channel.uses++
	}
	c.objects.events.Store(q.CQ, &q.counted)
	a.made(h, destroyCQ)
	a.core = le.AppendUint32(a.core, uint32(ring.capacity()))
	if r.extended {
		a.core = le.AppendUint32(a.core, 0)  // comp_mask
		a.core = le.AppendUint32(a.core, 16) // response_length
	}
	a.driver = q.ring.info(nil)
	return nil
}

// resizeCQ serves struct ib_uverbs_resize_cq. The program's library maps the new ring before it polls again.
func resizeCQ(c *conn, r *request, a *answer) error {
	q, err := get[*completionQueue](&c.objects, r.u32(8))
	if err != nil {
		return err
	}
	entries := r.u32(12)
	if entries == 0 || entries > device.MaxCQE {
		return invalid("resize_cq: cqe %d: 1 ... %d are possible", entries, device.MaxCQE)
	}
	mem, err := c.arena.get(ringSize(int(entries), cqeLen))
	if err != nil {
		return err
	}
	ring := &cqRing{ring: newRing(mem.buf, int(entries), cqeLen)}
	err = q.ReplaceRing(func(old device.CompletionRing) (device.CompletionRing, error) {
		o := old.(*cqRing)
		n, ok := ring.takeOver(&o.ring, o.load(ringConsumer), o.produced, int(entries))
		if !ok {
			return nil, device.EINVAL // rxe_cq.c:rxe_cq_chk_attr
		}
		ring.produced, ring.arm = n, o.arm
		return ring, nil
	})
	if err != nil {
		c.arena.put(mem)
		return err
	}
	c.arena.put(q.ring) // the program may look at it once more, and sees zeros
	q.ring = mem
	a.core = le.AppendUint32(a.core, uint32(ring.capacity()))
	a.core = le.AppendUint32(a.core, 0)
	a.driver = mem.info(nil)
	return nil
}

// notify sends a completion event (struct ib_uverbs_comp_event_desc). It is called under locks
// of the device.
func (q *completionQueue) notify() {
	if q.channel == nil {
		return
	}
	var b [8]byte
	le.PutUint64(b[:], q.user)
	if q.channel.send(b[:]) {
		q.comp.Add(1)
	}
}

func destroyCQ(c *conn, h uint32, a *answer) error {
	q, err := doomed[*completionQueue](&c.objects, h)
	if err != nil {
		return err
	}
	if _, err := q.Destroy(); err != nil {
		return err
	}
	async, comp := c.reported(&q.counted, q.CQ, q.channel)
	q.state.set(stateShut)
	c.objects.remove(h)
	c.arena.put(q.ring)
	if q.channel != nil {
		c.objects.leave(q.channel)
	}
	a.core = le.AppendUint32(le.AppendUint32(nil, comp), async)
	return nil
}

// reqNotifyCQ arms a queue that has no word in the memfd; others the library arms there.
func reqNotifyCQ(c *conn, r *request, _ *answer) error {
	q, err := get[*completionQueue](&c.objects, r.u32(0))
	if err != nil {
		return err
	}
	q.Arm(r.u32(4) != 0)
	return nil
}
