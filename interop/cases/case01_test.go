package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 01: a pad count larger than what is left of the packet, and every other
// packet that is too short for the headers of its opcode, pad and ICRC. All are
// dropped in silence and counted; nothing else moves.
func TestCase01_PadAndShortPackets(t *testing.T) {
	for _, state := range []device.State{device.StateRTR, device.StateRTS} {
		for _, hide := range []bool{false, true} { // with the IP header in sight, and as behind a UDP socket
			bubble(t, fmt.Sprintf("%v/hideIP=%v", state, hide), func(t *testing.T) {
				l := newLab(t, labConfig{HideIP: hide})
				c := l.rc(func(o *rcOptions) { o.State = state })
				u := l.ud(state)
				l.destQP = 0
				mr := l.mr(4096, all)
				c.recv(7, mr, 100)
				u.recv(8, mr.SGE(0, 100))
				synced := l.count("drop_malformed")

				short := case01Frames()
				t.Logf("%d short frames", len(short))
				for i, f := range short {
					l.p.Send(t, f)
					l.emits()
					if got, want := l.count("drop_malformed"), synced+uint64(i)+1; got != want {
						t.Fatalf("after %v: drop_malformed is %d, want %d (drops: %s)", f, got, want, l.drops())
					}
				}
				want(t, "drops", l.drops(), fmt.Sprintf("malformed=%d", len(short)))
				c.received()
				u.received()
				c.sent()
				l.events()
				c.state(state)
				want(t, "memory", mr.Bytes()[0], 0)

				// ePSN and MSN are where they were: the good packet is the first.
				c.gets(peer.SendOnly(nicQP, 0x200, []byte("good")))
				l.emits("ACKNOWLEDGE 000200 1f m1")
				c.received("7 SUCCESS RECV 4")
				wantBytes(t, "memory", mr.Bytes()[:4], []byte("good"))
				l.p.Send(t, peer.UDSend(udQP, 0, qkey, peerUD, []byte("good")))
				l.emits()
				u.received("8 SUCCESS RECV 44")
			})
		}
	}
}

// case01Frames is the sweep: what the case lists, with every pad count.
func case01Frames() []*peer.Frame {
	var out []*peer.Frame
	// body is a frame cut to so many bytes from the BTH on, with a right ICRC over what is left.
	body := func(op peer.Op, qp uint32, n int, pad uint8) *peer.Frame {
		f := peer.NewFrame(op, qp, 0x200)
		f.AckReq = true
		f.PadCount, f.PadBytes, f.BodyLimit = &pad, []byte{}, &n
		f.DETH.QKey, f.DETH.SrcQP = qkey, peerUD
		return f
	}
	for pad := range uint8(4) {
		if pad > 0 {
			// The case itself: BTH and ICRC are there, and pad bytes are claimed.
			out = append(out, body(peer.OpSendOnly, nicQP, 12, pad))
		}
		for n := range 16 {
			// No room for BTH and ICRC together: nothing that could be an ICRC, or
			// the ICRC of what is there.
			f := body(peer.OpSendOnly, nicQP, n, pad)
			f.OmitICRC, f.Payload = true, []byte{1, 2, 3, 4}
			out = append(out, f)
			if n >= 4 {
				out = append(out, body(peer.OpSendOnly, nicQP, n-4, pad))
			}
		}
		for _, h := range []struct {
			op  peer.Op
			qp  uint32
			len int // of the extended headers
		}{
			{peer.OpReadRequest, nicQP, 16}, {peer.OpAck, nicQP, 4}, {peer.OpFetchAdd, nicQP, 28},
			{peer.OpUDSendOnly, udQP, 8}, {peer.OpWriteOnly, nicQP, 16}, {peer.OpSendOnlyImm, nicQP, 4},
			{peer.OpUDSendOnlyImm, udQP, 12}, {peer.OpWriteOnlyImm, nicQP, 20}, {peer.OpReadRespOnly, nicQP, 4},
		} {
			for n := range h.len {
				out = append(out, body(h.op, h.qp, 12+n, pad))
			}
			// All headers are there, and too few of the pad bytes that are claimed.
			for have := range int(pad) {
				f := body(h.op, h.qp, 12+h.len+have, pad)
				f.PadBytes = make([]byte, 3)
				out = append(out, f)
			}
		}
	}
	return out
}
