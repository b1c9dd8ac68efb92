package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// field is a number in a packet that a line can name.
type field struct {
	name    string
	headers []bth.Header // the opcode must have one of them; nil: all have it
	bits    int
	get     func(s *wire.Spec) uint64
	set     func(s *wire.Spec, v uint64)
}

// fields are in the order in which they are printed.
var fields = []field{
	flag("ar", func(s *wire.Spec) *bool { return &s.BTH.AckReq }),
	flag("se", func(s *wire.Spec) *bool { return &s.BTH.Solicited }),
	flag("mig", func(s *wire.Spec) *bool { return &s.BTH.MigReq }),
	flag("fecn", func(s *wire.Spec) *bool { return &s.BTH.FECN }),
	flag("becn", func(s *wire.Spec) *bool { return &s.BTH.BECN }),
	{"pkey", nil, 16, func(s *wire.Spec) uint64 { return uint64(s.BTH.PKey) }, func(s *wire.Spec, v uint64) { s.BTH.PKey = uint16(v) }},
	{"ecn", nil, 2, func(s *wire.Spec) uint64 { return uint64(s.Path.TClass & 3) }, func(s *wire.Spec, v uint64) { s.Path.TClass = s.Path.TClass&^3 | uint8(v) }},
	{"pad", nil, 2, func(s *wire.Spec) uint64 { return uint64(len(s.Pad)) }, func(s *wire.Spec, v uint64) { s.Pad = make([]byte, v) }},
	word("qkey", func(e *bth.Ext) *uint32 { return &e.QKey }, 32, bth.HDETH),
	word("srqn", func(e *bth.Ext) *uint32 { return &e.SRQN }, 24, bth.HXRCETH),
	word("srcqp", func(e *bth.Ext) *uint32 { return &e.SrcQP }, 24, bth.HDETH),
	{"syndrome", []bth.Header{bth.HAETH}, 8, func(s *wire.Spec) uint64 { return uint64(s.Ext.Syndrome) }, func(s *wire.Spec, v uint64) { s.Ext.Syndrome = bth.Syndrome(v) }},
	word("msn", func(e *bth.Ext) *uint32 { return &e.MSN }, 24, bth.HAETH),
	long("original", func(e *bth.Ext) *uint64 { return &e.Original }, bth.HAtomicAckETH),
	long("va", func(e *bth.Ext) *uint64 { return &e.VA }, bth.HRETH, bth.HAtomicETH),
	word("rkey", func(e *bth.Ext) *uint32 { return &e.RKey }, 32, bth.HRETH, bth.HAtomicETH),
	word("len", func(e *bth.Ext) *uint32 { return &e.Length }, 32, bth.HRETH),
	long("add", func(e *bth.Ext) *uint64 { return &e.SwapAdd }, bth.HAtomicETH),
	long("swap", func(e *bth.Ext) *uint64 { return &e.SwapAdd }, bth.HAtomicETH),
	long("compare", func(e *bth.Ext) *uint64 { return &e.Compare }, bth.HAtomicETH),
	word("imm", func(e *bth.Ext) *uint32 { return &e.Imm }, 32, bth.HImmDt),
	word("inv", func(e *bth.Ext) *uint32 { return &e.InvKey }, 32, bth.HIETH),
	{"sel", []bth.Header{bth.HFETH}, 2, func(s *wire.Spec) uint64 { return uint64(s.Ext.Selectivity) }, func(s *wire.Spec, v uint64) { s.Ext.Selectivity = int(v) }},
	{"plt", []bth.Header{bth.HFETH}, 4, func(s *wire.Spec) uint64 { return uint64(s.Ext.Placement) }, func(s *wire.Spec, v uint64) { s.Ext.Placement = int(v) }},
}

func flag(name string, p func(s *wire.Spec) *bool) field {
	return field{name, nil, 1, func(s *wire.Spec) uint64 {
		if *p(s) {
			return 1
		}
		return 0
	}, func(s *wire.Spec, v uint64) { *p(s) = v != 0 }}
}

func word(name string, p func(e *bth.Ext) *uint32, bits int, h ...bth.Header) field {
	return field{name, h, bits, func(s *wire.Spec) uint64 { return uint64(*p(&s.Ext)) }, func(s *wire.Spec, v uint64) { *p(&s.Ext) = uint32(v) }}
}

func long(name string, p func(e *bth.Ext) *uint64, h ...bth.Header) field {
	return field{name, h, 64, func(s *wire.Spec) uint64 { return *p(&s.Ext) }, func(s *wire.Spec, v uint64) { *p(&s.Ext) = v }}
}

// of reports whether packets of an opcode have the field.
func (f *field) of(op bth.Opcode) bool {
	switch {
	case f.name == "add" && op.Operation() != bth.FetchAdd, f.name != "add" && (f.name == "swap" || f.name == "compare") && op.Operation() != bth.CompareSwap:
		return false
	}
	return f.headers == nil || slices.ContainsFunc(f.headers, func(h bth.Header) bool { _, ok := op.Info().Offset(h); return ok })
}

// packet is what a line says of a packet.
type packet struct {
	qp    *qp
	op    bth.Opcode
	psn   bth.PSN
	named []named
	data  []byte // nil: not named
	size  int    // of the payload; -1: not named
	bad   bool   // with a wrong ICRC
}

type named struct {
	f *field
	v uint64
}

// syndromes are the names that syndrome= takes beside a number and RNR:CODE.
var syndromes = map[string]bth.Syndrome{
	"ACK": bth.AckUnlimited, "NAK_SEQUENCE": bth.NakSequence, "NAK_INVALID_REQUEST": bth.NakInvalidRequest,
	"NAK_REMOTE_ACCESS": bth.NakRemoteAccess, "NAK_REMOTE_OPERATIONAL": bth.NakRemoteOp,
}

func syndromeName(s bth.Syndrome) string {
	if s.IsRNR() {
		return fmt.Sprintf("RNR:%d", s.Value())
	}
	for n, v := range syndromes {
		if v == s {
			return n
		}
	}
	return fmt.Sprintf("0x%02x", uint8(s))
}

func parseSyndrome(w string) (uint64, error) {
	if v, ok := syndromes[w]; ok {
		return uint64(v), nil
	}
	if c, ok := strings.CutPrefix(w, "RNR:"); ok {
		v, err := number(c, 5)
		return uint64(bth.RNR(int(v))), err
	}
	v, err := number(w, 8)
	if err != nil {
		return 0, fmt.Errorf("%q is no syndrome: ACK, RNR:CODE, NAK_SEQUENCE, NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL or a number", w)
	}
	return v, nil
}

var ecnNames = map[string]uint64{"not-ect": 0, "ect1": 1, "ect0": 2, "ce": 3}

// parsePacket reads what follows < or >.
func (p *parser) parsePacket(l []string, fromPeer bool) (*packet, error) {
	if len(l) < 2 {
		return nil, fmt.Errorf("a packet has an opcode and a PSN: > SEND_ONLY 0x100")
	}
	k := &packet{size: -1}
	args, err := splitArgs(l[2:])
	if err != nil {
		return nil, err
	}
	if k.qp, args, err = p.takeQP(args); err != nil {
		return nil, err
	}
	var ok bool
	if k.op, ok = k.qp.opcode(l[0]); !ok {
		return nil, fmt.Errorf("%s has no opcode %s", strings.ToUpper(k.qp.service), l[0])
	}
	if k.psn, err = k.qp.psn(l[1]); err != nil {
		return nil, err
	}
	for _, a := range args {
		if err := p.packetArg(k, a, fromPeer); err != nil {
			return nil, err
		}
	}
	if k.data != nil && k.size >= 0 {
		return nil, fmt.Errorf("data= has a length of its own: leave size= out")
	}
	return k, nil
}

func (p *parser) packetArg(k *packet, a arg, fromPeer bool) (err error) {
	switch a.name {
	case "data":
		k.data, err = parseData(a.value)
		return err
	case "size":
		k.size, err = length(a.value)
		return err
	case "bad":
		if a.value != "icrc" || !fromPeer {
			return fmt.Errorf("bad=icrc is all that can be bad, of a packet of the peer")
		}
		k.bad = true
		return nil
	}
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == a.name })
	if i < 0 {
		return fmt.Errorf("no packet has a field %s", a.name)
	}
	f := &fields[i]
	if !f.of(k.op) {
		return fmt.Errorf("%s has no %s", k.op, f.name)
	}
	var v uint64
	switch {
	case a.alone && f.bits == 1:
		v = 1
	case a.alone:
		return fmt.Errorf("%s needs a value: %s=…", f.name, f.name)
	case f.name == "syndrome":
		v, err = parseSyndrome(a.value)
	case f.name == "ecn":
		var ok bool
		if v, ok = ecnNames[a.value]; !ok {
			err = fmt.Errorf("ecn=%s: not-ect, ect0, ect1 or ce", a.value)
		}
	case f.name == "va":
		v, err = p.address(a.value)
	case f.name == "rkey" || f.name == "inv":
		v, err = p.key(a.value)
	case f.name == "srqn":
		v, err = p.srqn(a.value)
	default:
		v, err = number(a.value, f.bits)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	k.named = append(k.named, named{f, v})
	return nil
}

// build makes the packet that the peer sends.
func (k *packet) build(path wire.Path) []byte {
	s := wire.NewSpec(path, k.op, k.qp.qpn, k.psn)
	if k.op == bth.CNPNotify {
		s.BTH.MigReq = false
	}
	if _, ok := k.op.Info().Offset(bth.HAETH); ok {
		s.Ext.Syndrome = bth.AckUnlimited
	}
	s.Payload = k.data
	if k.size >= 0 {
		s.Payload = make([]byte, k.size)
	}
	for _, n := range k.named {
		n.f.set(&s, n.v)
	}
	b := wire.Build(&s)
	if k.bad {
		b[len(b)-1] ^= 0xFF
	}
	return b
}

// mismatch says how a packet that the NIC has sent is not the one that the line wants; "" if it is.
func (k *packet) mismatch(s *wire.Spec) string {
	var l []string
	add := func(name, want, got string) {
		if want != got {
			l = append(l, fmt.Sprintf("%s is %s, not %s", name, got, want))
		}
	}
	add("the opcode", k.op.String(), s.BTH.Opcode.String())
	add("the PSN", "0x"+k.psn.String(), "0x"+s.BTH.PSN.String())
	if k.qp.service != "ud" {
		add("the destination", fmt.Sprintf("0x%x", k.qp.dest), fmt.Sprintf("0x%x", s.BTH.DestQP))
	}
	if k.op == s.BTH.Opcode {
		for _, n := range k.named {
			add(n.f.name, n.f.show(n.v), n.f.show(n.f.get(s)))
		}
		if k.size >= 0 {
			add("the size", fmt.Sprint(k.size), fmt.Sprint(len(s.Payload)))
		}
		if k.data != nil {
			if d := differ(k.data, s.Payload); d != "" {
				l = append(l, "data: "+d)
			}
		}
	}
	return strings.Join(l, ", ")
}

func (f *field) show(v uint64) string {
	switch {
	case f.name == "syndrome":
		return syndromeName(bth.Syndrome(v))
	case f.name == "ecn":
		for n, e := range ecnNames {
			if e == v {
				return n
			}
		}
	case f.name == "len" || f.name == "msn" || f.bits < 16:
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("0x%x", v)
}

// show writes a packet as a line of a scenario has it.
func show(s *wire.Spec, service string) string {
	op := s.BTH.Opcode
	name := op.String()
	if n, ok := strings.CutPrefix(name, strings.ToUpper(service)+"_"); ok {
		name = n
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s 0x%s", name, s.BTH.PSN)
	if !op.Info().Known() {
		return b.String()
	}
	for i := range fields {
		f := &fields[i]
		v := f.get(s)
		switch {
		case f.headers == nil:
			if f.bits == 1 && v != 0 && f.name != "mig" {
				b.WriteString(" " + f.name)
			}
			if f.name == "ecn" && v != 0 || f.name == "pkey" && v != 0xFFFF {
				fmt.Fprintf(&b, " %s=%s", f.name, f.show(v))
			}
		case f.of(op):
			fmt.Fprintf(&b, " %s=%s", f.name, f.show(v))
		}
	}
	if n := len(s.Payload); n > 0 && n <= 16 {
		fmt.Fprintf(&b, " data=hex:%x", s.Payload)
	} else if n > 0 {
		fmt.Fprintf(&b, " size=%d", n)
	}
	return b.String()
}
