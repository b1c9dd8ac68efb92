//go:build linux

package stock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience is how long is waited for what takes no time, on a machine that has something else to do.
const patience = 30 * time.Second

// options say how a program is run. The zero value is: as this process is.
type options struct {
	Prefix []string // command that runs the command
	Env    []string // added to the environment
	Dir    string
}

// result is what a program left.
type result struct {
	Argv           []string
	Stdout, Stderr string
	Code           int // -1: it runs, or a signal ended it
	Took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("$ %s\n%s%s(exit code %d after %v)", strings.Join(r.Argv, " "), excerpt(r.Stdout), excerpt(r.Stderr), r.Code, r.Took.Round(time.Millisecond))
}

// excerpt is as much of a program's output as the log of a test should have.
func excerpt(s string) string {
	const most = 40
	lines := slices.Collect(strings.Lines(s))
	if n := len(lines); n > most {
		lines = append([]string{fmt.Sprintf("[%d lines]\n", n-most)}, lines[n-most:]...)
	}
	s = strings.Join(lines, "")
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return s
}

// output collects what a running program prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// proc is a program in the background.
type proc struct {
	t              testing.TB
	argv           []string
	cmd            *exec.Cmd
	began          time.Time
	stdin          io.WriteCloser
	stdout, stderr output
	read           int // bytes of stdout that ReadJSON has consumed
	done           chan struct{}
}

// start starts a program. When the test ends it is killed if it still runs.
func start(t testing.TB, o options, argv ...string) *proc {
	t.Helper()
	argv = append(slices.Clone(o.Prefix), argv...)
	p := &proc{t: t, argv: argv, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{}), began: time.Now()}
	p.cmd.Dir, p.cmd.Env = o.Dir, append(os.Environ(), o.Env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// A group of its own, so that what it starts can be ended with it; ended also when the test binary is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.WaitDelay = 2 * time.Second
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatalf("%v: %v", argv, err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		if p.running() {
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
			<-p.done
		}
	})
	return p
}

func (p *proc) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *proc) result() result {
	r := result{Argv: p.argv, Stdout: p.stdout.String(), Stderr: p.stderr.String(), Took: time.Since(p.began), Code: -1}
	if !p.running() {
		r.Code = p.cmd.ProcessState.ExitCode()
	}
	return r
}

// wait waits until the program has ended by itself.
func (p *proc) wait(limit time.Duration) result {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("did not end within %v: %v", limit, p.result())
	}
	return p.result()
}

// signal sends a signal and waits for the program to end.
func (p *proc) signal(sig syscall.Signal) result {
	p.t.Helper()
	if !p.running() {
		p.t.Fatalf("has ended already: %v", p.result())
	}
	_ = syscall.Kill(p.cmd.Process.Pid, sig)
	return p.wait(patience)
}

// await polls for a condition that the running program is to bring about.
func (p *proc) await(limit time.Duration, what string, cond func() bool) {
	p.t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(2 * time.Millisecond) {
		if !p.running() && !cond() {
			p.t.Fatalf("ended before %s: %v", what, p.result())
		}
		if time.Now().After(end) {
			p.t.Fatalf("waited %v for %s: %v", limit, what, p.result())
		}
	}
}

// listens waits until somebody listens on the TCP port.
func (p *proc) listens(port string) {
	p.t.Helper()
	var number int
	fmt.Sscan(port, &number)
	local := fmt.Sprintf(":%04X", number)
	p.await(patience, "TCP port "+port+" listens", func() bool {
		for _, table := range []string{"tcp", "tcp6"} {
			b, _ := os.ReadFile("/proc/net/" + table)
			for line := range strings.Lines(string(b)) {
				// sl local_address rem_address st …; 0A is LISTEN
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == "0A" {
					return true
				}
			}
		}
		return false
	})
}

// WriteJSON sends v as one line to the program's standard input.
func (p *proc) WriteJSON(v any) {
	p.t.Helper()
	line, err := json.Marshal(v)
	if err == nil {
		_, err = p.stdin.Write(append(line, '\n'))
	}
	if err != nil {
		p.t.Fatalf("%v: %v", err, p.result())
	}
}

// ReadJSON waits for the next line of standard output and decodes it into v.
func (p *proc) ReadJSON(v any, limit time.Duration) {
	p.t.Helper()
	var line string
	p.await(limit, "a line of output", func() bool {
		var whole bool
		line, _, whole = strings.Cut(p.stdout.String()[p.read:], "\n")
		return whole
	})
	p.read += len(line) + 1
	if err := json.Unmarshal([]byte(line), v); err != nil {
		p.t.Fatalf("not JSON: %q: %v", line, err)
	}
}

// tool runs a program to its end.
func tool(t testing.TB, o options, argv ...string) result {
	t.Helper()
	p := start(t, o, argv...)
	p.stdin.Close()
	return p.wait(2 * time.Minute)
}

// eventually polls until cond is true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

var lastPort atomic.Int32

// freePort returns a TCP port on which nobody listens, below those that the kernel gives to clients.
func freePort(t testing.TB) string {
	t.Helper()
	const first, count = 20000, 10000
	for range count {
		port := fmt.Sprint(first + (os.Getpid()*97+int(lastPort.Add(1)))%count)
		if l, err := net.Listen("tcp", ":"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no TCP port is free")
	return ""
}

// openDir makes a folder that every user can write to, with a short name: sockets go into it.
func openDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "stock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o1777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// jobFile is a file that outlives the test if SOFTNIC_JOB says where, in a folder of the test's own.
func jobFile(t testing.TB, name string) string {
	t.Helper()
	job := os.Getenv("SOFTNIC_JOB")
	if job == "" {
		return filepath.Join(t.TempDir(), name)
	}
	dir := filepath.Join(job, "stock", t.Name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}
