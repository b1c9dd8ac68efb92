package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// maxPath is the longest path of a socket that every system takes (sun_path).
const maxPath = 103

// Listen makes the control socket for the daemon whose socket is path (without
// ".ctl"), with mode 0600. A socket that a dead process left is replaced; one that is
// served is an error which says by whom. Closing the listener removes the socket.
func Listen(path string) (net.Listener, error) {
	path += Suffix
	if len(path) > maxPath {
		return nil, fmt.Errorf("%s: a socket's path may have %d characters, this one has %d: use a shorter --socket PATH", path, maxPath, len(path))
	}
	dir := filepath.Dir(path)
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	unlock, err := lockFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("no socket can be made in %s: %w", dir, err)
	}
	defer unlock()
	if err := clearPath(path); err != nil {
		return nil, err
	}
	// Under another name first, in a folder that nobody else may enter, so that
	// the socket is never there with other permissions.
	tmp, err := os.MkdirTemp(dir, ".sn")
	if err != nil {
		return nil, fmt.Errorf("no socket can be made in %s: %w", dir, err)
	}
	defer os.RemoveAll(tmp)
	l, err := listenAs(filepath.Join(tmp, "s"), path)
	if err != nil {
		return nil, fmt.Errorf("%s: no socket can be made: %w", path, err)
	}
	return l, nil
}

// listenAs makes a socket called first and renames it to path.
func listenAs(first, path string) (net.Listener, error) {
	if len(first) > maxPath { // rather a moment with other permissions than none at all
		first = path
	}
	ul, err := net.ListenUnix("unix", &net.UnixAddr{Name: first, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ul.SetUnlinkOnClose(false)
	l := &listener{UnixListener: ul, path: path}
	err = os.Chmod(first, 0o600)
	if err == nil && first != path {
		err = os.Rename(first, path)
	}
	if err == nil {
		l.file, err = os.Lstat(path)
	}
	if err != nil {
		ul.Close()
		os.Remove(first)
		return nil, err
	}
	return l, nil
}

// listener removes its socket when it closes, if it is still its own.
type listener struct {
	*net.UnixListener
	path string
	file fs.FileInfo
}

// Close implements net.Listener. A later one on the same path keeps its socket; it may
// have the inode of this one.
func (l *listener) Close() error {
	err := l.UnixListener.Close()
	if unlock, lerr := lockFolder(filepath.Dir(l.path)); lerr == nil {
		defer unlock()
	}
	fi, serr := os.Lstat(l.path)
	if serr != nil || !os.SameFile(fi, l.file) {
		return err
	}
	if conn, derr := net.DialTimeout("unix", l.path, time.Second); derr == nil {
		conn.Close()
		return err
	}
	return errors.Join(err, os.Remove(l.path))
}

// clearPath removes a socket that nobody serves.
func clearPath(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: remove it, or use another --socket PATH", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s runs on %s already: stop it, or give this one another --socket PATH", whoServes(path), path)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s belongs to another user: use another --socket PATH", path)
	case !errors.Is(err, syscall.ECONNREFUSED) && runtime.GOOS != "windows":
		return fmt.Errorf("%s exists and does not answer (%w): use another --socket PATH", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("a dead process left %s and it cannot be removed: %w", path, err)
	}
	return nil
}

// whoServes names what serves a control socket.
func whoServes(path string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	d, err := NewClient(path[:len(path)-len(Suffix)]).Daemon(ctx)
	if err != nil {
		return "another program"
	}
	return fmt.Sprintf("softnic (pid %d, %s)", d.PID, d.Link)
}
