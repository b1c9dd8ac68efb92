package link_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

func rules(tb testing.TB, text ...string) *impair.Rules {
	tb.Helper()
	r, err := impair.New(text...)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// sent returns the PSNs of the frames that have left, and checks their ICRC.
func sent(tb testing.TB, raw *pipe.Raw) (l []int) {
	tb.Helper()
	for {
		f := raw.TryRead()
		if f == nil {
			return l
		}
		if w, g := linktest.ICRC(f); w != g {
			tb.Fatalf("ICRC %08x, want %08x", g, w)
		}
		l = append(l, int(bth.BTH(f[28:]).PSN()))
	}
}

func TestImpairTx(t *testing.T) {
	const ms = time.Millisecond
	type at struct {
		after time.Duration
		psns  []int
	}
	for _, c := range []struct {
		rules []string
		n     int // packets, sent at once
		want  []at
	}{
		{[]string{"tx drop"}, 3, []at{{time.Second, nil}}},
		{[]string{"tx psn=+1 drop"}, 3, []at{{0, []int{1, 3}}}},
		{[]string{"tx duplicate psn=+1"}, 3, []at{{0, []int{1, 2, 2, 3}}}},
		{[]string{"tx duplicate", "tx duplicate"}, 1, []at{{0, []int{1, 1, 1}}}},
		{[]string{"tx delay=5ms"}, 2, []at{{0, nil}, {4 * ms, nil}, {1 * ms, []int{1, 2}}}},
		{[]string{"tx delay=5ms psn=+0"}, 3, []at{{0, []int{2, 3}}, {5 * ms, []int{1}}}},
		{[]string{"tx delay=5ms psn=+0", "tx delay=2ms psn=+2"}, 3, []at{{0, []int{2}}, {2 * ms, []int{3}}, {3 * ms, []int{1}}}},
		{[]string{"tx delay=5ms", "tx duplicate"}, 1, []at{{4 * ms, nil}, {1 * ms, []int{1, 1}}}},
		{[]string{"tx reorder psn=+0"}, 3, []at{{0, []int{2, 1, 3}}}},
		{[]string{"tx reorder psn=+0", "tx reorder psn=+1"}, 3, []at{{0, []int{3, 1, 2}}}},
		{[]string{"tx reorder"}, 2, []at{{9 * ms, nil}, {1 * ms, []int{1, 2}}}},
		{[]string{"tx reorder psn=+2"}, 3, []at{{0, []int{1, 2}}, {10 * ms, []int{3}}}},
		{[]string{"tx reorder psn=+0", "tx duplicate psn=+0"}, 2, []at{{0, []int{2, 1, 1}}}},
	} {
		for _, inline := range []bool{false, true} {
			t.Run(fmt.Sprint(c.rules, inline), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e, raw := pipe.NewRaw(pipe.Config{})
					o := link.PortOptions{Impair: rules(t, c.rules...), Inline: inline}
					m := clock.NewManual(time.Unix(0, 0))
					if inline {
						o.Clock = m
					}
					p := linktest.Port(t, e, o)
					pkts := sends(linktest.Path(addrA, addrB), 17, 1, c.n)
					if err := p.Send(pkts); err != nil {
						t.Fatal(err)
					}
					for _, pk := range pkts { // what is held back must have been copied
						clear(pk.Data[0])
						clear(pk.Head[:])
					}
					for _, w := range c.want {
						if inline {
							m.Advance(w.after)
							p.Flush(m.Now())
						} else {
							time.Sleep(w.after)
							synctest.Wait()
						}
						if got := sent(t, raw); !slices.Equal(got, w.psns) {
							t.Fatalf("%v later: sent %v, want %v", w.after, got, w.psns)
						}
					}
					if _, ok := m.Next(); ok {
						t.Fatal("a stepped port has set a timer")
					}
					if at, ok := p.Next(); ok {
						t.Fatalf("something is still due at %v", at)
					}
				})
			})
		}
	}
}

func TestImpairRx(t *testing.T) {
	const ms = time.Millisecond
	type at struct {
		after time.Duration
		first []got // from the endpoint
		loop  []got // from the loop
	}
	hit := func(psn int) got { return got{PSN: bth.PSN(psn), Fault: wire.Impaired} }
	ok := func(psn int) got { return got{PSN: bth.PSN(psn)} }
	for _, c := range []struct {
		rules []string
		n     int
		want  []at
	}{
		{[]string{"rx drop psn=+1"}, 3, []at{{0, []got{ok(1), hit(2), ok(3)}, nil}}},
		{[]string{"rx duplicate psn=+1"}, 3, []at{{0, psns(1, 3), []got{ok(2)}}}},
		{[]string{"rx delay=5ms"}, 2, []at{{0, nil, nil}, {4 * ms, nil, nil}, {1 * ms, nil, psns(1, 2)}}},
		{[]string{"rx reorder psn=+0"}, 3, []at{{0, []got{ok(2), ok(3)}, []got{ok(1)}}}},
		{[]string{"rx reorder psn=+2"}, 3, []at{{0, []got{ok(1), ok(2)}, nil}, {10 * ms, nil, []got{ok(3)}}}},
		{[]string{"rx reorder duplicate"}, 0, nil}, // not a rule, see below
		{[]string{"rx reorder psn=+0", "rx duplicate psn=+0"}, 2, []at{{0, []got{ok(2)}, []got{ok(1), ok(1)}}}},
	} {
		if c.n == 0 {
			if _, err := impair.New(c.rules...); err == nil {
				t.Errorf("%v: no error", c.rules)
			}
			continue
		}
		for name, cfg := range map[string]pipe.Config{"ip": {}, "ethernet": {Ethernet: true}, "udp": {HideIP: true}} {
			for _, inline := range []bool{false, true} {
				t.Run(fmt.Sprint(c.rules, name, inline), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						o := link.PortOptions{Impair: rules(t, c.rules...), Inline: inline}
						m := clock.NewManual(time.Unix(0, 0))
						if inline {
							o.Clock = m
						}
						a, b := pair(t, cfg, cfg, link.PortOptions{}, o)
						if err := a.Send(sends(linktest.Path(addrA, addrB), 17, 1, c.n)); err != nil {
							t.Fatal(err)
						}
						for _, w := range c.want {
							if inline {
								m.Advance(w.after)
							} else {
								time.Sleep(w.after)
								synctest.Wait()
							}
							want(t, drain(t, b, 0), w.first)
							want(t, drain(t, b, 1), w.loop)
						}
						if _, ok := m.Next(); ok {
							t.Fatal("a stepped port has set a timer")
						}
						if at, ok := b.Next(); ok {
							t.Fatalf("something is still due at %v", at)
						}
					})
				})
			}
		}
	}
}

// A packet to the device itself meets the rules of both directions.
func TestImpairLoop(t *testing.T) {
	p, _ := pair(t, pipe.Config{}, pipe.Config{}, link.PortOptions{Impair: rules(t, "tx psn=+0 drop", "rx psn=0x3 drop")}, link.PortOptions{})
	if err := p.Send(sends(linktest.Path(addrA, addrA), 17, 1, 4)); err != nil {
		t.Fatal(err)
	}
	want(t, drain(t, p, 1), []got{{PSN: 2}, {PSN: 3, Fault: wire.Impaired}, {PSN: 4}})
}

// The capture shows what was taken away and what went out, with the rule.
func TestImpairCapture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sa, sb := new(linktest.Sink), new(linktest.Sink)
		a, b := pair(t, pipe.Config{}, pipe.Config{},
			link.PortOptions{Capture: sa, Impair: rules(t, "tx psn=+0 drop", "tx psn=+1 delay=1ms", "tx psn=+2 duplicate")},
			link.PortOptions{Capture: sb, Impair: rules(t, "rx psn=0x3 count=1 drop", "rx psn=0x3 delay=1ms")})
		pkts := sends(linktest.Path(addrA, addrB), 17, 1, 3)
		if err := a.Send(pkts); err != nil {
			t.Fatal(err)
		}
		drain(t, b, 0)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		drain(t, b, 0)
		drain(t, b, 1)
		show := func(s *linktest.Sink) (l []string) {
			for _, e := range s.Take() {
				l = append(l, fmt.Sprint(e.BTH().PSN(), " ", e.Fault, " ", e.Note))
				if w, g := linktest.ICRC(e.Bytes); w != g {
					t.Errorf("captured ICRC %08x, want %08x", g, w)
				}
				if !bytes.Contains(e.Bytes, []byte("packet ")) {
					t.Errorf("captured packet %x", e.Bytes)
				}
			}
			return l
		}
		if got, want := show(sa), []string{
			"000001 impaired tx psn=+0 drop",
			"000002 impaired tx psn=+1 delay=1ms",
			"000003 ok ",
			"000003 ok tx psn=+2 duplicate",
			"000002 ok tx psn=+1 delay=1ms",
		}; !slices.Equal(got, want) {
			t.Errorf("sender's capture %q\nwant %q", got, want)
		}
		if got, want := show(sb), []string{
			"000003 impaired rx psn=0x3 count=1 drop",
			"000003 impaired rx psn=0x3 delay=1ms",
			"000002 ok ",
			"000003 ok rx psn=0x3 delay=1ms",
		}; !slices.Equal(got, want) {
			t.Errorf("receiver's capture %q\nwant %q", got, want)
		}
	})
}

// Who receives does not see what is held back, and the capture has it where it came.
func TestImpairHeldOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &linktest.Sink{}
		a, b := pair(t, pipe.Config{}, pipe.Config{}, link.PortOptions{},
			link.PortOptions{Capture: sink, Impair: rules(t, "rx psn=0x1 delay=1ms", "rx psn=0x3 reorder", "rx psn=0x4 drop", "rx psn=0x6 delay=1ms")})
		if err := a.Send(sends(linktest.Path(addrA, addrB), 17, 1, 6)); err != nil {
			t.Fatal(err)
		}
		want(t, drain(t, b, 0), []got{{PSN: 2}, {PSN: 4, Fault: wire.Impaired}, {PSN: 5}})
		var l []string
		for _, e := range sink.Take() {
			l = append(l, fmt.Sprint(e.BTH().PSN(), " ", e.Fault))
		}
		if want := "000001 impaired, 000002 ok, 000003 impaired, 000004 impaired, 000005 ok, 000006 impaired"; strings.Join(l, ", ") != want {
			t.Errorf("captured %q, want %s", l, want)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want(t, drain(t, b, 1), []got{{PSN: 3}, {PSN: 1}, {PSN: 6}})
	})
}

// Rules come and go while packets are held back.
func TestImpairRuleRemoved(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{})
	m := clock.NewManual(time.Unix(0, 0))
	p := linktest.Port(t, e, link.PortOptions{Clock: m, Inline: true})
	id, err := p.Impair().Add("tx reorder")
	if err != nil {
		t.Fatal(err)
	}
	path := linktest.Path(addrA, addrB)
	for i, w := range [][]int{nil, {2, 1}, {3}} {
		if err := p.Send(sends(path, 17, i+1, i+1)); err != nil {
			t.Fatal(err)
		}
		if got := sent(t, raw); !slices.Equal(got, w) {
			t.Fatalf("send %d: %v, want %v", i, got, w)
		}
		if i == 0 {
			if err := p.Impair().Remove(id); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestImpairHoldsABoundedNumber(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{})
	m := clock.NewManual(time.Unix(0, 0))
	p := linktest.Port(t, e, link.PortOptions{Clock: m, Inline: true, Impair: rules(t, "tx delay=1h")})
	pk := sends(linktest.Path(addrA, addrB), 17, 1, 1)
	for range 20000 {
		if err := p.Send(pk); err != nil {
			t.Fatal(err)
		}
	}
	lost := uint64(0)
	for _, v := range p.Counters() {
		if v.Name == "impair_lost" {
			lost = v.Value
		}
	}
	at, ok := p.Next()
	if !ok || at != m.Now().Add(time.Hour) || lost != 20000-16384 {
		t.Fatalf("next %v %v, lost %d", at, ok, lost)
	}
	p.Close()
	m.Advance(2 * time.Hour)
	p.Flush(m.Now())
	if raw.TryRead() != nil {
		t.Fatal("sent after Close")
	}
}

// Senders, the receive loops, timers, rule changes and captures at once, for the race
// detector.
func TestPortRaces(t *testing.T) {
	sink := new(linktest.Sink)
	r := rules(t, "tx delay=100us p=5%", "tx reorder=5%", "rx duplicate=5%", "rx delay=50us p=5%", "rx drop=1%", "tx duplicate=5%")
	a, b := pair(t, pipe.Config{}, pipe.Config{}, link.PortOptions{Impair: r}, link.PortOptions{Impair: r})
	done := make(chan bool)
	for _, p := range []*link.Port{a, b} {
		for _, s := range p.Sources() {
			go func() {
				batch := link.NewBatch(16)
				for s.Recv(batch, true) == nil {
					p.Parse(batch)
					p.Done(batch)
				}
				done <- true
			}()
		}
	}
	for i := range 4 {
		go func() {
			p, path := a, linktest.Path(addrA, addrB)
			if i%2 == 1 {
				p, path = b, linktest.Path(addrB, addrA)
			}
			if i == 3 {
				path = linktest.Path(addrB, addrB)
			}
			for n := range 500 {
				if n%50 == 0 {
					p.SetCapture(sink)
				}
				p.Send(sends(path, uint32(17+i), n, n+3))
				if n%50 == 0 {
					id, _ := p.Impair().Add("tx opcode=SEND* nth=7 drop")
					p.SetCapture(nil)
					p.Impair().Remove(id)
					p.Counters()
				}
			}
			done <- true
		}()
	}
	for range 4 {
		<-done
	}
	a.Close()
	b.Close()
	for range 4 {
		<-done
	}
	if len(sink.Take()) == 0 {
		t.Error("nothing captured")
	}
}
