package replay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/trace"
)

// nic is a stepped device with a queue pair, memory and a capture.
type nic struct {
	dev *device.Device
	cq  *device.CQ
	qp  *device.QP
	mr  *device.MR
}

// network is two of them on a cable, under virtual time.
type network struct {
	at   time.Time
	clk  *clock.Manual
	a, b *nic
	ends []*pipe.End
}

func newNIC(t *testing.T, ep link.Endpoint, seed byte, at time.Time, rules []string, sink link.Sink) *nic {
	t.Helper()
	r, err := impair.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	n := new(nic)
	n.dev, err = device.Open(ep, device.Options{
		Stepped: true, Clock: clock.NewManual(at), Rand: rand.NewChaCha8([32]byte{seed}), Link: link.PortOptions{Impair: r, Capture: sink},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.dev.Close() })
	ctx := n.dev.NewContext()
	pd, err := ctx.AllocPD()
	if err == nil {
		n.cq, err = ctx.CreateCQ(device.CQInit{Entries: 1024})
	}
	if err == nil {
		n.qp, err = pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: n.cq, RecvCQ: n.cq, Cap: device.Cap{SendWR: 64, RecvWR: 64}})
	}
	if err == nil {
		n.mr, err = pd.RegMR(make([]byte, 1<<16), everything&^device.FlushPersistent)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// run steps both until done, for a second at most.
func (n *network) run(done func() bool) {
	end := n.at.Add(20 * time.Second)
	for n.at.Before(end) {
		next := n.at.Add(time.Millisecond)
		for _, d := range []*nic{n.a, n.b, n.a, n.b} {
			if t, ok := d.dev.Step(n.at); ok && t.Before(next) && t.After(n.at) {
				next = t
			}
		}
		for _, e := range n.ends {
			if t, ok := e.Next(); ok && t.Before(next) && t.After(n.at) {
				next = t
			}
		}
		if done() {
			return
		}
		if next.Sub(n.at) < time.Microsecond {
			next = n.at.Add(time.Microsecond)
		}
		n.at = next
		n.clk.Set(next)
	}
}

// Two softnics talk, at random, over a network that loses, doubles, moves and changes packets on purpose; what either of them, or both, have captured is replayed.
// It is the same NIC: whatever the capture does not show, nothing may be different. SOFTNIC_SEEDS says how many seeds (20), SOFTNIC_SEED which alone.
func TestOwnCaptures(t *testing.T) {
	seed, runs := rand.Uint64(), 20
	if testing.Short() {
		runs = 5
	}
	if v := os.Getenv("SOFTNIC_SEEDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal("SOFTNIC_SEEDS: ", err)
		}
		runs = n
	}
	if v := os.Getenv("SOFTNIC_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal("SOFTNIC_SEED: ", err)
		}
		seed, runs = n, 1
	}
	same, unknown := 0, 0
	for i := range runs {
		s := seed + uint64(i)
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			files := record(t, s)
			for _, name := range []string{"requester", "responder", "both"} {
				if files[name] == nil {
					continue
				}
				r, err := Run(trace.Input{Name: name, R: bytes.NewReader(files[name])}, Options{Unruly: true})
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range r.Conversations {
					same, unknown = same+c.Same, unknown+c.Unknown
				}
				if r.Different > 0 {
					var b strings.Builder
					_ = r.Text(&b, true)
					t.Errorf("SOFTNIC_SEED=%d, capture of %s:\n%s", s, name, &b)
				}
			}
		})
	}
	t.Logf("seed %d: %d answers are the same, %d unknown", seed, same, unknown)
	if runs > 1 && (same < 10*runs || unknown > same) {
		t.Errorf("seed %d: %d answers are the same, %d unknown: too much is not told", seed, same, unknown)
	}
}

// A request that a rule has changed, and that met no receive, was not taken.
func TestChangedAndNotReady(t *testing.T) {
	for seed := range uint64(8) {
		r, err := Run(trace.Input{R: bytes.NewReader(record(t, seed, "rx opcode=SEND*,WRITE* set=ackreq:1 p=50% seed=1")["responder"])}, Options{Unruly: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Different > 0 {
			var b strings.Builder
			_ = r.Text(&b, true)
			t.Errorf("seed %d:\n%s", seed, &b)
		}
	}
}

// record returns the captures of a conversation, over a network as bad as chance has it, or with the rules given, at the responder.
func record(t *testing.T, seed uint64, atResponder ...string) map[string][]byte {
	rng := rand.New(rand.NewPCG(seed, 7))
	files := map[string][]byte{}
	rules := func(lies bool) (l []string) {
		for _, dir := range []string{"tx", "rx"} {
			for i, what := range []string{
				"drop=%d%%", "duplicate=%d%%", "reorder=%d%%", "delay=40us p=%d%%", "corrupt=%d%%", "ecn=ce p=%d%%", "opcode=SEND*,WRITE* answer=nak-sequence p=%d%%",
				"corrupt=%d%% icrc=good", "opcode=ACKNOWLEDGE set=msn:77 p=%d%%",
			} {
				if rng.IntN(4) > 0 {
					continue
				}
				l = append(l, dir+" "+fmt.Sprintf(what, 1+rng.IntN(8))+fmt.Sprintf(" seed=%d", rng.IntN(1000)))
				if i > 6 && (lies || dir == "tx") {
					files["requester"] = nil // sees other answers than the NIC gave, or requests than it got, and nothing tells
				}
			}
		}
		return l
	}
	at := time.Unix(1000, 0)
	clk := clock.NewManual(at)
	ea, eb := pipe.New(
		pipe.Config{Name: "a", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}, Clock: clk, Latency: 5 * time.Microsecond},
		pipe.Config{Name: "b", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, Clock: clk, Latency: 5 * time.Microsecond})
	var bufs [3]bytes.Buffer
	var writers [3]*capture.Writer
	for i, info := range []link.Info{ea.Info(), eb.Info(), ea.Info()} {
		w, err := capture.NewWriter(&bufs[i], info, capture.Options{})
		if err != nil {
			t.Fatal(err)
		}
		writers[i] = w
	}
	second, err := writers[2].Add("b", eb.Info())
	if err != nil {
		t.Fatal(err)
	}
	n := &network{at: at, clk: clk, ends: []*pipe.End{ea, eb}}
	ruleA, ruleB := rules(false), rules(true)
	if len(atResponder) > 0 {
		ruleA, ruleB = nil, atResponder
		clear(files)
	}
	n.a = newNIC(t, ea, 1, at, ruleA, tee{writers[0], writers[2]})
	n.b = newNIC(t, eb, 2, at, ruleB, tee{writers[1], second})
	for i := range n.b.mr.Bytes() {
		n.b.mr.Bytes()[i] = byte(rng.Uint32())
	}
	psnA, psnB := rng.Uint32()&0xFFFFFF, rng.Uint32()&0xFFFFFF
	o := device.ConnectOptions{PathMTU: 256 << rng.IntN(3), Access: everything &^ device.LocalWrite &^ device.FlushPersistent, Timeout: 8, RetryCnt: 7, RNRRetry: 7}
	ra, rb := n.a.qp.Address(1, psnA), n.b.qp.Address(1, psnB)
	if err := n.a.qp.Connect(psnA, rb, o); err != nil {
		t.Fatal(err)
	}
	if err := n.b.qp.Connect(psnB, ra, o); err != nil {
		t.Fatal(err)
	}
	posted, done := 0, 0
	poll := func() bool {
		var wc [16]device.WC
		for _, x := range []*nic{n.a, n.b} {
			for k := x.cq.Poll(wc[:]); k > 0; k = x.cq.Poll(wc[:]) {
				if x == n.a {
					done += k
				}
			}
		}
		return done == posted
	}
	late := 0
	for range 30 {
		for range 1 + rng.IntN(4) {
			size := rng.IntN(3000)
			wr := device.SendWR{Flags: device.Signaled, RKey: n.b.mr.RKey(), RemoteAddr: n.b.mr.Addr() + uint64(rng.IntN(4000))&^7}
			switch rng.IntN(6) {
			case 0:
				wr.Op, wr.Imm = device.OpSendImm, 5
			case 1:
				wr.Op = device.OpWrite
			case 2:
				wr.Op = device.OpRead
			case 3:
				wr.Op, size, wr.CompareAdd = device.OpFetchAdd, 8, rng.Uint64()
			case 4:
				wr.Op, size = device.OpAtomicWrite, 8
			case 5:
				wr.Op = device.OpWriteImm
			}
			if wr.Op == device.OpSendImm || wr.Op == device.OpWriteImm {
				late++
			}
			wr.SGE = []device.SGE{n.a.mr.SGE(0, size)}
			binary.LittleEndian.PutUint64(n.a.mr.Bytes()[8*rng.IntN(100):], rng.Uint64())
			if n.a.qp.PostSend(&wr) == nil {
				posted++
			}
		}
		if rng.IntN(3) > 0 { // some receives come late: RNR
			for ; late > 0; late-- {
				_ = n.b.qp.PostRecv(&device.RecvWR{SGE: []device.SGE{n.b.mr.SGE(1<<15, 4096)}})
			}
		}
		until := n.at.Add(time.Duration(rng.IntN(3000)) * time.Microsecond)
		n.run(func() bool { return poll() || n.at.After(until) })
	}
	for ; late > 0; late-- {
		_ = n.b.qp.PostRecv(&device.RecvWR{SGE: []device.SGE{n.b.mr.SGE(1<<15, 4096)}})
	}
	n.run(poll)
	_, lies := files["requester"]
	for i, name := range []string{"requester", "responder", "both"} {
		if err := writers[i].Close(); err != nil {
			t.Fatal(err)
		}
		if files[name] = bufs[i].Bytes(); name == "requester" && lies {
			delete(files, name)
		}
	}
	return files
}

// tee is two sinks.
type tee [2]link.Sink

// Capture implements link.Sink.
func (s tee) Capture(r *link.Record) {
	s[0].Capture(r)
	s[1].Capture(r)
}
