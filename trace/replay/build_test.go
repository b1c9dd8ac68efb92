package replay

import (
	"io"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Queue pairs and addresses of the recordings that tests make: A asks, B answers.
const (
	qpA, qpB = 0x22, 0x11
	rkey     = 0x1234
	base     = 0x10000
)

var addrA, addrB = netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")

// list is a source of packets that a test has made.
type list []*trace.Sighting

// Next implements source.
func (l *list) Next() (*trace.Sighting, error) {
	if len(*l) == 0 {
		return nil, io.EOF
	}
	p := (*l)[0]
	*l = (*l)[1:]
	return p, nil
}

// Last implements source: the tests end with a RoCE packet.
func (l *list) Last() int64 { return math.MinInt64 }

// none is how many packets were lost.
func none() uint64 { return 0 }

// tape makes a recording, packet after packet, one every 10 µs.
type tape struct {
	l    list
	spec []wire.Spec
	word trace.Word // of the next packet
}

// sighting is a packet, from its IP header on.
func sighting(number int, ns int64, ip []byte) *trace.Sighting {
	return &trace.Sighting{Packet: trace.Packet{Number: uint64(number), Time: ns}, Frame: trace.Frame{Kind: trace.RoCE, IP: ip}}
}

// put records a packet, and returns its number.
func (r *tape) put(s wire.Spec) int {
	n := len(r.l) + 1
	h := sighting(n, int64(n)*10_000, wire.Build(&s))
	h.Word, r.word = r.word, trace.Word{}
	r.l = append(r.l, h)
	r.spec = append(r.spec, s)
	return n
}

// ask records a request of A; f, if not nil, sets more of it.
func (r *tape) ask(op bth.Operation, psn bth.PSN, payload []byte, f func(s *wire.Spec)) int {
	s := wire.NewSpec(wire.Path{Src: addrA, Dst: addrB, SrcPort: 0xC001}, bth.Make(bth.RC, op), qpB, psn)
	s.Payload, s.BTH.AckReq = payload, true
	if f != nil {
		f(&s)
	}
	return r.put(s)
}

// reply records an answer of B.
func (r *tape) reply(op bth.Operation, psn bth.PSN, syn bth.Syndrome, msn uint32, payload []byte) int {
	return r.replyTo(op, psn, syn, msn, payload, nil)
}

func (r *tape) replyTo(op bth.Operation, psn bth.PSN, syn bth.Syndrome, msn uint32, payload []byte, f func(s *wire.Spec)) int {
	s := wire.NewSpec(wire.Path{Src: addrB, Dst: addrA, SrcPort: 0xC002, TClass: 4}, bth.Make(bth.RC, op), qpA, psn)
	s.ID, s.Payload, s.Ext.Syndrome, s.Ext.MSN = 99, payload, syn, msn
	if f != nil {
		f(&s)
	}
	return r.put(s)
}

func (r *tape) ack(psn bth.PSN, msn uint32) int {
	return r.reply(bth.Acknowledge, psn, bth.AckUnlimited, msn, nil)
}

func (r *tape) nak(psn bth.PSN, syn bth.Syndrome, msn uint32) int {
	return r.reply(bth.Acknowledge, psn, syn, msn, nil)
}

// at sets the RETH or AtomicETH of a request.
func at(va uint64, key, n uint32) func(*wire.Spec) {
	return func(s *wire.Spec) { s.Ext.VA, s.Ext.RKey, s.Ext.Length = va, key, n }
}

// silent clears AckReq, and does what f does.
func silent(f func(*wire.Spec)) func(*wire.Spec) {
	return func(s *wire.Spec) {
		s.BTH.AckReq = false
		if f != nil {
			f(s)
		}
	}
}

// readdress makes the packets those of other addresses, with an Ethernet header that has a VLAN tag.
func (r *tape) readdress(a, b netip.Addr) {
	for i, s := range r.spec {
		if s.Path.Src == addrA {
			s.Path.Src, s.Path.Dst = a, b
		} else {
			s.Path.Src, s.Path.Dst = b, a
		}
		s.Eth = make([]byte, wire.EthVLANLen)
		wire.PutEthernetVLAN(s.Eth, [6]byte{2}, [6]byte{4}, 5, s.Path.EtherType())
		frame := wire.Build(&s)
		new(trace.Decoder).Decode(trace.LinkEthernet, frame, len(frame), &r.l[i].Frame)
	}
}

// play replays what was recorded.
func (r *tape) play(t *testing.T, o Options) *Result {
	t.Helper()
	l := slices.Clone(r.l)
	res, err := run(&l, o, none)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// findings are the findings that are not declared, and those that are if declared is set.
func findings(r *Result, v ...Verdict) (l []Finding) {
	for _, c := range r.Conversations {
		for _, f := range c.Findings {
			if slices.Contains(v, f.Verdict) {
				l = append(l, f)
			}
		}
	}
	return l
}

func data(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	return b
}
