//go:build linux

package exec

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// library chooses the file for LD_PRELOAD: the one that the daemon keeps at kept or, where that cannot
// be mapped or named, a copy in a folder of the user's own.
func (o *Options) library(kept string) (path string, im image, err error) {
	data, err := os.ReadFile(kept)
	switch {
	case errors.Is(err, fs.ErrNotExist): // a daemon that has none in it
		if data, err = o.Library(); err != nil {
			return "", im, err
		}
	case errors.Is(err, fs.ErrPermission):
		return "", im, fmt.Errorf("%s cannot be read by user %d: start the daemon with --socket-mode and --socket-group, or use one of your own", kept, os.Geteuid())
	case err != nil:
		return "", im, err
	default:
		if o.mappable(kept) {
			path = kept
		}
	}
	if im, err = readImage(bytes.NewReader(data)); err != nil {
		return "", im, fmt.Errorf("the library of the daemon, %s: %w: start the daemon again", kept, err)
	}
	if path == "" {
		path, err = o.copyLibrary(data)
	}
	return path, im, err
}

// mappable reports whether a loader can take a library from here.
func (o *Options) mappable(path string) bool {
	flags, err := o.statfs(filepath.Dir(path))
	return preloadable(path) && (err != nil || flags&unix.ST_NOEXEC == 0)
}

// copyLibrary puts a library into the user's own folder. Its name has a hash of what is in it: programs of
// different daemons may have it open.
func (o *Options) copyLibrary(data []byte) (string, error) {
	dir, err := o.Folder()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	path := filepath.Join(dir, fmt.Sprintf("%s-%x.so", libraryName, sum[:8]))
	if !o.mappable(path) {
		return "", fmt.Errorf("no program can load the preload library from %s (mounted noexec, or a character that LD_PRELOAD cannot have): set TMPDIR to another folder", dir)
	}
	return path, writeOnce(path, data)
}

// writeOnce makes a file that has data or nothing at all, also when two do it at the same time.
func writeOnce(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".sn*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o700), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// statfs returns the mount flags of a folder.
func statfs(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Flags), nil
}
