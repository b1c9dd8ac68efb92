//go:build !linux

package udp

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/softnic/softnic/link"
)

// members has no part here: see mcast_linux.go.
type members struct{}

func (members) close() {}

// Join implements link.Multicaster.
func (e *Endpoint) Join(group netip.Addr, _ *link.Queue) error {
	return fmt.Errorf("udp: multicast groups are received on Linux only: %w", errors.ErrUnsupported)
}

// Leave implements link.Multicaster.
func (e *Endpoint) Leave(netip.Addr) error { return nil }
