package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// As XRC requester: which packets a message of a length becomes. They are those of RC, each with the number of the
// shared receive queue behind its BTH (roce.md A.5).
func TestXRCRequester(t *testing.T) {
	const srqn = 0xABCDE
	for _, m := range []int{256, 1024, 4096} {
		for _, n := range sizes(m) {
			for _, k := range []struct {
				op        device.WROp
				name      string
				imm, reth bool
				wc        string
			}{
				{device.OpSend, "SEND", false, false, "SEND"}, {device.OpSendImm, "SEND", true, false, "SEND"},
				{device.OpWrite, "WRITE", false, true, "RDMA_WRITE"}, {device.OpWriteImm, "WRITE", true, true, "RDMA_WRITE"},
			} {
				bubble(t, fmt.Sprintf("%v/mtu=%d/%d", k.op, m, n), func(t *testing.T) {
					l := newLab(t, labConfig{})
					c := l.requester(device.XRCIni, func(o *rcOptions) { o.MTU, o.SQPSN = m, 0xFFFFFE })
					mr := l.mr(16384, 0)
					copy(mr.Bytes(), pattern(3, 16384))
					c.post(device.SendWR{Op: k.op, SGE: sge(mr, n), Imm: 0x89ABCDEF, RemoteAddr: remoteVA, RKey: remoteKey, SRQN: srqn})
					frames := l.emits(segments(k.name, k.imm, k.reth, 0xFFFFFE, m, n)...)
					wantBytes(t, "payload", payloads(frames), mr.Bytes()[:n])
					for _, f := range frames {
						want(t, "service", f.Op.Service(), peer.XRC)
						want(t, "shared receive queue", f.XRCETH.SRQN, srqn)
						if f.HeaderSet().Has(peer.HasRETH) {
							want(t, "rkey", f.RETH.RKey, remoteKey)
						}
					}
					c.sent()
					// What is sent again names the queue again.
					z := frames[len(frames)-1]
					c.gets(nak(z.PSN, peer.SynNakSequence))
					want(t, "shared receive queue", must1(l.take()).XRCETH.SRQN, srqn)
					c.gets(ack(z.PSN, 1))
					c.sent(fmt.Sprintf("1 SUCCESS %s %d", k.wc, n))
				})
			}
			bubble(t, fmt.Sprintf("READ/mtu=%d/%d", m, n), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.requester(device.XRCIni, func(o *rcOptions) { o.MTU, o.SQPSN = m, 0xFFFFFE })
				mr := l.mr(16384, device.LocalWrite)
				c.post(device.SendWR{Op: device.OpRead, SGE: sge(mr, n), RemoteAddr: remoteVA, RKey: remoteKey, SRQN: srqn})
				c.post(device.SendWR{Op: device.OpSend, SRQN: srqn + 1})
				packets := max(1, (n+m-1)/m)
				got := l.emits(fmt.Sprintf("READ_REQUEST fffffe ar va=%x+%d", remoteVA, n), fmt.Sprintf("SEND_ONLY %06x ar", (0xFFFFFE+packets)&0xFFFFFF))
				want(t, "shared receive queues", fmt.Sprintf("%x %x", got[0].XRCETH.SRQN, got[1].XRCETH.SRQN), "abcde abcdf")
				data := pattern(9, n)
				c.gets(readAnswer(0xFFFFFE, 1, m, data)...)
				c.gets(ack(got[1].PSN, 2))
				c.sent(fmt.Sprintf("1 SUCCESS RDMA_READ %d", n), "2 SUCCESS SEND 0")
				wantBytes(t, "what was read", mr.Bytes()[:n], data)
				wantBytes(t, "what is behind it", mr.Bytes()[n:], make([]byte, 16384-n))
				want(t, "drops", l.drops(), "")
			})
		}
	}
	// The operations with a response of their own.
	for _, a := range asks {
		if a.wr.Op.IsMasked() {
			continue
		}
		bubble(t, a.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.requester(device.XRCIni, func(o *rcOptions) { o.SQPSN = 0xFFFFFF })
			mr := l.mr(64, device.LocalWrite)
			for i := range uint32(2) { // through the PSN wrap
				psn := (0xFFFFFF + i) & 0xFFFFFF
				wr := a.request(mr, 16)
				wr.SRQN = srqn
				c.post(wr)
				want(t, "shared receive queue", l.says(fmt.Sprintf(a.frame, psn))[0].XRCETH.SRQN, srqn)
				c.gets(ack(psn, i+1)) // no answer to it: it is asked for again
				want(t, "shared receive queue", l.says(fmt.Sprintf(a.frame, psn))[0].XRCETH.SRQN, srqn)
				c.sent()
				c.gets(a.reply(psn, i+1))
				c.sent(a.wc(int(i) + 1))
			}
			expect := make([]byte, 64)
			if a.takes {
				copy(expect[16:], stored(orig))
			}
			wantBytes(t, "memory", mr.Bytes(), expect)
		})
	}
}

// As XRC responder: messages of every length are put together, and answered at the packet that asks.
func TestXRCResponder(t *testing.T) {
	for _, m := range []int{256, 1024, 4096} {
		for _, n := range sizes(m) {
			for _, v := range []struct {
				name       string
				write, imm bool
			}{{"SEND", false, false}, {"SEND with immediate", false, true}, {"WRITE", true, false}, {"WRITE with immediate", true, true}} {
				bubble(t, fmt.Sprintf("%s/mtu=%d/%d", v.name, m, n), func(t *testing.T) {
					l := newLab(t, labConfig{})
					c := l.responder(device.XRCTgt, func(o *rcOptions) { o.MTU, o.RQPSN = m, 0xFFFFFE })
					mr, buf := l.mr(16384, all), l.mr(16384, device.LocalWrite)
					c.recv(7, buf, 16384)
					data := pattern(6, n)
					frames := sendOf(0xFFFFFE, m, data)
					got, wc := buf, fmt.Sprintf("7 SUCCESS RECV %d", n)
					for i, f := range frames {
						if v.write {
							f.Op += peer.OpWriteFirst
							if i == 0 {
								f.RETH = peer.RETH{VA: mr.Addr(), RKey: mr.RKey(), Len: uint32(n)}
							}
						}
						if v.imm && i == len(frames)-1 {
							f.Op, f.Imm = f.Op+1, 0x89ABCDEF
						}
						f.PSN &= 0xFFFFFF
					}
					switch {
					case v.write && v.imm:
						got, wc = mr, fmt.Sprintf("7 SUCCESS RECV_RDMA_WITH_IMM %d imm=89abcdef", n)
					case v.write:
						got, wc = mr, ""
					case v.imm:
						wc += " imm=89abcdef"
					}
					for _, f := range frames[:len(frames)-1] {
						c.gets(f)
						l.emits()
						c.received()
					}
					z := frames[len(frames)-1]
					c.gets(z)
					l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m1", z.PSN))
					if wc == "" {
						c.received()
					} else {
						c.received(wc)
					}
					wantBytes(t, "data", got.Bytes()[:n+1], append(data, 0))
					// Once more: a duplicate is acknowledged, and changes nothing.
					clear(got.Bytes())
					c.gets(z)
					l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m1", z.PSN))
					c.received()
					wantBytes(t, "memory", got.Bytes(), make([]byte, 16384))
				})
			}
			bubble(t, fmt.Sprintf("READ/mtu=%d/%d", m, n), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.responder(device.XRCTgt, func(o *rcOptions) { o.MTU, o.RQPSN = m, 0xFFFFFE })
				mr := l.mr(16384, all)
				copy(mr.Bytes(), pattern(8, 16384))
				c.gets(peer.ReadRequest(nicQP, 0xFFFFFE, mr.Addr(), mr.RKey(), uint32(n)))
				var w []string
				for _, f := range readAnswer(0xFFFFFE, 1, m, mr.Bytes()[:n]) {
					f.PSN &= 0xFFFFFF
					w = append(w, brief(f))
				}
				got := l.emits(w...)
				wantBytes(t, "data", payloads(got), mr.Bytes()[:n])
				for _, f := range got {
					want(t, "service", f.Op.Service(), peer.XRC)
				}
			})
		}
	}
}
