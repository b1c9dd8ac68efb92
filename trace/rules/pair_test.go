package rules

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// mad is a CM message to QP 1; put fills in the part after the MAD header.
func mad(c *Checker, src, dst netip.Addr, attr uint16, put func(m []byte)) {
	b := make([]byte, madLen)
	b[0], b[1], b[2], b[3] = 1, cmClass, 2, 3
	binary.BigEndian.PutUint16(b[16:], attr)
	put(b[madHead:])
	s := wire.NewSpec(wire.Path{Src: src, Dst: dst}, bth.UDSendOnly, 1, 0)
	s.Payload = b
	var v wire.View
	f := wire.ParseIP(wire.Build(&s), &v)
	c.Add(&Packet{Fault: f, View: &v})
}

// A CM exchange in the capture tells which queue pairs are connected, with which depth, MTU
// and retry count: offsets of roce.md F.3.
func TestCM(t *testing.T) {
	c := New(Options{Capture: Complete})
	connect := func() {
		mad(c, hostA, hostB, attrREQ, func(m []byte) {
			binary.BigEndian.PutUint32(m, 77)          // local comm ID
			binary.BigEndian.PutUint32(m[32:], 0xA<<8) // local QPN
			m[47] = 1                                  // retry count
			m[50] = 1 << 4                             // path MTU 256
		})
		mad(c, hostB, hostA, attrREP, func(m []byte) {
			binary.BigEndian.PutUint32(m, 88)
			binary.BigEndian.PutUint32(m[4:], 77)
			binary.BigEndian.PutUint32(m[12:], 0xB<<8)
			m[24], m[25] = 2, 0 // responder resources, initiator depth
		})
	}
	s := &script{t: t, from: "?", svc: bth.RC}
	connect()
	for _, l := range []string{
		"B> FADD 900", // packet 1: none were agreed
		"A> READ 100 rlen=600",
		"B> RR_F 100 256 msn=1",
		"A> READ 103 rlen=4", // three PSNs on: the MTU is known
		"A> READ 104 rlen=4", // packet 5: one too many
		"+1ms A> READ 101 rlen=344 va=0x1100",
		"+1ms A> READ 101 rlen=344 va=0x1100", // packet 7: the second retry
	} {
		s.add(c, l)
	}
	if got, want := brief(c), "depth:1 depth:5 retry-count:7"; got != want {
		t.Errorf("broken: %q, want %q\n%s", got, want, report(c))
	}
	// The same queue pairs are connected anew: nothing that was is held against them.
	connect()
	n := c.Broken()
	for _, l := range []string{"A> SEND_ONLY 50 4 ar", "B> ACK 50 msn=1", "A> SEND_ONLY 51 4 ar", "B> ACK 51 msn=2"} {
		s.add(c, l)
	}
	if c.Broken() != n {
		t.Error(report(c))
	}
}

// Two connections with the same PSNs are told apart if they are known.
func TestConnectionsGiven(t *testing.T) {
	o := Options{Capture: Complete, Connections: []Connection{
		{A: End{Addr: hostA, QPN: 0xA}, B: End{Addr: hostB, QPN: 0xB}},
		{A: End{Addr: hostA, QPN: 0xC}, B: End{Addr: hostB, QPN: 0xD}},
	}}
	c := run(t, o, "?", `
		A> SEND_ONLY 100 4 ar
		C> SEND_ONLY 100 4 ar
		B> ACK 100 msn=1
		D> ACK 100 msn=7
		C> SEND_ONLY 101 4 ar
		D> ACK 101 msn=9`)
	if got := brief(c); got != "msn:6" {
		t.Errorf("broken: %q\n%s", got, report(c))
	}
}

// A frame on two interfaces is one frame; sent again it is another.
func TestSeenTwice(t *testing.T) {
	c := New(Options{Capture: Complete, Default: Attr{RetryCnt: 1}})
	now := int64(0)
	give := func(src, dst netip.Addr, op bth.Operation, q uint32, psn bth.PSN, msn uint32) {
		s := wire.NewSpec(wire.Path{Src: src, Dst: dst}, bth.Make(bth.RC, op), q, psn)
		s.Ext.Syndrome, s.Ext.MSN = bth.AckUnlimited, msn
		frame := wire.Build(&s)
		for iface := range 2 {
			var v wire.View
			f := wire.ParseIP(frame, &v)
			now += 3000
			c.Add(&Packet{Number: 1, Time: now, Iface: iface, Fault: f, View: &v})
		}
	}
	give(hostA, hostB, bth.SendOnly, 0xB, 100, 0)
	give(hostB, hostA, bth.Acknowledge, 0xA, 100, 1)
	give(hostA, hostB, bth.SendOnly, 0xB, 101, 0)
	now += 1e8
	give(hostA, hostB, bth.SendOnly, 0xB, 101, 0)
	now += 1e8
	give(hostA, hostB, bth.SendOnly, 0xB, 101, 0)
	give(hostB, hostA, bth.Acknowledge, 0xA, 101, 2)
	f := c.Findings()
	if got := brief(c); got != "retry-count:1" || f[RetransmissionSame].Kept != 2 {
		t.Errorf("broken: %q\n%s", got, report(c))
	}
}

// In the merged captures of two hosts many packets are under way between the one sighting and the other; packets that many flows
// have alike are not each other's.
func TestSeenTwiceLater(t *testing.T) {
	const flows, packets, underWay = 10, 400, 60
	c := New(Options{Capture: Complete})
	type sent struct {
		frame []byte
		at    int64
	}
	var l []sent
	for i := range bth.PSN(packets) {
		for f := range byte(flows) {
			a, b := netip.AddrFrom4([4]byte{10, 0, f, 1}), netip.AddrFrom4([4]byte{10, 0, f, 2})
			for _, s := range []wire.Spec{
				wire.NewSpec(wire.Path{Src: a, Dst: b}, bth.Make(bth.RC, bth.SendOnly), 0xB, 100+i),
				wire.NewSpec(wire.Path{Src: b, Dst: a}, bth.Make(bth.RC, bth.Acknowledge), 0xA, 100+i),
			} {
				s.Ext.Syndrome, s.Ext.MSN = bth.AckUnlimited, uint32(i)+1
				l = append(l, sent{wire.Build(&s), int64(len(l)) * 1000})
			}
		}
	}
	give := func(frame []byte, iface int, at int64) {
		var v wire.View
		f := wire.ParseIP(frame, &v)
		c.Add(&Packet{Number: 1, Time: at, Iface: iface, Fault: f, View: &v})
	}
	for i, x := range l {
		give(x.frame, 0, x.at)
		if j := i - underWay*flows; j >= 0 {
			give(l[j].frame, 1, x.at+1)
		}
	}
	f := c.Findings()
	if got := brief(c); got != "" || f[MSN].Kept < packets*flows*9/10 || f[MSN].Kept > packets*flows {
		t.Errorf("broken: %q\n%s", got, report(c))
	}
}
