//go:build linux

package exec

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/control"
)

// Options are what Run needs.
type Options struct {
	Args    []string // the command
	Path    string   // the daemon's socket for programs
	Start   bool     // a daemon, if none runs there
	Verbose bool
	Stderr  io.Writer

	// Present connects to a daemon and stays connected; LibraryPath and SysfsPath say what it keeps for
	// programs beside its socket, and Library has the preload library of this build.
	Present     func(path string) (*os.File, error)
	LibraryPath func(path string) string
	SysfsPath   func(path string) string
	Library     func() ([]byte, error)

	// Folder makes and returns the user's own folder. It takes a copy of the library where the daemon's
	// cannot be mapped.
	Folder func() (string, error)

	statfs func(dir string) (flags int64, err error) // nil: the system's
}

// maxPath is the longest path of a daemon's socket: control.Listen takes 103 characters with the suffix.
const maxPath = 103 - len(control.Suffix)

// Run becomes the program. It returns only if that fails.
func Run(o Options) error {
	if o.statfs == nil {
		o.statfs = statfs
	}
	p, err := Inspect(o.Args, os.Getenv("PATH"), self())
	if err != nil {
		return err
	}
	// The program may change its folder before it opens the device.
	if o.Path, err = filepath.Abs(o.Path); err != nil {
		return err
	}
	if len(o.Path) > maxPath {
		hint := "use a shorter --socket PATH"
		if o.Start {
			hint = "set XDG_RUNTIME_DIR to a folder with a shorter path"
		}
		return fmt.Errorf("%s: the path of the daemon's socket may have %d characters, this one has %d: %s", o.Path, maxPath, len(o.Path), hint)
	}
	conn, who, err := o.connect()
	if err != nil {
		return err
	}
	lib, im, err := o.library(o.LibraryPath(o.Path))
	if err != nil {
		return err
	}
	if err := p.takes(im); err != nil {
		return err
	}
	o.warn(p, lib, who)
	if err := inherit(conn); err != nil {
		return err
	}
	env := Environ(os.Environ(), sanitizers(p.Path), lib, o.SysfsPath(o.Path), o.Path, o.Verbose)
	err = syscall.Exec(p.Path, p.Argv, env)
	e := &Error{CodeCannotRun, fmt.Errorf("%s cannot be executed: %w", p.Path, err)}
	if errors.Is(err, syscall.ENOENT) {
		e.Code = CodeNotFound
	}
	return e
}

// sanitizers lists the libraries of a program that insist on being the first that is loaded: that of AddressSanitizer,
// unless it is linked statically.
func sanitizers(path string) []string {
	f, err := elf.Open(path)
	if err != nil {
		return nil // a script
	}
	defer f.Close()
	libs, _ := f.ImportedLibraries()
	return slices.DeleteFunc(libs, func(l string) bool { return !strings.HasPrefix(l, "libasan.so") })
}

// warn says what the user of a program that runs wants to know.
func (o *Options) warn(p *Program, lib, who string) {
	if o.Verbose {
		fmt.Fprintf(o.Stderr, "softnic: %s serves %s; LD_PRELOAD %s\n", who, o.Path, lib)
	}
	if p.Warning != "" {
		fmt.Fprintln(o.Stderr, "softnic: "+p.Warning)
	}
	if !hasProvider("/", os.Getenv) {
		fmt.Fprintln(o.Stderr, "softnic: rdma-core's rxe provider is not installed (apt-get install ibverbs-providers): the program will see no device")
	}
}

// hasProvider looks for the file by which libibverbs finds the rxe provider, in the folders that
// distributions build in. With a list of drivers in the environment it needs none.
func hasProvider(root string, getenv func(string) string) bool {
	if getenv("RDMAV_DRIVERS") != "" || getenv("IBV_DRIVERS") != "" {
		return true
	}
	dirs := []string{"etc", "usr/etc", "usr/local/etc"}
	if conda := getenv("CONDA_PREFIX"); conda != "" {
		dirs = append(dirs, conda+"/etc")
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(root, dir, "libibverbs.d/rxe.driver")); err == nil {
			return true
		}
	}
	return false
}

// inherit makes a connection one that the program and its children keep. Its number is high:
// programs assume low ones, or close them.
func inherit(conn *os.File) error {
	var err error
	for _, least := range []int{1000, 200, 3} {
		if _, err = unix.FcntlInt(conn.Fd(), unix.F_DUPFD, least); err == nil {
			return conn.Close()
		}
	}
	return fmt.Errorf("the connection to the daemon cannot be kept: %w", err)
}
