package main

import (
	"io"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/softnic/softnic/cmd/softnic/exec"
	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/uverbs"
)

// servePrograms makes the NIC the device of programs.
func (o *runOptions) servePrograms(n *nic.NIC, stderr io.Writer) (*programs, error) {
	mode, group, err := o.permissions()
	if err != nil {
		return nil, err
	}
	level := slog.LevelWarn
	_ = level.UnmarshalText([]byte(o.nic.LogLevel)) // checked when the NIC was opened
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	l, err := uverbs.Listen(o.path, uverbs.ListenOptions{Mode: mode, Group: group})
	if err != nil {
		return nil, err
	}
	s, err := uverbs.NewServer(n.Device, l, uverbs.Options{Logger: log, Version: version()})
	if err != nil {
		return nil, err
	}
	failed, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		failed <- s.Serve()
	}()
	p := &programs{failed: failed, close: func() error {
		err := s.Close()
		<-done
		return err
	}}
	if o.untilIdle > 0 {
		p.idle = s.Idle(o.untilIdle)
	}
	return p, nil
}

// background lets a daemon live on, or end in order, whose starter was killed before it read the line
// that says ready.
func background() { signal.Ignore(syscall.SIGPIPE) }

func detach() error { return exec.Detach() }

func removeLog(path string) { exec.RemoveLog(path) }
