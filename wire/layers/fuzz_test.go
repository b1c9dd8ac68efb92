package layers

import (
	"testing"

	"github.com/google/gopacket"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// FuzzDecode decodes any UDP payload: what decodes without an error has all
// bytes of the input in its layers, once and in order.
func FuzzDecode(f *testing.F) {
	for _, op := range []bth.Opcode{0x04, 0x0B, 0x11, 0x12, 0x13, 0x4B, 0x65, 0x81, 0xAB, 0xBC, 0x15} {
		f.Add(frame(op, false, 5)[wire.EthLen+wire.NetLen4:])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := gopacket.NewPacket(data, LayerTypeBTH, gopacket.Default)
		if p.ErrorLayer() != nil || len(data) == 0 {
			return
		}
		n := 0
		for _, l := range p.Layers() {
			n += len(l.LayerContents())
			if l, ok := l.(*Payload); ok {
				n += len(l.Pad)
			}
		}
		if n != len(data) {
			t.Errorf("%d bytes in layers, %d in the input", n, len(data))
		}
	})
}
