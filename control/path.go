package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Suffix is what the name of the control socket has in addition to that of the
// socket for programs.
const Suffix = ".ctl"

// DefaultPath returns the socket of the user's daemon: softnic.sock in
// $XDG_RUNTIME_DIR, or without that variable in softnic-UID under the temporary
// directory, which Listen makes. It refuses a folder that another user owns or may write.
func DefaultPath() (string, error) {
	const name = "softnic.sock"
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		if err := checkFolder(dir); err != nil {
			return "", fmt.Errorf("XDG_RUNTIME_DIR: %w", err)
		}
		return filepath.Join(dir, name), nil
	}
	dir := ownFolder()
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return filepath.Join(dir, name), nil
	}
	if err := checkFolder(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// OwnFolder makes the user's own folder under the temporary directory if it is not there, and
// returns it. Nobody else may write it.
func OwnFolder() (string, error) {
	dir := ownFolder()
	return dir, makeFolder(dir)
}

// ownFolder is the user's own folder under the temporary directory.
func ownFolder() string { return filepath.Join(os.TempDir(), "softnic-"+userName()) }

func userName() string {
	if uid := os.Getuid(); uid >= 0 {
		return strconv.Itoa(uid)
	}
	return "user" // Windows: the temporary directory is the user's own
}

// makeFolder makes the user's own folder if that is what dir is.
func makeFolder(dir string) error {
	if dir != ownFolder() {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: make it possible, or use --socket PATH", err)
	}
	return checkFolder(dir)
}

// checkFolder refuses a folder in which another user could put a socket.
func checkFolder(dir string) error {
	fi, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist: make it, or use --socket PATH", dir)
	case err != nil:
		return fmt.Errorf("%w: use --socket PATH", err)
	case !fi.IsDir():
		return fmt.Errorf("%s is not a folder: remove it, or use --socket PATH", dir)
	}
	return checkOwner(dir, fi)
}
