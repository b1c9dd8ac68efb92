package impair

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/softnic/softnic/wire/bth"
)

// Change is what one hit of a rule does to the bytes of a packet; Then is that of the next rule. The port
// decides when: a packet that is sent has its headers and its ICRC by then, one that is received has not been handled.
type Change struct {
	Then    *Change // what is done after it
	BadICRC bool    // the ICRC stays as it was, wrong or right; false: it is made right again

	sets  []set
	at    int    // of what is corrupted: bytes from the BTH on, below 0 from the end of the payload
	place uint64 // by chance, instead
	xor   byte   // 0: nothing is corrupted
}

// then returns c with another change behind it.
func (c *Change) then(last *Change) *Change {
	if c == nil {
		return last
	}
	c.last().Then = last
	return c
}

func (c *Change) last() *Change {
	for c.Then != nil {
		c = c.Then
	}
	return c
}

// set is a field with its value.
type set struct {
	field *field
	value uint64
	add   bool // to what is there
}

// field is a row of the table of fields.
type field struct {
	name   string
	header bth.Header // HBTH or the extended header that has it
	bit    int        // its first bit there
	bits   int        // how many
}

// hBTH stands for the base header in the table: no extended header has this number.
const hBTH = bth.Header(0xFF)

// fields are those that set= knows; the same name in several headers means that which the packet has.
var fields = []field{
	{"opcode", hBTH, 0, 8}, {"se", hBTH, 8, 1}, {"migreq", hBTH, 9, 1}, {"pad", hBTH, 10, 2}, {"tver", hBTH, 12, 4}, {"pkey", hBTH, 16, 16},
	{"fecn", hBTH, 32, 1}, {"becn", hBTH, 33, 1}, {"resv6", hBTH, 34, 6}, {"dqp", hBTH, 40, 24}, {"ackreq", hBTH, 64, 1}, {"resv7", hBTH, 65, 7}, {"psn", hBTH, 72, 24},
	{"va", bth.HRETH, 0, 64}, {"rkey", bth.HRETH, 64, 32}, {"length", bth.HRETH, 96, 32},
	{"va", bth.HAtomicETH, 0, 64}, {"rkey", bth.HAtomicETH, 64, 32}, {"swap", bth.HAtomicETH, 96, 64}, {"compare", bth.HAtomicETH, 160, 64},
	{"syndrome", bth.HAETH, 0, 8}, {"msn", bth.HAETH, 8, 24}, {"original", bth.HAtomicAckETH, 0, 64},
	{"qkey", bth.HDETH, 0, 32}, {"sqp", bth.HDETH, 40, 24}, {"imm", bth.HImmDt, 0, 32}, {"invkey", bth.HIETH, 0, 32}, {"srqn", bth.HXRCETH, 8, 24},
}

// fieldNames lists them for people.
func fieldNames() string {
	var l []string
	for _, f := range fields {
		if !slices.Contains(l, f.name) {
			l = append(l, f.name)
		}
	}
	return strings.Join(l, ", ")
}

// find returns where a packet has the field, in bits from its BTH on.
func (f *field) find(i *bth.Info) (bit int, ok bool) {
	if f.header == hBTH {
		return f.bit, true
	}
	o, ok := i.Offset(f.header)
	return 8*o + f.bit, ok
}

// parseSets reads FIELD:VALUE,FIELD:VALUE...
func (r *rule) parseSets(v string) error {
	for one := range strings.SplitSeq(v, ",") {
		name, val, has := strings.Cut(one, ":")
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 || !has {
			return fmt.Errorf("want a field and its value, as psn:0x12 or psn:+1; the fields are %s", fieldNames())
		}
		s := set{field: &fields[i]}
		digits := val
		if s.add = strings.HasPrefix(val, "+") || strings.HasPrefix(val, "-"); s.add {
			digits = val[1:]
		}
		n, err := strconv.ParseUint(digits, 0, 64)
		if err != nil || s.field.bits < 64 && n >= 1<<s.field.bits {
			return fmt.Errorf("%s has %d bits: want a value, as %s:0x1, or a difference, as %s:+1", name, s.field.bits, name, name)
		}
		if s.value = n; strings.HasPrefix(val, "-") {
			s.value = -n
		}
		r.sets = append(r.sets, s)
	}
	return nil
}

// has reports whether a packet has every field that the rule sets.
func (r *rule) has(i *bth.Info) bool {
	for _, s := range r.sets {
		if _, ok := lookup(s.field, i); !ok {
			return false
		}
	}
	return true
}

// lookup finds the row of the table with f's name that a packet has.
func lookup(f *field, i *bth.Info) (bit int, ok bool) {
	for k := range fields {
		if fields[k].name == f.name {
			if bit, ok = fields[k].find(i); ok {
				return bit, true
			}
		}
	}
	return 0, false
}

// uncovered is the byte of the BTH that the ICRC does not cover: FECN, BECN, and what is reserved beside them. Chance does not
// corrupt it, for nobody would find that.
const uncovered = 4

// Do changes ib, a packet from the BTH to the end of its pad, without the ICRC.
func (c *Change) Do(ib []byte) {
	if len(ib) < bth.Len {
		return
	}
	i := bth.BTH(ib).Opcode().Info()
	for _, s := range c.sets {
		bit, ok := lookup(s.field, i)
		if !ok || bit+s.field.bits > 8*len(ib) {
			continue
		}
		v := s.value
		if s.add {
			v += bits(ib, bit, s.field.bits)
		}
		putBits(ib, bit, s.field.bits, v)
	}
	if c.xor == 0 {
		return
	}
	at := c.at
	switch {
	case c.place != 0:
		if at = int(c.place % uint64(len(ib))); at == uncovered {
			at++
		}
	case at < 0:
		at += len(ib)
	}
	if at >= 0 && at < len(ib) {
		ib[at] ^= c.xor
	}
}

// bits reads n bits, big-endian.
func bits(b []byte, bit, n int) (v uint64) {
	for i := bit; i < bit+n; i++ {
		v = v<<1 | uint64(b[i/8]>>(7-i%8)&1)
	}
	return v
}

// putBits writes the low n bits of v.
func putBits(b []byte, bit, n int, v uint64) {
	for i := bit + n - 1; i >= bit; i-- {
		m := byte(1) << (7 - i%8)
		b[i/8] &^= m
		if v&1 != 0 {
			b[i/8] |= m
		}
		v >>= 1
	}
}

// ecns are the names of the two bits, RFC 3168.
var ecns = map[string]uint8{"not-ect": 0, "ect1": 1, "ect0": 2, "ce": 3}

// answers are the names of what answer= can be.
var answers = map[string]bth.Syndrome{
	"nak-sequence": bth.NakSequence, "nak-invalid": bth.NakInvalidRequest, "nak-access": bth.NakRemoteAccess, "nak-op": bth.NakRemoteOp,
}

// parseAnswer reads nak-sequence, ..., rnr or rnr:CODE.
func (r *rule) parseAnswer(v string) error {
	if s, ok := answers[v]; ok {
		r.answer = s
		return nil
	}
	kind, code, timed := strings.Cut(v, ":")
	n, err := uint64(14), error(nil) // 1.28 ms
	if timed {
		n, err = strconv.ParseUint(code, 10, 5)
	}
	if kind != "rnr" || err != nil {
		return fmt.Errorf("want nak-sequence, nak-invalid, nak-access, nak-op, rnr, or rnr:CODE with a timer code of 0 ... 31")
	}
	r.answer = bth.RNR(int(n))
	return nil
}
