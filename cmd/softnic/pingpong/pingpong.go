package pingpong

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/stats"
)

// qkey is the Q_Key of ibv_ud_pingpong.
const qkey = 0x11111111

// Config says what Run does. The zero value of a field means what its comment says.
type Config struct {
	Service  device.QPType // RC or UD
	Host     string        // the server's; "" is the server
	Port     int           // TCP, for the exchange; 0: 18515
	Listener net.Listener  // where a server waits; nil: on Port
	Size     int           // bytes of a message (the longest with Seeded and Echo)
	MTU      int           // path MTU of RC; 0: 1024
	RXDepth  int           // receives posted at a time; 0: 500
	Iters    int           // messages each way; 0: 1000
	GIDIndex int           // negative: the first in use after 0, which is link-local (1 is the first IPv4 address)
	Events   bool          // wait on a completion channel
	Check    bool          // option -c of the stock tools
	Pattern  Pattern       // "": Constant
	Seed     uint64        // for Echo and Seeded

	Wait            time.Duration // how long a client tries again while nobody listens; 0: not at all
	ExchangeTimeout time.Duration // for each step of the peer on TCP; 0: 10 s
	Stall           time.Duration // without any completion it fails; 0: 30 s
	Linger          time.Duration // RC: the NIC stays until the peer was silent for so long; 0: not at all

	Out io.Writer // lines as the stock tools print them; nil: none

	judge judge // in place of that of Pattern, for tests
}

// Result is what Run found out.
type Result struct {
	Transport string   `json:"transport"`
	Role      string   `json:"role"`
	Local     Dest     `json:"local"`
	Remote    Dest     `json:"remote"`
	Size      int      `json:"size"`
	Iters     int      `json:"iters"`
	Bytes     int64    `json:"bytes"` // both ways
	Seconds   float64  `json:"seconds"`
	Mbit      float64  `json:"mbit_per_second"`
	Usec      float64  `json:"usec_per_iter"`
	Verified  Verified `json:"verified"`
}

// Verified says what was compared byte by byte.
type Verified struct {
	Pattern  Pattern `json:"pattern"`
	Seed     uint64  `json:"seed,omitempty"`
	Messages int     `json:"messages"`
	Bytes    int64   `json:"bytes"`
}

func (c *Config) check(active int) error {
	for _, d := range []struct {
		v   *int
		def int
	}{{&c.Port, 18515}, {&c.MTU, 1024}, {&c.RXDepth, 500}, {&c.Iters, 1000}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.ExchangeTimeout, 10 * time.Second}, {&c.Stall, 30 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.Pattern == "" {
		c.Pattern = Constant
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	switch {
	case c.Service != device.RC && c.Service != device.UD:
		return fmt.Errorf("service %s: rc and ud are there", c.Service)
	case c.Size < 0 || c.Size > device.MaxMessage:
		return fmt.Errorf("size %d (-s): 0 ... %d are possible", c.Size, device.MaxMessage)
	case c.Service == device.UD && c.Size > active:
		return fmt.Errorf("size %d (-s) is larger than the port's active MTU %d, which limits datagrams: use -s %d on both sides", c.Size, active, active)
	case c.Service == device.RC && (c.MTU < 256 || c.MTU > 4096 || c.MTU&(c.MTU-1) != 0):
		return fmt.Errorf("path MTU %d (-m): 256, 512, 1024, 2048 or 4096", c.MTU)
	case c.Service == device.RC && c.MTU > active:
		return fmt.Errorf("path MTU %d (-m) is above the port's active MTU: use -m %d on both sides", c.MTU, active)
	case c.RXDepth < 1 || c.RXDepth > device.MaxCQE-1:
		return fmt.Errorf("rx-depth %d (-r): 1 ... %d are possible", c.RXDepth, device.MaxCQE-1)
	case c.Iters < 1:
		return fmt.Errorf("iters %d (-n): at least 1", c.Iters)
	case c.Port < 1 || c.Port > 65535:
		return fmt.Errorf("port %d (-p): 1 ... 65535", c.Port)
	case c.Pattern != Constant && c.Pattern != Echo && c.Pattern != Seeded:
		return fmt.Errorf("pattern %q: one of %s", c.Pattern, Patterns())
	}
	return nil
}

// Run plays one game of ping-pong with a device of its own; the caller closes the device. It
// ends with the first byte that is not what it must be.
func Run(ctx context.Context, dev *device.Device, c Config) (*Result, error) {
	port, err := dev.QueryPort(1)
	if err != nil {
		return nil, err
	}
	if err := c.check(port.ActiveMTU); err != nil {
		return nil, err
	}
	g := &game{c: c, dev: dev}
	if g.sgid, g.local.GID, err = chooseGID(dev, c.GIDIndex); err != nil {
		return nil, err
	}
	g.ctx = dev.NewContext()
	defer g.ctx.Close()
	if err := g.prepare(); err != nil {
		return nil, err
	}
	if err := g.meet(ctx); err != nil {
		return nil, err
	}
	r, err := g.play(ctx)
	if err == nil {
		g.linger(ctx)
	}
	return r, err
}

// chooseGID returns the entry of the GID table to use.
func chooseGID(dev *device.Device, index int) (int, device.GID, error) {
	have := ""
	best := 0
	for i := range device.GIDTableLen {
		g, err := dev.QueryGID(1, i)
		if err != nil {
			return 0, g, err
		}
		if g.IsZero() {
			continue
		}
		have += fmt.Sprintf(", %d %s", i, g)
		if best == 0 {
			best = i // after 0, which is link-local
		}
	}
	if index < 0 {
		index = best
	}
	g, err := dev.QueryGID(1, index)
	if err != nil || g.IsZero() {
		return 0, g, fmt.Errorf("GID index %d (-g) is empty; have%s", index, have[min(1, len(have)):])
	}
	return index, g, nil
}

// game is one run.
type game struct {
	c      Config
	dev    *device.Device
	ctx    *device.Context
	judge  judge
	sgid   int
	local  Dest
	remote Dest

	pd       *device.PD
	qp       *device.QP
	cq       *device.CQ
	channel  *device.CompChannel
	ah       *device.AH
	send     *device.MR
	recv     *device.MR
	posted   int // receives
	progress atomic.Uint64
}

// The work request IDs of the stock tools.
const (
	recvID = 1
	sendID = 2
)

// prepare makes everything up to the receives.
func (g *game) prepare() (err error) {
	if g.c.Events {
		if g.channel, err = g.ctx.CreateCompChannel(); err != nil {
			return err
		}
	}
	if g.pd, err = g.ctx.AllocPD(); err != nil {
		return err
	}
	if g.cq, err = g.ctx.CreateCQ(device.CQInit{Entries: g.c.RXDepth + 1, Channel: g.channel}); err != nil {
		return err
	}
	if g.send, err = g.pd.RegMR(make([]byte, g.c.Size), 0); err != nil {
		return err
	}
	if g.recv, err = g.pd.RegMR(make([]byte, g.offset()+g.c.Size), device.LocalWrite); err != nil {
		return err
	}
	g.qp, err = g.pd.CreateQP(device.QPInit{
		Type: g.c.Service, SendCQ: g.cq, RecvCQ: g.cq, Cap: device.Cap{SendWR: 1, RecvWR: g.c.RXDepth},
	})
	if err != nil {
		return err
	}
	init := &device.QPAttr{State: device.StateInit, Port: 1, QKey: qkey}
	mask := device.AttrState | device.AttrPKeyIndex | device.AttrPort
	if g.c.Service == device.UD {
		mask |= device.AttrQKey
	} else {
		mask |= device.AttrAccess
	}
	if err := g.qp.Modify(init, mask); err != nil {
		return err
	}
	if g.judge = g.c.judge; g.judge == nil {
		g.judge = newJudge(&g.c)
	}
	g.local.QPN, g.local.PSN = g.qp.Num(), g.dev.RandomPSN()
	return g.post()
}

// offset is where the payload begins in the receive buffer.
func (g *game) offset() int {
	if g.c.Service == device.UD {
		return device.GRHLen
	}
	return 0
}

// post fills up the receive queue. All receives share one buffer: there is never more
// than one message on its way to us.
func (g *game) post() error {
	wr := &device.RecvWR{ID: recvID, SGE: []device.SGE{g.recv.SGE(0, g.recv.Len())}}
	for ; g.posted < g.c.RXDepth; g.posted++ {
		if err := g.qp.PostRecv(wr); err != nil {
			return err
		}
	}
	return nil
}

// meet exchanges addresses and connects.
func (g *game) meet(ctx context.Context) (err error) {
	colon := ","
	if g.c.Service == device.UD {
		colon = ":" // so does the stock tool
	}
	fmt.Fprintf(g.c.Out, "  local address:  LID 0x%04x, QPN 0x%06x, PSN 0x%06x%s GID %s\n", g.local.LID, g.local.QPN, g.local.PSN, colon, g.local.GID)
	if g.c.Host == "" {
		l := g.c.Listener
		if l == nil {
			if l, err = Listen(ctx, g.c.Port); err != nil {
				return err
			}
		}
		g.remote, err = Serve(ctx, l, g.local, g.c.ExchangeTimeout, g.connect)
	} else if g.remote, err = dialUntil(ctx, g.c.Host, g.c.Port, g.local, g.c.ExchangeTimeout, g.c.Wait); err == nil {
		err = g.connect(g.remote)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(g.c.Out, "  remote address: %s\n", g.remote)
	return nil
}

// connect takes the queue pair to RTS, with the attributes of the stock tools.
func (g *game) connect(d Dest) (err error) {
	switch {
	case d.GID.IsZero():
		return errors.New("the peer has no GID: RoCE needs a GID index, add -g 1 there")
	case d.GID.Addr().Is4() != g.local.GID.Addr().Is4():
		return fmt.Errorf("the peer's GID is %s and ours, index %d, is %s: one is IPv4, the other IPv6; choose another on one side (-g)", d.GID, g.sgid, g.local.GID)
	}
	if g.c.Service == device.UD {
		if err := g.qp.Modify(&device.QPAttr{State: device.StateRTR}, device.AttrState); err != nil {
			return err
		}
		if err := g.qp.Modify(&device.QPAttr{State: device.StateRTS, SQPSN: g.local.PSN}, device.AttrState|device.AttrSQPSN); err != nil {
			return err
		}
		g.ah, err = g.pd.CreateAH(device.AHAttr{DGID: d.GID, SGIDIndex: g.sgid})
		return err
	}
	err = g.qp.Modify(&device.QPAttr{
		State: device.StateRTR, PathMTU: g.c.MTU, DestQPN: d.QPN, RQPSN: d.PSN, MaxDestRdAtomic: 1, MinRNRTimer: 12,
		AH: device.AHAttr{DGID: d.GID, SGIDIndex: g.sgid},
	}, device.AttrState|device.AttrAV|device.AttrPathMTU|device.AttrDestQPN|device.AttrRQPSN|device.AttrMaxDestRdAtomic|device.AttrMinRNRTimer)
	if err != nil {
		return err
	}
	return g.qp.Modify(&device.QPAttr{
		State: device.StateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: g.local.PSN, MaxRdAtomic: 1,
	}, device.AttrState|device.AttrTimeout|device.AttrRetryCnt|device.AttrRNRRetry|device.AttrSQPSN|device.AttrMaxRdAtomic)
}

// play sends the messages to and fro.
func (g *game) play(ctx context.Context) (*Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go g.watch(ctx, cancel)
	r := &Result{
		Transport: g.c.Service.String(), Role: "server", Local: g.local, Remote: g.remote, Size: g.c.Size, Iters: g.c.Iters,
		Verified: Verified{Pattern: g.c.Pattern, Seed: g.c.Seed},
	}
	if g.c.Pattern == Constant {
		r.Verified.Seed = 0
	}
	begin := time.Now()
	sent, pending := 0, recvID
	next := func() error {
		n := g.judge.make(sent, g.send.Bytes())
		r.Bytes += int64(n)
		pending = recvID | sendID
		return g.qp.PostSend(g.request(n))
	}
	if g.c.Host != "" {
		r.Role = "client"
		if err := next(); err != nil {
			return nil, err
		}
	}
	var wcs [2]device.WC
	for got := 0; got < g.c.Iters || sent < g.c.Iters; {
		n, err := g.wait(ctx, wcs[:])
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = fmt.Errorf("%w (%d of %d messages received, %d sent)", cause, got, g.c.Iters, sent)
			}
			return nil, err
		}
		for i := range n {
			wc := &wcs[i]
			if wc.Status != device.StatusSuccess {
				return nil, g.failed(ctx, wcs[i:n])
			}
			if wc.ID == sendID {
				sent++
			} else {
				b := g.recv.Bytes()[g.offset():wc.ByteLen]
				if err := g.judge.judge(got, b); err != nil {
					return nil, err
				}
				got++
				r.Bytes += int64(len(b))
				r.Verified.Messages++
				r.Verified.Bytes += int64(len(b))
				if g.posted--; g.posted <= 1 {
					if err := g.post(); err != nil {
						return nil, err
					}
				}
			}
			pending &^= int(wc.ID)
			if pending == 0 && sent < g.c.Iters {
				if err := next(); err != nil {
					return nil, err
				}
			}
		}
		g.progress.Add(1)
	}
	r.finish(time.Since(begin))
	return r, nil
}

func (g *game) request(n int) *device.SendWR {
	wr := &device.SendWR{ID: sendID, Op: device.OpSend, Flags: device.Signaled, SGE: []device.SGE{g.send.SGE(0, n)}}
	if g.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = g.ah, g.remote.QPN, qkey
	}
	return wr
}

// wait waits for completions.
func (g *game) wait(ctx context.Context, wcs []device.WC) (int, error) {
	if g.channel == nil {
		return g.cq.Wait(ctx, wcs)
	}
	for {
		if n := g.cq.Poll(wcs); n > 0 {
			return n, nil
		}
		if g.cq.Arm(false) {
			continue
		}
		if _, err := g.channel.Get(ctx); err != nil {
			return 0, err
		}
	}
}

// watch ends a game in which nothing happens any more.
func (g *game) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	t := time.NewTimer(g.c.Stall)
	defer t.Stop()
	for last := g.progress.Load(); ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := g.progress.Load()
		if now == last {
			what := "the peer has ended, or its packets do not arrive"
			if g.c.Service == device.UD {
				what = "the peer has ended, or a datagram was lost, which nobody sends again"
			}
			cancel(fmt.Errorf("nothing came for %v: %s", g.c.Stall, what))
			return
		}
		last = now
		t.Reset(g.c.Stall)
	}
}

// failed makes a line of completions of which the first has an error. A failed queue pair flushes
// all requests; the one that says why may come after others.
func (g *game) failed(ctx context.Context, wcs []device.WC) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second/5)
	defer cancel()
	first := wcs[0]
	for more := make([]device.WC, 64); ; {
		for _, wc := range wcs {
			if wc.Status != device.StatusSuccess && wc.Status != device.StatusFlush {
				return explain(&wc)
			}
		}
		n, err := g.cq.Wait(ctx, more)
		if err != nil {
			return explain(&first)
		}
		wcs = more[:n]
	}
}

// explain makes a line of a completion with an error.
func explain(wc *device.WC) error {
	what := map[uint64]string{sendID: "sending", recvID: "receiving"}[wc.ID]
	hint := map[device.Status]string{
		device.StatusRetryExceeded:    "the peer does not answer: has it ended, is its GID reachable from this NIC, does its path carry the MTU (-m)?",
		device.StatusRNRRetryExceeded: "the peer has no receives posted",
		device.StatusLocalLength:      "the peer's message is longer than -s, or its -m is another",
		device.StatusRemoteInvalidReq: "the peer refused it: do -s and -m agree on both sides?",
		device.StatusFlush:            "the queue pair has failed: do -s and -m agree on both sides?",
	}[wc.Status]
	if hint != "" {
		hint = ": " + hint
	}
	return fmt.Errorf("failed status %s (%d) while %s%s", wc.Status, wc.Status, what, hint)
}

func (r *Result) finish(d time.Duration) {
	r.Seconds = d.Seconds()
	if r.Seconds > 0 {
		r.Mbit = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	}
	r.Usec = r.Seconds * 1e6 / float64(r.Iters)
}

// Print prints the last lines as the stock tools do, and then what was verified.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%d bytes in %.2f seconds = %.2f Mbit/sec\n", r.Bytes, r.Seconds, r.Mbit)
	fmt.Fprintf(w, "%d iters in %.2f seconds = %.2f usec/iter\n", r.Iters, r.Seconds, r.Usec)
	fmt.Fprintf(w, "data verified: %d messages, %d bytes\n", r.Verified.Messages, r.Verified.Bytes)
}

// lingerMost bounds linger.
const lingerMost = 5 * time.Second

// linger keeps the NIC in place until the peer is silent: our last acknowledgement may have been lost,
// and then the peer asks again.
func (g *game) linger(ctx context.Context) {
	if g.c.Service != device.RC || g.c.Linger <= 0 {
		return
	}
	t := time.NewTicker(g.c.Linger)
	defer t.Stop()
	received := func() uint64 { return g.dev.Counters().Load(stats.RcvdPkts) }
	last := received()
	for range max(1, int(lingerMost/g.c.Linger)) {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := received()
		if now == last {
			return
		}
		last = now
	}
}
