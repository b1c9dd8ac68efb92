//go:build linux

package exec

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// makeELF makes the start of an ELF file, with a loader unless that is "".
func makeELF(class elf.Class, data elf.Data, machine elf.Machine, interp string) []byte {
	var order binary.ByteOrder = binary.LittleEndian
	if data == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(class), byte(data), 1}
	load, named := elf.PT_LOAD, elf.PT_INTERP
	if interp == "" {
		named = elf.PT_NOTE
	}
	name := append([]byte(interp), 0)
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, order, v) }
	if class == elf.ELFCLASS64 {
		put(elf.Header64{Ident: ident, Type: 2, Machine: uint16(machine), Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 2})
		put(elf.Prog64{Type: uint32(load)})
		put(elf.Prog64{Type: uint32(named), Off: 64 + 2*56, Filesz: uint64(len(name))})
	} else {
		put(elf.Header32{Ident: ident, Type: 2, Machine: uint16(machine), Phoff: 52, Ehsize: 52, Phentsize: 32, Phnum: 2})
		put(elf.Prog32{Type: uint32(load)})
		put(elf.Prog32{Type: uint32(named), Off: 52 + 2*32, Filesz: uint32(len(name))})
	}
	b.Write(name)
	return b.Bytes()
}

// loader is one that exists here: the tests' own programs name the shell.
const loader = "/bin/sh"

func makeNative(interp string) []byte {
	return makeELF(elf.ELFCLASS64, elf.ELFDATA2LSB, elf.EM_X86_64, interp)
}

func write(t *testing.T, mode os.FileMode, content string, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
	return file
}

// checkCode checks an error's exit code and words.
func checkCode(t *testing.T, what string, err error, code int, words string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %v, want exit code %d and %q", what, err, code, words)
	}
}

func TestReadImage(t *testing.T) {
	for _, c := range []struct {
		class   elf.Class
		data    elf.Data
		machine elf.Machine
		interp  string
		text    string
	}{
		{elf.ELFCLASS64, elf.ELFDATA2LSB, elf.EM_X86_64, "/lib64/ld-linux-x86-64.so.2", "x86-64, 64 bits"},
		{elf.ELFCLASS32, elf.ELFDATA2LSB, elf.EM_386, "/lib/ld-linux.so.2", "x86, 32 bits"},
		{elf.ELFCLASS64, elf.ELFDATA2LSB, elf.EM_AARCH64, "", "aarch64, 64 bits"},
		{elf.ELFCLASS64, elf.ELFDATA2MSB, elf.EM_S390, "/lib/ld64.so.1", "s390, 64 bits, big-endian"},
		{elf.ELFCLASS32, elf.ELFDATA2MSB, elf.EM_PPC, "/lib/ld.so.1", "ppc, 32 bits, big-endian"},
	} {
		b := makeELF(c.class, c.data, c.machine, c.interp)
		im, err := readImage(bytes.NewReader(b))
		if want := (image{c.class, c.data, c.machine, c.interp}); err != nil || im != want || im.String() != c.text {
			t.Errorf("%v, %v, want %v", im, err, want)
		}
		for n := range b {
			if im, err := readImage(bytes.NewReader(b[:n])); err == nil && im.interp != "" {
				t.Errorf("%v cut after %d of %d bytes is accepted", c.machine, n, len(b))
			}
		}
	}
	// Package debug/elf agrees about what this machine has.
	for _, path := range []string{"/bin/sh", "/proc/self/exe"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		im, err := readImage(f)
		if err != nil {
			t.Fatal(path, err)
		}
		e, err := elf.NewFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if im.machine != e.Machine || im.class != e.Class || slices.ContainsFunc(e.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) != (im.interp != "") {
			t.Errorf("%s: %v", path, im)
		}
	}
}

// Nonsense in a header neither panics nor costs memory.
func TestReadImageNonsense(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20000 {
		b := makeELF(elf.Class(1+r.IntN(2)), elf.Data(1+r.IntN(2)), elf.EM_X86_64, loader)
		for range 1 + r.IntN(4) {
			b[4+r.IntN(len(b)-4)] = byte(r.Uint32())
		}
		im, _ := readImage(bytes.NewReader(b))
		if len(im.interp) > maxInterp {
			t.Fatal(im)
		}
	}
}

func TestFind(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	write(t, 0o644, "", a, "x")
	x := write(t, 0o755, "", b, "x")
	write(t, 0o644, "", a, "only")
	if err := os.Mkdir(filepath.Join(a, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	search := a + ":/no/such/folder:" + b
	if p, err := Find("x", search); err != nil || p != x {
		t.Error(p, err)
	}
	if p, err := Find(x, ""); err != nil || p != x {
		t.Error(p, err)
	}
	if p, err := Find("sh", ""); err != nil || p != "/bin/sh" {
		t.Error(p, err)
	}
	t.Chdir(b)
	for _, search := range []string{"", ":" + a, a + ":", "."} {
		if p, err := Find("x", search); search != "" && (err != nil || p != "./x") {
			t.Errorf("PATH=%s: %q, %v", search, p, err)
		}
	}
	for _, c := range []struct {
		name string
		code int
		want string
	}{
		{"only", CodeCannotRun, "chmod +x"},
		{"dir", CodeNotFound, "no such program in PATH"},
		{"nothing", CodeNotFound, "nothing: no such program in PATH"},
		{"", CodeNotFound, "name a program"},
		{a, CodeCannotRun, "is a folder"},
		{a + "/only", CodeCannotRun, "chmod +x"},
		{a + "/nothing", CodeNotFound, "no such file"},
		{a + "/only/x", CodeNotFound, "no such file"},
	} {
		_, err := Find(c.name, search)
		checkCode(t, c.name, err, c.code, c.want)
	}
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	put := func(name, content string) string { return write(t, 0o755, content, dir, name) }
	prog := put("prog", string(makeNative(loader)))
	put("static", string(makeNative("")))
	me := user{os.Geteuid(), os.Getegid(), false}
	for _, c := range []struct {
		name, content string
		file          string // whose image counts
		argv          string // if it changes
		warning       string
		code          int
		err           string
	}{
		{name: "prog", file: prog},
		{name: "static", warning: "static is linked statically: LD_PRELOAD cannot reach it"},
		{name: "ld-linux-x86-64.so.2", content: string(makeNative(""))},
		{name: "musl", content: string(makeNative("/lib/ld-musl-x86_64.so.1")), code: CodeCannotRun, err: "is linked with musl"},
		{name: "alien", content: string(makeNative("/no/such/ld.so")), code: CodeNotFound, err: "needs the loader /no/such/ld.so"},
		{name: "cut", content: string(makeNative(loader)[:100]), code: CodeCannotRun, err: "cut off"},
		{name: "data", content: "\x00\x01\x02", code: CodeCannotRun, err: "neither a program nor a script"},
		{name: "text", content: "echo hello\n", argv: "sh " + dir + "/text a b", file: dir + "/text"},
		{name: "empty", content: "", argv: "sh " + dir + "/empty a b", file: dir + "/empty"},
		{name: "script", content: "#!" + prog + " -x\n", file: prog},
		{name: "spaces", content: "#! \t" + prog + "\t -x \nrest", file: prog},
		{name: "nested", content: "#!" + dir + "/script\n", file: prog},
		{name: "loop", content: "#!" + dir + "/loop\n"},
		{name: "byenv", content: "#!/usr/bin/env prog\n", file: prog},
		{name: "byenvS", content: "#!/usr/bin/env -S A=b prog -x\n", file: prog},
		{name: "nobody", content: "#!/usr/bin/env nobody-has-this\n", code: CodeNotFound, err: "nobody-has-this: no such program in PATH"},
		{name: "dos", content: "#!/bin/sh\r\necho\r\n", code: CodeNotFound, err: `is "#!/bin/sh\r", and`},
		{name: "gone", content: "#!/no/such/sh\n", code: CodeNotFound, err: "/no/such/sh: no such file"},
		{name: "bare", content: "#!\n", argv: "sh " + dir + "/bare a b", file: dir + "/bare"},
		{name: "static-script", content: "#!" + dir + "/static\n", warning: "static is linked statically"},
	} {
		if c.content != "" || c.name == "empty" {
			put(c.name, c.content)
		}
		p, err := Inspect([]string{c.name, "a", "b"}, dir+":/usr/bin:/bin", me)
		if c.err != "" {
			checkCode(t, c.name, err, c.code, c.err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if c.argv == "" {
			c.argv = c.name + " a b"
			if p.Path != filepath.Join(dir, c.name) {
				t.Errorf("%s: path %s", c.name, p.Path)
			}
		}
		if strings.Join(p.Argv, " ") != c.argv || c.file != "" && p.file != c.file || !strings.Contains(p.Warning, c.warning) || c.warning == "" && p.Warning != "" {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
}

// A program that changes its user gets no library from its loader.
func TestInspectSecure(t *testing.T) {
	dir := t.TempDir()
	me := user{os.Geteuid(), os.Getegid(), false}
	other := user{me.uid + 1, me.gid + 1, false}
	held := user{me.uid + 1, me.gid + 1, true}
	var fsys unix.Statfs_t
	if unix.Statfs(dir, &fsys) == nil && fsys.Flags&unix.ST_NOSUID != 0 {
		t.Skip(dir + " is mounted nosuid")
	}
	native := string(makeNative(loader))
	for _, c := range []struct {
		name string
		mode os.FileMode
		u    user
		err  string
	}{
		{"plain", 0o755, other, ""},
		{"suid", 0o755 | os.ModeSetuid, me, ""},
		{"suid", 0o755 | os.ModeSetuid, held, ""},
		{"suid", 0o755 | os.ModeSetuid, other, "(set-uid), so its loader ignores LD_PRELOAD"},
		{"sudo", 0o755 | os.ModeSetuid, other, "put it before softnic, as `sudo softnic exec -- CMD`"},
		{"sgid", 0o755 | os.ModeSetgid, me, ""},
		{"sgid", 0o755 | os.ModeSetgid, other, "(set-gid), so its loader ignores LD_PRELOAD"},
		{"locking", 0o745 | os.ModeSetgid, other, ""}, // set-gid without execution by the group means something else
	} {
		path := write(t, c.mode, native, dir, c.name)
		_, err := Inspect([]string{path}, "", c.u)
		if c.err != "" {
			checkCode(t, c.name, err, CodeCannotRun, c.err)
		} else if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}

	// Version 2 with CAP_NET_RAW permitted and effective.
	path := write(t, 0o755, native, dir, "caps")
	if err := unix.Setxattr(path, "security.capability", []byte{1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0); err != nil {
		t.Skipf("no capabilities can be set here: %v", err)
	}
	_, err := Inspect([]string{path}, "", user{uid: 1234, gid: 1234})
	checkCode(t, "caps", err, CodeCannotRun, "has file capabilities, so its loader ignores LD_PRELOAD")
	if _, err := Inspect([]string{path}, "", user{}); err != nil {
		t.Errorf("as root: %v", err)
	}
}

func TestTakes(t *testing.T) {
	lib := image{class: elf.ELFCLASS64, data: elf.ELFDATA2LSB, machine: elf.EM_X86_64}
	for _, c := range []struct {
		im  image
		err string
	}{
		{image{}, ""}, // it could not be read
		{image{elf.ELFCLASS64, elf.ELFDATA2LSB, elf.EM_X86_64, loader}, ""},
		{image{elf.ELFCLASS32, elf.ELFDATA2LSB, elf.EM_386, loader}, "p is a program for x86, 32 bits, and softnic's library is for x86-64, 64 bits"},
		{image{elf.ELFCLASS32, elf.ELFDATA2LSB, elf.EM_X86_64, loader}, "for x86-64, 32 bits"},
		{image{elf.ELFCLASS64, elf.ELFDATA2LSB, elf.EM_AARCH64, loader}, "aarch64"},
	} {
		err := (&Program{file: "p", image: c.im}).takes(lib)
		if c.err != "" {
			checkCode(t, c.im.String(), err, CodeCannotRun, c.err)
		} else if err != nil {
			t.Error(err)
		}
	}
}
