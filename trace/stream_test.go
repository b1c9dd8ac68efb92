package trace

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// streamOf reads files to their end.
func streamOf(t *testing.T, o StreamOptions, files ...[]byte) (s *Stream, got []Sighting, err error) {
	t.Helper()
	var in []Input
	for i, f := range files {
		in = append(in, Input{string(rune('a' + i)), bytes.NewReader(f)})
	}
	if s, err = NewStream(in, o); err != nil {
		return s, nil, err
	}
	for {
		h, err := s.Next()
		if errors.Is(err, io.EOF) {
			return s, got, nil
		}
		if err != nil {
			return s, got, err
		}
		c := *h
		c.IP = bytes.Clone(h.IP)
		got = append(got, c)
	}
}

var hostA, hostB = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

func sent(psn int, from, to netip.Addr) []byte {
	s := wire.NewSpec(wire.Path{Src: from, Dst: to}, bth.Make(bth.RC, bth.SendOnly), 0x11, bth.PSN(psn))
	return wire.Build(&s)
}

// Files are one capture, merged by time, and what is not RoCE is counted.
func TestStream(t *testing.T) {
	le := orders[0]
	a := pcapFile(le, pcapMicro, 101, sent(1, hostA, hostB), []byte("other"), sent(3, hostB, hostA)) // at 1000 s, 1001 s, 1002 s
	b := pcapFile(le, pcapMicro, 220, []byte("usb"), sent(9, hostA, hostB))
	s, got, err := streamOf(t, StreamOptions{Hosts: []netip.Addr{hostA}}, a, b)
	if err != nil || len(got) != 2 {
		t.Fatal(err, got)
	}
	if got[0].Number != 1 || got[0].Dir != Tx || got[1].Number != 5 || got[1].Dir != Rx || got[0].Iface != 0 || got[1].Kind != RoCE {
		t.Errorf("%+v", got)
	}
	if want := (Counts{Total: 5, RoCE: 2, Other: 1, UnknownLink: 2}); s.Counts != want {
		t.Errorf("%+v", s.Counts)
	}
	if s.Last() != 1002e9+7000 || s.Lost() != 0 || len(s.Files()) != 2 || s.Files()[1].Name != "b" {
		t.Errorf("%v %v %v", s.Last(), s.Lost(), s.Files())
	}
	// One that is cut off: what it has comes, and what the other has, and then the error.
	_, got, err = streamOf(t, StreamOptions{}, a[:len(a)-1], pcapFile(le, pcapMicro, 101, sent(1, hostA, hostB), nil, nil, sent(3, hostB, hostA)))
	var f *FileError
	if len(got) != 3 || !errors.As(err, &f) || f.Name != "a" || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, %v", got, err)
	}
	if _, _, err = streamOf(t, StreamOptions{}, a, nil); !errors.As(err, &f) || f.Name != "b" {
		t.Errorf("%v", err)
	}
	s, _, _ = streamOf(t, StreamOptions{}, b)
	if err := s.Nothing(); !errors.As(err, &f) || !strings.Contains(err.Error(), "a: no RoCE packets: 2 packets, 2 of a link type that cannot be read (link type 220)") {
		t.Error(err)
	}
}

// Of a NIC of which nothing but losses is captured the others may be anywhere; of the first one they are here.
func TestStreamApart(t *testing.T) {
	le := orders[0]
	file := sectionBlock(le, "softnic")
	for _, name := range []string{"impaired", "b/impaired", "b/tx", "b/dropped"} {
		file = append(file, ifaceBlock(le, 101, interfaceName, name)...)
	}
	for i, iface := range []uint32{0, 1, 2, 1, 3} {
		file = append(file, packetBlock(le, iface, uint64(i+1), sent(i, hostA, hostB), 44, packetFlags, uint32(FlagOutbound), optComment, "impaired: tx drop")...)
	}
	s, got, err := streamOf(t, StreamOptions{}, file)
	if err != nil || len(got) != 5 {
		t.Fatal(err, got)
	}
	for i, apart := range []bool{false, true, false, false, false} {
		if got[i].Apart != apart || got[i].Dir != Tx {
			t.Errorf("packet %d: %+v", i+1, got[i])
		}
	}
	if l := s.Files()[0].Late; len(l) != 1 || l[0] != "b" {
		t.Error(l)
	}
}

// What is text, and what only looks like it.
func TestIsText(t *testing.T) {
	for b, want := range map[string]bool{
		"# Case 9": true, "\n\nnic": true, "# … an ellipsis": true, "# cut in the middle of one \xe2\x80": true,
		"": false, "\x0a\x0d\x0d\x0a": false, "\xd4\xc3\xb2\xa1": false, "\xa1\xb2\x3c\x4d....": false, "\x1f\x8b": false, "BZh91AY": false, "PK\x03\x04": false,
		"text\x00": false, "\xff\xfe": false, "\x7fELF": false,
	} {
		if IsText([]byte(b)) != want {
			t.Errorf("%q", b)
		}
	}
}
