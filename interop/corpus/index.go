package corpus

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Entry is a file of the corpus: a line of its index.
type Entry struct {
	File  string `json:"file"`  // its name
	Shows string `json:"shows"` // what there is to see
	By    string `json:"by"`    // whose packets they are
	How   string `json:"how"`   // what made it
	At    string `json:"at"`    // which end it was captured at

	// Rxe is the address of the kernel's device; the zero Addr: there is none.
	Rxe netip.Addr `json:"rxe,omitzero"`
	// Depth, Timeout and Retry are those of the queue pairs, as ibv_modify_qp has them (max_rd_atomic, timeout, retry_cnt); 0: not told.
	Depth   int `json:"depth,omitempty"`
	Timeout int `json:"timeout,omitempty"`
	Retry   int `json:"retry,omitempty"`
	// Lost says that packets were lost on purpose, or spoilt.
	Lost bool `json:"lost,omitempty"`
	// BadICRC has the numbers of the frames, from 1, that have a wrong ICRC.
	BadICRC []int `json:"bad_icrc,omitempty"`
	// Breaks has the rules of package trace/rules that are broken.
	Breaks []Break `json:"breaks,omitempty"`
	// NoReplay is why a replay cannot tell whether the answers are right, in words that it prints.
	NoReplay string `json:"no_replay,omitempty"`
}

// Break is a rule that somebody breaks in a file.
type Break struct {
	Rule    string `json:"rule"`
	Row     string `json:"row"`     // of interop/deviations.md
	Packets []int  `json:"packets"` // numbers of the frames, from 1
}

// The files that describe the corpus.
const (
	Index  = "index.jsonl"
	Readme = "README.md"
)

// Read returns the index of a folder, in its order.
func Read(dir string) ([]Entry, error) {
	f, err := os.Open(filepath.Join(dir, Index))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var l []Entry
	for s := bufio.NewScanner(f); s.Scan(); {
		var e Entry
		d := json.NewDecoder(strings.NewReader(s.Text()))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", f.Name(), len(l)+1, err)
		}
		l = append(l, e)
	}
	if len(l) == 0 {
		return nil, fmt.Errorf("%s: no file is listed", f.Name())
	}
	return l, nil
}

// Line is the entry as a line of the index, with its end.
func (e Entry) Line() ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(e)
	return []byte(b.String()), err
}

// Row is the entry as a row of the table in README.md; bytes and frames are the file's.
func (e Entry) Row(bytes int64, frames int) string {
	notes := ""
	for _, b := range e.Breaks {
		notes += fmt.Sprintf("; %s broken at %s (%s)", b.Rule, numbers(b.Packets), b.Row)
	}
	if e.BadICRC != nil {
		notes += "; wrong ICRC: " + numbers(e.BadICRC)
	}
	return fmt.Sprintf("| %s | %d | %d | %s%s | %s | %s | %s |\n", e.File, bytes, frames, e.Shows, notes, e.By, e.At, e.How)
}

func numbers(l []int) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(l), " ", ", "), "[]") }

// Head is the head of that table.
const Head = "| file | bytes | frames | shows | whose packets | captured at | made by |\n|---|---|---|---|---|---|---|\n"
