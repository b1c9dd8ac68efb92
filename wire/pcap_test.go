package wire

import (
	"bytes"
	"testing"

	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/internal/pcaptest"
)

// TestCaptures takes the frames of real peers apart and makes them again, by
// every way that there is.
func TestCaptures(t *testing.T) {
	pcaptest.Each(t, func(t *testing.T, name string, frames [][]byte) {
		roce := 0
		for n, frame := range frames {
			var v View
			f := ParseEthernet(frame, &v)
			if f == NotRoCE {
				continue
			}
			roce++
			if f != OK {
				t.Errorf("frame %d: %v", n+1, f)
				continue
			}
			if !CheckICRC(&v) {
				t.Errorf("frame %d: wrong ICRC", n+1)
			}
			s := SpecOf(&v)
			if s.RawExt != nil || s.IB != nil {
				t.Errorf("frame %d: fields do not hold its headers", n+1)
			}
			if got := Build(&s); !bytes.Equal(got, frame) {
				t.Errorf("frame %d rebuilt:\n%x, is\n%x", n+1, got, frame)
			}
			if got := append(bytes.Clone(v.Eth), packetOf(&s, 100).Append(nil, v.ID())...); !bytes.Equal(got, frame) {
				t.Errorf("frame %d sealed:\n%x, is\n%x", n+1, got, frame)
			}

			// As a UDP socket would show it: no ID, no header checksum.
			net := bytes.Clone(v.Net)
			copy(net[4:6], []byte{0, 0})
			copy(net[10:12], []byte{0, 0})
			var w View
			if f := ParseSplit(net, v.IB, false, &w); f != OK || !CheckICRC(&w) || !bytes.Equal(w.Net, v.Net) {
				t.Errorf("frame %d without its ID: %v, header %x, is %x", n+1, f, w.Net, v.Net)
			}
			if h := bth.DETH(v.Header(bth.HDETH)); name == "rxe-pingpong-ud.pcap" && h.QKey() != 0x11111111 {
				t.Errorf("frame %d: Q_Key %08x", n+1, h.QKey())
			}
		}
		if want, ok := pcaptest.RoCEFrames[name]; ok && roce != want {
			t.Errorf("%d RoCE frames, want %d", roce, want)
		}
	})
}
