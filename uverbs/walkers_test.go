//go:build linux

package uverbs

import (
	"math/rand/v2"
	"net"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// walker is one program after another.
type walker struct {
	*walk
	r   *rand.Rand
	ram []byte

	// Of the program that runs.
	d        *daemon
	p        *program
	maps     [][]byte
	live     map[uint32]rune // handles that commands gave, and what they are of: see madeBy
	sends    []*qp_
	cqs      []queue
	recvs    []queue
	types    map[*qp_]device.QPType
	regs     []goal
	rkeys    []uint32 // of windows
	ahs      []uint32
	channels []channel_
	lost     bool // it may have said that the context was not stored
	over     bool // the daemon has ended the connection, as it had to
}

func (k *walker) one(in int) bool { return k.r.IntN(in) == 0 }

func pick[T any](k *walker, l ...T) T { return l[k.r.IntN(len(l))] }

// program is a program from its beginning to its end, which comes at any moment.
func (k *walker) program() {
	d := k.walk.d[k.r.IntN(2)]
	sock, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.path, Net: "unixpacket"})
	if err != nil {
		k.errorf("%v", err)
		return
	}
	_ = sock.SetDeadline(time.Now().Add(time.Minute)) // what takes so long hangs
	p := &program{tb: k.t, d: d, sock: sock, fd: -1, async: -1, ram: k.ram}
	p.cookie = (*uint64)(unsafe.Pointer(&p.alloc(8)[0]))
	*k = walker{walk: k.walk, r: k.r, ram: k.ram, d: d, p: p, live: map[uint32]rune{}, types: map[*qp_]device.QPType{}}
	defer k.end()
	if k.one(10) { // nothing is possible before hello
		if p.record(pick[uint32](k, kindCommand, kindDoorbell, kindClosed, kindUnstored, 0, 77), 1, 0, k.command()) == nil {
			if _, err := p.answer(1); err == nil {
				k.errorf("something was answered before hello")
			}
		}
		return
	}
	if e, err := p.hello(how{noMem: k.one(10), wrong: k.one(20)}); err != nil || e != 0 {
		k.errorf("hello: %v %v", e, err)
		return
	}
	k.saw(d)
	if !k.one(10) {
		k.send(legacy(cmdGetContext, newStruct("ib_uverbs_get_context"), 8))
	}
	for range 50 + k.r.IntN(300) {
		if k.over || k.stop.Load() {
			return
		}
		k.step()
	}
	if k.over {
		return
	}
	if k.one(2) {
		for range k.r.IntN(5) { // some that are not waited for
			p.seq++
			if p.record(kindCommand, p.seq, 0, k.command()) != nil {
				return
			}
		}
		return
	}
	// All was answered, and nothing twice.
	k.send(legacy(cmdQueryDevice, newStruct("ib_uverbs_query_device"), queryDeviceLen))
	raw, err := sock.SyscallConn()
	if err != nil {
		k.errorf("%v", err)
		return
	}
	_ = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 64), unix.MSG_DONTWAIT|unix.MSG_PEEK)
		if !k.over && (n > 0 || err != unix.EAGAIN) {
			k.errorf("%d bytes more than the answers, %v", n, err)
		}
	})
}

// end is the end of the program. Its memory stays.
func (k *walker) end() {
	k.p.sock.Close()
	for _, fd := range []int{k.p.fd, k.p.async} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	for _, ch := range k.channels {
		unix.Close(ch.fd)
	}
	if k.p.page != nil {
		unix.Munmap(k.p.page)
	}
	for _, b := range k.maps {
		unix.Munmap(b)
	}
}

// step does something.
func (k *walker) step() {
	switch n := k.r.IntN(100); {
	case n < 46:
		k.send(k.command(), k.fds()...)
	case n < 53:
		k.burst()
	case n < 58:
		k.send(k.broken(k.command()), k.fds()...)
	case n < 74:
		k.work()
	case n < 77:
		k.scribble()
	case n < 80:
		k.unanswered(kindDoorbell, k.handle('q'), make([]byte, 32))
	case n < 82:
		if k.unanswered(kindUnstored, k.r.Uint32(), nil) && k.one(2) {
			k.unstored()
		}
	case n < 84:
		k.closeChannel()
	case n < 86:
		k.drain()
	case n == 86 && k.one(4): // the daemon ends that
		k.p.record(pick[uint32](k, kindHello, 0, 7, 1<<31), 1, k.r.Uint32(), k.bytes(40))
		if _, err := k.p.answer(1); err == nil {
			k.errorf("a record that is none was answered")
		}
		k.over = true
	default:
		k.connect()
	}
}

// unanswered sends a record that has no answer; it reports whether there is a connection.
func (k *walker) unanswered(kind, arg uint32, body []byte) bool {
	if err := k.p.record(kind, k.p.seq+1+k.r.Uint32N(1<<31), arg, body); err != nil && !k.over {
		k.errorf("record %d: %v", kind, err)
		k.over = true
	}
	return !k.over
}

// fds are descriptors that come along: a channel, or what is none.
func (k *walker) fds() []int {
	switch {
	case len(k.channels) > 0 && k.one(2):
		return []int{k.channels[k.r.IntN(len(k.channels))].fd}
	case k.one(20):
		return []int{k.p.fd, k.p.fd}
	}
	return nil
}

// send sends a command and judges its answer.
func (k *walker) send(cmd []byte, fds ...int) {
	k.p.seq++
	if err := k.p.record(kindCommand, k.p.seq, 0, cmd, fds...); err != nil {
		k.errorf("command %d: %v", le.Uint32(cmd), err)
		k.over = true
		return
	}
	k.answered(cmd, k.p.seq)
}

// burst sends commands, and then receives their answers.
func (k *walker) burst() {
	var l [][]byte
	first := k.p.seq + 1
	for range 2 + k.r.IntN(6) {
		cmd := k.command()
		k.p.seq++
		if k.p.record(kindCommand, k.p.seq, 0, cmd) != nil {
			k.errorf("the daemon has ended the connection")
			k.over = true
			return
		}
		l = append(l, cmd)
	}
	for i, cmd := range l {
		if !k.over {
			k.answered(cmd, first+uint32(i))
		}
	}
}

// may are the errors of commands.
var may = []unix.Errno{0, unix.EINVAL, unix.EBUSY, unix.ENOENT, unix.ENOSPC, unix.EOPNOTSUPP, unix.EBADF, unix.EFAULT, unix.ENOMEM, unix.EPERM, unix.EMFILE}

// answered receives the answer to a command.
func (k *walker) answered(cmd []byte, seq uint32) {
	k.commands.Add(1)
	r, err := k.p.answer(seq)
	name := "no command"
	if len(cmd) >= 4 {
		name = commandName(le.Uint32(cmd))
	}
	if err != nil {
		k.errorf("%s: %v: % x", name, err, cmd)
		k.over = true
		return
	}
	if !slices.Contains(may, r.errno) || r.errno != 0 && (len(r.b) > 0 || r.fd >= 0) {
		k.errorf("%s: errno %d, %d bytes, descriptor %d: % x", name, r.errno, len(r.b), r.fd, cmd)
	}
	if r.errno == 0 {
		k.done(cmd, r)
	} else if r.fd >= 0 {
		unix.Close(r.fd)
	}
}

// madeBy are the commands that give a handle in the first four bytes of their answer, and of what.
var madeBy = map[uint32]rune{cmdAllocPD: 'p', cmdCreateAH: 'a', cmdRegMR: 'm', cmdAllocMW: 'w', cmdCreateCQ: 'c', cmdCreateQP: 'q', cmdCreateSRQ: 's'}

// endedBy are the commands that destroy, and where their handle stands.
var endedBy = map[uint32]int{cmdDeallocPD: 8, cmdDestroyAH: 8, cmdDeregMR: 8, cmdDeallocMW: 8, cmdDestroyCQ: 16, cmdDestroyQP: 16, cmdDestroySRQ: 16}

// done notes what a command that has succeeded has changed.
func (k *walker) done(cmd []byte, r reply) {
	num := le.Uint32(cmd) & cmdMask
	if at, ok := endedBy[num]; ok {
		h := le.Uint32(cmd[at:])
		if kind := k.live[h]; kind != 0 && commandMakes(num) != kind {
			k.errorf("%s has destroyed a handle of kind %c", commandName(num), kind)
		}
		delete(k.live, h)
	}
	kind, makes := madeBy[num]
	switch {
	case r.fd >= 0 && num == cmdGetContext && (k.p.async < 0 || k.lost):
		if k.p.async >= 0 {
			unix.Close(k.p.async)
		}
		k.p.async, k.lost = r.fd, false
	case r.fd >= 0 && num == cmdCreateCompChannel:
		k.channels = append(k.channels, channel_{r.fd, r.fdID})
	case r.fd >= 0:
		k.errorf("%s has given a descriptor", commandName(num))
	case makes && len(r.b) >= 4:
		k.made(num, kind, cmd, r.b)
	case num == cmdResizeCQ && len(r.b) >= 24:
		if q, ok := k.ring(r.b[8:]); ok {
			k.cqs = append(k.cqs, q)
		}
	}
}

func commandMakes(destroys uint32) rune {
	return map[uint32]rune{cmdDeallocPD: 'p', cmdDestroyAH: 'a', cmdDeregMR: 'm', cmdDeallocMW: 'w', cmdDestroyCQ: 'c', cmdDestroyQP: 'q', cmdDestroySRQ: 's'}[destroys]
}

// made notes a new object.
func (k *walker) made(num uint32, kind rune, cmd, b []byte) {
	extended := le.Uint32(cmd)&cmdExtended != 0
	h := le.Uint32(b)
	if k.live[h] != 0 {
		k.errorf("%s has given the handle %d, which is one of kind %c", commandName(num), h, k.live[h])
	}
	k.live[h] = kind
	room := map[rune]int{'c': 8, 'q': 32, 's': 16}[kind]
	if extended {
		room = map[rune]int{'c': 16, 'q': 40}[kind]
	}
	switch kind {
	case 'm':
		g := goal{le.Uint64(cmd[8+24:]), le.Uint64(cmd[8+16:]), le.Uint32(b[4:]), le.Uint32(b[8:])}
		k.regs = append(k.regs, g)
		offer(k.walk, &k.goals, g)
	case 'w':
		k.rkeys = append(k.rkeys, le.Uint32(b[4:]))
	case 'a':
		k.ahs = append(k.ahs, h)
	case 'c':
		if q, ok := k.ring(b[room:]); ok {
			k.cqs = append(k.cqs, q)
		}
	case 's':
		if q, ok := k.ring(b[room:]); ok {
			k.recvs = append(k.recvs, q)
		}
	case 'q':
		q := &qp_{p: k.p, handle: h, num: le.Uint32(b[4:])}
		offer(k.walk, &k.peers, q)
		k.types[q] = device.QPType(cmd[8+8+45])
		if extended {
			k.types[q] = device.QPType(cmd[24+45])
		}
		if len(b) < room+32 {
			return
		}
		if rq, ok := k.ring(b[room:]); ok {
			k.recvs = append(k.recvs, rq)
		}
		var ok bool
		if q.sq, ok = k.ring(b[room+16:]); ok {
			k.sends = append(k.sends, q)
		}
	}
}

// ring maps a ring, if it is not very long and the answer has it.
func (k *walker) ring(mi []byte) (q queue, ok bool) {
	if len(mi) < 12 {
		return q, false
	}
	off, size := le.Uint64(mi), le.Uint32(mi[8:])
	if size == 0 || size > 1<<20 || len(k.maps) > 200 {
		return q, false
	}
	b, err := unix.Mmap(k.p.fd, int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		k.errorf("mapping %d bytes at %d: %v", size, off, err)
		return q, false
	}
	k.maps = append(k.maps, b)
	if q = newQueue(b); q.shift > 16 || int(q.indices+1)<<q.shift+ringData > len(b) {
		return q, false // a ring that is scribbled on, or gone
	}
	return q, true
}

// closeChannel closes the program's end of a channel and says so, or says it of another.
func (k *walker) closeChannel() {
	id := k.r.Uint32N(8)
	if n := len(k.channels); n > 0 && !k.one(8) {
		i := k.r.IntN(n)
		id = k.channels[i].id
		unix.Close(k.channels[i].fd)
		k.channels = slices.Delete(k.channels, i, i+1)
	}
	k.unanswered(kindClosed, id, nil)
}

// unstored says of the last command that its answer was lost.
func (k *walker) unstored() {
	if k.p.record(kindUnstored, k.p.seq, 0, nil) != nil {
		k.over = true
	}
	clear(k.live) // what there is now is not known
	k.lost = true
}

// drain reads events and takes completions.
func (k *walker) drain() {
	fds := []int{k.p.async}
	for _, ch := range k.channels {
		fds = append(fds, ch.fd)
	}
	var b [64]byte
	for _, fd := range fds {
		for fd >= 0 {
			if n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT); n <= 0 || err != nil {
				break
			}
		}
	}
	for _, q := range k.cqs {
		*q.word("consumer_index") = *q.word("producer_index")
	}
}
