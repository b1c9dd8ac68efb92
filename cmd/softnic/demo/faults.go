package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
)

// fault is something that goes wrong on purpose with one message.
type fault struct {
	title string
	story string // what the NICs do about it
	op    operation
	size  int
	a, b  []string   // impairment rules of the NICs
	late  bool       // the receive is posted only after b has refused the message
	cause wire.Cause // of at least one retransmission
	cnp   bool       // nothing is sent again: b tells a that a packet was marked
	any   bool       // by chance: retransmissions of any cause, if a packet was hit that needs one
}

const short = 8 * pathMTU // eight packets

func faults(seed uint64) []fault {
	drop := func(n uint64) []string { return []string{fmt.Sprintf("tx drop=2%% seed=%d", n)} }
	return []fault{
		{
			title: "RC SEND, packet 4 of 8 lost", story: "b sees the gap and answers NAK (PSN sequence error); a goes back to packet 4",
			op: opSend, size: short, a: []string{"tx opcode=SEND_MIDDLE psn=+3 round=1 drop"}, cause: wire.RetrySequence,
		},
		{
			title: "RC WRITE, 3 of 8 lost, then 6", story: "the same, and of what is sent again a packet is lost once more",
			op: opWrite, size: short, cause: wire.RetrySequence,
			a: []string{"tx opcode=WRITE_MIDDLE psn=+2 round=1 drop", "tx opcode=WRITE_MIDDLE psn=+5 round=2 drop"},
		},
		{
			title: "RC WRITE, last packet lost", story: "no gap that b could see; a hears nothing until its ACK timer runs out",
			op: opWrite, size: short, a: []string{"tx opcode=WRITE_LAST round=1 drop"}, cause: wire.RetryTimeout,
		},
		{
			title: "RC SEND, acknowledgement lost", story: "a cannot know that it arrived and sends it again; b drops the duplicates and acknowledges once more",
			op: opSend, size: short, b: []string{"tx opcode=ACKNOWLEDGE count=1 drop"}, cause: wire.RetryTimeout,
		},
		{
			title: "RC READ, response 5 of 8 lost", story: "a sees the gap (implied NAK) and asks for the rest",
			op: opRead, size: short, b: []string{"tx opcode=READ_RESPONSE_MIDDLE psn=+4 round=1 drop"}, cause: wire.RetryImplied,
		},
		{
			title: "RC READ, request lost", story: "a asks again when its ACK timer runs out",
			op: opRead, size: short, a: []string{"tx opcode=READ_REQUEST count=1 drop"}, cause: wire.RetryTimeout,
		},
		{
			title: "RC SEND, receive posted late", story: "b has nowhere to put it and answers RNR NAK (receiver not ready); a waits as long as b says",
			op: opSend, size: short, late: true, cause: wire.RetryRNR,
		},
		{
			title: "RC SEND, 3 overtaken, 6 doubled", story: "what is out of order b takes for a loss, and of what comes twice it takes one",
			op: opSend, size: short, a: []string{"tx opcode=SEND_MIDDLE psn=+2 round=1 reorder", "tx opcode=SEND_MIDDLE psn=+5 round=1 duplicate"}, cause: wire.RetrySequence,
		},
		{
			title: "RC SEND, a byte of packet 4 changed", story: "its ICRC is wrong: b drops it without a word, and answers NAK to the packet behind it",
			op: opSend, size: short, a: []string{"tx opcode=SEND_MIDDLE psn=+3 round=1 corrupt"}, cause: wire.RetrySequence,
		},
		{
			title: "RC SEND, answered by a rule", story: "b has a receive; a rule loses the packet and forges an RNR NAK, to see what a makes of it",
			op: opSend, size: 1000, b: []string{"rx opcode=SEND_ONLY count=1 answer=rnr:12"}, cause: wire.RetryRNR,
		},
		{
			title: "RC WRITE, packet 4 marked (ECN)", story: "a router marks it because its queue grows: b takes it and tells a, with a CNP",
			op: opWrite, size: short, a: []string{"tx opcode=WRITE_MIDDLE psn=+3 round=1 ecn=ce"}, cnp: true,
		},
		{
			title: "RC WRITE, 2% lost both ways", story: "by chance, acknowledgements too",
			op: opWrite, size: 256 << 10, a: drop(seed), b: drop(seed + 1), any: true,
		},
		{
			title: "RC READ, 2% lost both ways", story: "by chance, requests and responses",
			op: opRead, size: 256 << 10, a: drop(seed + 2), b: drop(seed + 3), any: true,
		},
	}
}

// play moves one message with the fault and returns what was sent again because of it.
func (f *fault) play(ctx context.Context, a, b *nic, p pattern) ([]Retransmission, error) {
	defer a.rules.Clear()
	defer b.rules.Clear()
	for _, r := range []struct {
		n     *nic
		rules []string
	}{{a, f.a}, {b, f.b}} {
		for _, text := range r.rules {
			if _, err := r.n.rules.Add(text); err != nil {
				return nil, err
			}
		}
	}
	told := a.dev.Counters().Load(stats.RpCnpHandled)
	var late func() error
	if f.late {
		late = func() error { return a.awaitRNR(ctx) }
	}
	if err := f.op.run(ctx, a, b, p, late); err != nil {
		return nil, fmt.Errorf("%s: %w", f.title, err)
	}
	l := append(a.retried(), b.retried()...)
	if f.cnp {
		if a.dev.Counters().Load(stats.RpCnpHandled) == told || len(l) > 0 {
			return l, fmt.Errorf("%s: no CNP came, or %d packets were sent again", f.title, len(l))
		}
		return l, nil
	}
	if err := f.check(a, b, l); err != nil {
		return l, fmt.Errorf("%s: %w", f.title, err)
	}
	return l, nil
}

// check checks that the fault had the effect that it is there for.
func (f *fault) check(a, b *nic, l []Retransmission) error {
	needed := 0 // packets that were hit and have to be sent again
	for _, n := range []*nic{a, b} {
		for _, r := range n.rules.List() {
			if r.Hits == 0 && !f.any {
				return fmt.Errorf("the rule %q hit nothing", r.Rule)
			}
			if n == f.op.from(a, b) { // data; an ACK that is lost may be made up for by the next
				needed += int(r.Hits)
			}
		}
	}
	if f.any {
		if needed > 0 && len(l) == 0 {
			return fmt.Errorf("%d packets were lost and nothing was sent again", needed)
		}
		return nil
	}
	for _, r := range l {
		if r.Cause == f.cause.String() {
			return nil
		}
	}
	return fmt.Errorf("nothing was sent again for %s", f.cause)
}

// awaitRNR waits until the NIC has been told that the receiver is not ready.
func (n *nic) awaitRNR(ctx context.Context) error {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-n.sink.rnr:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return fmt.Errorf("no RNR NAK came within %v", patience)
	}
}

// lostDatagram shows that nobody sends a datagram again: of three the second is lost.
func lostDatagram(ctx context.Context, a, b *nic, size int, next func(n int) pattern) (got int, err error) {
	if _, err := a.rules.Add("tx opcode=UD_SEND_ONLY_IMM psn=+1 drop"); err != nil {
		return 0, err
	}
	defer a.rules.Clear()
	var to []*buffer // in the order of the receives
	for range 3 {
		m, err := b.register(device.GRHLen+size, nil)
		if err != nil {
			return 0, err
		}
		if err := opUDImm.postRecv(b, m); err != nil {
			return 0, err
		}
		to = append(to, m)
	}
	for i := range 3 {
		p := next(size)
		from, err := a.register(size, &p)
		if err != nil {
			return got, err
		}
		if err := a.ud.PostSend(opUDImm.request(a, b, p, from, nil)); err != nil {
			return got, err
		}
		if _, err := a.await(ctx, 1); err != nil {
			return got, err
		}
		if i == 1 {
			continue // lost: the next one takes its receive
		}
		wcs, err := b.await(ctx, 1)
		if err != nil {
			return got, err
		}
		if err := errors.Join(opUDImm.checkRecv(&wcs[0], a, p), to[got].release(), to[got].verify(device.GRHLen, p)); err != nil {
			return got, err
		}
		got++
	}
	return got, nil
}
