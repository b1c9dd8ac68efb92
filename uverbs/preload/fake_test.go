//go:build linux

package preload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var le = binary.NativeEndian

// The numbers of ../protocol.go, which TestHeaderMatchesProtocol compares with the header of the library.
const (
	kindHello, kindCommand, kindDoorbell, kindClosed, kindUnstored = 1, 2, 3, 4, 6

	headLen  = 16
	noFD     = 0xFFFFFFFF
	stateOff = 4096
	armOff   = 65536
	arenaOff = 311296
)

// fake is a daemon that knows the commands of testdata/program.c.
type fake struct {
	path  string
	l     *net.UnixListener
	conns atomic.Int32
	done  sync.WaitGroup
	mu    sync.Mutex
	errs  []error
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{path: t.TempDir() + "/s"}
	var err error
	f.l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: f.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	f.done.Go(func() {
		for {
			c, err := f.l.AcceptUnix()
			if err != nil {
				return
			}
			f.conns.Add(1)
			f.done.Go(func() {
				defer f.conns.Add(-1)
				defer c.Close()
				if err := f.serve(c); err != nil {
					f.mu.Lock()
					f.errs = append(f.errs, err)
					f.mu.Unlock()
				}
			})
		}
	})
	t.Cleanup(func() {
		f.l.Close()
		f.done.Wait()
		for _, err := range f.errs {
			t.Error("the daemon got:", err)
		}
	})
	return f
}

// fakeConn is the state of one connection.
type fakeConn struct {
	*net.UnixConn
	f         *fake
	memfd     int
	page      []byte
	mem       int
	memoryOK  bool
	pairs     []int
	id        uint32
	doorbells [2]uint32
	closed    [2]uint32
	unstored  uint32
	last      uint32 // number of the last command
}

// record receives one record with at most one descriptor, which is -1 without.
func (c *fakeConn) record() (rec []byte, fd int, err error) {
	buf, oob := make([]byte, 32<<10), make([]byte, 64)
	n, on, flags, _, err := c.ReadMsgUnix(buf, oob)
	if errors.Is(err, io.EOF) {
		return nil, -1, nil
	}
	if err != nil {
		return nil, -1, err
	}
	fd = -1
	if on > 0 {
		msgs, err := unix.ParseSocketControlMessage(oob[:on])
		if err != nil {
			return nil, -1, err
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			return nil, -1, fmt.Errorf("rights %v: %v", fds, err)
		}
		fd = fds[0]
	}
	if flags&unix.MSG_TRUNC != 0 || n < headLen || n-headLen != int(le.Uint32(buf[8:])) {
		return nil, fd, fmt.Errorf("record % x of %d bytes", buf[:min(n, headLen)], n)
	}
	return buf[:n], fd, nil
}

// answer sends one; fd is -1 without.
func (c *fakeConn) answer(seq uint32, errno unix.Errno, addr uint64, data []byte, fd int, fdAt, fdID uint32, hint string) error {
	b := le.AppendUint32(nil, seq)
	b = le.AppendUint32(b, uint32(errno))
	b = le.AppendUint64(b, addr)
	b = le.AppendUint32(b, uint32(len(data)))
	b = le.AppendUint32(b, fdAt)
	b = le.AppendUint32(b, fdID)
	b = le.AppendUint32(b, uint32(len(hint)))
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if _, _, err := c.WriteMsgUnix(append(b, hint...), oob, nil); err != nil || len(data) == 0 {
		return err
	}
	_, err := c.Write(data)
	return err
}

func (f *fake) serve(sock *net.UnixConn) error {
	c := &fakeConn{UnixConn: sock, f: f, memfd: -1, mem: -1}
	defer func() {
		for _, fd := range append(c.pairs, c.memfd, c.mem) {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
		if c.page != nil {
			_ = unix.Munmap(c.page)
		}
	}()
	for {
		rec, fd, err := c.record()
		if err != nil || rec == nil {
			if errors.Is(err, unix.ECONNRESET) { // it ended with an answer unread
				err = nil
			}
			return err
		}
		kind, seq, arg, body := le.Uint32(rec), le.Uint32(rec[4:]), le.Uint32(rec[12:]), rec[headLen:]
		switch kind {
		case kindHello:
			err = c.hello(seq, arg, body, fd)
			fd = -1
		case kindCommand:
			err = c.command(seq, body, fd)
		case kindDoorbell:
			if len(body) != 32 || le.Uint32(body) != 28 || le.Uint32(body[16:]) != arg {
				err = fmt.Errorf("doorbell %d % x", arg, body)
			}
			c.doorbells[0]++
			c.doorbells[1] = arg
		case kindClosed:
			c.closed[0]++
			c.closed[1] = arg
		case kindUnstored:
			if seq != c.last || len(body) != 0 {
				err = fmt.Errorf("the answer to %d was not stored, the last command is %d", seq, c.last)
			}
			c.unstored++
		default:
			err = fmt.Errorf("kind %d", kind)
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		if errors.Is(err, errDie) {
			return nil
		}
		if errors.Is(err, unix.EPIPE) { // killed meanwhile
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *fakeConn) hello(seq, version uint32, body []byte, mem int) error {
	if version != 3 || len(body) != 16 || mem < 0 || c.memfd >= 0 {
		return fmt.Errorf("hello of version %d, %d bytes, memory fd %d", version, len(body), mem)
	}
	c.mem = mem
	var there [8]byte
	n, err := unix.Pread(mem, there[:], int64(le.Uint64(body)))
	c.memoryOK = err == nil && n == 8 && le.Uint64(there[:]) == le.Uint64(body[8:]) && le.Uint64(body[8:]) != 0
	c.memfd, err = unix.MemfdCreate("fake", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	if err := unix.Ftruncate(c.memfd, 2*arenaOff); err != nil {
		return err
	}
	c.page, err = unix.Mmap(c.memfd, 0, arenaOff, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return c.answer(seq, 0, 0, nil, c.memfd, 0, 0, "")
}

var errDie = errors.New("die")

func (c *fakeConn) command(seq uint32, body []byte, fd int) error {
	if len(body) < 16 {
		return fmt.Errorf("command of %d bytes", len(body))
	}
	c.last = seq
	word, out, addr := le.Uint32(body), 4*int(le.Uint16(body[6:])), le.Uint64(body[8:])
	var a0, a1 uint32
	if len(body) >= 24 {
		a0, a1 = le.Uint32(body[16:]), le.Uint32(body[20:])
	}
	words := func(w ...uint32) error {
		var b []byte
		for _, x := range w {
			b = le.AppendUint32(b, x)
		}
		return c.answer(seq, 0, addr, b[:min(len(b), out)], -1, noFD, 0, "")
	}
	echo := func() error {
		var w []uint32
		for range out / 4 {
			w = append(w, a0)
		}
		return words(w...)
	}
	if fd >= 0 && word&0xff != 18 {
		return fmt.Errorf("command %d brings a descriptor", word)
	}
	switch word {
	case 1:
		return echo()
	case 17, 111:
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(p[1])
		c.pairs = append(c.pairs, p[0])
		if _, err := unix.Write(p[0], []byte("event")); err != nil {
			return err
		}
		c.id++
		b := le.AppendUint32(le.AppendUint32(nil, 12345), c.id)
		if word == 111 {
			return c.answer(seq, 0, addr, b[4:], p[1], 4, c.id, "")
		}
		return c.answer(seq, 0, addr, b, p[1], 0, c.id, "")
	case 18, 18 | 1<<31:
		var ino uint64
		if fd >= 0 {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return err
			}
			ino = st.Ino
		}
		return c.answer(seq, 0, addr, le.AppendUint64(nil, ino), -1, noFD, 0, "")
	case 100:
		return c.answer(seq, unix.Errno(a0), 0, nil, -1, noFD, 0, "quiet reason")
	case 101:
		c.page[stateOff+a0] = byte(a1)
		return words()
	case 102:
		return words(c.doorbells[:]...)
	case 103:
		return words(c.closed[:]...)
	case 104:
		return errDie
	case 105:
		l := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
		if err := unix.FcntlFlock(uintptr(c.memfd), unix.F_GETLK, &l); err != nil {
			return err
		}
		if l.Type == unix.F_UNLCK {
			return words(0)
		}
		return words(uint32(l.Pid))
	case 106:
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		defer null.Close()
		if err := c.answer(seq-1, 0, addr, []byte("stale bytes, no header"), int(null.Fd()), 0, 9, "!stale"); err != nil {
			return err
		}
		return echo()
	case 107:
		text := "the usual reason"
		if a0 == 1 {
			text = "!what to do"
		}
		return c.answer(seq, unix.EINVAL, 0, nil, -1, noFD, 0, text)
	case 108:
		if c.memoryOK {
			return words(1)
		}
		return words(0)
	case 109:
		time.Sleep(time.Duration(a1) * time.Millisecond)
		return echo()
	case 110:
		return words(uint32(c.f.conns.Load()))
	case 112:
		return words(c.unstored)
	case 113:
		return words(le.Uint32(c.page[armOff+4*a0:]))
	case 114:
		le.PutUint32(c.page[armOff+4*a0:], a1)
		return words()
	}
	return c.answer(seq, unix.ENOSYS, 0, nil, -1, noFD, 0, "")
}
