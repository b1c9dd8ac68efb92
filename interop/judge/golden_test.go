package judge

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/softnic/softnic/interop/corpus"
	"github.com/softnic/softnic/trace"
)

// TestGoldenAsTshark puts the golden captures (package corpus) before tshark, the independent codec and package trace. It needs no VM.
// All frames are in one capture, since to start tshark takes longer than to read them; those of raw IP get an Ethernet header. What is
// irregular in them, the tests of package corpus say.
func TestGoldenAsTshark(t *testing.T) {
	needTshark(t)
	dir := filepath.Join("..", "..", "testdata")
	index, err := corpus.Read(dir)
	check(t, err)
	var all [][]byte
	from := []string{""} // by the number of a frame: the file, and its number there
	for _, e := range index {
		path := filepath.Join(dir, e.File)
		if named := Injected(path) || FlushQuirk(path); named != (e.BadICRC != nil) {
			t.Errorf("%s: frames %v have a wrong ICRC, and the name says otherwise", e.File, e.BadICRC)
		}
		check(t, Packets(path, func(p Packet) error {
			if p.Problem != "" {
				return fmt.Errorf("%s: frame %d: %s", e.File, p.Number, p.Problem)
			}
			if p.LinkType != trace.LinkEthernet {
				p.Data = append([]byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x08\x00"), p.Data...)
			}
			all = append(all, p.Data)
			from = append(from, fmt.Sprintf("%s, frame %d", e.File, p.Number))
			return nil
		}))
	}
	path := pcap(t, "golden-injected.pcap", layers.LinkTypeEthernet, all...)
	findings, err := AgainstTshark(path)
	check(t, err)
	for _, f := range findings {
		t.Errorf("%s: %s", from[f.Frame], f.Text)
	}
	if n := sameAsTshark(t, path); n != len(all) {
		t.Errorf("tshark takes %d of %d frames for RoCE", n, len(all))
	}
}
