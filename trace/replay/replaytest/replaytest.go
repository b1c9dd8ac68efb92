package replaytest

import (
	"strings"
	"testing"

	"github.com/softnic/softnic/trace/replay"
)

// Capture replays a capture file, and fails the test for every answer that is different, or if there was nothing that could be
// compared: a capture in which all is unknown tests nothing. It returns what came of it.
func Capture(t testing.TB, file string, o replay.Options) *replay.Result {
	t.Helper()
	r, err := replay.File(file, o)
	if err != nil {
		t.Fatal(err)
		return nil
	}
	compared, deaf := 0, true
	for _, c := range r.Conversations {
		compared += c.Same + c.Declared + c.Different
		deaf = deaf && c.Service != "RC"
		for _, f := range c.Findings {
			if f.Verdict == replay.Different {
				t.Errorf("%s: %s  %v > %v: %v", file, c.Service, c.Requester, c.Responder, f)
			}
		}
	}
	if compared == 0 && !deaf {
		var b strings.Builder
		_ = r.Text(&b, true)
		t.Errorf("%s: no answer could be compared:\n%s", file, &b)
	}
	return r
}
