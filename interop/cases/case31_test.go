package cases

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// xrcLab is an XRC target and an XRC initiator that are connected to the peer, and shared receive queues that the
// target may fill.
type xrcLab struct {
	*matrix
	ini  *device.QP
	srqs [2]*device.SRQ
}

const iniQP = 0x15

func newXRCLab(t *testing.T) *xrcLab {
	t.Helper()
	// What comes at one instant comes in one batch, and is answered together.
	x := &xrcLab{matrix: newMatrix(t, device.XRCTgt, labConfig{Latency: time.Microsecond})}
	x.renew(device.StateRTS)
	x.srqs = [2]*device.SRQ{x.srq, must(x.pd.CreateSRQ(device.SRQInit{MaxWR: 8, XRCD: x.xrcd, CQ: x.rcq}))}
	x.dice.push(iniQP)
	x.ini = must(x.pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: x.scq, SigAll: true, Cap: device.Cap{SendWR: 8}}))
	x.must(x.ini.Connect(0x100, device.Remote{GID: device.GIDOf(peer4), QPN: peerQP, PSN: 0x200}, device.ConnectOptions{RetryCnt: 6, RNRRetry: 6}))
	return x
}

func (x *xrcLab) received(want ...string) {
	x.t.Helper()
	sameList(x.t, "receive completions", briefWC(drain(x.rcq)), append([]string{}, want...))
}

// Case 31: the shared receive queue that an XRC request names, the two halves of a connection, and what each of
// them does not do.
func TestCase31_XRC(t *testing.T) {
	send := func(psn, srqn uint32, data []byte) *peer.Frame { return peer.SendOnly(mxQP, psn, data).AsXRC(srqn) }
	bubble(t, "in turn", func(t *testing.T) {
		x := newXRCLab(t)
		for i := range uint64(2) {
			x.must(x.srqs[1].PostRecv(&device.RecvWR{ID: 11 + i, SGE: []device.SGE{x.buf.SGE(100, 50)}}))
		}
		for i, v := range []struct {
			srq int
			n   int
			wc  string
		}{{0, 3, "1 SUCCESS RECV 3"}, {1, 50, "11 SUCCESS RECV 50"}, {0, 0, "2 SUCCESS RECV 0"}, {1, 5, "12 SUCCESS RECV 5"}} {
			psn := 0x200 + uint32(i)
			x.gets(send(psn, x.srqs[v.srq].Num(), make([]byte, v.n)))
			x.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", psn, i+1))
			x.received(v.wc)
		}
	})
	// Not ready is one of the two. What is behind waits: order is that of the queue pair.
	bubble(t, "RNR on one", func(t *testing.T) {
		x := newXRCLab(t)
		full, empty := x.srqs[0].Num(), x.srqs[1].Num()
		x.gets(send(0x200, empty, nil))
		x.emits("ACKNOWLEDGE 000200 2c m0")
		x.gets(send(0x201, full, []byte("abc")))
		x.emits() // no sequence NAK behind an RNR NAK
		x.received()
		x.must(x.srqs[1].PostRecv(&device.RecvWR{ID: 11}))
		x.gets(send(0x200, empty, nil), send(0x201, full, []byte("abc")))
		x.emits("ACKNOWLEDGE 000201 1f m2") // of both
		x.received("11 SUCCESS RECV 0", "1 SUCCESS RECV 3")
	})
	for _, v := range []struct {
		name string
		srqn func(x *xrcLab) uint32
	}{
		{"0", func(*xrcLab) uint32 { return 0 }},
		{"a number that is none", func(x *xrcLab) uint32 { return x.srqs[0].Num() ^ 0x10 }},
		{"a shared queue of no domain", func(x *xrcLab) uint32 {
			s := must(x.pd.CreateSRQ(device.SRQInit{MaxWR: 1}))
			x.must(s.PostRecv(&device.RecvWR{}))
			return s.Num()
		}},
		{"one of another domain", func(x *xrcLab) uint32 {
			s := must(x.pd.CreateSRQ(device.SRQInit{MaxWR: 1, XRCD: must(x.ctx.AllocXRCD()), CQ: x.rcq}))
			x.must(s.PostRecv(&device.RecvWR{}))
			return s.Num()
		}},
		{"one that is gone", func(x *xrcLab) uint32 {
			n := x.srqs[1].Num()
			x.must(x.srqs[1].Destroy())
			return n
		}},
	} {
		for _, f := range []*peer.Frame{peer.SendOnly(mxQP, 0x200, []byte("abc")), peer.WriteOnly(mxQP, 0x200, 0, 0, nil), peer.ReadRequest(mxQP, 0x200, 0, 0, 0)} {
			bubble(t, "refused/"+v.name+"/"+f.Op.Short(), func(t *testing.T) {
				x := newXRCLab(t)
				x.gets(f.AsXRC(v.srqn(x)))
				x.emits("ACKNOWLEDGE 000200 61 m0")
				x.received() // no receive was taken
				x.events("QP_REQ_ERR")
				want(t, "state", x.qp.State(), device.StateErr)
			})
		}
	}
	// All packets of a message name the same.
	bubble(t, "another one inside a message", func(t *testing.T) {
		x := newXRCLab(t)
		x.must(x.srqs[1].PostRecv(&device.RecvWR{ID: 11, SGE: []device.SGE{x.buf.SGE(0, mxLen)}}))
		x.gets(peer.SendFirst(mxQP, 0x200, make([]byte, mtu)).AsXRC(x.srqs[0].Num()), peer.SendLast(mxQP, 0x201, []byte("abc")).AsXRC(x.srqs[1].Num()))
		x.emits("ACKNOWLEDGE 000201 61 m0")
		x.received("1 REM_INV_REQ_ERR")
	})
	// Memory is that of the protection domain of the shared queue that is named.
	bubble(t, "domains", func(t *testing.T) {
		x := newXRCLab(t)
		pd := must(x.ctx.AllocPD())
		other := must(pd.CreateSRQ(device.SRQInit{MaxWR: 8, XRCD: x.xrcd, CQ: x.rcq}))
		theirs := must(pd.RegMR(make([]byte, 64), all))
		x.must(other.PostRecv(&device.RecvWR{ID: 21, SGE: []device.SGE{theirs.SGE(0, 64)}}))
		write := func(psn uint32, s *device.SRQ, mr *device.MR) *peer.Frame {
			return peer.WriteOnly(mxQP, psn, mr.Addr(), mr.RKey(), []byte("abcd")).AsXRC(s.Num())
		}
		x.gets(write(0x200, x.srqs[0], x.mr), write(0x201, other, theirs), send(0x202, other.Num(), []byte("efgh")),
			peer.ReadRequest(mxQP, 0x203, theirs.Addr(), theirs.RKey(), 8).AsXRC(other.Num()), write(0x204, x.srqs[0], x.mr))
		got := briefs(x.take())
		want(t, "the last answers", fmt.Sprint(got[len(got)-2:]), "[READ_RESPONSE_ONLY 000203 1f m4 [8] ACKNOWLEDGE 000204 1f m5]")
		x.received("21 SUCCESS RECV 4")
		wantBytes(t, "received", theirs.Bytes()[:4], []byte("efgh"))
		x.gets(write(0x205, x.srqs[0], theirs))
		x.emits("ACKNOWLEDGE 000205 62 m5")
		x.events("QP_ACCESS_ERR")
	})
	bubble(t, "receive of another domain", func(t *testing.T) {
		x := newXRCLab(t)
		s := must(must(x.ctx.AllocPD()).CreateSRQ(device.SRQInit{MaxWR: 8, XRCD: x.xrcd, CQ: x.rcq}))
		x.must(s.PostRecv(&device.RecvWR{ID: 21, SGE: []device.SGE{x.buf.SGE(0, 64)}}))
		x.gets(send(0x200, s.Num(), []byte("abcd")))
		x.emits("ACKNOWLEDGE 000200 63 m0")
		x.received("21 LOC_PROT_ERR")
	})
	bubble(t, "halves", func(t *testing.T) {
		x := newXRCLab(t)
		for _, mask := range []device.AttrMask{device.AttrMinRNRTimer, device.AttrMaxDestRdAtomic} {
			errno(t, x.ini.Modify(&device.QPAttr{}, mask), device.EINVAL)
		}
		for _, q := range []*device.QP{x.ini, x.qp} {
			errno(t, q.PostRecv(&device.RecvWR{}), device.EINVAL)
		}
		errno(t, x.qp.PostSend(&device.SendWR{Op: device.OpSend}), device.EINVAL)
		x.gets(peer.SendOnly(mxQP, 0x200, nil))
		x.gets(peer.SendOnly(iniQP, 0x200, nil).AsXRC(x.srqs[0].Num()))
		rc := x.rc(func(o *rcOptions) { o.QPN = 0x77 })
		x.gets(peer.SendOnly(0x77, 0x200, nil).AsXRC(x.srqs[0].Num()))
		x.emits()
		rc.received()
		x.received()
		want(t, "drops", x.drops(), "wrong-service=3")
	})
	// What an initiator has no responder for it does not take on its way to RTR either.
	bubble(t, "attributes of the other half", func(t *testing.T) {
		x := newXRCLab(t)
		q := must(x.pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: x.scq, Cap: device.Cap{SendWR: 8}}))
		x.must(q.Modify(&device.QPAttr{State: device.StateInit, Port: 1}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess))
		a := device.QPAttr{State: device.StateRTR, PathMTU: 1024, DestQPN: peerQP, AH: device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}}
		mask := device.AttrState | device.AttrAV | device.AttrPathMTU | device.AttrDestQPN | device.AttrRQPSN
		for _, more := range []device.AttrMask{device.AttrMinRNRTimer, device.AttrMaxDestRdAtomic} {
			errno(t, q.Modify(&a, mask|more), device.EINVAL)
			want(t, "state", q.State(), device.StateInit)
		}
		x.must(q.Modify(&a, mask))
	})
	// Several clients, each with a target of its own.
	bubble(t, "one shared queue for two targets", func(t *testing.T) {
		x := newXRCLab(t)
		x.dice.push(0x17)
		other := must(x.xrcd.CreateXRCTarget(nil))
		x.must(other.Connect(0x100, device.Remote{GID: device.GIDOf(peer4), QPN: peerQP, PSN: 0x300}, device.ConnectOptions{}))
		x.gets(send(0x200, x.srqs[0].Num(), []byte("abc")))
		x.emits("ACKNOWLEDGE 000200 1f m1")
		x.gets(peer.SendOnly(0x17, 0x300, []byte("defg")).AsXRC(x.srqs[0].Num()))
		x.emits("ACKNOWLEDGE 000300 1f m1")
		l := drain(x.rcq)
		sameList(t, "receive completions", briefWC(l), []string{"1 SUCCESS RECV 3", "2 SUCCESS RECV 4"})
		want(t, "of queue pairs", fmt.Sprintf("%x %x", l[0].QPN, l[1].QPN), fmt.Sprintf("%x 17", mxQP))
		// One that ends leaves the queue to the other.
		x.gets(peer.SendOnly(0x17, 0x301, nil).AsXRC(0))
		x.emits("ACKNOWLEDGE 000301 61 m1")
		want(t, "state", other.State(), device.StateErr)
		x.must(x.srqs[0].PostRecv(&device.RecvWR{ID: 9}))
		x.gets(send(0x201, x.srqs[0].Num(), nil))
		x.emits("ACKNOWLEDGE 000201 1f m2")
	})
	bubble(t, "requester", func(t *testing.T) {
		x := newXRCLab(t)
		post := func(srqn uint32) {
			x.must(x.ini.PostSend(&device.SendWR{ID: uint64(srqn), Op: device.OpSend, SRQN: srqn, SGE: []device.SGE{x.buf.SGE(0, 2000)}}))
		}
		named := func(want ...string) {
			t.Helper()
			var got []string
			for _, f := range x.take() {
				got = append(got, fmt.Sprintf("%v %06x srqn=%d", f.Op, f.PSN, f.XRCETH.SRQN))
			}
			sameList(t, "frames", got, want)
		}
		post(5)
		post(6)
		named("XRC_SEND_FIRST 000100 srqn=5", "XRC_SEND_LAST 000101 srqn=5", "XRC_SEND_FIRST 000102 srqn=6", "XRC_SEND_LAST 000103 srqn=6")
		x.gets(peer.RNRNak(iniQP, 0x100, 1, 0).AsXRC(0)) // 10 µs
		named()
		time.Sleep(11 * time.Microsecond)
		named("XRC_SEND_FIRST 000100 srqn=5", "XRC_SEND_LAST 000101 srqn=5", "XRC_SEND_FIRST 000102 srqn=6", "XRC_SEND_LAST 000103 srqn=6")
		x.gets(peer.Ack(iniQP, 0x101, 1).AsXRC(0), peer.Nak(iniQP, 0x102, peer.SynNakInvalid, 1).AsXRC(0))
		x.settle()
		sameList(t, "send completions", briefWC(drain(x.scq)), []string{"5 SUCCESS SEND 2000", "6 REM_INV_REQ_ERR"})
		want(t, "state", x.ini.State(), device.StateErr)
	})
}
