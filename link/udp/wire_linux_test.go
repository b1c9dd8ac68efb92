package udp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// sniff opens a packet socket on the loopback interface, which sees IP packets as they are sent.
func sniff(tb testing.TB) int {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Skip("this test looks at the wire through a packet socket and needs CAP_NET_RAW: ", err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	lo, err := loopback()
	if err != nil {
		tb.Skip("no loopback interface: ", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
	var typ [2]byte
	binary.BigEndian.PutUint16(typ[:], unix.ETH_P_ALL)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(typ[:]), Ifindex: lo}); err != nil {
		tb.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		tb.Fatal(err)
	}
	return fd
}

// Case 03, transmit, over a UDP socket: what the capture shows is what the host sent, byte by byte,
// with ID 0 and DF, and every ICRC is right.
func TestWire(t *testing.T) {
	fd := sniff(t)
	sink := new(linktest.Sink)
	p := linktest.Port(t, openWith(t, "127.77.0.5", Options{Plain: true}), link.PortOptions{Capture: sink})
	plain(t, "127.77.0.6:4791") // so that nobody answers "port unreachable"
	path := linktest.Path("127.77.0.5", "127.77.0.6")
	other := *path
	other.TClass, other.HopLimit = 0xBB, 3
	const n = 1000
	for i := 0; i < n; i += 10 {
		var pkts []*wire.Packet
		for j := i; j < i+10; j++ {
			pk := linktest.Send(path, 17, bth.PSN(j), bytes.Repeat([]byte{byte(j)}, j*4%4097))
			if j%3 == 0 {
				pk.Path = &other
			}
			pkts = append(pkts, pk)
		}
		if err := p.Send(pkts); err != nil {
			t.Fatal(err)
		}
	}
	captured := sink.Take()
	if len(captured) != n {
		t.Fatalf("%d packets captured", len(captured))
	}
	buf := make([]byte, 65536)
	for i := 0; i < n; {
		k, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatalf("after %d packets: %v", i, err)
		}
		ip := buf[:k]
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING ||
			k < 28 || ip[0] != 0x45 || netip.AddrFrom4([4]byte(ip[12:])) != path.Src || ip[9] != 17 {
			continue // loopback shows each packet twice, and other programs'
		}
		if id, frag := binary.BigEndian.Uint16(ip[4:]), binary.BigEndian.Uint16(ip[6:]); id != 0 || frag != 0x4000 {
			t.Fatalf("packet %d: ID %d, fragment field %04x", i, id, frag)
		}
		if w, g := linktest.ICRC(ip); w != g {
			t.Fatalf("packet %d: ICRC %08x, want %08x", i, g, w)
		}
		if !bytes.Equal(ip, captured[i].Bytes) {
			t.Fatalf("packet %d on the wire\n%x, captured\n%x", i, ip[:40], captured[i].Bytes[:40])
		}
		i++
	}
}

func TestIDRule(t *testing.T) {
	e := open(t, addrA)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	if r := e.Info().IDRule; r != "verified" && r != "unverified" || (err == nil) != (r == "verified") {
		t.Errorf("rule %q, packet socket: %v", r, err)
	}
	if ok, err2 := verifyID(netip.MustParseAddr(addrA)); err == nil && (!ok || err2 != nil) {
		t.Errorf("verify: %v, %v", ok, err2)
	}
}

// A port in use is reported with the program that holds it.
func TestPortHolder(t *testing.T) {
	comm, _ := os.ReadFile("/proc/self/comm")
	holder := fmt.Sprintf("is taken by %s (pid %d): stop it or use another address", strings.TrimSpace(string(comm)), os.Getpid())
	for name, c := range map[string]struct{ network, held, want string }{
		"the address":   {"udp4", "127.77.0.7", "127.77.0.7"},
		"all addresses": {"udp4", "0.0.0.0", "127.77.0.7"},
		"all of IPv6":   {"udp", "::", "127.77.0.7"},
		"IPv6":          {"udp6", "::1", "::1"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUDP(c.network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.held), 0)))
			if err != nil {
				t.Skip("cannot hold a port: ", err)
			}
			defer l.Close()
			a := netip.AddrPortFrom(netip.MustParseAddr(c.want), l.LocalAddr().(*net.UDPAddr).AddrPort().Port())
			e, err := Open(a, Options{})
			if err == nil {
				e.Close()
			}
			w := fmt.Sprintf("udp: port %d on %s %s", a.Port(), c.want, holder)
			if err == nil || err.Error() != w {
				t.Errorf("error %v\nwant  %s", err, w)
			}
		})
	}
	// A port that no program holds is the kernel's.
	if h := portHolder(netip.MustParseAddrPort("127.77.0.7:9")); !strings.HasPrefix(h, "the kernel (rdma_rxe") {
		t.Error(h)
	}
	if procs, _ := filepath.Glob("/proc/[0-9]*"); len(procs) > 0 {
		if pid, _, _ := socketOwner("1"); pid != "" {
			t.Errorf("process %s has a socket that does not exist", pid)
		}
	}
}

func TestTableAddr(t *testing.T) {
	word := func(b ...byte) string { return fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b)) }
	a, ok := tableAddr(word(127, 0, 0, 2) + ":12B7")
	if !ok || a.String() != "127.0.0.2:4791" {
		t.Error(a)
	}
	a, ok = tableAddr(word(0x20, 1, 0xD, 0xB8) + word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0, 1) + ":0001")
	if !ok || a.String() != "[2001:db8::1]:1" {
		t.Error(a)
	}
	for _, s := range []string{"", "local_address", "0100007F", "0100007F:", "01:0001", "0100007F:10000"} {
		if a, ok := tableAddr(s); ok {
			t.Errorf("%q: %v", s, a)
		}
	}
}

// round is a burst of 16 packets from one port to another and back into the program.
func round(tb testing.TB, size int) (send, receive func()) {
	a, b := linktest.Port(tb, open(tb, "127.77.0.8"), link.PortOptions{}), linktest.Port(tb, open(tb, "127.77.0.9"), link.PortOptions{})
	path := linktest.Path("127.77.0.8", "127.77.0.9")
	path.TClass = 2
	var pkts []*wire.Packet
	for i := range 16 {
		pkts = append(pkts, linktest.Send(path, 17, bth.PSN(i), make([]byte, size)))
	}
	batch, src := link.NewBatch(32), b.Sources()[0]
	send = func() {
		if err := a.Send(pkts); err != nil {
			tb.Fatal(err)
		}
	}
	receive = func() {
		for n := 0; n < len(pkts); {
			if err := src.Recv(batch, true); err != nil {
				tb.Fatal(err)
			}
			b.Parse(batch)
			for i := range batch.Packets {
				if f := batch.Packets[i].Fault; f != wire.OK {
					tb.Fatal(f)
				}
			}
			b.Done(batch)
			n += len(batch.Packets)
		}
	}
	return send, receive
}

func TestNoAllocations(t *testing.T) {
	send, receive := round(t, 1024)
	send()
	receive()
	if n := testing.AllocsPerRun(100, func() { send(); receive() }); n != 0 {
		t.Errorf("%v allocations for 16 packets", n)
	}
}

func BenchmarkLoopback(b *testing.B) {
	for _, size := range []int{8, 1024, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			send, receive := round(b, size)
			b.ReportAllocs()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var tx, rx int64
			for b.Loop() {
				t0 := cputime()
				send()
				t1 := cputime()
				receive()
				tx, rx = tx+t1-t0, rx+cputime()-t1
			}
			n := float64(b.N) * 16
			b.ReportMetric(float64(tx)/n, "tx-cpu-ns/packet")
			b.ReportMetric(float64(rx)/n, "rx-cpu-ns/packet")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// cputime is the time that this thread has used: steadier than the wall clock on a busy machine.
func cputime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano()
}
