package judge

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/softnic/softnic/interop/peer"
)

// Finding is one thing that is wrong with a capture.
type Finding struct {
	File  string // path of the capture
	Frame int    // number of the frame, from 1 as tshark counts; 0: the file as a whole
	Text  string // what is wrong
}

// String is "file: frame 7: what is wrong".
func (f Finding) String() string {
	if f.Frame == 0 {
		return fmt.Sprintf("%s: %s", filepath.Base(f.File), f.Text)
	}
	return fmt.Sprintf("%s: frame %d: %s", filepath.Base(f.File), f.Frame, f.Text)
}

// Injected reports whether the file holds frames that are wrong on purpose.
func Injected(path string) bool {
	return strings.Contains(filepath.Base(path), "injected")
}

// FlushQuirk reports whether the kernel driver's ICRC on a FLUSH is accepted in
// the file.
func FlushQuirk(path string) bool {
	return strings.Contains(filepath.Base(path), "flushquirk")
}

// File asks of every RoCE frame of a capture whether it is well-formed and its ICRC
// right. The error says why the capture could not be read to its end.
func File(path string) ([]Finding, error) {
	var findings []Finding
	_, err := roceFrames(path, func(number int, text string) {
		findings = append(findings, Finding{path, number, text})
	})
	return findings, err
}

// All is [File], [AgainstTshark] and, where there is a log, [AgainstLog]. frames is
// how many RoCE frames the capture has.
func All(path string) (findings []Finding, frames int, err error) {
	good, err := roceFrames(path, func(number int, text string) {
		findings = append(findings, Finding{path, number, text})
	})
	if err != nil {
		return findings, len(good), err
	}
	rows, err := Tshark(path)
	if err != nil {
		return findings, len(good), err
	}
	findings = append(findings, compareRows(path, good, rows)...)
	if log := LogOf(path); exists(log) {
		own, entries, err := ReadLog(log)
		if err != nil {
			return findings, len(good), err
		}
		findings = append(findings, compareLog(path, good, own, entries)...)
	}
	return findings, len(good), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// numbered is a RoCE frame and its number in the capture.
type numbered struct {
	number int
	frame  *peer.Frame
}

// roceFrames reads the RoCE frames of a capture that can be parsed, and says what is
// wrong with them and with the others.
func roceFrames(path string, complain func(number int, text string)) ([]numbered, error) {
	injected, quirk := Injected(path), FlushQuirk(path)
	var frames []numbered
	err := Packets(path, func(p Packet) error {
		if p.Problem != "" {
			complain(p.Number, p.Problem)
			return nil
		}
		f, err := p.Parse()
		switch {
		case errors.Is(err, peer.ErrNotRoCE):
			return nil
		case err != nil:
			if !injected {
				complain(p.Number, err.Error())
			}
			return nil
		}
		frames = append(frames, numbered{p.Number, f})
		if injected {
			return nil
		}
		if f.ICRC != nil && quirk && peer.CheckRxeFlushICRC(f.Marshal()) {
			f = f.Clone()
			f.ICRC = nil
		}
		if bad := f.Irregular(); len(bad) != 0 {
			text := fmt.Sprintf("irregular (%s): %v", strings.Join(bad, ", "), f)
			if f.ICRC != nil && len(f.Payload) > largestMTU {
				text += " (longer than any MTU: a capture with segmentation offload on?)"
			}
			complain(p.Number, text)
		}
		return nil
	})
	return frames, err
}

// largestMTU is the largest path MTU of InfiniBand.
const largestMTU = 4096
