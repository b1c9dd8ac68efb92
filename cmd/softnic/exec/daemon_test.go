//go:build linux

package exec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/control"
)

// The test binary is other programs too: `run` is a daemon without a NIC, `exec` is Run.
const (
	asProgram = "SOFTNIC_TEST_EXEC" // in the environment
	taken     = "SOFTNIC_TEST_TAKEN"
	mood      = "SOFTNIC_TEST_MOOD" // of a daemon
	socketDir = "SOFTNIC_TEST_DIR"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	err := errors.New("what?")
	switch {
	case slices.Contains(os.Args, detachFlag):
		err = Detach()
	case os.Args[1] == "run":
		err = fakeDaemon(os.Args[3], os.Args[5]) // --udp ADDR --socket PATH
	case os.Args[1] == "exec":
		err = Run(testOptions(os.Getenv(socketDir), os.Args[2:]...))
	}
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, "softnic: "+err.Error())
	code := 1
	if e := (*Error)(nil); errors.As(err, &e) {
		code = e.Code
	}
	os.Exit(code)
}

// fakeGrace is how long a fake daemon stays.
const fakeGrace = time.Second

func fakeDaemon(addr, path string) error {
	switch os.Getenv(mood) {
	case "broken":
		return errors.New("udp: no network today")
	case "panics":
		panic("a bug")
	case "hasty":
		fmt.Println("ready")
		RemoveLog(path)
		return nil
	case "silent":
		time.Sleep(patience)
		return nil
	}
	signal.Ignore(syscall.SIGPIPE) // as softnic run --until-idle
	ctl, err := control.Listen(path)
	if err != nil {
		return err
	}
	defer ctl.Close()
	if slices.Contains(strings.Split(os.Getenv(taken), ","), addr) {
		return fmt.Errorf("udp: port 4791 on %s is taken by other (pid 1): stop it", addr)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/daemon", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(control.Daemon{PID: os.Getpid(), Link: "udp " + addr})
	})
	go func() { _ = http.Serve(ctl, mux) }()
	time.Sleep(30 * time.Millisecond) // others see the control socket before that for programs
	os.Remove(path)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("ready")
	for n, change, end := 0, make(chan int), time.Now(); n > 0 || time.Since(end) < fakeGrace; {
		_ = l.SetDeadline(time.Now().Add(pause))
		if conn, err := l.Accept(); err == nil {
			n++
			go func() {
				_, _ = conn.Read(make([]byte, 1))
				conn.Close()
				change <- -1
			}()
		}
		select {
		case d := <-change:
			n, end = n+d, time.Now()
		default:
		}
	}
	RemoveLog(path)
	return nil
}

func testOptions(dir string, args ...string) Options {
	return Options{
		Args: args, Path: filepath.Join(dir, "a.sock"), Start: true, Stderr: os.Stderr,
		Present: func(path string) (*os.File, error) {
			conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err != nil {
				return nil, err
			}
			defer conn.Close()
			return conn.File()
		},
		LibraryPath: func(path string) string { return filepath.Join(filepath.Dir(path), "kept") },
		SysfsPath:   func(path string) string { return path + ".d/sys" },
		Library:     func() ([]byte, error) { return os.ReadFile("/bin/sh") },
		Folder:      func() (string, error) { return dir, nil },
	}
}

// place makes a folder for a socket, and this process one whose daemons are fake.
func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sn")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asProgram, "1")
	t.Setenv(socketDir, dir)
	t.Cleanup(func() {
		// A fake daemon that is not killed ends by itself.
		for end := time.Now().Add(5 * time.Second); answers(filepath.Join(dir, "a.sock.ctl")) && time.Now().Before(end); {
			time.Sleep(pause)
		}
		os.RemoveAll(dir)
	})
	return dir
}

// run runs Run as a process.
func run(dir string, args ...string) (code int, stdout, stderr string) {
	cmd := osexec.Command(ownFile(), append([]string{"exec"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// gone waits until no daemon is left, and checks that it left nothing.
func gone(t *testing.T, dir string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(pause) {
		left, _ := filepath.Glob(dir + "/a.sock*")
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("still there:", left)
		}
	}
}

func TestRunStartsDaemon(t *testing.T) {
	dir := place(t)
	code, out, errs := run(dir, "sh", "-c", `echo "$1"; tr '\0' '\n' </proc/$$/environ | grep -E '^(SYSFS_PATH|SOFTNIC_SOCKET|LD_PRELOAD)='
		ls -l /proc/$$/fd; ps -o pid= --ppid $$; echo; cat a.sock.log; exit 3`, "-", "--verbose")
	if code != 3 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"--verbose\n", "SYSFS_PATH=" + dir + "/a.sock.d/sys\n", "SOFTNIC_SOCKET=" + dir + "/a.sock\n", "LD_PRELOAD=" + dir + "/libsoftnic-", " 1000 -> socket:"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s\n%s", want, out, errs)
		}
	}
	gone(t, dir)
}

// The daemon is nobody's child, has a session of its own, and keeps no file of the one who started it.
func TestDaemonIsAlone(t *testing.T) {
	dir := place(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := osexec.Command(ownFile(), "exec", "sh", "-c", "echo; exec sleep 1000")
	cmd.ExtraFiles = []*os.File{w}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	o := testOptions(dir)
	var pid int
	if n, err := out.Read(make([]byte, 1)); n != 1 {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(o.whoServes(), "softnic (pid %d,", &pid); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(after)
	if f[1] == strconv.Itoa(cmd.Process.Pid) || f[3] != strconv.Itoa(pid) {
		t.Errorf("parent %s, session %s; program %d, daemon %d", f[1], f[3], cmd.Process.Pid, pid)
	}
	if wd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || wd != "/" {
		t.Error(wd, err)
	}
	_ = cmd.Process.Kill()
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := r.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the pipe is still open:", err)
	}
	if !answers(o.Path + control.Suffix) {
		t.Error("the daemon ended with its program, without grace")
	}
	gone(t, dir)
}

// A program that is killed while its daemon begins leaves nothing for long.
func TestKilledEarly(t *testing.T) {
	dir := place(t)
	for _, d := range []time.Duration{0, 5, 10, 20, 30, 50, 80} {
		cmd := osexec.Command(ownFile(), "exec", "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(d * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(pause) {
		if left, _ := filepath.Glob(dir + "/a.sock*"); !slices.ContainsFunc(left, func(p string) bool { return !strings.Contains(p, ".log") }) {
			return
		}
	}
	t.Error("a daemon is left")
}

// Many at the same time meet at one daemon.
func TestRunRace(t *testing.T) {
	dir := place(t)
	for range 3 {
		pids := make([]string, 8)
		var wg sync.WaitGroup
		for i := range pids {
			wg.Go(func() {
				code, out, errs := run(dir, "sh", "-c", "sleep 0.2; cat $SOFTNIC_SOCKET.pid 2>/dev/null; echo ok")
				pids[i] = fmt.Sprint(code, out, errs)
			})
		}
		wg.Wait()
		for _, p := range pids {
			if !strings.HasPrefix(p, "0") || !strings.Contains(p, "ok") {
				t.Error(p)
			}
		}
		gone(t, dir)
	}
}

func TestTakenAddress(t *testing.T) {
	dir := place(t)
	t.Setenv(taken, "127.0.0.1,127.0.0.2")
	o := testOptions(dir)
	conn, who, err := o.connect()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(who, ", udp 127.0.0.3)") {
		t.Error(who)
	}
	conn.Close()
	gone(t, dir)
	t.Setenv(taken, strings.Join(addresses, ","))
	if _, _, err := o.connect(); err == nil || err.Error() != "no daemon can be started: udp: port 4791 on 127.0.0.9 is taken by other (pid 1): stop it" {
		t.Error(err)
	}
	gone(t, dir)
}

func TestDaemonFails(t *testing.T) {
	dir := place(t)
	defer func(d time.Duration) { patience = d }(patience)
	o := testOptions(dir)
	for m, want := range map[string]string{
		"broken": "no daemon can be started: udp: no network today",
		"panics": "no daemon can be started: softnic run ended: panic: a bug",
		"hasty":  "5 daemons that were started on " + o.Path + " ended at once: try `softnic run --udp 127.0.0.1`",
		"silent": "no daemon can be started: softnic run does not get ready within 1s: see " + o.Path + ".log",
	} {
		patience = 10 * time.Second
		if m == "silent" {
			patience = time.Second
		}
		t.Setenv(mood, m)
		if _, _, err := o.connect(); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", m, err)
		}
		os.Remove(LogPath(o.Path))
		gone(t, dir)
	}
	o.Library = func() ([]byte, error) { return nil, errors.New("run make build") }
	if _, _, err := o.connect(); err == nil || err.Error() != "run make build" {
		t.Error(err)
	}
}

// What stands on the path of a socket that is somebody else's.
func TestConnectErrors(t *testing.T) {
	dir := place(t)
	defer func(d time.Duration) { patience = d }(patience)
	patience = 200 * time.Millisecond
	o := testOptions(dir)
	o.Start = false
	check := func(want string) {
		t.Helper()
		if _, _, err := o.connect(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	check(fmt.Sprintf("no softnic runs on %s: start one with `softnic run --udp ADDR --socket %s`", o.Path, o.Path))

	l, err := net.Listen("unix", o.Path)
	if err != nil {
		t.Fatal(err)
	}
	check("is not a socket that softnic made")
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	check("no softnic runs on") // a dead process left it

	ctl, err := control.Listen(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = http.Serve(ctl, http.NotFoundHandler()) }()
	defer ctl.Close()
	check("serves no programs there")
	o.Start = true
	check("serves no programs there")

	// A daemon that is about to end takes a connection that it never looks at.
	os.Remove(o.Path)
	p, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: o.Path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	defer p.Close()
	o.Present = func(path string) (*os.File, error) {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		time.Sleep(pause)
		return conn.File()
	}
	check("serves no programs there")
	o.Present = func(string) (*os.File, error) { return nil, &net.OpError{Op: "dial", Err: syscall.EACCES} }
	check("belongs to another user")
}

func TestRunErrors(t *testing.T) {
	dir := place(t)
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"nobody-has-this", CodeNotFound, "no such program in PATH"},
		{dir, CodeCannotRun, "is a folder"},
		{"/etc/passwd", CodeCannotRun, "chmod +x"},
	} {
		code, out, errs := run(dir, c.args)
		if code != c.code || out != "" || !strings.HasPrefix(errs, "softnic: ") || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit code %d, %q, %q", c.args, code, out, errs)
		}
	}
	o := testOptions(strings.Repeat("/x", 60), "sh")
	if err := Run(o); err == nil || !strings.Contains(err.Error(), "set XDG_RUNTIME_DIR to a folder with a shorter path") {
		t.Error(err)
	}
	if left, _ := filepath.Glob(dir + "/*"); left != nil {
		t.Error("left behind:", left)
	}
}

// Signals that were blocked or ignored are so in the program, and no others; limits are as they were. Of
// ignored signals the Go runtime keeps only these two.
func TestRunChangesNothing(t *testing.T) {
	dir := place(t)
	state := func(cmd *osexec.Cmd) string {
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	show := `grep -E '^Sig(Blk|Ign)|NoNewPrivs|Seccomp:|THP' /proc/self/status; grep -E 'open files|stack' /proc/self/limits; umask; pwd`
	for _, trap := range []string{"", "trap '' INT HUP; "} {
		plain := state(osexec.Command("sh", "-c", trap+"exec sh -c \"$0\"", show))
		within := state(osexec.Command("sh", "-c", trap+"exec \"$0\" exec sh -c \"$1\"", ownFile(), show))
		if plain != within {
			t.Errorf("%q: without:\n%swith exec:\n%s", trap, plain, within)
		}
	}
	gone(t, dir)
}

func TestInherit(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := inherit(w); err != nil {
		t.Fatal(err)
	}
	flags, err := unix.FcntlInt(1000, unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Error(flags, err)
	}
	unix.Close(1000)
}
