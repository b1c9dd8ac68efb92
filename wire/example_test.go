package wire_test

import (
	"fmt"
	"net/netip"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

func ExampleBuild() {
	path := wire.Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xC000}
	s := wire.NewSpec(path, bth.Make(bth.RC, bth.ReadRequest), 0x11, 0xFFFFFD)
	s.ID = 0x1234
	s.BTH.AckReq = true
	s.Ext = bth.Ext{VA: 0x1000, RKey: 0x20304, Length: 4097}
	packet := wire.Build(&s)

	var v wire.View
	fmt.Println(wire.ParseIP(packet, &v), wire.CheckICRC(&v))
	fmt.Println(v.BTH().Opcode(), v.BTH().PSN(), v.Src(), "->", v.Dst())
	fmt.Println(bth.RETH(v.Header(bth.HRETH)).Length())
	packet[len(packet)-1] ^= 1
	fmt.Println(wire.CheckICRC(&v))
	// Output:
	// ok true
	// RC_READ_REQUEST fffffd 192.0.2.1 -> 192.0.2.2
	// 4097
	// false
}

// What a link does with a Packet of an engine.
func ExamplePacket_Seal() {
	path := wire.Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"), SrcPort: 0xC123}
	payload := []byte("abc")
	p := wire.Packet{Path: &path, Len: bth.Len, Data: [][]byte{payload}, Size: 3, Pad: 1}
	p.BTH().Encode(&bth.Fields{
		Opcode: bth.Make(bth.RC, bth.SendOnly), Pad: 1, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x1234,
	})

	var net [wire.MaxNetLen]byte
	ib := make([]byte, p.IBLen())
	p.Seal(net[:], 0, ib)
	fmt.Printf("%x\n", net[:path.NetLen()])
	fmt.Printf("%x %s %x\n", ib[:bth.Len], ib[bth.Len:][:3], ib[bth.Len+3:])
	// Output:
	// 45000030000040004011b6b9c0000201c0000202c12312b7001c0000
	// 0410ffff0000001180001234 abc 000d7b363d
}
