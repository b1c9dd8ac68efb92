package cases

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
)

// end is one of two devices that are joined by a pipe.
type end struct {
	t        *testing.T
	ctx      *device.Context
	pd       *device.PD
	qp       *device.QP
	scq, rcq *device.CQ
	mr       *device.MR
}

// ends makes two connected queue pairs, on two devices: the requester and the responder.
func ends(t *testing.T, access device.Access, depth int) (req, rsp *end) {
	t.Helper()
	a, b := pipe.New(
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(peer4, 24)}},
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}})
	mk := func(p *pipe.End) *end {
		dev := must(device.Open(p, device.Options{Rand: newDice()}))
		t.Cleanup(func() { dev.Close() })
		e := &end{t: t, ctx: dev.NewContext()}
		e.pd = must(e.ctx.AllocPD())
		e.scq, e.rcq = must(e.ctx.CreateCQ(device.CQInit{Entries: 64})), must(e.ctx.CreateCQ(device.CQInit{Entries: 64}))
		e.mr = must(e.pd.RegMR(pattern(1, 8192), all))
		e.qp = must(e.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: e.scq, RecvCQ: e.rcq, SigAll: true, Cap: device.Cap{SendWR: 32, RecvWR: 32}}))
		return e
	}
	req, rsp = mk(a), mk(b)
	ra, rb := req.qp.Address(gid4, 0x100), rsp.qp.Address(gid4, 0x200)
	// RNRRetry 2, so that a loop ends.
	if err := req.qp.Connect(0x100, rb, device.ConnectOptions{RNRRetry: 2, Depth: 4}); err != nil {
		t.Fatal(err)
	}
	err := rsp.qp.Connect(0x200, ra, device.ConnectOptions{Access: access, Depth: depth})
	if err != nil {
		t.Fatal(err)
	}
	return req, rsp
}

func (e *end) events() []string {
	out := []string{}
	for {
		x, ok := e.ctx.TryAsyncEvent()
		if !ok {
			return out
		}
		out = append(out, strings.TrimPrefix(x.Type.String(), "IBV_EVENT_"))
	}
}

// The statuses at both ends of a connection between two devices (roce.md B.13 as design.md 8
// decides), with the request that fails between two good ones. The wire between them is what
// TestViolations and TestRequesterStatus look at.
func TestBothEnds(t *testing.T) {
	const rw = device.RemoteRead | device.RemoteWrite
	for _, v := range []struct {
		name   string
		access device.Access
		depth  int                         // of the responder; 0: 16
		recvs  func(rsp *end) []device.SGE // receives after the one for the first SEND, one entry each
		wr     func(rsp *end) device.SendWR
		req    string   // status of the request
		rsp    string   // status of the receive it holds; "": flushed
		events []string // of the responder
	}{
		{name: "good WRITE", access: rw, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpWrite, RemoteAddr: r.mr.Addr(), RKey: r.mr.RKey()}
		}, req: "SUCCESS RDMA_WRITE 2000"},
		{name: "good READ", access: rw, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpRead, RemoteAddr: r.mr.Addr(), RKey: r.mr.RKey()}
		}, req: "SUCCESS RDMA_READ 2000"},
		{name: "WRITE, bad key", access: rw, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpWrite, RemoteAddr: r.mr.Addr(), RKey: r.mr.RKey() ^ 0x100}
		}, req: "REM_ACCESS_ERR", events: []string{"QP_ACCESS_ERR"}},
		{name: "READ, bad range", access: rw, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpRead, RemoteAddr: r.mr.Addr() + 7000, RKey: r.mr.RKey()}
		}, req: "REM_ACCESS_ERR", events: []string{"QP_ACCESS_ERR"}},
		{name: "WRITE, L_Key", access: rw, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpWrite, RemoteAddr: r.mr.Addr(), RKey: r.mr.LKey()}
		}, req: "REM_ACCESS_ERR", events: []string{"QP_ACCESS_ERR"}},
		{name: "WRITE with immediate, bad key", access: rw, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpWriteImm, RemoteAddr: r.mr.Addr(), RKey: 5}
		}, req: "REM_ACCESS_ERR", events: []string{"QP_ACCESS_ERR"}}, // the first of two packets fails: no receive is held yet
		{name: "WRITE not enabled", access: device.RemoteRead, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpWrite, RemoteAddr: r.mr.Addr(), RKey: r.mr.RKey()}
		}, req: "REM_INV_REQ_ERR", events: []string{"QP_REQ_ERR"}},
		{name: "READ not enabled", access: device.RemoteWrite, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpRead, RemoteAddr: r.mr.Addr(), RKey: r.mr.RKey()}
		}, req: "REM_INV_REQ_ERR", events: []string{"QP_REQ_ERR"}},
		{name: "READ, responder depth 0", access: rw, depth: -1, wr: func(r *end) device.SendWR {
			return device.SendWR{Op: device.OpRead, RemoteAddr: r.mr.Addr(), RKey: r.mr.RKey()}
		}, req: "REM_INV_REQ_ERR", events: []string{"QP_REQ_ERR"}},
		{name: "SEND longer than the receive", access: rw, recvs: func(r *end) []device.SGE { return []device.SGE{r.mr.SGE(0, 1999), {}} },
			wr: func(*end) device.SendWR { return device.SendWR{Op: device.OpSend} }, req: "REM_INV_REQ_ERR", rsp: "LOC_LEN_ERR"},
		{name: "receive with a bad key", access: rw, recvs: func(r *end) []device.SGE {
			return []device.SGE{{Addr: r.mr.Addr(), Length: 4096, LKey: r.mr.RKey()}, {}}
		}, wr: func(*end) device.SendWR { return device.SendWR{Op: device.OpSend} }, req: "REM_OP_ERR", rsp: "LOC_PROT_ERR"},
		{name: "no receive", access: rw, recvs: func(*end) []device.SGE { return nil },
			wr: func(*end) device.SendWR { return device.SendWR{Op: device.OpSend} }, req: "RNR_RETRY_EXC_ERR"},
	} {
		bubble(t, v.name, func(t *testing.T) {
			req, rsp := ends(t, v.access, v.depth)
			post := func(e *end, wr device.SendWR) {
				if err := e.qp.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
			}
			recvs := []device.SGE{{}, {}}
			if v.recvs != nil {
				recvs = v.recvs(rsp)
			}
			for i, s := range append([]device.SGE{{}}, recvs...) {
				if err := rsp.qp.PostRecv(&device.RecvWR{ID: uint64(i), SGE: []device.SGE{s}}); err != nil {
					t.Fatal(err)
				}
			}
			wr := v.wr(rsp)
			wr.ID, wr.SGE = 2, []device.SGE{req.mr.SGE(0, 2000)}
			post(req, device.SendWR{ID: 1, Op: device.OpSend})
			post(req, wr)
			post(req, device.SendWR{ID: 3, Op: device.OpSend})
			time.Sleep(time.Second)
			synctest.Wait()
			good := strings.HasPrefix(v.req, "SUCCESS")
			last, state := "WR_FLUSH_ERR", device.StateErr
			if good {
				last, state = "SUCCESS SEND 0", device.StateRTS
			}
			sameList(t, "requester", briefWC(drain(req.scq)), []string{"1 SUCCESS SEND 0", "2 " + v.req, "3 " + last})
			want(t, "requester's state", req.qp.State(), state)
			sameList(t, "requester's events", req.events(), []string{})
			wantRecv := []string{"0 SUCCESS RECV 0"}
			for i := range recvs {
				s := "WR_FLUSH_ERR"
				switch {
				case good && i == 0:
					s = "SUCCESS RECV 0"
				case good:
					continue // still posted
				case i == 0 && v.rsp != "":
					s = v.rsp
				}
				wantRecv = append(wantRecv, fmt.Sprintf("%d %s", i+1, s))
			}
			sameList(t, "responder", briefWC(drain(rsp.rcq)), wantRecv)
			sameList(t, "responder's events", rsp.events(), append([]string{}, v.events...))
			// An RNR loop that the requester gives up is no error of the responder.
			if !good && v.req != "RNR_RETRY_EXC_ERR" {
				want(t, "responder's state", rsp.qp.State(), device.StateErr)
			} else {
				want(t, "responder's state", rsp.qp.State(), device.StateRTS)
			}
		})
	}
}
