//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The NICs that an end of the veth pair may have.
const (
	rxe     = "rxe"     // the kernel's
	softnic = "softnic" // ours, on the host's UDP
)

// end is one end of the veth pair: v0 and v1, 10.9.0.1 and 10.9.0.2. The kernel's NIC holds UDP port 4791 of the first network namespace
// for as long as its module is loaded, and works only there; softnic has to be in another. Both may be the kernel's: policy routing then keeps
// the packets from taking the loopback interface.
type end struct {
	n   int
	nic string
}

func (e end) dev() string  { return fmt.Sprintf("v%d", e.n) }
func (e end) addr() string { return fmt.Sprintf("10.9.0.%d", e.n+1) }
func (e end) rxe() string  { return fmt.Sprintf("rxe%d", e.n) }
func (e end) mac() string  { return fmt.Sprintf("02:00:00:00:09:0%d", e.n+1) }

// netns is the network namespace of the end; "" is the first.
func (e end) netns() string {
	if e.nic == rxe {
		return ""
	}
	return fmt.Sprintf("bench%d", e.n)
}

// in returns what goes before a command there.
func (e end) in() []string {
	if e.netns() == "" {
		return nil
	}
	return []string{"ip", "netns", "exec", e.netns()}
}

// wire is the veth pair with its NICs: near measures, far serves.
type wire struct {
	b         *bench
	near, far end
	lossy     bool // of a hundred packets one is lost, each way, and none of them is a burst
}

func (w *wire) ends() [2]end { return [2]end{w.near, w.far} }

// command runs one that has to succeed, with text as its input.
func command(ctx context.Context, text string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; "))
	}
	return nil
}

// ip runs commands of ip, as lines, in a network namespace.
func ip(ctx context.Context, netns, lines string) error {
	argv := []string{"ip"}
	if netns != "" {
		argv = append(argv, "-n", netns)
	}
	return command(ctx, lines, append(argv, "-batch", "-")...)
}

// Between two addresses of one namespace packets go over the veth pair only when the table of local addresses is asked late, and by whom they
// came to. The tables 100 and 101 have the way out.
const (
	rulesOn = `rule add pref 10 iif v0 lookup local
rule add pref 11 iif v1 lookup local
rule add pref 20 oif v0 lookup 100
rule add pref 21 oif v1 lookup 101
rule add pref 90 lookup local
rule del pref 0
`
	rulesOff = `rule add pref 0 lookup local
rule del pref 10
rule del pref 11
rule del pref 20
rule del pref 21
rule del pref 90
`
)

// prepare makes what all wires share.
func (g *guest) prepare(ctx context.Context) error {
	if g.nets {
		return nil
	}
	g.nets = true
	if err := ip(ctx, "", "netns add bench0\nnetns add bench1\n"+rulesOn); err != nil {
		return err
	}
	return errors.Join(ip(ctx, "bench0", "link set lo up\n"), ip(ctx, "bench1", "link set lo up\n"))
}

// close takes everything away again.
func (g *guest) close(ctx context.Context) error {
	if !g.nets {
		return nil
	}
	return errors.Join(g.clear(ctx), ip(ctx, "", "netns del bench0\nnetns del bench1\n"+rulesOff))
}

// clear removes the veth pair: the kernel's NIC first, because a device that goes away under it is waited for for ever.
func (g *guest) clear(ctx context.Context) (err error) {
	if g.up == nil {
		return nil
	}
	for _, e := range g.up.ends() {
		if e.nic == rxe {
			if _, there := os.Stat("/sys/class/infiniband/" + e.rxe()); there == nil {
				err = errors.Join(err, command(ctx, "", "rdma", "link", "del", e.rxe()))
			}
		}
	}
	// One end takes the other with it. An end that is not there is no fault: setUp may have ended early.
	for _, e := range []end{g.up.near, {n: g.up.near.n, nic: rxe}} {
		if ip(ctx, e.netns(), "link del "+e.dev()+"\n") == nil {
			break
		}
	}
	g.up = nil
	return err
}

// setUp makes the veth pair anew, so that nothing of an earlier probe is left, and its NICs.
func (w *wire) setUp(ctx context.Context) error {
	g := w.b.lab
	if err := errors.Join(g.prepare(ctx), g.clear(ctx)); err != nil {
		return err
	}
	g.up = w
	lines := fmt.Sprintf("link add v0 address %s mtu 9000 type veth peer name v1 address %s mtu 9000\n", w.near.mac(), w.far.mac())
	for _, e := range w.ends() {
		if e.netns() != "" {
			lines += fmt.Sprintf("link set %s netns %s\n", e.dev(), e.netns())
		}
	}
	if err := ip(ctx, "", lines); err != nil {
		return err
	}
	for i, e := range w.ends() {
		if err := w.raise(ctx, e, w.ends()[1-i]); err != nil {
			return err
		}
	}
	for _, e := range w.ends() {
		if e.nic == rxe {
			if err := addRxe(ctx, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// raise gives an end its address, the way to the other, and, if wanted, its losses.
func (w *wire) raise(ctx context.Context, e, other end) error {
	lines := fmt.Sprintf("addr add %s/24 dev %s\nlink set %s up\nneigh replace %s lladdr %s dev %s nud permanent\n", e.addr(), e.dev(), e.dev(), other.addr(), other.mac(), e.dev())
	if e.nic == rxe {
		lines += fmt.Sprintf("route add %s/32 dev %s table %d\n", other.addr(), e.dev(), 100+e.n)
		for name, value := range map[string]string{"accept_local": "1", "rp_filter": "0", "arp_ignore": "1"} {
			if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", e.dev(), name), []byte(value), 0); err != nil {
				return err
			}
		}
	}
	if err := ip(ctx, e.netns(), lines); err != nil || !w.lossy {
		return err
	}
	// netem loses what it is given, which is to be a packet.
	return errors.Join(
		command(ctx, "", append(e.in(), "ethtool", "-K", e.dev(), "tx-udp-segmentation", "off", "gso", "off", "tso", "off")...),
		command(ctx, "", append(e.in(), "tc", "qdisc", "add", "dev", e.dev(), "root", "netem", "loss", "1%", "limit", "10000")...))
}

// addRxe makes the kernel's NIC, and waits until it has the address.
func addRxe(ctx context.Context, e end) error {
	name := e.rxe()
	if err := command(ctx, "", "rdma", "link", "add", name, "type", "rxe", "netdev", e.dev()); err != nil {
		return err
	}
	for ctx.Err() == nil {
		text, err := os.ReadFile("/sys/class/infiniband/" + name + "/ports/1/gids/1")
		if gid, bad := netip.ParseAddr(strings.TrimSpace(string(text))); err == nil && bad == nil && gid.Unmap().String() == e.addr() {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s does not get the address of %s: %w", name, e.dev(), ctx.Err())
}

// passed is what an end of the pair has sent.
type passed struct{ bytes, packets, lost int64 }

// sent reads it from the interface and its queue.
func (w *wire) sent(ctx context.Context, e end) (p passed, err error) {
	read := func(into any, argv ...string) error {
		var out bytes.Buffer
		line := append(e.in(), argv...)
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		cmd.Stdout = &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(line, " "), err)
		}
		return json.Unmarshal(out.Bytes(), into)
	}
	var links []struct {
		Stats struct {
			TX struct{ Bytes, Packets int64 }
		} `json:"stats64"`
	}
	var queues []struct{ Drops int64 }
	if err := errors.Join(read(&links, "ip", "-j", "-s", "link", "show", "dev", e.dev()), read(&queues, "tc", "-j", "-s", "qdisc", "show", "dev", e.dev())); err != nil {
		return p, err
	}
	if len(links) != 1 {
		return p, fmt.Errorf("ip shows %d interfaces %s", len(links), e.dev())
	}
	p.bytes, p.packets = links[0].Stats.TX.Bytes, links[0].Stats.TX.Packets
	for _, q := range queues {
		p.lost += q.Drops
	}
	return p, nil
}

// check holds what has passed against what must have: n messages of so many bytes, over this wire and no other way, and where packets are to be
// lost, each as a frame of its own.
func (p passed) check(w *wire, n, size, mtu int) error {
	if want := int64(n) * int64(size); p.bytes < want {
		return fmt.Errorf("%d bytes have passed %s, of messages with %d: they went another way", p.bytes, w.near.dev(), want)
	}
	if !w.lossy {
		return nil
	}
	packets := int64(n) * int64((size+mtu-1)/mtu)
	if p.packets+p.lost < packets {
		return fmt.Errorf("%d frames have passed or were lost, of %d packets: they were bursts", p.packets+p.lost, packets)
	}
	if p.lost < packets/400 {
		return fmt.Errorf("%d packets of %d were lost instead of one in a hundred", p.lost, packets)
	}
	return nil
}
