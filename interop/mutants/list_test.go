package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTexts: the text that a mutant replaces stands in its file exactly once. A change of the product that moves it
// is found here, not when the mutants run.
func TestTexts(t *testing.T) {
	if err := duplicates(mutants); err != nil {
		t.Error(err)
	}
	files := map[string]string{}
	for _, m := range mutants {
		if _, ok := files[m.file]; !ok {
			b, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
			if err != nil {
				t.Fatal(err)
			}
			files[m.file] = string(b)
		}
		if n := strings.Count(files[m.file], m.old); n != 1 {
			t.Errorf("%s: the text stands %d times in %s", m.name, n, m.file)
		}
		if m.old == m.new {
			t.Errorf("%s changes nothing", m.name)
		}
	}
}
