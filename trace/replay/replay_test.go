package replay

import (
	"path/filepath"
	"testing"
)

func TestCaptures(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/pcaps/*.pcap")
	for _, f := range files {
		r, err := File(f, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range r.Conversations {
			t.Logf("%s %+v", filepath.Base(f), c)
		}
	}
}
