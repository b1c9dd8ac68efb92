//go:build linux

package guest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/device"
)

// groupText is a group as the script takes it.
func groupText(group netip.Addr) string { return netip.AddrFrom16(group.As16()).StringExpanded() }

// MCast attaches a queue pair to a group, or detaches it.
func (q *verbsQP) MCast(group netip.Addr, attach bool) {
	q.v.p.t.Helper()
	q.v.call(nil, "mcast", args{"qp": q.ID, "group": groupText(group), "attach": attach})
}

// TestMulticast sends datagrams to groups between softnic on a TAP and the kernel's device, both ways, IPv4 and IPv6,
// each to several queue pairs. The kernel's device hears only what the host's IP stack has joined (rxe-lab.md C13).
//
// Softnic's queue pairs are not attached to what softnic sends to: its own copy comes in by no wire, so that the capture
// has no place for it.
func TestMulticast(t *testing.T) {
	needGuest(t)
	const qkey, everybody = 0x11111111, device.MulticastQPN
	n, dev := openTap(t, 1500, "multicast.pcap")
	tcpdump := startCapture(t, options{}, "sn0", "multicast.pcap", "udp", "port", "4791")
	v := startVerbs(t, options{}, dev.Name)
	before := dev.Counters(t)
	for _, c := range []struct{ near, far, toRxe, toUs string }{
		{"10.8.0.2", "10.8.0.1", "239.129.2.3", "239.1.2.4"},
		{"fd00:8::2", "fd00:8::1", "ff0e::ffff:ef01:203", "ff05::77"},
	} {
		near, far, toRxe, toUs := mustAddr(c.near), mustAddr(c.far), mustAddr(c.toRxe), mustAddr(c.toUs)
		index := gidIndex(t, n.dev, near)
		q, vq := n.qp(device.UD), v.CreateQP("UD")
		if err := q.Activate(qkey, 0); err != nil {
			t.Fatal(err)
		}
		vq.Datagrams(qkey, 0)
		mr, vmr := n.mr(8192), v.RegMR(8192, accessAll)

		// To two of the kernel's queue pairs.
		heard := []*verbsQP{v.CreateQP("UD"), v.CreateQP("UD")}
		v.call(nil, "join", args{"group": groupText(toRxe), "netdev": "sn0"})
		for _, h := range heard {
			h.Datagrams(qkey, 0)
			h.MCast(toRxe, true)
		}
		ah, err := n.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(toRxe), SGIDIndex: index})
		if err != nil {
			t.Fatal(err)
		}
		for i, size := range []int{1, 1000, 1024} {
			what := fmt.Sprintf("softnic's datagram of %d bytes to %v", size, toRxe)
			seeded(uint64(i), mr.Bytes()[:size])
			vmr.Write(0, make([]byte, 8192))
			for k, h := range heard {
				h.PostRecv(1, vmr, 2048*k, 40+size)
			}
			n.post(q, device.SendWR{Op: device.OpSendImm, Imm: 7, SGE: []device.SGE{mr.SGE(0, size)}, AH: ah, RemoteQPN: everybody, RemoteQKey: qkey})
			n.completion(device.WCSend)
			for k, h := range heard {
				wc := h.RecvCompletions(1)[0]
				if wc.Status != 0 || wc.ByteLen != 40+size || wc.SrcQP != q.Num() || wc.Imm != 7 {
					t.Fatalf("%s: rxe's completion %d: %+v", what, k, wc)
				}
				same(t, what, vmr.Read(2048*k+40, size), mr.Bytes()[:size])
				checkGRH(t, vmr.Read(2048*k, 40), near, toRxe)
			}
		}
		for _, h := range heard {
			h.MCast(toRxe, false)
		}

		// To three of softnic's, of which one has another Q_Key.
		var ears []*device.QP
		for i := range 3 {
			e := n.qp(device.UD)
			key := uint32(qkey)
			if i == 2 {
				key++
			}
			if err := e.Activate(key, 0); err != nil {
				t.Fatal(err)
			}
			if err := e.Attach(device.GIDOf(toUs)); err != nil {
				t.Fatal(err)
			}
			ears = append(ears, e)
		}
		for i, size := range []int{1, 1000, 1024} {
			what := fmt.Sprintf("rxe's datagram of %d bytes to %v", size, toUs)
			pattern := seeded(uint64(50+i), make([]byte, size))
			vmr.Write(0, pattern)
			at := map[uint32]int{}
			for k, e := range ears {
				if k < 2 || i == 0 {
					n.recv(e, mr.SGE(2048*k, 40+size))
				}
				at[e.Num()] = 2048 * k
			}
			attr := ahAttr(dev.GIDIndex(t, far), toUs, 0)
			attr["hop_limit"] = 5
			var vah struct{ ID int }
			v.call(&vah, "create_ah", attr)
			vq.PostSend(sendWR{Opcode: "SEND", MR: vmr, Length: size, AH: &vah.ID, RemoteQPN: everybody, QKey: qkey})
			if wc := vq.SendCompletions(1)[0]; wc.Status != 0 {
				t.Fatalf("%s: rxe's send: status %d", what, wc.Status)
			}
			for range 2 {
				got := n.completion(device.WCRecv)
				b := mr.Bytes()[at[got.QPN]:]
				if got.ByteLen != uint32(40+size) || got.SrcQP != vq.QPN || got.Flags&device.WCGRH == 0 || got.QPN == ears[2].Num() {
					t.Fatalf("%s: softnic's completion: %+v", what, got)
				}
				same(t, what, b[40:40+size], pattern)
				checkGRH(t, b[:40], far, toUs)
				hops := b[7]
				if near.Is4() {
					hops = b[28]
				}
				if hops != 5 { // of a group as given (rxe-lab.md C9)
					t.Errorf("%s: hop limit %d", what, hops)
				}
			}
		}
		// Detached, and the packet is nobody's.
		for _, e := range ears {
			if err := e.Detach(device.GIDOf(toUs)); err != nil {
				t.Fatal(err)
			}
		}
	}
	quiet(t, n, dev.Counters(t).Since(before))
	tcpdump.Stop()
}
