//go:build linux

package guest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/interop/peer"
)

// patience is how long the lab waits for what takes no time on a real machine.
const patience = 20 * time.Second

// needGuest skips the test unless it runs in the lab.
func needGuest(t testing.TB) {
	t.Helper()
	if os.Getenv("SOFTNIC_GUEST") != "1" {
		t.Skip("runs in the VM lab only: bash interop/run.sh -run " + t.Name())
	}
}

// waitFor polls until cond is true and fails the test when that takes longer than limit.
func waitFor(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// jobFile returns the path of a file in the test's own folder of the job directory, where it outlives the VM:
// $SOFTNIC_JOB/TestName/name.
func jobFile(t testing.TB, name string) string {
	t.Helper()
	dir := filepath.Join(os.Getenv("SOFTNIC_JOB"), t.Name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// newNetns makes a network namespace with loopback up; commands run in it with options{Netns: name}. What is in it goes
// with it.
func newNetns(t testing.TB, name string) {
	t.Helper()
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { tidy(t, "ip", "netns", "del", name) })
	run(t, "ip", "-n", name, "link", "set", "lo", "up")
}

// vethEnd is one end of a veth pair.
type vethEnd struct {
	Name  string
	MAC   string   // "": the kernel's choice
	Netns string   // "": the initial one, the only one where rxe works
	Addrs []string // with prefix length; none: the end is silent, no IPv6 either
}

// newVeth makes a veth pair with both ends up and every offload off that would join or split packets: a capture and a
// lossy qdisc would see super-frames.
func newVeth(t testing.TB, mtu int, a, b vethEnd) {
	t.Helper()
	run(t, "ip", "link", "add", a.Name, "type", "veth", "peer", "name", b.Name)
	t.Cleanup(func() {
		// One end takes the other with it, and a namespace that is gone already both. The RDMA link first, also when
		// the test added it behind addRxe's back.
		for _, end := range []vethEnd{a, b} {
			if end.Netns != "" {
				continue
			}
			delRDMALinks(t, end.Name)
			if linkExists(end.Name) {
				tidy(t, "ip", "link", "del", end.Name)
			}
		}
	})
	for _, end := range []vethEnd{a, b} {
		ip := func(args ...string) {
			t.Helper()
			if end.Netns != "" {
				args = append([]string{"-n", end.Netns}, args...)
			}
			run(t, "ip", args...)
		}
		if end.Netns != "" {
			run(t, "ip", "link", "set", end.Name, "netns", end.Netns)
		}
		set := []string{"link", "set", end.Name, "mtu", strconv.Itoa(mtu)}
		if end.MAC != "" {
			set = append(set, "address", end.MAC)
		}
		if len(end.Addrs) == 0 {
			set = append(set, "addrgenmode", "none")
		}
		ip(set...)
		offloadsOff(t, end.Netns, end.Name)
		for _, addr := range end.Addrs {
			if netip.MustParsePrefix(addr).Addr().Is6() {
				ip("addr", "add", addr, "dev", end.Name, "nodad")
			} else {
				ip("addr", "add", addr, "dev", end.Name)
			}
		}
		ip("link", "set", end.Name, "up")
	}
	for _, end := range []vethEnd{a, b} {
		if end.Netns == "" {
			waitFor(t, patience, end.Name+" to come up", func() bool { return sysfs("/sys/class/net/"+end.Name+"/operstate") == "up" })
		}
	}
}

// offloadsOff makes dev send and show packets as they are on the wire.
func offloadsOff(t testing.TB, netns, dev string) {
	t.Helper()
	runIn(t, options{Netns: netns}, "ethtool", "-K", dev, "tx-udp-segmentation", "off", "gso", "off", "gro", "off", "tso", "off")
}

// addNeigh tells dev that addr is at mac, for good, so that a peer of ours needs no ARP and no neighbour discovery.
func addNeigh(t testing.TB, dev, addr, mac string) {
	t.Helper()
	run(t, "ip", "neigh", "replace", addr, "lladdr", mac, "dev", dev, "nud", "permanent")
}

func linkExists(dev string) bool {
	_, err := os.Stat("/sys/class/net/" + dev)
	return err == nil
}

// sysfs returns the trimmed content of a file, "" if it cannot be read.
func sysfs(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// rxe is a kernel RDMA device.
type rxe struct{ Name string }

// addRxe puts the kernel's RDMA device on a network device that has its addresses already, and waits until the first
// IPv4 (else IPv6) address is in the GID table, at index 1.
func addRxe(t testing.TB, name, netdev string) rxe {
	t.Helper()
	run(t, "rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
	r := rxe{name}
	t.Cleanup(func() { r.del(t) })
	waitFor(t, patience, "GID 1 of "+name, func() bool {
		gid, err := netip.ParseAddr(sysfs(r.port() + "/gids/1"))
		return err == nil && gid != netip.IPv6Unspecified()
	})
	waitFor(t, patience, "the verbs of "+name, func() bool {
		entries, _ := filepath.Glob("/sys/class/infiniband/" + name + "/device/infiniband_verbs/uverbs*")
		if len(entries) == 0 {
			entries, _ = filepath.Glob("/sys/class/infiniband_verbs/uverbs*")
		}
		return len(entries) > 0
	})
	return r
}

// del removes the RDMA device. It is safe to call more than once.
func (r rxe) del(t testing.TB) {
	if _, err := os.Stat("/sys/class/infiniband/" + r.Name); err == nil {
		tidy(t, "rdma", "link", "del", r.Name)
	}
}

func (r rxe) port() string { return "/sys/class/infiniband/" + r.Name + "/ports/1" }

// GID returns entry i of the GID table; an IPv4 address is unmapped.
func (r rxe) GID(t testing.TB, i int) netip.Addr {
	t.Helper()
	gid, err := netip.ParseAddr(sysfs(fmt.Sprintf("%s/gids/%d", r.port(), i)))
	if err != nil {
		t.Fatalf("GID %d of %s: %v", i, r.Name, err)
	}
	return gid.Unmap()
}

// GIDIndex returns where an address of the network device is in the GID table, once it is there.
func (r rxe) GIDIndex(t testing.TB, addr netip.Addr) int {
	t.Helper()
	index := -1
	waitFor(t, patience, fmt.Sprintf("GID %v of %s", addr, r.Name), func() bool {
		for i := range 16 {
			if gid, err := netip.ParseAddr(sysfs(fmt.Sprintf("%s/gids/%d", r.port(), i))); err == nil && gid.Unmap() == addr {
				index = i
				return true
			}
		}
		return false
	})
	return index
}

// newPeer makes a scripted peer that speaks through a network device of the initial namespace, to which it leaves ARP
// and neighbour discovery: see addNeigh.
func newPeer(t testing.TB, dev string, local, remote netip.Addr, remoteMAC string) *peer.Peer {
	t.Helper()
	mac, err := net.ParseMAC(remoteMAC)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := peer.OpenPacket(dev, [6]byte{}, [6]byte(mac))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	p := peer.New(conn, local, remote)
	p.Timeout = patience
	return p
}

// counters is a reading of the hardware counters of a port.
type counters map[string]int64

// Counters reads what `rdma statistic` shows.
func (r rxe) Counters(t testing.TB) counters {
	t.Helper()
	c := r.tryCounters()
	if len(c) == 0 {
		t.Fatalf("%s has no hardware counters", r.Name)
	}
	return c
}

// tryCounters is Counters of a device that may be gone.
func (r rxe) tryCounters() counters {
	c := counters{}
	files, _ := filepath.Glob(r.port() + "/hw_counters/*")
	for _, file := range files {
		if n, err := strconv.ParseInt(sysfs(file), 10, 64); err == nil {
			c[filepath.Base(file)] = n
		}
	}
	delete(c, "lifespan") // of the reading's cache, not a count
	return c
}

// Since returns what has changed from an earlier reading; counters that have not are left out.
func (c counters) Since(before counters) counters {
	d := counters{}
	for name, n := range c {
		if n != before[name] {
			d[name] = n - before[name]
		}
	}
	return d
}

// delRDMALinks removes every RDMA device on a network device.
func delRDMALinks(t testing.TB, netdev string) {
	ports, _ := filepath.Glob("/sys/class/infiniband/*/ports/1/gid_attrs/ndevs/0")
	for _, file := range ports {
		if sysfs(file) == netdev {
			tidy(t, "rdma", "link", "del", strings.Split(file, "/")[4])
		}
	}
}
