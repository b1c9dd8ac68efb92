package cases

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Case 17, responder: as many READs and atomics as max_dest_rd_atomic whose answers have not left are
// served, one more is refused; with the answers out nobody is.
func TestCase17_ResponderDepth(t *testing.T) {
	frame := func(mr *device.MR, i uint32) *peer.Frame {
		if i%3 == 2 {
			return peer.ReadRequest(nicQP, 0x200+i, mr.Addr(), mr.RKey(), 8)
		}
		return askFrames[int(i)%len(askFrames)].f(0x200+i, mr.Addr(), mr.RKey())
	}
	bubble(t, "blocked", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		c := l.rc(allOps)
		mr := l.mr(64, every)
		for i := range uint32(17) { // in one batch, so that no answer has left
			c.gets(frame(mr, i))
		}
		got := l.take()
		want(t, "frames", len(got), 17)
		for i, f := range got[:16] {
			want(t, "PSN", f.PSN, uint32(0x200+i))
			want(t, "answer", f.AETH.Syndrome, peer.SynAck)
		}
		want(t, "the 17th", full(got[16]), "ACKNOWLEDGE 000210 61 m16")
		l.events("QP_REQ_ERR")
		c.state(device.StateErr)
	})
	bubble(t, "open", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(allOps)
		mr := l.mr(64, every)
		for i := range uint32(60) {
			c.gets(frame(mr, i))
			want(t, "answer", must1(l.take()).PSN, 0x200+i)
		}
		c.state(device.StateRTS)
		l.events()
	})
}

// Case 17, verbs: what the device cannot do is refused by modify_qp, with EINVAL and the name of the attribute, and not at
// run time; nothing is changed then. query_qp shows at least what was asked for.
func TestCase17_Limits(t *testing.T) {
	rtr := device.AttrState | device.AttrAV | device.AttrPathMTU | device.AttrDestQPN | device.AttrRQPSN | device.AttrMaxDestRdAtomic | device.AttrMinRNRTimer
	rts := device.AttrState | device.AttrTimeout | device.AttrRetryCnt | device.AttrRNRRetry | device.AttrSQPSN | device.AttrMaxRdAtomic
	for _, v := range []struct {
		name  string
		state device.State // that is asked for
		mask  device.AttrMask
		most  func(l *lab) int
		attr  func(a *device.QPAttr) *int
	}{
		{"max_dest_rd_atomic", device.StateRTR, rtr, func(l *lab) int { return l.dev.Query().MaxRdAtom }, func(a *device.QPAttr) *int { return &a.MaxDestRdAtomic }},
		{"max_rd_atomic", device.StateRTS, rts, func(l *lab) int { return l.dev.Query().MaxInitRd }, func(a *device.QPAttr) *int { return &a.MaxRdAtomic }},
		{"min_rnr_timer", device.StateRTR, rtr, func(*lab) int { return 31 }, func(a *device.QPAttr) *int { return &a.MinRNRTimer }},
		{"timeout", device.StateRTS, rts, func(*lab) int { return 31 }, func(a *device.QPAttr) *int { return &a.Timeout }},
		{"retry_cnt", device.StateRTS, rts, func(*lab) int { return 7 }, func(a *device.QPAttr) *int { return &a.RetryCnt }},
		{"rnr_retry", device.StateRTS, rts, func(*lab) int { return 7 }, func(a *device.QPAttr) *int { return &a.RNRRetry }},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			most := v.most(l)
			if most < 1 {
				t.Fatalf("the device says %d", most)
			}
			for qpn, val := range []int{0, 1, most - 1, most, most + 1, 2*most + 1, 255, -1} {
				c := l.rc(func(o *rcOptions) { o.State, o.QPN = v.state-1, 0x100+uint32(qpn) })
				a := device.QPAttr{State: v.state, PathMTU: 1024, DestQPN: peerQP, AH: device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}}
				*v.attr(&a) = val
				err := c.qp.Modify(&a, v.mask)
				got, _ := c.qp.Query()
				if val < 0 || val > most {
					errno(t, err, device.EINVAL)
					if !strings.Contains(err.Error(), v.name) {
						t.Errorf("the error does not say %s: %v", v.name, err)
					}
					c.state(v.state - 1)
					want(t, "what is in force", *v.attr(&got), 0)
					continue
				}
				if err != nil {
					t.Fatalf("%d: %v", val, err)
				}
				if n := *v.attr(&got); n < val || n > most || n != val && v.name != "max_dest_rd_atomic" {
					t.Errorf("query_qp shows %d, asked for were %d", n, val)
				}
			}
		})
	}
}

// Case 49: a WRITE with immediate takes a receive, whatever its size, and does not touch its buffer.
func TestCase49_WriteWithImmediate(t *testing.T) {
	const m, imm = 1024, 0x89ABCDEF
	for _, size := range []int{0, 1, m, m + 1, 1 << 20} {
		for _, queue := range []string{"own", "shared"} {
			for _, entry := range []int{0, 8} {
				bubble(t, fmt.Sprintf("%d bytes, %s queue, entry of %d", size, queue, entry), func(t *testing.T) {
					l := newLab(t, labConfig{})
					mr, buf := l.mr(1<<20, every), l.mr(8, device.LocalWrite)
					var c *conn
					wr := device.RecvWR{ID: 7, SGE: sge(buf, entry)}
					if queue == "own" {
						c = l.rc(allOps)
						if err := c.qp.PostRecv(&wr); err != nil {
							t.Fatal(err)
						}
					} else {
						s := l.shared(1, device.SRQInit{MaxWR: 4}, device.RC)
						c = s.c[0]
						if err := s.srq.PostRecv(&wr); err != nil {
							t.Fatal(err)
						}
					}
					data := pattern(3, size)
					frames := sendOf(0x200, m, data)
					for i, f := range frames {
						f.Op += peer.OpWriteFirst
						if i == 0 {
							f.RETH = peer.RETH{VA: mr.Addr(), RKey: mr.RKey(), Len: uint32(size)}
						}
						if i == len(frames)-1 {
							f.Op, f.Imm = f.Op+1, imm
						}
						c.gets(f)
						l.settle()
						if i < len(frames)-1 {
							c.received() // not before the last packet
						}
					}
					l.says(fmt.Sprintf("ACKNOWLEDGE %06x 1f m1", 0x200+len(frames)-1))
					c.received(fmt.Sprintf("7 SUCCESS RECV_RDMA_WITH_IMM %d imm=89abcdef", size))
					wantBytes(t, "data", mr.Bytes()[:size], data)
					wantBytes(t, "receive buffer", buf.Bytes(), make([]byte, 8))
				})
			}
		}
	}
}

// Frames of all operations that make no sense, with right ICRCs: nothing panics, nothing is changed
// that no key allows, and another connection works on.
func TestOpsRandomFrames(t *testing.T) {
	seeds(t, func(t *testing.T, r *rand.Rand) {
		l := newLab(t, labConfig{})
		victim := l.rc(func(o *rcOptions) { allOps(o); o.QPN = 0x55 })
		c := l.rc(allOps)
		l.destQP = 0
		own, guard := l.mr(8192, device.LocalWrite), filled(0x77, 8192)
		copy(own.Bytes(), guard)
		mr := l.mr(4096, every)
		w := must(l.pd.AllocMW(device.MW1))
		c.bind(w, mr, 8, 64, device.RemoteWrite|device.RemoteAtomic)
		psn := uint32(0x200)
		ops := []peer.Op{peer.OpCmpSwap, peer.OpFetchAdd, peer.OpMaskedCmpSwap, peer.OpMaskedFetchAdd, peer.OpFlush, peer.OpAtomicWrite,
			peer.OpSendLastInv, peer.OpSendOnlyInv, peer.OpSendFirst, peer.OpWriteOnly, peer.OpReadRequest, peer.OpAtomicAck, peer.OpReadRespOnly, peer.OpAck}
		for i := range 250 {
			f := peer.NewFrame(ops[r.IntN(len(ops))], 0x55, 0x200+uint32(r.IntN(8))-2)
			if f.Op.IsResponse() {
				f.PSN = 0x100 + uint32(r.IntN(8)) - 2
			}
			f.SE, f.AckReq = r.IntN(2) == 0, r.IntN(2) == 0
			if r.IntN(3) == 0 || f.Op == peer.OpAtomicWrite {
				f.Payload = make([]byte, []int{0, 1, 4, 8, 8, 8, 1024, 1028}[r.IntN(8)])
			}
			keys := []uint32{mr.RKey(), mr.RKey(), mr.LKey(), own.LKey(), own.RKey(), w.RKey(), r.Uint32()}
			vas := []uint64{mr.Addr(), mr.Addr() + 8, mr.Addr() + 4092, mr.Addr() + 4096, own.Addr(), 0, ^uint64(0), ^uint64(7), r.Uint64()}
			f.RETH = peer.RETH{VA: vas[r.IntN(len(vas))], RKey: keys[r.IntN(len(keys))], Len: []uint32{0, 1, 8, 8, 8, 4096, 1 << 31, 1<<31 + 1, ^uint32(0)}[r.IntN(9)]}
			f.Atomic = peer.AtomicETH{VA: f.RETH.VA, RKey: f.RETH.RKey, SwapAdd: r.Uint64(), Compare: r.Uint64() & r.Uint64()}
			f.Masked = peer.MaskedETH{VA: f.RETH.VA, RKey: f.RETH.RKey, Swap: r.Uint64(), Compare: r.Uint64(), SwapMask: r.Uint64(), CompareMask: r.Uint64() & r.Uint64()}
			f.FETH = peer.FETH{Resv: r.Uint32() & 3, Sel: uint8(r.IntN(4)), PLT: uint8(r.IntN(16))}
			f.InvKey, f.AETH, f.Orig = keys[r.IntN(len(keys))], peer.AETH{Syndrome: peer.SynAck, MSN: r.Uint32()}, r.Uint64()
			l.p.Send(t, f)
			l.take()
			if victim.qp.State() != device.StateRTS || i%60 == 0 {
				for _, s := range []device.State{device.StateReset, device.StateInit, device.StateRTR, device.StateRTS} {
					victim.to(s)
				}
				victim.recv(1, mr, 4096)
				for k := range 3 {
					victim.post(asks[r.IntN(len(asks))].request(mr, 8*k))
				}
			}
			l.take()
			if i%50 == 0 {
				c.gets(peer.WriteOnly(nicQP, psn, mr.Addr(), mr.RKey(), []byte("alive")))
				l.says(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", psn, psn-0x1FF))
				psn++
			}
			for ok := true; ok; _, ok = l.ctx.TryAsyncEvent() {
			}
			drain(victim.rcq)
			drain(victim.scq)
		}
		wantBytes(t, "memory that no remote key names", own.Bytes(), guard)
		c.state(device.StateRTS)
	})
}
