package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// payloads joins what frames carry.
func payloads(l []*peer.Frame) []byte {
	var b []byte
	for _, f := range l {
		b = append(b, f.Payload...)
	}
	return b
}

// sizes are the message lengths of the segmentation tables, in terms of the path MTU.
func sizes(mtu int) []int { return []int{0, 1, 2, 3, mtu - 1, mtu, mtu + 1, 3 * mtu, 3*mtu + 2} }

// segments is how a message of n bytes is to look: FIRST and MIDDLE packets are
// full, AckReq is on the last one, and the immediate, where there is one, too
// (roce.md A.5).
func segments(op string, imm, reth bool, psn uint32, mtu, n int) []string {
	packets := max(1, (n+mtu-1)/mtu)
	var out []string
	for i := range packets {
		first, last := i == 0, i == packets-1
		pos := "MIDDLE"
		switch {
		case first && last:
			pos = "ONLY"
		case first:
			pos = "FIRST"
		case last:
			pos = "LAST"
		}
		s := op + "_" + pos
		if last && imm {
			s += "_IMM"
		}
		s += fmt.Sprintf(" %06x", (psn+uint32(i))&0xFFFFFF)
		if last {
			s += " ar"
		}
		if first && reth {
			s += fmt.Sprintf(" va=%x+%d", remoteVA, n)
		}
		if last && imm {
			s += " imm=89abcdef"
		}
		if k := min(mtu, n-i*mtu); k > 0 {
			s += fmt.Sprintf(" [%d]", k)
		}
		out = append(out, s)
	}
	return out
}

// As requester: which packets a SEND, WRITE or READ of a length becomes.
func TestSegmentation(t *testing.T) {
	for _, mtu := range []int{256, 1024, 4096} {
		for _, n := range sizes(mtu) {
			for _, k := range []struct {
				op        device.WROp
				name      string
				imm, reth bool
			}{
				{device.OpSend, "SEND", false, false}, {device.OpSendImm, "SEND", true, false},
				{device.OpWrite, "WRITE", false, true}, {device.OpWriteImm, "WRITE", true, true},
			} {
				bubble(t, fmt.Sprintf("%v/mtu=%d/%d", k.op, mtu, n), func(t *testing.T) {
					l := newLab(t, labConfig{})
					c := l.rc(func(o *rcOptions) { o.MTU, o.SQPSN = mtu, 0xFFFFFE })
					mr := l.mr(16384, 0)
					copy(mr.Bytes(), pattern(3, 16384))
					id := c.post(device.SendWR{Op: k.op, SGE: sge(mr, n), Imm: 0x89ABCDEF, RemoteAddr: remoteVA, RKey: remoteKey})
					frames := l.emits(segments(k.name, k.imm, k.reth, 0xFFFFFE, mtu, n)...)
					wantBytes(t, "payload", payloads(frames), mr.Bytes()[:n])
					for _, f := range frames {
						if f.HeaderSet().Has(peer.HasRETH) {
							want(t, "rkey", f.RETH.RKey, remoteKey)
						}
						want(t, "source port", f.SrcPort, 0xC242) // roce.md A.7: 0x11 · 0x22 = 0x242
					}
					c.sent()
					c.gets(ack(frames[len(frames)-1].PSN, 1))
					op := "SEND"
					if k.reth {
						op = "RDMA_WRITE"
					}
					c.sent(fmt.Sprintf("%d SUCCESS %s %d", id, op, n))
					// The next message begins at the next PSN.
					c.send(mr, 0)
					l.emits(fmt.Sprintf("SEND_ONLY %06x ar", (0xFFFFFE+len(frames))&0xFFFFFF))
				})
			}
			bubble(t, fmt.Sprintf("READ/mtu=%d/%d", mtu, n), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.rc(func(o *rcOptions) { o.MTU, o.SQPSN = mtu, 0xFFFFFE })
				mr := l.mr(16384, device.LocalWrite)
				data := pattern(9, n)
				id := c.read(mr, n)
				l.emits(fmt.Sprintf("READ_REQUEST fffffe ar va=%x+%d", remoteVA, n))
				// A READ takes as many PSNs as it has response packets.
				c.send(mr, 0)
				packets := max(1, (n+mtu-1)/mtu)
				l.emits(fmt.Sprintf("SEND_ONLY %06x ar", (0xFFFFFE+packets)&0xFFFFFF))
				c.gets(readAnswer(0xFFFFFE, 1, mtu, data)...)
				c.sent(fmt.Sprintf("%d SUCCESS RDMA_READ %d", id, n))
				wantBytes(t, "what was read", mr.Bytes()[:n], data)
				wantBytes(t, "what is behind it", mr.Bytes()[n:], make([]byte, 16384-n))
				c.gets(ack(0xFFFFFE+uint32(packets), 2))
				c.sent("2 SUCCESS SEND 0")
				want(t, "drops", l.drops(), "")
			})
		}
	}
}

// readAnswer is the packets that answer a READ of data.
func readAnswer(psn, msn uint32, mtu int, data []byte) []*peer.Frame {
	packets := max(1, (len(data)+mtu-1)/mtu)
	var out []*peer.Frame
	for i := range packets {
		b := data[i*mtu : min((i+1)*mtu, len(data))]
		p := psn + uint32(i)
		switch {
		case packets == 1:
			out = append(out, peer.ReadRespOnly(nicQP, p, msn, b))
		case i == 0:
			out = append(out, peer.ReadRespFirst(nicQP, p, msn, b))
		case i == packets-1:
			out = append(out, peer.ReadRespLast(nicQP, p, msn, b))
		default:
			out = append(out, peer.ReadRespMiddle(nicQP, p, b))
		}
	}
	return out
}

// roce.md A.7: the UDP source port of a connection, from the flow label or else from the two
// queue pair numbers, and the traffic class, ECN bits included.
func TestSourcePort(t *testing.T) {
	for _, v := range []struct {
		flow uint32
		qpn  uint32
		port uint16
	}{
		{0, nicQP, 0xC242},            // 0x11 · 0x22 = 0x242
		{0x12345, nicQP, 0xE341},      // [M]
		{0xFFFFF, nicQP, 0xFFC0},      // 0x3FFF xor 0x3F
		{0, 0x10000, 0xC00A},          // 0x220000, folded to 0x20002: 2 xor 8
		{0x00001, 0xFFFFFE, 0xC001},   // the queue pairs do not matter then
		{0, 0xFFFFFE, port(0xFFFFFE)}, // 0x21FFFFBC
	} {
		bubble(t, fmt.Sprintf("flow label %x, QPN %x", v.flow, v.qpn), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.FlowLabel, o.QPN, o.TrafficClass = v.flow, v.qpn, 0x6A })
			c.send(nil, 0)
			f := l.emits("SEND_ONLY 000100 ar")[0]
			want(t, "source port", f.SrcPort, v.port)
			want(t, "traffic class", f.TOS, 0x6A)
			// Answers go the same way.
			c.gets(peer.WriteOnly(v.qpn, 0x200, 0, 0, nil).With(func(f *peer.Frame) { f.SrcPort = 0xDEAD }))
			f = l.emits("ACKNOWLEDGE 000200 1f m1")[0]
			want(t, "source port", f.SrcPort, v.port)
		})
	}
}

// port is the formula of roce.md A.7 for flow label 0, with the peer's queue pair.
func port(qpn uint64) uint16 {
	v := qpn * peerQP
	v ^= v >> 20
	v ^= v >> 40
	v &= 0xFFFFF
	return 0xC000 | uint16(v&0x3FFF^v>>14)
}
