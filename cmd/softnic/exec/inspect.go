//go:build linux

package exec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Program is a command that was looked at.
type Program struct {
	Path string   // to be executed
	Argv []string // of it

	// Warning is not empty where the program runs and sees no device itself.
	Warning string

	image image
	file  string // which has that image: Path, or the interpreter of a script
}

// user is who will run a program, and how; a test may be another.
type user struct {
	uid, gid int
	// noNewPrivs says that bits which change the user are without effect.
	noNewPrivs bool
}

func self() user {
	nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return user{os.Geteuid(), os.Getegid(), err == nil && nnp == 1}
}

// maxScripts is how deep the kernel follows #! lines.
const maxScripts = 5

// Inspect finds the program of a command line and looks whether its loader will take a library
// from LD_PRELOAD. Where it will not and the program can do nothing about it, that is the error.
func Inspect(argv []string, search string, u user) (*Program, error) {
	path, err := Find(argv[0], search)
	if err != nil {
		return nil, err
	}
	p := &Program{Path: path, Argv: argv, file: path}
	for range maxScripts {
		line, err := p.load()
		switch {
		case errors.Is(err, fs.ErrPermission): // it may be executed and not read
			return p, p.secure(u)
		case errors.Is(err, errNotELF):
			return p.text()
		case err != nil:
			return nil, &Error{CodeCannotRun, fmt.Errorf("%s cannot be executed: %w", p.file, err)}
		case line == "":
			return p, p.check(u)
		}
		script := p.file
		if p.file, err = interpreter(line, search); err != nil {
			return nil, &Error{CodeNotFound, fmt.Errorf("%s: its first line is %q, and %w", script, "#!"+line, err)}
		}
	}
	return p, nil // the kernel says ELOOP
}

// load reads the image of p.file, or returns the #! line of a script, without these two.
func (p *Program) load() (line string, err error) {
	f, err := os.Open(p.file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	first := make([]byte, 256) // as much as the kernel looks at
	n, err := f.ReadAt(first, 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	if text, ok := bytes.CutPrefix(first[:n], []byte("#!")); ok {
		text, _, _ = bytes.Cut(text, []byte("\n"))
		if line = strings.Trim(string(text), " \t"); line != "" {
			return line, nil
		}
	}
	p.image, err = readImage(f)
	return "", err
}

// interpreter returns the file that runs a script with this #! line. With env that is the
// program which env is told to run.
func interpreter(line, search string) (string, error) {
	name, rest, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
	if err := executable(name); err != nil {
		return "", err
	}
	if filepath.Base(name) != "env" {
		return name, nil
	}
	for _, word := range strings.Fields(rest) {
		if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
			return Find(word, search)
		}
	}
	return name, nil
}

// text decides about a file that is neither ELF nor has a #! line. execvp(3), and so env and every
// shell, gives text to the shell.
func (p *Program) text() (*Program, error) {
	first := make([]byte, 256)
	f, err := os.Open(p.file)
	if err != nil {
		return nil, &Error{CodeCannotRun, err}
	}
	defer f.Close()
	n, _ := f.ReadAt(first, 0)
	if p.file != p.Path || bytes.IndexByte(first[:n], 0) >= 0 {
		return nil, &Error{CodeCannotRun, fmt.Errorf("%s is neither a program nor a script", p.file)}
	}
	p.Argv = append([]string{"sh", p.Path}, p.Argv[1:]...)
	p.Path = "/bin/sh"
	return p, nil
}

// secure refuses a program that gets other rights than its user has: the kernel tells its loader,
// which then ignores LD_PRELOAD and removes it.
func (p *Program) secure(u user) error {
	what := p.gains(u)
	if what == "" {
		return nil
	}
	hint := "run a copy without that"
	switch b := filepath.Base(p.file); b {
	case "sudo", "doas", "su", "pkexec":
		hint = fmt.Sprintf("put it before softnic, as `%s softnic exec -- CMD`", b)
	}
	return &Error{CodeCannotRun, fmt.Errorf("%s %s, so its loader ignores LD_PRELOAD: %s", p.file, what, hint)}
}

// check says why the loader of an ELF program would not take the library.
func (p *Program) check(u user) error {
	if err := p.secure(u); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(filepath.Base(p.image.interp), "ld-musl"):
		return &Error{CodeCannotRun, fmt.Errorf("%s is linked with musl (%s), and softnic's library needs glibc: use a build for glibc", p.file, p.image.interp)}
	case p.image.interp != "":
		if _, err := os.Stat(p.image.interp); err != nil {
			return &Error{CodeNotFound, fmt.Errorf("%s needs the loader %s, which is not here: install the C library that it was built for", p.file, p.image.interp)}
		}
	case !isLoader(p.file):
		// No error: `go test` and many a launcher are such programs, and what they start sees the device.
		p.Warning = fmt.Sprintf("%s is linked statically: LD_PRELOAD cannot reach it, only programs that it starts will see the device", p.file)
	}
	return nil
}

// isLoader knows a loader that was called as a program: it has no loader, and takes LD_PRELOAD.
func isLoader(path string) bool {
	b := filepath.Base(path)
	return strings.HasPrefix(b, "ld-linux") || strings.HasPrefix(b, "ld.so") || strings.HasPrefix(b, "ld64.so")
}

// gains says what gives a program other rights than its user has.
func (p *Program) gains(u user) string {
	fi, err := os.Stat(p.file)
	if err != nil || u.noNewPrivs {
		return ""
	}
	var fsys unix.Statfs_t
	if unix.Statfs(p.file, &fsys) == nil && fsys.Flags&unix.ST_NOSUID != 0 {
		return ""
	}
	var st unix.Stat_t
	if unix.Stat(p.file, &st) != nil {
		return ""
	}
	switch m := fi.Mode(); {
	case m&fs.ModeSetuid != 0 && int(st.Uid) != u.uid:
		return fmt.Sprintf("runs as user %d (set-uid)", st.Uid)
	case m&fs.ModeSetgid != 0 && m&0o010 != 0 && int(st.Gid) != u.gid:
		return fmt.Sprintf("runs as group %d (set-gid)", st.Gid)
	}
	if n, err := unix.Getxattr(p.file, "security.capability", nil); err == nil && n > 0 && u.uid != 0 {
		return "has file capabilities"
	}
	return ""
}

// takes says why a program cannot load a library of another kind.
func (p *Program) takes(lib image) error {
	if p.image.class == 0 || p.image.fits(lib) {
		return nil
	}
	return &Error{CodeCannotRun, fmt.Errorf("%s is a program for %v, and softnic's library is for %v: use a build for that", p.file, p.image, lib)}
}
