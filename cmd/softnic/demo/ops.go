package demo

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/softnic/softnic/device"
)

// operation moves one message between the NICs: from a to b, a READ from b to a.
type operation struct {
	name string
	sgl  bool // SEND, UD: takes a receive with room for the message
	recv bool // takes a receive
	imm  bool
	ud   bool
	uc   bool
	op   device.WROp
	done device.WCOp // what the receiver's completion says
}

var (
	opSend     = operation{name: "RC SEND", op: device.OpSend, sgl: true, recv: true, done: device.WCRecv}
	opSendImm  = operation{name: "RC SEND with immediate", op: device.OpSendImm, sgl: true, recv: true, imm: true, done: device.WCRecv}
	opWrite    = operation{name: "RC WRITE", op: device.OpWrite}
	opWriteImm = operation{name: "RC WRITE with immediate", op: device.OpWriteImm, recv: true, imm: true, done: device.WCRecvImm}
	opRead     = operation{name: "RC READ", op: device.OpRead}
	opUCSend   = operation{name: "UC SEND", op: device.OpSend, sgl: true, recv: true, uc: true, done: device.WCRecv}
	opUCWrite  = operation{name: "UC WRITE with immediate", op: device.OpWriteImm, recv: true, imm: true, uc: true, done: device.WCRecvImm}
	opUD       = operation{name: "UD SEND", op: device.OpSend, sgl: true, recv: true, ud: true, done: device.WCRecv}
	opUDImm    = operation{name: "UD SEND with immediate", op: device.OpSendImm, sgl: true, recv: true, imm: true, ud: true, done: device.WCRecv}
)

var rcOperations = []operation{opSend, opSendImm, opWrite, opWriteImm, opRead}

// rcSizes are where segmentation has its corners.
var rcSizes = []int{0, 1, pathMTU - 1, pathMTU, pathMTU + 1, 64 << 10, 1 << 20}

// ucSizes are small enough that no burst finds a socket buffer full: what is lost here is lost.
var ucSizes = []int{0, 1, pathMTU - 1, pathMTU, pathMTU + 1, 16 << 10}

// udSizes are those of datagrams, up to the MTU.
func udSizes(active int) []int {
	l := []int{0, 1, 255, 256, 1023, 1024, active - 1, active}
	slices.Sort(l)
	return slices.Compact(l)
}

// from returns the NIC whose memory the message comes from, and to that whose
// memory it goes to.
func (o *operation) from(a, b *nic) *nic {
	if o.op == device.OpRead {
		return b
	}
	return a
}

func (o *operation) to(a, b *nic) *nic {
	if o.op == device.OpRead {
		return a
	}
	return b
}

// offset is where in memory the message is expected.
func (o *operation) offset() int {
	if o.ud {
		return device.GRHLen
	}
	return 0
}

// postRecv posts the receive that the operation takes.
func (o *operation) postRecv(b *nic, to *buffer) error {
	wr := &device.RecvWR{ID: 1}
	if o.sgl {
		wr.SGE = []device.SGE{to.mr.SGE(0, to.mr.Len())}
	}
	return o.qp(b).PostRecv(wr)
}

// qp returns the queue pair that the operation uses.
func (o *operation) qp(n *nic) *device.QP {
	switch {
	case o.ud:
		return n.ud
	case o.uc:
		return n.uc
	}
	return n.rc
}

// request is the send work request of a message, with its memory at a and at b.
func (o *operation) request(a, b *nic, p pattern, ma, mb *buffer) *device.SendWR {
	wr := &device.SendWR{ID: 2, Op: o.op, SGE: []device.SGE{ma.mr.SGE(0, p.n)}}
	if o.imm {
		wr.Imm = p.imm()
	}
	switch {
	case o.ud:
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = a.ah, b.ud.Num(), qkey
	case o.op == device.OpWrite, o.op == device.OpWriteImm, o.op == device.OpRead:
		wr.RemoteAddr, wr.RKey = mb.mr.Addr(), mb.mr.RKey()
	}
	return wr
}

// run moves one message and verifies everything about it. late is called after the send was posted
// and before the receive, which comes too late then; nil: the receive is there first.
func (o *operation) run(ctx context.Context, a, b *nic, p pattern, late func() error) error {
	err := o.move(ctx, a, b, p, late)
	if err != nil {
		return fmt.Errorf("%s of %d bytes: %w", o.name, p.n, err)
	}
	return nil
}

func (o *operation) move(ctx context.Context, a, b *nic, p pattern, late func() error) error {
	from, err := o.from(a, b).register(p.n, &p)
	if err != nil {
		return err
	}
	to, err := o.to(a, b).register(o.offset()+p.n, nil)
	if err != nil {
		return err
	}
	ma, mb := from, to
	if o.op == device.OpRead {
		ma, mb = to, from
	}
	if o.recv && late == nil {
		if err := o.postRecv(b, to); err != nil {
			return err
		}
	}
	if err := o.qp(a).PostSend(o.request(a, b, p, ma, mb)); err != nil {
		return err
	}
	if o.recv && late != nil {
		if err := late(); err != nil {
			return err
		}
		if err := o.postRecv(b, to); err != nil {
			return err
		}
	}
	sent, err := a.await(ctx, 1)
	if err != nil {
		return err
	}
	if w := o.op.Completed(); sent[0].ID != 2 || sent[0].Op != w {
		return fmt.Errorf("completion %v of request %d, expected %v", sent[0].Op, sent[0].ID, w)
	}
	if o.recv {
		got, err := b.await(ctx, 1)
		if err != nil {
			return err
		}
		if err := o.checkRecv(&got[0], a, p); err != nil {
			return err
		}
	}
	if err := to.release(); err != nil {
		return err
	}
	if o.op != device.OpRead {
		// Not so what was read: a READ request that was sent again and comes late is one for a key that b does not know
		// any more, which ends the connection.
		if err := from.release(); err != nil {
			return err
		}
	}
	if o.ud {
		if err := checkGRH(to.mr.Bytes(), a.gid.Addr(), b.gid.Addr()); err != nil {
			return err
		}
	}
	return to.verify(o.offset(), p)
}

// checkRecv checks the receiver's completion.
func (o *operation) checkRecv(wc *device.WC, a *nic, p pattern) error {
	want := device.WC{ID: 1, Op: o.done, ByteLen: uint32(p.n + o.offset())}
	if o.imm {
		want.Flags, want.Imm = device.WCWithImm, p.imm()
	}
	if o.ud {
		want.Flags |= device.WCGRH
		if wc.SrcQP != a.ud.Num() {
			return fmt.Errorf("the completion says that it came from qp 0x%06x, expected 0x%06x", wc.SrcQP, a.ud.Num())
		}
	}
	got := device.WC{ID: wc.ID, Op: wc.Op, ByteLen: wc.ByteLen, Flags: wc.Flags, Imm: wc.Imm}
	if !o.imm {
		got.Imm = 0
	}
	if got != want {
		return fmt.Errorf("completion %+v, expected %+v", got, want)
	}
	return nil
}

// checkGRH checks the 40 bytes before a datagram, which end with its IPv4 header.
func checkGRH(b []byte, src, dst netip.Addr) error {
	h := b[20:device.GRHLen]
	s, d := netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
	if h[0] != 0x45 || s != src || d != dst {
		return fmt.Errorf("the header before the datagram is %x, expected one from %s to %s", h, src, dst)
	}
	return nil
}
