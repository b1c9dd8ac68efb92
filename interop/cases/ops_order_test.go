package cases

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Fence: a SEND behind an atomic, READ, FLUSH or ATOMIC WRITE waits for it with the flag, and does
// not without (roce.md B.3); on RC and on XRC.
func TestOpsFence(t *testing.T) {
	read := func(psn, msn uint32) *peer.Frame { return peer.ReadRespOnly(nicQP, psn, msn, make([]byte, 8)) }
	const readFrame = "READ_REQUEST %06x ar va=10000+8 key=abcd"
	requests := append([]ask{}, asks...)
	requests = append(requests,
		ask{name: "READ", takes: true, len: 8, wr: device.SendWR{Op: device.OpRead, RemoteAddr: remoteVA, RKey: remoteKey}, op: "RDMA_READ", frame: readFrame, reply: read},
		ask{name: "READ with invalidate", len: 8, wr: device.SendWR{Op: device.OpReadInv, RemoteAddr: remoteVA, RKey: remoteKey}, op: "RDMA_READ", frame: readFrame, reply: read})
	for i := range 2 * len(requests) {
		typ, a := requesters[i%2], requests[i/2]
		if typ != device.RC && a.wr.Op.IsMasked() {
			continue
		}
		bubble(t, fmt.Sprintf("%v/%s", typ, a.name), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.requester(typ, nil)
			mr := l.mr(64, device.LocalWrite)
			request := func() device.SendWR { return a.request(mr, 8) }
			if a.wr.Op == device.OpReadInv { // each takes the key of a region away
				var keys []uint32
				for range 3 {
					_, key := c.fast(make([]byte, 8), device.LocalWrite)
					keys = append(keys, key)
				}
				request = func() device.SendWR {
					wr := a.wr
					wr.SGE = []device.SGE{{Addr: remoteVA, Length: 8, LKey: keys[0]}}
					keys = keys[1:]
					return wr
				}
			}
			c.post(request())
			c.send(mr, 1)
			l.says(fmt.Sprintf(a.frame, 0x100), "SEND_ONLY 000101 ar [1]")
			c.post(device.SendWR{Op: device.OpSend, SGE: sge(mr, 2), Flags: device.Fence})
			c.send(mr, 3)
			l.says() // nor does anything pass it
			c.sent()
			// Sent again, it is still waited for.
			c.gets(nak(0x100, peer.SynNakSequence))
			l.says(fmt.Sprintf(a.frame, 0x100), "SEND_ONLY 000101 ar [1]")
			c.gets(a.reply(0x100, 1))
			l.says("SEND_ONLY 000102 ar [2]", "SEND_ONLY 000103 ar [3]")
			c.sent(a.wc(1))
			c.gets(ack(0x103, 4))
			c.sent("2 SUCCESS SEND 1", "3 SUCCESS SEND 2", "4 SUCCESS SEND 3")
			// A fenced one of its own kind, and a fenced local request.
			for range 2 {
				wr := request()
				wr.Flags |= device.Fence
				c.post(wr)
			}
			w := must(l.pd.AllocMW(device.MW2B))
			b := bindOf(w, l.mr(8, every), 0, 8, device.RemoteRead)
			b.Flags = device.Fence
			c.post(b)
			l.says(fmt.Sprintf(a.frame, 0x104))
			c.gets(a.reply(0x104, 5))
			c.sent(a.wc(5))
			l.says(fmt.Sprintf(a.frame, 0x105))
			want(t, "bound", w.RKey() == b.Bind.NewKey, false)
			c.gets(a.reply(0x105, 6))
			c.sent(a.wc(6), "7 SUCCESS BIND_MW 0")
			want(t, "bound", w.RKey() == b.Bind.NewKey, true)
		})
	}
	// SENDs and WRITEs are not waited for.
	tick(t, "behind a SEND", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, 0)
		c.send(mr, 1)
		c.write(mr, 1)
		c.post(device.SendWR{Op: device.OpSend, Flags: device.Fence})
		l.says("SEND_ONLY 000100 ar [1]", "WRITE_ONLY 000101 ar va=10000+1 [1] key=abcd", "SEND_ONLY 000102 ar")
	})
}

// Initiator depth: READs, atomics, FLUSHes and ATOMIC WRITEs share it (case 17).
func TestOpsInitiatorDepth(t *testing.T) {
	for i := range 2 * 2 {
		typ, depth := requesters[i%2], []int{1, 3}[i/2] // 3 stays 3: the initiator's is kept exactly (design.md 8)
		bubble(t, fmt.Sprintf("%v/%d", typ, depth), func(t *testing.T) {
			asks := slices.Clone(asks)
			if typ != device.RC {
				asks = slices.DeleteFunc(asks, func(a ask) bool { return a.wr.Op.IsMasked() })
			}
			l := newLab(t, labConfig{})
			c := l.requester(typ, func(o *rcOptions) { o.Init = depth })
			mr := l.mr(1024, device.LocalWrite)
			var replies []func(psn, msn uint32) *peer.Frame
			var wants []string
			for i := range 40 {
				if i%5 == 4 {
					c.read(mr, 8)
					wants = append(wants, fmt.Sprintf("%d SUCCESS RDMA_READ 8", i+1))
					replies = append(replies, func(psn, msn uint32) *peer.Frame { return peer.ReadRespOnly(nicQP, psn, msn, make([]byte, 8)) })
					continue
				}
				a := &asks[i%len(asks)]
				c.post(a.request(mr, 0))
				wants = append(wants, a.wc(i+1))
				replies = append(replies, a.reply)
			}
			out, done := len(l.take()), 0
			want(t, "at once", out, depth)
			for i := range uint32(40) {
				c.gets(replies[i](0x100+i, i+1))
				done++
				out += len(l.take())
				want(t, "on the wire", out, min(40, done+depth))
			}
			c.sent(wants...)
		})
	}
}

// Requests that send nothing are executed in their turn, and once, whatever is sent again around
// them.
func TestOpsLocalOrder(t *testing.T) {
	tick(t, "LOCAL_INV waits for all before it", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		_, key := c.fast(make([]byte, 64), all)
		c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: remoteVA, Length: 8, LKey: key}}})
		c.post(device.SendWR{Op: device.OpLocalInv, Imm: key})
		c.send(mr, 1)
		l.says("SEND_ONLY 000100 ar [8]")
		c.sent()
		// Until then the key is good: it is sent again.
		c.gets(nak(0x100, peer.SynNakSequence))
		l.says("SEND_ONLY 000100 ar [8]")
		c.gets(ack(0x100, 1))
		l.says("SEND_ONLY 000101 ar [1]")
		c.sent("1 SUCCESS SEND 8", "2 SUCCESS LOCAL_INV 0")
		c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Addr: remoteVA, Length: 8, LKey: key}}})
		c.gets(ack(0x101, 2))
		c.sent("3 SUCCESS SEND 1", "4 LOC_PROT_ERR")
	})
	// Bind and registration do not wait without a fence, complete in order, and are not executed
	// again with what is sent again before them.
	for _, trigger := range []string{"NAK", "timeout", "RNR"} {
		tick(t, "bind and registration between SENDs, "+trigger, func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, every)
			w, f := must(l.pd.AllocMW(device.MW2B)), must(l.pd.AllocMR(64))
			b, r := bindOf(w, mr, 0, 8, device.RemoteWrite), device.SendWR{Op: device.OpRegMR, Reg: regOf(f, make([]byte, 64), all)}
			c.send(mr, 1)
			c.post(b)
			c.send(mr, 2)
			c.post(r)
			c.send(mr, 3)
			sends := []string{"SEND_ONLY 000100 ar [1]", "SEND_ONLY 000101 ar [2]", "SEND_ONLY 000102 ar [3]"}
			l.says(sends...)
			want(t, "executed", w.RKey() == b.Bind.NewKey && f.LKey() == r.Reg.NewKey, true)
			c.sent() // in order
			// The window works already.
			c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), w.RKey(), []byte("w")))
			l.says("ACKNOWLEDGE 000200 1f m1")
			switch trigger {
			case "NAK":
				c.gets(nak(0x100, peer.SynNakSequence))
			case "timeout":
				time.Sleep(ackTimeout(14) * 5 / 4)
			case "RNR":
				c.gets(peer.RNRNak(nicQP, 0x100, 5, 0))
				time.Sleep(time.Millisecond)
			}
			l.says(sends...)
			c.state(device.StateRTS)
			c.gets(ack(0x100, 1))
			c.sent("1 SUCCESS SEND 1", "2 SUCCESS BIND_MW 0")
			c.gets(nak(0x101, peer.SynNakSequence))
			l.says(sends[1:]...)
			c.gets(ack(0x102, 3))
			c.sent("3 SUCCESS SEND 2", "4 SUCCESS IB_WC_REG_MR 0", "5 SUCCESS SEND 3")
			c.gets(peer.WriteOnly(nicQP, 0x201, mr.Addr(), w.RKey(), []byte("w")))
			l.says("ACKNOWLEDGE 000201 1f m2")
			// LOCAL_INV of both, and bound anew: still once.
			c.inv(w.RKey())
			c.inv(f.RKey())
		})
	}
	// A window that is bound and, in the same chain, taken away again stays away.
	tick(t, "bind, SEND, LOCAL_INV, SEND", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		w := must(l.pd.AllocMW(device.MW2B))
		b := bindOf(w, mr, 0, 8, device.RemoteWrite)
		c.post(b)
		c.send(mr, 1)
		c.post(device.SendWR{Op: device.OpLocalInv, Imm: b.Bind.NewKey})
		c.send(mr, 2)
		l.says("SEND_ONLY 000100 ar [1]")
		c.sent("1 SUCCESS BIND_MW 0")
		c.gets(ack(0x100, 1))
		l.says("SEND_ONLY 000101 ar [2]")
		c.gets(nak(0x101, peer.SynNakSequence))
		l.says("SEND_ONLY 000101 ar [2]")
		c.sent("2 SUCCESS SEND 1", "3 SUCCESS LOCAL_INV 0")
		c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), w.RKey(), []byte("w")))
		l.says("ACKNOWLEDGE 000200 62 m0")
	})
	// Unsignaled ones make no completion and give their place back.
	bubble(t, "unsignaled", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { allOps(o); o.SigAll, o.SendWR = false, 2 })
		mr := l.mr(64, every)
		w := must(l.pd.AllocMW(device.MW1))
		for range 10 {
			c.post(bindOf(w, mr, 0, 8, device.RemoteWrite))
		}
		c.sent()
		b := bindOf(w, mr, 0, 8, device.RemoteWrite)
		b.Flags = device.Signaled
		c.post(b)
		c.sent("11 SUCCESS BIND_MW 0")
	})
	// Only RC has them.
	bubble(t, "states", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { allOps(o); o.State = device.StateRTR })
		w := must(l.pd.AllocMW(device.MW1))
		wr := bindOf(w, l.mr(8, every), 0, 8, device.RemoteWrite)
		errno(t, c.qp.PostSend(&wr), device.EINVAL)
		c.to(device.StateErr)
		c.post(wr)
		c.sent("1 WR_FLUSH_ERR")
		want(t, "bound", w.RKey() == wr.Bind.NewKey, false)
	})
	// A flushed one is not executed.
	tick(t, "flushed", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		_, key := c.fast(make([]byte, 8), all)
		c.send(mr, 1)
		c.post(device.SendWR{Op: device.OpLocalInv, Imm: key})
		l.take()
		c.gets(nak(0x100, peer.SynNakAccess))
		c.sent("1 REM_ACCESS_ERR", "2 WR_FLUSH_ERR")
		other := l.second(allOps)
		other.gets(to12(peer.WriteOnly(0, 0x200, remoteVA, key, []byte{1})))
		l.says("ACKNOWLEDGE 000200 1f m1")
	})
}

// READ with local invalidate: the key of the first entry is gone when the READ completes, and not
// before.
func TestOpsReadInv(t *testing.T) {
	post := func(c *conn, key uint32, n int) {
		c.post(device.SendWR{Op: device.OpReadInv, SGE: []device.SGE{{Addr: remoteVA, Length: uint32(n), LKey: key}}, RemoteAddr: 0x777000, RKey: remoteKey})
	}
	tick(t, "life", func(t *testing.T, l *lab, c *conn) {
		mem := make([]byte, 4096)
		_, key := c.fast(mem, device.LocalWrite)
		post(c, key, 2500)
		c.post(device.SendWR{Op: device.OpSend, Flags: device.Fence})
		l.says("READ_REQUEST 000100 ar va=777000+2500 key=abcd")
		data := pattern(6, 2500)
		answer := readAnswer(0x100, 1, 1024, data)
		c.gets(answer[0])
		// Asked again for the rest, with the same key.
		c.gets(answer[2])
		l.says("READ_REQUEST 000101 ar va=777400+1476 key=abcd")
		c.gets(answer[1:]...)
		c.sent("1 SUCCESS RDMA_READ 2500")
		wantBytes(t, "data", mem[:2501], append(data, 0))
		l.says("SEND_ONLY 000103 ar")
		c.gets(ack(0x103, 2))
		c.sent("2 SUCCESS SEND 0")
		post(c, key, 8) // the key is gone
		l.says("READ_REQUEST 000104 ar va=777000+8 key=abcd")
		c.gets(peer.ReadRespOnly(nicQP, 0x104, 3, make([]byte, 8)))
		c.sent("3 LOC_PROT_ERR")
	})
	tick(t, "length 0", func(t *testing.T, l *lab, c *conn) {
		_, key := c.fast(make([]byte, 8), device.LocalWrite)
		post(c, key, 0)
		l.says("READ_REQUEST 000100 ar va=777000+0 key=abcd")
		c.gets(peer.ReadRespOnly(nicQP, 0x100, 1, nil))
		c.sent("1 SUCCESS RDMA_READ 0")
		c.local(device.SendWR{Op: device.OpLocalInv, Imm: key}, "MW_BIND_ERR")
	})
	tick(t, "key that cannot be invalidated", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, device.LocalWrite)
		c.post(device.SendWR{Op: device.OpReadInv, SGE: sge(mr, 8), RemoteAddr: 1, RKey: 2})
		c.send(mr, 1)
		l.take()
		c.gets(peer.ReadRespOnly(nicQP, 0x100, 1, filled(7, 8)))
		c.sent("1 MW_BIND_ERR", "2 WR_FLUSH_ERR")
		wantBytes(t, "data", mr.Bytes()[:9], append(filled(7, 8), 0))
	})
}
