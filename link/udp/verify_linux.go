package udp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// idRule returns how the IP ID of what a socket of ours sends is known: "verified" when a
// datagram was seen with DF and ID 0, ruleBroken when with anything else,
// "unverified" when this user may not look. The rule is the kernel's, the same for
// all addresses: it is looked at once.
func idRule(a netip.Addr) string {
	rule.once.Do(func() {
		switch ok, err := verifyID(a); {
		case err != nil:
			rule.text = "unverified"
		case ok:
			rule.text = "verified"
		default:
			rule.text = ruleBroken
		}
	})
	return rule.text
}

var rule struct {
	once sync.Once
	text string
}

var errNotSeen = errors.New("the datagram was not seen")

// verifyID sends two datagrams from a socket with the options of an endpoint to itself and looks
// at them through a packet socket. Whatever the address, a host talks to itself
// over its loopback interface.
func verifyID(a netip.Addr) (bool, error) {
	lo, err := loopback()
	if err != nil {
		return false, err
	}
	tap, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err // EPERM without CAP_NET_RAW
	}
	defer unix.Close(tap)
	ipv4 := [2]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xFF}
	if err := unix.Bind(tap, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(ipv4[:]), Ifindex: lo}); err != nil {
		return false, err
	}
	if err := unix.SetsockoptTimeval(tap, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		return false, err
	}
	c, err := listen(netip.AddrPortFrom(a, 0))
	if err != nil {
		return false, err
	}
	defer c.Close()
	self := c.LocalAddr().(*net.UDPAddr).AddrPort()
	for range 2 { // a counter may be at 0 once
		if _, err := c.WriteToUDPAddrPort([]byte("softnic"), self); err != nil {
			return false, err
		}
	}
	seen := 0
	var p [2048]byte
	for range 1000 { // other traffic on the interface
		n, _, err := unix.Recvfrom(tap, p[:], 0)
		if err != nil {
			break
		}
		if n < 28 || p[0] != 0x45 || p[9] != unix.IPPROTO_UDP ||
			binary.BigEndian.Uint16(p[20:]) != self.Port() || binary.BigEndian.Uint16(p[22:]) != self.Port() {
			continue
		}
		if binary.BigEndian.Uint32(p[4:]) != 0x4000 { // ID 0, DF, no fragment
			return false, nil
		}
		if seen++; seen == 2 {
			return true, nil
		}
	}
	return false, errNotSeen
}

func loopback() (int, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 {
			return i.Index, nil
		}
	}
	return 0, errNotSeen
}
