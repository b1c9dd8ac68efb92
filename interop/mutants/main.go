// Command mutants breaks named rules of the product, one at a time, and has the tests
// find out: a rule whose mutant survives is not tested.
//
// A mutant replaces one piece of text in one file by another, through the
// overlay of go test; nothing in the tree is changed. It is killed if the tests that are
// named for it fail. `make mutants` runs all of them from the root of the module.
//
//	go run ./interop/mutants [-run REGEXP] [-j N] [-v]
//
// The exit status is 1 if any survives, or is no mutant: its text is not found exactly once, or
// what comes out does not compile.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// mutant is one rule, broken.
type mutant struct {
	name     string
	file     string // from the root of the module
	old, new string // old stands in the file exactly once
	tests    string // which tests to run, as go test -run takes it; empty: all
	packages string // where they are, separated by spaces; empty: ./interop/cases
}

func main() {
	run := flag.String("run", "", "only mutants whose name matches this regular expression")
	jobs := flag.Int("j", max(1, runtime.NumCPU()/2), "mutants at the same time")
	verbose := flag.Bool("v", false, "print the first lines of what the tests said")
	flag.Parse()
	names, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	todo := slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool { return !names.MatchString(m.name) })
	if err := duplicates(mutants); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if out, err := baseline(todo); err != nil {
		fmt.Fprintf(os.Stderr, "the tests fail without a mutant already: %v\n%s", err, out)
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)

	var (
		wg   sync.WaitGroup
		next = make(chan int)
		bad  atomic.Int32
		mu   sync.Mutex
	)
	for range *jobs {
		wg.Go(func() {
			for i := range next {
				verdict, said := todo[i].try(filepath.Join(dir, fmt.Sprint(i)))
				mu.Lock()
				fmt.Println(verdict, todo[i].name)
				if verdict != "killed" {
					bad.Add(1)
				}
				if *verbose || verdict == "broken" {
					fmt.Print(said)
				}
				mu.Unlock()
			}
		})
	}
	for i := range todo {
		next <- i
	}
	close(next)
	wg.Wait()
	fmt.Printf("%d mutants, %d killed\n", len(todo), len(todo)-int(bad.Load()))
	if bad.Load() > 0 {
		os.RemoveAll(dir)
		os.Exit(1)
	}
}

// baseline runs the tests of the mutants with nothing broken.
func baseline(l []mutant) ([]byte, error) {
	var packages []string
	for _, m := range l {
		for _, p := range m.where() {
			if !slices.Contains(packages, p) {
				packages = append(packages, p)
			}
		}
	}
	if len(packages) == 0 {
		return nil, errors.New("no mutant has such a name")
	}
	return exec.Command("go", append([]string{"test", "-count=1"}, packages...)...).CombinedOutput()
}

// where is the packages of a mutant's tests.
func (m *mutant) where() []string {
	if m.packages == "" {
		return []string{"./interop/cases"}
	}
	return strings.Fields(m.packages)
}

// duplicates says whether two mutants have one name.
func duplicates(l []mutant) error {
	seen := map[string]bool{}
	for _, m := range l {
		if seen[m.name] {
			return fmt.Errorf("two mutants are called %s", m.name)
		}
		seen[m.name] = true
	}
	return nil
}

// try makes the mutant and runs its tests: "killed", "survived", or "broken" if it is no
// mutant, with the reason.
func (m *mutant) try(dir string) (verdict, said string) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "broken", err.Error() + "\n"
	}
	args := []string{"test", "-overlay", overlay, "-count=1", "-failfast", "-timeout=90s", "-vet=off"}
	if m.tests != "" {
		args = append(args, "-run", m.tests)
	}
	out, err := exec.Command("go", append(args, m.where()...)...).CombinedOutput()
	said = head(out, 12)
	var exit *exec.ExitError
	switch {
	case err == nil && bytes.Contains(out, []byte("no tests to run")):
		return "broken", "no test matches " + m.tests + "\n"
	case err == nil:
		return "survived", said
	case !errors.As(err, &exit):
		return "broken", err.Error() + "\n"
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return "broken", said
	}
	return "killed", said
}

// overlay writes the changed file and the description of it for go test.
func (m *mutant) overlay(dir string) (string, error) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(src), m.old); n != 1 {
		return "", fmt.Errorf("%s: found %d times, not once: %s", m.file, n, m.old)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o600)
}

// head is the first lines of an output, indented.
func head(out []byte, n int) string {
	lines := strings.SplitAfter(string(out), "\n")
	if len(lines) > n {
		lines = lines[:n]
	}
	var b strings.Builder
	for _, l := range lines {
		if strings.TrimSpace(l) != "" {
			b.WriteString("    " + strings.TrimRight(l, "\n") + "\n")
		}
	}
	return b.String()
}
