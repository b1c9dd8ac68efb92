package report

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// long writes a pcap file (ns) of RC WRITEs of 64 packets with payload of the MTU given, and their ACKs, both directions
// between two hosts, of some queue pairs, of about so many bytes.
func long(w io.Writer, mtu, pairs int, size int64) (packets int, err error) {
	b := bufio.NewWriterSize(w, 1<<20)
	le := binary.LittleEndian
	head := le.AppendUint32(nil, 0xA1B23C4D)
	head = le.AppendUint16(le.AppendUint16(head, 2), 4)
	head = append(head, make([]byte, 8)...)
	head = le.AppendUint32(le.AppendUint32(head, 1<<18), 1)
	if _, err := b.Write(head); err != nil {
		return 0, err
	}
	hosts := [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	var eth [14]byte
	le.PutUint16(eth[12:], 0x0008)
	now := int64(1e18)
	written := int64(len(head))
	put := func(s *wire.Spec) {
		f := append(eth[:14:14], wire.Build(s)...)
		h := le.AppendUint32(nil, uint32(now/1e9))
		h = le.AppendUint32(h, uint32(now%1e9))
		h = le.AppendUint32(le.AppendUint32(h, uint32(len(f))), uint32(len(f)))
		b.Write(h)
		b.Write(f)
		written += int64(len(h) + len(f))
		packets++
		now += 200
	}
	const burst = 64
	payload := make([]byte, mtu)
	for m := 0; written < size; m++ {
		for q := range uint32(pairs) {
			from, to := q%2, 1-q%2
			psn := bth.PSN(uint32(m*burst) & 0xFFFFFF)
			for i := range burst {
				op := bth.WriteMiddle
				switch i {
				case 0:
					op = bth.WriteFirst
				case burst - 1:
					op = bth.WriteLast
				}
				s := wire.NewSpec(wire.Path{Src: hosts[from], Dst: hosts[to], SrcPort: 0xC000}, bth.Make(bth.RC, op), 0x100+q, psn.Add(i))
				s.Ext.Length, s.Payload = uint32(burst*mtu), payload
				s.BTH.AckReq = i == burst-1
				le.PutUint64(payload, uint64(m*burst+i))
				put(&s)
			}
			s := wire.NewSpec(wire.Path{Src: hosts[to], Dst: hosts[from], SrcPort: 0xC000}, bth.Make(bth.RC, bth.Acknowledge), 0x10000+q, psn.Add(burst-1))
			s.Ext.Syndrome, s.Ext.MSN = bth.AckUnlimited, uint32(m+1)&0xFFFFFF
			put(&s)
		}
	}
	return packets, b.Flush()
}

// BenchmarkAnalyze judges a capture of SOFTNIC_TRACE_MB megabytes (64), as the command does.
func BenchmarkAnalyze(b *testing.B) {
	mb := int64(64)
	if s := os.Getenv("SOFTNIC_TRACE_MB"); s != "" {
		mb, _ = strconv.ParseInt(s, 10, 64)
	}
	for _, mtu := range []int{4096, 1024, 256} {
		b.Run(fmt.Sprintf("mtu=%d", mtu), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "long.pcap")
			f, err := os.Create(path)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			n, err := long(f, mtu, 8, mb<<20)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(mb << 20)
			runtime.GC()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := f.Seek(0, io.SeekStart); err != nil {
					b.Fatal(err)
				}
				r, err := Analyze([]trace.Input{{Name: path, R: f}}, Options{})
				if err != nil || r.Broken != 0 || r.Packets.RoCE != uint64(n) || len(r.Conversations) != 8 {
					b.Fatal(err, r)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "packets/s")
		})
	}
}
