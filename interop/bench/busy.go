//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tooBusy is how many CPUs other processes may use while a probe runs.
const tooBusy = 0.25

// tick is the unit of /proc/stat (USER_HZ, 100 a second on Linux whatever the kernel's own clock).
const tick = 10 * time.Millisecond

// parseStat returns how long all CPUs together were in use, by the first line of /proc/stat: user, nice, system, irq, softirq and
// what the hypervisor took away (steal). Idle and iowait are not; guest time is in user already.
func parseStat(text string) (time.Duration, error) {
	l, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(l)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", l)
	}
	var n int64
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		v, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		n += v
	}
	return time.Duration(n) * tick, nil
}

// load is how much of the CPUs was used at a moment.
type load struct {
	at       time.Time
	all, own time.Duration
}

// loadNow reads the load, of the host where this is the lab's guest. The program's own is its own use and that of programs that have ended.
func (b *bench) loadNow() (load, error) {
	if b.lab != nil {
		return b.lab.hostLoad()
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return load{}, err
	}
	l := load{at: time.Now(), own: b.cpu}
	if l.all, err = parseStat(string(text)); err != nil {
		return load{}, err
	}
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return load{}, err
	}
	l.own += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	return l, nil
}

// others returns how many CPUs other processes have used between two moments.
func (l load) others(since load) float64 {
	d := l.at.Sub(since.at)
	if d <= 0 {
		return 0
	}
	return max(0, float64((l.all-since.all)-(l.own-since.own))/float64(d))
}

// look is how long the machine is watched for whether it is quiet. The lab's host says only now and then how it is.
func (b *bench) look() time.Duration {
	if b.lab != nil {
		return time.Second
	}
	return 300 * time.Millisecond
}

// quiet returns the load, after it has waited, as far as there is patience, until others leave the CPU alone.
func (b *bench) quiet(ctx context.Context) (load, error) {
	for {
		before, err := b.loadNow()
		if err != nil || b.patience <= 0 {
			return before, err
		}
		select {
		case <-time.After(b.look()):
		case <-ctx.Done():
			return before, nil
		}
		now, err := b.loadNow()
		if err != nil || now.others(before) <= tooBusy {
			return now, err
		}
		b.patience -= b.look()
	}
}
