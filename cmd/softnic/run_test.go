//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softnic/softnic/control"
)

// stop ends a daemon as a service manager does.
func stop(t *testing.T, p *program, sig os.Signal) {
	t.Helper()
	begin := time.Now()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	code, out, errs := p.wait()
	if code != 0 || out != "" || errs != "" {
		t.Errorf("after %v: exit code %d, %q, %q", sig, code, out, errs)
	}
	if d := time.Since(begin); d > 2*time.Second && !raceEnabled {
		t.Errorf("it took %v", d)
	}
}

func TestRun(t *testing.T) {
	addr, path, dir := nicAddr(t, 1), socket(t), t.TempDir()
	capture := filepath.Join(dir, "a.pcapng")
	p := start(t, "run", "--udp", addr, "--socket", path, "--capture", capture, "--packet-log", filepath.Join(dir, "a.jsonl"))
	want := fmt.Sprintf("rxe_softnic0 on udp %s:4791: %s, active MTU 4096; control %s.ctl", addr, addr, path)
	if l := p.line(); l != want {
		t.Errorf("%q, want %q", l, want)
	}
	fi, err := os.Lstat(path + control.Suffix)
	if err != nil || fi.Mode().Type() != fs.ModeSocket || fi.Mode().Perm() != 0o600 {
		t.Errorf("control socket: %v, %v", fi, err)
	}

	show := func(args ...string) string {
		t.Helper()
		code, out, errs := softnic(append(args, "--socket", path)...)
		if code != 0 || errs != "" {
			t.Errorf("%q: exit code %d, %q", args, code, errs)
		}
		return out
	}
	match := func(got, want string) {
		t.Helper()
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
	for _, verb := range [][]string{{"dev"}, {"dev", "show"}} {
		match(show(verb...), `^0: rxe_softnic0: node_type ca fw \S+ node_guid 0000:7fff:fe00:1201 sys_image_guid 0000:7fff:fe00:1201\n$`)
	}
	match(show("link"), `^link rxe_softnic0/1 state ACTIVE physical_state LINK_UP netdev lo\d?\n    on udp `+addr+`:4791 mtu \d+ active_mtu 4096 .*ip_id (un)?verified\n`+
		`    gid 0 fe80::7fff:fe00:1201 RoCE v2\n    gid 1 ::ffff:`+addr+` RoCE v2\n    dropped none\n$`)
	match(show("statistic", "show", "link"), `^link rxe_softnic0/1 sent_pkts 0 rcvd_pkts 0 duplicate_request 0 .*\n$`)
	match(show("statistic", "qp", "show"), `^$`)
	match(show("statistic", "qp", "-j"), `^\[\]\n$`)
	match(show("resource", "show", "qp"), `^$`)
	match(show("resource", "show", "qp", "-j"), `^\[\]\n$`)

	// Nonsense on the RoCE port is dropped and counted, and the NIC lives on.
	conn, err := net.Dial("udp4", addr+":4791")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, b := range [][]byte{{0}, []byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 100), append([]byte{4, 0x10, 0xff, 0xff}, make([]byte, 96)...), make([]byte, 9000)} {
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	// The last one is longer than any RoCE packet.
	statistic := func() map[string]uint64 {
		var l []map[string]any
		m := map[string]uint64{}
		if err := json.Unmarshal([]byte(show("statistic", "-j")), &l); err != nil || len(l) != 1 {
			t.Fatal(l, err)
		}
		for k, v := range l[0] {
			if f, ok := v.(float64); ok {
				m[k] = uint64(f)
			}
		}
		return m
	}
	var m map[string]uint64
	for end := time.Now().Add(patience); ; {
		if m = statistic(); m["rcvd_pkts"] >= 4 && m["link_rx_truncated"] >= 1 || runtime.GOOS != "linux" && m["rcvd_pkts"] >= 5 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("counters %v", m)
		}
	}
	if m["drop_malformed"]+m["drop_icrc"]+m["drop_transport-version"]+m["drop_reserved-opcode"] != m["rcvd_pkts"] || m["drop_malformed"] == 0 || m["drop_icrc"] == 0 {
		t.Errorf("counters %v", m)
	}
	match(show("link"), `\n    dropped malformed \d+ icrc \d+\n$`)

	// Neither another one on the socket nor one on the address.
	code, out, errs := start(t, "run", "--udp", nicAddr(t, 2), "--socket", path).wait()
	checkError(t, code, exitFailure, errs, fmt.Sprintf("softnic (pid %d, udp %s:4791) runs on %s.ctl already", p.cmd.Process.Pid, addr, path))
	if out != "" {
		t.Error(out)
	}
	other := socket(t)
	code, _, errs = start(t, "run", "--udp", addr, "--socket", other).wait()
	checkError(t, code, exitFailure, errs, "port 4791 on "+addr+" is taken by ")
	if runtime.GOOS == "linux" && !strings.Contains(errs, fmt.Sprintf("(pid %d)", p.cmd.Process.Pid)) {
		t.Errorf("by whom? %q", errs)
	}

	stop(t, p, syscall.SIGTERM)
	if _, err := os.Lstat(path + control.Suffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if fi, err := os.Stat(capture); err != nil || fi.Size() < 1000 {
		t.Errorf("capture: %v, %v", fi, err)
	}
}

// TestRunAgain starts daemons where one was killed, and where one ended by Ctrl-C.
func TestRunAgain(t *testing.T) {
	addr, path := nicAddr(t, 3), socket(t)
	p := start(t, "run", "--udp", addr, "--socket", path)
	p.line()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.wait()
	if _, err := os.Lstat(path + control.Suffix); err != nil {
		t.Fatalf("a killed process left no socket: %v", err)
	}
	for range 2 {
		p = start(t, "run", "--udp", addr, "--socket", path)
		p.line()
		if code, out, errs := softnic("dev", "--socket", path); code != 0 || out == "" {
			t.Error(code, errs)
		}
		stop(t, p, syscall.SIGINT)
	}
}

// TestRunDefaultSocket uses no --socket.
func TestRunDefaultSocket(t *testing.T) {
	addr := nicAddr(t, 4)
	path := socket(t)
	dir := filepath.Dir(path)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	p := start(t, "run", "--udp", addr)
	if l, want := p.line(), filepath.Join(dir, "softnic.sock.ctl"); !strings.HasSuffix(l, "; control "+want) {
		t.Errorf("%q, want %q", l, want)
	}
	if code, out, errs := softnic("link", "show"); code != 0 || !strings.HasPrefix(out, "link rxe_softnic0/1 ") {
		t.Error(code, out, errs)
	}
	stop(t, p, syscall.SIGTERM)

	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", dir)
	p = start(t, "run", "--udp", addr)
	own := filepath.Join(dir, fmt.Sprintf("softnic-%d", os.Getuid()))
	if l, want := p.line(), filepath.Join(own, "softnic.sock.ctl"); !strings.HasSuffix(l, "; control "+want) {
		t.Errorf("%q, want %q", l, want)
	}
	if code, _, errs := softnic("link", "show"); code != 0 {
		t.Error(errs)
	}
	stop(t, p, syscall.SIGTERM)
	if err := os.Remove(own); err != nil {
		t.Errorf("the folder is not empty: %v", err)
	}
}

// A mistake leaves nothing behind.
func TestRunMistakes(t *testing.T) {
	path := socket(t)
	for want, args := range map[string][]string{
		"192.0.2.77 is not an address of this host; have: ": {"--udp", "192.0.2.77"},
		"carries IP packets of up to":                       {"--udp", "127.0.18.5", "--mtu", "100000"},
		"--capture: open ":                                  {"--udp", "127.0.18.5", "--capture", "/no/such/folder/x"},
		"use a shorter --socket PATH":                       {"--udp", "127.0.18.5", "--socket", "/tmp/" + strings.Repeat("x", 100)},
		"no socket can be made in /no/such/folder":          {"--udp", "127.0.18.5", "--socket", "/no/such/folder/x"},
		"MTU 100000 is out of range":                        {"--tap", "sntest", "--mtu", "100000"},
	} {
		if runtime.GOOS != "linux" && args[0] == "--tap" {
			continue
		}
		code, out, errs := softnic(append([]string{"run", "--socket", path}, args...)...)
		checkError(t, code, exitFailure, errs, want)
		if out != "" {
			t.Errorf("on stdout: %q", out)
		}
	}
}
