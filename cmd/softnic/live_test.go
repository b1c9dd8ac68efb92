//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"
)

// nonsense sends n datagrams to the RoCE port that are no packets.
func nonsense(t *testing.T, addr string, n int) {
	t.Helper()
	c, err := net.Dial("udp4", addr+":4791")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range n {
		if _, err := c.Write([]byte("this is no packet of any RDMA adapter")); err != nil {
			t.Fatal(err)
		}
	}
}

// frames reads a pcapng file and returns how many packets it has on each interface.
func frames(t *testing.T, path string) map[string]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	m := map[string]int{}
	for {
		_, ci, err := r.ReadPacketData()
		if err != nil {
			return m
		}
		i, err := r.Interface(ci.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		m[i.Name]++
	}
}

func TestImpairCommands(t *testing.T) {
	addr, path := nicAddr(t, 41), socket(t)
	p := start(t, "run", "--udp", addr, "--socket", path, "--impair", "rx delay=1ms")
	p.line()
	do := func(want int, args ...string) (string, string) {
		t.Helper()
		code, out, errs := softnic(append(args, "--socket", path)...)
		if code != want {
			t.Errorf("%q: exit code %d, %q", args, code, errs)
		}
		return out, errs
	}
	if out, _ := do(0, "impair", "add", "tx", "opcode=WRITE_MIDDLE", "drop"); out != "2: tx opcode=WRITE_MIDDLE drop\n" {
		t.Errorf("%q", out)
	}
	if out, _ := do(0, "impair", "add", "tx set=psn:+1", "-j"); out != `{"id":3,"rule":"tx set=psn:+1","matched":0,"hits":0}`+"\n" {
		t.Errorf("%q", out)
	}
	if out, _ := do(0, "impair"); out != "1: rx delay=1ms (hit 0 of 0)\n2: tx opcode=WRITE_MIDDLE drop (hit 0 of 0)\n3: tx set=psn:+1 (hit 0 of 0)\n" {
		t.Errorf("%q", out)
	}
	if out, errs := do(0, "impair", "del", "2"); out != "" || errs != "" {
		t.Errorf("%q, %q", out, errs)
	}
	_, errs := do(exitFailure, "impair", "del", "2")
	checkError(t, exitFailure, exitFailure, errs, "no rule has the ID 2: `softnic impair show` lists them")
	_, errs = do(exitFailure, "impair", "del", "x/y")
	checkError(t, exitFailure, exitFailure, errs, "no rule has the ID x/y")
	do(0, "impair", "del", "all")
	if out, _ := do(0, "impair", "show", "-j"); out != "[]\n" {
		t.Errorf("%q", out)
	}
	stop(t, p, syscall.SIGTERM)
}

// capturing is a softnic capture whose stderr can be read while it runs.
type capturing struct {
	*program
	mu   sync.Mutex
	said strings.Builder
}

// Write implements io.Writer.
func (c *capturing) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said.Write(b)
}

func (c *capturing) errs() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said.String()
}

func TestCaptureCommand(t *testing.T) {
	addr, path, dir := nicAddr(t, 42), socket(t), t.TempDir()
	p := start(t, "run", "--udp", addr, "--socket", path, "--capture", filepath.Join(dir, "ring.pcapng"), "--capture-size", "1", "--capture-files", "2")
	p.line()
	nonsense(t, addr, 3) // which is in the first capture alone

	file := filepath.Join(dir, "a.pcapng")
	running := func(args ...string) *capturing {
		t.Helper()
		c := &capturing{program: command(t, append([]string{"capture", "--socket", path}, args...)...)}
		c.cmd.Stderr = c
		c.start()
		for end := time.Now().Add(patience); !strings.Contains(c.errs(), "SIGINT ends it"); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(c.errs())
			}
		}
		return c
	}
	counted := running("-w", file, "-c", "5")
	none := running("-w", filepath.Join(dir, "none.pcapng"), "--peer", "203.0.113.1")
	toPipe := running("-w", "-")
	nonsense(t, addr, 20)
	code, out, _ := counted.wait()
	errs := counted.errs()
	if code != 0 || out != "" || !strings.HasSuffix(errs, "softnic: 5 packets\n") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
	if m := frames(t, file); m["dropped"] != 5 || len(m) != 1 {
		t.Errorf("%s: %v", file, m)
	}
	time.Sleep(10 * time.Millisecond)
	if err := none.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := none.wait(); code != 0 || !strings.HasSuffix(none.errs(), "softnic: 0 packets\n") {
		t.Errorf("exit code %d, %q", code, none.errs())
	}
	// The daemon's end is the end of the capture, and nothing is cut off.
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code, out, _ = toPipe.wait()
	errs = toPipe.errs()
	if code != 0 || !strings.HasSuffix(errs, "softnic: 20 packets\n") || len(out) < 1000 {
		t.Errorf("exit code %d, %d bytes, %q", code, len(out), errs)
	}
	if code, _, errs := p.wait(); code != 0 || errs != "" {
		t.Errorf("exit code %d, %q", code, errs)
	}
	if m := frames(t, filepath.Join(dir, "ring_00001.pcapng")); m["dropped"] != 23 {
		t.Errorf("%v", m)
	}
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		t.Helper()
		path := filepath.Join(dir, "nic.toml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for text, want := range map[string]string{
		"udp = ":                                 "nic.toml: line 1: ",
		"udp = \"127.0.0.1\"\nudp = \"x\"":       "nic.toml: line 2: ",
		"nonsense = 1":                           "nic.toml: nonsense is not a flag of `softnic run`: have addr, capture, capture-files,",
		"[link]\nmtu = 1":                        "link is not a flag",
		"mtu = \"much\"":                         "nic.toml: mtu: want a number, not \"much\"",
		"mtu = [1500]":                           "nic.toml: mtu: one value is wanted, not a list",
		"impair = [[1]]":                         "nic.toml: impair: want text in quotes, or a number",
		"until-idle = \"1s\"":                    "until-idle is not a flag",
		"udp = \"127.0.0.1\"\nimpair = [\"tx\"]": "impair: rule \"tx\"",
	} {
		code, _, errs := softnic("run", "--config", write(text), "--socket", socket(t))
		checkError(t, code, exitUsage, errs, want)
	}
	addr, path := nicAddr(t, 43), socket(t)
	c := write(fmt.Sprintf("# a NIC\nudp = %q\nmtu = 1500\nlog-level = \"error\"\nimpair = [\"rx drop=1%% seed=7\", \"tx delay=1us\"]\n", addr))
	p := start(t, "run", "--config", c, "--socket", path, "--mtu", "2000") // the command line comes first
	if l := p.line(); !strings.Contains(l, addr) || !strings.Contains(l, "active MTU 1024") {
		t.Errorf("%q", l)
	}
	_, out, _ := softnic("impair", "-j", "--socket", path)
	var l []struct{ Rule string }
	if err := json.Unmarshal([]byte(out), &l); err != nil || len(l) != 2 || l[0].Rule != "rx drop=1% seed=7" {
		t.Errorf("%q, %v", out, err)
	}
	_, out, _ = softnic("link", "--socket", path)
	if !strings.Contains(out, " mtu 2000 ") {
		t.Errorf("%q", out)
	}
	stop(t, p, syscall.SIGTERM)
}
