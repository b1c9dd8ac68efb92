package judge

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/softnic/softnic/interop/peer"
)

// Entry is one frame in softnic's packet log.
type Entry struct {
	Line     int    `json:"-"`
	Dir      string `json:"dir"` // tx or rx
	Op       string `json:"op"`
	QPN      uint32 `json:"qpn"`
	PSN      uint32 `json:"psn"`
	Syndrome *uint8 `json:"syndrome"`
	Cause    string `json:"cause"`
}

// String is the entry in one line.
func (e Entry) String() string {
	s := fmt.Sprintf("%s %s qp=0x%06x psn=0x%06x", e.Dir, e.Op, e.QPN, e.PSN)
	if e.Syndrome != nil {
		s += fmt.Sprintf(" syndrome=%v", peer.Syndrome(*e.Syndrome))
	}
	if e.Cause != "" {
		s += fmt.Sprintf(" (%s)", e.Cause)
	}
	return s
}

// LogOf is the name that the packet log of a capture has: X.log.jsonl beside X.pcap.
func LogOf(capture string) string {
	for _, ext := range []string{".pcapng", ".pcap"} {
		if stem, ok := strings.CutSuffix(capture, ext); ok {
			return stem + ".log.jsonl"
		}
	}
	return capture + ".log.jsonl"
}

// ReadLog reads a packet log: softnic's addresses and the frames.
func ReadLog(path string) ([]netip.Addr, []Entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	var head struct {
		Addr []netip.Addr `json:"addr"`
	}
	var entries []Entry
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		if n == 1 {
			if err := json.Unmarshal(lines.Bytes(), &head); err != nil || len(head.Addr) == 0 {
				return nil, nil, fmt.Errorf("%s: line 1 gives no addresses as in {\"addr\":[\"10.8.0.2\"]}: %q", path, lines.Text())
			}
			continue
		}
		e := Entry{Line: n}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, nil, fmt.Errorf("%s: line %d: %w", path, n, err)
		}
		if e.Dir == "impaired" || e.Dir == "dropped" {
			continue // not sent: lost on purpose, or held back and in another line when it went
		}
		if e.Dir != "tx" && e.Dir != "rx" || e.Op == "" {
			return nil, nil, fmt.Errorf("%s: line %d is no frame: %q", path, n, lines.Text())
		}
		entries = append(entries, e)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	if head.Addr == nil {
		return nil, nil, fmt.Errorf("%s: empty", path)
	}
	return head.Addr, entries, nil
}

// AgainstLog compares the frames of a capture, in each direction, with softnic's
// packet log: the same frames in the same order. It reports where a direction first
// goes apart, and how many frames each side has.
func AgainstLog(capture, log string) ([]Finding, error) {
	own, entries, err := ReadLog(log)
	if err != nil {
		return nil, err
	}
	frames, err := roceFrames(capture, func(int, string) {})
	if err != nil {
		return nil, err
	}
	return compareLog(capture, frames, own, entries), nil
}

// compareLog compares frames and log entries, direction by direction.
func compareLog(capture string, frames []numbered, own []netip.Addr, entries []Entry) []Finding {
	wire := map[string][]numbered{}
	for _, f := range frames {
		dir := "rx"
		for _, a := range own {
			if f.frame.Src == a.Unmap().WithZone("") {
				dir = "tx"
			}
		}
		wire[dir] = append(wire[dir], f)
	}
	logged := map[string][]Entry{}
	for _, e := range entries {
		logged[e.Dir] = append(logged[e.Dir], e)
	}
	var findings []Finding
	for _, dir := range []string{"tx", "rx"} {
		if number, text := firstDifference(wire[dir], logged[dir]); text != "" {
			findings = append(findings, Finding{capture, number, fmt.Sprintf(
				"%s: %s (%d frames in the capture, %d in the log)", dir, text, len(wire[dir]), len(logged[dir]))})
		}
	}
	return findings
}

// firstDifference finds where frames and log entries go apart; text is empty if
// they do not.
func firstDifference(frames []numbered, entries []Entry) (number int, text string) {
	for i := range max(len(frames), len(entries)) {
		switch {
		case i >= len(entries):
			return frames[i].number, fmt.Sprintf("not in the log: %v", frames[i].frame)
		case i >= len(frames):
			return 0, fmt.Sprintf("not in the capture: line %d of the log, %v", entries[i].Line, entries[i])
		case !sameFrame(frames[i].frame, entries[i]):
			return frames[i].number, fmt.Sprintf("%v, but line %d of the log says %v", frames[i].frame, entries[i].Line, entries[i])
		}
	}
	return 0, ""
}

// sameFrame reports whether a log entry describes the frame.
func sameFrame(f *peer.Frame, e Entry) bool {
	hasAETH := f.HeaderSet().Has(peer.HasAETH)
	switch {
	case !sameOp(f.Op, e.Op), f.DestQP != e.QPN, f.PSN != e.PSN:
		return false
	case e.Syndrome != nil:
		return hasAETH && uint8(f.AETH.Syndrome) == *e.Syndrome
	default: // may be left out where it is always an ACK
		return !hasAETH || f.Op.Operation() != peer.OpAck
	}
}

// spellings turns the names that others use for operations into ours.
var spellings = strings.NewReplacer(
	"RDMA_", "",
	"_WITH_IMMEDIATE", "_IMM", "_WITH_IMM", "_IMM", "_IMMEDIATE", "_IMM",
	"_WITH_INVALIDATE", "_INV", "_WITH_INV", "_INV", "_INVALIDATE", "_INV",
	"READ_RESP_", "READ_RESPONSE_",
	"COMPARE_AND_SWAP", "COMPARE_SWAP", "CMP_AND_SWP", "COMPARE_SWAP", "CMP_SWAP", "COMPARE_SWAP",
	"FETCH_AND_ADD", "FETCH_ADD",
)

// sameOp reports whether name is a name of the opcode.
func sameOp(op peer.Op, name string) bool {
	name = strings.ToUpper(name)
	if v, err := strconv.ParseUint(strings.ToLower(strings.TrimPrefix(name, "OP_")), 0, 8); err == nil {
		return peer.Op(v) == op
	}
	name = spellings.Replace(name)
	if name == "ACK" || strings.HasSuffix(name, "_ACK") {
		name += "NOWLEDGE"
	}
	return name == op.String() || name == op.Short()
}
