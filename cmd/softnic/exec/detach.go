//go:build linux

package exec

import (
	"fmt"
	"math"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// detachFlag makes `softnic run` start itself once more and end.
const detachFlag = "--detach"

// Detach starts the program again, without the flag --detach, as the leader of a session of its own, and does not wait.
// When the caller has ended, the new process is not a child of whoever started the caller: a program that
// waits for all its children, as a shell does, must not find a daemon among them.
func Detach() error {
	// A pipe or a lock that the user's shell handed down would be kept by the daemon.
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
		for _, e := range entries {
			if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
				unix.CloseOnExec(fd)
			}
		}
	} else if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil { // no /proc; Linux 5.11
		return fmt.Errorf("without /proc: close_range: %w", err)
	}
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(a string) bool { return a == detachFlag })
	cmd := osexec.Command(ownFile(), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// ownFile is the file of this program. It may have been replaced or removed since it started; under its
// own name ps and error messages show it as what it is.
func ownFile() string {
	const self = "/proc/self/exe"
	path, err := os.Executable()
	if err != nil { // no /proc
		if path, err = osexec.LookPath(os.Args[0]); err == nil {
			path, err = filepath.Abs(path)
		}
	}
	if err != nil {
		return self
	}
	a, err1 := os.Stat(path)
	b, err2 := os.Stat(self)
	if err1 == nil && (err2 != nil || os.SameFile(a, b)) {
		return path
	}
	return self
}

// RemoveLog removes the log of the daemon on path if it is what this process writes to. It may still have the name
// that it had first, where the program that started this one was killed then.
func RemoveLog(path string) {
	own, err := os.Readlink("/proc/self/fd/2")
	if err != nil { // no /proc
		own = LogPath(path)
	}
	if !strings.HasPrefix(own, LogPath(path)) {
		return
	}
	a, err1 := os.Stderr.Stat()
	b, err2 := os.Lstat(own)
	if err1 == nil && err2 == nil && os.SameFile(a, b) {
		os.Remove(own)
	}
}
