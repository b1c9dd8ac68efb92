package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
)

// openError turns the error of a socket into a line that says what to do.
func openError(addr netip.AddrPort, err error) error {
	a := addr.Addr()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("udp: port %d on %v is taken by %s", addr.Port(), a, portHolder(addr))
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("udp: %v is not an address of this host; have: %s", a, hostAddrs())
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("udp: this user may not use port %d on %v: %w", addr.Port(), a, err)
	case errors.Is(err, syscall.EAFNOSUPPORT):
		return fmt.Errorf("udp: this host has no IPv%d, which %v needs: use another address", version(a), a)
	}
	return fmt.Errorf("udp: cannot open %v: %w", addr, err)
}

func version(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}
