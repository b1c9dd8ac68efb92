package tap

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/softnic/softnic/link"
)

var _ link.Multicaster = (*Tap)(nil)

// Join tells the link that the NIC listens to a group. Packets to groups come in by Recv, whatever their Ethernet
// address; the device knows which of them it wants.
func (t *Tap) Join(group netip.Addr, _ *link.Queue) error {
	if t.ended.Load() {
		return net.ErrClosed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	if err := t.node.joinGroup(group, now); err != nil {
		return fmt.Errorf("tap %s: %w", t.name, err)
	}
	t.arm(now)
	return nil
}

// Leave tells the link that the NIC listens no more.
func (t *Tap) Leave(group netip.Addr) error {
	if t.ended.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	t.node.leaveGroup(group, now)
	t.arm(now)
	return nil
}
