package replay

import (
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// What a softnic says of requests that were spoiled on their way, where the ICRC was made right again, is believed: what it did
// nothing for shows nothing of its memory, its queue pair, or where the conversation began.
func TestSpoiledRequests(t *testing.T) {
	const far = base + 1<<20
	ok := wire.OK
	for _, c := range []struct {
		name   string
		record func(r *film)
		same   int
		want   []expect
	}{
		{"a copy came when the queue pair was in ERR", func(r *film) {
			r.write(ok, 0, base)
			r.ack(0, 1)
			r.write(wire.BadRequest, 1, far)
			r.write(wire.QPState, 1, base)
			r.nak(1, bth.NakRemoteAccess, 1)
		}, 2, nil},
		{"too early, far away", func(r *film) {
			r.write(ok, 0, base)
			r.write(wire.OutOfSequence, 2, far+64)
			r.ack(0, 1)
			r.nak(1, bth.NakSequence, 1)
			r.write(wire.BadRequest, 1, far)
			r.nak(1, bth.NakRemoteAccess, 1)
		}, 3, nil},
		{"once more, far away", func(r *film) {
			r.write(ok, 0, base)
			r.write(wire.Duplicate, 0, far)
			r.ack(0, 1)
			r.ack(0, 1)
			r.write(wire.BadRequest, 1, far-64)
			r.nak(1, bth.NakRemoteAccess, 1)
		}, 3, nil},
		{"of another partition, for what the queue pair does not allow", func(r *film) {
			r.arrives(wire.PKey).ask(bth.ReadRequest, 0, nil, func(s *wire.Spec) {
				at(base, rkey, 8)(s)
				s.BTH.PKey = 0x8123
			})
			r.write(ok, 0, base)
			r.ack(0, 1)
			r.arrives(wire.BadRequest).ask(bth.ReadRequest, 1, nil, reth(base, 8))
			r.nak(1, bth.NakInvalidRequest, 1)
		}, 2, nil},
		{"too early, written where another one reads", func(r *film) {
			r.write(wire.OutOfSequence, 1, base)
			r.nak(0, bth.NakSequence, 0)
			r.arrives(ok).ask(bth.ReadRequest, 0, nil, reth(base, 8))
			r.reply(bth.ReadResponseOnly, 0, bth.AckUnlimited, 1, data(9, 8))
		}, 2, nil},
		{"of another partition", func(r *film) {
			r.arrives(wire.PKey).ask(bth.SendOnly, 0, nil, func(s *wire.Spec) { s.BTH.PKey = 0x8123 })
			r.arrives(wire.OutOfSequence).send(1)
			r.nak(0, bth.NakSequence, 0)
			r.arrives(ok).send(0)
			r.ack(0, 1)
		}, 2, nil},
		{"long before, and answered by nothing", func(r *film) {
			r.arrives(wire.NotReady).send(0)
			r.arrives(wire.DuplicateUnserved).ask(bth.ReadRequest, 0xFF0000, nil, reth(base, 8))
			r.nak(0, bth.RNR(12), 0)
			r.arrives(ok).send(0)
			r.ack(0, 1)
		}, 2, nil},
		{"long before, and acknowledged", func(r *film) {
			r.arrives(wire.NotReady).send(0)
			r.nak(0, bth.RNR(12), 0)
			r.arrives(wire.Duplicate).send(0xFF0000)
			r.ack(0xFFFFFF, 0)
			r.arrives(ok).send(0)
			r.ack(0, 1)
		}, 3, nil},
		{"long before, and the first is missing", func(r *film) {
			r.arrives(wire.OutOfSequence).send(1)
			r.arrives(wire.DuplicateUnserved).ask(bth.ReadRequest, 0xFF0000, nil, reth(base, 8))
			r.nak(0, bth.NakSequence, 0)
			r.arrives(wire.OutOfSequence).send(1)
		}, 1, nil},
		{"too early, of a length that nothing is answered to", func(r *film) {
			r.arrives(ok).send(0)
			r.arrives(wire.OutOfSequence).ask(bth.ReadRequest, 2, nil, reth(base, 1<<30))
			r.ack(0, 1)
			r.nak(1, bth.NakSequence, 1)
			r.arrives(ok).send(1)
			r.ack(1, 2)
		}, 3, nil},
		{"in its turn, and behind the answer to another", func(r *film) {
			r.arrives(ok).ask(bth.ReadRequest, 0, nil, reth(base, 8))
			r.arrives(wire.BadRequest).ask(bth.ReadRequest, 1, nil, reth(base, 1<<30))
			r.reply(bth.ReadResponseOnly, 0, bth.AckUnlimited, 1, data(9, 8))
			r.nak(1, bth.NakRemoteAccess, 1)
		}, 0, []expect{{Unknown, 1, "", "behind"}, {Unknown, 3, "", "behind"}, {Unknown, 4, "", "behind"}}},
		{"at an odd address, behind all others", func(r *film) {
			add := func(f wire.Fault, psn bth.PSN, va uint64) { r.arrives(f).ask(bth.FetchAdd, psn, nil, at(va, rkey, 0)) }
			add(ok, 0, base)
			r.replyTo(bth.AtomicAcknowledge, 0, bth.AckUnlimited, 1, nil, func(s *wire.Spec) { s.Ext.Original = 5 })
			add(wire.BadRequest, 1, base+12)
			r.nak(1, bth.NakInvalidRequest, 1)
		}, 2, nil},
		{"half the PSNs away", func(r *film) {
			r.arrives(ok).send(0)
			r.ack(0, 1)
			r.arrives(wire.OutOfSequence).send(3)
			r.arrives(wire.Duplicate).send(0x800004)
			r.arrives(wire.OutOfSequence).send(5)
			r.nak(1, bth.NakSequence, 1)
			r.ack(0, 1)
			r.arrives(ok).send(1)
			r.ack(1, 2)
		}, 4, nil},
		{"long before, when the queue pair was in ERR", func(r *film) {
			r.write(wire.BadRequest, 0x101, far)
			r.nak(0x101, bth.NakRemoteAccess, 0)
			r.write(wire.QPState, 0, base)
		}, 1, nil},
		{"when the queue pair had left its state in silence", func(r *film) {
			r.arrives(ok).send(0)
			r.ack(0, 1)
			r.arrives(wire.QPState).send(1)
			r.arrives(wire.QPState).send(1)
		}, 1, nil},
		{"of another partition, for which no receive is there", func(r *film) {
			r.arrives(ok).send(0)
			r.ack(0, 1)
			r.arrives(wire.PKey).ask(bth.SendOnly, 1, nil, func(s *wire.Spec) { s.BTH.PKey = 0x8123 })
			r.arrives(wire.NotReady).send(1)
			r.nak(1, bth.RNR(12), 1)
			r.arrives(ok).send(1)
			r.ack(1, 2)
		}, 3, nil},
		{"too early, with the PSN of one that finds no receive", func(r *film) {
			r.write(wire.OutOfSequence, 1, base)
			r.nak(0, bth.NakSequence, 0)
			r.arrives(ok).send(0)
			r.arrives(wire.NotReady).send(1)
			r.ack(0, 1)
			r.nak(1, bth.RNR(12), 1)
			r.arrives(ok).send(1)
			r.ack(1, 2)
		}, 4, nil},
		{"without a receive, and with its PSN a bad one", func(r *film) {
			r.arrives(ok).send(0)
			r.ack(0, 1)
			r.arrives(wire.NotReady).send(1)
			r.arrives(wire.BadRequest).ask(bth.SendLast, 1, data(1, 8), nil)
			r.nak(1, bth.RNR(12), 1)
			r.nak(1, bth.NakInvalidRequest, 1)
		}, 3, nil},
		{"an atomic that is too old", func(r *film) {
			for i := range bth.PSN(3) {
				r.arrives(ok).write8(i)
				r.wrote(i, uint32(i)+1)
			}
			r.arrives(wire.DuplicateUnserved).write8(0) // packet 7
			r.arrives(wire.DuplicateUnserved).write8(2) // packet 8: the last one it has to remember
			r.arrives(ok).send(3)
			r.ack(3, 4)
		}, 4, []expect{{Unknown, 7, "", "so old"}, {Declared, 8, "", "together"}}},
		{"to a queue pair that is not there", func(r *film) {
			r.arrives(wire.NoQP).ask(bth.SendOnly, 0, nil, func(s *wire.Spec) { s.BTH.DestQP = qpB + 0x100 })
			r.arrives(wire.OutOfSequence).send(1)
			r.nak(0, bth.NakSequence, 0)
			r.arrives(ok).send(0)
			r.ack(0, 1)
		}, 2, nil},
		{"one that asks again for less", func(r *film) {
			r.arrives(ok).ask(bth.ReadRequest, 0, nil, reth(base, 100))
			r.reply(bth.ReadResponseOnly, 0, bth.AckUnlimited, 1, data(9, 100))
			r.arrives(wire.Duplicate).ask(bth.ReadRequest, 0, nil, reth(base, 100))
			r.arrives(wire.Duplicate).ask(bth.ReadRequest, 0, nil, reth(base, 92))
			r.reply(bth.ReadResponseOnly, 0, bth.AckUnlimited, 1, data(9, 100))
			r.reply(bth.ReadResponseOnly, 0, bth.AckUnlimited, 1, data(9, 92))
		}, 3, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := new(film)
			c.record(r)
			res := r.atResponder().play(t, Options{Still: true})
			same := 0
			for _, x := range res.Conversations {
				same += x.Same
			}
			if tells(t, res, c.want...); same != c.same {
				t.Errorf("%d answers are the same, want %d", same, c.same)
			}
		})
	}
}

// A capture at the requester does not tell what its receiver dropped: the partition is that of most requests.
func TestPartitionOfMost(t *testing.T) {
	r := new(tape)
	send := func(key uint16) {
		r.ask(bth.SendOnly, 0, nil, func(s *wire.Spec) { s.BTH.PKey = key })
	}
	send(0x8123)
	send(0xFFFF)
	send(0xFFFF)
	r.ack(0, 1)
	if res := r.play(t, Options{}); res.Different > 0 || res.Conversations[0].Same != 1 {
		t.Errorf("%v", res.Conversations[0])
	}
}

// arrives has the next packet be a request of which its receiver says what it is.
func (r *film) arrives(f wire.Fault) *film {
	w := trace.Word{Dir: trace.Rx, Fault: f}
	if f != wire.OK {
		w.Fate = trace.Dropped
	}
	return r.says(w)
}

// write is a WRITE of 8 bytes that arrives.
func (r *film) write(f wire.Fault, psn bth.PSN, va uint64) {
	r.arrives(f).ask(bth.WriteOnly, psn, data(1, 8), reth(va, 8))
}
