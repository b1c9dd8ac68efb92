package device_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
)

// app is what a program has of a device.
type app struct {
	dev *device.Device
	ctx *device.Context
	pd  *device.PD
	cq  *device.CQ
}

// newApps opens two devices, 10.0.0.1 and 10.0.0.2, at the ends of a cable in memory, and what most programs need on
// each. Packages link/udp and tap have links to other machines.
func newApps() (a, b *app) {
	x, y := pipe.New(pipe.Config{Ethernet: true, Addrs: prefix("10.0.0.1/24")}, pipe.Config{Ethernet: true, Addrs: prefix("10.0.0.2/24")})
	return newApp(must(device.Open(x, device.Options{}))), newApp(must(device.Open(y, device.Options{})))
}

func prefix(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }

func newApp(dev *device.Device) *app {
	ctx := dev.NewContext()
	return &app{dev, ctx, must(ctx.AllocPD()), must(ctx.CreateCQ(device.CQInit{Entries: 64}))}
}

// close ends the device, and all that was made on it.
func (p *app) close() { check(p.dev.Close()) }

// wait returns the next completion.
func (p *app) wait() device.WC {
	var wc [1]device.WC
	must(p.cq.Wait(context.Background(), wc[:]))
	return wc[0]
}

// qp makes a queue pair whose requests all make completions.
func (p *app) qp(t device.QPType) *device.QP {
	return must(p.pd.CreateQP(device.QPInit{Type: t, SendCQ: p.cq, RecvCQ: p.cq, SigAll: true,
		Cap: device.Cap{SendWR: 16, RecvWR: 16, Inline: 64}}))
}

// join connects two queue pairs. What Address says travels to the other side by whatever means: here, a variable. A program draws
// the first PSN with Device.RandomPSN.
func join(x, y *device.QP) {
	rx, ry := x.Address(1, 100), y.Address(1, 200) // GID index 1: the first IPv4 address
	check(x.Connect(rx.PSN, ry, device.ConnectOptions{}))
	check(y.Connect(ry.PSN, rx, device.ConnectOptions{}))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// What belongs to a protection domain keeps it alive, and an error says why.
func ExamplePD() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	mr := must(a.pd.RegMR(make([]byte, 4096), device.LocalWrite|device.RemoteRead))

	err := a.pd.Dealloc()
	fmt.Println(err, device.ErrnoOf(err) == device.EBUSY)
	check(mr.Dereg())
	check(a.pd.Dealloc())
	// Output: dealloc_pd: 1 objects still belong to it true
}

// A peer that knows the R_Key reads and writes memory without a request of the program that owns it.
func ExampleMR() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	local := must(a.pd.RegMR([]byte("hello, memory"), device.LocalWrite))
	remote := must(b.pd.RegMR(make([]byte, 64), device.LocalWrite|device.RemoteWrite))

	check(x.PostSend(&device.SendWR{Op: device.OpWrite, SGE: []device.SGE{local.SGE(0, 13)}, RemoteAddr: remote.Addr() + 10, RKey: remote.RKey()}))
	fmt.Println(a.wait().Status)
	check(remote.Dereg()) // after it no peer can touch the bytes
	fmt.Printf("%s\n", remote.Bytes()[10:23])
	// Output:
	// IBV_WC_SUCCESS
	// hello, memory
}

// The shortest way to a message: two queue pairs that know each other, a receive, a SEND.
func ExampleQP() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	buf := must(b.pd.RegMR(make([]byte, 64), device.LocalWrite))

	check(y.PostRecv(&device.RecvWR{ID: 7, SGE: []device.SGE{buf.SGE(0, 64)}}))
	check(x.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("hello")}))
	wc := b.wait()
	fmt.Printf("receive %d: %v, %q from QPN %v\n", wc.ID, wc.Op, buf.Bytes()[:wc.ByteLen], wc.SrcQP == x.Num())
	fmt.Println(a.wait().Op, x.State())
	// Output:
	// receive 7: IBV_WC_RECV, "hello" from QPN true
	// IBV_WC_SEND RTS
}

// Connect and Activate are modifies in a row. A modify that is refused has changed nothing.
func ExampleQP_Modify() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x := a.qp(device.RC)
	init := device.AttrState | device.AttrPKeyIndex | device.AttrPort | device.AttrAccess
	check(x.Modify(&device.QPAttr{State: device.StateInit, Port: 1, Access: device.RemoteRead}, init))

	err := x.Modify(&device.QPAttr{State: device.StateRTS}, device.AttrState)
	fmt.Println(device.ErrnoOf(err) == device.EINVAL, x.State())
	attr, _ := x.Query()
	fmt.Println(attr.Port, attr.Access == device.RemoteRead)
	// Output:
	// true INIT
	// 1 true
}

// Wait blocks until there is a completion; Poll does not.
func ExampleCQ_Wait() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	var wc [16]device.WC
	fmt.Println(b.cq.Poll(wc[:]))

	for i := range uint64(3) {
		check(y.PostRecv(&device.RecvWR{ID: i}))
		check(x.PostSend(&device.SendWR{Op: device.OpSendImm, Imm: 0x01020304}))
	}
	for left := 3; left > 0; {
		n := must(b.cq.Wait(context.Background(), wc[:]))
		for _, c := range wc[:n] {
			fmt.Printf("%d %v %08x\n", c.ID, c.Op, c.Imm)
		}
		left -= n
	}
	// Output:
	// 0
	// 0 IBV_WC_RECV 01020304
	// 1 IBV_WC_RECV 01020304
	// 2 IBV_WC_RECV 01020304
}

// One goroutine serves many completion queues by their channel: arm, poll what came before, and wait for an event.
func ExampleCompChannel() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	ch := must(b.ctx.CreateCompChannel())
	b.cq = must(b.ctx.CreateCQ(device.CQInit{Entries: 16, Channel: ch}))
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	check(y.PostRecv(&device.RecvWR{ID: 1}))

	if b.cq.Arm(false) {
		fmt.Println("there are completions: poll again before you wait")
	}
	check(x.PostSend(&device.SendWR{Op: device.OpSend}))
	cq := must(ch.Get(context.Background()))
	var wc [1]device.WC
	fmt.Println(cq == b.cq, cq.Poll(wc[:]), wc[0].ID)
	// Output: true 1 1
}

// Two connections take their receives from one queue, which says when it runs low.
func ExampleSRQ() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	srq := must(b.pd.CreateSRQ(device.SRQInit{MaxWR: 16, Limit: 2}))
	buf := must(b.pd.RegMR(make([]byte, 64), device.LocalWrite))
	for i := range 3 {
		check(srq.PostRecv(&device.RecvWR{ID: uint64(i), SGE: []device.SGE{buf.SGE(16*i, 16)}}))
	}
	for i := range 2 {
		y := must(b.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq}))
		x := a.qp(device.RC)
		join(x, y)
		check(x.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: fmt.Appendf(nil, "client %d", i)}))
		wc := b.wait()
		fmt.Printf("%q for its own queue pair: %v\n", buf.Bytes()[16*wc.ID:][:wc.ByteLen], wc.QPN == y.Num())
	}
	e := must(b.ctx.AsyncEvent(context.Background()))
	fmt.Println(e.Type, e.SRQ == srq)
	// Output:
	// "client 0" for its own queue pair: true
	// "client 1" for its own queue pair: true
	// IBV_EVENT_SRQ_LIMIT_REACHED true
}

// XRC: one connection between two machines serves all programs on the far one. A request names the shared receive queue
// of the program that it is for.
func ExampleXRCD() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	domain := must(b.ctx.AllocXRCD())
	target := must(domain.CreateXRCTarget(nil))
	initiator := must(a.pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: a.cq, Cap: device.Cap{SendWR: 16, Inline: 64}}))
	join(initiator, target)

	for i, p := range []*app{b, newApp(b.dev)} { // two programs on one device
		x := must(p.ctx.OpenXRCD(domain))
		srq := must(p.pd.CreateSRQ(device.SRQInit{MaxWR: 16, XRCD: x, CQ: p.cq}))
		buf := must(p.pd.RegMR(make([]byte, 64), device.LocalWrite))
		check(srq.PostRecv(&device.RecvWR{SGE: []device.SGE{buf.SGE(0, 64)}}))
		check(initiator.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: fmt.Appendf(nil, "for program %d", i), SRQN: srq.Num()}))
		wc := p.wait()
		fmt.Printf("%s, by the target: %v\n", buf.Bytes()[:wc.ByteLen], wc.QPN == target.Num())
	}
	// Output:
	// for program 0, by the target: true
	// for program 1, by the target: true
}

// A window gives a peer a part of a region, for a while, at the cost of a work request instead of a registration.
func ExampleMW() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	region := must(b.pd.RegMR([]byte("secret public secret"), device.LocalWrite|device.MWBind))
	w := must(b.pd.AllocMW(device.MW2B))
	bind := device.SendWR{Op: device.OpBindMW}
	bind.Bind.Window, bind.Bind.NewKey = w.RKey(), device.IncRKey(w.RKey())
	bind.Bind.MRKey, bind.Bind.Addr, bind.Bind.Length, bind.Bind.Access = region.LKey(), region.Addr()+7, 6, device.RemoteRead
	check(y.PostSend(&bind))
	fmt.Println(b.wait().Op)

	buf := must(a.pd.RegMR(make([]byte, 6), device.LocalWrite))
	read := device.SendWR{Op: device.OpRead, SGE: []device.SGE{buf.SGE(0, 6)}, RemoteAddr: region.Addr() + 7, RKey: w.RKey()}
	check(x.PostSend(&read))
	fmt.Printf("%v %s\n", a.wait().Status, buf.Bytes())

	check(y.PostSend(&device.SendWR{Op: device.OpLocalInv, Imm: w.RKey()}))
	fmt.Println(b.wait().Op)
	check(x.PostSend(&read))
	fmt.Println(a.wait().Status)
	// Output:
	// IBV_WC_BIND_MW
	// IBV_WC_SUCCESS public
	// IBV_WC_LOCAL_INV
	// IBV_WC_REM_ACCESS_ERR
}

// A fast-registered region gets its memory by a work request, and loses it with the message that says that the peer
// is done with it.
func ExampleFastMR() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x, y := a.qp(device.RC), b.qp(device.RC)
	join(x, y)
	mem := []byte("a block of a storage client")
	f := must(a.pd.AllocMR(1 << 20))
	reg := device.SendWR{Op: device.OpRegMR}
	reg.Reg.LKey, reg.Reg.NewKey = f.LKey(), device.IncRKey(f.LKey())
	reg.Reg.Memory, reg.Reg.Addr, reg.Reg.Length = device.NewMemory(mem), device.AddrOf(mem), uint64(len(mem))
	reg.Reg.Access = device.RemoteRead
	check(x.PostSend(&reg))
	fmt.Println(a.wait().Op)

	// The storage server reads the block, and says so with the message that takes the key away.
	buf := must(b.pd.RegMR(make([]byte, len(mem)), device.LocalWrite))
	check(x.PostRecv(&device.RecvWR{}))
	check(y.PostSend(&device.SendWR{Op: device.OpRead, SGE: []device.SGE{buf.SGE(0, len(mem))}, RemoteAddr: reg.Reg.Addr, RKey: f.RKey()}))
	fmt.Printf("%v %s\n", b.wait().Op, buf.Bytes())
	check(y.PostSend(&device.SendWR{Op: device.OpSendInv, Imm: f.RKey()}))
	wc := a.wait()
	fmt.Println(wc.Op, wc.Flags&device.WCWithInv != 0, wc.Imm == f.RKey())
	// Output:
	// IB_WC_REG_MR
	// IBV_WC_RDMA_READ a block of a storage client
	// IBV_WC_RECV true true
}

// A datagram goes to whom an address handle and a queue pair number name. The first 40 bytes of the receive are the
// network header's.
func ExampleAH() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	const qkey = 0x1234
	x, y := a.qp(device.UD), b.qp(device.UD)
	check(x.Activate(qkey, 0))
	check(y.Activate(qkey, 0))
	to := y.Address(1, 0)
	ah := must(a.pd.CreateAH(device.AHAttr{DGID: to.GID, SGIDIndex: 1}))
	buf := must(b.pd.RegMR(make([]byte, device.GRHLen+64), device.LocalWrite))

	check(y.PostRecv(&device.RecvWR{SGE: []device.SGE{buf.SGE(0, device.GRHLen+64)}}))
	check(x.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("hello"), AH: ah, RemoteQPN: to.QPN, RemoteQKey: qkey}))
	wc := b.wait()
	fmt.Printf("%d bytes: %s\n", wc.ByteLen, buf.Bytes()[device.GRHLen:wc.ByteLen])
	a.wait() // until then the handle is in use
	check(ah.Destroy())
	// Output: 45 bytes: hello
}

// Who is attached to a group gets what is sent to it.
func ExampleQP_Attach() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	const qkey = 0x1234
	group := device.GIDOf(netip.MustParseAddr("239.1.2.3"))
	buf := must(b.pd.RegMR(make([]byte, 256), device.LocalWrite))
	for i := range 2 {
		y := b.qp(device.UD)
		check(y.Activate(qkey, 0))
		check(y.Attach(group))
		check(y.PostRecv(&device.RecvWR{SGE: []device.SGE{buf.SGE(128*i, 128)}}))
	}
	x := a.qp(device.UD)
	check(x.Activate(qkey, 0))
	ah := must(a.pd.CreateAH(device.AHAttr{DGID: group, SGIDIndex: 1}))

	check(x.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("to all"), AH: ah, RemoteQPN: device.MulticastQPN, RemoteQKey: qkey}))
	for range 2 {
		fmt.Println(b.wait().Status)
	}
	fmt.Printf("%s, %s\n", buf.Bytes()[device.GRHLen:][:6], buf.Bytes()[128+device.GRHLen:][:6])
	// Output:
	// IBV_WC_SUCCESS
	// IBV_WC_SUCCESS
	// to all, to all
}

// What nobody asked for comes as an event: to the context, or to the handler of a queue pair.
func ExampleContext_AsyncEvent() {
	a, b := newApps()
	defer a.close()
	defer b.close()
	x := a.qp(device.RC)
	heard := make(chan device.AsyncEvent, 4)
	z := must(a.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: a.cq, RecvCQ: a.cq, Handler: func(e device.AsyncEvent) { heard <- e }}))
	y, w := b.qp(device.RC), b.qp(device.RC)
	join(x, y)
	join(z, w)

	// To SQD: an event tells when nothing is in flight any more.
	drain := device.QPAttr{State: device.StateSQD, SQDNotify: true}
	check(x.Modify(&drain, device.AttrState|device.AttrSQDNotify))
	check(z.Modify(&drain, device.AttrState|device.AttrSQDNotify))
	e := must(a.ctx.AsyncEvent(context.Background()))
	fmt.Println(e.Type, e.QP == x)
	e = <-heard
	fmt.Println(e.Type, e.QP == z)
	// Output:
	// IBV_EVENT_SQ_DRAINED true
	// IBV_EVENT_SQ_DRAINED true
}
