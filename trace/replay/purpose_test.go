package replay

import (
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// What a softnic's rules did to answers: each stands in its capture as the NIC gave it, and once more as it went on. That one is no
// answer, also where another with its PSN has come meanwhile.
func TestOnPurpose(t *testing.T) {
	held, released := trace.Word{Dir: trace.Tx, Fate: trace.Held}, trace.Word{Dir: trace.Tx, Fate: trace.Released}
	before, changed := trace.Word{Dir: trace.Tx, Fate: trace.Lost, Before: true}, trace.Word{Dir: trace.Tx, Fate: trace.Forged, Changed: true}
	for _, c := range []struct {
		name   string
		record func(r *film)
		same   int
		want   []expect
	}{
		{"an ACK, behind which a duplicate is acknowledged with another MSN", func(r *film) {
			r.send(0)
			r.write8(1)
			r.says(held).ack(0, 1)
			r.wrote(1, 2)
			r.send(0)
			r.says(released).ack(0, 1)
			r.ack(0, 2)
		}, 3, nil},
		{"an ACK, where of two before it one was enough", func(r *film) {
			r.send(0)
			r.send(0)
			r.ack(0, 1)
			r.write8(1)
			r.wrote(1, 2)
			r.send(0)
			r.says(held).ack(0, 2)
			r.says(released).ack(0, 2)
			r.send(2)
			r.ack(2, 3)
		}, 4, nil},
		{"a READ response, behind a restart", func(r *film) {
			r.ask(bth.ReadRequest, 0, nil, reth(base, 3072))
			r.reply(bth.ReadResponseFirst, 0, bth.AckUnlimited, 1, data(1, 1024))
			r.says(held).reply(bth.ReadResponseMiddle, 1, 0, 0, data(2, 1024))
			r.reply(bth.ReadResponseLast, 2, bth.AckUnlimited, 1, data(3, 1024))
			r.ask(bth.ReadRequest, 1, nil, reth(base+1024, 2048))
			r.says(released).reply(bth.ReadResponseMiddle, 1, 0, 0, data(2, 1024))
			r.reply(bth.ReadResponseFirst, 1, bth.AckUnlimited, 1, data(2, 1024))
			r.reply(bth.ReadResponseLast, 2, bth.AckUnlimited, 1, data(3, 1024))
		}, 5, nil},
		{"a sequence NAK, behind which the request met no receive", func(r *film) {
			r.send(0)
			r.ack(0, 1)
			r.send(2)
			r.says(held).nak(1, bth.NakSequence, 1)
			r.says(trace.Word{Dir: trace.Rx, Fate: trace.Dropped, Fault: wire.NotReady}).send(1)
			r.says(released).nak(1, bth.NakSequence, 1)
			r.nak(1, bth.RNR(12), 1)
			r.send(1)
			r.ack(1, 2)
		}, 4, nil},
		{"all of them", func(r *film) {
			for i := range bth.PSN(3) {
				r.send(i)
				r.says(held).ack(i, uint32(i)+1)
				r.says(released).ack(i, uint32(i)+1)
			}
		}, 3, nil},
		{"copies and other ECN bits", func(r *film) {
			r.send(0)
			r.ack(0, 1)
			r.says(trace.Word{Dir: trace.Tx, Fate: trace.Copied}).ack(0, 1)
			r.send(1)
			r.says(before).ack(1, 2)
			r.says(trace.Word{Dir: trace.Tx, Fate: trace.Forged, Touched: true}).ack(1, 2)
			r.send(2)
			r.ack(2, 3)
		}, 3, nil},
		{"all changed", func(r *film) {
			for i := range bth.PSN(3) {
				r.send(i)
				r.says(before).ack(i, uint32(i)+1)
				r.says(changed).ack(i, 77)
			}
		}, 3, nil},
		{"one that was changed, and had been wrong", func(r *film) {
			r.send(0)
			r.ack(0, 1)
			r.send(1)
			r.says(before).ack(1, 7)
			r.says(changed).ack(1, 2)
			r.send(2)
			r.ack(2, 3)
		}, 2, []expect{{Different, 4, "MSN", ""}}},
		{"one that was held back, and is wrong", func(r *film) {
			r.send(0)
			r.ack(0, 1)
			r.send(1)
			r.says(held).ack(1, 7)
			r.says(released).ack(1, 7)
			r.send(2)
			r.ack(2, 3)
		}, 2, []expect{{Different, 4, "MSN", ""}}},
		{"one too many, of which no rule knows", func(r *film) {
			r.send(0)
			r.says(held).ack(0, 1)
			r.says(released).ack(0, 1)
			r.ack(0, 1)
			r.send(1)
			r.ack(1, 2)
		}, 2, []expect{{Different, 4, "", "no such answer"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := new(film)
			c.record(r)
			res := r.atResponder().play(t, Options{})
			if tells(t, res, c.want...); res.Conversations[0].Same != c.same {
				t.Errorf("%d answers are the same, want %d", res.Conversations[0].Same, c.same)
			}
		})
	}
}

// What the responder says that it expected first, it expected: of what came before that nothing was taken, also where it never comes.
func TestNothingWasTaken(t *testing.T) {
	r := new(tape)
	middle := func(psn bth.PSN) { r.ask(bth.WriteMiddle, psn, data(1, 1024), silent(nil)) }
	write := func(psn bth.PSN) { r.ask(bth.WriteFirst, psn, data(1, 1024), silent(reth(base, 1044))) }
	middle(1)
	middle(2)
	write(5)
	r.nak(0, bth.NakSequence, 0)
	write(3) // a forged NAK had the requester go on from here
	r.ask(bth.WriteLast, 4, data(2, 20), nil)
	write(5)
	r.ask(bth.SendOnly, 7, nil, nil)
	same(t, r.play(t, Options{}), 1)
	// It comes.
	r.ask(bth.WriteFirst, 0, data(1, 1024), silent(reth(base, 2068)))
	middle(1)
	r.ask(bth.WriteLast, 2, data(2, 20), nil)
	r.ack(2, 1)
	same(t, r.play(t, Options{}), 2)
	// In the middle of a message.
	r = new(tape)
	middle(2)
	r.nak(1, bth.NakSequence, 0)
	middle(1)
	r.ask(bth.WriteLast, 2, data(2, 20), nil)
	n := r.ack(2, 1)
	r.ask(bth.SendOnly, 3, nil, nil)
	res := r.play(t, Options{})
	if tells(t, res, expect{Unknown, n, "", "behind"}); res.Conversations[0].Same != 1 {
		t.Error("the NAK was not compared")
	}
}

// What comes first and is a duplicate, as its receiver says, does not tell what that expects.
func TestFirstIsOld(t *testing.T) {
	r := new(film)
	old := trace.Word{Dir: trace.Rx, Fate: trace.Dropped, Fault: wire.Duplicate}
	r.says(old).send(1)
	n := r.says(trace.Word{Dir: trace.Tx}).ack(9, 5)
	for i := range bth.PSN(2) {
		r.says(trace.Word{Dir: trace.Rx}).send(10 + i)
		r.says(trace.Word{Dir: trace.Tx}).ack(10+i, uint32(i)+6)
	}
	r.says(old).send(10)
	r.says(trace.Word{Dir: trace.Tx}).ack(11, 7)
	res := r.play(t, Options{})
	if tells(t, res, expect{Unknown, n, "", "before the capture"}); res.Conversations[0].Same != 3 {
		t.Errorf("%+v", res.Conversations[0])
	}
}

// A NAK to what is left out, of a message that began before the capture.
func TestNakToWhatIsLeftOut(t *testing.T) {
	r := new(tape)
	r.ask(bth.SendLast, 1, data(1, 20), nil)
	n := r.nak(1, bth.RNR(12), 0)
	r.ask(bth.SendOnly, 2, nil, nil)
	r.ack(2, 2)
	tells(t, r.play(t, Options{}), expect{Unknown, n, "", "before the capture"})
}

// film is a tape on which a softnic says of packets what its rules did.
type film struct{ tape }

// says has the next packet have a word.
func (r *film) says(w trace.Word) *film {
	r.word = w
	return r
}

// atResponder has all packets be captured there, of which nothing is said.
func (r *film) atResponder() *film {
	for i, s := range r.spec {
		if r.l[i].Dir == trace.Unknown {
			r.l[i].Dir = trace.Rx
			if s.BTH.Opcode.Info().Has(bth.Response) {
				r.l[i].Dir = trace.Tx
			}
		}
	}
	return r
}

func (r *film) send(psn bth.PSN) { r.ask(bth.SendOnly, psn, nil, nil) }

// write8 asks for an ATOMIC WRITE, and wrote answers it.
func (r *film) write8(psn bth.PSN) { r.ask(bth.AtomicWrite, psn, data(1, 8), reth(base, 8)) }

func (r *film) wrote(psn bth.PSN, msn uint32) {
	r.reply(bth.ReadResponseOnly, psn, bth.AckUnlimited, msn, nil)
}
