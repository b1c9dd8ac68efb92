package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// order is a byte order that can append.
type order interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

var orders = []order{binary.LittleEndian, binary.BigEndian}

// pcapFile is a file of pcap with packets, a second apart and 1.5 units behind the second.
func pcapFile(o order, magic, link uint32, packets ...[]byte) []byte {
	b := o.AppendUint32(nil, magic)
	b = o.AppendUint16(o.AppendUint16(b, 2), 4)
	b = append(b, make([]byte, 8)...)
	b = o.AppendUint32(o.AppendUint32(b, 1<<18), link)
	for i, p := range packets {
		b = o.AppendUint32(o.AppendUint32(b, uint32(1000+i)), 7)
		b = o.AppendUint32(o.AppendUint32(b, uint32(len(p))), uint32(len(p)))
		b = append(b, p...)
	}
	return b
}

// block is a block of pcapng, with options as pairs of a code and a value.
func block(o order, typ uint32, body []byte, options ...any) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	for i := 0; i < len(options); i += 2 {
		var v []byte
		switch x := options[i+1].(type) {
		case string:
			v = []byte(x)
		case int:
			v = []byte{byte(x)}
		case uint32:
			v = o.AppendUint32(nil, x)
		case uint64:
			v = o.AppendUint64(nil, x)
		case []byte:
			v = x
		}
		body = o.AppendUint16(o.AppendUint16(body, uint16(options[i].(int))), uint16(len(v)))
		body = append(body, v...)
		for len(body)%4 != 0 {
			body = append(body, 0)
		}
	}
	if len(options) > 0 {
		body = append(body, 0, 0, 0, 0)
	}
	n := uint32(len(body) + 12)
	return o.AppendUint32(append(o.AppendUint32(o.AppendUint32(nil, typ), n), body...), n)
}

func sectionBlock(o order, app string) []byte {
	b := o.AppendUint32(nil, byteOrderMagic)
	b = o.AppendUint16(o.AppendUint16(b, 1), 0)
	return block(o, blockSection, o.AppendUint64(b, ^uint64(0)), sectionApp, app)
}

func ifaceBlock(o order, link uint16, options ...any) []byte {
	return block(o, blockInterface, append(o.AppendUint16(nil, link), 0, 0, 0, 0, 0, 0), options...)
}

func packetBlock(o order, id uint32, when uint64, p []byte, whole int, options ...any) []byte {
	b := o.AppendUint32(o.AppendUint32(o.AppendUint32(nil, id), uint32(when>>32)), uint32(when))
	b = o.AppendUint32(o.AppendUint32(b, uint32(len(p))), uint32(whole))
	return block(o, blockPacket, append(b, p...), options...)
}

// all reads a file to its end.
func all(file []byte) (r *Reader, got []Packet, err error) {
	if r, err = NewReader(bytes.NewReader(file)); err != nil {
		return nil, nil, err
	}
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			return r, got, nil
		}
		if err != nil {
			return r, got, err
		}
		q := *p
		q.Data, q.Comment = bytes.Clone(p.Data), bytes.Clone(p.Comment)
		got = append(got, q)
	}
}

func TestPcap(t *testing.T) {
	for _, o := range orders {
		for magic, ns := range map[uint32]int64{pcapMicro: 7000, pcapNano: 7} {
			file := pcapFile(o, magic, 0xF0000000|101, []byte("one"), nil, []byte("three"))
			for _, packed := range []bool{false, true} {
				if packed {
					file = zip(file)
				}
				r, got, err := all(file)
				if err != nil || len(got) != 3 {
					t.Fatalf("%v: %d packets, %v", o, len(got), err)
				}
				for i, want := range []string{"one", "", "three"} {
					p := got[i]
					if string(p.Data) != want || p.Length != len(want) || p.Number != uint64(i+1) || p.Time != int64(1000+i)*1e9+ns || p.Link != LinkRaw || p.Iface != 0 {
						t.Errorf("%v %x: packet %d: %+v", o, magic, i+1, p)
					}
				}
				if f := r.Format(); !strings.Contains(f, "pcap, ") || strings.Contains(f, "gzip") != packed || strings.Contains(f, "big") != (o == orders[1]) {
					t.Error(f)
				}
			}
		}
	}
}

func zip(b []byte) []byte {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(b)
	w.Close()
	return z.Bytes()
}

// Everything that a file of pcapng may have, in both byte orders in one file.
func TestPcapng(t *testing.T) {
	var file []byte
	for _, o := range orders {
		file = append(file, sectionBlock(o, "softnic")...)
		file = append(file, block(o, 0xBAD, make([]byte, 2<<20))...) // not known, and longer than anything that is read
		file = append(file, ifaceBlock(o, 1, interfaceName, "tx", interfaceDescription, "sent", interfaceIPv4, []byte{10, 0, 0, 1, 255, 0, 0, 0}, interfaceResolution, 9)...)
		file = append(file, ifaceBlock(o, 101)...)                                                           // µs
		file = append(file, ifaceBlock(o, 276, interfaceResolution, 0x80|20, interfaceOffset, uint64(5))...) // 2^-20 s, 5 s later
		file = append(file, ifaceBlock(o, 228, interfaceResolution, 12)...)                                  // ps
		file = append(file, packetBlock(o, 0, 1e18+5, []byte("frame"), 5, packetFlags, uint32(FlagOutbound), optComment, "first words", optComment, "second words")...)
		file = append(file, packetBlock(o, 1, 3, []byte("cut"), 100, packetDrops, uint64(4))...)
		file = append(file, packetBlock(o, 2, 3<<19, []byte("x"), 1)...)
		file = append(file, packetBlock(o, 3, 12_345_678, nil, 0)...)
		file = append(file, block(o, blockSimple, append(o.AppendUint32(nil, 6), "simple"...))...)
		old := o.AppendUint16(o.AppendUint16(nil, 1), 2)
		old = o.AppendUint32(o.AppendUint32(old, 0), 9)
		old = append(o.AppendUint32(o.AppendUint32(old, 3), 3), "old"...)
		file = append(file, block(o, blockOldPacket, old)...)
		file = append(file, block(o, blockStatistic, make([]byte, 12), statisticReceived, uint64(77), statisticDropped, uint64(3), statisticOSDrop, uint64(2))...)
	}
	r, got, err := all(file)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, p := range got {
		s = append(s, fmt.Sprintf("%d %d/%d %v %d %q/%d flags %d %q %v", p.Number, p.Iface, p.Link, p.Link, p.Time, p.Data, p.Length, p.Flags, p.Comment, p.NoTime))
	}
	one := func(n, base int) string {
		return fmt.Sprintf(`%d %d/1 Ethernet 1000000000000000005 "frame"/5 flags 2 "first words" false
%d %d/101 raw IP 3000 "cut"/100 flags 0 "" false
%d %d/276 Linux cooked v2 6500000000 "x"/1 flags 0 "" false
%d %d/228 raw IPv4 12345 ""/0 flags 0 "" false
%d %d/1 Ethernet 12345 "simple"/6 flags 0 "" true
%d %d/101 raw IP 9000 "old"/3 flags 0 "" false`, n, base, n+1, base+1, n+2, base+2, n+3, base+3, n+4, base, n+5, base+1)
	}
	if got, want := strings.Join(s, "\n"), one(1, 0)+"\n"+one(7, 4); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if r.Lost() != 12 || len(r.Interfaces()) != 8 {
		t.Errorf("lost %d, %d interfaces", r.Lost(), len(r.Interfaces()))
	}
	for _, i := range []int{0, 4} {
		x := r.Interfaces()[i]
		if x.Name != "tx" || x.Description != "sent" || x.App != "softnic" || x.Packets != 2 || !x.Told || x.Received != 77 || x.Dropped != 5 || fmt.Sprint(x.Addrs) != "[10.0.0.1]" {
			t.Errorf("%+v", x)
		}
	}
}

// What gopacket writes is read as it was written.
func TestGopacketWrites(t *testing.T) {
	when := time.Unix(1700000000, 123456789)
	info := func(b []byte, i int) gopacket.CaptureInfo {
		return gopacket.CaptureInfo{Timestamp: when, CaptureLength: len(b), Length: len(b) + 10, InterfaceIndex: i}
	}
	var plain, next bytes.Buffer
	w := pcapgo.NewWriterNanos(&plain)
	ng, err := pcapgo.NewNgWriterInterface(&next, pcapgo.NgInterface{Name: "eth0", LinkType: layers.LinkTypeEthernet}, pcapgo.NgWriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := ng.AddInterface(pcapgo.NgInterface{Name: "any", LinkType: layers.LinkTypeLinuxSLL})
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("some bytes")
	for _, err := range []error{w.WriteFileHeader(100, layers.LinkTypeEthernet), w.WritePacket(info(data, 0), data), ng.WritePacket(info(data, 0), data), ng.WritePacket(info(data, second), data), ng.Flush()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, file := range map[string][]byte{"pcap": plain.Bytes(), "pcapng": next.Bytes()} {
		r, got, err := all(file)
		if err != nil || len(got) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		for _, p := range got {
			if p.Time != when.UnixNano() || !bytes.Equal(p.Data, data) || p.Length != len(data)+10 {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if name == "pcapng" && (len(got) != 2 || r.Interfaces()[1].Name != "any" || r.Interfaces()[1].Link != LinkSLL) {
			t.Errorf("%+v", r.Interfaces())
		}
	}
}

func TestTimes(t *testing.T) {
	for _, c := range []struct {
		resolution byte
		offset     int64
		units      uint64
		want       int64
	}{
		{6, 0, 1, 1000},
		{9, 0, 1, 1},
		{0, 0, 2, 2e9},
		{10, 0, 25, 2},
		{127, 0, 1 << 63, 0},
		{3, 0, 1 << 63, 1<<63 - 1}, // out of range: the last that is in it
		{9, 0, 1<<64 - 1, 1<<63 - 1},
		{0x80, 0, 3, 3e9},
		{0x80 | 32, 0, 1 << 31, 5e8},
		{0xFF, 0, 1 << 63, 1e9},
		{9, 2, 1, 2e9 + 1},
		{9, -2, 1, -2e9 + 1},
		{9, 1 << 62, 1, 1}, // an offset out of range is none
		{9, 9_000_000_000, 1 << 62, 1 << 62},
	} {
		x := resolutionOf(c.resolution)
		x.offset = c.offset
		if got := x.ns(c.units); got != c.want {
			t.Errorf("resolution %#x, offset %d, %d units: %d, want %d", c.resolution, c.offset, c.units, got, c.want)
		}
	}
}

// What cannot be read is said in one line: where, and why.
func TestUnreadable(t *testing.T) {
	le := order(binary.LittleEndian)
	plain := pcapFile(le, pcapMicro, 1, make([]byte, 60), make([]byte, 60))
	next := bytes.Join([][]byte{sectionBlock(le, "x"), ifaceBlock(le, 1), packetBlock(le, 0, 1, make([]byte, 60), 60)}, nil)
	ng := func(more ...byte) []byte { return append(bytes.Clone(next), more...) }
	set := func(b []byte, at int, v uint32) []byte {
		b = bytes.Clone(b)
		le.PutUint32(b[at:], v)
		return b
	}
	first := len(sectionBlock(le, "x")) + len(ifaceBlock(le, 1))
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "at byte 0: the file is empty"},
		{"three bytes", plain[:3], "at byte 0: a file of 3 bytes is no capture"},
		{"text", []byte("hello, this is some text\n"), "at byte 0: text, and no capture: pcap and pcapng files can be read, `tcpdump -w FILE` writes them"},
		{"binary", []byte{0x7F, 'E', 'L', 'F', 1, 2, 3}, "at byte 0: no capture: it begins with 7f 45 4c 46"},
		{"zstd", []byte("\x28\xB5\x2F\xFD...."), "compressed with zstd: `zstd -d FILE` unpacks it"},
		{"xz", []byte("\xFD7zXZ\x00.."), "compressed with xz"},
		{"snoop", []byte("snoop\x00\x00\x00"), "a snoop file: `editcap"},
		{"modified", set(plain, 0, pcapModified), "modified libpcap"},
		{"version", set(plain, 4, 3), "pcap version 3"},
		{"header cut", plain[:20], "at byte 0: the header of a pcap file has 24 bytes, and 20 are there"},
		{"packet header cut", plain[:24+16+60+5], "at byte 100, after packet 1: the file ends inside the header of a packet"},
		{"packet cut", plain[:len(plain)-10], "at byte 100, after packet 1: the file ends inside a packet: 50 of 60 bytes are there"},
		{"huge packet", set(plain, 24+8, 1<<30), "at byte 24: a packet of 1073741824 bytes, which no capture has: the file is damaged here"},
		{"gzip cut", zip(plain)[:len(zip(plain))-12], "the gzip stream is cut off"},
		{"gzip header cut", zip(plain)[:5], "at byte 0: the gzip"},
		{"gzip damaged", damaged(zip(bytes.Repeat(plain, 1))), "the gzip stream is damaged: gzip: invalid checksum"},
		{"text in gzip", zip([]byte("some text in it")), "text, and no capture"},
		{"wrong order", set(next, 8, 0x12345678), "at byte 0: the byte order of the section cannot be told: 78 56 34 12 where 1a2b3c4d should be"},
		{"section version", set(next, 12, 2), "at byte 0: pcapng version 2"},
		{"section length", set(next, 4, 16), "at byte 0: a section header of 16 bytes"},
		{"huge section", set(next, 4, 1<<31), "at byte 0: a block of 2147483648 bytes"},
		{"section cut", next[:20], "at byte 0: the file ends inside a block: 20 of 40 bytes are there"},
		{"block header cut", ng(6, 0, 0), fmt.Sprintf("at byte %d, after packet 1: the file ends inside the header of a block", len(next))},
		{"block cut", next[:len(next)-4], fmt.Sprintf("at byte %d: the file ends inside a block: 88 of 92 bytes are there", first)},
		{"unknown block cut", ng(le.AppendUint32(le.AppendUint32(nil, 99), 1<<30)...), "after packet 1: the file ends inside a block of 1073741824 bytes (type 0x63)"},
		{"huge block", set(next, first+4, 1<<30), fmt.Sprintf("at byte %d: a block of 1073741824 bytes, which no capture has: the file is damaged here", first)},
		{"odd block", set(next, first+4, 91), fmt.Sprintf("at byte %d: a block (type 0x6) of 91 bytes: the file is damaged here", first)},
		{"small block", set(next, first+4, 8), "of 8 bytes"},
		{"length at the end", set(next, len(next)-4, 88), "a block of 92 bytes that says 88 at its end"},
		{"packet in block", set(next, first+20, 100), "a packet of 100 bytes in a block that has room for 60"},
		{"no interface", set(next, first+8, 1), "a packet of interface 1, which the section does not have"},
		{"no interface in the next section", append(ng(), append(sectionBlock(le, "y"), packetBlock(le, 0, 1, nil, 0)...)...), "a packet of interface 0, which the section does not have"},
		{"interface cut", append(sectionBlock(le, "x"), block(le, blockInterface, make([]byte, 4))...), "the description of an interface is cut off"},
		{"statistics cut", append(ng(), block(le, blockStatistic, make([]byte, 8))...), "the statistics of an interface are cut off"},
		{"statistics of none", append(ng(), block(le, blockStatistic, append(le.AppendUint32(nil, 3), make([]byte, 8)...))...), "statistics of interface 3"},
		{"packet block cut", append(ng(), block(le, blockPacket, make([]byte, 8))...), "a packet block is cut off"},
		{"simple block cut", append(ng(), block(le, blockSimple, nil)...), "a packet block is cut off"},
	} {
		_, _, err := all(c.file)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := NewReader(dir); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("a directory: %v", err)
	}
}

// damaged has a wrong checksum at the end of the gzip stream.
func damaged(b []byte) []byte {
	b[len(b)-8] ^= 1
	return b
}

// A packet's end at the end of the buffer, and packets larger than what is left in it.
func TestLargePackets(t *testing.T) {
	var packets [][]byte
	for i := range 40 {
		packets = append(packets, bytes.Repeat([]byte{byte(i)}, 65000+i*5000))
	}
	_, got, err := all(pcapFile(binary.LittleEndian, pcapNano, 1, packets...))
	if err != nil || len(got) != len(packets) {
		t.Fatal(len(got), err)
	}
	for i := range got {
		if !bytes.Equal(got[i].Data, packets[i]) {
			t.Errorf("packet %d differs", i+1)
		}
	}
}

// FuzzReader reads anything: it ends, with packets inside the file, or with an Error of one line.
func FuzzReader(f *testing.F) {
	le, be := order(binary.LittleEndian), order(binary.BigEndian)
	f.Add(pcapFile(le, pcapMicro, 1, make([]byte, 60)))
	f.Add(pcapFile(be, pcapNano, 101, make([]byte, 6)))
	f.Add(zip(pcapFile(be, pcapNano, 101, make([]byte, 6))))
	f.Add(append(append(sectionBlock(be, "softnic"), ifaceBlock(be, 1, interfaceName, "tx", interfaceResolution, 0x8A)...), packetBlock(be, 0, 1<<40, []byte("x"), 1, optComment, "y")...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := NewReader(bytes.NewReader(b))
		total := 0
		for err == nil {
			var p *Packet
			if p, err = r.Next(); err == nil {
				total += len(p.Data) + 16
				if p.Length < len(p.Data) || p.Iface >= len(r.Interfaces()) || p.Link != r.Interfaces()[p.Iface].Link {
					t.Fatalf("%+v", p)
				}
			}
		}
		packed := len(b) > 1 && b[0] == 0x1F && b[1] == 0x8B
		if total > len(b) && !packed {
			t.Fatalf("%d bytes of packets in a file of %d", total, len(b))
		}
		var e *Error
		if err != io.EOF && (!errors.As(err, &e) || e.Offset > int64(len(b)) && !packed || strings.Contains(err.Error(), "\n")) {
			t.Fatal(err)
		}
	})
}
