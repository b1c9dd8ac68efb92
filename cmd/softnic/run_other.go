//go:build !linux

package main

import (
	"errors"
	"io"

	"github.com/softnic/softnic/cmd/softnic/nic"
)

var errNoPrograms = errors.New("verbs programs can use softnic on Linux only: leave --socket-mode, --socket-group, --until-idle and --detach out")

// servePrograms serves none.
func (o *runOptions) servePrograms(*nic.NIC, io.Writer) (*programs, error) {
	if o.mode != "" || o.group != "" || o.untilIdle > 0 {
		return nil, errNoPrograms
	}
	return &programs{close: func() error { return nil }}, nil
}

func background() {}

func detach() error { return errNoPrograms }

func removeLog(string) {}
