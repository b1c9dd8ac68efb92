package layers_test

import (
	"encoding/hex"
	"fmt"
	"net"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softnic/softnic/wire/bth"
	roce "github.com/softnic/softnic/wire/layers"
)

// A READ request from the wire, decoded. The import alone makes gopacket know
// what UDP port 4791 carries.
func Example() {
	frame, _ := hex.DecodeString("020000000002020000000001" + "0800" +
		"4500003c123440004011a479c0000201c0000202" + "c00012b700280000" +
		"0c40ffff0000001180fffffd" + "00000000000010000002030400001001" + "65d180f7")

	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	for _, l := range packet.Layers()[2:] {
		fmt.Println(l.LayerType(), len(l.LayerContents()), "bytes")
	}
	b := packet.Layer(roce.LayerTypeBTH).(*roce.BTH)
	fmt.Println(b.Opcode, "to QP", b.DestQP, "PSN", b.PSN)
	if r, ok := packet.Layer(roce.LayerTypeRETH).(*roce.RETH); ok {
		fmt.Printf("%d bytes from %#x, key %#x\n", r.Length, r.VA, r.RKey)
	}
	fmt.Println("ICRC right:", roce.CheckICRC(packet))
	// Output:
	// UDP 8 bytes
	// BTH 12 bytes
	// RETH 16 bytes
	// ICRC 4 bytes
	// RC_READ_REQUEST to QP 17 PSN fffffd
	// 4097 bytes from 0x1000, key 0x20304
	// ICRC right: true
}

// A SEND with immediate data, built layer by layer.
func ExampleSerialize() {
	ip := &layers.IPv4{
		Version: 4, IHL: 5, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP,
		SrcIP: net.IPv4(192, 0, 2, 1), DstIP: net.IPv4(192, 0, 2, 2),
	}
	udp := &layers.UDP{SrcPort: 0xC000, DstPort: 4791}
	b := &roce.BTH{Fields: bth.Fields{Opcode: bth.Make(bth.RC, bth.SendOnlyImm), PKey: 0xFFFF, DestQP: 17, AckReq: true, PSN: 5}}
	imm := &roce.ImmDt{Data: 0x89ABCDEF}
	payload := &roce.Payload{Data: []byte("hello")}

	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := roce.Serialize(buf, opts, ip, udp, b, imm, payload, &roce.ICRC{}); err != nil {
		fmt.Println(err)
	}
	packet := gopacket.NewPacket(buf.Bytes(), layers.LayerTypeIPv4, gopacket.Default)
	fmt.Println("pad", b.Pad, "ICRC right:", roce.CheckICRC(packet))
	fmt.Printf("%s\n", packet.ApplicationLayer().Payload())
	// Output:
	// pad 3 ICRC right: true
	// hello
}
