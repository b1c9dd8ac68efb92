//go:build linux

package guest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/udp"
)

// untimed connects without retry timers, at both ends: a packet that is lost stops the test, and the kernel's device, whose
// timer goes on after the answer to what armed it, repeats nothing that was answered.
var untimed = device.ConnectOptions{Timeout: -1}

// TestTapData moves seeded patterns between softnic on a TAP and a program on the kernel's device, with every operation,
// both ways, and compares every byte.
func TestTapData(t *testing.T) {
	needGuest(t)
	for _, c := range []struct {
		netMTU, mtu int
		near, far   string
		sizes       []int
	}{
		{1500, 1024, "10.8.0.2", "10.8.0.1", []int{1, 1023, 1024, 1025, 4096, 65536, 1 << 17}},
		{4200, 4096, "10.8.0.2", "10.8.0.1", []int{1, 4096, 4097, 65536}},
		{1500, 1024, "fd00:8::2", "fd00:8::1", []int{1, 1024, 65536}},
		{4200, 2048, "fd00:8::2", "fd00:8::1", []int{2049}},
	} {
		near, far := netip.MustParseAddr(c.near), netip.MustParseAddr(c.far)
		t.Run(fmt.Sprintf("mtu%d-%d-%s", c.netMTU, c.mtu, map[bool]string{true: "ipv4", false: "ipv6"}[near.Is4()]), func(t *testing.T) {
			n, dev := openTap(t, c.netMTU, "data.pcap")
			tcpdump := startCapture(t, options{}, "sn0", "data.pcap", "udp", "port", "4791")
			v := startVerbs(t, options{}, dev.Name)
			before := dev.Counters(t)
			p := connectRC(t, n, dev, v, near, far, c.mtu, 1<<20, untimed)
			for i, size := range c.sizes {
				p.exchange(t, size, uint64(100*i))
			}
			quiet(t, n, dev.Counters(t).Since(before))
			tcpdump.Stop()
		})
	}
}

// TestTapBursts is TestTapData with bursts, which tcpdump would show as one packet each: the kernel's device takes every packet of them,
// and softnic what it answers.
func TestTapBursts(t *testing.T) {
	needGuest(t)
	for _, c := range []struct {
		netMTU, mtu int
		near, far   string
		sizes       []int
	}{
		{1500, 1024, "10.8.0.2", "10.8.0.1", []int{1024, 1025, 4096, 65536, 1 << 17}},
		{4200, 4096, "10.8.0.2", "10.8.0.1", []int{4097, 65536, 65537}},
		{1500, 256, "fd00:8::2", "fd00:8::1", []int{257, 65536}},
		{4200, 4096, "fd00:8::2", "fd00:8::1", []int{4097, 1 << 17}},
	} {
		near, far := netip.MustParseAddr(c.near), netip.MustParseAddr(c.far)
		t.Run(fmt.Sprintf("mtu%d-%d-%s", c.netMTU, c.mtu, map[bool]string{true: "ipv4", false: "ipv6"}[near.Is4()]), func(t *testing.T) {
			n, dev := openTapConfig(t, tapConfig(c.netMTU), "bursts.pcap", link.PortOptions{})
			if i := n.dev.Port().Info(); i.MaxSegs < 2 {
				t.Fatalf("%d packets a burst", i.MaxSegs)
			}
			v := startVerbs(t, options{}, dev.Name)
			before := dev.Counters(t)
			p := connectRC(t, n, dev, v, near, far, c.mtu, 1<<20, untimed)
			for i, size := range c.sizes {
				p.exchange(t, size, uint64(100*i))
			}
			quiet(t, n, dev.Counters(t).Since(before))
		})
	}
}

// TestTapDatagrams does the same as TestTapData for UD, up to the MTU.
func TestTapDatagrams(t *testing.T) {
	needGuest(t)
	n, dev := openTap(t, 1500, "datagrams.pcap")
	tcpdump := startCapture(t, options{}, "sn0", "datagrams.pcap", "udp", "port", "4791")
	v := startVerbs(t, options{}, dev.Name)
	before := dev.Counters(t)
	const qkey = 0x11111111
	for _, c := range []struct{ near, far string }{{"10.8.0.2", "10.8.0.1"}, {"fd00:8::2", "fd00:8::1"}} {
		near, far := netip.MustParseAddr(c.near), netip.MustParseAddr(c.far)
		q, vq := n.qp(device.UD), v.CreateQP("UD")
		if err := q.Activate(qkey, 0); err != nil {
			t.Fatal(err)
		}
		vq.Datagrams(qkey, 0)
		ah, err := n.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(far), SGIDIndex: gidIndex(t, n.dev, near)})
		if err != nil {
			t.Fatal(err)
		}
		vah := v.CreateAH(dev.GIDIndex(t, far), near)
		mr, vmr := n.mr(2048), v.RegMR(2048, accessAll)
		for i, size := range []int{0, 1, 1000, 1024} {
			seeded(uint64(i), mr.Bytes()[:size])
			vmr.Write(0, make([]byte, 2048))
			vq.PostRecv(1, vmr, 0, 40+size)
			n.post(q, device.SendWR{Op: device.OpSendImm, Imm: 7, SGE: []device.SGE{mr.SGE(0, size)}, AH: ah, RemoteQPN: vq.QPN, RemoteQKey: qkey})
			n.completion(device.WCSend)
			wc := vq.RecvCompletions(1)[0]
			if wc.Status != 0 || wc.ByteLen != 40+size || wc.SrcQP != q.Num() || wc.Imm != 7 {
				t.Fatalf("rxe's completion of %d bytes: %+v", size, wc)
			}
			if size > 0 {
				same(t, "softnic's datagram", vmr.Read(40, size), mr.Bytes()[:size])
			}

			pattern := seeded(uint64(50+i), make([]byte, max(size, 1)))
			vmr.Write(0, pattern)
			n.recv(q, mr.SGE(0, 40+size))
			vq.PostSend(sendWR{Opcode: "SEND", MR: vmr, Length: size, AH: vah, RemoteQPN: q.Num(), QKey: qkey})
			if wc := vq.SendCompletions(1)[0]; wc.Status != 0 {
				t.Fatalf("rxe's send: status %d", wc.Status)
			}
			got := n.completion(device.WCRecv)
			if got.ByteLen != uint32(40+size) || got.SrcQP != vq.QPN || got.Flags&device.WCGRH == 0 {
				t.Fatalf("softnic's completion of %d bytes: %+v", size, got)
			}
			same(t, "rxe's datagram", mr.Bytes()[40:40+size], pattern[:size])
			checkGRH(t, mr.Bytes()[:40], far, near)
		}
	}
	quiet(t, n, dev.Counters(t).Since(before))
	tcpdump.Stop()
}

// checkGRH reads the addresses out of a GRH area: IPv4 in the last 20 bytes, IPv6 in all 40.
func checkGRH(t testing.TB, area []byte, src, dst netip.Addr) {
	t.Helper()
	var s, d netip.Addr
	if src.Is4() {
		s, d = netip.AddrFrom4([4]byte(area[32:36])), netip.AddrFrom4([4]byte(area[36:40]))
		if area[20] != 0x45 {
			t.Errorf("GRH area holds no IPv4 header at 20: %x", area)
		}
	} else {
		s, d = netip.AddrFrom16([16]byte(area[8:24])), netip.AddrFrom16([16]byte(area[24:40]))
		if area[0]>>4 != 6 {
			t.Errorf("GRH area holds no IPv6 header: %x", area)
		}
	}
	if s != src || d != dst {
		t.Errorf("GRH area says %v to %v, want %v to %v", s, d, src, dst)
	}
}

// TestUDPData is TestTapData in short with softnic in UDP mode, in a network namespace across a veth pair.
func TestUDPData(t *testing.T) {
	needGuest(t)
	for _, c := range []struct{ near, far string }{{"10.9.0.2", "10.9.0.1"}, {"fd00:9::2", "fd00:9::1"}} {
		near, far := netip.MustParseAddr(c.near), netip.MustParseAddr(c.far)
		t.Run(map[bool]string{true: "ipv4", false: "ipv6"}[near.Is4()], func(t *testing.T) {
			n, dev := udpLab(t, near, "data.pcap", udp.Options{})
			tcpdump := startCapture(t, options{Netns: "far"}, "v1", "data.pcap", "udp", "port", "4791")
			v := startVerbs(t, options{}, dev.Name)
			before := dev.Counters(t)
			p := connectRC(t, n, dev, v, near, far, 1024, 1<<16, untimed)
			for i, size := range []int{1, 1025, 65536} {
				p.exchange(t, size, uint64(100*i))
			}
			quiet(t, n, dev.Counters(t).Since(before))
			tcpdump.Stop()
		})
	}
}

// udpLab puts rxe on one end of a veth pair and softnic in UDP mode on the other, in namespace "far".
func udpLab(t testing.TB, near netip.Addr, name string, o udp.Options) (*nic, rxe) {
	t.Helper()
	newNetns(t, "far")
	newVeth(t, 1500, vethEnd{Name: "v0", Addrs: []string{"10.9.0.1/24", "fd00:9::1/64"}},
		vethEnd{Name: "v1", Netns: "far", Addrs: []string{"10.9.0.2/24", "fd00:9::2/64"}})
	dev := addRxe(t, "rxe0", "v0")
	return openUDP(t, "far", near, name, o), dev
}
