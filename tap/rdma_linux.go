package tap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What the netlink package does not have of the kernel's rdma_netlink.h.
const (
	rdmaPortGet       = 5
	rdmaAttrNdevIndex = 50
	rdmaAttrNdevName  = 51
)

// rdmaWait is how long a program that has an RDMA device open, or the kernel, gets
// to be done with it.
const rdmaWait = 2 * time.Second

// rdmaPoll is how often it is looked whether they are.
const rdmaPoll = 100 * time.Millisecond

// rdmaLoaded reports whether the kernel's RDMA core may be loaded. Without the
// question, a netlink socket would load it.
func rdmaLoaded() bool {
	if _, err := os.Stat("/sys/module"); err != nil {
		return true
	}
	_, err := os.Stat("/sys/module/ib_core")
	return err == nil
}

// rdmaLinksOn lists the RDMA devices on a network interface. Index and name must both
// match, so that no namesake in another namespace is meant.
func rdmaLinksOn(index int, name string) ([]string, error) {
	if !rdmaLoaded() {
		return nil, nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := h.RdmaLinkList()
	if err != nil {
		return nil, err
	}
	var on []string
	for _, l := range all {
		// A device that just went has no ports any more, and no error.
		if ports, _ := rdmaPorts(l.Attrs.Index); slices.Contains(ports, port{uint32(index), name}) {
			on = append(on, l.Attrs.Name)
		}
	}
	return on, nil
}

// port is the network interface below one port of an RDMA device.
type port struct {
	index uint32
	name  string
}

// rdmaPorts asks what `rdma link show` asks.
func rdmaPorts(device uint32) ([]port, error) {
	req := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|rdmaPortGet, unix.NLM_F_ACK|unix.NLM_F_DUMP)
	req.AddData(nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, nl.Uint32Attr(device)))
	msgs, err := req.Execute(unix.NETLINK_RDMA, 0)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	var ports []port
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttr(m)
		if err != nil {
			return nil, err
		}
		var p port
		for _, a := range attrs {
			switch {
			case a.Attr.Type == rdmaAttrNdevIndex && len(a.Value) >= 4:
				p.index = nl.NativeEndian().Uint32(a.Value)
			case a.Attr.Type == rdmaAttrNdevName:
				p.name = strings.TrimRight(string(a.Value), "\x00")
			}
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// rdmaKernel is what releaseRDMA needs of the kernel.
type rdmaKernel struct {
	netdev  func() string                                 // the interface's name, "" when it is gone
	links   func() ([]string, error)                      // RDMA devices on it
	user    func(device string) string                    // a program that has one open
	remove  func(device string, wait time.Duration) error // errGone when there is none of that name
	persist func(on bool) error                           // whether the interface outlives the descriptor
}

func (d *netdev) rdma(persist func(bool) error) rdmaKernel {
	k := rdmaKernel{user: rdmaUser, remove: rdmaDelete, persist: persist}
	k.netdev = func() string {
		l, err := d.h.LinkByIndex(d.index)
		if err != nil {
			return ""
		}
		return l.Attrs().Name
	}
	k.links = func() ([]string, error) { return rdmaLinksOn(d.index, k.netdev()) }
	return k
}

// releaseRDMA removes the RDMA links on an interface. It leaves the interface
// transient and returns "" when there is none left, else persistent, and
// says why and what to do.
//
// The order matters. To close the descriptor of a transient TAP is to
// unregister the interface, and the kernel does not come back from that while a
// program has the RDMA device open; nor does it come back from removing such a device.
// So nothing is removed while it has users, and the interface is persistent meanwhile, in
// case this process is killed.
func releaseRDMA(k rdmaKernel) (why string) {
	deadline := time.Now().Add(rdmaWait)
	for persistent := false; ; {
		links, err := k.links()
		netdev := k.netdev()
		if netdev == "" {
			return ""
		}
		if len(links) == 0 && err == nil {
			if err := k.persist(false); err != nil && k.netdev() != "" {
				return fmt.Sprintf("it cannot be made transient (%v): `ip link delete %s`", err, netdev)
			}
			return ""
		}
		if !persistent {
			if err := k.persist(true); err != nil {
				// Then it goes with the descriptor, whatever comes of that.
				return fmt.Sprintf("it cannot be made persistent (%v) while RDMA links are on it: end their users", err)
			}
			persistent = true
		}
		if err != nil {
			return fmt.Sprintf("it is not known whether RDMA links are on it (%v): delete those that `rdma link` shows on %s with `rdma link delete`, then `ip link delete %s`", err, netdev, netdev)
		}
		todo := fmt.Sprintf("`rdma link delete %s; ip link delete %s`", strings.Join(links, "; rdma link delete "), netdev)
		if who := k.user(links[0]); who != "" {
			if time.Now().After(deadline) {
				return fmt.Sprintf("%s has %s open: end it, then %s", who, links[0], todo)
			}
			time.Sleep(rdmaPoll)
			continue
		}
		switch err := k.remove(links[0], rdmaWait); {
		case err == nil:
		case errors.Is(err, unix.EPERM):
			return fmt.Sprintf("to remove %s takes CAP_NET_ADMIN: as root, %s", links[0], todo)
		case !errors.Is(err, errGone) || time.Now().After(deadline):
			return fmt.Sprintf("%s cannot be removed (%v): %s", links[0], err, todo)
		default: // it went between the question and the order, and may still be listed
			time.Sleep(rdmaPoll)
		}
	}
}

var errGone = errors.New("no such RDMA link")

// rdmaDelete removes an RDMA link. The kernel cannot be interrupted in it, so it gets
// a goroutine of its own, which is left behind when the time is over.
func rdmaDelete(name string, wait time.Duration) error {
	h, err := netlink.NewHandle(unix.NETLINK_RDMA)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer h.Close()
		err := h.RdmaLinkDel(name)
		if err != nil {
			if all, lerr := h.RdmaLinkList(); lerr == nil && !slices.ContainsFunc(all, func(l *netlink.RdmaLink) bool { return l.Attrs.Name == name }) {
				err = errGone
			}
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(wait):
		return errors.New("the kernel still waits for a user of it")
	}
}

// rdmaUser names a program that has an RDMA device open, or returns "". It looks for open
// device files, which only root sees of others, and asks the kernel for contexts.
func rdmaUser(device string) string {
	verbs, _ := os.ReadDir("/sys/class/infiniband_verbs")
	for _, v := range verbs {
		dev, err := os.ReadFile(filepath.Join("/sys/class/infiniband_verbs", v.Name(), "ibdev"))
		if err != nil || strings.TrimSpace(string(dev)) != device {
			continue
		}
		file := "/dev/infiniband/" + v.Name()
		if who := findProcess("fd", func(path string) bool {
			to, err := os.Readlink(path)
			return err == nil && to == file
		}); who != "" {
			return who
		}
	}
	h, err := netlink.NewHandle(unix.NETLINK_RDMA)
	if err != nil {
		return ""
	}
	defer h.Close()
	all, err := h.RdmaResourceList()
	if err != nil {
		return ""
	}
	for _, r := range all {
		if r.Name == device && r.RdmaResourceSummaryEntries["ctx"] > 0 {
			return "a program"
		}
	}
	return ""
}
