package trace

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/softnic/softnic/wire"
)

// StreamOptions say how captures are read. The zero value is fine.
type StreamOptions struct {
	Ports []uint16     // UDP ports that carry RoCE beside 4791
	Hosts []netip.Addr // of the host where the capture was made; empty: not known
}

// Stream reads captures as one: merged by time, decoded, and put into the order of time by a window (of 20 ms, at most 1024
// packets). It gives what is RoCE or Exchange, and counts the rest. Packets are numbered as they come, which is the order that
// mergecap writes.
type Stream struct {
	Counts Counts // of what was read until now

	hosts   []netip.Addr
	decoder Decoder
	window  *window
	files   []*File
	number  uint64
	ifaces  int
	last    int64
	failed  error
	rest    [][]byte // of a burst: the packets that are not in the window yet
}

// Counts are packets by what they are.
type Counts struct {
	Total, RoCE, RoCEv1, Fragments, Other uint64
	UnknownLink                           uint64 // of link types that cannot be read
	Bursts                                uint64 // of Total: several RoCE packets in one, of which RoCE counts each
}

// File is one of a Stream.
type File struct {
	*Reader
	Name string
	// Late is set where the first packets of a softnic's NIC were lost on purpose, before another one showed that all of its
	// packets are there: their Sighting.Apart is set.
	Late []string

	p    *Packet // the next one; nil: no more
	ids  map[port]int
	nics map[string]int // of softnics: what was seen of each
}

// port is an interface of a file, or one of those that it stands for.
type port struct {
	iface int
	port  uint64
}

// maxPorts bounds the interfaces of a file that are told apart.
const maxPorts = 1 << 16

// NewStream looks at the beginning of each capture. The error is a *FileError.
func NewStream(in []Input, o StreamOptions) (*Stream, error) {
	s := &Stream{hosts: o.Hosts, decoder: Decoder{Ports: o.Ports}, window: newWindow(0)}
	for _, i := range in {
		r, err := NewReader(i.R)
		if err != nil {
			return s, &FileError{i.Name, err}
		}
		s.files = append(s.files, &File{Reader: r, Name: i.Name, ids: map[port]int{}, nics: map[string]int{}})
	}
	for _, f := range s.files {
		s.advance(f)
	}
	return s, nil
}

// Files returns the files, in the order in which they were given.
func (s *Stream) Files() []*File { return s.files }

// Last is the time of the latest packet that was read until now, of any kind.
func (s *Stream) Last() int64 { return s.last }

// Lost is how many packets the files say were lost where they were captured; at their end it is known.
func (s *Stream) Lost() (n uint64) {
	for _, f := range s.files {
		n += f.Lost()
		for _, i := range f.Interfaces() {
			n += i.Dropped
		}
	}
	return n
}

// Next returns the next packet, valid until the next call. Behind the last one the error is io.EOF, or the *FileError of the first
// file that could not be read to its end.
func (s *Stream) Next() (*Sighting, error) {
	for {
		var f *File
		for _, x := range s.files {
			if x.p != nil && (f == nil || x.p.Time < f.p.Time) {
				f = x
			}
		}
		if f == nil {
			if h := s.window.next(); h != nil {
				return h, nil
			}
			if s.failed != nil {
				return nil, s.failed
			}
			return nil, io.EOF
		}
		if s.window.full(f.p) {
			return s.window.next(), nil
		}
		if s.take(f); len(s.rest) == 0 {
			s.advance(f)
		}
	}
}

func (s *Stream) advance(f *File) {
	p, err := f.Reader.Next()
	if err != nil && !errors.Is(err, io.EOF) && s.failed == nil {
		s.failed = &FileError{f.Name, err}
	}
	f.p = p
}

// take puts a packet as it stands in a file into the window, if it is one of those that are given.
func (s *Stream) take(f *File) {
	p := f.p
	if len(s.rest) == 0 {
		s.number++
		s.last = max(s.last, p.Time)
		s.Counts.Total++
	}
	var frame Frame
	s.decoder.Decode(p.Link, p.Data, p.Length, &frame)
	switch {
	case frame.Kind == RoCE:
		s.Counts.RoCE++
		if len(s.rest) == 0 {
			if s.rest = frame.burst(); s.rest != nil {
				s.Counts.Bursts++
			}
		}
		if len(s.rest) > 0 {
			frame.IP, s.rest = s.rest[0], s.rest[1:]
		}
	case frame.Kind == Exchange:
		s.Counts.Other++
	case frame.Kind == RoCEv1:
		s.Counts.RoCEv1++
		return
	case frame.Kind == Fragment:
		s.Counts.Fragments++
		return
	case !p.Link.Known():
		s.Counts.UnknownLink++
		return
	default:
		s.Counts.Other++
		return
	}
	i := &f.Interfaces()[p.Iface]
	w, apart := Word{Dir: direction(s.hosts, &frame)}, false
	if i.Speaks() {
		w = i.Word(p)
		apart = s.apart(f, i, &w)
	}
	h := s.window.put(p, &frame, w)
	// The number is that over all files, and the interface too.
	h.Number, h.Iface, h.Apart = s.number, s.iface(f, port{p.Iface, frame.Port}), apart
}

// The states of a softnic's NIC in a file.
const (
	nicAbsent = iota
	nicLosing // nothing was seen of it but what was lost or held back on purpose
	nicThere
)

// apart reports whether nothing of the packet's NIC is captured but what was lost on purpose: then the capture does not tell where its
// others were seen. The first NIC is the one whose file it is.
func (s *Stream) apart(f *File, i *Interface, w *Word) bool {
	name := i.NIC()
	switch state := f.nics[name]; {
	case name == "" || state == nicThere:
		return false
	case w.Fault == wire.Impaired:
		f.nics[name] = nicLosing
		return true
	case state == nicLosing:
		f.Late = append(f.Late, name)
	}
	f.nics[name] = nicThere
	return false
}

// iface numbers the interfaces of all files.
func (s *Stream) iface(f *File, p port) int {
	id, ok := f.ids[p]
	if !ok {
		if len(f.ids) >= maxPorts {
			return 0
		}
		id = s.ifaces
		s.ifaces++
		f.ids[p] = id
	}
	return id
}

// direction is that of a packet of a capture that was made at a host.
func direction(hosts []netip.Addr, f *Frame) Direction {
	if len(hosts) == 0 || f.Kind != RoCE {
		return Unknown
	}
	src, dst, ok := f.Addrs()
	from, to := slices.Contains(hosts, src), slices.Contains(hosts, dst)
	switch {
	case !ok || from == to:
		return Unknown
	case from:
		return Tx
	}
	return Rx
}

// Nothing is the *FileError that says why there is no RoCE packet in the files.
func (s *Stream) Nothing() error {
	var names []string
	for _, f := range s.files {
		names = append(names, f.Name)
	}
	c := &s.Counts
	what := fmt.Sprintf("%d packets", c.Total)
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{c.RoCEv1, "%d of RoCEv1, which is not read"},
		{c.Fragments, "%d UDP fragments, which are not read"},
		{c.UnknownLink, "%d of a link type that cannot be read (" + s.unknownLink() + ")"},
	} {
		if x.n > 0 {
			what += ", " + fmt.Sprintf(x.text, x.n)
		}
	}
	advice := "RoCE goes to UDP port 4791 (--port for others), and an adapter's own traffic is seen only with `tcpdump -i` on the RDMA device, on a mirror port, or in `softnic run --capture`"
	switch {
	case c.Total == 0:
		what = "no packets at all"
	case c.UnknownLink == c.Total:
		advice = "capture on an Ethernet or IP interface"
	case c.RoCEv1 > 0:
		advice = "only RoCEv2 is read: the adapter's GIDs of type RoCE v2 use it (ibv_*_pingpong -g)"
	}
	return &FileError{strings.Join(names, " "), fmt.Errorf("no RoCE packets: %s; %s", what, advice)}
}

func (s *Stream) unknownLink() string {
	for _, f := range s.files {
		for _, i := range f.Interfaces() {
			if !i.Link.Known() && i.Packets > 0 {
				return i.Link.String()
			}
		}
	}
	return ""
}
