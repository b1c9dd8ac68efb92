package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"unicode"
	"unicode/utf8"
)

// Packet is a packet as it stands in a capture.
type Packet struct {
	Number  uint64 // from 1, as tshark counts
	Time    int64  // ns since 1970
	NoTime  bool   // the file does not tell the time (simple packet blocks)
	Iface   int    // index in Interfaces
	Link    LinkType
	Data    []byte // valid until the next call of Next
	Length  int    // bytes that it had on the wire; more than Data if the capture has only the beginning
	Flags   uint32 // epb_flags of pcapng; its two low bits are a direction
	Comment []byte // opt_comment of pcapng; valid as Data is
}

// The direction in Packet.Flags (pcapng, enhanced packet block flags word).
const (
	FlagInbound  = 1
	FlagOutbound = 2
	flagDirMask  = 3
)

// Interface is one that packets were captured on. A pcap file has one, without a name.
type Interface struct {
	Name, Description string
	Link              LinkType
	Snaplen           uint32
	App               string // program that wrote the section, by its header
	Addrs             []netip.Addr

	Packets  uint64 // packets of it that were read until now
	Told     bool   // the file says how many were received and lost; what follows is set
	Received uint64 // isb_ifrecv
	Dropped  uint64 // isb_ifdrop and isb_osdrop: lost for want of room

	toNs resolution
}

// maxInterfaces bounds the interfaces of a file.
const maxInterfaces = 1 << 16

// Reader reads a capture.
type Reader struct {
	s      *source
	next   func() error // fills pkt
	pkt    Packet
	format string
	ifaces []Interface
	lost   uint64 // packets that epb_dropcount tells of

	order binary.ByteOrder // of the file or section
	base  int              // pcapng: first interface of the section
	app   string           // pcapng: of the section
	res   resolution       // pcap
}

// NewReader looks at the beginning of a capture.
func NewReader(r io.Reader) (*Reader, error) {
	s, err := newSource(r)
	if err != nil {
		return nil, err
	}
	c := &Reader{s: s}
	magic, err := s.peek(4)
	if len(magic) < 4 {
		if len(magic) == 0 && errors.Is(err, io.EOF) {
			return nil, s.why(err, "the file is empty")
		}
		return nil, s.why(err, fmt.Sprintf("a file of %d bytes is no capture", len(magic)))
	}
	if bytes.Equal(magic, blockSectionMagic) {
		c.format = "pcapng"
		c.next = c.nextBlock
		// The first section shows now whether it can be read.
		if e := c.section(); e != nil {
			return nil, e
		}
	} else if e := c.pcapHeader(magic); e != nil {
		return nil, e
	}
	if s.gz {
		c.format += ", gzip"
	}
	return c, nil
}

// Format is the format of the file in a few words: "pcap, ns, big-endian, gzip".
func (r *Reader) Format() string { return r.format }

// Interfaces returns the interfaces that the file has told of until now.
func (r *Reader) Interfaces() []Interface { return r.ifaces }

// Lost is how many packets the packets' own options say were lost before them.
func (r *Reader) Lost() uint64 { return r.lost }

// Next returns the next packet, io.EOF after the last, and otherwise an *Error. The packet is valid until the next call.
func (r *Reader) Next() (*Packet, error) {
	if err := r.next(); err != nil {
		var e *Error
		if errors.As(err, &e) {
			e.Packet = r.pkt.Number
		}
		return nil, err
	}
	r.pkt.Number++
	r.ifaces[r.pkt.Iface].Packets++
	return &r.pkt, nil
}

// others are files that look like captures or hold one, by how they begin.
var others = []struct{ magic, what string }{
	{"\x28\xB5\x2F\xFD", "compressed with zstd: `zstd -d FILE` unpacks it"},
	{"\xFD7zX", "compressed with xz: `xz -dk FILE` unpacks it"},
	{"BZh", "compressed with bzip2: `bzip2 -dk FILE` unpacks it"},
	{"\x04\x22\x4D\x18", "compressed with lz4: `lz4 -d FILE` unpacks it"},
	{"PK\x03\x04", "a zip archive: unpack it first"},
	{"snoop\x00", "a snoop file: `editcap FILE NEW.pcapng` converts it"},
}

// noCapture says what a file that is not a capture seems to be.
func noCapture(head []byte) string {
	for _, x := range others {
		if bytes.HasPrefix(head, []byte(x.magic)) {
			return x.what
		}
	}
	if !IsText(head) {
		return fmt.Sprintf("no capture: it begins with % x, and neither pcap nor pcapng does", head[:min(4, len(head))])
	}
	return "text, and no capture: pcap and pcapng files can be read, `tcpdump -w FILE` writes them"
}

// IsText reports whether a file that begins with head, some dozens of bytes of it, is text in UTF-8, which no capture is.
func IsText(head []byte) bool {
	if len(head) == 0 || bytes.HasPrefix(head, blockSectionMagic) {
		return false
	}
	for _, x := range others {
		if bytes.HasPrefix(head, []byte(x.magic)) {
			return false
		}
	}
	for len(head) > 0 && (utf8.FullRune(head) || len(head) >= utf8.UTFMax) {
		r, n := utf8.DecodeRune(head)
		if r == utf8.RuneError && n == 1 || unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' {
			return false
		}
		head = head[n:]
	}
	return true
}
