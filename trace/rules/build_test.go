package rules

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// A script is a trace by hand, one packet a line:
//
//	[+TIME|-TIME] A>|B> OPERATION PSN [LENGTH] [word|key=value ...]
//	READS PSN N
//
// A and B are the hosts, with the queue pairs 0xA and 0xB; C and D are a second pair of queue
// pairs on the same hosts, E and F one on A and another address of B, G and H one on another host than
// A, and B. READS is so many READs, each answered. TIME is that since the line before, 10us if not given. Path MTU
// is 256. Words: ar, bad (ICRC), cut, held, released, lost, copied, forged, dropped=FAULT, ce; keys: va, rlen, key
// (RETH), round, syn (ack, nak, rnr, or hex), msn, fill (payload byte), value, add.
type script struct {
	t      testing.TB
	from   string // where the capture was made: "A", "B", "AB" (both hosts) or "?"
	svc    bth.Service
	number uint64
	now    int64
}

var (
	hostA = netip.MustParseAddr("10.0.0.1")
	hostB = netip.MustParseAddr("10.0.0.2")
	alsoB = netip.MustParseAddr("10.0.0.3")
	hostG = netip.MustParseAddr("10.0.0.4")
)

func opOf(t testing.TB, svc bth.Service, s string) bth.Opcode {
	for o := range bth.Operation(32) {
		if bth.Make(bth.RC, o).String() == "RC_"+s {
			return bth.Make(svc, o)
		}
		if o := bth.Make(bth.Vendor, o); o.String() == "RC_"+s {
			return o
		}
	}
	t.Fatalf("no operation %q", s)
	return 0
}

func num(t testing.TB, s string) uint64 {
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// short names of operations.
var short = strings.NewReplacer("RR_F", "READ_RESPONSE_FIRST", "RR_M", "READ_RESPONSE_MIDDLE", "RR_L", "READ_RESPONSE_LAST",
	"RR_O", "READ_RESPONSE_ONLY", "READ ", "READ_REQUEST ", "ACK ", "ACKNOWLEDGE ", "AACK", "ATOMIC_ACKNOWLEDGE", "FADD", "FETCH_ADD", "CSWAP", "COMPARE_SWAP")

// add gives a checker the packets of a line.
func (s *script) add(c *Checker, line string) {
	t := s.t
	w := strings.Fields(short.Replace(line + " "))
	wait := 10 * time.Microsecond
	if w[0] == "READS" {
		for i := range num(t, w[2]) {
			s.add(c, fmt.Sprintf("A> READ %d rlen=4", num(t, w[1])+i))
			s.add(c, fmt.Sprintf("B> RR_O %d 4 msn=%d", num(t, w[1])+i, 2+i))
		}
		return
	}
	if w[0][0] == '+' || w[0][0] == '-' {
		d, err := time.ParseDuration(w[0])
		if err != nil {
			t.Fatal(err)
		}
		wait, w = d, w[1:]
	}
	s.now += int64(wait)
	host := w[0][:1]
	qp := map[string]uint32{"A": 0xB, "B": 0xA, "C": 0xD, "D": 0xC, "E": 0xF, "F": 0xE, "G": 0x11, "H": 0x10}[host]
	path := wire.Path{Src: hostA, Dst: hostB, SrcPort: 0xC001}
	at := "A"
	switch host {
	case "E", "F":
		path.Dst = alsoB
	case "G", "H":
		path.Src = hostG
	}
	if strings.Contains("BDFH", host) {
		path.Src, path.Dst = path.Dst, path.Src
		at = "B"
	}
	p := Packet{}
	var spec wire.Spec
	rest := w[3:]
	if w[1] == "CNP" {
		spec = wire.NewSpec(path, bth.CNPNotify, qp, bth.PSN(num(t, w[2])))
		spec.BTH.BECN, spec.BTH.MigReq = true, false
	} else {
		op := opOf(t, s.svc, w[1])
		spec = wire.NewSpec(path, op, qp, bth.PSN(num(t, w[2])))
		if len(rest) > 0 && rest[0][0] >= '0' && rest[0][0] <= '9' {
			spec.Payload = make([]byte, num(t, rest[0]))
			spec.Ext.Length = uint32(len(spec.Payload))
			rest = rest[1:]
		}
	}
	spec.Ext.Syndrome, spec.Ext.RKey, spec.Ext.VA = bth.AckUnlimited, 7, 0x1000
	bad := false
	for _, x := range rest {
		k, v, _ := strings.Cut(x, "=")
		switch k {
		case "ar":
			spec.BTH.AckReq = true
		case "becn":
			spec.BTH.BECN = v != "0"
		case "tver":
			spec.BTH.TVer = int(num(t, v))
		case "ce":
			spec.Path.TClass = 3
		case "bad":
			bad = true
		case "cut":
			p.Cut = true
		case "held":
			p.Fate, p.Fault = Held, wire.Impaired
		case "lost":
			p.Fate, p.Fault = Lost, wire.Impaired
		case "copied":
			p.Fate = Copied
		case "released":
			p.Fate = Released
		case "forged": // at the place where it is seen first
			p.Fate = Forged
		case "dropped":
			p.Fate = Dropped
			for f := range wire.Faults {
				if f.String() == v {
					p.Fault = f
				}
			}
		case "round":
			p.Round = int(num(t, v))
		case "va":
			spec.Ext.VA = num(t, v)
		case "rlen":
			spec.Ext.Length = uint32(num(t, v))
		case "key":
			spec.Ext.RKey = uint32(num(t, v))
		case "msn":
			spec.Ext.MSN = uint32(num(t, v))
		case "value":
			spec.Ext.Original = num(t, v)
		case "add":
			spec.Ext.SwapAdd = num(t, v)
		case "compare":
			spec.Ext.Compare = num(t, v)
		case "srqn":
			spec.Ext.SRQN = uint32(num(t, v))
		case "fill":
			for i := range spec.Payload {
				spec.Payload[i] = byte(num(t, v))
			}
		case "pad":
			spec.Pad = make([]byte, num(t, v))
		case "dirt":
			spec.Pad = []byte{1, 2, 3}[:-len(spec.Payload)&3]
		case "syn":
			switch {
			case v == "nak":
				spec.Ext.Syndrome = bth.NakSequence
			case strings.HasPrefix(v, "rnr"):
				spec.Ext.Syndrome = bth.RNR(int(num(t, v[3:])))
			default:
				spec.Ext.Syndrome = bth.Syndrome(num(t, v))
			}
		default:
			t.Fatalf("what is %q", x)
		}
	}
	frame := wire.Build(&spec)
	if bad {
		frame[len(frame)-1] ^= 1
	}
	give := func(d Direction, iface int, after int64) {
		var v wire.View
		q := p
		if f := wire.ParseIP(frame, &v); f != wire.OK {
			q.Fault = f
		}
		q.Number, q.Time, q.Dir, q.Iface, q.View = s.number, s.now+after, d, iface, &v
		c.Add(&q)
	}
	s.number++
	tx := strings.Contains(s.from, at)
	rx := strings.Contains(s.from, map[string]string{"A": "B", "B": "A"}[at])
	if s.from == "?" {
		give(Unknown, 0, 0)
		return
	}
	if tx && p.Fate != Dropped {
		give(Tx, 0, 0)
	}
	if tx && (p.Fate == Forged || p.Fate == Released) {
		p.Fate = Passed // whoever gets it cannot tell
	}
	if rx && (!tx || p.Fate == Passed || p.Fate == Dropped) {
		after := int64(0)
		if tx {
			after = 1000
		}
		give(Rx, 1, after)
	}
}

// run judges a script.
func run(t testing.TB, o Options, from string, lines string) *Checker {
	t.Helper()
	c := New(o)
	s := &script{t: t, from: from, svc: bth.RC}
	for _, l := range strings.Split(lines, "\n") {
		l, _, _ = strings.Cut(strings.TrimSpace(l), "#")
		switch l = strings.TrimSpace(l); l {
		case "":
		case "UC", "XRC", "RC":
			s.svc = map[string]bth.Service{"UC": bth.UC, "XRC": bth.XRC, "RC": bth.RC}[l]
		default:
			s.add(c, l)
		}
	}
	return c
}

// brief lists what is broken, "rule:packet", in order of the table.
func brief(c *Checker) string {
	var out []string
	for _, f := range c.Findings() {
		for _, v := range f.Violations {
			out = append(out, fmt.Sprintf("%v:%d", f.Rule, v.Packet))
		}
	}
	return strings.Join(out, " ")
}

func report(c *Checker) string {
	var b strings.Builder
	for _, f := range c.Findings() {
		if f.Kept+f.Broken+f.Unknown > 0 {
			b.WriteString(f.String())
			b.WriteByte('\n')
		}
	}
	return b.String()
}
