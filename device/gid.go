package device

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"

	"github.com/softnic/softnic/link"
)

// GID is a global identifier (ibv_gid): an IPv6 address, or an IPv4 address mapped into
// one, in network order. The zero value is an empty table entry.
type GID [16]byte

// GIDOf returns the GID of an address, without its zone; the zero GID for the zero Addr.
func GIDOf(a netip.Addr) GID { return GID(a.As16()) }

// Addr returns the address, IPv4 as a 4-byte address.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the GID is empty.
func (g GID) IsZero() bool { return g == GID{} }

// String prints the GID as an address, the way rdma-core does.
func (g GID) String() string {
	if a := g.Addr(); a.Is4() {
		return "::ffff:" + a.String()
	}
	return netip.AddrFrom16(g).String()
}

// MarshalText implements encoding.TextMarshaler.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: it takes an address, IPv4 too. The error is no Errno.
func (g *GID) UnmarshalText(b []byte) error {
	a, err := netip.ParseAddr(string(b))
	if err != nil {
		return fmt.Errorf("GID: %w", err)
	}
	*g = GIDOf(a)
	return nil
}

// Hex returns the 32 hex digits that the pingpong tools exchange.
func (g GID) Hex() string { return hex.EncodeToString(g[:]) }

// ParseGIDHex is the reverse of Hex. The error, for what is not 32 hex digits, is no Errno.
func ParseGIDHex(s string) (g GID, err error) {
	if len(s) != 32 {
		return g, fmt.Errorf("GID %q: 32 hex digits expected", s)
	}
	_, err = hex.Decode(g[:], []byte(s))
	return g, err
}

// linkLocal returns the link-local address of a MAC (EUI-64).
func linkLocal(m net.HardwareAddr) netip.Addr {
	if len(m) != 6 {
		m = make([]byte, 6)
	}
	return netip.AddrFrom16([16]byte{0: 0xFE, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xFF, 12: 0xFE, 13: m[3], 14: m[4], 15: m[5]})
}

// nodeGUID returns the EUI-64 of a MAC as the GUID that tools print.
func nodeGUID(m net.HardwareAddr) uint64 {
	a := linkLocal(m).As16()
	var g uint64
	for _, b := range a[8:] {
		g = g<<8 | uint64(b)
	}
	return g
}

// gidTable is an immutable snapshot of the GID table.
type gidTable struct {
	entries [GIDTableLen]GID
	index   map[netip.Addr]int
}

// next returns the table for a changed set of addresses: entries keep their
// place while their address exists. Entry 0 is the link-local address of the MAC,
// entry 1 the first IPv4 address (design decision 13).
func (t *gidTable) next(info link.Info) *gidTable {
	n := &gidTable{index: map[netip.Addr]int{}}
	want := []netip.Addr{linkLocal(info.MAC)}
	for _, p := range info.Addrs {
		if p.Addr().Is4() {
			want = append(want, p.Addr())
			break
		}
	}
	for _, p := range info.Addrs {
		want = append(want, p.Addr().Unmap().WithZone(""))
	}
	put := func(i int, a netip.Addr) {
		n.entries[i] = GIDOf(a)
		n.index[a] = i
	}
	for _, a := range want {
		if t == nil {
			break
		}
		if i, ok := t.index[a]; ok {
			put(i, a)
		}
	}
	for i, a := range want {
		if _, ok := n.index[a]; ok {
			continue
		}
		from := 2
		if i == 0 {
			from = 0
		} else if a.Is4() {
			from = 1
		}
		for k := from; k < GIDTableLen; k++ {
			if n.entries[k].IsZero() {
				put(k, a)
				break
			}
		}
	}
	return n
}

func (t *gidTable) addrs() []netip.Addr {
	l := make([]netip.Addr, 0, len(t.index))
	for a := range t.index {
		l = append(l, a)
	}
	return l
}
