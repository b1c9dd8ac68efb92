package judge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/trace"
)

// Packet is one packet of a capture.
type Packet struct {
	Number   int // from 1
	LinkType trace.LinkType
	Data     []byte
	Problem  string // why it cannot be parsed; empty if it can
}

// Parse reads the packet as a RoCE frame.
func (p Packet) Parse() (*peer.Frame, error) {
	if p.LinkType == trace.LinkEthernet {
		return peer.ParseEth(p.Data)
	}
	return peer.Parse(p.Data)
}

// IsCapture reports whether the name is one of a capture file.
func IsCapture(path string) bool {
	return strings.HasSuffix(path, ".pcap") || strings.HasSuffix(path, ".pcapng")
}

// Packets calls visit for each packet of a pcap or pcapng file, which it tells
// apart by what is in them. It stops at the first error, of the file or of visit.
func Packets(path string, visit func(p Packet) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r, err := trace.NewReader(file)
	if err != nil {
		return fmt.Errorf("%s: not a capture that can be read: %w", path, err)
	}
	for {
		q, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		p := Packet{Number: int(q.Number), LinkType: q.Link, Data: bytes.Clone(q.Data)}
		switch q.Link {
		case trace.LinkEthernet, trace.LinkRaw, trace.LinkIPv4, trace.LinkIPv6, trace.LinkRaw12, trace.LinkRaw14:
			if len(q.Data) < q.Length {
				p.Problem = fmt.Sprintf("only %d of %d bytes were captured", len(q.Data), q.Length)
			}
		default:
			p.Problem = fmt.Sprintf("link type %d (%v) is neither Ethernet nor raw IP", uint16(q.Link), q.Link)
		}
		if err := visit(p); err != nil {
			return err
		}
	}
}
