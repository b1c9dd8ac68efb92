package tap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	tunPath = "/dev/net/tun"
	// ours is the alias that marks an interface as made by this package.
	ours = "softnic"
	// queueLen is how many frames the kernel keeps for us: some windows of RDMA
	// packets. It loses the rest.
	queueLen = 4096
)

// netdev is the host's side of the interface, through netlink. Its socket belongs
// to the network namespace of the thread that made it.
type netdev struct {
	h     *netlink.Handle
	index int
	vnet  bool // bursts are possible
	watch watcher
}

// newNetdev makes the interface and sets it up. The descriptor holds it: to
// close it is to remove the interface.
func newNetdev(s *settings) (*netdev, int, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, -1, fmt.Errorf("no netlink socket: %w", err)
	}
	d := &netdev{h: h}
	fd, err := d.make(s)
	if err != nil {
		d.close()
		return nil, -1, err
	}
	return d, fd, nil
}

func (d *netdev) close() { d.h.Close() }

func (d *netdev) make(s *settings) (int, error) {
	if err := d.clearName(s.name); err != nil {
		return -1, err
	}
	fd, err := d.attachNew(s)
	if errors.Is(err, unix.EBUSY) { // since clearName looked
		err = errorOf(os.ErrExist, "the name was taken a moment ago: choose another")
	}
	if err != nil {
		return -1, err
	}
	if err := d.setUp(s); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// attachNew makes the interface, for bursts if they are wanted and the kernel has them.
func (d *netdev) attachNew(s *settings) (int, error) {
	if !s.plain {
		fd, err := attach(s.name, unix.IFF_TUN_EXCL|unix.IFF_VNET_HDR)
		if err != nil {
			return -1, err
		}
		if err = offload(fd); err == nil {
			d.vnet = true
			return fd, nil
		}
		unix.Close(fd)
		s.log.Info("the kernel refuses bursts on a TAP: each packet is read and written alone", "tap", s.name, "error", err)
	}
	return attach(s.name, unix.IFF_TUN_EXCL)
}

// offload has the kernel leave bursts of UDP as they are (since Linux 6.2), and with them, because it asks for that, all checksums.
// TCP is not among what it is to leave whole: such frames would only have to be taken apart for raw packet queue pairs.
func offload(fd int) error {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetLen); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_USO4|unix.TUN_F_USO6)
}

// attach opens a descriptor and makes it the other end of the TAP. Opened
// non-blocking, so that os.NewFile gives it to the poller.
func attach(name string, flags uint16) (int, error) {
	fd, err := unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO):
		return -1, fmt.Errorf("kernel without TUN: `modprobe tun`, or in a container add `--device %s` (%w)", tunPath, err)
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("may not open %s: run as root, or let this user read and write it (in a container add `--device %s`) (%w)", tunPath, tunPath, err)
	case err != nil:
		return -1, fmt.Errorf("opening %s: %w", tunPath, err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return -1, explain("creating the interface", err)
	}
	return fd, nil
}

func setPersist(fd int, on bool) error {
	v := 0
	if on {
		v = 1
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, v)
}

// explain makes an error of the kernel one that says what to do.
func explain(doing string, err error) error {
	if !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if os.Geteuid() == 0 {
		return fmt.Errorf("needs CAP_NET_ADMIN, which this root does not have: in a container add `--cap-add NET_ADMIN` (%s: %w)", doing, err)
	}
	exe, xerr := os.Executable()
	if xerr != nil {
		exe = "BINARY"
	}
	return fmt.Errorf("needs CAP_NET_ADMIN: run as root or `sudo setcap cap_net_admin+ep %s` (%s: %w)", shellQuote(exe), doing, err)
}

// shellQuote quotes a path for a shell where it has to be.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@", r) || r >= 0x80
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// clearName sees to it that no interface has the name: one that Release had to
// leave behind is removed, any other is an error.
func (d *netdev) clearName(name string) error {
	l, err := d.h.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return explain("looking for the interface", err)
	}
	index := l.Attrs().Index
	t, isTun := l.(*netlink.Tuntap)
	isTap := isTun && t.Mode == netlink.TUNTAP_MODE_TAP
	taken := func(format string, args ...any) error { return errorOf(os.ErrExist, format, args...) }
	switch {
	case isTap && l.Attrs().Alias == ours:
		if who := holder(name); who != "" {
			return taken("in use by %s: end it, or choose another name", who)
		}
	case isTun:
		if who := holder(name); who != "" {
			return taken("the interface exists and belongs to %s: choose another name", who)
		}
		return taken("the interface exists and softnic did not make it: choose another name, or remove it with `ip link delete %s`", name)
	default:
		with := ""
		if links, _ := rdmaLinksOn(index, name); len(links) > 0 {
			with = " with RDMA device " + strings.Join(links, ", ")
		}
		return taken("the interface exists (%s%s) and is not a TAP that softnic left: choose another name, softnic makes the interface itself", l.Type(), with)
	}

	fd, err := attach(name, 0)
	if errors.Is(err, unix.EBUSY) {
		return taken("in use by another program: end it, or choose another name")
	}
	if err != nil {
		return err
	}
	// The same care as in Release: the interface must not go before its RDMA links.
	d.index = index
	why := releaseRDMA(d.rdma(func(on bool) error { return setPersist(fd, on) }))
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("removing what an earlier softnic left: %w", err)
	}
	if why != "" {
		return taken("an earlier softnic left the interface and it cannot be removed: %s", why)
	}
	return nil
}

// setUp gives the new interface everything that it has to have.
func (d *netdev) setUp(s *settings) error {
	l, err := d.h.LinkByName(s.name)
	if err != nil {
		return explain("finding the new interface", err)
	}
	d.index = l.Attrs().Index
	for _, step := range []struct {
		doing string
		err   func() error
	}{
		{"naming its owner", func() error { return d.h.LinkSetAlias(l, ours) }},
		{"setting its MAC", func() error { return d.h.LinkSetHardwareAddr(l, net.HardwareAddr(s.hostMAC[:])) }},
		{"setting its MTU", func() error { return d.h.LinkSetMTU(l, s.mtu) }},
		{"setting its queue length", func() error { return d.h.LinkSetTxQLen(l, queueLen) }},
	} {
		if err := step.err(); err != nil {
			return explain(step.doing, err)
		}
	}
	for _, p := range s.host {
		if err := d.addAddr(l, p); err != nil {
			return err
		}
	}
	if err := d.h.LinkSetUp(l); err != nil {
		return explain("setting it up", err)
	}
	return nil
}

// addAddr gives the host's side an address. Duplicate detection would keep an
// IPv6 address from use for a second or two, to ask the one station on the link
// that is known to have another.
func (d *netdev) addAddr(l netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	err := d.h.AddrAdd(l, a)
	if p.Addr().Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)) {
		return fmt.Errorf("IPv6 is switched off on this host: leave %s out, or `sysctl net.ipv6.conf.default.disable_ipv6=0` and start again (%w)", p, err)
	}
	if err != nil {
		return explain("setting host address "+p.String(), err)
	}
	return nil
}

// holder names the program that has the TUN or TAP interface attached, as
// "softnic (pid 123)", or "" where none is seen. Only root sees everybody's.
func holder(name string) string {
	line := "iff:\t" + name
	return findProcess("fdinfo", func(path string) bool {
		b, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		for l := range strings.Lines(string(b)) {
			if strings.TrimSuffix(l, "\n") == line {
				return true
			}
		}
		return false
	})
}

// findProcess names the first program that has an entry in its folder dir (fd
// or fdinfo) for which match holds.
func findProcess(dir string, match func(path string) bool) string {
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		base := filepath.Join("/proc", p.Name())
		files, _ := os.ReadDir(filepath.Join(base, dir))
		for _, f := range files {
			if match(filepath.Join(base, dir, f.Name())) {
				comm, _ := os.ReadFile(filepath.Join(base, "comm"))
				return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), p.Name())
			}
		}
	}
	return ""
}
