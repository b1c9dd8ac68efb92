package cases

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// netConfig says what a net is to be. The zero value of a field is no fault, depth 16, MTU 1024,
// PSNs that wrap soon, no shared receive queue.
type netConfig struct {
	pairs  []device.QPType
	rules  [2][]string   // impairments of the two devices
	noise  float64       // share of the packets to each in which a byte is changed
	seed   uint64        // for noise
	way    time.Duration // that packets take
	depth  int
	mtu    int
	shared bool
	ce     bool // all packets are CE-marked on their way
}

// node is one end of a connection between two devices.
type node struct {
	typ      device.QPType
	ctx      *device.Context
	pd       *device.PD
	qp       *device.QP // sends
	in       *device.QP // receives: the same, but an XRC target where qp is an initiator
	scq, rcq *device.CQ
	srq      *device.SRQ // nil: none; all nodes of the device have it, but an XRC target one of its own
	mr       *device.MR
	disk     *disk
	keep     *device.MR // what the peer's requests work on, on the disk
	dev      *side
}

// side is one of the two devices.
type side struct {
	dev     *device.Device
	ctx     *device.Context
	counter *device.MR  // one word, for all connections
	srq     *device.SRQ // nil: none
	xrcd    *device.XRCD
	end     *noisy
	streams []*stream // whose requests it executes
}

// network is two devices that are joined by a pipe, and connections between them.
type network struct {
	sides [2]*side
	q     [][2]*node
	tape  tape          // what both ports saw
	rules rules.Options // how to judge it
}

// disk is memory that outlives the power. It remembers what was made persistent, as it was then.
type disk struct {
	device.Memory
	b    []byte
	base uint64
	mu   sync.Mutex
	kept []piece
}

// piece is bytes at an offset.
type piece struct {
	off int
	b   string
}

func (d *disk) Persist(va, n uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	off := int(va - d.base)
	d.kept = append(d.kept, piece{off, string(d.b[off:][:n])})
	return nil
}

// noisy is an end of a pipe, on the way to which one byte of some packets is changed. The ICRC stays.
type noisy struct {
	*pipe.End
	p    float64
	r    *rand.Rand
	all  atomic.Uint64 // packets that were changed
	body atomic.Uint64 // of these, behind the BTH: nothing but the ICRC can tell
}

func (e *noisy) Recv(b *link.Batch, wait bool) error {
	err := e.End.Recv(b, wait)
	for i := range b.Packets {
		if e.r.Float64() >= e.p {
			continue
		}
		f := b.Packets[i].Frame
		at := e.r.IntN(len(f))
		switch at {
		case 26, 27, 32: // UDP checksum, the byte of the BTH that routers change: no ICRC covers them
			at = len(f) - 1
		}
		f[at] ^= byte(1 + e.r.IntN(255))
		e.all.Add(1)
		if at >= 20+8+12 {
			e.body.Add(1)
		}
	}
	return err
}

// isNoise reports whether a packet was dropped by the codec.
func isNoise(f wire.Fault) bool { return f != wire.OK && f < wire.NoAddress }

const (
	nodeRem   = 0     // what the peer's requests work on
	nodeSrc   = 8192  // never changes
	nodeDst   = 16384 // results
	nodeSlots = 64
	slotLen   = 3200
	nodeRecv  = nodeDst + nodeSlots*slotLen // receives
	nodeSize  = nodeRecv + nodeSlots*slotLen
)

// newNet makes the two devices and connects the queue pairs.
func newNet(t *testing.T, c netConfig) *network {
	t.Helper()
	if c.mtu == 0 {
		c.mtu = 1024
	}
	a, b := pipe.New(
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(peer4, 24)}, Latency: c.way},
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}, Latency: c.way})
	n := &network{rules: rules.Options{CNPInterval: 50 * time.Microsecond}}
	for i, end := range []*pipe.End{a, b} {
		s := &side{end: &noisy{End: end, p: c.noise, r: rand.New(rand.NewPCG(c.seed, uint64(i)))}}
		s.dev = must(device.Open(s.end, device.Options{Rand: newDice(), Link: link.PortOptions{Impair: must(impair.New(c.rules[i]...)), Capture: sink{&n.tape, i}}}))
		t.Cleanup(func() {
			if err := s.dev.Close(); err != nil {
				t.Error(err)
			}
		})
		s.ctx = s.dev.NewContext()
		n.sides[i] = s
	}
	attr := rules.Attr{Depth: c.depth, Timeout: 10, RetryCnt: 7}
	if attr.Depth == 0 {
		attr.Depth = 16
	}
	for p, typ := range c.pairs {
		var q [2]*node
		for i, s := range n.sides {
			x := &node{typ: typ, ctx: s.ctx, dev: s}
			if p == 0 {
				x.pd = must(s.ctx.AllocPD())
				s.counter = must(x.pd.RegMR(make([]byte, 8), every))
				if c.shared {
					s.srq = must(x.pd.CreateSRQ(device.SRQInit{MaxWR: nodeSlots, MaxSGE: 8}))
				}
			} else {
				x.pd = n.q[0][i].pd
			}
			x.scq, x.rcq = must(s.ctx.CreateCQ(device.CQInit{Entries: 512})), must(s.ctx.CreateCQ(device.CQInit{Entries: 512}))
			x.mr = must(x.pd.RegMR(make([]byte, nodeSize), every))
			x.disk = &disk{b: x.mr.Bytes()[nodeRem:nodeSrc], base: x.mr.Addr() + nodeRem}
			x.disk.Memory = device.NewMemory(x.disk.b)
			x.keep = must(x.pd.RegMemory(x.disk, x.disk.base, nodeSrc-nodeRem, device.FlushGlobal|device.FlushPersistent))
			init := device.QPInit{
				Type: typ, SendCQ: x.scq, RecvCQ: x.rcq, SRQ: s.srq,
				Cap: device.Cap{SendWR: 32, RecvWR: nodeSlots, SendSGE: 8, RecvSGE: 8, Inline: 64},
			}
			if x.srq = s.srq; typ == device.XRCIni {
				if s.xrcd == nil {
					s.xrcd = must(s.ctx.AllocXRCD())
				}
				x.srq = must(x.pd.CreateSRQ(device.SRQInit{MaxWR: nodeSlots, MaxSGE: 8, XRCD: s.xrcd, CQ: x.rcq}))
				x.in = must(s.xrcd.CreateXRCTarget(nil))
				init.RecvCQ, init.SRQ = nil, nil
			}
			x.qp = must(x.pd.CreateQP(init))
			if x.in == nil {
				x.in = x.qp
			}
			q[i] = x
		}
		o := device.ConnectOptions{Access: everyQP, Depth: c.depth, PathMTU: c.mtu, Timeout: 10, MinRNRTimer: 8}
		if c.ce {
			o.TrafficClass = 3
		}
		psn := [2]uint32{0xFFFFE0, 0x7FFFF0}
		connect := func(i int, a, b *device.QP) { // a of side i with b, one way
			if err := a.Connect(psn[i], b.Address(gid4, psn[1-i]), o); err != nil {
				t.Fatal(err)
			}
		}
		for i := range q {
			connect(i, q[i].qp, q[1-i].in)
			ends := [2]rules.End{{Addr: peer4, QPN: q[i].qp.Num(), Attr: attr}, {Addr: nic4, QPN: q[1-i].in.Num(), Attr: attr}}
			if i == 1 {
				ends[0].Addr, ends[1].Addr = nic4, peer4
			}
			if q[i].in != q[i].qp {
				connect(i, q[i].in, q[1-i].qp)
				ends[1].Attr = rules.Attr{}
			} else if i == 1 {
				continue
			}
			n.rules.Connections = append(n.rules.Connections, rules.Connection{A: ends[0], B: ends[1], MTU: c.mtu})
		}
		n.q = append(n.q, q)
	}
	return n
}

// window binds a new window of the node and returns its key.
func (x *node) window(t *testing.T) uint32 {
	t.Helper()
	w := must(x.pd.AllocMW(device.MW2B))
	wr := bindOf(w, x.mr, 0, 64, device.RemoteWrite)
	wr.Flags = device.Signaled
	if err := x.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	sameList(t, "bind", briefWC(drain(x.scq)), []string{"0 SUCCESS BIND_MW 0"})
	return w.RKey()
}

// message is what a receive must bring.
type message struct {
	data []byte // nil and imm: a WRITE with immediate
	wc   string // completion behind the ID
}

// modelWindow is a window that the peer gives the stream, again and again.
type modelWindow struct {
	w    *device.MW
	off  int
	n    int
	key  uint32
	free bool // not bound, and the peer may bind it
	good bool // bound, and the stream may use it
	read bool // a READ has used it; a copy of that may still be in the network, and would be refused
}

// stream is the requests of one node, with the reference: what the memory at both ends is to be, and
// what completes.
type stream struct {
	t      *testing.T
	name   string
	r      *rand.Rand
	q, at  *node // requester and responder
	back   *stream
	mtu    int
	left   int // requests to post
	posted uint64
	shared bool

	rem   []byte   // the responder's nodeRem
	dst   []byte   // the requester's nodeDst
	reads [][2]int // ranges of rem that were read since the last fence
	wants []string // completions to come, in order
	tests map[string]func()
	msgs  []message
	recvs []uint64 // receives that are posted at the responder, in order; not with a shared queue
	slots []bool   // slots of receives in use

	adds map[uint64]uint64 // original value of the shared counter, to what was added
	sums []int             // result slots of these

	fast    *device.FastMR
	fastKey uint32
	win     *modelWindow
	kept    []piece // what is to be made persistent, and with which bytes
}

func newStream(t *testing.T, name string, r *rand.Rand, q, at *node, mtu, left int) *stream {
	s := &stream{t: t, name: name, r: r, q: q, at: at, mtu: mtu, left: left, shared: at.srq != nil && at.in == at.qp,
		tests: map[string]func(){}, adds: map[uint64]uint64{}, slots: make([]bool, nodeSlots)}
	for i := range 8192 {
		at.mr.Bytes()[nodeRem+i] = byte(r.Uint32())
		q.mr.Bytes()[nodeSrc+i] = byte(r.Uint32())
	}
	if q.typ == device.UC { // what a WRITE leaves can be told from what was there
		clear(at.mr.Bytes()[:8192])
	}
	s.rem = bytes.Clone(at.mr.Bytes()[:8192])
	s.dst = make([]byte, nodeSlots*slotLen)
	s.fast = must(q.pd.AllocMR(slotLen))
	s.fastKey = s.fast.LKey()
	if q.typ == device.UC {
		s.win = &modelWindow{w: must(q.pd.AllocMW(device.MW2B))} // the peer does not use it
		s.win.key = s.win.w.RKey()
	} else {
		typ := device.MW1 // what an XRC initiator binds of another type is good for no target
		if q.typ == device.RC {
			typ += device.MWType(r.IntN(3))
		}
		s.win = &modelWindow{w: must(at.pd.AllocMW(typ)), free: true}
		s.win.key = s.win.w.RKey()
	}
	return s
}

func (s *stream) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s: %s", s.name, fmt.Sprintf(format, args...))
}

// size draws the length of a message.
func (s *stream) size() int {
	return []int{0, 1, s.mtu - 1, s.mtu, s.mtu + 1, 2*s.mtu + s.r.IntN(s.mtu), s.r.IntN(3 * s.mtu), 8}[s.r.IntN(8)]
}

// pieces splits a range of a node's memory into entries, empty ones among them.
func (s *stream) pieces(mr *device.MR, off, n int) []device.SGE {
	l := []device.SGE{}
	for n > 0 && len(l) < 6 {
		k := s.r.IntN(n + 1)
		l = append(l, mr.SGE(off, k))
		off, n = off+k, n-k
	}
	if n > 0 {
		l = append(l, mr.SGE(off, n))
	}
	return l
}

// post posts a request and notes its completion. It is false when the queue is full.
func (s *stream) post(wr device.SendWR, op string, n int, done func()) bool {
	s.posted++
	wr.ID = s.posted
	if s.q.typ == device.XRCIni {
		wr.SRQN = s.at.srq.Num()
	}
	if s.r.IntN(10) < 7 || s.posted%8 == 0 {
		wr.Flags |= device.Signaled
	}
	if s.r.IntN(16) == 0 {
		wr.Flags |= device.Fence
	}
	err := s.q.qp.PostSend(&wr)
	switch {
	case errors.Is(err, device.ENOMEM):
		s.posted--
		return false
	case err != nil:
		s.fatalf("%v: %v", wr.Op, err)
	}
	if wr.Flags&device.Fence != 0 {
		s.reads = s.reads[:0]
	}
	if wr.Flags&device.Signaled != 0 {
		w := fmt.Sprintf("%d SUCCESS %s %d", wr.ID, op, n)
		s.wants = append(s.wants, w)
		if done != nil {
			s.tests[w] = done
		}
	}
	s.left--
	return true
}

// touched gives a request that changes [off, off+n) the fence flag if a READ of it may still be
// under way: without a fence, a READ may see what comes after it.
func (s *stream) touched(wr *device.SendWR, off, n int) {
	for _, x := range s.reads {
		if off < x[1] && x[0] < off+n {
			wr.Flags |= device.Fence
		}
	}
}

// one posts one request, or two that belong together; false when the queue is full.
func (s *stream) one() bool {
	if s.q.typ == device.UC {
		return s.oneUC()
	}
	r, q := s.r, s.q
	n, slot := s.size(), int(s.posted)%nodeSlots
	src := r.IntN(4096)
	data := q.mr.Bytes()[nodeSrc+src:][:n]
	base := s.at.mr.Addr()
	key := s.at.mr.RKey()
	word := 8 * r.IntN(1024)
	switch k := r.IntN(20); k {
	case 0, 1, 2, 3, 4: // SEND
		wr := device.SendWR{Op: device.OpSend, SGE: s.pieces(q.mr, nodeSrc+src, n)}
		m := message{data, fmt.Sprintf("SUCCESS RECV %d", n)}
		if k == 1 {
			wr.Op, wr.Imm = device.OpSendImm, r.Uint32()
			m.wc += fmt.Sprintf(" imm=%08x", wr.Imm)
		}
		if k == 2 && n <= 64 {
			wr.Flags, wr.InlineData, wr.SGE = device.Inline, bytes.Clone(data), nil
		}
		if k >= 3 && s.win.good && !s.win.read && s.win.w.Type() == device.MW1 {
			// When this has completed, so has all that used the window: its owner may do with it what it likes.
			w := s.win
			give := device.SendWR{Op: device.OpWrite, RKey: 1, Flags: device.Signaled}
			if !s.post(give, "RDMA_WRITE", 0, func() { w.free = true }) {
				return false
			}
			w.good = false
			return true
		}
		if k >= 3 && s.win.good && !s.win.read { // and takes the window away
			// Fenced, because a READ of it that is under way would be refused.
			wr.Op, wr.Imm, wr.Flags = device.OpSendInv, s.win.key, device.Fence
			m.wc += fmt.Sprintf(" inv=%08x", wr.Imm)
		}
		if !s.post(wr, "SEND", n, nil) {
			return false
		}
		if wr.Op == device.OpSendInv {
			s.win.good = false
		}
		s.msgs = append(s.msgs, m)
	case 5, 6, 7, 8: // WRITE
		off := r.IntN(8192 - 3*s.mtu)
		if s.win.good && k == 8 {
			off, key = s.win.off, s.win.key
			n = min(n, s.win.n)
			data = data[:n]
		}
		wr := device.SendWR{Op: device.OpWrite, SGE: s.pieces(q.mr, nodeSrc+src, n), RemoteAddr: base + uint64(off), RKey: key}
		if k == 5 {
			wr.Op, wr.Imm = device.OpWriteImm, r.Uint32()
		}
		s.touched(&wr, off, n)
		if !s.post(wr, "RDMA_WRITE", n, nil) {
			return false
		}
		copy(s.rem[off:], data)
		if k == 5 {
			s.msgs = append(s.msgs, message{nil, fmt.Sprintf("SUCCESS RECV_RDMA_WITH_IMM %d imm=%08x", n, wr.Imm)})
		}
	case 9, 10, 11: // READ
		off := r.IntN(8192 - 3*s.mtu)
		if s.win.good && k == 9 && r.IntN(4) == 0 {
			off, key, n = s.win.off, s.win.key, min(n, s.win.n)
			s.win.read = true
		}
		wr := device.SendWR{Op: device.OpRead, SGE: s.pieces(q.mr, nodeDst+slot*slotLen, n), RemoteAddr: base + uint64(off), RKey: key}
		expect := bytes.Clone(s.rem[off : off+n])
		if !s.post(wr, "RDMA_READ", n, func() { s.result(slot, expect) }) {
			return false
		}
		copy(s.dst[slot*slotLen:], expect)
		s.reads = append(s.reads, [2]int{off, off + n})
		if k == 11 && s.left > 0 { // and a fenced SEND of what it brought
			wr := device.SendWR{Op: device.OpSend, SGE: s.pieces(q.mr, nodeDst+slot*slotLen, n), Flags: device.Fence}
			if s.post(wr, "SEND", n, nil) {
				s.msgs = append(s.msgs, message{expect, fmt.Sprintf("SUCCESS RECV %d", n)})
			}
		}
	case 12, 13, 14: // atomics
		kinds := 4
		if q.typ == device.XRCIni { // there are no masked ones
			kinds = 2
		}
		a := transport.Atomic{Op: []device.WROp{device.OpCompareSwap, device.OpFetchAdd, device.OpMaskedCompareSwap, device.OpMaskedFetchAdd}[r.IntN(kinds)]}
		if s.win.good && s.win.n > 8 && k == 12 {
			word, key = s.win.off, s.win.key
		}
		old := binary.NativeEndian.Uint64(s.rem[word:])
		a.CompareAdd, a.Swap, a.CompareAddMask, a.SwapMask = r.Uint64(), r.Uint64(), r.Uint64()&r.Uint64(), r.Uint64()
		if r.IntN(2) == 0 {
			a.CompareAdd = old
		}
		wr := device.SendWR{Op: a.Op, SGE: s.pieces(q.mr, nodeDst+slot*slotLen, 8), RemoteAddr: base + uint64(word), RKey: key,
			CompareAdd: a.CompareAdd, Swap: a.Swap, CompareAddMask: a.CompareAddMask, SwapMask: a.SwapMask}
		name, next := "", old
		switch a.Op {
		case device.OpCompareSwap:
			name = "COMP_SWAP"
			next = maskedSwap(old, a.CompareAdd, ^uint64(0), a.Swap, ^uint64(0))
		case device.OpFetchAdd:
			name, next = "FETCH_ADD", old+a.CompareAdd
		case device.OpMaskedCompareSwap:
			name = "IB_WC_MASKED_COMP_SWAP"
			next = maskedSwap(old, a.CompareAdd, a.CompareAddMask, a.Swap, a.SwapMask)
		case device.OpMaskedFetchAdd:
			name = "IB_WC_MASKED_FETCH_ADD"
			next = maskedAdd(old, a.CompareAdd, a.CompareAddMask)
		}
		s.touched(&wr, word, 8)
		expect := stored(old)
		if !s.post(wr, name, 8, func() { s.result(slot, expect) }) {
			return false
		}
		copy(s.dst[slot*slotLen:], expect)
		binary.NativeEndian.PutUint64(s.rem[word:], next)
	case 15: // ATOMIC WRITE
		v := stored(r.Uint64())
		wr := device.SendWR{Op: device.OpAtomicWrite, Flags: device.Inline, InlineData: v, RemoteAddr: base + uint64(word), RKey: key}
		s.touched(&wr, word, 8)
		if !s.post(wr, "ATOMIC_WRITE", 8, nil) {
			return false
		}
		copy(s.rem[word:], v)
	case 16: // FLUSH
		word = 8 * r.IntN((8192-n)/8)
		wr := device.SendWR{Op: device.OpFlush, FlushType: transport.FlushType(1 + r.IntN(3)), RemoteAddr: base + uint64(word), RKey: key, FlushLen: uint32(n), FlushLevel: transport.FlushLevel(r.IntN(2))}
		p := piece{word, string(s.rem[word:][:n])}
		if wr.FlushLevel == transport.FlushMR {
			p = piece{0, string(s.rem)}
		}
		if wr.FlushType&transport.FlushPersistent != 0 {
			wr.RKey = s.at.keep.RKey()
		}
		if !s.post(wr, "FLUSH", 0, nil) {
			return false
		}
		if wr.FlushType&transport.FlushPersistent != 0 && len(p.b) > 0 {
			s.kept = append(s.kept, p)
		}
	case 17: // the counter of all
		add := r.Uint64() | 1
		wr := device.SendWR{Op: device.OpFetchAdd, SGE: s.pieces(q.mr, nodeDst+slot*slotLen, 8), RemoteAddr: s.at.dev.counter.Addr(), RKey: s.at.dev.counter.RKey(), CompareAdd: add}
		if !s.post(wr, "FETCH_ADD", 8, nil) {
			return false
		}
		s.sums = append(s.sums, slot)
		s.adds[uint64(slot)] = add
	case 18: // a fast registration, used and ended
		if s.left < 3 {
			return s.post(device.SendWR{Op: device.OpSend}, "SEND", 0, nil) && s.note(message{[]byte{}, "SUCCESS RECV 0"})
		}
		mem := q.mr.Bytes()[nodeDst+slot*slotLen:][:slotLen]
		va := q.mr.Addr() + uint64(nodeDst+slot*slotLen)
		next := device.IncRKey(s.fastKey)
		reg := device.SendWR{Op: device.OpRegMR, Flags: device.Fence, Reg: transport.RegWR{LKey: s.fastKey, NewKey: next, Memory: device.NewMemory(mem), Addr: va, Length: slotLen, Access: device.LocalWrite}}
		if !s.post(reg, "IB_WC_REG_MR", 0, nil) {
			return false
		}
		s.fastKey = next
		off := r.IntN(8192 - 3*s.mtu)
		expect := bytes.Clone(s.rem[off : off+n])
		wr := device.SendWR{Op: device.OpReadInv, SGE: []device.SGE{{Addr: va, Length: uint32(n), LKey: next}}, RemoteAddr: base + uint64(off), RKey: key}
		inv := r.IntN(2) == 0
		if inv {
			wr.Op = device.OpRead
		}
		s.must(wr, "RDMA_READ", n, func() { s.result(slot, expect) })
		copy(s.dst[slot*slotLen:], expect)
		s.reads = append(s.reads, [2]int{off, off + n})
		if inv {
			s.must(device.SendWR{Op: device.OpLocalInv, Imm: next}, "LOCAL_INV", 0, nil)
			s.reads = s.reads[:0] // it has waited for all
		}
	case 19: // a window for the peer
		w := s.back.win
		if !w.free {
			return s.post(device.SendWR{Op: device.OpWrite, RKey: 1}, "RDMA_WRITE", 0, nil)
		}
		if w.w.Type() == device.MW1 && r.IntN(2) == 0 { // of no length: it is taken away, if it was bound
			wr := bindOf(w.w, q.mr, 0, 0, 0)
			wr.Flags = device.Signaled
			if !s.post(wr, "BIND_MW", 0, func() { w.free = true }) {
				return false
			}
			w.free = false
			return true
		}
		off, n := 8*r.IntN(512), 16+r.IntN(4000)
		wr := bindOf(w.w, q.mr, off, n, device.RemoteWrite|device.RemoteRead|device.RemoteAtomic)
		wr.Flags = device.Signaled
		if !s.post(wr, "BIND_MW", 0, func() { w.good, w.off, w.n, w.key = true, off, n, wr.Bind.NewKey }) {
			return false
		}
		w.free = false
	}
	return true
}

// must posts what has to follow, waiting for a place.
func (s *stream) must(wr device.SendWR, op string, n int, done func()) {
	s.t.Helper()
	for range 100000 {
		if s.post(wr, op, n, done) {
			return
		}
		time.Sleep(time.Millisecond)
		s.supply()
		s.back.supply()
		s.poll()
		s.back.poll()
	}
	s.fatalf("there is no place for %v", wr.Op)
}

func (s *stream) note(m message) bool {
	s.msgs = append(s.msgs, m)
	return true
}

// result checks a result that has just completed.
func (s *stream) result(slot int, expect []byte) {
	s.t.Helper()
	if got := s.q.mr.Bytes()[nodeDst+slot*slotLen:][:len(expect)]; !bytes.Equal(got, expect) {
		s.fatalf("result in slot %d is % x, want % x", slot, got[:min(32, len(got))], expect[:min(32, len(expect))])
	}
}

// oneUC posts a request of an unreliable connection. Each SEND says in its first bytes which it
// is, and WRITE i has the i-th place of the responder's memory for itself.
func (s *stream) oneUC() bool {
	q, i := s.q, int(s.posted)
	if i >= nodeSlots {
		s.left = 0
		return true
	}
	if s.left < 3 || i+3 > nodeSlots {
		return s.ucMessage(i, q.mr.LKey(), s.post)
	}
	force := func(wr device.SendWR, op string, n int, done func()) bool {
		s.must(wr, op, n, done)
		return true
	}
	switch s.r.IntN(16) {
	case 0: // a fast registration, which what is posted next is read under, and ended
		next := device.IncRKey(s.fastKey)
		reg := transport.RegWR{LKey: s.fastKey, NewKey: next, Memory: device.NewMemory(q.mr.Bytes()[nodeDst+(i+1)*slotLen:][:slotLen]),
			Addr: q.mr.Addr() + uint64(nodeDst+(i+1)*slotLen), Length: slotLen}
		if !s.post(device.SendWR{Op: device.OpRegMR, Reg: reg}, "IB_WC_REG_MR", 0, nil) {
			return false
		}
		s.fastKey = next
		s.ucMessage(i+1, next, force)
		s.must(device.SendWR{Op: device.OpLocalInv, Imm: next}, "LOCAL_INV", 0, nil)
		return true
	case 1: // a window, and its end
		wr := bindOf(s.win.w, q.mr, 8*s.r.IntN(512), 8, device.RemoteRead)
		wr.Bind.Window, wr.Bind.NewKey = s.win.key, device.IncRKey(s.win.key)
		if !s.post(wr, "BIND_MW", 0, nil) {
			return false
		}
		s.win.key = wr.Bind.NewKey
		s.must(device.SendWR{Op: device.OpLocalInv, Imm: s.win.key}, "LOCAL_INV", 0, nil)
		return true
	}
	return s.ucMessage(i, q.mr.LKey(), s.post)
}

// ucMessage posts message i, which is read under a local key.
func (s *stream) ucMessage(i int, lkey uint32, post func(wr device.SendWR, op string, n int, done func()) bool) bool {
	r, q := s.r, s.q
	n := max(8, s.size())
	slot := q.mr.Bytes()[nodeDst+i*slotLen:][:n] // the source: of this request alone
	for j := range slot {
		slot[j] = byte(r.Uint32()) | 1
	}
	binary.BigEndian.PutUint32(slot, uint32(i))
	copy(s.dst[i*slotLen:], slot)
	wr := device.SendWR{SGE: s.pieces(q.mr, nodeDst+i*slotLen, n), RemoteAddr: s.at.mr.Addr() + uint64(100*i), RKey: s.at.mr.RKey(), Imm: uint32(i)}
	m := message{data: bytes.Clone(slot)}
	switch r.IntN(4) {
	case 0:
		wr.Op, m.wc = device.OpSend, fmt.Sprintf("SUCCESS RECV %d", n)
	case 1:
		wr.Op, m.wc = device.OpSendImm, fmt.Sprintf("SUCCESS RECV %d imm=%08x", n, i)
	case 2:
		wr.Op = device.OpWrite
	case 3:
		wr.Op, m.wc = device.OpWriteImm, fmt.Sprintf("SUCCESS RECV_RDMA_WITH_IMM %d imm=%08x", n, i)
	}
	op := "SEND"
	if m.wc == "" || wr.Op == device.OpWriteImm {
		op = "RDMA_WRITE"
		wr.SGE = s.pieces(q.mr, nodeDst+i*slotLen, min(n, 100))
		if len(m.data) > 100 {
			m.data = m.data[:100]
		}
		n = len(m.data)
		if wr.Op == device.OpWriteImm {
			m.wc = fmt.Sprintf("SUCCESS RECV_RDMA_WITH_IMM %d imm=%08x", n, i)
		}
	}
	for k := range wr.SGE {
		wr.SGE[k].LKey = lkey
	}
	if !post(wr, op, n, nil) {
		return false
	}
	for len(s.msgs) <= i {
		s.msgs = append(s.msgs, message{})
	}
	s.msgs[i] = m
	if op == "RDMA_WRITE" {
		copy(s.rem[100*i:], m.data)
	}
	return true
}

// supply posts receives at the responder, now and then.
func (s *stream) supply() {
	if s.r.IntN(3) == 0 {
		return
	}
	for range s.r.IntN(6) {
		i := slices.Index(s.slots, false)
		if i < 0 {
			return
		}
		x, mr := s.at, s.at.mr
		id := uint64(i)
		wr := device.RecvWR{ID: id, SGE: s.pieces(mr, nodeRecv+i*slotLen, slotLen)}
		var err error
		if s.shared {
			// The slots of all streams to a device share its queue: told apart by the upper bits.
			wr.ID |= uint64(mr.RKey()) << 32
			err = x.srq.PostRecv(&wr)
			if errors.Is(err, device.ENOMEM) {
				return
			}
		} else {
			if x.srq != nil {
				err = x.srq.PostRecv(&wr)
			} else {
				err = x.qp.PostRecv(&wr)
			}
			s.recvs = append(s.recvs, id)
		}
		if err != nil {
			s.fatalf("%v", err)
		}
		s.slots[i] = true
	}
}

// poll takes completions and compares them; it reports whether there were any.
func (s *stream) poll() bool {
	s.t.Helper()
	busy := false
	wc := make([]device.WC, 64)
	for _, w := range wc[:s.q.scq.Poll(wc)] {
		busy = true
		got := briefWC([]device.WC{w})[0]
		if len(s.wants) == 0 || got != s.wants[0] {
			s.fatalf("send completion %q, want %q", got, append(s.wants, "none")[0])
		}
		s.wants = s.wants[1:]
		if f := s.tests[got]; f != nil {
			f()
		}
	}
	for _, w := range wc[:s.at.rcq.Poll(wc)] {
		busy = true
		s.arrived(w)
	}
	return busy
}

// arrived checks a completion of a receive.
func (s *stream) arrived(w device.WC) {
	s.t.Helper()
	x := s
	if s.shared { // whose buffer it is
		for _, o := range s.at.dev.streams {
			if uint32(w.ID>>32) == o.at.mr.RKey() {
				x = o
			}
		}
		w.ID &= 1<<32 - 1
	} else {
		if w.ID != s.recvs[0] {
			s.fatalf("receive %d completed before %d", w.ID, s.recvs[0])
		}
		s.recvs = s.recvs[1:]
	}
	x.slots[w.ID] = false
	buf := x.at.mr.Bytes()[nodeRecv+int(w.ID)*slotLen:][:slotLen]
	_, got, _ := strings.Cut(fullWC([]device.WC{w})[0], " ")
	var m message
	if s.q.typ == device.UC {
		i := int(w.Imm)
		if w.Flags&device.WCWithImm == 0 {
			i = int(binary.BigEndian.Uint32(buf))
		}
		if i >= len(s.msgs) {
			s.fatalf("message %d arrived, %d were sent", i, len(s.msgs))
		}
		m = s.msgs[i]
		if w.Op == device.WCRecvImm {
			if b := s.at.mr.Bytes()[100*i:][:len(m.data)]; !bytes.Equal(b, m.data) {
				s.fatalf("WRITE %d: its immediate is here, its data is not", i)
			}
			m.data = nil
		}
	} else {
		if len(s.msgs) == 0 {
			s.fatalf("a message that was not sent: %s", got)
		}
		m = s.msgs[0]
		s.msgs = s.msgs[1:]
		if w.Flags&device.WCWithInv != 0 {
			s.win.free = true
		}
	}
	if got != m.wc {
		s.fatalf("receive completion %q, want %q", got, m.wc)
	}
	if m.data != nil && !bytes.Equal(buf[:len(m.data)], m.data) {
		s.fatalf("message %q has the wrong bytes", got)
	}
}

// end checks what is left when everything has completed.
func (s *stream) end() {
	s.t.Helper()
	if len(s.wants) > 0 {
		s.fatalf("completion %q never came; state %v", s.wants[0], s.q.qp.State())
	}
	if s.q.typ == device.UC {
		// Of the WRITEs, each of one packet, all has arrived or nothing; nothing else has changed.
		for i := range 80 {
			b := s.at.mr.Bytes()[100*i:][:100]
			if !bytes.Equal(b, s.rem[100*i:][:100]) && !bytes.Equal(b, make([]byte, 100)) {
				s.fatalf("WRITE %d left % x", i, b)
			}
		}
		return
	}
	if len(s.msgs) > 0 {
		s.fatalf("message %q never came", s.msgs[0].wc)
	}
	if got := s.at.mr.Bytes()[:8192]; !bytes.Equal(got, s.rem) {
		i := 0
		for got[i] == s.rem[i] {
			i++
		}
		s.fatalf("memory of the responder: byte %d is %02x, want %02x", i, got[i], s.rem[i])
	}
	if !slices.Equal(s.at.disk.kept, s.kept) {
		s.fatalf("%d pieces were made persistent, want %d, or they had other bytes", len(s.at.disk.kept), len(s.kept))
	}
	for _, slot := range s.sums {
		copy(s.dst[slot*slotLen:], s.q.mr.Bytes()[nodeDst+slot*slotLen:][:8])
	}
	if got := s.q.mr.Bytes()[nodeDst:nodeRecv]; !bytes.Equal(got, s.dst) {
		i := 0
		for got[i] == s.dst[i] {
			i++
		}
		s.fatalf("results: byte %d of slot %d is %02x, want %02x", i%slotLen, i/slotLen, got[i], s.dst[i])
	}
}

// modelSeeds is how many seeds the model test takes.
func modelSeeds(t *testing.T) int {
	if v := os.Getenv("SOFTNIC_SEEDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 200
}

// Requests of all kinds between two devices whose network loses, doubles, delays, reorders and corrupts
// 5 % of the packets, against a reference that knows memory and completions only. What both ports
// saw keeps the rules of a trace, and the counters say what it shows. SOFTNIC_SEEDS says how many seeds (200), SOFTNIC_SEED which alone.
func TestModel(t *testing.T) {
	if v := os.Getenv("SOFTNIC_SEED"); v != "" {
		seed := must(strconv.ParseUint(v, 10, 64))
		synctest.Test(t, func(t *testing.T) { model(t, seed) })
		return
	}
	n := modelSeeds(t)
	fresh := rand.Uint64()
	for i := range n {
		seed := uint64(i)
		if i >= n/2 { // half of them are new in every run
			seed = fresh + uint64(i)
		}
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { model(t, seed) })
		})
		if t.Failed() {
			t.Fatalf("run it alone with SOFTNIC_SEED=%d", seed)
		}
	}
}

// requestOpcodes is all of them, for a rule of impairment.
const requestOpcodes = "SEND*,WRITE*,READ_REQUEST,COMPARE*,FETCH*,MASKED*,FLUSH,ATOMIC_WRITE"

func model(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	c := netConfig{
		pairs: []device.QPType{device.RC, []device.QPType{device.RC, device.UC, device.XRCIni}[seed%3]},
		noise: 0.01, seed: seed, way: time.Duration(1000 + r.IntN(50000)), // to the ns, so that little happens at one moment by chance
		depth: 1 + r.IntN(8), mtu: []int{256, 256, 1024}[r.IntN(3)], shared: r.IntN(3) == 0, ce: r.IntN(4) == 0,
	}
	for i := range c.rules {
		s := func() uint32 { return r.Uint32() >> 1 }
		// Answers are held back at the receiver only: a capture of their sender cannot tell one from
		// the same answer sent again meanwhile, nor which of two that are let go is a copy.
		held, twice := "rx", "tx"
		if r.IntN(2) == 0 {
			held, twice = "tx opcode="+requestOpcodes, "rx"
		}
		c.rules[i] = []string{
			fmt.Sprintf("%s drop=1%% seed=%d", []string{"tx", "rx"}[r.IntN(2)], s()), fmt.Sprintf("%s duplicate p=1%% seed=%d", twice, s()),
			fmt.Sprintf("%s reorder p=1%% seed=%d", held, s()), fmt.Sprintf("%s delay=%dns p=1%% seed=%d", held, 1+r.IntN(10e6), s()),
		}
	}
	n := newNet(t, c)
	const requests = 200
	var all []*stream
	for p, q := range n.q {
		var pair [2]*stream
		for i := range q {
			pair[i] = newStream(t, fmt.Sprintf("seed %d: %v pair %d, side %d", seed, q[i].typ, p, i), r, q[i], q[1-i], c.mtu, requests/4)
			all = append(all, pair[i])
			q[1-i].dev.streams = append(q[1-i].dev.streams, pair[i])
		}
		pair[0].back, pair[1].back = pair[1], pair[0]
	}
	finished := func() bool {
		for _, s := range all {
			if s.left > 0 || len(s.wants) > 0 || len(s.msgs) > 0 && s.q.typ != device.UC {
				return false
			}
		}
		return true
	}
	last := time.Now()
	for !finished() {
		for _, s := range all {
			for range r.IntN(8) {
				if s.left <= 0 || !s.one() {
					break
				}
			}
			s.supply()
		}
		if r.IntN(2) == 0 {
			time.Sleep(time.Duration(r.IntN(2e6)))
		}
		synctest.Wait()
		for _, s := range all {
			if s.poll() {
				last = time.Now()
			}
		}
		if time.Since(last) > time.Minute {
			break // end says what is missing
		}
	}
	time.Sleep(time.Second) // late packets
	synctest.Wait()
	for _, s := range all {
		if s.poll() && s.q.typ != device.UC {
			s.fatalf("a completion too many")
		}
		s.end()
		want(t, s.name+": state", s.q.qp.State(), device.StateRTS)
		want(t, s.name+": state of the responder", s.at.in.State(), device.StateRTS)
	}
	for _, x := range n.sides {
		modelCounter(t, x)
		if e, ok := x.ctx.TryAsyncEvent(); ok {
			t.Fatalf("seed %d: event %v", seed, e.Type)
		}
	}
	for i, x := range n.sides {
		all := n.tape.sorted(i)
		showCounters(all, c.mtu).compare(t, fmt.Sprintf("seed %d, side %d", seed, i), x.dev.Statistics(), true)
		for _, pair := range n.q {
			here, there := pair[i], pair[1-i]
			for q, to := range map[*device.QP]*device.QP{here.qp: there.in, here.in: there.qp} {
				showCounters(ofQP(all, q.Num(), to.Num()), c.mtu).compare(t, fmt.Sprintf("seed %d, side %d, QP %x", seed, i, q.Num()), q.Statistics(), false)
			}
		}
	}
	modelFailure(t, r, all)
	modelRules(t, seed, n)
}

// modelRules judges what both ports have seen. A packet in which a byte was changed must have been
// found, and is as good as lost.
func modelRules(t *testing.T, seed uint64, n *network) {
	t.Helper()
	for i, s := range n.sides {
		found, icrc := uint64(0), uint64(0)
		for f := wire.NotRoCE; isNoise(f); f++ {
			found += s.dev.Counters().Drops(int(f))
		}
		icrc = s.dev.Counters().Drops(int(wire.ICRC))
		if all, body := s.end.all.Load(), s.end.body.Load(); found > all || icrc < body {
			t.Errorf("seed %d, side %d: %d packets were corrupted, %d of them behind the BTH; %d were dropped, %d for their ICRC", seed, i, all, body, found, icrc)
		}
	}
	l := slices.DeleteFunc(n.tape.sorted(0, 1), func(x taped) bool { return x.dir == rules.Rx && isNoise(x.fault) })
	c := judge(n.rules, l)
	f := c.Findings()
	if c.Broken() > 0 {
		t.Errorf("seed %d: rules are broken\n%s", seed, findings(c))
	}
	// What came doubled or late on purpose leaves open what was taken.
	wild := slices.ContainsFunc(l, func(x taped) bool { return x.fate == rules.Held || x.fate == rules.Copied })
	for _, id := range []rules.ID{rules.PSNContiguous, rules.MSN, rules.ResponseRange, rules.ResponseKind, rules.Depth} {
		if f[id].Kept == 0 && (!wild || id == rules.PSNContiguous || id == rules.Depth) {
			t.Errorf("seed %d: %v was never judged\n%s", seed, id, findings(c))
		}
	}
}

// modelCounter checks the word that all connections to a device have added to: its additions are
// in one order, and each found what the one before had left.
func modelCounter(t *testing.T, x *side) {
	t.Helper()
	adds := map[uint64]uint64{}
	for _, s := range x.streams {
		for _, slot := range s.sums {
			old := binary.NativeEndian.Uint64(s.dst[slot*slotLen:])
			if _, twice := adds[old]; twice {
				s.fatalf("two additions found %x", old)
			}
			adds[old] = s.adds[uint64(slot)]
		}
	}
	v, n := uint64(0), len(adds)
	for range n {
		a, ok := adds[v]
		if !ok {
			t.Fatalf("nothing was added to %x", v)
		}
		v += a
	}
	want(t, "the counter of all", word(x.counter, 0), v)
}

// modelFailure ends a connection by a request that fails: it completes with its status, the ones
// behind it are flushed, each of them once, in order, unsignaled ones too; and so are the receives.
func modelFailure(t *testing.T, r *rand.Rand, all []*stream) {
	t.Helper()
	all = slices.DeleteFunc(slices.Clone(all), func(s *stream) bool { return s.q.typ == device.UC })
	s := all[r.IntN(len(all))]
	n := 1 + r.IntN(10)
	for i := range n + 1 {
		wr := device.SendWR{ID: uint64(i), Op: device.OpWrite, SGE: s.pieces(s.q.mr, nodeSrc, 8), RemoteAddr: 1, RKey: 1}
		if s.q.typ == device.XRCIni {
			wr.SRQN = s.at.srq.Num()
		}
		if err := s.q.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(10 * time.Second)
	got := briefWC(drain(s.q.scq))
	wants := []string{"0 REM_ACCESS_ERR"}
	if len(got) > 0 && got[0] == "0 RETRY_EXC_ERR" { // the NAK was lost: nobody repeats it
		wants = got[:1:1]
	}
	for i := range n {
		wants = append(wants, fmt.Sprintf("%d WR_FLUSH_ERR", i+1))
	}
	sameList(t, s.name+": requests that fail", got, wants)
	var recvs []string
	for _, id := range s.recvs {
		if s.at.srq != nil {
			break // those of a shared queue stay in it
		}
		recvs = append(recvs, fmt.Sprintf("%d WR_FLUSH_ERR", id))
	}
	sameList(t, s.name+": receives", briefWC(drain(s.at.rcq)), append([]string{}, recvs...))
	if !bytes.Equal(s.at.mr.Bytes()[:8192], s.rem) {
		s.fatalf("a request that was refused has changed memory")
	}
}
