package judge

import (
	"path/filepath"
	"testing"

	"github.com/softnic/softnic/interop/corpus"
)

// TestGoldenAsTshark puts the golden captures (package corpus) before tshark and the independent codec. It needs no VM.
func TestGoldenAsTshark(t *testing.T) {
	needTshark(t)
	dir := filepath.Join("..", "..", "testdata")
	index, err := corpus.Read(dir)
	check(t, err)
	for _, e := range index {
		path := filepath.Join(dir, e.File)
		findings, frames, err := All(path)
		check(t, err)
		said(t, findings)
		if frames == 0 {
			t.Errorf("%s has no RoCE frame", e.File)
		}
		if named := Injected(path) || FlushQuirk(path); named != (e.BadICRC != nil) {
			t.Errorf("%s: frames %v have a wrong ICRC, and the name says otherwise", e.File, e.BadICRC)
		}
		sameAsTshark(t, path)
	}
}
