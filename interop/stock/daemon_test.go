//go:build linux

package stock

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// softnic is the program under test, once needStock has returned.
var softnic string

// python is Debian's: another one in PATH has no pyverbs.
const python = "/usr/bin/python3"

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

var built string // folder of a softnic that was built here

var build = sync.OnceValue(func() error {
	if softnic = os.Getenv("SOFTNIC_BIN"); softnic != "" {
		_, err := os.Stat(softnic)
		return err
	}
	dir, err := os.MkdirTemp("", "stockbin")
	if err != nil {
		return err
	}
	built, softnic = dir, filepath.Join(dir, "softnic")
	if err := os.Chmod(dir, 0o755); err != nil { // for programs of other users
		return err
	}
	for _, argv := range [][]string{
		{"make", "-s", "uverbs/preload/lib/libsoftnic.so"},
		{"go", "build", "-o", softnic, "./cmd/softnic"},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", argv, err, out)
		}
	}
	return nil
})

// needStock skips the test unless it was asked for, and fails it when a program is missing.
func needStock(t testing.TB) {
	t.Helper()
	if os.Getenv("SOFTNIC_STOCK") != "1" {
		t.Skip("runs stock programs where SOFTNIC_STOCK=1 is set: bash interop/run.sh does that")
	}
	for _, name := range []string{"ibv_devices", "ibv_rc_pingpong", "ib_send_bw", "setpriv", "unshare", python} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: install ibverbs-utils ibverbs-providers perftest python3-pyverbs util-linux", err)
		}
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
}

// long reports whether there is time for everything.
func long() bool { return os.Getenv("SOFTNIC_LONG") == "1" }

// daemon is a running softnic.
type daemon struct {
	*proc
	t      testing.TB
	addr   string
	socket string
}

// daemonOptions say how a daemon is started; the zero value is as this user, with a socket in a folder of its own.
type daemonOptions struct {
	options
	dir   string // of the socket
	flags []string
}

var lastAddress = os.Getpid()

// address returns a loopback address whose RoCE port nobody has.
func address(t testing.TB) string {
	t.Helper()
	for range 1000 {
		lastAddress++
		a := fmt.Sprintf("127.%d.%d.%d", 64+lastAddress>>14&63, lastAddress>>7&127, 1+lastAddress&127)
		if c, err := net.ListenPacket("udp4", a+":4791"); err == nil {
			c.Close()
			return a
		}
	}
	t.Fatal("no address for a daemon")
	return ""
}

// startDaemon starts a daemon in UDP mode on an address of its own, and waits until it is ready.
func startDaemon(t testing.TB, o daemonOptions) *daemon {
	t.Helper()
	if o.dir == "" {
		o.dir = openDir(t)
	}
	d := &daemon{t: t, addr: address(t)}
	d.socket = filepath.Join(o.dir, d.addr+".sock")
	d.proc = start(t, o.options, append([]string{softnic, "run", "--udp", d.addr, "--socket", d.socket}, o.flags...)...)
	d.await(patience, "the line that says it is ready", func() bool { return strings.Contains(d.stdout.String(), "\n") })
	// Before it is killed: it has to end as documented, unless the test has ended it.
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon on %s: %s\n%v", d.addr, d.moved(nil), d.result())
		}
		if d.running() {
			d.stop()
		}
	})
	return d
}

// stop ends the daemon as a service manager does, and checks that it goes well and leaves nothing.
func (d *daemon) stop() {
	d.t.Helper()
	r := d.signal(syscall.SIGTERM)
	if r.Code != 0 || r.Stderr != "" {
		d.t.Errorf("the daemon ended badly: %v", r)
	}
	d.leftNothing()
}

func (d *daemon) leftNothing() {
	d.t.Helper()
	if left, _ := filepath.Glob(d.socket + "*"); len(left) != 0 {
		d.t.Errorf("the daemon left %v", left)
	}
}

// exec is the options with which a program runs on the daemon; prefix runs softnic.
func (d *daemon) exec(prefix ...string) options {
	return options{Prefix: append(append([]string{}, prefix...), softnic, "exec", "--socket", d.socket, "--")}
}

// counters are those of `softnic statistic show`.
type counters map[string]int64

func (d *daemon) counters() counters {
	d.t.Helper()
	var rows []map[string]any
	d.show(&rows, "statistic")
	c := counters{}
	for name, v := range rows[0] {
		if n, ok := v.(float64); ok && name != "port" {
			c[name] = int64(n)
		}
	}
	return c
}

// show asks the daemon over its control socket.
func (d *daemon) show(v any, object string) {
	d.t.Helper()
	cmd := exec.Command(softnic, object, "show", "-j", "--socket", d.socket)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	if err == nil {
		err = json.Unmarshal(out, v)
	}
	if err != nil {
		d.t.Fatalf("%s show: %v\n%s", object, err, out)
	}
}

// moved lists the counters that have changed since an earlier reading.
func (d *daemon) moved(before counters) string {
	if !d.running() {
		return "ended"
	}
	var l []string
	for name, v := range d.counters() {
		if v != before[name] {
			l = append(l, fmt.Sprintf("%s=%d", name, v-before[name]))
		}
	}
	return strings.Join(l, " ")
}

// free waits until no program has anything on the daemon.
func (d *daemon) free() {
	d.t.Helper()
	var left []any
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if d.show(&left, "resource"); len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			d.t.Fatalf("%v after the last program the daemon still has %v", patience, left)
		}
	}
}

// modes runs f with both programs on one daemon, and on two.
func modes(t *testing.T, o daemonOptions, f func(t *testing.T, a, b *daemon)) {
	t.Run("one", func(t *testing.T) {
		d := startDaemon(t, o)
		f(t, d, d)
	})
	t.Run("two", func(t *testing.T) { f(t, startDaemon(t, o), startDaemon(t, o)) })
}
