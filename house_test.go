package softnic_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/softnic/softnic/"

type pkg struct {
	ImportPath string
	Name       string
	Doc        string
	Dir        string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Dir,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatal("go list:", err)
	}
	var l []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		l = append(l, p)
	}
	return l
}

// under reports whether a package is one of the rooms or stands below one.
func under(p string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return p == r || strings.HasPrefix(p, r+"/") })
}

// mayImport says which rooms of the house a room may use: imports run one way.
var mayImport = map[string][]string{
	"clock":     {},
	"stats":     {},
	"wire":      {"wire"},
	"link":      {"link", "wire", "stats", "clock"},
	"trace":     {"trace", "wire", "stats"},
	"tap":       {"link", "wire", "stats", "clock", "tap"},
	"transport": {"transport", "wire", "stats"},
	"device":    {"transport", "link", "wire", "stats", "clock"},
	"control":   {"device", "link", "stats", "wire"},
	"uverbs":    {"uverbs", "device", "transport"},
	"cmd":       {"cmd", "control", "uverbs", "device", "link", "tap", "transport", "trace", "wire", "stats", "clock"},
	"interop":   nil, // tests and their tools use everything
}

// external says who may import what from outside; the standard library and
// golang.org/x/sys are free. gopacket only where layers are offered to others or a
// capture is read.
var external = map[string][]string{
	"github.com/google/gopacket":      {"wire/layers", "cmd/softnic/demo", "interop"},
	"github.com/vishvananda/netlink":  {"tap", "interop"},
	"github.com/spf13/cobra":          {"cmd"},
	"github.com/google/go-cmp":        {"interop"},
	"gonum.org/v1/plot":               {"trace/picture"},
	"github.com/prometheus/client_go": {"stats/prom"},
}

func TestImportsRunOneWay(t *testing.T) {
	for _, p := range packages(t) {
		room, _, _ := strings.Cut(p.ImportPath, "/")
		if p.ImportPath == strings.TrimSuffix(module, "/") {
			continue
		}
		allowed, known := mayImport[room]
		if !known {
			t.Errorf("%s: the house has no such room; add it to mayImport and to ARCHITECTURE.md", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			if own, ok := strings.CutPrefix(i, module); ok {
				if allowed != nil && !under(own, allowed...) {
					t.Errorf("%s imports %s; %s may use %v", p.ImportPath, own, room, allowed)
				}
				if room != "interop" && under(own, "interop") {
					t.Errorf("%s imports %s: ground truth is for tests", p.ImportPath, own)
				}
				continue
			}
			for ext, rooms := range external {
				if strings.HasPrefix(i, ext) && !under(p.ImportPath, rooms...) {
					t.Errorf("%s imports %s; only %v may", p.ImportPath, i, rooms)
				}
			}
			if strings.Contains(i, ".") && !strings.HasPrefix(i, "golang.org/x/sys") &&
				!slices.ContainsFunc(keys(external), func(e string) bool { return strings.HasPrefix(i, e) }) {
				t.Errorf("%s imports %s: a new dependency needs its line in ARCHITECTURE.md and here", p.ImportPath, i)
			}
		}
	}
}

// TestEngineKnowsNoDevice holds the rule that later issues lean on most.
func TestEngineKnowsNoDevice(t *testing.T) {
	for _, p := range packages(t) {
		if !under(p.ImportPath, "transport") {
			continue
		}
		for _, i := range p.Imports {
			if slices.Contains([]string{"net", "os", "sync", "time"}, i) {
				t.Errorf("%s imports %s: engines have no I/O, no lock and no clock", p.ImportPath, i)
			}
		}
	}
}

func keys(m map[string][]string) []string {
	var l []string
	for k := range m {
		l = append(l, k)
	}
	return l
}

func TestEveryPackageHasADoc(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue
		}
		if p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
		if p.Name != "main" {
			if _, err := os.Stat(filepath.Join(p.Dir, "doc.go")); err != nil && len(p.GoFiles) > 1 {
				t.Errorf("%s: the package comment belongs into doc.go", p.ImportPath)
			}
		}
	}
}
