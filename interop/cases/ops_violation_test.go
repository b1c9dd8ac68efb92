package cases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// askFrames are the operations with a response of their own, as the peer sends them.
var askFrames = []struct {
	name  string
	right device.Access // of the queue pair, and of the key
	f     func(psn uint32, va uint64, key uint32) *peer.Frame
}{
	{"compare and swap", device.RemoteAtomic, func(psn uint32, va uint64, key uint32) *peer.Frame { return peer.CmpSwap(nicQP, psn, va, key, 0, 1) }},
	{"fetch and add", device.RemoteAtomic, func(psn uint32, va uint64, key uint32) *peer.Frame { return peer.FetchAdd(nicQP, psn, va, key, 1) }},
	{"masked compare and swap", device.RemoteAtomic, func(psn uint32, va uint64, key uint32) *peer.Frame {
		return peer.MaskedCmpSwap(nicQP, psn, peer.MaskedETH{VA: va, RKey: key, Swap: 1, SwapMask: 1})
	}},
	{"masked fetch and add", device.RemoteAtomic, func(psn uint32, va uint64, key uint32) *peer.Frame {
		return peer.MaskedFetchAdd(nicQP, psn, va, key, 1, 0)
	}},
	{"ATOMIC WRITE", device.RemoteWrite, func(psn uint32, va uint64, key uint32) *peer.Frame {
		return peer.AtomicWrite(nicQP, psn, va, key, []byte("abcdefgh"))
	}},
	{"FLUSH", device.FlushGlobal, func(psn uint32, va uint64, key uint32) *peer.Frame { return peer.Flush(nicQP, psn, va, key, 8, 1) }},
}

// The rows of roce.md B.13 for these operations, as design.md 8 decides them: who is told what.
func TestOpsViolations(t *testing.T) {
	type row struct {
		name  string
		qp    func(o *rcOptions, right device.Access)
		frame func(l *lab, right device.Access, f func(psn uint32, va uint64, key uint32) *peer.Frame) *peer.Frame
		nak   int
		event string
		flush int // NAK that a FLUSH gets; 0: the same, -1: it is no violation
	}
	mr := func(l *lab, a device.Access) *device.MR { return l.mr(64, a) }
	good := func(l *lab, _ device.Access, f func(uint32, uint64, uint32) *peer.Frame) *peer.Frame {
		m := mr(l, every)
		return f(0x200, m.Addr(), m.RKey())
	}
	at := func(off int, key func(m *device.MR) uint32, a device.Access) func(*lab, device.Access, func(uint32, uint64, uint32) *peer.Frame) *peer.Frame {
		return func(l *lab, right device.Access, f func(uint32, uint64, uint32) *peer.Frame) *peer.Frame {
			m := mr(l, a)
			return f(0x200, m.Addr()+uint64(off), key(m))
		}
	}
	rkey := func(m *device.MR) uint32 { return m.RKey() }
	payload := func(n int, pad bool) func(*lab, device.Access, func(uint32, uint64, uint32) *peer.Frame) *peer.Frame {
		return func(l *lab, _ device.Access, f func(uint32, uint64, uint32) *peer.Frame) *peer.Frame {
			x := good(l, 0, f)
			if pad {
				x.PadCount, x.PadBytes = new(uint8(1)), make([]byte, 1)
			} else {
				x.Payload = append(x.Payload, make([]byte, n)...)
			}
			return x
		}
	}
	for _, v := range []row{
		{name: "not enabled on the queue pair", qp: func(o *rcOptions, right device.Access) { o.Access &^= right }, frame: good, nak: 0x61, event: "QP_REQ_ERR"},
		{name: "not enabled on the queue pair, and a bad key", qp: func(o *rcOptions, right device.Access) { o.Access &^= right },
			frame: at(0, func(m *device.MR) uint32 { return 5 }, every), nak: 0x61, event: "QP_REQ_ERR"},
		{name: "responder depth 0", qp: func(o *rcOptions, _ device.Access) { o.Resp = 0 }, frame: good, nak: 0x61, event: "QP_REQ_ERR"},
		{name: "key that does not exist", frame: at(0, func(*device.MR) uint32 { return 5 }, every), nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "key byte", frame: at(0, func(m *device.MR) uint32 { return m.RKey() ^ 1 }, every), nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "L_Key", frame: at(0, func(m *device.MR) uint32 { return m.LKey() }, every), nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "right missing from the region", frame: func(l *lab, right device.Access, f func(uint32, uint64, uint32) *peer.Frame) *peer.Frame {
			m := mr(l, every&^right)
			return f(0x200, m.Addr(), m.RKey())
		}, nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "another protection domain", frame: func(l *lab, _ device.Access, f func(uint32, uint64, uint32) *peer.Frame) *peer.Frame {
			m := must(must(l.ctx.AllocPD()).RegMR(make([]byte, 64), every))
			return f(0x200, m.Addr(), m.RKey())
		}, nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "before the region", frame: at(-8, rkey, every), nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "behind the region", frame: at(64, rkey, every), nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "misaligned and across the end", frame: at(60, rkey, every), nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "misaligned", frame: at(4, rkey, every), nak: 0x61, event: "QP_REQ_ERR", flush: -1},
		{name: "misaligned by one", frame: at(1, rkey, every), nak: 0x61, event: "QP_REQ_ERR", flush: -1},
		{name: "misaligned and a bad key", frame: at(4, func(*device.MR) uint32 { return 5 }, every), nak: 0x62, event: "QP_ACCESS_ERR"},
		{name: "payload of 4 bytes more", frame: payload(4, false), nak: 0x61, event: "QP_REQ_ERR"},
		{name: "pad", frame: payload(0, true), nak: 0x61, event: "QP_REQ_ERR"},
	} {
		for _, typ := range responders {
			for _, a := range askFrames {
				if a.name == "FLUSH" && v.flush < 0 || typ != device.RC && strings.HasPrefix(a.name, "masked") {
					continue
				}
				bubble(t, fmt.Sprintf("%v/%s/%s", typ, v.name, a.name), func(t *testing.T) {
					l := newLab(t, labConfig{})
					c := l.responder(typ, func(o *rcOptions) {
						allOps(o)
						if v.qp != nil {
							v.qp(o, a.right)
						}
					})
					c.recv(1, nil, 0)
					c.gets(v.frame(l, a.right, a.f))
					l.says(fmt.Sprintf("ACKNOWLEDGE 000200 %02x m0", v.nak))
					c.state(device.StateErr)
					l.events(v.event)
					c.flushed("", 1)
					l.counts("drop_bad-request=1", "rx_atomic_requests=0")
				})
			}
		}
	}
	// PERSISTENT is a right of its own.
	for _, v := range []struct {
		plt    uint8
		access device.Access
		nak    string
	}{
		{1, device.FlushPersistent, "61"}, {2, device.FlushGlobal, "61"}, {3, device.FlushGlobal, "61"}, {3, device.FlushPersistent, "61"},
		{2, everyQP, "62"}, {3, everyQP, "62"}, // the region has only the global one
	} {
		for _, typ := range responders {
			bubble(t, fmt.Sprintf("%v/FLUSH type %d with rights %x", typ, v.plt, int(v.access)), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.responder(typ, func(o *rcOptions) { o.Access = v.access })
				m := l.mr(64, every)
				c.gets(peer.Flush(nicQP, 0x200, m.Addr(), m.RKey(), 8, v.plt))
				l.says("ACKNOWLEDGE 000200 " + v.nak + " m0")
			})
		}
	}
	// They begin no message inside another.
	for _, typ := range responders {
		for _, a := range askFrames {
			if typ != device.RC && strings.HasPrefix(a.name, "masked") {
				continue
			}
			bubble(t, fmt.Sprintf("%v/inside a SEND/%s", typ, a.name), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.responder(typ, allOps)
				m := l.mr(2048, every)
				c.recv(1, m, 2048)
				c.gets(peer.SendFirst(nicQP, 0x200, make([]byte, 1024)), a.f(0x201, m.Addr(), m.RKey()))
				l.says("ACKNOWLEDGE 000201 61 m0")
				c.received("1 REM_INV_REQ_ERR")
				l.events()
			})
		}
	}
}

// SEND with invalidate of a key that cannot be invalidated: the message has arrived, is acknowledged
// and counted; the receive completes with an error and the queue pair goes to ERR.
func TestOpsSendInvBadKey(t *testing.T) {
	for _, v := range []struct {
		name string
		key  func(l *lab, c *conn) uint32
	}{
		{"key that does not exist", func(*lab, *conn) uint32 { return 0xDEAD00 }},
		{"key of a region", func(l *lab, _ *conn) uint32 { return l.mr(64, every).RKey() }},
		{"L_Key of a region", func(l *lab, _ *conn) uint32 { return l.mr(64, every).LKey() }},
		{"fast-registered region, key byte", func(_ *lab, c *conn) uint32 { _, k := c.fast(make([]byte, 8), all); return k ^ 1 }},
		{"fast-registered region that is invalid", func(l *lab, _ *conn) uint32 { return must(l.pd.AllocMR(8)).RKey() }},
		{"fast-registered region, invalid again", func(_ *lab, c *conn) uint32 { _, k := c.fast(make([]byte, 8), all); c.inv(k); return k }},
		// Its key is an L_Key alone: no peer has any business with it (case 37).
		{"fast-registered region with local rights", func(_ *lab, c *conn) uint32 {
			_, k := c.fast(make([]byte, 8), device.LocalWrite)
			return k
		}},
		{"window of type 1", func(l *lab, c *conn) uint32 {
			w := must(l.pd.AllocMW(device.MW1))
			c.bind(w, l.mr(64, every), 0, 64, device.RemoteWrite)
			return w.RKey()
		}},
		{"window that is not bound", func(l *lab, _ *conn) uint32 { return must(l.pd.AllocMW(device.MW2B)).RKey() }},
		{"window, key byte", func(l *lab, c *conn) uint32 {
			w := must(l.pd.AllocMW(device.MW2B))
			c.bind(w, l.mr(64, every), 0, 64, device.RemoteWrite)
			return w.RKey() ^ 1
		}},
		{"window of another queue pair", func(l *lab, _ *conn) uint32 {
			w := must(l.pd.AllocMW(device.MW2B))
			l.second(allOps).bind(w, l.mr(64, every), 0, 64, device.RemoteWrite)
			return w.RKey()
		}},
		{"region of another protection domain", func(l *lab, _ *conn) uint32 {
			pd := l.pd
			l.pd = must(l.ctx.AllocPD())
			defer func() { l.pd = pd }()
			_, k := l.second(allOps).fast(make([]byte, 8), all)
			return k
		}},
	} {
		tick(t, v.name, func(t *testing.T, l *lab, c *conn) {
			key := v.key(l, c)
			buf := l.mr(64, all)
			c.recv(1, buf, 64)
			c.recv(2, nil, 0)
			c.gets(peer.SendOnlyInv(nicQP, 0x200, key, []byte("data")))
			l.says("ACKNOWLEDGE 000200 1f m1")
			c.receivedFull("1 REM_INV_REQ_ERR", "2 WR_FLUSH_ERR")
			wantBytes(t, "buffer", buf.Bytes()[:5], []byte("data\x00"))
			c.state(device.StateErr)
			l.counts("resp_cqe_error=1", "drop_bad-request=0")
			l.events() // the completion tells
		})
	}
}

// NAKs and answers that cannot be, to each operation of the requester.
func TestOpsRequesterStatus(t *testing.T) {
	for _, a := range asks {
		for _, v := range []struct {
			name   string
			f      func() *peer.Frame
			status string
		}{
			{"NAK 61", func() *peer.Frame { return nak(0x101, peer.SynNakInvalid) }, "REM_INV_REQ_ERR"},
			{"NAK 62", func() *peer.Frame { return nak(0x101, peer.SynNakAccess) }, "REM_ACCESS_ERR"},
			{"NAK 63", func() *peer.Frame { return nak(0x101, peer.SynNakOperation) }, "REM_OP_ERR"},
			{"NAK 64", func() *peer.Frame { return nak(0x101, peer.SynNakInvalidRD) }, "BAD_RESP_ERR"},
			{"reserved syndrome", func() *peer.Frame { return nak(0x101, 0x40) }, "BAD_RESP_ERR"},
			{"READ response First", func() *peer.Frame { return peer.ReadRespFirst(nicQP, 0x101, 2, make([]byte, 1024)) }, "BAD_RESP_ERR"},
			{"READ response Middle", func() *peer.Frame { return peer.ReadRespMiddle(nicQP, 0x101, make([]byte, 1024)) }, "BAD_RESP_ERR"},
			{"READ response Last", func() *peer.Frame { return peer.ReadRespLast(nicQP, 0x101, 2, make([]byte, 8)) }, "BAD_RESP_ERR"},
			{"READ response with data", func() *peer.Frame { return peer.ReadRespOnly(nicQP, 0x101, 2, make([]byte, 8)) }, "BAD_RESP_ERR"},
			{"answer of the other kind", func() *peer.Frame {
				if a.takes {
					return emptyReply(0x101, 2)
				}
				return atomicReply(0x101, 2)
			}, "BAD_RESP_ERR"},
			{"answer with a NAK in it", func() *peer.Frame {
				return a.reply(0x101, 2).With(func(f *peer.Frame) { f.AETH.Syndrome = peer.SynNakAccess })
			}, "BAD_RESP_ERR"},
		} {
			bubble(t, a.name+"/"+v.name, func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.rc(nil)
				mr := l.mr(64, device.LocalWrite)
				c.send(mr, 1)
				c.post(a.request(mr, 0))
				c.send(mr, 1)
				l.take()
				if v.name == "reserved syndrome" {
					c.gets(ack(0x100, 1)) // what it says of earlier requests is nothing to go by
				}
				c.gets(v.f())
				c.sent("1 SUCCESS SEND 1", "2 "+v.status, "3 WR_FLUSH_ERR")
				c.state(device.StateErr)
				wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
				l.events()
				l.counts("req_cqe_error=1")
				l.says()
			})
		}
		// An ACK is no answer. Alone it has the request sent again, as often as retry_cnt allows
		// without an answer, and completes nothing.
		bubble(t, a.name+"/ACKs alone", func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.RetryCnt = 1 })
			mr := l.mr(64, device.LocalWrite)
			c.post(a.request(mr, 0))
			l.says(fmt.Sprintf(a.frame, 0x100))
			c.gets(ack(0x100, 1))
			l.says(fmt.Sprintf(a.frame, 0x100))
			c.gets(ack(0x100, 1), ack(0x100, 1))
			l.says()
			c.sent()
			time.Sleep(4 * ackTimeout(14))
			c.sent("1 RETRY_EXC_ERR")
			wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
		})
		// An atomic acknowledge for a SEND.
		bubble(t, a.name+"/its answer to a SEND", func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mr := l.mr(64, device.LocalWrite)
			c.send(mr, 1)
			l.take()
			c.gets(a.reply(0x100, 1))
			c.sent("1 BAD_RESP_ERR")
		})
	}
}

// Case 27: the answer cannot be stored. The remote side was executed once; the request fails with
// LOC_PROT_ERR, and outside of what is registered nothing is stored.
func TestCase27_ResultNotWritable(t *testing.T) {
	// mid registers the 64 bytes in the middle of a buffer.
	mid := func(pd *device.PD, b []byte, a device.Access) *device.MR { return must(pd.RegMR(b[64:128:128], a)) }
	requests := append([]ask{}, asks...)
	requests = append(requests, ask{name: "READ", takes: true, wr: device.SendWR{Op: device.OpRead, RemoteAddr: remoteVA, RKey: remoteKey},
		frame: "READ_REQUEST %06x ar va=10000+8 key=abcd", reply: func(psn, msn uint32) *peer.Frame { return peer.ReadRespOnly(nicQP, psn, msn, filled(0xEE, 8)) }})
	for _, v := range []struct {
		name    string
		sge     func(l *lab, b []byte) []device.SGE
		partial bool // a part that lies in the region may be stored
	}{
		{"key that does not exist", func(l *lab, b []byte) []device.SGE {
			return []device.SGE{{Addr: mid(l.pd, b, all).Addr(), Length: 8, LKey: 1}}
		}, false},
		{"no local write", func(l *lab, b []byte) []device.SGE { return sge(mid(l.pd, b, device.RemoteRead), 8) }, false},
		{"range", func(l *lab, b []byte) []device.SGE { return []device.SGE{mid(l.pd, b, all).SGE(60, 8)} }, true},
		{"before the region", func(l *lab, b []byte) []device.SGE { return []device.SGE{mid(l.pd, b, all).SGE(-4, 8)} }, true},
		{"second entry out of range", func(l *lab, b []byte) []device.SGE {
			m := mid(l.pd, b, all)
			return []device.SGE{m.SGE(0, 4), m.SGE(62, 4)}
		}, true},
		{"second entry behind", func(l *lab, b []byte) []device.SGE {
			m := mid(l.pd, b, all)
			return []device.SGE{m.SGE(0, 4), m.SGE(64, 4)}
		}, true},
		{"another protection domain", func(l *lab, b []byte) []device.SGE { return sge(mid(must(l.ctx.AllocPD()), b, all), 8) }, false},
		{"R_Key", func(l *lab, b []byte) []device.SGE {
			m := mid(l.pd, b, all)
			return []device.SGE{{Addr: m.Addr(), Length: 8, LKey: m.RKey()}}
		}, false},
	} {
		for _, a := range requests {
			if !a.takes {
				continue
			}
			bubble(t, v.name+"/"+a.name, func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.rc(nil)
				buf := filled(0x55, 192)
				wr := a.wr
				wr.SGE = v.sge(l, buf)
				c.post(wr)
				c.send(l.mr(8, 0), 1)
				l.says(fmt.Sprintf(a.frame, 0x100), "SEND_ONLY 000101 ar [1]")
				c.gets(a.reply(0x100, 1))
				c.sent("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
				c.state(device.StateErr)
				l.events()
				l.says() // nor is it asked for again
				wantBytes(t, "memory before", buf[:64], filled(0x55, 64))
				wantBytes(t, "memory behind", buf[128:], filled(0x55, 64))
				if !v.partial {
					wantBytes(t, "memory", buf[64:128], filled(0x55, 64))
				}
			})
		}
	}
	// A READ of several packets: what is behind the region is not touched by any of them.
	for _, typ := range requesters {
		bubble(t, fmt.Sprintf("%v/READ of three packets, second entry out of range", typ), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.requester(typ, nil)
			buf := filled(0x55, 8192)
			m := must(l.pd.RegMR(buf[1024:4096:4096], device.LocalWrite))
			c.post(device.SendWR{Op: device.OpRead, SGE: []device.SGE{m.SGE(0, 1500), m.SGE(2072, 1500)}, RemoteAddr: remoteVA, RKey: remoteKey})
			l.take()
			c.gets(readAnswer(0x100, 1, 1024, filled(0xEE, 3000))...)
			c.sent("1 LOC_PROT_ERR")
			c.state(device.StateErr)
			wantBytes(t, "memory before", buf[:1024], filled(0x55, 1024))
			wantBytes(t, "memory behind", buf[4096:], filled(0x55, 4096))
			l.says()
			l.events()
		})
	}
	// Between two devices: the remote word has changed once, also when the answer was lost once, and the other end has heard
	// of no error.
	for _, typ := range requesters {
		for _, rule := range []string{"", "tx opcode=ATOMIC_ACKNOWLEDGE round=1 drop"} {
			bubble(t, fmt.Sprintf("%v/remote changed once, %q", typ, rule), func(t *testing.T) {
				cfg := netConfig{pairs: []device.QPType{typ}}
				if rule != "" {
					cfg.rules[1] = []string{rule}
				}
				n := newNet(t, cfg)
				a, b := n.q[0][0], n.q[0][1]
				setWord(b.mr, 64, was)
				wr := device.SendWR{ID: 1, Op: device.OpFetchAdd, CompareAdd: 5, RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(),
					SGE: []device.SGE{{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey() ^ 0x100}}}
				if typ == device.XRCIni {
					wr.SRQN = b.srq.Num()
				}
				if err := a.qp.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				sameList(t, "completions", briefWC(drain(a.scq)), []string{"1 LOC_PROT_ERR"})
				want(t, "remote", word(b.mr, 64), was+5)
				for _, v := range b.dev.dev.Statistics() {
					if v.Name == "duplicate_request" {
						want(t, v.Name, v.Value, uint64(len(cfg.rules[1])))
					}
				}
				want(t, "requester", a.qp.State(), device.StateErr)
				want(t, "responder", b.in.State(), device.StateRTS)
				if e, ok := b.ctx.TryAsyncEvent(); ok {
					t.Errorf("event %v", e.Type)
				}
			})
		}
	}
	// What is read when the request is sent fails then, and nothing leaves.
	tick(t, "ATOMIC WRITE with a bad key", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, 0)
		c.send(mr, 1)
		c.post(device.SendWR{Op: device.OpAtomicWrite, SGE: []device.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.RKey()}}, RemoteAddr: remoteVA, RKey: remoteKey})
		l.says("SEND_ONLY 000100 ar [1]")
		c.sent()
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 1", "2 LOC_PROT_ERR")
		l.says()
	})
}

// Bind, invalidate and registration that fail: MW_BIND_ERR in their turn; what was sent before
// completes first.
func TestOpsLocalFailures(t *testing.T) {
	for _, v := range []struct {
		name string
		wr   func(l *lab, c *conn) device.SendWR
	}{
		{"LOCAL_INV of a key that does not exist", func(*lab, *conn) device.SendWR { return device.SendWR{Op: device.OpLocalInv, Imm: 5} }},
		{"LOCAL_INV of a region", func(l *lab, _ *conn) device.SendWR {
			return device.SendWR{Op: device.OpLocalInv, Imm: l.mr(8, every).RKey()}
		}},
		{"LOCAL_INV of a window of type 1", func(l *lab, c *conn) device.SendWR {
			w := must(l.pd.AllocMW(device.MW1))
			c.bind(w, l.mr(8, every), 0, 8, device.RemoteRead)
			return device.SendWR{Op: device.OpLocalInv, Imm: w.RKey()}
		}},
		{"LOCAL_INV twice", func(l *lab, c *conn) device.SendWR {
			w := must(l.pd.AllocMW(device.MW2B))
			c.bind(w, l.mr(8, every), 0, 8, device.RemoteRead)
			c.inv(w.RKey())
			return device.SendWR{Op: device.OpLocalInv, Imm: w.RKey()}
		}},
		{"LOCAL_INV of a region that is invalid", func(l *lab, _ *conn) device.SendWR {
			return device.SendWR{Op: device.OpLocalInv, Imm: must(l.pd.AllocMR(8)).LKey()}
		}},
		{"bind of a window that does not exist", func(l *lab, c *conn) device.SendWR {
			w := must(l.pd.AllocMW(device.MW2B))
			wr := bindOf(w, l.mr(8, every), 0, 8, device.RemoteRead)
			if err := w.Dealloc(); err != nil {
				c.t.Fatal(err)
			}
			return wr
		}},
		{"registration of a region that does not exist", func(l *lab, c *conn) device.SendWR {
			f := must(l.pd.AllocMR(8))
			wr := device.SendWR{Op: device.OpRegMR, Reg: regOf(f, make([]byte, 8), all)}
			if err := f.Dereg(); err != nil {
				c.t.Fatal(err)
			}
			return wr
		}},
	} {
		tick(t, v.name, func(t *testing.T, l *lab, c *conn) {
			mr := l.mr(64, all)
			wr := v.wr(l, c)
			c.send(mr, 1)
			c.read(mr, 8)
			c.post(wr)
			c.send(mr, 2)
			l.says("SEND_ONLY 000100 ar [1]", "READ_REQUEST 000101 ar va=10000+8 key=abcd")
			c.sent()
			c.state(device.StateRTS)
			c.gets(ack(0x100, 1))
			c.sent("1 SUCCESS SEND 1")
			c.gets(peer.ReadRespOnly(nicQP, 0x101, 2, make([]byte, 8)))
			c.sent("2 SUCCESS RDMA_READ 8", "3 MW_BIND_ERR", "4 WR_FLUSH_ERR")
			c.state(device.StateErr)
			l.says()
			l.events()
		})
	}
}
