// Package layers decodes and builds RoCEv2 with gopacket. Importing it teaches
// gopacket that UDP port 4791 carries a BTH; every program that reads packets
// with gopacket then sees BTH, the extended headers, the payload and the ICRC
// as layers of their own.
//
//	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
//	if l := packet.Layer(roce.LayerTypeBTH); l != nil {
//		bth := l.(*roce.BTH)
//		...
//	}
//
// Which header follows another depends on the opcode, so each layer above the
// BTH refers to its BTH. NewPacket links them by itself; for a
// gopacket.DecodingLayerParser, which decodes into layers that the caller owns,
// Stack holds one of each kind, linked. Serialize builds a frame and computes
// the ICRC, which gopacket's own SerializeLayers cannot do: it begins with the
// innermost layer, when there are no headers yet for the ICRC to cover.
//
// The package is for others who have gopacket already. softnic's own receive
// path is package wire, which allocates nothing; this one rests on it and
// is imported nowhere below.
package layers
