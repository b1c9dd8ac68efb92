package demo

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// checkFile computes the ICRC of every frame of a capture anew and returns how
// many frames there are.
func checkFile(path string) (frames int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return checkFrames(file)
}

func checkFrames(file io.Reader) (frames int, err error) {
	r, err := pcapgo.NewNgReader(file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return 0, err
	}
	for {
		data, ci, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames, nil
		}
		if err != nil {
			return frames, fmt.Errorf("frame %d cannot be read: %w", frames+1, err)
		}
		frames++
		i, err := r.Interface(ci.InterfaceIndex)
		if err != nil {
			return frames, fmt.Errorf("frame %d: %w", frames, err)
		}
		if i.LinkType != layers.LinkTypeRaw {
			return frames, fmt.Errorf("frame %d: link type %v, expected raw IP", frames, i.LinkType)
		}
		if err := checkICRC(data); err != nil {
			return frames, fmt.Errorf("frame %d (interface %s): %w", frames, i.Name, err)
		}
	}
}
