package peer

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket/pcapgo"
)

// expectedFrames is how many RoCE frames each capture has, by its README.
var expectedFrames = map[string]int{
	"rxe-pingpong-rc.pcap":    20,
	"rxe-pingpong-uc.pcap":    10,
	"rxe-pingpong-ud.pcap":    10,
	"rxe-rdma-atomic-bw.pcap": 10,
	"rxe-rdma-read-bw.pcap":   20,
	"rxe-rdma-send-bw.pcap":   20,
	"rxe-rdma-write-bw.pcap":  20,
}

// Frames of the kernel driver, captured by others: see the README beside them. They
// are not part of the project, for their licence.
func TestSharedCaptures(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "shared", "pcaps", "*.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("no shared/pcaps folder beside the checkout: its captures may not be copied into the project")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			capture, err := pcapgo.NewReader(r)
			if err != nil {
				t.Fatal(err)
			}
			ops := map[Op]int{}
			frames := 0
			for n := 1; ; n++ {
				data, _, err := capture.ReadPacketData()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatalf("frame %d: %v", n, err)
				}
				f, err := ParseEth(data)
				if errors.Is(err, ErrNotRoCE) {
					continue
				}
				if err != nil {
					t.Errorf("frame %d: %v", n, err)
					continue
				}
				frames++
				ops[f.Op]++
				if bad := f.Irregular(); bad != nil {
					t.Errorf("frame %d is irregular: %v", n, f)
				}
				if !CheckICRC(data[14:]) {
					t.Errorf("frame %d: ICRC", n)
				}
				if !bytes.Equal(f.MarshalEth(), data) {
					t.Errorf("frame %d %v:\n got %x\nwant %x", n, f, f.MarshalEth(), data)
				}
			}
			if want, known := expectedFrames[filepath.Base(file)]; known && frames != want {
				t.Errorf("%d RoCE frames, want %d", frames, want)
			}
			t.Log(ops)
		})
	}
}
