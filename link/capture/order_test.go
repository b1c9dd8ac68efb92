package capture

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// A received packet stands before what was sent because of it, however long it takes to handle its batch; of the same time
// the received one is first.
func TestOrderOfReceived(t *testing.T) {
	for _, wait := range []time.Duration{time.Nanosecond, time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var file, log bytes.Buffer
			c := create(t, &file, infoA, Options{})
			l, err := NewLog(&log, infoA)
			if err != nil {
				t.Fatal(err)
			}
			e, raw := pipe.NewRaw(pipe.Config{})
			tee := NewTee(Filter{QP: 17}.Sink(c), l)
			p := linktest.Port(t, e, link.PortOptions{Capture: tee})
			b := link.NewBatch(4)
			for i := range 3 {
				raw.Write(linktest.Frame(linktest.Send(linktest.Path(addrB, addrA), 17, bth.PSN(2*i+1), []byte("abc"))))
				if err := p.Sources()[0].Recv(b, true); err != nil {
					t.Fatal(err)
				}
				p.Parse(b)
				time.Sleep(wait)
				reply := linktest.Send(linktest.Path(addrA, addrB), 18, bth.PSN(2*i+2), nil)
				reply.QPN = 17
				if err := p.Send([]*wire.Packet{reply}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(wait)
				p.Done(b)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			var got []int
			var at []time.Time
			for _, x := range parse(t, file.Bytes()).packets {
				got, at = append(got, int(bth.BTH(x.data[28:]).PSN())), append(at, x.when)
			}
			if !slices.Equal(got, []int{1, 2, 3, 4, 5, 6}) || !slices.IsSortedFunc(at, time.Time.Compare) {
				t.Errorf("wait %v: packets %v at %v", wait, got, at)
			}
			var dirs []string
			for line := range strings.Lines(log.String()) {
				if _, d, ok := strings.Cut(line, `"dir":"`); ok {
					dirs = append(dirs, d[:2])
				}
			}
			if want := []string{"rx", "tx", "rx", "tx", "rx", "tx"}; !slices.Equal(dirs, want) {
				t.Errorf("wait %v: log %v", wait, dirs)
			}
		})
	}
}

// A sink that comes while a batch is handled is not waited for by anybody, and one that goes meanwhile neither.
func TestOrderComesAndGoes(t *testing.T) {
	var one, two bytes.Buffer
	a, b := create(t, &one, infoA, Options{}), create(t, &two, infoA, Options{})
	tee := new(Tee)
	off := tee.Attach(a)
	now := time.Now()
	tee.Arrived(now)
	tee.Attach(b)
	tee.Capture(sent(1, now.Add(time.Second)))
	off()
	tee.Handled(now)
	for i, c := range []*Writer{a, b} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if n := len(parse(t, []*bytes.Buffer{&one, &two}[i].Bytes()).packets); n != 1 {
			t.Errorf("file %d has %d packets", i, n)
		}
	}
}

// A port has no capture, which would cost something, while a tee has no sinks.
func TestTeeDrives(t *testing.T) {
	var p driven
	tee := new(Tee)
	tee.Drive(&p)
	off1 := tee.Attach(new(countSink))
	off2 := tee.Attach(new(countSink))
	off1()
	off1()
	on := p.sink
	off2()
	if on != link.Sink(tee) || p.sink != nil || p.calls != 6 {
		t.Errorf("%v, then %v, %d calls", on, p.sink, p.calls)
	}
}

type driven struct {
	sink  link.Sink
	calls int
}

func (d *driven) SetCapture(s link.Sink) { d.sink, d.calls = s, d.calls+1 }

func TestFilter(t *testing.T) {
	ops := func(s string) *[256]bool {
		o, err := impair.Opcodes(s)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	net := netip.MustParsePrefix
	six := sent(1, time.Now())
	six.Net = make([]byte, 48)
	six.Net[0], six.Net[8], six.Net[24] = 0x60, 0xFD, 0xFE
	for _, c := range []struct {
		f    Filter
		r    *link.Record
		pass bool
	}{
		{Filter{}, sent(1, time.Now()), true},
		{Filter{}, &link.Record{}, true},
		{Filter{QP: 5}, with(sent(1, time.Now()), func(r *link.Record) { r.QPN = 5 }), true},
		{Filter{QP: 5}, with(sent(1, time.Now()), func(r *link.Record) { r.QPN = 6 }), false},
		{Filter{QP: 5}, &link.Record{}, false},
		{Filter{Peer: net(addrB + "/32")}, sent(1, time.Now()), true},
		{Filter{Peer: net(addrA + "/32")}, sent(1, time.Now()), false},
		{Filter{Peer: net(addrA + "/32")}, with(sent(1, time.Now()), func(r *link.Record) { r.Dir = link.Rx }), true},
		{Filter{Peer: net("10.0.0.0/24")}, sent(1, time.Now()), true},
		{Filter{Peer: net("fe00::/8")}, six, true},
		{Filter{Peer: net("fd00::/8")}, six, false},
		{Filter{Peer: net(addrB + "/32")}, &link.Record{Net: []byte{0x45}}, false},
		{Filter{Peer: net(addrB + "/32")}, &link.Record{}, false},
		{Filter{Ops: ops("SEND*")}, sent(1, time.Now()), true},
		{Filter{Ops: ops("ACKNOWLEDGE,READ*")}, sent(1, time.Now()), false},
		{Filter{Ops: ops("SEND*")}, &link.Record{Head: []byte{4}}, false},
	} {
		var n countSink
		c.f.Sink(&n).Capture(c.r)
		if (n == 1) != c.pass {
			t.Errorf("%+v and %+v: %d", c.f, c.r, n)
		}
	}
}
