//go:build unix

package main

import (
	"os"
	"syscall"
)

// signals end a command in an orderly way.
var signals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}
