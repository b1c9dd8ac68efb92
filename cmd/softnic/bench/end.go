package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"

	"github.com/softnic/softnic/device"
)

// region is what a side tells of the memory of a queue pair.
type region struct {
	Out  uint64 `json:"out"` // where its messages are: what the peer may READ
	In   uint64 `json:"in"`  // where those of the peer go
	RKey uint32 `json:"rkey"`
}

// lane is a queue pair with its memory.
type lane struct {
	qp      *device.QP
	mr      *device.MR
	out, in []byte // of Config.Size each
	inAt    int    // offset of in
	psn     uint32
	peer    region
	recv    device.RecvWR

	posted, done, quota int // requests of this side: so many were, and are to be
}

// end is one side of a test.
type end struct {
	c     Config
	dev   *device.Device
	ctx   *device.Context
	cq    *device.CQ
	ch    *device.CompChannel
	lanes []*lane
	byQPN map[uint32]*lane
	wc    []device.WC
	beat  watchdog
	yield bool // see pollers
}

// align is where the peer's messages begin: an atomic needs 8, a cache line is its own.
const align = 64

func newEnd(dev *device.Device, c Config) (_ *end, err error) {
	e := &end{c: c, dev: dev, ctx: dev.NewContext(), wc: make([]device.WC, 64), byQPN: make(map[uint32]*lane)}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	pd, err := e.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	in := device.CQInit{Entries: c.QPs * c.Depth}
	rx := 0
	if c.receives() {
		rx = c.RXDepth
		in.Entries += c.QPs * rx
	}
	if c.Wait == Events {
		if e.ch, err = e.ctx.CreateCompChannel(); err != nil {
			return nil, err
		}
		in.Channel = e.ch
	}
	if e.cq, err = e.ctx.CreateCQ(in); err != nil {
		return nil, err
	}
	for range c.QPs {
		l := &lane{psn: dev.RandomPSN(), inAt: (c.Size + align - 1) / align * align}
		buf := make([]byte, l.inAt+c.Size+align)
		skip := int(-device.AddrOf(buf) % align)
		buf = buf[skip : skip+l.inAt+c.Size]
		l.out, l.in = buf[:c.Size], buf[l.inAt:]
		l.mr, err = pd.RegMR(buf, device.LocalWrite|device.RemoteWrite|device.RemoteRead|device.RemoteAtomic)
		if err != nil {
			return nil, err
		}
		l.qp, err = pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: e.cq, RecvCQ: e.cq, Cap: device.Cap{SendWR: c.Depth, RecvWR: rx, Inline: c.Inline}})
		if err != nil {
			return nil, err
		}
		e.lanes, e.byQPN[l.qp.Num()] = append(e.lanes, l), l
	}
	return e, nil
}

func (e *end) close() { _ = e.ctx.Close() }

// gidIndex is the entry of the GID table that packets are sent from: the first IPv4 address, or what there is.
func (e *end) gidIndex() int {
	if g, err := e.dev.QueryGID(1, 1); err == nil && !g.IsZero() {
		return 1
	}
	return 0
}

// describe returns what the other side must know.
func (e *end) describe() (remotes []device.Remote, regions []region) {
	for _, l := range e.lanes {
		remotes = append(remotes, l.qp.Address(e.gidIndex(), l.psn))
		regions = append(regions, region{Out: l.mr.Addr(), In: l.mr.Addr() + uint64(l.inAt), RKey: l.mr.RKey()})
	}
	return remotes, regions
}

// connect connects all queue pairs and posts the receives.
func (e *end) connect(remotes []device.Remote, regions []region) error {
	if len(remotes) != len(e.lanes) || len(regions) != len(e.lanes) {
		return fmt.Errorf("the other side has %d queue pairs, this one %d", len(remotes), len(e.lanes))
	}
	p, err := e.dev.QueryPort(1)
	if err != nil {
		return err
	}
	if e.c.PathMTU > p.ActiveMTU {
		return fmt.Errorf("-m %d: %s has active MTU %d: use that, or a link with a larger MTU", e.c.PathMTU, e.dev, p.ActiveMTU)
	}
	for i, l := range e.lanes {
		l.peer = regions[i]
		err := l.qp.Connect(l.psn, remotes[i], device.ConnectOptions{
			SGIDIndex: e.gidIndex(), PathMTU: e.c.PathMTU, Timeout: e.c.Timeout, Depth: device.MaxRdAtomic, MinRNRTimer: 1,
			Access: device.RemoteWrite | device.RemoteRead | device.RemoteAtomic,
		})
		if err != nil {
			return err
		}
		for range e.receives() {
			if err := l.receive(&e.c); err != nil {
				return err
			}
		}
	}
	return nil
}

// pollers tells in which process the other side is. Where all of a process's goroutines that may run at a time poll, they let others run in
// between: the NIC's. Elsewhere they do not: one that yields and is at once run again keeps its thread from ever asking the network
// poller what has come, and packets then wait for 10 ms (Go's runtime/proc.go: sysmon).
func (e *end) pollers(other uint64) {
	n := 1
	if other == process && (e.c.active() || e.c.PeerPoll) {
		n = 2
	}
	e.yield = runtime.GOMAXPROCS(0) <= n
}

func (e *end) receives() int {
	if e.c.receives() {
		return e.c.RXDepth
	}
	return 0
}

// receive posts a receive.
func (l *lane) receive(c *Config) error {
	if c.Op == Send && l.recv.SGE == nil {
		l.recv.SGE = []device.SGE{l.mr.SGE(l.inAt, c.Size)}
	}
	return l.qp.PostRecv(&l.recv)
}

// request returns the request that the test is made of, on lane i. It is posted again and again.
func (e *end) request(i int) device.SendWR {
	l := e.lanes[i]
	wr := device.SendWR{ID: uint64(i), SGE: []device.SGE{l.mr.SGE(0, e.c.Size)}, RemoteAddr: l.peer.In, RKey: l.peer.RKey}
	switch e.c.Op {
	case Write:
		wr.Op = device.OpWrite
		if e.c.withImm() {
			wr.Op = device.OpWriteImm
		}
	case Send:
		wr.Op = device.OpSend
	case Read:
		wr.Op, wr.RemoteAddr = device.OpRead, l.peer.Out
		wr.SGE[0] = l.mr.SGE(l.inAt, e.c.Size)
	case Atomic:
		// The result goes where no peer adds.
		wr.Op, wr.CompareAdd = device.OpFetchAdd, 1
	}
	if (e.c.Op == Write || e.c.Op == Send) && e.c.Size <= e.c.Inline {
		wr.Flags, wr.InlineData, wr.SGE = device.Inline, l.out, nil
	}
	return wr
}

// fill makes the messages of all lanes; the two sides have different ones.
func (e *end) fill(seed uint64) {
	for i, l := range e.lanes {
		pattern(l.out, seed, i)
		clear(l.in)
	}
	if e.c.Op == Atomic {
		for _, l := range e.lanes {
			clear(l.out)
		}
	}
}

func pattern(b []byte, seed uint64, lane int) {
	r := rand.New(rand.NewPCG(seed, uint64(lane)))
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// settle takes the lock of each queue pair, under which its NIC writes: what a peer was told is done is seen then, and what
// was read here is read before the NIC writes again.
func (e *end) settle() {
	for _, l := range e.lanes {
		l.qp.Query()
	}
}

// compare compares what has come with what the other side made with its seed.
func (e *end) compare(seed uint64) error {
	want := make([]byte, e.c.Size)
	e.settle()
	defer e.settle()
	for i, l := range e.lanes {
		pattern(want, seed, i)
		for j := range want {
			if want[j] != l.in[j] {
				return fmt.Errorf("%s: byte %d of %d on queue pair %d is %#02x, want %#02x", e.c.Op, j, len(want), i, l.in[j], want[j])
			}
		}
	}
	return nil
}

// sum returns what peers have added, on all lanes.
func (e *end) sum() (n uint64) {
	e.settle()
	for _, l := range e.lanes {
		n += binary.NativeEndian.Uint64(l.in)
	}
	return n
}

// next waits for completions, in the way of the test, and returns them. None of them is a failure. It returns
// none and no error when ctx has ended.
func (e *end) next(ctx context.Context) ([]device.WC, error) {
	n := 0
	for spins := 1; n == 0; spins++ {
		if n = e.cq.Poll(e.wc); n > 0 {
			break
		}
		var err error
		switch e.c.Wait {
		case Poll:
			if spins%256 == 0 {
				err = ctx.Err()
			}
			if e.yield {
				runtime.Gosched()
			}
		case Block:
			n, err = e.cq.Wait(ctx, e.wc)
		case Events:
			if !e.cq.Arm(false) {
				_, err = e.ch.Get(ctx)
			}
		}
		if err != nil && ctx.Err() != nil {
			if c := context.Cause(ctx); !errors.Is(c, context.Canceled) {
				return nil, c
			}
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range e.wc[:n] {
		if w := &e.wc[i]; w.Status != device.StatusSuccess {
			return nil, failed(w)
		}
	}
	e.beat.beats.Add(1)
	return e.wc[:n], nil
}

// failed makes a line of a completion with an error.
func failed(w *device.WC) error {
	hint := ""
	if w.Status == device.StatusRetryExceeded {
		hint = ": the other side does not answer: has it ended, is this machine or that one overloaded (-u gives it more time), does the path carry the MTU (-m)?"
	}
	return fmt.Errorf("queue pair %#06x: %w%s", w.QPN, w.Err(), hint)
}
