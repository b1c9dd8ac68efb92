package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/wire/bth"
)

// refusal is a request that the other NIC refuses, each on a connection of its own, which ends
// with it.
type refusal struct {
	title  string
	access device.Access // of the queue pair that refuses
	wr     func(from *buffer, to *buffer) device.SendWR
	nak    bth.Syndrome
	status device.Status // of the requester
	event  device.EventType
}

func refusals() []refusal {
	const all = device.RemoteRead | device.RemoteWrite | device.RemoteAtomic
	write := func(from, to *buffer) device.SendWR {
		return device.SendWR{Op: device.OpWrite, SGE: []device.SGE{from.mr.SGE(0, from.mr.Len())}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}
	}
	return []refusal{
		{"RC WRITE with a key that does not exist", all, func(from, to *buffer) device.SendWR {
			wr := write(from, to)
			wr.RKey ^= 0x80000000
			return wr
		}, bth.NakRemoteAccess, device.StatusRemoteAccess, device.EventQPAccessErr},
		{"RC WRITE beyond the end of the memory", all, func(from, to *buffer) device.SendWR {
			wr := write(from, to)
			wr.RemoteAddr++
			return wr
		}, bth.NakRemoteAccess, device.StatusRemoteAccess, device.EventQPAccessErr},
		{"RC WRITE to a queue pair that allows READs only", device.RemoteRead, write,
			bth.NakInvalidRequest, device.StatusRemoteInvalidReq, device.EventQPReqErr},
	}
}

// refusals has requests refused, and checks what both programs hear of it.
func (d *demo) refusals(ctx context.Context) error {
	d.printf("\nLast, requests that are refused: the NAK on the wire, what the requester's completion says, and the event at the other\nNIC. Not a byte is written.\n\n")
	for _, r := range refusals() {
		if err := d.refuse(ctx, &r); err != nil {
			return fmt.Errorf("%s: %w", r.title, err)
		}
		d.printf("  %-48s  %-22v  %-25v  %v\n", r.title, r.nak, r.status, r.event)
		d.report.Refusals = append(d.report.Refusals, Refusal{r.title, r.nak.String(), r.status.String(), r.event.String()})
		if again := d.retried(); len(again) > 0 {
			d.list(again)
			d.report.Retransmissions = append(d.report.Retransmissions, again...)
		}
	}
	return nil
}

func (d *demo) refuse(ctx context.Context, r *refusal) error {
	a, b := d.a, d.b
	p := d.next(100)
	from, err := a.register(100, &p)
	if err != nil {
		return err
	}
	to, err := b.register(100, nil)
	if err != nil {
		return err
	}
	events := make(chan device.AsyncEvent, 4)
	in := device.QPInit{Type: device.RC, Cap: device.Cap{SendWR: 1, RecvWR: 1}, SigAll: true}
	in.SendCQ, in.RecvCQ = a.cq, a.cq
	qa, err := a.pd.CreateQP(in)
	if err != nil {
		return err
	}
	in.SendCQ, in.RecvCQ = b.cq, b.cq
	in.Handler = func(e device.AsyncEvent) { events <- e }
	qb, err := b.pd.CreateQP(in)
	if err != nil {
		return err
	}
	err = errors.Join(
		qa.Connect(a.psn, device.Remote{GID: b.gid, QPN: qb.Num(), PSN: b.psn}, device.ConnectOptions{SGIDIndex: 1, PathMTU: pathMTU, Timeout: ackTimeout}),
		qb.Connect(b.psn, device.Remote{GID: a.gid, QPN: qa.Num(), PSN: a.psn}, device.ConnectOptions{SGIDIndex: 1, PathMTU: pathMTU, Access: r.access}))
	if err != nil {
		return err
	}
	a.sink.watchNAK(r.nak)
	wr := r.wr(from, to)
	if err := qa.PostSend(&wr); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var wc [1]device.WC
	if _, err := a.cq.Wait(wait, wc[:]); err != nil {
		return err
	}
	if wc[0].Status != r.status {
		return fmt.Errorf("the completion says %v, expected %v", wc[0].Status, r.status)
	}
	select {
	case e := <-events:
		if e.Type != r.event {
			return fmt.Errorf("the event is %v, expected %v", e.Type, r.event)
		}
	case <-wait.Done():
		return fmt.Errorf("no event came within %v", patience)
	}
	// A port records a packet just after the queue pair has had it.
	for !a.sink.sawNAK() {
		if wait.Err() != nil {
			return fmt.Errorf("no %v came in", r.nak)
		}
		time.Sleep(time.Millisecond)
	}
	if s := qb.State(); s != device.StateErr {
		return fmt.Errorf("the queue pair that refused is in %v, expected ERR", s)
	}
	if err := to.untouched(); err != nil {
		return err
	}
	return errors.Join(qa.Destroy(), qb.Destroy(), from.release(), to.release())
}
