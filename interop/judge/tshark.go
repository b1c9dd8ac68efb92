package judge

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/softnic/softnic/interop/peer"
)

// ErrNoTshark is returned when tshark is not installed.
var ErrNoTshark = errors.New("tshark is not installed: apt-get install tshark")

// Row is what tshark says of one frame that it takes for RoCE.
type Row struct {
	Frame     int
	Malformed string            // what tshark calls malformed; empty if nothing
	Values    map[string]string // by tshark's names, those that it printed
}

// Uint is the value of a field as a number. ok is false if tshark did not print the
// field, or not as a number.
func (r Row) Uint(name string) (v uint64, ok bool) {
	switch text := r.Values[name]; {
	case text == "True":
		return 1, true
	case text == "False":
		return 0, true
	case hexFields[name]:
		v, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
		return v, err == nil
	default:
		v, err := strconv.ParseUint(text, 0, 64)
		return v, err == nil
	}
}

// hexFields are the fields that tshark prints as bytes.
var hexFields = map[string]bool{"infiniband.immdt": true, "infiniband.ieth": true}

// tsharkFields are the fields that are compared: tshark's name, the headers that
// have it, and its value here. A virtual address and key in an AtomicETH have the
// names of those in a RETH.
var tsharkFields = []struct {
	name    string
	headers peer.Headers // one of these; 0: the BTH
	value   func(f *peer.Frame) uint64
}{
	{"infiniband.bth.opcode", 0, func(f *peer.Frame) uint64 { return uint64(f.Op) }},
	{"infiniband.bth.destqp", 0, func(f *peer.Frame) uint64 { return uint64(f.DestQP) }},
	{"infiniband.bth.psn", 0, func(f *peer.Frame) uint64 { return uint64(f.PSN) }},
	{"infiniband.bth.se", 0, func(f *peer.Frame) uint64 { return b2u(f.SE) }},
	{"infiniband.bth.m", 0, func(f *peer.Frame) uint64 { return b2u(f.Migrated) }},
	{"infiniband.bth.a", 0, func(f *peer.Frame) uint64 { return b2u(f.AckReq) }},
	{"infiniband.bth.padcnt", 0, padCount},
	{"infiniband.bth.tver", 0, func(f *peer.Frame) uint64 { return uint64(f.TVer) }},
	{"infiniband.bth.p_key", 0, func(f *peer.Frame) uint64 { return uint64(f.PKey) }},
	{"infiniband.deth.q_key", peer.HasDETH, func(f *peer.Frame) uint64 { return uint64(f.DETH.QKey) }},
	{"infiniband.deth.srcqp", peer.HasDETH, func(f *peer.Frame) uint64 { return uint64(f.DETH.SrcQP) }},
	{"infiniband.reth.va", peer.HasRETH | peer.HasAtomicETH, func(f *peer.Frame) uint64 { return memoryOf(f).VA }},
	{"infiniband.reth.r_key", peer.HasRETH | peer.HasAtomicETH, func(f *peer.Frame) uint64 { return uint64(memoryOf(f).RKey) }},
	{"infiniband.reth.dmalen", peer.HasRETH, func(f *peer.Frame) uint64 { return uint64(f.RETH.Len) }},
	{"infiniband.atomiceth.swapdt", peer.HasAtomicETH, func(f *peer.Frame) uint64 { return f.Atomic.SwapAdd }},
	{"infiniband.atomiceth.cmpdt", peer.HasAtomicETH, func(f *peer.Frame) uint64 { return f.Atomic.Compare }},
	{"infiniband.aeth.syndrome", peer.HasAETH, func(f *peer.Frame) uint64 { return uint64(f.AETH.Syndrome) }},
	{"infiniband.aeth.msn", peer.HasAETH, func(f *peer.Frame) uint64 { return uint64(f.AETH.MSN) }},
	{"infiniband.atomicacketh.origremdt", peer.HasAtomicAckETH, func(f *peer.Frame) uint64 { return f.Orig }},
	{"infiniband.immdt", peer.HasImmDt, func(f *peer.Frame) uint64 { return uint64(f.Imm) }},
	{"infiniband.ieth", peer.HasIETH, func(f *peer.Frame) uint64 { return uint64(f.InvKey) }},
	{icrcField, 0, icrc},
}

const icrcField = "infiniband.invariant.crc"

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// padCount is the PadCnt field that the frame has on the wire.
func padCount(f *peer.Frame) uint64 {
	if f.PadBytes != nil {
		return uint64(len(f.PadBytes))
	}
	return uint64(-len(f.Payload) & 3)
}

// memoryOf is the address and key of a RETH or AtomicETH.
func memoryOf(f *peer.Frame) peer.RETH {
	if f.HeaderSet().Has(peer.HasRETH) {
		return f.RETH
	}
	return peer.RETH{VA: f.Atomic.VA, RKey: f.Atomic.RKey}
}

// icrc is the ICRC as tshark prints it: the four bytes as they stand.
func icrc(f *peer.Frame) uint64 {
	b := f.Marshal()
	b = b[:len(b)-len(f.Trailer)]
	var v uint64
	for _, x := range b[len(b)-4:] {
		v = v<<8 | uint64(x)
	}
	return v
}

// undissected are the opcodes of which tshark, as of version 4.0.17, reads the BTH and
// nothing behind it, and why. Of these only what it does print is compared;
// TestEveryOpcode holds what softnic emits of them against the independent codec of
// package peer instead.
var undissected = func() map[peer.Op]string {
	m := map[peer.Op]string{
		peer.OpFlush:          "newer than its table (IBTA 1.5)",
		peer.OpAtomicWrite:    "newer than its table (IBTA 1.5)",
		peer.OpCNP:            "it takes opcode 0x80 for a CNP, which is 0x81",
		peer.OpMaskedCmpSwap:  "softnic's own wire form, in the manufacturers' range",
		peer.OpMaskedFetchAdd: "softnic's own wire form, in the manufacturers' range",
	}
	for i := range peer.Op(32) {
		if op := peer.XRC | i; op.Known() {
			m[op] = "it has the names of XRC operations, and does not know their headers"
		}
	}
	return m
}()

// unreadable are the headers for which no version of tshark that was seen has a field.
var unreadable = map[peer.Headers]string{
	peer.HasXRCETH:    "XRCETH",
	peer.HasFETH:      "FETH",
	peer.HasMaskedETH: "MaskedAtomicETH",
	peer.HasCNP:       "reserved bytes of a CNP",
}

// dissected reports whether tshark knows the headers of the opcode.
func dissected(op peer.Op) bool {
	_, not := undissected[op]
	return op.Known() && !not && op.Service() != peer.RD
}

// misread reports whether tshark looks for the extended headers in the wrong place,
// as version 4.0 does behind an RDETH: of these only the BTH is compared, if it gets
// that far.
func misread(op peer.Op) bool { return op.Service() == peer.RD }

// upperProtocols guess at payload, and a wrong guess makes a good frame look
// malformed: they are switched off.
var upperProtocols = []string{"smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser",
	"infiniband.eoib", "infiniband_sdp", "fcoib", "drbd"}

// Tshark lets tshark read a capture and gives what it says of each frame that it
// takes for RoCE.
func Tshark(path string) ([]Row, error) {
	binary, err := exec.LookPath("tshark")
	if err != nil {
		return nil, ErrNoTshark
	}
	args := []string{"-n", "-r", path, "-Y", "infiniband.bth",
		"-T", "fields", "-E", "separator=/t", "-E", "occurrence=f",
		"-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.malformed"}
	for _, name := range upperProtocols {
		args = append(args, "--disable-protocol", name)
	}
	for _, field := range tsharkFields {
		args = append(args, "-e", field.name)
	}
	cmd := exec.Command(binary, args...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("tshark on %s: %w: %s", path, err, strings.TrimSpace(complaints.String()))
	}
	return tsharkRows(out.String())
}

// tsharkRows reads the lines that Tshark asked for.
func tsharkRows(out string) ([]Row, error) {
	var rows []Row
	for line := range strings.Lines(out) {
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 3+len(tsharkFields) {
			return nil, fmt.Errorf("tshark printed %d columns, want %d: %q", len(columns), 3+len(tsharkFields), line)
		}
		number, err := strconv.Atoi(columns[0])
		if err != nil {
			return nil, fmt.Errorf("tshark printed no frame number: %q", line)
		}
		if strings.Contains(columns[1], ":icmp") {
			continue // an error message that quotes a RoCE packet
		}
		row := Row{Frame: number, Malformed: columns[2], Values: map[string]string{}}
		for i, field := range tsharkFields {
			if text := columns[3+i]; text != "" {
				row.Values[field.name] = text
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// AgainstTshark compares every RoCE frame of a capture with what tshark reads in it.
func AgainstTshark(path string) ([]Finding, error) {
	rows, err := Tshark(path)
	if err != nil {
		return nil, err
	}
	frames, err := roceFrames(path, func(int, string) {})
	return compareRows(path, frames, rows), err
}

// compareRows compares frames with rows of the same number.
func compareRows(path string, frames []numbered, rows []Row) []Finding {
	byNumber := map[int]Row{}
	for _, row := range rows {
		byNumber[row.Frame] = row
	}
	var findings []Finding
	for _, f := range frames {
		row, ok := byNumber[f.number]
		if !ok && misread(f.frame.Op) {
			continue
		}
		if !ok {
			findings = append(findings, Finding{path, f.number, fmt.Sprintf("tshark does not take it for RoCE: %v", f.frame)})
			continue
		}
		for _, text := range compareRow(f.frame, row) {
			findings = append(findings, Finding{path, f.number, text})
		}
	}
	return findings
}

// compareRow names what tshark reads differently in a frame.
func compareRow(f *peer.Frame, row Row) []string {
	var bad []string
	known := dissected(f.Op)
	// Any other dissector's name there is a guess at payload, such as one byte 0x08 and its
	// pad taken for IP over InfiniBand: the outer headers were good, or tshark had not come to the BTH.
	if known && strings.Contains(row.Malformed, "Packet: IB]") {
		bad = append(bad, fmt.Sprintf("tshark says %s: %v", row.Malformed, f))
	}
	for _, field := range tsharkFields {
		if misread(f.Op) && !strings.HasPrefix(field.name, "infiniband.bth.") {
			continue
		}
		if field.headers != 0 && f.HeaderSet()&field.headers == 0 {
			if text, ok := row.Values[field.name]; ok && known {
				bad = append(bad, fmt.Sprintf("tshark reads %s=%s where there is none: %v", field.name, text, f))
			}
			continue
		}
		want := field.value(f)
		got, ok := row.Uint(field.name)
		switch {
		case ok && got != want:
			bad = append(bad, fmt.Sprintf("tshark reads %s=%s, the peer package 0x%x: %v", field.name, row.Values[field.name], want, f))
		case !ok && field.name == icrcField && f.DestQP <= 1:
			// Payload for these queue pairs is a MAD, behind which tshark stops.
		case !ok && known && row.Malformed == "":
			bad = append(bad, fmt.Sprintf("tshark reads no %s, the peer package 0x%x: %v", field.name, want, f))
		}
	}
	return bad
}
