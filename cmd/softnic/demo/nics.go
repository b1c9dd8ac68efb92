package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/link/udp"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

const (
	pathMTU = 1024
	depth   = 64 // work requests of a queue
	qkey    = 0x50F7
	// patience is how long one operation may take. All of them together take a second or two.
	patience = 20 * time.Second
)

// What the connection agrees on. The timers are long enough that a slow machine does not run into
// them by itself; the rest are the defaults of device.ConnectOptions.
const (
	ackTimeout = 16 // 268 ms
	rnrTimer   = 14 // 1.28 ms
	readDepth  = 16
	retryCnt   = 7
)

var addrs = [2]string{"127.0.0.1", "127.0.0.2"}

// openLinks opens both ends of the link. Where UDP cannot be had, why says so and the link is one in memory.
func openLinks(memory bool) (a, b link.Endpoint, why string) {
	err := errors.New("memory was asked for")
	if !memory {
		if a, b, err = openUDP(); err == nil {
			return a, b, ""
		}
	}
	prefix := func(i int) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(addrs[i] + "/8")} }
	x, y := pipe.New(pipe.Config{Name: "memory (a)", Addrs: prefix(0)}, pipe.Config{Name: "memory (b)", Addrs: prefix(1)})
	return x, y, err.Error()
}

func openUDP() (a, b link.Endpoint, err error) {
	if runtime.GOOS == "darwin" {
		return nil, nil, fmt.Errorf("udp: %s is not an address of this host (macOS has one loopback address only)", addrs[1])
	}
	open := func(i int) (link.Endpoint, error) {
		return udp.Open(netip.AddrPortFrom(netip.MustParseAddr(addrs[i]), wire.Port), udp.Options{})
	}
	if a, err = open(0); err != nil {
		return nil, nil, err
	}
	if b, err = open(1); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// nic is one of the two NICs.
type nic struct {
	name  string
	dev   *device.Device
	rules *impair.Rules
	sink  *watcher
	gid   device.GID

	pd  *device.PD
	cq  *device.CQ
	rc  *device.QP
	uc  *device.QP
	ud  *device.QP
	ah  *device.AH // of the other NIC
	psn uint32
}

func newNIC(name, model string, ep link.Endpoint, sink *watcher) (*nic, error) {
	n := &nic{name: name, rules: new(impair.Rules), sink: sink}
	var err error
	n.dev, err = device.Open(ep, device.Options{Name: model, Link: link.PortOptions{Impair: n.rules, Capture: sink}})
	if err != nil {
		ep.Close()
		return nil, err
	}
	if err := n.prepare(); err != nil {
		n.dev.Close()
		return nil, err
	}
	return n, nil
}

func (n *nic) prepare() (err error) {
	if n.gid, err = n.dev.QueryGID(1, 1); err != nil {
		return err
	}
	ctx := n.dev.NewContext()
	if n.pd, err = ctx.AllocPD(); err != nil {
		return err
	}
	if n.cq, err = ctx.CreateCQ(device.CQInit{Entries: 4 * depth}); err != nil {
		return err
	}
	for _, q := range []struct {
		t  device.QPType
		qp **device.QP
	}{{device.RC, &n.rc}, {device.UC, &n.uc}, {device.UD, &n.ud}} {
		*q.qp, err = n.pd.CreateQP(device.QPInit{
			Type: q.t, SendCQ: n.cq, RecvCQ: n.cq, Cap: device.Cap{SendWR: depth, RecvWR: depth}, SigAll: true,
		})
		if err != nil {
			return err
		}
	}
	n.psn = n.dev.RandomPSN()
	return nil
}

// connect connects the RC queue pair with that of the peer and readies the UD one.
func (n *nic) connect(peer *nic) (err error) {
	err = n.rc.Connect(n.psn, device.Remote{GID: peer.gid, QPN: peer.rc.Num(), PSN: peer.psn}, device.ConnectOptions{
		SGIDIndex: 1, PathMTU: pathMTU, Timeout: ackTimeout, MinRNRTimer: rnrTimer, Access: device.RemoteRead | device.RemoteWrite | device.RemoteAtomic,
	})
	if err != nil {
		return err
	}
	err = n.uc.Connect(n.psn, device.Remote{GID: peer.gid, QPN: peer.uc.Num(), PSN: peer.psn}, device.ConnectOptions{SGIDIndex: 1, PathMTU: pathMTU})
	if err != nil {
		return err
	}
	if err = n.ud.Activate(qkey, n.dev.RandomPSN()); err != nil {
		return err
	}
	n.ah, err = n.pd.CreateAH(device.AHAttr{DGID: peer.gid, SGIDIndex: 1})
	return err
}

// await waits for count completions, in any order between the two queues.
func (n *nic) await(parent context.Context, count int) ([]device.WC, error) {
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	out := make([]device.WC, count)
	for have := 0; have < count; {
		got, err := n.cq.Wait(ctx, out[have:])
		switch {
		case parent.Err() != nil:
			return nil, context.Cause(parent)
		case err != nil:
			return nil, fmt.Errorf("NIC %s: %d of %d completions came within %v", n.name, have, count, patience)
		}
		for _, wc := range out[have : have+got] {
			if err := wc.Err(); err != nil {
				return nil, fmt.Errorf("NIC %s: qp 0x%06x: %w", n.name, wc.QPN, err)
			}
		}
		have += got
	}
	return out, nil
}

// Retransmission is a packet that was sent again.
type Retransmission struct {
	Time   time.Duration `json:"time_ns"` // since the demo began
	NIC    string        `json:"nic"`
	DestQP uint32        `json:"dest_qp"`
	Opcode string        `json:"opcode"`
	PSN    uint32        `json:"psn"`
	Cause  string        `json:"cause"`
	Round  int           `json:"round"`
	Lost   bool          `json:"lost,omitempty"` // on purpose, once more
}

// watcher is the sink of a NIC: it notes what is sent again, and hands on what the capture is to have.
type watcher struct {
	nic   string
	start time.Time
	next  link.Sink               // the capture
	wants func(*link.Record) bool // nil: it wants all

	rnr chan struct{} // holds a token when an RNR NAK came in
	nak atomic.Uint32 // syndrome to look for, 0 when it came in

	mu      sync.Mutex
	retries []Retransmission
	frames  int // handed on
}

// Arrived implements link.OrderedSink.
func (w *watcher) Arrived(when time.Time) {
	if o, ok := w.next.(link.OrderedSink); ok {
		o.Arrived(when)
	}
}

// Handled implements link.OrderedSink.
func (w *watcher) Handled(when time.Time) {
	if o, ok := w.next.(link.OrderedSink); ok {
		o.Handled(when)
	}
}

// Capture implements link.Sink.
func (w *watcher) Capture(r *link.Record) {
	captured := w.next != nil && (w.wants == nil || w.wants(r))
	if captured {
		w.next.Capture(r)
	}
	if s, ok := syndrome(r.Head); ok && r.Dir == link.Rx {
		w.nak.CompareAndSwap(uint32(s), 0)
	}
	if r.Dir == link.Rx && isRNR(r.Head) {
		select {
		case w.rnr <- struct{}{}:
		default:
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if captured {
		w.frames++
	}
	lost := r.Fault == wire.Impaired && strings.Contains(r.Note, "drop")
	if r.Dir != link.Tx || !r.Cause.Retry() || len(r.Head) < bth.Len || r.Fault != wire.OK && !lost {
		return // what is held back comes here once more when it goes
	}
	h := bth.BTH(r.Head)
	w.retries = append(w.retries, Retransmission{
		Time: r.When.Sub(w.start), NIC: w.nic, DestQP: h.DestQP(), Opcode: h.Opcode().String(), PSN: uint32(h.PSN()),
		Cause: r.Cause.String(), Round: r.Round, Lost: lost,
	})
}

// retried returns the retransmissions since the last call. What is being sent is waited for: a port records a packet just
// after it has sent it.
func (n *nic) retried() []Retransmission {
	n.dev.Port().Flush(time.Now())
	w := n.sink
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.retries
	w.retries = nil
	return l
}

// watchNAK and sawNAK tell whether a NAK came in.
func (w *watcher) watchNAK(s bth.Syndrome) { w.nak.Store(uint32(s)) }
func (w *watcher) sawNAK() bool            { return w.nak.Load() == 0 }

// syndrome returns that of an acknowledgement.
func syndrome(head []byte) (bth.Syndrome, bool) {
	if len(head) < bth.Len {
		return 0, false
	}
	h := bth.BTH(head)
	at, ok := h.Opcode().Info().Offset(bth.HAETH)
	if !ok || h.Opcode() != bth.Make(bth.RC, bth.Acknowledge) || len(head) < at+bth.HAETH.Len() {
		return 0, false
	}
	return bth.AETH(head[at:]).Syndrome(), true
}

func isRNR(head []byte) bool {
	s, ok := syndrome(head)
	return ok && s.IsRNR()
}

// onlyLost selects what impairment took off the wire. The other NIC's capture has the rest.
func onlyLost(r *link.Record) bool { return r.Fault == wire.Impaired && r.Dir == link.Tx }
