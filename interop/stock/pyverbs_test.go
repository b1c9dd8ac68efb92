//go:build linux

package stock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// suite is one of the kind that make pyverbs runs, in small: what must pass passes on the device, or does not.
const suite = `import sys, unittest
sys.argv = sys.argv[:1] + [a for a in sys.argv[1:] if a == "-v"]

class T(unittest.TestCase):
    def test_device(self):
        from pyverbs.device import get_device_list
        assert [d.name for d in get_device_list()] == [b"rxe_softnic0"]

    def test_skipped(self):
        self.skipTest("reason")

    def test_part(self):
        with self.subTest("of it"):
            assert False

T.__module__ = "tests.test_t"
unittest.main(module=sys.modules["__main__"])
`

// TestPyverbsScript has the judge of make pyverbs judge, for rdma-core's suite itself is not here.
func TestPyverbsScript(t *testing.T) {
	needStock(t)
	script, err := filepath.Abs("../pyverbs/run.py")
	if err != nil {
		t.Fatal(err)
	}
	dir, tmp := t.TempDir(), t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("run_tests.py", suite)
	run := func(argv ...string) result {
		t.Helper()
		o := options{Env: []string{"TMPDIR=" + tmp}}
		r := tool(t, o, append([]string{python, "-B", script, "--softnic", softnic, "--runs", "2"}, argv...)...)
		if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
			t.Errorf("left in the temporary folder: %v %v", left, err)
		}
		if left, err := filepath.Glob(dir + "/__pycache__"); err != nil || len(left) != 0 {
			t.Errorf("left in the suite: %v %v", left, err)
		}
		return r
	}
	const summary = "pyverbs: 1 passed, 1 failed, 1 skipped; "
	for _, c := range []struct {
		name, passes, skips string
		code                int
		want                []string
	}{
		{"good", "# where from\ntests.test_t.T.test_device\n", "1", 0, []string{summary + "1 of 1 expected", "tests.test_t.T.test_part failed; it is not expected to pass"}},
		{"too many skips", "tests.test_t.T.test_device\n", "0", 1, []string{summary + "1 of 1 expected", "1 skips are more than the 0 of rxe"}},
		{"a part failed", "tests.test_t.T.test_device\ntests.test_t.T.test_part\n", "1", 1, []string{summary + "1 of 2 expected", "test_part has to pass: it failed"}},
		{"skipped", "tests.test_t.T.test_skipped\n", "1", 1, []string{summary + "0 of 1 expected", "test_skipped has to pass: it was skipped"}},
		{"not there", "tests.test_t.T.test_gone\n", "1", 1, []string{summary + "0 of 1 expected", "test_gone has to pass: it did not run"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run("--passes", write("passes.txt", c.passes), "--skips", c.skips, dir)
			for _, want := range c.want {
				if strings.Count(r.Stdout, want) != 2 { // runs
					t.Errorf("%q is not there for each run", want)
				}
			}
			if r.Code != c.code || r.Stderr != "" || t.Failed() {
				t.Errorf("want exit code %d: %v", c.code, r)
			}
		})
	}
	for _, c := range []struct{ name, suite, want string }{
		{"it dies", "import os; os.abort()", "pyverbs: the suite ended with code -6"},
		{"it hangs", "import time; time.sleep(100)", "pyverbs: the suite did not end within 2 s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			write("run_tests.py", c.suite)
			if r := run("--limit", "2", dir); r.Code != 1 || !strings.Contains(r.Stdout, c.want) {
				t.Errorf("want exit code 1 and %q: %v", c.want, r)
			}
		})
	}
	for name, want := range map[string]string{
		"":  "pyverbs: say where the suite is: ",
		"/": "pyverbs: / has no run_tests.py: ",
	} {
		if r := run(name); r.Code != 1 || !strings.HasPrefix(r.Stderr, want) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("TESTS=%s: want one line %q...: %v", name, want, r)
		}
	}
}
