package replay

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/softnic/softnic/trace"
)

// pcap makes a capture of a link type, each packet behind the header given. The
// format is 24 bytes, and 16 for each packet.
func pcap(link uint32, magic uint32, l list, head func(i int) []byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, magic)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = le.AppendUint32(b, 65535)
	b = le.AppendUint32(b, link)
	for i, p := range l {
		h := head(i)
		b = le.AppendUint32(b, uint32(p.Time/1e9))
		b = le.AppendUint32(b, uint32(p.Time%1e9/1e3))
		b = le.AppendUint32(b, uint32(len(h)+len(p.IP)))
		b = le.AppendUint32(b, uint32(len(h)+len(p.IP)))
		b = append(append(b, h...), p.IP...)
	}
	return b
}

// Captures of every link type that has IP in it. With "any" each packet is there twice, once for each interface.
func TestLinkTypes(t *testing.T) {
	const micros = 0xA1B2C3D4
	eth := append(make([]byte, 12), 8, 0)
	sll := append(make([]byte, 14), 8, 0)
	var twice list
	for _, p := range everything1().l {
		twice = append(twice, p, p)
	}
	for _, c := range []struct {
		name string
		link uint32
		l    list
		head func(i int) []byte
		same int
	}{
		{"Ethernet", 1, everything1().l, func(int) []byte { return eth }, 11},
		{"raw", 101, everything1().l, func(int) []byte { return nil }, 11},
		{"raw of BSD", 12, everything1().l, func(int) []byte { return nil }, 11},
		{"SLL", 113, twice, func(int) []byte { return sll }, 11},
		{"SLL2", 276, twice, func(i int) []byte { return append([]byte{8, 0, 0, 0, 0, 0, 0, byte(i % 2)}, make([]byte, 12)...) }, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Run(trace.Input{Name: c.name, R: bytes.NewReader(pcap(c.link, micros, c.l, c.head))}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			same(t, r, c.same)
		})
	}
	// Longer than memory: what fits is replayed. The first of the bounds alone counts packets.
	defer func(n, b int) { mostFrames, mostBytes = n, b }(mostFrames, mostBytes)
	long := pcap(101, micros, everything1().l, func(int) []byte { return nil })
	for _, bounds := range [][2]int{{2, 1 << 30}, {100, 150}} {
		mostFrames, mostBytes = bounds[0], bounds[1]
		r, err := Run(trace.Input{Name: "x.pcap", R: bytes.NewReader(long)}, Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "x.pcap: the capture is too long") || r == nil || r.Packets.RoCE != 2 || r.Conversations[0].Same != 1 {
			t.Errorf("%v: %v, %+v", bounds, err, r)
		}
	}
	mostFrames, mostBytes = 1<<20, 1<<30
	// Cut off in the middle of a packet: an error, and what was before it.
	b := pcap(101, micros, everything1().l, func(int) []byte { return nil })
	r, err := Run(trace.Input{Name: "x.pcap", R: bytes.NewReader(b[:len(b)-1])}, Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "x.pcap: at byte ") || r == nil || r.Conversations[0].Same != 10 {
		t.Errorf("%v, %+v", err, r)
	}
}
