//go:build linux

package exec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// defaultPath is what execvp(3) searches without PATH.
const defaultPath = "/bin:/usr/bin"

// Find returns the file that a command names, as execvp(3) finds it: a name with a slash is
// a path, any other is looked for in the folders of search.
func Find(name, search string) (string, error) {
	if name == "" {
		return "", &Error{CodeNotFound, errors.New("the command is empty: name a program")}
	}
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	if search == "" {
		search = defaultPath
	}
	var denied error // a file that is there and cannot be run says more than "not found"
	for _, dir := range filepath.SplitList(search) {
		if dir == "" {
			dir = "."
		}
		path := filepath.Join(dir, name)
		if dir == "." {
			path = "./" + name
		}
		if fi, err := os.Stat(path); err != nil || fi.IsDir() {
			continue
		}
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", &Error{CodeNotFound, fmt.Errorf("%s: no such program in PATH: install it, or give its path", name)}
}

// executable says why a file cannot be run.
func executable(path string) error {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return &Error{CodeNotFound, fmt.Errorf("%s: no such file", path)}
	case err != nil:
		return &Error{CodeCannotRun, err}
	case fi.IsDir():
		return &Error{CodeCannotRun, fmt.Errorf("%s is a folder: name a program", path)}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS); err != nil {
		hint := fmt.Sprintf("`chmod +x %s`", path)
		if fi.Mode()&0o111 != 0 {
			hint = "its mode or its file system forbids it to this user"
		}
		return &Error{CodeCannotRun, fmt.Errorf("%s cannot be executed: %s", path, hint)}
	}
	return nil
}
