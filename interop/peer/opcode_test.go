package peer

import (
	"strings"
	"testing"
)

// table is roce.md A.5, written out opcode by opcode: the headers behind the BTH.
const table = `
00 RC_SEND_FIRST
01 RC_SEND_MIDDLE
02 RC_SEND_LAST
03 RC_SEND_LAST_IMM ImmDt
04 RC_SEND_ONLY
05 RC_SEND_ONLY_IMM ImmDt
06 RC_WRITE_FIRST RETH
07 RC_WRITE_MIDDLE
08 RC_WRITE_LAST
09 RC_WRITE_LAST_IMM ImmDt
0A RC_WRITE_ONLY RETH
0B RC_WRITE_ONLY_IMM RETH+ImmDt
0C RC_READ_REQUEST RETH
0D RC_READ_RESPONSE_FIRST AETH
0E RC_READ_RESPONSE_MIDDLE
0F RC_READ_RESPONSE_LAST AETH
10 RC_READ_RESPONSE_ONLY AETH
11 RC_ACKNOWLEDGE AETH
12 RC_ATOMIC_ACKNOWLEDGE AETH+AtomicAckETH
13 RC_COMPARE_SWAP AtomicETH
14 RC_FETCH_ADD AtomicETH
16 RC_SEND_LAST_INV IETH
17 RC_SEND_ONLY_INV IETH
1C RC_FLUSH FETH+RETH
1D RC_ATOMIC_WRITE RETH
20 UC_SEND_FIRST
21 UC_SEND_MIDDLE
22 UC_SEND_LAST
23 UC_SEND_LAST_IMM ImmDt
24 UC_SEND_ONLY
25 UC_SEND_ONLY_IMM ImmDt
26 UC_WRITE_FIRST RETH
27 UC_WRITE_MIDDLE
28 UC_WRITE_LAST
29 UC_WRITE_LAST_IMM ImmDt
2A UC_WRITE_ONLY RETH
2B UC_WRITE_ONLY_IMM RETH+ImmDt
40 RD_SEND_FIRST RDETH+DETH
41 RD_SEND_MIDDLE RDETH+DETH
42 RD_SEND_LAST RDETH+DETH
43 RD_SEND_LAST_IMM RDETH+DETH+ImmDt
44 RD_SEND_ONLY RDETH+DETH
45 RD_SEND_ONLY_IMM RDETH+DETH+ImmDt
46 RD_WRITE_FIRST RDETH+DETH+RETH
47 RD_WRITE_MIDDLE RDETH+DETH
48 RD_WRITE_LAST RDETH+DETH
49 RD_WRITE_LAST_IMM RDETH+DETH+ImmDt
4A RD_WRITE_ONLY RDETH+DETH+RETH
4B RD_WRITE_ONLY_IMM RDETH+DETH+RETH+ImmDt
4C RD_READ_REQUEST RDETH+DETH+RETH
4D RD_READ_RESPONSE_FIRST RDETH+AETH
4E RD_READ_RESPONSE_MIDDLE RDETH
4F RD_READ_RESPONSE_LAST RDETH+AETH
50 RD_READ_RESPONSE_ONLY RDETH+AETH
51 RD_ACKNOWLEDGE RDETH+AETH
52 RD_ATOMIC_ACKNOWLEDGE RDETH+AETH+AtomicAckETH
53 RD_COMPARE_SWAP RDETH+DETH+AtomicETH
54 RD_FETCH_ADD RDETH+DETH+AtomicETH
55 RD_RESYNC RDETH+DETH
5C RD_FLUSH RDETH+DETH+FETH+RETH
5D RD_ATOMIC_WRITE RDETH+DETH+RETH
64 UD_SEND_ONLY DETH
65 UD_SEND_ONLY_IMM DETH+ImmDt
81 CNP CNP
A0 XRC_SEND_FIRST XRCETH
A1 XRC_SEND_MIDDLE XRCETH
A2 XRC_SEND_LAST XRCETH
A3 XRC_SEND_LAST_IMM XRCETH+ImmDt
A4 XRC_SEND_ONLY XRCETH
A5 XRC_SEND_ONLY_IMM XRCETH+ImmDt
A6 XRC_WRITE_FIRST XRCETH+RETH
A7 XRC_WRITE_MIDDLE XRCETH
A8 XRC_WRITE_LAST XRCETH
A9 XRC_WRITE_LAST_IMM XRCETH+ImmDt
AA XRC_WRITE_ONLY XRCETH+RETH
AB XRC_WRITE_ONLY_IMM XRCETH+RETH+ImmDt
AC XRC_READ_REQUEST XRCETH+RETH
AD XRC_READ_RESPONSE_FIRST AETH
AE XRC_READ_RESPONSE_MIDDLE
AF XRC_READ_RESPONSE_LAST AETH
B0 XRC_READ_RESPONSE_ONLY AETH
B1 XRC_ACKNOWLEDGE AETH
B2 XRC_ATOMIC_ACKNOWLEDGE AETH+AtomicAckETH
B3 XRC_COMPARE_SWAP XRCETH+AtomicETH
B4 XRC_FETCH_ADD XRCETH+AtomicETH
B6 XRC_SEND_LAST_INV XRCETH+IETH
B7 XRC_SEND_ONLY_INV XRCETH+IETH
BC XRC_FLUSH XRCETH+FETH+RETH
BD XRC_ATOMIC_WRITE XRCETH+RETH
D3 MASKED_COMPARE_SWAP MaskedETH
D4 MASKED_FETCH_ADD AtomicETH
`

func TestOpcodeTable(t *testing.T) {
	rows := map[string][]string{}
	for line := range strings.Lines(strings.TrimSpace(table)) {
		f := strings.Fields(line)
		rows[f[0]] = append(f[1:], "")
	}
	const digits = "0123456789ABCDEF"
	for i := range 256 {
		op := Op(i)
		code := string([]byte{digits[i>>4], digits[i&15]})
		row, ok := rows[code]
		if op.Known() != ok {
			t.Errorf("%s: known %v, want %v", code, op.Known(), ok)
		}
		if !ok {
			if op.Headers() != 0 || op.String() != "OP_0x"+code || op.Short() != op.String() {
				t.Errorf("%s: %v with headers %v", code, op, op.Headers())
			}
			continue
		}
		if op.String() != row[0] || op.Headers().String() != row[1] {
			t.Errorf("%s: %v %v, want %s %s", code, op, op.Headers(), row[0], row[1])
		}
		isResponse := strings.Contains(row[1], "AETH") || strings.Contains(row[0], "READ_RESPONSE")
		if op.IsResponse() != isResponse {
			t.Errorf("%v: response %v", op, op.IsResponse())
		}
	}
}

func TestShortNames(t *testing.T) {
	for op, want := range map[Op]string{
		OpSendOnly: "SEND_ONLY", UC | OpSendOnly: "SEND_ONLY", XRC | OpAck: "ACKNOWLEDGE",
		OpUDSendOnly: "SEND_ONLY", OpUDSendOnlyImm: "SEND_ONLY_IMM", OpCNP: "CNP",
	} {
		if got := op.Short(); got != want {
			t.Errorf("%v: %s, want %s", op, got, want)
		}
	}
}

// The sizes of roce.md A.3.
func TestHeaderSizes(t *testing.T) {
	for h, want := range map[Headers]int{HasRDETH: 4, HasDETH: 8, HasRETH: 16, HasAtomicETH: 28,
		HasAETH: 4, HasAtomicAckETH: 8, HasImmDt: 4, HasIETH: 4, HasXRCETH: 4, HasFETH: 4,
		HasMaskedETH: 44, HasCNP: 16, HasAETH | HasAtomicAckETH: 12, 0: 0} {
		var w wireWriter
		(&Frame{}).appendHeaders(&w, h)
		if h.Len() != want || len(w) != want {
			t.Errorf("%v: Len %d, written %d, want %d", h, h.Len(), len(w), want)
		}
	}
}

func TestSyndrome(t *testing.T) {
	for s, want := range map[Syndrome]string{
		0x1F: "0x1f (ACK)", 0x0A: "0x0a (ACK, credit code 10)",
		RNR(12): "0x2c (RNR NAK, 640µs)", RNR(0): "0x20 (RNR NAK, 655.36ms)", RNR(31): "0x3f (RNR NAK, 491.52ms)",
		0x60: "0x60 (NAK, PSN sequence)", 0x61: "0x61 (NAK, invalid request)", 0x62: "0x62 (NAK, remote access)",
		0x63: "0x63 (NAK, remote operational)", 0x64: "0x64 (NAK, invalid RD request)",
		0x40: "0x40 (reserved)", 0x65: "0x65 (reserved)", 0x9F: "0x9f (reserved)",
	} {
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if !SynAck.IsAck() || !RNR(3).IsRNR() || !SynNakAccess.IsNak() || SynNakAccess.IsAck() || Syndrome(0x9F).IsAck() {
		t.Error("classes")
	}
}
