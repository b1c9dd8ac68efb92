package tap

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// As in node_test.go, another program made the frames. The groups are 239.129.2.3 and 239.1.2.4, ff0e::ffff:ef01:203
// and ff05::7.
const (
	igmpJoin     = "01005e000016 025344000002 0800 46c0 0028 00004000 0102 f9ef 0a080002 e0000016 94040000 2200 e879 0000000104000000ef810203"
	igmpLeft     = "01005e000016 025344000002 0800 46c0 0028 00004000 0102 f9ef 0a080002 e0000016 94040000 2200 e979 0000000103000000ef810203"
	igmpIs       = "01005e000016 025344000002 0800 46c0 0028 00004000 0102 f9ef 0a080002 e0000016 94040000 2200 ea79 0000000102000000ef810203"
	igmpBoth     = "01005e000016 025344000002 0800 46c0 0030 00004000 0102 f9e7 0a080002 e0000016 94040000 2200 f772 0000000202000000ef01020402000000ef810203"
	igmpNoAddr   = "01005e000016 025344000002 0800 46c0 0028 00004000 0102 03fa 00000000 e0000016 94040000 2200 e879 0000000104000000ef810203"
	igmpOldJoin  = "01005e010203 025344000002 0800 46c0 0020 00004000 0102 e889 0a080002 ef810203 94040000 1600 f87a ef810203"
	igmpOldLeft  = "01005e000002 025344000002 0800 46c0 0020 00004000 0102 fa0b 0a080002 e0000002 94040000 1700 f77a ef810203"
	igmpAsk      = "01005e000001 0253440000a1 0800 46c0 0024 00004000 0102 fa09 0a080001 e0000001 94040000 1164 ec1e 00000000027d0000"
	igmpAskLong  = "01005e000001 0253440000a1 0800 46c0 0024 00004000 0102 fa09 0a080001 e0000001 94040000 1189 ebf9 00000000027d0000"
	igmpAskOne   = "01005e010203 0253440000a1 0800 46c0 0024 00004000 0102 e886 0a080001 ef810203 94040000 110a faf3 ef810203027d0000"
	igmpAskOld   = "01005e000001 0253440000a1 0800 46c0 0020 00004000 0102 0417 00000000 e0000001 94040000 1164 ee9b 00000000"
	igmpAsk1     = "01005e000001 0253440000a1 0800 45c0 001c 00004000 0102 8f16 0a080001 e0000001  1100 eeff 00000000"
	igmpOther    = "01005e000016 0253440000a1 0800 46c0 0028 00004000 0102 f9f0 0a080001 e0000016 94040000 2200 e879 0000000104000000ef810203"
	igmpAskUni   = "01005e000001 0253440000a1 0800 46c0 0020 00004000 0102 fa0d 0a080001 e0000001 94040000 110a e4ea 0a080003"
	igmpAskShort = "01005e000001 0253440000a1 0800 46c0 0022 00004000 0102 fa0b 0a080001 e0000001 94040000 1164 ee9b 000000000000"
	mldJoin      = "333300000016 025344000002 86dd 60000000 0024 00 01 fe80000000000000005344fffe000002 ff020000000000000000000000000016 3a00050200000100 8f00 3ba5 0000000104000000ff0e0000000000000000ffffef010203"
	mldLeft      = "333300000016 025344000002 86dd 60000000 0024 00 01 fe80000000000000005344fffe000002 ff020000000000000000000000000016 3a00050200000100 8f00 3ca5 0000000103000000ff0e0000000000000000ffffef010203"
	mldIs        = "333300000016 025344000002 86dd 60000000 0024 00 01 fe80000000000000005344fffe000002 ff020000000000000000000000000016 3a00050200000100 8f00 3da5 0000000102000000ff0e0000000000000000ffffef010203"
	mldBoth      = "333300000016 025344000002 86dd 60000000 0038 00 01 fe80000000000000005344fffe000002 ff020000000000000000000000000016 3a00050200000100 8f00 3c83 0000000202000000ff05000000000000000000000000000702000000ff0e0000000000000000ffffef010203"
	mldOldJoin   = "3333ef010203 025344000002 86dd 60000000 0020 00 01 fe80000000000000005344fffe000002 ff0e0000000000000000ffffef010203 3a00050200000100 8300 5aaf 00000000ff0e0000000000000000ffffef010203"
	mldOldLeft   = "333300000002 025344000002 86dd 60000000 0020 00 01 fe80000000000000005344fffe000002 ff020000000000000000000000000002 3a00050200000100 8400 4abe 00000000ff0e0000000000000000ffffef010203"
	mldAsk       = "333300000001 0253440000a1 86dd 60000000 0024 00 01 fe80000000000000005344fffe0000a1 ff020000000000000000000000000001 3a00050200000100 8200 12a3 2710000000000000000000000000000000000000027d0000"
	mldAskLong   = "333300000001 0253440000a1 86dd 60000000 0024 00 01 fe80000000000000005344fffe0000a1 ff020000000000000000000000000001 3a00050200000100 8200 b8b2 8100000000000000000000000000000000000000027d0000"
	mldAskOne    = "3333ef010203 0253440000a1 86dd 60000000 0024 00 01 fe80000000000000005344fffe0000a1 ff0e0000000000000000ffffef010203 3a00050200000100 8200 54a7 03e80000ff0e0000000000000000ffffef010203027d0000"
	mldAskOld    = "333300000001 0253440000a1 86dd 60000000 0020 00 01 fe80000000000000005344fffe0000a1 ff020000000000000000000000000001 3a00050200000100 8200 1524 2710000000000000000000000000000000000000"
	mldAskGlobal = "333300000001 0253440000a1 86dd 60000000 0024 00 01 fd000008000000000000000000000001 ff020000000000000000000000000001 3a00050200000100 8200 580e 2710000000000000000000000000000000000000027d0000"
	mldAskHops   = "333300000001 0253440000a1 86dd 60000000 0024 00 40 fe80000000000000005344fffe0000a1 ff020000000000000000000000000001 3a00050200000100 8200 12a3 2710000000000000000000000000000000000000027d0000"
	mldAskUni    = "333300000001 0253440000a1 86dd 60000000 0020 00 01 fe80000000000000005344fffe0000a1 ff020000000000000000000000000001 3a00050200000100 8200 3b41 03e80000fd000008000000000000000000000002"
	mldAskShort  = "333300000001 0253440000a1 86dd 60000000 0022 00 01 fe80000000000000005344fffe0000a1 ff020000000000000000000000000001 3a00050200000100 8200 384a 03e80000000000000000000000000000000000000000"
	mldOther     = "333300000016 0253440000a1 86dd 60000000 0024 00 01 fe80000000000000005344fffe0000a1 ff020000000000000000000000000016 3a00050200000100 8f00 3b06 0000000104000000ff0e0000000000000000ffffef010203"
)

var (
	mc4, mc4b = netip.MustParseAddr("239.129.2.3"), netip.MustParseAddr("239.1.2.4")
	mc6, mc6b = netip.MustParseAddr("ff0e::ffff:ef01:203"), netip.MustParseAddr("ff05::7")
)

func (r *rig) join(groups ...netip.Addr) {
	r.t.Helper()
	for _, g := range groups {
		if err := r.joinGroup(g, r.now); err != nil {
			r.t.Fatal(err)
		}
	}
}

// joined returns a rig that has joined the groups, with all that it had to say about it said.
func joined(t *testing.T, groups ...netip.Addr) *rig {
	r := newRig(t)
	r.join(groups...)
	r.wait(time.Minute)
	r.sent = nil
	return r
}

func TestMembership(t *testing.T) {
	for _, c := range []struct {
		group                        netip.Addr
		join, left, oldJoin, oldLeft string
		askOld                       string
	}{
		{mc4, igmpJoin, igmpLeft, igmpOldJoin, igmpOldLeft, igmpAskOld},
		{mc6, mldJoin, mldLeft, mldOldJoin, mldOldLeft, mldAskOld},
	} {
		t.Run(c.group.String(), func(t *testing.T) {
			r := newRig(t)
			r.join(c.group)
			r.want(c.join)
			r.join(c.group) // again
			r.want()
			r.wait(unsolicited)
			r.want(c.join)
			r.wait(time.Hour)
			r.want()
			r.leaveGroup(c.group, r.now)
			r.want(c.left)
			r.wait(unsolicited)
			r.want(c.left)
			r.wait(time.Hour)
			r.leaveGroup(c.group, r.now) // it was not there
			r.want()
			if len(r.groups.all) != 0 || len(r.groups.pending) != 0 {
				t.Errorf("%d groups left, %d pending", len(r.groups.all), len(r.groups.pending))
			}

			// Joined again before all were told that it had left, and the other way round.
			r.join(c.group)
			r.leaveGroup(c.group, r.now)
			r.join(c.group)
			r.want(c.join, c.left, c.join)
			r.wait(time.Hour)
			r.want(c.join)

			// A router of the older version: it is asked, and answered, in its language, for a while.
			if v := r.in(c.askOld); v != control {
				t.Errorf("verdict %d", v)
			}
			r.wait(10 * time.Second)
			r.want(c.oldJoin)
			r.leaveGroup(c.group, r.now)
			r.wait(time.Minute)
			r.want(c.oldLeft, c.oldLeft)
			r.join(c.group)
			r.wait(time.Minute)
			r.want(c.oldJoin, c.oldJoin)
			r.wait(oldQuerier)
			r.leaveGroup(c.group, r.now)
			r.want(c.left)
			if n := r.count.groupReports.Load(); n != 14 {
				t.Errorf("%d reports counted", n)
			}
		})
	}
}

func TestMembershipQuery(t *testing.T) {
	for _, c := range []struct {
		name, ask string
		within    time.Duration
		want      []string
	}{
		{"IGMPv3, all", igmpAsk, 10 * time.Second, []string{igmpBoth}},
		{"IGMPv3, with a long time", igmpAskLong, 20 * time.Second, []string{igmpBoth}}, // 25 << 3, in tenths
		{"IGMPv3, one group", igmpAskOne, time.Second, []string{igmpIs}},
		{"MLDv2, all", mldAsk, 10 * time.Second, []string{mldBoth}},
		{"MLDv2, with a long time", mldAskLong, 33 * time.Second, []string{mldBoth}}, // 0x1100 << 3 ms = 34.8 s
		{"MLDv2, one group", mldAskOne, time.Second, []string{mldIs}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := joined(t, mc4, mc4b, mc6, mc6b)
			start := r.now
			if v := r.in(c.ask); v != control {
				t.Errorf("verdict %d", v)
			}
			at, ok := r.deadline()
			if len(r.sent) == 0 && !ok {
				t.Fatal("no answer is due")
			}
			if ok && at.Sub(start) > c.within {
				t.Errorf("answer after %v, want at most %v", at.Sub(start), c.within)
			}
			r.wait(time.Minute)
			r.want(c.want...)
		})
	}
	// A query of IGMPv1 names no time.
	r := joined(t, mc4)
	r.in(igmpAsk1)
	if at, ok := r.deadline(); len(r.sent) > 0 || !ok || at.Sub(r.now) > oldResponse {
		t.Error("no answer in ten seconds")
	}
	r.wait(oldResponse)
	r.want(igmpOldJoin)
	// Nothing is said of a group that was left, nor when there is none.
	r = joined(t, mc4)
	r.leaveGroup(mc4, r.now)
	r.want(igmpLeft)
	r.in(igmpAsk)
	r.wait(time.Minute)
	r.want(igmpLeft)
	r.in(igmpAsk)
	r.in(mldAsk)
	r.wait(time.Minute)
	r.want()
	// The link comes up: all hear it anew.
	r = joined(t, mc4, mc6)
	r.announceGroups(r.now)
	r.want(igmpJoin, mldJoin)
	r.wait(time.Minute)
	if len(r.sent) != 2 {
		t.Errorf("%d frames", len(r.sent))
	}
	// Without an IPv4 address.
	r = newRig(t, "fd00:8::2/64")
	r.join(mc4)
	r.want(igmpNoAddr)
}

// These groups are joined, and nobody is told: all nodes, and what stays within a node or has no scope.
func TestMembershipUnreported(t *testing.T) {
	r := newRig(t)
	for _, s := range []string{"224.0.0.1", "ff02::1", "ff01::7", "ff11::7", "ff00::7"} {
		g := netip.MustParseAddr(s)
		r.join(g)
		r.in(igmpAsk)
		r.in(mldAsk)
		r.announceGroups(r.now)
		r.wait(time.Minute)
		r.leaveGroup(g, r.now)
		r.want()
	}
	if len(r.groups.all) != 0 {
		t.Errorf("%d groups left", len(r.groups.all))
	}
	if err := r.joinGroup(host4, r.now); err == nil {
		t.Error("joined a host")
	}
}

// A thousand groups do not fit one report.
func TestMembershipMany(t *testing.T) {
	r := newRig(t)
	const n = 1000
	for i := range n {
		r.join(netip.AddrFrom4([4]byte{239, 5, byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0: 0xFF, 1: 0x0E, 14: byte(i >> 8), 15: byte(i)}))
	}
	r.wait(time.Minute)
	r.sent = nil
	r.in(igmpAsk)
	r.in(mldAsk)
	r.wait(time.Minute)
	records := map[uint16]int{}
	for _, f := range r.sent {
		off, check := ethLen+ip4Len+ip4OptLen, uint64(0)
		if be.Uint16(f[12:]) == typeIPv6 {
			off = ethLen + ip6Len + hopByHopLen
			check = pseudo6(f[ethLen:], len(f)-off)
		}
		if len(f) > ethLen+1280 || fold(sum(f[off:], check)) != 0 {
			t.Fatalf("%d bytes: %x", len(f), f)
		}
		records[be.Uint16(f[12:])] += int(be.Uint16(f[off+6:]))
	}
	if records[typeIPv4] != n || records[typeIPv6] != n || len(r.sent) != 34 {
		t.Errorf("%v records in %d reports", records, len(r.sent))
	}
}

func TestMembershipIgnored(t *testing.T) {
	for _, c := range []struct {
		name, frame string
		want        verdict
	}{
		{"another member's report", igmpOther, ignored},
		{"query for a host", igmpAskUni, malformed},
		{"query of ten bytes", igmpAskShort, malformed},
		{"another member's report of MLD", mldOther, ignored},
		{"query of MLD from a global address", mldAskGlobal, ignored},
		{"query of MLD from afar", mldAskHops, ignored},
		{"query of MLD for a host", mldAskUni, malformed},
		{"query of MLD of 26 bytes", mldAskShort, malformed},
	} {
		r := joined(t, mc4, mc6)
		if v := r.in(c.frame); v != c.want {
			t.Errorf("%s: verdict %d, want %d", c.name, v, c.want)
		}
		r.wait(time.Minute)
		r.want()
	}
	// Cut off anywhere, or with any bit of it wrong that the checksums cover.
	for _, frame := range []string{igmpAsk, igmpAskOld, mldAsk, mldAskOld} {
		b := unhex(t, frame)
		for n := range len(b) {
			r := joined(t, mc4, mc6)
			if v := r.input(b[:n:n]); v != malformed {
				t.Errorf("%d bytes of %s: verdict %d", n, frame, v)
			}
		}
		for i := ethLen + ip4Len; i < len(b); i++ {
			r := joined(t, mc4, mc6)
			b[i] ^= 0x10
			if v := r.input(b); v == control && be.Uint16(b[12:]) == typeIPv4 {
				t.Errorf("byte %d of %s changed: verdict %d", i, frame, v)
			}
			b[i] ^= 0x10
		}
	}
}

// The answers of two stations to one query lie apart.
func TestMembershipSpread(t *testing.T) {
	seen := map[time.Duration]bool{}
	for i := range 50 {
		r := newRig(t)
		r.mac[5] = byte(i)
		d := r.spread(mc4, 10*time.Second)
		if d < 0 || d > 10*time.Second {
			t.Fatal(d)
		}
		seen[d] = true
	}
	if len(seen) < 40 {
		t.Errorf("%d different times for 50 stations: %s", len(seen), fmt.Sprint(seen))
	}
}

// A packet to a group is delivered whatever Ethernet address it came under: senders map groups differently.
func TestMembershipMAC(t *testing.T) {
	for _, frame := range []string{
		mcastRoCE4, mcastRoCE6,
	} {
		for _, mac := range []string{"01005e010203", "3333ef010203", "ffffffffffff", "025344000002"} {
			if v := newRig(t).in(mac + frame[12:]); v != deliver {
				t.Errorf("%s to %s: verdict %d", frame, mac, v)
			}
		}
		if v := newRig(t).in("0253440000bb" + frame[12:]); v != foreign {
			t.Errorf("to another station: verdict %d", v)
		}
	}
}

const (
	mcastRoCE4 = "01005e010203 0253440000a1 0800 4500 0020 0000 4000 40 11 0000 0a080001 ef810203 c000 12b7 000c 0000 00000000"
	mcastRoCE6 = "3333ef010203 0253440000a1 86dd 60000000 000c 11 40 fd000008000000000000000000000001 ff0e0000000000000000ffffef010203 c000 12b7 000c 0000 00000000"
)
