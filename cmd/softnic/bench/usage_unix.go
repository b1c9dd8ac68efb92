//go:build unix

package bench

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time that this process has used; ok is false where that is not known.
func cpuTime() (t time.Duration, ok bool) {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0, false
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), true
}
