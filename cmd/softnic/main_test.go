package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write the golden files")

// asProgram in the environment makes the test binary the program.
const asProgram = "SOFTNIC_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// patience is how long a program may take to say something.
const patience = 60 * time.Second

// program is softnic as a process of its own.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of stdout
	stderr bytes.Buffer
	ended  chan struct{}
	err    error // of Wait
}

// command prepares a program; start starts it.
func command(t *testing.T, args ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(exe, args...), lines: make(chan string, 1000), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = &p.stderr
	return p
}

func (p *program) start() *program {
	p.t.Helper()
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		close(p.lines)
		p.err = p.cmd.Wait()
	}()
	p.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	return command(t, args...).start()
}

// line returns the next line of stdout, and fails the test where there is none.
func (p *program) line() string {
	p.t.Helper()
	select {
	case l, ok := <-p.lines:
		if ok {
			return l
		}
		<-p.ended
		p.t.Fatalf("%v ended: %v: %s", p.cmd.Args[1:], p.err, p.stderr.String())
	case <-time.After(patience):
		p.t.Fatalf("%v says nothing", p.cmd.Args[1:])
	}
	return ""
}

// wait waits for the end and returns the exit code, the rest of stdout, and stderr.
func (p *program) wait() (code int, stdout, stderr string) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%v does not end", p.cmd.Args[1:])
	}
	for l := range p.lines {
		stdout += l + "\n"
	}
	return p.cmd.ProcessState.ExitCode(), stdout, p.stderr.String()
}

// softnic runs a command line in this process.
func softnic(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// checkError checks that a failure is one line on stderr with the words wanted, and the exit code.
func checkError(t *testing.T, code, wantCode int, stderr, want string) {
	t.Helper()
	if code != wantCode || !strings.HasPrefix(stderr, "softnic: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
		t.Errorf("exit code %d, %q\nwant %d and a line with %q", code, stderr, wantCode, want)
	}
}

// golden compares with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got; go test -update writes it):\n%s", path, d)
	}
}

// TestCommands compares the tree of commands and flags with what is documented to exist.
func TestCommands(t *testing.T) {
	var b strings.Builder
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		fmt.Fprintf(&b, "%s\n", c.CommandPath())
		for l := range strings.Lines(c.LocalFlags().FlagUsages()) {
			name, text, ok := strings.Cut(strings.TrimSpace(l), "   ")
			if text = strings.TrimSpace(text); !ok || text == "" {
				t.Errorf("%s: no description: %q", c.CommandPath(), l)
			}
			if i := strings.LastIndex(text, "(default "); i >= 0 {
				name += " " + text[i:]
			}
			fmt.Fprintf(&b, "    %s\n", name)
		}
		if c.Short == "" {
			t.Errorf("%s: no description", c.CommandPath())
		}
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(newRoot())
	golden(t, "commands.txt", b.String())
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"run", "-h"}, {"pingpong", "rc", "-h"}, {"demo", "-h"}, {"link", "-h"}, {"replay", "-h"}, {"completion", "bash"}} {
		code, out, errs := softnic(args...)
		if code != 0 || errs != "" || len(out) < 100 {
			t.Errorf("%q: exit code %d, %q, %d bytes", args, code, errs, len(out))
		}
		if n := strings.Count(out, "\n"); n > 50 && args[0] != "completion" {
			t.Errorf("%q: %d lines are more than a screen", args, n)
		}
	}
	_, out, _ := softnic()
	golden(t, "help.txt", out)
	if code, out, errs := softnic("version"); code != 0 || errs != "" || !strings.HasPrefix(out, "softnic ") {
		t.Error(code, out, errs)
	}
	if code, out, _ := softnic("version", "-j"); code != 0 || !strings.HasPrefix(out, `{"arch":"`) {
		t.Error(code, out)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"lnk", "`softnic` does not know \"lnk\": did you mean `softnic link`?"},
		{"bogus", "`softnic` does not know \"bogus\": see `softnic --help`"},
		{"--bogus", "unknown flag: --bogus: see `softnic --help`"},
		{"run --bogus", "see `softnic run --help`"},
		{"run --tap", "flag needs an argument: --tap"},
		{"run extra", "`softnic run` does not know \"extra\""},
		{"run", "--tap NAME makes a network interface"},
		{"link shw", "did you mean `softnic link show`?"},
		{"link show rxe_softnic0 more", "does not know"},
		{"dev show x", "does not know \"x\""},
		{"statistic show qp", "does not know \"qp\""},
		{"resource show qp qp", "does not know \"qp\""},
		{"pingpong", "`softnic pingpong rc` or `softnic pingpong ud`"},
		{"pingpong uc", "does not know \"uc\""},
		{"pingpong rc host host", "does not know \"host\""},
		{"pingpong rc -s many", "invalid argument \"many\" for \"-s, --size\" flag: invalid syntax: see"},
		{"pingpong ud -m 1024", "unknown shorthand flag: 'm'"},
		{"pingpong rc", "--udp ADDR"},
		{"demo fast", "does not know \"fast\""},
		{"demo --seed -1", "invalid argument"},
		{"version -v", "unknown shorthand flag"},
		{"impair add", "which rule? as `softnic impair add tx drop=1%`"},
		{"impair add tx dorp", "\"dorp\": want an action (drop, duplicate, delay=TIME,"},
		{"impair del", "which rule? its ID, as `softnic impair show` has it, or all"},
		{"impair shw", "did you mean `softnic impair show`?"},
		{"capture", "where to? -w FILE, or -w - for stdout"},
		{"capture -w x -W 3", "-W 3 goes with -C"},
		{"capture -w - -C 3", "-C makes files: name one with -w FILE"},
		{"capture -w x -C -3", "counted from 1 on"},
		{"capture -w x --qp 0", "--qp 0: want the number of a queue pair of this NIC"},
		{"capture -w x --peer nobody", "--peer nobody: want an address, as 10.0.0.2"},
		{"capture -w x --opcode SEDN", "no opcode is called \"SEDN\"; want SEND_FIRST"},
		{"capture -w x --duration -1s", "--duration -1s has passed"},
		{"capture -w x -c -1", "invalid argument"},
		{"run --udp 127.0.0.1 --capture-size 5", "--capture-size 5 goes with --capture FILE"},
		{"run --udp 127.0.0.1 --capture x --capture-files 5", "--capture-files 5 goes with --capture-size"},
		{"bench", "`softnic bench bw write`, `softnic bench lat send`"},
		{"bench wb", "did you mean `softnic bench bw`?"},
		{"bench bw", "write, read, send or atomic"},
		{"bench bw wriet --two", "`softnic bench bw` needs to know which of"},
		{"pingpong --udp 127.0.0.1", "`softnic pingpong` needs to know which of rc, ud, before the flags"},
		{"bench lat cas", "does not know \"cas\""},
		{"bench bw write -s 0", "-s 0: want 1 to"},
		{"bench bw write -u 32", "-u 32: want 0 to 31"},
		{"bench bw write -D 2", "missing unit in duration"},
		{"bench bw write -D 2s -n 3", "-D and -n: the one or the other"},
		{"bench bw write --block -e", "--poll, --block and --events: one of them"},
		{"bench bw write --poll=false", "--block or --events"},
		{"bench bw write --link wire", "--link wire: want udp, pipe or tap"},
		{"bench bw write --link pipe --two", "--two --link pipe: memory is within one process"},
		{"bench bw write --udp 127.0.0.1", "--udp goes with HOST"},
		{"bench bw write host", "--udp ADDR uses an address of this host"},
		{"bench bw write --two host", "--link and --two go without HOST"},
		{"bench bw write -p 0 --udp 127.0.0.1 host", "-p 0: want 1 to 65535"},
		{"bench bw write h1 h2", "does not know \"h2\""},
		{"bench bw atomic -s 8", "unknown shorthand flag: 's'"},
		{"bench lat write -q 2", "unknown shorthand flag: 'q'"},
		{"bench serve -p -1 --udp 127.0.0.1", "-p -1: want 0 to 65535"},
		{"bench serve", "--udp ADDR"},
		{"run --config /nowhere.toml", "--config /nowhere.toml: there is no such file"},
	} {
		code, out, errs := softnic(strings.Fields(c.args)...)
		checkError(t, code, exitUsage, errs, c.want)
		if out != "" {
			t.Errorf("%s: on stdout: %q", c.args, out)
		}
	}
}

// socket returns a path for a daemon's socket: short, because a socket's path is limited.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, _ := os.ReadDir(dir)
		if len(left) != 0 {
			t.Errorf("left behind beside the socket: %v", left)
		}
		os.RemoveAll(dir)
	})
	return filepath.Join(dir, "a.sock")
}

// nicAddr returns an address of the loopback network where the RoCE port can be had. Each test has its own,
// and other packages have others.
func nicAddr(t *testing.T, last int) string {
	t.Helper()
	a := fmt.Sprintf("127.0.18.%d", last)
	c, err := net.ListenPacket("udp4", a+":4791")
	if err != nil {
		t.Skipf("UDP port 4791 cannot be had here: %v", err)
	}
	c.Close()
	return a
}

// freeTCP returns a TCP port that nobody has.
func freeTCP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

func TestNoDaemon(t *testing.T) {
	path := socket(t)
	for _, object := range []string{"dev", "link", "statistic", "resource", "impair"} {
		for _, verb := range [][]string{{}, {"show"}, {"show", "-j"}} {
			args := slices.Concat([]string{object}, verb, []string{"--socket", path})
			code, out, errs := softnic(args...)
			checkError(t, code, exitFailure, errs, "no softnic runs on "+path+".ctl: start one with `softnic run`")
			if out != "" {
				t.Errorf("on stdout: %q", out)
			}
		}
	}
	code, _, errs := softnic("impair", "del", "", "--socket", path) // as an empty variable in a script is
	checkError(t, code, exitUsage, errs, "which rule? its ID")
	file := filepath.Join(t.TempDir(), "x")
	for _, args := range [][]string{{"impair", "add", "tx", "drop"}, {"impair", "del", "1"}, {"capture", "-w", file}} {
		code, _, errs := softnic(append(args, "--socket", path)...)
		checkError(t, code, exitFailure, errs, "no softnic runs on "+path+".ctl: start one with `softnic run`")
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("a file without a capture")
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// TestOutputFails: who cannot be told is told so on stderr, whatever the command.
func TestOutputFails(t *testing.T) {
	for _, args := range []string{"version", "version -j", "--help", "trace --rules", "demo -o " + filepath.Join(t.TempDir(), "x.pcapng")} {
		var errs bytes.Buffer
		code := run(strings.Fields(args), full{}, &errs)
		checkError(t, code, exitUsage, errs.String(), "standard output: no space left on device")
	}
}
