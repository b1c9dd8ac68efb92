package tap

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/softnic/softnic/link"
	"github.com/vishvananda/netlink"
)

// What the kernel makes of our reports: a bridge with multicast snooping lets groups through to the NIC while it is a
// member, and asks with its own querier.
func TestSnooping(t *testing.T) {
	private(t)
	if _, err := exec.LookPath("bridge"); err != nil {
		t.Skip("needs bridge, of iproute2")
	}
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := netlink.LinkAdd(br); err != nil {
		t.Skipf("kernel without bridge: %v", err)
	}
	if err := netlink.LinkSetUp(br); err != nil {
		t.Fatal(err)
	}
	mdb := func() string {
		out, err := exec.Command("bridge", "mdb", "show", "dev", "br0").CombinedOutput()
		if err != nil {
			t.Skipf("bridge mdb: %v: %s", err, out)
		}
		return string(out)
	}
	listed := func(group string) bool {
		for l := range strings.Lines(mdb()) {
			if strings.Contains(l, "port sn0") && strings.Contains(l, " grp "+group+" ") {
				return true
			}
		}
		return false
	}
	tap := open(t, Config{Name: "sn0", MTU: 4200, Addrs: prefixes("10.8.0.1/24", "fd00:8::1/64")})
	l, err := netlink.LinkByName("sn0")
	if err == nil {
		err = netlink.LinkSetMaster(l, br)
	}
	if err != nil {
		t.Fatal(err)
	}
	receive(t, tap)
	for _, group := range []string{"239.129.2.3", "ff0e::ffff:ef01:203"} {
		g := netip.MustParseAddr(group)
		// The bridge's port needs a moment to listen.
		eventually(t, "the bridge to know of "+group, func() bool {
			if err := tap.Leave(g); err != nil {
				t.Fatal(err)
			}
			if err := tap.Join(g, (*link.Queue)(nil)); err != nil {
				t.Fatal(err)
			}
			return listed(group)
		})
	}
}
