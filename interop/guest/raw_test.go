//go:build linux

package guest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/tap"
)

// bareTap makes a softnic on a TAP whose host's side has no RDMA device.
func bareTap(t *testing.T, mtu int, name string) *nic {
	t.Helper()
	ep, err := tap.Open(tap.Config{
		Name: "sn0", MTU: mtu,
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.2/24")}, HostAddrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return openNIC(t, ep, name)
}

const rawType = 0x88B5 // for local experiments

// etherSocket is an AF_PACKET socket on the host's side, for frames with rawType.
func etherSocket(t *testing.T, dev string) int {
	t.Helper()
	i, err := net.InterfaceByName(dev)
	if err != nil {
		t.Fatal(err)
	}
	proto := binary.NativeEndian.Uint16([]byte{rawType >> 8, rawType & 0xFF})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: i.Index})
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// TestRawTap has a raw packet queue pair and an AF_PACKET socket of the host exchange frames, while the NIC goes on answering what it
// answers.
func TestRawTap(t *testing.T) {
	needGuest(t)
	const mtu = 4200
	n := bareTap(t, mtu, "raw")
	fd := etherSocket(t, "sn0")
	create := func(s device.Steering) *device.QP {
		t.Helper()
		q, err := n.pd.CreateQP(device.QPInit{Type: device.RawPacket, SendCQ: n.cq, RecvCQ: n.cq, SigAll: true, Steer: s,
			Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 2, RecvSGE: 2}})
		if err == nil {
			err = q.Activate(0, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	q := create(device.Steering{EtherType: rawType})
	all := create(device.Steering{Sniffer: true}) // has no receives: it holds up nobody
	mr := n.mr(2 * 8192)
	near, far := n.dev.Port().Info().MAC, []byte{2, 0, 0, 0, 0, 0xFE}
	buf := make([]byte, 8192)
	for i, size := range []int{14, 60, 61, 1514, mtu + 14} {
		frame := func(dst, src []byte) []byte {
			f := append(append(bytes.Clone(dst), src...), rawType>>8, rawType&0xFF)
			return append(f, seeded(uint64(i), make([]byte, size-14))...)
		}
		// The host's frame arrives as it was, to the NIC and to all.
		for _, dst := range [][]byte{near, {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}} {
			f := frame(dst, far)
			n.recv(q, mr.SGE(0, 7), mr.SGE(7, 8185))
			if _, err := unix.Write(fd, f); err != nil {
				t.Fatal(err)
			}
			if wc := n.completion(device.WCRecv); int(wc.ByteLen) != size || wc.Flags != 0 {
				t.Fatalf("%d bytes: %+v", size, wc)
			}
			same(t, "frame", mr.Bytes()[:size], f)
		}
		// And so does the NIC's, to whomever it is.
		f := frame(far, near)
		copy(mr.Bytes()[8192:], f)
		n.post(q, device.SendWR{Op: device.OpSend, SGE: []device.SGE{mr.SGE(8192, 5), mr.SGE(8197, size-5)}})
		n.completion(device.WCSend)
		k, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "frame at the host", buf[:k], f)
	}
	// A frame to another station: not for the first, whose destinations are the port's own.
	n.recv(q, mr.SGE(0, 8192))
	if _, err := unix.Write(fd, append(append([]byte{2, 0, 0, 0, 0, 0x99}, far...), rawType>>8, rawType&0xFF, 1)); err != nil {
		t.Fatal(err)
	}
	// ARP and echo are answered by the NIC, with raw queue pairs or without.
	run(t, "ping", "-c", "2", "-i", "0.01", "-W", "10", "10.8.0.2")
	var wc [4]device.WC
	if k := n.cq.Poll(wc[:]); k != 0 {
		t.Errorf("%d completions: %+v", k, wc[0])
	}
	if c := n.counter("drop_no-receive"); c < 12 {
		t.Errorf("the sniffer without receives dropped %d frames", c)
	}
	// RoCE packets go to the RDMA side, and to the sniffer.
	n.recv(all, mr.SGE(0, 8192))
	p := newPeer(t, "sn0", mustAddr("10.8.0.1"), mustAddr("10.8.0.2"), near.String())
	before := n.counter("drop_no-qp")
	p.Send(t, peer.UDSend(0x777, 0, 0, 0, []byte("nobody")))
	n.completion(device.WCRecv)
	waitFor(t, patience, "the drop", func() bool { return n.counter("drop_no-qp") == before+1 })
}

// perfGet is a Get of performance management.
func perfGet(attr uint16, data string) []byte {
	m := make([]byte, 256)
	copy(m, []byte{1, 4, 1, 1})
	binary.BigEndian.PutUint64(m[8:], 0x0102030405060708)
	binary.BigEndian.PutUint16(m[16:], attr)
	d, _ := hex.DecodeString(data)
	copy(m[64:], d)
	return m
}

// TestRawPerfMgmt has the scripted peer ask softnic's QP1, which nobody owns.
func TestRawPerfMgmt(t *testing.T) {
	needGuest(t)
	n := bareTap(t, 4200, "gsi.pcap")
	dump := startCapture(t, options{}, "sn0", "gsi.pcap", "udp", "port", "4791")
	p := newPeer(t, "sn0", mustAddr("10.8.0.1"), mustAddr("10.8.0.2"), n.dev.Port().Info().MAC.String())
	ask := func(m []byte) []byte {
		t.Helper()
		p.Send(t, peer.UDSend(1, 0, 0x80010000, 1, m).With(func(f *peer.Frame) { f.AckReq = true }))
		f := p.Expect(t, peer.WantOp(peer.OpUDSendOnly), peer.WantDestQP(1), peer.WantSrcQP(1), peer.WantQKey(0x80010000), peer.WantLen(256), peer.WantAckReq(true))
		return f.Payload
	}
	got := ask(perfGet(0x0001, ""))
	same(t, "ClassPortInfo", got[:72], append([]byte{1, 4, 1, 0x81, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1}, append(make([]byte, 46), 1, 1, 5, 0, 0, 0, 0, 18)...))
	got = ask(perfGet(0x0012, "0001ffff"))
	// One packet each way until now, of 280 bytes.
	same(t, "PortCounters", got[64+24:64+44], []byte{0, 0, 0, 70, 0, 0, 0, 70, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0})
	if got = ask(perfGet(0x0099, "")); got[3] != 0x81 || got[5] != 0x0C {
		t.Errorf("unknown attribute: % x", got[:24])
	}
	dump.Stop()
}

// TestRawPerfMgmtKernel has the kernel's management layer ask softnic's QP1 through QP1 of its rxe device: it matches the answer
// with its request by the transaction ID and the addresses. It does so over IPv6: from a GRH area with an IPv4 header it reads the
// destination as if it were a GID, and finds no request that fits (core/mad.c:rcv_has_same_gid).
func TestRawPerfMgmtKernel(t *testing.T) {
	needGuest(t)
	n, dev := openTap(t, 4200, "umad.pcap")
	dump := startCapture(t, options{}, "sn0", "umad.pcap", "udp", "port", "4791")
	near, far := mustAddr("fd00:8::2"), mustAddr("fd00:8::1")
	run(t, "ping", "-c", "1", "-W", "10", near.String()) // the kernel waits a second at most for the neighbour
	u := openUMAD(t, dev)
	index := dev.GIDIndex(t, far)
	for i, attr := range []uint16{0x0001, 0x0012, 0x001D, 0x0099} {
		got := u.ask(t, index, near, perfGet(attr, "0001ffff"))
		if got[3] != 0x81 || binary.BigEndian.Uint16(got[16:]) != attr || (got[5] == 0x0C) != (attr == 0x0099) {
			t.Errorf("attribute %#x: % x", attr, got[:24])
		}
		if attr == 0x0012 && binary.BigEndian.Uint32(got[64+36:]) < uint32(i) {
			t.Errorf("PortCounters: % x", got[64:108])
		}
	}
	if c := n.counter("mad_answered"); c != 4 {
		t.Errorf("%d answered", c)
	}
	dump.Stop()
}

// umad is a file of the kernel's user_mad interface (include/uapi/rdma/ib_user_mad.h).
type umad struct {
	f     *os.File
	agent uint32
}

func openUMAD(t *testing.T, dev rxe) *umad {
	t.Helper()
	names, _ := filepath.Glob("/sys/class/infiniband_mad/umad*")
	for _, name := range names {
		if sysfs(name+"/ibdev") != dev.Name {
			continue
		}
		f, err := os.OpenFile("/dev/infiniband/"+filepath.Base(name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		const enablePKey, register = 0x1B03, 0xC01C1B01
		// struct ib_user_mad_reg_req: id, method mask, QPN at 20; class 0 is an agent that only asks.
		var req [28]byte
		req[20] = 1
		for _, c := range []struct {
			op  uintptr
			arg unsafe.Pointer
		}{{enablePKey, nil}, {register, unsafe.Pointer(&req)}} {
			if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), c.op, uintptr(c.arg)); e != 0 {
				t.Fatalf("umad ioctl %#x: %v", c.op, e)
			}
		}
		return &umad{f, binary.NativeEndian.Uint32(req[:])}
	}
	t.Fatalf("no umad of %s in %v", dev.Name, names)
	return nil
}

// ask sends a datagram to QP1 of an address and returns the answer that the kernel found to be its.
func (u *umad) ask(t *testing.T, sgid int, to netip.Addr, m []byte) []byte {
	t.Helper()
	const head = 64 // struct ib_user_mad_hdr
	b := make([]byte, head+256)
	ne, be := binary.NativeEndian, binary.BigEndian
	ne.PutUint32(b, u.agent)
	ne.PutUint32(b[8:], 5000) // timeout_ms
	be.PutUint32(b[20:], 1)   // qpn
	be.PutUint32(b[24:], 0x80010000)
	b[32], b[33], b[34] = 1, byte(sgid), 64 // grh_present, gid_index, hop_limit
	gid := device.GIDOf(to)
	copy(b[36:], gid[:])
	copy(b[head:], m)
	if _, err := u.f.Write(b); err != nil {
		t.Fatalf("umad: %v", err)
	}
	k, err := u.f.Read(b)
	if st := ne.Uint32(b[4:]); err == nil && st != 0 {
		err = unix.Errno(st)
	}
	if err != nil || k != len(b) {
		t.Fatalf("umad: no answer: %d bytes, %v", k, err)
	}
	return b[head:]
}
