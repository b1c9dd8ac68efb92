package wire

import (
	"bytes"
	"encoding/binary"
	"github.com/softnic/softnic/wire/icrc"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/softnic/softnic/wire/bth"
)

// TestSealerAndChecker: packets in any order, of some paths and lengths, with any ID: the sealer writes what Packet.Seal writes, and the
// checker says and leaves what CheckICRC says and leaves, whatever ID the header guesses, and of damaged packets too.
func TestSealerAndChecker(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	paths := []*Path{
		{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 0xC123},
		{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.3"), SrcPort: 0xC124, TClass: 3, HopLimit: 9},
		{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"), SrcPort: 0xC125, FlowLabel: 77},
	}
	var sealer Sealer
	var checker Checker
	for i := range 20_000 {
		p := Packet{Path: paths[r.IntN(len(paths))]}
		if r.IntN(2) == 0 {
			sealer.SrcPort = []uint16{0, 4791}[r.IntN(2)]
		}
		o := bth.Make(bth.RC, bth.SendOnly)
		p.Len, p.Size = o.Info().Len, r.IntN(3)*64+r.IntN(3)
		if r.IntN(4) == 0 {
			p.Size = r.IntN(4097)
		}
		p.Pad = -p.Size & 3
		payload := make([]byte, p.Size)
		for j := range payload {
			payload[j] = byte(r.Uint32())
		}
		p.Data = [][]byte{payload}
		if r.IntN(2) == 0 {
			n := r.IntN(p.Size + 1)
			p.Data = [][]byte{payload[:n], nil, payload[n:]}
		}
		bth.BTH(p.Head[:]).Encode(&bth.Fields{Opcode: o, PKey: 0xFFFF, DestQP: 0x11, PSN: bth.PSN(r.Uint32() & 0xFFFFFF), Pad: p.Pad})
		id := uint16(r.Uint32()) >> r.IntN(16)
		var net, wantNet [MaxNetLen]byte
		ib, wantIB := make([]byte, p.IBLen()+1), make([]byte, p.IBLen()+1)
		as := p
		if sealer.SrcPort != 0 {
			path := *p.Path
			path.SrcPort = sealer.SrcPort
			as.Path = &path
		}
		n, want := sealer.Seal(&p, net[:], id, ib), as.Seal(wantNet[:], id, wantIB)
		if n != want || n != p.IBLen() || net != wantNet || !bytes.Equal(ib, wantIB) {
			t.Fatalf("seed %d, packet %d, ID %d: % x % x, want % x % x", seed, i, id, net, ib, wantNet, wantIB)
		}
		ib = ib[:n]
		if sum := icrc.Start(net[:p.Path.NetLen()], slices.Concat(p.Head[:p.Len], payload, make([]byte, p.Pad))); !bytes.Equal(ib, binary.LittleEndian.AppendUint32(
			slices.Concat(p.Head[:p.Len], payload, make([]byte, p.Pad)), sum.Sum())) {
			t.Fatalf("seed %d, packet %d, %d bytes, ID %d: % x", seed, i, p.Size, id, ib)
		}
		if p.Path.Dst.Is6() {
			continue
		}
		if r.IntN(4) == 0 {
			ib[r.IntN(len(ib))] ^= 1 << r.IntN(8)
		}
		guess := []uint16{0, id, uint16(r.Uint32())}[r.IntN(3)]
		head := func() []byte {
			b := append([]byte(nil), net[:NetLen4]...)
			b[4], b[5] = byte(guess>>8), byte(guess)
			PutIPChecksum(b)
			return b
		}
		var v, w View
		if f, g := ParseSplit(head(), ib, false, &v), ParseSplit(head(), ib, false, &w); f != OK || g != OK {
			continue // the damage is in the BTH
		}
		got, wanted := checker.Check(&v), CheckICRC(&w)
		if got != wanted || v.IDKnown != w.IDKnown || !bytes.Equal(v.Net, w.Net) {
			t.Fatalf("seed %d, packet %d: %v % x, want %v % x", seed, i, got, v.Net, wanted, w.Net)
		}
	}
}
