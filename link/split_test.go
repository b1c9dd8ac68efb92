package link_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
)

// splitting is an endpoint that brings a packet in pieces, as one does that takes bursts apart.
type splitting struct {
	link.Endpoint
	pk link.Packet
}

func (s *splitting) Recv(b *link.Batch, _ bool) error {
	b.Packets = append(b.Packets[:0], s.pk)
	return nil
}

// A packet in pieces is judged and captured as the same packet in one: from a link that sees IP headers its ID is known, and not
// to be solved for.
func TestPiecesWithEthernet(t *testing.T) {
	eth := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}
	ip := linktest.Frame(linktest.Send(linktest.Path(addrA, addrB), 17, 5, []byte("payload.")))
	for _, c := range []struct {
		id   byte
		rule string
		want wire.Fault
	}{{0, "", wire.OK}, {1, "", wire.ICRC}, {0, "rx delay=1ms", wire.OK}} {
		ip := bytes.Clone(ip)
		ip[5] = c.id
		wire.PutIPChecksum(ip)
		e, _ := pipe.NewRaw(pipe.Config{Ethernet: true})
		sink, m := new(linktest.Sink), clock.NewManual(time.Unix(1, 0))
		o := link.PortOptions{Capture: sink, Clock: m}
		if c.rule != "" {
			rules, err := impair.New(c.rule)
			if err != nil {
				t.Fatal(err)
			}
			o.Impair = rules
		}
		p := linktest.Port(t, &splitting{e, link.Packet{Eth: eth, Net: ip[:28], IB: ip[28:], When: m.Now()}}, o)
		b := link.NewBatch(1)
		if err := p.Sources()[0].Recv(b, true); err != nil {
			t.Fatal(err)
		}
		p.Parse(b)
		if c.rule != "" {
			if len(b.Packets) != 0 {
				t.Errorf("%q: it is not held back", c.rule)
			}
		} else if f := b.Packets[0].Fault; f != c.want {
			t.Errorf("ID %d: %v, want %v", c.id, f, c.want)
		}
		p.Done(b)
		want := append(bytes.Clone(eth), ip...)
		if l := sink.Take(); len(l) != 1 || !bytes.Equal(l[0].Bytes, want) || l[0].HeadAt != 42 {
			t.Errorf("ID %d, %q: captured %+v", c.id, c.rule, l)
		}
		m.Advance(time.Millisecond)
		if c.rule == "" {
			continue
		}
		if l := linktest.Drain(t, p, 1); len(l) != 1 || l[0] != (linktest.Got{PSN: 5, Fault: wire.OK}) {
			t.Errorf("held back, and then: %v", l)
		}
	}
}
