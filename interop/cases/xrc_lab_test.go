package cases

import (
	"fmt"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// Connections over XRC for the tables that were made for RC: the peer says what it says in RC, and on its way to the
// device it becomes XRC, requests with the number of a shared receive queue (roce.md A.5). What the device says
// reads the same.

// requesters and responders are the services that the tables of requesters and of responders run over.
var (
	requesters = []device.QPType{device.RC, device.XRCIni}
	responders = []device.QPType{device.RC, device.XRCTgt}
)

// xrcSpeaker is the peer's end of the link.
type xrcSpeaker struct {
	*rawConn
	srqn uint32
}

func (s *xrcSpeaker) Write(ip []byte) error {
	f, err := peer.Parse(ip)
	if err != nil {
		return fmt.Errorf("said in RC: %w", err)
	}
	if f.Op.Service() == peer.RC {
		ip = f.AsXRC(s.srqn).Marshal()
	}
	return s.rawConn.Write(ip)
}

// speakXRC has the peer speak XRC to the shared receive queue srqn from now on.
func (l *lab) speakXRC(srqn uint32) { l.p = peer.New(&xrcSpeaker{l.conn, srqn}, peer4, nic4) }

// requester makes a connection of which the device has the sending side.
func (l *lab) requester(typ device.QPType, change func(o *rcOptions)) *conn {
	l.t.Helper()
	if typ == device.RC {
		return l.rc(change)
	}
	c := l.xrc(change)
	l.dice.push(c.o.QPN)
	c.qp = must(l.pd.CreateQP(device.QPInit{
		Type: device.XRCIni, SendCQ: c.scq, SigAll: c.o.SigAll, Handler: c.o.Handler,
		Cap: device.Cap{SendWR: c.o.SendWR, SendSGE: c.o.SendSGE, Inline: c.o.Inline},
	}))
	c.toXRC()
	l.speakXRC(0)
	return c
}

// receiver is a connection of which the device has the receiving side, and what it receives with.
type receiver struct {
	*conn
	srq *device.SRQ // nil: the queue pair's own queue
}

// responder makes a connection of which the device has the receiving side.
func (l *lab) responder(typ device.QPType, change func(o *rcOptions)) *receiver {
	l.t.Helper()
	if typ == device.RC {
		return &receiver{conn: l.rc(change)}
	}
	c := l.xrc(change)
	xrcd := must(l.ctx.AllocXRCD())
	srq := must(l.pd.CreateSRQ(device.SRQInit{MaxWR: c.o.RecvWR, MaxSGE: 4, XRCD: xrcd, CQ: c.rcq}))
	l.dice.push(c.o.QPN)
	c.qp = must(xrcd.CreateXRCTarget(c.o.Handler))
	c.toXRC()
	l.speakXRC(srq.Num())
	return &receiver{c, srq}
}

// post posts a receive.
func (r *receiver) post(wr device.RecvWR) {
	r.t.Helper()
	post := r.qp.PostRecv
	if r.srq != nil {
		post = r.srq.PostRecv
	}
	if err := post(&wr); err != nil {
		r.t.Fatalf("post_recv %d: %v", wr.ID, err)
	}
}

func (r *receiver) recv(id uint64, mr *device.MR, n int) {
	r.t.Helper()
	wr := device.RecvWR{ID: id}
	if mr != nil {
		wr.SGE = sge(mr, n)
	}
	r.post(wr)
}

// flushed compares the receive completions of a queue pair that has gone to ERR: what is in a queue of its own is
// flushed, what is in a shared one stays there for others.
func (r *receiver) flushed(held string, waiting ...uint64) {
	r.t.Helper()
	var l []string
	if held != "" {
		l = append(l, held)
	}
	for _, id := range waiting {
		if r.srq == nil {
			l = append(l, fmt.Sprintf("%d WR_FLUSH_ERR", id))
		}
	}
	r.received(l...)
}

// xrc begins a connection: its options and completion queues.
func (l *lab) xrc(change func(o *rcOptions)) *conn {
	o := defaults()
	o.remote, o.gid = peer4, gid4
	if change != nil {
		change(&o)
	}
	l.destQP, l.dst = peerQP, peer4
	return &conn{
		lab: l, o: o,
		scq: must(l.ctx.CreateCQ(device.CQInit{Entries: o.SendCQ})),
		rcq: must(l.ctx.CreateCQ(device.CQInit{Entries: o.CQ})),
	}
}

// toXRC moves the queue pair to the state that its options say.
func (c *conn) toXRC() {
	c.t.Helper()
	o := &c.o
	tgt := c.qp.Type() == device.XRCTgt
	for s := device.StateInit; s <= o.State; s++ {
		mask := device.AttrState
		switch s {
		case device.StateInit:
			mask |= device.AttrPKeyIndex | device.AttrPort | device.AttrAccess
		case device.StateRTR:
			if mask |= device.AttrAV | device.AttrPathMTU | device.AttrDestQPN | device.AttrRQPSN; tgt {
				mask |= device.AttrMaxDestRdAtomic | device.AttrMinRNRTimer
			}
		case device.StateRTS:
			if mask |= device.AttrTimeout | device.AttrSQPSN; !tgt {
				mask |= device.AttrRetryCnt | device.AttrRNRRetry | device.AttrMaxRdAtomic
			}
		}
		err := c.qp.Modify(&device.QPAttr{
			State: s, Port: 1, Access: o.Access, PathMTU: o.MTU, DestQPN: peerQP, RQPSN: o.RQPSN, SQPSN: o.SQPSN,
			MaxDestRdAtomic: o.Resp, MinRNRTimer: o.MinRNR, Timeout: o.Timeout, RetryCnt: o.RetryCnt, RNRRetry: o.RNRRetry, MaxRdAtomic: o.Init,
			AH: device.AHAttr{DGID: device.GIDOf(o.remote), SGIDIndex: o.gid},
		}, mask)
		if err != nil {
			c.t.Fatalf("modify_qp to %v: %v", s, err)
		}
	}
}
