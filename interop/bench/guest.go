//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// guest is the lab's virtual machine, seen from within.
type guest struct {
	short bool // few messages: whether it works is all that is asked
	host  string
	looks int  // so often it is looked whether the host and the guest say what they should
	nets  bool // the network namespaces are there
	up    *wire
}

// newGuest returns the machine that this program runs in, if it is the lab's.
func newGuest(short bool) (*guest, error) {
	if os.Getenv("SOFTNIC_GUEST") != "1" {
		return nil, errors.New("-guest is for the lab's virtual machine: bash interop/run.sh boots it")
	}
	return &guest{short: short, looks: 10, host: filepath.Join(os.Getenv("SOFTNIC_JOB"), "host")}, nil
}

// hostLoad reads what the host says of itself several times a second.
func (g *guest) hostLoad() (l load, err error) {
	for range max(1, g.looks) { // it may be early, or between two states of the file
		var text []byte
		if text, err = os.ReadFile(g.host); err == nil {
			if l, err = parseHost(string(text)); err == nil {
				return l, nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return l, fmt.Errorf("how busy the host is: %w", err)
}

// parseHost reads seconds since the host booted; the first line of its /proc/stat; the emulator's /proc/PID/stat.
func parseHost(text string) (l load, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 3 {
		return l, fmt.Errorf("%d lines instead of 3: %q", len(lines), text)
	}
	up, err := strconv.ParseFloat(lines[0], 64)
	if err != nil {
		return l, err
	}
	l.at = time.Unix(0, int64(up*1e9))
	if l.all, err = parseStat(lines[1]); err != nil {
		return l, err
	}
	// Behind the name, which may have spaces in it: state, then ten numbers, then user and system time.
	f := strings.Fields(lines[2][strings.LastIndexByte(lines[2], ')')+1:])
	if len(f) < 13 {
		return l, fmt.Errorf("/proc/PID/stat is %q", lines[2])
	}
	for _, s := range f[11:13] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return l, fmt.Errorf("/proc/PID/stat: %w", err)
		}
		l.own += time.Duration(n) * tick
	}
	return l, nil
}

// settle waits until nothing runs in the guest, and returns how many CPUs are in use then: where that does not become little, something of
// before still goes on.
func (g *guest) settle(ctx context.Context) (inUse float64, err error) {
	used := func() (time.Duration, error) {
		text, err := os.ReadFile("/proc/stat")
		if err != nil {
			return 0, err
		}
		return parseStat(string(text))
	}
	for range g.looks {
		from, err := used()
		if err != nil {
			return 0, err
		}
		start := time.Now()
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return inUse, nil
		}
		to, err := used()
		if err != nil {
			return 0, err
		}
		if inUse = float64(to-from) / float64(time.Since(start)); inUse <= tooBusy {
			break
		}
	}
	return inUse, nil
}
