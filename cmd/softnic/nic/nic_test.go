package nic

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
)

// freePort returns an address of the host with a port that nobody has.
func freePort(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().String()
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	f := Flags{
		UDP: freePort(t), MTU: 1500, Capture: filepath.Join(dir, "a.pcapng"), PacketLog: filepath.Join(dir, "a.jsonl"),
		Impair: []string{"tx drop=1% seed=7"}, LogLevel: "error", PKeys: []string{"0x8001", "0x7fff"},
	}
	n, err := f.Open(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := n.Ready(), "rxe_softnic0 on udp "+f.UDP+": 127.0.0.1, active MTU 1024"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if l := n.Device.Port().Impair().List(); len(l) != 1 || l[0].Rule != "tx drop=1% seed=7" {
		t.Errorf("rules %+v", l)
	}
	for i, want := range []uint16{0x8001, 0x7FFF} {
		if k, err := n.Device.QueryPKey(1, i); k != want || err != nil {
			t.Errorf("P_Key %d: %#x %v, want %#x", i, k, err, want)
		}
	}
	if v := n.Device.Port().Counters(); v[len(v)-1].Name == "icrc_ignored" {
		t.Errorf("the link's own counters are missing: %v", v)
	}

	// The same port again.
	_, err = (&Flags{UDP: f.UDP}).Open(io.Discard)
	if err == nil || !strings.Contains(err.Error(), "is taken by ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a second NIC on the port: %v", err)
	}

	if warning, err := n.Close(); warning != "" || err != nil {
		t.Error(warning, err)
	}
	select {
	case err := <-n.Failed:
		t.Errorf("Close made the link fail: %v", err)
	default:
	}
	for file, want := range map[string]string{f.Capture: "\x0a\x0d\x0d\x0a", f.PacketLog: `{"addr":["127.0.0.1"]}`} {
		if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), want) {
			t.Errorf("%s: %v, %.40q", file, err, b)
		}
	}
}

// A FLUSH with the ICRC that kernel rxe puts on it is refused for its ICRC, or with the quirk for what is in it.
func TestQuirk(t *testing.T) {
	for _, c := range []struct {
		quirks []string
		drop   string
	}{{nil, "drop_icrc"}, {QuirkNames(), "drop_no-qp"}} {
		f := Flags{UDP: freePort(t), Quirks: c.quirks}
		n, err := f.Open(io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		to := netip.MustParseAddrPort(f.UDP)
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		from := conn.LocalAddr().(*net.UDPAddr).AddrPort()
		flush := peer.Flush(0x777, 0x65, 0x10008, 0x77, 0x123, 1)
		flush.Src, flush.Dst, flush.SrcPort, flush.DstPort = from.Addr(), to.Addr(), from.Port(), to.Port()
		b := flush.Marshal()
		b = b[:len(b)-4]
		icrc := peer.RxeFlushICRC(b)
		if _, err := conn.Write(append(b, icrc[:]...)[28:]); err != nil {
			t.Fatal(err)
		}
		count := func(name string) (v uint64) {
			for _, x := range n.Device.Statistics() {
				if x.Name == name {
					v = x.Value
				}
			}
			return v
		}
		deadline := time.Now().Add(10 * time.Second)
		for count(c.drop) == 0 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if count(c.drop) != 1 {
			t.Errorf("quirks %v: no %s: %v", c.quirks, c.drop, n.Device.Statistics())
		}
		conn.Close()
		if _, err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := freePort(t)
	for _, c := range []struct {
		f     Flags
		usage bool
		want  string
	}{
		{Flags{}, true, "--tap NAME makes a network interface, --udp ADDR uses an address of this host"},
		{Flags{TAP: "sn0", UDP: addr}, true, "a NIC is on one of the two"},
		{Flags{UDP: addr, Addrs: []string{"10.0.0.1/8"}}, true, "go with --tap"},
		{Flags{UDP: addr, HostAddrs: []string{"10.0.0.1/8"}}, true, "go with --tap"},
		{Flags{UDP: "localhost"}, true, "is not an IP address of this host"},
		{Flags{UDP: "127.0.0.1:0"}, true, "the port is 1 ... 65535"},
		{Flags{UDP: "192.0.2.77"}, false, "192.0.2.77 is not an address of this host; have: "},
		{Flags{UDP: "0.0.0.0"}, false, "name one address of this host"},
		{Flags{UDP: addr, MTU: 70000}, false, "--mtu 70000: udp " + addr + " carries IP packets of up to"},
		{Flags{UDP: addr, MTU: 300}, false, "RDMA needs at least 336"},
		{Flags{UDP: addr, MTU: -1}, false, "--mtu -1: "},
		{Flags{UDP: addr, Impair: []string{"tx lose"}}, true, `impair: rule "tx lose": "lose": want an action`},
		{Flags{UDP: addr, Quirks: []string{"rxe-flush"}}, true, "--quirk rxe-flush: there is rxe-flush-icrc"},
		{Flags{UDP: addr, Profile: "cx9"}, true, `--profile: profile "cx9": one of ibta, rxe, connectx`},
		{Flags{UDP: addr, CNP: "often"}, true, `--cnp: congestion notifications "often": off, port:GAP, dest:GAP or pair:GAP`},
		{Flags{UDP: addr, CNP: "pair"}, true, "as in pair:50us"},
		{Flags{UDP: addr, PKeys: []string{"0xffff", "0x8000"}}, true, "--pkey: P_Key 0x8000 names no partition: 0x0001 ... 0x7fff are possible, as a full member 0x8001 ... 0xffff"},
		{Flags{UDP: addr, PKeys: []string{"0"}}, true, "--pkey: P_Key 0x0000 names no partition"},
		{Flags{UDP: addr, PKeys: []string{"0x10000"}}, true, `--pkey: P_Key "0x10000": want a number of 16 bits, as 0x8001`},
		{Flags{UDP: addr, PKeys: []string{""}}, true, `--pkey: P_Key "": want a number`},
		{Flags{UDP: addr, PKeys: []string{"1", "0x8001", "0x0001"}}, true, "--pkey: P_Key 0x0001 is there twice"},
		{Flags{UDP: addr, PKeys: make([]string, 65)}, true, "--pkey: "},
		{Flags{UDP: addr, LogLevel: "loud"}, true, "--log-level loud: one of debug, info, warn, error"},
		{Flags{UDP: addr, Capture: filepath.Join(dir, "no", "a")}, false, "--capture: open "},
		{Flags{UDP: addr, Capture: filepath.Join(dir, "a"), PacketLog: filepath.Join(dir, "no", "a")}, false, "--packet-log: open "},
		{Flags{TAP: "sn0", Addrs: []string{"10.8.0.2"}}, true, "--addr 10.8.0.2: the prefix length is missing: 10.8.0.2/24"},
		{Flags{TAP: "sn0", Addrs: []string{"fd00::1"}}, true, "the prefix length is missing: fd00::1/64"},
		{Flags{TAP: "sn0", HostAddrs: []string{"here"}}, true, "--host-addr here: want an address with prefix length"},
		{Flags{TAP: "sn0", MTU: -3}, true, "--mtu -3"},
		{Flags{TAP: "a/b"}, false, "tap"},
		{Flags{TAP: "sn0", MTU: 100000}, false, "tap"},
	} {
		n, err := c.f.Open(io.Discard)
		if err == nil {
			n.Close()
			t.Errorf("%+v is no mistake", c.f)
			continue
		}
		if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v\nwant %s", c.f, err, c.want)
		}
		if errors.As(err, new(*UsageError)) != c.usage {
			t.Errorf("%+v: usage error: %v", c.f, !c.usage)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	// Nothing holds the port any more.
	n, err := (&Flags{UDP: addr}).Open(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	n.Close()
}

// broken is a link that ends by itself.
type broken struct{ link.Endpoint }

func (broken) Recv(*link.Batch, bool) error { return errBroken }

var errBroken = errors.New("somebody removed the interface")

func TestFailed(t *testing.T) {
	e, _ := pipe.NewRaw(pipe.Config{})
	failed := make(chan error, 1)
	w := &endpoint{Endpoint: broken{e}, failed: failed}
	for range 3 {
		if err := w.Recv(nil, true); !errors.Is(err, errBroken) {
			t.Errorf("%v", err)
		}
	}
	if err := <-failed; !errors.Is(err, errBroken) {
		t.Error(err)
	}
	if len(failed) != 0 {
		t.Error("it failed twice")
	}
	if len(w.Counters()) != 0 {
		t.Errorf("counters %v", w.Counters())
	}
}

// TestAFailedStartKeepsWhatIsThere has a capture from before, and a start that comes to
// nothing.
func TestAFailedStartKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old.pcapng")
	if err := os.WriteFile(old, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, log := range []string{filepath.Join(dir, "none", "x"), old} {
		f := &Flags{UDP: "127.0.0.1:49896", Capture: old, PacketLog: log}
		if n, err := f.Open(io.Discard); err == nil {
			n.Close()
			t.Fatalf("--packet-log %s is taken", log)
		}
		if b, _ := os.ReadFile(old); string(b) != "precious" {
			t.Errorf("--packet-log %s: the old capture is %q", log, b)
		}
	}
}

func TestBroadcastIsNoNIC(t *testing.T) {
	for _, a := range []string{"255.255.255.255", "127.255.255.255", "127.0.0.0"} {
		if n, err := (&Flags{UDP: a + ":49897"}).Open(io.Discard); err == nil {
			n.Close()
			t.Errorf("%s is taken", a)
		}
	}
}
