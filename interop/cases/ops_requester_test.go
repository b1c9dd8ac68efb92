package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// ask is an operation that a response of its own answers, as the requester has it.
type ask struct {
	name  string
	wr    device.SendWR // without SGE where a result of 8 bytes comes back
	takes bool          // a result comes back
	frame string        // full form behind the operation and PSN
	len   int           // byte_len
	reply func(psn, msn uint32) *peer.Frame
	op    string // completed operation
}

const orig = 0x1122334455667788

func atomicReply(psn, msn uint32) *peer.Frame { return peer.AtomicAck(nicQP, psn, msn, orig) }
func emptyReply(psn, msn uint32) *peer.Frame  { return peer.ReadRespOnly(nicQP, psn, msn, nil) }

// asks are the operations of one packet that have a response of their own.
var asks = []ask{
	{name: "compare and swap", takes: true, len: 8, reply: atomicReply, op: "COMP_SWAP",
		wr:    device.SendWR{Op: device.OpCompareSwap, RemoteAddr: remoteVA, RKey: remoteKey, CompareAdd: 0x0102030405060708, Swap: 0xA1A2A3A4A5A6A7A8},
		frame: "COMPARE_SWAP %06x ar va=10000 key=abcd swapadd=a1a2a3a4a5a6a7a8 compare=102030405060708"},
	{name: "fetch and add", takes: true, len: 8, reply: atomicReply, op: "FETCH_ADD",
		wr:    device.SendWR{Op: device.OpFetchAdd, RemoteAddr: remoteVA, RKey: remoteKey, CompareAdd: 0x0102030405060708},
		frame: "FETCH_ADD %06x ar va=10000 key=abcd swapadd=102030405060708 compare=0"},
	{name: "masked compare and swap", takes: true, len: 8, reply: atomicReply, op: "IB_WC_MASKED_COMP_SWAP",
		wr:    device.SendWR{Op: device.OpMaskedCompareSwap, RemoteAddr: remoteVA, RKey: remoteKey, CompareAdd: 0x11, Swap: 0x22, CompareAddMask: 0xFF00, SwapMask: 0xFF},
		frame: "MASKED_COMPARE_SWAP %06x ar va=10000 key=abcd swap=22/ff compare=11/ff00"},
	{name: "masked fetch and add", takes: true, len: 8, reply: atomicReply, op: "IB_WC_MASKED_FETCH_ADD",
		wr:    device.SendWR{Op: device.OpMaskedFetchAdd, RemoteAddr: remoteVA, RKey: remoteKey, CompareAdd: 0x11, CompareAddMask: 0x8000000080000000},
		frame: "MASKED_FETCH_ADD %06x ar va=10000 key=abcd swapadd=11 compare=8000000080000000"},
	{name: "FLUSH of a range, global", reply: emptyReply, op: "FLUSH",
		wr:    device.SendWR{Op: device.OpFlush, RemoteAddr: remoteVA, RKey: remoteKey, FlushLen: 0x1234, FlushType: 1},
		frame: "FLUSH %06x ar va=10000+4660 key=abcd sel=0 plt=1"},
	{name: "FLUSH of a region, both types", reply: emptyReply, op: "FLUSH",
		wr:    device.SendWR{Op: device.OpFlush, RemoteAddr: remoteVA, RKey: remoteKey, FlushType: 3, FlushLevel: 1},
		frame: "FLUSH %06x ar va=10000+0 key=abcd sel=1 plt=3"},
	{name: "FLUSH, persistent", reply: emptyReply, op: "FLUSH",
		wr:    device.SendWR{Op: device.OpFlush, RemoteAddr: remoteVA, RKey: remoteKey, FlushLen: 1 << 31, FlushType: 2},
		frame: "FLUSH %06x ar va=10000+2147483648 key=abcd sel=0 plt=2"},
	{name: "inline ATOMIC WRITE", reply: emptyReply, op: "ATOMIC_WRITE", len: 8,
		wr:    device.SendWR{Op: device.OpAtomicWrite, RemoteAddr: remoteVA, RKey: remoteKey, Flags: device.Inline, InlineData: []byte("\x01\x02\x03\x04\x05\x06\x07\x08")},
		frame: "ATOMIC_WRITE %06x ar va=10000+8 [8] key=abcd"},
}

// request gives the request its result entry: 8 bytes at offset off of mr.
func (a *ask) request(mr *device.MR, off int) device.SendWR {
	wr := a.wr
	if a.takes {
		wr.SGE = []device.SGE{mr.SGE(off, 8)}
	}
	return wr
}

// wc is the completion of request id.
func (a *ask) wc(id int) string { return fmt.Sprintf("%d SUCCESS %s %d", id, a.op, a.len) }

// Each operation as requester: its bytes, its completion, its result, with and without the
// signal.
func TestOpsRequester(t *testing.T) {
	for _, a := range asks {
		bubble(t, a.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.SQPSN, o.SigAll = 0xFFFFFE, false })
			mr := l.mr(64, device.LocalWrite)
			wr := a.request(mr, 16)
			wr.Flags |= device.Signaled
			for i := range uint32(4) { // through the PSN wrap
				psn := (0xFFFFFE + i) & 0xFFFFFF
				if i == 2 {
					wr.Flags &^= device.Signaled
				}
				c.post(wr)
				got := l.says(fmt.Sprintf(a.frame, psn))
				if a.wr.Flags&device.Inline != 0 {
					wantBytes(t, "payload", got[0].Payload, a.wr.InlineData)
				}
				c.sent() // nothing before the answer
				clear(mr.Bytes())
				c.gets(a.reply(psn, i+1))
				if i < 2 {
					c.sent(a.wc(int(i) + 1))
				} else {
					c.sent()
				}
				l.says()
				expect := make([]byte, 64)
				if a.takes {
					copy(expect[16:], stored(orig)) // big-endian on the wire, host order in memory
				}
				wantBytes(t, "memory", mr.Bytes(), expect)
			}
			c.state(device.StateRTS)
			l.events()
		})
	}
	// The result goes to a list, empty entries among them.
	tick(t, "scattered result", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, device.LocalWrite)
		c.post(device.SendWR{Op: device.OpFetchAdd, RemoteAddr: remoteVA, RKey: remoteKey,
			SGE: []device.SGE{{}, mr.SGE(0, 3), {LKey: 99}, mr.SGE(40, 5)}})
		l.take()
		c.gets(peer.AtomicAck(nicQP, 0x100, 1, orig))
		c.sent("1 SUCCESS FETCH_ADD 8")
		b := stored(orig)
		wantBytes(t, "first", mr.Bytes()[:4], append(b[:3:3], 0))
		wantBytes(t, "second", mr.Bytes()[40:46], append(b[3:8:8], 0))
	})
	// Atomic write from a list, not inline.
	tick(t, "gathered ATOMIC WRITE", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, 0)
		copy(mr.Bytes(), pattern(3, 64))
		c.post(device.SendWR{Op: device.OpAtomicWrite, RemoteAddr: remoteVA, RKey: remoteKey, SGE: []device.SGE{mr.SGE(1, 5), {}, mr.SGE(30, 3)}})
		got := l.says("ATOMIC_WRITE 000100 ar va=10000+8 [8] key=abcd")
		wantBytes(t, "payload", got[0].Payload, append(pattern(3, 64)[1:6:6], pattern(3, 64)[30:33]...))
		c.gets(emptyReply(0x100, 1))
		c.sent("1 SUCCESS ATOMIC_WRITE 8")
	})
	// What cannot be is refused when it is posted.
	tick(t, "refused", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, device.LocalWrite)
		for _, op := range []device.WROp{device.OpCompareSwap, device.OpFetchAdd, device.OpMaskedCompareSwap, device.OpMaskedFetchAdd, device.OpAtomicWrite} {
			for _, n := range []int{0, 7, 9, 16} {
				c.refused(device.SendWR{Op: op, SGE: sge(mr, n)})
			}
		}
		c.refused(device.SendWR{Op: device.OpFetchAdd, Flags: device.Inline, InlineData: make([]byte, 8)})
		c.refused(device.SendWR{Op: device.OpRead, Flags: device.Inline, InlineData: make([]byte, 8)})
		c.refused(device.SendWR{Op: device.OpFlush, SGE: sge(mr, 1), FlushType: 1})
		c.refused(device.SendWR{Op: device.OpFlush, FlushType: 4})
		c.refused(device.SendWR{Op: device.OpFlush, FlushType: 1, FlushLevel: 2})
		c.refused(device.SendWR{Op: device.OpReadInv})
		c.refused(device.SendWR{Op: 10}) // TSO of UD, as the kernel counts
	})
	bubble(t, "initiator depth 0", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Init = 0 })
		mr := l.mr(64, device.LocalWrite)
		for i := range asks {
			c.refused(asks[i].request(mr, 0))
		}
		c.refused(device.SendWR{Op: device.OpReadInv, SGE: sge(mr, 8)})
		c.send(mr, 1)
		l.says("SEND_ONLY 000100 ar [1]")
	})
}

// SEND with invalidate: the key is in the last packet alone, before the payload.
func TestOpsSendInv(t *testing.T) {
	const m = 1024
	for _, n := range []int{0, 1, m - 1, m, m + 1, 3*m + 5} {
		tick(t, fmt.Sprintf("%d bytes", n), func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(4*m, 0)
			copy(mr.Bytes(), pattern(4, 4*m))
			c.post(device.SendWR{Op: device.OpSendInv, SGE: sge(mr, n), Imm: 0x89ABCDEF, Flags: device.Solicited})
			packets := max(1, (n+m-1)/m)
			var wantFrames []string
			for i := range packets {
				name, k := "MIDDLE", min(m, n-i*m)
				switch {
				case packets == 1:
					name = "ONLY_INV"
				case i == 0:
					name = "FIRST"
				case i == packets-1:
					name = "LAST_INV"
				}
				s := fmt.Sprintf("SEND_%s %06x", name, 0x100+i)
				if i == packets-1 {
					s += " ar se"
				}
				if k > 0 {
					s += fmt.Sprintf(" [%d]", k)
				}
				if i == packets-1 {
					s += " inv=89abcdef"
				}
				wantFrames = append(wantFrames, s)
			}
			got := l.says(wantFrames...)
			wantBytes(t, "payload", payloads(got), mr.Bytes()[:n])
			// Again from the last packet: the same key.
			c.gets(nak(uint32(0x100+packets-1), peer.SynNakSequence))
			l.says(wantFrames[packets-1])
			c.gets(ack(uint32(0x100+packets-1), 1))
			c.sent(fmt.Sprintf("1 SUCCESS SEND %d", n))
		})
		// The other side: every length, with the last packet's key.
		tick(t, fmt.Sprintf("received, %d bytes", n), func(t *testing.T, l *lab, c *conn) {
			buf, mem := l.mr(4*m, all), make([]byte, 64)
			_, key := c.fast(mem, device.LocalWrite|device.RemoteRead)
			other := l.second(allOps)
			c.recv(7, buf, 4*m)
			data := pattern(5, n)
			frames := sendOf(0x200, m, data)
			z := frames[len(frames)-1]
			z.InvKey, z.SE = key, true
			if z.Op = peer.OpSendOnlyInv; len(frames) > 1 {
				z.Op = peer.OpSendLastInv
			}
			for i, x := range frames {
				// Until the last packet the key is good.
				other.gets(to12(peer.ReadRequest(0, uint32(0x200+i), remoteVA, key, 8)))
				l.says(fmt.Sprintf("READ_RESPONSE_ONLY %06x 1f m%d [8]", 0x200+i, i+1))
				c.gets(x)
				l.settle()
			}
			l.says(fmt.Sprintf("ACKNOWLEDGE %06x 1f m1", 0x200+len(frames)-1))
			c.receivedFull(fmt.Sprintf("7 SUCCESS RECV %d inv=%08x", n, key))
			wantBytes(t, "data", buf.Bytes()[:n], data)
			c.state(device.StateRTS)
			l.events()
			// The key is gone.
			c.gets(peer.ReadRequest(nicQP, uint32(0x200+len(frames)), remoteVA, key, 8))
			l.says(fmt.Sprintf("ACKNOWLEDGE %06x 62 m1", 0x200+len(frames)))
		})
	}
}
