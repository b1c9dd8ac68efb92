//go:build unix

package device_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
)

// BenchmarkIdle measures the processor time of 10,000 queue pairs on two UDP links, connected pairwise, which have moved a message each and
// have nothing to do: microseconds a second.
func BenchmarkIdle(b *testing.B) {
	const qps = 10_000
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ea, eb := udpPair(b)
	var pds [2]*device.PD
	var cqs [2]*device.CQ
	for i, ep := range []link.Endpoint{ea, eb} {
		dev, err := device.Open(ep, device.Options{})
		must(err)
		b.Cleanup(func() { dev.Close() })
		ctx := dev.NewContext()
		pds[i], err = ctx.AllocPD()
		must(err)
		cqs[i], err = ctx.CreateCQ(device.CQInit{Entries: 64})
		must(err)
	}
	var wc [64]device.WC
	for range qps / 2 {
		var q [2]*device.QP
		for i := range q {
			var err error
			q[i], err = pds[i].CreateQP(device.QPInit{Type: device.RC, SendCQ: cqs[i], RecvCQ: cqs[i], Cap: device.Cap{SendWR: 1, RecvWR: 1}})
			must(err)
		}
		for i := range q {
			must(q[i].Connect(uint32(i), q[1-i].Address(1, uint32(1-i)), device.ConnectOptions{}))
			must(q[i].PostRecv(&device.RecvWR{}))
		}
		for i := range q {
			must(q[i].PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Signaled}))
		}
		for i := range q {
			for got := 0; got < 2; {
				n, err := cqs[i].Wait(b.Context(), wc[:])
				must(err)
				got += n
			}
		}
	}
	used := func() time.Duration {
		var r syscall.Rusage
		must(syscall.Getrusage(syscall.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	time.Sleep(100 * time.Millisecond) // what the traffic has begun ends
	before, began := used(), time.Now()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(float64((used()-before).Microseconds())/time.Since(began).Seconds(), "cpu-µs/s")
	b.ReportMetric(qps, "QPs")
}
