package main

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// film is a conversation by hand: what A (10.0.0.1, QP 0x1A) and B (10.0.0.2, QP 0x1B) say to each other over RC,
// with path MTU 256, local ACK timeout code 10, 4 READs at most, 7 retries.
type film []shot

type shot struct {
	name  string // where a fault may be put
	after time.Duration
	spec  wire.Spec
	fate  string     // "", "lost" on its way, "bad": it has a wrong ICRC
	fault wire.Fault // why it is not taken
}

var filmAddr = map[byte]netip.Addr{'A': netip.MustParseAddr("10.0.0.1"), 'B': netip.MustParseAddr("10.0.0.2")}

// add appends a packet; 20 µs lie between two.
func (f *film) add(name string, from byte, op bth.Operation, psn int, edit ...func(s *wire.Spec)) *shot {
	to, qp := byte('B'), uint32(0x1B)
	if from == 'B' {
		to, qp = 'A', 0x1A
	}
	s := wire.NewSpec(wire.Path{Src: filmAddr[from], Dst: filmAddr[to], SrcPort: 0xC000}, bth.Make(bth.RC, op), qp, bth.PSN(psn))
	s.ID = uint16(len(*f))
	s.Ext.Syndrome, s.Ext.RKey, s.Ext.VA = bth.AckUnlimited, 0x77, 0x10000
	if i := s.BTH.Opcode.Info(); i.Has(bth.HasPayload) {
		s.Payload = bytes.Repeat([]byte{byte(psn)}, 100)
		if i.Has(bth.FullMTU) {
			s.Payload = bytes.Repeat([]byte{byte(psn)}, 256)
		}
		s.Ext.Length = uint32(len(s.Payload))
		s.BTH.AckReq = i.Has(bth.Request) && i.Has(bth.End)
	}
	for _, e := range edit {
		e(&s)
	}
	*f = append(*f, shot{name: name, after: 20 * time.Microsecond, spec: s})
	return &(*f)[len(*f)-1]
}

func msn(n int) func(s *wire.Spec)          { return func(s *wire.Spec) { s.Ext.MSN = uint32(n) } }
func length(n int) func(s *wire.Spec)       { return func(s *wire.Spec) { s.Ext.Length = uint32(n) } }
func payload(n int) func(s *wire.Spec)      { return func(s *wire.Spec) { s.Payload = s.Payload[:n] } }
func va(n uint64) func(s *wire.Spec)        { return func(s *wire.Spec) { s.Ext.VA = n } }
func syn(x bth.Syndrome) func(s *wire.Spec) { return func(s *wire.Spec) { s.Ext.Syndrome = x } }
func at(psn int) func(s *wire.Spec)         { return func(s *wire.Spec) { s.BTH.PSN = bth.PSN(psn) } }
func as(op bth.Operation) func(s *wire.Spec) {
	return func(s *wire.Spec) { s.BTH.Opcode = bth.Make(bth.RC, op) }
}

// newFilm has a message of each kind, a sequence NAK, an RNR NAK, an implied NAK and a timeout, and no fault.
func newFilm() film {
	var f film
	f.add("", 'A', bth.SendOnly, 100)
	f.add("", 'B', bth.Acknowledge, 100, msn(1))
	f.add("", 'A', bth.SendFirst, 101)
	f.add("", 'A', bth.SendMiddle, 102)
	f.add("send last", 'A', bth.SendLast, 103)
	f.add("", 'B', bth.Acknowledge, 103, msn(2))
	f.add("", 'A', bth.WriteFirst, 104, length(356))
	f.add("", 'A', bth.WriteLast, 105)
	f.add("ack", 'B', bth.Acknowledge, 105, msn(3))
	f.add("", 'A', bth.ReadRequest, 106, length(600))
	f.add("", 'B', bth.ReadResponseFirst, 106, msn(4))
	f.add("middle", 'B', bth.ReadResponseMiddle, 107)
	f.add("", 'B', bth.ReadResponseLast, 108, msn(4), func(s *wire.Spec) { s.Payload = s.Payload[:88] })
	f.add("", 'A', bth.FetchAdd, 109)
	f.add("", 'B', bth.AtomicAcknowledge, 109, msn(5))
	f.add("", 'A', bth.ReadRequest, 110, length(100))
	f.add("only", 'B', bth.ReadResponseOnly, 110, msn(6))
	f.add("lost", 'A', bth.SendOnly, 111).fate = "lost"
	f.add("", 'A', bth.SendOnly, 112).fault = wire.OutOfSequence
	f.add("nak", 'B', bth.Acknowledge, 111, msn(6), syn(bth.NakSequence))
	f.add("again", 'A', bth.SendOnly, 111)
	f.add("", 'A', bth.SendOnly, 112)
	f.add("", 'B', bth.Acknowledge, 112, msn(8))
	f.add("", 'A', bth.SendOnly, 113).fault = wire.NotReady
	f.add("", 'B', bth.Acknowledge, 113, msn(8), syn(bth.RNR(14))) // 1.28 ms
	f.add("after rnr", 'A', bth.SendOnly, 113).after = 1300 * time.Microsecond
	f.add("", 'B', bth.Acknowledge, 113, msn(9))
	f.add("", 'A', bth.ReadRequest, 114, length(600))
	f.add("", 'B', bth.ReadResponseFirst, 114, msn(10))
	f.add("", 'B', bth.ReadResponseMiddle, 115).fate = "lost"
	f.add("", 'B', bth.ReadResponseLast, 116, msn(10), payload(88))
	f.add("resume", 'A', bth.ReadRequest, 115, va(0x10100), length(344))
	f.add("", 'B', bth.ReadResponseFirst, 115, msn(10))
	f.add("", 'B', bth.ReadResponseLast, 116, msn(10), payload(88))
	f.add("", 'A', bth.SendOnly, 117).fate = "lost"
	f.add("timeout", 'A', bth.SendOnly, 117).after = 5 * time.Millisecond
	f.add("", 'B', bth.Acknowledge, 117, msn(11))
	f.add("", 'A', bth.ReadRequest, 118, length(100))
	f.add("second read", 'A', bth.ReadRequest, 119, length(100))
	f.add("", 'B', bth.ReadResponseOnly, 118, msn(12))
	f.add("", 'B', bth.ReadResponseOnly, 119, msn(13))
	f.add("last", 'A', bth.SendOnly, 120)
	f.add("last ack", 'B', bth.Acknowledge, 120, msn(14))
	return f
}

// find returns the place of a shot.
func (f film) find(name string) int {
	return slices.IndexFunc(f, func(s shot) bool { return s.name == name })
}

// packets are the bytes of the shots and their times.
func (f film) packets() (b [][]byte, when []time.Time) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for _, s := range f {
		now = now.Add(s.after)
		p := wire.Build(&s.spec)
		if s.fate == "bad" {
			p[len(p)-1] ^= 1
		}
		b, when = append(b, p), append(when, now)
	}
	return b, when
}

// numbers are the packets of a file in which each shot is.
type numbers map[int][]uint64

// pcapng is the film as softnic writes it, at the hosts that are named.
func (f film) pcapng(t *testing.T, hosts string) ([]byte, numbers) {
	t.Helper()
	var out bytes.Buffer
	w, err := capture.NewWriter(&out, link.Info{Name: "x"}, capture.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sinks := map[byte]link.Sink{hosts[0]: w}
	if len(hosts) > 1 {
		if sinks[hosts[1]], err = w.Add("b", link.Info{Name: "y"}); err != nil {
			t.Fatal(err)
		}
	}
	n, places := uint64(0), numbers{}
	packets, when := f.packets()
	for i, s := range f {
		from, to := byte('A'), byte('B')
		if s.spec.Path.Src == filmAddr['B'] {
			from, to = to, from
		}
		r := link.Record{When: when[i], Dir: link.Tx, Net: packets[i]}
		give := func(host byte) {
			if sinks[host] != nil {
				sinks[host].Capture(&r)
				n++
				places[i] = append(places[i], n)
			}
		}
		if s.fate == "lost" {
			r.Fault, r.Note = wire.Impaired, "tx drop"
		}
		give(from)
		if s.fate == "lost" {
			continue
		}
		r.When, r.Dir, r.Fault = when[i].Add(2*time.Microsecond), link.Rx, s.fault
		if s.fate == "bad" {
			r.Fault = wire.ICRC
		}
		give(to)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), places
}

// pcap is the film as seen on its way, in a plain file of Ethernet frames. What was lost was lost behind that place.
func (f film) pcap() ([]byte, numbers) {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xA1B23C4D)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0)
	packets, when := f.packets()
	places := numbers{}
	for i, p := range packets {
		p = append(append(make([]byte, 12), 8, 0), p...)
		b = le.AppendUint32(le.AppendUint32(b, uint32(when[i].Unix())), uint32(when[i].Nanosecond()))
		b = le.AppendUint32(le.AppendUint32(b, uint32(len(p))), uint32(len(p)))
		b = append(b, p...)
		places[i] = []uint64{uint64(i + 1)}
	}
	return b, places
}

// files are the film in all the ways in which it may be captured.
func (f film) files(t *testing.T) map[string]struct {
	file   []byte
	places numbers
} {
	type entry = struct {
		file   []byte
		places numbers
	}
	m := map[string]entry{}
	for _, hosts := range []string{"A", "B", "AB"} {
		b, n := f.pcapng(t, hosts)
		m[hosts] = entry{b, n}
	}
	b, n := f.pcap()
	m["plain"] = entry{b, n}
	return maps.Clone(m)
}
