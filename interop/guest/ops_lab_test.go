//go:build linux

package guest

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	record "github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Where things lie in the memory of an end: what is sent or comes back to a requester, and what the other end reaches.
const (
	opsSource = 80 << 10
	opsTarget = 0
	opsSize   = 160 << 10
	opsMTU    = 1024
	opsQKey   = 0x11111111
)

// Rights of memory and queue pairs; the numbers are the same at both ends.
const (
	opsQPAccess = device.RemoteWrite | device.RemoteRead | device.RemoteAtomic
	opsMRAccess = device.LocalWrite | opsQPAccess | device.MWBind
)

// opsWR is a send request of either end. What it names locally is in the end's own memory.
type opsWR struct {
	ID            uint64
	Op            device.WROp
	Flags         device.SendFlags // Inline: what SGE names is put into the request
	SGE           []span
	Imm           uint32 // or the key to invalidate
	Addr          uint64
	Key           uint32
	Compare, Swap uint64 // Compare is the addend, too
	BadLKey       bool
	Level         transport.FlushLevel // of a FLUSH, whose length is that of SGE
	QKey          uint32               // datagrams, to the other end of the pair
}

// opsWC is a completion at either end.
type opsWC struct {
	ID     uint64
	Status device.Status
	Op     device.WCOp
	Len    int
	Flags  device.WCFlags
	Imm    uint32 // or the key that was invalidated
	Src    uint32
}

// opsWindow is a memory window of either end.
type opsWindow struct {
	rkey   uint32
	soft   *device.MW
	kernel int
}

// opsEnd is one end of a connection: a queue pair with its memory, on softnic or on the kernel's device. Tests that are
// written in its terms hold for both.
type opsEnd interface {
	who() string
	num() uint32
	addr(off int) uint64
	key() uint32
	put(off int, b []byte)
	get(off, n int) []byte

	post(w opsWR)
	recv(id uint64, sge ...span)
	recvBad(id uint64, sge span) // with an L_Key that does not exist
	// polled waits for completions of sends or receives, at most for so long.
	polled(send bool, n int, limit time.Duration) []opsWC
	state() string

	window(typ device.MWType) *opsWindow
	bind(w *opsWindow, off, n int, a device.Access) // posts; the key is in force after the completion
	freeWindow(w *opsWindow)
	// region registers other memory of its own; it returns its address and key.
	region(n int, a device.Access) (uint64, uint32)
}

// opsLab is softnic on a TAP and a program on the kernel's device at the other side of it.
type opsLab struct {
	t         testing.TB
	n         *nic
	dev       rxe
	v         *verbs
	near, far netip.Addr
	gid, vgid int
	tape      *opsTape
	tee       *record.Tee // the tape, and who else looks on
	dump      *capture
	mem       *device.MR
	vmem      *verbsMR
	conns     []rules.Connection
	slack     time.Duration
	kernel    []string
	broken    []rules.Finding // of the kernel's device; set by end
	quirk     bool            // softnic has the quirk for the kernel's ICRC of FLUSH
	flushes   uint64          // FLUSHes that were numbered, see flushID
}

func newOps(t testing.TB, name string) *opsLab {
	t.Helper()
	return newOpsWith(t, name, link.PortOptions{})
}

// newOpsWith is newOps with options for softnic's port. With the quirk the memory of both ends may be flushed.
func newOpsWith(t testing.TB, name string, o link.PortOptions) *opsLab {
	t.Helper()
	l := bareOps(t, o)
	l.n, l.dev = openTapWith(t, 1500, name, o, l.tee)
	l.dump = startCapture(t, options{}, "sn0", name, "udp", "port", "4791")
	l.furnish()
	return l
}

// bareOps is a lab without its two devices. furnish makes the rest once they are there.
func bareOps(t testing.TB, o link.PortOptions) *opsLab {
	t.Helper()
	l := &opsLab{t: t, near: mustAddr("10.8.0.2"), far: mustAddr("10.8.0.1"), tape: &opsTape{}, kernel: complaints(t), quirk: o.RxeFlushICRC}
	l.slack = 8 * time.Millisecond // the kernel counts in jiffies of 4 ms, and may be one early
	l.tee = record.NewTee(l.tape)
	return l
}

// furnish opens the kernel's device and gives both ends their memory.
func (l *opsLab) furnish() {
	t := l.t
	t.Helper()
	l.v = startVerbs(t, options{}, l.dev.Name)
	l.gid, l.vgid = gidIndex(t, l.n.dev, l.near), l.dev.GIDIndex(t, l.far)
	access := opsMRAccess
	if l.quirk {
		access |= device.FlushGlobal
	}
	var err error
	if l.mem, err = l.n.pd.RegMR(make([]byte, opsSize), access); err != nil {
		t.Fatal(err)
	}
	l.vmem = l.v.RegMR(opsSize, int(access))
}

// opsConn says how queue pairs are connected; the zero value is RC as the tests want it mostly.
type opsConn struct {
	typ             device.QPType // 0: RC
	soft, kern      device.Access // what the queue pairs allow; 0: all of opsQPAccess
	none            bool          // they allow nothing
	timeout, retry  int           // 0: 17 (537 ms), 7
	rnr, minRNR     int           // 0: 7 (no limit), 12 (0.64 ms)
	srq             *device.SRQ
	extended, flush bool   // the kernel's queue pair: for ATOMIC WRITE and FLUSH
	mtu             int    // path MTU; 0: opsMTU
	psn             uint32 // where the kernel's PSNs begin; 0: 0x7FFFFE
	tclass          int    // traffic class of what both send
}

// opsPair is two connected queue pairs, or two for datagrams.
type opsPair struct {
	l    *opsLab
	soft *softEnd
	kern *rxeEnd
}

func (l *opsLab) connect(o opsConn) *opsPair {
	t := l.t
	t.Helper()
	if o.typ == 0 {
		o.typ = device.RC
	}
	o.timeout, o.retry = cmp.Or(o.timeout, 17), cmp.Or(o.retry, 7)
	o.rnr, o.minRNR, o.mtu = cmp.Or(o.rnr, 7), cmp.Or(o.minRNR, 12), cmp.Or(o.mtu, opsMTU)
	all := opsQPAccess
	if o.typ == device.UC {
		all = device.RemoteWrite
	}
	o.soft, o.kern = cmp.Or(o.soft, all), cmp.Or(o.kern, all)
	if o.none {
		o.soft, o.kern = 0, 0
	}
	const depth = 16
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &softEnd{l: l}
	var err error
	s.scq, err = l.n.ctx.CreateCQ(device.CQInit{Entries: 256})
	must(err)
	s.rcq, err = l.n.ctx.CreateCQ(device.CQInit{Entries: 256})
	must(err)
	s.q, err = l.n.pd.CreateQP(device.QPInit{Type: o.typ, SendCQ: s.scq, RecvCQ: s.rcq, SRQ: o.srq, SigAll: true,
		Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 4, RecvSGE: 4, Inline: 512}})
	must(err)
	k := &rxeEnd{l: l}
	k.q = &verbsQP{v: l.v}
	l.v.call(k.q, "create_qp", args{"type": o.typ.String(), "depth": 64, "sig_all": true, "sge": 4, "inline": 512, "extended": o.extended})
	p := &opsPair{l, s, k}

	if o.typ == device.UD {
		must(s.q.Activate(opsQKey, 0))
		k.q.Datagrams(opsQKey, 0)
		s.ah, err = l.n.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(l.far), SGIDIndex: l.gid})
		must(err)
		k.ah = l.v.CreateAH(l.vgid, l.near)
		s.peer, k.peer = k.q.QPN, s.q.Num()
		return p
	}
	const softPSN = 0xFFFFFA // it wraps soon; the kernel's crosses the middle
	kernPSN := cmp.Or(o.psn, 0x7FFFFE)
	must(s.q.Connect(softPSN, device.Remote{GID: device.GIDOf(l.far), QPN: k.q.QPN, PSN: kernPSN}, device.ConnectOptions{
		SGIDIndex: l.gid, PathMTU: o.mtu, Timeout: o.timeout, RetryCnt: o.retry, RNRRetry: o.rnr, MinRNRTimer: o.minRNR, Depth: depth, TrafficClass: uint8(o.tclass),
	}))
	must(s.q.Modify(&device.QPAttr{Access: o.soft}, device.AttrAccess))
	kern := o.kern
	if o.flush {
		kern |= device.FlushGlobal
		must(s.q.Modify(&device.QPAttr{Access: o.soft | device.FlushGlobal}, device.AttrAccess))
	}
	k.q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": int(kern)})
	rtr := args{"ah_attr": ahAttr(l.vgid, l.near, o.tclass), "path_mtu": map[int]int{256: 1, 512: 2, 1024: enumMTU1024, 2048: 4, 4096: 5}[o.mtu], "dest_qp_num": s.q.Num(), "rq_psn": softPSN}
	rts := args{"sq_psn": kernPSN}
	if o.typ == device.RC {
		rtr["max_dest_rd_atomic"], rtr["min_rnr_timer"] = depth, o.minRNR
		rts["max_rd_atomic"], rts["timeout"], rts["retry_cnt"], rts["rnr_retry"] = depth, o.timeout, o.retry, o.rnr
	}
	k.q.Modify("RTR", rtr)
	k.q.Modify("RTS", rts)
	// The kernel's device retries for ever with 7.
	l.conns = append(l.conns, rules.Connection{MTU: o.mtu,
		A: rules.End{Addr: l.near, QPN: s.q.Num(), Attr: rules.Attr{Depth: depth, Timeout: o.timeout, RetryCnt: o.retry}},
		B: rules.End{Addr: l.far, QPN: k.q.QPN, Attr: rules.Attr{Depth: depth, Timeout: o.timeout, RetryCnt: o.retry % 7}},
	})
	return p
}

// each runs f with either end as the one that requests, in a subtest of its name.
func (p *opsPair) each(t *testing.T, f func(t *testing.T, from, to opsEnd)) {
	t.Helper()
	t.Run(p.soft.who(), func(t *testing.T) { f(t, p.soft, p.kern) })
	t.Run(p.kern.who(), func(t *testing.T) { f(t, p.kern, p.soft) })
}

// eachNew is each with queue pairs of their own.
func (l *opsLab) eachNew(t *testing.T, o opsConn, f func(t *testing.T, p *opsPair, from, to opsEnd)) {
	t.Helper()
	for _, first := range []bool{true, false} {
		p := l.connect(o)
		from, to := opsEnd(p.soft), opsEnd(p.kern)
		if !first {
			from, to = to, from
		}
		t.Run(from.who(), func(t *testing.T) { f(t, p, from, to) })
		p.close()
	}
}

func (p *opsPair) close() {
	t := p.l.t
	t.Helper()
	p.kern.q.Destroy()
	if err := p.soft.q.Destroy(); err != nil {
		t.Error(err)
	}
	for _, cq := range []*device.CQ{p.soft.scq, p.soft.rcq} {
		if _, err := cq.Destroy(); err != nil {
			t.Error(err)
		}
	}
}

// end closes the lab: the kernel has not complained, softnic has dropped nothing but for these reasons, and has kept
// every rule of package trace/rules; the kernel's device has broken none but those that it may.
func (l *opsLab) end(drops []string, may ...rules.ID) {
	t := l.t
	t.Helper()
	l.dump.Stop()
	for _, v := range l.n.dev.Statistics() {
		bad := strings.HasPrefix(v.Name, "drop_") || strings.HasPrefix(v.Name, "link_") || strings.HasSuffix(v.Name, "_lost")
		if v.Value != 0 && bad && !slices.Contains(drops, v.Name) {
			t.Errorf("softnic counted %s %d", v.Name, v.Value)
		}
	}
	if after := complaints(t); len(after) > len(l.kernel) {
		t.Errorf("the kernel complains: %s", strings.Join(after[len(l.kernel):], "\n"))
	}
	// A FLUSH with the quirk has a wrong ICRC on purpose; softnic and the judge on the host look at all of them.
	c := rules.New(rules.Options{Connections: l.conns, Slack: l.slack, Examples: 1000, NoICRC: l.quirk})
	l.tape.judge(c)
	var kept uint64
	for _, f := range c.Findings() {
		kept += f.Kept
		if f.Broken == 0 {
			continue
		}
		ours, theirs := f, f
		ours.Violations, theirs.Violations = nil, nil
		for _, v := range f.Violations {
			if stalled(v) {
				t.Logf("%v: %v", f.Rule, v)
			} else if v.Src == l.near {
				ours.Violations = append(ours.Violations, v)
			} else {
				theirs.Violations = append(theirs.Violations, v)
			}
		}
		if n := len(ours.Violations); n > 0 {
			ours.Violations = ours.Violations[:min(n, 10)]
			t.Errorf("softnic breaks a rule %d times: %v", n, ours)
		}
		if n := len(theirs.Violations); n > 0 {
			theirs.Violations = theirs.Violations[:min(n, 10)]
			l.broken = append(l.broken, theirs)
			switch {
			case rxeBreaks[f.Rule] != "" && slices.Contains(may, f.Rule):
			case !slices.ContainsFunc(theirs.Violations, func(v rules.Violation) bool { return !oldTimer(v) }):
				t.Logf("rxe's timer of an earlier request: %v", theirs)
			default:
				t.Errorf("rxe breaks a rule %d times: %v", n, theirs)
			}
		}
	}
	if kept == 0 {
		t.Error("no rule was judged")
	}
}

// rxeBreaks is the rules of package trace/rules that the kernel's device breaks, each with its row of
// interop/deviations.md.
var rxeBreaks = map[rules.ID]string{
	rules.ICRC:                 "flush-icrc",
	rules.RetransmissionSame:   "atomic-write-retry",
	rules.ReadResponseSequence: "read-again",
	rules.RNRWait:              "rnr-new-request",
	rules.AckTimeout:           "rnr-new-request", // when it has waited at last, which the checker does not expect any more
	rules.RNRSilence:           "rnr-sequence-nak",
	rules.NakOncePerGap:        "rnr-sequence-nak", // when what it could not take comes twice before it answers
}

// stalled reports whether a violation may come of a machine that stops for a while, as an emulated one does: an answer
// has come while the requester did not run, or its timer fired late. interop/cases has a clock for that.
func stalled(v rules.Violation) bool {
	return strings.Contains(v.Text, "is sent again only after") || strings.Contains(v.Text, ", but all before ")
}

// oldTimer reports whether a violation of the kernel's device may come of a timer that runs on when all is answered: where requests come as far apart as
// the timeout is long, as on a slow emulated machine, it runs out when the next has just been sent, and that is sent twice (seen once, 0.4 ms apart,
// T = 67 ms, the requests before 30 to 80 ms apart).
func oldTimer(v rules.Violation) bool {
	return strings.Contains(v.Text, "is sent again without a NAK after ")
}

// breaks reports whether the kernel's device has broken the rule.
func (l *opsLab) breaks(id rules.ID) bool {
	return slices.ContainsFunc(l.broken, func(f rules.Finding) bool { return f.Rule == id })
}

// deviation is where the kernel's device is known to be wrong: the row of interop/deviations.md. It fails the test when
// the device is not wrong any more.
func deviation(t testing.TB, row string, still bool, format string, a ...any) {
	t.Helper()
	if !still {
		t.Errorf("rxe does not deviate any more (%s): take the row %s out of interop/deviations.md and this test. Seen: %s", row, row, fmt.Sprintf(format, a...))
	}
}

// wcs waits for n completions of sends or receives.
func wcs(t testing.TB, e opsEnd, send bool, n int) []opsWC {
	t.Helper()
	l := e.polled(send, n, patience)
	if len(l) != n {
		t.Fatalf("%s: %d completions, want %d: %+v", e.who(), len(l), n, l)
	}
	return l
}

// sent waits for the completion of one send request with the status.
func sent(t testing.TB, e opsEnd, what string, want device.Status) opsWC {
	t.Helper()
	wc := wcs(t, e, true, 1)[0]
	if wc.Status != want {
		t.Fatalf("%s's %s: %v, want %v", e.who(), what, wc.Status, want)
	}
	return wc
}

// received does so for a receive.
func received(t testing.TB, e opsEnd, what string, want device.Status) opsWC {
	t.Helper()
	wc := wcs(t, e, false, 1)[0]
	if wc.Status != want {
		t.Fatalf("%s, receive of %s: %v, want %v", e.who(), what, wc.Status, want)
	}
	return wc
}

// inState waits for a state: an error becomes known after its completion.
func inState(t testing.TB, e opsEnd, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = e.state(); got == want {
			return
		}
	}
	t.Errorf("%s's queue pair is in %s, want %s", e.who(), got, want)
}

// events takes softnic's asynchronous events, of which there must be these.
func (l *opsLab) events(t testing.TB, want ...device.EventType) {
	t.Helper()
	for _, w := range want {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		e, err := l.n.ctx.AsyncEvent(ctx)
		cancel()
		if err != nil {
			t.Fatalf("no event %v: %v", w, err)
		}
		if e.Type != w {
			t.Errorf("event %v, want %v", e.Type, w)
		}
	}
	if e, ok := l.n.ctx.TryAsyncEvent(); ok {
		t.Errorf("event %v, want none", e.Type)
	}
}

// softEnd is an opsEnd on softnic.
type softEnd struct {
	l        *opsLab
	q        *device.QP
	scq, rcq *device.CQ
	ah       *device.AH
	peer     uint32
}

func (e *softEnd) who() string           { return "softnic" }
func (e *softEnd) num() uint32           { return e.q.Num() }
func (e *softEnd) addr(off int) uint64   { return e.l.mem.Addr() + uint64(off) }
func (e *softEnd) key() uint32           { return e.l.mem.RKey() }
func (e *softEnd) put(off int, b []byte) { copy(e.l.mem.Bytes()[off:], b) }
func (e *softEnd) get(off, n int) []byte { return slices.Clone(e.l.mem.Bytes()[off : off+n]) }
func (e *softEnd) state() string         { return e.q.State().String() }

func (e *softEnd) sge(l []span, bad bool) []device.SGE {
	var out []device.SGE
	for _, s := range l {
		x := e.l.mem.SGE(s.off, s.n)
		if bad {
			x.LKey ^= 0x100
		}
		out = append(out, x)
	}
	return out
}

func (e *softEnd) post(w opsWR) {
	e.l.t.Helper()
	wr := device.SendWR{ID: w.ID, Op: w.Op, Flags: w.Flags, SGE: e.sge(w.SGE, w.BadLKey), Imm: w.Imm, RemoteAddr: w.Addr, RKey: w.Key,
		CompareAdd: w.Compare, Swap: w.Swap}
	if w.Op == device.OpFlush {
		wr.FlushLen, wr.FlushType, wr.FlushLevel, wr.SGE = uint32(w.SGE[0].n), 1, w.Level, nil
	}
	if w.Flags&device.Inline != 0 {
		wr.SGE, wr.InlineData = nil, nil
		for _, s := range w.SGE {
			wr.InlineData = append(wr.InlineData, e.get(s.off, s.n)...)
		}
	}
	if e.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah, e.peer, w.QKey
	}
	if err := e.q.PostSend(&wr); err != nil {
		e.l.t.Fatal(err)
	}
}

func (e *softEnd) recv(id uint64, sge ...span) { e.postRecv(id, e.sge(sge, false)) }

func (e *softEnd) recvBad(id uint64, sge span) { e.postRecv(id, e.sge([]span{sge}, true)) }

func (e *softEnd) postRecv(id uint64, sge []device.SGE) {
	e.l.t.Helper()
	if err := e.q.PostRecv(&device.RecvWR{ID: id, SGE: sge}); err != nil {
		e.l.t.Fatal(err)
	}
}

func (e *softEnd) polled(send bool, n int, limit time.Duration) []opsWC {
	cq := e.rcq
	if send {
		cq = e.scq
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out []opsWC
	for len(out) < n {
		wc := make([]device.WC, n-len(out))
		k, err := cq.Wait(ctx, wc)
		if err != nil {
			break
		}
		for _, w := range wc[:k] {
			out = append(out, opsWC{w.ID, w.Status, w.Op, int(w.ByteLen), w.Flags, w.Imm, w.SrcQP})
		}
	}
	return out
}

func (e *softEnd) window(typ device.MWType) *opsWindow {
	e.l.t.Helper()
	w, err := e.l.n.pd.AllocMW(typ)
	if err != nil {
		e.l.t.Fatal(err)
	}
	return &opsWindow{rkey: w.RKey(), soft: w}
}

func (e *softEnd) bind(w *opsWindow, off, n int, a device.Access) {
	e.l.t.Helper()
	e.bindTo(w, e.l.mem, off, n, a)
}

func (e *softEnd) bindTo(w *opsWindow, mr *device.MR, off, n int, a device.Access) {
	e.l.t.Helper()
	b := device.SendWR{Op: device.OpBindMW}
	b.Bind.Window, b.Bind.MRKey, b.Bind.Addr, b.Bind.Length, b.Bind.Access = w.soft.RKey(), mr.LKey(), mr.Addr()+uint64(off), uint64(n), a
	b.Bind.NewKey = device.IncRKey(b.Bind.Window)
	if err := e.q.PostSend(&b); err != nil {
		e.l.t.Fatal(err)
	}
	w.rkey = b.Bind.NewKey
}

func (e *softEnd) freeWindow(w *opsWindow) {
	e.l.t.Helper()
	if err := w.soft.Dealloc(); err != nil {
		e.l.t.Error(err)
	}
}

func (e *softEnd) region(n int, a device.Access) (uint64, uint32) {
	e.l.t.Helper()
	mr, err := e.l.n.pd.RegMR(make([]byte, n), a)
	if err != nil {
		e.l.t.Fatal(err)
	}
	return mr.Addr(), mr.RKey()
}

// rxeEnd is an opsEnd on the kernel's device.
type rxeEnd struct {
	l    *opsLab
	q    *verbsQP
	ah   *int
	peer uint32
}

func (e *rxeEnd) who() string           { return "rxe" }
func (e *rxeEnd) num() uint32           { return e.q.QPN }
func (e *rxeEnd) addr(off int) uint64   { return e.l.vmem.Addr + uint64(off) }
func (e *rxeEnd) key() uint32           { return e.l.vmem.RKey }
func (e *rxeEnd) put(off int, b []byte) { e.l.t.Helper(); e.l.vmem.Write(off, b) }
func (e *rxeEnd) get(off, n int) []byte { e.l.t.Helper(); return e.l.vmem.Read(off, n) }
func (e *rxeEnd) state() string         { e.l.t.Helper(); return e.q.State() }

func (e *rxeEnd) post(w opsWR) {
	e.l.t.Helper()
	switch w.Op {
	case device.OpAtomicWrite:
		e.l.v.call(nil, "atomic_write", args{"qp": e.q.ID, "wr_id": w.ID, "data": hex.EncodeToString(e.get(w.SGE[0].off, 8)), "remote_addr": w.Addr, "rkey": w.Key})
		return
	case device.OpFlush:
		e.l.v.call(nil, "flush", args{"qp": e.q.ID, "wr_id": w.ID, "remote_addr": w.Addr, "length": w.SGE[0].n, "rkey": w.Key, "type": 1, "level": int(w.Level)})
		return
	}
	wr := sendWR{ID: w.ID, Opcode: strings.TrimPrefix(w.Op.String(), "IBV_WR_"), Flags: int(w.Flags), MR: e.l.vmem, Imm: w.Imm, RemoteAddr: w.Addr, RKey: w.Key,
		CompareAdd: w.Compare, Swap: w.Swap, SGEs: w.SGE}
	if wr.SGEs == nil {
		wr.SGEs = []span{}
	}
	if w.BadLKey {
		wr.LKey = e.l.vmem.LKey ^ 0x100
	}
	if e.ah != nil {
		wr.AH, wr.RemoteQPN, wr.QKey = e.ah, e.peer, w.QKey
	}
	e.q.PostSend(wr)
}

func (e *rxeEnd) recv(id uint64, sge ...span) {
	e.l.t.Helper()
	if sge == nil {
		sge = []span{}
	}
	e.l.v.call(nil, "post_recv", args{"qp": e.q.ID, "wr_id": id, "mr": e.l.vmem.ID, "offset": 0, "length": 0, "sges": sge})
}

func (e *rxeEnd) recvBad(id uint64, sge span) {
	e.l.t.Helper()
	e.l.v.call(nil, "post_recv", args{"qp": e.q.ID, "wr_id": id, "mr": e.l.vmem.ID, "offset": 0, "length": 0, "sges": []span{sge}, "lkey": e.l.vmem.LKey ^ 0x100})
}

func (e *rxeEnd) polled(send bool, n int, limit time.Duration) []opsWC {
	e.l.t.Helper()
	which := recvCQ
	if send {
		which = sendCQ
	}
	var out []opsWC
	for _, w := range e.q.PollFor(which, n, limit) {
		wc := opsWC{w.WrID, device.Status(w.Status), device.WCOp(w.Opcode), w.ByteLen, device.WCFlags(w.Flags), w.Imm, w.SrcQP}
		if wc.Flags&(device.WCWithInv|4) != 0 { // see wc-with-inv
			wc.Imm = w.Inv
		}
		out = append(out, wc)
	}
	return out
}

func (e *rxeEnd) window(typ device.MWType) *opsWindow {
	e.l.t.Helper()
	var mw struct {
		ID   int
		RKey uint32
	}
	e.l.v.call(&mw, "alloc_mw", args{"type": int(typ)})
	return &opsWindow{rkey: mw.RKey, kernel: mw.ID}
}

func (e *rxeEnd) bind(w *opsWindow, off, n int, a device.Access) {
	e.l.t.Helper()
	e.bindTo(w, e.l.vmem, off, n, a)
}

func (e *rxeEnd) bindTo(w *opsWindow, mr *verbsMR, off, n int, a device.Access) {
	e.l.t.Helper()
	var mw struct{ RKey uint32 }
	e.l.v.call(&mw, "bind_mw", args{"qp": e.q.ID, "mw": w.kernel, "wr_id": 0, "mr": mr.ID, "offset": off, "length": n, "access": int(a)})
	w.rkey = mw.RKey
}

func (e *rxeEnd) freeWindow(w *opsWindow) {
	e.l.t.Helper()
	e.l.v.call(nil, "destroy", args{"id": w.kernel})
}

func (e *rxeEnd) region(n int, a device.Access) (uint64, uint32) {
	e.l.t.Helper()
	mr := e.l.v.RegMR(n, int(a))
	return mr.Addr, mr.RKey
}

// opsTape is what softnic's port sent and received, for the rule checker and for looking up NAKs.
type opsTape struct {
	mu  sync.Mutex
	all []opsPacket
}

type opsPacket struct {
	bytes []byte
	when  time.Time
	dir   rules.Direction
	fate  rules.Fate
	fault wire.Fault
}

// Capture is that of link.Sink.
func (p *opsTape) Capture(r *link.Record) {
	if r.Fault == wire.Impaired && (strings.Contains(r.Note, "corrupt") || strings.Contains(r.Note, "set=") || strings.Contains(r.Note, "ecn=")) {
		return // as it was before a rule changed it: how it went on comes next
	}
	ip := *r
	ip.Eth = nil
	x := opsPacket{when: r.When, dir: rules.Tx, fault: r.Fault}
	if r.Dir == link.Rx {
		x.dir, ip.Tail = rules.Rx, nil
	}
	switch {
	case r.Fault == wire.Impaired && strings.Contains(r.Note, "drop"):
		x.fate = rules.Lost
	case r.Fault == wire.Impaired:
		x.fate = rules.Held
	case r.Fault != wire.OK:
		x.fate = rules.Dropped
	case strings.Contains(r.Note, "duplicate"):
		x.fate = rules.Copied
	}
	x.bytes = ip.AppendTo(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, x)
}

// sorted is in order of time. A packet that was received is captured after those that were sent because of it.
func (p *opsTape) sorted() []opsPacket {
	p.mu.Lock()
	l := slices.Clone(p.all)
	p.mu.Unlock()
	slices.SortStableFunc(l, func(a, b opsPacket) int { return cmp.Or(a.when.Compare(b.when), cmp.Compare(b.dir, a.dir)) })
	return l
}

func (p *opsTape) judge(c *rules.Checker) {
	for i, x := range p.sorted() {
		var v wire.View
		fault := wire.ParseIP(x.bytes, &v)
		if fault == wire.OK {
			fault = x.fault
		}
		c.Add(&rules.Packet{Number: uint64(i + 1), Time: x.when.UnixNano(), Dir: x.dir, Fate: x.fate, Fault: fault, View: &v})
	}
}

// mark is where the tape is now.
func (p *opsTape) mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// seen returns the packets from a mark on that went in one direction, whatever became of them.
func (p *opsTape) seen(from int, dir rules.Direction) []*wire.View {
	p.mu.Lock()
	defer p.mu.Unlock()
	var l []*wire.View
	for _, x := range p.all[from:] {
		v := new(wire.View)
		if x.dir == dir && wire.ParseIP(x.bytes, v) == wire.OK {
			l = append(l, v)
		}
	}
	return l
}

// fates tells of each packet to a queue pair, in one direction from a mark on, what became of it in softnic's port.
func (p *opsTape) fates(from int, dir rules.Direction, qpn uint32) []rules.Fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	var l []rules.Fate
	for _, x := range p.all[from:] {
		var v wire.View
		if x.dir == dir && wire.ParseIP(x.bytes, &v) == wire.OK && v.BTH().DestQP() == qpn {
			l = append(l, x.fate)
		}
	}
	return l
}

// refused reports whether an end's NAK of this syndrome has come to the other end's queue pair since a mark.
func (p *opsTape) refused(from int, to opsEnd, qpn uint32, want bth.Syndrome) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.all[from:], func(x opsPacket) bool {
		var v wire.View
		return x.dir == answers(to) && x.fate != rules.Lost && wire.ParseIP(x.bytes, &v) == wire.OK && v.BTH().DestQP() == qpn &&
			v.BTH().Opcode() == bth.Make(bth.RC, bth.Acknowledge) && bth.AETH(v.Header(bth.HAETH)).Syndrome() == want
	})
}

// flushID numbers a FLUSH: rxeEnd finds it in the kernel's ring by the number.
func (l *opsLab) flushID() uint64 {
	l.flushes++
	return 0xF1005400_00000000 + l.flushes
}

// naks returns the syndromes of the NAKs and RNR NAKs that went in one direction since a mark.
func (p *opsTape) naks(from int, dir rules.Direction) []bth.Syndrome {
	var l []bth.Syndrome
	for _, v := range p.seen(from, dir) {
		if v.BTH().Opcode() != bth.Make(bth.RC, bth.Acknowledge) {
			continue
		}
		if s := bth.AETH(v.Header(bth.HAETH)).Syndrome(); !s.IsAck() {
			l = append(l, s)
		}
	}
	return l
}

// answers is the direction in which an end answers, and requests, as softnic sees it.
func answers(e opsEnd) rules.Direction {
	if _, soft := e.(*softEnd); soft {
		return rules.Tx
	}
	return rules.Rx
}
