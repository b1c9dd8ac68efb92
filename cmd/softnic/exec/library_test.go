//go:build linux

package exec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLibrary(t *testing.T) {
	lib, other := string(makeNative("")), string(makeNative(loader))
	noexec := func(flags map[string]int64) func(string) (int64, error) {
		return func(dir string) (int64, error) { return flags[filepath.Base(dir)], nil }
	}
	for _, c := range []struct {
		name   string
		kept   string           // content of the daemon's; "" for none
		dir    string           // where that is
		flags  map[string]int64 // of the mounts
		own    error            // of the library in this build
		folder error
		want   string // "kept", "copy" or what the error says
	}{
		{name: "usual", kept: lib, dir: "d", want: "kept"},
		{name: "noexec", kept: lib, dir: "d", flags: map[string]int64{"d": unix.ST_NOEXEC | unix.ST_NODEV}, want: "copy"},
		{name: "other flags", kept: lib, dir: "d", flags: map[string]int64{"d": unix.ST_NOSUID}, want: "kept"},
		{name: "space", kept: lib, dir: "a b", want: "copy"},
		{name: "colon", kept: lib, dir: "a:b", want: "copy"},
		{name: "dollar", kept: lib, dir: "$LIB", want: "copy"},
		{name: "noexec twice", kept: lib, dir: "d", flags: map[string]int64{"d": unix.ST_NOEXEC, "own": unix.ST_NOEXEC}, want: "mounted noexec"},
		{name: "no folder", kept: lib, dir: "d", flags: map[string]int64{"d": unix.ST_NOEXEC}, folder: errors.New("it belongs to another"), want: "it belongs to another"},
		{name: "daemon without", dir: "d", want: "copy"},
		{name: "daemon and program without", dir: "d", own: errors.New("run make build"), want: "run make build"},
		{name: "of a later daemon", kept: lib, dir: "d", own: errors.New("run make build"), want: "kept"},
		{name: "broken", kept: "#!/bin/sh\n", dir: "d", want: "not an ELF file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			dir, own := filepath.Join(root, c.dir), filepath.Join(root, "own")
			for _, d := range []string{dir, own} {
				if err := os.Mkdir(d, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			kept := filepath.Join(dir, "libsoftnic.so")
			if c.kept != "" {
				write(t, 0o700, c.kept, kept)
			}
			o := &Options{
				Library: func() ([]byte, error) { return []byte(other), c.own },
				Folder:  func() (string, error) { return own, c.folder },
				statfs:  noexec(c.flags),
			}
			var last string
			for range 2 { // the second time the copy is there
				path, im, err := o.library(kept)
				switch {
				case c.want != "kept" && c.want != "copy":
					if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
						t.Errorf("%v, want %q", err, c.want)
					}
					continue
				case err != nil:
					t.Fatal(err)
				case c.want == "kept" && path != kept, c.want == "copy" && filepath.Dir(path) != own:
					t.Errorf("%s, want %s", path, c.want)
				case im.class == 0:
					t.Error("no image")
				}
				want := c.kept
				if want == "" {
					want = other
				}
				if data, err := os.ReadFile(path); err != nil || string(data) != want {
					t.Errorf("%s has other content: %v", path, err)
				}
				if last != "" && path != last {
					t.Errorf("%s and %s", last, path)
				}
				last = path
				if c.want == "copy" { // cut off by a full disk, say
					write(t, 0o700, "x", path)
				}
			}
			if left, _ := filepath.Glob(own + "/.sn*"); left != nil {
				t.Error("left behind:", left)
			}
		})
	}
}

func TestHasProvider(t *testing.T) {
	root := t.TempDir()
	env := map[string]string{}
	has := func() bool { return hasProvider(root, func(name string) string { return env[name] }) }
	if has() {
		t.Error("in an empty system")
	}
	for _, name := range []string{"RDMAV_DRIVERS", "IBV_DRIVERS"} {
		env[name] = "rxe"
		if !has() {
			t.Errorf("not with %s", name)
		}
		delete(env, name)
	}
	dir := filepath.Join(root, "usr/local/etc/libibverbs.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, 0o644, "driver rxe\n", dir, "rxe.driver")
	if !has() {
		t.Error("not in /usr/local")
	}
}
