package cases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// was is what the memory holds that atomics work on.
const was = 0x0102030405060708

// saved is an operation of which the responder keeps the answer.
type saved struct {
	name   string
	f      func(psn uint32, mr *device.MR) *peer.Frame
	other  func(f *peer.Frame) // other operands
	answer string
}

// savedKinds are all of them.
var savedKinds = []saved{
	{"compare and swap", func(psn uint32, mr *device.MR) *peer.Frame {
		return peer.CmpSwap(nicQP, psn, mr.Addr(), mr.RKey(), was, 7)
	},
		func(f *peer.Frame) { f.Atomic = peer.AtomicETH{VA: 1, RKey: 2, SwapAdd: 3, Compare: 7} }, fmt.Sprintf("ATOMIC_ACKNOWLEDGE %%06x 1f m%%d orig=%x", was)},
	{"fetch and add", func(psn uint32, mr *device.MR) *peer.Frame { return peer.FetchAdd(nicQP, psn, mr.Addr(), mr.RKey(), 7) },
		func(f *peer.Frame) { f.Atomic = peer.AtomicETH{VA: 1, RKey: 2, SwapAdd: 3} }, fmt.Sprintf("ATOMIC_ACKNOWLEDGE %%06x 1f m%%d orig=%x", was)},
	{"masked compare and swap", func(psn uint32, mr *device.MR) *peer.Frame {
		return peer.MaskedCmpSwap(nicQP, psn, peer.MaskedETH{VA: mr.Addr(), RKey: mr.RKey(), Swap: 5, SwapMask: 0xFF})
	}, func(f *peer.Frame) { f.Masked = peer.MaskedETH{} }, fmt.Sprintf("ATOMIC_ACKNOWLEDGE %%06x 1f m%%d orig=%x", was)},
	{"masked fetch and add", func(psn uint32, mr *device.MR) *peer.Frame {
		return peer.MaskedFetchAdd(nicQP, psn, mr.Addr(), mr.RKey(), 7, 1<<63)
	}, func(f *peer.Frame) { f.Atomic = peer.AtomicETH{} }, fmt.Sprintf("ATOMIC_ACKNOWLEDGE %%06x 1f m%%d orig=%x", was)},
	{"ATOMIC WRITE", func(psn uint32, mr *device.MR) *peer.Frame {
		return peer.AtomicWrite(nicQP, psn, mr.Addr(), mr.RKey(), []byte("abcdefgh"))
	}, func(f *peer.Frame) { f.Payload = []byte("ABCDEFGH") }, "READ_RESPONSE_ONLY %06x 1f m%d"},
	{"FLUSH", func(psn uint32, mr *device.MR) *peer.Frame { return peer.Flush(nicQP, psn, mr.Addr(), mr.RKey(), 8, 1) },
		func(f *peer.Frame) { f.RETH = peer.RETH{VA: 1, RKey: 2, Len: 3} }, "READ_RESPONSE_ONLY %06x 1f m%d"},
}

// Duplicates of atomics, ATOMIC WRITEs and FLUSHes: answered with what was saved, and not executed
// again (roce.md B.5).
func TestOpsDuplicates(t *testing.T) {
	for _, k := range savedKinds {
		bubble(t, k.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { allOps(o); o.RQPSN = 0xFFFFFF })
			mr := l.mr(64, every)
			setWord(mr, 0, was)
			c.gets(k.f(0xFFFFFF, mr))
			l.says(fmt.Sprintf(k.answer, 0xFFFFFF, 1))
			setWord(mr, 0, 99) // whatever it was: nothing is executed again
			c.gets(k.f(0xFFFFFF, mr))
			l.says(fmt.Sprintf(k.answer, 0xFFFFFF, 1))
			c.gets(k.f(0xFFFFFF, mr).With(k.other)) // the saved answer, whatever the operands
			l.says(fmt.Sprintf(k.answer, 0xFFFFFF, 1))
			want(t, "memory", word(mr, 0), 99)
			// The MSN of the answer is the current one; the key is not looked up again.
			c.gets(peer.WriteOnly(nicQP, 0, mr.Addr()+8, mr.RKey(), []byte("x")))
			l.says("ACKNOWLEDGE 000000 1f m2")
			if err := mr.Dereg(); err != nil {
				t.Fatal(err)
			}
			c.gets(k.f(0xFFFFFF, mr))
			l.says(fmt.Sprintf(k.answer, 0xFFFFFF, 2))
			// Another operation with its PSN is nothing that was saved.
			c.gets(peer.ReadRequest(nicQP, 0xFFFFFF, mr.Addr(), mr.RKey(), 8))
			for _, o := range savedKinds {
				if o.name != k.name {
					c.gets(o.f(0xFFFFFF, mr))
				}
			}
			// And one with the PSN of the WRITE neither.
			c.gets(k.f(0, mr))
			l.says()
			c.state(device.StateRTS)
			l.events()
			l.counts("duplicate_request=10")
		})
	}
	// Mixed with READs: one depth for all, first in, first out.
	tick(t, "mixed", func(t *testing.T, l *lab, _ *conn) {
		c := l.second(func(o *rcOptions) { allOps(o); o.Resp = 2 })
		mr := l.mr(4096, every)
		send := func(f *peer.Frame) []*peer.Frame { c.gets(to12(f)); return l.take() }
		send(peer.FetchAdd(0, 0x200, mr.Addr(), mr.RKey(), 1))
		send(peer.ReadRequest(0, 0x201, mr.Addr(), mr.RKey(), 2048)) // 201, 202
		want(t, "the atomic", len(send(peer.FetchAdd(0, 0x200, mr.Addr(), mr.RKey(), 1))), 1)
		send(peer.AtomicWrite(0, 0x203, mr.Addr(), mr.RKey(), make([]byte, 8)))
		want(t, "the atomic, pushed out", len(send(peer.FetchAdd(0, 0x200, mr.Addr(), mr.RKey(), 1))), 0)
		want(t, "the READ", len(send(peer.ReadRequest(0, 0x201, mr.Addr(), mr.RKey(), 2048))), 2)
		send(peer.Flush(0, 0x204, mr.Addr(), mr.RKey(), 8, 1))
		want(t, "the READ, pushed out", len(send(peer.ReadRequest(0, 0x202, mr.Addr()+1024, mr.RKey(), 1024))), 0)
		want(t, "the ATOMIC WRITE", len(send(peer.AtomicWrite(0, 0x203, mr.Addr(), mr.RKey(), make([]byte, 8)))), 1)
		want(t, "the FLUSH", len(send(peer.Flush(0, 0x204, mr.Addr(), mr.RKey(), 8, 1))), 1)
		want(t, "state", c.qp.State(), device.StateRTS)
	})
	// A duplicate SEND or WRITE behind which atomics were executed: no plain ACK names the PSN of
	// one of them (rxe-lab.md C1).
	tick(t, "a plain ACK never names an atomic", func(t *testing.T, l *lab, c *conn) {
		mr := l.mr(64, every)
		w := peer.WriteOnly(nicQP, 0x200, mr.Addr(), mr.RKey(), []byte{1})
		c.gets(w, peer.FetchAdd(nicQP, 0x201, mr.Addr(), mr.RKey(), 1), peer.Flush(nicQP, 0x202, mr.Addr(), mr.RKey(), 8, 1))
		want(t, "answers", len(l.take()), 3)
		c.gets(w)
		l.says("ACKNOWLEDGE 000200 1f m3")
	})
	// An answer that is still to be sent is not given twice; and it is an order of PSNs.
	bubble(t, "one batch", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		c := l.rc(allOps)
		mr := l.mr(64, every)
		f := peer.FetchAdd(nicQP, 0x200, mr.Addr(), mr.RKey(), 1)
		c.gets(f, f, peer.FetchAdd(nicQP, 0x201, mr.Addr(), mr.RKey(), 1), f)
		l.says("ATOMIC_ACKNOWLEDGE 000200 1f m1 orig=0", "ATOMIC_ACKNOWLEDGE 000201 1f m2 orig=1")
		want(t, "memory", word(mr, 0), 2)
	})
	bubble(t, "over the depth in one batch", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		c := l.rc(func(o *rcOptions) { allOps(o); o.Resp = 2 })
		mr := l.mr(64, every)
		for i := range uint32(3) {
			c.gets(peer.FetchAdd(nicQP, 0x200+i, mr.Addr(), mr.RKey(), 1))
		}
		l.says("ATOMIC_ACKNOWLEDGE 000200 1f m1 orig=0", "ATOMIC_ACKNOWLEDGE 000201 1f m2 orig=1", "ACKNOWLEDGE 000202 61 m2")
		want(t, "memory", word(mr, 0), 2)
		l.events("QP_REQ_ERR")
	})
}

// The depth: as many READs, atomics, FLUSHes and ATOMIC WRITEs as max_dest_rd_atomic, rounded up to a power of two, are
// kept, first in, first out, across the PSN wrap; the one before them is silent (roce.md B.5, design.md 8). A duplicate
// does not make what it asks for younger.
func TestOpsReplayDepth(t *testing.T) {
	type kind struct {
		psns int // that its answer takes
		f    func(psn uint32, mr *device.MR) *peer.Frame
	}
	const readAt, readLen = 4096, 2500 // of memory that nothing else touches
	read := kind{3, func(psn uint32, mr *device.MR) *peer.Frame {
		return peer.ReadRequest(nicQP, psn, mr.Addr()+readAt, mr.RKey(), readLen)
	}}
	type sequence struct {
		name  string
		kinds []kind // in turn
		xrc   bool
	}
	sequences := []sequence{{"READ of three packets", []kind{read}, true}}
	mix := sequence{"READs and the others", nil, true}
	for _, k := range savedKinds {
		one := kind{1, k.f}
		masked := strings.HasPrefix(k.name, "masked")
		sequences = append(sequences, sequence{k.name, []kind{one}, !masked})
		if !masked {
			mix.kinds = append(mix.kinds, read, one)
		}
	}
	sequences = append(sequences, mix, sequence{"two READs to an atomic", []kind{read, read, {1, savedKinds[1].f}}, true})
	for _, typ := range responders {
		for _, s := range sequences {
			if typ != device.RC && !s.xrc {
				continue
			}
			for _, v := range []struct{ depth, keeps int }{{1, 1}, {2, 2}, {3, 4}, {16, 16}} {
				bubble(t, fmt.Sprintf("%v/%s/depth %d", typ, s.name, v.depth), func(t *testing.T) {
					l := newLab(t, labConfig{})
					psn := uint32(0xFFFFFA)
					c := l.responder(typ, func(o *rcOptions) { allOps(o); o.RQPSN, o.Resp = psn, v.depth })
					attr, _ := c.qp.Query()
					want(t, "max_dest_rd_atomic", attr.MaxDestRdAtomic, v.keeps)
					mr := l.mr(8192, every)
					data := mr.Bytes()[readAt:][:readLen]
					copy(data, pattern(1, readLen))
					type done struct {
						kind
						psn    uint32
						answer []string
						msn    int
					}
					var all []done
					ask := func() {
						k := s.kinds[len(all)%len(s.kinds)]
						setWord(mr, 0, was+uint64(len(all)))
						c.gets(k.f(psn, mr))
						d := done{k, psn, nil, len(all) + 1}
						for _, f := range l.take() {
							d.answer = append(d.answer, full(f))
						}
						want(t, "packets of the answer", len(d.answer), k.psns)
						all = append(all, d)
						psn = (psn + uint32(k.psns)) & 0xFFFFFF
					}
					again := func(d *done, kept bool) {
						t.Helper()
						c.gets(d.f(d.psn, mr))
						got := l.take()
						if !kept {
							want(t, fmt.Sprintf("answers to %06x, which is pushed out", d.psn), len(got), 0)
							return
						}
						var s, w []string
						for i, f := range got {
							s = append(s, full(f))
							// The current MSN in place of the one then.
							w = append(w, strings.Replace(d.answer[i], fmt.Sprintf(" m%d", d.msn), fmt.Sprintf(" m%d", len(all)), 1))
						}
						sameList(t, fmt.Sprintf("answer to %06x", d.psn), s, w)
						if d.psns > 1 { // a READ is read again
							wantBytes(t, "data", payloads(got), data)
						}
					}
					for range 20 {
						ask()
					}
					setWord(mr, 0, 99)
					copy(data, pattern(2, readLen))
					for i := range all {
						again(&all[i], i >= len(all)-v.keeps)
					}
					for i := len(all) - 1; i >= 0; i-- {
						again(&all[i], i >= len(all)-v.keeps)
					}
					want(t, "memory", word(mr, 0), 99)
					// A READ is resumed anywhere while it is kept, and nowhere afterwards.
					for i := range all {
						d := &all[i]
						if d.psns == 1 {
							continue
						}
						kept := i >= len(all)-v.keeps
						for k, w := range map[int]string{1: "READ_RESPONSE_FIRST %06x 1f m%d [1024]", 2: "READ_RESPONSE_ONLY %06x 1f m%d [452]"} {
							at := (d.psn + uint32(k)) & 0xFFFFFF
							c.gets(peer.ReadRequest(nicQP, at, mr.Addr()+readAt+uint64(k)*1024, mr.RKey(), readLen-uint32(k)*1024))
							got := l.take()
							if !kept {
								want(t, "answers", len(got), 0)
								continue
							}
							want(t, "answer", full(got[0]), fmt.Sprintf(w, at, len(all)))
							wantBytes(t, "data", payloads(got), data[k*1024:])
						}
					}
					// One more pushes one out.
					ask()
					again(&all[len(all)-1-v.keeps], false)
					again(&all[len(all)-v.keeps], true)
					c.state(device.StateRTS)
					l.events()
				})
			}
		}
	}
}

// must1 is the one frame that there is.
func must1(l []*peer.Frame) *peer.Frame {
	if len(l) != 1 {
		panic(fmt.Sprintf("%d frames: %v", len(l), l))
	}
	return l[0]
}

// Sent again, each operation carries the same address, key and operands, whatever made it be sent
// again (rxe forgets the address of FLUSH and ATOMIC WRITE: rxe-lab.md 3).
func TestOpsRetransmission(t *testing.T) {
	requests := append([]ask{}, asks...)
	requests = append(requests,
		ask{name: "SEND with invalidate", wr: device.SendWR{Op: device.OpSendInv, Imm: 0x12345678}, op: "SEND",
			frame: "SEND_ONLY_INV %06x ar inv=12345678", reply: ack},
		ask{name: "WRITE with immediate", wr: device.SendWR{Op: device.OpWriteImm, Imm: 5, RemoteAddr: remoteVA, RKey: remoteKey}, op: "RDMA_WRITE",
			frame: "WRITE_ONLY_IMM %06x ar va=10000+0 imm=00000005 key=abcd", reply: ack},
		ask{name: "READ", takes: true, len: 8, wr: device.SendWR{Op: device.OpRead, RemoteAddr: remoteVA, RKey: remoteKey}, op: "RDMA_READ",
			frame: "READ_REQUEST %06x ar va=10000+8 key=abcd", reply: func(psn, msn uint32) *peer.Frame {
				return peer.ReadRespOnly(nicQP, psn, msn, []byte("\x11\x22\x33\x44\x55\x66\x77\x88"))
			}})
	for i := range 2 * len(requests) {
		typ, a := requesters[i%2], requests[i/2]
		if typ != device.RC && a.wr.Op.IsMasked() {
			continue
		}
		for _, trigger := range []string{"timeout", "sequence NAK", "implied NAK", "RNR in front of it", "RNR of it"} {
			bubble(t, fmt.Sprintf("%v/%s/%s", typ, a.name, trigger), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.requester(typ, func(o *rcOptions) { o.SQPSN = 0xFFFFFE })
				mr := l.mr(64, device.LocalWrite)
				c.send(mr, 1)
				c.post(a.request(mr, 8))
				c.send(mr, 2)
				first := "SEND_ONLY fffffe ar [1]"
				mine, behind := fmt.Sprintf(a.frame, 0xFFFFFF), "SEND_ONLY 000000 ar [2]"
				l.says(first, mine, behind)
				switch trigger {
				case "timeout":
					time.Sleep(4 * ackTimeout(14) / 3)
					l.says(first, mine, behind)
				case "sequence NAK":
					c.gets(nak(0xFFFFFF, peer.SynNakSequence))
					l.says(mine, behind)
					c.sent("1 SUCCESS SEND 1")
				case "implied NAK":
					if a.op == "SEND" || a.op == "RDMA_WRITE" {
						return // an ACK of what is behind acknowledges them
					}
					// A plain ACK is not its answer: it is never completed by one.
					c.gets(ack(0, 3))
					l.says(mine, behind)
					c.sent("1 SUCCESS SEND 1")
					c.gets(ack(0xFFFFFF, 2))
					l.says() // once until something moves
					c.sent()
				case "RNR in front of it":
					c.gets(peer.RNRNak(nicQP, 0xFFFFFE, 10, 0))
					time.Sleep(2 * peer.RNRDelay(10))
					l.says(first, mine, behind)
				case "RNR of it":
					c.gets(peer.RNRNak(nicQP, 0xFFFFFF, 10, 0))
					time.Sleep(2 * peer.RNRDelay(10))
					l.says(mine, behind)
					c.sent("1 SUCCESS SEND 1")
				}
				// Whatever it took: one completion each, one result.
				c.gets(a.reply(0xFFFFFF, 2))
				got := []string{"1 SUCCESS SEND 1", a.wc(2)}
				if trigger == "sequence NAK" || trigger == "implied NAK" || trigger == "RNR of it" {
					got = got[1:]
				}
				c.sent(got...)
				if a.takes {
					b := stored(orig)
					if a.op == "RDMA_READ" {
						b = []byte("\x11\x22\x33\x44\x55\x66\x77\x88")
					}
					wantBytes(t, "result", mr.Bytes()[8:16], b)
				}
				clear(mr.Bytes())
				c.gets(a.reply(0xFFFFFF, 2)) // late: of no use
				c.gets(ack(0, 3))
				c.sent("3 SUCCESS SEND 2")
				wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
				c.state(device.StateRTS)
			})
		}
	}
}
