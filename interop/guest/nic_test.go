//go:build linux

package guest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	record "github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/udp"
	"github.com/softnic/softnic/tap"
)

// nic is a softnic in this process, with what a program on it has.
type nic struct {
	t   testing.TB
	dev *device.Device
	ctx *device.Context
	pd  *device.PD
	cq  *device.CQ
}

// openNIC opens a device on ep; what it says it sent and received goes beside the capture called name, for the judge,
// and to the sinks.
func openNIC(t testing.TB, ep link.Endpoint, name string, sinks ...link.Sink) *nic {
	t.Helper()
	return openNICWith(t, ep, name, link.PortOptions{}, sinks...)
}

// openNICWith is openNIC with options for the port; its capture is set here.
func openNICWith(t testing.TB, ep link.Endpoint, name string, o link.PortOptions, sinks ...link.Sink) *nic {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(strings.TrimSuffix(jobFile(t, name), ".pcap") + ".log.jsonl")
	must(err)
	log, err := record.NewLog(f, ep.Info())
	must(err)
	n := &nic{t: t}
	o.Capture = record.NewTee(append(sinks, log)...)
	n.dev, err = device.Open(ep, device.Options{Link: o})
	must(err)
	t.Cleanup(func() {
		must(n.dev.Close())
		must(log.Close())
		must(f.Close())
	})
	n.ctx = n.dev.NewContext()
	n.pd, err = n.ctx.AllocPD()
	must(err)
	n.cq, err = n.ctx.CreateCQ(device.CQInit{Entries: 256})
	must(err)
	return n
}

// openTap makes a softnic on a TAP, with the kernel's rxe on the other side of it.
func openTap(t testing.TB, mtu int, name string, sinks ...link.Sink) (*nic, rxe) {
	t.Helper()
	return openTapWith(t, mtu, name, link.PortOptions{}, sinks...)
}

// openTapWith is openTap with options for the port.
func openTapWith(t testing.TB, mtu int, name string, o link.PortOptions, sinks ...link.Sink) (*nic, rxe) {
	t.Helper()
	c := tapConfig(mtu)
	c.Plain = true // tcpdump has to see packets, and not bursts
	return openTapConfig(t, c, name, o, sinks...)
}

// tapConfig is the TAP of openTap.
func tapConfig(mtu int) tap.Config {
	return tap.Config{
		Name: "sn0", MTU: mtu,
		Addrs:     []netip.Prefix{netip.MustParsePrefix("10.8.0.2/24"), netip.MustParsePrefix("fd00:8::2/64")},
		HostAddrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/24"), netip.MustParsePrefix("fd00:8::1/64")},
	}
}

func openTapConfig(t testing.TB, c tap.Config, name string, o link.PortOptions, sinks ...link.Sink) (*nic, rxe) {
	t.Helper()
	ep, err := tap.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	n := openNICWith(t, ep, name, o, sinks...)
	return n, addRxe(t, "rxe0", "sn0")
}

// still is an endpoint that does not follow its interface: the interface is in another namespace than this process.
type still struct{ link.Endpoint }

func (still) Watch(func()) {}

func (s still) Unwrap() link.Endpoint { return s.Endpoint }

// openUDP makes a softnic in UDP mode on an address of another network namespace.
func openUDP(t testing.TB, netns string, addr netip.Addr, name string, o udp.Options) *nic {
	t.Helper()
	var ep link.Endpoint
	var err error
	inNetns(t, netns, func() { ep, err = udp.Open(netip.AddrPortFrom(addr, 4791), o) })
	if err != nil {
		t.Fatal(err)
	}
	return openNIC(t, still{ep}, name)
}

// inNetns runs f on a thread that is in another network namespace; sockets that f opens stay there.
func inNetns(t testing.TB, name string, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		fd, err := unix.Open("/run/netns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("network namespace %s: %v", name, err)
	}
}

func (n *nic) mr(size int) *device.MR {
	n.t.Helper()
	m, err := n.pd.RegMR(make([]byte, size), device.LocalWrite|device.RemoteWrite|device.RemoteRead)
	if err != nil {
		n.t.Fatal(err)
	}
	return m
}

func (n *nic) qp(typ device.QPType) *device.QP {
	n.t.Helper()
	q, err := n.pd.CreateQP(device.QPInit{Type: typ, SendCQ: n.cq, RecvCQ: n.cq, SigAll: true,
		Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 2, RecvSGE: 2}})
	if err != nil {
		n.t.Fatal(err)
	}
	return q
}

// completion waits for the next completion, which must be a success.
func (n *nic) completion(want device.WCOp) device.WC {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var wc [1]device.WC
	if _, err := n.cq.Wait(ctx, wc[:]); err != nil {
		n.t.Fatalf("%v; %s", err, n.drops())
	}
	if wc[0].Status != device.StatusSuccess || wc[0].Op != want {
		n.t.Fatalf("completion %v %v, want %v; %s", wc[0].Status, wc[0].Op, want, n.drops())
	}
	return wc[0]
}

// drops lists the counters of packets that were not taken.
func (n *nic) drops() string {
	var l []string
	for _, v := range n.dev.Statistics() {
		if v.Value != 0 {
			l = append(l, fmt.Sprintf("%s=%d", v.Name, v.Value))
		}
	}
	return strings.Join(l, " ")
}

func (n *nic) counter(name string) uint64 {
	for _, v := range n.dev.Statistics() {
		if v.Name == name {
			return v.Value
		}
	}
	n.t.Fatalf("no counter %s", name)
	return 0
}

func (n *nic) post(q *device.QP, wr device.SendWR) {
	n.t.Helper()
	if err := q.PostSend(&wr); err != nil {
		n.t.Fatal(err)
	}
}

func (n *nic) recv(q *device.QP, sge ...device.SGE) {
	n.t.Helper()
	if err := q.PostRecv(&device.RecvWR{ID: 77, SGE: sge}); err != nil {
		n.t.Fatal(err)
	}
}

// seeded fills b with a pattern that only this seed gives.
func seeded(seed uint64, b []byte) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = r.Read(b)
	return b
}

// same fails the test where two patterns part.
func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
		}
	}
	t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
}

// rcPair is a reliable connection between a softnic and a program on the kernel's device.
type rcPair struct {
	n    *nic
	q    *device.QP
	v    *verbs
	vq   *verbsQP
	near *device.MR // softnic's memory
	far  *verbsMR   // the program's
}

// connectRC connects a queue pair of n with one on the rxe device, over the addresses near and far.
func connectRC(t testing.TB, n *nic, dev rxe, v *verbs, near, far netip.Addr, mtu, size int, o device.ConnectOptions) *rcPair {
	t.Helper()
	p := &rcPair{n: n, v: v, q: n.qp(device.RC), vq: v.CreateQP("RC"), near: n.mr(size), far: v.RegMR(size, accessAll)}
	gid := gidIndex(t, n.dev, near)
	o.PathMTU, o.SGIDIndex = mtu, gid
	const nearPSN, farPSN = 0xFFFFFA, 0x7FFFFE // both wrap or cross the middle soon
	if err := p.q.Connect(nearPSN, device.Remote{GID: device.GIDOf(far), QPN: p.vq.QPN, PSN: farPSN}, o); err != nil {
		t.Fatal(err)
	}
	timeout := 17
	if o.Timeout < 0 {
		timeout = 0 // none
	}
	p.vq.Connect(connection{
		SGIDIndex: dev.GIDIndex(t, far), DGID: near, QPN: p.q.Num(), SendPSN: farPSN, RecvPSN: nearPSN,
		PathMTU: map[int]int{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[mtu], Timeout: timeout, RetryCnt: 6, RNRRetry: 7, MaxRdAtomic: 16, MinRNRTimer: 12,
	})
	return p
}

func gidIndex(t testing.TB, d *device.Device, a netip.Addr) int {
	t.Helper()
	for i := range device.GIDTableLen {
		if g, _ := d.QueryGID(1, i); g == device.GIDOf(a) {
			return i
		}
	}
	t.Fatalf("%v is no GID of %v", a, d)
	return 0
}

// exchange moves seeded patterns of size bytes with every operation, both ways, and compares what arrived.
func (p *rcPair) exchange(t testing.TB, size int, seed uint64) {
	t.Helper()
	near, far := p.near.Bytes()[:size], p.far
	clearFar := func() { far.Write(0, make([]byte, size)) }
	sge := p.near.SGE(0, size)
	what := func(op string) string { return fmt.Sprintf("%s of %d bytes", op, size) }

	// softnic requests.
	seeded(seed, near)
	clearFar()
	p.n.post(p.q, device.SendWR{Op: device.OpWrite, SGE: []device.SGE{sge}, RemoteAddr: far.Addr, RKey: far.RKey})
	p.n.completion(device.WCWrite)
	same(t, what("softnic's WRITE"), far.Read(0, size), near)

	far.Write(0, seeded(seed+1, make([]byte, size)))
	clear(near)
	p.n.post(p.q, device.SendWR{Op: device.OpRead, SGE: []device.SGE{sge}, RemoteAddr: far.Addr, RKey: far.RKey})
	p.n.completion(device.WCRead)
	same(t, what("softnic's READ"), near, seeded(seed+1, make([]byte, size)))

	for i, op := range []device.WROp{device.OpSend, device.OpSendImm, device.OpWriteImm} {
		seeded(seed+2+uint64(i), near)
		clearFar()
		p.vq.PostRecv(5, far, 0, size)
		p.n.post(p.q, device.SendWR{Op: op, SGE: []device.SGE{sge}, Imm: 0x89ABCDEF, RemoteAddr: far.Addr, RKey: far.RKey})
		p.n.completion(op.Completed())
		wc := p.vq.RecvCompletions(1)[0]
		if wc.Status != 0 || wc.ByteLen != size || op != device.OpSend && (wc.Imm != 0x89ABCDEF || wc.Flags&2 == 0) {
			t.Fatalf("%s: rxe's completion %+v", what("softnic's "+op.String()), wc)
		}
		same(t, what("softnic's "+op.String()), far.Read(0, size), near)
	}

	// softnic responds.
	pattern := seeded(seed+5, make([]byte, size))
	far.Write(0, pattern)
	clear(near)
	p.vq.PostSend(sendWR{Opcode: "RDMA_WRITE", MR: far, Length: size, RemoteAddr: p.near.Addr(), RKey: p.near.RKey()})
	p.sent("RDMA_WRITE")
	same(t, what("rxe's WRITE"), near, pattern)

	seeded(seed+6, near)
	p.vq.PostSend(sendWR{Opcode: "RDMA_READ", MR: far, Length: size, RemoteAddr: p.near.Addr(), RKey: p.near.RKey()})
	p.sent("RDMA_READ")
	same(t, what("rxe's READ"), far.Read(0, size), near)

	for i, op := range []string{"SEND", "SEND_WITH_IMM", "RDMA_WRITE_WITH_IMM"} {
		pattern := seeded(seed+7+uint64(i), make([]byte, size))
		far.Write(0, pattern)
		clear(near)
		p.n.recv(p.q, sge)
		p.vq.PostSend(sendWR{Opcode: op, MR: far, Length: size, Imm: 0x01020304, RemoteAddr: p.near.Addr(), RKey: p.near.RKey()})
		p.sent(op)
		want := device.WCRecv
		if op == "RDMA_WRITE_WITH_IMM" {
			want = device.WCRecvImm
		}
		wc := p.n.completion(want)
		if wc.ByteLen != uint32(size) || wc.ID != 77 || op != "SEND" && wc.Imm != 0x01020304 {
			t.Fatalf("%s: softnic's completion %+v", what("rxe's "+op), wc)
		}
		same(t, what("rxe's "+op), near, pattern)
	}
}

func (p *rcPair) sent(op string) {
	p.n.t.Helper()
	if wc := p.vq.SendCompletions(1)[0]; wc.Status != 0 {
		p.n.t.Fatalf("rxe's %s: status %d; softnic: %s", op, wc.Status, p.n.drops())
	}
}

// quiet holds that rxe counted no error, and that softnic dropped nothing.
func quiet(t testing.TB, n *nic, moved counters) {
	t.Helper()
	for name, v := range moved {
		switch name {
		case "sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs", "ack_deferred":
		default:
			t.Errorf("rxe counted %s %d", name, v)
		}
	}
	for _, v := range n.dev.Statistics() {
		if v.Value != 0 && (strings.HasPrefix(v.Name, "drop_") || strings.Contains(v.Name, "lost") || strings.HasSuffix(v.Name, "_err")) {
			t.Errorf("softnic counted %s %d", v.Name, v.Value)
		}
	}
}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }
