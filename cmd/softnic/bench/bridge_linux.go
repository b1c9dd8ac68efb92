package bench

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// bridge makes a bridge with both interfaces on it.
func (p *Pair) bridge(names ...string) error {
	failed := func(err error) error {
		return fmt.Errorf("bridge %s: %w: it needs CAP_NET_ADMIN, as a TAP does", bridgeName, err)
	}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}
	if err := netlink.LinkAdd(br); err != nil {
		return failed(err)
	}
	p.ends = append(p.ends, func() error { return netlink.LinkDel(br) })
	for _, n := range names {
		l, err := netlink.LinkByName(n)
		if err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
		if err != nil {
			return failed(err)
		}
	}
	if err := netlink.LinkSetUp(br); err != nil {
		return failed(err)
	}
	return nil
}
