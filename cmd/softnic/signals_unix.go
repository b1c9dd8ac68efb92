//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// signals end a command in an orderly way.
var signals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// ignoreBrokenPipe has a write to a pipe whose reader has left fail, which by default ends the program.
func ignoreBrokenPipe() { signal.Ignore(syscall.SIGPIPE) }
