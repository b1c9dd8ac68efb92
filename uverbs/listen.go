//go:build linux

package uverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/uverbs/preload"
)

// ListenOptions say who may connect.
type ListenOptions struct {
	Mode  fs.FileMode // of the socket; 0 means 0600
	Group int         // of the socket; 0 or below means that of the process
}

// Listener is the socket for programs, with the folder that belongs to it.
type Listener struct {
	*net.UnixListener
	path string // of the socket
	tmp  string // where the socket is until it is ready
	once sync.Once
	err  error
}

// folder is what stands beside a socket: the library and the tree.
func folder(path string) string { return path + ".d" }

// LibraryPath returns where the preload library is for the programs of a socket.
func LibraryPath(path string) string { return filepath.Join(folder(path), "libsoftnic.so") }

// SysfsPath returns the value of SYSFS_PATH for the programs of a socket.
func SysfsPath(path string) string { return filepath.Join(folder(path), "sys") }

// Listen makes the socket for programs, and its folder with the preload library if this build
// has it. The caller knows that nobody else serves path: what is there is left over. Programs see the
// socket when a Server has it.
func Listen(path string, o ListenOptions) (*Listener, error) {
	if o.Mode == 0 {
		o.Mode = 0o600
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%s exists and is not a socket: remove it, or use another --socket PATH", path)
	}
	if err := clearFolder(path); err != nil {
		return nil, err
	}
	l := &Listener{path: path, tmp: filepath.Join(folder(path), "s")}
	err := os.Mkdir(folder(path), 0o700) // nobody else's until the socket has its mode
	if err == nil {
		err = l.library()
	}
	if err == nil {
		l.UnixListener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: l.tmp, Net: "unixpacket"})
	}
	if err == nil {
		l.SetUnlinkOnClose(false)
		// Nobody connects yet: it is not there under its name.
		if o.Group > 0 {
			err = os.Chown(l.tmp, -1, o.Group)
		}
		if err == nil {
			err = os.Chmod(l.tmp, o.Mode)
		}
		if err == nil {
			err = os.Chmod(folder(path), 0o755) // whatever the umask
		}
	}
	if err != nil {
		if l.UnixListener != nil {
			l.UnixListener.Close()
		}
		_ = clearFolder(path)
		return nil, fmt.Errorf("%s: no socket for programs can be made: %w", path, err)
	}
	return l, nil
}

// library puts the preload library into the folder, if there is one in this build.
func (l *Listener) library() error {
	b, err := preload.Library()
	if err != nil {
		return nil // exec says so
	}
	return writeFile(LibraryPath(l.path), b, 0o755)
}

// ready shows the socket.
func (l *Listener) ready() error { return os.Rename(l.tmp, l.path) }

// Close ends listening and removes the socket and its folder.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.err = errors.Join(l.err, l.UnixListener.Close())
		if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.err = errors.Join(l.err, err)
		}
		l.err = errors.Join(l.err, clearFolder(l.path))
	})
	return l.err
}

// clearFolder removes the folder of a socket, with what we put there and nothing else.
func clearFolder(path string) error {
	dir := folder(path)
	fi, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%s is not a folder", dir)
	}
	if err == nil {
		err = errors.Join(os.RemoveAll(SysfsPath(path)), os.RemoveAll(LibraryPath(path)), os.RemoveAll(LibraryPath(path)+"~"), os.RemoveAll(filepath.Join(dir, "s")))
	}
	if err == nil {
		err = os.Remove(dir)
	}
	if err != nil {
		return fmt.Errorf("%s: it cannot be removed: %w", dir, err)
	}
	return nil
}

// writeFile writes a file that is whole whenever it can be seen, and readable for everybody.
func writeFile(path string, b []byte, mode fs.FileMode) error {
	tmp := path + "~"
	if err := os.WriteFile(tmp, b, mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Present connects to the daemon at path and says that a program runs: the daemon has a
// program as long as the file, or a copy that a child process inherited, is open.
func Present(path string) (*os.File, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	head := make([]byte, headLen)
	le.PutUint32(head, kindPresent)
	if _, err := c.Write(head); err != nil {
		return nil, err
	}
	f, err := c.File()
	if err != nil {
		return nil, err
	}
	// A file of the os package may be non-blocking; the connection is never read.
	_ = unix.SetNonblock(int(f.Fd()), false)
	return f, nil
}
