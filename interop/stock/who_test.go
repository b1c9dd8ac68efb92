//go:build linux

package stock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// as runs a command as an ordinary user, if this one is root; else as it is.
func as(uid int) []string {
	if os.Getuid() != 0 {
		return nil
	}
	id := fmt.Sprint(uid)
	return []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps=-all", "--no-new-privs"}
}

// Users that need not exist.
const (
	one, another = 61001, 61002
)

// namespaces runs a command in a user and a pid namespace of its own, where it has no capabilities.
var namespaces = []string{"unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc"}

// needNamespaces skips where the kernel lets nobody make a user namespace.
func needNamespaces(t *testing.T) {
	t.Helper()
	r := tool(t, options{Prefix: append(as(one), namespaces...)}, "true")
	if r.Code == 0 {
		return
	}
	for _, file := range []string{"/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone"} {
		if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == "0" {
			t.Skipf("%s is 0: no user namespaces here", file)
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"); err == nil && strings.TrimSpace(string(b)) == "1" {
		t.Skip("AppArmor restricts user namespaces here")
	}
	t.Fatalf("no user namespace can be made: %v", r)
}

// short is what is run under circumstances.
func short() []pair {
	return []pair{pingpong("rc", 65536, 10), pingpong("rc", 4096, 20, "-e"), pingpong("ud", 1024, 20), perf("ib_write_bw", 65536, 50, "-n", "50")}
}

// TestOwnDaemon has an ordinary user who starts nothing but two programs in two terminals: softnic exec starts a
// daemon, which ends after its last program and leaves nothing.
func TestOwnDaemon(t *testing.T) {
	needStock(t)
	dir := openDir(t)
	home := filepath.Join(dir, "run")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(home, one, one); err != nil {
			t.Fatal(err)
		}
	}
	// The prefix with "env" sees no XDG_RUNTIME_DIR of the one who runs the tests.
	o := options{Prefix: append(append(as(one), "env", "XDG_RUNTIME_DIR="+home), softnic, "exec", "--")}
	for _, p := range short() {
		s, c := p.play(t, o, o)
		good(t, s, c)
	}
	eventually(t, "the daemon to end, and leave nothing", func() bool {
		left, err := os.ReadDir(home)
		return err == nil && len(left) == 0
	})
}

// TestUsers has programs of users who may do nothing, with a daemon of somebody else, and in namespaces where the
// daemon cannot see into their memory but through what they hand it.
func TestUsers(t *testing.T) {
	needStock(t)
	for _, c := range []struct {
		name             string
		daemon, programs []string
		namespaces       bool
	}{
		{"the same user", as(one), as(one), false},
		{"a daemon of another user", as(another), as(one), false},
		{"user and pid namespaces", as(one), append(as(one), namespaces...), true},
		{"user and pid namespaces, a daemon of another user", as(another), append(as(one), namespaces...), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.namespaces {
				needNamespaces(t)
			}
			d := startDaemon(t, daemonOptions{options: options{Prefix: c.daemon}, flags: []string{"--socket-mode", "0666"}})
			o := d.exec(c.programs...)
			r := tool(t, o, "sh", "-c", "grep -E '^(Uid|CapEff)' /proc/self/status; ibv_devices")
			if r.Code != 0 || !strings.Contains(r.Stdout, "rxe_softnic0") {
				t.Errorf("no device: %v", r)
			}
			if os.Getuid() == 0 && !regexp.MustCompile(`Uid:\s+61001\s[\s\S]*CapEff:\s+0+\n`).MatchString(r.Stdout) {
				t.Errorf("the program is not who it should be: %v", r)
			}
			for _, p := range short() {
				s, c := p.play(t, o, o)
				good(t, s, c)
			}
			d.free()
		})
	}
}

// TestClosed has a user who may not use a daemon.
func TestClosed(t *testing.T) {
	needStock(t)
	if os.Getuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	d := startDaemon(t, daemonOptions{})
	r := tool(t, d.exec(as(one)...), "ibv_devices")
	if r.Code == 0 || !strings.HasPrefix(r.Stderr, "softnic: "+d.socket+" belongs to another user") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("want one line that says why: %v", r)
	}
}

// TestContainer has a root with nothing in it but the program and the files of rdma-core that ibv_rc_pingpong needs. exec
// starts its own daemon inside. With /proc that is by root. Without, the program's memory cannot be handed over, and
// has to be reached in another way, for which the daemon must be one that may not trace everybody: an ordinary user's.
func TestContainer(t *testing.T) {
	needStock(t)
	if os.Getuid() != 0 {
		t.Skip("needs root, for chroot")
	}
	for _, proc := range []bool{true, false} {
		t.Run(map[bool]string{true: "with proc", false: "without proc"}[proc], func(t *testing.T) {
			root := container(t)
			enter := []string{"unshare", "--mount", "--root", root}
			if proc {
				enter = append(enter, "--mount-proc")
			} else {
				enter = append(enter, "--setuid", fmt.Sprint(one), "--setgid", fmt.Sprint(one))
			}
			o := options{Prefix: append(enter, "/softnic", "exec", "--"), Env: []string{"XDG_RUNTIME_DIR=", "TMPDIR="}}
			r := tool(t, o, "/bin/ibv_devinfo", "-v")
			if r.Code != 0 || !strings.Contains(r.Stdout, "rxe_softnic0") {
				t.Fatalf("no device: %v", r)
			}
			for _, p := range short()[:2] {
				p.argv[0] = "/bin/" + p.argv[0]
				s, c := p.play(t, o, o)
				good(t, s, c)
			}
			eventually(t, "the daemon to end, and leave no socket", func() bool {
				left, err := filepath.Glob(root + "/tmp/*/*.sock*")
				return err == nil && len(left) == 0
			})
		})
	}
}

var libraryPath = regexp.MustCompile(`(?m)(?:=> )?(/\S+) \(0x`)

// container makes a root with softnic, ibv_rc_pingpong and ibv_devinfo.
func container(t *testing.T) string {
	t.Helper()
	root := openDir(t)
	var files []string
	add := func(path string) {
		if !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	provider, _ := filepath.Glob("/usr/lib/*/libibverbs/librxe-rdmav*.so")
	if len(provider) != 1 {
		t.Fatalf("provider %v: install ibverbs-providers", provider)
	}
	roots := []string{provider[0]}
	for _, name := range []string{"ibv_rc_pingpong", "ibv_devinfo"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, path)
	}
	for _, file := range roots {
		out, err := exec.Command("ldd", file).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", file, err)
		}
		for _, m := range libraryPath.FindAllStringSubmatch(string(out), -1) {
			add(m[1])
		}
	}
	add(provider[0])
	add("/etc/libibverbs.d/rxe.driver")
	for _, file := range files {
		copyFile(t, file, filepath.Join(root, file))
	}
	copyFile(t, softnic, filepath.Join(root, "softnic"))
	for _, file := range roots[1:] {
		copyFile(t, file, filepath.Join(root, "bin", filepath.Base(file)))
	}
	for _, dir := range []string{"proc", "tmp", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o1777); err != nil {
		t.Fatal(err)
	}
	// Every container has it.
	if err := syscall.Mknod(filepath.Join(root, "dev/null"), syscall.S_IFCHR|0o666, 1<<8|3); err != nil {
		t.Fatal(err)
	}
	return root
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
