package cases

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// tape is what the ports of two devices captured.
type tape struct {
	mu  sync.Mutex
	all []taped
}

type taped struct {
	host  int
	bytes []byte
	when  time.Time
	dir   rules.Direction
	fate  rules.Fate
	fault wire.Fault
	note  string
	cause wire.Cause // why it was sent
	round int        // how often before
}

// sink is the tape as the port of a host sees it.
type sink struct {
	*tape
	host int
}

func (s sink) Capture(r *link.Record) {
	x := taped{host: s.host, bytes: r.AppendTo(nil), when: r.When, dir: rules.Tx, fault: r.Fault, note: r.Note, cause: r.Cause, round: r.Round}
	if r.Dir == link.Rx {
		x.dir = rules.Rx
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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, x)
}

// sorted returns the packets of hosts in order of time; with a host -1 not those that were lost
// on purpose on their way in, as if the network had lost them. Of those of one moment the received ones
// come first: a port captures them after what the engine sent because of them.
func (t *tape) sorted(hosts ...int) []taped {
	t.mu.Lock()
	defer t.mu.Unlock()
	var l []taped
	for _, x := range t.all {
		lost := x.dir == rules.Rx && x.fate == rules.Lost && slices.Contains(hosts, -1)
		if slices.Contains(hosts, x.host) && !lost {
			l = append(l, x)
		}
	}
	slices.SortStableFunc(l, func(a, b taped) int {
		return cmp.Or(a.when.Compare(b.when), cmp.Compare(b.dir, a.dir))
	})
	return l
}

// judge gives packets to a checker.
func judge(o rules.Options, l []taped) *rules.Checker {
	c := rules.New(o)
	for i, x := range l {
		var v wire.View
		f := wire.ParseIP(x.bytes, &v)
		if f == wire.OK {
			f = x.fault
		}
		c.Add(&rules.Packet{Number: uint64(i + 1), Time: x.when.UnixNano(), Dir: x.dir, Iface: x.host, Fate: x.fate, Fault: f, Round: x.round, View: &v})
	}
	return c
}

func findings(c *rules.Checker) string {
	var b strings.Builder
	for _, f := range c.Findings() {
		if f.Kept+f.Broken+f.Unknown > 0 {
			fmt.Fprintln(&b, f)
		}
	}
	return b.String()
}

// lossy is two devices that exchange all kinds of requests, both ways, over a network that
// loses, doubles and reorders, and the tape of it.
func lossy(t *testing.T, r *rand.Rand, messages int, ruleA, ruleB []string) (*tape, rules.Options) {
	const mtu, size = 256, 1 << 16
	tp := &tape{}
	latency := time.Duration(1+r.IntN(50)) * time.Microsecond
	a, b := pipe.New(
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(peer4, 24)}, Latency: latency},
		pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}, Latency: latency})
	type host struct {
		qp       *device.QP
		scq, rcq *device.CQ
		mr, in   *device.MR // what is sent and what remote keys name; what is received
	}
	mk := func(p *pipe.End, n int, rule []string) *host {
		dev := must(device.Open(p, device.Options{Rand: newDice(), Link: link.PortOptions{
			Capture: sink{tp, n}, Impair: must(impair.New(rule...)),
		}}))
		t.Cleanup(func() { dev.Close() })
		ctx := dev.NewContext()
		pd := must(ctx.AllocPD())
		h := &host{scq: must(ctx.CreateCQ(device.CQInit{Entries: 4096})), rcq: must(ctx.CreateCQ(device.CQInit{Entries: 4096}))}
		h.mr = must(pd.RegMR(pattern(byte(n), size), all|device.RemoteAtomic))
		h.in = must(pd.RegMR(make([]byte, size), device.LocalWrite))
		h.qp = must(pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: h.scq, RecvCQ: h.rcq, Cap: device.Cap{SendWR: 256, RecvWR: 256}}))
		return h
	}
	hosts := [2]*host{mk(a, 0, ruleA), mk(b, 1, ruleB)}
	depth := 1 << r.IntN(4)
	ra, rb := hosts[0].qp.Address(gid4, 0xFFFF80), hosts[1].qp.Address(gid4, 0x200)
	o := device.ConnectOptions{PathMTU: mtu, Depth: depth, MinRNRTimer: 13, Timeout: 10, Access: device.RemoteRead | device.RemoteWrite | device.RemoteAtomic}
	for i, x := range []struct {
		psn uint32
		to  device.Remote
	}{{0xFFFF80, rb}, {0x200, ra}} {
		if err := hosts[i].qp.Connect(x.psn, x.to, o); err != nil {
			t.Fatal(err)
		}
	}
	attr := rules.Attr{Depth: depth, Timeout: 10, RetryCnt: 7}
	opts := rules.Options{Connections: []rules.Connection{{
		A: rules.End{Addr: peer4, QPN: hosts[0].qp.Num(), Attr: attr}, B: rules.End{Addr: nic4, QPN: hosts[1].qp.Num(), Attr: attr}, MTU: mtu,
	}}}
	posted, done := [2]int{}, [2]int{}
	ops := []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpRead, device.OpFetchAdd, device.OpCompareSwap}
	for turn := 0; done[0] < messages || done[1] < messages; turn++ {
		if turn > 200000 {
			t.Fatalf("no end: %v of %d", done, messages)
		}
		for i, h := range hosts {
			if r.IntN(3) > 0 { // sometimes too late: RNR
				for range r.IntN(4) {
					_ = h.qp.PostRecv(&device.RecvWR{SGE: []device.SGE{h.in.SGE(0, size)}})
				}
			}
			for range r.IntN(4) {
				if posted[i] == messages || posted[i]-done[i] > 60 {
					break
				}
				n := r.IntN(6 * mtu)
				to := hosts[1-i].mr
				wr := device.SendWR{Op: ops[r.IntN(len(ops))], Flags: device.Signaled, RemoteAddr: to.Addr() + size/2 + uint64(r.IntN(1<<11))*8, RKey: to.RKey()}
				if wr.Op.IsAtomic() {
					n = 8
				}
				// What is sent stands in the first half, where nobody writes: it may be sent again.
				wr.SGE = []device.SGE{h.mr.SGE(0, n)}
				if wr.Op == device.OpRead || wr.Op.IsAtomic() {
					wr.SGE = []device.SGE{h.in.SGE(0, n)}
				}
				if err := h.qp.PostSend(&wr); err != nil {
					t.Fatal(err)
				}
				posted[i]++
			}
			for _, w := range drain(h.scq) {
				if w.Status != device.StatusSuccess {
					t.Fatalf("host %d, request %d: %v\n%s", i, done[i], w.Status, findings(judge(opts, tp.sorted(0, 1))))
				}
				done[i]++
			}
			drain(h.rcq)
		}
		time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
		synctest.Wait()
	}
	time.Sleep(50 * time.Millisecond) // what is held back
	synctest.Wait()
	return tp, opts
}

// What two softnics say to each other over a bad network breaks no rule, wherever it was
// captured: at both, or at one of them.
func TestRulesOnLossyNetwork(t *testing.T) {
	for _, n := range []struct {
		name string
		a, b []string
		wild bool // reorders or doubles
	}{
		{name: "clean"},
		{"lossy", []string{"rx drop=4%"}, []string{"rx drop=4%"}, false},
		{"lossy at the sender", []string{"tx drop=2%"}, []string{"tx drop=2%"}, false},
		{"wild", []string{"rx drop=1%", "rx reorder p=1%", "tx duplicate p=2%"}, []string{"rx drop=1%", "rx duplicate p=2%", "rx delay=40us p=1%"}, true},
	} {
		t.Run(n.name, func(t *testing.T) {
			seeds(t, func(t *testing.T, r *rand.Rand) {
				rule := func(l []string) (out []string) {
					for _, s := range l {
						out = append(out, fmt.Sprintf("%s seed=%d", s, 1+r.IntN(1000)))
					}
					return out
				}
				tp, o := lossy(t, r, 120, rule(n.a), rule(n.b))
				for _, from := range [][]int{{0, 1}, {0}, {1}, {0, -1}, {1, -1}} {
					// At one host what the network does behind it cannot be told from what the peer does.
					o.Unruly = n.wild && !slices.Equal(from, []int{0, 1})
					c := judge(o, tp.sorted(from...))
					f := c.Findings()
					if c.Broken() > 0 {
						t.Errorf("captured at %v:\n%s", from, findings(c))
					}
					for _, id := range []rules.ID{rules.PSNContiguous, rules.MSN, rules.ReadResponseSequence, rules.ResponseRange, rules.Depth} {
						// What came doubled or late on purpose leaves open what was taken, and so which MSN and which response is right.
						loose := n.wild && (id == rules.MSN || id == rules.ReadResponseSequence)
						if f[id].Kept == 0 && !loose {
							t.Errorf("captured at %v: %v was never judged", from, id)
						}
					}
					for _, id := range []rules.ID{rules.GBNSender, rules.RetransmissionSame} {
						if n.name != "clean" && f[id].Kept == 0 {
							t.Errorf("captured at %v: %v was never judged", from, id)
						}
					}
				}
			})
		})
	}
}

// One packet of a trace without fault is changed, with the ICRC made right again: the checker
// says so, at that packet, under its rule, and says nothing else.
func TestRulesFindMutations(t *testing.T) {
	isRequest := func(v *wire.View) bool { return v.Info.Has(bth.Request) }
	has := func(ops ...bth.Operation) func(*wire.View) bool {
		return func(v *wire.View) bool { return slices.Contains(ops, v.BTH().Opcode().Operation()) }
	}
	plainAck := func(v *wire.View) bool {
		h := v.Header(bth.HAETH)
		return has(bth.Acknowledge)(v) && bth.AETH(h).Syndrome().IsAck()
	}
	r := rand.New(rand.NewPCG(9, 9))
	var l []taped
	var o rules.Options
	synctest.Test(t, func(t *testing.T) {
		var tp *tape
		tp, o = lossy(t, r, 120, nil, nil)
		l = tp.sorted(0)
	})
	if c := judge(o, l); c.Broken() != 0 {
		t.Fatalf("not clean:\n%s", findings(c))
	}
	for _, m := range []struct {
		name string
		rule rules.ID
		dir  rules.Direction
		can  func(v *wire.View) bool
		edit func(s *wire.Spec) // nil: the packet is taken away
		late bool               // it shows at the next packet of its sender
	}{
		{name: "a request less", rule: rules.PSNContiguous, dir: rules.Tx, can: has(bth.SendMiddle, bth.WriteMiddle, bth.SendOnly), late: true},
		{name: "another kind", rule: rules.OpcodeSequence, dir: rules.Tx, can: has(bth.WriteMiddle), edit: func(s *wire.Spec) { s.BTH.Opcode = bth.Make(bth.RC, bth.SendMiddle) }},
		{name: "a short packet", rule: rules.MessageLength, dir: rules.Tx, can: has(bth.SendMiddle), edit: func(s *wire.Spec) { s.Payload = s.Payload[:252] }},
		{name: "MSN goes back", rule: rules.MSN, dir: rules.Rx, can: plainAck, edit: func(s *wire.Spec) { s.Ext.MSN = (s.Ext.MSN - 40) & 0xFFFFFF }},
		{name: "MSN runs ahead", rule: rules.MSN, dir: rules.Rx, can: plainAck, edit: func(s *wire.Spec) { s.Ext.MSN = (s.Ext.MSN + 300) & 0xFFFFFF }},
		{name: "ACK of the future", rule: rules.ResponseRange, dir: rules.Rx, can: plainAck, edit: func(s *wire.Spec) { s.BTH.PSN = s.BTH.PSN.Add(2000) }},
		{name: "short READ response", rule: rules.ReadResponseLength, dir: rules.Rx, can: has(bth.ReadResponseMiddle), edit: func(s *wire.Spec) { s.Payload = s.Payload[:252] }},
		{name: "FIRST again", rule: rules.ReadResponseSequence, dir: rules.Rx, can: has(bth.ReadResponseMiddle), edit: func(s *wire.Spec) { s.BTH.Opcode = bth.Make(bth.RC, bth.ReadResponseFirst) }},
		{name: "ACK for an atomic", rule: rules.ResponseKind, dir: rules.Rx, can: has(bth.AtomicAcknowledge), edit: func(s *wire.Spec) { s.BTH.Opcode = bth.Make(bth.RC, bth.ReadResponseOnly) }},
		{name: "reserved syndrome", rule: rules.Format, dir: rules.Rx, can: plainAck, edit: func(s *wire.Spec) { s.Ext.Syndrome = 0x47 }},
		{name: "dirty pad", rule: rules.Pad, dir: rules.Tx, can: func(v *wire.View) bool { return isRequest(v) && len(v.Payload)%4 != 0 },
			edit: func(s *wire.Spec) { s.Pad = slices.Repeat([]byte{1}, -len(s.Payload)&3) }},
	} {
		t.Run(m.name, func(t *testing.T) {
			var places []int
			seen := map[bth.PSN]bool{} // sent for the first time, and never again
			times := map[bth.PSN]int{}
			views := make([]wire.View, len(l))
			for i, x := range l {
				wire.ParseIP(x.bytes, &views[i])
				if isRequest(&views[i]) && x.dir == rules.Tx {
					times[views[i].BTH().PSN()]++
				}
			}
			for i := range l {
				v := &views[i]
				p := v.BTH().PSN()
				first := !isRequest(v) || !seen[p] && times[p] == 1
				seen[p] = seen[p] || isRequest(v)
				if l[i].dir == m.dir && m.can(v) && first && i > 40 && i < len(l)-100 {
					places = append(places, i)
				}
			}
			if len(places) < 3 {
				t.Fatalf("%d places for it", len(places))
			}
			for range 5 {
				i := places[r.IntN(len(places))]
				var bad []taped
				at := uint64(i + 1)
				if m.edit == nil {
					bad = append(append(bad, l[:i]...), l[i+1:]...)
				} else {
					s := wire.SpecOf(&views[i])
					s.Pad = nil
					m.edit(&s)
					bad = slices.Clone(l)
					bad[i].bytes = wire.Build(&s)
				}
				c := judge(o, bad)
				var got []string
				for _, f := range c.Findings() {
					if f.Broken > 0 && f.Rule != m.rule {
						got = append(got, f.String())
					}
					if f.Rule == m.rule && (f.Broken == 0 || !m.late && f.Violations[0].Packet != at || m.late && f.Violations[0].Packet < at) {
						got = append(got, "not found: "+f.String())
					}
				}
				if len(got) > 0 {
					t.Errorf("packet %d, %v PSN %v:\n%s", at, views[i].BTH().Opcode(), views[i].BTH().PSN(), strings.Join(got, "\n"))
				}
			}
		})
	}
}
