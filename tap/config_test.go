package tap

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestConfigErrors(t *testing.T) {
	bare := netip.PrefixFrom(netip.MustParseAddr("10.8.0.2"), -1)
	bare6 := netip.PrefixFrom(netip.MustParseAddr("fd00::2"), -1)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, c := range []struct {
		cfg  Config
		want string // in the message
	}{
		{Config{Name: "a234567890123456"}, "has 16 characters: the kernel allows 15"},
		{Config{Name: "sn 0"}, "not an interface name"},
		{Config{Name: "sn/0"}, "not an interface name"},
		{Config{Name: "sn:0"}, "not an interface name"},
		{Config{Name: "sn%d"}, "not an interface name"},
		{Config{Name: "sn\n"}, "not an interface name"},
		{Config{Name: "snö"}, "not an interface name"},
		{Config{Name: ".."}, "not an interface name"},
		{Config{MTU: 335}, "take 336 to 9000"},
		{Config{MTU: 9001}, "take 336 to 9000"},
		{Config{MTU: -1}, "take 336 to 9000"},
		{Config{MTU: 1279, Addrs: prefixes("fd00::2/64")}, "IPv6 needs 1280"},
		{Config{MTU: 1279, HostAddrs: prefixes("fd00::2/64")}, "IPv6 needs 1280"},
		{Config{MAC: mac[:5]}, "must have 6"},
		{Config{MAC: make(net.HardwareAddr, 6)}, "not the address of one station"},
		{Config{MAC: net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}}, "not the address of one station"},
		{Config{Addrs: []netip.Prefix{bare}}, "10.8.0.2 has no prefix length: write 10.8.0.2/24"},
		{Config{HostAddrs: []netip.Prefix{bare6}}, "fd00::2 has no prefix length: write fd00::2/64"},
		{Config{Addrs: make([]netip.Prefix, 1)}, "NIC address is missing"},
		{Config{Addrs: prefixes("10.8.0.0/24")}, "the address of the network itself"},
		{Config{Addrs: prefixes("10.8.3.255/22")}, "the broadcast address of 10.8.0.0/22"},
		{Config{Addrs: prefixes("224.0.0.1/24")}, "not the address of a station"},
		{Config{Addrs: prefixes("127.0.0.1/8")}, "not the address of a station"},
		{Config{Addrs: prefixes("0.0.0.0/0")}, "not the address of a station"},
		{Config{Addrs: prefixes("255.255.255.255/32")}, "not the address of a station"},
		{Config{Addrs: prefixes("::ffff:10.8.0.2/120")}, "write 10.8.0.2"},
		{Config{Addrs: prefixes("10.8.0.2/24", "10.8.0.2/16")}, "NIC address 10.8.0.2 is given twice"},
		{Config{HostAddrs: prefixes("10.8.0.1/24", "10.8.0.1/24")}, "host address 10.8.0.1 is given twice"},
		{Config{Addrs: prefixes("10.8.0.2/24"), HostAddrs: prefixes("10.8.0.2/24")}, "give each its own"},
		{Config{MAC: mac, HostAddrs: prefixes("fe80::ff:fe00:1/64")}, "link-local address of the NIC's MAC"},
	} {
		_, err := c.cfg.check(nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v:\n got %v\nwant %s", c.cfg, err, c.want)
			continue
		}
		if !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "tap ") {
			t.Errorf("%q", err)
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	s, err := (&Config{}).check(nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.name != "sn0" || s.mtu != 1500 || s.log == nil || s.clock == nil || !s.routeHintOK {
		t.Errorf("%+v", s)
	}
	if s.mac[0]&3 != 2 || s.hostMAC[0]&3 != 2 || s.mac == s.hostMAC {
		t.Errorf("MACs %s, %s", s.mac, s.hostMAC)
	}
	again, _ := (&Config{Name: "sn0"}).check(nil)
	if again.mac != s.mac || again.hostMAC != s.hostMAC {
		t.Error("the MAC is not stable")
	}
	for what, other := range map[string]*settings{
		"name":    must((&Config{Name: "sn1"}).check(nil)),
		"machine": must((&Config{}).check([]byte("another"))),
	} {
		if other.mac == s.mac {
			t.Errorf("same MAC with another %s", what)
		}
	}

	// The host's MAC gives way.
	s2 := must((&Config{MAC: net.HardwareAddr(s.hostMAC[:])}).check(nil))
	if s2.mac != s.hostMAC || s2.hostMAC == s2.mac {
		t.Errorf("MACs %s, %s", s2.mac, s2.hostMAC)
	}

	for _, c := range []Config{
		{Name: "a23456789012345", MTU: MinMTU, Addrs: prefixes("10.8.0.2/24")},
		{MTU: MaxMTU, Addrs: prefixes("10.8.0.2/31", "10.8.0.7/32", "fd00::2/128", "fe80::7/64"), HostAddrs: prefixes("10.8.0.3/31", "10.8.0.9/32")},
	} {
		if _, err := c.check(nil); err != nil {
			t.Error(err)
		}
	}
}

// The link-local address of the MAC goes without saying; Info does not list it.
func TestConfigOwnLinkLocal(t *testing.T) {
	s := must((&Config{MAC: net.HardwareAddr(nicMAC[:]), Addrs: prefixes("fe80::53:44ff:fe00:2/64", "10.8.0.2/24")}).check(nil))
	if len(s.addrs) != 1 || s.addrs[0] != netip.MustParsePrefix("10.8.0.2/24") {
		t.Error(s.addrs)
	}
}

func TestRouteHint(t *testing.T) {
	for _, c := range []struct {
		nic, host string
		want      bool
	}{{"10.8.0.2/24", "10.8.0.1/24", true}, {"10.8.1.2/24", "10.8.0.1/24", false}, {"fd00::2/64", "10.8.0.1/24", false}} {
		s := must((&Config{Addrs: prefixes(c.nic), HostAddrs: prefixes(c.host)}).check(nil))
		if s.routeHintOK != c.want {
			t.Errorf("%s, %s: %v", c.nic, c.host, s.routeHintOK)
		}
	}
}

func must(s *settings, err error) *settings {
	if err != nil {
		panic(err)
	}
	return s
}
