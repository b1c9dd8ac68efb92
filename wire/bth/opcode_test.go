package bth

import (
	"fmt"
	"strings"
	"testing"
)

// rows restates the opcode table in the words of the documents: operation,
// services that have it, headers after the BTH for RC, meaning. s, m, e are
// start, middle, end; q request, r response; R takes a receive work request,
// C makes a receive completion; P may have a payload, M exactly a path MTU of
// it; S, W, D, A are the families SEND, WRITE, READ, atomic.
const rows = `
00 RC UC RD XRC | -                 | s  q R - M S | SEND_FIRST
01 RC UC RD XRC | -                 | m  q - - M S | SEND_MIDDLE
02 RC UC RD XRC | -                 | e  q - C P S | SEND_LAST
03 RC UC RD XRC | ImmDt             | e  q - C P S | SEND_LAST_IMM
04 RC UC RD XRC | -                 | se q R C P S | SEND_ONLY
05 RC UC RD XRC | ImmDt             | se q R C P S | SEND_ONLY_IMM
06 RC UC RD XRC | RETH              | s  q - - M W | WRITE_FIRST
07 RC UC RD XRC | -                 | m  q - - M W | WRITE_MIDDLE
08 RC UC RD XRC | -                 | e  q - - P W | WRITE_LAST
09 RC UC RD XRC | ImmDt             | e  q R C P W | WRITE_LAST_IMM
0A RC UC RD XRC | RETH              | se q - - P W | WRITE_ONLY
0B RC UC RD XRC | RETH ImmDt        | se q R C P W | WRITE_ONLY_IMM
0C RC RD XRC    | RETH              | se q - - - D | READ_REQUEST
0D RC RD XRC    | AETH              | s  r - - M D | READ_RESPONSE_FIRST
0E RC RD XRC    | -                 | m  r - - M D | READ_RESPONSE_MIDDLE
0F RC RD XRC    | AETH              | e  r - - P D | READ_RESPONSE_LAST
10 RC RD XRC    | AETH              | se r - - P D | READ_RESPONSE_ONLY
11 RC RD XRC    | AETH              | se r - - - - | ACKNOWLEDGE
12 RC RD XRC    | AETH AtomicAckETH | se r - - - A | ATOMIC_ACKNOWLEDGE
13 RC RD XRC    | AtomicETH         | se q - - - A | COMPARE_SWAP
14 RC RD XRC    | AtomicETH         | se q - - - A | FETCH_ADD
16 RC XRC       | IETH              | e  q - C P S | SEND_LAST_INVALIDATE
17 RC XRC       | IETH              | se q R C P S | SEND_ONLY_INVALIDATE
1C RC RD XRC    | FETH RETH         | se q - - - - | FLUSH
1D RC RD XRC    | RETH              | se q - - P - | ATOMIC_WRITE
04 UD           | DETH              | se q R C P S | SEND_ONLY
05 UD           | DETH ImmDt        | se q R C P S | SEND_ONLY_IMM
13 VENDOR       | MaskedAtomicETH   | se q - - - A | MASKED_COMPARE_SWAP
14 VENDOR       | AtomicETH         | se q - - - A | MASKED_FETCH_ADD
`

var bytesOf = map[string]int{"RDETH": 4, "DETH": 8, "XRCETH": 4, "RETH": 16, "AtomicETH": 28, "AETH": 4,
	"AtomicAckETH": 8, "ImmDt": 4, "IETH": 4, "FETH": 4, "CNP": 16, "MaskedAtomicETH": 44}

var letters = map[string]Flags{"s": Start, "m": Middle, "e": End, "se": Start | End, "q": Request, "r": Response,
	"R": Recv, "C": Comp, "P": HasPayload, "M": HasPayload | FullMTU, "S": Send, "W": Write, "D": Read, "A": Atomic, "-": 0}

type row struct {
	name    string
	flags   Flags
	headers []string
}

// expected expands the rows to all 256 opcodes.
func expected(t *testing.T) map[int]row {
	prefix := map[string]int{"RC": 0x00, "UC": 0x20, "RD": 0x40, "UD": 0x60, "XRC": 0xA0, "VENDOR": 0xC0}
	m := map[int]row{0x81: {"CNP", Start | End, []string{"CNP"}}}
	for line := range strings.Lines(strings.TrimSpace(rows)) {
		col := strings.Split(line, "|")
		var op int
		first := strings.Fields(col[0])
		if _, err := fmt.Sscanf(first[0], "%x", &op); err != nil || len(col) != 4 {
			t.Fatalf("bad row %q", line)
		}
		var f Flags
		for _, l := range strings.Fields(col[2]) {
			f |= letters[l]
		}
		for _, service := range first[1:] {
			var h []string
			switch {
			case service == "RD" && f&Request != 0:
				h = []string{"RDETH", "DETH"}
			case service == "RD":
				h = []string{"RDETH"}
			case service == "XRC" && f&Request != 0:
				h = []string{"XRCETH"}
			}
			for _, n := range strings.Fields(col[1]) {
				if n != "-" {
					h = append(h, n)
				}
			}
			m[prefix[service]|op] = row{strings.Replace(service, "VENDOR", "RC", 1) + "_" + strings.TrimSpace(col[3]), f, h}
		}
	}
	return m
}

func TestOpcodeTable(t *testing.T) {
	want := expected(t)
	// 25 for RC, 12 for UC, 23 for RD, 25 for XRC, 2 for UD and CNP, 2 masked atomics.
	if len(want) != 90 {
		t.Fatalf("the test's own table has %d opcodes", len(want))
	}
	for n := range 256 {
		o := Opcode(n)
		i := o.Info()
		w, known := want[n]
		if i.Known() != known {
			t.Errorf("%02X: known %v, want %v", n, i.Known(), known)
			continue
		}
		if int(o.Service())|int(o.Operation()) != n || Make(o.Service(), o.Operation()) != o {
			t.Errorf("%02X: service %02X, operation %02X", n, o.Service(), o.Operation())
		}
		if !known {
			if i.Len != 0 || i.Flags != 0 || i.Headers != [4]Header{} {
				t.Errorf("%02X: reserved, but its row is not empty: %+v", n, *i)
			}
			if o.String() != fmt.Sprintf("OPCODE_%02X", n) {
				t.Errorf("%02X: String %q", n, o)
			}
			continue
		}
		if i.Name != w.name || o.String() != w.name {
			t.Errorf("%02X: name %q, %q, want %q", n, i.Name, o, w.name)
		}
		if i.Flags != w.flags {
			t.Errorf("%02X %s: flags %013b, want %013b", n, w.name, i.Flags, w.flags)
		}
		at := 12
		for k, h := range w.headers {
			if i.Headers[k].String() != h || i.Headers[k].Len() != bytesOf[h] {
				t.Errorf("%02X %s: header %d is %v, want %s", n, w.name, k, i.Headers[k], h)
			}
			if o, ok := i.Offset(i.Headers[k]); !ok || o != at {
				t.Errorf("%02X %s: %s at %d, %v, want %d", n, w.name, h, o, ok, at)
			}
			at += bytesOf[h]
		}
		if i.Len != at || at > MaxHeader {
			t.Errorf("%02X %s: length %d, want %d", n, w.name, i.Len, at)
		}
		for h := HNone; h <= HCNP; h++ {
			listed := false
			for _, k := range i.Headers {
				listed = listed || k == h && h != HNone
			}
			if _, ok := i.Offset(h); ok != listed {
				t.Errorf("%02X %s: Offset(%v) says %v", n, w.name, h, ok)
			}
		}
	}
}

func TestFlagsHas(t *testing.T) {
	i := Make(RC, SendOnly).Info()
	if !i.Has(Start|End) || i.Has(Start|Middle) || !i.Has(0) {
		t.Error("Has must ask for all flags")
	}
}

func TestServiceString(t *testing.T) {
	for n, w := range map[Service]string{0x00: "RC", 0x20: "UC", 0x40: "RD", 0x60: "UD", 0x80: "CNP", 0xA0: "XRC", 0xE0: "SERVICE_E0"} {
		if n.String() != w {
			t.Errorf("%02X: %q, want %q", uint8(n), n, w)
		}
	}
	if s := Header(200).String(); s != "HEADER_200" {
		t.Error(s)
	}
}
