package device

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/link/udp"
	"github.com/softnic/softnic/stats"
)

// stressFor is how long the tests of this file run: longer with SOFTNIC_STRESS, a duration.
func stressFor(t *testing.T) time.Duration {
	if s := os.Getenv("SOFTNIC_STRESS"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return 1500 * time.Millisecond
}

func stressSeed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if s := os.Getenv("SOFTNIC_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d", seed)
	return seed
}

// endsOf makes the two ends of a link that can be polled.
var endsOf = map[string]func(t *testing.T) [2]link.Endpoint{
	"memory": func(*testing.T) [2]link.Endpoint {
		a, b := pipe.New(pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
		return [2]link.Endpoint{newPolledEnd(a), newPolledEnd(b)}
	},
	"udp": func(t *testing.T) [2]link.Endpoint {
		return udpEnds(t, "127.81.0.1:4791", "127.81.0.2:4791")
	},
	"udp6": func(t *testing.T) [2]link.Endpoint { // needs two addresses: ip -6 addr add fd81::1/128 dev lo, and fd81::2
		return udpEnds(t, "[fd81::1]:4791", "[fd81::2]:4791")
	},
}

func udpEnds(t *testing.T, addrs ...string) (e [2]link.Endpoint) {
	for i, a := range addrs {
		ep, err := udp.Open(netip.MustParseAddrPort(a), udp.Options{})
		if err != nil {
			t.Skip(err)
		}
		e[i] = ep
	}
	return e
}

// waiting is how somebody gets at completions; it returns 0 when there may be none.
type waiting func(ctx context.Context, r *rand.Rand, q *CQ, ch *CompChannel, wc []WC) (int, error)

var waysToWait = []waiting{
	func(_ context.Context, _ *rand.Rand, q *CQ, _ *CompChannel, wc []WC) (int, error) {
		for range 2000 {
			if n := q.Poll(wc); n > 0 {
				return n, nil
			}
		}
		runtime.Gosched()
		return 0, nil
	},
	func(_ context.Context, r *rand.Rand, q *CQ, _ *CompChannel, wc []WC) (int, error) {
		time.Sleep(time.Duration(r.IntN(1500)) * time.Microsecond)
		return q.Poll(wc), nil
	},
	func(ctx context.Context, _ *rand.Rand, q *CQ, _ *CompChannel, wc []WC) (int, error) {
		return q.Wait(ctx, wc)
	},
	func(ctx context.Context, r *rand.Rand, q *CQ, _ *CompChannel, wc []WC) (int, error) {
		short, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Microsecond)
		defer cancel()
		n, err := q.Wait(short, wc)
		if short.Err() != nil && ctx.Err() == nil {
			return n, nil
		}
		return n, err
	},
	func(ctx context.Context, _ *rand.Rand, q *CQ, ch *CompChannel, wc []WC) (int, error) {
		if n := q.Poll(wc); n > 0 {
			return n, nil
		}
		if !q.Arm(false) {
			if _, err := ch.Get(ctx); err != nil {
				return 0, err
			}
		}
		return q.Poll(wc), nil
	},
	func(_ context.Context, r *rand.Rand, q *CQ, _ *CompChannel, wc []WC) (int, error) { // nobody looks at the link
		time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
		return q.take(wc), nil
	},
}

// stressed is one end of a connection and who works on it: he posts SENDs, WRITEs and READs, and gives back receives.
type stressed struct {
	qp        *QP
	cq        *CQ
	ch        *CompChannel
	src, dst  *MR // what is sent, and read by the peer; what is written by the peer
	sink      *MR // of READs
	read, at  *MR // the peer's
	r         *rand.Rand
	worst     time.Duration
	posted    uint64
	completed uint64
	received  uint64
	since     [64]time.Time
}

const stressDepth = 48

// run works until stop, then until all that was posted has completed. Receives are taken until the peer is done as well.
func (s *stressed) run(ctx context.Context, stop <-chan struct{}, done *atomic.Int32, all int32) error {
	way, left := waysToWait[0], 0
	depth := 1
	wc := make([]WC, 8)
	quiet := time.Now()
	stopped, told := false, false
	for {
		select {
		case <-stop:
			stopped = true
		default:
		}
		if stopped && s.completed == s.posted && !told {
			told = true
			done.Add(1)
		}
		if told && done.Load() == all {
			return nil
		}
		if left--; left < 0 {
			way, left, depth = waysToWait[s.r.IntN(len(waysToWait))], s.r.IntN(60), 1+s.r.IntN(stressDepth)
		}
		for !stopped && s.posted-s.completed < uint64(depth) {
			wr := SendWR{ID: s.posted, Op: OpSend, Flags: Signaled, RemoteAddr: s.at.Addr(), RKey: s.at.RKey()}
			switch s.r.IntN(6) {
			case 0:
				wr.Op, wr.SGE = OpWrite, []SGE{s.src.SGE(0, 8)}
			case 1:
				wr.Op, wr.SGE, wr.RemoteAddr, wr.RKey = OpRead, []SGE{s.sink.SGE(0, 8)}, s.read.Addr(), s.read.RKey()
			case 2:
				wr.Op = OpWrite
				wr.SGE = []SGE{s.src.SGE(0, 1+s.r.IntN(16<<10))}
			}
			if err := s.qp.PostSend(&wr); err != nil {
				return err
			}
			s.since[s.posted%64] = time.Now()
			s.posted++
			if s.r.IntN(8) == 0 {
				break
			}
		}
		use := way
		if stopped { // none may come any more
			use = waysToWait[3]
		} else if s.posted == s.completed {
			use = waysToWait[s.r.IntN(2)]
		}
		n, err := use(ctx, s.r, s.cq, s.ch, wc)
		if err != nil {
			return err
		}
		for _, w := range wc[:n] {
			switch {
			case w.Status != StatusSuccess:
				return w.Err()
			case w.Op == WCRecv:
				s.received++
				if err := s.qp.PostRecv(&RecvWR{}); err != nil {
					return err
				}
			case w.ID != s.completed:
				return fmt.Errorf("request %d completed, %d is next", w.ID, s.completed)
			default:
				s.worst = max(s.worst, time.Since(s.since[w.ID%64]))
				s.completed++
				quiet = time.Now()
			}
		}
		if s.posted != s.completed && time.Since(quiet) > 20*time.Second {
			return fmt.Errorf("request %d of %d does not complete", s.completed, s.posted)
		}
	}
}

// TestReceiverStress: many connections, at whose ends somebody waits in all ways by turns, while queues and contexts come and go: each request
// completes once, in its turn, and none waits for a timer.
func TestReceiverStress(t *testing.T) {
	for name, ends := range endsOf {
		t.Run(name, func(t *testing.T) {
			seed := stressSeed(t)
			e := ends(t)
			var devs [2]*Device
			for i := range e {
				if e[i] == nil {
					devs[i] = devs[0]
					continue
				}
				d, err := Open(e[i], Options{})
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				devs[i] = d
			}
			stressDevices(t, seed, devs)
			for _, d := range devs {
				n := d.counters.Load(stats.LocalAckTimeoutErr)
				if n == 0 {
					continue
				}
				t.Errorf("%d ACK timers of %s ran out", n, d)
				for _, d := range devs {
					for _, v := range d.Statistics() {
						if v.Value != 0 {
							t.Logf("%s: %s %d", d, v.Name, v.Value)
						}
					}
				}
			}
		})
	}
}

func stressDevices(t *testing.T, seed uint64, devs [2]*Device) {
	const pairs = 4
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), stressFor(t)+time.Minute)
	defer cancel()
	stop := make(chan struct{})
	time.AfterFunc(stressFor(t), func() { close(stop) })
	var wg sync.WaitGroup
	var done atomic.Int32
	var all []*stressed
	for i := range pairs {
		var s [2]*stressed
		for j, d := range devs {
			c := d.NewContext()
			pd, err := c.AllocPD()
			must(err)
			ch, err := c.CreateCompChannel()
			must(err)
			cq, err := c.CreateCQ(CQInit{Entries: 4 * stressDepth, Channel: ch})
			must(err)
			qp, err := pd.CreateQP(QPInit{Type: RC, SendCQ: cq, RecvCQ: cq, Cap: Cap{SendWR: stressDepth, RecvWR: 2 * stressDepth}})
			must(err)
			var mr [3]*MR
			for k := range mr {
				mr[k], err = pd.RegMR(make([]byte, 16<<10), LocalWrite|RemoteWrite|RemoteRead)
				must(err)
			}
			s[j] = &stressed{qp: qp, cq: cq, ch: ch, src: mr[0], dst: mr[1], sink: mr[2], r: rand.New(rand.NewPCG(seed, uint64(2*i+j)))}
		}
		s[0].read, s[0].at, s[1].read, s[1].at = s[1].src, s[1].dst, s[0].src, s[0].dst
		for j := range s {
			gid := 1
			if devs[1-j].gids.Load().entries[1].IsZero() {
				gid = 2 // IPv6
			}
			must(s[j].qp.Connect(1, s[1-j].qp.Address(gid, 1), ConnectOptions{Access: RemoteWrite | RemoteRead, Timeout: 21, SGIDIndex: gid}))
			for range 2 * stressDepth {
				must(s[j].qp.PostRecv(&RecvWR{}))
			}
		}
		all = append(all, s[0], s[1])
	}
	for _, s := range all {
		wg.Go(func() {
			if err := s.run(ctx, stop, &done, int32(len(all))); err != nil {
				t.Errorf("seed %d: %v (%d of %d)", seed, err, s.completed, s.posted)
				cancel()
			}
		})
	}
	for j := range devs { // others come and go
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(100+j)))
			for ctx.Err() == nil {
				select {
				case <-stop:
					return
				default:
				}
				passerBy(ctx, r, devs[j], devs[1-j])
			}
		})
	}
	wg.Wait()
	var total uint64
	var worst time.Duration
	for _, s := range all {
		total += s.completed
		worst = max(worst, s.worst)
	}
	t.Logf("%d requests, the slowest took %v", total, worst)
	if worst > 5*time.Second {
		t.Errorf("a request took %v", worst)
	}
}

// passerBy makes a context on d, has somebody wait in it, and ends it in one way or other.
func passerBy(ctx context.Context, r *rand.Rand, d, peer *Device) {
	c := d.NewContext()
	ch, err1 := c.CreateCompChannel()
	cq, err2 := c.CreateCQ(CQInit{Entries: 4, Channel: ch})
	pd, err3 := c.AllocPD()
	if err1 != nil || err2 != nil || err3 != nil {
		return
	}
	var wg sync.WaitGroup
	short, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Microsecond)
	defer cancel()
	for range r.IntN(3) {
		wg.Go(func() { cq.Wait(short, make([]WC, 1)) })
	}
	if r.IntN(2) == 0 {
		wg.Go(func() { ch.Get(short) })
	}
	q, err := pd.CreateQP(QPInit{Type: UC, SendCQ: cq, RecvCQ: cq, Cap: Cap{SendWR: 4, RecvWR: 4, Inline: 8}})
	if err == nil {
		_ = q.Connect(1, q.Address(1, 1), ConnectOptions{Access: RemoteWrite})
		mem := make([]byte, 64)
		if mr, err := pd.RegMR(mem, LocalWrite|RemoteWrite); err == nil {
			for range 1 + r.IntN(4) {
				_ = q.PostSend(&SendWR{Op: OpWrite, Flags: Signaled | Inline, InlineData: binary.LittleEndian.AppendUint64(nil, 1), RemoteAddr: mr.Addr(), RKey: mr.RKey()})
			}
			if r.IntN(2) == 0 {
				_ = mr.Dereg()
			}
		}
	}
	time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
	switch r.IntN(3) {
	case 0:
		c.Close()
		wg.Wait()
	case 1:
		if q != nil {
			_ = q.Destroy()
		}
		cq.Destroy()
		fallthrough
	default:
		wg.Wait()
		c.Close()
	}
}

// TestCloseWhileTheyWait: devices are closed while programs poll and wait in all ways; all of those return, and nothing is left: no descriptor,
// no goroutine.
func TestCloseWhileTheyWait(t *testing.T) {
	seed := stressSeed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	fds := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0
		}
		return len(l)
	}
	ends := map[string]func(t *testing.T) [2]link.Endpoint{"memory": endsOf["memory"], "udp": func(t *testing.T) [2]link.Endpoint {
		return udpEnds(t, "127.81.0.5:4791", "127.81.0.6:4791")
	}}
	for name, make2 := range ends {
		t.Run(name, func(t *testing.T) {
			var before, routines int
			round := 0
			for end := time.Now().Add(stressFor(t) / 2); round < 4 || time.Now().Before(end); round++ {
				closeOnce(t, r, make2(t))
				if round == 1 {
					before, routines = fds(), runtime.NumGoroutine()
				}
			}
			for end := time.Now().Add(10 * time.Second); fds() > before || runtime.NumGoroutine() > routines; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("after %d rounds %d descriptors, %d before, and %d goroutines, %d before", round, fds(), before, runtime.NumGoroutine(), routines)
				}
			}
			t.Logf("%d rounds", round)
		})
	}
}

func closeOnce(t *testing.T, r *rand.Rand, e [2]link.Endpoint) {
	var wg sync.WaitGroup
	var hosts [2]*polledHost
	for i := range e {
		hosts[i] = newPolledHost(t, e[i])
	}
	for i, h := range hosts {
		if err := h.qp.Connect(1, hosts[1-i].qp.Address(1, 1), ConnectOptions{Timeout: 20}); err != nil {
			t.Fatal(err)
		}
	}
	for i, h := range hosts {
		for range 1 + r.IntN(3) {
			way, r := waysToWait[r.IntN(len(waysToWait))], rand.New(rand.NewPCG(r.Uint64(), 0))
			wg.Go(func() {
				wc := make([]WC, 4)
				for h.qp.State() == StateRTS {
					if _, err := way(context.Background(), r, h.cq, h.ch, wc); err != nil {
						return
					}
				}
			})
		}
		peer := hosts[1-i]
		wg.Go(func() {
			for h.qp.State() == StateRTS {
				wr := SendWR{Op: OpWrite, Flags: Inline, InlineData: make([]byte, 8), RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}
				if err := h.qp.PostSend(&wr); err != nil {
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
	}
	time.Sleep(time.Duration(r.IntN(5000)) * time.Microsecond)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		hosts[0].dev.Close()
		hosts[1].dev.Close()
		wg.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		buf := make([]byte, 1<<20)
		t.Fatalf("they wait on:\n%s", buf[:runtime.Stack(buf, true)])
	}
}
