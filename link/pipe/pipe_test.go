package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
)

const (
	addrA = "10.0.0.1"
	addrB = "10.0.0.2"
)

var prefixA = netip.MustParsePrefix(addrA + "/24")

func pair(tb testing.TB, ca, cb pipe.Config) (*link.Port, *link.Port) {
	tb.Helper()
	ea, eb := pipe.New(ca, cb)
	return linktest.Port(tb, ea, link.PortOptions{}), linktest.Port(tb, eb, link.PortOptions{})
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, pipe.Config{}, pipe.Config{Latency: 3 * time.Millisecond})
		start := time.Now()
		if err := a.Send(linktest.Sends(linktest.Path(addrA, addrB), 17, 1, 2)); err != nil {
			t.Fatal(err)
		}
		if g := linktest.Drain(t, b, 0); g != nil {
			t.Fatalf("%v before their time", g)
		}
		batch := link.NewBatch(4)
		if err := b.Sources()[0].Recv(batch, true); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 3*time.Millisecond || len(batch.Packets) != 2 || batch.Packets[0].When.Sub(start) != d {
			t.Fatalf("%v after %v", len(batch.Packets), d)
		}
	})
}

func TestFull(t *testing.T) {
	a, b := pair(t, pipe.Config{}, pipe.Config{Queue: 3})
	for range 3 {
		if err := a.Send(linktest.Sends(linktest.Path(addrA, addrB), 17, 1, 5)); err != nil {
			t.Fatal(err)
		}
		if g := linktest.Drain(t, b, 0); len(g) != 3 || g[0].PSN != 1 || g[2].PSN != 3 {
			t.Fatalf("received %v", g)
		}
	}
	for _, v := range b.Counters() {
		if v.Name == "link_rx_lost" && v.Value != 6 {
			t.Fatal(v)
		}
	}
}

func TestRaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, raw := pipe.NewRaw(pipe.Config{Ethernet: true, Addrs: []netip.Prefix{prefixA}})
		p := linktest.Port(t, e, link.PortOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := raw.Read(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Fatal(err, time.Since(start))
		}
		go p.Send(linktest.Sends(linktest.Path(addrA, addrB), 17, 1, 1))
		f, err := raw.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(f[6:14], append(bytes.Clone(p.Info().MAC), 8, 0)) || bytes.Equal(f[:6], f[6:12]) {
			t.Fatalf("Ethernet header %x", f[:14])
		}
		raw.Close()
		if _, err := raw.Read(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
		if err := raw.Write(f); !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
	})
}

// A UDP socket hides everything but good datagrams to its port.
func TestHideIP(t *testing.T) {
	e, raw := pipe.NewRaw(pipe.Config{HideIP: true})
	p := linktest.Port(t, e, link.PortOptions{})
	good := linktest.Frame(linktest.Send(linktest.Path(addrB, addrA), 17, 1, []byte("abcd")))
	for i, mangle := range []func(f []byte) []byte{
		func(f []byte) []byte { return f },
		func(f []byte) []byte { return f[:27] },
		func(f []byte) []byte { return f[:len(f)-1] },
		func(f []byte) []byte { f[9] = 6; return f },
		func(f []byte) []byte { f[6] |= 0x20; return f },
		func(f []byte) []byte { f[23]++; return f },
		func(f []byte) []byte { f[25] = 7; return f },
		func(f []byte) []byte { return nil },
	} {
		raw.Write(mangle(bytes.Clone(good)))
		if g := linktest.Drain(t, p, 0); (len(g) == 1) != (i == 0) {
			t.Fatalf("%d: %v", i, g)
		}
	}
}

// Under a manual clock the pipe tells when the next packet arrives.
func TestManualClock(t *testing.T) {
	m := clock.NewManual(time.Unix(100, 0))
	ea, eb := pipe.New(pipe.Config{Clock: m}, pipe.Config{Clock: m, Latency: time.Second})
	a := linktest.Port(t, ea, link.PortOptions{Clock: m, Inline: true})
	b := linktest.Port(t, eb, link.PortOptions{Clock: m, Inline: true})
	if _, ok := eb.Next(); ok {
		t.Fatal("nothing is on its way")
	}
	if err := a.Send(linktest.Sends(linktest.Path(addrA, addrB), 17, 1, 1)); err != nil {
		t.Fatal(err)
	}
	at, ok := eb.Next()
	if !ok || at != time.Unix(101, 0) {
		t.Fatal(at, ok)
	}
	for _, w := range []int{0, 1, 0} {
		if g := linktest.Drain(t, b, 0); len(g) != w {
			t.Fatalf("%v at %v", g, m.Now())
		}
		m.Set(at)
	}
}

// What is sent while one end is down is lost, whichever end it is.
func TestDown(t *testing.T) {
	ea, eb := pipe.New(pipe.Config{}, pipe.Config{})
	a := linktest.Port(t, ea, link.PortOptions{})
	b := linktest.Port(t, eb, link.PortOptions{})
	for i, c := range []struct {
		end  *pipe.End
		up   bool
		want int
	}{{ea, false, 0}, {ea, true, 1}, {eb, false, 0}, {eb, true, 1}} {
		c.end.Change(func(i *link.Info) { i.Up = c.up })
		if err := a.Send(linktest.Sends(linktest.Path(addrA, addrB), 17, i, i)); err != nil {
			t.Fatal(err)
		}
		if g := linktest.Drain(t, b, 0); len(g) != c.want {
			t.Fatalf("step %d: received %v", i, g)
		}
	}
	for range 3 { // once for each time that it went down
		eb.Change(func(i *link.Info) { i.Up, i.Downs = false, 77 })
	}
	eb.Change(func(i *link.Info) { i.Up = true })
	if x, y := ea.Info().Downs, eb.Info().Downs; x != 1 || y != 2 {
		t.Errorf("down %d and %d times", x, y)
	}
	if v := ea.Counters()[0]; v.Name != "link_tx_lost" || v.Value != 2 {
		t.Fatal(v)
	}
	b.Close() // the other end is gone, as a pulled cable
	if err := a.Send(linktest.Sends(linktest.Path(addrA, addrB), 17, 9, 9)); err != nil {
		t.Fatal(err)
	}
}
