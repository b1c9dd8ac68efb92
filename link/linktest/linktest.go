// Package linktest makes packets and takes them apart for the tests of packages that
// implement or use a link. Only tests import it.
package linktest

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"sync"
	"testing"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Path returns a path from src to dst with the source port 0xC123.
func Path(src, dst string) *wire.Path {
	return &wire.Path{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: 0xC123}
}

// Packet returns a packet with the opcode's headers, zeroed, after the BTH.
func Packet(path *wire.Path, op bth.Opcode, qpn uint32, psn bth.PSN, payload []byte) *wire.Packet {
	p := &wire.Packet{Path: path, Len: op.Info().Len, Size: len(payload), Pad: -len(payload) & 3}
	if len(payload) > 0 {
		p.Data = [][]byte{payload}
	}
	bth.BTH(p.Head[:bth.Len]).Encode(&bth.Fields{
		Opcode: op, MigReq: true, Pad: p.Pad, PKey: 0xFFFF, DestQP: qpn, PSN: psn,
	})
	return p
}

// Send returns an RC SEND_ONLY.
func Send(path *wire.Path, qpn uint32, psn bth.PSN, payload []byte) *wire.Packet {
	return Packet(path, bth.Make(bth.RC, bth.SendOnly), qpn, psn, payload)
}

// Sends returns SEND_ONLY packets of the PSNs from ... to; each holds "packet " and its PSN.
func Sends(path *wire.Path, qpn uint32, from, to int) (l []*wire.Packet) {
	for i := from; i <= to; i++ {
		l = append(l, Send(path, qpn, bth.PSN(i), fmt.Appendf(nil, "packet %d", i)))
	}
	return l
}

// Port returns a port over e, which is closed with the test.
func Port(tb testing.TB, e link.Endpoint, o link.PortOptions) *link.Port {
	tb.Helper()
	p, err := link.NewPort(e, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.Close() })
	return p
}

// Got is what Drain tells of a received packet.
type Got struct {
	PSN   bth.PSN    // of its BTH
	Fault wire.Fault // what Parse said
}

// Drain receives, parses and hands back all that is there, without waiting.
func Drain(tb testing.TB, p *link.Port, source int) (all []Got) {
	tb.Helper()
	b := link.NewBatch(8)
	for {
		if err := p.Sources()[source].Recv(b, false); err != nil {
			tb.Fatal(err)
		}
		if len(b.Packets) == 0 {
			return all
		}
		p.Parse(b)
		for i := range b.Packets {
			all = append(all, Got{b.Packets[i].View.BTH().PSN(), b.Packets[i].Fault})
		}
		p.Done(b)
	}
}

// Frame returns the bytes of a packet from its IP header on.
func Frame(p *wire.Packet) []byte { return p.Append(nil, 0) }

// ICRC computes the ICRC of a packet that begins with its IP header and ends with an
// ICRC, and returns it beside the one found. It shares no code with package icrc.
func ICRC(ip []byte) (want, got uint32) {
	p := append([]byte(nil), ip[:len(ip)-4]...)
	n := 20
	if p[0]>>4 == 4 {
		p[1], p[8], p[10], p[11] = 0xFF, 0xFF, 0xFF, 0xFF
	} else {
		n = 40
		p[0] |= 0x0F
		p[1], p[2], p[3], p[7] = 0xFF, 0xFF, 0xFF, 0xFF
	}
	p[n+6], p[n+7], p[n+8+4] = 0xFF, 0xFF, 0xFF
	all := append([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, p...)
	return crc32.ChecksumIEEE(all), binary.LittleEndian.Uint32(ip[len(ip)-4:])
}

// Entry is one record of a Sink.
type Entry struct {
	link.Record        // the slices in it are not to be used
	Bytes       []byte // the packet
	HeadAt      int    // where the BTH is in it
}

// BTH returns the base transport header.
func (e *Entry) BTH() bth.BTH { return bth.BTH(e.Bytes[e.HeadAt : e.HeadAt+bth.Len]) }

// Sink is a link.Sink that keeps everything.
type Sink struct {
	mu  sync.Mutex
	all []Entry
}

// Capture keeps a copy of r.
func (s *Sink) Capture(r *link.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, Entry{*r, r.AppendTo(nil), len(r.Eth) + len(r.Net)})
}

// Take returns what was kept since the last Take.
func (s *Sink) Take() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}
