//go:build linux

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// options say how a command is run; the zero value is: here, with this process's environment, for a minute at most.
type options struct {
	Netns  string        // network namespace; "": the initial one
	Prefix []string      // command that runs the command, as in softnic exec --
	Env    []string      // added to the environment
	Limit  time.Duration // 0: one minute
}

func (o options) argv(argv []string) []string {
	var full []string
	if o.Netns != "" {
		full = append(full, "ip", "netns", "exec", o.Netns)
	}
	full = append(full, o.Prefix...)
	return append(full, argv...)
}

func (o options) limit() time.Duration {
	if o.Limit == 0 {
		return time.Minute
	}
	return o.Limit
}

// result is what a finished command left.
type result struct {
	Argv           []string
	Stdout, Stderr string
	Code           int // -1: ended by a signal
	Took           time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("$ %s\n%s%s(exit code %d after %v)", strings.Join(r.Argv, " "), excerpt(r.Stdout), excerpt(r.Stderr), r.Code, r.Took.Round(time.Millisecond))
}

// excerpt is as much of a program's output as a test's log should have: the last lines, without the middle of long ones.
func excerpt(s string) string {
	const maxLines, maxLine = 40, 240
	lines := slices.Collect(strings.Lines(s))
	if n := len(lines); n > maxLines {
		lines = append([]string{fmt.Sprintf("[%d lines]\n", n-maxLines)}, lines[n-maxLines:]...)
	}
	for i, line := range lines {
		if n := len(line); n > maxLine {
			lines[i] = line[:maxLine/2] + fmt.Sprintf("[%d bytes]", n-maxLine) + line[n-maxLine/2:]
		}
	}
	s = strings.Join(lines, "")
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return s
}

// run runs a command that has to succeed and returns its standard output.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return runIn(t, options{}, append([]string{name}, args...)...)
}

// runIn is run with options.
func runIn(t testing.TB, o options, argv ...string) string {
	t.Helper()
	r := tool(t, o, argv...)
	if r.Code != 0 {
		t.Fatal(r)
	}
	return r.Stdout
}

// tidy is run for clean-up: a failure is reported and does not keep the rest from being cleaned.
func tidy(t testing.TB, name string, args ...string) {
	t.Helper()
	r, err := execute(options{}, name, args...)
	if err != nil || r.Code != 0 {
		t.Errorf("clean-up: %v %v", r, err)
	}
}

// tool runs a program to its end and returns what it said and its exit code, which is the caller's to judge. It fails
// the test when the program exceeds its time, and when it prints "invalid data": the stock ping-pong tools do that and
// still exit 0.
func tool(t testing.TB, o options, argv ...string) result {
	t.Helper()
	r, err := execute(o, argv[0], argv[1:]...)
	if err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	checkOutput(t, r)
	return r
}

func checkOutput(t testing.TB, r result) {
	t.Helper()
	if strings.Contains(r.Stdout, "invalid data") || strings.Contains(r.Stderr, "invalid data") {
		t.Errorf("the data was wrong: %v", r)
	}
}

func execute(o options, name string, args ...string) (result, error) {
	argv := o.argv(append([]string{name}, args...))
	ctx, cancel := context.WithTimeout(context.Background(), o.limit())
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	prepare(cmd, o)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	began := time.Now()
	err := cmd.Run()
	r := result{Argv: argv, Stdout: stdout.String(), Stderr: stderr.String(), Took: time.Since(began), Code: -1}
	if cmd.ProcessState != nil {
		r.Code = cmd.ProcessState.ExitCode()
	}
	if ctx.Err() != nil {
		return r, fmt.Errorf("did not end within %v", o.limit())
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	return r, err
}

// prepare puts a command into a process group of its own, so that what it starts can be ended with it.
func prepare(cmd *exec.Cmd, o options) {
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 2 * time.Second
}

// proc is a program in the background.
type proc struct {
	t      testing.TB
	argv   []string
	cmd    *exec.Cmd
	began  time.Time
	stdin  io.WriteCloser
	stdout output
	stderr output
	read   int // bytes of stdout that ReadJSON has consumed
	done   chan struct{}
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

// start starts a program in the background. When the test ends it is killed if it still runs, and its output is logged
// if the test has failed. options.Limit does not apply: Wait and Stop have limits of their own.
func start(t testing.TB, o options, argv ...string) *proc {
	t.Helper()
	argv = o.argv(argv)
	p := &proc{t: t, argv: argv, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{}), began: time.Now()}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	prepare(p.cmd, o)
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", argv[0], err)
	}
	go func() {
		p.cmd.Wait() // the exit code is in ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		if p.running() {
			syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
			<-p.done
		}
		if t.Failed() {
			t.Log(p.result())
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

// Wait waits for the program to end by itself.
func (p *proc) Wait(limit time.Duration) result {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.t.Fatalf("did not end within %v: %v", limit, p.result())
	}
	r := p.result()
	checkOutput(p.t, r)
	return r
}

// Stop sends the signal and waits for the program to end.
func (p *proc) Stop(sig syscall.Signal, limit time.Duration) result {
	p.t.Helper()
	if !p.running() {
		p.t.Fatalf("ended before it was stopped: %v", p.result())
	}
	syscall.Kill(p.cmd.Process.Pid, sig)
	return p.Wait(limit)
}

// await polls for a condition that the running program is to bring about.
func (p *proc) await(limit time.Duration, what string, cond func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(limit)
	for !cond() {
		if !p.running() && !cond() {
			p.t.Fatalf("ended before %s: %v", what, p.result())
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("waited %v for %s: %v", limit, what, p.result())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// WaitListen waits until somebody in the program's network namespace listens on the TCP port.
func (p *proc) WaitListen(port int) {
	p.t.Helper()
	local := fmt.Sprintf(":%04X", port)
	p.await(patience, fmt.Sprintf("TCP port %d to listen", port), func() bool {
		for _, table := range []string{"tcp", "tcp6"} {
			for line := range strings.Lines(sysfs(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, table))) {
				// sl local_address rem_address st …; 0A is LISTEN
				if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == "0A" {
					return true
				}
			}
		}
		return false
	})
}

// WaitOutput waits until the program has printed the text, on standard output or error.
func (p *proc) WaitOutput(text string) {
	p.t.Helper()
	p.await(patience, fmt.Sprintf("output %q", text), func() bool {
		return strings.Contains(p.stdout.String(), text) || strings.Contains(p.stderr.String(), text)
	})
}

// WriteJSON sends v as one line to the program's standard input.
func (p *proc) WriteJSON(v any) {
	p.t.Helper()
	line, err := json.Marshal(v)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		p.t.Fatalf("%v: %v", err, p.result())
	}
}

// ReadJSON waits for the next line of standard output and decodes it into v.
func (p *proc) ReadJSON(v any, limit time.Duration) {
	p.t.Helper()
	var line string
	p.await(limit, "a line of output", func() bool {
		rest := p.stdout.String()[p.read:]
		end := strings.IndexByte(rest, '\n')
		if end < 0 {
			return false
		}
		line = rest[:end]
		p.read += end + 1
		return true
	})
	if err := json.Unmarshal([]byte(line), v); err != nil {
		p.t.Fatalf("not JSON: %q: %v", line, err)
	}
}

// startSoftnic starts cmd/softnic in the background; args are its own, such as "run", "--tap", "sn0". Stop it with
// stopSoftnic. If the test does not, the RDMA links on its TAP go first and it is killed then.
func startSoftnic(t testing.TB, o options, args ...string) *proc {
	t.Helper()
	if _, err := exec.LookPath("softnic"); err != nil {
		t.Fatal("there is no softnic in this lab: cmd/softnic was missing when run.sh started")
	}
	p := start(t, o, append([]string{"softnic"}, args...)...)
	for i, arg := range args {
		if arg == "--tap" && i+1 < len(args) {
			t.Cleanup(func() { delRDMALinks(t, args[i+1]) })
		}
	}
	return p
}

// stopSoftnic ends a daemon as a service manager does, and checks that it went as documented: exit code 0, no panic, no
// data race, and what it created gone.
func stopSoftnic(t testing.TB, p *proc) result {
	t.Helper()
	r := p.Stop(syscall.SIGTERM, patience)
	if r.Code != 0 {
		t.Errorf("softnic did not exit 0 on SIGTERM: %v", r)
	}
	for _, bad := range []string{"panic:", "DATA RACE", "fatal error:"} {
		if strings.Contains(r.Stderr, bad) {
			t.Errorf("softnic printed %q: %v", bad, r)
		}
	}
	for i, arg := range p.argv {
		if arg == "--tap" && i+1 < len(p.argv) && linkExists(p.argv[i+1]) {
			t.Errorf("softnic left its TAP %s behind", p.argv[i+1])
		}
	}
	return r
}
