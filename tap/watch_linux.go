package tap

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/softnic/softnic/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watcher listens for the kernel's news about the interface.
type watcher struct {
	sock *nl.NetlinkSocket
	done chan struct{} // closed when it no longer listens
}

// startWatch subscribes, then reads the state, so that no change falls between.
func (t *Tap) startWatch() error {
	sock, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return err
	}
	t.dev.watch = watcher{sock: sock, done: make(chan struct{})}
	t.refresh()
	go t.listen()
	go func() { // f may call Close, which waits for listen: so it has a goroutine of its own
		for range t.dirty {
			if f := t.watch.Load(); f != nil {
				(*f)()
			}
		}
	}()
	return nil
}

// stopWatch returns when nothing is read through t.dev any more.
func (t *Tap) stopWatch() {
	t.dev.watch.sock.Close()
	<-t.dev.watch.done
}

func (t *Tap) listen() {
	defer close(t.dev.watch.done)
	defer close(t.dirty)
	for !t.ended.Load() {
		msgs, _, err := t.dev.watch.sock.Receive()
		if err != nil {
			if !errors.Is(err, unix.ENOBUFS) { // news lost: look anew
				if !t.ended.Load() {
					t.log.Warn("changes of the interface are no longer seen", "error", err)
				}
				return
			}
			t.refresh()
			continue
		}
		for _, m := range msgs {
			// Messages of links and of addresses have the index in one place.
			if len(m.Data) >= 8 && int(nl.NativeEndian().Uint32(m.Data[4:8])) == t.dev.index {
				t.refresh()
				break
			}
		}
	}
}

// refresh reads the interface's state into Info and the node. What the messages
// say is not used: they may be lost, and this way there is one reader of the truth.
func (t *Tap) refresh() {
	old := t.info.Load()
	now := link.Info{
		Name: "tap " + t.name, Netdev: t.name, MTU: MaxMTU, MAC: t.mac, Addrs: t.addrs,
		SeesIP: true, Ethernet: true, MaxSegs: 1, IDRule: "written",
	}
	if t.vnet {
		now.MaxSegs = maxSegs
	}
	if old != nil {
		now = *old
	}
	l, err := t.dev.h.LinkByIndex(t.dev.index)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		t.gone.Store(true)
		now.Up = false
	case err != nil:
		t.log.Debug("the interface's state cannot be read", "error", err)
		return
	default:
		a := l.Attrs()
		now.Netdev, now.MTU = a.Name, min(a.MTU, MaxMTU)
		now.Up = a.Flags&net.FlagUp != 0 && a.Flags&net.FlagRunning != 0
		t.refreshGateways(l)
	}
	changed := old == nil || old.Up != now.Up || old.MTU != now.MTU || old.Netdev != now.Netdev
	if !changed {
		return
	}
	if old != nil && old.Up && !now.Up {
		now.Downs++
	}
	t.info.Store(&now)
	if now.Up && (old == nil || !old.Up) {
		t.mu.Lock()
		at := t.clock.Now()
		t.node.announce()
		t.node.announceGroups(at)
		t.arm(at)
		t.mu.Unlock()
	}
	if old == nil {
		return
	}
	select {
	case t.dirty <- struct{}{}:
	default: // one is on its way and will find this too
	}
}

// refreshGateways finds the host's addresses on the interface that forward: the
// first configured one of each family, else the first that there is.
func (t *Tap) refreshGateways(l netlink.Link) {
	list, err := t.dev.h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		t.log.Debug("the interface's addresses cannot be read", "error", err)
		return
	}
	have := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.Unmap().IsLinkLocalUnicast() {
			have = append(have, ip.Unmap())
		}
	}
	first := func(is4 bool) netip.Addr {
		for _, p := range t.host {
			if p.Addr().Is4() == is4 && slices.Contains(have, p.Addr()) {
				return p.Addr()
			}
		}
		for _, a := range have {
			if a.Is4() == is4 {
				return a
			}
		}
		return netip.Addr{}
	}
	t.mu.Lock()
	t.node.gateway4, t.node.gateway6 = first(true), first(false)
	t.mu.Unlock()
}
