//go:build linux

package exec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/control"
)

// patience is how long a daemon may take to begin, or another one to end. Tests have less.
var patience = 10 * time.Second

const (
	pause = 20 * time.Millisecond
	// grace is how long a daemon stays after its last program. The next one of a script finds it.
	grace = 2 * time.Second
)

// addresses are tried in turn for the NIC of a daemon that exec starts. The first is there twice:
// a daemon that is ending may still have it.
var addresses = []string{"127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9"}

// maxStarts is how many daemons are started before connect gives up: one that nobody connects to
// in its time of grace, on a machine that is very busy, ends.
const maxStarts = 5

// connect connects to the daemon, which it starts if that is wanted and none is there. who names it.
func (o *Options) connect() (conn *os.File, who string, err error) {
	starts := 0
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		conn, err := o.Present(o.Path)
		if err == nil {
			// A daemon that was about to end has closed the connection when it answers, or does not answer.
			who := o.whoServes()
			if !hungUp(conn) {
				return conn, who, nil
			}
			conn.Close()
		}
		switch {
		case err != nil && !nobody(err):
			return nil, "", o.explain(err)
		case err == nil || answers(o.Path+control.Suffix): // it is beginning, or about to end
			if time.Now().After(end) {
				return nil, "", fmt.Errorf("%s runs on %s and serves no programs there: stop it and start it again, or use another --socket PATH", o.whoServes(), o.Path)
			}
		case !o.Start:
			return nil, "", fmt.Errorf("no softnic runs on %s: start one with `softnic run --udp ADDR --socket %s`", o.Path, o.Path)
		case starts == maxStarts:
			return nil, "", fmt.Errorf("%d daemons that were started on %s ended at once: try `softnic run --udp %s`", starts, o.Path, addresses[0])
		default:
			if err := o.start(); err != nil {
				return nil, "", err
			}
			starts++
			end = time.Now().Add(patience)
		}
	}
}

func nobody(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

func (o *Options) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s belongs to another user: let that one start softnic with --socket-group and --socket-mode 0660, or use a --socket of your own", o.Path)
	case errors.Is(err, syscall.EPROTOTYPE), errors.Is(err, syscall.ENOTSOCK):
		return fmt.Errorf("%s is not a socket that softnic made: use another --socket PATH", o.Path)
	}
	return fmt.Errorf("%s: %w", o.Path, err)
}

// whoServes names the daemon.
func (o *Options) whoServes() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	d, err := control.NewClient(o.Path).Daemon(ctx)
	if err != nil {
		return "a softnic" // its control socket is of another user
	}
	return fmt.Sprintf("softnic (pid %d, %s)", d.PID, d.Link)
}

// answers reports whether somebody listens on a socket.
func answers(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// hungUp reports whether the other side of a connection is gone.
func hungUp(f *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
}

// start starts a daemon that ends after its last program. It returns nil also where another one was faster.
func (o *Options) start() error {
	if _, err := o.Library(); err != nil {
		return err
	}
	// The folder of a default path is there, or is the user's own.
	_, err := os.Stat(filepath.Dir(o.Path))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = o.Folder()
	}
	if err != nil {
		return err
	}
	for i, addr := range addresses {
		if i > 0 && addr == addresses[i-1] {
			time.Sleep(10 * pause)
		}
		err = o.launch(addr)
		// What it says is text of this same build.
		switch {
		case err == nil, strings.Contains(err.Error(), "runs on "+o.Path+control.Suffix+" already"):
			return nil
		case !strings.Contains(err.Error(), " is taken by "):
			return fmt.Errorf("no daemon can be started: %w", err)
		}
	}
	return fmt.Errorf("no daemon can be started: %w", err)
}

// launch starts a daemon on an address and waits until it is ready. What it logs is in PATH.log,
// which it removes when it ends without an error.
func (o *Options) launch(addr string) error {
	log, err := os.CreateTemp(filepath.Dir(o.Path), filepath.Base(o.Path)+".log*")
	if err != nil {
		return err
	}
	defer log.Close()
	keep := func() { _ = os.Rename(log.Name(), LogPath(o.Path)) }
	ready, stdout, err := os.Pipe()
	if err != nil {
		os.Remove(log.Name())
		return err
	}
	defer ready.Close()

	cmd := osexec.Command(ownFile(), "run", detachFlag, "--udp", addr, "--socket", o.Path, "--until-idle", grace.String())
	cmd.Dir = "/"
	cmd.Env = daemonEnviron(os.Environ())
	cmd.Stdout, cmd.Stderr = stdout, log
	err = cmd.Run() // that is the parent of the daemon, which ends at once
	stdout.Close()
	if err == nil {
		_ = ready.SetReadDeadline(time.Now().Add(patience))
		_, err = bufio.NewReader(ready).ReadString('\n')
		if errors.Is(err, os.ErrDeadlineExceeded) {
			keep()
			return fmt.Errorf("softnic run does not get ready within %v: see %s", patience, LogPath(o.Path))
		}
	}
	if err != nil { // it ended
		defer os.Remove(log.Name())
		return complaint(log.Name(), err)
	}
	keep()
	return nil
}

// LogPath is where a daemon that exec started on path logs.
func LogPath(path string) string { return path + ".log" }

// complaint returns the line in which a daemon said why it ended, or err.
func complaint(log string, err error) error {
	text, rerr := os.ReadFile(log)
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	var last string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if said, ok := strings.CutPrefix(line, "softnic: "); ok {
			return errors.New(said)
		}
		if last == "" {
			last = line // of a panic the first line says what
		}
	}
	if last != "" {
		return errors.New("softnic run ended: " + last)
	}
	return fmt.Errorf("softnic run ended: %w", err)
}
