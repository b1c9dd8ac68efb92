package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// sendOf is a SEND of data as the peer sends it, from psn on.
func sendOf(psn uint32, mtu int, data []byte) []*peer.Frame {
	n := max(1, (len(data)+mtu-1)/mtu)
	var out []*peer.Frame
	for i := range n {
		b, p := data[i*mtu:min((i+1)*mtu, len(data))], psn+uint32(i)
		switch {
		case n == 1:
			out = append(out, peer.SendOnly(nicQP, p, b))
		case i == 0:
			out = append(out, peer.SendFirst(nicQP, p, b))
		case i == n-1:
			out = append(out, peer.SendLast(nicQP, p, b))
		default:
			out = append(out, peer.SendMiddle(nicQP, p, b))
		}
	}
	return out
}

// As responder: messages of every length are put together, and answered once, at the
// packet that asks.
func TestReassembly(t *testing.T) {
	for _, mtu := range []int{256, 1024, 4096} {
		for _, n := range sizes(mtu) {
			packets := max(1, (n+mtu-1)/mtu)
			lastPSN := (0xFFFFFE + uint32(packets) - 1) & 0xFFFFFF
			setup := func(t *testing.T) (*lab, *conn, *device.MR, []byte) {
				l := newLab(t, labConfig{})
				c := l.rc(func(o *rcOptions) { o.MTU, o.RQPSN = mtu, 0xFFFFFE })
				mr := l.mr(20000, all)
				copy(mr.Bytes(), filled(0xFF, 20000))
				return l, c, mr, pattern(6, n)
			}
			answered := func(l *lab, frames []*peer.Frame, c *conn) {
				for _, f := range frames[:len(frames)-1] {
					c.gets(f)
					l.emits() // only the last packet asks
				}
				c.gets(frames[len(frames)-1])
				l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m1", lastPSN))
			}
			for _, imm := range []bool{false, true} {
				for _, sges := range []int{1, 3} {
					bubble(t, fmt.Sprintf("SEND/mtu=%d/%d/imm=%v/sges=%d", mtu, n, imm, sges), func(t *testing.T) {
						l, c, mr, data := setup(t)
						// Three entries, with an empty one between them, end at odd places.
						list := []device.SGE{mr.SGE(0, 17000)}
						at := func(i int) int { return i }
						if sges == 3 {
							list = []device.SGE{mr.SGE(0, 1), mr.SGE(50, 0), mr.SGE(100, mtu), mr.SGE(mtu+200, 13000)}
							at = func(i int) int {
								switch {
								case i == 0:
									return 0
								case i <= mtu:
									return 99 + i
								}
								return 200 - 1 + i
							}
						}
						if err := c.qp.PostRecv(&device.RecvWR{ID: 5, SGE: list}); err != nil {
							t.Fatal(err)
						}
						frames := sendOf(0xFFFFFE, mtu, data)
						suffix := ""
						if imm {
							suffix = " imm=89abcdef"
							last := frames[len(frames)-1]
							last.Op, last.Imm = last.Op+1, 0x89ABCDEF // LAST and ONLY with immediate follow them
						}
						answered(l, frames, c)
						c.received(fmt.Sprintf("5 SUCCESS RECV %d%s", n, suffix))
						written := map[int]bool{}
						for i := range n {
							want(t, fmt.Sprintf("byte %d", i), mr.Bytes()[at(i)], data[i])
							written[at(i)] = true
						}
						for i, b := range mr.Bytes() {
							if !written[i] && b != 0xFF {
								t.Fatalf("byte %d outside the message was written", i)
							}
						}
						l.counts("rdma_recvs=1")
					})
				}
				bubble(t, fmt.Sprintf("WRITE/mtu=%d/%d/imm=%v", mtu, n, imm), func(t *testing.T) {
					l, c, mr, data := setup(t)
					c.recv(5, nil, 0)
					frames := sendOf(0xFFFFFE, mtu, data)
					for i, f := range frames {
						f.Op += peer.OpWriteFirst // the WRITE opcodes are the SEND opcodes plus 6
						if i == 0 {
							f.RETH = peer.RETH{VA: mr.Addr() + 7, RKey: mr.RKey(), Len: uint32(n)}
						}
					}
					if imm {
						last := frames[len(frames)-1]
						last.Op, last.Imm = last.Op+1, 0x89ABCDEF
					}
					answered(l, frames, c)
					if imm {
						c.received(fmt.Sprintf("5 SUCCESS RECV_RDMA_WITH_IMM %d imm=89abcdef", n))
					} else {
						c.received() // a plain WRITE takes no receive
					}
					wantBytes(t, "before", mr.Bytes()[:7], filled(0xFF, 7))
					wantBytes(t, "target", mr.Bytes()[7:7+n], data)
					wantBytes(t, "behind", mr.Bytes()[7+n:], filled(0xFF, 20000-7-n))
					l.counts("rx_write_requests=1")
				})
			}
			bubble(t, fmt.Sprintf("READ/mtu=%d/%d", mtu, n), func(t *testing.T) {
				l, c, mr, data := setup(t)
				copy(mr.Bytes()[7:], data)
				c.gets(peer.ReadRequest(nicQP, 0xFFFFFE, mr.Addr()+7, mr.RKey(), uint32(n)))
				var wanted []string
				for _, f := range readAnswer(0xFFFFFE, 1, mtu, data) {
					f.PSN &= 0xFFFFFF
					wanted = append(wanted, brief(f))
				}
				wantBytes(t, "answer", payloads(l.emits(wanted...)), data)
				// The READ took as many PSNs as it has responses.
				c.gets(peer.WriteOnly(nicQP, lastPSN+1, 0, 0, nil))
				l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m2", (lastPSN+1)&0xFFFFFF))
				l.counts("rx_read_requests=1")
			})
		}
	}
}

// Acknowledgements, as rxe-lab.md 4 measured them, but coalesced: what arrives in one burst and
// ends in packets that ask is answered once.
func TestAcknowledge(t *testing.T) {
	lab1 := func(t *testing.T) (*lab, *conn, *device.MR) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		c := l.rc(nil)
		for i := range uint64(20) {
			c.recv(i, nil, 0)
		}
		return l, c, l.mr(1<<17, all)
	}
	send := func(psn uint32) *peer.Frame { return peer.SendOnly(nicQP, psn, nil) }
	noAck := func(f *peer.Frame) *peer.Frame { f.AckReq = false; return f }

	bubble(t, "a burst gives one", func(t *testing.T) {
		l, c, _ := lab1(t)
		c.gets(send(0x200), send(0x201), send(0x202), send(0x203), send(0x204))
		l.emits("ACKNOWLEDGE 000204 1f m5")
		want(t, "completions", len(drain(c.rcq)), 5)
	})
	bubble(t, "one at a time gives one each", func(t *testing.T) {
		l, c, _ := lab1(t)
		for i := range uint32(5) {
			c.gets(send(0x200 + i))
			l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", 0x200+i, i+1))
		}
	})
	bubble(t, "none without AckReq", func(t *testing.T) {
		l, c, _ := lab1(t)
		c.gets(noAck(send(0x200)), noAck(send(0x201)))
		l.emits()
		c.gets(send(0x202))
		l.emits("ACKNOWLEDGE 000202 1f m3")
	})
	bubble(t, "the ACK is of the last packet that asks", func(t *testing.T) {
		l, c, _ := lab1(t)
		c.gets(send(0x200), noAck(send(0x201)))
		got := l.take()
		want(t, "frames", len(got), 1)
		// 201 has been executed too: to name it would be right as well.
		if f := brief(got[0]); f != "ACKNOWLEDGE 000200 1f m1" && f != "ACKNOWLEDGE 000201 1f m2" {
			t.Fatal(f)
		}
	})
	bubble(t, "FIRST and MIDDLE that ask, MSN unchanged", func(t *testing.T) {
		l, c, mr := lab1(t)
		f := sendOf(0x200, 1024, make([]byte, 3000))
		for _, x := range f {
			x.Op, x.AckReq = x.Op+peer.OpWriteFirst, true
		}
		f[0].RETH = peer.RETH{VA: mr.Addr(), RKey: mr.RKey(), Len: 3000}
		for i, s := range []string{"ACKNOWLEDGE 000200 1f m0", "ACKNOWLEDGE 000201 1f m0", "ACKNOWLEDGE 000202 1f m1"} {
			c.gets(f[i])
			l.emits(s)
		}
	})
	bubble(t, "READ asks by itself", func(t *testing.T) {
		l, c, mr := lab1(t)
		c.gets(noAck(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8)))
		l.emits("READ_RESPONSE_ONLY 000200 1f m1 [8]")
	})
	// One ordered queue: an ACK or NAK never passes a READ response.
	bubble(t, "ACK behind a long READ response", func(t *testing.T) {
		l, c, mr := lab1(t)
		const n = 100
		c.gets(send(0x200), peer.ReadRequest(nicQP, 0x201, mr.Addr(), mr.RKey(), n*1024), send(0x201+n), send(0x202+n))
		got := briefs(l.take())
		want(t, "frames", len(got), n+2)
		want(t, "first", got[0], "ACKNOWLEDGE 000200 1f m1")
		want(t, "then", got[1], "READ_RESPONSE_FIRST 000201 1f m2 [1024]")
		for i := 2; i < n; i++ {
			want(t, "then", got[i], fmt.Sprintf("READ_RESPONSE_MIDDLE %06x [1024]", 0x200+i))
		}
		want(t, "then", got[n], fmt.Sprintf("READ_RESPONSE_LAST %06x 1f m2 [1024]", 0x200+n))
		want(t, "last", got[n+1], fmt.Sprintf("ACKNOWLEDGE %06x 1f m4", 0x202+n))
	})
	bubble(t, "NAK behind a long READ response", func(t *testing.T) {
		l, c, mr := lab1(t)
		const n = 100
		c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), n*1024), send(0x201+n))
		got := briefs(l.take())
		want(t, "frames", len(got), n+1)
		want(t, "last", got[n], fmt.Sprintf("ACKNOWLEDGE %06x 60 m1", 0x200+n))
	})
	bubble(t, "fatal NAK behind a long READ response", func(t *testing.T) {
		l, c, mr := lab1(t)
		const n = 100
		c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), n*1024), peer.WriteOnly(nicQP, 0x200+n, mr.Addr(), 1, []byte("evil")))
		got := briefs(l.take())
		// What came before the bad request is still answered (it was executed).
		want(t, "frames", len(got), n+1)
		want(t, "last", got[n], fmt.Sprintf("ACKNOWLEDGE %06x 62 m1", 0x200+n))
		c.state(device.StateErr)
	})
	// MSN: 24 bits, one for each message whatever its kind, none for a duplicate.
	bubble(t, "MSN", func(t *testing.T) {
		l, c, mr := lab1(t)
		c.gets(send(0x200))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.gets(peer.WriteOnly(nicQP, 0x201, 0, 0, nil))
		l.emits("ACKNOWLEDGE 000201 1f m2")
		c.gets(peer.ReadRequest(nicQP, 0x202, mr.Addr(), mr.RKey(), 3000))
		l.emits("READ_RESPONSE_FIRST 000202 1f m3 [1024]", "READ_RESPONSE_MIDDLE 000203 [1024]", "READ_RESPONSE_LAST 000204 1f m3 [952]")
		c.gets(send(0x205))
		l.emits("ACKNOWLEDGE 000205 1f m4")
		for _, psn := range []uint32{0x200, 0x201, 0x205} {
			c.gets(send(psn))
			l.emits("ACKNOWLEDGE 000205 1f m4")
		}
	})
	// A duplicate is answered with the last PSN that was executed, whatever it asks; but no plain
	// ACK ever names a PSN of a READ: rxe takes that for the READ's answer (rxe-lab.md C1).
	bubble(t, "duplicates", func(t *testing.T) {
		l, c, mr := lab1(t)
		c.gets(send(0x200), send(0x201))
		l.emits("ACKNOWLEDGE 000201 1f m2")
		c.gets(noAck(send(0x200)))
		l.emits("ACKNOWLEDGE 000201 1f m2")
		c.gets(send(0x1FF)) // one that was never seen
		l.emits("ACKNOWLEDGE 000201 1f m2")
		c.gets(peer.ReadRequest(nicQP, 0x202, mr.Addr(), mr.RKey(), 2000))
		l.emits("READ_RESPONSE_FIRST 000202 1f m3 [1024]", "READ_RESPONSE_LAST 000203 1f m3 [976]")
		c.gets(send(0x201))
		l.emits("ACKNOWLEDGE 000201 1f m3")
		c.gets(send(0x200))
		l.emits("ACKNOWLEDGE 000201 1f m3")
		c.gets(peer.ReadRequest(nicQP, 0x204, mr.Addr(), mr.RKey(), 4))
		l.emits("READ_RESPONSE_ONLY 000204 1f m4 [4]")
		c.gets(send(0x201))
		l.emits("ACKNOWLEDGE 000201 1f m4")
		c.gets(send(0x205), send(0x201))
		l.emits("ACKNOWLEDGE 000205 1f m5")
		l.counts("duplicate_request=6", "rdma_recvs=3")
		want(t, "drops", l.drops(), "duplicate=6")
	})
	// A duplicate that is no READ at the PSN of a READ is nonsense: no ACK may name it.
	bubble(t, "a SEND at the PSN of a READ", func(t *testing.T) {
		l, c, mr := lab1(t)
		c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 2000))
		l.take()
		c.gets(send(0x200), send(0x201))
		l.emits()
		want(t, "drops", l.drops(), "duplicate-unserved=2")
		c.gets(send(0x202))
		l.emits("ACKNOWLEDGE 000202 1f m2")
		c.gets(send(0x201))
		l.emits("ACKNOWLEDGE 000202 1f m2")
	})
	// What the peer misses does not wait behind answers to later requests, which it can only
	// drop until then.
	bubble(t, "a READ again, before the answer to a later one", func(t *testing.T) {
		l, c, mr := lab1(t)
		first := peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8)
		c.gets(first)
		l.emits("READ_RESPONSE_ONLY 000200 1f m1 [8]")
		c.gets(peer.ReadRequest(nicQP, 0x201, mr.Addr(), mr.RKey(), 2000), first)
		got := l.take()
		sameList(t, "operations", briefs(got)[1:], []string{"READ_RESPONSE_FIRST 000201 1f m2 [1024]", "READ_RESPONSE_LAST 000202 1f m2 [976]"})
		want(t, "first", got[0].PSN, 0x200)
	})
	// Many READs in one batch, each answered in order.
	bubble(t, "READs in a row", func(t *testing.T) {
		l, c, mr := lab1(t)
		copy(mr.Bytes(), pattern(1, 1<<17))
		var wanted []string
		for i := range uint32(16) {
			c.gets(peer.ReadRequest(nicQP, 0x200+2*i, mr.Addr()+uint64(i), mr.RKey(), 1025))
			wanted = append(wanted, fmt.Sprintf("READ_RESPONSE_FIRST %06x 1f m%d [1024]", 0x200+2*i, i+1),
				fmt.Sprintf("READ_RESPONSE_LAST %06x 1f m%d [1]", 0x201+2*i, i+1))
		}
		got := l.emits(wanted...)
		for i := range 16 {
			wantBytes(t, "answer", payloads(got[2*i:2*i+2]), mr.Bytes()[i:i+1025])
		}
	})
}

// A gap: one NAK with the PSN that is expected, until that PSN comes.
func TestSequenceNak(t *testing.T) {
	setup := func(t *testing.T) (*lab, *conn) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.RQPSN = 0xFFFFFE })
		for i := range uint64(20) {
			c.recv(i, nil, 0)
		}
		return l, c
	}
	send := func(psn uint32) *peer.Frame { return peer.SendOnly(nicQP, psn, nil) }
	bubble(t, "once for each gap", func(t *testing.T) {
		l, c := setup(t)
		c.gets(send(0xFFFFFE))
		l.emits("ACKNOWLEDGE fffffe 1f m1")
		c.gets(send(0)) // FFFFFF is missing
		l.emits("ACKNOWLEDGE ffffff 60 m1")
		for _, psn := range []uint32{1, 2, 0, 0x100, 5} {
			c.gets(send(psn))
			l.emits()
		}
		// Without AckReq it would have been the same; a duplicate does not re-arm it.
		c.gets(send(0xFFFFFE))
		l.emits("ACKNOWLEDGE fffffe 1f m1")
		c.gets(send(1))
		l.emits()
		c.gets(send(0xFFFFFF))
		l.emits("ACKNOWLEDGE ffffff 1f m2")
		// Re-armed.
		c.gets(send(1))
		l.emits("ACKNOWLEDGE 000000 60 m2")
		c.gets(send(2))
		l.emits()
		c.gets(send(0), send(1), send(2))
		l.settle()
		c.gets(send(4))
		got := briefs(l.take())
		want(t, "last", got[len(got)-1], "ACKNOWLEDGE 000003 60 m5")
		l.counts("out_of_seq_request=3")
		want(t, "drops", l.drops(), "duplicate=1 out-of-sequence=10")
		want(t, "completions", len(drain(c.rcq)), 5)
	})
	bubble(t, "a packet that does not ask, and a READ", func(t *testing.T) {
		l, c := setup(t)
		c.gets(send(0xFFFFFF).With(func(f *peer.Frame) { f.AckReq = false }))
		l.emits("ACKNOWLEDGE fffffe 60 m0")
		c.gets(send(0xFFFFFE))
		l.emits("ACKNOWLEDGE fffffe 1f m1")
		c.gets(peer.ReadRequest(nicQP, 0, 0, 0, 0))
		l.emits("ACKNOWLEDGE ffffff 60 m1")
	})
	bubble(t, "inside a message", func(t *testing.T) {
		l, c := setup(t)
		mr := l.mr(4096, all)
		c2 := sendOf(0xFFFFFE, 1024, pattern(1, 4000))
		for i, f := range c2 {
			f.Op += peer.OpWriteFirst
			if i == 0 {
				f.RETH = peer.RETH{VA: mr.Addr(), RKey: mr.RKey(), Len: 4000}
			}
		}
		c.gets(c2[0])
		l.emits()
		c.gets(c2[2])
		l.emits("ACKNOWLEDGE ffffff 60 m0")
		c.gets(c2[3])
		l.emits()
		c.gets(c2[1], c2[2], c2[3])
		l.emits("ACKNOWLEDGE 000001 1f m1")
		wantBytes(t, "target", mr.Bytes()[:4000], pattern(1, 4000))
	})
	// After an RNR NAK the gap behind it is not complained about: silent until the PSN
	// comes back (roce.md top 12, 6; rxe does send one more NAK).
	bubble(t, "silence after an RNR NAK", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.MinRNR = 17 })
		c.gets(send(0x200))
		l.emits("ACKNOWLEDGE 000200 31 m0")
		for _, psn := range []uint32{0x201, 0x202, 0x203} {
			c.gets(send(psn))
			l.emits()
		}
		c.gets(send(0x200)) // still none
		l.emits("ACKNOWLEDGE 000200 31 m0")
		c.gets(send(0x201))
		l.emits()
		c.recv(1, nil, 0)
		c.recv(2, nil, 0)
		c.gets(send(0x201)) // not the one that is waited for
		l.emits()
		c.gets(send(0x200))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.gets(send(0x201))
		l.emits("ACKNOWLEDGE 000201 1f m2")
		c.received("1 SUCCESS RECV 0", "2 SUCCESS RECV 0")
		l.counts("send_rnr_err=2", "out_of_buffer=2", "out_of_seq_request=0")
		want(t, "drops", l.drops(), "out-of-sequence=5 not-ready=2")
	})
	for code := range 32 {
		bubble(t, fmt.Sprintf("min_rnr_timer %d", code), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.MinRNR = code })
			c.gets(send(0x200).With(func(f *peer.Frame) { f.AckReq = false })) // AckReq is not needed
			l.emits(fmt.Sprintf("ACKNOWLEDGE 000200 %02x m0", 0x20+code))
		})
	}
	// The expected packet is behind the later one in one burst: the NAK is sent all the same,
	// or the requester would wait for its timer with what was dropped.
	bubble(t, "reordered in one burst", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		c := l.rc(nil)
		c.recv(1, nil, 0)
		c.gets(send(0x201), send(0x200))
		l.emits("ACKNOWLEDGE 000200 60 m0", "ACKNOWLEDGE 000200 1f m1")
	})
	// The receive queue runs dry in the middle of a burst.
	bubble(t, "RNR in the middle of a burst", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		c := l.rc(nil)
		c.recv(1, nil, 0)
		c.gets(send(0x200), send(0x201), send(0x202))
		l.emits("ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000201 2c m1")
	})
}
