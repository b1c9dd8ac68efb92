package main

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softnic/softnic/control"
	"github.com/softnic/softnic/uverbs/preload"
)

// private gives the programs of a test a default socket of their own, and returns its path. In the
// end no daemon may be left, and nothing of it.
func private(t *testing.T) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(socket(t)), "softnic.sock")
	t.Setenv("XDG_RUNTIME_DIR", filepath.Dir(path))
	t.Setenv("LD_PRELOAD", "")
	t.Cleanup(func() {
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if left, _ := filepath.Glob(path + "*"); len(left) == 0 {
				return
			}
		}
	})
	return path
}

func needLibrary(t *testing.T) {
	t.Helper()
	if _, err := preload.Library(); err != nil {
		t.Skip(err)
	}
}

func TestExecMistakes(t *testing.T) {
	path := private(t)
	nobody := filepath.Join(t.TempDir(), "x")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"exec", exitUsage, "exec which program?"},
		{"exec --", exitUsage, "exec which program?"},
		{"exec --bogus ls", exitUsage, "see `softnic exec --help`"},
		{"exec --socket", exitUsage, "flag needs an argument"},
		{"exec no-such-program --bogus", 127, "no-such-program: no such program in PATH"},
		{"exec -- /etc/passwd", 126, "/etc/passwd cannot be executed"},
		{"exec --socket " + nobody + " true", exitFailure, "no softnic runs on " + nobody + ": start one with `softnic run"},
		{"exec --socket " + nobody + ".ctl -- true", exitFailure, "no softnic runs on " + nobody + ": start one with `softnic run"},
	} {
		code, out, errs := softnic(strings.Fields(c.args)...)
		checkError(t, code, c.code, errs, c.want)
		if out != "" {
			t.Errorf("%s: on stdout: %q", c.args, out)
		}
	}
	if left, _ := filepath.Glob(path + "*"); left != nil {
		t.Errorf("a mistake starts a daemon: %v", left)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", filepath.Dir(path))
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "softnic-"+strconv.Itoa(os.Getuid())), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := softnic("exec", "true")
	checkError(t, code, exitFailure, errs, "or set XDG_RUNTIME_DIR to a folder of your own")
	os.Remove(filepath.Join(filepath.Dir(path), "softnic-"+strconv.Itoa(os.Getuid())))
}

// TestExec starts a daemon by two programs at the same time. They end as they do without softnic, and it ends after them.
func TestExec(t *testing.T) {
	needLibrary(t)
	nicAddr(t, 5)
	path := private(t)
	p := start(t, "exec", "--", "sh", "-c", "trap 'echo got it; exit 7' TERM; echo $$ $PPID; while :; do sleep 0.01; done")
	q := start(t, "exec", "sh", "-c", "exit 3", "--socket", "none")
	if l, want := p.line(), strconv.Itoa(p.cmd.Process.Pid)+" "+strconv.Itoa(os.Getpid()); l != want {
		t.Errorf("pid and parent %s, want %s: it is not the same process", l, want)
	}
	if code, _, errs := q.wait(); code != 3 {
		t.Errorf("exit code %d, %s", code, errs)
	}
	code, out, errs := softnic("link")
	if code != 0 || !strings.Contains(out, "on udp 127.0.0.") {
		t.Error(code, out, errs)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := p.wait(); code != 7 || out != "got it\n" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	p = start(t, "exec", "sh", "-c", "kill -KILL $$")
	p.wait()
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !s.Signaled() || s.Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", p.cmd.ProcessState)
	}
	if _, err := os.Lstat(path + control.Suffix); err != nil {
		t.Errorf("the daemon has no patience: %v", err)
	}
}

// TestExecDevice has a stock program list the device, of a daemon that was started and of one that runs.
func TestExecDevice(t *testing.T) {
	needLibrary(t)
	if _, err := osexec.LookPath("ibv_devices"); err != nil {
		t.Skip("ibv_devices is not installed (apt-get install ibverbs-utils ibverbs-providers)")
	}
	private(t)
	other := socket(t)
	d := start(t, "run", "--udp", nicAddr(t, 6), "--socket", other, "--socket-mode", "0666")
	d.line()
	if fi, err := os.Lstat(other); err != nil || fi.Mode().Perm() != 0o666 {
		t.Errorf("socket: %v, %v", fi, err)
	}
	for _, c := range []struct {
		args []string
		guid string
	}{
		{[]string{"exec", "--", "ibv_devices"}, "00007ffffe0000"},
		{[]string{"exec", "--socket", other, "-v", "ibv_devices"}, "00007ffffe001206"},
		{[]string{"exec", "--", "sh", "-c", "ibv_devices"}, "00007ffffe0000"},
	} {
		code, out, errs := start(t, c.args...).wait()
		if code != 0 || !strings.Contains(out, "rxe_softnic0") || !strings.Contains(out, c.guid) {
			t.Errorf("%q: exit code %d, %s%s", c.args, code, out, errs)
		}
	}
	stop(t, d, syscall.SIGTERM)
}

func TestRunPermissions(t *testing.T) {
	for _, c := range []struct {
		mode, group string
		wantMode    os.FileMode
		wantGroup   int
		err         string
	}{
		{"", "", 0, -1, ""},
		{"0660", "", 0o660, -1, ""},
		{"666", "0", 0o666, 0, ""},
		{"", "4321", 0o660, 4321, ""},
		{"0600", "root", 0o600, 0, ""},
		{"9", "", 0, 0, "--socket-mode 9: want an octal number"},
		{"0060", "", 0, 0, "--socket-mode 0060"},
		{"01777", "", 0, 0, "--socket-mode 01777"},
		{"", "no such group", 0, 0, "--socket-group no such group: there is no such group"},
		{"", "-1", 0, 0, "there is no such group"},
	} {
		mode, group, err := (&runOptions{mode: c.mode, group: c.group}).permissions()
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q %q: %v", c.mode, c.group, err)
			}
		case err != nil || mode != c.wantMode || group != c.wantGroup:
			t.Errorf("%q %q: %v %d %v", c.mode, c.group, mode, group, err)
		}
	}
}
