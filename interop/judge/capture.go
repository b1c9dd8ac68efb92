package judge

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softnic/softnic/interop/peer"
)

// Packet is one packet of a capture.
type Packet struct {
	Number   int // from 1
	Info     gopacket.CaptureInfo
	LinkType layers.LinkType
	Data     []byte
	Problem  string // why it cannot be parsed; empty if it can
}

// Parse reads the packet as a RoCE frame.
func (p Packet) Parse() (*peer.Frame, error) {
	if p.LinkType == layers.LinkTypeEthernet {
		return peer.ParseEth(p.Data)
	}
	return peer.Parse(p.Data)
}

// IsCapture reports whether the name is one of a capture file.
func IsCapture(path string) bool {
	return strings.HasSuffix(path, ".pcap") || strings.HasSuffix(path, ".pcapng")
}

// The numbers that old systems gave to raw IP in pcap files.
const (
	linkRawBSD     layers.LinkType = 12
	linkRawOpenBSD layers.LinkType = 14
)

// Packets calls visit for each packet of a pcap or pcapng file, which it tells
// apart by what is in them. It stops at the first error, of the file or of visit.
func Packets(path string, visit func(p Packet) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	read, err := opener(bufio.NewReader(file))
	if err != nil {
		return fmt.Errorf("%s: not a capture that can be read: %w", path, err)
	}
	for number := 1; ; number++ {
		data, info, link, err := read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: after frame %d: %w", path, number-1, err)
		}
		p := Packet{Number: number, Info: info, LinkType: link, Data: data}
		switch link {
		case layers.LinkTypeEthernet, layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6, linkRawBSD, linkRawOpenBSD:
			if info.CaptureLength < info.Length {
				p.Problem = fmt.Sprintf("only %d of %d bytes were captured", info.CaptureLength, info.Length)
			}
		default:
			p.Problem = fmt.Sprintf("link type %d (%v) is neither Ethernet nor raw IP", link, link)
		}
		if err := visit(p); err != nil {
			return err
		}
	}
}

// packetReader gives the next packet and its link type.
type packetReader func() ([]byte, gopacket.CaptureInfo, layers.LinkType, error)

// opener looks at the first bytes and starts the reader that goes with them.
func opener(r *bufio.Reader) (packetReader, error) {
	magic, err := r.Peek(4)
	if err != nil {
		return nil, err
	}
	if string(magic) != "\x0a\x0d\x0d\x0a" {
		capture, err := pcapgo.NewReader(r)
		if err != nil {
			return nil, err
		}
		return func() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
			data, info, err := capture.ReadPacketData()
			return data, info, capture.LinkType(), err
		}, nil
	}
	capture, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return nil, err
	}
	return func() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
		data, info, err := capture.ReadPacketData()
		if err != nil {
			return nil, info, 0, err
		}
		ifc, err := capture.Interface(info.InterfaceIndex)
		return data, info, ifc.LinkType, err
	}, nil
}
