//go:build linux

package uverbs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// conn is one open of the device by a program: a connection with its context. One
// goroutine serves it.
type conn struct {
	s    *Server
	sock *net.UnixConn
	raw  rawReader
	pid  int // as the daemon sees it; 0: in another pid namespace
	uid  int

	ctx   *device.Context // nil before hello
	arena *arena
	mem   *process
	async *eventPipe

	objects table
	last    func(c *conn) // takes back what the last command made; nil: nothing
	lastSeq uint32
	// Of hello: where the program keeps which value, see process.probe.
	helloAddr, helloValue uint64
	probed, reachable     bool
}

// rawReader receives records without allocating.
type rawReader struct {
	conn interface {
		Read(func(fd uintptr) bool) error
	}
	buf   [headLen + maxRecord]byte
	oob   [256]byte
	iov   unix.Iovec
	msg   unix.Msghdr
	n     int
	errno unix.Errno
	once  func(fd uintptr) bool
}

func (r *rawReader) init(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	r.conn = raw
	r.once = func(fd uintptr) bool {
		r.iov.Base = &r.buf[0]
		r.iov.SetLen(len(r.buf))
		r.msg = unix.Msghdr{Iov: &r.iov, Control: &r.oob[0]}
		r.msg.SetIovlen(1)
		r.msg.SetControllen(len(r.oob))
		for {
			n, _, e := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if e == unix.EINTR {
				continue
			}
			r.n, r.errno = int(n), e
			return e != unix.EAGAIN
		}
	}
	return nil
}

// next receives a record with the file descriptors that came along. An empty one is the
// end.
func (r *rawReader) next() (rec []byte, fds []int, err error) {
	if err := r.conn.Read(r.once); err != nil {
		return nil, nil, err
	}
	if r.errno != 0 {
		return nil, nil, r.errno
	}
	if n := int(r.msg.Controllen); n > 0 {
		fds = rights(r.oob[:n])
	}
	if r.msg.Flags&unix.MSG_TRUNC != 0 {
		closeAll(fds)
		return nil, nil, errors.New("record too long")
	}
	return r.buf[:r.n], fds, nil
}

// rights returns the file descriptors of a control message.
func rights(oob []byte) (fds []int) {
	l, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range l {
		if got, err := unix.ParseUnixRights(&l[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// serve handles records until the connection ends, then frees everything. It does not after a
// panic, which is to end the daemon and not to wait for what the panic left undone.
func (c *conn) serve() {
	for {
		rec, fds, err := c.raw.next()
		if err != nil || len(rec) == 0 {
			break
		}
		err = c.record(rec, fds)
		if err != nil {
			c.s.log.Debug("program disconnected", "pid", c.pid, "err", err)
			break
		}
	}
	c.end()
}

// record handles one record; an error ends the connection.
func (c *conn) record(rec []byte, fds []int) error {
	defer func() { closeAll(fds) }()
	if len(rec) < headLen {
		return errors.New("record too short")
	}
	kind, seq, n, arg := le.Uint32(rec), le.Uint32(rec[4:]), le.Uint32(rec[8:]), le.Uint32(rec[12:])
	body := rec[headLen:]
	if uint64(n) != uint64(len(body)) {
		return errors.New("record has a wrong length")
	}
	if c.ctx == nil && kind != kindHello && kind != kindPresent {
		return errors.New("no hello")
	}
	switch kind {
	case kindHello:
		if c.ctx != nil || len(body) != helloLen {
			return errors.New("bad hello")
		}
		return c.hello(seq, arg, le.Uint64(body), le.Uint64(body[8:]), &fds)
	case kindCommand:
		fd := -1
		if len(fds) > 0 {
			fd = fds[0]
		}
		return c.command(seq, body, fd, arg == argFork)
	case kindDoorbell:
		if q, err := get[*queuePair](&c.objects, arg); err == nil {
			_ = q.QP.Doorbell() // refused where the state has changed since the program looked
		}
	case kindClosed:
		c.closed(arg)
	case kindPresent:
	case kindUnstored:
		if undo := c.last; undo != nil && c.lastSeq == seq {
			c.last = nil
			undo(c)
		}
	default:
		return errors.New("unknown record")
	}
	return nil
}

// closed handles that the program has closed the channel with an id.
func (c *conn) closed(id uint32) {
	if ch, ok := c.objects.channels[id]; ok {
		c.objects.closeChannel(id, ch)
	}
}

// hello opens the context.
func (c *conn) hello(seq, version uint32, addr, value uint64, fds *[]int) error {
	if version != Version {
		return c.reply(seq, device.EINVAL, "!the preload library is of another version than the daemon: start the program with `softnic exec`", nil, nil)
	}
	a, err := newArena()
	if err != nil {
		return c.reply(seq, device.ENOMEM, "", nil, nil)
	}
	c.arena = a
	c.mem = &process{pid: c.pid, lockFD: a.fd, memFD: -1}
	if len(*fds) > 0 && isMemory((*fds)[0]) {
		c.mem.memFD = (*fds)[0]
		*fds = (*fds)[1:]
	}
	c.ctx = c.s.dev.NewContext()
	c.ctx.SetOwner(device.Owner{PID: c.pid, Comm: comm(c.pid)})
	c.objects.init()
	c.objects.freed = func(n int) { c.s.give(c.uid, n) }
	c.helloAddr, c.helloValue = addr, value
	cmdFD, err := unix.FcntlInt(uintptr(a.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return c.reply(seq, device.ENOMEM, "", nil, nil)
	}
	defer unix.Close(cmdFD)
	return c.reply(seq, 0, "", nil, &answer{fd: cmdFD})
}

// comm returns the name of a process; "program" where /proc does not tell.
func comm(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || len(b) == 0 {
		return "program"
	}
	return strings.TrimSpace(string(b))
}

// command executes a command and answers it.
func (c *conn) command(seq uint32, body []byte, fd int, fork bool) error {
	r, err := parse(body)
	var a answer
	a.fd = -1
	if err == nil {
		r.fd, r.fork = fd, fork
		err = r.run(c, &r, &a)
	}
	if a.fd >= 0 {
		defer unix.Close(a.fd)
	}
	c.last, c.lastSeq = a.undo, seq
	if err != nil {
		c.s.log.Debug("refused", "pid", c.pid, "err", err)
		return c.reply(seq, device.ErrnoOf(err), hint(body, err), nil, nil)
	}
	return c.reply(seq, 0, "", &r, &a)
}

// hinted is an error whose text the user of the program should see.
type hinted struct{ error }

func (h hinted) Unwrap() error { return h.error }

// hint returns the line for the user: with a "!" in front it is always shown. An error that is nothing but a number gets
// the name of the command.
func hint(body []byte, err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	if _, bare := err.(device.Errno); bare && len(body) >= 4 {
		text = commandName(le.Uint32(body)) + ": " + text
	}
	var h hinted
	if errors.As(err, &h) {
		text = "!" + text
	}
	return text[:min(len(text), maxHint)]
}

// reply answers a hello or a command.
func (c *conn) reply(seq uint32, e device.Errno, text string, r *request, a *answer) error {
	var bytes []byte
	addr, fdAt, fdID := uint64(0), uint32(noFD), uint32(0)
	var oob []byte
	if r != nil {
		bytes, addr = a.bytes(r), r.response
	}
	if a != nil && a.fd >= 0 {
		oob, fdAt, fdID = unix.UnixRights(a.fd), uint32(a.fdAt), a.fdID
	}
	head := make([]byte, 0, answerLen+len(text))
	head = le.AppendUint32(head, seq)
	head = le.AppendUint32(head, uint32(e))
	head = le.AppendUint64(head, addr)
	head = le.AppendUint32(head, uint32(len(bytes)))
	head = le.AppendUint32(head, fdAt)
	head = le.AppendUint32(head, fdID)
	head = le.AppendUint32(head, uint32(len(text)))
	head = append(head, text...)
	if _, _, err := c.sock.WriteMsgUnix(head, oob, nil); err != nil {
		return err
	}
	if len(bytes) == 0 {
		return nil
	}
	_, err := c.sock.Write(bytes)
	return err
}

// end frees everything that the program had.
func (c *conn) end() {
	c.sock.Close()
	if c.ctx != nil {
		_ = c.ctx.Close()
		c.objects.release(c.arena)
		if c.async != nil {
			c.async.close()
		}
	}
	if c.arena != nil {
		c.arena.close()
	}
	if c.mem != nil && c.mem.memFD >= 0 {
		unix.Close(c.mem.memFD)
	}
	c.s.gone(c)
}
