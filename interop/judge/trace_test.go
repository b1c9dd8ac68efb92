package judge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket/layers"

	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// readings are what package trace reads in each RoCE frame of a capture: opcode, queue pair, PSN, syndrome.
func readings(t *testing.T, path string) map[int]string {
	t.Helper()
	file, err := os.Open(path)
	check(t, err)
	defer file.Close()
	r, err := trace.NewReader(file)
	check(t, err)
	m := map[int]string{}
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			return m
		}
		check(t, err)
		var f trace.Frame
		var v wire.View
		new(trace.Decoder).Decode(p.Link, p.Data, p.Length, &f)
		if f.Kind != trace.RoCE {
			continue
		}
		if fault := f.View(&v); fault != wire.OK && fault != wire.ReservedOpcode {
			t.Fatalf("%s: frame %d: %v", path, p.Number, fault)
		}
		b := v.BTH()
		s := fmt.Sprintf("%d %d %d", b.Opcode(), b.DestQP(), b.PSN())
		if a := v.Header(bth.HAETH); a != nil && dissected(peer.Op(b.Opcode())) {
			s += fmt.Sprintf(" %d", bth.AETH(a).Syndrome())
		}
		m[int(p.Number)] = s
	}
}

// sameAsTshark compares them with tshark's, frame by frame.
func sameAsTshark(t *testing.T, path string) (frames int) {
	t.Helper()
	rows, err := Tshark(path)
	check(t, err)
	ours := readings(t, path)
	if len(rows) != len(ours) || len(rows) == 0 {
		t.Errorf("%s: tshark reads %d RoCE frames, package trace %d", path, len(rows), len(ours))
	}
	for _, row := range rows {
		op, _ := row.Uint("infiniband.bth.opcode")
		qp, _ := row.Uint("infiniband.bth.destqp")
		psn, _ := row.Uint("infiniband.bth.psn")
		s := fmt.Sprintf("%d %d %d", op, qp, psn)
		if syn, ok := row.Uint("infiniband.aeth.syndrome"); ok {
			s += fmt.Sprintf(" %d", syn)
		}
		if ours[row.Frame] != s {
			t.Errorf("%s: frame %d: tshark %q, package trace %q", path, row.Frame, s, ours[row.Frame])
		}
	}
	return len(rows)
}

// What package trace reads is what tshark reads: in the kernel's captures, in one with every opcode that softnic has,
// and in the same packets over each link type.
func TestTraceReadsAsTshark(t *testing.T) {
	needTshark(t)
	t.Run("every opcode", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "every.pcapng")
		a, b, end := everyHosts(t, path,
			pipe.Config{Ethernet: true, MaxSegs: 8, Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.2/24")}},
			pipe.Config{Ethernet: true, MaxSegs: 8, Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/24")}})
		writeEvery(t, a, b, false)
		end()
		sameAsTshark(t, path)

		var packets [][]byte
		check(t, Packets(path, func(p Packet) error { packets = append(packets, p.Data[wire.EthLen:]); return nil }))
		under := func(head string) (l [][]byte) {
			for _, p := range packets {
				l = append(l, append([]byte(head), p...))
			}
			return l
		}
		macs := "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02"
		for name, x := range map[string]struct {
			link layers.LinkType
			head string
		}{
			"vlan":     {layers.LinkTypeEthernet, macs + "\x81\x00\x20\x05\x08\x00"},
			"qinq":     {layers.LinkTypeEthernet, macs + "\x88\xA8\x00\x07\x81\x00\x20\x05\x08\x00"},
			"sll":      {layers.LinkTypeLinuxSLL, "\x00\x00\x00\x01\x00\x06\x02\x00\x00\x00\x00\x01\x00\x00\x08\x00"},
			"sll2":     {20, ""}, // see below: gopacket's type has no room for 276
			"null":     {layers.LinkTypeNull, "\x02\x00\x00\x00"},
			"loopback": {layers.LinkTypeLoop, "\x00\x00\x00\x02"},
			"raw":      {layers.LinkTypeRaw, ""},
			"ipv4":     {layers.LinkTypeIPv4, ""},
		} {
			file := ""
			if name == "sll2" {
				file = pcap(t, name+".pcap", layers.LinkTypeRaw, under("\x08\x00\x00\x00\x00\x00\x00\x02\x00\x01\x00\x06\x02\x00\x00\x00\x00\x01\x00\x00")...)
				b, err := os.ReadFile(file)
				check(t, err)
				binary.LittleEndian.PutUint32(b[20:], uint32(trace.LinkSLL2))
				check(t, os.WriteFile(file, b, 0o600))
			} else {
				file = pcap(t, name+".pcap", x.link, under(x.head)...)
			}
			if n := sameAsTshark(t, file); n < len(packets)*9/10 {
				t.Errorf("%s: %d of %d packets", name, n, len(packets))
			}
		}
	})
	for _, file := range shared(t) {
		sameAsTshark(t, file)
	}
}

// No fault is claimed in the kernel's captures, and the tables have what their README says.
func TestTraceOfSharedCaptures(t *testing.T) {
	for _, path := range shared(t) {
		b, err := os.ReadFile(path)
		check(t, err)
		for _, o := range []rules.Options{{}, {Capture: rules.Complete, Default: rules.Attr{Depth: 16, Timeout: 14, RetryCnt: 7}}} {
			r, err := report.Analyze([]trace.Input{{Name: path, R: bytes.NewReader(b)}}, report.Options{Rules: o})
			check(t, err)
			if r.Broken != 0 || r.Packets.WrongICRC != 0 || r.Rules[rules.ICRC].Kept != r.Packets.RoCE {
				t.Errorf("%s: broken %d, %d of %d ICRCs", path, r.Broken, r.Rules[rules.ICRC].Kept, r.Packets.RoCE)
			}
			// One connection, and the TCP exchange tells both its ends.
			if len(r.Conversations) != 1 && filepath.Base(path) != "rxe-pingpong-ud.pcap" {
				t.Errorf("%s: %d conversations", path, len(r.Conversations))
			}
			packets := uint64(0)
			for _, c := range r.Conversations {
				if c.A.QPN == nil || c.B.QPN == nil {
					t.Errorf("%s: %v <> %v", path, c.A, c.B)
				}
				packets += c.AB.Packets
				if c.BA != nil {
					packets += c.BA.Packets
				}
			}
			if packets != r.Packets.RoCE {
				t.Errorf("%s: %d packets in the tables, %d in the file", path, packets, r.Packets.RoCE)
			}
			if o.Capture == rules.Complete {
				continue
			}
			o.Default = rules.Attr{Depth: 1, Timeout: 14, RetryCnt: 1}
			for nth := 2; nth < 8; nth++ {
				for k := range nth {
					part := without(b, func(i int) bool { return i%nth == k })
					r, err := report.Analyze([]trace.Input{{Name: path, R: bytes.NewReader(part)}}, report.Options{Rules: o})
					var none *trace.FileError
					if err != nil && !errors.As(err, &none) {
						t.Fatal(err)
					}
					if r != nil && r.Broken != 0 {
						t.Errorf("%s: broken %d, with every %dth packet from %d on missing", path, r.Broken, nth, k)
					}
				}
			}
		}
	}
}

// without is a little-endian pcap file without some of its packets.
func without(file []byte, drop func(n int) bool) []byte {
	out := bytes.Clone(file[:24])
	file = file[24:]
	for n := 0; len(file) > 0; n++ {
		size := 16 + binary.LittleEndian.Uint32(file[8:])
		if !drop(n) {
			out = append(out, file[:size]...)
		}
		file = file[size:]
	}
	return out
}
