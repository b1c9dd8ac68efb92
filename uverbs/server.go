//go:build linux

package uverbs

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// Options of a server. The zero value is good.
type Options struct {
	Logger  *slog.Logger // nil: silent
	Version string       // of the firmware, as programs see it
}

// Server serves programs on a device.
type Server struct {
	dev  *device.Device
	l    *Listener
	log  *slog.Logger
	stop func() // ends watching the device
	wg   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	ending  bool // Idle has said that it is time to end
	conns   map[*conn]struct{}
	perUser map[int]int   // file descriptors that serving a user takes
	maxUser int           // most of them for one user
	changed chan struct{} // closed and made anew when the number of connections changes
}

// What a connection and a completion channel take of the daemon's file descriptors.
const (
	connFDs    = 5 // socket, memfd, memory of the program, two for asynchronous events
	channelFDs = 2
)

// fdsPerUser is how many file descriptors one user may take: half of what the process may have, so
// that no tenant can use them up.
func fdsPerUser() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		l.Cur = 1024
	}
	return int(min(l.Cur, 1<<20) / 2)
}

// take reserves file descriptors for a user; false if that would be too many.
func (s *Server) take(uid, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(uid, n)
}

func (s *Server) takeLocked(uid, n int) bool {
	if s.perUser[uid]+n > s.maxUser {
		return false
	}
	s.perUser[uid] += n
	return true
}

// give returns what take has reserved.
func (s *Server) give(uid, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveLocked(uid, n)
}

func (s *Server) giveLocked(uid, n int) {
	if s.perUser[uid] -= n; s.perUser[uid] == 0 {
		delete(s.perUser, uid)
	}
}

// maxConns bounds all of them, so that what they map stays below what a process may map: arenaLimit, in a
// few pieces, for each.
const maxConns = 6000

// NewServer returns a server for a device, which it does not close. It fills the folder of l,
// keeps its addresses up to date, and shows the socket: programs can connect from then on, and are
// served when Serve runs. Close closes l, which is closed here after an error.
func NewServer(dev *device.Device, l *Listener, o Options) (*Server, error) {
	s := &Server{dev: dev, l: l, log: o.Logger, conns: map[*conn]struct{}{}, perUser: map[int]int{}, maxUser: fdsPerUser(), changed: make(chan struct{})}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	t := newTree(l.path, dev, o.Version)
	err := t.write()
	if err == nil {
		s.stop = dev.Watch(func() {
			if err := t.update(); err != nil {
				s.log.Warn("the addresses that programs see are old", "err", err)
			}
		})
		err = errors.Join(t.update(), l.ready())
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Serve serves the programs that connect, until Close.
func (s *Server) Serve() error {
	full := false // said once
	for {
		c, err := s.l.AcceptUnix()
		switch {
		case err == nil:
			full = false
			s.add(c)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			if !full {
				s.log.Warn("no program can connect until another ends: the daemon may open no more files (ulimit -n)", "err", err)
			}
			full = true
			time.Sleep(50 * time.Millisecond) // until somebody goes
		case errors.Is(err, unix.ECONNABORTED):
		default:
			return err
		}
	}
}

// add serves a new connection.
func (s *Server) add(sock *net.UnixConn) {
	c := &conn{s: s, sock: sock}
	if err := c.raw.init(sock); err != nil {
		sock.Close()
		return
	}
	c.pid, c.uid = peer(c.raw.conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.ending || len(s.conns) >= maxConns || !s.takeLocked(c.uid, connFDs) {
		sock.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.signal()
	s.wg.Add(1)
	go c.serve()
}

// gone notes that a connection has ended and all that was its is freed.
func (s *Server) gone(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.giveLocked(c.uid, connFDs+channelFDs*c.objects.made)
	s.signal()
	s.wg.Done()
}

func (s *Server) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// peer returns the process and the user at the other end; pid 0 when it is in a pid
// namespace that is not below ours.
func peer(raw interface {
	Read(func(uintptr) bool) error
}) (pid, uid int) {
	uid = -1
	_ = raw.Read(func(fd uintptr) bool {
		if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid, uid = int(u.Pid), int(u.Uid)
		}
		return true
	})
	return pid, uid
}

// Idle returns a channel that is closed once no program has been connected for the
// time of grace, counted from now on at the earliest. From then on none is let in.
func (s *Server) Idle(grace time.Duration) <-chan struct{} {
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		for {
			s.mu.Lock()
			n, changed, closed := len(s.conns), s.changed, s.closed
			s.mu.Unlock()
			var after <-chan time.Time
			switch {
			case closed:
				return
			case n == 0:
				after = time.After(grace)
			}
			select {
			case <-changed:
			case <-after:
				s.mu.Lock()
				s.ending = len(s.conns) == 0 // a program may have come in the last moment
				ending := s.ending
				s.mu.Unlock()
				if ending {
					return
				}
			}
		}
	}()
	return idle
}

// Close disconnects all programs, frees what they had, and removes the socket and its
// folder.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for c := range s.conns {
		c.sock.Close()
	}
	s.signal()
	s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
	err := s.l.Close()
	s.wg.Wait()
	return err
}
