package cases

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/pipe"
)

// The addresses and queue pairs of the golden vectors of cases.md: the peer
// is .1 with queue pair 0x22, the device .2 with queue pair 0x11.
var (
	peer4 = netip.MustParseAddr("192.0.2.1")
	nic4  = netip.MustParseAddr("192.0.2.2")
	peer6 = netip.MustParseAddr("2001:db8::1")
	nic6  = netip.MustParseAddr("2001:db8::2")
	// nic4b is a second IPv4 address of the device, which no connection uses.
	nic4b = netip.MustParseAddr("192.0.2.9")
)

const (
	nicQP  = 0x11
	peerQP = 0x22
	udQP   = 0x33
	peerUD = 0x44
	qkey   = 0x11111111
)

// GID indices of the lab's device (design decision 13).
const (
	gidLinkLocal = 0
	gid4         = 1
	gid6         = 2
)

// bubble runs a test in virtual time, beside the other bubbles of its parent.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}

// dice is the device's random source: numbers that the test has put there, then
// pseudo-random ones, the same in every run.
type dice struct {
	mu   sync.Mutex
	next []uint32
	rng  *rand.Rand
}

func newDice() *dice { return &dice{rng: rand.New(rand.NewPCG(1, 2))} }

func (d *dice) push(v ...uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next = append(d.next, v...)
}

// Read gives four bytes for each number.
func (d *dice) Read(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.rng.Uint32()
	if len(d.next) > 0 {
		v, d.next = d.next[0], d.next[1:]
	}
	var four [4]byte
	binary.BigEndian.PutUint32(four[:], v)
	return copy(b, four[:]), nil
}

// lab is a device on an in-memory link, and the scripted peer at its other end.
type lab struct {
	noMigReq bool   // the profile sends MigReq 0
	pkey     uint16 // of every frame that the device emits; 0: 0xFFFF
	t        *testing.T
	dev      *device.Device
	ctx      *device.Context
	pd       *device.PD
	dice     *dice
	end      *pipe.End
	raw      *pipe.Raw
	conn     *rawConn
	p        *peer.Peer // speaks IPv4
	p6       *peer.Peer // speaks IPv6
	latency  time.Duration
	destQP   uint32     // what every emitted frame must be addressed to; 0: not checked
	dst      netip.Addr // where to, likewise
}

// labConfig is a lab that differs from the usual one.
type labConfig struct {
	HideIP  bool   // imitate a UDP socket
	Profile string // of the device
	CNP     device.CNPPacing
	MTU     int           // 0: 4200
	PKeys   []uint16      // of the device; the first is what its frames are checked for
	Latency time.Duration // frames of the peer arrive so much later, those of one instant in one batch
}

func newLab(t *testing.T, c labConfig) *lab {
	t.Helper()
	l := &lab{t: t, latency: c.Latency, dst: peer4, dice: newDice(), noMigReq: c.Profile == "rxe"}
	if len(c.PKeys) > 0 {
		l.pkey = c.PKeys[0]
	}
	l.end, l.raw = pipe.NewRaw(pipe.Config{
		Name: "case", MTU: c.MTU, Latency: c.Latency, HideIP: c.HideIP,
		Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24), netip.PrefixFrom(nic6, 64), netip.PrefixFrom(nic4b, 24)},
	})
	dev, err := device.Open(l.end, device.Options{Rand: l.dice, Profile: c.Profile, CNP: c.CNP, PKeys: c.PKeys})
	if err != nil {
		t.Fatal(err)
	}
	l.dev = dev
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("device.Close: %v", err)
		}
	})
	l.ctx = dev.NewContext()
	l.pd = must(l.ctx.AllocPD())
	l.conn = &rawConn{l.raw}
	l.p = peer.New(l.conn, peer4, nic4)
	l.p6 = peer.New(l.conn, peer6, nic6)
	return l
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// rawConn is the raw end of the pipe as the peer sees a link.
type rawConn struct{ raw *pipe.Raw }

func (c *rawConn) Write(ip []byte) error { return c.raw.Write(ip) }

func (c *rawConn) Read(deadline time.Time) ([]byte, error) {
	if f := c.raw.TryRead(); f != nil {
		return f, nil
	}
	ctx, cancel := context.Background(), func() {}
	if !deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	defer cancel()
	f, err := c.raw.Read(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = os.ErrDeadlineExceeded
	}
	return f, err
}

// settle lets the device do all that it has to do now, and lets no more time pass
// than frames take to arrive.
func (l *lab) settle() {
	if l.latency > 0 {
		time.Sleep(l.latency)
	}
	synctest.Wait()
}

// take returns what the device has emitted until now, each frame checked.
func (l *lab) take() []*peer.Frame {
	l.t.Helper()
	l.settle()
	var out []*peer.Frame
	for b := l.raw.TryRead(); b != nil; b = l.raw.TryRead() {
		out = append(out, l.check(b))
	}
	return out
}

// check parses an emitted frame and checks what every frame must be like.
func (l *lab) check(b []byte) *peer.Frame {
	l.t.Helper()
	f, err := peer.Parse(b)
	if err != nil {
		l.t.Fatalf("the device emitted %v\n%x", err, b)
	}
	// Parse has worked out the ICRC, and Irregular names it when it is wrong.
	if bad := f.Irregular(); len(bad) > 0 {
		l.t.Fatalf("irregular frame (%s): %v\n%x", strings.Join(bad, ", "), f, b)
	}
	// A congestion notification has bits of its own (roce.md A.5, A.8).
	cnp := f.Op == peer.OpCNP
	ok := f.Migrated == (!cnp && !l.noMigReq) && f.PKey == cmp.Or(l.pkey, 0xFFFF) && !f.FECN && f.BECN == cnp && f.TTL == 64 && f.UDPChecksum == 0 &&
		(f.IPv6() || f.DF && f.ID == 0) && f.SrcPort >= 0xC000
	switch l.dst {
	case peer4:
		ok = ok && f.Src == nic4 && f.Dst == peer4
	case peer6:
		ok = ok && f.Src == nic6 && f.Dst == peer6
	}
	if l.destQP != 0 {
		ok = ok && f.DestQP == l.destQP
	}
	if !ok {
		l.t.Fatalf("a field that is the same in every frame is not: %v\n%x", f, b)
	}
	return f
}

// brief is a frame in a few words: operation, PSN, "ar" for AckReq, "se" for the
// solicited bit, RETH address and length, syndrome and MSN, immediate, and the payload
// length in brackets.
func brief(f *peer.Frame) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %06x", f.Op.Short(), f.PSN)
	if f.AckReq {
		b.WriteString(" ar")
	}
	if f.SE {
		b.WriteString(" se")
	}
	has := f.HeaderSet()
	if has.Has(peer.HasRETH) {
		fmt.Fprintf(&b, " va=%x+%d", f.RETH.VA, f.RETH.Len)
	}
	if has.Has(peer.HasAETH) {
		fmt.Fprintf(&b, " %02x m%d", uint8(f.AETH.Syndrome), f.AETH.MSN)
	}
	if has.Has(peer.HasImmDt) {
		fmt.Fprintf(&b, " imm=%08x", f.Imm)
	}
	if n := len(f.Payload); n > 0 {
		fmt.Fprintf(&b, " [%d]", n)
	}
	return b.String()
}

func briefs(l []*peer.Frame) []string {
	s := make([]string, len(l))
	for i, f := range l {
		s[i] = brief(f)
	}
	return s
}

// emits takes what the device has emitted and compares it, frame by frame, with
// brief forms.
func (l *lab) emits(want ...string) []*peer.Frame {
	l.t.Helper()
	got := l.take()
	sameList(l.t, "frames", briefs(got), want)
	return got
}

func sameList(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s:\n  got  %s\n  want %s", what, strings.Join(got, "\n       "), strings.Join(want, "\n       "))
	}
}

// count returns a counter of the device.
func (l *lab) count(name string) uint64 {
	l.t.Helper()
	for _, v := range l.dev.Statistics() {
		if v.Name == name {
			return v.Value
		}
	}
	l.t.Fatalf("there is no counter %q", name)
	return 0
}

// counts checks several counters, "name=value".
func (l *lab) counts(want ...string) {
	l.t.Helper()
	for _, w := range want {
		name, val, _ := strings.Cut(w, "=")
		if got := fmt.Sprint(l.count(name)); got != val {
			l.t.Errorf("counter %s is %s, want %s", name, got, val)
		}
	}
}

// drops lists the drop counters that are not 0, "reason=count".
func (l *lab) drops() string {
	var out []string
	for _, v := range l.dev.Statistics() {
		if r, ok := strings.CutPrefix(v.Name, "drop_"); ok && v.Value > 0 {
			out = append(out, fmt.Sprintf("%s=%d", r, v.Value))
		}
	}
	return strings.Join(out, " ")
}

// events takes the asynchronous events that are there and compares their names, IBV_EVENT_
// left out.
func (l *lab) events(want ...string) {
	l.t.Helper()
	synctest.Wait()
	got := []string{}
	for {
		e, ok := l.ctx.TryAsyncEvent()
		if !ok {
			break
		}
		got = append(got, strings.TrimPrefix(e.Type.String(), "IBV_EVENT_"))
	}
	sameList(l.t, "events", got, append([]string{}, want...))
}

// mr registers n bytes of memory.
func (l *lab) mr(n int, a device.Access) *device.MR {
	return must(l.pd.RegMR(make([]byte, n), a))
}

// all is every access right.
const all = device.LocalWrite | device.RemoteWrite | device.RemoteRead

// pattern is n bytes that differ from offset to offset and from seed to seed.
func pattern(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ seed*17 | 1
	}
	return b
}

// filled is n times the same byte.
func filled(b byte, n int) []byte {
	s := make([]byte, n)
	for i := range s {
		s[i] = b
	}
	return s
}

// conn is an RC queue pair of a lab's device, connected to the peer.
type conn struct {
	*lab
	qp       *device.QP
	scq, rcq *device.CQ
	o        rcOptions
	seq      uint64
}

// rcOptions are the attributes of a connection; see the conventions of cases.md.
type rcOptions struct {
	SQPSN, RQPSN   uint32 // 0x100, 0x200
	MTU            int    // 1024
	Timeout        int    // 14: 67.1 ms
	RetryCnt       int    // 6
	RNRRetry       int    // 6
	MinRNR         int    // 12: 0.64 ms
	Init, Resp     int    // initiator and responder depth, 16
	Access         device.Access
	V6             bool
	State          device.State // RTS
	SendWR, RecvWR int          // 128
	SendSGE        int          // 4
	Inline         int          // 64
	CQ, SendCQ     int          // entries of the receive and send completion queues, 1024
	SigAll         bool         // true
	QPN            uint32       // 0x11
	Handler        func(device.AsyncEvent)
	TrafficClass   uint8
	FlowLabel      uint32
	remote         netip.Addr // peer4, or peer6 with V6
	gid            int        // that of its family
	recvCQ         *device.CQ // one made for it
}

func defaults() rcOptions {
	return rcOptions{
		SQPSN: 0x100, RQPSN: 0x200, MTU: 1024, Timeout: 14, RetryCnt: 6, RNRRetry: 6, MinRNR: 12,
		Init: 16, Resp: 16, Access: device.RemoteWrite | device.RemoteRead, State: device.StateRTS,
		SendWR: 128, RecvWR: 128, SendSGE: 4, Inline: 64, CQ: 1024, SendCQ: 1024, SigAll: true, QPN: nicQP,
	}
}

// rc makes a connection; change, which may be nil, changes the defaults.
func (l *lab) rc(change func(o *rcOptions)) *conn {
	l.t.Helper()
	o := defaults()
	if change != nil {
		change(&o)
	}
	l.destQP = peerQP
	switch {
	case o.remote.IsValid():
	case o.V6:
		o.remote = peer6
	default:
		o.remote = peer4
	}
	if o.gid == 0 && o.remote == peer6 {
		o.gid = gid6
	} else if o.remote.Is4() {
		o.gid = gid4
	}
	l.dst = o.remote
	c := &conn{lab: l, o: o}
	c.scq = must(l.ctx.CreateCQ(device.CQInit{Entries: o.SendCQ}))
	if c.rcq = o.recvCQ; c.rcq == nil {
		c.rcq = must(l.ctx.CreateCQ(device.CQInit{Entries: o.CQ}))
	}
	l.dice.push(o.QPN)
	c.qp = must(l.pd.CreateQP(device.QPInit{
		Type: device.RC, SendCQ: c.scq, RecvCQ: c.rcq, SigAll: o.SigAll, Handler: o.Handler,
		Cap: device.Cap{SendWR: o.SendWR, RecvWR: o.RecvWR, SendSGE: o.SendSGE, RecvSGE: 4, Inline: o.Inline},
	}))
	for s := device.StateInit; s <= o.State; s++ {
		c.to(s)
	}
	return c
}

// to moves the queue pair one state on.
func (c *conn) to(s device.State) {
	c.t.Helper()
	o := &c.o
	var err error
	switch s {
	case device.StateInit:
		err = c.qp.Modify(&device.QPAttr{State: s, Port: 1, Access: o.Access},
			device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess)
	case device.StateRTR:
		ah := device.AHAttr{DGID: device.GIDOf(o.remote), SGIDIndex: o.gid, TrafficClass: o.TrafficClass, FlowLabel: o.FlowLabel}
		err = c.qp.Modify(&device.QPAttr{
			State: s, PathMTU: o.MTU, DestQPN: peerQP, RQPSN: o.RQPSN, MaxDestRdAtomic: o.Resp, MinRNRTimer: o.MinRNR, AH: ah,
		}, device.AttrState|device.AttrAV|device.AttrPathMTU|device.AttrDestQPN|device.AttrRQPSN|device.AttrMaxDestRdAtomic|device.AttrMinRNRTimer)
	case device.StateRTS:
		err = c.qp.Modify(&device.QPAttr{
			State: s, Timeout: o.Timeout, RetryCnt: o.RetryCnt, RNRRetry: o.RNRRetry, SQPSN: o.SQPSN, MaxRdAtomic: o.Init,
		}, device.AttrState|device.AttrTimeout|device.AttrRetryCnt|device.AttrRNRRetry|device.AttrSQPSN|device.AttrMaxRdAtomic)
	default:
		err = c.qp.Modify(&device.QPAttr{State: s}, device.AttrState)
	}
	if err != nil {
		c.t.Fatalf("modify_qp to %v: %v", s, err)
	}
}

// post posts a send request with the next ID, 1 for the first.
func (c *conn) post(wr device.SendWR) uint64 {
	c.t.Helper()
	c.seq++
	wr.ID = c.seq
	if err := c.qp.PostSend(&wr); err != nil {
		c.t.Fatalf("post_send %d: %v", wr.ID, err)
	}
	return wr.ID
}

// send, write and read post a request over the first n bytes of mr; the remote
// side of WRITE and READ is address 0x10000, key 0xabcd.
func (c *conn) send(mr *device.MR, n int) uint64 {
	c.t.Helper()
	return c.post(device.SendWR{Op: device.OpSend, SGE: sge(mr, n)})
}

const (
	remoteVA  = 0x10000
	remoteKey = 0xABCD
)

func (c *conn) write(mr *device.MR, n int) uint64 {
	c.t.Helper()
	return c.post(device.SendWR{Op: device.OpWrite, SGE: sge(mr, n), RemoteAddr: remoteVA, RKey: remoteKey})
}

func (c *conn) read(mr *device.MR, n int) uint64 {
	c.t.Helper()
	return c.post(device.SendWR{Op: device.OpRead, SGE: sge(mr, n), RemoteAddr: remoteVA, RKey: remoteKey})
}

// sge is the list for the first n bytes of mr.
func sge(mr *device.MR, n int) []device.SGE {
	if n == 0 {
		return nil
	}
	return []device.SGE{mr.SGE(0, n)}
}

// recv posts a receive over the first n bytes of mr; without mr one without buffer.
func (c *conn) recv(id uint64, mr *device.MR, n int) {
	c.t.Helper()
	wr := device.RecvWR{ID: id}
	if mr != nil {
		wr.SGE = sge(mr, n)
	}
	if err := c.qp.PostRecv(&wr); err != nil {
		c.t.Fatalf("post_recv %d: %v", id, err)
	}
}

// drain takes all completions of a queue.
func drain(cq *device.CQ) []device.WC {
	synctest.Wait()
	wc := make([]device.WC, 4096)
	return wc[:cq.Poll(wc)]
}

// brief forms of completions: "id status", IBV_WC_ left out, and for a success
// the operation and the length, "7 SUCCESS SEND 100".
func briefWC(l []device.WC) []string {
	out := []string{}
	for _, w := range l {
		s := fmt.Sprintf("%d %s", w.ID, strings.TrimPrefix(w.Status.String(), "IBV_WC_"))
		if w.Status == device.StatusSuccess {
			s += fmt.Sprintf(" %s %d", strings.TrimPrefix(w.Op.String(), "IBV_WC_"), w.ByteLen)
			if w.Flags&device.WCWithImm != 0 {
				s += fmt.Sprintf(" imm=%08x", w.Imm)
			}
		}
		out = append(out, s)
	}
	return out
}

// sent and received compare the completions that are there.
func (c *conn) sent(want ...string) {
	c.t.Helper()
	got := drain(c.scq)
	for _, w := range got {
		if w.QPN != c.o.QPN {
			c.t.Fatalf("completion for queue pair %#x: %+v", w.QPN, w)
		}
	}
	sameList(c.t, "send completions", briefWC(got), append([]string{}, want...))
}

func (c *conn) received(want ...string) {
	c.t.Helper()
	got := drain(c.rcq)
	for _, w := range got {
		if w.QPN != c.o.QPN {
			c.t.Fatalf("completion for queue pair %#x: %+v", w.QPN, w)
		}
		if w.Status == device.StatusSuccess && w.SrcQP != peerQP {
			c.t.Fatalf("completion from queue pair %#x: %+v", w.SrcQP, w)
		}
	}
	sameList(c.t, "receive completions", briefWC(got), append([]string{}, want...))
}

// peer returns the scripted peer of the connection's family.
func (c *conn) peer() *peer.Peer {
	if c.o.V6 {
		return c.p6
	}
	return c.p
}

// gets has the device receive the frames.
func (c *conn) gets(f ...*peer.Frame) {
	c.t.Helper()
	c.peer().Send(c.t, f...)
}

// state checks the state of the queue pair.
func (c *conn) state(want device.State) {
	c.t.Helper()
	synctest.Wait()
	if s := c.qp.State(); s != want {
		c.t.Fatalf("queue pair is in %v, want %v", s, want)
	}
}

// ack and nak are the peer's answers to the device's requests.
func ack(psn, msn uint32) *peer.Frame { return peer.Ack(nicQP, psn, msn) }

func nak(psn uint32, s peer.Syndrome) *peer.Frame { return peer.Nak(nicQP, psn, s, 0) }

// want compares two values of any kind.
func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// wantBytes compares memory.
func wantBytes(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d is %02x, want %02x", what, i, got[i], want[i])
		}
	}
}

// contextFor ends after d; for tests in real time.
func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// errno checks that an error is this errno.
func errno(t *testing.T, err error, want device.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want errno %d (%v)", err, int(want), want)
	}
}

// ud is a UD queue pair of a lab's device.
type udConn struct {
	*lab
	qp       *device.QP
	scq, rcq *device.CQ
	seq      uint64
}

// ud makes UD queue pair 0x33 with Q_Key 0x11111111 and first PSN 5.
func (l *lab) ud(state device.State) *udConn {
	l.t.Helper()
	u := &udConn{lab: l}
	u.scq = must(l.ctx.CreateCQ(device.CQInit{Entries: 256}))
	u.rcq = must(l.ctx.CreateCQ(device.CQInit{Entries: 256}))
	l.dice.push(udQP)
	u.qp = must(l.pd.CreateQP(device.QPInit{
		Type: device.UD, SendCQ: u.scq, RecvCQ: u.rcq, SigAll: true,
		Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 4, RecvSGE: 4, Inline: 64},
	}))
	if state >= device.StateInit {
		u.modify(&device.QPAttr{State: device.StateInit, Port: 1, QKey: qkey},
			device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrQKey)
	}
	if state >= device.StateRTR {
		u.modify(&device.QPAttr{State: device.StateRTR}, device.AttrState)
	}
	if state >= device.StateRTS {
		u.modify(&device.QPAttr{State: device.StateRTS, SQPSN: 5}, device.AttrState|device.AttrSQPSN)
	}
	return u
}

func (u *udConn) modify(a *device.QPAttr, mask device.AttrMask) {
	u.t.Helper()
	if err := u.qp.Modify(a, mask); err != nil {
		u.t.Fatalf("modify_qp: %v", err)
	}
}

// ah makes an address handle for the peer.
func (u *udConn) ah(v6 bool) *device.AH {
	if v6 {
		return must(u.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(peer6), SGIDIndex: gid6}))
	}
	return must(u.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}))
}

func (u *udConn) post(wr device.SendWR) uint64 {
	u.t.Helper()
	u.seq++
	wr.ID = u.seq
	if err := u.qp.PostSend(&wr); err != nil {
		u.t.Fatalf("post_send %d: %v", wr.ID, err)
	}
	return wr.ID
}

func (u *udConn) recv(id uint64, s ...device.SGE) {
	u.t.Helper()
	if err := u.qp.PostRecv(&device.RecvWR{ID: id, SGE: s}); err != nil {
		u.t.Fatalf("post_recv %d: %v", id, err)
	}
}

func (u *udConn) sent(want ...string) {
	u.t.Helper()
	sameList(u.t, "send completions", briefWC(drain(u.scq)), append([]string{}, want...))
}

func (u *udConn) received(want ...string) {
	u.t.Helper()
	sameList(u.t, "receive completions", briefWC(drain(u.rcq)), append([]string{}, want...))
}
