package replay

import (
	"os"
	"strconv"
	"testing"
)

func TestDbg(t *testing.T) {
	s, err := strconv.ParseUint(os.Getenv("DBG"), 10, 64)
	if err != nil {
		t.Skip()
	}
	for n, b := range record(t, s) {
		os.WriteFile("/tmp/dbg-"+n+".pcapng", b, 0o644)
	}
}
