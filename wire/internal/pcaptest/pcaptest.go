// Package pcaptest gives the tests below wire the frames of the captures that
// lie beside a checkout of the project, and that are not part of it.
//
// It reads the classic capture format and nothing else, so that no codec under
// test has a hand in it. Only tests import it.
package pcaptest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// RoCEFrames is how many RoCEv2 frames each capture has, by its README.
var RoCEFrames = map[string]int{
	"rxe-pingpong-rc.pcap": 20, "rxe-pingpong-uc.pcap": 10, "rxe-pingpong-ud.pcap": 10, "rxe-rdma-atomic-bw.pcap": 10,
	"rxe-rdma-read-bw.pcap": 20, "rxe-rdma-send-bw.pcap": 20, "rxe-rdma-write-bw.pcap": 20,
}

// Each runs f, as a subtest, on the Ethernet frames of every capture in
// ../shared/pcaps, seen from the folder of go.mod. Without that folder the test
// is skipped.
func Each(t *testing.T, f func(t *testing.T, name string, frames [][]byte)) {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "..", "shared", "pcaps", "*.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("no captures in ../shared/pcaps beside the checkout")
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(strings.TrimSuffix(name, ".pcap"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			frames, err := Frames(data)
			if err != nil {
				t.Fatal(err)
			}
			f(t, name, frames)
		})
	}
}

// moduleRoot walks up from the test's folder to the one with go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no go.mod above the test")
		}
		dir = up
	}
}

// Frames returns the frames of a little-endian classic capture file with link
// type Ethernet.
func Frames(data []byte) ([][]byte, error) {
	const fileHeader, recordHeader = 24, 16
	if len(data) < fileHeader || binary.LittleEndian.Uint32(data) != 0xA1B2C3D4 || binary.LittleEndian.Uint32(data[20:]) != 1 {
		return nil, errors.New("not a little-endian pcap file of Ethernet frames")
	}
	var frames [][]byte
	for data = data[fileHeader:]; len(data) > 0; {
		if len(data) < recordHeader {
			return nil, errors.New("record header cut off")
		}
		n := int(binary.LittleEndian.Uint32(data[8:]))
		if whole := int(binary.LittleEndian.Uint32(data[12:])); n != whole || n > len(data)-recordHeader {
			return nil, fmt.Errorf("frame %d cut off: %d of %d bytes", len(frames)+1, n, whole)
		}
		frames = append(frames, data[recordHeader:recordHeader+n:recordHeader+n])
		data = data[recordHeader+n:]
	}
	return frames, nil
}
