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
			if tells(t, res, c.want...); res.Conversations[0].Same != c.same {
				t.Errorf("%d answers are the same, want %d", res.Conversations[0].Same, c.same)
			}
		})
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
