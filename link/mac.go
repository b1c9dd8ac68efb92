package link

import (
	"hash/fnv"
	"net"
	"net/netip"
)

// MakeMAC makes up a locally administered MAC for a NIC on a link without one: 02:00
// and the bytes of an IPv4 address, else 06 and a hash of the IPv6 address. The
// same address always gives the same MAC, since the GID of the port and its GUID
// follow from it.
func MakeMAC(a netip.Addr) net.HardwareAddr {
	a = a.Unmap()
	if a.Is4() {
		b := a.As4()
		return net.HardwareAddr{0x02, 0x00, b[0], b[1], b[2], b[3]}
	}
	h := fnv.New64a()
	b := a.As16()
	h.Write(b[:])
	s := h.Sum64()
	return net.HardwareAddr{0x06, byte(s >> 32), byte(s >> 24), byte(s >> 16), byte(s >> 8), byte(s)}
}
