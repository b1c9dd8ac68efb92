// Make writes the golden captures (package corpus) into a folder:
//
//	go run ./interop/corpus/make JOB DIR
//
// JOB is the job directory of a lab run of TestCorpus, whose files are taken with the lines beside them. The files that the kernel's
// device cannot make are made here, by two softnics on a pipe. make corpus calls it. It removes the captures that are in DIR, and
// changes nothing there but them, the index and the table of README.md.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/softnic/softnic/interop/corpus"
	"github.com/softnic/softnic/interop/judge"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("make: ")
	if len(os.Args) != 3 {
		log.Fatal("usage: make JOB DIR: the job directory of TestCorpus, and the folder of the corpus")
	}
	job, dir := os.Args[1], os.Args[2]
	all, err := taken(job)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s has no file of TestCorpus: run it in the lab with SOFTNIC_KEEP=1", job)
	}
	if err != nil {
		log.Fatal(err)
	}
	scratch, err := os.MkdirTemp("", "corpus")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(scratch)
	for _, o := range own {
		all = append(all, o.make(scratch))
	}
	if err := write(dir, all); err != nil {
		log.Fatal(err)
	}
}

// made is a file and where it is now.
type made struct {
	corpus.Entry
	path string
}

// taken finds the files of a lab run.
func taken(job string) (l []made, err error) {
	err = filepath.WalkDir(job, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".jsonl") || strings.HasSuffix(path, ".log.jsonl") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		m := made{path: strings.TrimSuffix(path, ".jsonl")}
		if err := json.Unmarshal(b, &m.Entry); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		l = append(l, m)
		return nil
	})
	return l, err
}

// write makes the folder anew.
func write(dir string, all []made) error {
	old, err := filepath.Glob(filepath.Join(dir, "*.pcap*"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	slices.SortFunc(all, func(a, b made) int { return strings.Compare(a.File, b.File) })
	var index bytes.Buffer
	table := corpus.Head
	for _, m := range all {
		b, err := os.ReadFile(m.path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, m.File), b, 0o644); err != nil {
			return err
		}
		line, err := m.Line()
		if err != nil {
			return err
		}
		index.Write(line)
		frames := 0
		if err := judge.Packets(m.path, func(judge.Packet) error { frames++; return nil }); err != nil {
			return err
		}
		table += m.Row(int64(len(b)), frames)
	}
	if err := os.WriteFile(filepath.Join(dir, corpus.Index), index.Bytes(), 0o644); err != nil {
		return err
	}
	readme := filepath.Join(dir, corpus.Readme)
	b, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	head, _, ok := strings.Cut(string(b), corpus.Head)
	if !ok {
		return fmt.Errorf("%s has no table of the files", readme)
	}
	return os.WriteFile(readme, []byte(head+table), 0o644)
}
