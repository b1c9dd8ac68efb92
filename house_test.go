package softnic_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"clock": {},
	"stats": {},
	"wire":  {"wire"},
	"link":  {"link", "wire", "stats", "clock"},
	"trace": {"trace", "wire", "stats"},
	// What plays on a NIC stands above it.
	"trace/stage":    {"device", "transport", "link", "wire", "clock"},
	"trace/scenario": {"trace/stage", "device", "transport", "wire"},
	"trace/replay":   {"trace", "device", "transport", "wire"},

	"tap":       {"link", "wire", "stats", "clock", "tap"},
	"transport": {"transport", "wire", "stats"},
	"device":    {"transport", "link", "wire", "stats", "clock"},
	"control":   {"device", "link", "stats", "wire"},
	"uverbs":    {"uverbs", "device", "transport"},
	"cmd":       {"cmd", "control", "uverbs", "device", "link", "tap", "trace", "transport", "wire", "stats", "clock"},
	"interop":   nil, // tests and their tools use everything
}

// external says who may import what from outside; the standard library and
// golang.org/x/sys are free. gopacket only where layers are offered to others or a
// capture is read.
var external = map[string][]string{
	"github.com/google/gopacket":      {"wire/layers", "interop"},
	"github.com/vishvananda/netlink":  {"tap", "cmd/softnic/bench", "interop"},
	"github.com/spf13/cobra":          {"cmd"},
	"github.com/spf13/pflag":          {"cmd"},
	"github.com/BurntSushi/toml":      {"cmd"},
	"github.com/google/go-cmp":        {"interop"},
	"gonum.org/v1/plot":               {"trace/picture", "interop/bench/steps"},
	"github.com/prometheus/client_go": {"stats/prom"},
}

func TestImportsRunOneWay(t *testing.T) {
	for _, p := range packages(t) {
		room, _, _ := strings.Cut(p.ImportPath, "/")
		if p.ImportPath == strings.TrimSuffix(module, "/") {
			continue
		}
		for r := range mayImport { // a room in a room
			if len(r) > len(room) && under(p.ImportPath, r) {
				room = r
			}
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

// manuals are the packages whose exported names a program meets: each has a comment, fields and constants too.
var manuals = []string{"device", "link", "stats", "transport", "tap", "clock"}

func TestExportedNamesHaveComments(t *testing.T) {
	for _, p := range packages(t) {
		if !under(p.ImportPath, manuals...) {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				for _, n := range uncommented(d) {
					t.Errorf("%s/%s: %s has no comment", p.ImportPath, name, n)
				}
			}
		}
	}
}

// uncommented lists the exported names of a declaration that no comment is about. One on a group of constants is about all of
// them; one on a type or a field about what it names, too.
func uncommented(d ast.Decl) (l []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
			l = append(l, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
						l = append(l, n.Name)
					}
				}
			case *ast.TypeSpec:
				if !s.Name.IsExported() {
					continue
				}
				if d.Doc == nil && s.Doc == nil {
					l = append(l, s.Name.Name)
				}
				l = append(l, uncommentedMembers(s, d.Doc.Text()+s.Doc.Text())...)
			}
		}
	}
	return l
}

func uncommentedMembers(s *ast.TypeSpec, said string) (l []string) {
	var fields *ast.FieldList
	switch x := s.Type.(type) {
	case *ast.StructType:
		fields = x.Fields
	case *ast.InterfaceType:
		fields = x.Methods
	default:
		return nil
	}
	for _, f := range fields.List {
		said += " " + f.Doc.Text() + f.Comment.Text()
	}
	for _, f := range fields.List {
		for _, n := range f.Names {
			if n.IsExported() && f.Doc == nil && f.Comment == nil && !regexp.MustCompile(`\b`+n.Name+`\b`).MatchString(said) {
				l = append(l, s.Name.Name+"."+n.Name)
			}
		}
	}
	return l
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// TestREADMECompiles builds the Go of the README, with what it takes for granted as parameters.
func TestREADMECompiles(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, code, ok := strings.Cut(string(b), "```go\n")
	code, _, end := strings.Cut(code, "```")
	if !ok || !end {
		t.Fatal("README.md has no Go")
	}
	src := `package snippet

import (
	"context"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
)

func snippet(endpoint link.Endpoint, buf []byte, psn uint32, remote device.Remote, va uint64, rkey uint32, wc []device.WC) (any, error) {
	_ = context.Background
` + code + "\n\treturn n, err\n}\n"
	file := filepath.Join(t.TempDir(), "snippet.go")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "snippet", "snippet.go"): file}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{file: []byte(src), file + ".json": overlay} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "build", "-overlay", file+".json", "./snippet").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, src)
	}
}
