package impair

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What a rule can say is in the manual, and in the comment of the package.
func TestDocumented(t *testing.T) {
	for _, file := range []string{"../../docs/impair.md", "doc.go"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		has := func(what, word string) {
			t.Helper()
			// As a word of its own, not as the end or the middle of another.
			end := `([^a-z-]|$)`
			if strings.HasSuffix(word, "=") {
				end = ""
			}
			if !regexp.MustCompile(`(^|[^a-z-])` + regexp.QuoteMeta(word) + end).MatchString(text) {
				t.Errorf("%s does not tell of %s %s", file, what, word)
			}
		}
		for _, a := range actions {
			has("action", a.name)
		}
		for w := range matchers {
			has("word", w+"=")
		}
		for _, f := range fields {
			has("field", f.name)
		}
		for n := range ecns {
			has("ecn", n)
		}
		for n := range answers {
			has("answer", n)
		}
	}
}
