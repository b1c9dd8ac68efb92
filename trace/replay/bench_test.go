package replay

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// long writes a pcap file (ns, raw IP) of about so many bytes: 8 queue pairs that SEND, WRITE or READ messages of size bytes, four
// packets each if that is more than one, and the answers. Of every 500 messages one is lost before the NIC and sent again after a
// sequence NAK.
func long(w io.Writer, op bth.Operation, size int, bytes int64) (packets int, err error) {
	b := bufio.NewWriterSize(w, 1<<20)
	le := binary.LittleEndian
	head := le.AppendUint32(le.AppendUint32(nil, 0xA1B23C4D), 2|4<<16)
	b.Write(le.AppendUint32(le.AppendUint32(append(head, make([]byte, 8)...), 1<<18), 101))
	now, written := int64(1e18), int64(24)
	put := func(s *wire.Spec) {
		p := wire.Build(s)
		h := le.AppendUint32(le.AppendUint32(nil, uint32(now/1e9)), uint32(now%1e9))
		b.Write(le.AppendUint32(le.AppendUint32(h, uint32(len(p))), uint32(len(p))))
		b.Write(p)
		written += int64(16 + len(p))
		packets++
		now += 500
	}
	spec := func(op bth.Operation, q uint32, psn bth.PSN, there bool) wire.Spec {
		p := wire.Path{Src: addrA, Dst: addrB, SrcPort: 0xC000}
		qpn := 0x1000 + q
		if !there {
			p.Src, p.Dst, qpn = p.Dst, p.Src, 0x2000+q
		}
		s := wire.NewSpec(p, bth.Make(bth.RC, op), qpn, psn)
		s.Ext.Syndrome = bth.AckUnlimited
		return s
	}
	data := make([]byte, size)
	mtu := size
	if size > 1000 {
		mtu = size / 4
	}
	n := bth.PSN(size / mtu)
	for m := uint32(0); written < bytes; m++ {
		for q := range uint32(8) {
			psn := bth.PSN(m) * n & 0xFFFFFF
			ask := func() {
				if op == bth.ReadRequest {
					s := spec(op, q, psn, true)
					s.Ext.VA, s.Ext.RKey, s.Ext.Length, s.BTH.AckReq = base, rkey, uint32(size), true
					put(&s)
					return
				}
				for i := range n {
					o := op
					if n > 1 {
						o = map[bth.PSN]bth.Operation{0: op - 4, n - 1: op - 2}[i]
						if i > 0 && i < n-1 {
							o = op - 3
						}
					}
					s := spec(o, q, psn.Add(int(i)), true)
					s.Ext.VA, s.Ext.RKey, s.Ext.Length, s.BTH.AckReq = base, rkey, uint32(size), i == n-1
					s.Payload = data[int(i)*mtu : int(i+1)*mtu]
					put(&s)
				}
			}
			if m%500 == 499 && op == bth.SendOnly && q == 0 {
				s := spec(bth.SendOnly, q, psn.Add(1), true)
				put(&s)
				s = spec(bth.Acknowledge, q, psn, false)
				s.Ext.Syndrome, s.Ext.MSN = bth.NakSequence, m&0xFFFFFF
				put(&s)
			}
			ask()
			if op == bth.ReadRequest {
				for i := range n {
					o := map[bth.PSN]bth.Operation{0: bth.ReadResponseFirst, n - 1: bth.ReadResponseLast}[i]
					if i > 0 && i < n-1 {
						o = bth.ReadResponseMiddle
					}
					if n == 1 {
						o = bth.ReadResponseOnly
					}
					s := spec(o, q, psn.Add(int(i)), false)
					s.Payload, s.Ext.MSN = data[int(i)*mtu:int(i+1)*mtu], (m+1)&0xFFFFFF
					put(&s)
				}
				continue
			}
			s := spec(bth.Acknowledge, q, psn.Add(int(n-1)), false)
			s.Ext.MSN = (m + 1) & 0xFFFFFF
			put(&s)
		}
	}
	return packets, b.Flush()
}

// BenchmarkRun replays captures of SOFTNIC_TRACE_MB megabytes (16).
func BenchmarkRun(b *testing.B) {
	mb := int64(16)
	if s := os.Getenv("SOFTNIC_TRACE_MB"); s != "" {
		mb, _ = strconv.ParseInt(s, 10, 64)
	}
	for _, c := range []struct {
		name string
		op   bth.Operation
		size int
	}{{"SEND of 64", bth.SendOnly, 64}, {"WRITE of 16384", bth.WriteOnly, 16384}, {"READ of 4096", bth.ReadRequest, 4096}} {
		b.Run(c.name, func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "long.pcap"))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			n, err := long(f, c.op, c.size, mb<<20)
			if err != nil {
				b.Fatal(err)
			}
			if to := os.Getenv("SOFTNIC_TRACE_KEEP"); to != "" {
				_ = os.Link(f.Name(), filepath.Join(to, fmt.Sprintf("long-%d-%d.pcap", c.op, c.size)))
			}
			b.SetBytes(mb << 20)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := f.Seek(0, io.SeekStart); err != nil {
					b.Fatal(err)
				}
				r, err := Run(trace.Input{Name: f.Name(), R: f}, Options{})
				if err != nil || r.Different > 0 || r.Packets.RoCE != uint64(n) || len(r.Conversations) != 8 {
					b.Fatalf("%v %v", err, r)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "packets/s")
		})
	}
}
