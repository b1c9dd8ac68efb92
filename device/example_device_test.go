package device_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/stats"
)

// A device is a NIC on a link. What it can do, its port and its counters can be asked for at any time.
func ExampleDevice() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	port := must(a.dev.QueryPort(1))
	fmt.Println(a.dev.Name(), port.State, port.ActiveMTU)
	fmt.Println(must(a.dev.QueryGID(1, 1)))

	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	check(y.PostRecv(&device.RecvWR{}))
	check(x.PostSend(&device.SendWR{Op: device.OpSend}))
	fmt.Println(a.wait().Status, a.dev.Counters().Load(stats.SentPkts), b.dev.Counters().Load(stats.RDMARecvs))
	// Output:
	// rxe_softnic0 PORT_ACTIVE 4096
	// ::ffff:10.0.0.1
	// IBV_WC_SUCCESS 1 1
}

// The port of a device takes rules that lose, double or delay packets, and captures, while it runs. Package link/capture writes
// files for Wireshark too.
func ExampleDevice_Port() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	const qkey = 0x1234
	x, y := a.qp(device.UD), b.qp(device.UD)
	check(x.Activate(qkey, 0))
	check(y.Activate(qkey, 0))
	to := y.Address(1, 0)
	ah := must(a.pd.CreateAH(device.AHAttr{DGID: to.GID, SGIDIndex: 1}))
	buf := must(b.pd.RegMR(make([]byte, 2*device.GRHLen), device.LocalWrite))
	for i := range 2 {
		check(y.PostRecv(&device.RecvWR{SGE: []device.SGE{buf.SGE(i*device.GRHLen, device.GRHLen)}}))
	}

	var lines bytes.Buffer
	packets := must(capture.NewLog(&lines, b.dev.Port().Info()))
	b.dev.Port().SetCapture(packets)
	must(a.dev.Port().Impair().Add("tx opcode=UD_SEND_ONLY duplicate"))
	check(x.PostSend(&device.SendWR{Op: device.OpSend, AH: ah, RemoteQPN: to.QPN, RemoteQKey: qkey}))
	fmt.Println(b.wait().Status, b.wait().Status)
	check(b.dev.Close()) // ends what is still being captured
	check(packets.Close())
	for l := range strings.Lines(lines.String()) {
		var p struct{ Dir, Op, Cause string }
		check(json.Unmarshal([]byte(l), &p))
		if p.Dir != "" {
			fmt.Println(p.Dir, p.Op, p.Cause)
		}
	}
	// Output:
	// IBV_WC_SUCCESS IBV_WC_SUCCESS
	// rx UD_SEND_ONLY ok
	// rx UD_SEND_ONLY ok
}

// A context is what one program has of a device. Here two programs on one device talk to each other; the end of one frees
// all that it made, and the other goes on.
func ExampleContext() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	second := newApp(a.dev)
	x, y := a.qp(device.RC), second.qp(device.RC)
	join(x, y)
	check(y.PostRecv(&device.RecvWR{}))
	check(x.PostSend(&device.SendWR{Op: device.OpSend}))
	fmt.Println(second.wait().Status)

	fmt.Println(second.ctx.Objects().QP)
	check(second.ctx.Close())
	fmt.Println(second.ctx.Objects().QP, a.ctx.Objects().QP)
	_, err := second.ctx.AllocPD()
	fmt.Println(err)
	// Output:
	// IBV_WC_SUCCESS
	// 1
	// 0 1
	// alloc_pd: the context is closed
}

// A completion queue calls its Handler for the next completion after Arm. Who arms polls afterwards: what came
// before makes no event.
func ExampleCQ() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	done := make(chan uint64)
	b.cq = must(b.ctx.CreateCQ(device.CQInit{Entries: 16, Handler: func(cq *device.CQ) {
		var wc [16]device.WC
		for again := true; again; {
			for _, c := range wc[:cq.Poll(wc[:])] {
				done <- c.ID
			}
			again = cq.Arm(false)
		}
	}}))
	b.cq.Arm(false)
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	for id := range uint64(3) {
		check(y.PostRecv(&device.RecvWR{ID: id}))
		check(x.PostSend(&device.SendWR{Op: device.OpSend}))
	}
	fmt.Println(<-done, <-done, <-done)
	// Output: 0 1 2
}

// SQD stops the send queue between two requests. What is posted meanwhile waits, and attributes of the connection can
// be changed.
func ExampleQP_Modify_drain() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	check(x.Modify(&device.QPAttr{State: device.StateSQD, SQDNotify: true}, device.AttrState|device.AttrSQDNotify))
	fmt.Println(must(a.ctx.AsyncEvent(context.Background())).Type)

	check(y.PostRecv(&device.RecvWR{}))
	check(x.PostSend(&device.SendWR{Op: device.OpSend}))
	check(x.Modify(&device.QPAttr{Timeout: 18, RetryCnt: 3}, device.AttrTimeout|device.AttrRetryCnt))
	fmt.Println(x.State(), a.dev.Counters().Load(stats.SentPkts))

	check(x.Modify(&device.QPAttr{State: device.StateRTS}, device.AttrState))
	fmt.Println(a.wait().Status, a.dev.Counters().Load(stats.SentPkts))
	// Output:
	// IBV_EVENT_SQ_DRAINED
	// SQD 0
	// IBV_WC_SUCCESS 1
}

// A stepped device has no goroutine: the program says what time it is, and when to go on. Here the first packet is
// lost, and comes again when the local ACK timeout of 67 ms has passed.
func ExampleDevice_Step() {
	clk := clock.NewManual(time.Unix(1000, 0))
	x, y := pipe.New(pipe.Config{Clock: clk, Addrs: prefix("10.0.0.1/24")}, pipe.Config{Clock: clk, Addrs: prefix("10.0.0.2/24")})
	options := device.Options{Stepped: true, Clock: clk}
	b := newApp(must(device.Open(y, options)))
	options.Link = link.PortOptions{Impair: must(impair.New("tx opcode=SEND_ONLY count=1 drop"))}
	a := newApp(must(device.Open(x, options)))
	defer a.close()
	defer b.close()
	qx, qy := a.qp(device.RC), b.qp(device.RC)
	join(qx, qy)
	check(qy.PostRecv(&device.RecvWR{}))
	check(qx.PostSend(&device.SendWR{Op: device.OpSend}))

	begin := clk.Now()
	var wc [1]device.WC
	for a.cq.Poll(wc[:]) == 0 {
		now, next := clk.Now(), time.Time{}
		for _, step := range []func(time.Time) (time.Time, bool){a.dev.Step, b.dev.Step} {
			if at, ok := step(now); ok && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		for _, end := range []*pipe.End{x, y} { // a packet on its way comes before any timer
			if at, ok := end.Next(); ok && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		if next.After(now) {
			clk.Set(next)
		}
	}
	fmt.Println(wc[0].Status, "after", clk.Now().Sub(begin).Round(time.Millisecond))
	// Output: IBV_WC_SUCCESS after 67ms
}

// A raw packet queue pair sends and receives whole Ethernet frames beside RoCE.
func ExampleSteering() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	const etherType = 0x88B5 // for experiments (IEEE 802, clause 9.2.3)
	x := a.qp(device.RawPacket)
	y := must(b.pd.CreateQP(device.QPInit{Type: device.RawPacket, SendCQ: b.cq, RecvCQ: b.cq, Cap: device.Cap{RecvWR: 16},
		Steer: device.Steering{EtherType: etherType}}))
	check(x.Activate(0, 0))
	check(y.Activate(0, 0))
	buf := must(b.pd.RegMR(make([]byte, 1514), device.LocalWrite))
	check(y.PostRecv(&device.RecvWR{SGE: []device.SGE{buf.SGE(0, 1514)}}))

	frame := append([]byte(b.dev.Port().Info().MAC), a.dev.Port().Info().MAC...)
	frame = append(frame, etherType>>8, etherType&0xFF)
	frame = append(frame, "hello, Ethernet"...)
	check(x.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: frame}))
	wc := b.wait()
	fmt.Printf("%s\n", buf.Bytes()[14:wc.ByteLen])
	// Output: hello, Ethernet
}
