//go:build linux

package guest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// game is one run of a stock pingpong tool against softnic's.
type game struct {
	service   string // rc, ud
	size      int
	netMTU    int // of the TAP
	mtu       int // path MTU, RC
	far       string
	near      string
	softnicIs string // "server", "client"
	events    bool
}

func (g game) String() string {
	s := fmt.Sprintf("%s-%s-%dB-mtu%d", g.service, g.softnicIs, g.size, g.netMTU)
	if strings.Contains(g.far, ":") {
		s += "-ipv6"
	}
	if g.events {
		s += "-events"
	}
	return s
}

var (
	v4 = [2]string{"10.8.0.1", "10.8.0.2"} // rxe's, softnic's
	v6 = [2]string{"fd00:8::1", "fd00:8::2"}
)

// tapGames has each of service, role, size, MTU and address family at least once.
func tapGames() []game {
	g := func(service, role string, size, netMTU, mtu int, addrs [2]string, events bool) game {
		return game{service, size, netMTU, mtu, addrs[0], addrs[1], role, events}
	}
	return []game{
		g("rc", "server", 4096, 1500, 1024, v4, false),
		g("rc", "client", 4096, 1500, 1024, v4, false),
		g("rc", "server", 1, 1500, 1024, v4, true),
		g("rc", "server", 1<<20, 4200, 4096, v4, false),
		g("rc", "client", 1<<20, 1500, 1024, v6, false),
		g("rc", "client", 65537, 4200, 4096, v6, true),
		g("ud", "server", 1024, 1500, 0, v4, false),
		g("ud", "client", 4096, 4200, 0, v4, false),
		g("ud", "server", 1, 1500, 0, v6, true),
		g("ud", "client", 1000, 1500, 0, v6, false),
	}
}

// TestTapPingpong plays the stock ibv_rc_pingpong and ibv_ud_pingpong, on the kernel's device, against softnic on a TAP
// of the same kernel, in both roles. The tools prove nothing about data; softnic compares every byte.
func TestTapPingpong(t *testing.T) {
	needGuest(t)
	for _, g := range tapGames() {
		t.Run(g.String(), func(t *testing.T) {
			play(t, g, options{}, "sn0", "sn0", "--tap", "sn0", "--plain", "--mtu", strconv.Itoa(g.netMTU),
				"--addr", "10.8.0.2/24", "--addr", "fd00:8::2/64", "--host-addr", "10.8.0.1/24", "--host-addr", "fd00:8::1/64")
		})
	}
}

// TestUDPPingpong does the same in short with softnic in UDP mode, in a network namespace across a veth pair.
func TestUDPPingpong(t *testing.T) {
	needGuest(t)
	for _, g := range []game{
		{"rc", 65536, 1500, 1024, "10.9.0.1", "10.9.0.2", "server", false},
		{"rc", 4096, 1500, 1024, "fd00:9::1", "fd00:9::2", "client", false},
		{"ud", 1024, 1500, 0, "10.9.0.1", "10.9.0.2", "server", false},
		{"ud", 1024, 1500, 0, "10.9.0.1", "10.9.0.2", "client", false},
	} {
		t.Run(g.String(), func(t *testing.T) {
			newNetns(t, "far")
			newVeth(t, g.netMTU, vethEnd{Name: "v0", Addrs: []string{"10.9.0.1/24", "fd00:9::1/64"}},
				vethEnd{Name: "v1", Netns: "far", Addrs: []string{"10.9.0.2/24", "fd00:9::2/64"}})
			play(t, g, options{Netns: "far"}, "v0", "v1", "--udp", g.near)
		})
	}
}

// play runs one game: softnic, with the NIC that flags say, in o; the stock tool on rxe over netdev. The capture is
// taken at softnic's end.
func play(t *testing.T, g game, o options, netdev, captureDev string, flags ...string) {
	t.Helper()
	const iters = 30
	log := strings.TrimSuffix(jobFile(t, "play.pcap"), ".pcap") + ".log.jsonl"
	args := append([]string{"pingpong", g.service}, flags...)
	args = append(args, "-s", strconv.Itoa(g.size), "-n", strconv.Itoa(iters), "--packet-log", log, "--pattern", "echo", "--stall-timeout", "60s")
	if g.mtu != 0 {
		args = append(args, "-m", strconv.Itoa(g.mtu))
	}
	if g.events {
		args = append(args, "-e")
	}
	if strings.Contains(g.near, ":") {
		args = append(args, "-g", "2") // behind the first IPv4 address, also where there is none
	}
	// The exchange over TCP is IPv4: the stock server listens on whatever the C library names first.
	tcp := map[bool]string{true: "127.0.0.1", false: "10.9.0.1"}[o.Netns == ""]
	if g.softnicIs == "client" {
		args = append(args, "--wait", "60s", tcp)
	}
	ours := startSoftnic(t, o, args...)
	if g.softnicIs == "server" {
		ours.WaitOutput("local address:")
	} else if o.Netns == "" {
		waitFor(t, patience, netdev, func() bool { return linkExists(netdev) })
	}
	dev := addRxe(t, "rxe0", netdev)
	tcpdump := startCapture(t, o, captureDev, "play.pcap", "udp", "port", "4791")
	before := dev.Counters(t)
	stock := []string{"ibv_" + g.service + "_pingpong", "-d", dev.Name, "-g", strconv.Itoa(dev.GIDIndex(t, mustAddr(g.far))),
		"-s", strconv.Itoa(g.size), "-n", strconv.Itoa(iters)}
	if g.mtu != 0 {
		stock = append(stock, "-m", strconv.Itoa(g.mtu))
	}
	if g.events {
		stock = append(stock, "-e")
	}
	if g.softnicIs == "server" {
		host := map[bool]string{true: "127.0.0.1", false: "10.9.0.2"}[o.Netns == ""]
		stock = append(stock, host)
	}
	theirs := start(t, options{Limit: 2 * time.Minute}, stock...)
	// On a TAP the rxe device goes with softnic: what counts is the last reading before.
	last := before
	waitFor(t, 2*time.Minute, "softnic to end", func() bool {
		if c := dev.tryCounters(); len(c) > 0 {
			last = c
		}
		return !ours.running()
	})
	us, them := ours.Wait(patience), theirs.Wait(time.Minute)
	if us.Code != 0 || them.Code != 0 {
		t.Fatalf("%v\n%v", us, them)
	}
	checkOutput(t, them)
	if !strings.Contains(us.Stdout, "data verified") || !strings.Contains(us.Stdout, fmt.Sprintf("%d iters", iters)) {
		t.Errorf("softnic does not say that the data was right: %v", us)
	}
	for name, v := range last.Since(before) {
		switch name {
		case "sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs", "ack_deferred":
		case "completer_retry_err", "duplicate_request":
			// The tool's ACK timer is 67 ms, which an emulated machine under load may take to answer.
			t.Logf("rxe counted %s %d", name, v)
		default:
			t.Errorf("rxe counted %s %d", name, v)
		}
	}
	if o.Netns == "" {
		// The TAP went with softnic, and the capture with it.
		if linkExists(netdev) {
			t.Errorf("softnic left %s behind: %v", netdev, us)
		}
		tcpdump.Gone()
		return
	}
	tcpdump.Stop()
}
