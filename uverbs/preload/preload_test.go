//go:build linux

package preload

import (
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// compile runs a command that makes a file in dir.
func compile(t *testing.T, name string, arg ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, arg...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, arg, err, out)
	}
}

func needGCC(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: the preload library cannot be built")
	}
}

func library(t *testing.T, cppflags string) string {
	t.Helper()
	needGCC(t)
	t.Setenv("CC", "gcc")
	t.Setenv("CPPFLAGS", cppflags)
	// The compiler's reads are not seen by go test, which would repeat a result of other sources.
	sources, _ := filepath.Glob("[st]*/*")
	for _, s := range sources {
		if _, err := os.ReadFile(s); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "libsoftnic.so")
	compile(t, "sh", "src/build.sh", out)
	return out
}

// run starts the test program and returns what it printed.
func run(t *testing.T, program, scenario string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, program, scenario)
	c.Dir = t.TempDir()
	c.Env = append(c.Environ(), env...)
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

func TestPrograms(t *testing.T) {
	lib := library(t, "")
	plain := filepath.Join(t.TempDir(), "program")
	compile(t, "gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-U_FORTIFY_SOURCE", "-o", plain, "testdata/program.c", "-lpthread")
	// Uses __open64_2, fstat64 and so on.
	large := filepath.Join(t.TempDir(), "program64")
	compile(t, "gcc", "-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-D_FILE_OFFSET_BITS=64", "-o", large, "testdata/program.c", "-lpthread")
	next := filepath.Join(t.TempDir(), "libnext.so")
	compile(t, "gcc", "-shared", "-fPIC", "-o", next, "testdata/next.c")
	// As on a glibc before 2.34 in a program without libdl: the hooks have no next function.
	nodlsym := library(t, "-Dsoftnic_dlsym=softnic_no_dlsym")

	scenarios := []string{"basic", "names", "events", "create_cq", "copies", "ranges", "forks", "threads",
		"signals", "doorbells", "arming", "death", "stale", "pointers", "lowlimit"}
	for _, v := range []struct{ name, program, lib string }{
		{"plain", plain, lib}, {"large", large, lib}, {"nodlsym", plain, nodlsym},
	} {
		t.Run(v.name, func(t *testing.T) {
			for _, s := range scenarios {
				t.Run(s, func(t *testing.T) {
					t.Parallel()
					f := newFake(t)
					out := run(t, v.program, s, "LD_PRELOAD="+v.lib, "SOFTNIC_SOCKET="+f.path)
					if want := s == "death" || s == "copies" || s == "stale"; (out != "") != want {
						t.Errorf("printed %q", out)
					}
				})
			}
		})
	}

	both := "LD_PRELOAD=" + lib + ":" + next
	t.Run("netlink", func(t *testing.T) {
		run(t, plain, "netlink", both, "SOFTNIC_SOCKET=/nowhere")
	})
	t.Run("inert", func(t *testing.T) {
		for _, e := range []string{"SOFTNIC_VERBOSE=1", "SOFTNIC_SOCKET="} {
			if out := run(t, plain, "inert", both, e); out != "" {
				t.Errorf("printed %q", out)
			}
		}
	})
	t.Run("nodaemon", func(t *testing.T) {
		absent := filepath.Join(t.TempDir(), "absent")
		f := newFake(t)
		f.l.SetUnlinkOnClose(false) // a file that nobody listens on
		f.l.Close()
		for _, p := range []string{absent, f.path, "/" + strings.Repeat("long/", 100)} {
			out := run(t, plain, "nodaemon", "LD_PRELOAD="+lib, "SOFTNIC_SOCKET="+p)
			want := "softnic: no softnic answers on " + p[:min(len(p), 255)] + ": start `softnic run`, or use `softnic exec`\n"
			if out != want {
				t.Errorf("printed %q, want once %q", out, want)
			}
		}
	})
	t.Run("hints", func(t *testing.T) {
		f := newFake(t)
		important, usual := "softnic: what to do\n", "softnic: the usual reason\n"
		for env, want := range map[string]string{"X=": important, "SOFTNIC_VERBOSE=1": important + usual, "SOFTNIC_QUIET=1": ""} {
			if out := run(t, plain, "hints", "LD_PRELOAD="+lib, "SOFTNIC_SOCKET="+f.path, env); out != want {
				t.Errorf("%s: printed %q, want %q", env, out, want)
			}
		}
	})
}

// TestPolling: who polls softnic's device without finding anything lets others run every 32 polls, and gets what the provider gave; of other devices nothing
// is changed. So it is in programs that are linked to libibverbs, and in those that load a module which is.
func TestPolling(t *testing.T) {
	lib, dir := library(t, ""), t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	flags := []string{"-Wall", "-Wextra", "-Werror", "-O1", "-rdynamic", "-Wl,-rpath," + dir, "-o"}
	compile(t, "gcc", "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-o", in("libibverbs.so.1"), "testdata/verbs.c")
	compile(t, "gcc", append(slices.Clone(flags), in("linked"), "testdata/poll.c", in("libibverbs.so.1"), "-ldl")...)
	compile(t, "gcc", append(slices.Clone(flags), in("module.so"), "-DMODULE", "-shared", "-fPIC", "testdata/poll.c", in("libibverbs.so.1"))...)
	compile(t, "gcc", append(slices.Clone(flags), in("loader"), "-DLOADER", "testdata/poll.c", "-ldl")...)
	for name, arg := range map[string]string{"linked": "", "loader": in("module.so")} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			if out := run(t, in(name), arg, "LD_PRELOAD="+lib, "SOFTNIC_SOCKET="+f.path); out != "" {
				t.Errorf("printed %q", out)
			}
		})
	}
}

// The library must load where glibc is older than here, and be invisible but for its hooks.
func TestLibraryFile(t *testing.T) {
	path := library(t, "")
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range needs {
		for _, d := range n.Needs {
			v, ok := strings.CutPrefix(d.Dep, "GLIBC_2.")
			major, _, _ := strings.Cut(v, ".")
			if x, err := strconv.Atoi(major); !ok || err != nil || x > 28 {
				t.Errorf("needs %s of %s; at most GLIBC_2.28", d.Dep, n.Name)
			}
		}
	}
	if libs, err := f.ImportedLibraries(); err != nil || !slices.Equal(libs, []string{"libc.so.6"}) {
		t.Errorf("needs %v, %v", libs, err)
	}

	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var defined []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			defined = append(defined, s.Name)
		}
		if (s.Name == "dlsym" || s.Name == "dlopen") && elf.ST_BIND(s.Info) != elf.STB_WEAK {
			t.Errorf("%s is not weak: programs without libdl would not start on glibc before 2.34", s.Name)
		}
	}
	slices.Sort(defined)
	if !slices.Equal(defined, hooks) {
		t.Errorf("exports\n%v, want\n%v", defined, hooks)
	}

	again, err := os.ReadFile(library(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	if first, err := os.ReadFile(path); err != nil || string(first) != string(again) {
		t.Errorf("a second build gives other bytes (%v)", err)
	}
}

// What facts and programs ask for, apart from the list in the source.
var hooks = strings.Fields(`__fxstat __fxstat64 __fxstatat __fxstatat64 __lxstat __lxstat64 __open64_2 __open_2
	__openat64_2 __openat_2 __xstat __xstat64 access close close_range closefrom dup dup2 dup3 eaccess euidaccess
	faccessat fcntl fcntl64 fstat fstat64 fstatat fstatat64 ibv_open_device ioctl lstat lstat64 open open64 openat openat64 socket
	stat stat64 statx write`)

// The header of the library repeats the constants of the Go side.
func TestHeaderMatchesProtocol(t *testing.T) {
	constants := func(path, pattern string) map[string]string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]string{}
		for _, l := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(b), -1) {
			m[l[1]] = strings.Trim(strings.TrimSpace(l[2]), "()")
		}
		return m
	}
	inGo := constants("../protocol.go", `(?m)^\s*(?:const )?(\w+)\s+=\s+([^/\n]+)`)
	inC := constants("src/protocol.h", `(?m)^#define +(\w+) +([^/\n]+)`)
	if len(inGo) < 15 {
		t.Fatalf("found only %v in protocol.go", inGo)
	}
	for name, v := range inGo {
		if inC[name] != v {
			t.Errorf("%s is %q in protocol.go and %q in protocol.h", name, v, inC[name])
		}
	}
	for name := range inC {
		if _, ok := inGo[name]; !ok {
			t.Errorf("%s of protocol.h is not in protocol.go", name)
		}
	}
}

// Library gives what make build left, or says what to do.
func TestLibrary(t *testing.T) {
	b, err := Library()
	if _, here := os.Stat("lib/libsoftnic.so"); here != nil {
		if err == nil || !strings.Contains(err.Error(), "make build") {
			t.Errorf("%d bytes, %v; nothing is built", len(b), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]; f.Machine != want || f.Type != elf.ET_DYN {
		t.Errorf("the library is %v %v, want %v", f.Machine, f.Type, want)
	}
}
