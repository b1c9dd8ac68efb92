package device_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
)

// steps advances virtual time and both devices until done or until nothing is
// left that could happen.
func steps(t *testing.T, at *time.Time, done func() bool, devs ...*device.Device) {
	t.Helper()
	for range 100_000 {
		var next time.Time
		for _, d := range devs {
			if n, ok := d.Step(*at); ok && (next.IsZero() || n.Before(next)) {
				next = n
			}
		}
		if done() {
			return
		}
		if next.After(*at) {
			*at = next
		} else if next.IsZero() {
			*at = at.Add(time.Microsecond)
		}
	}
	t.Fatal("nothing happens any more")
}

// tape records what a device sends.
type tape struct{ bytes.Buffer }

// Capture implements link.Sink.
func (p *tape) Capture(r *link.Record) {
	if r.Dir == link.Tx && r.Fault == wire.OK {
		p.Write(r.AppendTo(nil))
	}
}

// TestSteppedRunsRepeat runs a lossy exchange twice without any goroutine, from one
// seed, and compares every byte that was sent.
func TestSteppedRunsRepeat(t *testing.T) {
	run := func() []byte {
		start := time.Unix(1000, 0)
		at := start
		rec := &tape{}
		opt := func(seed byte) device.Options {
			return device.Options{Stepped: true, Clock: clock.NewManual(start), Rand: rand.NewChaCha8([32]byte{seed}),
				Link: link.PortOptions{Impair: rules(t, "tx drop=5% seed=3"), Capture: rec}}
		}
		a, b := twoHosts(t, 1500, opt(1), opt(2))
		qa, qb := a.qp(device.RC, 8), b.qp(device.RC, 8)
		connect(t, qa, qb, 1, device.ConnectOptions{})
		ma, mb := a.mr(100_000), b.mr(100_000)
		fill(rand.New(rand.NewPCG(1, 1)), ma.Bytes())
		wc := make([]device.WC, 1)
		for _, op := range []device.WROp{device.OpWrite, device.OpRead, device.OpWriteImm} {
			err := qa.PostSend(&device.SendWR{Op: op, Flags: device.Signaled, SGE: []device.SGE{ma.SGE(0, 100_000)}, RemoteAddr: mb.Addr(), RKey: mb.RKey()})
			if err != nil {
				t.Fatal(err)
			}
			late := at.Add(time.Second)
			steps(t, &at, func() bool {
				if op == device.OpWriteImm && at.After(late) && !late.IsZero() {
					late = time.Time{} // the receive comes late: RNR first
					if err := qb.PostRecv(&device.RecvWR{}); err != nil {
						t.Fatal(err)
					}
				}
				return a.cq.Poll(wc) == 1
			}, a.dev, b.dev)
			if wc[0].Status != device.StatusSuccess {
				t.Fatal(op, wc[0].Status)
			}
		}
		if !bytes.Equal(ma.Bytes(), mb.Bytes()) {
			t.Fatal("data differs")
		}
		if n := a.dev.Counters().Load(stats.RcvdRNRErr); n == 0 {
			t.Error("no RNR NAK was seen")
		}
		return rec.Bytes()
	}
	one, two := run(), run()
	if len(one) == 0 || len(one) != len(two) {
		t.Fatalf("%d and %d bytes sent", len(one), len(two))
	}
	// Registered addresses are those of Go memory and differ between runs, and
	// with them the ICRC; everything else repeats. Compare what has no address.
	if h1, h2 := headers(one), headers(two); !bytes.Equal(h1, h2) {
		t.Error("two runs from one seed sent different packets")
	}
}

// headers keeps of each packet what does not depend on addresses of memory: IP, UDP
// and BTH.
func headers(b []byte) []byte {
	var out []byte
	for len(b) >= 40 {
		n := int(b[2])<<8 | int(b[3])
		out = append(out, b[:40]...)
		b = b[n:]
	}
	return out
}
