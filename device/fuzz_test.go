package device_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// FuzzWire throws packets with a right ICRC at a device: anything behind the IP header
// that a hostile peer can send on a connection. The input is a list of packets, each
// with a byte of length before it; queue pair numbers and PSNs near the real ones are
// put in by the first bytes, because random ones would never hit.
//
// The device must not panic, and a queue pair that is not addressed must keep its state
// and its memory.
func FuzzWire(f *testing.F) {
	pkt := func(which, psn byte, op bth.Opcode, rest ...byte) []byte {
		b := append([]byte{0, which, psn, byte(op), 0x80}, rest...)
		b[0] = byte(len(b) - 1)
		return b
	}
	reth := func(n uint32, payload ...byte) []byte {
		b := make([]byte, 16, 16+len(payload))
		binary.BigEndian.PutUint32(b[12:], n)
		return append(b, payload...)
	}
	f.Add(pkt(0, 0, bth.Make(bth.RC, bth.SendOnly), 1, 2, 3, 4))
	f.Add(pkt(0, 0, bth.Make(bth.RC, bth.ReadRequest), reth(4000)...))
	f.Add(append(pkt(0, 0, bth.Make(bth.RC, bth.WriteFirst), reth(8, 1, 2, 3, 4)...), pkt(0, 1, bth.Make(bth.RC, bth.WriteLast), 5, 6, 7, 8)...))
	f.Add(pkt(0, 0x80, bth.Make(bth.RC, bth.Acknowledge), 0x1F, 0, 0, 1))
	f.Add(pkt(0, 0x80, bth.Make(bth.RC, bth.Acknowledge), 0x60, 0, 0, 0))
	f.Add(pkt(0, 0x80, bth.Make(bth.RC, bth.Acknowledge), 0x2C, 0, 0, 0))
	f.Add(pkt(0, 0x80, bth.Make(bth.RC, bth.ReadResponseOnly), 0x1F, 0, 0, 1, 9, 9, 9, 9))
	f.Add(pkt(0, 0x81, bth.Make(bth.RC, bth.ReadResponseFirst), 0x1F, 0, 0, 1, 9, 9, 9, 9))
	f.Add(pkt(1, 0, bth.UDSendOnly, 0x11, 0x11, 0x11, 0x11, 0, 0, 0, 5, 1, 2, 3, 4))
	f.Add(pkt(0, 0, bth.CNPNotify, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		at := time.Unix(1000, 0)
		ep, raw := pipe.NewRaw(pipe.Config{MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, Clock: clock.NewManual(at)})
		h := newHost(t, ep, device.Options{Stepped: true, Rand: rand.NewChaCha8([32]byte{1})})
		peer := device.Remote{GID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), QPN: 0x123456, PSN: 0}
		rc, bystander, ud := h.qp(device.RC, 8), h.qp(device.RC, 8), h.qp(device.UD, 8)
		const firstPSN = 0xFFFFFE
		for _, q := range []*device.QP{rc, bystander} {
			if err := q.Connect(firstPSN, peer, device.ConnectOptions{PathMTU: 256}); err != nil {
				t.Fatal(err)
			}
		}
		if err := ud.Activate(0x11111111, 0); err != nil {
			t.Fatal(err)
		}
		mr, quiet := h.mr(8192), h.mr(8192)
		for range 4 {
			for _, q := range []*device.QP{rc, ud} {
				if err := q.PostRecv(&device.RecvWR{SGE: []device.SGE{mr.SGE(0, 600)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		// Requests are outstanding: a READ behind a WRITE of several packets.
		for _, op := range []device.WROp{device.OpWrite, device.OpRead, device.OpSend} {
			if err := rc.PostSend(&device.SendWR{Op: op, SGE: []device.SGE{mr.SGE(4096, 700)}, RKey: 7}); err != nil {
				t.Fatal(err)
			}
		}
		d := h.dev
		for n := 0; len(in) > 4 && n < 32; n++ {
			k := min(int(in[0]), len(in)-1)
			p := in[1 : 1+k]
			in = in[1+k:]
			if len(p) < 4 {
				break
			}
			dest := rc.Num()
			if p[0]&1 != 0 {
				dest = ud.Num()
			}
			psn := bth.PSN(p[1] & 0x7F)
			if p[1]&0x80 != 0 {
				psn = psn.Add(firstPSN)
			}
			path := wire.Path{Src: netip.MustParseAddr("10.0.0.2"), Dst: netip.MustParseAddr("10.0.0.1"), SrcPort: 0xC000}
			spec := wire.NewSpec(path, bth.Opcode(p[2]), dest, psn)
			spec.BTH.AckReq, spec.BTH.TVer = p[3]&0x80 != 0, int(p[3]&1)
			spec.RawExt = append([]byte{}, p[4:]...)
			// The keys of real memory, where a RETH stands, so that some get through.
			if o, ok := spec.BTH.Opcode.Info().Offset(bth.HRETH); ok && len(spec.RawExt) >= o-bth.Len+16 && p[0]&2 == 0 {
				r := bth.RETH(spec.RawExt[o-bth.Len:])
				r.Put(mr.Addr()+r.VA()%8192, mr.RKey(), r.Length())
			}
			spec.Pad = make([]byte, -len(spec.RawExt)&3)
			if p[0]&4 != 0 {
				spec.Pad = []byte{}
			}
			if err := raw.Write(wire.Build(&spec)); err != nil {
				t.Fatal(err)
			}
			if next, ok := d.Step(at); ok && p[0]&8 != 0 {
				at = next
				d.Step(at)
			}
			for raw.TryRead() != nil {
			}
		}
		if s := bystander.State(); s != device.StateRTS {
			t.Errorf("a queue pair that nobody addressed is in %s", s)
		}
		for _, b := range quiet.Bytes() {
			if b != 0 {
				t.Fatal("memory that nobody named was written")
			}
		}
		if err := h.ctx.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
