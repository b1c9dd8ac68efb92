package replay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softnic/softnic/wire"
)

// Place says where a packet was seen.
type Place uint8

// The places.
const (
	Somewhere Place = iota // between sender and receiver
	Sent                   // at its sender
	Received               // at its receiver, accepted or not
	Impaired               // at a softnic that lost, held back or doubled it on purpose
	Dropped                // at a softnic that did not accept it, or could not send it
)

// Packet is a packet of a capture.
type Packet struct {
	Number   int   // as the capture counts, from 1
	Time     int64 // ns
	Place    Place
	Iface    int    // which interface of the capture saw it
	NIC      string // of a softnic capture: which one
	Ethernet bool
	Cut      bool // the capture has only the beginning of it
	Data     []byte
}

// Source is a capture. Next returns io.EOF behind the last packet.
type Source interface {
	Next() (*Packet, error)
}

// IsCapture reports whether a file that begins with b is a capture: pcap, with times in µs or ns, or pcapng.
func IsCapture(b []byte) bool {
	for _, magic := range []string{"\x0a\x0d\x0d\x0a", "\xa1\xb2\xc3\xd4", "\xd4\xc3\xb2\xa1", "\xa1\xb2\x3c\x4d", "\x4d\x3c\xb2\xa1"} {
		if bytes.HasPrefix(b, []byte(magic)) {
			return true
		}
	}
	return false
}

// Numbers of link types that gopacket has no name for: those that old systems gave to raw IP in pcap files, and SLL2.
const (
	linkRawBSD     layers.LinkType = 12
	linkRawOpenBSD layers.LinkType = 14

	linkSLL2 layers.LinkType = 276 & 0xFF // gopacket keeps eight bits of the number
)

// file is a Source over gopacket.
type file struct {
	read   func() ([]byte, gopacket.CaptureInfo, layers.LinkType, string, error)
	number int
}

// NewSource reads a pcap or pcapng stream, which it tells apart by what is in it.
func NewSource(r io.Reader) (Source, error) {
	b := bufio.NewReader(r)
	magic, err := b.Peek(4)
	if err != nil || !IsCapture(magic) {
		return nil, errors.New("not a capture: neither pcap nor pcapng")
	}
	if magic[0] != '\x0a' {
		p, err := pcapgo.NewReader(b)
		if err != nil {
			return nil, err
		}
		return &file{read: func() ([]byte, gopacket.CaptureInfo, layers.LinkType, string, error) {
			data, info, err := p.ReadPacketData()
			return data, info, p.LinkType(), "", err
		}}, nil
	}
	p, err := pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return nil, err
	}
	return &file{read: func() ([]byte, gopacket.CaptureInfo, layers.LinkType, string, error) {
		data, info, err := p.ReadPacketData()
		if err != nil {
			return nil, info, 0, "", err
		}
		ifc, err := p.Interface(info.InterfaceIndex)
		name := ""
		if strings.Contains(ifc.Description, "softnic") {
			name = ifc.Name
		}
		return data, info, ifc.LinkType, name, err
	}}, nil
}

// Next implements Source. Packets of link types without IP are left out.
func (f *file) Next() (*Packet, error) {
	for {
		data, info, link, name, err := f.read()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				err = fmt.Errorf("after packet %d: %w", f.number, err)
			}
			return nil, err
		}
		f.number++
		p := &Packet{
			Number: f.number, Time: info.Timestamp.UnixNano(), Iface: info.InterfaceIndex, Data: data,
			Cut: info.CaptureLength < info.Length, Ethernet: link == layers.LinkTypeEthernet,
		}
		switch link {
		case layers.LinkTypeEthernet, layers.LinkTypeRaw, layers.LinkTypeIPv4, layers.LinkTypeIPv6, linkRawBSD, linkRawOpenBSD:
		case layers.LinkTypeLinuxSLL, linkSLL2:
			if !p.uncook(link) {
				continue
			}
		default:
			continue
		}
		// The interfaces of a softnic capture: tx, or name/tx with several NICs in one.
		at := strings.LastIndexByte(name, '/') + 1
		p.NIC = name[:at]
		switch name[at:] {
		case "tx":
			p.Place = Sent
		case "rx":
			p.Place = Received
		case "dropped":
			p.Place = Dropped
		case "impaired":
			p.Place = Impaired
		}
		return p, nil
	}
}

// uncook takes off the header that tcpdump -i any puts in place of Ethernet's; false for what is not IP. The same packet may be there
// once for each interface that it passed.
//
//	SLL   0 packet type, 2 ARPHRD, 4 address length, 6 address (8 bytes), 14 EtherType
//	SLL2  0 EtherType, 4 interface index, 8 ARPHRD, 10 packet type, 12 address (8 bytes)
func (p *Packet) uncook(link layers.LinkType) bool {
	n, typ := 16, 14
	if link == linkSLL2 {
		n, typ = 20, 0
	}
	if len(p.Data) < n {
		return false
	}
	if p.Iface = -p.Number; link == linkSLL2 { // SLL does not tell: any other packet may be of another interface
		p.Iface = int(binary.BigEndian.Uint32(p.Data[4:]))
	}
	et := binary.BigEndian.Uint16(p.Data[typ:])
	p.Data = p.Data[n:]
	return et == wire.EtherTypeIPv4 || et == wire.EtherTypeIPv6
}

// File replays a capture file.
func File(path string, o Options) (*Result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	src, err := NewSource(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r, err := Run(src, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r.File = path
	return r, nil
}
