package judge

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// A request takes the place of one that got an RNR NAK: in a capture that may lack packets it may be that of another connection.
func TestRulesAfterRNR(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	var frames [][]byte
	add := func(src, dst netip.Addr, qpn uint32, op bth.Operation, psn bth.PSN, syndrome bth.Syndrome, msn uint32) {
		s := wire.NewSpec(wire.Path{Src: src, Dst: dst, SrcPort: 0xC001}, bth.Make(bth.RC, op), qpn, psn)
		s.Ext.Syndrome, s.Ext.MSN = syndrome, msn
		frames = append(frames, wire.Build(&s))
	}
	for i := range uint32(6) {
		add(a, b, 0x11, bth.WriteOnly, bth.PSN(0x100+i), 0, 0)
		add(b, a, 0x777, bth.Acknowledge, bth.PSN(0x100+i), bth.AckUnlimited, 1+i)
	}
	add(a, b, 0x11, bth.SendOnly, 0x106, 0, 0)
	add(b, a, 0x777, bth.Acknowledge, 0x106, bth.RNR(12), 6)
	add(a, b, 0x11, bth.WriteOnly, 0x106, 0, 0)
	add(b, a, 0x777, bth.Acknowledge, 0x106, bth.NakRemoteAccess, 6)
	findings, err := Rules(pcap(t, "rxe.pcap", layers.LinkTypeRaw, frames...))
	check(t, err)
	for _, f := range findings {
		t.Error(f)
	}
}
