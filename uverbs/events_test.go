//go:build linux

package uverbs

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
)

// read reads an event as a program does, and waits for it.
func (p *program) read(fd int) []byte {
	p.tb.Helper()
	var b [64]byte
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20000)
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			p.tb.Fatal("no event")
		}
		k, err := unix.Read(fd, b[:])
		if err != nil {
			p.tb.Fatal(err)
		}
		return b[:k]
	}
}

// quiet reports whether there is no event.
func quiet(fd int) bool {
	n, _, err := unix.Recvfrom(fd, make([]byte, 64), unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return n <= 0 && err == unix.EAGAIN
}

// event reads an event of a completion channel: the name of the queue.
func (p *program) event(ch *channel_) uint64 {
	p.tb.Helper()
	b := p.read(ch.fd)
	if len(b) != at("ib_uverbs_comp_event_desc").off {
		p.tb.Fatalf("an event of %d bytes", len(b))
	}
	return view("ib_uverbs_comp_event_desc", b).get("cq_handle")
}

func (p *program) asyncEvent() (element uint64, typ device.EventType) {
	p.tb.Helper()
	b := p.read(p.async)
	if len(b) != at("ib_uverbs_async_event_desc").off {
		p.tb.Fatalf("an event of %d bytes", len(b))
	}
	v := view("ib_uverbs_async_event_desc", b)
	return v.get("element"), device.EventType(v.get("event_type"))
}

// inside returns the daemon's object of a queue: events can be made with it as by the device.
func (c *cq_) inside() *completionQueue {
	c.p.tb.Helper()
	for _, x := range c.p.d.conns() {
		if q, err := get[*completionQueue](&x.objects, c.handle); err == nil && q.user == c.user {
			return q
		}
	}
	c.p.tb.Fatal("no such queue")
	return nil
}

// An event per arming, for a completion that comes after it.
func TestCompletionEvents(t *testing.T) {
	t.Run("armed in memory", func(t *testing.T) { completionEvents(t, (*cq_).arm) })
	t.Run("armed by command", func(t *testing.T) { completionEvents(t, (*cq_).armCommand) })
}

func completionEvents(t *testing.T, arm func(c *cq_, solicited bool)) {
	d := newDaemon(t)
	a, b := d.open(how{}), newSide(d.open(how{}), device.RC, 1<<12)
	pd, ch := a.pd(), a.channel()
	scq, rcq := a.cq(64, &ch), a.cq(64, &ch)
	q := a.qp(pd, qpInit{typ: device.RC, scq: scq, rcq: rcq, send: 16, recv: 16, sigAll: true, inline: 16})
	connect(q, b.q)
	send := func(flags device.SendFlags) {
		t.Helper()
		q.rq.push(func(b []byte) {})
		b.q.post(request_{id: 1, op: device.OpSend, flags: flags, inline: []byte{}})
		b.c.expect(1, device.StatusSuccess)
		rcq.wait()
	}
	send(0)
	if !quiet(ch.fd) {
		t.Fatal("an event without arming")
	}
	arm(rcq, false)
	if !quiet(ch.fd) {
		t.Fatal("an event for what was there already")
	}
	send(0)
	if e := a.event(&ch); e != rcq.user {
		t.Fatalf("event 0x%x, want 0x%x", e, rcq.user)
	}
	send(0)
	if !quiet(ch.fd) {
		t.Fatal("two events for one arming")
	}
	arm(rcq, true)
	send(0)
	if !quiet(ch.fd) {
		t.Fatal("an event for what was not solicited")
	}
	send(device.Solicited)
	if e := a.event(&ch); e != rcq.user {
		t.Fatalf("event 0x%x", e)
	}
	arm(scq, false)
	arm(scq, true) // takes nothing back
	q.post(request_{id: 2, op: device.OpWrite, inline: []byte{1}, remote: addressOf(b.buf), rkey: b.m.rkey})
	if e := a.event(&ch); e != scq.user {
		t.Fatalf("event 0x%x", e)
	}
	q.destroy()
	if comp, async := scq.destroy(); comp != 1 || async != 0 {
		t.Fatal(comp, async)
	}
	if comp, async := rcq.destroy(); comp != 2 || async != 0 {
		t.Fatal(comp, async)
	}
}

// What is armed belongs to one queue: not to another that gets its handle, and not to the ring, which may be replaced. What a program
// writes there instead is taken for the most that it can be.
func TestArmWord(t *testing.T) {
	d := newDaemon(t)
	a, b := d.open(how{}), newSide(d.open(how{}), device.RC, 1<<12)
	pd, ch := a.pd(), a.channel()
	old := a.cq(8, &ch)
	old.arm(false)
	old.destroy()
	if s := a.page[stateOff+old.handle]; s != stateShut {
		t.Fatalf("state %d after the end", s)
	}
	c := a.cq(8, &ch)
	if c.handle != old.handle || atomic.LoadUint32(c.armWord()) != armNone {
		t.Fatalf("handle %d after %d, armed: %d", c.handle, old.handle, atomic.LoadUint32(c.armWord()))
	}
	q := a.qp(pd, qpInit{typ: device.RC, scq: c, rcq: c, send: 16, recv: 16, sigAll: true, inline: 16})
	connect(q, b.q)
	write := func() {
		t.Helper()
		q.post(request_{id: 2, op: device.OpWrite, inline: []byte{1}, remote: addressOf(b.buf), rkey: b.m.rkey})
		c.wait()
	}
	write()
	if !quiet(ch.fd) {
		t.Fatal("an event that another queue was armed for")
	}
	c.arm(false)
	c.resize(32)
	write()
	if e := a.event(&ch); e != c.user {
		t.Fatalf("armed before the ring was replaced: event 0x%x, want 0x%x", e, c.user)
	}
	for _, garbage := range []uint32{armAny, 3, 1 << 31, ^uint32(0)} {
		atomic.StoreUint32(c.armWord(), garbage)
		write()
		if e := a.event(&ch); e != c.user {
			t.Fatalf("armed with 0x%x: event 0x%x, want 0x%x", garbage, e, c.user)
		}
		if w := atomic.LoadUint32(c.armWord()); w != armNone {
			t.Fatalf("armed still, %d, after the event", w)
		}
	}
}

// What a queue's end gives as reported is what the program has read; the rest is gone from the channel, and
// the events of others are there in their order, few or many.
func TestEventWithdrawal(t *testing.T) {
	p := newDaemon(t).open(how{})
	ch := p.channel()
	for _, n := range []int{1, 10, 250, 300, 2000} {
		for _, read := range []int{0, 1, n / 2, n} {
			a, b := p.cq(1, &ch), p.cq(1, &ch)
			ia, ib := a.inside(), b.inside()
			for range n {
				ia.notify()
				ib.notify()
			}
			got := map[uint64]int{}
			for range read {
				got[p.event(&ch)]++
			}
			if comp, async := a.destroy(); comp != got[a.user] || async != 0 {
				t.Fatalf("%d events, %d read: %d reported, %d asynchronous", n, got[a.user], comp, async)
			}
			for range n - got[b.user] {
				if e := p.event(&ch); e != b.user {
					t.Fatalf("event 0x%x, want 0x%x", e, b.user)
				}
			}
			if !quiet(ch.fd) {
				t.Fatal("events are left")
			}
			if comp, _ := b.destroy(); comp != n {
				t.Fatalf("%d reported of %d", comp, n)
			}
		}
	}
}

// A program that never reads: the list is bounded, and what was not kept is not reported.
func TestEventsNeverRead(t *testing.T) {
	p := newDaemon(t).open(how{})
	ch := p.channel()
	c := p.cq(1, &ch)
	in := c.inside()
	const n = maxLater + 2000
	for range n {
		in.notify()
	}
	in.channel.mu.Lock()
	kept := len(in.channel.later)
	in.channel.mu.Unlock()
	if kept > maxLater {
		t.Fatal(kept)
	}
	for range 5 {
		p.event(&ch)
	}
	if comp, _ := c.destroy(); comp != 5 {
		t.Fatalf("%d reported, 5 read", comp)
	}
	if !quiet(ch.fd) {
		t.Fatal("events are left")
	}
}

// A program closes its channel before its queues: events that it can not read are not reported, else it would wait
// for them for ever.
func TestClosedChannel(t *testing.T) {
	for _, n := range []int{0, 3, 1000} {
		for _, copied := range []bool{false, true} {
			t.Run(fmt.Sprint(n, copied), func(t *testing.T) {
				d := newDaemon(t)
				p := d.open(how{})
				ch := p.channel()
				a, b := p.cq(1, &ch), p.cq(1, &ch)
				ia, ib := a.inside(), b.inside()
				for range n {
					ia.notify()
				}
				ib.notify()
				read := min(n, 2)
				for range read {
					p.event(&ch)
				}
				other, err := unix.FcntlInt(uintptr(ch.fd), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				if !copied {
					unix.Close(other)
				}
				null, _ := unix.Open("/dev/null", unix.O_RDONLY, 0)
				unix.Dup3(null, ch.fd, 0) // close, without giving the number to others
				unix.Close(null)
				if err := p.record(kindClosed, 0, ch.id, nil); err != nil {
					t.Fatal(err)
				}
				p.pd() // the record was handled
				ia.notify()
				ib.notify()
				want := read
				if copied { // a process that has the channel reads on
					for range n - read + 3 {
						p.event(&channel_{fd: other})
					}
					want = n + 1
					unix.Close(other)
				}
				if comp, _ := a.destroy(); comp != want {
					t.Errorf("%d reported, %d read", comp, want)
				}
				want = 0
				if copied {
					want = 2
				}
				if comp, _ := b.destroy(); comp != want {
					t.Errorf("%d reported, %d read", comp, want)
				}
				if x := d.conns()[0]; x.objects.left != 0 || len(x.objects.channels) != 0 {
					t.Errorf("%d left, %d channels", x.objects.left, len(x.objects.channels))
				}
			})
		}
	}
}

// A closed descriptor that the record says nothing about, and records about channels that are none.
func TestClosedUnasked(t *testing.T) {
	p := newDaemon(t).open(how{})
	ch := p.channel()
	c := p.cq(1, &ch)
	for _, id := range []uint32{0, 77, ^uint32(0), p.asyncID} {
		if err := p.record(kindClosed, 0, id, nil); err != nil {
			t.Fatal(err)
		}
	}
	c.inside().notify()
	if p.event(&ch) != c.user {
		t.Fatal("another event")
	}
	for range 2 {
		if err := p.record(kindClosed, 0, ch.id, nil); err != nil {
			t.Fatal(err)
		}
	}
	c.destroy()
	p.pd()
}

// Channels take descriptors of the daemon: those that were closed and are in use count too.
func TestChannelLimit(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	create := func() reply {
		t.Helper()
		r, err := p.write(legacy(cmdCreateCompChannel, newStruct("ib_uverbs_create_comp_channel"), 4))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before := openFiles(t)
	var keep []int
	defer func() { closeAll(keep) }()
	var queues []*cq_
	for i := range maxChannels {
		r := create()
		if r.errno != 0 {
			t.Fatal(i, r.errno)
		}
		if i%2 == 0 { // closed, with a queue on it
			ch := channel_{r.fd, r.fdID}
			queues = append(queues, p.cq(1, &ch))
			p.record(kindClosed, 0, r.fdID, nil)
		}
		keep = append(keep, r.fd)
	}
	if r := create(); r.errno != eMFILE {
		t.Fatal(r.errno)
	}
	for _, c := range queues {
		c.destroy()
	}
	for range queues {
		r := create()
		if r.errno != 0 {
			t.Fatal(r.errno)
		}
		keep = append(keep, r.fd)
	}
	if r := create(); r.errno != eMFILE {
		t.Fatal(r.errno)
	}
	closeAll(keep)
	keep = nil
	p.close()
	eventually(t, "descriptors are left", func() bool { return openFiles(t) <= before })
}

// Asynchronous events: a completion queue that is full takes its queue pair along.
func TestAsyncEvents(t *testing.T) {
	for _, read := range []bool{true, false} {
		d := newDaemon(t)
		a, b := d.open(how{}), newSide(d.open(how{}), device.RC, 1<<12)
		pd, c := a.pd(), a.cq(1, nil)
		q := a.qp(pd, qpInit{typ: device.RC, scq: c, send: 16, recv: 16, sigAll: true, inline: 16})
		connect(q, b.q)
		for range 3 {
			q.post(request_{id: 1, op: device.OpWrite, inline: []byte{1}, remote: addressOf(b.buf), rkey: b.m.rkey})
		}
		x := d.conns()
		inside := func(typ device.EventType) bool {
			for _, c := range x {
				n := int32(0)
				c.objects.events.Range(func(k, v any) bool {
					_, isQP := k.(*device.QP)
					if isQP == (typ == device.EventQPFatal) {
						n += v.(*counted).async.Load()
					}
					return true
				})
				if n > 0 {
					return true
				}
			}
			return false
		}
		eventually(t, "no events", func() bool { return inside(device.EventCQErr) && inside(device.EventQPFatal) })
		nq, nc := 0, 0
		if read {
			for range 2 {
				switch e, typ := a.asyncEvent(); typ {
				case device.EventCQErr:
					nc++
					if e != c.user {
						t.Errorf("event of 0x%x", e)
					}
				case device.EventQPFatal:
					nq++
					if e != q.user {
						t.Errorf("event of 0x%x", e)
					}
				default:
					t.Error(typ)
				}
			}
			if nq != 1 || nc != 1 {
				t.Error(nq, nc)
			}
		}
		if n := q.destroy(); n != nq {
			t.Errorf("queue pair: %d reported, %d read", n, nq)
		}
		if _, n := c.destroy(); n != nc {
			t.Errorf("queue: %d reported, %d read", n, nc)
		}
		if !quiet(a.async) {
			t.Error("events are left")
		}
	}
}

// The link fails: every program hears of it, and one that has closed its descriptor does no harm.
func TestDeviceFatal(t *testing.T) {
	d := newDaemon(t)
	a, b := d.open(how{}), d.open(how{})
	unix.Close(b.async)
	b.async = -1
	d.end.Close()
	if e, typ := a.asyncEvent(); e != 1 || typ != device.EventDeviceFatal {
		t.Fatal(e, typ)
	}
	b.pd()
}

// Events of the port come to every program, in their order, with the port as element; no object counts them or takes them
// along, also where the program calls it as the port is called. What the program reads in the tree then is new.
func TestPortEvents(t *testing.T) {
	d := newDaemon(t)
	programs := []*program{d.open(how{}), d.open(how{})}
	named := programs[1]
	pd, c := named.pd(), named.cq(4, nil)
	q := named.qp(pd, qpInit{typ: device.RC, scq: c, rcq: c, send: 4, recv: 4})
	c.inside().user = 1
	var inside *queuePair
	var of *conn
	for _, x := range d.conns() {
		if o, err := get[*queuePair](&x.objects, q.handle); err == nil {
			inside, of = o, x
		}
	}
	inside.user = 1
	state := func() string {
		b, _ := os.ReadFile(filepath.Join(SysfsPath(d.path), "class/infiniband", d.dev.Name(), "ports/1/state"))
		return string(bytes.TrimSpace(b))
	}
	for _, v := range []struct {
		change func(i *link.Info)
		want   device.EventType
		state  string
	}{
		{func(i *link.Info) { i.Up = false }, device.EventPortErr, "1: DOWN"},
		{func(i *link.Info) { i.Up = true }, device.EventPortActive, "4: ACTIVE"},
		{func(i *link.Info) { i.Addrs = append(i.Addrs, netip.MustParsePrefix("10.7.0.1/24")) }, device.EventGIDChange, "4: ACTIVE"},
	} {
		d.end.Change(v.change)
		for _, p := range programs {
			if e, typ := p.asyncEvent(); e != 1 || typ != v.want {
				t.Errorf("%v of %d, want %v", typ, e, v.want)
			}
			if got := state(); got != v.state {
				t.Errorf("%v and %q", v.want, got)
			}
		}
	}
	for _, p := range programs {
		if !quiet(p.async) {
			t.Error("events are left")
		}
	}
	// One of the queue pair's, which is not read, between two of the port.
	d.end.Change(func(i *link.Info) { i.Up = false })
	eventually(t, "no event", func() bool { return !quiet(named.async) })
	of.asyncEvent(of.async, device.AsyncEvent{Type: device.EventCommEst, QP: inside.QP})
	d.end.Change(func(i *link.Info) { i.Up = true })
	programs[0].asyncEvent()
	programs[0].asyncEvent() // both were sent
	if n := q.destroy(); n != 0 {
		t.Errorf("%d events of the queue pair were reported, none was read", n)
	}
	if _, n := c.destroy(); n != 0 {
		t.Errorf("%d events of the queue were reported", n)
	}
	for _, want := range []device.EventType{device.EventPortErr, device.EventPortActive} {
		if e, typ := named.asyncEvent(); e != 1 || typ != want {
			t.Errorf("%v of %d, want %v", typ, e, want)
		}
	}
	if !quiet(named.async) {
		t.Error("events are left")
	}
}

// Two objects of one name: the program harms itself only.
func TestSameName(t *testing.T) {
	p := newDaemon(t).open(how{})
	ch := p.channel()
	a, b := p.cq(1, &ch), p.cq(1, &ch)
	ia, ib := a.inside(), b.inside()
	ib.user = a.user
	ia.notify()
	ib.notify()
	ib.notify()
	for _, c := range []*cq_{a, b} {
		if comp, _ := c.destroy(); comp < 0 || comp > 2 {
			t.Error(comp)
		}
	}
}

// A P_Key table of the device's is what programs find: in the tree, by its length, and as the indices of queue pairs. Packets of
// other partitions are counted where the kernel counts them.
func TestPKeyTable(t *testing.T) {
	keys := []uint16{0x8001, 0x0002, 0xFFFF}
	a, b := pipe.New(
		pipe.Config{Name: "a", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
		pipe.Config{Name: "b", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	d, other := serve(t, a, device.Options{PKeys: keys}), serveOn(t, b)
	for i, k := range keys {
		file := filepath.Join(SysfsPath(d.path), "class/infiniband", d.dev.Name(), "ports/1/pkeys", fmt.Sprint(i))
		if text, err := os.ReadFile(file); err != nil || string(text) != fmt.Sprintf("0x%04x\n", k) {
			t.Errorf("%q %v, want %04x", text, err, k)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(SysfsPath(d.path), "class/infiniband", d.dev.Name(), "ports/1/pkeys")); len(left) != len(keys) {
		t.Error(left)
	}
	p := d.open(how{})
	port := func() structure {
		return view("ib_uverbs_query_port_resp", p.do(legacy(cmdQueryPort, newStruct("ib_uverbs_query_port").put("port_num", 1), 40)).b)
	}
	if n := port().get("pkey_tbl_len"); n != 3 {
		t.Error(n)
	}
	init := func(q *qp_, i int) structure {
		return q.modifyStruct(device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess).
			put("port_num", 1).put("pkey_index", uint64(i)).put("qp_access_flags", uint64(device.RemoteWrite))
	}
	pd, c := p.pd(), p.cq(16, nil)
	q := p.qp(pd, qpInit{typ: device.RC, scq: c, rcq: c, send: 4, recv: 4, sigAll: true, inline: 16})
	for _, i := range []int{3, 64, 0xFFFF} {
		p.fails(eINVAL, legacy(cmdModifyQP, init(q, i), 0))
	}
	far := newSide(other.open(how{}), device.RC, 1<<12)
	far.q.toInit() // of 0xffff, the one that it has
	q.modify(init(q, 2))
	for _, x := range [][2]*qp_{{q, far.q}, {far.q, q}} {
		x[0].modify(x[0].rtrStruct(x[1]))
		x[0].modify(x[0].rtsStruct())
	}
	r := view("ib_uverbs_query_qp_resp", p.do(legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", uint64(q.handle)), 128)).b)
	if n := r.get("pkey_index"); n != 2 {
		t.Errorf("pkey_index %d", n)
	}
	q.post(request_{id: 1, op: device.OpWrite, inline: []byte{1}, remote: addressOf(far.buf), rkey: far.m.rkey})
	c.expect(1, device.StatusSuccess)
	// The same connection with another index: nothing that comes back is of its partition.
	if n := port().get("bad_pkey_cntr"); n != 0 {
		t.Errorf("bad_pkey_cntr %d", n)
	}
	q.modify(q.modifyStruct(device.StateReset, device.AttrState))
	q.modify(init(q, 0))
	q.modify(q.rtrStruct(far.q))
	far.q.post(request_{id: 2, op: device.OpWrite, inline: []byte{1}, remote: addressOf(far.buf), rkey: 1})
	eventually(t, "nothing is counted", func() bool { return port().get("bad_pkey_cntr") > 0 })
}
