package replay

import (
	"testing"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// srqn is the shared receive queue that the requests of xrc name.
const srqn = 0xABCDE

// xrc makes a recording one of an XRC initiator and a target.
func (r *tape) xrc() *tape {
	for i := range r.spec {
		s := &r.spec[i]
		s.BTH.Opcode = bth.Make(bth.XRC, s.BTH.Opcode.Operation())
		s.Ext.SRQN = srqn
		r.l[i].IP = wire.Build(s)
	}
	return r
}

// srq has a request, by its number, name another shared receive queue.
func (r *tape) srq(packet int, num uint32) {
	r.spec[packet-1].Ext.SRQN = num
	r.l[packet-1].IP = wire.Build(&r.spec[packet-1])
}

// Every kind of request over XRC: the NIC has a target, and the shared receive queue that is asked for.
func TestXRC(t *testing.T) {
	r := everything1().xrc()
	res := r.play(t, Options{})
	same(t, res, 11)
	if c := res.Conversations[0]; c.Service != "XRC" || c.Taken != c.Requests || c.Requests == 0 {
		t.Errorf("%+v", c)
	}
	same(t, everything1().xrc().play(t, Options{Recvs: 3}), 11)
	// Each answer wrong, alone.
	for i, s := range r.spec {
		if !s.BTH.Opcode.Info().Has(bth.Response) || i == 1 || i == len(r.spec)-1 { // the first and the last: what is before and behind is not in the capture
			continue
		}
		bad := everything1().xrc()
		if s.BTH.Opcode.Operation() == bth.Acknowledge {
			s.Ext.Syndrome = bth.NakRemoteOp
		} else {
			s.BTH.MigReq = !s.BTH.MigReq
		}
		bad.l[i].IP = wire.Build(&s)
		if l := findings(bad.play(t, Options{}), Different); len(l) == 0 || l[0].Packet != i+1 {
			t.Errorf("packet %d: %v", i+1, l)
		}
	}
}

// Two shared receive queues of one target: one has no receive where the recorded NIC said so, and one does not exist where it refused it.
func TestXRCQueues(t *testing.T) {
	r := new(tape)
	send := func(psn bth.PSN, num uint32) int {
		return r.ask(bth.SendOnly, psn, data(1, 20), func(s *wire.Spec) { s.Ext.SRQN = num })
	}
	var want []int // of which packet the queue is the second
	want = append(want, send(0, srqn))
	r.ack(0, 1)
	want = append(want, send(1, 0x77))
	r.nak(1, bth.RNR(12), 1)
	want = append(want, send(1, 0x77))
	r.ack(1, 2)
	want = append(want, send(2, srqn))
	r.ack(2, 3)
	want = append(want, send(3, 0x99))
	r.nak(3, bth.NakInvalidRequest, 3)
	r.xrc()
	for i, num := range []uint32{srqn, 0x77, 0x77, srqn, 0x99} {
		r.srq(want[i], num)
	}
	same(t, r.play(t, Options{}), 5)
	// With receives in each the second queue is not empty: softnic takes what was refused, or what came again.
	tells(t, r.play(t, Options{Recvs: 5}), expect{Unknown, 4, "syndrome", "how often"})
}
