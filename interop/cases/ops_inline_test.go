package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Inline data of every length, also of several packets: it is copied when it is posted, so that the program may use its
// buffer again at once, and what is sent again is what was posted.
func TestOpsInline(t *testing.T) {
	const m, most = 256, 512
	for _, typ := range []device.QPType{device.RC, device.XRCIni, device.UC} {
		for _, n := range []int{0, 1, 2, m - 1, m, m + 1, m + 2, most - 1, most} {
			for _, op := range []struct {
				op         device.WROp
				name, kind string // kind: what stands in the name of the last packet
				wc         string
			}{
				{device.OpSend, "SEND", "", "SEND"}, {device.OpSendImm, "SEND", "_IMM", "SEND"}, {device.OpSendInv, "SEND", "_INV", "SEND"},
				{device.OpWrite, "WRITE", "", "RDMA_WRITE"}, {device.OpWriteImm, "WRITE", "_IMM", "RDMA_WRITE"},
			} {
				if typ == device.UC && op.op == device.OpSendInv {
					continue
				}
				for _, trigger := range []string{"NAK of the first", "NAK of the last", "RNR NAK", "timeout"} {
					if typ == device.UC && trigger != "timeout" {
						continue
					}
					bubble(t, fmt.Sprintf("%v/%v/%d/%s", typ, op.op, n, trigger), func(t *testing.T) {
						l := newLab(t, labConfig{})
						inline := func(o *rcOptions) { o.MTU, o.Inline = m, most }
						var c *conn
						if typ == device.UC {
							c = l.uc(inline)
						} else {
							c = l.requester(typ, inline)
						}
						data := pattern(5, n)
						buf := pattern(5, n)
						other := []byte("next")
						c.post(device.SendWR{Op: op.op, Flags: device.Inline, InlineData: buf, Imm: 0x89ABCDEF, RemoteAddr: remoteVA, RKey: remoteKey})
						c.post(device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: other})
						copy(buf, filled(0xEE, n))
						copy(other, "gone")
						packets := max(1, (n+m-1)/m)
						last := uint32(0x100 + packets - 1)
						check := func(from int) {
							t.Helper()
							got := l.take()
							want(t, "frames", len(got), packets-from+1)
							for i, f := range got[:packets-from] {
								name := map[bool]string{true: "ONLY", false: "FIRST"}[packets == 1]
								if from+i > 0 {
									name = "LAST"
								}
								if from+i == packets-1 {
									name += op.kind
								}
								want(t, "operation", f.Op.Short(), op.name+"_"+name)
								want(t, "PSN", f.PSN, uint32(0x100+from+i))
							}
							wantBytes(t, "payload", payloads(got), append(data[min(n, from*m):], "next"...))
						}
						check(0)
						if typ == device.UC {
							c.sent(fmt.Sprintf("1 SUCCESS %s %d", op.wc, n), "2 SUCCESS SEND 4")
							return
						}
						switch trigger {
						case "NAK of the first":
							c.gets(nak(0x100, peer.SynNakSequence))
							check(0)
						case "NAK of the last":
							c.gets(nak(last, peer.SynNakSequence))
							check(packets - 1)
						case "RNR NAK":
							c.gets(peer.RNRNak(nicQP, 0x100, 1, 0))
							l.emits()
							time.Sleep(time.Millisecond)
							check(0)
						case "timeout":
							time.Sleep(ackTimeout(14) * 5 / 4)
							check(0)
						}
						c.sent()
						c.gets(ack(last+1, 2))
						c.sent(fmt.Sprintf("1 SUCCESS %s %d", op.wc, n), "2 SUCCESS SEND 4")
						c.state(device.StateRTS)
					})
				}
			}
		}
	}
	bubble(t, "limits", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Inline = most })
		c.refused(device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: make([]byte, most+1)})
		_, err := l.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: c.scq, RecvCQ: c.rcq, Cap: device.Cap{SendWR: 1, Inline: device.MaxInline + 1}})
		errno(t, err, device.EINVAL)
	})
}
