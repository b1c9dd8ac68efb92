package tap

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/softnic/softnic/clock"
)

// Limits of Config.MTU, in bytes. The least is the smallest RDMA payload with 80 bytes
// of headers around it; IPv6 needs 1280.
const (
	MinMTU     = 256 + 80
	MaxMTU     = 9000
	defaultMTU = 1500
	minMTU6    = 1280
)

// maxName is IFNAMSIZ without the final zero.
const maxName = 15

// ErrConfig is in every error about a Config that cannot work; errors.Is finds it.
var ErrConfig = errors.New("tap: invalid configuration")

// kindError is an error of a kind that its text need not spell out.
type kindError struct {
	text string
	kind error
}

func (e *kindError) Error() string { return e.text }
func (e *kindError) Unwrap() error { return e.kind }

func errorOf(kind error, format string, args ...any) error {
	return &kindError{fmt.Sprintf(format, args...), kind}
}

// Config says what Open makes.
type Config struct {
	Name      string           // of the interface, at most 15 characters; "" means sn0
	Addrs     []netip.Prefix   // the NIC's own, in order of precedence; none: it has just the link-local one of its MAC
	HostAddrs []netip.Prefix   // put on the host's side of the interface; none: that is the user's business (a bridge)
	MTU       int              // largest IP packet, MinMTU to MaxMTU; 0 means 1500. RDMA's 4096 needs 4200
	MAC       net.HardwareAddr // the NIC's; nil means one made from the name, the same at each start on this machine
	Plain     bool             // the host gets and gives each packet alone: no bursts
	Clock     clock.Clock      // neighbour timers run by it; nil means clock.Real
	Logger    *slog.Logger     // nil means silent
}

// settings is a Config after the check: nothing is missing and nothing is
// wrong.
type settings struct {
	name        string
	addrs       []netip.Prefix
	host        []netip.Prefix
	mtu         int
	mac         hw // the NIC's
	hostMAC     hw // the host's side
	plain       bool
	clock       clock.Clock
	log         *slog.Logger
	linkLocal   netip.Addr
	routeHintOK bool // some NIC address and some host address share a prefix, or one side has none
}

// check turns a Config into settings; machine is what tells this machine from others.
func (c *Config) check(machine []byte) (*settings, error) {
	s := &settings{name: c.Name, mtu: c.MTU, plain: c.Plain, clock: clock.Or(c.Clock), log: c.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.name == "" {
		s.name = "sn0"
	}
	if err := checkName(s.name); err != nil {
		return nil, err
	}
	fail := func(format string, args ...any) error {
		return errorOf(ErrConfig, "tap %s: %s", s.name, fmt.Sprintf(format, args...))
	}

	if s.mtu == 0 {
		s.mtu = defaultMTU
	}
	if s.mtu < MinMTU || s.mtu > MaxMTU {
		return nil, fail("MTU %d is out of range: take %d to %d; RDMA payloads of 4096 bytes need 4200", s.mtu, MinMTU, MaxMTU)
	}

	switch {
	case c.MAC == nil:
		s.mac = deriveMAC(s.name, "nic", machine)
	case len(c.MAC) != 6:
		return nil, fail("MAC %s has %d bytes: it must have 6", c.MAC, len(c.MAC))
	default:
		s.mac = hw(c.MAC)
		if !s.mac.unicast() {
			return nil, fail("MAC %s is not the address of one station: the first byte must be even and not all bytes zero", c.MAC)
		}
	}
	s.hostMAC = deriveMAC(s.name, "host", machine)
	if s.hostMAC == s.mac {
		s.hostMAC[5] ^= 1
	}
	s.linkLocal = s.mac.linkLocal()

	seen := map[netip.Addr]string{}
	for _, side := range []struct {
		what string
		in   []netip.Prefix
		out  *[]netip.Prefix
	}{{"NIC", c.Addrs, &s.addrs}, {"host", c.HostAddrs, &s.host}} {
		for _, p := range side.in {
			a := p.Addr()
			if err := checkAddr(p, s.mtu); err != nil {
				return nil, fail("%s address %v", side.what, err)
			}
			switch before := seen[a]; {
			case before == side.what:
				return nil, fail("%s address %s is given twice", side.what, a)
			case before != "":
				return nil, fail("%s is the address of the NIC and of the host: they are two stations, give each its own", a)
			}
			seen[a] = side.what
			if a != s.linkLocal {
				*side.out = append(*side.out, p)
			} else if side.what == "host" {
				return nil, fail("host address %s is the link-local address of the NIC's MAC: choose another", a)
			}
		}
	}
	s.routeHintOK = len(s.addrs) == 0 || len(s.host) == 0 || slices.ContainsFunc(s.addrs, func(n netip.Prefix) bool {
		return slices.ContainsFunc(s.host, func(h netip.Prefix) bool { return h.Contains(n.Addr()) })
	})
	return s, nil
}

// checkName applies the kernel's rules for interface names, and refuses the
// patterns (%d) that it would fill in.
func checkName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("/:%", r) }
	switch {
	case len(name) > maxName:
		return errorOf(ErrConfig, "tap %s: the interface name has %d characters: the kernel allows %d", name, len(name), maxName)
	case name == "." || name == ".." || strings.ContainsFunc(name, bad):
		return errorOf(ErrConfig, "tap %q: not an interface name: use letters, digits, '-', '_' and '.'", name)
	}
	return nil
}

// checkAddr says what is wrong with a station's address, in words that follow
// "NIC address".
func checkAddr(p netip.Prefix, mtu int) error {
	a := p.Addr()
	switch {
	case !a.IsValid():
		return errors.New("is missing: write it with the prefix length, as 10.8.0.2/24")
	case !p.IsValid():
		return fmt.Errorf("%s has no prefix length: write %s", a, netip.PrefixFrom(a, map[bool]int{true: 24, false: 64}[a.Is4()]))
	case a.Is4In6():
		return fmt.Errorf("%s is IPv4 in IPv6 form: write %s", a, a.Unmap())
	case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is not the address of a station on a network", a)
	case a.Is6() && mtu < minMTU6:
		return fmt.Errorf("%s does not work with MTU %d: IPv6 needs %d", a, mtu, minMTU6)
	case a.Is4() && p.Bits() < 31 && a == p.Masked().Addr():
		return fmt.Errorf("%s is the address of the network itself: choose another in %s", a, p.Masked())
	case a.Is4() && p.Bits() < 31 && a == lastAddr(p):
		return fmt.Errorf("%s is the broadcast address of %s: choose another", a, p.Masked())
	}
	return nil
}

// lastAddr returns the highest address of an IPv4 prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// deriveMAC makes a locally administered unicast address that stays the same
// for a name on a machine. The machine is part of it because two
// machines may bridge interfaces of one name to one network.
func deriveMAC(name, side string, machine []byte) hw {
	h := sha256.New()
	fmt.Fprintf(h, "softnic tap %q %s ", name, side)
	h.Write(machine)
	m := hw(h.Sum(nil)[:6])
	m[0] = m[0]&^0x01 | 0x02
	return m
}

// machineID returns what tells this machine from others, empty where the
// system does not say.
func machineID() []byte {
	id, _ := os.ReadFile("/etc/machine-id")
	return bytes.TrimSpace(id)
}
