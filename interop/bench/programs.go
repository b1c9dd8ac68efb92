//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// bench is a run of everything.
type bench struct {
	softnic, self string
	wait          string        // of bandwidth probes
	prefix        []string      // goes before a program
	env           []string      // and this into its environment
	patience      time.Duration // that is left
	cpu           time.Duration // that programs which have ended used
	lab           *guest        // nil: this is not the lab's guest

	each func(map[string]*series) // is called after each round; may be nil
}

func (b *bench) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	line := append(append(b.prefix[:len(b.prefix):len(b.prefix)], name), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), b.env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// used adds what a program that has ended used, with its children that it waited for.
func (b *bench) used(s *os.ProcessState) {
	if s != nil {
		b.cpu += s.UserTime() + s.SystemTime()
	}
}

// unevenClock is in what perftest says when the processor's clock does not run evenly, as in an emulator that is not given its time:
// then it fails, or measures nonsense.
const unevenClock = "Correlation coefficient r^2"

var errUnevenClock = errors.New("perftest could not tell how fast the clock is")

// output runs a program and returns what it prints.
func (b *bench) output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := b.command(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	b.used(cmd.ProcessState)
	if bytes.Contains(errs.Bytes(), []byte(unevenClock)) {
		err = errUnevenClock
	}
	if err != nil {
		why := firstLine(errs.Bytes())
		if why == "" {
			why = firstLine(out.Bytes())
		}
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, why)
	}
	return out.Bytes(), nil
}

// server is a program in the background.
type server struct {
	b    *bench
	cmd  *exec.Cmd
	out  *bufio.Reader
	errs bytes.Buffer // to be read when it is over
	once sync.Once
	over chan struct{}
}

// start starts one.
func (b *bench) start(ctx context.Context, name string, args ...string) (*server, error) {
	s := &server{b: b, cmd: b.command(ctx, name, args...), over: make(chan struct{})}
	// A pipe of our own, because Wait would close that of StdoutPipe under a reader.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stdout, s.out = w, bufio.NewReader(r)
	s.cmd.Stderr = &s.errs
	if err := s.cmd.Start(); err != nil {
		r.Close()
		w.Close()
		return nil, err
	}
	w.Close()
	go func() {
		_ = s.cmd.Wait() // that of a server that was interrupted says nothing
		close(s.over)
	}()
	go func() { <-s.over; r.Close() }()
	return s, nil
}

// line waits for the first line that the server prints.
func (s *server) line(ctx context.Context) error {
	got := make(chan error, 1)
	go func() {
		_, err := s.out.ReadString('\n')
		got <- err
	}()
	select {
	case err := <-got:
		if err != nil {
			return fmt.Errorf("%s ended before it was ready", s.cmd.Path)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end ends the server if it has not ended by itself in a moment: iperf3 -1 and the others do.
func (s *server) end() {
	s.once.Do(func() {
		for _, sig := range []os.Signal{nil, syscall.SIGTERM, os.Kill} {
			wait := 5 * time.Second
			if sig == nil {
				wait = 500 * time.Millisecond
			} else {
				_ = s.cmd.Process.Signal(sig)
			}
			select {
			case <-s.over:
				s.b.used(s.cmd.ProcessState)
				return
			case <-time.After(wait):
			}
		}
	})
}

// untilThere runs a client again until its server listens: none of these servers says when.
func (b *bench) untilThere(ctx context.Context, s *server, name string, args ...string) (out []byte, err error) {
	for range 50 {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if out, err = b.output(ctx, name, args...); err == nil || ctx.Err() != nil || errors.Is(err, errUnevenClock) {
			return out, err
		}
		select {
		case <-s.over:
			if bytes.Contains(s.errs.Bytes(), []byte(unevenClock)) {
				err = errUnevenClock
			}
			return nil, err // it was there, and is not any more
		default:
		}
	}
	return nil, err
}

// freePort returns a TCP port that nobody has now.
func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 18515
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
